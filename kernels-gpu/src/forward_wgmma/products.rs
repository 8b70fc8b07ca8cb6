//! What a consumer does with buffers and tensor cores: it waits for what has landed, issues products in its turn, and releases what has
//! been read.

use super::consumer::{Consumer, consumer_again, key_groups, lane_again, position_again, takes_turns};
use super::ring::Layout;
use super::tile::rows_differ;
use super::walk::{Fragments, QUERY_STEPS};
use super::{FIRST_TURN, WARPGROUP};
use crate::descriptor::{self, Descriptor};
use crate::element::Element;
use crate::epilogue::Position;
use crate::forward::Config;
use crate::fragment::ldmatrix_a_source;
use crate::geometry;
use crate::ptx::ldmatrix::ldmatrix_x4;
use crate::ptx::mbarrier::mbarrier_wait;
use crate::ptx::warp::sync_warp;
use crate::ptx::warpgroup::{named_barrier_arrive, named_barrier_sync};
use crate::ptx::wgmma::wgmma_commit_group;
use crate::scheduler::KeyBlocks;
use crate::swizzle::Swizzle;
use crate::tile::{QueryFragment, ScoreFragment};

impl Consumer<'_> {
    /// Waits for this consumer's turn to issue products.
    #[inline(always)]
    pub(super) unsafe fn take_turn<C: Config>(&self) {
        if takes_turns::<C>() {
            // SAFETY: the consumer and the one before it come here.
            unsafe { named_barrier_sync(FIRST_TURN + consumer_again(), 2 * WARPGROUP) }
        }
    }

    /// Lets the next consumer have its turn.
    #[inline(always)]
    pub(super) unsafe fn pass_turn<C: Config>(&self) {
        if takes_turns::<C>() {
            let consumer = consumer_again();
            let next = if consumer + 1 == geometry::consumer_warpgroups(&C::ROW) { 0 } else { consumer + 1 };
            // SAFETY: as above.
            unsafe { named_barrier_arrive(FIRST_TURN + next, 2 * WARPGROUP) }
        }
    }

    /// Issues S = Q·Kᵀ of the block in hand, as one group.
    #[inline(always)]
    pub(super) unsafe fn issue_scores<C: Config, const N: usize>(
        &self,
        s: &mut ScoreFragment<1, N>,
        q_fragment: &QueryFragment<1, QUERY_STEPS>,
    ) {
        let row = &C::ROW;
        let rows = descriptor::row_step(row, 4 * (consumer_again() % (row.block_m / 64)));
        let q = Descriptor::along_head_dim(row).at(Layout::q(row, self.q.buffer) + rows);
        let k = Descriptor::along_head_dim(row).at(Layout::k(row, self.k.buffer));
        // SAFETY: Q and K have landed, and stay until the group is done.
        unsafe {
            for step in 0..row.head_dim / 16 {
                let q = q.advance(descriptor::head_dim_step(row, row.block_m, step)).bits();
                let k = k.advance(descriptor::head_dim_step(row, row.block_n, step)).bits();
                let operand = q_fragment[0][step as usize];
                match (geometry::q_in_registers(row), step) {
                    (true, 0) => C::Element::wgmma_from_registers::<false, true, N>(&mut s[0], operand, k),
                    (true, _) => C::Element::wgmma_from_registers::<true, true, N>(&mut s[0], operand, k),
                    (false, 0) => C::Element::wgmma::<false, N>(&mut s[0], q, k),
                    (false, _) => C::Element::wgmma::<true, N>(&mut s[0], q, k),
                }
            }
        }
        wgmma_commit_group();
    }

    /// Waits for the tile's Q. Where it stays in registers, reads the warp's rows and releases the buffer.
    #[inline(always)]
    pub(super) unsafe fn wait_q<C: Config>(&self, fragment: &mut QueryFragment<1, QUERY_STEPS>) {
        let row = &C::ROW;
        // SAFETY: the barrier is initialised.
        unsafe { self.q.wait_full() }
        if !geometry::q_in_registers(row) {
            return;
        }
        let Position { warp_row, lane, .. } = position_again::<C>();
        let swizzle = Swizzle::new(geometry::column_width(row));
        let (source_row, chunk) = ldmatrix_a_source(lane);
        let offset = swizzle.offset(warp_row + source_row, chunk);
        let steps = geometry::column_width(row) / 16;
        let q = Layout::q(row, self.q.buffer);
        // SAFETY: Q has landed.
        unsafe {
            for (step, operand) in (0..row.head_dim / 16).zip(&mut fragment[0]) {
                let column = step / steps * descriptor::column_bytes(row, row.block_m);
                *operand = ldmatrix_x4(q + column + swizzle.advance(offset, 2 * (step % steps)));
            }
            // Every lane has read; one says so.
            sync_warp();
            self.q.release(geometry::q_buffers(row), lane);
        }
    }

    /// Issues O += P·V with the V in hand, as one group.
    #[inline(always)]
    pub(super) unsafe fn issue_output<C: Config, const N: usize, const D: usize, const P: usize>(
        &self,
        fragments: &mut Fragments<N, D, P>,
    ) {
        let row = &C::ROW;
        let v = Descriptor::along_rows(row, row.block_n).at(Layout::v(row, self.v.buffer));
        for (step, p) in (0..).zip(&fragments.p) {
            let v = v.advance(descriptor::row_step(row, step)).bits();
            // SAFETY: V has landed, and stays until the group is done.
            unsafe { C::Element::wgmma_from_registers::<true, false, D>(&mut fragments.acc_o[0], *p, v) }
        }
        wgmma_commit_group();
    }

    /// K in hand has been read.
    #[inline(always)]
    pub(super) unsafe fn release_k<C: Config>(&mut self) {
        // SAFETY: the warp's products with it are done.
        unsafe { self.k.release(C::ROW.stages, lane_again()) }
        self.k.skip(key_groups::<C>(), C::ROW.stages);
    }

    /// Waits for the V in hand, the block `block` of a tile.
    #[inline(always)]
    pub(super) unsafe fn wait_v<C: Config>(&mut self, block: u32, blocks: &KeyBlocks) {
        // SAFETY: the barriers are initialised.
        unsafe {
            if rows_differ(self.params) && block >= blocks.full {
                let buffer = self.v.buffer;
                mbarrier_wait(Layout::scrubbed(&C::ROW, buffer), self.scrubbing >> buffer & 1);
                self.scrubbing ^= 1 << buffer;
            }
            // Also then: waiting for the copy is what lets wgmma see it.
            self.v.wait_full();
        }
    }

    /// V in hand has been read.
    #[inline(always)]
    pub(super) unsafe fn release_v<C: Config>(&mut self) {
        // SAFETY: the warp's products with it are done.
        unsafe { self.v.release(C::ROW.stages, lane_again()) }
        self.v.skip(key_groups::<C>(), C::ROW.stages);
    }
}
