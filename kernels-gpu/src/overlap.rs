//! The main loop that computes the scores of the next half block under the softmax and P·V of this one.
//!
//! A warp issues in order, and Q·Kᵀ → softmax → P·V is a chain: where an SM holds few warps, the tensor cores idle during
//! the softmax and the rest during the products. Here a warp has the scores of half a block in hand, and between two row
//! maxima stand, without a branch: Q·Kᵀ of the next half, exp2 of this half, P·V of this half. They share registers with
//! what a whole block of scores would take.
//!
//! K runs half a block ahead of V, so each has a ring of two tiles of its own and a barrier of its own in each step, and
//! every copy has the time of a whole step to land.

use crate::copy::{TileCopy, copy_queries};
use crate::epilogue::Position;
use crate::forward::{Accumulated, Config, copy_tile};
use crate::gemm::{Queries, p_v, q_kt};
use crate::geometry;
use crate::mask::RowLimits;
use crate::params::{ForwardParams, Strides};
use crate::ptx::cp_async::{cp_async_commit_group, cp_async_wait_group};
use crate::ptx::memory::{dynamic_smem, to_global};
use crate::scheduler::{KeyBlocks, Work};
use crate::softmax::OnlineSoftmax;
use crate::tile::{LaneView, OutputFragment, ScoreFragment};
use cuda_std::thread::sync_threads;

/// Two tiles of K or of V in shared memory: one is read, the other one is written.
struct Ring {
    copy: TileCopy,
    read: u32,
    /// The sum of both addresses.
    both: u32,
}

impl Ring {
    /// The ring at `first`, copying from the block `last` on.
    #[inline(always)]
    fn new<C: Config>(
        (base, strides): (u64, &Strides),
        work: &Work,
        last: u32,
        first: u32,
        thread: u32,
    ) -> Self {
        let rows = (work.batch, work.head_kv, last * C::ROW.block_n);
        let copy = TileCopy::new::<C>(to_global(base), strides, rows, thread);
        Self { copy, read: first, both: 2 * first + geometry::tile_bytes(&C::ROW, C::ROW.block_n) }
    }

    /// The tile that is not read.
    #[inline(always)]
    fn other(&self) -> u32 {
        self.both - self.read
    }
}

/// A warp's state through the main loop. `N` n8 tiles are half a block.
struct MainLoop<'a, const M: usize, const N: usize, const D: usize, const K: usize> {
    params: &'a ForwardParams,
    thread: u32,
    k: Ring,
    v: Ring,
    queries: Queries<M, K>,
    softmax: OnlineSoftmax<M>,
    acc_o: OutputFragment<M, D>,
    /// Scores of the half in hand, and their row maxima.
    s: ScoreFragment<M, N>,
    new_max: [[f32; 2]; M],
    limits: RowLimits<M>,
    blocks: KeyBlocks,
    /// Whether non-finite elements of V are replaced by 0 in blocks that are seen only in part.
    scrub: bool,
}

impl<const M: usize, const N: usize, const D: usize, const K: usize> MainLoop<'_, M, N, D, K> {
    /// Takes in the half `HALF` of the block that V's ring has at hand, whose scores are in hand, and computes those of the
    /// other half, of block `next`.
    ///
    /// # Safety
    /// All 32 lanes take part, and both tiles that are read have been written.
    #[inline(always)]
    unsafe fn half<C: Config, const MASKED: bool, const HALF: usize>(&mut self, next: u32) {
        let scale_log2 = self.params.scale_log2;
        let other_half = 1 - HALF;
        let position = Position::new::<C>(self.thread);
        let warp_key = position.warp_n * geometry::keys_per_warp(&C::ROW);
        let v_view = LaneView::a_operand::<C>(warp_key, position.lane);
        self.softmax.grow(self.new_max, &mut self.acc_o, scale_log2);
        // SAFETY: the caller's.
        unsafe {
            let mut next_s = self.scores::<C>(other_half);
            let weights = self.softmax.weights(scale_log2);
            let mut sums = [[0.0; 2]; M];
            let p = |k: usize| {
                core::array::from_fn(|m| {
                    let mut pair = [self.s[m][2 * k], self.s[m][2 * k + 1]];
                    pair.iter_mut().for_each(|tile| weights.apply(m, tile, &mut sums[m]));
                    pair
                })
            };
            p_v::<C, M, N, D>(&mut self.acc_o, p, self.v.read, v_view, HALF * N / 2);
            self.softmax.add(sums);
            if MASKED {
                self.mask::<C>(&mut next_s, next, other_half);
            }
            self.new_max = self.softmax.max_with(&next_s);
            self.s = next_s;
        }
    }

    /// The scores of a half of the block that K's ring has at hand.
    ///
    /// # Safety
    /// All 32 lanes take part, and the tile has been written.
    #[inline(always)]
    unsafe fn scores<C: Config>(&self, half: usize) -> ScoreFragment<M, N> {
        let position = Position::new::<C>(self.thread);
        let warp_key = position.warp_n * geometry::keys_per_warp(&C::ROW);
        let q_view = LaneView::a_operand::<C>(position.warp_row, position.lane);
        let k_view = LaneView::b_operand::<C>(warp_key, position.lane);
        // SAFETY: the caller's.
        unsafe { q_kt::<C, M, N, K>(&self.queries, q_view, self.k.read, k_view, half * N / 2) }
    }

    #[inline(always)]
    fn mask<C: Config>(&self, s: &mut ScoreFragment<M, N>, block: u32, half: usize) {
        let position = Position::new::<C>(self.thread);
        let warp_key = position.warp_n * geometry::keys_per_warp(&C::ROW);
        let first_key = block.wrapping_mul(C::ROW.block_n) + warp_key + (half * N * 8) as u32;
        self.limits.apply(s, first_key, position.lane);
    }

    /// Takes in block `block`, its upper half first, and leaves with the scores of the upper half of the block before it in
    /// hand. `MASKED` blocks, or those before them, are seen only in part, or are ragged.
    ///
    /// # Safety
    /// All threads of the CTA take part, with the blocks in descending order.
    #[inline(always)]
    unsafe fn step<C: Config, const MASKED: bool>(&mut self, block: u32) {
        let block_n = C::ROW.block_n;
        let (before_last, last) = (block > self.blocks.first + 1, block == self.blocks.first);
        // SAFETY: the barriers say which hazard they close.
        unsafe {
            self.half::<C, MASKED, 1>(block);
            // K of the next block has landed for all, and all are done with K of this one.
            cp_async_wait_group::<1>();
            sync_threads();
            if before_last {
                copy_tile::<C, false>(&mut self.k.copy, self.k.read, block_n);
            }
            cp_async_commit_group();
            // There is no next block behind the last: scores that nobody reads are computed once more from its K.
            if !last {
                self.k.read = self.k.other();
            }
            self.half::<C, MASKED, 0>(block.wrapping_sub(1));
            // V of the next block has landed for all, and all are done with V of this one.
            cp_async_wait_group::<1>();
            if MASKED && self.scrub && !last && block > self.blocks.full {
                self.v.copy.scrub::<C>(self.v.other(), block_n);
            }
            sync_threads();
            if before_last {
                copy_tile::<C, false>(&mut self.v.copy, self.v.read, block_n);
            }
            cp_async_commit_group();
            self.v.read = self.v.other();
        }
    }
}

