//! The producer publishes work tiles and copies what they need: one thread, or in kernels for ragged batches one warp, whose lanes copy
//! boxes of a block side by side, and a second one for V.

use super::config::WgmmaConfig;
use super::ring::{Ring, TILES_AHEAD};
use super::work_tile::{NO_MORE, Tile};
use crate::keys::PageTable;
use crate::params::{DenseParams, ForwardParams, OWN_WAITS, WgmmaParams};
use crate::ptx::bulk::{bulk_tensor_4d, bulk_tensor_5d};
use crate::ptx::mbarrier::{fence_proxy_async_global, mbarrier_arrive_expect_tx, mbarrier_arrive_if};
use crate::ptx::memory::{
    atomic_inc, ld_acquire_sys_b32, st_shared, st_shared_v4, to_global, to_global_again,
};
use crate::ptx::warp::{first_lane, sync_warp};
use crate::ptx::{opaque, thread_idx_x_again};
use crate::scheduler::{Rows, Work};
use crate::shape::Shape;
use core::mem::offset_of;
use cuda_std::thread::{block_idx_x, grid_dim_x};

/// What a thread of the producer holds.
struct Producer<'a> {
    params: &'a ForwardParams,
    /// [`DenseParams::arrived`].
    arrived: &'a u64,
    /// Tiles that the consumers have been told of, each with Q: one number says where both rings are.
    tiles_told: u32,
    /// K's ring; V's runs alongside.
    kv: Ring,
}

/// The lane; lane 0 does what only one thread may do. 0 where the producer is one thread. Read again at each call, as registers are short.
#[inline(always)]
fn lane<C: WgmmaConfig>() -> u32 {
    if C::RAGGED { thread_idx_x_again() % 32 } else { 0 }
}

impl<'a> Producer<'a> {
    /// Tells the consumers that there are no more tiles.
    ///
    /// # Safety
    /// As for [`super::forward::forward_wgmma`], by all threads of the producer.
    #[inline(always)]
    unsafe fn finish<C: WgmmaConfig>(&mut self) {
        if lane::<C>() != 0 {
            return;
        }
        // A CTA has no more than 1024 threads, which ptxas does not know: so that it works out addresses here, and does not keep them.
        let nothing = thread_idx_x_again() >> 10;
        let tiles = self.tiles::<C>();
        let tiles = Ring { barriers: tiles.barriers + nothing, ..tiles };
        // SAFETY: the slot is free.
        unsafe {
            tiles.wait_empty(TILES_AHEAD);
            // All of it, as all of it is read.
            let slot = C::LAYOUT.tile_slot(tiles.buffer) + nothing;
            st_shared_v4(slot, [NO_MORE; 4]);
            st_shared_v4(slot + 16, [NO_MORE; 4]);
            if C::RAGGED {
                st_shared_v4(slot + 32, [NO_MORE; 4]);
                st_shared_v4(slot + 48, [NO_MORE; 4]);
            }
            mbarrier_arrive_if(tiles.full(), true);
        }
    }

    /// Publishes a tile, and copies its Q, and its K and V block by block, as buffers come free. Returns what `draw` does, which is
    /// called when there are as many blocks left to copy as there are buffers: early enough to have come by the end.
    ///
    /// # Safety
    /// As for [`super::forward::forward_wgmma`], by all threads of the producer.
    #[inline(always)]
    unsafe fn tile<C: WgmmaConfig>(&mut self, index: u32, draw: impl Fn() -> u32) -> u32 {
        // SAFETY: the caller's.
        unsafe {
            let mut tile = Tile::new::<C>(self.params, index);
            if (C::RAGGED || C::PERSISTENT) && tile.blocks.is_empty() {
                if C::RAGGED && C::BLOCK.past_rows(self.params, &tile.work) <= tile.work.first_row {
                    // Nobody hears of a tile without rows.
                    return draw();
                }
                // Consumers keep a tile's slot until they have begun the next tile with products, and while they look for it wait for slots
                // that are not there: so every tile has some, here of a block of which the mask hides all. In ragged batches a way through
                // a tile without products would serialise those of all others, too (C7520 of ptxas).
                tile.blocks.end = tile.blocks.first + 1;
            }
            let slot = self.publish::<C>(&tile);
            if C::RAGGED {
                // Read anew, as registers are short.
                tile = Tile::read::<C>(self.params, slot);
            }
            let Tile { work, blocks } = tile;
            if !C::RAGGED && blocks.is_empty() {
                // The consumers write it.
                return draw();
            }
            self.copy_queries::<C>(&work);
            if C::RAGGED {
                return self.copy_ragged::<C>(blocks.end, slot, (true, false), draw);
            }
            // What is drawn is not looked at before the tile is copied: it comes late.
            let (mut drawn, mut block) = (0, blocks.end);
            // A rank's own keys are the last ones, and blocks are copied from the last to the first. What says so is read anew for each, as
            // registers are short.
            let own = || {
                let own_from = opaque(self.params.own_from);
                (own_from & OWN_WAITS != 0, (own_from & !OWN_WAITS).wrapping_sub(1))
            };
            let (waits, first_own) = own();
            if waits && first_own > blocks.end {
                self.wait_for_arrival(work.head_kv);
            }
            while block > blocks.first {
                let (waits, first_own) = own();
                if block == (blocks.first + C::LAYOUT.kv_buffers()).min(blocks.end) {
                    drawn = draw();
                }
                if waits && block == first_own {
                    self.wait_for_arrival(work.head_kv);
                }
                block -= 1;
                let first = block * C::K::ROWS;
                let boxes = Boxes { batch: work.batch, first, row: 0, own: block >= first_own };
                self.copy_block::<C>(work.head_kv, boxes, true, (true, true));
            }
            drawn
        }
    }

