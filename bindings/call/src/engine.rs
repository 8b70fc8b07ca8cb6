//! A device that was opened, and calls on it.

use crate::append::{append_tensors, kv_append};
use crate::backward::{backward_tensors, gradients, gradients_of};
use crate::error::Error;
use crate::merge::merge_states;
use crate::problem::{device_tensors, plan, plan_options, problem};
use crate::process::Process;
#[cfg(feature = "sim")]
use crate::simulate;
use ferroflash::{
    Attention, CudaOptions, DeviceModel, Plan, Planner, StreamHandle, Workspace, workspace_bytes_for,
};
use ferroflash_cpu::{Append, Backward, Call, Merge};
use foldhash::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

/// A device that computes calls. Any number of threads may share one.
pub enum Engine {
    /// The CPU, by `ferroflash-cpu`. Addresses are of host memory.
    Cpu,
    /// A GPU. Addresses are of its memory.
    Cuda(Box<Gpu>),
    /// The simulator of a GPU. Addresses are of host memory.
    #[cfg(feature = "sim")]
    Simulator(Box<Attention>),
}

/// A GPU that was opened.
pub struct Gpu {
    attention: Attention,
    workspaces: Workspaces,
    /// The process that opened it.
    process: Process,
}

/// A call that was checked and planned, to be made again on other tensors of the same shapes and strides.
pub struct Kept {
    call: Call,
    /// Of a GPU.
    plan: Option<Arc<Plan>>,
}

/// The workspaces that callers gave, by raw stream.
#[derive(Default)]
pub struct Workspaces(RwLock<HashMap<u64, Arc<Workspace>>>);

