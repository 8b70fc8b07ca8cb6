//! The forward main loop on mma.sync and cp.async: O = softmax(scale · Q·Kᵀ) · V for one block of query rows.
//!
//! A CTA walks the blocks of keys from the last visible one to the first: those that some row sees only in part
//! come first, in a loop of their own, and the loop over full blocks needs neither masks nor bounds.

use crate::combine::merge_in_last_cta;
use crate::copy::{TileCopy, copy_queries};
use crate::element::{Element, ScoreAccumulation};
use crate::epilogue::{Position, merge_warps, store_lse, store_output, store_partial};
use crate::gemm::{Queries, p_v, q_kt};
use crate::geometry;
use crate::mask::RowLimits;
use crate::nonfinite;
use crate::params::ForwardParams;
use crate::ptx::cp_async::{cp_async_commit_group, cp_async_wait_group};
use crate::ptx::memory::{atomic_inc, dynamic_smem, ld_global_b32, ld_shared, st_shared, to_global};
use crate::ptx::warp::sync_threads_or;
use crate::ptx::{block_idx_x_again, thread_idx_x_again};
use crate::row::{Isa, Row, Schedule};
use crate::scheduler::{KeyBlocks, Rows, Work};
use crate::softmax::OnlineSoftmax;
use crate::tile::{LaneView, OutputFragment};
use cuda_std::thread::{grid_dim_x, sync_threads};

/// What a row of the table says, as types and constants.
pub trait Config {
    /// Element type of Q, K, V and O.
    type Element: Element;
    /// Accumulation of Q·Kᵀ.
    type Scores: ScoreAccumulation<Self::Element>;
    /// The row itself.
    const ROW: Row;
    /// How rows of a tile are queries of heads.
    const ROWS: Rows = match Self::ROW.schedule {
        Schedule::Grid | Schedule::Persistent => Rows::OfHead,
        Schedule::Split => Rows::Packed,
    };
}

/// K and V on their way through the stages of shared memory.
struct Pipeline {
    k: TileCopy,
    v: TileCopy,
    /// The stage that is written next, and the one that is read next.
    write: u32,
    read: u32,
    first: u32,
}

impl Pipeline {
    const fn tile_bytes<C: Config>() -> u32 {
        geometry::tile_bytes(&C::ROW, C::ROW.block_n)
    }

    /// The stage after `stage`.
    #[inline(always)]
    fn next<C: Config>(&self, stage: u32) -> u32 {
        let (stage_bytes, stages) = (2 * Self::tile_bytes::<C>(), C::ROW.stages);
        let next = stage + stage_bytes;
        if next == self.first + stages * stage_bytes { self.first } else { next }
    }

    /// Starts copying K and V of the next block. Only the last block of the sequence may have fewer valid rows
    /// than block_n, and it is the first one copied: `BOUNDED`.
    ///
    /// # Safety
    /// All threads of the CTA take part, and all have read what the written stage held.
    #[inline(always)]
    unsafe fn copy_stage<C: Config, const BOUNDED: bool>(&mut self, valid_rows: u32) {
        // SAFETY: the caller's.
        unsafe {
            self.copy_k::<C, BOUNDED>(valid_rows);
            self.copy_v::<C, BOUNDED>(valid_rows);
        }
        self.write = self.next::<C>(self.write);
    }

    /// # Safety
    /// As for [`Self::copy_stage`], for K's half of the stage.
    #[inline(always)]
    unsafe fn copy_k<C: Config, const BOUNDED: bool>(&mut self, valid_rows: u32) {
        // SAFETY: the caller's.
        unsafe { copy_tile::<C, BOUNDED>(&mut self.k, self.write, valid_rows) }
    }

    /// # Safety
    /// As for [`Self::copy_stage`], for V's half of the stage.
    #[inline(always)]
    unsafe fn copy_v<C: Config, const BOUNDED: bool>(&mut self, valid_rows: u32) {
        // SAFETY: the caller's.
        unsafe { copy_tile::<C, BOUNDED>(&mut self.v, self.write + Self::tile_bytes::<C>(), valid_rows) }
    }
}

/// # Safety
/// As for [`TileCopy::copy_bounded`].
#[inline(always)]
unsafe fn copy_tile<C: Config, const BOUNDED: bool>(source: &mut TileCopy, tile: u32, valid_rows: u32) {
    let block_n = C::ROW.block_n;
    // SAFETY: the caller's.
    unsafe {
        if BOUNDED {
            source.copy_bounded::<C>(tile, block_n, valid_rows)
        } else {
            source.copy::<C>(tile, block_n)
        }
    }
    source.step_back(block_n);
}

