//! The consumers: warpgroups of 64 query rows each, which compute.

use super::ring::{Layout, Ring};
use super::tile::Tile;
use super::walk::{ALWAYS, AS_NEEDED, Fragments, NEVER, Walk};
use super::{CONSUMERS, NO_MORE, TILES_AHEAD, WARPGROUP};
use crate::combine::merge_in_last_cta;
use crate::epilogue::{Position, merge_warps, store_lse, store_output_from_registers, store_partial};
use crate::forward::{Config, work_of};
use crate::geometry;
use crate::mask::RowLimits;
use crate::nonfinite;
use crate::params::ForwardParams;
use crate::ptx::mbarrier::mbarrier_arrive_if;
use crate::ptx::memory::ld_shared;
use crate::ptx::warp::{first_lane, sync_warp};
use crate::ptx::warpgroup::{named_barrier_or, named_barrier_sync};
use crate::ptx::wgmma::{wgmma_fence, wgmma_wait_group};
use crate::ptx::{block_idx_x_again, thread_idx_x_again};
use crate::row::Schedule;
use crate::scheduler::KeyBlocks;
use crate::softmax::{OnlineSoftmax, scale_rows};
use crate::tile::{OutputFragment, ScoreFragment};

/// Which consumer warpgroup a thread belongs to, counted from 0. Read again at each call, as registers are short.
#[inline(always)]
pub(super) fn consumer_again() -> u32 {
    first_lane(thread_idx_x_again() / WARPGROUP) - 1
}

/// Where a thread of a consumer stands in the tile; read again at each call.
#[inline(always)]
pub(super) fn position_again<C: Config>() -> Position {
    let thread = thread_idx_x_again() - WARPGROUP;
    let (warp, warps_m) = (thread / 32, geometry::warps_m(&C::ROW));
    Position { warp_row: warp % warps_m * 16, warp_n: first_lane(warp / warps_m), lane: thread % 32 }
}

/// Threads of all consumers.
const fn consumer_threads<C: Config>() -> u32 {
    geometry::consumer_warpgroups(&C::ROW) * WARPGROUP
}

/// Whether consumers wait for each other to issue their products: all have as many of them.
pub(super) const fn takes_turns<C: Config>() -> bool {
    geometry::consumer_warpgroups(&C::ROW) > 1 && key_groups::<C>() == 1
}

/// How many consumers take the blocks of keys in turns.
pub(super) const fn key_groups<C: Config>() -> u32 {
    geometry::warps_n(&C::ROW)
}

/// Lane of the warp, read again at each call.
#[inline(always)]
pub(super) fn lane_again() -> u32 {
    thread_idx_x_again() % 32
}

/// What a thread of a consumer warpgroup holds beside its fragments.
pub(super) struct Consumer<'a> {
    pub(super) params: &'a ForwardParams,
    /// The tile that is taken next.
    pub(super) tiles: Ring,
    pub(super) q: Ring,
    pub(super) k: Ring,
    pub(super) v: Ring,
    /// A bit a buffer of V: the parity of its next scrubbing.
    pub(super) scrubbing: u32,
}

