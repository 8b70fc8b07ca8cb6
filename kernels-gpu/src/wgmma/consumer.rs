//! The consumers: warpgroups of 64 query rows each, which compute.
//!
//! The k-loop of a tile: [`Consumer::first_step`] has S of the first block and its softmax; each [`Consumer::step`] has S of the next
//! block and O += P·V of the one before in flight together; [`Consumer::last_output`] is what is left. Between tiles of a
//! persistent CTA, the next tile's first step takes the place of the last output.

use super::config::{CONSUMERS_BARRIER, WARPGROUP, WgmmaConfig};
use super::gemm::WgmmaTile;
use super::k_loop::{Fragments, KLoop};
use super::pipeline::{Consumer, consumer_again, position_again};
use super::ring::TILES_AHEAD;
use super::scores::{Always, AsNeeded, Masking, Never, NeverShort, Rescaling};
use super::work_tile::{NO_MORE, Tile};
use crate::dropped::scale_kept;
use crate::keys::{KeyRows, RaggedKeys};
use crate::math::combine::merge_in_last_cta;
use crate::math::epilogue::{
    merge_warps, store_lse, store_output_from_registers, store_partial, take_in_sinks,
};
use crate::math::mask::RowLimits;
use crate::math::restore::{PartlyVisible, Restored, restore, restore_ragged};
use crate::math::softmax::{OnlineSoftmax, halves, scale_rows};
use crate::params::ForwardParams;
use crate::ptx::memory::{ld_shared, to_global};
use crate::ptx::warp::{sync_warp, vote_any};
use crate::ptx::warpgroup::{named_barrier_or, named_barrier_sync};
use crate::ptx::wgmma::wgmma_fence;
use crate::ptx::{block_idx_x_again, opaque, thread_idx_x_again};
use crate::queries::QueryRows;
use crate::scheduler::Work;
use crate::score::{Score, ShortWay};
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::{KeyBlocks, MaskParams};
use crate::work::{is_partial, score_rows, score_sees_row, visible_of_row, work_of};

