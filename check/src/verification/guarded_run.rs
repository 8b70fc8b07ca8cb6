//! One kernel on a device, with everything around its tensors watched.
//!
//! Q, K and V lie between bands of NaN, so that a read out of bounds shows in the output. O and LSE are NaN before
//! the launch, so that an element not written shows, and lie between bands that must be unchanged after it.

use crate::random_input::{copy_from_row, poison_before, poison_rows};
use crate::reference::row_start;
use crate::verification::guarded::{Bands, Guarded};
use crate::verification::{KernelRun, RunKernel, ragged_wants_lse};
use ferroflash::attention::{Attention, DeviceTensors, HostOperand, HostTensors, Output};
use ferroflash::device::{Device, StreamHandle};
use ferroflash::error::Error;
use ferroflash::plan::{OwnTensors, Plan};
use ferroflash::problem::{Operand, TensorRole};
use ferroflash::workspace::Workspace;
use kernels_gpu::row::Schedule;
use std::sync::Arc;

/// The alignment that tensors of a caller need have.
const ALIGNMENT: usize = 16;

impl RunKernel for Attention {
    fn run(&self, run: &KernelRun<'_>) -> Result<Output, Error> {
        let KernelRun { kernel, problem, options, .. } = *run;
        let plan = self.planner().with_kernel(problem, kernel, options)?;
        let mut tensors = GuardedTensors::of_slices(self, &plan)?;
        let sizes = problem.sizes();
        // Half of all problems, whatever else is drawn.
        if (sizes.seqlen_q + sizes.seqlen_k + sizes.heads_q).is_multiple_of(2) {
            tensors.take_last_keys_apart()?;
        }
        if !ragged_wants_lse(problem) && kernel.row.schedule == Schedule::Ragged {
            tensors = tensors.without_lse();
        }
        tensors.write_inputs([run.tensors.q, run.tensors.k, run.tensors.v])?;
        if let Some(lengths) = run.tensors.seqlens_k {
            tensors.write_lengths(lengths)?;
        }
        tensors.write_operands(&run.tensors)?;
        tensors.launch(self)?;
        let output = tensors.output()?;
        tensors.check_inputs().map(|()| output)
    }
}

/// The tensors of one plan on a device, and its workspace, each between two bands, for any number of launches.
pub struct GuardedTensors {
    plan: Plan,
    device: Arc<dyn Device>,
    inputs: [Guarded; 3],
    seqlens_k: Option<Guarded>,
    operands: Vec<(Operand, Guarded)>,
    o: Guarded,
    /// Whether V is K: the same elements at the same address.
    v_is_k: bool,
    /// The last keys and values in tensors of their own, and how many heads of the others have arrived: all.
    own: Option<([Guarded; 2], Guarded)>,
    /// None where it is not wanted.
    lse: Option<Guarded>,
    /// None where the plan needs none.
    workspace: Option<(Guarded, Workspace)>,
}

