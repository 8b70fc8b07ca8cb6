//! Masks the scores of a block that some rows see only in part.

use crate::params::ForwardParams;
use crate::ptx::opaque;
use crate::scheduler::{Rows, Work};
use crate::tile::ScoreFragment;

/// For each row a lane shares, the first key it does not see. Covers the causal mask and the ragged tail alike.
#[derive(Clone, Copy)]
pub enum RowLimits<const M: usize> {
    /// Rows of one head: each row's limit follows from the first one's, before that is clamped to the sequence. One
    /// register instead of two a tile, as the loop over partly visible blocks has hardly any left.
    OfHead {
        /// Limit of the lane's first row, unclamped.
        first: i32,
        /// Keys of the sequence.
        seqlen_k: u32,
    },
    /// Any rows: the limit of each.
    EachRow([[u32; 2]; M]),
}

impl<const M: usize> RowLimits<M> {
    /// For the warp whose rows start `warp_row` rows into the tile.
    #[inline(always)]
    pub fn new(params: &ForwardParams, rows: Rows, work: &Work, warp_row: u32, lane: u32) -> Self {
        let first_row = work.first_row + warp_row + lane / 4;
        match rows {
            Rows::OfHead if params.causal == 0 => {
                // So far beyond every length that a warp's rows can be added.
                Self::OfHead { first: i32::MAX - 64, seqlen_k: work.seqlen_k }
            }
            Rows::OfHead => {
                // Rows and lengths are below 2^31, and so is the difference either way.
                let first = (first_row + 1).wrapping_add(work.seqlen_k).wrapping_sub(params.seqlen_q);
                Self::OfHead { first: first as i32, seqlen_k: work.seqlen_k }
            }
            Rows::Packed => Self::each_row(params, rows, work, warp_row, lane),
        }
    }

    /// As [`Self::new`], in a register a row: for kernels that have them to spare.
    #[inline(always)]
    pub fn each_row(params: &ForwardParams, rows: Rows, work: &Work, warp_row: u32, lane: u32) -> Self {
        let first_row = work.first_row + warp_row + lane / 4;
        let row = |m: usize, half: usize| first_row + (m * 16 + half * 8) as u32;
        let limit = |m, half| rows.visible_end(params, row(m, half), work.seqlen_k);
        Self::EachRow(core::array::from_fn(|m| core::array::from_fn(|half| limit(m, half))))
    }

    /// The limit of a row, derived anew at each call.
    #[inline(always)]
    fn of(&self, m: usize, half: usize) -> u32 {
        match *self {
            Self::OfHead { first, seqlen_k } => {
                let row = (m * 16 + half * 8) as i32;
                (opaque(first as u32) as i32 + row).clamp(0, seqlen_k as i32) as u32
            }
            Self::EachRow(limits) => limits[m][half],
        }
    }

    /// Sets the scores of keys that a row does not see to −∞. The fragment's columns start at `first_key`.
    #[inline(always)]
    pub fn apply<const N: usize>(&self, s: &mut ScoreFragment<M, N>, first_key: u32, lane: u32) {
        let lane_key = first_key + lane % 4 * 2;
        for m in 0..M {
            // Counted from the lane's first key, so that each score is compared with a constant.
            let limits = [0, 1].map(|half| self.of(m, half).wrapping_sub(lane_key) as i32);
            for (n, tile) in s[m].iter_mut().enumerate() {
                for (i, score) in tile.iter_mut().enumerate() {
                    if (n * 8 + i % 2) as i32 >= limits[i / 2] {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