impl Engine {
    /// Opens a GPU; the kernels are those of the folder named, else found as the library does.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn cuda(ordinal: u32, folder: Option<PathBuf>) -> Result<Engine, Error> {
        let options = CudaOptions::default().with_ordinal(ordinal).with_ptx(folder);
        let attention = Attention::cuda(&options)?;
        let process = Process::current();
        Ok(Engine::Cuda(Box::new(Gpu { attention, workspaces: Workspaces::default(), process })))
    }

    /// Opens the simulator of a GPU.
    ///
    /// # Errors
    /// [`Error::Library`].
    #[cfg(feature = "sim")]
    pub fn simulator(folder: Option<PathBuf>, model: Option<&'static DeviceModel>) -> Result<Engine, Error> {
        let options = ferroflash::SimOptions::default();
        let options = model.map_or(options, |model| options.with_model(model));
        Ok(Engine::Simulator(Box::new(Attention::simulator(folder.as_deref(), options)?)))
    }

    /// Whether calls are enqueued on a stream and not waited for.
    pub fn is_gpu(&self) -> bool {
        matches!(self, Engine::Cuda(_))
    }

    /// What messages name the device by.
    pub fn name(&self) -> &'static str {
        match self {
            Engine::Cpu => "the CPU",
            Engine::Cuda(_) => "a GPU",
            #[cfg(feature = "sim")]
            Engine::Simulator(_) => "the simulator",
        }
    }

    /// Computes a call. On a GPU it is enqueued on the raw stream and not waited for, in the workspace that was given for the stream
    /// ([`Engine::give_workspace`]), else in one that the library allocates at the stream's first use.
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Safety
    /// Each address is of memory of the device that holds what its field of [`Call`] says, until the work is done; O and LSE overlap
    /// nothing. The stream lives as long as the engine, and its work is done when the engine is dropped.
    pub unsafe fn forward(&self, call: &Call, stream: u64) -> Result<(), Error> {
        match self {
            // SAFETY: the caller's promise.
            Engine::Cpu => unsafe { call.forward().map_err(Error::from) },
            // SAFETY: the caller's promise.
            Engine::Cuda(gpu) => unsafe { gpu.forward(call, stream) },
            #[cfg(feature = "sim")]
            // SAFETY: the caller's promise.
            Engine::Simulator(attention) => unsafe { simulate::forward(attention, call, self.name()) },
        }
    }

    /// Checks and plans a call, so that [`Engine::repeat`] need not.
    ///
    /// # Errors
    /// [`Error`].
    pub fn keep(&self, call: &Call) -> Result<Kept, Error> {
        let plan = match self {
            Engine::Cuda(gpu) => Some(plan(&gpu.attention, call, &problem(call, self.name())?)?),
            _ => None,
        };
        Ok(Kept { call: *call, plan })
    }

    /// Makes a call again, with the addresses that `set` gives it. `false`, and nothing is started, where the stream of a GPU was not given
    /// a workspace that is large enough.
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Safety
    /// As [`Engine::forward`]; `set` changes nothing but addresses, and the call was kept by this engine.
    pub unsafe fn repeat(
        &self,
        kept: &Kept,
        set: impl FnOnce(&mut Call),
        stream: u64,
    ) -> Result<bool, Error> {
        let mut call = kept.call;
        set(&mut call);
        match (self, &kept.plan) {
            // SAFETY: the caller's promise.
            (Engine::Cuda(gpu), Some(plan)) => unsafe { gpu.repeat(plan, &call, stream) },
            // SAFETY: the caller's promise.
            _ => unsafe { self.forward(&call, stream).map(|()| true) },
        }
    }

    /// Appends new keys and values to a cache, and rotates Q. On a GPU it is enqueued on the raw stream and not waited for.
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Safety
    /// As [`Engine::forward`]; nothing else touches what is written.
    pub unsafe fn append(&self, append: &Append, stream: u64) -> Result<(), Error> {
        match self {
            // SAFETY: the caller's promise.
            Engine::Cpu => unsafe { append.run().map_err(Error::from) },
            Engine::Cuda(gpu) => {
                gpu.check_process()?;
                let call = kv_append(append, self.name())?;
                let tensors = append_tensors(append, &call);
                // SAFETY: the caller's promise.
                unsafe { gpu.attention.append(&call, &tensors, handle(stream)).map_err(Error::from) }
            }
            #[cfg(feature = "sim")]
            // SAFETY: the caller's promise.
            Engine::Simulator(attention) => unsafe {
                crate::append::simulate(attention, append, self.name())
            },
        }
    }

    /// Merges O and LSE of several calls over disjoint keys. On a GPU it is enqueued on the raw stream and not waited for.
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Safety
    /// As [`Engine::forward`].
    pub unsafe fn merge(&self, merge: &Merge, stream: u64) -> Result<(), Error> {
        match self {
            // SAFETY: the caller's promise.
            Engine::Cpu => unsafe { merge.run().map_err(Error::from) },
            Engine::Cuda(gpu) => {
                gpu.check_process()?;
                let (states, tensors) = merge_states(merge)?;
                // SAFETY: the caller's promise.
                unsafe { gpu.attention.merge(&states, &tensors, handle(stream)).map_err(Error::from) }
            }
            #[cfg(feature = "sim")]
            Engine::Simulator(attention) => {
                let (states, tensors) = merge_states(merge)?;
                // SAFETY: the caller's promise.
                unsafe { crate::merge::simulate(attention, &states, &tensors) }
            }
        }
    }

    /// Refuses a call whose gradients this device does not compute, before anything is computed.
    ///
    /// # Errors
    /// [`Error`].
    pub fn check_gradients(&self, call: &Call) -> Result<(), Error> {
        match self {
            Engine::Cpu => call.check_gradients().map_err(Error::from),
            Engine::Cuda(gpu) => {
                gpu.attention.plan_backward(&gradients_of(call, self.name())?).map(drop).map_err(Error::from)
            }
            #[cfg(feature = "sim")]
            Engine::Simulator(attention) => {
                attention.plan_backward(&gradients_of(call, self.name())?).map(drop).map_err(Error::from)
            }
        }
    }

    /// Computes the gradients of a call from its O and LSE. On a GPU it is enqueued on the raw stream and not waited for, in the workspace
    /// that was given for the stream, as [`Engine::forward`].
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Safety
    /// As [`Engine::forward`], for all tensors of [`Backward`]; the gradients overlap nothing.
    pub unsafe fn backward(&self, backward: &Backward, stream: u64) -> Result<(), Error> {
        match self {
            // SAFETY: the caller's promise.
            Engine::Cpu => unsafe { backward.run().map_err(Error::from) },
            // SAFETY: the caller's promise.
            Engine::Cuda(gpu) => unsafe { gpu.backward(backward, stream) },
            #[cfg(feature = "sim")]
            // SAFETY: the caller's promise.
            Engine::Simulator(attention) => unsafe { simulate::backward(attention, backward, self.name()) },
        }
    }

    /// As [`Engine::missing_workspace`], of gradients; their kernels are loaded by the first call.
    ///
    /// # Errors
    /// [`Error`].
    pub fn missing_backward_workspace(&self, backward: &Backward, stream: u64) -> Result<u64, Error> {
        match self {
            Engine::Cuda(gpu) => {
                gpu.check_process()?;
                let plan = gpu.attention.plan_backward(&gradients(backward, self.name())?)?;
                let needed = plan.workspace_bytes();
                Ok(if gpu.workspaces.get(stream, needed).is_some() { 0 } else { workspace_bytes_for(needed) })
            }
            _ => Ok(0),
        }
    }

    /// Whether calls may say which key of each sequence is the first that counts ([`ferroflash_cpu::Lengths::first_k`]).
    pub fn takes_first_keys(&self) -> bool {
        matches!(self, Engine::Cpu)
    }

    /// Bytes of the workspace to give for a call on a stream, where what was given is too small or nothing was; 0 where nothing is
    /// missing. Loads the call's kernels, so that after this and [`Engine::give_workspace`] the call allocates nothing and can be captured.
    ///
    /// # Errors
    /// [`Error`].
    pub fn missing_workspace(&self, call: &Call, stream: u64) -> Result<u64, Error> {
        match self {
            Engine::Cuda(gpu) => gpu.missing_workspace(call, stream),
            _ => Ok(0),
        }
    }

    /// Gives a stream of a GPU memory to work in, which replaces what was given before.
    ///
    /// # Errors
    /// [`Error::NoWorkspace`], [`Error::Library`].
    ///
    /// # Safety
    /// The memory is of this device, nobody else uses it until the engine is dropped or the stream is given another and its work and
    /// graphs with this one are done.
    pub unsafe fn give_workspace(&self, stream: u64, address: u64, bytes: u64) -> Result<(), Error> {
        let Engine::Cuda(gpu) = self else { return Err(Error::NoWorkspace) };
        gpu.check_process()?;
        let device = gpu.attention.device().as_ref();
        // SAFETY: the caller's promise.
        let workspace = unsafe { Workspace::from_raw(device, address, bytes, handle(stream))? };
        gpu.workspaces.insert(stream, workspace);
        Ok(())
    }

    /// As [`Engine::give_workspace`], of memory that holds zeros already: nothing is enqueued, so it may be given while a stream is captured.
    ///
    /// # Errors
    /// [`Error::NoWorkspace`], [`Error::Library`].
    ///
    /// # Safety
    /// As [`Engine::give_workspace`]; the memory holds zeros for whatever is enqueued on the stream from now on.
    pub unsafe fn give_zeroed_workspace(&self, stream: u64, address: u64, bytes: u64) -> Result<(), Error> {
        let Engine::Cuda(gpu) = self else { return Err(Error::NoWorkspace) };
        gpu.check_process()?;
        let device = gpu.attention.device().as_ref();
        // SAFETY: the caller's promise.
        let workspace = unsafe { Workspace::from_zeroed(device, address, bytes, handle(stream))? };
        gpu.workspaces.insert(stream, workspace);
        Ok(())
    }

    /// What would be launched for a call, and why, in words.
    ///
    /// # Errors
    /// [`Error`].
    pub fn explain(&self, call: &Call) -> Result<String, Error> {
        match self {
            Engine::Cpu => {
                call.check().or_else(|error| match error {
                    // Nothing is read, so addresses do not matter.
                    ferroflash_cpu::Error::Null { .. } => Ok(()),
                    error => Err(error),
                })?;
                Ok("float32 loops on the CPU".to_owned())
            }
            Engine::Cuda(gpu) => explain(gpu.attention.planner(), call, self.name()),
            #[cfg(feature = "sim")]
            Engine::Simulator(attention) => explain(attention.planner(), call, self.name()),
        }
    }
}

