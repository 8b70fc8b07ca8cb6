//! The compile-time shape of a tile in shared memory: what code that reads or writes one needs of a kernel's row.

use crate::tile::swizzle::Swizzle;

/// Bytes of an element: float16 and bfloat16 alike.
const ELEMENT_BYTES: u32 = 2;

/// A tile of Q, K or V: `ROWS` queries or keys of `WIDTH` elements each.
pub trait Shape {
    /// Rows: queries or keys.
    const ROWS: u32;
    /// Elements of a row: head_dim.
    const WIDTH: u32;
    /// Bytes of a row.
    const ROW_BYTES: u32 = Self::WIDTH * ELEMENT_BYTES;
    /// Bytes of the tile.
    const BYTES: u32 = Self::ROWS * Self::ROW_BYTES;
    /// Where the chunks of a row lie, in a tile that is not split into columns.
    const SWIZZLE: Swizzle = Swizzle::new(Self::WIDTH);
    /// Elements that lie side by side in a tile that bulk copies write: such a tile is split into columns of this width, each
    /// a tile of its own with a swizzle that spans its rows.
    const COLUMN_WIDTH: u32 = if Self::WIDTH.is_multiple_of(64) { 64 } else { 32 };
    /// Columns of such a tile.
    const COLUMNS: u32 = Self::WIDTH / Self::COLUMN_WIDTH;
    /// Bytes of a row of a column.
    const COLUMN_ROW_BYTES: u32 = Self::COLUMN_WIDTH * ELEMENT_BYTES;
    /// Bytes of a column.
    const COLUMN_BYTES: u32 = Self::ROWS * Self::COLUMN_ROW_BYTES;
    /// Where the chunks of a row of a column lie.
    const COLUMN_SWIZZLE: Swizzle = Swizzle::new(Self::COLUMN_WIDTH);
    /// k16 steps of a product along head_dim.
    const STEPS: u32 = Self::WIDTH / 16;
}

/// The shape of these sizes.
#[derive(Clone, Copy, Debug)]
pub enum TileOf<const ROWS: u32, const WIDTH: u32> {}

impl<const ROWS: u32, const WIDTH: u32> Shape for TileOf<ROWS, WIDTH> {
    const ROWS: u32 = ROWS;
    const WIDTH: u32 = WIDTH;
}
