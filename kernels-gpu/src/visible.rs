//! Which keys a query sees, and which blocks of keys a tile therefore works on. The mask is run-time data, decided here and
//! nowhere else.

use crate::divisor::Divisor;
use crate::params::{ForwardParams, RaggedParams, SplitParams};
use crate::sequence::Sequence;

/// The keys that a query sees: `begin..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// The first key that it sees; 0 but in ragged batches.
    pub begin: u32,
    /// Past the last one. `begin` or less where it sees none.
    pub end: u32,
}

impl Visible {
    /// All keys before `end`.
    #[inline(always)]
    pub fn before(end: u32) -> Self {
        Self { begin: 0, end }
    }

    /// Blocks of `block_n` keys up to the last that holds any of them.
    #[inline(always)]
    pub fn blocks(self, block_n: u32) -> u32 {
        self.end.div_ceil(block_n)
    }

    /// Blocks of `block_n` keys that hold nothing else, counted from key 0.
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

/// What the launch says of the mask of a ragged batch.
#[derive(Clone, Copy, Debug)]
pub struct Band {
    /// As [`crate::params::RaggedParams`] has them.
    pub window_left: i32,
    /// As above.
    pub window_right: i32,
    /// As above.
    pub chunk: u32,
    /// As above.
    pub chunk_divisor: Divisor,
    /// As above.
    pub prefix: u32,
}

impl Band {
    /// That of a launch.
    #[inline(always)]
    pub fn of(params: &RaggedParams) -> Self {
        let RaggedParams { window_left, window_right, chunk, chunk_divisor, prefix, .. } = *params;
        Self { window_left, window_right, chunk, chunk_divisor, prefix }
    }

    /// The keys that a query sees: those of the window around its own key, bottom-right aligned, and of its chunk, and the prefix. Both
    /// ends grow with the query.
    #[inline(always)]
    pub fn of_query(self, query: u32, sequence: &Sequence<'_>) -> Visible {
        let seqlen_k = sequence.seqlen_k;
        // The query's own key. Queries and lengths are below 2^31, and so are their differences either way.
        let own = query.wrapping_add(seqlen_k).wrapping_sub(sequence.seqlen_q.get()) as i32;
        let clamp = |key: i32| key.max(0) as u32;
        let window_begin = clamp(own.saturating_sub(self.window_left));
        let window_end = clamp(own.saturating_add(self.window_right).saturating_add(1)).min(seqlen_k);
        // No branches: products of wgmma may be on their way meanwhile. Without chunks, all keys are one.
        let select = |condition: bool, yes: u32, no: u32| if condition { yes } else { no };
        let chunk = self.chunk_divisor.quotient(clamp(own)) * self.chunk;
        let past_chunk = select(self.chunk == 0, u32::MAX, chunk.saturating_add(self.chunk));
        // A query before key 0 lies in a chunk without keys.
        let past_chunk = select((self.chunk != 0) & (own < 0), 0, past_chunk);
        let end = window_end.min(past_chunk).max(self.prefix.min(seqlen_k));
        Visible { begin: window_begin.max(chunk), end }
    }

    /// Whether no query sees a key behind its own.
    #[inline(always)]
    pub fn hides_behind(self) -> bool {
        self.window_right <= 0 && self.prefix == 0
    }

    /// The queries that see any of the keys `first..past` of a sequence, or sink tokens among them: from the first of them to the one
    /// past the last.
    #[inline(always)]
    pub fn queries_of(
        self,
        (first, past): (u32, u32),
        sink_tokens: u32,
        sequence: &Sequence<'_>,
    ) -> (u32, u32) {
        let seqlen_q = i64::from(sequence.seqlen_q.get());
        let (low, high) = (i64::from(first), i64::from(past) - 1);
        // Of own keys; each query's is as far behind it.
        let mut least = low - i64::from(self.window_right);
        let mut most = high + i64::from(self.window_left);
        if self.chunk != 0 {
            let start = |key: u32| i64::from(self.chunk_divisor.quotient(key) * self.chunk);
            least = least.max(start(first));
            most = most.min(start(past.saturating_sub(1)) + i64::from(self.chunk) - 1);
        }
        if first < self.prefix {
            least = i64::MIN / 2;
        }
        if first < sink_tokens {
            most = i64::MAX / 2;
        }
        let behind = i64::from(sequence.seqlen_k) - seqlen_q;
        let query = |own: i64| (own - behind).max(0).min(seqlen_q) as u32;
        let (begin, end) = (query(least), query(most + 1));
        if past > first { (begin, end.max(begin)) } else { (0, 0) }
    }