impl Workspaces {
    fn insert(&self, stream: u64, workspace: Workspace) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(stream, Arc::new(workspace));
    }

    /// The stream's, where it has at least so many bytes.
    fn get(&self, stream: u64, bytes: u64) -> Option<Arc<Workspace>> {
        let given = self.0.read().unwrap_or_else(PoisonError::into_inner);
        given.get(&stream).filter(|workspace| workspace.bytes() >= bytes).cloned()
    }
}

impl Gpu {
    unsafe fn repeat(&self, plan: &Plan, call: &Call, stream: u64) -> Result<bool, Error> {
        self.check_process()?;
        let (tensors, bytes) = (device_tensors(call), plan.workspace_bytes());
        // SAFETY: the caller's promise.
        unsafe {
            if bytes == 0 {
                self.attention.launch(plan, &tensors, handle(stream))?;
                return Ok(true);
            }
            let Some(workspace) = self.workspaces.get(stream, bytes) else { return Ok(false) };
            self.attention.launch_in(plan, &tensors, &workspace, handle(stream))?;
        }
        Ok(true)
    }

    unsafe fn forward(&self, call: &Call, stream: u64) -> Result<(), Error> {
        self.check_process()?;
        let plan = plan(&self.attention, call, &problem(call, "a GPU")?)?;
        let (tensors, handle) = (device_tensors(call), handle(stream));
        let workspace = self.workspaces.get(stream, 0);
        // SAFETY: the caller's promise.
        unsafe {
            match workspace {
                Some(workspace) => self.attention.launch_in(&plan, &tensors, &workspace, handle)?,
                None => self.attention.launch(&plan, &tensors, handle)?,
            }
        }
        Ok(())
    }