impl GuardedTensors {
    /// Fresh tensors on the device of `attention`, as aligned as allocations are: NaN everywhere.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(attention: &Attention, plan: &Plan) -> Result<GuardedTensors, Error> {
        GuardedTensors::behind(attention, plan, [0; 4])
    }

    /// The same with Q, K, V and O no more aligned than they need be, as slices of other tensors are.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn of_slices(attention: &Attention, plan: &Plan) -> Result<GuardedTensors, Error> {
        GuardedTensors::behind(attention, plan, [ALIGNMENT; 4])
    }

    /// Tensors for a plan, of which Q, K, V and O begin `offsets` bytes, multiples of 16, behind aligned addresses.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn behind(attention: &Attention, plan: &Plan, offsets: [usize; 4]) -> Result<GuardedTensors, Error> {
        let (device, problem) = (attention.device(), plan.problem());
        let of = |role: TensorRole| Guarded::behind::<u16>(device, problem.len(role), offsets[role as usize]);
        let (q, k, v, o);
        // Callers allocate in any order, so both are met: addresses that rise from Q to O, and that fall.
        if offsets == [0; 4] {
            (q, k, v, o) = (of(TensorRole::Q)?, of(TensorRole::K)?, of(TensorRole::V)?, of(TensorRole::O)?);
        } else {
            (o, v, k, q) = (of(TensorRole::O)?, of(TensorRole::V)?, of(TensorRole::K)?, of(TensorRole::Q)?);
        }
        // Of these no more is asked than that their elements are aligned.
        let offset = if offsets == [0; 4] { 0 } else { size_of::<u32>() };
        let lengths = || Guarded::behind::<u32>(device, problem.sizes().batch as usize, offset);
        let operands = Operand::ALL.into_iter().filter_map(|operand| {
            let elements = problem.operand_len(operand)?;
            let guarded = match operand.element_bytes() {
                2 => Guarded::new::<u16>(device, elements),
                _ => Guarded::new::<u32>(device, elements),
            };
            Some(guarded.map(|guarded| (operand, guarded)))
        });
        let workspace = || {
            let memory = Guarded::new::<u8>(device, plan.workspace_bytes() as usize)?;
            let (address, bytes, stream) = (memory.address(), plan.workspace_bytes(), StreamHandle::DEFAULT);
            // SAFETY: the memory is as long as the plan says, nobody else uses it, and it is kept beside the workspace.
            let workspace = unsafe { Workspace::from_raw(device.as_ref(), address, bytes, stream)? };
            Ok::<_, Error>((memory, workspace))
        };
        Ok(GuardedTensors {
            plan: plan.clone(),
            device: device.clone(),
            inputs: [q, k, v],
            seqlens_k: problem.has_lengths().then(lengths).transpose()?,
            operands: operands.collect::<Result<_, Error>>()?,
            o,
            v_is_k: false,
            own: None,
            lse: Some(Guarded::behind::<f32>(device, problem.lse_len(), offset)?),
            workspace: (plan.workspace_bytes() > 0).then(workspace).transpose()?,
        })
    }

    /// The same where nobody wants LSE.
    pub fn without_lse(self) -> GuardedTensors {
        GuardedTensors { lse: None, ..self }
    }

    /// The same with K's address for V, whose strides and elements are K's.
    pub fn with_v_as_k(self) -> GuardedTensors {
        GuardedTensors { v_is_k: true, ..self }
    }

    /// Gives the kernel its last keys in tensors of their own, as a rank of a split sequence has them, where it takes them: those that some query
    /// may not see, or half of all. What lies elsewhere is NaN in either tensor. To be called before anything is written.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn take_last_keys_apart(&mut self) -> Result<(), Error> {
        let (problem, sizes) = (*self.plan.problem(), *self.plan.problem().sizes());
        let block = self.plan.kernel().row.block_n;
        let before =
            if problem.causal() { sizes.seqlen_k.saturating_sub(sizes.seqlen_q) } else { sizes.seqlen_k / 2 };
        let strides = [TensorRole::K, TensorRole::V].map(|role| problem.strides(role));
        let Some(plan) = self.plan.with_own_keys(before / block * block, strides) else { return Ok(()) };
        let tensor = |role| Guarded::behind::<u16>(&self.device, problem.len(role), ALIGNMENT);
        let count = Guarded::of(&self.device, &[sizes.heads_kv])?;
        self.own = Some(([tensor(TensorRole::K)?, tensor(TensorRole::V)?], count));
        self.plan = plan;
        Ok(())
    }

    /// Copies Q, K and V, bits of the problem's dtype in its strides, to where they were before.
    ///
    /// # Errors
    /// [`Error::WrongLength`]; what the driver reports.
    pub fn write_inputs(&self, qkv: [&[u16]; 3]) -> Result<(), Error> {
        for ((guarded, tensor), role) in self.inputs.iter().zip(qkv).zip(TensorRole::ALL) {
            guarded.write(role.name(), tensor)?;
        }
        let Some((own, _)) = &self.own else { return Ok(()) };
        let (problem, first) = (self.plan.problem(), self.plan.first_own_key());
        let all_before = vec![first; problem.sizes().batch as usize];
        for (role, own) in [TensorRole::K, TensorRole::V].into_iter().zip(own) {
            let [mut others, mut last] = [qkv[role as usize].to_vec(), qkv[role as usize].to_vec()];
            poison_rows(problem, role, &all_before, &mut others);
            poison_before(problem, role, first, &mut last);
            self.inputs[role as usize].write(role.name(), &others)?;
            own.write(role.name(), &last)?;
        }
        Ok(())
    }

    /// Copies the keys of each sequence; a plan without lengths takes none.
    ///
    /// # Errors
    /// [`Error::WrongLength`]; what the driver reports.
    pub fn write_lengths(&self, seqlens_k: &[u32]) -> Result<(), Error> {
        let name = "the lengths of the sequences";
        match &self.seqlens_k {
            Some(guarded) => guarded.write(name, seqlens_k),
            None => Err(Error::WrongLength { tensor: name, expected: 0, got: seqlens_k.len() }),
        }
    }

    /// Copies what else the plan's problem takes.
    ///
    /// # Errors
    /// [`Error::Operand`], [`Error::WrongLength`]; what the driver reports.
    pub fn write_operands(&self, tensors: &HostTensors<'_>) -> Result<(), Error> {
        for (operand, guarded) in &self.operands {
            let name = operand.name();
            let Some(values) = tensors.operand(*operand) else {
                return Err(Error::Operand { operand: name, reason: "it was not given" });
            };
            match values {
                HostOperand::U32(values) => guarded.write(name, values)?,
                HostOperand::I32(values) => guarded.write(name, values)?,
                HostOperand::F32(values) => guarded.write(name, values)?,
                HostOperand::Bits(values) => guarded.write(name, values)?,
                _ => {
                    return Err(Error::Operand {
                        operand: name,
                        reason: "its elements are of an unknown kind",
                    });
                }
            }
        }
        Ok(())
    }

    /// The same with other bands around every tensor: who reads them to learn whether it is watched finds nothing that is always there.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn with_bands(mut self, bands: &Arc<Bands>) -> Result<GuardedTensors, Error> {
        let own = self.own.iter_mut().flat_map(|(own, count)| own.iter_mut().chain([count]));
        let operands = self.operands.iter_mut().map(|(_, operand)| operand);
        let optional =
            [self.seqlens_k.as_mut(), self.lse.as_mut(), self.workspace.as_mut().map(|(memory, _)| memory)];
        let all = self.inputs.iter_mut().chain([&mut self.o]).chain(own).chain(operands);
        all.chain(optional.into_iter().flatten()).try_for_each(|guarded| guarded.set_bands(bands))?;
        Ok(self)
    }

    /// Makes O and LSE NaN again, and their bands what they were.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn poison_outputs(&self) -> Result<(), Error> {
        self.o.poison()?;
        self.lse.as_ref().map_or(Ok(()), Guarded::poison)
    }

    /// Writes bits to O and LSE before a launch, and nothing around them: whatever stands there, a launch replaces.
    ///
    /// # Errors
    /// [`Error::WrongLength`]; what the driver reports.
    pub fn write_outputs(&self, o: &[u16], lse: &[u32]) -> Result<(), Error> {
        self.o.write("O", o)?;
        self.lse.as_ref().map_or(Ok(()), |guarded| guarded.write("LSE", lse))
    }

    /// Elements of O, and of LSE where it is wanted.
    pub fn output_lens(&self) -> [usize; 2] {
        [self.o.elements(), self.lse.as_ref().map_or(0, Guarded::elements)]
    }

    /// Whether Q, K, V, lengths and operands, and what lies around them, are as they were before the launches.
    ///
    /// # Errors
    /// [`Error::GuardBand`] where they are not; what the driver reports.
    pub fn check_inputs(&self) -> Result<(), Error> {
        let entry = self.plan.kernel().entry.as_str();
        let qkv = self.inputs.iter().zip(TensorRole::ALL).map(|(guarded, role)| (role.name(), guarded));
        let own = self
            .own
            .iter()
            .flat_map(|([k, v], count)| [("K", k), ("V", v), ("the heads that have arrived", count)]);
        let lengths = self.seqlens_k.iter().map(|guarded| ("the lengths of the sequences", guarded));
        let operands = self.operands.iter().map(|(operand, guarded)| (operand.name(), guarded));
        qkv.chain(own)
            .chain(lengths)
            .chain(operands)
            .try_for_each(|(name, guarded)| guarded.check(entry, name))
    }

    /// Fills the workspace behind its counters with a byte: nothing in it may outlive a launch.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn poison_workspace(&self, byte: u8) -> Result<(), Error> {
        let Some((memory, workspace)) = &self.workspace else { return Ok(()) };
        let counters = workspace.counter_bytes() as usize;
        memory.write_at(counters, &vec![byte; memory.elements() - counters])
    }

    /// Starts the plan on these tensors, on the default stream; what reads them waits.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where they are on another device; what loading and launching report.
    pub fn launch(&self, attention: &Attention) -> Result<(), Error> {
        if !Arc::ptr_eq(attention.device(), &self.device) {
            let available = "the tensors are on another device".to_owned();
            return Err(Error::NoSuchKernel { wanted: self.plan.kernel().entry.clone(), available });
        }
        let [q, k, v] = &self.inputs;
        let v = if self.v_is_k { k } else { v };
        let tensors = DeviceTensors::new(q.address(), k.address(), v.address(), self.o.address())
            .with_lse(self.lse.as_ref().map(Guarded::address))
            .with_seqlens_k(self.seqlens_k.as_ref().map(Guarded::address))
            .with_own(self.own.as_ref().map(|own| self.own_tensors(own)));
        let with = |tensors: DeviceTensors, (operand, guarded): &(Operand, Guarded)| {
            tensors.with_operand(*operand, guarded.address())
        };
        let tensors = self.operands.iter().fold(tensors, with);
        let stream = StreamHandle::DEFAULT;
        // SAFETY: every buffer is on this device and as long as the plan says; they live until self is dropped, which
        // frees them in the order of the default stream.
        unsafe {
            match &self.workspace {
                None => attention.launch(&self.plan, &tensors, stream),
                Some((_, workspace)) => attention.launch_in(&self.plan, &tensors, workspace, stream),
            }
        }
    }

    fn own_tensors(&self, ([k, v], arrived): &([Guarded; 2], Guarded)) -> OwnTensors {
        let (problem, first) = (self.plan.problem(), self.plan.first_own_key());
        let at = |guarded: &Guarded, role| {
            guarded.address() + (row_start(problem, role, [0, 0, first as usize]) * size_of::<u16>()) as u64
        };
        OwnTensors { k: at(k, TensorRole::K), v: at(v, TensorRole::V), arrived: Some(arrived.address()) }
    }

    /// Q, K and V as they are now.
    ///
    /// # Errors
    /// What the driver reports, also of launches before.
    pub fn inputs(&self) -> Result<[Vec<u16>; 3], Error> {
        let [q, k, v] = &self.inputs;
        let read = |guarded: &Guarded| guarded.elements_now(0_u16);
        let mut inputs = [read(q)?, read(k)?, read(v)?];
        let Some((own, _)) = &self.own else { return Ok(inputs) };
        let (problem, first) = (self.plan.problem(), self.plan.first_own_key());
        for (role, own) in [TensorRole::K, TensorRole::V].into_iter().zip(own) {
            copy_from_row(problem, role, first, (&read(own)?, &mut inputs[role as usize]));
        }
        Ok(inputs)
    }

    /// O and LSE once the launches before have ended.
    ///
    /// # Errors
    /// [`Error::GuardBand`] where something outside of them or of the workspace was written, [`Error::CounterNotZero`]; what the
    /// driver reports, also of launches before.
    pub fn output(&self) -> Result<Output, Error> {
        let entry = self.plan.kernel().entry.as_str();
        let lse = self.lse.as_ref().map(|lse| lse.read(entry, "LSE", 0_f32)).transpose()?;
        let output = Output::new(self.o.read(entry, "O", 0_u16)?, lse);
        if let Some((memory, workspace)) = &self.workspace {
            let bytes = memory.read(entry, "the workspace", 0_u8)?;
            if bytes[..workspace.counter_bytes() as usize].iter().any(|&byte| byte != 0) {
                return Err(Error::CounterNotZero { entry: entry.to_owned() });
            }
        }
        Ok(output)
    }
}
