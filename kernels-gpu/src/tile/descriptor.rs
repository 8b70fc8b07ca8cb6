//! Matrix descriptors of wgmma: where an operand's tile lies in shared memory, and how (PTX ISA, "Asynchronous Warpgroup
//! Level Matrix Shared Memory Layout" and "Matrix Descriptor Format").
//!
//! A tile is kept in columns of [`Shape::COLUMN_WIDTH`] elements. A column's rows lie one after
//! another, 128 or 64 bytes each, and the swizzle of that span permutes the 16-byte chunks of a row by the row's number. Eight
//! rows make up one pattern of the swizzle, which starts at a multiple of its size.

use crate::shape::Shape;

/// Bytes that the 14-bit fields of a descriptor count in.
const UNIT: u32 = 16;
/// Shared memory addresses have 18 bits in a descriptor.
const ADDRESS_MASK: u32 = 0x3_ffff;

/// A matrix descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(u64);

impl Descriptor {
    const fn new<S: Shape>(leading_bytes: u32) -> Self {
        let swizzle = match S::COLUMN_ROW_BYTES {
            128 => 1,
            64 => 2,
            _ => panic!("no swizzle spans such rows"),
        };
        let stride_bytes = 8 * S::COLUMN_ROW_BYTES;
        Self(((leading_bytes / UNIT) as u64) << 16 | ((stride_bytes / UNIT) as u64) << 32 | swizzle << 62)
    }

    /// For an operand whose products run along head_dim, as Q and K in Q·Kᵀ ("K-major"): the stride leads from eight rows to the
    /// next eight, and the leading dimension is not read.
    pub const fn along_head_dim<S: Shape>() -> Self {
        Self::new::<S>(UNIT)
    }

    /// For an operand whose products run along the rows, as V in P·V ("MN-major"): the leading
    /// dimension leads from one column to the next, the stride from eight rows to the next eight.
    pub const fn along_rows<S: Shape>() -> Self {
        Self::new::<S>(S::COLUMN_BYTES)
    }

    /// For an operand in core matrices of 8 rows of 8 elements, 16 bytes a row, without a swizzle: the leading dimension leads from eight
    /// numbers that products run along to the next eight, the stride along the other dimension.
    pub const fn of_core_matrices(along_products: u32, across: u32) -> Self {
        Self(((along_products / UNIT) as u64) << 16 | ((across / UNIT) as u64) << 32)
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

/// Bytes from the start of a tile to the 16 elements of head_dim that are `step` · 16 elements in.
pub const fn head_dim_step<S: Shape>(step: u32) -> u32 {
    let steps = S::COLUMN_WIDTH / 16;
    step / steps * S::COLUMN_BYTES + step % steps * 16 * (S::COLUMN_ROW_BYTES / S::COLUMN_WIDTH)
}

/// Bytes from the start of a tile to the 16 rows that are `step` · 16 rows down.
pub const fn row_step<S: Shape>(step: u32) -> u32 {
    16 * step * S::COLUMN_ROW_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::TileOf;

    type Wide = TileOf<128, 128>;
    type Narrow = TileOf<128, 96>;

    fn field(descriptor: Descriptor, from: u32, bits: u32) -> u64 {
        descriptor.bits() >> from & ((1 << bits) - 1)
    }

    #[test]
    fn fields_stand_where_the_isa_has_them() {
        let k = Descriptor::along_head_dim::<Wide>().at(0x2_0400);
        assert_eq!((field(k, 0, 14), field(k, 32, 14), field(k, 62, 2)), (0x2040, 64, 1));
        let v = Descriptor::along_rows::<TileOf<176, 128>>().at(1024);
        assert_eq!((field(v, 0, 14), field(v, 16, 14), field(v, 32, 14)), (64, 176 * 128 / 16, 64));
        let narrow = Descriptor::along_rows::<TileOf<64, 96>>();
        assert_eq!((field(narrow, 16, 14), field(narrow, 32, 14), field(narrow, 62, 2)), (256, 32, 2));
        let core = Descriptor::of_core_matrices(1024, 128).at(2048);
        assert_eq!((field(core, 0, 14), field(core, 16, 14)), (128, 64));
        assert_eq!((field(core, 32, 14), field(core, 62, 2)), (8, 0));
        assert_eq!(field(k, 49, 3), 0, "tiles start where the swizzle's pattern does");
    }

    #[test]
    fn steps_walk_through_columns_and_rows() {
        let steps: Vec<u32> = (0..8).map(head_dim_step::<Wide>).collect();
        assert_eq!(steps, [0, 32, 64, 96, 16384, 16416, 16448, 16480]);
        let steps: Vec<u32> = (0..6).map(head_dim_step::<TileOf<64, 96>>).collect();
        assert_eq!(steps, [0, 32, 4096, 4128, 8192, 8224]);
        assert_eq!((row_step::<Wide>(3), row_step::<Narrow>(3)), (6144, 3072));
        assert_eq!(Wide::COLUMNS * Wide::COLUMN_BYTES, Wide::BYTES);
        assert_eq!(Narrow::COLUMNS * Narrow::COLUMN_BYTES, Narrow::BYTES);
    }

    #[test]
    fn advancing_adds_to_the_address() {
        let k = Descriptor::along_head_dim::<Wide>();
        assert_eq!(k.at(1024).advance(16416), k.at(1024 + 16416));
    }
}
