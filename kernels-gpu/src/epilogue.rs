//! From accumulators to global memory: the merge of warps that saw different keys, O, and LSE.

use crate::element::Element;
use crate::forward::{Config, rows_of_block};
use crate::geometry;
use crate::params::ForwardParams;
use crate::ptx::math::select;
use crate::ptx::memory::{
    ld_shared_v2_f32, ld_shared_v4, st_global_f32, st_global_v2, st_global_v4, st_shared, st_shared_v2_f32,
    to_global,
};
use crate::ptx::warp::{shfl_bfly_b32, sync_warp};
use crate::row::Isa;
use crate::scheduler::Work;
use crate::softmax::{OnlineSoftmax, scale_rows};
use crate::swizzle::Swizzle;
use crate::tile::OutputFragment;

/// Where a warp and a lane stand in the CTA's block.
#[derive(Clone, Copy)]
pub struct Position {
    /// The warp's first query row in the block.
    pub warp_row: u32,
    /// Which part of the keys of each block the warp takes.
    pub warp_n: u32,
    /// Lane of the warp.
    pub lane: u32,
}

impl Position {
    /// The position of a thread.
    #[inline(always)]
    pub fn new<C: Config>(thread: u32) -> Self {
        let (warp, warps_m) = (thread / 32, geometry::warps_m(&C::ROW));
        let warp_row = warp % warps_m * 16 * geometry::m_tiles(&C::ROW);
        Self { warp_row, warp_n: warp / warps_m, lane: thread % 32 }
    }
}

/// Merges O, row_max and row_sum of the warps along the keys into the warp with `warp_n` 0, through shared memory from
/// `smem` on: in pairs, the upper half into the lower one, until one is left. The order is always the same.
///
/// # Safety
/// All threads of those warps take part, and `sync` is a barrier of them all; shared memory holds [`geometry::merge_bytes`] and
/// nothing that is needed.
#[inline(always)]
pub unsafe fn merge_warps<C: Config, const M: usize, const D: usize>(
    softmax: &mut OnlineSoftmax<M>,
    acc_o: &mut OutputFragment<M, D>,
    smem: u32,
    position: Position,
    scale_log2: f32,
    sync: impl Fn(),
) {
    let Position { warp_row, warp_n, lane } = position;
    let o_row_bytes = geometry::merge_row_bytes(&C::ROW);
    let row = |m: usize, half: usize| warp_row + m as u32 * 16 + half as u32 * 8 + lane / 4;
    let mut pairs = geometry::warps_n(&C::ROW) / 2;
    while pairs > 0 {
        let slot = smem + warp_n % pairs * geometry::merge_slot_bytes(&C::ROW);
        let state = slot + C::ROW.block_m * o_row_bytes;
        let o_at = |m, half, n: usize| slot + row(m, half) * o_row_bytes + n as u32 * 32 + lane % 4 * 8;
        // The buffer is free: the main loop, or the pairs before, are done with it.
        sync();
        if warp_n / pairs == 1 {
            for m in 0..M {
                for half in 0..2 {
                    // SAFETY: 8-byte aligned places of this lane in the merge buffer.
                    unsafe {
                        for n in 0..D {
                            let o = [acc_o[m][n][2 * half], acc_o[m][n][2 * half + 1]];
                            st_shared_v2_f32(o_at(m, half, n), o);
                        }
                        let (max, sum) = (softmax.row_max[m][half], softmax.row_sum[m][half]);
                        if lane % 4 == 0 {
                            st_shared_v2_f32(state + row(m, half) * 8, [max, sum]);
                        }
                    }
                }
            }
        }
        // The buffer is full.
        sync();
        if warp_n < pairs {
            for m in 0..M {
                // SAFETY: places that the other warp's lane of the same number has written.
                let state = core::array::from_fn::<_, 2, _>(|half| unsafe {
                    ld_shared_v2_f32(state + row(m, half) * 8)
                });
                let other_o = |n| {
                    if n % 8 == 0 {
                        // No more loads than these at a time: together they would fill the registers.
                        sync_warp();
                    }
                    // SAFETY: as above.
                    let [low, high] = [0, 1].map(|half| unsafe { ld_shared_v2_f32(o_at(m, half, n)) });
                    [low[0], low[1], high[0], high[1]]
                };
                let other = ([state[0][0], state[1][0]], [state[0][1], state[1][1]]);
                softmax.merge(m, &mut acc_o[m], other, other_o, scale_log2);
            }
        }
        pairs /= 2;
    }
    if geometry::warps_n(&C::ROW) > 1 {
        // O goes out through the same memory.
        sync();
    }
}

