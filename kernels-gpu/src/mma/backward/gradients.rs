//! What both passes do with a warp's stationary rows: the products of a step, and the way out of its gradients.

use super::stream::Stage;
use crate::backward::nonfinite::{self, Destination};
use crate::config::BackwardConfig;
use crate::element::F32Accumulation;
use crate::math::epilogue::store_rows;
use crate::mma::gemm::{Queries, p_v, q_kt};
use crate::ptx::warp::{sync_threads_or, sync_warp};
use crate::shape::Shape;
use crate::tile::position::Position;
use crate::tile::smem_tile::{LaneView, SmemTile};
use crate::tile::warp_tile::WarpTile;
use cuda_std::thread::sync_threads;

/// S, or dP, of a warp's rows and a streamed block.
pub type Scores<C> = <<C as BackwardConfig>::Warp as WarpTile>::S<[f32; 4]>;
/// A gradient of a warp's rows.
pub type Gradient<C> = <<C as BackwardConfig>::Warp as WarpTile>::O;

/// A warp's stationary rows: of Q and dO, or of K and V.
pub struct Stationary<C: BackwardConfig> {
    rows: [Queries<C::Stationary, C::Warp>; 2],
    position: Position,
}

impl<C: BackwardConfig> Stationary<C> {
    /// Those of the two tiles from `start` on in shared memory.
    ///
    /// # Safety
    /// All 32 lanes take part and the tiles have been written. They stay as they are while this is used.
    #[inline(always)]
    pub unsafe fn new(start: u32, position: Position) -> Self {
        let view = LaneView::a_operand(position.warp_row, position.lane);
        let rows = [0, 1].map(|which| {
            let tile = SmemTile::at(start + which * C::Stationary::BYTES);
            // SAFETY: the caller's.
            unsafe { Queries::new(tile, view, which < C::IN_REGISTERS) }
        });
        Self { rows, position }
    }

    /// S: the product of the first tile with that of a stage.
    ///
    /// # Safety
    /// All 32 lanes take part and the stage has landed.
    #[inline(always)]
    pub unsafe fn scores(&self, stage: &Stage<C>) -> Scores<C> {
        // SAFETY: the caller's.
        unsafe { self.product(0, stage.first()) }
    }

    /// dP: the product of the second tile with that of a stage.
    ///
    /// # Safety
    /// As for [`Self::scores`].
    #[inline(always)]
    pub unsafe fn probability_gradients(&self, stage: &Stage<C>) -> Scores<C> {
        // SAFETY: the caller's.
        unsafe { self.product(1, stage.second()) }
    }

    /// # Safety
    /// As for [`Self::scores`].
    #[inline(always)]
    unsafe fn product(&self, which: usize, tile: SmemTile<C::Streamed>) -> Scores<C> {
        let Position { warp_row, lane, .. } = self.position;
        let (rows, columns) = (LaneView::a_operand(warp_row, lane), LaneView::b_operand(0, lane));
        // SAFETY: the caller's.
        unsafe { q_kt::<C::Element, F32Accumulation, _, _, _>(&self.rows[which], rows, tile, columns) }
    }
}

/// Adds the product of P or dS with a streamed tile to a gradient.
///
/// # Safety
/// All 32 lanes take part and the tile has landed.
#[inline(always)]
pub unsafe fn add_product<C: BackwardConfig>(
    gradient: &mut Gradient<C>,
    factors: &Scores<C>,
    tile: SmemTile<C::Streamed>,
    lane: u32,
) {
    if C::LOADS_WAIT {
        // No load is moved before it.
        sync_warp();
    }
    // SAFETY: the caller's.
    unsafe {
        p_v::<C::Element, F32Accumulation, _, C::Warp>(gradient, factors, tile, LaneView::a_operand(0, lane))
    }
}

/// Writes a gradient times `factor`, through the warp's own rows of the stationary tile from `tile` on.
///
/// # Safety
/// All 32 lanes take part, nobody else uses the warp's rows of the tile from here on, and the destination is writable.
#[inline(always)]
pub unsafe fn store<C: BackwardConfig>(
    gradient: Gradient<C>,
    factor: f32,
    tile: u32,
    position: Position,
    to: &Destination,
) {
    if to.sums.are_wanted() {
        // SAFETY: the caller's.
        return unsafe { to.sums.store::<C::Warp>(&gradient, factor, position.warp_row, position.lane) };
    }
    let address = |row: u32| {
        let row = to.range.0 + row;
        (row < to.range.1).then(|| to.rows.address(row, 0))
    };
    let tile = SmemTile::<C::Stationary>::at(tile);
    let is_within = |chunk| chunk * 8 < to.width;
    // SAFETY: the caller's.
    unsafe {
        store_rows::<C::Element, _, C::Warp>(gradient, |_| [factor; 2], tile, position, is_within, address)
    }
}

/// Keeps what is not finite in tiles of a stage out of the products along its rows; whether there was any. Of the tiles' start and bytes, and of
/// the thread's number and how many there are.
///
/// # Safety
/// All threads of the CTA take part, once they have computed S and dP of the stage.
#[inline(always)]
pub unsafe fn keep_out<C: BackwardConfig>(tiles: (u32, u32), threads: (u32, u32)) -> bool {
    // SAFETY: the caller's.
    unsafe { nonfinite::keep_out::<C::Element>(tiles, threads, sync_threads_or, || sync_threads()) }
}
