//! Copies of tiles from global to shared memory, 16 bytes a thread and step, swizzled.

use crate::element::Element;
use crate::keys::{KeyRows, RaggedKeys};
use crate::math::scrub;
use crate::ptx::cp_async::{cp_async_16, cp_async_16_or_zero};
use crate::ptx::opaque;
use crate::ptx::warp::{shfl_idx_b32, shfl_idx_b64};
use crate::queries::QueryRows;
use crate::shape::Shape;
use crate::tile::smem_tile::SmemTile;
use crate::tile::swizzle::Swizzle;
use core::marker::PhantomData;

/// Starts copying a tile of query rows to `tile`, with zeros for rows past the last and for elements past `width`. Called by all
/// `threads` threads; `thread` is this one's index.
///
/// # Safety
/// All those threads take part, and nobody reads the tile until they have waited for their copies and passed a barrier.
#[inline(always)]
pub unsafe fn copy_queries<S: Shape>(
    queries: &QueryRows<'_>,
    tile: SmemTile<S>,
    width: u32,
    (thread, threads): (u32, u32),
) {
    let swizzle = S::SWIZZLE;
    let (row_bytes, span) = (S::ROW_BYTES, swizzle.span());
    let (first_row, lane_chunk) = (thread / span, thread % span);
    let rows_a_step = threads / span;
    let source = queries.source(lane_chunk * Swizzle::CHUNK_BYTES);
    for step in 0..S::ROWS.div_ceil(rows_a_step) {
        let row = first_row + step * rows_a_step;
        // More threads than chunks: those past the tile have nothing to copy.
        if S::ROWS >= rows_a_step || row < S::ROWS {
            let global_row = queries.first() + row;
            let address = source.address(global_row);
            let source_bytes = if source.exists(global_row) { Swizzle::CHUNK_BYTES } else { 0 };
            for group in 0..row_bytes / (span * Swizzle::CHUNK_BYTES) {
                let along = group * span * Swizzle::CHUNK_BYTES;
                let at = tile.start + swizzle.offset(row, lane_chunk) + along;
                let source_bytes = if (lane_chunk + group * span) * 8 < width { source_bytes } else { 0 };
                // SAFETY: the caller's; nothing is read where the source has no bytes.
                unsafe { cp_async_16_or_zero(at, address + u64::from(along), source_bytes) }
            }
        }
    }
}

/// One thread's part in copying tiles of K or V.
///
/// `span` neighbouring threads copy neighbouring chunks of a row, so that global reads are whole 128-byte (or
/// 64-byte) segments. A step moves all threads down by a multiple of 8 rows, which the swizzle does not see.
#[derive(Clone, Copy, Debug)]
pub struct TileCopy<S: Shape> {
    rows: KeyRows,
    /// The global address of this thread's first chunk in the tile that is copied next.
    source: u64,
    /// This thread's first row in the tile.
    row: u32,
    /// The offset of this thread's first chunk in the tile in shared memory.
    smem_offset: u32,
    /// This one of the threads that copy.
    thread: u32,
    /// Threads that copy.
    threads: u32,
    shape: PhantomData<S>,
}

/// The most groups of chunks that each thread copies of a row whose addresses are all kept at a time.
const LONG_GROUPS: u32 = 4;

/// Beside the address of a row, which is a multiple of 16: there is such a row.
const EXISTS: u64 = 1;

/// Where a thread copies rows of K or V of a ragged batch to.
#[derive(Clone, Copy, Debug)]
pub struct RaggedTile {
    /// Its first chunk in the tile in shared memory.
    at: u32,
    row_bytes: u32,
    /// Elements of a row.
    width: u32,
}

impl<S: Shape> TileCopy<S> {
    /// For tiles of `rows`, the first one at row `first_row`; `thread` of `threads`.
    #[inline(always)]
    pub fn new(rows: KeyRows, first_row: u32, (thread, threads): (u32, u32)) -> Self {
        let swizzle = S::SWIZZLE;
        let (row, chunk) = (thread / swizzle.span(), thread % swizzle.span());
        Self {
            rows,
            source: rows.address(first_row + row, chunk * Swizzle::CHUNK_BYTES),
            row,
            smem_offset: swizzle.offset(row, chunk),
            thread,
            threads,
            shape: PhantomData,
        }
    }

    /// Starts copying the tile, of which all rows exist, to `tile`; the next one is the one before it.
    ///
    /// # Safety
    /// All threads take part, and the rows lie in the tensor. All have read what the tile held (a barrier lies between), and nobody
    /// reads it until they have waited for their copies and passed a barrier.
    #[inline(always)]
    pub unsafe fn copy(&mut self, tile: SmemTile<S>) {
        self.each_chunk(|_, smem_offset, source| {
            // SAFETY: the caller's; swizzled offsets and strides are multiples of 16.
            unsafe { cp_async_16(tile.start + smem_offset, source) }
        });
        self.step_back();
    }

