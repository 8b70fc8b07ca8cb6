//! The merge of the partial O and LSE of `Schedule::Split`: in a kernel of its own, some query rows a CTA, or in the CTA of a tile that
//! finishes last. Both do the same sums in the same order, so that a result is the same in every bit.
//!
//! Memory is its only cost. A part of a row is four neighbouring elements of one of several groups of splits; a thread takes in some
//! parts at a time, and has some loads of 16 bytes of each on their way. The order of all sums is fixed by the number of
//! splits, so that a result repeats in every bit; with one split that saw keys it is that split's, bit by bit.

use crate::config::LastCta;
use crate::divisor::Divisor;
use crate::element::Element;
use crate::geometry::{COMBINE_CTA_ROWS, COMBINE_PARTS, COMBINE_ROW_BYTES, COMBINE_THREADS, SPLITS_MAX};
use crate::params::{CombineParams, SplitParams};
use crate::ptx::math::{ex2, fma, lg2, max, rcp};
use crate::ptx::memory::{
    atomic_inc_acq_rel, dynamic_smem, ld_global_b32, ld_global_b32_if, ld_global_v4_f32_if, ld_shared,
    ld_shared_v4, st_global_f32, st_global_v2, st_shared, st_shared_v4, to_global,
};
use crate::ptx::opaque;
use crate::ptx::warp::shfl_bfly;
use crate::queries::QueryRows;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

/// LSEs that a lane reads.
const LSE_A_LANE: usize = SPLITS_MAX as usize / 32;
/// The neutral element of addition: −0 + x is x for every x, and 0 + −0 would be 0.
pub const NOTHING: f32 = -0.0;
/// Bytes of a row's weights in shared memory.
const WEIGHTS_BYTES: u32 = SPLITS_MAX * 4;
/// Bytes of the sums of a row's parts in shared memory.
const SUMS_BYTES: u32 = COMBINE_PARTS * 16;
const _: () = assert!(WEIGHTS_BYTES + SUMS_BYTES == COMBINE_ROW_BYTES, "what shared memory is reckoned with");

/// Where the splits' O and LSE lie, in the global window.
#[derive(Clone, Copy)]
struct Partials {
    o: u64,
    lse: u64,
    /// Rows of one split.
    rows: u64,
    splits: u32,
    /// Chunks of four elements of a row.
    chunks: Divisor,
}

/// Where a row's LSE and O go, in the global window, and its number in a split.
#[derive(Clone, Copy)]
struct Target {
    index: u64,
    o: u64,
    /// 0 where none is wanted.
    lse: u64,
    /// The score of its sink, where there are sinks.
    sink: Option<f32>,
}

/// The kernel: one CTA for each few query rows, and another for their second slice of the value vectors where those have two.
///
/// # Safety
/// Launched with [`COMBINE_THREADS`] threads and [`crate::geometry::COMBINE_SMEM_BYTES`] of dynamic shared memory a CTA, as many CTAs a
/// slice as [`CombineParams`] says, and parameters that describe device memory as it says.
#[inline(always)]
pub unsafe fn combine<E: Element>(params: &CombineParams) {
    // A second slice of the value vectors has as many rows; the first one writes LSE.
    let cta = block_idx_x();
    let is_second = cta >= params.ctas_of_slice;
    let (cta, before) = if is_second {
        (cta - params.ctas_of_slice, u64::from(params.splits) * params.rows)
    } else {
        (cta, 0)
    };
    let partials = Partials {
        o: to_global(params.partial_o) + before * u64::from(params.chunks.value * 16),
        lse: to_global(params.partial_lse) + before * 4,
        rows: params.rows,
        splits: params.splits,
        chunks: params.chunks,
    };
    // SAFETY: the caller's.
    let Some((first, count)) = (unsafe { rows_of_cta(params, cta) }) else { return };
    let along = if is_second { params.chunks.value * 8 } else { 0 };
    let target = |row| {
        let row = first + row;
        let lse = if params.lse == 0 || is_second { 0 } else { to_global(params.lse) + u64::from(row) * 4 };
        let sink = || {
            let head = params.heads_q.divide(params.seqlen_q.quotient(row)).1;
            // SAFETY: an element a query head.
            f32::from_bits(unsafe { ld_global_b32(to_global(params.sinks) + u64::from(head) * 4) })
        };
        let sink = (params.sinks != 0).then(sink);
        Target { index: row.into(), o: row_of_output(params, row) + u64::from(along), lse, sink }
    };
    let threads = (thread_idx_x(), COMBINE_THREADS);
    // SAFETY: the caller's; nothing uses the CTA's shared memory.
    unsafe {
        // Few rows have many splits each, and many rows few: a thread has some loads of one row on their way, or one of each.
        if params.rows_of_cta == 1 {
            merge_rows::<E, 1, 4>(&partials, 1, threads, sync_threads, target);
        } else {
            merge_rows::<E, { COMBINE_CTA_ROWS as usize }, 1>(
                &partials,
                count,
                threads,
                sync_threads,
                target,
            );
        }
    }
}

