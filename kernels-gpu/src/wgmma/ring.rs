//! Buffers in shared memory and their barriers, and where they all lie.

use crate::geometry;
use crate::ptx::mbarrier::{mbarrier_arrive_if, mbarrier_init, mbarrier_wait};
use crate::ptx::memory::dynamic_smem;
use crate::row::{Row, Schedule};

/// Tiles that the producer has published and that are not stored yet.
pub(super) const TILES_AHEAD: u32 = 3;
/// Bytes of an mbarrier.
const BARRIER_BYTES: u32 = 8;
/// Bytes for whether a tile's blocks held anything that was scrubbed: a u32 for each of up to two slices, which keeps the barriers behind aligned.
const FOUND_BYTES: u32 = 8;

/// A ring of buffers in shared memory, each with a barrier that says when it is full and one that says when it is free again.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    /// The barriers: `full` of each buffer, then `empty` of each.
    pub(super) barriers: u32,
    /// The current buffer, and the parity of the round it is in.
    pub(super) buffer: u32,
    pub(super) round: u32,
}

impl Ring {
    #[inline(always)]
    pub(super) const fn new(barriers: u32) -> Self {
        Self { barriers, buffer: 0, round: 0 }
    }

    /// At the buffer that is filled after `filled` others.
    #[inline(always)]
    pub(super) fn at(self, filled: u32, buffers: u32) -> Self {
        Self { buffer: filled % buffers, round: filled / buffers % 2, ..self }
    }

    /// Bytes of the barriers of `buffers` buffers.
    const fn bytes(buffers: u32) -> u32 {
        2 * buffers * BARRIER_BYTES
    }

    /// Initialises the barriers of `buffers` buffers that one thread fills and `readers` warps read.
    ///
    /// # Safety
    /// One thread does so, before all others use them.
    #[inline(always)]
    pub(super) unsafe fn init(self, buffers: u32, readers: u32) {
        // SAFETY: the caller's.
        unsafe { self.init_with_writers(buffers, 1, readers) }
    }

