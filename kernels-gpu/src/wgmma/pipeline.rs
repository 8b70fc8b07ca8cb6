//! Consumer side of the pipeline: wait for what has landed, issue wgmma in ping-pong order, release what has been read.

use super::config::{FIRST_PING_PONG_BARRIER, WARPGROUP, WgmmaConfig};
use super::gemm::{issue_output, issue_scores};
use super::k_loop::Fragments;
use super::ring::{Ring, TILES_AHEAD};
use crate::params::ForwardParams;
use crate::ptx::ldmatrix::ldmatrix_x4;
use crate::ptx::mbarrier::{mbarrier_arrive_if, mbarrier_wait};
use crate::ptx::thread_idx_x_again;
use crate::ptx::warp::{first_lane, sync_warp};
use crate::ptx::warpgroup::{named_barrier_arrive, named_barrier_sync};
use crate::ptx::wgmma::wgmma_commit_group;
use crate::shape::Shape;
use crate::tile::descriptor;
use crate::tile::fragment::ldmatrix_a_source;
use crate::tile::position::Position;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::KeyBlocks;
use crate::work::rows_differ;

/// Which consumer warpgroup a thread belongs to, counted from 0. Read again at each call, as registers are short.
#[inline(always)]
pub(super) fn consumer_again() -> u32 {
    first_lane(thread_idx_x_again() / WARPGROUP) - 1
}

/// Where a thread of a consumer stands in the tile; read again at each call.
#[inline(always)]
pub(super) fn position_again<C: WgmmaConfig>() -> Position {
    let thread = thread_idx_x_again() - WARPGROUP;
    let (warp, warps_m) = (thread / 32, C::WARPS.along_rows);
    Position {
        warp_row: warp % warps_m * 16,
        warp_n: if C::VALUE_GROUPS > 1 { 0 } else { first_lane(warp / warps_m) },
        lane: thread % 32,
    }
}

/// Lane of the warp, read again at each call.
#[inline(always)]
pub(super) fn lane_again() -> u32 {
    thread_idx_x_again() % 32
}

/// What a thread of a consumer warpgroup holds beside its fragments.
pub(super) struct Consumer<'a> {
    pub(super) params: &'a ForwardParams,
    /// Tiles that it has been told of. Which buffers they and their Q are in follows from that, as registers are short.
    pub(super) tiles_told: u32,
    pub(super) k: Ring,
    pub(super) v: Ring,
    /// What the consumer with the scores tells those with the other slices.
    pub(super) weights: Ring,
    /// A bit a buffer of V: the parity of its next scrubbing.
    pub(super) scrubbing: u32,
    /// The named barrier at which it waits for its turn to issue products. Kept, not found again, as what is worked out between the last
    /// exponential of a block and the first product of the next is time in which the tensor cores may idle.
    turn: u32,
}

impl<'a> Consumer<'a> {
    /// Before the first tile.
    #[inline(always)]
    pub(super) fn new<C: WgmmaConfig>(params: &'a ForwardParams) -> Self {
        Self {
            params,
            tiles_told: 0,
            k: C::LAYOUT.k_ring(),
            v: C::LAYOUT.v_ring(),
            weights: C::LAYOUT.weights_ring(),
            scrubbing: 0,
            turn: if C::PING_PONG { FIRST_PING_PONG_BARRIER + consumer_again() } else { 0 },
        }
    }

    /// The place of the tile after `told` others.
    #[inline(always)]
    pub(super) fn tile<C: WgmmaConfig>(told: u32) -> Ring {
        C::LAYOUT.tile_ring().at(told, TILES_AHEAD)
    }

    /// That of Q of the tile that it has been told of last.
    #[inline(always)]
    fn q<C: WgmmaConfig>(&self) -> Ring {
        C::LAYOUT.q_ring().at(self.tiles_told - 1, C::LAYOUT.q_buffers())
    }

    /// Waits until this consumer may issue its products.
    ///
    /// # Safety
    /// All threads of the warpgroup take part; the consumer before it calls [`Self::ping_pong_signal`] as often.
    #[inline(always)]
    pub(super) unsafe fn ping_pong_wait<C: WgmmaConfig>(&self) {
        if C::PING_PONG {
            // SAFETY: the consumer and the one before it come here.
            unsafe { named_barrier_sync(self.turn, 2 * WARPGROUP) }
        }
    }

    /// Lets the next consumer issue its products.
    ///
    /// # Safety
    /// As for [`Self::ping_pong_wait`], which the next consumer calls as often.
    #[inline(always)]
    pub(super) unsafe fn ping_pong_signal<C: WgmmaConfig>(&self) {
        if C::PING_PONG {
            let (turn, last) = (self.turn, FIRST_PING_PONG_BARRIER + C::CONSUMERS - 1);
            let next = if turn == last { FIRST_PING_PONG_BARRIER } else { turn + 1 };
            // SAFETY: as above.
            unsafe { named_barrier_arrive(next, 2 * WARPGROUP) }
        }
    }