impl Consumer<'_> {
    /// What follows the products that give S: K is released, Q after the walk's last ones if they read it, and S is masked.
    #[inline(always)]
    unsafe fn finish_scores<C: Config, const N: usize, const MASKING: u8>(
        &mut self,
        s: &mut ScoreFragment<1, N>,
        walk: &mut Walk,
    ) {
        // SAFETY: the warp's products are done.
        unsafe {
            self.release_k::<C>();
            if !geometry::q_in_registers(&C::ROW) {
                let last = walk.block == walk.blocks.first;
                mbarrier_arrive_if(self.q.empty(geometry::q_buffers(&C::ROW)), last && lane_again() == 0);
            }
        }
        if MASKING == ALWAYS || MASKING == AS_NEEDED && walk.block >= walk.blocks.full {
            walk.limits.apply(s, walk.block * C::ROW.block_n, lane_again());
        }
    }

    /// The first block of a walk, with nothing else to do meanwhile.
    #[inline(always)]
    unsafe fn first_step<C: Config, const N: usize, const D: usize, const P: usize>(
        &mut self,
        fragments: &mut Fragments<N, D, P>,
        walk: &mut Walk,
    ) {
        let scale_log2 = self.params.scale_log2;
        // SAFETY: all threads of the warpgroup pass here; what is read has landed and is released when it has been read.
        unsafe {
            self.wait_q::<C>(&mut fragments.q);
            self.k.wait_full();
            self.take_turn::<C>();
            wgmma_fence();
            self.issue_scores::<C, N>(&mut fragments.s, &fragments.q);
            self.pass_turn::<C>();
            wgmma_wait_group::<0, N>(&mut fragments.s[0]);
            self.finish_scores::<C, N, AS_NEEDED>(&mut fragments.s, walk);
            // O is 0 still.
            walk.softmax.grow_max(&fragments.s, scale_log2, |_| {});
            walk.softmax.exponentiate(&mut fragments.s, scale_log2);
            fragments.pack::<C::Element>();
        }
    }

    /// S of the walk's block in hand and its softmax; meanwhile O += P·V of `before`, the block before, which may be another walk's.
    /// Returns the factor of O, which the caller is to apply if that is O's own walk.
    #[inline(always)]
    unsafe fn step<C: Config, const N: usize, const D: usize, const P: usize, const MASKING: u8>(
        &mut self,
        fragments: &mut Fragments<N, D, P>,
        walk: &mut Walk,
        (before, blocks_before): (u32, KeyBlocks),
    ) -> Option<[f32; 2]> {
        let scale_log2 = self.params.scale_log2;
        // SAFETY: as in first_step.
        unsafe {
            self.k.wait_full();
            self.take_turn::<C>();
            wgmma_fence();
            self.issue_scores::<C, N>(&mut fragments.s, &fragments.q);
            self.wait_v::<C>(before, &blocks_before);
            self.issue_output::<C, N, D, P>(fragments);
            self.pass_turn::<C>();
            wgmma_wait_group::<1, N>(&mut fragments.s[0]);
            self.finish_scores::<C, N, MASKING>(&mut fragments.s, walk);
            let mut factor = None;
            walk.softmax.grow_max(&fragments.s, scale_log2, |[correction]| factor = Some(correction));
            walk.softmax.exponentiate(&mut fragments.s, scale_log2);
            wgmma_wait_group::<0, D>(&mut fragments.acc_o[0]);
            self.release_v::<C>();
            factor
        }
    }

    /// A step within a walk.
    #[inline(always)]
    unsafe fn next_step<C: Config, const N: usize, const D: usize, const P: usize, const MASKING: u8>(
        &mut self,
        fragments: &mut Fragments<N, D, P>,
        walk: &mut Walk,
    ) {
        let before = (walk.block, walk.blocks);
        walk.block -= key_groups::<C>();
        // SAFETY: the caller's.
        let factor = unsafe { self.step::<C, N, D, P, MASKING>(fragments, walk, before) };
        if let Some(factor) = factor {
            scale_rows(&mut fragments.acc_o[0], factor);
        }
        fragments.pack::<C::Element>();
    }

    /// O += P·V of the last block, with nothing else to do meanwhile.
    #[inline(always)]
    unsafe fn last_output<C: Config, const N: usize, const D: usize, const P: usize>(
        &mut self,
        fragments: &mut Fragments<N, D, P>,
        walk: &Walk,
    ) {
        // SAFETY: as in first_step.
        unsafe {
            self.wait_v::<C>(walk.block, &walk.blocks);
            wgmma_fence();
            self.issue_output::<C, N, D, P>(fragments);
            wgmma_wait_group::<0, D>(&mut fragments.acc_o[0]);
            self.release_v::<C>();
        }
    }

    /// Writes the consumer's rows of a tile, and is done with it; row_sum is reduced.
    #[inline(always)]
    unsafe fn store<C: Config, const D: usize>(
        &self,
        tile: Ring,
        softmax: OnlineSoftmax<1>,
        acc_o: OutputFragment<1, D>,
    ) {
        let position = position_again::<C>();
        // SAFETY: the caller's; the tile's slot is written, and read before it is released.
        unsafe {
            let Tile { work, blocks } = Tile::read(self.params, Layout::tile_slot(&C::ROW, tile.buffer));
            let found = ld_shared(Layout::found(&C::ROW, tile.buffer)) != 0;
            // Every lane has read it; one says so.
            sync_warp();
            tile.release(TILES_AHEAD, position.lane);
            if matches!(C::ROW.schedule, Schedule::Split) && self.params.split.splits.value > 1 {
                store_partial::<C, 1, D>(self.params, &work, &softmax, acc_o, position);
            } else {
                store_lse::<C, 1>(self.params, &work, &softmax, position);
                store_output_from_registers::<C, D>(self.params, &work, &softmax, acc_o, position);
            }
            if found {
                // The warp's rows are written.
                sync_warp();
                let rows = (work.first_row + position.warp_row, 16);
                nonfinite::restore::<C>(self.params, &work, &blocks, rows, (position.lane, 32));
            }
        }
    }

    /// The next tile that sees any keys, if there is one. Those that see none are written on the way.
    #[inline(always)]
    unsafe fn next_walk<C: Config, const D: usize>(&mut self) -> Option<Walk> {
        loop {
            let tile = self.tiles;
            // SAFETY: the slot is written before its barrier says so.
            let Tile { work, blocks } = unsafe {
                tile.wait_full();
                Tile::read(self.params, Layout::tile_slot(&C::ROW, tile.buffer))
            };
            if work.batch == NO_MORE {
                return None;
            }
            self.tiles.advance(TILES_AHEAD);
            if !blocks.is_empty() {
                let Position { warp_row, warp_n, lane } = position_again::<C>();
                let limits = RowLimits::each_row(self.params, C::ROWS, &work, warp_row, lane);
                // Wraps below the first block where a tile has fewer blocks than there are key groups.
                let block = (blocks.end - 1).wrapping_sub(warp_n);
                return Some(Walk { tile, blocks, block, limits, softmax: OnlineSoftmax::EMPTY });
            }
            if position_again::<C>().warp_n == 0 {
                // SAFETY: the caller's.
                unsafe { self.store::<C, D>(tile, OnlineSoftmax::EMPTY, [[[0.0; 4]; D]]) }
            }
        }
    }

    /// All blocks of a walk that are left but for the last product with V.
    #[inline(always)]
    unsafe fn steps<C: Config, const N: usize, const D: usize, const P: usize>(
        &mut self,
        fragments: &mut Fragments<N, D, P>,
        walk: &mut Walk,
    ) {
        let groups = key_groups::<C>();
        // SAFETY: the caller's.
        unsafe {
            while walk.block >= walk.blocks.full.max(walk.blocks.first) + groups {
                self.next_step::<C, N, D, P, ALWAYS>(fragments, walk);
            }
            while walk.block >= walk.blocks.first + groups {
                self.next_step::<C, N, D, P, NEVER>(fragments, walk);
            }
        }
    }

    /// Computes the consumer's rows of the CTA's only tile, together with the consumers of the same rows that take other blocks.
    ///
    /// # Safety
    /// As for [`super::forward_wgmma`], by all threads of the warpgroup.
    #[inline(always)]
    unsafe fn run_with_others<C: Config, const N: usize, const D: usize, const P: usize>(
        &mut self,
        fragments: &mut Fragments<N, D, P>,
    ) {
        let stages = C::ROW.stages;
        let position = position_again::<C>();
        self.k.skip(position.warp_n, stages);
        self.v.skip(position.warp_n, stages);
        // SAFETY: the caller's; all consumers have the same tile.
        unsafe {
            let Some(mut walk) = self.next_walk::<C, D>() else { return };
            if walk.blocks.end - walk.blocks.first > position.warp_n {
                self.first_step::<C, N, D, P>(fragments, &mut walk);
                self.steps::<C, N, D, P>(fragments, &mut walk);
                self.last_output::<C, N, D, P>(fragments, &walk);
            }
            walk.softmax.reduce_sum();
            let sync = || named_barrier_sync(CONSUMERS, consumer_threads::<C>());
            let (acc_o, scale_log2) = (&mut fragments.acc_o, self.params.scale_log2);
            let buffer = Layout::k(&C::ROW, 0);
            merge_warps::<C, 1, D>(&mut walk.softmax, acc_o, buffer, position, scale_log2, sync);
            if position.warp_n == 0 {
                self.store::<C, D>(walk.tile, walk.softmax, fragments.acc_o);
            }
        }
    }

    /// Computes the consumer's rows of all tiles of the CTA.
    ///
    /// # Safety
    /// As for [`super::forward_wgmma`], by all threads of the warpgroup.
    #[inline(always)]
    unsafe fn run<C: Config, const N: usize, const D: usize, const P: usize>(&mut self) {
        let buffers = geometry::q_buffers(&C::ROW);
        let mut fragments = Fragments::<N, D, P>::EMPTY;
        // SAFETY: the caller's.
        unsafe {
            if key_groups::<C>() > 1 {
                return self.run_with_others::<C, N, D, P>(&mut fragments);
            }
            while let Some(mut walk) = self.next_walk::<C, D>() {
                self.first_step::<C, N, D, P>(&mut fragments, &mut walk);
                loop {
                    self.steps::<C, N, D, P>(&mut fragments, &mut walk);
                    self.q.advance(buffers);
                    if buffers == 1 {
                        break;
                    }
                    let Some(mut after) = self.next_walk::<C, D>() else { break };
                    // The next tile's first step goes with this one's last product.
                    self.wait_q::<C>(&mut fragments.q);
                    let before = (walk.block, walk.blocks);
                    self.step::<C, N, D, P, AS_NEEDED>(&mut fragments, &mut after, before);
                    walk.softmax.reduce_sum();
                    self.store::<C, D>(walk.tile, walk.softmax, fragments.acc_o);
                    fragments.acc_o = [[[0.0; 4]; D]];
                    fragments.pack::<C::Element>();
                    walk = after;
                }
                self.last_output::<C, N, D, P>(&mut fragments, &walk);
                walk.softmax.reduce_sum();
                self.store::<C, D>(walk.tile, walk.softmax, fragments.acc_o);
                if buffers > 1 {
                    break;
                }
                fragments.acc_o = [[[0.0; 4]; D]];
            }
        }
    }
}