impl Consumer<'_> {
    /// What follows the products that give S: K is released, Q after the tile's last ones if they read it.
    ///
    /// # Safety
    /// The warp's products of S are done; once a block, by all lanes.
    #[inline(always)]
    unsafe fn release_after_scores<C: WgmmaConfig>(&mut self, k_loop: &KLoop<C>) {
        // SAFETY: the caller's.
        unsafe {
            self.release_k::<C>();
            self.release_q::<C>(k_loop.block == k_loop.blocks.first);
        }
    }

    /// The first block of a tile, with nothing else to do meanwhile.
    ///
    /// # Safety
    /// All threads of the warpgroup take part, after [`Self::next_k_loop`]; what is read has landed and is released when it has been read.
    #[inline(always)]
    unsafe fn first_step<C: WgmmaConfig>(
        &mut self,
        fragments: &mut Fragments<C::Warp>,
        k_loop: &mut KLoop<C>,
    ) {
        let scale_log2 = self.scale_log2::<C>();
        // SAFETY: the caller's.
        unsafe {
            let ahead = self.ahead::<C, AsNeeded>(k_loop);
            self.wait_q::<C>(&mut fragments.q);
            self.k.wait_full();
            self.ping_pong_wait::<C>();
            wgmma_fence();
            self.issue_scores::<C, AsNeeded>(fragments, &ahead);
            self.ping_pong_signal::<C>();
            if C::VALUE_GROUPS > 1 {
                C::Warp::wait_scores::<1>(&mut fragments.s);
                self.release_k::<C>();
            }
            C::Warp::wait_scores::<0>(&mut fragments.s);
            self.release_after_scores::<C>(k_loop);
            // O is 0 still.
            self.softmax::<C, AsNeeded>(&mut fragments.s, k_loop, (&ahead, scale_log2), || ());
            fragments.pack::<C::Element>();
            self.tell_weights::<C>(&fragments.p, [1.0; 2]);
        }
    }

    /// S of the k-loop's current block and its softmax; meanwhile O += P·V of `before`, the block before, which may be another tile's.
    /// What it returns the caller is to apply if that is O's own tile.
    ///
    /// # Safety
    /// As for [`Self::first_step`].
    #[inline(always)]
    unsafe fn step<C: WgmmaConfig, M: Masking>(
        &mut self,
        fragments: &mut Fragments<C::Warp>,
        k_loop: &mut KLoop<C>,
        (before, blocks_before): (u32, KeyBlocks),
    ) -> Rescaling<C> {
        let scale_log2 = self.scale_log2::<C>();
        // SAFETY: the caller's.
        unsafe {
            let ahead = self.ahead::<C, M>(k_loop);
            self.k.wait_full();
            self.ping_pong_wait::<C>();
            wgmma_fence();
            self.issue_scores::<C, M>(fragments, &ahead);
            self.wait_v::<C>(before, &blocks_before);
            self.issue_output::<C>(fragments);
            self.ping_pong_signal::<C>();
            if C::VALUE_GROUPS > 1 {
                C::Warp::wait_scores::<2>(&mut fragments.s);
                self.release_k::<C>();
            }
            C::Warp::wait_scores::<1>(&mut fragments.s);
            self.release_after_scores::<C>(k_loop);
            let Fragments { s, acc_o, .. } = fragments;
            let output_done = || C::Warp::wait_output(acc_o);
            let rescaling = self.softmax::<C, M>(s, k_loop, (&ahead, scale_log2), output_done);
            self.release_v::<C>();
            rescaling
        }
    }

    /// A step within a tile.
    ///
    /// # Safety
    /// As for [`Self::first_step`].
    #[inline(always)]
    unsafe fn next_step<C: WgmmaConfig, M: Masking>(
        &mut self,
        fragments: &mut Fragments<C::Warp>,
        k_loop: &mut KLoop<C>,
    ) {
        let before = (k_loop.block, k_loop.blocks);
        k_loop.block -= C::KEY_GROUPS;
        // SAFETY: the caller's.
        let (grew, factors) = unsafe { self.step::<C, M>(fragments, k_loop, before) };
        fragments.pack::<C::Element>();
        // SAFETY: the caller's.
        unsafe { self.tell_weights::<C>(&fragments.p, halves(&factors, 0)) }
        if vote_any(grew) {
            scale_rows(fragments.acc_o.row_mut(0), halves(&factors, 0));
        }
    }

    /// All blocks of a tile that are left but for the last product with V.
    ///
    /// # Safety
    /// As for [`Self::first_step`].
    #[inline(always)]
    unsafe fn steps<C: WgmmaConfig>(&mut self, fragments: &mut Fragments<C::Warp>, k_loop: &mut KLoop<C>) {
        // SAFETY: the caller's.
        unsafe {
            while k_loop.block >= k_loop.blocks.full.max(k_loop.blocks.first) + C::KEY_GROUPS {
                self.next_step::<C, Always>(fragments, k_loop);
            }
            let has_short_way = !matches!(C::Score::SHORT_WAY, ShortWay::None);
            if has_short_way && C::Score::has_short_way(self.params) {
                while k_loop.block >= k_loop.blocks.first + C::KEY_GROUPS {
                    self.next_step::<C, NeverShort>(fragments, k_loop);
                }
            }
            while k_loop.block >= k_loop.blocks.first + C::KEY_GROUPS {
                self.next_step::<C, Never>(fragments, k_loop);
            }
        }
    }

    /// O += P·V of the last block, with nothing else to do meanwhile.
    ///
    /// # Safety
    /// As for [`Self::first_step`].
    #[inline(always)]
    unsafe fn last_output<C: WgmmaConfig>(&mut self, fragments: &mut Fragments<C::Warp>, k_loop: &KLoop<C>) {
        // SAFETY: the caller's.
        unsafe {
            self.wait_v::<C>(k_loop.block, &k_loop.blocks);
            wgmma_fence();
            self.issue_output::<C>(fragments);
            C::Warp::wait_output(&mut fragments.acc_o);
            self.release_v::<C>();
        }
    }

    /// What is left to do for the rows of a tile whose values several consumers have: their LSE, their sinks, and to tell the others.
    ///
    /// # Safety
    /// As for [`Self::store`], which follows.
    #[inline(always)]
    unsafe fn close_rows<C: WgmmaConfig>(&mut self, k_loop: &mut KLoop<C>) {
        let (params, position) = (self.params, position_again::<C>());
        // SAFETY: the caller's.
        unsafe {
            if !is_partial::<C>(params) {
                let Tile { work, .. } =
                    Tile::read::<C>(params, C::LAYOUT.tile_slot(Self::tile::<C>(self.tiles_told - 1).buffer));
                let queries = QueryRows::new(params, &work, C::BLOCK);
                store_lse(&queries, &k_loop.softmax, position, self.scale_log2::<C>());
                take_in_sinks(&queries, &mut k_loop.softmax, position, self.scale_log2::<C>());
            }
            self.tell_rows::<C>(&k_loop.softmax);
        }
    }

    /// Writes the consumer's rows of a tile, the one after `tile` others, and is done with it; row_sum is reduced.
    ///
    /// # Safety
    /// All lanes take part, once a tile; its slot is written and not released yet, and O and LSE are writable.
    #[inline(always)]
    unsafe fn store<C: WgmmaConfig>(
        &self,
        tile: u32,
        mut softmax: OnlineSoftmax<C::Warp>,
        mut acc_o: <C::Warp as WarpTile>::O,
    ) {
        let position = position_again::<C>();
        let params = self.params;
        // SAFETY: the caller's; the tile's slot is written, and read before it is released.
        unsafe {
            let slice = if C::VALUE_GROUPS > 1 { consumer_again() } else { 0 };
            let tile = Self::tile::<C>(tile);
            let slot = C::LAYOUT.tile_slot(tile.buffer);
            let Tile { work, blocks } = Tile::read_slice::<C>(params, slot, slice);
            let found = ld_shared(C::LAYOUT.found(tile.buffer, slice)) != 0;
            // Every lane has read it; one says so.
            sync_warp();
            tile.release(TILES_AHEAD, position.lane);
            let queries = QueryRows::new(params, &work, C::BLOCK);
            if C::Score::DROPS {
                scale_kept::<C::Warp>(params, &mut acc_o);
            }
            if is_partial::<C>(params) {
                let width = queries.width(C::O::WIDTH);
                store_partial(&queries, &softmax, acc_o, width, position, self.scale_log2::<C>());
            } else {
                if C::VALUE_GROUPS == 1 {
                    store_lse(&queries, &softmax, position, self.scale_log2::<C>());
                    take_in_sinks(&queries, &mut softmax, position, self.scale_log2::<C>());
                }
                store_output_from_registers::<C::Element, _>(&queries, &softmax, acc_o, position);
            }
            if found {
                // The warp's rows are written.
                sync_warp();
                if C::RAGGED {
                    let restored = Restored {
                        first_row: work.first_row + position.warp_row,
                        rows: 16,
                        head_dim: queries.width(C::O::WIDTH),
                        thread: position.lane,
                        threads: 32,
                        partial: is_partial::<C>(params),
                    };
                    let at = (work.batch, work.head_kv, work.sequence.k_start);
                    let keys = RaggedKeys::new(params, at).with_v_from(work.slice_bytes(params));
                    let blocks = (blocks, C::K::ROWS, params.ragged.sink_tokens);
                    let visible = |row| visible_of_row::<C>(params, &work, row);
                    let sees = |row, key| score_sees_row::<C>(params, &work, row, key);
                    return restore_ragged::<C::Element>(&queries, keys, blocks, restored, visible, sees);
                }
                let keys = PartlyVisible {
                    first: blocks.full.max(blocks.first) * C::K::ROWS,
                    end: blocks.end * C::K::ROWS,
                    v: KeyRows::new(to_global(params.v), &params.v_strides, work.batch, work.head_kv),
                };
                let visible_end = |row| {
                    C::BLOCK.rows.visible(MaskParams::of(params), row, &params.group, &work.sequence).end
                };
                let (rows, threads) =
                    ((work.first_row + position.warp_row, 16, C::O::WIDTH), (position.lane, 32));
                restore::<C::Element>(&queries, keys, is_partial::<C>(params), rows, threads, visible_end);
            }
        }
    }

    /// The next tile that sees any keys, if there is one. Those that see none are written on the way; in ragged batches there are none.
    ///
    /// # Safety
    /// All threads of the warpgroup take part.
    #[inline(always)]
    unsafe fn next_k_loop<C: WgmmaConfig>(&mut self) -> Option<KLoop<C>> {
        let params = self.params;
        loop {
            // SAFETY: the slot is written before its barrier says so.
            let Tile { work, blocks } = unsafe {
                let tile = Self::tile::<C>(self.tiles_told);
                tile.wait_full();
                Tile::read::<C>(params, C::LAYOUT.tile_slot(tile.buffer))
            };
            if work.batch == NO_MORE {
                return None;
            }
            self.tiles_told += 1;
            if C::RAGGED || !blocks.is_empty() {
                let Position { warp_row, warp_n, lane } = position_again::<C>();
                let (mask, first_row) = (MaskParams::of(params), work.first_row + warp_row + lane / 4);
                let limits =
                    RowLimits::each_row(mask, &work.sequence, C::BLOCK.rows, first_row, &params.group);
                let score_rows = score_rows::<C>(params, &work, first_row);
                // Wraps below the first block where a tile has fewer blocks than there are key groups.
                let block = (blocks.end - 1).wrapping_sub(warp_n);
                let softmax = OnlineSoftmax::EMPTY;
                return Some(KLoop { blocks, block, limits, softmax, score_rows });
            }
            if position_again::<C>().warp_n == 0 {
                // SAFETY: the caller's.
                unsafe { self.store::<C>(self.tiles_told - 1, OnlineSoftmax::EMPTY, C::Warp::NO_O) }
            }
        }
    }

    /// Computes the consumer's rows of the CTA's only tile, together with the consumers of the same rows that take other blocks.
    ///
    /// # Safety
    /// As for [`super::forward::forward_wgmma`], by all threads of the warpgroup.
    #[inline(always)]
    unsafe fn run_with_others<C: WgmmaConfig>(&mut self, fragments: &mut Fragments<C::Warp>) {
        let position = position_again::<C>();
        self.k.skip(position.warp_n, C::LAYOUT.kv_buffers());
        self.v.skip(position.warp_n, C::LAYOUT.kv_buffers());
        // SAFETY: the caller's; all consumers have the same tile.
        unsafe {
            let Some(mut k_loop) = self.next_k_loop::<C>() else { return };
            if k_loop.blocks.end - k_loop.blocks.first > position.warp_n {
                self.first_step::<C>(fragments, &mut k_loop);
                self.steps::<C>(fragments, &mut k_loop);
                self.last_output::<C>(fragments, &k_loop);
            }
            k_loop.softmax.reduce_sum();
            let sync = || named_barrier_sync(CONSUMERS_BARRIER, C::CONSUMER_THREADS);
            let (acc_o, scale_log2) = (&mut fragments.acc_o, self.scale_log2::<C>());
            let buffer = (C::LAYOUT.k(0), C::MERGE);
            merge_warps(&mut k_loop.softmax, acc_o, buffer, position, scale_log2, sync);
            if position.warp_n == 0 {
                self.store::<C>(self.tiles_told - 1, k_loop.softmax, fragments.acc_o);
            }
        }
    }

    /// Computes a slice of O of the CTA's tile, not the first one, with the weights of the consumer that has the scores.
    ///
    /// # Safety
    /// As for [`super::forward::forward_wgmma`], by all threads of the warpgroup.
    #[inline(always)]
    unsafe fn run_slice<C: WgmmaConfig>(&mut self) {
        let fragments = &mut Fragments::<C::Warp>::empty();
        self.v.skip(consumer_again(), C::LAYOUT.kv_buffers());
        // SAFETY: the caller's.
        unsafe {
            let Some(mut k_loop) = self.next_k_loop::<C>() else { return };
            loop {
                let factors = self.hear_weights::<C>(&mut fragments.p);
                if vote_any(factors != [1.0; 2]) {
                    scale_rows(fragments.acc_o.row_mut(0), factors);
                }
                self.last_output::<C>(fragments, &k_loop);
                if k_loop.block == k_loop.blocks.first {
                    break;
                }
                k_loop.block -= 1;
            }
            self.hear_rows::<C>(&mut k_loop.softmax);
            self.store::<C>(self.tiles_told - 1, k_loop.softmax, fragments.acc_o);
        }
    }

    /// Computes the consumer's rows of all tiles of the CTA.
    ///
    /// # Safety
    /// As for [`super::forward::forward_wgmma`], by all threads of the warpgroup.
    #[inline(always)]
    unsafe fn run<C: WgmmaConfig>(&mut self) {
        let mut fragments = Fragments::<C::Warp>::empty();
        // SAFETY: the caller's.
        unsafe {
            if C::KEY_GROUPS > 1 {
                return self.run_with_others::<C>(&mut fragments);
            }
            while let Some(mut k_loop) = self.next_k_loop::<C>() {
                self.first_step::<C>(&mut fragments, &mut k_loop);
                loop {
                    self.steps::<C>(&mut fragments, &mut k_loop);
                    if !C::TILES_OVERLAP {
                        break;
                    }
                    let Some(mut after) = self.next_k_loop::<C>() else { break };
                    // The next tile's first step goes with this one's last product.
                    self.wait_q::<C>(&mut fragments.q);
                    let before = (k_loop.block, k_loop.blocks);
                    if !C::RAGGED {
                        self.step::<C, AsNeeded>(&mut fragments, &mut after, before);
                    } else if after.is_partial() {
                        // The branch stands here, as one while products are on their way would serialise them.
                        self.step::<C, Always>(&mut fragments, &mut after, before);
                    } else {
                        self.step::<C, Never>(&mut fragments, &mut after, before);
                    }
                    k_loop.softmax.reduce_sum();
                    self.store::<C>(self.tiles_told - 2, k_loop.softmax, fragments.acc_o);
                    fragments.acc_o = C::Warp::NO_O;
                    fragments.pack::<C::Element>();
                    k_loop = after;
                }
                self.last_output::<C>(&mut fragments, &k_loop);
                k_loop.softmax.reduce_sum();
                if C::VALUE_GROUPS > 1 {
                    self.close_rows::<C>(&mut k_loop);
                }
                self.store::<C>(self.tiles_told - 1, k_loop.softmax, fragments.acc_o);
                // Several tiles would serialise the products of several consumers of the same rows (C7520 of ptxas).
                if C::TILES_OVERLAP || C::VALUE_GROUPS > 1 {
                    break;
                }
                fragments.acc_o = C::Warp::NO_O;
            }
        }
    }
}

