//! The forward main loop on mma.sync and cp.async: O = softmax(scale · Q·Kᵀ) · V for one block of query rows.
//!
//! A CTA walks the blocks of keys from the last visible one to the first: those that some row sees only in part
//! come first, in a loop of their own, and the loop over full blocks needs neither masks nor bounds.

use crate::copy::TileCopy;
use crate::element::{Element, ScoreAccumulation};
use crate::epilogue::{Position, merge_warps, store_lse, store_output};
use crate::gemm::{Queries, p_v, q_kt};
use crate::geometry;
use crate::mask::RowLimits;
use crate::nonfinite;
use crate::params::ForwardParams;
use crate::ptx::cp_async::{cp_async_commit_group, cp_async_wait_group};
use crate::ptx::memory::{dynamic_smem, to_global};
use crate::ptx::warp::sync_threads_or;
use crate::ptx::{block_idx_x_again, thread_idx_x_again};
use crate::row::Row;
use crate::scheduler::{KeyBlocks, Work};
use crate::softmax::OnlineSoftmax;
use crate::tile::{LaneView, OutputFragment};
use cuda_std::thread::sync_threads;

/// What a row of the table says, as types and constants.
pub trait Config {
    /// Element type of Q, K, V and O.
    type Element: Element;
    /// Accumulation of Q·Kᵀ.
    type Scores: ScoreAccumulation<Self::Element>;
    /// The row itself.
    const ROW: Row;
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
    /// Whether non-finite elements of V are replaced by 0 in blocks that are seen only in part.
    scrub: bool,
}

impl<const M: usize, const D: usize, const K: usize> MainLoop<'_, M, D, K> {
    /// Takes in block `block` of the keys. `MASKED` blocks are seen only in part, or are ragged.
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
                self.pipeline.copy_v::<C, MASKED>(self.params.seqlen_k - block * C::ROW.block_n);
                cp_async_commit_group();
            } else {
                // The block's stage has landed for all, and all are done with the one that is written next.
                if C::ROW.stages == 2 {
                    cp_async_wait_group::<0>()
                } else {
                    cp_async_wait_group::<1>()
                }
                self.scrub_v::<C, MASKED>(v_tile);
                sync_threads();
                if block >= C::ROW.stages - 1 {
                    self.pipeline.copy_stage::<C, false>(0);
                }
                cp_async_commit_group();
                self.pipeline.read = self.pipeline.next::<C>(self.pipeline.read);
            }
            let mut s = q_kt::<C, M, N, K>(&self.queries, q_view, k_tile, k_view);
            if C::ROW.stages == 1 {
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
                limits.apply(&mut s, block * C::ROW.block_n + warp_key, position.lane);
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

/// What a warp holds after the main loop.
type Accumulated<const M: usize, const D: usize> = (OnlineSoftmax<M>, OutputFragment<M, D>);

/// The main loop over all blocks of keys that the CTA's query rows see.
///
/// # Safety
/// As for [`forward`]; nobody uses the CTA's shared memory.
#[inline(always)]
unsafe fn accumulate<C: Config, const M: usize, const N: usize, const D: usize, const K: usize>(
    params: &ForwardParams,
    cta: u32,
    thread: u32,
    scrub: bool,
) -> Accumulated<M, D> {
    let work = Work::new(params, cta, C::ROW.block_m);
    let blocks = KeyBlocks::new(params, work.first_row, C::ROW.block_m, C::ROW.block_n);
    let (softmax, acc_o) = (OnlineSoftmax::EMPTY, [[[0.0; 4]; D]; M]);
    if blocks.end == 0 {
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
        let rows = (work.batch, work.head_q, work.first_row);
        TileCopy::new::<C>(to_global(params.q), &params.q_strides, rows, thread).copy_bounded::<C>(
            q_tile,
            row.block_m,
            params.seqlen_q - work.first_row,
        );
        if row.stages == 1 {
            pipeline.copy_k::<C, true>(params.seqlen_k - last);
        } else {
            pipeline.copy_stage::<C, true>(params.seqlen_k - last);
        }
        cp_async_commit_group();
        if row.stages == 3 {
            if blocks.end > 1 {
                pipeline.copy_stage::<C, false>(0);
            }
            cp_async_commit_group();
            cp_async_wait_group::<1>();
        } else {
            cp_async_wait_group::<0>();
        }
        // Q has landed for all.
        sync_threads();
        let q_view = LaneView::a_operand::<C>(position.warp_row, position.lane);
        let limits = RowLimits::new(params, work.first_row + position.warp_row, position.lane);
        let mut main_loop = MainLoop {
            params,
            thread,
            pipeline,
            queries: Queries::<M, K>::new::<C>(q_tile, q_view),
            softmax,
            acc_o,
            scrub,
        };
        let mut block = blocks.end;
        while block > blocks.full {
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

/// The kernel: one CTA computes one block of query rows of one head.
///
/// `M` m16 tiles of rows, `N` n8 tiles of keys, `D` n8 tiles and `K` k16 steps of head_dim are what a warp holds;
/// `entry.rs` derives them from the row.
///
/// # Safety
/// Launched with the threads and shared memory that [`geometry`] gives for the row, one CTA for each block of query
/// rows, and parameters whose pointers, sizes and strides describe device memory as [`ForwardParams`] says.
#[inline(always)]
pub unsafe fn forward<C: Config, const M: usize, const N: usize, const D: usize, const K: usize>(
    params: &ForwardParams,
) {
    let mut scrub = false;
    // SAFETY: the caller's; scrub is the same for all threads.
    unsafe {
        // Indices are read again, so that nothing derived from them is kept in registers for later.
        let (mut softmax, mut acc_o) = loop {
            let (cta, thread) = (block_idx_x_again(), thread_idx_x_again());
            let (softmax, acc_o) = accumulate::<C, M, N, D, K>(params, cta, thread, scrub);
            // Not finite: V may have put NaN into rows that do not see it. Once more, with care.
            if params.causal == 0 || scrub || !sync_threads_or(nonfinite::in_fragment(&acc_o)) {
                break (softmax, acc_o);
            }
            scrub = true;
        };
        let work = Work::new(params, block_idx_x_again(), C::ROW.block_m);
        let position = Position::new::<C>(thread_idx_x_again());
        softmax.reduce_sum();
        merge_warps::<C, M, D>(&mut softmax, &mut acc_o, dynamic_smem(), position, params.scale_log2);
        if position.warp_n == 0 {
            store_lse(params, &work, &softmax, position);
            store_output::<C, M, D>(params, &work, &softmax, acc_o, dynamic_smem(), position);
        }
        if scrub {
            // O is written.
            sync_threads();
            nonfinite::restore::<C>(params);
        }
    }
}
