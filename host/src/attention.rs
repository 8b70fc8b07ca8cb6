//! The public call: attention on a device, from host tensors or device pointers.

use crate::device::cuda::CudaDevice;
use crate::device::sim::{SimDevice, SimOptions};
use crate::device::{Buffer, Device, L2Policy, Launch, LoadedKernel, StreamHandle};
use crate::error::Error;
use crate::module::{Code, Library, Source};
use crate::plan::{Addresses, Plan, PlanOptions, Planner};
use crate::problem::{ALIGNMENT_BYTES, Problem, TensorRole};
use crate::tensor_maps::TensorMaps;
use crate::workspace::{Workspace, Workspaces};
use kernels_gpu::manifest::Kernel;
use kernels_gpu::params::WgmmaParams;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// The oldest compute capability that the kernels run on.
const SM_MIN: u32 = 80;

/// How to open a CUDA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// The folder of compiled kernels; searched for where it is `None`, as [`Library::find`] says.
    pub ptx: Option<PathBuf>,
    /// The device's number, counted from 0.
    pub ordinal: u32,
    /// What stays in the L2 cache.
    pub l2: L2Policy,
}

/// What attention computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// O as bit patterns of the problem's dtype, `[batch, heads_q, seqlen_q, head_dim]` in the problem's strides; gaps between
    /// strided rows are 0.
    pub o: Vec<u16>,
    /// LSE, natural logarithm, `[batch, heads_q, seqlen_q]`, where it was asked for.
    pub lse: Option<Vec<f32>>,
}

/// Q, K and V on the host, as bit patterns of a problem's dtype in its strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTensors<'a> {
    /// Q, [`Problem::q_len`] elements.
    pub q: &'a [u16],
    /// K, [`Problem::k_len`] elements.
    pub k: &'a [u16],
    /// V, [`Problem::v_len`] elements.
    pub v: &'a [u16],
    /// Keys of each sequence, `[batch]`: there where the problem says so ([`Problem::with_lengths`]) and only there.
    pub seqlens_k: Option<&'a [u32]>,
}

impl<'a> HostTensors<'a> {
    /// Of Q, K and V in this order.
    pub fn new(qkv: &'a [Vec<u16>; 3], seqlens_k: Option<&'a [u32]>) -> HostTensors<'a> {
        let [q, k, v] = qkv;
        HostTensors { q, k, v, seqlens_k }
    }
}

/// Tensors on the device, by the address of their first element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTensors {
    /// Q, 16-byte aligned, [`Problem::q_len`] elements.
    pub q: u64,
    /// K, 16-byte aligned, [`Problem::k_len`] elements.
    pub k: u64,
    /// V, 16-byte aligned, [`Problem::v_len`] elements.
    pub v: u64,
    /// O, 16-byte aligned, [`Problem::o_len`] elements.
    pub o: u64,
    /// LSE in float32, 4-byte aligned, [`Problem::lse_len`] elements, where it is wanted.
    pub lse: Option<u64>,
    /// Keys of each sequence, u32 `[batch]`, 4-byte aligned: there where the problem says so ([`Problem::with_lengths`]) and only there.
    /// The kernel takes a length over seqlen_k for seqlen_k.
    pub seqlens_k: Option<u64>,
}

/// A device with its kernels, each loaded when it is first needed. Any number of threads may share one.
pub struct Attention {
    device: Arc<dyn Device>,
    library: Arc<Library>,
    /// Kernels loaded so far, by entry, with what they were loaded from.
    loaded: RwLock<HashMap<String, (LoadedKernel, Source)>>,
    planner: Planner,
    workspaces: Workspaces,
    tensor_maps: TensorMaps,
}

impl Attention {
    /// Opens a CUDA device and the folder of compiled kernels.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::UnsupportedDevice`], [`Error::NoKernels`], [`Error::BadKernels`], [`Error::NoL2ToSetAside`].
    pub fn cuda(options: &CudaOptions) -> Result<Attention, Error> {
        let device = CudaDevice::open(options.ordinal, options.l2)?;
        let library = Library::find(options.ptx.as_deref())?;
        Attention::new(Arc::new(device), Arc::new(library))
    }

    /// Opens the simulator and the folder of compiled kernels (`ptx`, searched for where it is `None`).
    ///
    /// # Errors
    /// [`Error::NoKernels`], [`Error::BadKernels`].
    pub fn simulator(ptx: Option<&Path>, options: SimOptions) -> Result<Attention, Error> {
        Attention::new(Arc::new(SimDevice::new(options)), Arc::new(Library::find(ptx)?))
    }