/// The first row of a CTA of a slice, and how many it has; `None` where it has none. Of packed sequences, whose lengths lie on the device, rows
/// behind the last sequence's are no output.
///
/// # Safety
/// `params` describe device memory as [`CombineParams`] says.
#[inline(always)]
unsafe fn rows_of_cta(params: &CombineParams, cta: u32) -> Option<(u32, u32)> {
    if params.cu_seqlens_q == 0 {
        let first = cta * params.rows_of_cta;
        return Some((first, (params.rows as u32 - first).min(params.rows_of_cta)));
    }
    let (head, block) = params.ctas_of_head.divide(cta);
    // SAFETY: an element a sequence, and one more.
    let begin_of =
        |sequence: u32| unsafe { ld_global_b32(to_global(params.cu_seqlens_q) + u64::from(sequence) * 4) };
    let first = begin_of(0).wrapping_add(block * params.rows_of_cta);
    let past = begin_of(params.sequences).min(params.seqlen_q.value);
    (first < past).then(|| (head * params.seqlen_q.value + first, (past - first).min(params.rows_of_cta)))
}

/// Merges the splits of a tile in the CTA that comes here last: by then all of its splits are written.
///
/// Called by all `threads` compute threads; `thread` is this one's index. `sync` is a barrier of them all, and `sync_or` one that
/// says whether its condition holds for any of them. `tile` is the tile's number among all: its counter goes back to 0 with its last
/// CTA, so that the next launch finds it as this one did.
///
/// # Safety
/// All those threads of every CTA of the tile come here once, behind their writes of the partial O and LSE. Nobody needs the CTA's
/// tiles in shared memory any more: no copy is on its way there, and no product reads them. `counters` are given and those of other
/// tiles are left alone; O and LSE are writable.
#[inline(always)]
pub unsafe fn merge_in_last_cta<E: Element>(
    split: &SplitParams,
    queries: &QueryRows<'_>,
    last_cta: LastCta,
    tile: u32,
    (thread, threads): (u32, u32),
    sync: impl Fn() + Copy,
    sync_or: impl FnOnce(bool) -> bool,
) {
    let splits = split.splits.value;
    let counter = to_global(split.counters) + u64::from(tile) * 4;
    // The split's O and LSE are written by all, and all are done with shared memory.
    sync();
    // The barrier makes the CTA's writes visible to this thread; the acq_rel increment publishes them and acquires the other CTAs'; the
    // barrier below passes those on to the CTA's other threads.
    // SAFETY: a counter of the workspace.
    let arrive = || unsafe { atomic_inc_acq_rel(counter, splits - 1) };
    if !sync_or(thread == 0 && arrive() == splits - 1) {
        return;
    }
    let first_row = queries.first_partial_row();
    let partials = Partials {
        o: to_global(split.partial_o) + first_row * u64::from(queries.width(last_cta.width) * 4),
        lse: to_global(split.partial_lse) + first_row * 4,
        rows: queries.of_tensor(),
        splits,
        chunks: queries.chunks(last_cta.chunks),
    };
    let past = queries.past().min(queries.first() + last_cta.block_m);
    let at_a_time = last_cta.rows;
    let mut first = queries.first();
    while first < past {
        let target = |row| {
            let index = queries.index(first + row);
            let lse = if queries.wants_lse() { queries.lse(index) } else { 0 };
            // SAFETY: the caller's.
            Target { index, o: queries.o(first + row), lse, sink: unsafe { queries.sink(first + row) } }
        };
        let count = (past - first).min(at_a_time);
        let threads = (thread, threads);
        // SAFETY: the caller's; at_a_time rows fit into shared memory and the warps.
        unsafe {
            // A wide row has few groups of many splits. More loads at a time would be more registers than the main loop has.
            if last_cta.width < 128 {
                merge_rows::<E, 4, 1>(&partials, count, threads, sync, target);
            } else {
                merge_rows::<E, 4, 4>(&partials, count, threads, sync, target);
            }
        }
        first += at_a_time;
    }
}

