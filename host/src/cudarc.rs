//! Calls on slices of cudarc 0.19, whose lengths and types are checked: the feature `cudarc-0-19`.
//!
//! cudarc's types change with each of its minor versions, so the feature has the version in its name. Both use the device's primary context.

use crate::{Attention, DeviceTensors, Dtype, Error, Operand, Problem, StreamHandle, TensorRole, Workspace};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError};
use std::sync::{Arc, Mutex, PoisonError};

/// The handle of each thread's own default stream.
const PER_THREAD: usize = 2;

/// Why a call on slices fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SliceError {
    /// The library refused the call or failed.
    #[error(transparent)]
    Library(#[from] Error),
    /// cudarc failed.
    #[error("cudarc: {0}")]
    Driver(#[from] DriverError),
    /// The slices are of another type than the problem.
    #[error("the slices are {slices:?}, the problem is {problem:?}")]
    Dtype {
        /// Of the slices.
        slices: Dtype,
        /// Of the problem.
        problem: Dtype,
    },
    /// The problem has operands whose values decide what is read.
    #[error(
        "the problem has lengths, pages or other operands on the device: launch it by their addresses, Attention::launch"
    )]
    Operands,
    /// A stream that is another one in each thread.
    #[error(
        "the stream is each thread's own default stream: give one of CudaContext::new_stream, or default_stream"
    )]
    PerThreadStream,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// Elements of Q, K, V and O.
pub trait Element: sealed::Sealed {
    /// As the library names it.
    const DTYPE: Dtype;
}

impl Element for half::f16 {
    const DTYPE: Dtype = Dtype::F16;
}

impl Element for half::bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

/// Attention on one stream of cudarc, with the workspace that calls on it share.
pub struct OnStream {
    attention: Arc<Attention>,
    stream: Arc<CudaStream>,
    workspace: Mutex<Option<Held>>,
}

/// A workspace in memory of cudarc.
struct Held {
    workspace: Workspace,
    _memory: CudaSlice<u8>,
}

impl OnStream {
    /// Calls on this stream.
    ///
    /// # Errors
    /// [`SliceError::PerThreadStream`]; [`Error::ForeignStream`] where it is of another device.
    pub fn new(attention: Arc<Attention>, stream: Arc<CudaStream>) -> Result<OnStream, SliceError> {
        if stream.cu_stream() as usize == PER_THREAD {
            return Err(SliceError::PerThreadStream);
        }
        // SAFETY: the stream lives as long as `stream`.
        unsafe { attention.device().check_stream(handle(&stream))? };
        Ok(OnStream { attention, stream, workspace: Mutex::default() })
    }

    /// Enqueues O = softmax(scale · Q·Kᵀ) · V, and LSE where it is wanted, and does not wait. A call that splits the keys allocates a workspace
    /// on the stream, which later calls use.
    ///
    /// # Errors
    /// [`SliceError::Dtype`], [`SliceError::Operands`], [`Error::WrongLength`] where a slice is shorter than its tensor, and those of
    /// [`Attention::launch`].
    pub fn forward<T: Element>(
        &self,
        problem: &Problem,
        [q, k, v]: [&impl DevicePtr<T>; 3],
        o: &mut impl DevicePtrMut<T>,
        lse: Option<&mut CudaSlice<f32>>,
    ) -> Result<(), SliceError> {
        if T::DTYPE != problem.dtype() {
            return Err(SliceError::Dtype { slices: T::DTYPE, problem: problem.dtype() });
        }
        let has = |&operand: &Operand| problem.operand_len(operand).is_some();
        if problem.has_lengths() || Operand::ALL.iter().any(has) {
            return Err(SliceError::Operands);
        }
        for (role, got) in [
            (TensorRole::Q, q.len()),
            (TensorRole::K, k.len()),
            (TensorRole::V, v.len()),
            (TensorRole::O, o.len()),
        ] {
            long_enough(role.name(), problem.len(role), got)?;
        }
        if let Some(lse) = &lse {
            long_enough("LSE", problem.lse_len(), lse.len())?;
        }
        let plan = self.attention.plan(problem)?;
        // The guards order the slices' own streams with this one, until the launch is enqueued.
        let (q, _q) = q.device_ptr(&self.stream);
        let (k, _k) = k.device_ptr(&self.stream);
        let (v, _v) = v.device_ptr(&self.stream);
        let (o, _o) = o.device_ptr_mut(&self.stream);
        let lse = lse.map(|lse| lse.device_ptr_mut(&self.stream));
        let tensors = DeviceTensors::new(q, k, v, o).with_lse(lse.as_ref().map(|(lse, _)| *lse));
        let stream = handle(&self.stream);
        let needed = plan.workspace_bytes();
        // SAFETY: the slices are as long as the problem says and borrowed, O for writing; cudarc frees them in the stream's order. The
        // stream lives as long as `self`.
        unsafe {
            if needed == 0 {
                return Ok(self.attention.launch(&plan, &tensors, stream)?);
            }
            let mut held = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
            let enough = held.take().filter(|held| held.workspace.bytes() >= needed);
            let held = held.insert(match enough {
                Some(held) => held,
                None => self.allocate(needed)?,
            });
            Ok(self.attention.launch_in(&plan, &tensors, &held.workspace, stream)?)
        }
    }

    /// The stream.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn allocate(&self, bytes: u64) -> Result<Held, SliceError> {
        let memory = self.stream.alloc_zeros::<u8>(bytes as usize)?;
        let (address, guard) = memory.device_ptr(&self.stream);
        let device = self.attention.device().as_ref();
        // SAFETY: the memory is `Held`'s alone, zeroed on this stream, and freed on it after all calls.
        let workspace = unsafe { Workspace::from_zeroed(device, address, bytes, handle(&self.stream))? };
        drop(guard);
        Ok(Held { workspace, _memory: memory })
    }
}

impl Drop for OnStream {
    fn drop(&mut self) {
        // The kernels may be unloaded next. An error that came up is the next call's, as everywhere in the driver.
        let _ = self.stream.synchronize();
    }
}

fn long_enough(tensor: &'static str, expected: usize, got: usize) -> Result<(), Error> {
    if got >= expected { Ok(()) } else { Err(Error::WrongLength { tensor, expected, got }) }
}

fn handle(stream: &CudaStream) -> StreamHandle {
    StreamHandle::from_raw(stream.cu_stream().cast())
}
