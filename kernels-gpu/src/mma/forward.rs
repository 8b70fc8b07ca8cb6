//! The forward kernel on mma.sync and cp.async: O = softmax(scale · Q·Kᵀ) · V for one block of query rows.
//!
//! A CTA takes the blocks of keys from the last visible one to the first: those that some row sees only in part
//! come first, in a loop of their own, and the loop over full blocks needs neither masks nor bounds.

use super::copy::copy_queries;
use super::gemm::{Queries, p_v, q_kt};
use super::pipeline::{Pipeline, RaggedBlocks};
use crate::config::Config;
use crate::dropped::{drop_weights, scale_kept};
use crate::element::Accumulates;
use crate::keys::{KeyRows, RaggedKeys};
use crate::math::combine::merge_in_last_cta;
use crate::math::epilogue::{merge_warps, store_lse, store_output, store_partial, take_in_sinks};
use crate::math::mask::{RowBegins, RowLimits};
use crate::math::restore::{PartlyVisible, Restored, restore, restore_ragged};
use crate::math::scrub;
use crate::math::softmax::OnlineSoftmax;
use crate::params::ForwardParams;
use crate::ptx::grid::{launch_dependents, wait_for_prerequisites};
use crate::ptx::memory::{atomic_inc, dynamic_smem, ld_shared, st_shared, to_global};
use crate::ptx::warp::sync_threads_or;
use crate::ptx::{block_idx_x_again, opaque, thread_idx_x_again};
use crate::queries::QueryRows;
use crate::scheduler::Work;
use crate::score::Score;
use crate::score_fragment::{hide_all, score_all};
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::smem_tile::{LaneView, SmemTile};
use crate::tile::warp_tile::WarpTile;
use crate::visible::{KeyBlocks, MaskParams};
use crate::work::{
    intervals_of_rows, is_partial, key_blocks, score_rows, score_sees_row, tile_of_split, visible_of_row,
    work_of,
};
use cuda_std::thread::{grid_dim_x, sync_threads};

/// Where the keys that each of a lane's rows sees end, and where they begin.
type Limits<W> = (RowLimits<W>, RowBegins<W>);

/// A warp's state through the main loop.
struct MainLoop<'a, C: Config> {
    params: &'a ForwardParams,
    thread: u32,
    pipeline: Pipeline<'a, C>,
    queries: Queries<C::Q, C::Warp>,
    softmax: OnlineSoftmax<C::Warp>,
    acc_o: <C::Warp as WarpTile>::O,
    /// First key, and keys from there on to the end of the sequence.
    first_key: u32,
    keys: u32,
    blocks: KeyBlocks,
    score_rows: <C::Warp as WarpTile>::Rows<<C::Score as Score>::Row>,
}

impl<C: Config> MainLoop<'_, C> {
    /// Block `block` of the keys, counted from the first one that is worked on: O += softmax(Q·Kᵀ)·V. `masked` blocks are seen only
    /// in part, or are ragged.
    ///
    /// # Safety
    /// All threads of the CTA take part, with the blocks in descending order.
    #[inline(always)]
    unsafe fn step(&mut self, masked: bool, block: u32, limits: &Limits<C::Warp>) {
        let Position { warp_row, warp_n, lane } = Position::new(self.thread, C::WARPS);
        let warp_key = warp_n * C::WARPS.keys;
        let q_view = LaneView::a_operand(warp_row, lane);
        let k_view = LaneView::b_operand(warp_key, lane);
        let v_view = LaneView::a_operand(warp_key, lane);
        let first_key = block * C::K::ROWS;
        // SAFETY: the caller's; every thread passes here.
        unsafe {
            let stage = self.pipeline.wait_k(masked, block, self.keys - first_key);
            let mut s = q_kt::<C::Element, C::Accumulation, _, _, _>(&self.queries, q_view, stage.k, k_view);
            self.pipeline.wait_v(masked, &stage);
            self.pipeline.refill(block);
            let first_key = if C::RAGGED {
                self.blocks.block(self.blocks.first + block) * C::K::ROWS
            } else {
                self.first_key + first_key
            };
            self.softmax(masked, &mut s, limits, first_key + warp_key, lane);
            if C::Score::DROPS {
                drop_weights::<C::Warp, C::Score>(
                    self.params,
                    &mut s,
                    &self.score_rows,
                    first_key + warp_key,
                    lane,
                );
            }
            p_v::<C::Element, C::Accumulation, _, C::Warp>(&mut self.acc_o, &s, stage.v, v_view);
        }
    }

    /// Turns S, whose columns start at `first_key`, into P.
    #[inline(always)]
    fn softmax(
        &mut self,
        masked: bool,
        s: &mut <C::Warp as WarpTile>::S<[f32; 4]>,
        limits: &Limits<C::Warp>,
        first_key: u32,
        lane: u32,
    ) {
        // Anew in each step: a register for it through the whole loop is one too many.
        let score = C::Score::new(self.params);
        score_all::<C::Warp, _>(score, s, &self.score_rows, first_key, lane);
        if masked {
            limits.0.apply(C::RAGGED.then_some(&limits.1), s, first_key, lane);
            if C::Score::HIDES {
                hide_all::<C::Warp, _>(score, s, &self.score_rows, first_key, lane);
            }
        }
        let rescale = (score.scale_log2(), <C::Accumulation as Accumulates<_>>::RESCALE_AT);
        self.softmax.step(s, &mut self.acc_o, rescale);
    }
}

