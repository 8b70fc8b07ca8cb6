//! Fragments in registers, and the places in shared memory that a lane reads them from.

use crate::forward::Config;
use crate::fragment::{ldmatrix_a_source, ldmatrix_b_source};
use crate::ptx::ldmatrix::{ldmatrix_x4, ldmatrix_x4_trans};
use crate::swizzle::Swizzle;

/// A warp's part of S or P: `M` m16 tiles by `N` n8 tiles, four elements a lane in each.
pub type ScoreFragment<const M: usize, const N: usize> = [[[f32; 4]; N]; M];
/// A warp's part of O: `M` m16 tiles by `D` n8 tiles along head_dim.
pub type OutputFragment<const M: usize, const D: usize> = [[[f32; 4]; D]; M];
/// A warp's part of Q: `M` m16 tiles by `K` k16 steps, as A operands.
pub type QueryFragment<const M: usize, const K: usize> = [[[u32; 4]; K]; M];

/// Bytes from one row of a tile to the next.
const fn row_bytes<C: Config>() -> u32 {
    C::ROW.head_dim * C::ROW.dtype.bytes()
}

/// A lane's view of a tile in shared memory whose rows are queries or keys.
#[derive(Clone, Copy)]
pub struct LaneView {
    offset: u32,
}

impl LaneView {
    /// For A operands from rows starting at `first_row`, and, transposed, for B operands of P·V.
    #[inline(always)]
    pub fn a_operand<C: Config>(first_row: u32, lane: u32) -> Self {
        let (row, chunk) = ldmatrix_a_source(lane);
        Self { offset: Swizzle::new(C::ROW.head_dim).offset(first_row + row, chunk) }
    }

    /// For B operands of Q·Kᵀ from keys starting at `first_row`.
    #[inline(always)]
    pub fn b_operand<C: Config>(first_row: u32, lane: u32) -> Self {
        let (row, chunk) = ldmatrix_b_source(lane);
        Self { offset: Swizzle::new(C::ROW.head_dim).offset(first_row + row, chunk) }
    }

    /// The 16×16 elements at `row16` · 16 rows and `column16` · 16 elements from the view's start.
    ///
    /// # Safety
    /// All 32 lanes take part and the tile at `tile` has been written.
    #[inline(always)]
    pub unsafe fn load<C: Config>(self, tile: u32, row16: usize, column16: usize) -> [u32; 4] {
        // SAFETY: the caller's; offsets are multiples of 16.
        unsafe { ldmatrix_x4(self.address::<C>(tile, row16, column16)) }
    }

    /// As [`Self::load`], each 8×8 matrix transposed.
    ///
    /// # Safety
    /// As for [`Self::load`].
    #[inline(always)]
    pub unsafe fn load_trans<C: Config>(self, tile: u32, row16: usize, column16: usize) -> [u32; 4] {
        // SAFETY: the caller's; offsets are multiples of 16.
        unsafe { ldmatrix_x4_trans(self.address::<C>(tile, row16, column16)) }
    }

    #[inline(always)]
    fn address<C: Config>(self, tile: u32, row16: usize, column16: usize) -> u32 {
        let along = Swizzle::new(C::ROW.head_dim).advance(self.offset, 2 * column16 as u32);
        tile + along + row16 as u32 * 16 * row_bytes::<C>()
    }
}
