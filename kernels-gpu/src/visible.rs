//! Which keys a query sees, and which blocks of keys a tile therefore works on. The mask is run-time data, decided here and
//! nowhere else.

use crate::params::ForwardParams;
use crate::sequence::Sequence;

/// The keys that a query sees: all those before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// The first key that it does not see.
    pub end: u32,
}

impl Visible {
    /// Blocks of `block_n` keys that hold any of them.
    #[inline(always)]
    pub fn blocks(self, block_n: u32) -> u32 {
        self.end.div_ceil(block_n)
    }

    /// Blocks of `block_n` keys that hold nothing else.
    #[inline(always)]
    pub fn full_blocks(self, block_n: u32) -> u32 {
        self.end / block_n
    }
}

/// What the launch says of the mask. In the parameter block: read where it is used, and not kept in registers until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskParams<'a> {
    /// 1 for the bottom-right aligned causal mask: query i sees key j where j ≤ i + seqlen_k − seqlen_q.
    pub causal: &'a u32,
}

impl<'a> MaskParams<'a> {
    /// That of a launch.
    #[inline(always)]
    pub fn of(params: &'a ForwardParams) -> Self {
        Self { causal: &params.causal }
    }

    /// Whether it hides any key of a sequence from any query.
    #[inline(always)]
    pub fn hides(self) -> bool {
        *self.causal != 0
    }

    /// The keys that a query sees under a mask that [`Self::hides`] any. Queries past the last exist in a ragged block.
    #[inline(always)]
    pub fn of_query(self, query: u32, sequence: &Sequence<'_>) -> Visible {
        let seqlen_k = sequence.seqlen_k;
        // Bottom-right alignment: the last query sees every key. Lengths are below 2^31, so the sum fits.
        Visible { end: (query + 1 + seqlen_k).saturating_sub(*sequence.seqlen_q).min(seqlen_k) }
    }

    /// As [`Self::of_query`] under a mask that hides anything, before it is clamped to the sequence: the next query's is greater by 1, so
    /// that what is clamped after rows were added is right for them too.
    #[inline(always)]
    pub fn unclamped_end(self, query: u32, sequence: &Sequence<'_>) -> i32 {
        // Queries and lengths are below 2^31, and so is the difference either way.
        (query + 1).wrapping_add(sequence.seqlen_k).wrapping_sub(*sequence.seqlen_q) as i32
    }
}

/// Blocks of keys that a tile works on: `first..end`, of which `first..full` are seen entirely by every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBlocks {
    /// The first block.
    pub first: u32,
    /// Past the last block that every row sees entirely; it may lie outside of `first..end`.
    pub full: u32,
    /// Past the last block that any row sees in part. `first` or less where there is nothing to do.
    pub end: u32,
}

impl KeyBlocks {
    /// Those of them that belong to a split of `split_blocks` blocks.
    #[inline(always)]
    pub fn of_split(self, split: u32, split_blocks: u32) -> Self {
        let first = split * split_blocks;
        Self { first, full: self.full, end: self.end.min(first + split_blocks) }
    }

    /// Whether there is nothing to do.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.end <= self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_full_or_partial_as_counting_pairs_says() {
        let lengths = [1, 2, 31, 32, 33, 63, 64, 65, 100, 128, 129];
        for causal in [false, true] {
            let mask = MaskParams { causal: &causal.into() };
            for (q, k) in lengths.iter().flat_map(|&q| lengths.iter().map(move |&k| (q, k))) {
                let sequence = Sequence { seqlen_q: &q, seqlen_k: k };
                let all = Visible { end: k };
                let visible = |query| if mask.hides() { mask.of_query(query, &sequence) } else { all };
                let sees = |query: u32, key: u32| key < k && (!causal || key + q <= query + k);
                for first in (0..q).step_by(64) {
                    let queries = first..(first + 64).min(q);
                    let end = visible(queries.end - 1).blocks(32);
                    let blocks = KeyBlocks { first: 0, full: visible(first).full_blocks(32), end };
                    for block in 0..k.div_ceil(32) + 1 {
                        let mut keys = block * 32..block * 32 + 32;
                        let any = queries.clone().any(|query| keys.clone().any(|key| sees(query, key)));
                        let all = queries.clone().all(|query| keys.all(|key| sees(query, key)));
                        assert_eq!(block < blocks.end, any, "q {q} k {k} causal {causal} block {block}");
                        assert!(block >= blocks.full || all, "q {q} k {k} causal {causal} block {block}");
                    }
                    assert!(blocks.full <= blocks.end);
                }
            }
        }
    }

    #[test]
    fn clamped_after_rows_were_added_is_each_rows_own() {
        {
            let causal = true;
            let mask = MaskParams { causal: &1 };
            for (q, k) in [(1, 1), (5, 9), (9, 5), (70, 3), (3, 70), (64, 64)] {
                let sequence = Sequence { seqlen_q: &q, seqlen_k: k };
                for (first, row) in (0..q).flat_map(|first| (0..32).map(move |row| (first, row))) {
                    let added = mask.unclamped_end(first, &sequence) + row as i32;
                    let end = mask.of_query(first + row, &sequence).end;
                    assert_eq!(added.clamp(0, k as i32) as u32, end, "causal {causal} q {q} k {k}");
                }
            }
        }
    }

    #[test]
    fn splits_cover_the_blocks_once_and_may_be_empty() {
        let blocks = KeyBlocks { first: 0, full: 4, end: 7 };
        let splits: Vec<_> = (0..4).map(|split| blocks.of_split(split, 3)).collect();
        let ranges: Vec<_> = splits.iter().map(|blocks| (blocks.first, blocks.end)).collect();
        assert_eq!(ranges, [(0, 3), (3, 6), (6, 7), (9, 7)]);
        assert_eq!(splits.iter().map(KeyBlocks::is_empty).collect::<Vec<_>>(), [false, false, false, true]);
    }
}