/// Where the kernel keeps the index of its tile, and of the next one, in shared memory (persistent kernels).
#[inline(always)]
fn index_slot<C: Config>() -> u32 {
    dynamic_smem() + C::INDEX_SLOT
}

/// As [`index_slot`], for the next tile.
#[inline(always)]
fn next_index_slot<C: Config>() -> u32 {
    index_slot::<C>() + 4
}

/// A grid of up to 64 CTAs leaves multiprocessors to the next kernel's, which may start when the main loop is over. CTAs of a larger grid are still on some
/// multiprocessors then, and the next one's would crowd on the others: it starts when O is on its way.
const FEW_CTAS: u32 = 64;

/// Whether the kernel reads memory to learn what there is to do, and so waits for the kernels before it at once. Where it does not, all that
/// follows from parameters is worked out under them; lengths are waited for where they are read.
const fn waits_at_start<C: Config>() -> bool {
    C::RAGGED || C::PERSISTENT
}

/// The tile that the CTA works on.
///
/// Indices are read again at each call, so that nothing derived from them is kept in registers for later.
///
/// # Safety
/// As for [`forward`]; persistent kernels have written their slot, and a barrier lies between.
#[inline(always)]
unsafe fn current_work<C: Config>(params: &ForwardParams) -> Work<'_> {
    // SAFETY: the caller's.
    unsafe {
        let index = if C::PERSISTENT { ld_shared(index_slot::<C>()) } else { block_idx_x_again() };
        work_of::<C>(params, index)
    }
}

/// The rows of K or V of a tile's head.
#[inline(always)]
fn key_rows(base: u64, strides: &crate::params::Strides, work: &Work<'_>) -> KeyRows {
    KeyRows::new(to_global(base), strides, work.batch, work.head_kv)
}

/// The blocks of a ragged batch's tile, none of them copied.
///
/// # Safety
/// As for [`forward`].
#[inline(always)]
unsafe fn ragged_blocks<'a>(
    params: &'a ForwardParams,
    work: &Work<'_>,
    blocks: KeyBlocks,
) -> RaggedBlocks<'a> {
    let ragged = &params.ragged;
    let at = (work.batch, work.head_kv, work.sequence.k_start);
    RaggedBlocks {
        // SAFETY: the caller's.
        keys: unsafe { RaggedKeys::new(params, at) }.with_v_from(work.slice_bytes(params)),
        widths: (ragged.width_qk, ragged.width_v),
        seqlen_k: work.sequence.seqlen_k,
        blocks,
    }
}

/// What a warp holds after the main loop.
type Accumulated<W> = (OnlineSoftmax<W>, <W as WarpTile>::O);