    /// Attention on any device with kernels from any folder.
    ///
    /// # Errors
    /// [`Error::UnsupportedDevice`].
    pub fn new(device: Arc<dyn Device>, library: Arc<Library>) -> Result<Attention, Error> {
        let info = device.info();
        if info.sm < SM_MIN {
            return Err(Error::UnsupportedDevice { name: info.name.clone(), sm: info.sm });
        }
        let planner = Planner::new(&library, info);
        Ok(Attention {
            device,
            library,
            loaded: RwLock::default(),
            planner,
            workspaces: Workspaces::default(),
            tensor_maps: TensorMaps::default(),
        })
    }

    /// Computes one problem without lengths from host tensors, as bit patterns of its dtype in its strides, and returns O, and LSE where
    /// `want_lse`. Copies to the device and back, and waits. Where the plan needs a workspace, the default stream keeps it.
    ///
    /// # Errors
    /// [`Error::WrongLength`], [`Error::OutOfMemory`], [`Error::NoSuchKernel`], and what loading and launching report.
    pub fn forward(
        &self,
        problem: &Problem,
        q: &[u16],
        k: &[u16],
        v: &[u16],
        want_lse: bool,
    ) -> Result<Output, Error> {
        self.forward_with(&self.plan(problem)?, &HostTensors { q, k, v, seqlens_k: None }, want_lse)
    }

    /// As [`Attention::forward`], for the plan's problem and with the plan's kernels.
    ///
    /// # Errors
    /// Those of [`Attention::forward`]; [`Error::Lengths`], [`Error::LengthTooLong`], and [`Error::WrongLength`] where there is not one
    /// length a sequence.
    pub fn forward_with(
        &self,
        plan: &Plan,
        tensors: &HostTensors<'_>,
        want_lse: bool,
    ) -> Result<Output, Error> {
        let problem = plan.problem();
        let HostTensors { q, k, v, seqlens_k } = *tensors;
        for (role, tensor) in [(TensorRole::Q, q), (TensorRole::K, k), (TensorRole::V, v)] {
            let (expected, got) = (problem.len(role), tensor.len());
            if got != expected {
                return Err(Error::WrongLength { tensor: role.name(), expected, got });
            }
        }
        if let Some(seqlens_k) = seqlens_k {
            problem.check_lengths(seqlens_k)?;
        }
        let q = Buffer::from_elements(&self.device, q)?;
        let k = Buffer::from_elements(&self.device, k)?;
        let v = Buffer::from_elements(&self.device, v)?;
        let o = Buffer::new(&self.device, problem.o_len() as u64 * u64::from(problem.dtype().bytes()))?;
        if problem.o_len() != problem.elements(TensorRole::O) {
            o.fill(0)?;
        }
        let lse = want_lse.then(|| Buffer::new(&self.device, problem.lse_len() as u64 * 4)).transpose()?;
        let seqlens_k = seqlens_k.map(|lengths| Buffer::from_elements(&self.device, lengths)).transpose()?;
        let tensors = DeviceTensors {
            q: q.address(),
            k: k.address(),
            v: v.address(),
            o: o.address(),
            lse: lse.as_ref().map(Buffer::address),
            seqlens_k: seqlens_k.as_ref().map(Buffer::address),
        };
        // SAFETY: every buffer is as long as the problem says and lives until the reads below, which wait for the launches.
        unsafe { self.launch(plan, &tensors, StreamHandle::DEFAULT)? };
        let mut output = Output { o: vec![0; problem.o_len()], lse: None };
        o.read(0, &mut output.o)?;
        if let Some(lse) = lse {
            let mut values = vec![0f32; problem.lse_len()];
            lse.read(0, &mut values)?;
            output.lse = Some(values);
        }
        Ok(output)
    }

