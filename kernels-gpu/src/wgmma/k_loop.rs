//! What a consumer holds of a work tile: fragments, and how far its loop over the keys has come.

use super::gemm::{WgmmaTile, pack};
use crate::config::Config;
use crate::element::Element;
use crate::math::mask::RowLimits;
use crate::math::softmax::OnlineSoftmax;
use crate::score::Score;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::KeyBlocks;

/// A consumer's fragments.
pub(super) struct Fragments<W: WarpTile> {
    /// S of a block, and then its P.
    pub(super) s: W::S<[f32; 4]>,
    /// P as an operand.
    pub(super) p: W::P,
    pub(super) acc_o: W::O,
    /// Q of the tile, where it stays in registers.
    pub(super) q: W::Q,
}

impl<W: WgmmaTile> Fragments<W> {
    #[inline(always)]
    pub(super) fn empty() -> Self {
        Self { s: Tiles::splat([0.0; 4]), p: Tiles::splat([0; 4]), acc_o: W::NO_O, q: Tiles::splat([0; 4]) }
    }

    /// Rounds P for the next product.
    #[inline(always)]
    pub(super) fn pack<E: Element>(&mut self) {
        pack::<E, W>(&self.s, &mut self.p);
    }
}

/// A tile's loop over the blocks of keys.
pub(super) struct KLoop<C: Config> {
    pub(super) blocks: KeyBlocks,
    /// The block that S was computed of last; the first one is the last of the keys.
    pub(super) block: u32,
    /// Which keys each row sees; unused in ragged batches.
    pub(super) limits: RowLimits<C::Warp>,
    pub(super) softmax: OnlineSoftmax<C::Warp>,
    /// What the score keeps of the lane's rows.
    pub(super) score_rows: <C::Warp as WarpTile>::Rows<<C::Score as Score>::Row>,
}

impl<C: Config> KLoop<C> {
    /// Whether some row sees the block only in part.
    #[inline(always)]
    pub(super) fn is_partial(&self) -> bool {
        self.blocks.is_partial(self.block)
    }
}
