//! dK and dV of one block of keys: keys are stationary, the queries of all query heads of their KV head are streamed, head by head.

use super::gradients::{Scores, Stationary, add_product, store};
use super::stream::{Pair, Stage, Stream};
use crate::backward::nonfinite::keep_out;
use crate::backward::params::BackwardParams;
use crate::backward::query_steps::{Step, Steps};
use crate::backward::recompute::{
    ByColumn, Pairs, hide, hide_by_score, probabilities, recompute, recompute_kept,
};
use crate::backward::row::STATISTICS_BYTES;
use crate::backward::work::{first_index, key_rows, key_work};
use crate::config::{BackwardConfig, check_backward};
use crate::dropped::{dropout, factor, factor_of};
use crate::ptx::memory::{dynamic_smem, to_global};
use crate::ptx::warp::{sync_threads_or, sync_warp};
use crate::ptx::{block_idx_x_again, thread_idx_x_again};
use crate::scheduler::Work;
use crate::score::Score;
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::work::{query_at, visible_of_query};
use cuda_std::thread::sync_threads;

/// The kernel: a CTA computes dK and dV of one block of keys of one KV head, or where registers do not hold both, one of them.
///
/// # Safety
/// As for [`super::dq::dq`], one CTA a split of each block of keys of each KV head, and behind that kernel on the stream, whose statistics it reads.
#[inline(always)]
pub unsafe fn dkv<C: BackwardConfig>(params: &BackwardParams) {
    const { check_backward::<C>() }
    // SAFETY: the caller's; the tile is the same for all threads.
    unsafe {
        if !C::APART {
            let Some((work, past)) = key_work(params, block_idx_x_again()) else { return };
            tile::<C, true, true>(params, &work, past);
            return;
        }
        let Some((work, past)) = key_work(params, block_idx_x_again() / 2) else { return };
        // dK is the longer one, with a product more.
        if block_idx_x_again() % 2 == 0 {
            tile::<C, true, false>(params, &work, past);
        } else {
            tile::<C, false, true>(params, &work, past);
        }
    }
}

/// Starts the copies of a step to a stage.
///
/// # Safety
/// As for [`Pair::copy`], and [`Stage::copy_statistics`].
#[inline(always)]
unsafe fn copy_step<C: BackwardConfig>(
    steps: &Steps<'_, C>,
    step: Step,
    stage: &Stage<C>,
    threads: (u32, u32),
) {
    let (params, forward, work) = (steps.params, &steps.params.forward, steps.work);
    let first = step.block * C::Streamed::ROWS;
    let past = work.sequence.seqlen_q.get();
    let widths = [forward.ragged.width_qk, forward.ragged.width_v];
    let queries = Pair { rows: steps.rows(step.head), widths };
    // SAFETY: the caller's.
    unsafe {
        queries.copy::<C::Streamed>(stage.start, (first, past - first), threads);
        if threads.0 < C::Streamed::ROWS {
            let query = first + threads.0;
            let index = first_index(forward, work, work.head_q + step.head) + u64::from(query);
            let at = to_global(params.statistics) + index * u64::from(STATISTICS_BYTES);
            let visible = (query < past).then(|| visible_of_query(forward, work, true, || query));
            stage.copy_statistics(threads.0, at, visible);
        }
    }
}