    /// Starts one problem on tensors that are on the device already, on the caller's stream, and returns: it waits for nothing and
    /// allocates nothing, but for the first use of a kernel, which loads it ([`Attention::preload`] does that before), and of a stream,
    /// which gives it a workspace where the plan needs one ([`Attention::reserve`] does that before). With both done before, it is two
    /// launches at most, and can be captured into a graph.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::Lengths`], [`Error::ForeignStream`], [`Error::AllocationInCapture`], [`Error::NoSuchKernel`], and
    /// what loading and launching report.
    ///
    /// # Safety
    /// Each address is on this device and allocated for as many elements as the problem says until the launch ends, nothing
    /// writes the inputs or touches the outputs meanwhile, the outputs overlap nothing, and `stream` lives. Where the plan needs a
    /// workspace, which the stream keeps: its work is done when `self` is dropped, and before the stream is destroyed or
    /// [`Attention::release`] is called.
    pub unsafe fn forward_device(
        &self,
        problem: &Problem,
        tensors: &DeviceTensors,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let plan = self.plan(problem)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch(&plan, tensors, stream) }
    }

    /// As [`Attention::forward_device`], for the plan's problem and with the plan's kernels.
    ///
    /// # Errors
    /// Those of [`Attention::forward_device`].
    ///
    /// # Safety
    /// As [`Attention::forward_device`].
    pub unsafe fn launch(
        &self,
        plan: &Plan,
        tensors: &DeviceTensors,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        check_tensors(plan, tensors)?;
        // SAFETY: the caller's promise.
        unsafe {
            self.device.check_stream(stream)?;
            match plan.workspace_bytes() {
                0 => self.enqueue(plan, tensors, 0, stream),
                needed => {
                    let workspace = self.workspaces.get(&self.device, needed, stream)?;
                    let _enqueue = workspace.enqueue(needed, stream)?;
                    self.enqueue(plan, tensors, workspace.address(), stream)
                }
            }
        }
    }

    /// As [`Attention::launch`], in the caller's workspace, on its stream.
    ///
    /// # Errors
    /// Those of [`Attention::launch`], [`Error::WorkspaceTooSmall`].
    ///
    /// # Safety
    /// As [`Attention::forward_device`]; the workspace is of this device, and lives until the launch ends.
    pub unsafe fn launch_in(
        &self,
        plan: &Plan,
        tensors: &DeviceTensors,
        workspace: &Workspace,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        check_tensors(plan, tensors)?;
        // SAFETY: the caller's promise.
        unsafe {
            self.device.check_stream(stream)?;
            let _enqueue = workspace.enqueue(plan.workspace_bytes(), stream)?;
            self.enqueue(plan, tensors, workspace.address(), stream)
        }
    }

    /// # Safety
    /// As [`Attention::launch`]; the workspace is as large as the plan needs, and no other call's launches come between.
    unsafe fn enqueue(
        &self,
        plan: &Plan,
        tensors: &DeviceTensors,
        workspace: u64,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let DeviceTensors { q, k, v, o, lse, seqlens_k } = *tensors;
        let (lse, seqlens_k) = (lse.unwrap_or(0), seqlens_k.unwrap_or(0));
        let addresses = Addresses { q, k, v, o, lse, seqlens_k, workspace };
        // Both before the first launch, so that a kernel that does not load leaves nothing half done.
        let kernel = self.preload(plan)?;
        let combine = plan.combine().map(|combine| self.load(combine, |loaded| loaded.0)).transpose()?;
        let params = self.params(plan, &addresses)?;
        let launch = Launch {
            grid: plan.grid(),
            params: params.bytes(),
            l2_window: plan.l2_window(k, v),
            overlaps: plan.overlaps(),
        };
        // SAFETY: the kernels were loaded on this device and take this one parameter; the addresses are the caller's promise.
        unsafe {
            self.device.launch(&kernel, &launch, stream)?;
            let Some(combine) = combine else { return Ok(()) };
            let params = plan.combine_params(&addresses).to_bytes();
            let launch =
                Launch { grid: plan.combine_grid(), params: &params, l2_window: None, overlaps: false };
            self.device.launch(&combine, &launch, stream)
        }
    }

    /// The parameter of a plan's kernel: with tensor maps where its copies need them.
    fn params(&self, plan: &Plan, addresses: &Addresses) -> Result<Params, Error> {
        let forward = plan.params(addresses);
        let Some(tensors) = plan.tensors(addresses) else { return Ok(Params::new(&forward.to_bytes())) };
        let [q, k, v] = self.tensor_maps.get(self.device.as_ref(), &tensors)?;
        Ok(Params::new(&WgmmaParams { forward, q, k, v }.to_bytes()))
    }

    /// Gives a stream the workspace that a plan needs and loads its kernels, so that launches allocate nothing: to be called before a
    /// capture. A workspace that is too small is replaced; graphs captured before keep the old one. Waits for the default stream where it
    /// allocates.
    ///
    /// # Errors
    /// [`Error::AllocationInCapture`], [`Error::OutOfMemory`], [`Error::ForeignStream`], and those of [`Attention::preload`].
    ///
    /// # Safety
    /// As [`Attention::forward_device`] says of the stream.
    pub unsafe fn reserve(&self, plan: &Plan, stream: StreamHandle) -> Result<(), Error> {
        self.preload(plan)?;
        if let Some(combine) = plan.combine() {
            self.load(combine, |_| ())?;
        }
        if plan.workspace_bytes() > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.workspaces.get(&self.device, plan.workspace_bytes(), stream)? };
        }
        Ok(())
    }

    /// Gives back what [`Attention::reserve`] and launches took for a stream, of a thread's own default stream
    /// ([`StreamHandle::PER_THREAD`]) the calling thread's.
    ///
    /// # Safety
    /// All work on the stream is done, and no graph that was captured from it is replayed again.
    pub unsafe fn release(&self, stream: StreamHandle) {
        self.workspaces.release(stream);
    }

    /// The plan that measurements prefer for a problem on this device.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn plan(&self, problem: &Problem) -> Result<Plan, Error> {
        self.planner.plan(problem, const { &PlanOptions::new() })
    }

    /// The plans of the rows selected; never an empty list.
    ///
    /// # Errors
    /// Those of [`Planner::plans`].
    pub fn plans(&self, problem: &Problem, options: &PlanOptions) -> Result<Vec<Plan>, Error> {
        self.planner.plans(problem, options)
    }

    /// What plans for this device, with other options and with reasons.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Loads a plan's kernel unless it is loaded, and returns it.
    ///
    /// # Errors
    /// [`Error::PtxRejected`], [`Error::DriverTooOld`], [`Error::BadKernels`], [`Error::Io`].
    pub fn preload(&self, plan: &Plan) -> Result<LoadedKernel, Error> {
        self.load(plan.kernel(), |loaded| loaded.0)
    }

    /// What a plan's kernel is loaded from: "cubin sm_90" or "PTX sm_80". Loads it unless it is loaded, as a cubin that the
    /// driver refuses gives way to PTX.
    ///
    /// # Errors
    /// Those of [`Attention::preload`].
    pub fn kernel_source(&self, plan: &Plan) -> Result<String, Error> {
        self.source_of(plan.kernel())
    }

    /// As [`Attention::kernel_source`], for any kernel of the library.
    ///
    /// # Errors
    /// Those of [`Attention::preload`], [`Error::NoSuchKernel`] where the kernel is for other devices.
    pub fn source_of<R>(&self, kernel: &Kernel<R>) -> Result<String, Error> {
        self.load(kernel, |loaded| loaded.1.to_string())
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        &self.device.info().name
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The folder of compiled kernels.
    pub fn library(&self) -> &Library {
        &self.library
    }

    fn load<R, T>(
        &self,
        kernel: &Kernel<R>,
        take: impl Fn(&(LoadedKernel, Source)) -> T,
    ) -> Result<T, Error> {
        // A thread that panicked while holding the lock left a complete map.
        if let Some(loaded) = self.loaded.read().unwrap_or_else(PoisonError::into_inner).get(&kernel.entry) {
            return Ok(take(loaded));
        }
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have loaded it between the locks.
        if let Some(loaded) = loaded.get(&kernel.entry) {
            return Ok(take(loaded));
        }
        let sm = self.device.info().sm;
        let Some(source) = self.library.source(kernel, sm) else {
            let available = format!("it is compiled for {}, the device is sm_{sm}", kernel.family);
            return Err(Error::NoSuchKernel { wanted: kernel.entry.clone(), available });
        };
        let fresh = self.load_from(kernel, source)?;
        let taken = take(&fresh);
        loaded.insert(kernel.entry.clone(), fresh);
        Ok(taken)
    }

    fn load_from<R>(&self, kernel: &Kernel<R>, source: Source) -> Result<(LoadedKernel, Source), Error> {
        let image = self.library.image(kernel, &source)?;
        match self.device.load(&image) {
            Ok(loaded) => Ok((loaded, source)),
            // A driver that cannot read the machine code may still compile the PTX.
            Err(_) if matches!(image.code, Code::Cubin(_)) => {
                let source = Source::Ptx { family: kernel.family.clone() };
                let image = self.library.image(kernel, &source)?;
                Ok((self.device.load(&image)?, source))
            }
            Err(error) => Err(error),
        }
    }
}