    /// In a ragged batch, copies K of a tile block by block, or V, as buffers come free; `draw` as for [`Self::tile`]. The tile is that of `slot`
    /// and ends before `block`. A lane has a box of a block; where boxes are few, lanes look up those of several blocks at once, as
    /// that takes a warp longer than copying them.
    ///
    /// # Safety
    /// As for [`Self::tile`]; the slot stays, and each buffer is filled by nobody else.
    #[inline(always)]
    unsafe fn copy_ragged<C: WgmmaConfig>(
        &mut self,
        mut block: u32,
        slot: u32,
        (k, v): (bool, bool),
        draw: impl Fn() -> u32,
    ) -> u32 {
        let mut drawn = 0;
        loop {
            // SAFETY: the caller's.
            unsafe {
                // Read anew, as registers are short, and by each lane: shuffles would wait behind those of the consumers.
                let Tile { work, blocks } = Tile::read_by_lane::<C>(self.params, slot);
                if block <= blocks.first {
                    return drawn;
                }
                let mut until = (blocks.first + C::LAYOUT.kv_buffers()).min(blocks.end);
                if block <= until {
                    if block == until {
                        drawn = draw();
                    }
                    until = blocks.first;
                }
                // Lanes of a block: a power of two, of which the last may have no box.
                let box_rows = opaque(self.params.ragged.box_rows);
                let doublings =
                    (0..5).map(|doubling| u32::from(box_rows << doubling < C::K::ROWS)).sum::<u32>();
                until = until.max(block.saturating_sub(32 >> doublings));
                let row = (lane::<C>() & ((1 << doublings) - 1)) * box_rows;
                // Blocks are at most 32, so that this turn comes never.
                let turn = if row < C::K::ROWS { lane::<C>() >> doublings } else { 32 };
                let of_lane = block - 1 - turn.min(block - 1 - until);
                let boxes = self.boxes_of::<C>(&work, blocks.block(of_lane), row);
                let of_lane = (block - 1).wrapping_sub(turn);
                while block > until {
                    block -= 1;
                    self.copy_block::<C>(work.head_kv, boxes, block == of_lane, (k, v));
                }
            }
        }
    }

    /// Copies a block of K, or of V, or both, into the ring's current buffers, by the lanes of which it is the turn, and goes on to the next.
    ///
    /// # Safety
    /// As for [`Self::copy_ragged`].
    #[inline(always)]
    unsafe fn copy_block<C: WgmmaConfig>(
        &mut self,
        head_kv: u32,
        boxes: Boxes,
        is_turn: bool,
        (k, v): (bool, bool),
    ) {
        for part in 0..C::VALUE_GROUPS {
            // SAFETY: the caller's.
            unsafe {
                if k {
                    let columns = C::K::COLUMNS / C::VALUE_GROUPS;
                    let columns = (part * columns * C::K::COLUMN_WIDTH, columns);
                    let to = (offset_of!(WgmmaParams, k), C::LAYOUT.k(self.kv.buffer), columns);
                    self.copy_keys::<C, C::K>(self.kv, to, head_kv, (boxes, is_turn));
                }
                if v {
                    let ring = Ring { barriers: C::LAYOUT.v_ring().barriers, ..self.kv };
                    let first = if C::VALUE_GROUPS > 1 { part * self.params.ragged.width_v } else { 0 };
                    let to = (offset_of!(WgmmaParams, v), C::LAYOUT.v(ring.buffer), (first, C::V::COLUMNS));
                    self.copy_keys::<C, C::V>(ring, to, head_kv, (boxes, is_turn));
                }
            }
            self.kv.advance(C::LAYOUT.kv_buffers());
        }
    }