    /// Whether each of the queries `queries.0..queries.1` sees each of the keys `keys.0..keys.1`.
    #[inline(always)]
    pub fn all_see(self, queries: (u32, u32), keys: (u32, u32), sequence: &Sequence<'_>) -> bool {
        // Both ends grow with the query.
        let is_begun = self.of_query(queries.1 - 1, sequence).begin <= keys.0;
        (self.of_query(queries.0, sequence).end >= keys.1) & is_begun
    }
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
        Visible::before((query + 1 + seqlen_k).saturating_sub(sequence.seqlen_q.get()).min(seqlen_k))
    }

    /// As [`Self::of_query`] under a mask that hides anything, before it is clamped to the sequence: the next query's is greater by 1, so
    /// that what is clamped after rows were added is right for them too.
    #[inline(always)]
    pub fn unclamped_end(self, query: u32, sequence: &Sequence<'_>) -> i32 {
        // Queries and lengths are below 2^31, and so is the difference either way.
        (query + 1).wrapping_add(sequence.seqlen_k).wrapping_sub(sequence.seqlen_q.get()) as i32
    }
}

/// Steps of a tile's k-loop, each over a block of keys: `first..end`, of which those before `full` are seen entirely by every row.
/// Without a window, a step is the block of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBlocks {
    /// The first step.
    pub first: u32,
    /// Past the last step that every row sees entirely; it may lie outside of `first..end`.
    pub full: u32,
    /// Past the last step that any row sees in part. `first` or less where there is nothing to do.
    pub end: u32,
    /// The block of step 0, where every row sees it entirely; 0 but in ragged batches.
    pub left: u32,
    /// First blocks of the sequence that are worked on for their sink tokens alone; 0 but in ragged batches.
    pub sink_blocks: u32,
    /// Blocks between those and the first one that a window reaches; 0 but in ragged batches.
    pub skipped: u32,
}

impl KeyBlocks {
    /// Those before `end`, of which those before `full` are seen entirely.
    #[inline(always)]
    pub fn before(full: u32, end: u32) -> Self {
        Self { first: 0, full, end, left: 0, sink_blocks: 0, skipped: 0 }
    }

    /// Those of a tile whose rows see the keys from `begin.0` to `end.1` at most and all of those from `begin.1` to `end.0`, and
    /// sink tokens besides.
    #[inline(always)]
    pub fn within(begin: (u32, u32), end: (u32, u32), sink_tokens: u32, block_n: u32) -> Self {
        let first = begin.0 / block_n;
        let past_sinks = sink_tokens.min(end.1).div_ceil(block_n);
        let past = if end.1 > begin.0 { end.1.div_ceil(block_n) } else { first }.max(past_sinks);
        let sink_blocks = past_sinks.min(first);
        let skipped = first - sink_blocks;
        let left = begin.1.div_ceil(block_n).max(first);
        let full = (end.0 / block_n).min(past).saturating_sub(left);
        Self { first: 0, full, end: past - skipped, left, sink_blocks, skipped }
    }

    /// Those of them that belong to a split.
    #[inline(always)]
    pub fn of_split(self, split: u32, params: &SplitParams) -> Self {
        let steps = params.blocks_of(self.end);
        let first = split * steps;
        Self { first, end: self.end.min((split + 1) * steps), ..self }
    }

