//! The work tile of a CTA, from its index: what both families' kernels ask of the parameter block.

use crate::config::Config;
use crate::math::mask::{RowBegins, RowLimits};
use crate::params::ForwardParams;
use crate::ptx::memory::{ld_global_b32, to_global_again};
use crate::ptx::warp::shfl_bfly_b32;
use crate::scheduler::Work;
use crate::score::{RowAt, Score};
use crate::sequence::Sequence;
use crate::shape::Shape;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::{Band, KeyBlocks, Visible};
use cuda_std::thread::thread_idx_x;

/// The tile of this index, or its split.
///
/// # Safety
/// As for [`Sequence::of_batch`].
#[inline(always)]
pub unsafe fn work_of<C: Config>(params: &ForwardParams, index: u32) -> Work<'_> {
    let rows = C::BLOCK.rows_used(params.group);
    if C::RAGGED {
        let start = |batch: u32| {
            let at = to_global_again(params.ragged.cu_seqlens_q) + u64::from(batch) * 4;
            // SAFETY: the caller's; one element a batch entry, and one more.
            unsafe { ld_global_b32(at) }.min(params.seqlen_q) * params.group.value
        };
        let (index, slice) = slice_of::<C>(params, index);
        // SAFETY: the caller's.
        let sequence = |batch| unsafe { Sequence::of_ragged(params, batch) };
        Work { slice, ..Work::of_ragged(params, index, start, sequence) }
    } else if C::SPLIT {
        // SAFETY: the caller's.
        Work::of_split(params, index, rows, |batch| unsafe { Sequence::of_batch(params, batch) })
    } else {
        Work::of_head(params, index, rows)
    }
}

/// The tile, or its split, that the CTA of this index shares with others, and which slice of the value vectors is its own. Neighbours in
/// time share a tile, and with it what they read of K.
#[inline(always)]
fn slice_of<C: Config>(params: &ForwardParams, index: u32) -> (u32, u32) {
    // The compiler does not know that a number of slices is not 0.
    let slices = params.ragged.slices.max(1);
    if C::SLICED { (index / slices, index % slices) } else { (index, 0) }
}

/// The number of the tile that [`work_of`] gives for `index`, the same for all of its splits; each slice of the value vectors counts.
#[inline(always)]
pub fn tile_of_split<C: Config>(params: &ForwardParams, index: u32) -> u32 {
    let (index, slice) = slice_of::<C>(params, index);
    let tile = Work::tile_of_split(params, index);
    if C::SLICED { tile * params.ragged.slices + slice } else { tile }
}

/// The blocks of keys that a tile works on.
///
/// # Safety
/// As for [`Sequence::of_ragged`]; on mma.sync, all lanes of a warp take part.
#[inline(always)]
pub unsafe fn key_blocks<C: Config>(params: &ForwardParams, work: &Work<'_>) -> KeyBlocks {
    let blocks = if C::RAGGED {
        // SAFETY: the caller's.
        let interval = |first, past| unsafe {
            // One thread alone cannot look through them, so that kernels with wgmma have none.
            if C::ONE_THREAD_SCHEDULES { None } else { interval_of_rows(params, work, first, past) }
        };
        let hides_from = C::Score::hides_from(params, work.sequence.seqlen_k);
        C::BLOCK.ragged_key_blocks(params, work, (C::K::ROWS, hides_from), interval)
    } else {
        C::BLOCK.key_blocks(params, work, C::K::ROWS)
    };
    if C::SPLIT { blocks.of_split(work.split, &params.split) } else { blocks }
}

/// The least and the greatest begin, and end, of the intervals of the queries `first..past`, where the caller gives intervals.
///
/// # Safety
/// As for [`Sequence::of_ragged`]; all lanes of a warp take part.
#[inline(always)]
pub unsafe fn interval_of_rows(
    params: &ForwardParams,
    work: &Work<'_>,
    first: u32,
    past: u32,
) -> Option<[(u32, u32); 2]> {
    if params.ragged.intervals == 0 {
        return None;
    }
    let (mut least, mut most) = ([u32::MAX; 2], [0; 2]);
    let mut query = first + thread_idx_x() % 32;
    while query < past {
        // SAFETY: the query is one of the sequence's.
        let visible = unsafe { interval_of_query(params, work, query) };
        let ends = [visible.begin, visible.end];
        least = core::array::from_fn(|i| least[i].min(ends[i]));
        most = core::array::from_fn(|i| most[i].max(ends[i]));
        query += 32;
    }
    let over_lanes = |value: u32, of: fn(u32, u32) -> u32| {
        let value = of(value, shfl_bfly_b32::<1>(value));
        let value = of(value, shfl_bfly_b32::<2>(value));
        let value = of(value, shfl_bfly_b32::<4>(value));
        let value = of(value, shfl_bfly_b32::<8>(value));
        of(value, shfl_bfly_b32::<16>(value))
    };
    let both = |i: usize| (over_lanes(least[i], u32::min), over_lanes(most[i], u32::max));
    Some([both(0), both(1)])
}

/// The interval that the caller gives for a query, counted within its sequence.
///
/// # Safety
/// Intervals are given, and the query is one of the sequence's.
#[inline(always)]
unsafe fn interval_of_query(params: &ForwardParams, work: &Work<'_>, query: u32) -> Visible {
    let row = row_of_tensor(params, work, query);
    let at = to_global_again(params.ragged.intervals) + row * 8;
    // SAFETY: the caller's.
    let (begin, end) = unsafe { (ld_global_b32(at), ld_global_b32(at + 4)) };
    Visible { begin: begin.min(work.sequence.seqlen_k), end: end.min(work.sequence.seqlen_k) }
}