/// dK, dV, or both.
///
/// # Safety
/// As for [`dkv`]; gradients of keys before `past` are written.
#[inline(always)]
unsafe fn tile<C: BackwardConfig, const DK: bool, const DV: bool>(
    params: &BackwardParams,
    work: &Work<'_>,
    past: u32,
) {
    let forward = &params.forward;
    let threads = (thread_idx_x_again(), C::THREADS);
    let position = Position::new(threads.0, C::WARPS);
    let (smem, stages) = (dynamic_smem(), dynamic_smem() + 2 * C::Stationary::BYTES);
    let keys = Pair {
        rows: [key_rows(forward.k, &forward.k_strides, work), key_rows(forward.v, &forward.v_strides, work)],
        widths: [forward.ragged.width_qk, forward.ragged.width_v],
    };
    // SAFETY: the caller's; steps are the same for all threads.
    unsafe {
        let valid = work.sequence.seqlen_k.saturating_sub(work.first_row);
        keys.copy::<C::Stationary>(smem, (work.first_row, valid), threads);
        Stream::<C>::commit();
        let steps = Steps::<C>::new(params, work);
        let count = steps.count();
        let mut stream = Stream::<C>::new(stages);
        let mut next = steps.first();
        let mut copy = |stream: &mut Stream<C>, done: u32| {
            if done < count {
                copy_step(&steps, next, &stream.next(), (thread_idx_x_again(), C::THREADS));
                next = steps.after(next);
            }
            Stream::<C>::commit();
        };
        for stage in 0..C::STAGES - 1 {
            copy(&mut stream, stage);
        }
        Stream::<C>::wait_for_stationary();
        // K and V have landed for all.
        sync_threads();
        let stationary = Stationary::<C>::new(smem, position);
        let lane_key = work.first_row + position.warp_row + position.lane / 4;
        let (mut d_k, mut d_v) = (C::Warp::NO_O, C::Warp::NO_O);
        let (mut step, mut done, mut tainted) = (steps.first(), 0, false);
        while done < count {
            let stage = stream.wait();
            // The block has landed for all, and all are done with the stage that is written next.
            sync_threads();
            copy(&mut stream, done + C::STAGES - 1);
            let beside = (stage.statistics(), stage.limits());
            let row = |column: u32| {
                let query = step.block * C::Streamed::ROWS + column;
                C::Score::row(forward, || query_at(forward, work, (work.head_q + step.head, query)))
            };
            let sink_tokens = forward.ragged.sink_tokens;
            let statistics =
                ByColumn::new(Pairs::Interleaved, beside, (lane_key, position.lane), sink_tokens, row);
            let (mut p, mut ds) = (stationary.scores(&stage), Scores::<C>::splat([0.0; 4]));
            let score = C::Score::new(forward);
            if C::SCORES_WAIT {
                sync_warp();
            }
            if DK {
                ds = stationary.probability_gradients(&stage);
            }
            if C::SCORES_WAIT {
                // No load of the score is moved before it.
                sync_warp();
            }
            if C::Score::DROPS {
                let dropped = (dropout(forward), factor(forward));
                recompute_kept::<C::Warp, C::Score>(&mut p, &mut ds, &statistics, score, dropped);
            } else if DK {
                recompute::<C::Warp, C::Score>(&mut p, &mut ds, &statistics, score);
            } else {
                probabilities::<C::Warp, C::Score>(&mut p, &statistics, score, false);
            }
            if steps.is_partial(step.block) {
                if DK {
                    hide::<C::Warp, C::Score, 2>([&mut p, &mut ds], &statistics);
                    hide_by_score::<C::Warp, C::Score, 2>([&mut p, &mut ds], &statistics, score);
                } else {
                    hide::<C::Warp, C::Score, 1>([&mut p], &statistics);
                    hide_by_score::<C::Warp, C::Score, 1>([&mut p], &statistics, score);
                }
                // Q is multiplied for dK, dO for dV.
                let first = if DK { 0 } else { C::Streamed::BYTES };
                let bytes = (u32::from(DK) + u32::from(DV)) * C::Streamed::BYTES;
                let (tiles, threads) = ((stage.start + first, bytes), (thread_idx_x_again(), C::THREADS));
                tainted |= keep_out::<C::Element>(tiles, threads, sync_threads_or, || sync_threads());
            }
            if DV {
                add_product::<C>(&mut d_v, &p, stage.second(), position.lane);
            }
            if DK {
                add_product::<C>(&mut d_k, &ds, stage.first(), position.lane);
            }
            step = steps.after(step);
            done += 1;
        }
        // Read again, as registers kept across the loop spill.
        let threads = (thread_idx_x_again(), C::THREADS);
        let position = Position::new(threads.0, C::WARPS);
        let to = steps.destinations(past, block_idx_x_again() / if C::APART { 2 } else { 1 });
        if DK {
            store::<C>(d_k, params.scale, smem, position, &to[0]);
        }
        if DV {
            store::<C>(d_v, factor_of::<C::Score>(forward), smem + C::Stationary::BYTES, position, &to[1]);
        }
        if tainted {
            // dK and dV are written.
            sync_threads();
            steps.spread(&to, [DK, DV], threads);
        }
    }
}
