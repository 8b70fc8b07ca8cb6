//! The merge of two states on the simulator: what lies in host memory is copied to it and back.

use crate::error::Error;
use ferroflash::device::Buffer;
use ferroflash::{Attention, MergeStates, MergeTensors, StreamHandle};

/// Merges two states into a contiguous O.
///
/// # Safety
/// As [`crate::Engine::merge`], with host memory.
pub(crate) unsafe fn simulate(
    attention: &Attention,
    merge: &MergeStates,
    tensors: &MergeTensors,
) -> Result<(), Error> {
    let device = attention.device();
    // SAFETY: the caller's promise.
    let of = |address: u64, bytes: usize| unsafe {
        Buffer::from_elements(device, std::slice::from_raw_parts(address as *const u8, bytes))
    };
    let (o_bytes, lse_bytes) = (merge.partial_bytes(), merge.lse_len() * 4);
    let states = [(tensors.partial_o, tensors.partial_lse), (tensors.next_o, tensors.next_lse)];
    let [first, second] = states.map(|(o, lse)| Ok::<_, Error>((of(o, o_bytes)?, of(lse, lse_bytes)?)));
    let ((first_o, first_lse), (second_o, second_lse)) = (first?, second?);
    let (o, lse) = (Buffer::new(device, merge.o_bytes() as u64)?, Buffer::new(device, lse_bytes as u64)?);
    let copied = MergeTensors {
        partial_o: first_o.address(),
        partial_lse: first_lse.address(),
        next_o: second_o.address(),
        next_lse: second_lse.address(),
        o: o.address(),
        lse: Some(lse.address()),
        ..MergeTensors::default()
    };
    // SAFETY: the buffers are as long as the merge says; O and LSE are the caller's to be written, and without gaps.
    unsafe {
        attention.merge(merge, &copied, StreamHandle::DEFAULT)?;
        o.read(0, std::slice::from_raw_parts_mut(tensors.o as *mut u8, merge.o_bytes()))?;
        if let Some(address) = tensors.lse {
            lse.read(0, std::slice::from_raw_parts_mut(address as *mut u8, lse_bytes))?;
        }
    }
    Ok(())
}
