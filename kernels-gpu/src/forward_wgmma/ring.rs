//! Buffers in shared memory and their barriers, and where they all lie.

use super::{TILE_SLOT_BYTES, TILES_AHEAD};
use crate::geometry;
use crate::ptx::mbarrier::{mbarrier_arrive_if, mbarrier_init, mbarrier_wait};
use crate::ptx::memory::dynamic_smem;
use crate::row::Row;

/// Bytes of an mbarrier.
const BARRIER_BYTES: u32 = 8;
/// Bytes for whether a tile's blocks held anything that was scrubbed: a u32, and what keeps the barriers behind aligned.
const FOUND_BYTES: u32 = 8;

/// A ring of buffers in shared memory, each with a barrier that says when it is full and one that says when it is free again.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    /// The barriers: `full` of each buffer, then `empty` of each.
    pub(super) barriers: u32,
    /// The buffer in hand, and the parity of the round it is in.
    pub(super) buffer: u32,
    pub(super) round: u32,
}

impl Ring {
    #[inline(always)]
    pub(super) const fn new(barriers: u32) -> Self {
        Self { barriers, buffer: 0, round: 0 }
    }

    /// Bytes of the barriers of `buffers` buffers.
    const fn bytes(buffers: u32) -> u32 {
        2 * buffers * BARRIER_BYTES
    }

    /// Initialises the barriers of `buffers` buffers that `readers` warps read.
    ///
    /// # Safety
    /// One thread does so, before all others use them.
    #[inline(always)]
    pub(super) unsafe fn init(self, buffers: u32, readers: u32) {
        for buffer in 0..buffers {
            // SAFETY: the caller's.
            unsafe {
                mbarrier_init(self.barriers + buffer * BARRIER_BYTES, 1);
                mbarrier_init(self.barriers + (buffers + buffer) * BARRIER_BYTES, readers);
            }
        }
    }

    #[inline(always)]
    pub(super) fn full(self) -> u32 {
        self.barriers + self.buffer * BARRIER_BYTES
    }

    #[inline(always)]
    pub(super) fn empty(self, buffers: u32) -> u32 {
        self.barriers + (buffers + self.buffer) * BARRIER_BYTES
    }

    /// Waits until the buffer in hand may be written.
    #[inline(always)]
    pub(super) unsafe fn wait_empty(self, buffers: u32) {
        // SAFETY: initialised; the parity before the first round counts as over.
        unsafe { mbarrier_wait(self.empty(buffers), self.round ^ 1) }
    }

    /// Waits until the buffer in hand may be read.
    #[inline(always)]
    pub(super) unsafe fn wait_full(self) {
        // SAFETY: initialised.
        unsafe { mbarrier_wait(self.full(), self.round) }
    }

    /// The warp has read the buffer in hand.
    #[inline(always)]
    pub(super) unsafe fn release(self, buffers: u32, lane: u32) {
        // SAFETY: one lane of each warp that reads.
        unsafe { mbarrier_arrive_if(self.empty(buffers), lane == 0) }
    }

    /// On to the next buffer.
    #[inline(always)]
    pub(super) fn advance(&mut self, buffers: u32) {
        self.buffer += 1;
        if self.buffer == buffers {
            self.buffer = 0;
            self.round ^= 1;
        }
    }

    /// On by `count` buffers.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32, buffers: u32) {
        let past = self.buffer + count;
        self.buffer = past % buffers;
        self.round ^= past / buffers % 2;
    }
}

/// Where everything lies in shared memory.
pub(super) struct Layout;

impl Layout {
    const fn q_bytes(row: &Row) -> u32 {
        geometry::tile_bytes(row, row.block_m)
    }

    pub(super) const fn kv_bytes(row: &Row) -> u32 {
        geometry::tile_bytes(row, row.block_n)
    }

    #[inline(always)]
    pub(super) fn q(row: &Row, buffer: u32) -> u32 {
        dynamic_smem() + buffer * Self::q_bytes(row)
    }

    #[inline(always)]
    pub(super) fn k(row: &Row, buffer: u32) -> u32 {
        Self::q(row, geometry::q_buffers(row)) + buffer * Self::kv_bytes(row)
    }

    #[inline(always)]
    pub(super) fn v(row: &Row, buffer: u32) -> u32 {
        Self::k(row, row.stages + buffer)
    }

    #[inline(always)]
    fn barriers(row: &Row) -> u32 {
        dynamic_smem() + geometry::work_slots_offset(row)
    }

    #[inline(always)]
    pub(super) fn q_ring(row: &Row) -> Ring {
        Ring::new(Self::barriers(row) + TILES_AHEAD * (TILE_SLOT_BYTES + FOUND_BYTES))
    }

    /// Whether the scrubbers found anything in a tile's blocks.
    #[inline(always)]
    pub(super) fn found(row: &Row, buffer: u32) -> u32 {
        Self::barriers(row) + TILES_AHEAD * TILE_SLOT_BYTES + buffer * FOUND_BYTES
    }

    /// The barrier that says that V of a buffer has been scrubbed.
    #[inline(always)]
    pub(super) fn scrubbed(row: &Row, buffer: u32) -> u32 {
        Self::v_ring(row).barriers + Ring::bytes(row.stages) + buffer * BARRIER_BYTES
    }

    #[inline(always)]
    pub(super) fn tile_ring(row: &Row) -> Ring {
        Ring::new(Self::q_ring(row).barriers + Ring::bytes(geometry::q_buffers(row)))
    }

    #[inline(always)]
    pub(super) fn tile_slot(row: &Row, buffer: u32) -> u32 {
        Self::barriers(row) + buffer * TILE_SLOT_BYTES
    }

    #[inline(always)]
    pub(super) fn k_ring(row: &Row) -> Ring {
        Ring::new(Self::tile_ring(row).barriers + Ring::bytes(TILES_AHEAD))
    }

    #[inline(always)]
    pub(super) fn v_ring(row: &Row) -> Ring {
        Ring::new(Self::k_ring(row).barriers + Ring::bytes(row.stages))
    }
}
