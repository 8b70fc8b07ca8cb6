//! dQ of one block of queries, and the statistics that `dkv` reads: queries are stationary, keys are streamed.

use super::gradients::{Stationary, add_product, keep_out, store};
use super::stream::{Pair, Stream};
use crate::backward::dq_tile::{destination, key_blocks, row_statistics, rows_of_keys, spread_keys, visible};
use crate::backward::params::BackwardParams;
use crate::backward::recompute::{
    ByRow, hide, hide_by_score, probabilities, recompute, recompute_kept, score_gradients,
};
use crate::backward::work::{query_rows, query_work};
use crate::config::{BackwardConfig, check_backward};
use crate::dropped::{dropout, factor};
use crate::ptx::memory::dynamic_smem;
use crate::ptx::warp::sync_warp;
use crate::ptx::{block_idx_x_again, thread_idx_x_again};
use crate::scheduler::Work;
use crate::score::Score;
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::warp_tile::WarpTile;
use crate::work::query_at;
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
    let (queries, keys) = (query_pair(params, work), Pair { rows: rows_of_keys(params, work), widths });
    let past = work.sequence.seqlen_q.get();
    let (smem, stages) = (dynamic_smem(), dynamic_smem() + 2 * C::Stationary::BYTES);
    // SAFETY: the caller's; blocks are the same for all threads.
    unsafe {
        queries.copy::<C::Stationary>(smem, (work.first_row, past - work.first_row), threads, false);
        Stream::<C>::commit();
        let blocks = key_blocks::<C>(params, work);
        let steps = blocks.end.saturating_sub(blocks.first);
        let mut stream = Stream::<C>::new(stages);
        // From the last step to the first: blocks that are seen only in part are first.
        let copy = |stream: &mut Stream<C>, done: u32| {
            if done < steps {
                let first_key = blocks.block(steps - 1 - done) * C::Streamed::ROWS;
                let valid = work.sequence.seqlen_k.saturating_sub(first_key);
                keys.copy::<C::Streamed>(
                    stream.next().start,
                    (first_key, valid),
                    threads,
                    !C::Score::OF_KEYS,
                );
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
            rows: [0, 1].map(|half| {
                C::Score::row(forward, || query_at(forward, work, (work.head_q, first_row + half * 8)))
            }),
            of: [0, 1].map(|half| {
                let row = first_row + half * 8;
                let at = |chunk| C::Stationary::SWIZZLE.offset(row - work.first_row, chunk);
                let d_o = |chunk| smem + C::Stationary::BYTES + at(chunk);
                row_statistics::<C>(params, work, (row, position.lane), d_o)
            }),
            visible: [0, 1].map(|half| visible(params, work, first_row + half * 8)),
            sink_tokens: forward.ragged.sink_tokens,
            lane_key: 0,
        };
        let mut d_q = C::Warp::NO_O;
        let (mut done, mut tainted) = (0, false);
        while done < steps {
            let stage = stream.wait();
            copy(&mut stream, done + C::STAGES - 1);
            let step = steps - 1 - done;
            let partial = blocks.is_partial(step);
            let mut p = stationary.scores(&stage);
            let lane_key = || blocks.block(step) * C::Streamed::ROWS + position.lane % 4 * 2;
            if C::Score::OF_KEYS | C::Score::DROPS {
                statistics.lane_key = lane_key();
            }
            let score = C::Score::new(forward);
            let mut ds;
            if C::SCORES_WAIT {
                // P before dP, so that the score's loads have dP's registers; barriers of the warp keep them there.
                sync_warp();
                probabilities::<C::Warp, C::Score>(&mut p, &statistics, score, false);
                sync_warp();
                ds = stationary.probability_gradients(&stage);
                score_gradients::<C::Warp, C::Score>(&p, &mut ds, &statistics);
            } else {
                ds = stationary.probability_gradients(&stage);
                if C::Score::DROPS {
                    let dropped = (dropout(forward), factor(forward));
                    recompute_kept::<C::Warp, C::Score>(&mut p, &mut ds, &statistics, score, dropped);
                } else {
                    recompute::<C::Warp, C::Score>(&mut p, &mut ds, &statistics, score);
                }
            }
            if partial {
                statistics.lane_key = lane_key();
                hide::<C::Warp, C::Score, 1>([&mut ds], &statistics);
                hide_by_score::<C::Warp, C::Score, 1>([&mut ds], &statistics, score);
                tainted |= keep_out::<C>((stage.start, C::Streamed::BYTES), threads);
            }
            add_product::<C>(&mut d_q, &ds, stage.first(), position.lane);
            done += 1;
        }
        let to = destination(params, work);
        store::<C>(d_q, params.scale, smem, position, &to);
        if tainted {
            // dQ is written.
            sync_threads();
            spread_keys::<C>(params, work, &blocks, &to, threads);
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
