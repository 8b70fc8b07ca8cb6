//! One kernel on a device, with everything around its tensors watched.
//!
//! Q, K and V lie between bands of NaN, so that a read out of bounds shows in the output. O and LSE are NaN before
//! the launch, so that an element not written shows, and lie between bands that must be unchanged after it.

use crate::attention::{Attention, DeviceTensors, Output};
use crate::device::{Buffer, Device, Element, StreamHandle};
use crate::error::Error;
use crate::plan::Plan;
use crate::problem::{Problem, TensorRole};
use crate::verification::RunKernel;
use kernels_gpu::manifest::Kernel;
use std::sync::Arc;

/// Bytes of a band: a whole block of 128 rows at head_dim 256.
const BAND_BYTES: usize = 128 * 256 * 2;
/// Every 16-bit and 32-bit float made of this byte is NaN, and none is the NaN that arithmetic gives.
const BAND_BYTE: u8 = 0xff;

impl RunKernel for Attention {
    fn run(
        &self,
        kernel: &Arc<Kernel>,
        problem: &Problem,
        q: &[u16],
        k: &[u16],
        v: &[u16],
    ) -> Result<Output, Error> {
        let plan = Plan::with_kernel(problem, kernel)?;
        let tensors = GuardedTensors::new(self, problem)?;
        tensors.write_inputs([q, k, v])?;
        tensors.launch(self, &plan)?;
        tensors.output(&kernel.entry)
    }
}

/// The tensors of one problem on a device, each between two bands, for any number of launches.
pub struct GuardedTensors {
    problem: Problem,
    device: Arc<dyn Device>,
    inputs: [Guarded; 3],
    o: Guarded,
    lse: Guarded,
}

impl GuardedTensors {
    /// Fresh tensors on the device of `attention`: NaN everywhere.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(attention: &Attention, problem: &Problem) -> Result<GuardedTensors, Error> {
        let device = attention.device();
        let input = |role| Guarded::new::<u16>(device, problem.len(role));
        Ok(GuardedTensors {
            problem: *problem,
            device: device.clone(),
            inputs: [input(TensorRole::Q)?, input(TensorRole::K)?, input(TensorRole::V)?],
            o: Guarded::new::<u16>(device, problem.o_len())?,
            lse: Guarded::new::<f32>(device, problem.lse_len())?,
        })
    }

    /// Copies Q, K and V, bits of the problem's dtype in its strides, to where they were before.
    ///
    /// # Errors
    /// [`Error::WrongLength`]; what the driver reports.
    pub fn write_inputs(&self, qkv: [&[u16]; 3]) -> Result<(), Error> {
        for ((guarded, tensor), role) in self.inputs.iter().zip(qkv).zip(TensorRole::ALL) {
            let (expected, got) = (guarded.elements, tensor.len());
            if got != expected {
                return Err(Error::WrongLength { tensor: role.name(), expected, got });
            }
            guarded.buffer.write(guarded.at::<u16>(), tensor)?;
        }
        Ok(())
    }

    /// Makes O, LSE and their bands NaN again.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn poison_outputs(&self) -> Result<(), Error> {
        self.o.buffer.fill(BAND_BYTE)?;
        self.lse.buffer.fill(BAND_BYTE)
    }

    /// Starts the plan on these tensors, on the default stream; what reads them waits.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where the plan is for another problem; what loading and launching report.
    pub fn launch(&self, attention: &Attention, plan: &Plan) -> Result<(), Error> {
        if *plan.problem() != self.problem || !Arc::ptr_eq(attention.device(), &self.device) {
            let available = "the tensors are of another problem or device".to_owned();
            return Err(Error::NoSuchKernel { wanted: plan.kernel().entry.clone(), available });
        }
        let [q, k, v] = &self.inputs;
        let tensors = DeviceTensors {
            q: q.address(),
            k: k.address(),
            v: v.address(),
            o: self.o.address(),
            lse: Some(self.lse.address()),
        };
        // SAFETY: every buffer is on this device and as long as the plan's problem says; they live until self is dropped, which
        // frees them in the order of the default stream.
        unsafe { attention.launch(plan, &tensors, StreamHandle::DEFAULT) }
    }

    /// Q, K and V as they are now.
    ///
    /// # Errors
    /// What the driver reports, also of launches before.
    pub fn inputs(&self) -> Result<[Vec<u16>; 3], Error> {
        let [q, k, v] = &self.inputs;
        let read = |guarded: &Guarded| {
            let mut elements = vec![0; guarded.elements];
            guarded.buffer.read(guarded.at::<u16>(), &mut elements).map(|()| elements)
        };
        Ok([read(q)?, read(k)?, read(v)?])
    }

    /// O and LSE once the launches before have ended; `entry` names the kernel in an error.
    ///
    /// # Errors
    /// [`Error::GuardBand`] where something outside O or LSE was written; what the driver reports, also of launches before.
    pub fn output(&self, entry: &str) -> Result<Output, Error> {
        Ok(Output { o: self.o.read(entry, "O", 0_u16)?, lse: Some(self.lse.read(entry, "LSE", 0_f32)?) })
    }
}

/// A tensor between two bands.
struct Guarded {
    buffer: Buffer<dyn Device>,
    elements: usize,
}

impl Guarded {
    fn new<T: Element>(device: &Arc<dyn Device>, elements: usize) -> Result<Guarded, Error> {
        let bytes = elements as u64 * size_of::<T>() as u64 + 2 * BAND_BYTES as u64;
        let buffer = Buffer::new(device, bytes)?;
        buffer.fill(BAND_BYTE)?;
        Ok(Guarded { buffer, elements })
    }

    /// The tensor's first element, counted from the buffer's start.
    fn at<T: Element>(&self) -> usize {
        BAND_BYTES / size_of::<T>()
    }

    fn address(&self) -> u64 {
        self.buffer.address() + BAND_BYTES as u64
    }

    /// The tensor, once both bands are found whole.
    fn read<T: Element>(&self, entry: &str, tensor: &'static str, zero: T) -> Result<Vec<T>, Error> {
        let mut band = vec![0_u8; BAND_BYTES];
        let broken = |side, distance: usize| Error::GuardBand {
            entry: entry.to_owned(),
            tensor,
            distance: distance as u64,
            side,
        };
        self.buffer.read(0, &mut band)?;
        if let Some(at) = band.iter().rposition(|&byte| byte != BAND_BYTE) {
            return Err(broken("before", BAND_BYTES - at));
        }
        self.buffer.read(BAND_BYTES + self.elements * size_of::<T>(), &mut band)?;
        if let Some(at) = band.iter().position(|&byte| byte != BAND_BYTE) {
            return Err(broken("after", at));
        }
        let mut elements = vec![zero; self.elements];
        self.buffer.read(self.at::<T>(), &mut elements)?;
        Ok(elements)
    }
}