    /// As [`Self::copy`], with zeros for rows from `valid_rows` on, which may lie outside of the tensor.
    ///
    /// # Safety
    /// As for [`Self::copy`], for the rows below `valid_rows`.
    #[inline(always)]
    pub unsafe fn copy_bounded(&mut self, tile: SmemTile<S>, valid_rows: u32) {
        self.each_chunk(|row, smem_offset, source| {
            let source_bytes = if row < valid_rows { Swizzle::CHUNK_BYTES } else { 0 };
            // SAFETY: the caller's; nothing is read where the source has no bytes.
            unsafe { cp_async_16_or_zero(tile.start + smem_offset, source, source_bytes) }
        });
        self.step_back();
    }

    /// As [`Self::copy_bounded`], with zeros for elements past `width`, too; the next tile stays where it is.
    ///
    /// # Safety
    /// As for [`Self::copy`], for the rows below `valid_rows`.
    #[inline(always)]
    pub unsafe fn copy_within(&self, tile: SmemTile<S>, valid_rows: u32, width: u32) {
        let span = S::SWIZZLE.span();
        let chunk = self.thread % span;
        self.each_chunk(|row, smem_offset, source| {
            let group = (smem_offset - self.smem_offset) % S::ROW_BYTES / Swizzle::CHUNK_BYTES;
            let exists = (row < valid_rows) & ((chunk + group) * 8 < width);
            let source_bytes = if exists { Swizzle::CHUNK_BYTES } else { 0 };
            // SAFETY: the caller's; nothing is read where the source has no bytes.
            unsafe { cp_async_16_or_zero(tile.start + smem_offset, source, source_bytes) }
        });
    }

    /// As [`Self::copy_within`], which asks of each chunk whether it exists: where all do, without asking.
    ///
    /// # Safety
    /// As for [`Self::copy_within`].
    #[inline(always)]
    pub unsafe fn copy_whole_or_within(&self, tile: SmemTile<S>, valid_rows: u32, width: u32) {
        // SAFETY: the caller's.
        unsafe {
            if valid_rows >= S::ROWS && width >= S::WIDTH {
                self.each_chunk(|_, smem_offset, source| cp_async_16(tile.start + smem_offset, source));
            } else {
                self.copy_within(tile, valid_rows, width);
            }
        }
    }

    /// The page of one of the rows that the warp's threads copy of the block of keys from `first_key` on, of which `valid_rows` exist: of a
    /// lane's rows, lane by lane one step each.
    ///
    /// # Safety
    /// As for [`RaggedKeys::row`].
    #[inline(always)]
    pub unsafe fn page_of_lane(&self, keys: &RaggedKeys<'_>, (first_key, valid_rows): (u32, u32)) -> u32 {
        let span = S::SWIZZLE.span();
        let row = self.row + self.thread % span * (self.threads / span);
        // SAFETY: the caller's.
        if row < S::ROWS.min(valid_rows) { unsafe { keys.page(first_key + row) } } else { 0 }
    }

    /// The tile that starts at `start`, of rows of `width` elements, for [`Self::copy_ragged`].
    #[inline(always)]
    pub fn ragged_tile(&self, start: u32, width: u32) -> RaggedTile {
        RaggedTile { at: start + self.smem_offset, row_bytes: S::ROW_BYTES, width }
    }

