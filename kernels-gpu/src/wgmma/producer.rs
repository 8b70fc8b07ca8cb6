//! The producer: one thread publishes work tiles and copies what they need.

use super::config::WgmmaConfig;
use super::ring::{Ring, TILES_AHEAD};
use super::work_tile::{NO_MORE, Tile};
use crate::keys::PageTable;
use crate::params::{ForwardParams, WgmmaParams};
use crate::ptx::bulk::{bulk_tensor_4d, bulk_tensor_5d};
use crate::ptx::mbarrier::{mbarrier_arrive_expect_tx, mbarrier_arrive_if};
use crate::ptx::memory::{atomic_inc, st_shared, st_shared_v4, to_global};
use crate::ptx::opaque;
use crate::scheduler::{Rows, Work};
use crate::shape::Shape;
use core::mem::offset_of;
use cuda_std::thread::{block_idx_x, grid_dim_x};

/// What the producer's one thread holds.
struct Producer<'a> {
    params: &'a ForwardParams,
    tiles: Ring,
    q: Ring,
    /// K's ring; V's runs alongside.
    kv: Ring,
}

impl Producer<'_> {
    /// Tells the consumers that there are no more tiles.
    ///
    /// # Safety
    /// As for [`super::forward::forward_wgmma`], by one thread.
    #[inline(always)]
    unsafe fn finish<C: WgmmaConfig>(&mut self) {
        // SAFETY: the slot is free.
        unsafe {
            self.tiles.wait_empty(TILES_AHEAD);
            // All of it, as all of it is read.
            let slot = C::LAYOUT.tile_slot(self.tiles.buffer);
            st_shared_v4(slot, [NO_MORE; 4]);
            st_shared_v4(slot + 16, [NO_MORE; 4]);
            if C::RAGGED {
                st_shared_v4(slot + 32, [NO_MORE; 4]);
                st_shared_v4(slot + 48, [NO_MORE; 4]);
            }
            mbarrier_arrive_if(self.tiles.full(), true);
        }
    }

    /// Publishes a tile, and copies its Q, and its K and V block by block, as buffers come free. Returns what `draw` does, which is
    /// called when there are as many blocks left to copy as there are buffers: early enough to have come by the end.
    ///
    /// # Safety
    /// As for [`super::forward::forward_wgmma`], by one thread.
    #[inline(always)]
    unsafe fn tile<C: WgmmaConfig>(&mut self, index: u32, draw: impl Fn() -> u32) -> u32 {
        // SAFETY: the caller's.
        unsafe {
            let tile = Tile::new::<C>(self.params, index);
            self.publish::<C>(&tile);
            let Tile { work, blocks } = tile;
            if blocks.is_empty() {
                return draw();
            }
            self.copy_queries::<C>(&work);
            let draw_at = (blocks.first + C::LAYOUT.stages()).min(blocks.end);
            let mut drawn = 0;
            let mut block = blocks.end;
            while block > blocks.first {
                if block == draw_at {
                    drawn = draw();
                }
                block -= 1;
                let keys = blocks.block(block);
                self.copy_k::<C>(&work, keys);
                self.copy_v::<C>(&work, keys);
            }
            drawn
        }
    }

    /// Tells the other warps of a tile.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn publish<C: WgmmaConfig>(&mut self, tile: &Tile<'_>) {
        // SAFETY: the slot is free when it is written.
        unsafe {
            self.tiles.wait_empty(TILES_AHEAD);
            tile.write::<C>(C::LAYOUT.tile_slot(self.tiles.buffer));
            st_shared(C::LAYOUT.found(self.tiles.buffer), 0);
            mbarrier_arrive_if(self.tiles.full(), true);
        }
        self.tiles.advance(TILES_AHEAD);
    }

    /// Copies a tile's Q.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn copy_queries<C: WgmmaConfig>(&mut self, work: &Work<'_>) {
        let buffers = C::LAYOUT.q_buffers();
        let rows = C::BLOCK.rows_used(self.params.group);
        let (query, tile_head) = match C::BLOCK.rows {
            Rows::OfHead => (work.first_row, work.head_q),
            Rows::Packed => (self.params.group.quotient(work.first_row), work.head_kv),
        };
        let is_packed = C::RAGGED && self.params.ragged.cu_seqlens_q != 0;
        // SAFETY: the caller's; the barrier expects just what is copied.
        unsafe {
            self.q.wait_empty(buffers);
            mbarrier_arrive_expect_tx(self.q.full(), rows * C::Q::ROW_BYTES);
            for column in 0..C::Q::COLUMNS {
                let query = work.sequence.q_start + query;
                let batch = if is_packed { 0 } else { work.batch };
                let at = [column * C::Q::COLUMN_WIDTH, 0, query, tile_head, batch];
                let smem = C::LAYOUT.q(self.q.buffer) + column * C::Q::COLUMN_BYTES;
                let map = C::parameter_address() + offset_of!(WgmmaParams, q) as u64;
                bulk_tensor_5d(smem, map, at, self.q.full());
            }
        }
        self.q.advance(buffers);
    }

    /// Copies a block of K.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn copy_k<C: WgmmaConfig>(&mut self, work: &Work<'_>, block: u32) {
        let tile = C::LAYOUT.k(self.kv.buffer);
        // SAFETY: the caller's.
        unsafe { copy_keys::<C>(self.params, self.kv, (offset_of!(WgmmaParams, k), tile), work, block) }
    }

    /// Copies a block of V, after K's.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn copy_v<C: WgmmaConfig>(&mut self, work: &Work<'_>, block: u32) {
        let ring = Ring { barriers: C::LAYOUT.v_ring().barriers, ..self.kv };
        let tile = C::LAYOUT.v(ring.buffer);
        // SAFETY: the caller's.
        unsafe { copy_keys::<C>(self.params, ring, (offset_of!(WgmmaParams, v), tile), work, block) }
        self.kv.advance(C::LAYOUT.stages());
    }
}