    /// Waits until a head's keys and values of other ranks are there. The rank's own ones are the last that a tile's rows see, and blocks are
    /// walked from the last to the first: by now they may well be.
    ///
    /// # Safety
    /// Somebody counts heads up to this one.
    #[inline(always)]
    unsafe fn wait_for_arrival(&self, head_kv: u32) {
        let count = to_global_again(*self.arrived);
        // SAFETY: the caller's.
        while unsafe { ld_acquire_sys_b32(count) } <= head_kv {}
        fence_proxy_async_global();
    }

    /// The place of the next tile that the consumers are told of.
    #[inline(always)]
    fn tiles<C: WgmmaConfig>(&self) -> Ring {
        C::LAYOUT.tile_ring().at(self.tiles_told, TILES_AHEAD)
    }

    /// Tells the other warps of a tile, whose slot is returned.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn publish<C: WgmmaConfig>(&mut self, tile: &Tile<'_>) -> u32 {
        let tiles = self.tiles::<C>();
        self.tiles_told += 1;
        let slot = C::LAYOUT.tile_slot(tiles.buffer);
        // SAFETY: the slot is free when it is written.
        unsafe {
            tiles.wait_empty(TILES_AHEAD);
            if lane::<C>() == 0 {
                tile.write::<C>(slot);
                for slice in 0..C::VALUE_GROUPS {
                    st_shared(C::LAYOUT.found(tiles.buffer, slice), 0);
                }
                mbarrier_arrive_if(tiles.full(), true);
            }
            if C::RAGGED {
                // Other lanes read the slot.
                sync_warp();
            }
        }
        slot
    }

    /// Copies Q of the tile that the consumers were told of last.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn copy_queries<C: WgmmaConfig>(&self, work: &Work<'_>) {
        let buffers = C::LAYOUT.q_buffers();
        let q = C::LAYOUT.q_ring().at(self.tiles_told - 1, buffers);
        let rows = C::BLOCK.rows_used(self.params.group);
        let (query, tile_head) = match C::BLOCK.rows {
            Rows::OfHead => (work.first_row, work.head_q),
            Rows::Packed => (self.params.group.quotient(work.first_row), work.head_kv),
        };
        let is_packed = C::RAGGED && self.params.ragged.cu_seqlens_q != 0;
        // SAFETY: the caller's; the barrier expects just what is copied.
        unsafe {
            q.wait_empty(buffers);
            if lane::<C>() == 0 {
                mbarrier_arrive_expect_tx(q.full(), rows * C::Q::ROW_BYTES);
                for column in 0..C::Q::COLUMNS {
                    let query = work.sequence.q_start + query;
                    let batch = if is_packed { 0 } else { work.batch };
                    let at = [column * C::Q::COLUMN_WIDTH, 0, query, tile_head, batch];
                    let smem = C::LAYOUT.q(q.buffer) + column * C::Q::COLUMN_BYTES;
                    let map = C::parameter_address() + offset_of!(WgmmaParams, q) as u64;
                    bulk_tensor_5d(smem, map, at, q.full());
                }
            }
        }
    }

    /// Copies a block of keys, or of values, of shape `S` into the ring's current buffer, at `tile`, or `columns` of its columns from element `first`
    /// on; `map` is the tensor map's offset in the parameter block.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn copy_keys<C: WgmmaConfig, S: Shape>(
        &self,
        ring: Ring,
        (map, tile, (first, columns)): (usize, u32, (u32, u32)),
        head_kv: u32,
        (boxes, is_turn): (Boxes, bool),
    ) {
        // SAFETY: the caller's.
        unsafe {
            // By all lanes: one alone polls several times where a whole warp sleeps.
            ring.wait_empty(C::LAYOUT.kv_buffers());
            if lane::<C>() == 0 {
                mbarrier_arrive_expect_tx(ring.full(), columns * S::COLUMN_BYTES);
            }
            if C::RAGGED {
                sync_warp();
                if !is_turn {
                    return;
                }
            }
            for column in 0..columns {
                let at = [first + column * S::COLUMN_WIDTH, boxes.first, head_kv, boxes.batch];
                let smem = tile + column * S::COLUMN_BYTES + boxes.row * S::COLUMN_ROW_BYTES;
                let to_own = if boxes.own { DenseParams::TO_OWN } else { 0 };
                let map = C::parameter_address() + map as u64 + u64::from(to_own);
                bulk_tensor_4d(smem, map, at, ring.full());
            }
        }
    }

    /// The box of a block of keys of a ragged batch that begins with this row. What lies past the last key of a page, or of packed keys, or in a page that is not
    /// there, reads as 0.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn boxes_of<C: WgmmaConfig>(&self, work: &Work<'_>, block: u32, row: u32) -> Boxes {
        let ragged = &self.params.ragged;
        let key = block * C::K::ROWS + row;
        let (batch, first) = match ragged.block_table {
            0 if ragged.cu_seqlens_k == 0 => (work.batch, key),
            0 => (0, work.sequence.k_start + key),
            _ if key < work.sequence.seqlen_k => {
                // SAFETY: the caller's; the key is one of the sequence's.
                let page = unsafe { PageTable::new(ragged, work.batch).page(key) };
                (page.min(ragged.pages), ragged.page.divide(key).1)
            }
            // Past the last page.
            _ => (ragged.pages, 0),
        };
        Boxes { batch, first, row, own: false }
    }
}