/// A warp's state through the main loop.
struct MainLoop<'a, const M: usize, const D: usize, const K: usize> {
    params: &'a ForwardParams,
    thread: u32,
    pipeline: Pipeline,
    queries: Queries<M, K>,
    softmax: OnlineSoftmax<M>,
    acc_o: OutputFragment<M, D>,
    /// First key, and keys from there on to the end of the sequence.
    first_key: u32,
    keys: u32,
    /// Whether non-finite elements of V are replaced by 0 in blocks that are seen only in part.
    scrub: bool,
}

impl<const M: usize, const D: usize, const K: usize> MainLoop<'_, M, D, K> {
    /// Takes in block `block` of the keys, counted from the first one that is worked on. `MASKED` blocks are seen only in
    /// part, or are ragged.
    ///
    /// # Safety
    /// All threads of the CTA take part, with the blocks in descending order.
    #[inline(always)]
    unsafe fn step<C: Config, const N: usize, const MASKED: bool>(
        &mut self,
        block: u32,
        limits: &RowLimits<M>,
    ) {
        let position = Position::new::<C>(self.thread);
        let warp_key = position.warp_n * geometry::keys_per_warp(&C::ROW);
        let q_view = LaneView::a_operand::<C>(position.warp_row, position.lane);
        let k_view = LaneView::b_operand::<C>(warp_key, position.lane);
        let v_view = LaneView::a_operand::<C>(warp_key, position.lane);
        let k_tile = self.pipeline.read;
        let v_tile = k_tile + Pipeline::tile_bytes::<C>();
        // SAFETY: every thread passes here; the barriers say which hazard they close.
        unsafe {
            if C::ROW.stages == 1 {
                // K has landed for all, and all are done with V of the block before.
                cp_async_wait_group::<0>();
                sync_threads();
                self.pipeline.copy_v::<C, MASKED>(self.keys - block * C::ROW.block_n);
                cp_async_commit_group();
            } else {
                // The block's stage has landed for all, and all are done with the one that is written next.
                wait_for_oldest_stage::<C>();
                self.scrub_v::<C, MASKED>(v_tile);
                sync_threads();
            }
            let mut s = q_kt::<C, M, N, K>(&self.queries, q_view, k_tile, k_view);
            if C::ROW.stages > 1 {
                // Behind Q·Kᵀ: copies that are under way hold up reads of shared memory, and the softmax has none.
                if block >= C::ROW.stages - 1 {
                    self.pipeline.copy_stage::<C, false>(0);
                }
                cp_async_commit_group();
                self.pipeline.read = self.pipeline.next::<C>(self.pipeline.read);
            } else {
                // V has landed for all, and all are done with K.
                cp_async_wait_group::<0>();
                self.scrub_v::<C, MASKED>(v_tile);
                sync_threads();
                if block > 0 {
                    self.pipeline.copy_k::<C, false>(0);
                }
                cp_async_commit_group();
            }
            if MASKED {
                limits.apply(&mut s, self.first_key + block * C::ROW.block_n + warp_key, position.lane);
            }
            self.softmax.step(&mut s, &mut self.acc_o, self.params.scale_log2);
            p_v::<C, M, N, D>(&mut self.acc_o, &s, v_tile, v_view);
        }
    }

    /// Keeps what V holds at keys that only some rows see from reaching the others: see [`nonfinite`].
    ///
    /// # Safety
    /// As for [`TileCopy::scrub`].
    #[inline(always)]
    unsafe fn scrub_v<C: Config, const MASKED: bool>(&mut self, v_tile: u32) {
        if MASKED && self.scrub {
            // SAFETY: the caller's.
            unsafe { self.pipeline.v.scrub::<C>(v_tile, C::ROW.block_n) };
        }
    }
}

/// Waits until the stage that is read next has landed for this thread: all but the latest `stages` − 2.
#[inline(always)]
fn wait_for_oldest_stage<C: Config>() {
    match C::ROW.stages {
        1 | 2 => cp_async_wait_group::<0>(),
        3 => cp_async_wait_group::<1>(),
        _ => cp_async_wait_group::<2>(),
    }
}

/// Shared memory of the work in hand (Persistent).
#[inline(always)]
fn current_slot<C: Config>() -> u32 {
    dynamic_smem() + geometry::work_slots_offset(&C::ROW)
}

/// Shared memory of the work that comes next (Persistent).
#[inline(always)]
fn next_slot<C: Config>() -> u32 {
    current_slot::<C>() + 4
}

/// The tile that the CTA works on.
///
/// Indices are read again at each call, so that nothing derived from them is kept in registers for later.
///
/// # Safety
/// As for [`forward`]; [`Schedule::Persistent`] has its slot written.
#[inline(always)]
unsafe fn work_in_hand<C: Config>(params: &ForwardParams) -> Work {
    // SAFETY: the caller's.
    unsafe {
        let index = match C::ROW.schedule {
            Schedule::Grid | Schedule::Split => block_idx_x_again(),
            Schedule::Persistent => ld_shared(current_slot::<C>()),
        };
        work_of::<C>(params, index)
    }
}