/// The main loop over all blocks of keys that the CTA's tile works on.
///
/// # Safety
/// All threads of the CTA take part, `blocks` is not empty, and nobody uses the CTA's shared memory; the rest as for
/// [`crate::forward::forward`].
#[inline(always)]
pub unsafe fn accumulate<C: Config, const M: usize, const N: usize, const D: usize, const K: usize>(
    params: &ForwardParams,
    work: &Work,
    blocks: &KeyBlocks,
    thread: u32,
    scrub: bool,
) -> Accumulated<M, D> {
    let row = C::ROW;
    let position = Position::new::<C>(thread);
    let q_tile = dynamic_smem();
    let k_tiles = q_tile + geometry::tile_bytes(&row, row.block_m);
    let v_tiles = k_tiles + 2 * geometry::tile_bytes(&row, row.block_n);
    let last = blocks.end - 1;
    let valid_rows = work.seqlen_k - last * row.block_n;
    let mut k = Ring::new::<C>((params.k, &params.k_strides), work, last, k_tiles, thread);
    let mut v = Ring::new::<C>((params.v, &params.v_strides), work, last, v_tiles, thread);
    // SAFETY: the caller's; each thread waits for its copies before the barrier that precedes their use.
    unsafe {
        copy_queries::<C>(params, work, q_tile, thread);
        copy_tile::<C, true>(&mut k.copy, k.read, valid_rows);
        cp_async_commit_group();
        copy_tile::<C, true>(&mut v.copy, v.read, valid_rows);
        cp_async_commit_group();
        for ring in [&mut k, &mut v] {
            if last > blocks.first {
                let other = ring.other();
                copy_tile::<C, false>(&mut ring.copy, other, row.block_n);
            }
            cp_async_commit_group();
        }
        cp_async_wait_group::<3>();
        // Q and the first K have landed for all.
        sync_threads();
        let q_view = LaneView::a_operand::<C>(position.warp_row, position.lane);
        let mut main_loop = MainLoop::<M, N, D, K> {
            params,
            thread,
            k,
            v,
            queries: Queries::new::<C>(q_tile, q_view),
            softmax: OnlineSoftmax::EMPTY,
            acc_o: [[[0.0; 4]; D]; M],
            s: [[[0.0; 4]; N]; M],
            new_max: [[0.0; 2]; M],
            limits: RowLimits::new(params, C::ROWS, work, position.warp_row, position.lane),
            blocks: *blocks,
            scrub,
        };
        let mut s = main_loop.scores::<C>(1);
        main_loop.mask::<C>(&mut s, last, 1);
        main_loop.new_max = main_loop.softmax.max_with(&s);
        main_loop.s = s;
        cp_async_wait_group::<2>();
        if scrub && last >= blocks.full {
            main_loop.v.copy.scrub::<C>(main_loop.v.read, row.block_n);
        }
        // The first V has landed for all.
        sync_threads();
        let mut block = blocks.end;
        while block > blocks.full.max(blocks.first) {
            block -= 1;
            main_loop.step::<C, true>(block);
        }
        while block > blocks.first {
            block -= 1;
            main_loop.step::<C, false>(block);
        }
        (main_loop.softmax, main_loop.acc_o)
    }
}