/// Merges `count` rows: `P` parts a thread at a time, and `L` loads of each. Called by all `threads` threads, which divide the parts
/// of a row evenly or are more than those; `thread` is this one's index, and `sync` a barrier of them all.
///
/// # Safety
/// All those threads take part, `count` is at most the number of warps, and from the start of dynamic shared memory on there are
/// [`crate::geometry::COMBINE_ROW_BYTES`] for each row that nobody else uses; the partial O and LSE are written, and the targets writable.
#[inline(always)]
unsafe fn merge_rows<E: Element, const P: usize, const L: usize>(
    partials: &Partials,
    count: u32,
    (thread, threads): (u32, u32),
    sync: impl Fn(),
    target: impl Fn(u32) -> Target,
) {
    let weights = dynamic_smem();
    let sums = weights + count * WEIGHTS_BYTES;
    let chunks = partials.chunks.value;
    let groups = partials.chunks.quotient(COMBINE_PARTS);
    let (turns, parts_a_turn) = (COMBINE_PARTS.div_ceil(threads), threads.min(COMBINE_PARTS));
    let parts_of = |first: u32| {
        core::array::from_fn(|i| {
            let turn = first + i as u32;
            let row = turn / turns;
            let (group, chunk) = partials.chunks.divide(thread + turn % turns * threads);
            let past = if row < count && group < groups { partials.splits } else { 0 };
            // What is not there reads the weights of what is.
            let row = row.min(count - 1);
            let o = (target(row).index * u64::from(chunks) + u64::from(chunk)) * 16;
            Part { weights: weights + row * WEIGHTS_BYTES, o: partials.o + o, group, past }
        })
    };
    // SAFETY: the caller's; all threads pass every barrier.
    unsafe {
        // On their way while the splits are weighed.
        let mut loads = Loads::<P, L>::new(partials, &parts_of(0), groups, 0);
        weigh_splits(partials, count, thread, weights, &target);
        // The weights are there, and those of the sums that were there before are used.
        sync();
        // Found again rather than kept: the loads take the registers.
        let mut turn = opaque(0);
        let mut parts = parts_of(turn);
        loop {
            let o = sum_of_parts(partials, &parts, groups, loads);
            let at = sums + (turn * parts_a_turn + thread) * 16;
            for i in 0..P {
                if parts[i].past > 0 {
                    st_shared_v4(at + i as u32 * parts_a_turn * 16, o[i].map(f32::to_bits));
                }
            }
            turn += P as u32;
            if turn >= count * turns {
                break;
            }
            parts = parts_of(turn);
            loads = Loads::new(partials, &parts, groups, 0);
        }
        // The sums of all groups are there, and the weights are used.
        sync();
        let mut at = thread;
        while at < count * chunks {
            let (row, chunk) = partials.chunks.divide(at);
            let sum = |group: u32| {
                ld_shared_v4(sums + row * SUMS_BYTES + (group * chunks + chunk) * 16).map(f32::from_bits)
            };
            let mut o = sum(0);
            for group in 1..groups {
                let other = sum(group);
                o = core::array::from_fn(|i| o[i] + other[i]);
            }
            let at_o = target(row).o + u64::from(chunk * 8);
            st_global_v2(at_o, [E::pack(o[0], o[1]), E::pack(o[2], o[3])]);
            at += threads;
        }
    }
}

