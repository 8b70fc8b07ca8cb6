//! Which query rows and which blocks of keys a CTA works on.

use crate::params::ForwardParams;

/// The query rows of one tile: those of one head, or of all query heads of a KV head, packed (query 0 of each head, then
/// query 1 of each, and so on).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Batch entry.
    pub batch: u32,
    /// Query head, the first one where rows are packed.
    pub head_q: u32,
    /// The KV head that they read.
    pub head_kv: u32,
    /// First row.
    pub first_row: u32,
    /// Which range of the keys.
    pub split: u32,
    /// Keys of the sequence.
    pub seqlen_k: u32,
}

impl Work {
    /// The tile `index` of a grid without splits.
    ///
    /// Query blocks vary fastest, so that neighbours in time share K and V in L2; where `heads_together` is over 1, that many
    /// heads advance block by block. Causal blocks are taken from the end, where most keys are visible: the longest work
    /// starts first. Where the device holds all CTAs at once, two an SM, the shorter half in ascending order gives each long
    /// block a short one beside it (`ascending_blocks`).
    #[inline(always)]
    pub fn of_head(params: &ForwardParams, index: u32, block_rows: u32) -> Self {
        let (blocks, within) = params.heads_together.divide(index);
        let (together, block) = params.query_blocks.divide(blocks);
        let head_index = together * params.heads_together.value + within;
        let (batch, head_q) = params.tile_heads.divide(head_index);
        Self {
            batch,
            head_q,
            head_kv: params.group.quotient(head_q),
            first_row: block_in_order(params, block, params.ascending_blocks) * block_rows,
            split: 0,
            seqlen_k: params.seqlen_k,
        }
    }

    /// The tile and split `index` of a grid of packed rows: query blocks vary fastest, so that they share keys in L2, then
    /// splits, then KV heads. `seqlen_k` gives the keys of a batch entry.
    #[inline(always)]
    pub fn of_split(
        params: &ForwardParams,
        index: u32,
        block_rows: u32,
        seqlen_k: impl FnOnce(u32) -> u32,
    ) -> Self {
        let (splits, block) = params.query_blocks.divide(index);
        let (head_index, split) = params.split.splits.divide(splits);
        let (batch, head_kv) = params.tile_heads.divide(head_index);
        Self {
            batch,
            head_q: head_kv * params.group.value,
            head_kv,
            first_row: block_in_order(params, block, 0) * block_rows,
            split,
            seqlen_k: seqlen_k(batch),
        }
    }

    /// The number of the tile that [`Self::of_split`] gives for `index`: the same for all of its splits.
    #[inline(always)]
    pub fn tile_of_split(params: &ForwardParams, index: u32) -> u32 {
        let (splits, block) = params.query_blocks.divide(index);
        params.split.splits.quotient(splits) * params.query_blocks.value + block
    }
}

/// The query block that is taken as number `turn` of its head.
#[inline(always)]
fn block_in_order(params: &ForwardParams, turn: u32, ascending: u32) -> u32 {
    let blocks = params.query_blocks.value;
    let descending = blocks - ascending;
    match params.causal {
        0 => turn,
        _ if turn < descending => blocks - 1 - turn,
        _ => turn - descending,
    }
}

/// How the rows of tiles are queries of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Row r is query r of the tile's head.
    OfHead,
    /// Row r is query r / group of head r % group of the tile's heads.
    Packed,
}

impl Rows {
    /// Rows of one tile head.
    #[inline(always)]
    pub fn count(self, params: &ForwardParams) -> u32 {
        match self {
            Rows::OfHead => params.seqlen_q,
            Rows::Packed => params.seqlen_q * params.group.value,
        }
    }

    /// Rows of a block of `block_m` rows that hold whole queries: [`crate::geometry::rows_of_block`].
    #[inline(always)]
    pub fn of_block(self, params: &ForwardParams, block_m: u32) -> u32 {
        match self {
            Rows::OfHead => block_m,
            Rows::Packed => params.group.quotient(block_m) * params.group.value,
        }
    }

    /// Query and head, counted from the tile's first, of a row.
    #[inline(always)]
    pub fn query_and_head(self, params: &ForwardParams, row: u32) -> (u32, u32) {
        match self {
            Rows::OfHead => (row, 0),
            Rows::Packed => params.group.divide(row),
        }
    }