/// Where a query stands in Q without heads: `[batch, seqlen_q]`, or packed.
#[inline(always)]
fn row_of_tensor(params: &ForwardParams, work: &Work<'_>, query: u32) -> u64 {
    let batch = if params.ragged.cu_seqlens_q == 0 { work.batch } else { 0 };
    u64::from(batch) * u64::from(params.seqlen_q) + u64::from(work.sequence.q_start + query)
}

/// The keys that a row of a ragged batch sees beside sink tokens. Rows past the last see what the last one does.
///
/// # Safety
/// As for [`Sequence::of_ragged`]; the sequence has queries.
#[inline(always)]
pub unsafe fn visible_of_row<C: Config>(params: &ForwardParams, work: &Work<'_>, row: u32) -> Visible {
    // SAFETY: the caller's.
    unsafe {
        visible_of_query(params, work, !C::ONE_THREAD_SCHEDULES, || C::BLOCK.rows.query(row, params.group))
    }
}

/// As [`visible_of_row`], of a query; the caller's intervals are looked at by kernels that take any.
///
/// # Safety
/// As for [`visible_of_row`].
#[inline(always)]
pub unsafe fn visible_of_query(
    params: &ForwardParams,
    work: &Work<'_>,
    takes_intervals: bool,
    query: impl FnOnce() -> u32,
) -> Visible {
    let last = work.sequence.seqlen_q.get().saturating_sub(1);
    let query = query().min(last);
    let Visible { begin, end } = Band::of(&params.ragged).of_query(query, &work.sequence);
    if !takes_intervals || params.ragged.intervals == 0 {
        return Visible { begin, end };
    }
    // SAFETY: the caller's; the query is one of the sequence's.
    let given = unsafe { interval_of_query(params, work, query) };
    Visible { begin: begin.max(given.begin), end: end.min(given.end) }
}

/// Whether the keys are divided among CTAs, whose O and LSE are partial.
#[inline(always)]
pub fn is_partial<C: Config>(params: &ForwardParams) -> bool {
    C::SPLIT && params.split.splits.value > 1
}

/// Whether rows of one block may see different keys of what was copied: under a mask, or where sequences end before what
/// the tensor maps know. Bulk copies read 0 past the end that they know.
#[inline(always)]
pub fn rows_differ<C: Config>(params: &ForwardParams) -> bool {
    C::RAGGED || params.causal != 0 || params.split.seqlens_k != 0
}

/// The keys that each of a lane's rows of a ragged batch sees; `first_row` is the first of them.
///
/// # Safety
/// As for [`visible_of_row`].
#[inline(always)]
pub unsafe fn intervals_of_rows<C: Config>(
    params: &ForwardParams,
    work: &Work<'_>,
    first_row: u32,
) -> (RowLimits<C::Warp>, RowBegins<C::Warp>) {
    RowLimits::of_intervals(params.ragged.sink_tokens, |m, half| {
        // SAFETY: the caller's.
        unsafe { visible_of_row::<C>(params, work, first_row + (m * 16 + half * 8) as u32) }
    })
}

/// What a score keeps of each of a lane's rows; `first_row` is the first of them.
#[inline(always)]
pub fn score_rows<C: Config>(
    params: &ForwardParams,
    work: &Work<'_>,
    first_row: u32,
) -> <C::Warp as WarpTile>::Rows<<C::Score as Score>::Row> {
    Tiles::from_fn(|m, half| {
        C::Score::row(params, || row_at::<C>(params, work, first_row + (m * 16 + half * 8) as u32))
    })
}

/// A row as scores know it. Rows past the last are as the last.
#[inline(always)]
fn row_at<C: Config>(params: &ForwardParams, work: &Work<'_>, row: u32) -> RowAt {
    let (query, head) = C::BLOCK.rows.query_and_head(row, params.group);
    query_at(params, work, (work.head_q + head, query))
}

/// A query of a head as scores know it. Queries past the last are as the last.
#[inline(always)]
pub fn query_at(params: &ForwardParams, work: &Work<'_>, (head, query): (u32, u32)) -> RowAt {
    let Sequence { seqlen_q, seqlen_k, .. } = work.sequence;
    let seqlen_q = seqlen_q.get();
    let query = query.min(seqlen_q.saturating_sub(1));
    let row = row_of_tensor(params, work, query);
    RowAt { batch: work.batch, head, query, seqlen_q, seqlen_k, row }
}

/// Whether the score shows a key to a row of a tile.
#[inline(always)]
pub fn score_sees_row<C: Config>(params: &ForwardParams, work: &Work<'_>, row: u32, key: u32) -> bool {
    score_sees::<C::Score>(params, key, || row_at::<C>(params, work, row))
}

/// Whether a score shows a key to a query: the slow way, for what is hardly ever asked.
#[inline(always)]
pub fn score_sees<S: Score>(params: &ForwardParams, key: u32, at: impl FnOnce() -> RowAt) -> bool {
    if !S::HIDES {
        return true;
    }
    let score = S::new(params);
    score.sees(score.keys(S::row(params, at), key), 0)
}