/// Writes a warp's rows of O, through its own rows of the tile at `tile` so that each store takes 128 bits of a row.
///
/// # Safety
/// All 32 lanes take part and nobody else uses the warp's rows of the tile. O's rows below seqlen_q are writable.
#[inline(always)]
pub unsafe fn store_output<C: Config, const M: usize, const D: usize>(
    params: &ForwardParams,
    work: &Work,
    softmax: &OnlineSoftmax<M>,
    mut acc_o: OutputFragment<M, D>,
    tile: u32,
    position: Position,
) {
    let Position { warp_row, lane, .. } = position;
    let swizzle = Swizzle::new(C::ROW.head_dim);
    let row_bytes = C::ROW.head_dim * C::ROW.dtype.bytes();
    // All lanes have read what the tile held.
    sync_warp();
    for m in 0..M {
        scale_rows(&mut acc_o[m], softmax.normalizer(m));
        let lane_offset = swizzle.offset(warp_row + m as u32 * 16 + lane / 4, 0);
        for (n, o) in acc_o[m].iter().enumerate() {
            let at = tile + swizzle.advance(lane_offset, n as u32) + lane % 4 * 4;
            // SAFETY: a 4-byte aligned place of this lane. Rows 8 apart swizzle alike.
            unsafe {
                st_shared(at, C::Element::pack(o[0], o[1]));
                st_shared(at + 8 * row_bytes, C::Element::pack(o[2], o[3]));
            }
        }
    }
    // The rows are complete.
    sync_warp();
    let (lane_row, lane_chunk) = (lane / swizzle.span(), lane % swizzle.span());
    let rows_a_step = 32 / swizzle.span();
    for step in 0..M as u32 * 16 / rows_a_step {
        let row = warp_row + step * rows_a_step + lane_row;
        let global_row = work.first_row + row;
        if global_row < past_rows::<C>(params, work) {
            let at = output_row::<C>(params, work, global_row);
            for group in 0..row_bytes / (swizzle.span() * Swizzle::CHUNK_BYTES) {
                let chunk = lane_chunk + group * swizzle.span();
                // SAFETY: a chunk that this warp has written, and its place in a row of O.
                unsafe {
                    let value = ld_shared_v4(tile + swizzle.offset(row, chunk));
                    st_global_v4(at + u64::from(chunk * Swizzle::CHUNK_BYTES), value);
                }
            }
        }
    }
}

/// Writes a warp's 16 rows of O without a detour through shared memory: the four lanes of a row exchange what they hold of four
/// neighbouring n8 tiles, until each has the 128 bits of one.
///
/// # Safety
/// All 32 lanes take part. O's rows below seqlen_q are writable.
#[inline(always)]
pub unsafe fn store_output_from_registers<C: Config, const D: usize>(
    params: &ForwardParams,
    work: &Work,
    softmax: &OnlineSoftmax<1>,
    mut acc_o: OutputFragment<1, D>,
    position: Position,
) {
    let Position { warp_row, lane, .. } = position;
    scale_rows(&mut acc_o[0], softmax.normalizer(0));
    for half in 0..2 {
        let row = work.first_row + warp_row + half as u32 * 8 + lane / 4;
        let visible = row < past_rows::<C>(params, work);
        let at = output_row::<C>(params, work, row) + u64::from(lane % 4 * Swizzle::CHUNK_BYTES);
        for (group, tiles) in (0..).zip(acc_o[0].chunks_exact(4)) {
            let pairs =
                core::array::from_fn(|n| C::Element::pack(tiles[n][2 * half], tiles[n][2 * half + 1]));
            let chunk = transpose_quad(pairs, lane);
            if visible {
                // SAFETY: a chunk of a row of O.
                unsafe { st_global_v4(at + group * 4 * u64::from(Swizzle::CHUNK_BYTES), chunk) }
            }
        }
    }
}

/// Transposes the 4×4 values of four lanes: what lane i of them has as number j, lane j gets as number i.
#[inline(always)]
fn transpose_quad(mut values: [u32; 4], lane: u32) -> [u32; 4] {
    for (distance, pairs) in [(1, [[0, 1], [2, 3]]), (2, [[0, 2], [1, 3]])] {
        let upper = lane & distance != 0;
        for [low, high] in pairs {
            let (kept, given) =
                (select(upper, values[high], values[low]), select(upper, values[low], values[high]));
            let taken = match distance {
                1 => shfl_bfly_b32::<1>(given),
                _ => shfl_bfly_b32::<2>(given),
            };
            values[low] = select(upper, taken, kept);
            values[high] = select(upper, kept, taken);
        }
    }
    values
}