/// The main loop over all blocks of keys that the CTA's tile works on.
///
/// # Safety
/// As for [`forward`]; nobody uses the CTA's shared memory.
#[inline(always)]
unsafe fn accumulate<C: Config>(params: &ForwardParams, thread: u32, scrub: bool) -> Accumulated<C::Warp> {
    // SAFETY: the caller's.
    let work = unsafe { current_work::<C>(params) };
    // SAFETY: the caller's; all lanes take part.
    let blocks = unsafe { key_blocks::<C>(params, &work) };
    let (softmax, acc_o) = (OnlineSoftmax::EMPTY, C::Warp::NO_O);
    if blocks.is_empty() {
        if !waits_at_start::<C>() {
            wait_for_prerequisites();
        }
        return (softmax, acc_o);
    }
    let position = Position::new(thread, C::WARPS);
    let queries = QueryRows::new(params, &work, C::BLOCK);
    let q_tile = SmemTile::<C::Q>::at(dynamic_smem());
    let last = blocks.block(blocks.end - 1) * C::K::ROWS;
    let kv = (key_rows(params.k, &params.k_strides, &work), key_rows(params.v, &params.v_strides, &work));
    // SAFETY: the caller's.
    let ragged = C::RAGGED.then(|| unsafe { ragged_blocks(params, &work, blocks) });
    let mut pipeline = Pipeline::<C>::new(kv, last, q_tile.start + C::Q::BYTES, (thread, ragged), scrub);
    // SAFETY: the caller's; blocks is the same for all threads, so all take part in each call.
    unsafe {
        let width = if C::RAGGED { params.ragged.width_qk } else { C::Q::WIDTH };
        if !waits_at_start::<C>() {
            wait_for_prerequisites();
        }
        copy_queries(&queries, q_tile, width, (thread, C::THREADS));
        pipeline.fill(&blocks, work.sequence.seqlen_k - last);
        Pipeline::<C>::wait_for_oldest_stage();
        // Q has landed for all.
        sync_threads();
        let q_view = LaneView::a_operand(position.warp_row, position.lane);
        let first_row = work.first_row + position.warp_row + position.lane / 4;
        let limits = if C::RAGGED {
            intervals_of_rows::<C>(params, &work, first_row)
        } else {
            let mask = MaskParams::of(params);
            let limits = RowLimits::new(mask, &work.sequence, C::BLOCK.rows, first_row, &params.group);
            (limits, RowBegins::NONE)
        };
        let mut main_loop = MainLoop::<C> {
            params,
            thread,
            pipeline,
            queries: Queries::new(q_tile, q_view, C::Q_IN_REGISTERS),
            softmax,
            acc_o,
            first_key: blocks.first * C::K::ROWS,
            keys: work.sequence.seqlen_k - blocks.first * C::K::ROWS,
            blocks,
            score_rows: score_rows::<C>(params, &work, first_row),
        };
        let mut block = blocks.end - blocks.first;
        if C::RAGGED {
            while block > 0 {
                block -= 1;
                // One loop is half the code, which is long.
                main_loop.step(blocks.is_partial(blocks.first + block), block, &limits);
            }
        } else {
            while block > blocks.full.saturating_sub(blocks.first) {
                block -= 1;
                main_loop.step(true, block, &limits);
            }
            while block > 0 {
                block -= 1;
                main_loop.step(false, block, &limits);
            }
        }
        (main_loop.softmax, main_loop.acc_o)
    }
}

/// Computes one tile, or one range of its keys.
///
/// # Safety
/// As for [`forward`]; nobody uses the CTA's shared memory.
#[inline(always)]
unsafe fn tile<C: Config>(params: &ForwardParams) {
    let mut scrub = false;
    // SAFETY: the caller's; scrub is the same for all threads.
    unsafe {
        let (mut softmax, mut acc_o) = loop {
            let (softmax, acc_o) = accumulate::<C>(params, thread_idx_x_again(), scrub);
            // Not finite: V may have put NaN into rows that do not see it. Once more, with care.
            let rows_differ = C::RAGGED || params.causal != 0;
            if !rows_differ || scrub || !sync_threads_or(scrub::in_fragment(&acc_o)) {
                break (softmax, acc_o);
            }
            // Opaque in ragged batches, or the compiler unrolls what it knows to be two rounds at most.
            scrub = !C::RAGGED || opaque(1) != 0;
        };
        if grid_dim_x() <= FEW_CTAS {
            launch_dependents();
        }
        let work = current_work::<C>(params);
        let position = Position::new(thread_idx_x_again(), C::WARPS);
        let queries = QueryRows::new(params, &work, C::BLOCK);
        softmax.reduce_sum();
        let score = || C::Score::new(params);
        let width = queries.width(C::Q::WIDTH);
        let buffer = (dynamic_smem(), C::MERGE);
        merge_warps(&mut softmax, &mut acc_o, buffer, position, score().scale_log2(), sync_threads);
        if C::Score::DROPS {
            scale_kept::<C::Warp>(params, &mut acc_o);
        }
        if position.warp_n == 0 {
            if is_partial::<C>(params) {
                store_partial(&queries, &softmax, acc_o, width, position, score().scale_log2());
            } else {
                store_lse(&queries, &softmax, position, score().scale_log2());
                take_in_sinks(&queries, &mut softmax, position, score().scale_log2());
                let o_tile = SmemTile::<C::O>::at(dynamic_smem());
                store_output::<C::Element, _, _>(&queries, &softmax, acc_o, o_tile, position);
            }
        }
        launch_dependents();
        if scrub {
            // O is written.
            sync_threads();
            // It is set under a causal mask only: knowing it, the compiler shares nothing with the other case.
            core::hint::assert_unchecked(C::RAGGED || params.causal != 0);
            restore_nonfinite::<C>(params);
        }
        if C::SPLIT && params.split.counters != 0 {
            let tile = tile_of_split::<C>(params, block_idx_x_again());
            let threads = (thread_idx_x_again(), C::THREADS);
            merge_in_last_cta::<C::Element>(
                &params.split,
                &queries,
                C::LAST_CTA,
                tile,
                threads,
                sync_threads,
                sync_threads_or,
            );
        }
    }
}

