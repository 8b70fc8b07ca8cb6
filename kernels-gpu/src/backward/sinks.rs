//! The gradient of learned sinks: dsink = −Σ exp(sink − LSE)·δ over the rows of a head, from the statistics that `dq` has written.

use super::row::STATISTICS_BYTES;
use crate::ptx::math::ex2;
use crate::ptx::memory::{
    dynamic_smem, ld_global_b32, ld_global_v2, ld_shared, st_global_f32, st_shared, to_global,
};
use crate::ptx::warp::shfl_bfly;
use crate::step_params::SinkGradientParams;
use crate::steps::SINK_THREADS;
use core::f32::consts::LOG2_E;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

/// The kernel: a CTA sums over all rows of one query head, in an order that follows from their number alone.
///
/// # Safety
/// Launched with [`SINK_THREADS`] threads and their shared memory, one CTA a query head, behind `dq` on the stream, and parameters that
/// describe device memory as [`SinkGradientParams`] says.
#[inline(always)]
pub unsafe fn gradient(params: &SinkGradientParams) {
    let (head, thread) = (block_idx_x(), thread_idx_x());
    // SAFETY: the caller's.
    let sum = unsafe {
        let sink = to_global(params.sinks) + u64::from(head) * 4;
        let sink_log2 = f32::from_bits(ld_global_b32(sink)) * LOG2_E;
        let (entries, first, past) = rows(params);
        let (mut entry, mut sum) = (0, 0.0);
        while entry < entries {
            let start =
                (u64::from(entry) * u64::from(params.heads) + u64::from(head)) * u64::from(params.rows);
            let mut row = first + thread;
            while row < past {
                let index = start + u64::from(row);
                let at = to_global(params.statistics) + index * u64::from(STATISTICS_BYTES);
                let [lse_log2, delta] = ld_global_v2(at).map(f32::from_bits);
                sum -= ex2(sink_log2 - lse_log2) * delta;
                row += SINK_THREADS;
            }
            entry += 1;
        }
        sum
    };
    let sum = of_warp(sum);
    // SAFETY: a slot of each warp; the first warp reads them once all have written.
    unsafe {
        if thread % 32 == 0 {
            st_shared(dynamic_smem() + thread / 32 * 4, sum.to_bits());
        }
        sync_threads();
        if thread < 32 {
            let sum = of_warp(f32::from_bits(ld_shared(dynamic_smem() + thread * 4)));
            if thread == 0 {
                st_global_f32(to_global(params.d_sinks) + u64::from(head) * 4, sum);
            }
        }
    }
}

/// Batch entries of the statistics, and the first row of each and the one past the last that belong to a sequence.
///
/// # Safety
/// As for [`gradient`].
#[inline(always)]
unsafe fn rows(params: &SinkGradientParams) -> (u32, u32, u32) {
    if params.cu_seqlens_q == 0 {
        return (params.batch, 0, params.rows);
    }
    let at = |sequence: u32| to_global(params.cu_seqlens_q) + u64::from(sequence) * 4;
    // SAFETY: the caller's.
    let [first, past] = [0, params.batch].map(|sequence| unsafe { ld_global_b32(at(sequence)) });
    (1, first.min(params.rows), past.min(params.rows))
}

/// The sum over a warp's lanes, for each of them.
#[inline(always)]
fn of_warp(sum: f32) -> f32 {
    let sum = sum + shfl_bfly::<16>(sum);
    let sum = sum + shfl_bfly::<8>(sum);
    let sum = sum + shfl_bfly::<4>(sum);
    let sum = sum + shfl_bfly::<2>(sum);
    sum + shfl_bfly::<1>(sum)
}
