//! dK and dV of one block of keys: keys are stationary, the queries of all query heads of their KV head are streamed, head by head. Kernels
//! of [`crate::backward::row::Pass::DkvDs`] also write dS, from registers.

use super::gradients::{Scores, Stationary, add_product, keep_out, store};
use super::notes::{Notes, addresses, block_of_word, block_word};
use super::stream::{Pair, Stage, Stream};
use crate::backward::params::BackwardParams;
use crate::backward::query_steps::{Step, Steps, ds_head, piece};
use crate::backward::recompute::{
    ByColumn, Pairs, hide, hide_by_score, probabilities, recompute, recompute_kept,
};
use crate::backward::row::STATISTICS_BYTES;
use crate::backward::spill::{self, DS_KEYS, QUERIES_STEP, lane_offset};
use crate::backward::work::{first_index, key_rows, key_work, past_of_keys};
use crate::config::{BackwardConfig, check_backward};
use crate::dropped::{dropout, factor, factor_of};
use crate::keys::KeyRows;
use crate::mma::gemm::a_operand;
use crate::ptx::memory::{dynamic_smem, to_global, to_global_again};
use crate::ptx::warp::sync_warp;
use crate::ptx::{block_idx_x_again, halves, thread_idx_x_again};
use crate::scheduler::Work;
use crate::score::Score;
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::Visible;
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
        // dK is the longer one, with a product more.
        match (C::APART, block_idx_x_again() % 2) {
            (false, _) => tile::<C, true, true>(params),
            (true, 0) => tile::<C, true, false>(params),
            (true, _) => tile::<C, false, true>(params),
        }
    }
}

/// The CTA's number among all launches, read again at each call.
#[inline(always)]
fn index<C: BackwardConfig>(params: &BackwardParams) -> u32 {
    block_idx_x_again() / if C::APART { 2 } else { 1 } + if C::WRITES_DS { params.first_tile } else { 0 }
}

/// Writes the warp's dS of a step, whose first query has it in this group, from the lane's first key on in a block of dS. Addresses are worked out anew
/// in each step, as registers kept across the loop spill.
///
/// # Safety
/// All lanes take part; dS of the tile is writable.
#[inline(always)]
unsafe fn write_ds<C: BackwardConfig>(params: &BackwardParams, group: u32, first_key: u32, ds: &Scores<C>) {
    let position = Position::new(thread_idx_x_again(), C::WARPS);
    let of_lane = lane_offset(first_key % DS_KEYS + position.warp_row, position.lane);
    let at = to_global_again(params.d_s) + u64::from(of_lane);
    let operands = <C::Warp as WarpTile>::P::from_fn(|m, k| {
        a_operand::<C::Element>(&ds.row(m)[2 * k], &ds.row(m)[2 * k + 1])
    });
    // SAFETY: the caller's.
    unsafe { spill::write::<C::Warp>(at + u64::from(group) * u64::from(QUERIES_STEP), &operands) }
}

/// What is noted of a step: its block, its head, where dS goes, where its queries stand in LSE; and where its rows of Q and dO are.
///
/// # Safety
/// As for [`piece`].
#[inline(always)]
unsafe fn note<C: BackwardConfig>(params: &BackwardParams, work: &Work<'_>, index: u32) -> [[u32; 4]; 2] {
    let steps = Steps::<C>::new(params, work);
    let Step { head, block } = steps.at(index);
    let (head_q, first) = (work.head_q + head, block * C::Streamed::ROWS);
    let mut group = 0;
    if C::WRITES_DS {
        // SAFETY: the caller's.
        let kept = unsafe { piece(params, work, work.first_row / DS_KEYS) };
        group = kept.group(params, ds_head(params, work, head_q), first);
    }
    let row = first_index(&params.forward, work, head_q) as u32 + first;
    let [q, d_o] = steps.rows(head).map(|rows| halves(rows.address(first, 0)));
    [[block_word(block, steps.is_partial(block)), head, group, row], [q[0], q[1], d_o[0], d_o[1]]]
}