/// Puts every split's share of the rows into `weights`, shares that sum to 1, and writes the rows' LSE; a warp does so for a row.
///
/// # Safety
/// As for [`merge_rows`].
#[inline(always)]
unsafe fn weigh_splits(
    partials: &Partials,
    count: u32,
    thread: u32,
    weights: u32,
    target: &impl Fn(u32) -> Target,
) {
    let (row, lane) = (thread / 32, thread % 32);
    let Target { index, lse: lse_at, sink, .. } = target(row);
    let lse: [f32; LSE_A_LANE] = core::array::from_fn(|i| {
        let split = i as u32 * 32 + lane;
        let is_there = row < count && split < partials.splits;
        let at = partials.lse + (u64::from(split) * partials.rows + index) * 4;
        // SAFETY: an element of the partial LSE.
        f32::from_bits(unsafe { ld_global_b32_if(is_there, at, f32::NEG_INFINITY.to_bits()) })
    });
    let most = over_lanes(lse.iter().fold(f32::NEG_INFINITY, |most, &lse| max(most, lse)), max);
    let most = sink.map_or(most, |sink| max(most, sink));
    let base = base_of(most);
    let shares = lse.map(|lse| share(lse, base));
    let sum = over_lanes(shares.iter().fold(0.0, |sum, share| sum + share), |a, b| a + b);
    let sum = sink.map_or(sum, |sink| sum + share(sink, base));
    let normalizer = normalizer(sum);
    if row < count {
        for (i, (&lse, share)) in (0..).zip(lse.iter().zip(&shares)) {
            let at = weights + row * WEIGHTS_BYTES + (i * 32 + lane) * 4;
            // SAFETY: this lane's place.
            unsafe { st_shared(at, weight(lse, share * normalizer).to_bits()) }
        }
        let lse = lse_of(sum, base);
        if lane == 0 && lse_at != 0 {
            // SAFETY: an element of LSE.
            unsafe { st_global_f32(lse_at, lse) }
        }
    }
}

/// What the LSEs of partial results are compared with: the greatest of them.
#[inline(always)]
pub fn base_of(most: f32) -> f32 {
    // −∞ − −∞ would be NaN.
    if most == f32::NEG_INFINITY { 0.0 } else { most }
}

/// The weight of a partial result, or of a sink, relative to `base`.
#[inline(always)]
pub fn share(lse: f32, base: f32) -> f32 {
    ex2((lse - base) * LOG2_E)
}

/// What weights of this sum are multiplied with, so that they sum to 1; 0 where no key was seen.
#[inline(always)]
pub fn normalizer(sum: f32) -> f32 {
    if sum == 0.0 { 0.0 } else { rcp(sum) }
}

/// The LSE of weights of this sum.
#[inline(always)]
pub fn lse_of(sum: f32, base: f32) -> f32 {
    if sum == 0.0 { f32::NEG_INFINITY } else { base + lg2(sum) * LN_2 }
}

/// What a partial result of this LSE is multiplied with: its normalized share, or [`NOTHING`] where it saw no key. A share that float32
/// rounds to 0 is another matter: of keys with so little weight NaN still shows, as it does within one tile.
#[inline(always)]
pub fn weight(lse: f32, normalized: f32) -> f32 {
    if lse == f32::NEG_INFINITY { NOTHING } else { normalized }
}

