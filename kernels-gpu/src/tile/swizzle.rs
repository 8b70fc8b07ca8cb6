//! The XOR swizzle of tiles in shared memory: which 16-byte chunk of a row lies where.
//!
//! Shared memory has 32 banks of 4 bytes, so eight 16-byte chunks span all banks once. An ldmatrix phase reads
//! one chunk column of eight neighbouring rows. Rows of a multiple of 128 bytes put such a column into one bank
//! group (an 8-way conflict); rows of an odd multiple of 64 bytes alternate between two. XORing the chunk index
//! with the row index spreads the column over all eight groups and keeps each chunk within its row.

/// The swizzle of a tile whose rows hold a given number of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swizzle {
    chunks_per_row: u32,
}

impl Swizzle {
    /// Bytes of a chunk: what cp.async copies and what a row of an 8×8 matrix takes.
    pub const CHUNK_BYTES: u32 = 16;

    /// The swizzle for rows of `head_dim` 16-bit elements. `head_dim` must be a multiple of 32.
    pub const fn new(head_dim: u32) -> Self {
        assert!(head_dim.is_multiple_of(32));
        Self { chunks_per_row: head_dim / 8 }
    }

    /// Chunks that lie side by side before the pattern repeats: 8 where rows are whole bank cycles, else 4.
    /// A warp copies this many chunks of a row at a time.
    pub const fn span(self) -> u32 {
        if self.chunks_per_row.is_multiple_of(8) { 8 } else { 4 }
    }

    /// What the chunk index of a row is XORed with. Depends on the row modulo 8 only.
    pub const fn mask(self, row: u32) -> u32 {
        if self.span() == 8 { row & 7 } else { (row >> 1) & 3 }
    }

    /// Byte offset of a chunk from the start of the tile.
    pub const fn offset(self, row: u32, chunk: u32) -> u32 {
        (row * self.chunks_per_row + (chunk ^ self.mask(row))) * Self::CHUNK_BYTES
    }

    /// Moves an offset by a number of chunks within its row, for unrolled loops: each step is a constant. The
    /// offset must be that of chunk 0, or of chunk 1 if `chunks` is even: then no bit carries.
    pub const fn advance(self, offset: u32, chunks: u32) -> u32 {
        let (within, beyond) = (chunks % self.span(), chunks / self.span() * self.span());
        (offset ^ (within * Self::CHUNK_BYTES)) + beyond * Self::CHUNK_BYTES
    }
}

/// Shared-memory passes that eight simultaneous 16-byte accesses need: 1 is conflict-free.
pub const fn passes(offsets: [u32; 8]) -> u32 {
    let mut groups = [0u32; 8];
    let mut most = 0;
    let mut i = 0;
    while i < 8 {
        let group = (offsets[i] / Swizzle::CHUNK_BYTES % 8) as usize;
        groups[group] += 1;
        if groups[group] > most {
            most = groups[group];
        }
        i += 1;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::HEAD_DIMS;

    #[test]
    fn swizzling_twice_is_the_identity_and_stays_in_the_row() {
        for head_dim in HEAD_DIMS {
            let swizzle = Swizzle::new(head_dim);
            for row in 0..128 {
                for chunk in 0..head_dim / 8 {
                    let swizzled = chunk ^ swizzle.mask(row);
                    assert!(swizzled < head_dim / 8, "head_dim {head_dim} row {row} chunk {chunk}");
                    assert_eq!(swizzled ^ swizzle.mask(row), chunk);
                }
            }
        }
    }

    #[test]
    fn a_chunk_column_of_eight_rows_has_no_bank_conflict() {
        for head_dim in HEAD_DIMS {
            let swizzle = Swizzle::new(head_dim);
            for first in (0..128).step_by(8) {
                for chunk in 0..head_dim / 8 {
                    let offsets = core::array::from_fn(|i| swizzle.offset(first + i as u32, chunk));
                    assert_eq!(passes(offsets), 1, "head_dim {head_dim} rows from {first} chunk {chunk}");
                }
            }
        }
    }

    #[test]
    fn a_copy_by_eight_neighbouring_threads_has_no_bank_conflict() {
        for head_dim in HEAD_DIMS {
            let swizzle = Swizzle::new(head_dim);
            let span = swizzle.span();
            for first_thread in (0..256).step_by(8) {
                for group in 0..head_dim / 8 / span {
                    let offsets = core::array::from_fn(|i| {
                        let thread = first_thread + i as u32;
                        swizzle.offset(thread / span, thread % span + group * span)
                    });
                    assert_eq!(passes(offsets), 1, "head_dim {head_dim} thread {first_thread}");
                }
            }
        }
    }

    #[test]
    fn advancing_an_offset_is_the_offset_of_the_later_chunk() {
        for head_dim in HEAD_DIMS {
            let swizzle = Swizzle::new(head_dim);
            for row in 0..32 {
                for chunk in 0..head_dim / 8 {
                    let want = swizzle.offset(row, chunk);
                    assert_eq!(swizzle.advance(swizzle.offset(row, 0), chunk), want);
                    assert_eq!(swizzle.advance(swizzle.offset(row, chunk % 2), chunk / 2 * 2), want);
                }
            }
        }
    }

    #[test]
    fn without_a_swizzle_the_count_sees_the_conflict() {
        assert_eq!(passes(core::array::from_fn(|i| i as u32 * 128)), 8);
        assert_eq!(passes(core::array::from_fn(|i| i as u32 * 64)), 4);
    }
}