/// Where a thread's part of a block of keys lies in K and V.
#[derive(Clone, Copy)]
struct Boxes {
    /// The page, or the batch entry.
    batch: u32,
    /// The first row in it.
    first: u32,
    /// The first row in the block.
    row: u32,
    /// Whether the rank has it itself.
    own: bool,
}

/// The producer's part: all tiles of the CTA, one after another.
///
/// # Safety
/// As for [`super::forward::forward_wgmma`], by thread 0, or in a kernel for ragged batches by all threads of warp 0.
#[inline(always)]
pub(super) unsafe fn produce<C: WgmmaConfig>(params: &ForwardParams, arrived: &u64) {
    let mut producer = Producer { params, arrived, tiles_told: 0, kv: C::LAYOUT.k_ring() };
    // SAFETY: the caller's.
    unsafe {
        if C::RAGGED {
            // Each CTA has a tile, and draws more of them where the launch gives a counter.
            let counter = || params.persistent.counter;
            let draw = || match lane::<C>() {
                0 if counter() != 0 => {
                    // Added here, or ptxas keeps it in a register that spills.
                    atomic_inc(to_global(counter()), params.persistent.tiles - 1) + grid_dim_x()
                }
                _ => 0,
            };
            let mut index = block_idx_x();
            loop {
                index = producer.tile::<C>(index, || first_lane(draw()));
                if counter() == 0 || index >= params.persistent.tiles {
                    break;
                }
            }
        } else if C::PERSISTENT {
            let tiles = params.persistent.tiles;
            let mut index = block_idx_x();
            while index < tiles {
                // The first tile of each CTA is its own index, so those that are drawn start at the number of CTAs: every CTA draws
                // once for each tile it works on, which makes as many as there are tiles, and the counter is 0 again. Late in a tile, so
                // that the longest tile that is left goes to the CTA that is done first.
                let drawn =
                    producer.tile::<C>(index, || atomic_inc(to_global(params.persistent.counter), tiles - 1));
                index = drawn + grid_dim_x();
            }
        } else {
            producer.tile::<C>(block_idx_x(), || 0);
        }
        producer.finish::<C>();
    }
}

/// The part of the warp that copies V in a kernel for ragged batches: of all tiles that [`produce`] publishes.
///
/// # Safety
/// As for [`super::forward::forward_wgmma`], by all threads of one warp that has no other part.
#[inline(always)]
pub(super) unsafe fn produce_values<C: WgmmaConfig>(params: &ForwardParams, arrived: &u64) {
    let mut producer = Producer { params, arrived, tiles_told: 0, kv: C::LAYOUT.k_ring() };
    loop {
        // SAFETY: the caller's; the slot is read before it is released.
        unsafe {
            let tiles = producer.tiles::<C>();
            let slot = C::LAYOUT.tile_slot(tiles.buffer);
            tiles.wait_full();
            let tile = Tile::read::<C>(params, slot);
            if tile.work.batch == NO_MORE {
                return;
            }
            producer.copy_ragged::<C>(tile.blocks.end, slot, (false, true), || 0);
            sync_warp();
            tiles.release(TILES_AHEAD, lane::<C>());
        }
        producer.tiles_told += 1;
    }
}
