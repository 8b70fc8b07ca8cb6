//! dK and dV of one block of keys: keys are stationary, the queries of all query heads of their KV head are streamed, head by head.

use super::gradients::{Destination, Stationary, add_product, store};
use super::nonfinite::{Taint, keep_out, spread};
use super::recompute::{ByColumn, hide, is_hidden, recompute};
use super::stream::{Pair, Stage, Stream};
use crate::backward::params::BackwardParams;
use crate::backward::row::STATISTICS_BYTES;
use crate::backward::work::{first_index, key_rows, key_work, query_rows};
use crate::config::{BackwardConfig, check_backward};
use crate::ptx::memory::{dynamic_smem, to_global};
use crate::ptx::{block_idx_x_again, opaque, thread_idx_x_again};
use crate::scheduler::Work;
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::warp_tile::WarpTile;
use crate::visible::Band;
use crate::work::visible_of_query;
use cuda_std::thread::sync_threads;

/// The kernel: a CTA computes dK and dV of one block of keys of one KV head.
///
/// # Safety
/// As for [`super::dq::dq`], one CTA a block of keys of each KV head, and behind that kernel on the stream, whose statistics it reads.
#[inline(always)]
pub unsafe fn dkv<C: BackwardConfig>(params: &BackwardParams) {
    const { check_backward::<C>() }
    // SAFETY: the caller's; the tile is the same for all threads.
    unsafe {
        let Some((work, past)) = key_work(params, block_idx_x_again()) else { return };
        tile::<C>(params, &work, past);
    }
}

/// A step of the main loop: a block of queries of one query head.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Query head, counted from the first of the KV head.
    head: u32,
    /// Block of queries.
    block: u32,
}

/// The steps of a tile.
struct Steps<'a, C> {
    params: &'a BackwardParams,
    work: &'a Work<'a>,
    /// The first block of queries, and the one past the last.
    blocks: (u32, u32),
    /// The tile's keys that exist.
    keys: (u32, u32),
    config: core::marker::PhantomData<C>,
}

impl<'a, C: BackwardConfig> Steps<'a, C> {
    #[inline(always)]
    fn new(params: &'a BackwardParams, work: &'a Work<'a>) -> Self {
        let ragged = &params.forward.ragged;
        let past = (work.first_row + C::Stationary::ROWS).min(work.sequence.seqlen_k);
        let keys = (work.first_row, past);
        let (first, past) = Band::of(ragged).queries_of(keys, ragged.sink_tokens, &work.sequence);
        let blocks = (first / C::Streamed::ROWS, past.div_ceil(C::Streamed::ROWS));
        // No query: no block either, whatever the first one is.
        let blocks = if past > first { blocks } else { (0, 0) };
        Self { params, work, blocks, keys, config: core::marker::PhantomData }
    }

    /// Blocks of each head.
    #[inline(always)]
    fn of_head(&self) -> u32 {
        self.blocks.1 - self.blocks.0
    }

    /// Steps of all heads.
    #[inline(always)]
    fn count(&self) -> u32 {
        self.of_head() * self.params.forward.group.value
    }

    #[inline(always)]
    fn first(&self) -> Step {
        Step { head: 0, block: self.blocks.0 }
    }

    #[inline(always)]
    fn after(&self, step: Step) -> Step {
        let block = step.block + 1;
        if block < self.blocks.1 {
            Step { block, ..step }
        } else {
            Step { head: step.head + 1, block: self.blocks.0 }
        }
    }

    /// Whether some query of a block sees the tile's keys only in part, or the tile has fewer keys. Queries past the last need no
    /// mask: Q, dO and their statistics are zeros, and add nothing to a gradient.
    #[inline(always)]
    fn is_partial(&self, block: u32) -> bool {
        let ragged = &self.params.forward.ragged;
        let first = block * C::Streamed::ROWS;
        let past = (first + C::Streamed::ROWS).min(self.work.sequence.seqlen_q.get());
        let is_whole =
            (self.keys.0 + C::Stationary::ROWS <= self.work.sequence.seqlen_k) & (ragged.intervals == 0);
        !is_whole || !Band::of(ragged).all_see((first, past), self.keys, &self.work.sequence)
    }

