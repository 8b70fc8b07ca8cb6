//! Copies of tiles from global to shared memory, 16 bytes a thread and step, swizzled.

use crate::forward::Config;
use crate::geometry;
use crate::nonfinite;
use crate::params::{ForwardParams, Strides};
use crate::ptx::cp_async::{cp_async_16, cp_async_16_or_zero};
use crate::ptx::memory::to_global;
use crate::ptx::opaque;
use crate::scheduler::Work;
use crate::swizzle::Swizzle;

/// Starts copying a tile of query rows to `tile`, with zeros for rows past the last.
///
/// # Safety
/// All threads of the CTA take part, nobody reads the tile, and Q is as `params` says.
#[inline(always)]
pub unsafe fn copy_queries<C: Config>(params: &ForwardParams, work: &Work, tile: u32, thread: u32) {
    let swizzle = Swizzle::new(C::ROW.head_dim);
    let (row_bytes, span) = (C::ROW.head_dim * C::ROW.dtype.bytes(), swizzle.span());
    let (first_row, lane_chunk) = (thread / span, thread % span);
    let rows_a_step = geometry::threads(&C::ROW) / span;
    let strides = &params.q_strides;
    let first_head = i64::from(work.batch) * strides.batch
        + i64::from(work.head_q) * strides.head
        + i64::from(lane_chunk * Swizzle::CHUNK_BYTES);
    let base = to_global(params.q).wrapping_add_signed(first_head);
    let count = C::ROWS.count(params);
    for step in 0..C::ROW.block_m.div_ceil(rows_a_step) {
        let row = first_row + step * rows_a_step;
        // More threads than chunks: those past the tile have nothing to copy.
        if C::ROW.block_m >= rows_a_step || row < C::ROW.block_m {
            let (query, head) = C::ROWS.query_and_head(params, work.first_row + row);
            let offset = i64::from(head) * strides.head + i64::from(query) * strides.row;
            let source = base.wrapping_add_signed(offset);
            let source_bytes = if work.first_row + row < count { Swizzle::CHUNK_BYTES } else { 0 };
            for group in 0..row_bytes / (span * Swizzle::CHUNK_BYTES) {
                let along = group * span * Swizzle::CHUNK_BYTES;
                let at = tile + swizzle.offset(row, lane_chunk) + along;
                // SAFETY: the caller's; nothing is read where the source has no bytes.
                unsafe { cp_async_16_or_zero(at, source + u64::from(along), source_bytes) }
            }
        }
    }
}

/// One thread's part in copying tiles of K or V.
///
/// `span` neighbouring threads copy neighbouring chunks of a row, so that global reads are whole 128-byte (or
/// 64-byte) segments. A step moves all threads down by a multiple of 8 rows, which the swizzle does not see.
#[derive(Clone, Copy)]
pub struct TileCopy {
    /// The global address of this thread's first chunk in the tile that is copied next.
    source: u64,
    row_stride: i64,
    /// This thread's first row in the tile.
    row: u32,
    /// The offset of this thread's first chunk in the tile in shared memory.
    smem_offset: u32,
}

impl TileCopy {
    /// For tiles of the tensor at `base` with `strides`, the first one at row `first_row` of `head` of `batch`.
    #[inline(always)]
    pub fn new<C: Config>(
        base: u64,
        strides: &Strides,
        (batch, head, first_row): (u32, u32, u32),
        thread: u32,
    ) -> Self {
        let swizzle = Swizzle::new(C::ROW.head_dim);
        let (row, chunk) = (thread / swizzle.span(), thread % swizzle.span());
        let offset = i64::from(batch) * strides.batch
            + i64::from(head) * strides.head
            + i64::from(first_row + row) * strides.row
            + i64::from(chunk * Swizzle::CHUNK_BYTES);
        Self {
            source: base.wrapping_add_signed(offset),
            row_stride: strides.row,
            row,
            smem_offset: swizzle.offset(row, chunk),
        }
    }

    /// Starts copying the tile of `rows` rows to `tile`. All its rows exist.
    ///
    /// # Safety
    /// All threads of the CTA take part, nobody reads the tile, and the rows lie in the tensor.
    #[inline(always)]
    pub unsafe fn copy<C: Config>(&self, tile: u32, rows: u32) {
        self.each_chunk::<C>(rows, |_, smem_offset, source| {
            // SAFETY: the caller's; swizzled offsets and strides are multiples of 16.
            unsafe { cp_async_16(tile + smem_offset, source) }
        });
    }

    /// As [`Self::copy`], with zeros for rows from `valid_rows` on, which may lie outside of the tensor.
    ///
    /// # Safety
    /// As for [`Self::copy`], for the rows below `valid_rows`.
    #[inline(always)]
    pub unsafe fn copy_bounded<C: Config>(&self, tile: u32, rows: u32, valid_rows: u32) {
        self.each_chunk::<C>(rows, |row, smem_offset, source| {
            let source_bytes = if row < valid_rows { Swizzle::CHUNK_BYTES } else { 0 };
            // SAFETY: the caller's; nothing is read where the source has no bytes.
            unsafe { cp_async_16_or_zero(tile + smem_offset, source, source_bytes) }
        });
    }

    /// Replaces NaN and infinities by 0 in the chunks that this thread has copied to `tile`.
    ///
    /// # Safety
    /// This thread has waited for its copies, and no other thread reads the tile before the next barrier.
    #[inline(always)]
    pub unsafe fn scrub<C: Config>(&self, tile: u32, rows: u32) {
        let swizzle = Swizzle::new(C::ROW.head_dim);
        let row_bytes = C::ROW.head_dim * C::ROW.dtype.bytes();
        let rows_a_step = geometry::threads(&C::ROW) / swizzle.span();
        let mut row = self.row;
        // Loops, not unrolled code: this runs hardly ever, beside fragments that fill the registers.
        while row < opaque(rows) {
            let mut at = tile + self.smem_offset + (row - self.row) * row_bytes;
            let row_end = at + opaque(row_bytes);
            while at < row_end {
                // SAFETY: the caller's; the chunk is this thread's own.
                unsafe { nonfinite::scrub_chunk::<C::Element>(at) }
                at += swizzle.span() * Swizzle::CHUNK_BYTES;
            }
            row += rows_a_step;
        }
    }

    /// Moves to the tile `rows` rows before this one.
    #[inline(always)]
    pub fn step_back(&mut self, rows: u32) {
        self.source = self.source.wrapping_add_signed(-i64::from(rows) * self.row_stride);
    }

    #[inline(always)]
    fn each_chunk<C: Config>(&self, rows: u32, mut copy: impl FnMut(u32, u32, u64)) {
        let swizzle = Swizzle::new(C::ROW.head_dim);
        let (row_bytes, span) = (C::ROW.head_dim * C::ROW.dtype.bytes(), swizzle.span());
        let rows_a_step = geometry::threads(&C::ROW) / span;
        let mut source = self.source;
        for step in 0..rows.div_ceil(rows_a_step) {
            // More threads than chunks: those past the tile have nothing to copy.
            if rows >= rows_a_step || self.row < rows {
                let smem_offset = self.smem_offset + step * rows_a_step * row_bytes;
                for group in 0..row_bytes / (span * Swizzle::CHUNK_BYTES) {
                    let along = group * span * Swizzle::CHUNK_BYTES;
                    copy(self.row + step * rows_a_step, smem_offset + along, source + u64::from(along));
                }
            }
            source = source.wrapping_add_signed(i64::from(rows_a_step) * self.row_stride);
        }
    }
}