/// Copies a block of keys, or of values, into the ring's current buffer, at `tile`; `map` is the tensor map's offset in the
/// parameter block.
///
/// # Safety
/// As for [`Producer::tile`].
#[inline(always)]
unsafe fn copy_keys<C: WgmmaConfig>(
    params: &ForwardParams,
    ring: Ring,
    (map, tile): (usize, u32),
    work: &Work<'_>,
    block: u32,
) {
    // SAFETY: the caller's.
    unsafe {
        ring.wait_empty(C::LAYOUT.stages());
        mbarrier_arrive_expect_tx(ring.full(), C::LAYOUT.kv_bytes());
        if C::RAGGED {
            return copy_ragged_keys::<C>(params, ring, (map, tile), work, block);
        }
        for column in 0..C::K::COLUMNS {
            let at = [column * C::K::COLUMN_WIDTH, block * C::K::ROWS, work.head_kv, work.batch];
            let smem = tile + column * C::K::COLUMN_BYTES;
            bulk_tensor_4d(smem, C::parameter_address() + map as u64, at, ring.full());
        }
    }
}

/// As [`copy_keys`], of a ragged batch, once the barrier expects the block: as many boxes as pages make of it. What lies past the last
/// key of a page, or of packed keys, or in a page that is not there, reads as 0.
///
/// # Safety
/// As for [`copy_keys`].
#[inline(always)]
unsafe fn copy_ragged_keys<C: WgmmaConfig>(
    params: &ForwardParams,
    ring: Ring,
    (map, tile): (usize, u32),
    work: &Work<'_>,
    block: u32,
) {
    let (ragged, sequence) = (&params.ragged, &work.sequence);
    let rows = opaque(ragged.box_rows);
    let mut row = 0;
    // SAFETY: the caller's.
    unsafe {
        let table = PageTable::new(ragged, work.batch);
        while row < C::K::ROWS {
            let key = block * C::K::ROWS + row;
            let (page, within) = match ragged.block_table {
                0 if ragged.cu_seqlens_k == 0 => (work.batch, key),
                0 => (0, sequence.k_start + key),
                _ if key < sequence.seqlen_k => table.page(key),
                // Past the last page.
                _ => (ragged.pages, 0),
            };
            for column in 0..C::K::COLUMNS {
                let at = [column * C::K::COLUMN_WIDTH, within, work.head_kv, page];
                let smem = tile + column * C::K::COLUMN_BYTES + row * C::K::COLUMN_ROW_BYTES;
                bulk_tensor_4d(smem, C::parameter_address() + map as u64, at, ring.full());
            }
            row += rows;
        }
    }
}

/// The producer's part: all tiles of the CTA, one after another.
///
/// # Safety
/// As for [`super::forward::forward_wgmma`], by one thread.
#[inline(always)]
pub(super) unsafe fn produce<C: WgmmaConfig>(params: &ForwardParams) {
    let (tiles, q, kv) = (C::LAYOUT.tile_ring(), C::LAYOUT.q_ring(), C::LAYOUT.k_ring());
    let mut producer = Producer { params, tiles, q, kv };
    // SAFETY: the caller's.
    unsafe {
        if C::PERSISTENT {
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
