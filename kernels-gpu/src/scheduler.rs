//! Which query rows a CTA works on, and in which order.

use crate::divisor::Divisor;
use crate::params::ForwardParams;
use crate::row::{Isa, Row, Schedule};
use crate::sequence::Sequence;
use crate::visible::{Band, KeyBlocks, MaskParams, Visible};

/// A work tile: query rows of one head, or of all query heads of a KV head, packed (query 0 of each head, then query 1 of each, and
/// so on), and a range of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work<'a> {
    /// Batch entry.
    pub batch: u32,
    /// Query head, the first one where rows are packed.
    pub head_q: u32,
    /// The KV head that they read.
    pub head_kv: u32,
    /// First row.
    pub first_row: u32,
    /// Which range of the keys; of the backward pass's stationary keys, of their steps.
    pub split: u32,
    /// Which slice of the value vectors, where they are divided among CTAs.
    pub slice: u32,
    /// The batch entry's lengths.
    pub sequence: Sequence<'a>,
}

impl<'a> Work<'a> {
    /// The tile `index` of a grid without splits.
    ///
    /// Query blocks vary fastest, so that neighbours in time share K and V in L2; where `heads_together` is over 1, that many
    /// heads advance block by block. Causal blocks are taken from the end, where most keys are visible: the longest work
    /// starts first. Where the device holds all CTAs at once, two an SM, the shorter half in ascending order gives each long
    /// block a short one beside it (`ascending_blocks`).
    #[inline(always)]
    pub fn of_head(params: &'a ForwardParams, index: u32, block_rows: u32) -> Self {
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
            slice: 0,
            sequence: Sequence::dense(params),
        }
    }

    /// The tile and split `index` of a grid of packed rows: query blocks vary fastest, so that they share keys in L2, then
    /// splits, then KV heads. `sequence` gives the lengths of a batch entry.
    #[inline(always)]
    pub fn of_split(
        params: &'a ForwardParams,
        index: u32,
        block_rows: u32,
        sequence: impl FnOnce(u32) -> Sequence<'a>,
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
            slice: 0,
            sequence: sequence(batch),
        }
    }

    /// As [`Self::of_split`], of a ragged batch. `sequence` gives a sequence's lengths. Where keys are not split, `heads_together` heads
    /// advance block by block as in [`Self::of_head`].
    ///
    /// Where lengths differ much, the blocks of all packed sequences follow each other; `start_of` gives the first row of a sequence among
    /// those of all, each query counted with its packed heads. A sequence has room for one block more than it needs at most: block n of
    /// sequence b is number ⌊start / block⌋ + b + n, which follows from its start alone. Blocks without rows have nothing to do.
    #[inline(always)]
    pub fn of_ragged(
        params: &'a ForwardParams,
        index: u32,
        start_of: impl Fn(u32) -> u32,
        sequence: impl FnOnce(u32) -> Sequence<'a>,
    ) -> Self {
        let (blocks, within) = params.heads_together.divide(index);
        let (together, order) = params.query_blocks.divide(blocks);
        let splits = together * params.heads_together.value + within;
        let (head_index, split) = params.split.splits.divide(splits);
        let (batch, head_kv) = params.tile_heads.divide(head_index);
        let block = block_in_order(params, order, 0);
        let block_rows = params.ragged.block_rows;
        let (batch, block) = if params.ragged.blocks_follow == 0 {
            (batch, block)
        } else {
            block_of_packed(params.batch, block, |batch| block_rows.quotient(start_of(batch)) + batch)
        };
        Self {
            batch,
            head_q: head_kv * params.group.value,
            head_kv,
            first_row: block * block_rows.value,
            split,
            slice: 0,
            sequence: sequence(batch),
        }
    }

    /// Bytes of a value vector before the slice's own.
    #[inline(always)]
    pub fn slice_bytes(&self, params: &ForwardParams) -> u32 {
        self.slice * params.ragged.width_v * 2
    }

    /// The number of the tile that [`Self::of_split`] gives for `index`: the same for all of its splits.
    #[inline(always)]
    pub fn tile_of_split(params: &ForwardParams, index: u32) -> u32 {
        let (splits, block) = params.query_blocks.divide(index);
        params.split.splits.quotient(splits) * params.query_blocks.value + block
    }
}

/// Which of `sequences` packed ones a block of all of them belongs to, and which of that one's it is; `first_block` gives the number of a
/// sequence's first block.
#[inline(always)]
pub fn block_of_packed(sequences: u32, block: u32, first_block: impl Fn(u32) -> u32) -> (u32, u32) {
    // The last sequence that starts at this block or before.
    let (mut low, mut past) = (0, sequences);
    while past - low > 1 {
        let middle = low + (past - low) / 2;
        if first_block(middle) <= block { low = middle } else { past = middle }
    }
    (low, block.saturating_sub(first_block(low)))
}

