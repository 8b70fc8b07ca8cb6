//! The backward pass on a device, from host tensors or device pointers.

use super::Attention;
use super::call::{Call, Queue};
use super::operands::{HostOperands, check_tensors};
use super::tensors::DeviceTensors;
use crate::addresses::aligned;
use crate::backward::{Backward, BackwardTensors, GradientInputs, Gradients, gradient_name};
use crate::device::{Buffer, LoadedKernel, StreamHandle};
use crate::error::Error;
use crate::plan::backward::BackwardPlan;
use crate::problem::{ALIGNMENT_BYTES, Operand, TensorRole};
use crate::workspace::Workspace;
use kernels_gpu::backward::params::WgmmaBackwardParams;
use kernels_gpu::steps::StepRow;

impl Attention {
    /// The plan of a backward pass on this device.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`], [`Error::TooLarge`].
    pub fn plan_backward(&self, backward: &Backward) -> Result<BackwardPlan, Error> {
        BackwardPlan::new(backward, &self.library, self.device.info())
    }

    /// Computes gradients from host tensors. Copies to the device and back, and waits; the default stream keeps the workspace.
    ///
    /// # Errors
    /// [`Error::WrongLength`], [`Error::OutOfMemory`], [`Error::NoSuchKernel`], those of lengths and operands as
    /// [`Attention::forward_with`], and what loading and launching report.
    pub fn backward(&self, backward: &Backward, inputs: &GradientInputs<'_>) -> Result<Gradients, Error> {
        let plan = self.plan_backward(backward)?;
        let problem = backward.problem();
        let GradientInputs { tensors, o, lse, d_o, d_lse } = *inputs;
        let given = [
            ("Q", problem.q_len(), tensors.q.len()),
            ("K", problem.k_len(), tensors.k.len()),
            ("V", problem.v_len(), tensors.v.len()),
            ("O", problem.o_len(), o.len()),
            ("LSE", problem.lse_len(), lse.len()),
            ("dO", backward.len(TensorRole::O), d_o.len()),
            ("the gradient of LSE", problem.lse_len(), d_lse.map_or(problem.lse_len(), <[f32]>::len)),
        ];
        for (tensor, expected, got) in given {
            if got != expected {
                return Err(Error::WrongLength { tensor, expected, got });
            }
        }
        if let Some(seqlens_k) = tensors.seqlens_k {
            problem.check_lengths(seqlens_k)?;
        }
        tensors.check_operands(problem)?;
        let copied = |elements| Buffer::from_elements(&self.device, elements);
        let [q, k, v, o, d_o] =
            [copied(tensors.q)?, copied(tensors.k)?, copied(tensors.v)?, copied(o)?, copied(d_o)?];
        let lse = Buffer::from_elements(&self.device, lse)?;
        let d_lse = d_lse.map(|d_lse| Buffer::from_elements(&self.device, d_lse)).transpose()?;
        let seqlens_k =
            tensors.seqlens_k.map(|lengths| Buffer::from_elements(&self.device, lengths)).transpose()?;
        let operands = HostOperands::new(&self.device, &tensors)?;
        let gradient = |role| {
            let buffer =
                Buffer::new(&self.device, backward.len(role) as u64 * u64::from(problem.dtype().bytes()))?;
            // Gaps, and rows that belong to no sequence.
            buffer.fill(0)?;
            Ok::<_, Error>(buffer)
        };
        let gradients = [gradient(TensorRole::Q)?, gradient(TensorRole::K)?, gradient(TensorRole::V)?];
        let forward = DeviceTensors::new(q.address(), k.address(), v.address(), o.address())
            .with_lse(Some(lse.address()))
            .with_seqlens_k(seqlens_k.as_ref().map(Buffer::address));
        let [d_q, d_k, d_v] = &gradients;
        let at = [d_q.address(), d_k.address(), d_v.address()];
        let heads = problem.sizes().heads_q as usize;
        let d_sinks = problem
            .has_sinks()
            .then(|| Buffer::new(&self.device, (heads * size_of::<f32>()) as u64))
            .transpose()?;
        let bias_len = problem.operand_len(Operand::Bias);
        let d_bias = bias_len
            .map(|elements| {
                let bytes = elements as u64 * u64::from(Operand::Bias.element_bytes());
                Buffer::new(&self.device, bytes)
            })
            .transpose()?;
        let tensors = BackwardTensors::new(operands.at(forward), d_o.address(), at)
            .with_d_lse(d_lse.as_ref().map(Buffer::address))
            .with_d_sinks(d_sinks.as_ref().map(Buffer::address))
            .with_d_bias(d_bias.as_ref().map(Buffer::address));
        // SAFETY: every buffer is as long as the problem says and lives until the reads below, which wait for the launches.
        unsafe { self.backward_device(&plan, &tensors, StreamHandle::DEFAULT)? };
        let read_elements = |buffer: &Buffer<_>, length| {
            let mut elements = vec![0; length];
            buffer.read(0, &mut elements).map(|()| elements)
        };
        let read = |buffer: &Buffer<_>, role| read_elements(buffer, backward.len(role));
        let read_sinks = |buffer: Buffer<_>| {
            let mut sinks = vec![0.0; heads];
            buffer.read(0, &mut sinks).map(|()| sinks)
        };
        let sinks = d_sinks.map(read_sinks).transpose()?;
        let bias = d_bias.zip(bias_len).map(|(bias, length)| read_elements(&bias, length)).transpose()?;
        let [q, k, v] = [read(d_q, TensorRole::Q)?, read(d_k, TensorRole::K)?, read(d_v, TensorRole::V)?];
        Ok(Gradients::new(q, k, v).with_sinks(sinks).with_bias(bias))
    }