/// `sum` and a weighted element more. A partial result without keys leaves no trace, not even of a sign, whatever it holds.
#[inline(always)]
pub fn add_weighted(sum: f32, element: f32, weight: f32) -> f32 {
    let more = fma(element, weight, sum);
    if weight.to_bits() == NOTHING.to_bits() { sum } else { more }
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

/// Four neighbouring elements of a row in one group of splits.
#[derive(Clone, Copy, Default)]
struct Part {
    /// The row's weights in shared memory.
    weights: u32,
    group: u32,
    /// Past its last split: all of them, or 0 where there is no such part.
    past: u32,
    /// The elements in split 0.
    o: u64,
}

/// Elements of each part in `L` splits, on their way from memory: those from split `first + group` on, `groups` splits apart.
#[derive(Clone, Copy)]
struct Loads<const P: usize, const L: usize> {
    first: u32,
    elements: [[[f32; 4]; L]; P],
}

impl<const P: usize, const L: usize> Loads<P, L> {
    /// The split of one of a part's loads.
    #[inline(always)]
    fn split(first: u32, part: &Part, groups: u32, load: usize) -> u32 {
        first + part.group + load as u32 * groups
    }

    /// Loads also what splits without keys left there, which is anything: their weights, which come later, are [`NOTHING`].
    ///
    /// # Safety
    /// As for [`merge_rows`].
    #[inline(always)]
    unsafe fn new(partials: &Partials, parts: &[Part; P], groups: u32, first: u32) -> Self {
        let split_bytes = partials.rows * u64::from(partials.chunks.value) * 16;
        let elements = core::array::from_fn(|p| {
            let part = &parts[p];
            let mut at = part.o + u64::from(Self::split(first, part, groups, 0)) * split_bytes;
            core::array::from_fn(|load| {
                let split = Self::split(first, part, groups, load);
                // SAFETY: elements of one of the splits.
                let elements = unsafe { ld_global_v4_f32_if(split < part.past, at, NOTHING) };
                at += u64::from(groups) * split_bytes;
                elements
            })
        });
        Self { first, elements }
    }
}

/// The weighted sum of each part over the splits `group`, `group + groups`, and so on, of which the first are `loads`.
///
/// # Safety
/// As for [`merge_rows`]; the weights are written.
#[inline(always)]
unsafe fn sum_of_parts<const P: usize, const L: usize>(
    partials: &Partials,
    parts: &[Part; P],
    groups: u32,
    mut loads: Loads<P, L>,
) -> [[f32; 4]; P] {
    let mut o = [[NOTHING; 4]; P];
    loop {
        for (p, part) in parts.iter().enumerate() {
            for load in 0..L {
                let split = Loads::<P, L>::split(loads.first, part, groups, load);
                // SAFETY: one of the weights.
                let weight =
                    f32::from_bits(unsafe { ld_shared(part.weights + split.min(SPLITS_MAX - 1) * 4) });
                let weight = if split < partials.splits { weight } else { NOTHING };
                for e in 0..4 {
                    o[p][e] = add_weighted(o[p][e], loads.elements[p][load][e], weight);
                }
            }
        }
        let next = loads.first + groups * L as u32;
        if next >= partials.splits {
            return o;
        }
        // SAFETY: the caller's.
        loads = unsafe { Loads::new(partials, parts, groups, next) };
    }
}

/// The global address of a row of O, counted over all heads and batch entries.
#[inline(always)]
fn row_of_output(params: &CombineParams, row: u32) -> u64 {
    let (head_index, query) = params.seqlen_q.divide(row);
    let (batch, head) = params.heads_q.divide(head_index);
    let strides = &params.o_strides;
    let offset =
        i64::from(batch) * strides.batch + i64::from(head) * strides.head + i64::from(query) * strides.row;
    to_global(params.o).wrapping_add_signed(offset)
}