/// The query block that is the `order`-th of its head to be taken.
#[inline(always)]
fn block_in_order(params: &ForwardParams, order: u32, ascending: u32) -> u32 {
    let blocks = params.query_blocks.value;
    let descending = blocks - ascending;
    match params.causal {
        0 => order,
        _ if order < descending => blocks - 1 - order,
        _ => order - descending,
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
    pub fn count(self, seqlen_q: u32, group: Divisor) -> u32 {
        match self {
            Rows::OfHead => seqlen_q,
            Rows::Packed => seqlen_q * group.value,
        }
    }

    /// Query and head, counted from the tile's first, of a row.
    #[inline(always)]
    pub fn query_and_head(self, row: u32, group: Divisor) -> (u32, u32) {
        match self {
            Rows::OfHead => (row, 0),
            Rows::Packed => group.divide(row),
        }
    }

    /// The keys that a row sees; its query is worked out only under a mask.
    #[inline(always)]
    pub fn visible(
        self,
        mask: MaskParams<'_>,
        row: u32,
        group: &Divisor,
        sequence: &Sequence<'_>,
    ) -> Visible {
        if !mask.hides() {
            return Visible::before(sequence.seqlen_k);
        }
        mask.of_query(self.query(row, *group), sequence)
    }

    /// The query of a row.
    #[inline(always)]
    pub fn query(self, row: u32, group: Divisor) -> u32 {
        self.query_and_head(row, group).0
    }
}

/// The blocks of query rows of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryBlock {
    /// Rows that shared memory holds.
    pub block_m: u32,
    /// How they are queries of heads.
    pub rows: Rows,
    /// Whether only those are used that hold whole queries of all packed heads, as one bulk copy brings a box of them.
    pub whole_queries: bool,
    /// Whether batches may be ragged.
    pub ragged: bool,
}

impl QueryBlock {
    /// Those of a row's kernel.
    pub const fn of(row: &Row) -> Self {
        let rows = match row.schedule {
            Schedule::Grid | Schedule::Persistent => Rows::OfHead,
            Schedule::Split | Schedule::Ragged => Rows::Packed,
        };
        Self {
            block_m: row.block_m,
            rows,
            whole_queries: matches!(row.isa, Isa::Wgmma),
            ragged: matches!(row.schedule, Schedule::Ragged),
        }
    }

    /// Rows of a block that are used: [`crate::geometry::rows_of_block`].
    #[inline(always)]
    pub fn rows_used(self, group: Divisor) -> u32 {
        match self.rows {
            Rows::Packed if self.whole_queries => group.quotient(self.block_m) * group.value,
            _ => self.block_m,
        }
    }

    /// Past the last row of a tile's block that exists.
    #[inline(always)]
    pub fn past_rows(self, params: &ForwardParams, work: &Work<'_>) -> u32 {
        let count = self.rows.count(work.sequence.seqlen_q.get(), params.group);
        // Without whole queries, a warp has no rows beyond its block.
        if self.whole_queries { count.min(work.first_row + self.rows_used(params.group)) } else { count }
    }

    /// As [`Self::key_blocks`], of a ragged batch. Keys from `hides_from` on may be hidden from any row, whatever the mask says; `interval`
    /// gives the least and the greatest begin and end of the rows `first..past` where the caller has intervals of its own.
    #[inline(always)]
    pub fn ragged_key_blocks(
        self,
        params: &ForwardParams,
        work: &Work<'_>,
        (block_n, hides_from): (u32, u32),
        interval: impl FnOnce(u32, u32) -> Option<[(u32, u32); 2]>,
    ) -> KeyBlocks {
        let sequence = &work.sequence;
        let past = self.past_rows(params, work).min(work.first_row + self.block_m);
        if past <= work.first_row {
            return KeyBlocks::before(0, 0);
        }
        let (first, last) =
            (self.rows.query(work.first_row, params.group), self.rows.query(past - 1, params.group));
        let band = Band::of(&params.ragged);
        let (low, high) = (band.of_query(first, sequence), band.of_query(last, sequence));
        let (mut begin, mut end) = ((low.begin, high.begin), (low.end, high.end));
        if let Some([begins, ends]) = interval(first, last + 1) {
            begin = (begin.0.max(begins.0), begin.1.max(begins.1));
            end = (end.0.min(ends.0), end.1.min(ends.1));
        }
        // The least end only says which blocks are seen entirely.
        end.0 = end.0.min(hides_from);
        KeyBlocks::within(begin, end, params.ragged.sink_tokens, block_n)
    }

