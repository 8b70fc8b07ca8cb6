//! Applies the mask to the scores of a block that some rows see only in part; [`crate::visible`] says what they see.

use crate::divisor::Divisor;
use crate::ptx::opaque;
use crate::scheduler::Rows;
use crate::sequence::Sequence;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::{MaskParams, Visible};

/// For each row a lane shares, the first key it does not see. Covers the causal mask and the ragged tail alike.
#[derive(Clone, Copy, Debug)]
pub enum RowLimits<W: WarpTile> {
    /// Rows of one head: each row's limit follows from the first one's, before that is clamped to the sequence. One
    /// register instead of two a tile, as the loop over partly visible blocks has hardly any left.
    OfHead {
        /// Limit of the lane's first row, unclamped.
        first: i32,
        /// Keys of the sequence.
        seqlen_k: u32,
    },
    /// Any rows: the limit of each.
    EachRow(W::Rows<u32>),
    /// Rows of a ragged batch: where each one's keys begin and end, and sink tokens, which it sees before they begin, too.
    Interval(W::Rows<[u32; 2]>, u32),
}

impl<W: WarpTile> RowLimits<W> {
    /// For a lane whose first row is `first_row`; `group` packed heads make up the rows of a query.
    #[inline(always)]
    pub fn new(
        mask: MaskParams<'_>,
        sequence: &Sequence<'_>,
        rows: Rows,
        first_row: u32,
        group: &Divisor,
    ) -> Self {
        match rows {
            Rows::OfHead if !mask.hides() => {
                // So far beyond every length that a warp's rows can be added.
                Self::OfHead { first: i32::MAX - 64, seqlen_k: sequence.seqlen_k }
            }
            Rows::OfHead => {
                let first = mask.unclamped_end(first_row, sequence);
                Self::OfHead { first, seqlen_k: sequence.seqlen_k }
            }
            Rows::Packed => Self::each_row(mask, sequence, rows, first_row, group),
        }
    }

    /// As [`Self::new`], in a register a row: for kernels that have them to spare.
    #[inline(always)]
    pub fn each_row(
        mask: MaskParams<'_>,
        sequence: &Sequence<'_>,
        rows: Rows,
        first_row: u32,
        group: &Divisor,
    ) -> Self {
        let row = |m: usize, half: usize| first_row + (m * 16 + half * 8) as u32;
        let mut limits = W::Rows::splat(sequence.seqlen_k);
        if mask.hides() {
            for m in 0..W::M {
                for half in 0..2 {
                    let query = rows.query(row(m, half), *group);
                    limits.row_mut(m)[half] = mask.of_query(query, sequence).end;
                }
            }
        }
        Self::EachRow(limits)
    }

    /// The limit of a row, derived anew at each call.
    #[inline(always)]
    fn of(&self, m: usize, half: usize) -> u32 {
        match *self {
            Self::OfHead { first, seqlen_k } => {
                let row = (m * 16 + half * 8) as i32;
                (opaque(first as u32) as i32 + row).clamp(0, seqlen_k as i32) as u32
            }
            Self::EachRow(limits) => limits.row(m)[half],
            Self::Interval(intervals, _) => intervals.row(m)[half][1],
        }
    }

    /// Of a ragged batch; `visible` gives the keys that m16 tile `m`, half `half` of the lane's rows sees.
    #[inline(always)]
    pub fn interval(sink_tokens: u32, visible: impl Fn(usize, usize) -> Visible) -> Self {
        let interval = |m, half| {
            let Visible { begin, end } = visible(m, half);
            [begin, end]
        };
        Self::Interval(W::Rows::from_fn(interval), sink_tokens)
    }

    /// From where on a lane's row sees keys, counted from a key: before it none but sink tokens, which end at the second number.
    #[inline(always)]
    fn begin(&self, m: usize, half: usize, from: u32) -> Option<[i32; 2]> {
        match *self {
            Self::Interval(intervals, sink_tokens) => {
                Some([intervals.row(m)[half][0], sink_tokens].map(|key| key.wrapping_sub(from) as i32))
            }
            _ => None,
        }
    }

    /// Sets the scores of keys that a row does not see to −∞. The fragment's columns start at `first_key`.
    #[inline(always)]
    pub fn apply(&self, s: &mut W::S<[f32; 4]>, first_key: u32, lane: u32) {
        let lane_key = first_key + lane % 4 * 2;
        for m in 0..W::M {
            // Counted from the lane's first key, so that each score is compared with a constant.
            let limits = [0, 1].map(|half| self.of(m, half).wrapping_sub(lane_key) as i32);
            let begins = [0, 1].map(|half| self.begin(m, half, lane_key));
            for (n, tile) in s.row_mut(m).iter_mut().enumerate() {
                for (i, score) in tile.iter_mut().enumerate() {
                    let key = (n * 8 + i % 2) as i32;
                    let is_before = |[begin, sinks]: [i32; 2]| key < begin && key >= sinks;
                    if key >= limits[i / 2] || begins[i / 2].is_some_and(is_before) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