/// A consumer's part: its rows of all tiles of the CTA.
///
/// # Safety
/// As for [`super::forward_wgmma`], by all threads of the consumer's warpgroup.
#[inline(always)]
pub(super) unsafe fn consume<C: Config, const N: usize, const D: usize, const P: usize>(
    params: &ForwardParams,
) {
    let row = &C::ROW;
    let mut consumer = Consumer {
        params,
        tiles: Layout::tile_ring(row),
        q: Layout::q_ring(row),
        k: Layout::k_ring(row),
        v: Layout::v_ring(row),
        scrubbing: 0,
    };
    // SAFETY: the caller's.
    unsafe {
        if takes_turns::<C>() && consumer_again() + 1 == geometry::consumer_warpgroups(row) {
            // The first turn is the first consumer's.
            consumer.pass_turn::<C>();
        }
        consumer.run::<C, N, D, P>();
        if takes_turns::<C>() && consumer_again() == 0 {
            // The last turn that was passed on.
            consumer.take_turn::<C>();
        }
        if matches!(row.schedule, Schedule::Split) && params.split.counters != 0 {
            let work = work_of::<C>(params, block_idx_x_again());
            let threads = (thread_idx_x_again() - WARPGROUP, consumer_threads::<C>());
            let sync = || named_barrier_sync(CONSUMERS, consumer_threads::<C>());
            let sync_or = |condition| named_barrier_or(CONSUMERS, consumer_threads::<C>(), condition);
            merge_in_last_cta::<C>(params, &work, threads, sync, sync_or);
        }
    }
}