/// The tile of this number, or its split.
///
/// # Safety
/// As for [`keys_of_batch`].
#[inline(always)]
pub unsafe fn work_of<C: Config>(params: &ForwardParams, index: u32) -> Work {
    let rows = rows_of_block::<C>(params);
    match C::ROW.schedule {
        Schedule::Grid | Schedule::Persistent => Work::of_head(params, index, rows),
        // SAFETY: the caller's.
        Schedule::Split => {
            Work::of_split(params, index, rows, |batch| unsafe { keys_of_batch(params, batch) })
        }
    }
}

/// Query rows of a block that are used: [`geometry::rows_of_block`].
#[inline(always)]
pub fn rows_of_block<C: Config>(params: &ForwardParams) -> u32 {
    match C::ROW.isa {
        Isa::Mma => C::ROW.block_m,
        Isa::Wgmma => C::ROWS.of_block(params, C::ROW.block_m),
    }
}

/// Keys of a batch entry's sequence, clamped so that a wrong length reads nothing outside of K and V.
///
/// # Safety
/// The lengths, if given, hold an element a batch entry.
#[inline(always)]
unsafe fn keys_of_batch(params: &ForwardParams, batch: u32) -> u32 {
    let (most, lengths) = (params.seqlen_k, params.split.seqlens_k);
    // SAFETY: an element of seqlens_k.
    let given = || unsafe { ld_global_b32(to_global(lengths) + u64::from(batch) * 4) };
    if lengths == 0 { most } else { given().min(most) }
}

/// The blocks of keys that a tile works on.
#[inline(always)]
pub fn key_blocks<C: Config>(params: &ForwardParams, work: &Work) -> KeyBlocks {
    let blocks = KeyBlocks::new(params, C::ROWS, work, rows_of_block::<C>(params), C::ROW.block_n);
    match C::ROW.schedule {
        Schedule::Grid | Schedule::Persistent => blocks,
        Schedule::Split => blocks.of_split(work.split, params.split.split_blocks),
    }
}

/// What a warp holds after the main loop.
type Accumulated<const M: usize, const D: usize> = (OnlineSoftmax<M>, OutputFragment<M, D>);

/// The main loop over all blocks of keys that the CTA's tile works on.
///
/// # Safety
/// As for [`forward`]; nobody uses the CTA's shared memory.
#[inline(always)]
unsafe fn accumulate<C: Config, const M: usize, const N: usize, const D: usize, const K: usize>(
    params: &ForwardParams,
    thread: u32,
    scrub: bool,
) -> Accumulated<M, D> {
    // SAFETY: the caller's.
    let work = unsafe { work_in_hand::<C>(params) };
    let blocks = key_blocks::<C>(params, &work);
    let (softmax, acc_o) = (OnlineSoftmax::EMPTY, [[[0.0; 4]; D]; M]);
    if blocks.is_empty() {
        return (softmax, acc_o);
    }
    let (row, position) = (C::ROW, Position::new::<C>(thread));
    let q_tile = dynamic_smem();
    let kv_stages = q_tile + geometry::tile_bytes(&row, row.block_m);
    let last = (blocks.end - 1) * row.block_n;
    let kv_copy = |base, strides| {
        TileCopy::new::<C>(to_global(base), strides, (work.batch, work.head_kv, last), thread)
    };
    let mut pipeline = Pipeline {
        k: kv_copy(params.k, &params.k_strides),
        v: kv_copy(params.v, &params.v_strides),
        write: kv_stages,
        read: kv_stages,
        first: kv_stages,
    };
    // SAFETY: the caller's; blocks is the same for all threads, so all take part in each call.
    unsafe {
        copy_queries::<C>(params, &work, q_tile, thread);
        if row.stages == 1 {
            pipeline.copy_k::<C, true>(work.seqlen_k - last);
        } else {
            pipeline.copy_stage::<C, true>(work.seqlen_k - last);
        }
        cp_async_commit_group();
        for stage in 1..row.stages.max(2) - 1 {
            if blocks.end > blocks.first + stage {
                pipeline.copy_stage::<C, false>(0);
            }
            cp_async_commit_group();
        }
        wait_for_oldest_stage::<C>();
        // Q has landed for all.
        sync_threads();
        let q_view = LaneView::a_operand::<C>(position.warp_row, position.lane);
        let limits = RowLimits::new(params, C::ROWS, &work, position.warp_row, position.lane);
        let mut main_loop = MainLoop {
            params,
            thread,
            pipeline,
            queries: Queries::<M, K>::new::<C>(q_tile, q_view),
            softmax,
            acc_o,
            first_key: blocks.first * row.block_n,
            keys: work.seqlen_k - blocks.first * row.block_n,
            scrub,
        };
        let mut block = blocks.end - blocks.first;
        while block > blocks.full.saturating_sub(blocks.first) {
            block -= 1;
            main_loop.step::<C, N, true>(block, &limits);
        }
        while block > 0 {
            block -= 1;
            main_loop.step::<C, N, false>(block, &limits);
        }
        (main_loop.softmax, main_loop.acc_o)
    }
}