    unsafe fn backward(&self, backward: &Backward, stream: u64) -> Result<(), Error> {
        self.check_process()?;
        backward.check()?;
        let plan = self.attention.plan_backward(&gradients(backward, "a GPU")?)?;
        let (tensors, handle) = (backward_tensors(backward), handle(stream));
        // SAFETY: the caller's promise.
        unsafe {
            match self.workspaces.get(stream, 0) {
                Some(workspace) => self.attention.backward_in(&plan, &tensors, &workspace, handle)?,
                None => self.attention.backward_device(&plan, &tensors, handle)?,
            }
        }
        Ok(())
    }

    fn missing_workspace(&self, call: &Call, stream: u64) -> Result<u64, Error> {
        self.check_process()?;
        let plan = plan(&self.attention, call, &problem(call, "a GPU")?)?;
        let needed = plan.workspace_bytes();
        if needed == 0 || self.workspaces.get(stream, needed).is_some() {
            return Ok(0);
        }
        self.attention.preload(&plan)?;
        if let Some(combine) = plan.combine() {
            self.attention.source_of(combine)?;
        }
        Ok(workspace_bytes_for(needed))
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.process.is_current() { Ok(()) } else { Err(Error::Forked { opened: self.process.id() }) }
    }
}

/// What would be launched for a call on a GPU of this model, and why, in words; registers of kernels are estimated.
///
/// # Errors
/// [`Error`].
pub fn explain_model(model: &DeviceModel, call: &Call) -> Result<String, Error> {
    explain(&Planner::of_table(&model.info()), call, "a GPU")
}

fn handle(stream: u64) -> StreamHandle {
    StreamHandle::from_raw(stream as *mut std::ffi::c_void)
}

fn explain(planner: &Planner, call: &Call, device: &'static str) -> Result<String, Error> {
    let problem = problem(call, device)?;
    let (plan, reasons) = planner.explain(&problem, &plan_options(call))?;
    let info = planner.device();
    let mut text =
        format!("{} on {} (sm_{}, {} SMs)\n", plan.kernel().entry, info.name, info.sm, info.sm_count);
    text += &format!(
        "{} CTAs, {} splits of the keys, {} bytes of workspace\n",
        plan.grid(),
        plan.splits(),
        plan.workspace_bytes()
    );
    reasons.iter().for_each(|reason| text += &format!("{reason}\n"));
    Ok(text)
}
