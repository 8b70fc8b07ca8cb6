//! The gradient of a bias: dS, summed over the batch entries, heads and queries that the bias is the same for, in a fixed order.
//!
//! A kernel of its own behind `dq`, whose statistics it reads, so that passes whose bias has no gradient pay nothing. It computes S and dP
//! once more, 64 elements of head_dim at a time, so that one kernel serves every head_dim.

use super::BIAS_TILE;
use super::params::BackwardParams;
use super::query_steps::{keys_of_block, queries_of};
use super::recompute::{ByRow, hide, recompute};
use super::row::STATISTICS_BYTES;
use super::work::{first_index, key_rows, query_rows};
use crate::element::{Element, F32Accumulation};
use crate::keys::KeyRows;
use crate::mma::copy::TileCopy;
use crate::mma::gemm::{Queries, add_q_kt};
use crate::ptx::cp_async::{cp_async_commit_group, cp_async_wait_group};
use crate::ptx::memory::{dynamic_smem, ld_global_v2, ld_shared, st_global_b16, st_shared_v2_f32, to_global};
use crate::ptx::warp::shfl_bfly;
use crate::scheduler::Work;
use crate::score::{Bias, Score};
use crate::sequence::Sequence;
use crate::shape::{Shape, TileOf};
use crate::step_params::BiasGradientParams;
use crate::steps::STEP_THREADS;
use crate::tile::position::{Position, Warps};
use crate::tile::smem_tile::{LaneView, SmemTile};
use crate::tile::warp_tile::{Fragments, Tiles, WarpTile};
use crate::visible::Visible;
use crate::work::{query_at, visible_of_query};
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

/// A block of Q, dO, K or V, of [`BIAS_TILE`] elements of each row.
type Tile = TileOf<BIAS_TILE, BIAS_TILE>;
/// A warp's 16 queries and all keys of the block.
type Warp = Fragments<1, 8, 4, 8, 4>;
/// S, dP or dS of a warp.
type Scores = <Warp as WarpTile>::S<[f32; 4]>;

const WARPS: Warps = Warps { along_rows: STEP_THREADS / 32, along_keys: 1, rows: 16, keys: BIAS_TILE };

/// The kernel: a CTA computes [`BIAS_TILE`] keys of as many rows of the gradient, or of the one row that all queries share.
///
/// # Safety
/// Launched with [`STEP_THREADS`] threads and shared memory for four tiles, a CTA a tile of the gradient, behind `dq` on the stream, and
/// parameters that describe device memory as [`BiasGradientParams`] says.
#[inline(always)]
pub unsafe fn gradient<E: Element>(params: &BiasGradientParams) {
    let forward = &params.backward.forward;
    let (outer, block) = params.key_blocks.divide(block_idx_x());
    let (outer, query_block) = params.query_blocks.divide(outer);
    let (batch, head) = params.heads.divide(outer);
    let first_key = block * BIAS_TILE;
    let strides = &forward.ragged.score;
    let one_or_all = |stride: i64, one: u32, all: u32| if stride == 0 { (0, all) } else { (one, one + 1) };
    let entries = one_or_all(strides.batch_stride, batch, forward.batch);
    let heads = one_or_all(strides.head_stride, head, forward.heads_q);
    let position = Position::new(thread_idx_x(), WARPS);
    let mut sum = Scores::splat([0.0; 4]);
    // SAFETY: the caller's; all loops and conditions are the same for all threads.
    unsafe {
        let mut batch = entries.0;
        while batch < entries.1 {
            let sequence = Sequence::of_ragged(forward, batch);
            let seqlen_q = sequence.seqlen_q.get();
            let blocks = one_or_all(strides.row_stride, query_block, seqlen_q.div_ceil(BIAS_TILE));
            let mut head_q = heads.0;
            while head_q < heads.1 {
                let head_kv = forward.group.quotient(head_q);
                let mut block = blocks.0;
                while block < blocks.1 {
                    let first_row = block * BIAS_TILE;
                    let work = Work { batch, head_q, head_kv, first_row, split: 0, slice: 0, sequence };
                    let keys = keys_of_block(&work, first_key, BIAS_TILE);
                    let (first, past) = queries_of(&params.backward, &work, keys);
                    if (first < first_row + BIAS_TILE) & (first_row < past) {
                        add::<E>(&mut sum, &params.backward, &work, first_key, position);
                    }
                    block += 1;
                }
                head_q += 1;
            }
            batch += 1;
        }
        let start = i64::from(entries.0) * strides.batch_stride + i64::from(heads.0) * strides.head_stride;
        let to = to_global(params.d_bias).wrapping_add_signed(start);
        if strides.row_stride == 0 {
            store_sum_of_rows::<E>(&sum, (to, first_key, forward.seqlen_k), position.lane);
        } else {
            let first_row = query_block * BIAS_TILE + position.warp_row + position.lane / 4;
            let lane_key = first_key + position.lane % 4 * 2;
            for (n, of) in sum.row(0).iter().enumerate() {
                for (i, &value) in of.iter().enumerate() {
                    let (row, key) = (first_row + i as u32 / 2 * 8, lane_key + (n * 8 + i % 2) as u32);
                    if (row < params.rows) & (key < forward.seqlen_k) {
                        let along = i64::from(row) * strides.row_stride + i64::from(key) * 2;
                        st_global_b16(to.wrapping_add_signed(along), E::pack(value, 0.0) as u16);
                    }
                }
            }
        }
    }
}