    /// The first key that a row does not see: all keys before it are visible.
    #[inline(always)]
    pub fn visible_end(self, params: &ForwardParams, row: u32, seqlen_k: u32) -> u32 {
        if params.causal == 0 {
            return seqlen_k;
        }
        let (query, _) = self.query_and_head(params, row);
        // Bottom-right alignment: the last query sees every key. Lengths are below 2^31, so the sum fits; rows past
        // the last exist in a ragged block.
        (query + 1 + seqlen_k).saturating_sub(params.seqlen_q).min(seqlen_k)
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
    /// All blocks that the rows of a tile see.
    #[inline(always)]
    pub fn new(params: &ForwardParams, rows: Rows, work: &Work, block_rows: u32, block_n: u32) -> Self {
        let count = rows.count(params);
        let past_rows = if count - work.first_row < block_rows { count } else { work.first_row + block_rows };
        let end = rows.visible_end(params, past_rows - 1, work.seqlen_k).div_ceil(block_n);
        Self { first: 0, full: rows.visible_end(params, work.first_row, work.seqlen_k) / block_n, end }
    }

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
    use crate::divisor::Divisor;
    use crate::params::SplitParams;

    fn params(seqlen_q: u32, seqlen_k: u32, causal: bool, group: u32) -> ForwardParams {
        ForwardParams {
            seqlen_q,
            seqlen_k,
            causal: causal.into(),
            tile_heads: Divisor::new(6),
            group: Divisor::new(group),
            ..Default::default()
        }
    }

    fn tile(first_row: u32, seqlen_k: u32) -> Work {
        Work { batch: 0, head_q: 0, head_kv: 0, first_row, split: 0, seqlen_k }
    }

    #[test]
    fn blocks_are_full_or_partial_as_counting_pairs_says() {
        let lengths = [1, 2, 31, 32, 33, 63, 64, 65, 100, 128, 129];
        for (rows, group) in [(Rows::OfHead, 3), (Rows::Packed, 1), (Rows::Packed, 3)] {
            for causal in [false, true] {
                for (q, k) in lengths.iter().flat_map(|&q| lengths.iter().map(move |&k| (q, k))) {
                    let params = params(q, k, causal, group);
                    let per_query = if rows == Rows::Packed { group } else { 1 };
                    let sees = |row: u32, key: u32| key < k && (!causal || key + q <= row / per_query + k);
                    for first_row in (0..q * per_query).step_by(64) {
                        let tile_rows = first_row..(first_row + 64).min(q * per_query);
                        let blocks = KeyBlocks::new(&params, rows, &tile(first_row, k), 64, 32);
                        for block in 0..k.div_ceil(32) + 1 {
                            let mut keys = block * 32..block * 32 + 32;
                            let any = tile_rows.clone().any(|row| keys.clone().any(|key| sees(row, key)));
                            let all = tile_rows.clone().all(|row| keys.all(|key| sees(row, key)));
                            assert_eq!(block < blocks.end, any, "q {q} k {k} causal {causal} block {block}");
                            assert!(block >= blocks.full || all, "q {q} k {k} causal {causal} block {block}");
                        }
                        assert!(blocks.full <= blocks.end);
                    }
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

    #[test]
    fn every_block_of_every_head_is_taken_once_and_causal_ones_from_the_end() {
        let full = params(150, 150, false, 3);
        for together in [1, 2, 4, 12] {
            let params = ForwardParams {
                query_blocks: Divisor::new(3),
                heads_together: Divisor::new(together),
                ..full
            };
            let work: Vec<Work> = (0..36).map(|index| Work::of_head(&params, index, 64)).collect();
            for (index, work) in work.iter().enumerate() {
                let index = index as u32;
                let head = index / (3 * together) * together + index % together;
                assert_eq!((work.batch, work.head_q), (head / 6, head % 6));
                assert_eq!((work.head_kv, work.first_row), (work.head_q / 3, index / together % 3 * 64));
            }
            let causal = ForwardParams { causal: 1, ..params };
            assert_eq!(Work::of_head(&causal, 0, 64).first_row, 128);
            assert_eq!(Work::of_head(&causal, 2 * together, 64).first_row, 0);
            let folded = ForwardParams { ascending_blocks: 2, ..causal };
            let rows = [0, 1, 2].map(|turn| Work::of_head(&folded, turn * together, 64).first_row);
            assert_eq!(rows, [128, 0, 64]);
        }
    }

    #[test]
    fn every_split_of_every_packed_block_is_taken_once() {
        let split = SplitParams { splits: Divisor::new(5), ..Default::default() };
        let (query_blocks, tile_heads) = (Divisor::new(3), Divisor::new(2));
        let params = ForwardParams { query_blocks, tile_heads, split, ..params(50, 9, false, 3) };
        let mut seen = std::collections::BTreeSet::new();
        let mut splits_of_tile = std::collections::BTreeMap::<u32, Vec<_>>::new();
        for index in 0..4 * 2 * 5 * 3 {
            let work = Work::of_split(&params, index, 64, |batch| 100 + batch);
            assert_eq!((work.head_q, work.seqlen_k), (work.head_kv * 3, 100 + work.batch));
            assert!(work.batch < 4 && work.head_kv < 2 && work.split < 5 && work.first_row < 150);
            assert!(seen.insert((work.batch, work.head_kv, work.split, work.first_row)));
            let tile = Work::tile_of_split(&params, index);
            splits_of_tile.entry(tile).or_default().push((work.batch, work.head_kv, work.first_row));
        }
        // As many tiles as counters, and of each nothing but its splits.
        assert!(splits_of_tile.keys().copied().eq(0..4 * 2 * 3));
        for splits in splits_of_tile.values() {
            assert!(splits.len() == 5 && splits.iter().all(|tile| *tile == splits[0]), "{splits:?}");
        }
    }

    #[test]
    fn packed_rows_are_queries_of_heads() {
        let params = params(2, 9, true, 3);
        let rows: Vec<_> = (0..6).map(|row| Rows::Packed.query_and_head(&params, row)).collect();
        assert_eq!(rows, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert_eq!(Rows::Packed.count(&params), 6);
        assert_eq!([2, 3].map(|row| Rows::Packed.visible_end(&params, row, 9)), [8, 9]);
        assert_eq!([0, 3].map(|row| Rows::Packed.visible_end(&params, row, 1)), [0, 1], "a short sequence");
        assert_eq!(Rows::OfHead.query_and_head(&params, 1), (1, 0));
    }
}
