//! What a consumer holds of a tile: fragments, and how far it has come through the keys.

use super::ring::Ring;
use crate::element::Element;
use crate::mask::RowLimits;
use crate::row::HEAD_DIMS;
use crate::scheduler::KeyBlocks;
use crate::softmax::OnlineSoftmax;
use crate::tile::{OutputFragment, QueryFragment, ScoreFragment};

/// A consumer's fragments.
pub(super) struct Fragments<const N: usize, const D: usize, const P: usize> {
    /// S of a block, and then its P.
    pub(super) s: ScoreFragment<1, N>,
    /// P as an operand.
    pub(super) p: [[u32; 4]; P],
    pub(super) acc_o: OutputFragment<1, D>,
    /// Q of the tile, where it stays in registers.
    pub(super) q: QueryFragment<1, QUERY_STEPS>,
}

/// k16 steps of the widest head_dim. What a row's own head_dim does not reach is never touched, and takes no registers.
pub(super) const QUERY_STEPS: usize = HEAD_DIMS[HEAD_DIMS.len() - 1] as usize / 16;

impl<const N: usize, const D: usize, const P: usize> Fragments<N, D, P> {
    pub(super) const EMPTY: Self =
        Self { s: [[[0.0; 4]; N]], p: [[0; 4]; P], acc_o: [[[0.0; 4]; D]], q: [[[0; 4]; QUERY_STEPS]] };

    /// Rounds P for the next product.
    #[inline(always)]
    pub(super) fn pack<E: Element>(&mut self) {
        let s = &self.s[0];
        self.p = core::array::from_fn(|k| {
            let (left, right) = (s[2 * k], s[2 * k + 1]);
            [
                E::pack(left[0], left[1]),
                E::pack(left[2], left[3]),
                E::pack(right[0], right[1]),
                E::pack(right[2], right[3]),
            ]
        });
    }
}

/// A tile's way through the blocks of keys.
pub(super) struct Walk {
    /// The tile's place among those that were handed out.
    pub(super) tile: Ring,
    pub(super) blocks: KeyBlocks,
    /// The block in hand; the first one is the last of the keys.
    pub(super) block: u32,
    pub(super) limits: RowLimits<1>,
    pub(super) softmax: OnlineSoftmax<1>,
}

/// Which blocks a step masks, as a constant of it: none.
pub(super) const NEVER: u8 = 0;
/// All.
pub(super) const ALWAYS: u8 = 1;
/// Those that some row sees only in part.
pub(super) const AS_NEEDED: u8 = 2;