    /// The rows of Q and dO of a head.
    #[inline(always)]
    fn queries(&self, head: u32) -> Pair {
        let (params, forward) = (self.params, &self.params.forward);
        // Opaque: addresses are worked out anew in each step, where two gradients leave no registers to keep them.
        let work = Work { batch: opaque(self.work.batch), ..*self.work };
        let rows = |base, strides| query_rows(base, strides, &work, work.head_q + head);
        Pair {
            rows: [rows(forward.q, &forward.q_strides), rows(params.d_o, &params.d_o_strides)],
            widths: [forward.ragged.width_qk, forward.ragged.width_v],
        }
    }

    /// Starts the copies of a step to a stage.
    ///
    /// # Safety
    /// As for [`Pair::copy`], and [`Stage::copy_statistics`].
    #[inline(always)]
    unsafe fn copy(&self, step: Step, stage: &Stage<C>, threads: (u32, u32)) {
        let (forward, work) = (&self.params.forward, self.work);
        let first = step.block * C::Streamed::ROWS;
        let past = work.sequence.seqlen_q.get();
        // SAFETY: the caller's.
        unsafe {
            self.queries(step.head).copy::<C::Streamed>(stage.start, (first, past - first), threads);
            if threads.0 < C::Streamed::ROWS {
                let query = first + threads.0;
                let index = first_index(forward, work, work.head_q + step.head) + u64::from(query);
                let at = to_global(self.params.statistics) + index * u64::from(STATISTICS_BYTES);
                let visible = (query < past).then(|| visible_of_query(forward, work, true, || query));
                stage.copy_statistics(threads.0, at, visible);
            }
        }
    }
}

/// # Safety
/// As for [`dkv`]; gradients of keys before `past` are written.
#[inline(always)]
unsafe fn tile<C: BackwardConfig>(params: &BackwardParams, work: &Work<'_>, past: u32) {
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
                steps.copy(next, &stream.next(), (thread_idx_x_again(), C::THREADS));
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
            let statistics = ByColumn::new(&stage, lane_key, position.lane, forward.ragged.sink_tokens);
            let (mut p, mut ds) = stationary.scores(&stage);
            recompute::<C::Warp>(&mut p, &mut ds, &statistics, forward.scale_log2);
            if steps.is_partial(step.block) {
                hide::<C::Warp>(&mut p, &mut ds, &statistics);
                tainted |= keep_out(&stage, 2, (thread_idx_x_again(), C::THREADS));
            }
            add_product::<C>(&mut d_v, &p, stage.second(), position.lane);
            add_product::<C>(&mut d_k, &ds, stage.first(), position.lane);
            step = steps.after(step);
            done += 1;
        }
        // Read again, as registers kept across the loop spill.
        let threads = (thread_idx_x_again(), C::THREADS);
        let position = Position::new(threads.0, C::WARPS);
        let to = |base, strides, width| Destination {
            rows: key_rows(base, strides, work),
            range: (work.first_row, past),
            width,
        };
        let to_k = to(params.d_k, &params.d_k_strides, forward.ragged.width_qk);
        let to_v = to(params.d_v, &params.d_v_strides, forward.ragged.width_v);
        store::<C>(d_k, params.scale, smem, position, &to_k);
        store::<C>(d_v, 1.0, smem + C::Stationary::BYTES, position, &to_v);
        if tainted {
            // dK and dV are written.
            sync_threads();
            for (i, to, taint) in [(0, &to_k, Taint::NotANumber), (1, &to_v, Taint::Itself)] {
                spread::<C::Element>(
                    to,
                    C::Stationary::ROWS,
                    (count, C::Streamed::ROWS),
                    taint,
                    threads,
                    |step, streamed, key| {
                        let (head, block) = (step / steps.of_head().max(1), step % steps.of_head().max(1));
                        let block = steps.blocks.0 + block;
                        let query = block * C::Streamed::ROWS + streamed;
                        if query >= work.sequence.seqlen_q.get() || !steps.is_partial(block) {
                            return None;
                        }
                        let visible = visible_of_query(forward, work, true, || query);
                        let is_seen = !is_hidden(key, visible, forward.ragged.sink_tokens);
                        is_seen.then(|| steps.queries(head).rows[i].address(query, 0))
                    },
                );
            }
        }
    }
}