    /// Issues S = Q·Kᵀ of the current block, as one group for each part of K, and to the last one what `more` issues.
    ///
    /// # Safety
    /// As for [`issue_scores`]: the current buffers of Q and of K's first part have been waited for, and all are released after the groups are
    /// done.
    #[inline(always)]
    pub(super) unsafe fn issue_scores_and<C: WgmmaConfig>(
        &self,
        s: &mut <C::Warp as WarpTile>::S<[f32; 4]>,
        q_fragment: &<C::Warp as WarpTile>::Q,
        mut more: impl FnMut(&mut <C::Warp as WarpTile>::S<[f32; 4]>),
    ) {
        let rows = descriptor::row_step::<C::Q>(4 * (consumer_again() % (C::Q::ROWS / 64)));
        let mut q_smem = C::LAYOUT.q(self.q::<C>().buffer) + rows;
        let mut k_smem = C::LAYOUT.k(self.k.buffer);
        if C::VALUE_GROUPS > 1 {
            // As if they were new to ptxas: descriptors of all steps, kept from block to block, spill.
            (q_smem, k_smem) = (first_lane(q_smem), first_lane(k_smem));
        }
        let q = (q_fragment, C::Q_IN_REGISTERS);
        let (mut k, steps) = (self.k, C::Q::STEPS / C::VALUE_GROUPS);
        for part in 0..C::VALUE_GROUPS {
            // SAFETY: the caller's; each part, which lie one after another, is waited for.
            unsafe {
                if part > 0 {
                    k.advance(C::LAYOUT.kv_buffers());
                    k.wait_full();
                }
                let k = (k_smem + part * C::LAYOUT.k_bytes(), part * steps..(part + 1) * steps);
                issue_scores::<C::Element, C::Q, C::K, C::Warp, false>(s, q, q_smem, k);
                if part + 1 == C::VALUE_GROUPS {
                    more(s);
                }
            }
            wgmma_commit_group();
        }
    }

    /// Issues O += P·V with the current V, as one group.
    ///
    /// # Safety
    /// As for [`issue_output`]: the current buffer of V has been waited for, and is released after the group is done.
    #[inline(always)]
    pub(super) unsafe fn issue_output<C: WgmmaConfig>(&self, fragments: &mut Fragments<C::Warp>) {
        let v_smem = C::LAYOUT.v(self.v.buffer);
        // SAFETY: the caller's.
        unsafe { issue_output::<C::Element, C::V, C::Warp>(&mut fragments.acc_o, &fragments.p, v_smem) }
    }

    /// Waits for the tile's Q. Where it stays in registers, reads the warp's rows and releases the buffer.
    ///
    /// # Safety
    /// All lanes take part, once a tile.
    #[inline(always)]
    pub(super) unsafe fn wait_q<C: WgmmaConfig>(&self, fragment: &mut <C::Warp as WarpTile>::Q) {
        // SAFETY: the barrier is initialised.
        unsafe { self.q::<C>().wait_full() }
        if !C::Q_IN_REGISTERS {
            return;
        }
        let Position { warp_row, lane, .. } = position_again::<C>();
        let swizzle = C::Q::COLUMN_SWIZZLE;
        let (source_row, chunk) = ldmatrix_a_source(lane);
        let offset = swizzle.offset(warp_row + source_row, chunk);
        let steps = C::Q::COLUMN_WIDTH / 16;
        let q = C::LAYOUT.q(self.q::<C>().buffer);
        // SAFETY: Q has landed.
        unsafe {
            for (step, operand) in (0..C::Q::STEPS).zip(fragment.row_mut(0)) {
                let column = step / steps * C::Q::COLUMN_BYTES;
                *operand = ldmatrix_x4(q + column + swizzle.advance(offset, 2 * (step % steps)));
            }
            // Every lane has read; one says so.
            sync_warp();
            self.q::<C>().release(C::LAYOUT.q_buffers(), lane);
        }
    }

    /// Releases Q behind the tile's last S, where it is read from shared memory until then.
    ///
    /// # Safety
    /// As for [`Ring::release`].
    #[inline(always)]
    pub(super) unsafe fn release_q<C: WgmmaConfig>(&self, is_last: bool) {
        if !C::Q_IN_REGISTERS {
            // SAFETY: the caller's.
            unsafe {
                mbarrier_arrive_if(self.q::<C>().empty(C::LAYOUT.q_buffers()), is_last && lane_again() == 0)
            }
        }
    }

    /// The current K, or a part of it, has been read.
    ///
    /// # Safety
    /// As for [`Ring::release`].
    #[inline(always)]
    pub(super) unsafe fn release_k<C: WgmmaConfig>(&mut self) {
        // SAFETY: the warp's products with it are done.
        unsafe { self.k.release(C::LAYOUT.kv_buffers(), lane_again()) }
        self.k.skip(C::KEY_GROUPS, C::LAYOUT.kv_buffers());
    }

    /// Waits for the current V, the block `block` of a tile.
    ///
    /// # Safety
    /// As for [`Ring::wait_full`], for the ring and for the barriers of the scrubbers.
    #[inline(always)]
    pub(super) unsafe fn wait_v<C: WgmmaConfig>(&mut self, block: u32, blocks: &KeyBlocks) {
        // SAFETY: the barriers are initialised.
        unsafe {
            if rows_differ::<C>(self.params) && blocks.is_partial(block) {
                let buffer = self.v.buffer;
                mbarrier_wait(C::LAYOUT.scrubbed(buffer), self.scrubbing >> buffer & 1);
                self.scrubbing ^= 1 << buffer;
            }
            // Also then: waiting for the copy is what lets wgmma see it.
            self.v.wait_full();
        }
    }

    /// The current V has been read.
    ///
    /// # Safety
    /// As for [`Ring::release`].
    #[inline(always)]
    pub(super) unsafe fn release_v<C: WgmmaConfig>(&mut self) {
        // SAFETY: the warp's products with it are done.
        unsafe { self.v.release(C::LAYOUT.kv_buffers(), lane_again()) }
        self.v.skip(C::KEY_GROUPS * C::VALUE_GROUPS, C::LAYOUT.kv_buffers());
    }
}