/// Writes a warp's rows of O and LSE of a split, in float32.
///
/// # Safety
/// All 32 lanes take part; the partial O and LSE are writable.
#[inline(always)]
pub unsafe fn store_partial<C: Config, const M: usize, const D: usize>(
    params: &ForwardParams,
    work: &Work,
    softmax: &OnlineSoftmax<M>,
    mut acc_o: OutputFragment<M, D>,
    position: Position,
) {
    for m in 0..M {
        scale_rows(&mut acc_o[m], softmax.normalizer(m));
        let lse = softmax.lse(m, params.scale_log2);
        for half in 0..2 {
            let row = work.first_row + position.warp_row + (m * 16 + half * 8) as u32 + position.lane / 4;
            if row < past_rows::<C>(params, work) {
                let index = partial_index::<C>(params, work, row);
                let o_row = partial_o_row::<C>(params, index) + u64::from(position.lane % 4 * 8);
                // SAFETY: elements of the partial O and LSE; four lanes share the row.
                unsafe {
                    for (n, o) in acc_o[m].iter().enumerate() {
                        let pair = [o[2 * half].to_bits(), o[2 * half + 1].to_bits()];
                        st_global_v2(o_row + n as u64 * 32, pair);
                    }
                    if position.lane % 4 == 0 {
                        st_global_f32(to_global(params.split.partial_lse) + index * 4, lse[half]);
                    }
                }
            }
        }
    }
}

/// Past the last row of the work's block.
#[inline(always)]
pub fn past_rows<C: Config>(params: &ForwardParams, work: &Work) -> u32 {
    let count = C::ROWS.count(params);
    match C::ROW.isa {
        // A warp has no rows beyond its block.
        Isa::Mma => count,
        Isa::Wgmma => count.min(work.first_row + rows_of_block::<C>(params)),
    }
}

/// Where a row's LSE stands in `[batch, heads_q, seqlen_q]`.
#[inline(always)]
pub fn lse_index<C: Config>(params: &ForwardParams, work: &Work, row: u32) -> u64 {
    let (query, head) = C::ROWS.query_and_head(params, row);
    let head = u64::from(work.batch) * u64::from(params.heads_q) + u64::from(work.head_q + head);
    head * u64::from(params.seqlen_q) + u64::from(query)
}

/// Where a row of the work's split stands in `[splits, batch, heads_q, seqlen_q]`.
#[inline(always)]
pub fn partial_index<C: Config>(params: &ForwardParams, work: &Work, row: u32) -> u64 {
    let rows = u64::from(params.batch) * u64::from(params.heads_q) * u64::from(params.seqlen_q);
    u64::from(work.split) * rows + lse_index::<C>(params, work, row)
}

/// The global address of a row of the partial O.
#[inline(always)]
pub fn partial_o_row<C: Config>(params: &ForwardParams, index: u64) -> u64 {
    to_global(params.split.partial_o) + index * u64::from(C::ROW.head_dim * 4)
}

/// The global address of a row of O.
#[inline(always)]
pub fn output_row<C: Config>(params: &ForwardParams, work: &Work, row: u32) -> u64 {
    let (query, head) = C::ROWS.query_and_head(params, row);
    let strides = &params.o_strides;
    let offset = i64::from(work.batch) * strides.batch
        + i64::from(work.head_q + head) * strides.head
        + i64::from(query) * strides.row;
    to_global(params.o).wrapping_add_signed(offset)
}

/// Writes a warp's rows of LSE, if it is wanted.
///
/// # Safety
/// LSE, if given, holds batch · heads_q · seqlen_q writable float32.
#[inline(always)]
pub unsafe fn store_lse<C: Config, const M: usize>(
    params: &ForwardParams,
    work: &Work,
    softmax: &OnlineSoftmax<M>,
    position: Position,
) {
    if params.lse == 0 {
        return;
    }
    for m in 0..M {
        let lse = softmax.lse(m, params.scale_log2);
        for (half, lse) in lse.into_iter().enumerate() {
            let row = work.first_row + position.warp_row + (m * 16 + half * 8) as u32 + position.lane / 4;
            // Four lanes share the row.
            if position.lane % 4 == 0 && row < past_rows::<C>(params, work) {
                // SAFETY: an element of LSE.
                unsafe { st_global_f32(to_global(params.lse) + lse_index::<C>(params, work, row) * 4, lse) }
            }
        }
    }
}
