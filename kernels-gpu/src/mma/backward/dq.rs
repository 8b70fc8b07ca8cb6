//! dQ of one block of queries, and the statistics that `dkv` reads: queries are stationary, keys are streamed.

use super::gradients::{Destination, Stationary, add_product, store};
use super::nonfinite::{Taint, keep_out, spread};
use super::recompute::{ByRow, hide, is_hidden, recompute};
use super::stream::{Pair, Stream};
use crate::backward::params::BackwardParams;
use crate::backward::row::STATISTICS_BYTES;
use crate::backward::work::{first_index, key_rows, query_rows, query_work};
use crate::config::{BackwardConfig, check_backward};
use crate::element::half;
use crate::keys::KeyRows;
use crate::ptx::memory::{dynamic_smem, ld_global_b32, ld_global_v4, ld_shared_v4, st_global_v2, to_global};
use crate::ptx::warp::shfl_bfly;
use crate::ptx::{block_idx_x_again, thread_idx_x_again};
use crate::scheduler::Work;
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::warp_tile::WarpTile;
use crate::visible::KeyBlocks;
use crate::work::{interval_of_rows, visible_of_query};
use core::f32::consts::LOG2_E;
use cuda_std::thread::sync_threads;

/// The kernel: a CTA computes dQ of one block of queries of one head.
///
/// # Safety
/// Launched with the threads and shared memory that the row gives, one CTA a block of queries of each head, and parameters whose pointers,
/// sizes and strides describe device memory as [`BackwardParams`] says.
#[inline(always)]
pub unsafe fn dq<C: BackwardConfig>(params: &BackwardParams) {
    const { check_backward::<C>() }
    // SAFETY: the caller's; the tile is the same for all threads.
    unsafe {
        let Some(work) = query_work(params, block_idx_x_again()) else { return };
        tile::<C>(params, &work);
    }
}

/// # Safety
/// As for [`dq`].
#[inline(always)]
unsafe fn tile<C: BackwardConfig>(params: &BackwardParams, work: &Work<'_>) {
    let forward = &params.forward;
    let threads = (thread_idx_x_again(), C::THREADS);
    let position = Position::new(threads.0, C::WARPS);
    let widths = [forward.ragged.width_qk, forward.ragged.width_v];
    let (queries, keys) = (query_pair(params, work), key_pair(params, work));
    let past = work.sequence.seqlen_q.get();
    let (smem, stages) = (dynamic_smem(), dynamic_smem() + 2 * C::Stationary::BYTES);
    // SAFETY: the caller's; blocks are the same for all threads.
    unsafe {
        queries.copy::<C::Stationary>(smem, (work.first_row, past - work.first_row), threads);
        Stream::<C>::commit();
        let blocks = key_blocks::<C>(params, work);
        let steps = blocks.end.saturating_sub(blocks.first);
        let mut stream = Stream::<C>::new(stages);
        // From the last step to the first: blocks that are seen only in part are first.
        let copy = |stream: &mut Stream<C>, done: u32| {
            if done < steps {
                let first_key = blocks.block(steps - 1 - done) * C::Streamed::ROWS;
                let valid = work.sequence.seqlen_k.saturating_sub(first_key);
                keys.copy::<C::Streamed>(stream.next().start, (first_key, valid), threads);
            }
            Stream::<C>::commit();
        };
        for stage in 0..C::STAGES - 1 {
            copy(&mut stream, stage);
        }
        Stream::<C>::wait_for_stationary();
        // Q and dO have landed for all.
        sync_threads();
        let stationary = Stationary::<C>::new(smem, position);
        let first_row = work.first_row + position.warp_row + position.lane / 4;
        let mut statistics = ByRow {
            of: [0, 1].map(|half| row_statistics::<C>(params, work, first_row + half * 8, position, smem)),
            visible: [0, 1].map(|half| visible_of_query(forward, work, true, || first_row + half * 8)),
            sink_tokens: forward.ragged.sink_tokens,
            lane_key: 0,
        };
        let mut d_q = C::Warp::NO_O;
        let (mut done, mut tainted) = (0, false);
        while done < steps {
            let stage = stream.wait();
            // The block has landed for all, and all are done with the stage that is written next.
            sync_threads();
            copy(&mut stream, done + C::STAGES - 1);
            let step = steps - 1 - done;
            let partial = blocks.is_partial(step);
            let (mut p, mut ds) = stationary.scores(&stage);
            recompute::<C::Warp>(&mut p, &mut ds, &statistics, forward.scale_log2);
            if partial {
                statistics.lane_key = blocks.block(step) * C::Streamed::ROWS + position.lane % 4 * 2;
                hide::<C::Warp>(&mut p, &mut ds, &statistics);
                tainted |= keep_out(&stage, 1, threads);
            }
            add_product::<C>(&mut d_q, &ds, stage.first(), position.lane);
            done += 1;
        }
        let to = Destination {
            rows: query_rows(params.d_q, &params.d_q_strides, work, work.head_q),
            range: (work.first_row, past),
            width: widths[0],
        };
        store::<C>(d_q, params.scale, smem, position, &to);
        if tainted {
            // dQ is written.
            sync_threads();
            spread::<C::Element>(
                &to,
                C::Stationary::ROWS,
                (steps, C::Streamed::ROWS),
                Taint::NotANumber,
                threads,
                |step, streamed, row| {
                    let key = blocks.block(step) * C::Streamed::ROWS + streamed;
                    let visible = visible_of_query(forward, work, true, || row);
                    let is_seen =
                        blocks.is_partial(step) & !is_hidden(key, visible, forward.ragged.sink_tokens);
                    is_seen.then(|| keys.rows[0].address(key, 0))
                },
            );
        }
    }
}