    /// Starts copying rows of a ragged batch, in no order, to a tile of K, one of V, or both: the first `valid_rows` from key `first_key` on,
    /// with zeros for all others and for keys whose page is not there. `page` is what [`Self::page_of_lane`] gave for these keys.
    ///
    /// # Safety
    /// As for [`Self::copy`], of the tiles, which have as many rows; the keys are the sequence's.
    #[inline(always)]
    pub unsafe fn copy_ragged(
        &self,
        [k, v]: [Option<RaggedTile>; 2],
        keys: &RaggedKeys<'_>,
        (first_key, valid_rows): (u32, u32),
        page: u32,
    ) {
        let span = S::SWIZZLE.span();
        let rows_a_step = self.threads / span;
        debug_assert!(S::ROWS.div_ceil(rows_a_step) <= span, "a lane for each step has its row");
        // A lane works out the addresses of its own row, that of one step, and the others hear of them; where rows are so long that two
        // addresses would not fit the registers, they hear of its page.
        let is_long = S::ROW_BYTES / (span * Swizzle::CHUNK_BYTES) > LONG_GROUPS;
        let rows_of = |page: u32, row: u32| {
            if row < valid_rows { keys.row_in(page, first_key + row) } else { None }
        };
        let own = rows_of(page, self.row + self.thread % span * rows_a_step);
        let [own_k, own_v] = own.map_or([0; 2], |rows| rows.map(|row| row | EXISTS));
        let mut step = 0;
        // A loop, and not unrolled: addresses of many rows at a time would fill the registers.
        while step < opaque(S::ROWS.div_ceil(rows_a_step)) {
            let (lane, row) = (self.thread % 32 / span * span + step, self.row + step * rows_a_step);
            let heard = if is_long { rows_of(shfl_idx_b32(page, lane), row) } else { None };
            let [k_row, v_row] = heard.unwrap_or([0; 2]);
            let copy = |tile: Option<RaggedTile>, of_page: u64, own: u64| {
                let Some(RaggedTile { at, row_bytes, width }) = tile else { return };
                let (source, exists) = if is_long {
                    (of_page, heard.is_some())
                } else {
                    let source = shfl_idx_b64(own, lane);
                    (source & !EXISTS, source & EXISTS != 0)
                };
                // More threads than chunks: those past the tile have nothing to copy.
                if S::ROWS >= rows_a_step || row < S::ROWS {
                    let to = at + step * rows_a_step * row_bytes;
                    // SAFETY: the caller's.
                    unsafe { self.copy_row((source, exists, to), row_bytes, width) }
                }
            };
            copy(k, k_row, own_k);
            copy(v, v_row, own_v);
            step += 1;
        }
    }

    /// Starts copying this thread's chunks of a row from the row's first byte to its first chunk in shared memory, with zeros for elements past
    /// `width` and for a row that does not exist.
    ///
    /// # Safety
    /// As for [`Self::copy`].
    #[inline(always)]
    unsafe fn copy_row(&self, (from, exists, at): (u64, bool, u32), row_bytes: u32, width: u32) {
        let span = S::SWIZZLE.span();
        let chunk = self.thread % span;
        // Compared anew in each step: otherwise a condition a chunk is kept.
        let width = opaque(width);
        let groups = row_bytes / (span * Swizzle::CHUNK_BYTES);
        let mut group = 0;
        // A loop where a row is long: as many addresses and sizes at a time would not fit the registers.
        while group < if groups > LONG_GROUPS { opaque(groups) } else { groups } {
            let along = group * span * Swizzle::CHUNK_BYTES;
            let exists = exists & ((chunk + group * span) * 8 < width);
            let bytes = if exists { Swizzle::CHUNK_BYTES } else { 0 };
            // SAFETY: the caller's.
            unsafe {
                cp_async_16_or_zero(at + along, from + u64::from(along + chunk * Swizzle::CHUNK_BYTES), bytes)
            }
            group += 1;
        }
    }

    /// Replaces NaN and infinities by 0 in the chunks that this thread has copied to `tile`.
    ///
    /// # Safety
    /// This thread has waited for its copies, and no other thread reads the tile before the next barrier.
    #[inline(always)]
    pub unsafe fn scrub<E: Element>(&self, tile: SmemTile<S>) {
        let swizzle = S::SWIZZLE;
        let rows_a_step = self.threads / swizzle.span();
        let mut row = self.row;
        // Loops, not unrolled code: this runs hardly ever, beside fragments that fill the registers.
        while row < opaque(S::ROWS) {
            let mut at = tile.start + self.smem_offset + (row - self.row) * S::ROW_BYTES;
            let row_end = at + opaque(S::ROW_BYTES);
            while at < row_end {
                // SAFETY: the caller's; the chunk is this thread's own.
                unsafe { scrub::scrub_chunk::<E>(at) }
                at += swizzle.span() * Swizzle::CHUNK_BYTES;
            }
            row += rows_a_step;
        }
    }

    /// Moves to the tile before this one.
    #[inline(always)]
    fn step_back(&mut self) {
        self.source = self.source.wrapping_add_signed(self.rows.distance(-i64::from(S::ROWS)));
    }

    #[inline(always)]
    fn each_chunk(&self, mut copy: impl FnMut(u32, u32, u64)) {
        let swizzle = S::SWIZZLE;
        let span = swizzle.span();
        let rows_a_step = self.threads / span;
        let mut source = self.source;
        for step in 0..S::ROWS.div_ceil(rows_a_step) {
            // More threads than chunks: those past the tile have nothing to copy.
            if S::ROWS >= rows_a_step || self.row < S::ROWS {
                let smem_offset = self.smem_offset + step * rows_a_step * S::ROW_BYTES;
                for group in 0..S::ROW_BYTES / (span * Swizzle::CHUNK_BYTES) {
                    let along = group * span * Swizzle::CHUNK_BYTES;
                    copy(self.row + step * rows_a_step, smem_offset + along, source + u64::from(along));
                }
            }
            source = source.wrapping_add_signed(self.rows.distance(rows_a_step.into()));
        }
    }
}
