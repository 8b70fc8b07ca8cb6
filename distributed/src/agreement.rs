//! Ranks agree upon what they are about to compute, before any of them computes it.

use crate::Error;
use crate::transport::{Step, Transport};
use ferroflash::StreamHandle;
use ferroflash::device::{Buffer, Device};
use std::sync::Arc;

const STEP: Step = Step { what: "agreement", index: 0 };

/// Compares numbers among all ranks: every rank gets the same answer.
///
/// # Errors
/// [`Error::Disagree`] with the first rank that differs from rank 0, and what the transport reports.
pub(crate) fn agree(
    transport: &mut dyn Transport,
    device: &Arc<dyn Device>,
    numbers: &[(&'static str, u64)],
) -> Result<(), Error> {
    let own: Vec<u64> = numbers.iter().map(|(_, n)| *n).collect();
    let (all, world) = (gather(transport, device, STEP, &own)?, transport.world());
    let of_rank = |rank: u32| &all[rank as usize * own.len()..][..own.len()];
    for rank in 1..world {
        for (at, (what, _)) in numbers.iter().enumerate() {
            let [theirs, ours] = [rank, 0].map(|rank| of_rank(rank)[at]);
            if theirs != ours {
                let error = Error::Disagree { rank, other: 0, what, theirs, ours, step: STEP };
                transport.abort(&error);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// The numbers of all ranks, in their order; every rank has as many.
///
/// # Errors
/// What the transport reports.
pub(crate) fn gather<D: Device + ?Sized>(
    transport: &mut dyn Transport,
    device: &Arc<D>,
    step: Step,
    numbers: &[u64],
) -> Result<Vec<u64>, Error> {
    let words: Vec<u32> = numbers.iter().flat_map(|&n| [n as u32, (n >> 32) as u32]).collect();
    let (bytes, world) = (words.len() as u64 * 4, transport.world());
    let mut gathered = vec![0u32; words.len() * world as usize];
    gathered[transport.rank() as usize * words.len()..][..words.len()].copy_from_slice(&words);
    let all = Buffer::from_elements(device, &gathered)?;
    // SAFETY: the buffer is as long as is said, and lives until the wait below is over.
    unsafe {
        transport.all_gather(step, (all.address(), bytes), StreamHandle::DEFAULT)?;
    }
    // SAFETY: the default stream lives.
    if let Err(error) = unsafe { transport.wait(StreamHandle::DEFAULT) } {
        // What did not end may still write.
        std::mem::forget(all);
        return Err(error);
    }
    all.read(0, &mut gathered)?;
    let number = |&[low, high]: &[u32; 2]| u64::from(low) | u64::from(high) << 32;
    Ok(gathered.as_chunks::<2>().0.iter().map(number).collect())
}