/// The rows of Q and dO of the tile's head.
#[inline(always)]
fn query_pair(params: &BackwardParams, work: &Work<'_>) -> Pair {
    let forward = &params.forward;
    let rows = |base, strides| query_rows(base, strides, work, work.head_q);
    Pair {
        rows: [rows(forward.q, &forward.q_strides), rows(params.d_o, &params.d_o_strides)],
        widths: [forward.ragged.width_qk, forward.ragged.width_v],
    }
}

/// The rows of K and V of the tile's KV head.
#[inline(always)]
fn key_pair(params: &BackwardParams, work: &Work<'_>) -> Pair {
    let forward = &params.forward;
    Pair {
        rows: [key_rows(forward.k, &forward.k_strides, work), key_rows(forward.v, &forward.v_strides, work)],
        widths: [forward.ragged.width_qk, forward.ragged.width_v],
    }
}

/// The blocks of keys that the tile's queries see.
///
/// # Safety
/// As for [`dq`]; all lanes of a warp take part.
#[inline(always)]
unsafe fn key_blocks<C: BackwardConfig>(params: &BackwardParams, work: &Work<'_>) -> KeyBlocks {
    let forward = &params.forward;
    // SAFETY: the caller's.
    let interval = |first, past| unsafe { interval_of_rows(forward, work, first, past) };
    C::BLOCK.ragged_key_blocks(forward, work, (C::Streamed::ROWS, work.sequence.seqlen_k), interval)
}

/// L·log2(e) and δ = rowsum(dO∘O) − dL of one of a lane's rows, which four lanes share; written for `dkv`. L is +∞ where the row sees
/// nothing, so that P is 0 whatever the scores are.
///
/// # Safety
/// All 32 lanes take part, and dO has landed in the second tile from `smem` on.
#[inline(always)]
unsafe fn row_statistics<C: BackwardConfig>(
    params: &BackwardParams,
    work: &Work<'_>,
    row: u32,
    position: Position,
    smem: u32,
) -> [f32; 2] {
    let forward = &params.forward;
    let exists = row < work.sequence.seqlen_q.get();
    let lane = position.lane % 4;
    let o = query_rows(forward.o, &forward.o_strides, work, work.head_q);
    let tile = smem + C::Stationary::BYTES;
    // SAFETY: the caller's; rows that do not exist are not read.
    unsafe {
        let mut delta = 0.0;
        if exists {
            delta = dot::<C>(&o, row, tile, (row - work.first_row, lane), forward.ragged.width_v);
        }
        delta += shfl_bfly::<1>(delta);
        delta += shfl_bfly::<2>(delta);
        if !exists {
            return [f32::INFINITY, 0.0];
        }
        let index = first_index(forward, work, work.head_q) + u64::from(row);
        let of = |base: u64| f32::from_bits(ld_global_b32(to_global(base) + index * 4));
        if params.d_lse != 0 {
            delta -= of(params.d_lse);
        }
        let lse = of(forward.lse);
        let lse_log2 = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse * LOG2_E };
        if lane == 0 {
            let at = to_global(params.statistics) + index * u64::from(STATISTICS_BYTES);
            st_global_v2(at, [lse_log2, delta].map(f32::to_bits));
        }
        [lse_log2, delta]
    }
}

/// A lane's quarter of the products of a row of O and of dO, which is row `tile_row` of the tile at `tile` in shared memory.
///
/// # Safety
/// The row of O is readable, and the tile has been written.
#[inline(always)]
unsafe fn dot<C: BackwardConfig>(
    o: &KeyRows,
    row: u32,
    tile: u32,
    (tile_row, lane): (u32, u32),
    width: u32,
) -> f32 {
    let mut sum = 0.0;
    for step in 0..C::Stationary::WIDTH / 32 {
        let chunk = step * 4 + lane;
        if chunk * 8 < width {
            // SAFETY: the caller's; a chunk of eight elements of each.
            let (o, d_o) = unsafe {
                let at = tile + C::Stationary::SWIZZLE.offset(tile_row, chunk);
                (ld_global_v4(o.address(row, chunk * 16)), ld_shared_v4(at))
            };
            for i in 0..8 {
                sum += half::<C::Element>(o[i / 2], i % 2) * half::<C::Element>(d_o[i / 2], i % 2);
            }
        }
    }
    sum
}
