//! The merge of states as a call of the library, and on the simulator, where what lies in host memory is copied to it and back.

use crate::error::Error;
use crate::problem::size;
#[cfg(feature = "sim")]
use ferroflash::device::Buffer;
use ferroflash::problem::Extent;
#[cfg(feature = "sim")]
use ferroflash::{Attention, StreamHandle};
use ferroflash::{ElementStrides, Layout, MergeStates, MergeTensors, Number};
use ferroflash_cpu::{Dtype, Merge, Tensor};

/// The merge, and its tensors' addresses.
///
/// # Errors
/// [`Error::Call`], [`Error::TooLarge`], [`Error::Library`].
pub(crate) fn merge_states(merge: &Merge) -> Result<(MergeStates, MergeTensors), Error> {
    merge.check()?;
    let number = |dtype: Dtype| match dtype {
        Dtype::F16 => Number::F16,
        Dtype::Bf16 => Number::Bf16,
        // `check` refuses float64.
        Dtype::F32 | Dtype::F64 => Number::F32,
    };
    let extent = Extent {
        batch: size("batch", merge.batch)?,
        heads: size("heads", merge.heads)?,
        rows: size("rows", merge.rows)?,
        width: size("width", merge.width)?,
    };
    let numbers = (number(merge.partial_dtype), number(merge.dtype));
    let states = MergeStates::new(size("states", merge.states)?, extent, Layout::Bshd, numbers)?
        .with_partial_strides(strides(merge.partial_o))?
        .with_strides(strides(merge.o))?;
    let tensors = MergeTensors {
        partial_o: merge.partial_o.address,
        partial_lse: merge.partial_lse,
        next_o: merge.next_o,
        next_lse: merge.next_lse,
        o: merge.o.address,
        lse: merge.lse,
        ..MergeTensors::default()
    };
    Ok((states, tensors))
}

fn strides(tensor: Tensor) -> ElementStrides {
    let [batch, head, row] = tensor.strides;
    ElementStrides { batch, head, row, dim: 1 }
}

/// Merges states into a contiguous O.
///
/// # Safety
/// As [`crate::Engine::merge`], with host memory.
#[cfg(feature = "sim")]
pub(crate) unsafe fn simulate(
    attention: &Attention,
    merge: &MergeStates,
    tensors: &MergeTensors,
) -> Result<(), Error> {
    let device = attention.device();
    // The states of one after the other, wherever the caller's are.
    let copied = |first: u64, next: u64, bytes: usize| -> Result<Buffer<_>, Error> {
        let mut states = Vec::new();
        for state in 0..u64::from(merge.states()) {
            let address = first.wrapping_add(next.wrapping_sub(first).wrapping_mul(state));
            // SAFETY: the caller's promise.
            states.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, bytes) });
        }
        Ok(Buffer::from_elements(device, &states)?)
    };
    let (o_bytes, lse_bytes) = (merge.partial_bytes(), merge.lse_len() * 4);
    let partial_o = copied(tensors.partial_o, tensors.next_o, o_bytes)?;
    let partial_lse = copied(tensors.partial_lse, tensors.next_lse, lse_bytes)?;
    let (o, lse) = (Buffer::new(device, merge.o_bytes() as u64)?, Buffer::new(device, lse_bytes as u64)?);
    let on_device = MergeTensors {
        partial_o: partial_o.address(),
        partial_lse: partial_lse.address(),
        next_o: partial_o.address() + o_bytes as u64,
        next_lse: partial_lse.address() + lse_bytes as u64,
        o: o.address(),
        lse: Some(lse.address()),
        ..MergeTensors::default()
    };
    // SAFETY: the buffers are as long as the merge says; O and LSE are the caller's to be written, and without gaps.
    unsafe {
        attention.merge(merge, &on_device, StreamHandle::DEFAULT)?;
        o.read(0, std::slice::from_raw_parts_mut(tensors.o as *mut u8, merge.o_bytes()))?;
        if let Some(address) = tensors.lse {
            lse.read(0, std::slice::from_raw_parts_mut(address as *mut u8, lse_bytes))?;
        }
    }
    Ok(())
}
