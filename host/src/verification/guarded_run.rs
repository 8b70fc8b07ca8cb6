//! One kernel on a device, with everything around its tensors watched.
//!
//! Q, K and V lie between bands of NaN, so that a read out of bounds shows in the output. O and LSE are NaN before
//! the launch, so that an element not written shows, and lie between bands that must be unchanged after it.

use crate::attention::{Attention, DeviceTensors, Output};
use crate::device::{Buffer, Device, Element, StreamHandle};
use crate::error::Error;
use crate::verification::{KernelRun, RunKernel};
use crate::workspace::Workspace;
use kernels_gpu::row::Schedule;
use std::sync::Arc;

/// Bytes of a band: a whole block of 128 rows at head_dim 256.
const BAND_BYTES: usize = 128 * 256 * 2;
/// Every 16-bit and 32-bit float made of this byte is NaN, and none is the NaN that arithmetic gives.
const BAND_BYTE: u8 = 0xff;

impl RunKernel for Attention {
    fn run(&self, run: &KernelRun<'_>) -> Result<Output, Error> {
        let KernelRun { kernel, problem, options, .. } = *run;
        let plan = self.planner().with_kernel(problem, kernel, options)?;
        let (device, entry) = (self.device(), kernel.entry.as_str());
        let [q, k, v] =
            [run.tensors.q, run.tensors.k, run.tensors.v].map(|tensor| Guarded::with(device, tensor));
        let (q, k, v) = (q?, k?, v?);
        let seqlens_k = run.tensors.seqlens_k.map(|lengths| Guarded::with(device, lengths)).transpose()?;
        let o = Guarded::new::<u16>(device, problem.o_len())?;
        let lse = Guarded::new::<f32>(device, problem.lse_len())?;
        let tensors = DeviceTensors {
            q: q.address(),
            k: k.address(),
            v: v.address(),
            o: o.address(),
            lse: Some(lse.address()),
            seqlens_k: seqlens_k.as_ref().map(Guarded::address),
        };
        let memory = Guarded::new::<u8>(device, plan.workspace_bytes() as usize)?;
        let stream = StreamHandle::DEFAULT;
        // SAFETY: every buffer is as long as the problem or the plan says and lives until the reads below, which wait for the launches.
        unsafe {
            if plan.workspace_bytes() == 0 {
                self.launch(&plan, &tensors, stream)?;
            } else {
                let (address, bytes) = (memory.address(), plan.workspace_bytes());
                let workspace = Workspace::from_raw(device.as_ref(), address, bytes, stream)?;
                self.launch_in(&plan, &tensors, &workspace, stream)?;
            }
        }
        let output = Output { o: o.read(entry, "O", 0_u16)?, lse: Some(lse.read(entry, "LSE", 0_f32)?) };
        let workspace = memory.read(entry, "the workspace", 0_u8)?;
        if plan.schedule() == Schedule::Persistent && workspace[..4] != [0; 4] {
            return Err(Error::CounterNotZero { entry: entry.to_owned() });
        }
        Ok(output)
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

    fn with<T: Element>(device: &Arc<dyn Device>, elements: &[T]) -> Result<Guarded, Error> {
        let guarded = Guarded::new::<T>(device, elements.len())?;
        guarded.buffer.write(guarded.at::<T>(), elements)?;
        Ok(guarded)
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
