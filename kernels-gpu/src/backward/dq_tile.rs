//! A tile of `dq`: the blocks of keys that its queries see, the statistics of its queries, and where dQ goes.

use super::nonfinite::{Destination, Taint, rows_to_spread, spread};
use super::params::BackwardParams;
use super::recompute::is_hidden;
use super::row::STATISTICS_BYTES;
use super::sums::Sums;
use super::work::{first_index, key_rows, query_rows};
use crate::config::BackwardConfig;
use crate::element::half;
use crate::keys::KeyRows;
use crate::ptx::memory::{ld_global_b32, ld_global_v4, ld_shared_v4, st_global_v2, to_global};
use crate::ptx::warp::shfl_bfly;
use crate::scheduler::Work;
use crate::score::Score;
use crate::shape::Shape;
use crate::visible::{KeyBlocks, Visible};
use crate::work::{interval_of_rows, query_at, score_sees, visible_of_query};
use core::f32::consts::LOG2_E;

/// The keys that a query of a tile sees.
///
/// # Safety
/// As for [`visible_of_query`].
#[inline(always)]
pub unsafe fn visible(params: &BackwardParams, work: &Work<'_>, query: u32) -> Visible {
    // SAFETY: the caller's.
    unsafe { visible_of_query(&params.forward, work, true, || query) }
}

/// The blocks of keys that the tile's queries see.
///
/// # Safety
/// As for [`visible_of_query`]; all lanes of a warp take part.
#[inline(always)]
pub unsafe fn key_blocks<C: BackwardConfig>(params: &BackwardParams, work: &Work<'_>) -> KeyBlocks {
    let forward = &params.forward;
    // SAFETY: the caller's.
    let interval = |first, past| unsafe { interval_of_rows(forward, work, first, past) };
    let seqlen_k = work.sequence.seqlen_k;
    let hides_from = if C::Score::HIDES { C::Score::hides_from(forward, seqlen_k) } else { seqlen_k };
    C::BLOCK.ragged_key_blocks(forward, work, (C::Streamed::ROWS, hides_from), interval)
}

/// L·log2(e) and δ = rowsum(dO∘O) − dL of one of a lane's rows, which four lanes share; written for `dkv`. L is +∞ where the row sees
/// nothing, so that P is 0 whatever the scores are. `d_o` is where a chunk of eight elements of the row of dO lies in shared memory.
///
/// # Safety
/// All 32 lanes take part, and dO has landed.
#[inline(always)]
pub unsafe fn row_statistics<C: BackwardConfig>(
    params: &BackwardParams,
    work: &Work<'_>,
    (row, lane): (u32, u32),
    d_o: impl Fn(u32) -> u32,
) -> [f32; 2] {
    let forward = &params.forward;
    let exists = row < work.sequence.seqlen_q.get();
    let lane = lane % 4;
    let o = query_rows(forward.o, &forward.o_strides, work, work.head_q);
    // SAFETY: the caller's; rows that do not exist are not read.
    unsafe {
        let mut delta = 0.0;
        if exists {
            delta = dot::<C>(&o, (row, lane), forward.ragged.width_v, d_o);
        }
        delta += shfl_bfly::<1>(delta);
        delta += shfl_bfly::<2>(delta);
        if !exists {
            return [f32::INFINITY, 0.0];
        }
        let index = first_index(forward, work, work.head_q) + u64::from(row);
        statistics_of_row(params, index, delta, lane == 0)
    }
}

/// L·log2(e) and δ of row `index` of LSE, whose rowsum(dO∘O) is `sum`; stored if `stores`.
///
/// # Safety
/// The row exists.
#[inline(always)]
pub unsafe fn statistics_of_row(params: &BackwardParams, index: u64, sum: f32, stores: bool) -> [f32; 2] {
    // SAFETY: the caller's.
    unsafe {
        let of = |base: u64| f32::from_bits(ld_global_b32(to_global(base) + index * 4));
        let delta = if params.d_lse == 0 { sum } else { sum - of(params.d_lse) };
        let lse = of(params.forward.lse);
        let lse_log2 = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse * LOG2_E };
        if stores {
            let at = to_global(params.statistics) + index * u64::from(STATISTICS_BYTES);
            st_global_v2(at, [lse_log2, delta].map(f32::to_bits));
        }
        [lse_log2, delta]
    }
}

/// A lane's quarter of the products of a row of O and of dO.
///
/// # Safety
/// The row of O is readable, and dO has landed.
#[inline(always)]
unsafe fn dot<C: BackwardConfig>(
    o: &KeyRows,
    (row, lane): (u32, u32),
    width: u32,
    d_o: impl Fn(u32) -> u32,
) -> f32 {
    let mut sum = 0.0;
    for step in 0..C::Stationary::WIDTH / 32 {
        let chunk = step * 4 + lane;
        if chunk * 8 < width {
            // SAFETY: the caller's; a chunk of eight elements of each.
            let (o, d_o) = unsafe { (ld_global_v4(o.address(row, chunk * 16)), ld_shared_v4(d_o(chunk))) };
            for i in 0..8 {
                sum += half::<C::Element>(o[i / 2], i % 2) * half::<C::Element>(d_o[i / 2], i % 2);
            }
        }
    }
    sum
}

/// The rows of K and V of the tile's KV head.
#[inline(always)]
pub fn rows_of_keys(params: &BackwardParams, work: &Work<'_>) -> [KeyRows; 2] {
    let forward = &params.forward;
    [key_rows(forward.k, &forward.k_strides, work), key_rows(forward.v, &forward.v_strides, work)]
}

/// Where dQ of the tile goes.
#[inline(always)]
pub fn destination(params: &BackwardParams, work: &Work<'_>) -> Destination {
    Destination {
        rows: query_rows(params.d_q, &params.d_q_strides, work, work.head_q),
        range: (work.first_row, work.sequence.seqlen_q.get()),
        width: params.forward.ragged.width_qk,
        sums: Sums::NONE,
    }
}

/// Gives what is not finite in K of blocks that are seen in part to dQ of the rows that see it.
///
/// # Safety
/// All `threads` threads that compute take part, `thread` this one's index, after a barrier behind the stores of dQ.
#[inline(always)]
pub unsafe fn spread_keys<C: BackwardConfig>(
    params: &BackwardParams,
    work: &Work<'_>,
    blocks: &KeyBlocks,
    to: &Destination,
    threads: (u32, u32),
) {
    let steps = blocks.end.saturating_sub(blocks.first);
    let k = rows_of_keys(params, work)[0];
    let source = |step: u32, streamed: u32, row: u32| {
        let key = blocks.block(step) * C::Streamed::ROWS + streamed;
        // SAFETY: the caller's.
        let visible = unsafe { visible(params, work, row) };
        let is_seen = blocks.is_partial(step)
            & !is_hidden(key, visible, params.forward.ragged.sink_tokens)
            & score_sees::<C::Score>(&params.forward, key, || {
                query_at(&params.forward, work, (work.head_q, row))
            });
        is_seen.then(|| k.address(key, 0))
    };
    let (rows, taint) = (C::Stationary::ROWS, Taint::NotANumber);
    // SAFETY: the caller's.
    unsafe { spread::<C::Element>(to, rows, (steps, rows_to_spread::<C>()), taint, threads, source) }
}
