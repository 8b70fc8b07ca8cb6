//! The bandwidth that copies reach on the device: what kernels that only read and write are compared with.

use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::graph::Timeline;
use ferroflash::device::{Buffer, Device};
use ferroflash::error::Error;
use std::sync::Arc;

/// Bytes of a copy, in L2 caches: far more than what stays there.
const L2_CACHES: u64 = 8;
/// Copies between two marks.
const COPIES: u32 = 4;
/// Timed repetitions; one more before them is not timed.
const REPETITIONS: usize = 11;

/// Bytes that a copy within the device reads and writes in a second, in GB/s: the median of several.
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::Cuda`].
pub(super) fn bandwidth_gb_s(device: &Arc<CudaDevice>) -> Result<f64, Error> {
    let bytes = (L2_CACHES * device.info().l2_bytes).min(device.memory_free()? / 4).max(1);
    let (from, to) = (Buffer::new(device, bytes)?, Buffer::new(device, bytes)?);
    from.fill(0)?;
    let timeline = Timeline::new(device)?;
    let marks = (timeline.mark()?, timeline.mark()?);
    let mut rates = Vec::new();
    for repetition in 0..=REPETITIONS {
        timeline.set(&marks.0)?;
        for _ in 0..COPIES {
            timeline.copy(&from, &to)?;
        }
        timeline.set(&marks.1)?;
        timeline.finish()?;
        if repetition > 0 {
            let seconds = marks.1.since_us(&marks.0)? * 1e-6;
            rates.push(2.0 * (bytes * u64::from(COPIES)) as f64 / seconds * 1e-9);
        }
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}
