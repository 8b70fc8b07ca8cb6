//! The public call: attention on a device, from host tensors or device pointers.

mod backward;
mod call;
mod forward;
mod kept_plans;
mod operands;
mod steps;
mod tensors;

pub use tensors::{DeviceTensors, HostOperand, HostTensors, OperandValues, Output};

use crate::device::cuda::CudaDevice;
#[cfg(feature = "sim")]
use crate::device::sim::{SimDevice, SimOptions};
use crate::device::{Buffer, Device, L2Policy, LoadedKernel, StreamHandle};
use crate::error::Error;
use crate::module::{Code, Library, Source};
use crate::plan::partial::{PartialPlan, PartialStates};
use crate::plan::profile::Profile;
use crate::plan::{Plan, PlanOptions, Planner};
use crate::problem::{Problem, TensorRole};
use crate::tensor_maps::TensorMaps;
use crate::workspace::{Workspace, Workspaces};
use foldhash::HashMap;
use kept_plans::KeptPlans;
use kernels_gpu::manifest::Kernel;
use operands::HostOperands;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

/// The oldest compute capability that the kernels run on.
const SM_MIN: u32 = 80;

/// How to open a CUDA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// The folder of compiled kernels; searched for where it is `None`, as [`Library::find`] says.
    pub ptx: Option<PathBuf>,
    /// The device's number, counted from 0.
    pub ordinal: u32,
    /// What stays in the L2 cache.
    pub l2: L2Policy,
    /// Folders of kernels of your own scores: [`Library::with_scores`].
    pub scores: Vec<PathBuf>,
}

impl CudaOptions {
    /// The same with the kernels of this folder; searched for where it is `None`.
    pub fn with_ptx(self, ptx: Option<PathBuf>) -> CudaOptions {
        CudaOptions { ptx, ..self }
    }

    /// The same with the kernels of your own scores in this folder beside the others: [`Library::with_scores`].
    pub fn with_scores(mut self, folder: PathBuf) -> CudaOptions {
        self.scores.push(folder);
        self
    }

    /// The same for the device of this number.
    pub fn with_ordinal(self, ordinal: u32) -> CudaOptions {
        CudaOptions { ordinal, ..self }
    }

    /// The same with another L2 policy.
    pub fn with_l2(self, l2: L2Policy) -> CudaOptions {
        CudaOptions { l2, ..self }
    }
}

