//! Matrix descriptors of wgmma: where an operand's tile lies in shared memory, and how (PTX ISA, "Asynchronous Warpgroup
//! Level Matrix Shared Memory Layout" and "Matrix Descriptor Format").
//!
//! A tile of `rows` × head_dim is kept in columns of [`geometry::column_width`] elements. A column's rows lie one after
//! another, 128 or 64 bytes each, and the swizzle of that span permutes the 16-byte chunks of a row by the row's number. Eight
//! rows make up one pattern of the swizzle, which starts at a multiple of its size.

use crate::geometry;
use crate::row::Row;

/// Bytes that the 14-bit fields of a descriptor count in.
const UNIT: u32 = 16;
/// Shared memory addresses have 18 bits in a descriptor.
const ADDRESS_MASK: u32 = 0x3_ffff;

/// A matrix descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(u64);

/// Bytes of a row of a column.
pub const fn column_row_bytes(row: &Row) -> u32 {
    geometry::column_width(row) * row.dtype.bytes()
}

/// Bytes of a column of a tile of `rows` rows.
pub const fn column_bytes(row: &Row, rows: u32) -> u32 {
    rows * column_row_bytes(row)
}

/// Columns of a tile.
pub const fn columns(row: &Row) -> u32 {
    row.head_dim / geometry::column_width(row)
}

impl Descriptor {
    const fn new(row: &Row, leading_bytes: u32) -> Self {
        let swizzle = match column_row_bytes(row) {
            128 => 1,
            64 => 2,
            _ => panic!("no swizzle spans such rows"),
        };
        let stride_bytes = 8 * column_row_bytes(row);
        Self(((leading_bytes / UNIT) as u64) << 16 | ((stride_bytes / UNIT) as u64) << 32 | swizzle << 62)
    }

    /// For an operand whose products run along head_dim, as Q and K in Q·Kᵀ ("K-major"): the stride leads from eight rows to the
    /// next eight, and the leading dimension is not read.
    pub const fn along_head_dim(row: &Row) -> Self {
        Self::new(row, UNIT)
    }

    /// For an operand whose products run along the rows, as V in P·V ("MN-major"), in a tile of `rows` rows: the leading
    /// dimension leads from one column to the next, the stride from eight rows to the next eight.
    pub const fn along_rows(row: &Row, rows: u32) -> Self {
        Self::new(row, column_bytes(row, rows))
    }

    /// The descriptor of a tile that starts at `smem`, for one whose address is still 0.
    #[inline(always)]
    pub const fn at(self, smem: u32) -> Self {
        Self(self.0 | ((smem & ADDRESS_MASK) / UNIT) as u64)
    }

    /// The same `bytes` further on, which must be a multiple of 16 and stay within shared memory.
    #[inline(always)]
    pub const fn advance(self, bytes: u32) -> Self {
        Self(self.0 + (bytes / UNIT) as u64)
    }

    /// The 64 bits.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// Bytes from the start of a tile of `rows` rows to the 16 elements of head_dim that are `step` · 16 elements in.
pub const fn head_dim_step(row: &Row, rows: u32, step: u32) -> u32 {
    let steps = geometry::column_width(row) / 16;
    step / steps * column_bytes(row, rows) + step % steps * 16 * row.dtype.bytes()
}

/// Bytes from the start of a tile to the 16 rows that are `step` · 16 rows down.
pub const fn row_step(row: &Row, step: u32) -> u32 {
    16 * step * column_row_bytes(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Isa, tests::GOOD};

    const WIDE: Row = Row { isa: Isa::Wgmma, head_dim: 128, block_m: 128, block_n: 128, warps: 12, ..GOOD };
    const NARROW: Row = Row { head_dim: 96, ..WIDE };

    fn field(descriptor: Descriptor, from: u32, bits: u32) -> u64 {
        descriptor.bits() >> from & ((1 << bits) - 1)
    }

    #[test]
    fn fields_stand_where_the_isa_has_them() {
        let k = Descriptor::along_head_dim(&WIDE).at(0x2_0400);
        assert_eq!((field(k, 0, 14), field(k, 32, 14), field(k, 62, 2)), (0x2040, 64, 1));
        let v = Descriptor::along_rows(&WIDE, 176).at(1024);
        assert_eq!((field(v, 0, 14), field(v, 16, 14), field(v, 32, 14)), (64, 176 * 128 / 16, 64));
        let narrow = Descriptor::along_rows(&NARROW, 64);
        assert_eq!((field(narrow, 16, 14), field(narrow, 32, 14), field(narrow, 62, 2)), (256, 32, 2));
        assert_eq!(field(k, 49, 3), 0, "tiles start where the swizzle's pattern does");
    }

    #[test]
    fn steps_walk_through_columns_and_rows() {
        let steps: Vec<u32> = (0..8).map(|step| head_dim_step(&WIDE, 128, step)).collect();
        assert_eq!(steps, [0, 32, 64, 96, 16384, 16416, 16448, 16480]);
        let steps: Vec<u32> = (0..6).map(|step| head_dim_step(&NARROW, 64, step)).collect();
        assert_eq!(steps, [0, 32, 4096, 4128, 8192, 8224]);
        assert_eq!((row_step(&WIDE, 3), row_step(&NARROW, 3)), (6144, 3072));
        assert_eq!(columns(&WIDE) * column_bytes(&WIDE, 128), geometry::tile_bytes(&WIDE, 128));
        assert_eq!(columns(&NARROW) * column_bytes(&NARROW, 128), geometry::tile_bytes(&NARROW, 128));
    }

    #[test]
    fn advancing_adds_to_the_address() {
        let k = Descriptor::along_head_dim(&WIDE);
        assert_eq!(k.at(1024).advance(16416), k.at(1024 + 16416));
    }
}
