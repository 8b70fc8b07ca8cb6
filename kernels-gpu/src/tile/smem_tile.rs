//! Tiles in shared memory, and the places in them that a lane reads operands from.

use super::fragment::{ldmatrix_a_source, ldmatrix_b_source};
use crate::ptx::ldmatrix::{ldmatrix_x4, ldmatrix_x4_trans};
use crate::shape::Shape;
use core::marker::PhantomData;

/// A tile of shape `S` in shared memory, swizzled.
#[derive(Debug)]
pub struct SmemTile<S> {
    /// Where it starts, in the shared window.
    pub start: u32,
    shape: PhantomData<S>,
}

// By hand, as a derive would ask the same of the shape.
impl<S> Clone for SmemTile<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for SmemTile<S> {}

impl<S: Shape> SmemTile<S> {
    /// The tile that starts at `start`.
    #[inline(always)]
    pub fn at(start: u32) -> Self {
        Self { start, shape: PhantomData }
    }

    /// The 16×16 elements at `row16` · 16 rows and `column16` · 16 elements from the view's start.
    ///
    /// # Safety
    /// All 32 lanes take part. The tile has been written: by copies that this thread waited for, and a barrier behind them.
    #[inline(always)]
    pub unsafe fn load(self, view: LaneView<S>, row16: usize, column16: usize) -> [u32; 4] {
        // SAFETY: the caller's; offsets are multiples of 16.
        unsafe { ldmatrix_x4(self.address(view, row16, column16)) }
    }

    /// As [`Self::load`], each 8×8 matrix transposed.
    ///
    /// # Safety
    /// As for [`Self::load`].
    #[inline(always)]
    pub unsafe fn load_trans(self, view: LaneView<S>, row16: usize, column16: usize) -> [u32; 4] {
        // SAFETY: the caller's; offsets are multiples of 16.
        unsafe { ldmatrix_x4_trans(self.address(view, row16, column16)) }
    }

    #[inline(always)]
    fn address(self, view: LaneView<S>, row16: usize, column16: usize) -> u32 {
        let along = S::SWIZZLE.advance(view.offset, 2 * column16 as u32);
        self.start + along + row16 as u32 * 16 * S::ROW_BYTES
    }
}

/// A lane's view of a tile whose rows are queries or keys.
#[derive(Debug)]
pub struct LaneView<S> {
    offset: u32,
    shape: PhantomData<S>,
}

// By hand, as a derive would ask the same of the shape.
impl<S> Clone for LaneView<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for LaneView<S> {}

impl<S: Shape> LaneView<S> {
    /// For A operands from rows starting at `first_row`, and, transposed, for B operands of P·V.
    #[inline(always)]
    pub fn a_operand(first_row: u32, lane: u32) -> Self {
        let (row, chunk) = ldmatrix_a_source(lane);
        Self { offset: S::SWIZZLE.offset(first_row + row, chunk), shape: PhantomData }
    }

    /// For B operands of Q·Kᵀ from keys starting at `first_row`.
    #[inline(always)]
    pub fn b_operand(first_row: u32, lane: u32) -> Self {
        let (row, chunk) = ldmatrix_b_source(lane);
        Self { offset: S::SWIZZLE.offset(first_row + row, chunk), shape: PhantomData }
    }
}
