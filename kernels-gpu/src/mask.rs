//! Masks the scores of a block that some rows see only in part.

use crate::params::ForwardParams;
use crate::scheduler::{Rows, Work};
use crate::tile::ScoreFragment;

/// For each row a lane shares, the first key it does not see. Covers the causal mask and the ragged tail alike.
#[derive(Clone, Copy)]
pub struct RowLimits<const M: usize>([[u32; 2]; M]);

impl<const M: usize> RowLimits<M> {
    /// For the warp whose rows start `warp_row` rows into the tile.
    #[inline(always)]
    pub fn new(params: &ForwardParams, rows: Rows, work: &Work, warp_row: u32, lane: u32) -> Self {
        let row = |m: usize, half: usize| {
            work.first_row + warp_row + m as u32 * 16 + half as u32 * 8 + lane / 4
        };
        let limit = |m, half| rows.visible_end(params, row(m, half), work.seqlen_k);
        Self(core::array::from_fn(|m| core::array::from_fn(|half| limit(m, half))))
    }

    /// Sets the scores of keys that a row does not see to −∞. The fragment's columns start at `first_key`.
    #[inline(always)]
    pub fn apply<const N: usize>(&self, s: &mut ScoreFragment<M, N>, first_key: u32, lane: u32) {
        let lane_key = first_key + lane % 4 * 2;
        for m in 0..M {
            for (n, tile) in s[m].iter_mut().enumerate() {
                for (i, score) in tile.iter_mut().enumerate() {
                    let key = lane_key + n as u32 * 8 + i as u32 % 2;
                    if key >= self.0[m][i / 2] {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