    /// Starts a backward pass on tensors that are on the device already, on the caller's stream, and returns: it waits for nothing and
    /// allocates nothing, but for the first use of its kernels and of the stream's workspace ([`Attention::reserve_backward`] does both
    /// before). It is two launches, or where dS is kept one and those of [`BackwardPlan::steps`] for each of [`BackwardPlan::chunks`], and
    /// one more for the gradient of sinks and for that of a bias; all can be captured into a graph.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::Lengths`], [`Error::Operand`] where LSE is missing, [`Error::ForeignStream`],
    /// [`Error::AllocationInCapture`], and what loading and launching report.
    ///
    /// # Safety
    /// As [`Attention::forward_device`], for all tensors of [`BackwardTensors`]: dQ, dK and dV overlap nothing.
    pub unsafe fn backward_device(
        &self,
        plan: &BackwardPlan,
        tensors: &BackwardTensors,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.call(plan, tensors, None, stream) }
    }

    /// As [`Attention::backward_device`], in the caller's workspace, on its stream.
    ///
    /// # Errors
    /// Those of [`Attention::backward_device`], [`Error::WorkspaceTooSmall`].
    ///
    /// # Safety
    /// As [`Attention::backward_device`]; the workspace is of this device, and lives until the launches end.
    pub unsafe fn backward_in(
        &self,
        plan: &BackwardPlan,
        tensors: &BackwardTensors,
        workspace: &Workspace,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.call(plan, tensors, Some(workspace), stream) }
    }

    /// Gives a stream the workspace that a backward pass needs and loads its kernels, as [`Attention::reserve`] does for the forward pass.
    ///
    /// # Errors
    /// Those of [`Attention::reserve`].
    ///
    /// # Safety
    /// As [`Attention::forward_device`] says of the stream.
    pub unsafe fn reserve_backward(&self, plan: &BackwardPlan, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.reserve_call(plan, stream) }
    }
}

/// The kernels of a backward pass.
pub(super) struct BackwardKernels {
    /// The step before the others that computes the statistics of all queries, where they keep dS.
    statistics: Option<LoadedKernel>,
    steps: Vec<LoadedKernel>,
    /// The step behind them that adds up dK and dV, where several CTAs share a block of keys.
    sums: Option<LoadedKernel>,
    /// The step that computes the gradient of sinks.
    sinks: Option<LoadedKernel>,
    /// The one that computes the gradient of the bias.
    bias: Option<LoadedKernel>,
}

impl Call for BackwardPlan {
    type Tensors = BackwardTensors;
    type Kernels = BackwardKernels;

    fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes()
    }

    fn check(&self, tensors: &BackwardTensors) -> Result<(), Error> {
        check_backward(self, tensors)
    }

    fn kernels(&self, attention: &Attention) -> Result<BackwardKernels, Error> {
        let dtype = self.backward().problem().dtype();
        let step = |is_launched: bool, row| is_launched.then(|| attention.step(row)).transpose();
        Ok(BackwardKernels {
            statistics: step(self.statistics_ctas().is_some(), StepRow::statistics(dtype))?,
            steps: self.steps().iter().map(|of| attention.loaded(of.kernel())).collect::<Result<_, _>>()?,
            sums: step(self.sum_ctas().is_some(), StepRow::sum_gradients(dtype))?,
            sinks: step(self.sink_ctas().is_some(), StepRow::SINK_GRADIENT)?,
            bias: step(self.bias_ctas().is_some(), StepRow::bias_gradient(dtype))?,
        })
    }

    unsafe fn enqueue(
        &self,
        kernels: &BackwardKernels,
        tensors: &BackwardTensors,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        let Attention { tensor_maps, device, .. } = queue.attention;
        let maps = |step| {
            let boxes = self.tensors(step, tensors);
            boxes.map(|boxes| tensor_maps.get(device.as_ref(), &boxes)).transpose()
        };
        let maps = (0..self.steps().len()).map(maps).collect::<Result<Vec<_>, _>>()?;
        let workspace = queue.workspace;
        // SAFETY: the caller's promise; each launch works on what those before it left in the workspace.
        unsafe {
            if let Some((kernel, ctas)) = kernels.statistics.zip(self.statistics_ctas()) {
                queue.run(&kernel, ctas, &self.params(tensors, workspace).to_bytes())?;
            }
            for (step, backward) in self.launches(tensors, workspace) {
                let (kernel, grid) = (&kernels.steps[step], self.steps()[step].grid());
                match maps[step] {
                    None => queue.run(kernel, grid, &backward.to_bytes())?,
                    Some([q, d_o, k, v]) => {
                        let params = WgmmaBackwardParams { q, d_o, k, v, backward };
                        queue.run(kernel, grid, &params.to_bytes())?;
                    }
                }
            }
            if let Some((kernel, ctas)) = kernels.sums.zip(self.sum_ctas()) {
                queue.run(&kernel, ctas, &self.params(tensors, workspace).to_bytes())?;
            }
            if let Some((kernel, (grid, params))) = kernels.sinks.zip(self.sink_gradient(tensors, workspace))
            {
                queue.run(&kernel, grid, &params.to_bytes())?;
            }
            match kernels.bias.zip(self.bias_gradient(tensors, workspace)) {
                Some((kernel, (grid, params))) => queue.run(&kernel, grid, &params.to_bytes()),
                None => Ok(()),
            }
        }
    }
}

/// Refuses addresses that are not aligned, and operands that the problem does not take.
fn check_backward(plan: &BackwardPlan, tensors: &BackwardTensors) -> Result<(), Error> {
    check_tensors(plan.backward().problem(), &tensors.forward)?;
    if tensors.forward.lse.unwrap_or(0) == 0 {
        let reason = "the backward pass reads it: have the forward pass write it";
        return Err(Error::Operand { operand: "LSE", reason });
    }
    let BackwardTensors { d_o, d_q, d_k, d_v, d_lse, .. } = *tensors;
    let roles = [(TensorRole::O, d_o), (TensorRole::Q, d_q), (TensorRole::K, d_k), (TensorRole::V, d_v)];
    for (role, address) in roles {
        if address == 0 {
            return Err(Error::Operand { operand: gradient_name(role), reason: "its address is null" });
        }
        aligned(gradient_name(role), address, ALIGNMENT_BYTES)?;
    }
    let d_sinks = tensors.d_sinks.unwrap_or(0);
    if d_sinks != 0 && !plan.backward().problem().has_sinks() {
        return Err(Error::Operand { operand: "the gradient of sinks", reason: "the problem has no sinks" });
    }
    aligned("the gradient of sinks", d_sinks, size_of::<f32>() as u64)?;
    let d_bias = tensors.d_bias.unwrap_or(0);
    if d_bias != 0 && plan.bias_ctas().is_none() {
        return Err(Error::Operand {
            operand: "the gradient of the bias",
            reason: "the problem has no bias",
        });
    }
    aligned("the gradient of the bias", d_bias, Operand::Bias.element_bytes().into())?;
    aligned("the gradient of LSE", d_lse.unwrap_or(0), size_of::<f32>() as u64)
}