/// Starts the copies of a step to a stage.
///
/// # Safety
/// As for [`Pair::copy`], and [`Stage::copy_statistics`]; the step has been noted.
#[inline(always)]
unsafe fn copy_step<C: BackwardConfig>(
    params: &BackwardParams,
    (notes, step): (&Notes<C>, u32),
    stage: &Stage<C>,
    threads: (u32, u32),
) {
    let forward = &params.forward;
    // SAFETY: the caller's.
    unsafe {
        let ([block, _, _, first_row], [_, past, _]) = (notes.of(step), notes.rows());
        let (block, is_partial) = block_of_word(block);
        let first = block * C::Streamed::ROWS;
        let [q, d_o] = addresses(notes.of_copies(step));
        let rows =
            [KeyRows::starting_at(q, &forward.q_strides), KeyRows::starting_at(d_o, &params.d_o_strides)];
        let queries = Pair { rows, widths: [forward.ragged.width_qk, forward.ragged.width_v] };
        // Scores of keys take the registers.
        queries.copy::<C::Streamed>(stage.start, (0, past - first), threads, !C::Score::OF_KEYS);
        if threads.0 < C::Streamed::ROWS {
            let (query, index_of_row) = (first + threads.0, first_row + threads.0);
            let at = to_global(params.statistics) + u64::from(index_of_row) * u64::from(STATISTICS_BYTES);
            stage.copy_statistics(threads.0, at, query < past);
            if is_partial {
                let mut visible = Visible::before(0);
                if query < past {
                    visible = visible_of_query(forward, &notes.work(), true, || query);
                }
                stage.note_limits(threads.0, visible);
            }
        }
    }
}

/// dK, dV, or both.
///
/// # Safety
/// As for [`dkv`].
#[inline(always)]
unsafe fn tile<C: BackwardConfig, const DK: bool, const DV: bool>(params: &BackwardParams) {
    let forward = &params.forward;
    // SAFETY: the caller's.
    let Some((work, _)) = &(unsafe { key_work(params, index::<C>(params)) }) else { return };
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
        keys.copy::<C::Stationary>(smem, (work.first_row, valid), threads, false);
        Stream::<C>::commit();
        let count = Steps::<C>::new(params, work).count();
        let notes = Notes::<C>::new(count, work);
        let mut stream = Stream::<C>::new(stages);
        let copy = |stream: &mut Stream<C>, step: u32| {
            notes.note_from(step, |work, step| note::<C>(params, work, step));
            if step < count {
                copy_step(params, (&notes, step), &stream.next(), (thread_idx_x_again(), C::THREADS));
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
        let (mut d_k, mut d_v) = (C::Warp::NO_O, C::Warp::NO_O);
        let (mut done, mut tainted) = (0, false);
        while done < count {
            let stage = stream.wait();
            copy(&mut stream, done + C::STAGES - 1);
            let [block, head, group, _] = notes.of(done);
            let (block, is_partial) = block_of_word(block);
            let [first_key, ..] = notes.rows();
            let lane_key = first_key + position.warp_row + position.lane / 4;
            let beside = (stage.statistics(), stage.limits());
            let work = &notes.work();
            let row = |column: u32| {
                let query = block * C::Streamed::ROWS + column;
                C::Score::row(forward, || query_at(forward, work, (work.head_q + head, query)))
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
            if is_partial {
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
                tainted |= keep_out::<C>((stage.start + first, bytes), (thread_idx_x_again(), C::THREADS));
            }
            if DV {
                add_product::<C>(&mut d_v, &p, stage.second(), position.lane);
            }
            if DK {
                add_product::<C>(&mut d_k, &ds, stage.first(), position.lane);
            }
            if C::WRITES_DS {
                write_ds::<C>(params, group, first_key, &ds);
            }
            done += 1;
        }
        // Read again, as registers kept across the loop spill.
        let threads = (thread_idx_x_again(), C::THREADS);
        let position = Position::new(threads.0, C::WARPS);
        let work = &notes.work();
        let steps = Steps::<C>::new(params, work);
        let to = steps.destinations(past_of_keys(params, work), index::<C>(params));
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