    /// The blocks of `block_n` keys that a tile's rows see.
    #[inline(always)]
    pub fn key_blocks(self, params: &ForwardParams, work: &Work<'_>, block_n: u32) -> KeyBlocks {
        let (count, block_rows) =
            (self.rows.count(work.sequence.seqlen_q.get(), params.group), self.rows_used(params.group));
        let past_rows = if count - work.first_row < block_rows { count } else { work.first_row + block_rows };
        let (mask, sequence) = (MaskParams::of(params), &work.sequence);
        // The last row sees most, and the first row least.
        let end = self.rows.visible(mask, past_rows - 1, &params.group, sequence).blocks(block_n);
        let full = self.rows.visible(mask, work.first_row, &params.group, sequence).full_blocks(block_n);
        KeyBlocks::before(full, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn tile(first_row: u32, seqlen_q: &u32, seqlen_k: u32) -> Work<'_> {
        Work {
            batch: 0,
            head_q: 0,
            head_kv: 0,
            first_row,
            split: 0,
            slice: 0,
            sequence: Sequence::unpacked(seqlen_q, seqlen_k),
        }
    }

    #[test]
    fn blocks_of_packed_rows_are_full_or_partial_as_counting_pairs_says() {
        let lengths = [1, 2, 31, 32, 33, 63, 64, 65, 100, 128, 129];
        for (rows, group) in [(Rows::OfHead, 3), (Rows::Packed, 1), (Rows::Packed, 3)] {
            let block = QueryBlock { block_m: 64, rows, whole_queries: false, ragged: false };
            for causal in [false, true] {
                for (q, k) in lengths.iter().flat_map(|&q| lengths.iter().map(move |&k| (q, k))) {
                    let params = params(q, k, causal, group);
                    let per_query = if rows == Rows::Packed { group } else { 1 };
                    let sees = |row: u32, key: u32| key < k && (!causal || key + q <= row / per_query + k);
                    for first_row in (0..q * per_query).step_by(64) {
                        let tile_rows = first_row..(first_row + 64).min(q * per_query);
                        let blocks = block.key_blocks(&params, &tile(first_row, &q, k), 32);
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
    fn every_block_of_every_head_is_taken_once_and_causal_ones_from_the_end() {
        let full = params(150, 150, false, 3);
        for together in [1, 2, 4, 12] {
            let params = ForwardParams {
                query_blocks: Divisor::new(3),
                heads_together: Divisor::new(together),
                ..full
            };
            let work: Vec<Work<'_>> = (0..36).map(|index| Work::of_head(&params, index, 64)).collect();
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
            let sequence = |batch| Sequence::unpacked(&50, 100 + batch);
            let work = Work::of_split(&params, index, 64, sequence);
            assert_eq!((work.head_q, work.sequence.seqlen_k), (work.head_kv * 3, 100 + work.batch));
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
    fn heads_of_a_ragged_batch_advance_together_and_causal_blocks_are_taken_from_the_end() {
        let (query_blocks, tile_heads, heads) = (3, 2, 8);
        for together in [1, 2, 4, 8] {
            let mut params = ForwardParams {
                query_blocks: Divisor::new(query_blocks),
                tile_heads: Divisor::new(tile_heads),
                heads_together: Divisor::new(together),
                ..params(150, 150, true, 3)
            };
            params.ragged.block_rows = Divisor::new(64);
            for index in 0..heads * query_blocks {
                let work = Work::of_ragged(&params, index, |_| 0, |_| Sequence::unpacked(&150, 150));
                let head = index / (query_blocks * together) * together + index % together;
                assert_eq!((work.batch, work.head_kv), (head / tile_heads, head % tile_heads));
                assert_eq!(work.head_q, work.head_kv * 3);
                let block = query_blocks - 1 - index / together % query_blocks;
                assert_eq!((work.first_row, work.split), (block * 64, 0));
            }
        }
    }

    #[test]
    fn packed_rows_are_queries_of_heads() {
        let params = params(2, 9, true, 3);
        let group = params.group;
        let rows: Vec<_> = (0..6).map(|row| Rows::Packed.query_and_head(row, group)).collect();
        assert_eq!(rows, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert_eq!((Rows::Packed.count(2, group), Rows::Packed.query(3, group)), (6, 1));
        assert_eq!((Rows::OfHead.query_and_head(1, group), Rows::OfHead.count(2, group)), ((1, 0), 2));
    }

    #[test]
    fn blocks_of_whole_queries_leave_rows_unused() {
        let params = params(50, 9, false, 3);
        let block = QueryBlock { block_m: 64, rows: Rows::Packed, whole_queries: true, ragged: false };
        assert_eq!(block.rows_used(params.group), 63);
        assert_eq!(block.past_rows(&params, &tile(63, &50, 9)), 126);
        assert_eq!(block.past_rows(&params, &tile(126, &50, 9)), 150);
        let any = QueryBlock { whole_queries: false, ..block };
        assert_eq!((any.rows_used(params.group), any.past_rows(&params, &tile(0, &50, 9))), (64, 150));
    }
}