    /// Whether there is nothing to do.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.end <= self.first
    }

    /// Whether some row sees a step's keys only in part.
    #[inline(always)]
    pub fn is_partial(&self, step: u32) -> bool {
        step >= self.full
    }

    /// The block of keys of a step. Those that every row sees entirely come first, then those that are cut on the left, then those that are
    /// cut on the right.
    #[inline(always)]
    pub fn block(&self, step: u32) -> u32 {
        // No branches: products of wgmma are on their way meanwhile.
        let either = |condition: bool, yes: u32, no: u32| if condition { yes } else { no };
        let partial = step.wrapping_sub(self.full);
        let is_sinks = partial < self.sink_blocks;
        let block = partial.wrapping_add(either(is_sinks, 0, self.skipped));
        let past_full = block.wrapping_add(either(is_sinks | (block < self.left), 0, self.full));
        either(step < self.full, self.left.wrapping_add(step), past_full)
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
                let sequence = Sequence::unpacked(&q, k);
                let all = Visible::before(k);
                let visible = |query| if mask.hides() { mask.of_query(query, &sequence) } else { all };
                let sees = |query: u32, key: u32| key < k && (!causal || key + q <= query + k);
                for first in (0..q).step_by(64) {
                    let queries = first..(first + 64).min(q);
                    let end = visible(queries.end - 1).blocks(32);
                    let blocks = KeyBlocks::before(visible(first).full_blocks(32), end);
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
                let sequence = Sequence::unpacked(&q, k);
                for (first, row) in (0..q).flat_map(|first| (0..32).map(move |row| (first, row))) {
                    let added = mask.unclamped_end(first, &sequence) + row as i32;
                    let end = mask.of_query(first + row, &sequence).end;
                    assert_eq!(added.clamp(0, k as i32) as u32, end, "causal {causal} q {q} k {k}");
                }
            }
        }
    }

    #[test]
    fn bands_are_what_counting_pairs_says() {
        let none = i32::MAX;
        let bands = [
            (none, none, 0, 0),
            (none, 0, 0, 0),
            (3, 0, 0, 0),
            (40, 0, 0, 0),
            (5, 7, 0, 0),
            (none, 9, 0, 0),
            (0, none, 0, 0),
            (none, 0, 16, 0),
            (7, 3, 48, 0),
            (none, none, 33, 0),
            (none, 0, 0, 21),
        ];
        for (left, right, chunk, prefix) in bands {
            let band = Band {
                window_left: left,
                window_right: right,
                chunk,
                chunk_divisor: Divisor::new(chunk.max(1)),
                prefix,
            };
            for (q, k, sinks) in
                [(1, 1, 0), (1, 70, 4), (65, 65, 0), (100, 37, 3), (37, 100, 40), (9, 0, 2), (200, 200, 33)]
            {
                let sequence = Sequence::unpacked(&q, k);
                let sees = |query: u32, key: u32| {
                    let (own, key) = (i64::from(query) + i64::from(k) - i64::from(q), i64::from(key));
                    let within = own - key <= i64::from(left) && key - own <= i64::from(right);
                    let same_chunk = chunk == 0 || own.div_euclid(chunk.into()) == key / i64::from(chunk);
                    key < k.into() && (within && same_chunk || key < prefix.into())
                };
                let visible = |query: u32| band.of_query(query, &sequence);
                // A sink token is seen unless it lies past the query's last key.
                let with_sinks =
                    |query: u32, key: u32| sees(query, key) || key < sinks.min(visible(query).end);
                for first in (0..q).step_by(16) {
                    let last = (first + 16).min(q) - 1;
                    for query in first..=last {
                        let Visible { begin, end } = visible(query);
                        for key in 0..k + 3 {
                            assert_eq!(
                                (begin..end).contains(&key),
                                sees(query, key),
                                "{left} {right} {chunk} {prefix} q {q} k {k}: {query} {key}"
                            );
                        }
                    }
                    let (low, high) = (visible(first), visible(last));
                    let blocks = KeyBlocks::within((low.begin, high.begin), (low.end, high.end), sinks, 8);
                    let mut worked_on = std::collections::BTreeMap::new();
                    for step in 0..blocks.end {
                        assert!(
                            worked_on.insert(blocks.block(step), blocks.is_partial(step)).is_none(),
                            "once"
                        );
                    }
                    for block in 0..k.div_ceil(8) {
                        let keys = block * 8..block * 8 + 8;
                        let any = (first..=last).any(|query| keys.clone().any(|key| with_sinks(query, key)));
                        let all = (first..=last).all(|query| keys.clone().all(|key| sees(query, key)));
                        match worked_on.get(&block) {
                            None => {
                                assert!(!any, "{left} {right} {chunk} q {q} k {k}: block {block} is seen")
                            }
                            Some(partial) => {
                                assert!(*partial || all, "{left} {right} {chunk} q {q} k {k}: block {block}")
                            }
                        }
                    }
                    assert!(worked_on.len() as u32 <= k.div_ceil(8), "nothing that nobody sees");
                }
                for first in (0..k).step_by(8) {
                    let past = (first + 8).min(k);
                    let (begin, end) = band.queries_of((first, past), sinks, &sequence);
                    let any = |query: &u32| (first..past).any(|key| with_sinks(*query, key));
                    let what = format!("{left} {right} {chunk} {prefix} q {q} k {k}: keys from {first}");
                    assert!(begin <= end && end <= q, "{what}");
                    assert!((0..q).filter(any).all(|query| (begin..end).contains(&query)), "{what}");
                    // No block of queries more than needed, but where sinks are seen.
                    let last = (begin..end).rev().find(any);
                    assert!(
                        first < sinks || last.map_or(begin, |last| last + 1) == end,
                        "{what}: {begin}..{end}"
                    );
                    for a in (0..q).step_by(16) {
                        let queries = (a, (a + 16).min(q));
                        let all =
                            (queries.0..queries.1).all(|query| (first..past).all(|key| sees(query, key)));
                        assert_eq!(
                            band.all_see(queries, (first, past), &sequence),
                            all,
                            "{what}, queries from {a}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn sink_tokens_are_worked_on_where_rows_see_nothing_else() {
        // Intervals that end before they begin, in the same block and in later ones.
        for begin in [16, 20, 70] {
            let blocks = KeyBlocks::within((begin, begin), (9, 9), 4, 64);
            assert_eq!((blocks.end, blocks.block(0), blocks.is_partial(0)), (1, 0, true), "{begin}");
        }
        assert!(KeyBlocks::within((16, 16), (9, 9), 0, 64).is_empty());
    }

    #[test]
    fn splits_cover_the_blocks_once_and_may_be_empty() {
        let blocks = KeyBlocks::before(4, 7);
        let of = |params: SplitParams| {
            let splits: Vec<_> = (0..4).map(|split| blocks.of_split(split, &params)).collect();
            let ranges: Vec<_> = splits.iter().map(|blocks| (blocks.first, blocks.end)).collect();
            (ranges, splits.iter().map(KeyBlocks::is_empty).collect::<Vec<_>>())
        };
        let equal = SplitParams::of_equal(4, 3);
        assert_eq!(of(equal), (vec![(0, 3), (3, 6), (6, 7), (9, 7)], vec![false, false, false, true]));
        let shares = SplitParams::of_shares(4);
        assert_eq!(of(shares), (vec![(0, 2), (2, 4), (4, 6), (6, 7)], vec![false; 4]), "of 7 steps");
        for splits in 1..=256 {
            let params = SplitParams::of_shares(splits);
            for blocks in [1, 2, splits - 1, splits, splits + 1, 3 * splits, SplitParams::shared_most(splits)]
            {
                assert_eq!(params.blocks_of(blocks), blocks.div_ceil(splits).max(1), "{blocks} / {splits}");
            }
        }
    }
}
