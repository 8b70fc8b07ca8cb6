//! dQ = dS·K of one block of queries, with the dS that a `dkv` has written: blocks of keys are streamed, K and dS of each.
//!
//! dS of queries that do not see a block was not written; zeros are copied in its place. So all that a stage has is multiplied, without looking at
//! the mask.

use super::gradients::keep_out;
use super::notes::{Notes, addresses, block_of_word, block_word};
use super::stream::{Stage, Stream};
use crate::backward::dq_tile::{destination, key_blocks, rows_of_keys, spread_keys};
use crate::backward::params::BackwardParams;
use crate::backward::query_steps::{ds_head, piece};
use crate::backward::spill::{DS_KEYS, KEYS_STEP, QUERIES_STEP};
use crate::backward::work::query_work;
use crate::config::{BackwardConfig, check_backward};
use crate::element::Element;
use crate::keys::KeyRows;
use crate::mma::copy::TileCopy;
use crate::ptx::cp_async::{cp_async_16, cp_async_16_or_zero};
use crate::ptx::ldmatrix::ldmatrix_x4_trans;
use crate::ptx::memory::{dynamic_smem, to_global};
use crate::ptx::{block_idx_x_again, halves, thread_idx_x_again};
use crate::scheduler::Work;
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::smem_tile::LaneView;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::KeyBlocks;
use cuda_std::thread::sync_threads;

/// Bytes that a thread copies at a time: a key's share of 8 queries.
const CHUNK_BYTES: u32 = 16;

/// The kernel: a CTA computes dQ of one block of queries of one head.
///
/// # Safety
/// As for [`super::dq::dq`], behind a kernel on the stream that has written dS of the launch's heads.
#[inline(always)]
pub unsafe fn dqds<C: BackwardConfig>(params: &BackwardParams) {
    const { check_backward::<C>() }
    // SAFETY: the caller's; the tile is the same for all threads.
    unsafe {
        let Some(work) = query_work(params, block_idx_x_again() + params.first_tile) else { return };
        tile::<C>(params, &work);
    }
}

/// # Safety
/// As for [`dqds`].
#[inline(always)]
unsafe fn tile<C: BackwardConfig>(params: &BackwardParams, work: &Work<'_>) {
    let Position { warp_row, lane, .. } = Position::new(thread_idx_x_again(), C::WARPS);
    // SAFETY: the caller's; blocks are the same for all threads.
    unsafe {
        let blocks = key_blocks::<C>(params, work);
        let steps = blocks.end.saturating_sub(blocks.first);
        let notes = Notes::<C>::new(steps, work);
        let mut stream = Stream::<C>::new(dynamic_smem());
        let copy = |stream: &mut Stream<C>, step: u32| {
            notes.note_from(step, |_, step| note::<C>(params, work, (&blocks, steps), step));
            if step < steps {
                copy_step(params, (&notes, step), &stream.next());
            }
            Stream::<C>::commit();
        };
        for stage in 0..C::STAGES - 1 {
            copy(&mut stream, stage);
        }
        let mut d_q = C::Warp::NO_O;
        let (mut done, mut tainted) = (0, false);
        while done < steps {
            let stage = stream.wait();
            copy(&mut stream, done + C::STAGES - 1);
            if block_of_word(notes.of(done)[0]).1 {
                tainted |=
                    keep_out::<C>((stage.start, C::Streamed::BYTES), (thread_idx_x_again(), C::THREADS));
            }
            multiply::<C>(&mut d_q, &stage, (warp_row, lane));
            done += 1;
        }
        // Read again, as registers kept across the loop spill.
        let Position { warp_row, lane, .. } = Position::new(thread_idx_x_again(), C::WARPS);
        let to = destination(params, work);
        to.store::<C::Element, C::Warp>(d_q, params.scale, warp_row, || lane);
        if tainted {
            // dQ is written.
            sync_threads();
            spread_keys::<C>(params, work, &blocks, &to, (thread_idx_x_again(), C::THREADS));
        }
    }
}

/// What is noted of a step: its block, and the queries of which dS of the block was written; and where its K and dS are, that of query 0.
///
/// # Safety
/// As for [`piece`].
#[inline(always)]
unsafe fn note<C: BackwardConfig>(
    params: &BackwardParams,
    work: &Work<'_>,
    (blocks, steps): (&KeyBlocks, u32),
    step: u32,
) -> [[u32; 4]; 2] {
    // From the last step to the first: blocks that are seen only in part are first.
    let step = steps - 1 - step;
    let block = blocks.block(step);
    let first_key = block * C::Streamed::ROWS;
    // By what the kernel that wrote dS went by.
    // SAFETY: the caller's.
    let kept = unsafe { piece(params, work, first_key / DS_KEYS) };
    let ds = to_global(kept.address(params, ds_head(params, work, work.head_q), kept.first))
        + u64::from(first_key % DS_KEYS / 8 * KEYS_STEP)
        - u64::from(kept.first / 8) * u64::from(QUERIES_STEP);
    let k = halves(rows_of_keys(params, work)[0].address(first_key, 0));
    let ds = halves(ds);
    [[block_word(block, blocks.is_partial(step)), kept.first, kept.past, 0], [k[0], k[1], ds[0], ds[1]]]
}

