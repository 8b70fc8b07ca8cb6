//! From accumulators to global memory: the merge of warps that saw different keys, O, and LSE.

use crate::config::MergeBuffer;
use crate::element::Element;
use crate::math::softmax::{OnlineSoftmax, log_add_exp, scale_rows};
use crate::ptx::math::select;
use crate::ptx::memory::{
    ld_shared_v2_f32, ld_shared_v4, st_global_f32, st_global_v2, st_global_v4, st_shared, st_shared_v2_f32,
};
use crate::ptx::warp::{shfl_bfly_b32, sync_warp};
use crate::queries::QueryRows;
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::smem_tile::SmemTile;
use crate::tile::swizzle::Swizzle;
use crate::tile::warp_tile::{Tiles, WarpTile};

/// Merges O, row_max and row_sum of the warps along the keys into the warp with `warp_n` 0, through shared memory from
/// `smem` on: in pairs, the upper half into the lower one, until one is left. The order is always the same.
///
/// # Safety
/// All threads of those warps take part, and `sync` is a barrier of them all, which orders shared memory. From `smem` on it holds
/// [`crate::geometry::merge_bytes`] that nobody else uses meanwhile: no copy is on its way there, and no product reads it. (The
/// first barrier here comes before the first write.)
#[inline(always)]
pub unsafe fn merge_warps<W: WarpTile>(
    softmax: &mut OnlineSoftmax<W>,
    acc_o: &mut W::O,
    (smem, buffer): (u32, MergeBuffer),
    position: Position,
    scale_log2: f32,
    sync: impl Fn(),
) {
    let Position { warp_row, warp_n, lane } = position;
    let o_row_bytes = buffer.row_bytes;
    let row = |m: usize, half: usize| warp_row + m as u32 * 16 + half as u32 * 8 + lane / 4;
    let mut pairs = buffer.along_keys / 2;
    while pairs > 0 {
        let slot = smem + warp_n % pairs * buffer.slot_bytes;
        let state = slot + buffer.block_m * o_row_bytes;
        let o_at = |m, half, n: usize| slot + row(m, half) * o_row_bytes + n as u32 * 32 + lane % 4 * 8;
        // The buffer is free: the main loop, or the pairs before, are done with it.
        sync();
        if warp_n / pairs == 1 {
            for m in 0..W::M {
                for half in 0..2 {
                    // SAFETY: 8-byte aligned places of this lane in the merge buffer.
                    unsafe {
                        for (n, o) in acc_o.row(m).iter().enumerate() {
                            st_shared_v2_f32(o_at(m, half, n), [o[2 * half], o[2 * half + 1]]);
                        }
                        let (max, sum) = (softmax.row_max.row(m)[half], softmax.row_sum.row(m)[half]);
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
            for m in 0..W::M {
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
                softmax.merge(m, acc_o.row_mut(m), other, other_o, scale_log2);
            }
        }
        pairs /= 2;
    }
    if buffer.along_keys > 1 {
        // O goes out through the same memory.
        sync();
    }
}

/// Writes a warp's rows of O, through its own rows of a tile in shared memory so that each store takes 128 bits of a row.
///
/// # Safety
/// All 32 lanes take part. Nobody else uses the warp's rows of the tile from here on: no copy is on its way there, and what other
/// warps read of them they have read before a barrier. O's rows are writable.
#[inline(always)]
pub unsafe fn store_output<E: Element, S: Shape, W: WarpTile>(
    rows: &QueryRows<'_>,
    softmax: &OnlineSoftmax<W>,
    acc_o: W::O,
    tile: SmemTile<S>,
    position: Position,
) {
    let factors = |m| softmax.normalizer(m);
    let address = |row: u32| {
        let row = rows.first() + row;
        (row < rows.past()).then(|| rows.o(row))
    };
    // SAFETY: the caller's.
    unsafe {
        store_rows::<E, S, W>(acc_o, factors, tile, position, |chunk| is_within(rows, chunk * 8), address)
    }
}

/// Writes a warp's rows of an accumulator, times the factors of the lane's rows of each m16 tile and rounded, through its own rows of a
/// tile in shared memory. `address` gives where a row of the tile goes, if it exists, and `is_within` whether it has a chunk of eight
/// elements.
///
/// # Safety
/// As for [`store_output`], for the rows that have an address.
#[inline(always)]
pub unsafe fn store_rows<E: Element, S: Shape, W: WarpTile>(
    mut acc: W::O,
    factors: impl Fn(usize) -> [f32; 2],
    tile: SmemTile<S>,
    position: Position,
    is_within: impl Fn(u32) -> bool,
    address: impl Fn(u32) -> Option<u64>,
) {
    let Position { warp_row, lane, .. } = position;
    let (swizzle, row_bytes, tile) = (S::SWIZZLE, S::ROW_BYTES, tile.start);
    // All lanes have read what the tile held.
    sync_warp();
    for m in 0..W::M {
        scale_rows(acc.row_mut(m), factors(m));
        let lane_offset = swizzle.offset(warp_row + m as u32 * 16 + lane / 4, 0);
        for (n, o) in acc.row(m).iter().enumerate() {
            let at = tile + swizzle.advance(lane_offset, n as u32) + lane % 4 * 4;
            // SAFETY: a 4-byte aligned place of this lane. Rows 8 apart swizzle alike.
            unsafe {
                st_shared(at, E::pack(o[0], o[1]));
                st_shared(at + 8 * row_bytes, E::pack(o[2], o[3]));
            }
        }
    }
    // The rows are complete.
    sync_warp();
    let (lane_row, lane_chunk) = (lane / swizzle.span(), lane % swizzle.span());
    let rows_a_step = 32 / swizzle.span();
    for step in 0..W::M as u32 * 16 / rows_a_step {
        let row = warp_row + step * rows_a_step + lane_row;
        if let Some(at) = address(row) {
            for group in 0..row_bytes / (swizzle.span() * Swizzle::CHUNK_BYTES) {
                let chunk = lane_chunk + group * swizzle.span();
                if is_within(chunk) {
                    // SAFETY: a chunk that this warp has written, and its place in global memory.
                    unsafe {
                        let value = ld_shared_v4(tile + swizzle.offset(row, chunk));
                        st_global_v4(at + u64::from(chunk * Swizzle::CHUNK_BYTES), value);
                    }
                }
            }
        }
    }
}

/// Writes a warp's 16 rows of O without a detour through shared memory, as [`store_rows_from_registers`].
///
/// # Safety
/// All 32 lanes take part. O's rows are writable.
#[inline(always)]
pub unsafe fn store_output_from_registers<E: Element, W: WarpTile>(
    rows: &QueryRows<'_>,
    softmax: &OnlineSoftmax<W>,
    acc_o: W::O,
    position: Position,
) {
    let Position { warp_row, lane, .. } = position;
    let address = |half: u32| {
        let row = rows.first() + warp_row + half * 8 + lane / 4;
        (row < rows.past(), rows.o(row))
    };
    // SAFETY: the caller's.
    unsafe {
        store_rows_from_registers::<E, W>(
            acc_o,
            softmax.normalizer(0),
            lane,
            |column| is_within(rows, column),
            address,
        )
    }
}

/// Writes a warp's rows of an accumulator, times the factors of the lane's two rows of each m16 tile and rounded: the four lanes of a row exchange
/// what they hold of four neighbouring n8 tiles, until each has the 128 bits of one. `address` says whether the lane's row of each eight exists
/// and where it goes, and `is_within` whether it has an element.
///
/// # Safety
/// All 32 lanes take part. The rows that exist are writable.
#[inline(always)]
pub unsafe fn store_rows_from_registers<E: Element, W: WarpTile>(
    mut acc: W::O,
    factors: [f32; 2],
    lane: u32,
    is_within: impl Fn(u32) -> bool,
    address: impl Fn(u32) -> (bool, u64),
) {
    for m in 0..W::M {
        scale_rows(acc.row_mut(m), factors);
        for half in 0..2 {
            let (exists, at) = address((2 * m + half) as u32);
            let at = at + u64::from(lane % 4 * Swizzle::CHUNK_BYTES);
            for (group, tiles) in (0..).zip(acc.row(m).chunks_exact(4)) {
                let pairs = core::array::from_fn(|n| E::pack(tiles[n][2 * half], tiles[n][2 * half + 1]));
                let chunk = transpose_quad(pairs, lane);
                if exists && is_within(group as u32 * 32 + lane % 4 * 8) {
                    // SAFETY: a chunk of a row.
                    unsafe { st_global_v4(at + group * 4 * u64::from(Swizzle::CHUNK_BYTES), chunk) }
                }
            }
        }
    }
}

/// Whether a row of O has this element.
#[inline(always)]
fn is_within(rows: &QueryRows<'_>, column: u32) -> bool {
    column < rows.width(u32::MAX)
}

/// Lets each row's sink take its share of the softmax, where there are sinks: row_sum is then what O is divided by, and no more what
/// LSE follows from, which is stored before. row_sum is reduced, and no split's.
///
/// # Safety
/// As for [`QueryRows::sink`].
#[inline(always)]
pub unsafe fn take_in_sinks<W: WarpTile>(
    rows: &QueryRows<'_>,
    softmax: &mut OnlineSoftmax<W>,
    position: Position,
    scale_log2: f32,
) {
    for m in 0..W::M {
        for half in 0..2 {
            let row = rows.first() + position.warp_row + (m * 16 + half * 8) as u32 + position.lane / 4;
            // SAFETY: the caller's; rows past the last have the head of one that exists.
            if let Some(sink) = unsafe { rows.sink(row) } {
                softmax.take_in(m, half, sink, scale_log2);
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

/// Writes a warp's rows of O, of `head_dim` elements, and LSE of a split, in float32.
///
/// # Safety
/// All 32 lanes take part; the partial O and LSE are writable.
#[inline(always)]
pub unsafe fn store_partial<W: WarpTile>(
    rows: &QueryRows<'_>,
    softmax: &OnlineSoftmax<W>,
    mut acc_o: W::O,
    head_dim: u32,
    position: Position,
    scale_log2: f32,
) {
    for m in 0..W::M {
        scale_rows(acc_o.row_mut(m), softmax.normalizer(m));
        let lse = softmax.lse(m, scale_log2);
        for half in 0..2 {
            let row = rows.first() + position.warp_row + (m * 16 + half * 8) as u32 + position.lane / 4;
            if row < rows.past() {
                let index = rows.partial_index(row);
                let o_row = rows.partial_o(index, head_dim) + u64::from(position.lane % 4 * 8);
                // SAFETY: elements of the partial O and LSE; four lanes share the row.
                unsafe {
                    for (n, o) in acc_o.row(m).iter().enumerate() {
                        let pair = [o[2 * half].to_bits(), o[2 * half + 1].to_bits()];
                        if is_within(rows, n as u32 * 8) {
                            st_global_v2(o_row + n as u64 * 32, pair);
                        }
                    }
                    if position.lane % 4 == 0 {
                        st_global_f32(rows.partial_lse(index), lse[half]);
                    }
                }
            }
        }
    }
}

/// Writes a warp's rows of LSE, if it is wanted.
///
/// # Safety
/// LSE, if given, holds batch · heads_q · seqlen_q writable float32.
#[inline(always)]
pub unsafe fn store_lse<W: WarpTile>(
    rows: &QueryRows<'_>,
    softmax: &OnlineSoftmax<W>,
    position: Position,
    scale_log2: f32,
) {
    if !rows.wants_lse() {
        return;
    }
    for m in 0..W::M {
        let lse = softmax.lse(m, scale_log2);
        for (half, lse) in lse.into_iter().enumerate() {
            let row = rows.first() + position.warp_row + (m * 16 + half * 8) as u32 + position.lane / 4;
            // Four lanes share the row.
            if position.lane % 4 == 0 && row < rows.past() {
                // SAFETY: an element of LSE; the row has a head.
                unsafe {
                    let lse = rows.sink(row).map_or(lse, |sink| log_add_exp(lse, sink));
                    st_global_f32(rows.lse(rows.index(row)), lse);
                }
            }
        }
    }
}