/// Computes one tile, and for [`Schedule::Split`] one range of its keys.
///
/// # Safety
/// As for [`forward`]; nobody uses the CTA's shared memory.
#[inline(always)]
unsafe fn tile<C: Config, const M: usize, const N: usize, const D: usize, const K: usize>(
    params: &ForwardParams,
) {
    let mut scrub = false;
    // SAFETY: the caller's; scrub is the same for all threads.
    unsafe {
        let (mut softmax, mut acc_o) = loop {
            let (softmax, acc_o) = accumulate::<C, M, N, D, K>(params, thread_idx_x_again(), scrub);
            // Not finite: V may have put NaN into rows that do not see it. Once more, with care.
            if params.causal == 0 || scrub || !sync_threads_or(nonfinite::in_fragment(&acc_o)) {
                break (softmax, acc_o);
            }
            scrub = true;
        };
        let work = work_in_hand::<C>(params);
        let position = Position::new::<C>(thread_idx_x_again());
        softmax.reduce_sum();
        let scale_log2 = params.scale_log2;
        merge_warps::<C, M, D>(&mut softmax, &mut acc_o, dynamic_smem(), position, scale_log2, sync_threads);
        if position.warp_n == 0 {
            if matches!(C::ROW.schedule, Schedule::Split) && params.split.splits.value > 1 {
                store_partial::<C, M, D>(params, &work, &softmax, acc_o, position);
            } else {
                store_lse::<C, M>(params, &work, &softmax, position);
                store_output::<C, M, D>(params, &work, &softmax, acc_o, dynamic_smem(), position);
            }
        }
        if scrub {
            // O is written.
            sync_threads();
            // It is set under a causal mask only: knowing it, the compiler shares nothing with the other case.
            core::hint::assert_unchecked(params.causal != 0);
            // Computed anew, so that the main loop need not keep registers for what is hardly ever used.
            let work = work_in_hand::<C>(params);
            let rows = (work.first_row, C::ROW.block_m);
            let threads = (thread_idx_x_again(), geometry::threads(&C::ROW));
            nonfinite::restore::<C>(params, &work, &key_blocks::<C>(params, &work), rows, threads);
        }
        if matches!(C::ROW.schedule, Schedule::Split) && params.split.counters != 0 {
            let threads = (thread_idx_x_again(), geometry::threads(&C::ROW));
            merge_in_last_cta::<C>(params, &work, threads, sync_threads, sync_threads_or);
        }
    }
}

/// The kernel: a CTA computes one tile after another, or the only one that falls to it.
///
/// `M` m16 tiles of rows, `N` n8 tiles of keys, `D` n8 tiles and `K` k16 steps of head_dim are what a warp holds;
/// `entry.rs` derives them from the row.
///
/// # Safety
/// Launched with the threads and shared memory that [`geometry`] gives for the row, as many CTAs as its schedule says, and
/// parameters whose pointers, sizes and strides describe device memory as [`ForwardParams`] says.
#[inline(always)]
pub unsafe fn forward<C: Config, const M: usize, const N: usize, const D: usize, const K: usize>(
    params: &ForwardParams,
) {
    if !matches!(C::ROW.schedule, Schedule::Persistent) {
        // SAFETY: the caller's.
        return unsafe { tile::<C, M, N, D, K>(params) };
    }
    let tiles = params.persistent.tiles;
    let mut index = block_idx_x_again();
    while index < tiles {
        // SAFETY: the caller's; index is the same for all threads, so all take part in the barriers.
        unsafe {
            if thread_idx_x_again() == 0 {
                st_shared(current_slot::<C>(), index);
                // The first tile of each CTA is its own index, so tickets start at the number of CTAs: every CTA draws one
                // ticket for each tile it works on, which makes as many as there are tiles, and the counter is 0 again.
                let ticket = atomic_inc(to_global(params.persistent.counter), tiles - 1);
                st_shared(next_slot::<C>(), ticket + grid_dim_x());
            }
            // The slots are written.
            sync_threads();
            tile::<C, M, N, D, K>(params);
            // All are done with the tile's shared memory, and have yet to read the slot.
            sync_threads();
            index = ld_shared(next_slot::<C>());
            // All have read it.
            sync_threads();
        }
    }
}