/// The bytes of a kernel's one parameter, whichever it is.
struct Params {
    bytes: [u8; size_of::<WgmmaParams>()],
    length: usize,
}

impl Params {
    fn new(of: &[u8]) -> Params {
        let mut params = Params { bytes: [0; size_of::<WgmmaParams>()], length: of.len() };
        params.bytes[..of.len()].copy_from_slice(of);
        params
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

fn check_tensors(plan: &Plan, tensors: &DeviceTensors) -> Result<(), Error> {
    for (tensor, address) in [("Q", tensors.q), ("K", tensors.k), ("V", tensors.v), ("O", tensors.o)] {
        check_address(tensor, address, ALIGNMENT_BYTES)?;
    }
    check_address("LSE", tensors.lse.unwrap_or(0), size_of::<f32>() as u64)?;
    check_address("seqlens_k", tensors.seqlens_k.unwrap_or(0), size_of::<u32>() as u64)?;
    let reason = match (plan.problem().has_lengths(), tensors.seqlens_k) {
        (true, None | Some(0)) => "the problem has lengths on the device, and no address of them was given",
        (false, Some(_)) => "lengths were given, and the problem has none: plan Problem::with_lengths",
        _ => return Ok(()),
    };
    Err(Error::Lengths { reason })
}

fn check_address(tensor: &'static str, address: u64, required: u64) -> Result<(), Error> {
    if !address.is_multiple_of(required) {
        return Err(Error::Misaligned { tensor, what: "address", value: address.into(), required });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::model::DeviceModel;
    use crate::device::tests::{CAPTURING, FOREIGN, Recorder};
    use crate::device::{DeviceInfo, L2Window};
    use crate::module::tests::library;
    use crate::plan::tests::{ROW, SPLIT, WGMMA};
    use crate::plan::{COUNTERS_BYTES, Combine, Splits};
    use crate::problem::{ElementStrides, Sizes};
    use kernels_gpu::params::{CombineParams, ForwardParams, SplitParams};
    use kernels_gpu::row::Dtype;
    use std::mem::offset_of;

    const SIZES: Sizes =
        Sizes { batch: 1, heads_q: 4, heads_kv: 2, seqlen_q: 65, seqlen_k: 599, head_dim: 64 };
    const TENSORS: DeviceTensors =
        DeviceTensors { q: 1 << 12, k: 1 << 16, v: 1 << 18, o: 1 << 20, lse: None, seqlens_k: None };

    fn setup() -> (Arc<Recorder>, Attention, Problem) {
        let device = Recorder::new(89, 58);
        let attention = Attention::new(device.clone(), library(&[ROW])).expect("new enough");
        (device, attention, Problem::new(SIZES, Dtype::F16).expect("valid"))
    }

    fn setup_split() -> (Arc<Recorder>, Attention, Problem) {
        let device = Recorder::new(89, 58);
        let attention = Attention::new(device.clone(), library(&[ROW, SPLIT])).expect("new enough");
        (device, attention, Problem::new(SIZES, Dtype::F16).expect("valid"))
    }

    fn in_splits(splits: u32) -> PlanOptions {
        PlanOptions { splits: Splits::Count(splits), combine: Combine::Kernel, ..PlanOptions::new() }
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    #[test]
    fn forward_launches_once_with_its_buffers_and_frees_them() {
        let (device, attention, problem) = setup();
        let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
        for want_lse in [true, false] {
            let output = attention.forward(&problem, &q, &kv, &kv, want_lse).expect("computed");
            assert_eq!(output.o.len(), problem.o_len());
            assert_eq!(output.lse.map(|lse| lse.len()), want_lse.then_some(problem.lse_len()));
        }
        assert_eq!(device.allocated(), 0);
        assert_eq!(*device.loads.lock().expect("unpoisoned"), [ROW.entry_name()], "loaded once");
        let launches = device.launches.lock().expect("unpoisoned");
        let [(grid, with_lse, _), (_, without, _)] = launches.as_slice() else {
            panic!("{} launches", launches.len())
        };
        assert_eq!(*grid, 4 * 2);
        assert_ne!(u64_at(with_lse, offset_of!(ForwardParams, lse)), 0);
        assert_eq!(u64_at(without, offset_of!(ForwardParams, lse)), 0);
        let pointers: Vec<u64> = (0..4).map(|i| u64_at(with_lse, 8 * i)).collect();
        assert!(pointers.windows(2).all(|pair| pair[0] < pair[1]), "Q, K, V, O in this order: {pointers:?}");
    }

    #[test]
    fn gaps_of_a_strided_output_are_zero() {
        let (_, attention, problem) = setup();
        let strides = ElementStrides { batch: 4 * 65 * 72, head: 65 * 72, row: 72, dim: 1 };
        let problem = problem.with_strides(TensorRole::O, strides).expect("valid");
        let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
        let output = attention.forward(&problem, &q, &kv, &kv, false).expect("computed");
        assert_eq!(output.o[64..72], [0; 8]);
    }

    #[test]
    fn wrong_lengths_and_misaligned_addresses_launch_nothing() {
        let (device, attention, problem) = setup();
        let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
        let error = attention.forward(&problem, &q, &kv[1..], &kv, false).expect_err("K is short");
        assert!(matches!(error, Error::WrongLength { tensor: "K", .. }), "{error}");
        let good = DeviceTensors { q: 256, k: 512, v: 768, o: 1024, lse: Some(2048), seqlens_k: None };
        let bad = [
            ("Q", DeviceTensors { q: 258, ..good }),
            ("O", DeviceTensors { o: 1032, ..good }),
            ("LSE", DeviceTensors { lse: Some(2), ..good }),
        ];
        for (name, tensors) in bad {
            // SAFETY: the recorder runs nothing.
            let error = unsafe { attention.forward_device(&problem, &tensors, StreamHandle::DEFAULT) };
            assert!(matches!(error, Err(Error::Misaligned { tensor, .. }) if tensor == name), "{name}");
        }
        assert!(device.launches.lock().expect("unpoisoned").is_empty());
        // SAFETY: the recorder runs nothing.
        unsafe { attention.forward_device(&problem, &good, StreamHandle::DEFAULT) }.expect("launched");
        assert_eq!(device.launches.lock().expect("unpoisoned").len(), 1);
    }

    #[test]
    fn splits_are_two_launches_in_a_workspace_that_the_stream_keeps() {
        let (device, attention, problem) = setup_split();
        let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
        let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
        let tensors = HostTensors { q: &q, k: &kv, v: &kv, seqlens_k: None };
        for _ in 0..3 {
            attention.forward_with(&plan, &tensors, true).expect("computed");
        }
        assert_eq!(device.allocated(), 1, "the workspace");
        let launches = device.launches.lock().expect("unpoisoned");
        let grids: Vec<u32> = launches.iter().map(|(grid, ..)| *grid).collect();
        assert_eq!(grids, [plan.grid(), plan.combine_grid()].repeat(3));
        let split = offset_of!(ForwardParams, split) + offset_of!(SplitParams, partial_o);
        let partial_o = u64_at(&launches[0].1, split);
        assert_eq!(partial_o, u64_at(&launches[1].1, offset_of!(CombineParams, partial_o)));
        assert_eq!(partial_o, u64_at(&launches[4].1, split), "the same each time");
        assert!(partial_o.is_multiple_of(256));
        assert_eq!(device.loads.lock().expect("unpoisoned").len(), 2, "each kernel once");
    }

    #[test]
    fn splits_that_merge_themselves_are_one_launch() {
        let (device, attention, problem) = setup_split();
        let options = PlanOptions { combine: Combine::Fused, ..in_splits(3) };
        let plan = attention.planner().plan(&problem, &options).expect("planned");
        // SAFETY: the recorder runs nothing.
        unsafe {
            attention.reserve(&plan, StreamHandle::DEFAULT).expect("memory");
            attention.launch(&plan, &TENSORS, StreamHandle::DEFAULT).expect("launched");
        }
        let launches = device.launches.lock().expect("unpoisoned");
        let [(grid, params, _)] = launches.as_slice() else { panic!("{} launches", launches.len()) };
        assert_eq!((*grid, plan.splits()), (plan.grid(), 3));
        let split = offset_of!(ForwardParams, split);
        let at = |field| u64_at(params, split + field);
        let counters = at(offset_of!(SplitParams, counters));
        assert!(counters.is_multiple_of(256) && counters != 0);
        assert_eq!(at(offset_of!(SplitParams, partial_o)), counters + COUNTERS_BYTES);
        assert_eq!(*device.loads.lock().expect("unpoisoned"), [SPLIT.entry_name()], "no kernel merges");
    }

    #[test]
    fn each_stream_has_a_workspace_and_outgrown_ones_are_kept() {
        let (device, attention, problem) = setup_split();
        let plan = |splits| attention.planner().plan(&problem, &in_splits(splits)).expect("planned");
        let [one, other] = [0x1000, 0x2000].map(|raw| StreamHandle::from_raw(raw as *mut _));
        // SAFETY: the recorder's streams are numbers.
        unsafe {
            attention.reserve(&plan(2), one).expect("memory");
            attention.reserve(&plan(2), other).expect("memory");
            attention.reserve(&plan(2), one).expect("there already");
            assert_eq!(device.allocated(), 2);
            attention.reserve(&plan(4), one).expect("memory");
            assert_eq!(device.allocated(), 3, "a captured graph may hold the old one");
            attention.launch(&plan(4), &TENSORS, one).expect("launched");
            attention.launch(&plan(1), &TENSORS, CAPTURING).expect("needs no workspace");
            assert_eq!(device.allocated(), 3);
            attention.release(one);
            assert_eq!(device.allocated(), 1);
            let handles = [(); 2].map(|()| {
                std::thread::scope(|scope| {
                    scope
                        .spawn(|| attention.reserve(&plan(2), StreamHandle::PER_THREAD).expect("memory"))
                        .join()
                })
            });
            assert!(handles.iter().all(Result::is_ok));
            assert_eq!(device.allocated(), 3, "each thread's own default stream is another one");
        }
    }

    #[test]
    fn nothing_is_allocated_while_a_stream_is_captured() {
        let (device, attention, problem) = setup_split();
        let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
        // SAFETY: the recorder's streams are numbers.
        let refused = unsafe { attention.launch(&plan, &TENSORS, CAPTURING) }.expect_err("no workspace yet");
        assert!(matches!(refused, Error::AllocationInCapture { needed } if needed == plan.workspace_bytes()));
        assert!(refused.to_string().contains("call Attention::reserve"), "{refused}");
        // SAFETY: as above; the memory is a number.
        let refused = unsafe { Workspace::from_raw(device.as_ref(), 1 << 32, 1 << 20, CAPTURING) };
        assert!(matches!(refused.err(), Some(Error::AllocationInCapture { .. })));
        assert_eq!(device.allocated() + device.launches.lock().expect("unpoisoned").len(), 0);
    }

    #[test]
    fn a_callers_workspace_must_be_large_enough_aligned_and_of_its_stream() {
        let (device, attention, problem) = setup_split();
        let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
        let needed = plan.workspace_bytes();
        let shared: Arc<dyn Device> = device.clone();
        let memory = Buffer::new(&shared, needed + 512).expect("memory");
        let stream = StreamHandle::from_raw(0x1000 as *mut _);
        // SAFETY: the recorder runs nothing, and the memory outlives the workspaces.
        unsafe {
            let at = |address, bytes| Workspace::from_raw(device.as_ref(), address, bytes, stream);
            let misaligned = at(memory.address() + 16, needed).err().expect("refused");
            assert!(misaligned.to_string().contains("the workspace is misaligned"), "{misaligned}");
            let tiny = at(memory.address(), 255).err().expect("refused");
            assert!(matches!(tiny, Error::WorkspaceTooSmall { needed: 256, got: 255 }), "{tiny}");
            let launch = |workspace: &Workspace, on| attention.launch_in(&plan, &TENSORS, workspace, on);

            let small = at(memory.address(), needed - 1).expect("as such valid");
            let error = launch(&small, stream).expect_err("too small");
            assert!(
                matches!(error, Error::WorkspaceTooSmall { needed: n, got } if (n, got) == (needed, needed - 1)),
                "{error}"
            );
            memory.fill(0xee).expect("filled");
            let good = at(memory.address() + 256, needed).expect("valid");
            let mut start = vec![0xff_u8; COUNTERS_BYTES as usize + 1];
            memory.read(256, &mut start).expect("read");
            let last = start.pop();
            assert_eq!((start.iter().max(), last), (Some(&0), Some(0xee)), "the counters are zeroed");
            let error = launch(&good, StreamHandle::DEFAULT).expect_err("another stream");
            assert!(matches!(error, Error::WorkspaceStream { bound: 0x1000, got: 0 }), "{error}");
            assert!(error.to_string().contains("make one for each stream"), "{error}");
            assert!(device.launches.lock().expect("unpoisoned").is_empty());
            launch(&good, stream).expect("launched");
            assert_eq!(device.launches.lock().expect("unpoisoned").len(), 2);
        }
        assert_eq!(device.allocated(), 1, "the caller's");
    }

    #[test]
    fn no_call_comes_between_the_two_launches_of_another() {
        let (device, attention, problem) = setup_split();
        let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
        let calls = || {
            for _ in 0..100 {
                // SAFETY: the recorder runs nothing.
                unsafe { attention.launch(&plan, &TENSORS, StreamHandle::DEFAULT) }.expect("launched");
            }
        };
        std::thread::scope(|scope| [(); 4].map(|()| scope.spawn(calls)).map(|thread| thread.join().is_ok()));
        let launches = device.launches.lock().expect("unpoisoned");
        let pair = [plan.grid(), plan.combine_grid()];
        let grids: Vec<u32> = launches.iter().map(|(grid, ..)| *grid).collect();
        assert_eq!(grids, pair.repeat(400));
    }

    #[test]
    fn a_stream_of_another_context_is_refused() {
        let (device, attention, problem) = setup_split();
        let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
        // SAFETY: the recorder's streams are numbers.
        unsafe {
            let whole = attention.planner().plan(&problem, &in_splits(1)).expect("planned");
            for plan in [&plan, &whole] {
                let launched = attention.launch(plan, &TENSORS, FOREIGN);
                assert!(matches!(launched, Err(Error::ForeignStream { .. })));
            }
            assert!(matches!(attention.reserve(&plan, FOREIGN), Err(Error::ForeignStream { .. })));
        }
        assert_eq!(device.allocated() + device.launches.lock().expect("unpoisoned").len(), 0);
    }

    #[test]
    fn lengths_are_taken_where_the_problem_has_them_and_only_there() {
        let (device, attention, problem) = setup_split();
        let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
        let lengths = problem.with_lengths(true);
        let plan = attention.plan(&lengths).expect("planned");
        let forward = |plan: &Plan, seqlens_k| {
            let tensors = HostTensors { q: &q, k: &kv, v: &kv, seqlens_k };
            attention.forward_with(plan, &tensors, false)
        };
        let error = forward(&plan, Some(&[SIZES.seqlen_k + 1])).expect_err("too long");
        assert_eq!(error.to_string(), "sequence 0 has 600 keys, its K and V hold 599");
        let error = forward(&plan, Some(&[1, 2])).expect_err("one sequence");
        assert!(matches!(error, Error::WrongLength { tensor: "seqlens_k", expected: 1, got: 2 }), "{error}");
        assert!(matches!(forward(&plan, None), Err(Error::Lengths { .. })));
        let without = attention.plan(&problem).expect("planned");
        assert!(matches!(forward(&without, Some(&[1])), Err(Error::Lengths { .. })));
        let misaligned = DeviceTensors { seqlens_k: Some(4098), ..TENSORS };
        // SAFETY: nothing is launched.
        let error = unsafe { attention.launch(&plan, &misaligned, StreamHandle::DEFAULT) };
        assert!(matches!(error, Err(Error::Misaligned { tensor: "seqlens_k", required: 4, .. })));
        assert!(device.launches.lock().expect("unpoisoned").is_empty());
        forward(&plan, Some(&[0])).expect("a sequence without keys");
        let at = offset_of!(ForwardParams, split) + offset_of!(SplitParams, seqlens_k);
        assert_ne!(u64_at(&device.launches.lock().expect("unpoisoned")[0].1, at), 0);
    }

    #[test]
    fn k_and_v_are_named_to_a_device_that_keeps_them() {
        let info = DeviceInfo { l2_window_bytes: 1 << 30, ..Recorder::new(89, 58).info().clone() };
        let device = Arc::new(Recorder::with_info(info));
        let attention = Attention::new(device.clone(), library(&[ROW, SPLIT])).expect("new enough");
        let problem = Problem::new(SIZES, Dtype::F16).expect("valid");
        let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
        // SAFETY: the recorder runs nothing.
        unsafe { attention.launch(&plan, &TENSORS, StreamHandle::DEFAULT) }.expect("launched");
        let launches = device.launches.lock().expect("unpoisoned");
        let bytes = TENSORS.v - TENSORS.k + 2 * problem.v_len() as u64;
        assert_eq!(launches[0].2, Some(L2Window { address: TENSORS.k, bytes }));
        assert_eq!(launches[1].2, None, "the combine kernel reads neither");
    }

    #[test]
    fn tensor_maps_lie_in_the_parameter_and_are_made_once() {
        use kernels_gpu::params::WgmmaParams;
        let device = Arc::new(Recorder::with_info(DeviceModel::H200.info()));
        let attention = Attention::new(device.clone(), library(&[WGMMA])).expect("new enough");
        let problem = Problem::new(Sizes { head_dim: 128, ..SIZES }, Dtype::F16).expect("valid");
        let plan = attention.plan(&problem).expect("planned");
        let launch = |tensors: &DeviceTensors, stream| {
            // SAFETY: the recorder runs nothing.
            unsafe { attention.launch(&plan, tensors, stream) }.expect("launched");
            device.encoded()
        };
        attention.preload(&plan).expect("loaded");
        assert_eq!(launch(&TENSORS, StreamHandle::DEFAULT), 3);
        assert_eq!(launch(&TENSORS, CAPTURING), 3, "known by now");
        assert_eq!(launch(&DeviceTensors { o: 1 << 22, ..TENSORS }, StreamHandle::DEFAULT), 3, "O has none");
        assert_eq!(launch(&DeviceTensors { v: 1 << 19, ..TENSORS }, StreamHandle::DEFAULT), 4);
        assert_eq!(device.allocated(), 0);
        let launches = device.launches.lock().expect("unpoisoned");
        for (_, bytes, _) in launches.iter() {
            assert_eq!(bytes.len(), size_of::<WgmmaParams>());
        }
        let [first, last] = [&launches[0].1, &launches[3].1];
        assert_eq!(first, &launches[1].1, "the maps go by value");
        let map = |bytes: &[u8], at: usize| [0, 8, 16].map(|word| u64_at(bytes, at + word));
        assert_eq!(map(first, offset_of!(WgmmaParams, q)), [TENSORS.q, 128, 1]);
        assert_eq!(map(first, offset_of!(WgmmaParams, k)), [TENSORS.k, 128, 599]);
        assert_eq!(map(first, offset_of!(WgmmaParams, v)), [TENSORS.v, 128, 599]);
        assert_eq!(map(last, offset_of!(WgmmaParams, v))[0], 1 << 19);
        let forward = offset_of!(WgmmaParams, forward);
        assert_eq!(u64_at(first, forward + offset_of!(ForwardParams, o)), TENSORS.o);
        assert_eq!(*device.loads.lock().expect("unpoisoned"), [WGMMA.entry_name()]);
    }

    #[test]
    fn a_device_older_than_the_kernels_is_refused() {
        let error = Attention::new(Recorder::new(75, 40), library(&[ROW])).err().expect("refused");
        assert!(matches!(error, Error::UnsupportedDevice { sm: 75, .. }), "{error}");
    }
}
