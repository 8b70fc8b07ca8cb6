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
}

/// Where the keys of each row of a lane begin, in ragged batches; what is before them is hidden but for sink tokens.
#[derive(Clone, Copy, Debug)]
pub struct RowBegins<W: WarpTile> {
    /// The first key of each row.
    pub begin: W::Rows<u32>,
    /// Sink tokens.
    pub sink_tokens: u32,
}

impl<W: WarpTile> RowBegins<W> {
    /// All rows see keys from the first on.
    pub const NONE: Self = Self { begin: W::NO_BEGIN, sink_tokens: 0 };
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
        }
    }

    /// Of a ragged batch; `visible` gives the keys that m16 tile `m`, half `half` of the lane's rows sees.
    #[inline(always)]
    pub fn of_intervals(sink_tokens: u32, visible: impl Fn(usize, usize) -> Visible) -> (Self, RowBegins<W>) {
        let (mut begin, mut end) = (W::Rows::splat(0), W::Rows::splat(0));
        for m in 0..W::M {
            for half in 0..2 {
                let row = visible(m, half);
                begin.row_mut(m)[half] = row.begin;
                end.row_mut(m)[half] = row.end;
            }
        }
        (Self::EachRow(end), RowBegins { begin, sink_tokens })
    }

    /// Sets the scores of keys that a row does not see to −∞: those past its limit, and in ragged batches those before `begins`. The fragment's columns start at `first_key`.
    #[inline(always)]
    pub fn apply(&self, begins: Option<&RowBegins<W>>, s: &mut W::S<[f32; 4]>, first_key: u32, lane: u32) {
        let lane_key = first_key + lane % 4 * 2;
        for m in 0..W::M {
            // Counted from the lane's first key, so that each score is compared with a constant.
            let limits = [0, 1].map(|half| self.of(m, half).wrapping_sub(lane_key) as i32);
            let relative = |key: u32| key.wrapping_sub(lane_key) as i32;
            let begin = |half: usize| begins.map_or(i32::MIN, |begins| relative(begins.begin.row(m)[half]));
            let (begin, sinks) =
                ([begin(0), begin(1)], begins.map_or(i32::MIN, |begins| relative(begins.sink_tokens)));
            for (n, tile) in s.row_mut(m).iter_mut().enumerate() {
                for (i, score) in tile.iter_mut().enumerate() {
                    let key = (n * 8 + i % 2) as i32;
                    // Not `&&` and `||`, which would be branches.
                    if (key >= limits[i / 2]) | ((key < begin[i / 2]) & (key >= sinks)) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// A bit for each key of the lane's rows that the row sees, in a fragment whose columns start at `first_key`: a third of the instructions
    /// of [`Self::apply`], and worked out before there are scores.
    #[inline(always)]
    pub fn seen(&self, begins: &RowBegins<W>, first_key: u32, lane: u32) -> SeenKeys<W> {
        const { assert!(<W::S<[f32; 4]> as Tiles<[f32; 4]>>::N <= TILES_OF_WORD, "a word a row") }
        let before = |key: u32| bits_before(key.wrapping_sub(first_key + lane % 4 * 2) as i32);
        SeenKeys(Tiles::from_fn(|m, half| {
            let begin = before(begins.begin.row(m)[half]) & !before(begins.sink_tokens);
            before(self.of(m, half)) & !begin
        }))
    }
}

/// A bit for each of a lane's keys that a row sees.
#[derive(Debug)]
pub struct SeenKeys<W: WarpTile>(W::Rows<u32>);

impl<W: WarpTile> SeenKeys<W> {
    /// All keys.
    #[inline(always)]
    pub fn all() -> Self {
        Self(Tiles::splat(u32::MAX))
    }

    /// Sets the scores of all other keys to −∞.
    #[inline(always)]
    pub fn hide_others(&self, s: &mut W::S<[f32; 4]>) {
        for m in 0..W::M {
            for (n, tile) in s.row_mut(m).iter_mut().enumerate() {
                for (i, score) in tile.iter_mut().enumerate() {
                    if self.0.row(m)[i / 2] & 1 << (n * 2 + i % 2) == 0 {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

/// Tiles of eight keys of which a word has a bit for each of a lane's keys, two a tile.
const TILES_OF_WORD: usize = 16;

/// The bits of a lane's keys before `key`, which is counted from the lane's first: 0, 1, 8, 9, 16, …
#[inline(always)]
fn bits_before(key: i32) -> u32 {
    let keys = key.clamp(0, TILES_OF_WORD as i32 * 8) as u32;
    let count = keys / 8 * 2 + (keys % 8).min(2);
    ((1u64 << count) - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::bits_before;

    #[test]
    fn a_bit_stands_for_each_key_before() {
        for key in -300..300 {
            let keys = (0..32).map(|bit| bit / 2 * 8 + bit % 2);
            let bits = keys.enumerate().map(|(bit, at)| u32::from(at < key) << bit).sum::<u32>();
            assert_eq!(bits_before(key), bits, "before {key}");
        }
    }
}