    /// As [`Self::init`], with as many threads that fill each.
    ///
    /// # Safety
    /// As for [`Self::init`].
    #[inline(always)]
    pub(super) unsafe fn init_with_writers(self, buffers: u32, writers: u32, readers: u32) {
        for buffer in 0..buffers {
            // SAFETY: the caller's.
            unsafe {
                mbarrier_init(self.barriers + buffer * BARRIER_BYTES, writers);
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

    /// Waits until the buffer may be written: every reader has released what it held.
    ///
    /// # Safety
    /// The barriers are initialised, and all rounds before were waited for: an mbarrier shows only phase parity, so a skipped phase is
    /// ambiguous.
    #[inline(always)]
    pub(super) unsafe fn wait_empty(self, buffers: u32) {
        // SAFETY: initialised; the parity before the first round counts as over.
        unsafe { mbarrier_wait(self.empty(buffers), self.round ^ 1) }
    }

    /// Waits until the buffer may be read: what was copied has landed, and wgmma and loads of this thread see it.
    ///
    /// # Safety
    /// As for [`Self::wait_empty`].
    #[inline(always)]
    pub(super) unsafe fn wait_full(self) {
        // SAFETY: initialised.
        unsafe { mbarrier_wait(self.full(), self.round) }
    }

    /// The warp has read the buffer.
    ///
    /// # Safety
    /// All lanes of the warp are done with it: loads have returned, and wgmma that read it are waited for. Once a round, by each of the
    /// warps that the barrier counts.
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

/// Where everything lies in shared memory: Q's buffers, K's, V's, then what the producer says of tiles, then the barriers.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    q_bytes: u32,
    q_buffers: u32,
    /// Bytes of a part of K.
    k_bytes: u32,
    v_bytes: u32,
    /// Buffers of K, and of V.
    buffers: u32,
    weights_bytes: u32,
    /// Offset of what lies behind the tiles, or behind the merge buffer that overlays them.
    slots: u32,
    /// Bytes by which the producer says what a tile is.
    slot_bytes: u32,
}

impl Layout {
    pub(super) const fn of(row: &Row) -> Self {
        let layout = Self {
            q_bytes: geometry::tile_bytes(row, row.block_m),
            q_buffers: geometry::q_buffers(row),
            k_bytes: geometry::tile_bytes(row, row.block_n) / geometry::value_groups(row),
            v_bytes: geometry::value_bytes(row),
            buffers: geometry::kv_buffers(row),
            weights_bytes: geometry::weights_bytes(row),
            slots: geometry::work_slots_offset(row),
            slot_bytes: if matches!(row.schedule, Schedule::Ragged) { 64 } else { 32 },
        };
        let stage = layout.k_bytes + layout.v_bytes;
        let weights = geometry::WEIGHTS_BUFFERS * layout.weights_bytes;
        let tiles = layout.q_buffers * layout.q_bytes + layout.buffers * stage + weights;
        assert!(tiles <= layout.slots, "tiles end where the slots start");
        assert!(row.block_n <= 256, "keys' numbers are exact in bfloat16");
        assert!(layout.slots.is_multiple_of(16), "slots are read 16 bytes at a time");
        assert!(
            layout.barriers_end() <= layout.slots + geometry::BARRIER_BYTES
                && layout.slots + geometry::BARRIER_BYTES + geometry::key_numbers_bytes(row)
                    == geometry::smem_bytes(row),
            "the barriers, and behind them the keys' numbers, are the last thing in it"
        );
        assert!(
            layout.q_bytes.is_multiple_of(1024)
                && layout.k_bytes.is_multiple_of(1024)
                && layout.v_bytes.is_multiple_of(1024),
            "the swizzle's pattern"
        );
        layout
    }

    /// The B operand of [`crate::score_fragment::slopes`]: the numbers of a block's keys, in core matrices of eight keys.
    #[inline(always)]
    pub(super) fn key_numbers(&self) -> u32 {
        self.behind_tiles() + geometry::BARRIER_BYTES
    }

    /// Past the last barrier.
    const fn barriers_end(&self) -> u32 {
        let rings = Ring::bytes(self.q_buffers) + Ring::bytes(TILES_AHEAD) + 2 * Ring::bytes(self.buffers);
        let scrubbed = self.buffers * BARRIER_BYTES;
        let weights = if self.weights_bytes > 0 { Ring::bytes(geometry::WEIGHTS_BUFFERS) } else { 0 };
        self.slots + TILES_AHEAD * (self.slot_bytes + FOUND_BYTES) + rings + scrubbed + weights
    }

    /// A buffer of Q.
    #[inline(always)]
    pub(super) fn q(&self, buffer: u32) -> u32 {
        dynamic_smem() + buffer * self.q_bytes
    }

    /// A buffer of K.
    #[inline(always)]
    pub(super) fn k(&self, buffer: u32) -> u32 {
        self.q(self.q_buffers) + buffer * self.k_bytes
    }

    /// A buffer of V.
    #[inline(always)]
    pub(super) fn v(&self, buffer: u32) -> u32 {
        self.k(self.buffers) + buffer * self.v_bytes
    }

    /// A buffer for what a consumer tells the next one of a block.
    #[inline(always)]
    pub(super) fn weights(&self, buffer: u32) -> u32 {
        self.v(self.buffers) + buffer * self.weights_bytes
    }

    #[inline(always)]
    fn behind_tiles(&self) -> u32 {
        dynamic_smem() + self.slots
    }

    /// Where the producer says what a tile is.
    #[inline(always)]
    pub(super) fn tile_slot(&self, buffer: u32) -> u32 {
        self.behind_tiles() + buffer * self.slot_bytes
    }

    /// Whether the scrubbers found anything in a slice of a tile's blocks.
    #[inline(always)]
    pub(super) fn found(&self, buffer: u32, slice: u32) -> u32 {
        self.behind_tiles() + TILES_AHEAD * self.slot_bytes + buffer * FOUND_BYTES + slice * 4
    }

    #[inline(always)]
    pub(super) fn q_ring(&self) -> Ring {
        Ring::new(self.behind_tiles() + TILES_AHEAD * (self.slot_bytes + FOUND_BYTES))
    }

    #[inline(always)]
    pub(super) fn tile_ring(&self) -> Ring {
        Ring::new(self.q_ring().barriers + Ring::bytes(self.q_buffers))
    }

    #[inline(always)]
    pub(super) fn k_ring(&self) -> Ring {
        Ring::new(self.tile_ring().barriers + Ring::bytes(TILES_AHEAD))
    }

    #[inline(always)]
    pub(super) fn v_ring(&self) -> Ring {
        Ring::new(self.k_ring().barriers + Ring::bytes(self.buffers))
    }

    /// The barrier that says that V of a buffer has been scrubbed.
    #[inline(always)]
    pub(super) fn scrubbed(&self, buffer: u32) -> u32 {
        self.v_ring().barriers + Ring::bytes(self.buffers) + buffer * BARRIER_BYTES
    }

    #[inline(always)]
    pub(super) fn weights_ring(&self) -> Ring {
        Ring::new(self.scrubbed(self.buffers))
    }

    /// Buffers of K, and of V.
    #[inline(always)]
    pub(super) fn kv_buffers(&self) -> u32 {
        self.buffers
    }

    /// Bytes of a buffer of K.
    #[inline(always)]
    pub(super) fn k_bytes(&self) -> u32 {
        self.k_bytes
    }

    /// Buffers of Q.
    #[inline(always)]
    pub(super) fn q_buffers(&self) -> u32 {
        self.q_buffers
    }

    /// Bytes of a buffer of V.
    #[inline(always)]
    pub(super) fn v_bytes(&self) -> u32 {
        self.v_bytes
    }
}
