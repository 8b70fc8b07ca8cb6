//! The combine kernel: merges the partial O and LSE of `Schedule::Split`, one CTA a query row.
//!
//! Memory is its only cost: every thread owns four neighbouring elements of the row and one of several groups of splits,
//! and has [`LOADS_IN_FLIGHT`] loads of 16 bytes on their way at a time. The order of all sums is fixed by the number of
//! splits, so that a result repeats in every bit; with one split that saw keys it is that split's, bit by bit.

use crate::element::Element;
use crate::geometry::{COMBINE_THREADS, SPLITS_MAX};
use crate::params::CombineParams;
use crate::ptx::math::{ex2, fma, lg2, max, rcp};
use crate::ptx::memory::{
    dynamic_smem, ld_global_b32, ld_global_v4_f32, ld_shared, ld_shared_v4, st_global_f32, st_global_v2,
    st_shared, st_shared_v4, to_global,
};
use crate::ptx::warp::shfl_bfly;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

/// Loads that a thread starts before it waits for the first.
const LOADS_IN_FLIGHT: usize = 4;
/// LSEs that a lane reads.
const LSE_A_LANE: usize = SPLITS_MAX as usize / 32;
/// The neutral element of addition: −0 + x is x for every x, and 0 + −0 would be 0.
const NOTHING: f32 = -0.0;

/// # Safety
/// Launched with [`COMBINE_THREADS`] threads and [`crate::geometry::COMBINE_SMEM_BYTES`] of dynamic shared memory a CTA, one CTA a
/// row, and parameters that describe device memory as [`CombineParams`] says.
#[inline(always)]
pub unsafe fn combine<E: Element>(params: &CombineParams) {
    let (row, thread) = (block_idx_x(), thread_idx_x());
    let (weights, sums) = (dynamic_smem(), dynamic_smem() + SPLITS_MAX * 4);
    // SAFETY: the caller's; all threads pass every barrier.
    unsafe {
        let lse = weigh_splits(params, row, thread, weights);
        let chunks = params.chunks.value;
        let (group, chunk) = params.chunks.divide(thread);
        let groups = params.chunks.quotient(COMBINE_THREADS);
        let mut o = [NOTHING; 4];
        if group < groups {
            o = sum_of_group(params, row, chunk, (group, groups), weights);
            st_shared_v4(sums + thread * 16, o.map(f32::to_bits));
        }
        // The sums of all groups are there.
        sync_threads();
        if group == 0 {
            for other in 1..groups {
                let other = ld_shared_v4(sums + (other * chunks + chunk) * 16).map(f32::from_bits);
                o = core::array::from_fn(|i| o[i] + other[i]);
            }
            let at = output_row(params, row) + u64::from(chunk * 8);
            st_global_v2(at, [E::pack(o[0], o[1]), E::pack(o[2], o[3])]);
        }
        if thread == 0 && params.lse != 0 {
            st_global_f32(to_global(params.lse) + u64::from(row) * 4, lse);
        }
    }
}

/// Puts every split's share of the row into `weights`, shares that sum to 1, and returns the row's LSE. Every warp computes
/// them, and warp 0 writes them.
///
/// # Safety
/// All threads of the CTA take part; the partial LSE is readable.
#[inline(always)]
unsafe fn weigh_splits(params: &CombineParams, row: u32, thread: u32, weights: u32) -> f32 {
    let lane = thread % 32;
    let partial_lse = to_global(params.partial_lse);
    let lse: [f32; LSE_A_LANE] = core::array::from_fn(|i| {
        let split = i as u32 * 32 + lane;
        // SAFETY: an element of the partial LSE.
        let of_split =
            || unsafe { ld_global_b32(partial_lse + (u64::from(split) * params.rows + u64::from(row)) * 4) };
        if split < params.splits { f32::from_bits(of_split()) } else { f32::NEG_INFINITY }
    });
    let most = over_lanes(lse.into_iter().fold(f32::NEG_INFINITY, max), max);
    // −∞ − −∞ would be NaN.
    let base = if most == f32::NEG_INFINITY { 0.0 } else { most };
    let shares = lse.map(|lse| ex2((lse - base) * LOG2_E));
    let sum = over_lanes(shares.into_iter().fold(0.0, |sum, share| sum + share), |a, b| a + b);
    // 0 where no key was seen.
    let normalizer = if sum == 0.0 { 0.0 } else { rcp(sum) };
    if thread < 32 {
        for (i, share) in (0..).zip(shares) {
            // SAFETY: this lane's place.
            unsafe { st_shared(weights + (i * 32 + lane) * 4, (share * normalizer).to_bits()) }
        }
    }
    // The weights are there.
    sync_threads();
    if sum == 0.0 { f32::NEG_INFINITY } else { base + lg2(sum) * LN_2 }
}

/// Combines the values of all lanes, alike in every lane.
#[inline(always)]
fn over_lanes(value: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let value = combine(value, shfl_bfly::<1>(value));
    let value = combine(value, shfl_bfly::<2>(value));
    let value = combine(value, shfl_bfly::<4>(value));
    let value = combine(value, shfl_bfly::<8>(value));
    combine(value, shfl_bfly::<16>(value))
}

/// The weighted sum of chunk `chunk` over the splits `group`, `group + groups`, and so on.
///
/// # Safety
/// The weights are written, and the partial O is readable wherever they are not 0.
#[inline(always)]
unsafe fn sum_of_group(
    params: &CombineParams,
    row: u32,
    chunk: u32,
    (group, groups): (u32, u32),
    weights: u32,
) -> [f32; 4] {
    let row_bytes = u64::from(params.chunks.value) * 16;
    let base = to_global(params.partial_o) + u64::from(row) * row_bytes + u64::from(chunk * 16);
    let mut o = [NOTHING; 4];
    let mut first = group;
    while first < params.splits {
        let loaded: [([f32; 4], f32); LOADS_IN_FLIGHT] = core::array::from_fn(|i| {
            let split = first + i as u32 * groups;
            // SAFETY: one of the weights, and a chunk of a split that saw keys.
            let weight = |split: u32| unsafe { f32::from_bits(ld_shared(weights + split * 4)) };
            let weight = if split < params.splits { weight(split) } else { 0.0 };
            let at = base + u64::from(split) * params.rows * row_bytes;
            // SAFETY: as above.
            let chunk = if weight == 0.0 { [NOTHING; 4] } else { unsafe { ld_global_v4_f32(at) } };
            (chunk, weight)
        });
        for (chunk, weight) in loaded {
            // A split without keys leaves no trace, not even of a sign.
            if weight != 0.0 {
                o = core::array::from_fn(|i| fma(chunk[i], weight, o[i]));
            }
        }
        first += groups * LOADS_IN_FLIGHT as u32;
    }
    o
}

/// The global address of a row of O, counted over all heads and batch entries.
#[inline(always)]
fn output_row(params: &CombineParams, row: u32) -> u64 {
    let (head_index, query) = params.seqlen_q.divide(row);
    let (batch, head) = params.heads_q.divide(head_index);
    let strides = &params.o_strides;
    let offset =
        i64::from(batch) * strides.batch + i64::from(head) * strides.head + i64::from(query) * strides.row;
    to_global(params.o).wrapping_add_signed(offset)
}