/// A device with its kernels, each loaded when it is first needed. Any number of threads may share one.
pub struct Attention {
    device: Arc<dyn Device>,
    library: Arc<Library>,
    /// Kernels loaded so far, by entry, with what they were loaded from.
    loaded: RwLock<HashMap<String, (LoadedKernel, Source)>>,
    planner: Planner,
    plans: KeptPlans,
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
        let mut library = Library::find(options.ptx.as_deref())?;
        for folder in &options.scores {
            library = library.with_scores(folder)?;
        }
        Attention::new(Arc::new(device), Arc::new(library))
    }

    /// Opens the simulator and the folder of compiled kernels (`ptx`, searched for where it is `None`).
    ///
    /// # Errors
    /// [`Error::NoKernels`], [`Error::BadKernels`].
    #[cfg(feature = "sim")]
    pub fn simulator(ptx: Option<&std::path::Path>, options: SimOptions) -> Result<Attention, Error> {
        Attention::new(Arc::new(SimDevice::new(options)), Arc::new(Library::find(ptx)?))
    }

    /// Attention on any device with kernels from any folder, planned by the device's profile ([`Profile::find`]).
    ///
    /// # Errors
    /// [`Error::UnsupportedDevice`], and those of [`Profile::find`].
    pub fn new(device: Arc<dyn Device>, library: Arc<Library>) -> Result<Attention, Error> {
        let info = device.info();
        if info.sm < SM_MIN {
            return Err(Error::UnsupportedDevice { name: info.name.clone(), sm: info.sm });
        }
        let planner = Planner::with_profile(&library, info, Profile::find(info)?);
        Ok(Attention {
            device,
            library,
            loaded: RwLock::default(),
            planner,
            plans: KeptPlans::default(),
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
        self.forward_with(self.plan(problem)?.as_ref(), &HostTensors::new(q, k, v), want_lse)
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
        let HostTensors { q, k, v, seqlens_k, .. } = *tensors;
        for (role, tensor) in [(TensorRole::Q, q), (TensorRole::K, k), (TensorRole::V, v)] {
            let (expected, got) = (problem.len(role), tensor.len());
            if got != expected {
                return Err(Error::WrongLength { tensor: role.name(), expected, got });
            }
        }
        if let Some(seqlens_k) = seqlens_k {
            problem.check_lengths(seqlens_k)?;
        }
        tensors.check_operands(problem)?;
        let q = Buffer::from_elements(&self.device, q)?;
        let k = Buffer::from_elements(&self.device, k)?;
        let v = Buffer::from_elements(&self.device, v)?;
        let o = Buffer::new(&self.device, problem.o_len() as u64 * u64::from(problem.dtype().bytes()))?;
        if problem.o_len() != problem.elements(TensorRole::O) {
            o.fill(0)?;
        }
        let lse = want_lse.then(|| Buffer::new(&self.device, problem.lse_len() as u64 * 4)).transpose()?;
        let seqlens_k = seqlens_k.map(|lengths| Buffer::from_elements(&self.device, lengths)).transpose()?;
        let operands = HostOperands::new(&self.device, tensors)?;
        let tensors = DeviceTensors::new(q.address(), k.address(), v.address(), o.address())
            .with_lse(lse.as_ref().map(Buffer::address))
            .with_seqlens_k(seqlens_k.as_ref().map(Buffer::address));
        let tensors = operands.at(tensors);
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
        // SAFETY: the caller's promise.
        unsafe { self.call(plan, tensors, None, stream) }
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
        // SAFETY: the caller's promise.
        unsafe { self.call(plan, tensors, Some(workspace), stream) }
    }

    /// Starts a problem whose partial O and LSE go to `states`, on the caller's stream, in one launch without a workspace. O and LSE of
    /// `tensors` are not written. Waits for nothing and allocates nothing but for the first use of its kernel ([`Attention::preload`] of
    /// [`PartialPlan::plan`] does that before), so that it can be captured.
    ///
    /// # Errors
    /// Those of [`Attention::launch`].
    ///
    /// # Safety
    /// As [`Attention::forward_device`], and for [`PartialPlan::states`] states as for outputs.
    pub unsafe fn launch_partial(
        &self,
        plan: &PartialPlan,
        tensors: &DeviceTensors,
        states: PartialStates,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.call(plan, &(*tensors, states), None, stream) }
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
        // SAFETY: the caller's promise.
        unsafe { self.reserve_call(plan, stream) }
    }

    /// Gives back what [`Attention::reserve`] and launches took for a stream, of a thread's own default stream
    /// ([`StreamHandle::PER_THREAD`]) the calling thread's.
    ///
    /// # Safety
    /// All work on the stream is done, and no graph that was captured from it is replayed again.
    pub unsafe fn release(&self, stream: StreamHandle) {
        self.workspaces.release(stream);
    }

    /// The plan that is estimated to be the fastest for a problem on this device; kept, so that the same problem is planned once.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn plan(&self, problem: &Problem) -> Result<Arc<Plan>, Error> {
        self.plans.get(problem, || self.planner.plan(problem, const { &PlanOptions::new() }))
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
        self.loaded(plan.kernel())
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

    fn loaded<R>(&self, kernel: &Kernel<R>) -> Result<LoadedKernel, Error> {
        self.load(kernel, |loaded| loaded.0)
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

#[cfg(test)]
mod tests;