/// A consumer's part: its rows of all tiles of the CTA.
///
/// # Safety
/// As for [`super::forward::forward_wgmma`], by all threads of the consumer's warpgroup.
#[inline(always)]
pub(super) unsafe fn consume<C: WgmmaConfig>(params: &ForwardParams) {
    let mut consumer = Consumer::new::<C>(params);
    // SAFETY: the caller's.
    unsafe {
        if C::PING_PONG && consumer_again() + 1 == C::CONSUMERS {
            // The first consumer issues first.
            consumer.ping_pong_signal::<C>();
        }
        if C::VALUE_GROUPS > 1 && consumer_again() > 0 {
            consumer.run_slice::<C>();
        } else {
            consumer.run::<C>();
        }
        if C::PING_PONG && consumer_again() == 0 {
            // The last signal that was given.
            consumer.ping_pong_wait::<C>();
        }
        merge_splits::<C>(params);
    }
}

/// Where a tile's keys are split and its last CTA merges them: does so, if this is it.
///
/// # Safety
/// By all threads of all consumers, when they have written what they computed.
#[inline(always)]
unsafe fn merge_splits<C: WgmmaConfig>(params: &ForwardParams) {
    // SAFETY: the caller's.
    unsafe {
        if C::SPLIT && params.split.counters != 0 {
            let mut work = if C::VALUE_GROUPS > 1 {
                // The CTA's only tile stands there still. Working it out again would keep what is known of the parameters through the main loop.
                Tile::read::<C>(params, C::LAYOUT.tile_slot(0)).work
            } else {
                work_of::<C>(params, block_idx_x_again())
            };
            if C::VALUE_GROUPS > 1 && work.batch == NO_MORE {
                return;
            }
            let mut block = C::BLOCK;
            if C::RAGGED {
                // What is known of the block before the main loop is not to be kept through it.
                block.block_m = opaque(block.block_m);
            }
            let tile = Work::tile_of_split(params, block_idx_x_again()) * C::VALUE_GROUPS;
            let threads = (thread_idx_x_again() - WARPGROUP, C::CONSUMER_THREADS);
            let sync = || named_barrier_sync(CONSUMERS_BARRIER, C::CONSUMER_THREADS);
            let sync_or = |condition| named_barrier_or(CONSUMERS_BARRIER, C::CONSUMER_THREADS, condition);
            loop {
                let queries = QueryRows::new(params, &work, block);
                merge_in_last_cta::<C::Element>(
                    &params.split,
                    &queries,
                    C::LAST_CTA,
                    tile + work.slice,
                    threads,
                    sync,
                    sync_or,
                );
                if C::VALUE_GROUPS == 1 || work.slice + 1 == opaque(C::VALUE_GROUPS) {
                    break;
                }
                work.slice += 1;
            }
        }
    }
}