/// Starts the copies of a step's K and dS to a stage.
///
/// # Safety
/// As for [`TileCopy::copy_within`], for dS too, which has been written where the queries see any of the keys; the step has been noted.
#[inline(always)]
unsafe fn copy_step<C: BackwardConfig>(
    params: &BackwardParams,
    (notes, step): (&Notes<C>, u32),
    stage: &Stage<C>,
) {
    let (thread, threads) = (thread_idx_x_again(), C::THREADS);
    // SAFETY: the caller's.
    unsafe {
        let ([block, first, past, _], [first_row, _, seqlen_k]) = (notes.of(step), notes.rows());
        let [k, ds] = addresses(notes.of_copies(step));
        let valid = seqlen_k.saturating_sub(block_of_word(block).0 * C::Streamed::ROWS);
        let rows = KeyRows::starting_at(k, &params.forward.k_strides);
        let copy = TileCopy::<C::Streamed>::new(rows, 0, (thread, threads));
        copy.copy_whole_or_within(stage.first(), valid, params.forward.ragged.width_qk);
        // A key's share of 8 queries lies behind that of the key before.
        let (key, keys) = (thread % C::Streamed::ROWS * CHUNK_BYTES, C::Streamed::ROWS * CHUNK_BYTES);
        let (from, to) = (ds + u64::from(key), ds_smem::<C>(stage) + key);
        let of_thread = thread / C::Streamed::ROWS;
        let groups_a_step = threads / C::Streamed::ROWS;
        let from = from + u64::from(first_row / 8 + of_thread) * u64::from(QUERIES_STEP);
        let to = to + of_thread * keys;
        let is_whole = (first_row >= first) & (first_row + C::Stationary::ROWS <= past);
        for i in 0..C::Stationary::ROWS / 8 / groups_a_step {
            let group = i * groups_a_step;
            let (from, to) = (from + u64::from(group * QUERIES_STEP), to + group * keys);
            if is_whole {
                cp_async_16(to, from);
            } else {
                let query = first_row + (group + of_thread) * 8;
                let bytes = if (query >= first) & (query < past) { CHUNK_BYTES } else { 0 };
                cp_async_16_or_zero(to, from, bytes);
            }
        }
    }
}

/// Where dS of a stage lies.
#[inline(always)]
fn ds_smem<C: BackwardConfig>(stage: &Stage<C>) -> u32 {
    stage.start + C::Streamed::BYTES
}

/// dQ += dS·K of a stage, of the warp's queries from `warp_row` of the block on.
///
/// # Safety
/// All lanes take part; the stage has landed.
#[inline(always)]
unsafe fn multiply<C: BackwardConfig>(
    d_q: &mut <C::Warp as WarpTile>::O,
    stage: &Stage<C>,
    (warp_row, lane): (u32, u32),
) {
    let of_group = const { C::Streamed::ROWS * CHUNK_BYTES };
    // Matrices of 8 keys and 8 queries: both groups of queries of the first keys, and then of the others.
    let of_lane = lane % 8 * CHUNK_BYTES + lane / 8 % 2 * of_group + lane / 16 * KEYS_STEP;
    let ds = ds_smem::<C>(stage) + warp_row / 8 * of_group + of_lane;
    let (k_tile, view) = (stage.first(), LaneView::a_operand(0, lane));
    for step in 0..C::Streamed::ROWS / 16 {
        // SAFETY: the caller's.
        unsafe {
            let factors = <C::Warp as WarpTile>::A::from_fn(|m, _| {
                ldmatrix_x4_trans(ds + m as u32 * 2 * of_group + step * 2 * KEYS_STEP)
            });
            for n in 0..<<C::Warp as WarpTile>::O as Tiles<[f32; 4]>>::N / 2 {
                let k = k_tile.load_trans(view, step as usize, n);
                for m in 0..C::Warp::M {
                    let (sums, factors) = (d_q.row_mut(m), factors.row(m)[0]);
                    C::Element::mma(&mut sums[2 * n], factors, k[0], k[1]);
                    C::Element::mma(&mut sums[2 * n + 1], factors, k[2], k[3]);
                }
            }
        }
    }
}