/// Adds dS of a block of queries of one head and a block of keys.
///
/// # Safety
/// As for [`gradient`]; some query and some key of the blocks exist.
#[inline(always)]
unsafe fn add<E: Element>(
    sum: &mut Scores,
    params: &BackwardParams,
    work: &Work<'_>,
    first_key: u32,
    position: Position,
) {
    let forward = &params.forward;
    let seqlen_q = work.sequence.seqlen_q.get();
    // SAFETY: the caller's.
    unsafe {
        let [mut s, mut dp] = products::<E>(params, work, first_key, position);
        let first_row = work.first_row + position.warp_row + position.lane / 4;
        let rows = [first_row, first_row + 8];
        let statistics = ByRow {
            rows: rows.map(|row| Bias::<E>::row(forward, || query_at(forward, work, (work.head_q, row)))),
            of: rows.map(|row| {
                // P of rows that do not exist is 0.
                if row >= seqlen_q {
                    return [f32::INFINITY, 0.0];
                }
                let index = first_index(forward, work, work.head_q) + u64::from(row);
                let at = to_global(params.statistics) + index * u64::from(STATISTICS_BYTES);
                ld_global_v2(at).map(f32::from_bits)
            }),
            visible: rows.map(|row| {
                // 0 · NaN is NaN: they see nothing.
                if row < seqlen_q {
                    visible_of_query(forward, work, true, || row)
                } else {
                    Visible { begin: 0, end: 0 }
                }
            }),
            sink_tokens: forward.ragged.sink_tokens,
            lane_key: first_key + position.lane % 4 * 2,
        };
        let score = Bias::<E>::new(forward);
        recompute::<Warp, Bias<E>>(&mut s, &mut dp, &statistics, score);
        hide::<Warp, Bias<E>, 1>([&mut dp], &statistics);
        *sum = added(sum, &dp);
    }
}

