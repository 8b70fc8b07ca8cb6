//! The producer: one thread hands out tiles and copies what they need.

use super::ring::{Layout, Ring};
use super::tile::Tile;
use super::{NO_MORE, TILES_AHEAD, WgmmaConfig};
use crate::descriptor;
use crate::forward::rows_of_block;
use crate::geometry;
use crate::params::{ForwardParams, WgmmaParams};
use crate::ptx::bulk::{bulk_tensor_4d, bulk_tensor_5d};
use crate::ptx::mbarrier::{mbarrier_arrive_expect_tx, mbarrier_arrive_if};
use crate::ptx::memory::{atomic_inc, st_shared, st_shared_v4, to_global};
use crate::row::Schedule;
use crate::scheduler::Work;
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
    /// As for [`super::forward_wgmma`], by one thread.
    #[inline(always)]
    unsafe fn finish<C: WgmmaConfig>(&mut self) {
        // SAFETY: the slot is free.
        unsafe {
            self.tiles.wait_empty(TILES_AHEAD);
            // All of it, as all of it is read.
            let slot = Layout::tile_slot(&C::ROW, self.tiles.buffer);
            st_shared_v4(slot, [NO_MORE; 4]);
            st_shared_v4(slot + 16, [NO_MORE; 4]);
            mbarrier_arrive_if(self.tiles.full(), true);
        }
    }

    /// Hands out a tile, and copies its Q, and its K and V block by block, as buffers come free. Returns what `draw` does, which is
    /// called when there are as many blocks left to copy as there are buffers: early enough to have come by the end.
    ///
    /// # Safety
    /// As for [`super::forward_wgmma`], by one thread.
    #[inline(always)]
    unsafe fn tile<C: WgmmaConfig>(&mut self, index: u32, draw: impl Fn() -> u32) -> u32 {
        // SAFETY: the caller's.
        unsafe {
            let tile = Tile::new::<C>(self.params, index);
            self.hand_out::<C>(&tile);
            let Tile { work, blocks } = tile;
            if blocks.is_empty() {
                return draw();
            }
            self.copy_queries::<C>(&work);
            let draw_at = (blocks.first + C::ROW.stages).min(blocks.end);
            let mut drawn = 0;
            let mut block = blocks.end;
            while block > blocks.first {
                if block == draw_at {
                    drawn = draw();
                }
                block -= 1;
                self.copy_k::<C>(&work, block);
                self.copy_v::<C>(&work, block);
            }
            drawn
        }
    }

    /// Tells the consumers of a tile.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn hand_out<C: WgmmaConfig>(&mut self, tile: &Tile) {
        let row = &C::ROW;
        // SAFETY: the slot is free when it is written.
        unsafe {
            self.tiles.wait_empty(TILES_AHEAD);
            tile.write(Layout::tile_slot(row, self.tiles.buffer));
            st_shared(Layout::found(row, self.tiles.buffer), 0);
            mbarrier_arrive_if(self.tiles.full(), true);
        }
        self.tiles.advance(TILES_AHEAD);
    }

    /// Copies a tile's Q.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn copy_queries<C: WgmmaConfig>(&mut self, work: &Work) {
        let row = &C::ROW;
        let buffers = geometry::q_buffers(row);
        let rows = rows_of_block::<C>(self.params);
        let (query, tile_head) = match row.schedule {
            Schedule::Grid | Schedule::Persistent => (work.first_row, work.head_q),
            Schedule::Split => (self.params.group.quotient(work.first_row), work.head_kv),
        };
        // SAFETY: the caller's; the barrier expects just what is copied.
        unsafe {
            self.q.wait_empty(buffers);
            mbarrier_arrive_expect_tx(self.q.full(), rows * row.head_dim * row.dtype.bytes());
            for column in 0..descriptor::columns(row) {
                let at = [column * geometry::column_width(row), 0, query, tile_head, work.batch];
                let smem =
                    Layout::q(row, self.q.buffer) + column * descriptor::column_bytes(row, row.block_m);
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
    unsafe fn copy_k<C: WgmmaConfig>(&mut self, work: &Work, block: u32) {
        let tile = Layout::k(&C::ROW, self.kv.buffer);
        // SAFETY: the caller's.
        unsafe { copy_keys::<C>(self.kv, offset_of!(WgmmaParams, k), tile, work, block) }
    }

    /// Copies a block of V, after K's.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[inline(always)]
    unsafe fn copy_v<C: WgmmaConfig>(&mut self, work: &Work, block: u32) {
        let row = &C::ROW;
        let ring = Ring { barriers: Layout::v_ring(row).barriers, ..self.kv };
        let tile = Layout::v(row, ring.buffer);
        // SAFETY: the caller's.
        unsafe { copy_keys::<C>(ring, offset_of!(WgmmaParams, v), tile, work, block) }
        self.kv.advance(row.stages);
    }
}

/// Copies a block of keys, or of values, into the ring's buffer in hand, at `tile`; `map` is the tensor map's offset in the
/// parameter block.
///
/// # Safety
/// As for [`Producer::tile`].
#[inline(always)]
unsafe fn copy_keys<C: WgmmaConfig>(ring: Ring, map: usize, tile: u32, work: &Work, block: u32) {
    let row = &C::ROW;
    // SAFETY: the caller's.
    unsafe {
        ring.wait_empty(row.stages);
        mbarrier_arrive_expect_tx(ring.full(), Layout::kv_bytes(row));
        for column in 0..descriptor::columns(row) {
            let at = [column * geometry::column_width(row), block * row.block_n, work.head_kv, work.batch];
            let smem = tile + column * descriptor::column_bytes(row, row.block_n);
            bulk_tensor_4d(smem, C::parameter_address() + map as u64, at, ring.full());
        }
    }
}

/// The producer's part: all tiles of the CTA, one after another.
///
/// # Safety
/// As for [`super::forward_wgmma`], by one thread.
#[inline(always)]
pub(super) unsafe fn produce<C: WgmmaConfig>(params: &ForwardParams) {
    let row = &C::ROW;
    let (tiles, q, kv) = (Layout::tile_ring(row), Layout::q_ring(row), Layout::k_ring(row));
    let mut producer = Producer { params, tiles, q, kv };
    // SAFETY: the caller's.
    unsafe {
        if matches!(row.schedule, Schedule::Persistent) {
            let tiles = params.persistent.tiles;
            let mut index = block_idx_x();
            while index < tiles {
                // The first tile of each CTA is its own index, so tickets start at the number of CTAs: every CTA draws one ticket
                // for each tile it works on, which makes as many as there are tiles, and the counter is 0 again. Late in a tile, so
                // that the longest tile that is left goes to the CTA that is done first.
                let ticket =
                    producer.tile::<C>(index, || atomic_inc(to_global(params.persistent.counter), tiles - 1));
                index = ticket + grid_dim_x();
            }
        } else {
            producer.tile::<C>(block_idx_x(), || 0);
        }
        producer.finish::<C>();
    }
}