/// Adds the NaN and infinities of V to O in the rows that see them. The tile is worked out anew, so that the main loop need not keep
/// registers for what is hardly ever used.
///
/// # Safety
/// As for [`restore`], by all threads of the CTA.
#[inline(always)]
unsafe fn restore_nonfinite<C: Config>(params: &ForwardParams) {
    // SAFETY: the caller's.
    unsafe {
        let work = current_work::<C>(params);
        let blocks = key_blocks::<C>(params, &work);
        let queries = QueryRows::new(params, &work, C::BLOCK);
        if C::RAGGED {
            let restored = Restored {
                first_row: work.first_row,
                rows: C::Q::ROWS,
                head_dim: queries.width(C::Q::WIDTH),
                thread: thread_idx_x_again(),
                threads: C::THREADS,
                partial: is_partial::<C>(params),
            };
            let keys = ragged_blocks(params, &work, blocks).keys;
            let blocks = (blocks, C::K::ROWS, params.ragged.sink_tokens);
            let visible = |row| visible_of_row::<C>(params, &work, row);
            let sees = |row, key| score_sees_row::<C>(params, &work, row, key);
            return restore_ragged::<C::Element>(&queries, keys, blocks, restored, visible, sees);
        }
        let keys = PartlyVisible {
            first: blocks.full.max(blocks.first) * C::K::ROWS,
            end: blocks.end * C::K::ROWS,
            v: key_rows(params.v, &params.v_strides, &work),
        };
        let visible_end =
            |row| C::BLOCK.rows.visible(MaskParams::of(params), row, &params.group, &work.sequence).end;
        let (rows, threads) = ((work.first_row, C::Q::ROWS, C::Q::WIDTH), (thread_idx_x_again(), C::THREADS));
        restore::<C::Element>(&queries, keys, is_partial::<C>(params), rows, threads, visible_end);
    }
}

/// The kernel: a CTA computes one tile after another, or the only one that falls to it.
///
/// # Safety
/// Launched with the threads and shared memory that [`crate::geometry`] gives for the row, as many CTAs as its schedule says, and
/// parameters whose pointers, sizes and strides describe device memory as [`ForwardParams`] says.
#[inline(always)]
pub unsafe fn forward<C: Config>(params: &ForwardParams) {
    const { crate::config::check::<C>() }
    if waits_at_start::<C>() {
        wait_for_prerequisites();
    }
    if !C::PERSISTENT {
        // SAFETY: the caller's.
        return unsafe { tile::<C>(params) };
    }
    let tiles = params.persistent.tiles;
    let mut index = block_idx_x_again();
    while index < tiles {
        // SAFETY: the caller's; index is the same for all threads, so all take part in the barriers.
        unsafe {
            if thread_idx_x_again() == 0 {
                st_shared(index_slot::<C>(), index);
                // The first tile of each CTA is its own index, so those that are drawn start at the number of CTAs: every CTA draws once
                // for each tile it works on, which makes as many as there are tiles, and the counter is 0 again.
                let drawn = atomic_inc(to_global(params.persistent.counter), tiles - 1);
                st_shared(next_index_slot::<C>(), drawn + grid_dim_x());
            }
            // The slots are written.
            sync_threads();
            tile::<C>(params);
            // All are done with the tile's shared memory, and have yet to read the slot.
            sync_threads();
            index = ld_shared(next_index_slot::<C>());
            // All have read it.
            sync_threads();
        }
    }
}