/// Q·Kᵀ and dP = dO·Vᵀ of a warp.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
unsafe fn products<E: Element>(
    params: &BackwardParams,
    work: &Work<'_>,
    first_key: u32,
    position: Position,
) -> [Scores; 2] {
    let forward = &params.forward;
    let (width_qk, width_v) = (forward.ragged.width_qk, forward.ragged.width_v);
    let queries = (work.first_row, work.sequence.seqlen_q.get() - work.first_row);
    let keys = (first_key, work.sequence.seqlen_k - first_key);
    let q = query_rows(forward.q, &forward.q_strides, work, work.head_q);
    let d_o = query_rows(params.d_o, &params.d_o_strides, work, work.head_q);
    let k = key_rows(forward.k, &forward.k_strides, work);
    let v = key_rows(forward.v, &forward.v_strides, work);
    let tile = |i: u32| SmemTile::<Tile>::at(dynamic_smem() + i * Tile::BYTES);
    let (rows, columns) =
        (LaneView::a_operand(position.warp_row, position.lane), LaneView::b_operand(0, position.lane));
    let (mut s, mut dp) = (Scores::splat([0.0; 4]), Scores::splat([0.0; 4]));
    let mut along = 0;
    // SAFETY: the caller's; nothing past a row's width is read.
    unsafe {
        while along < width_qk.max(width_v) {
            let copy = |to: u32, rows: KeyRows, (first, valid): (u32, u32), width: u32| {
                let copy =
                    TileCopy::<Tile>::new(rows.along(along * 2), first, (thread_idx_x(), STEP_THREADS));
                copy.copy_within(tile(to), valid, width.saturating_sub(along));
            };
            let multiply = |sum: &mut Scores, a: u32, b: u32| {
                let stationary = Queries::<Tile, Warp>::new(tile(a), rows, false);
                add_q_kt::<E, F32Accumulation, _, _, Warp>(sum, &stationary, rows, tile(b), columns);
            };
            // All are done with the tiles.
            sync_threads();
            copy(0, q, queries, width_qk);
            copy(1, k, keys, width_qk);
            copy(2, d_o, queries, width_v);
            copy(3, v, keys, width_v);
            cp_async_commit_group();
            cp_async_wait_group::<0>();
            // They have landed for all.
            sync_threads();
            multiply(&mut s, 0, 1);
            multiply(&mut dp, 2, 3);
            along += BIAS_TILE;
        }
    }
    [s, dp]
}

/// The sum of two fragments.
#[inline(always)]
fn added(a: &Scores, b: &Scores) -> Scores {
    Scores::from_fn(|m, n| core::array::from_fn(|i| a.row(m)[n][i] + b.row(m)[n][i]))
}

/// Writes the sum over all rows of a tile to the keys from `first_key` on, those before `keys`, of the row at `to`: over a warp's rows, then
/// over the warps.
///
/// # Safety
/// All threads take part; the row is writable.
#[inline(always)]
unsafe fn store_sum_of_rows<E: Element>(sum: &Scores, (to, first_key, keys): (u64, u32, u32), lane: u32) {
    let thread = thread_idx_x();
    let at = |warp: u32, key: u32| dynamic_smem() + (warp * BIAS_TILE + key) * 4;
    // All are done with the tiles, in whose place the sums of each warp go.
    sync_threads();
    for (n, &[a, b, c, d]) in (0..).zip(sum.row(0)) {
        let of_warp = [a + c, b + d].map(|sum| {
            let sum = sum + shfl_bfly::<4>(sum);
            let sum = sum + shfl_bfly::<8>(sum);
            sum + shfl_bfly::<16>(sum)
        });
        if lane < 4 {
            // SAFETY: two keys of the warp's own sums.
            unsafe { st_shared_v2_f32(at(thread / 32, n * 8 + lane * 2), of_warp) }
        }
    }
    // They are there.
    sync_threads();
    if (thread < BIAS_TILE) & (first_key + thread < keys) {
        let mut sum = 0.0;
        for warp in 0..WARPS.along_rows {
            // SAFETY: written before the barrier.
            sum += f32::from_bits(unsafe { ld_shared(at(warp, thread)) });
        }
        let along = u64::from(first_key + thread) * 2;
        // SAFETY: the caller's.
        unsafe { st_global_b16(to + along, E::pack(sum, 0.0) as u16) }
    }
}
