//! Which keys a query sees.

use super::Score;
use super::sizes::SIZE_MAX;
use crate::error::Error;
use kernels_gpu::divisor::Divisor;
use kernels_gpu::sequence::{QueryCount, Sequence};
use kernels_gpu::visible::Band;

/// Which keys a query sees. A query's own key is the one that is as far from the last key as the query is from the last query, so that
/// masks are aligned bottom-right: the own key of query i is i + seqlen_k − seqlen_q.
///
/// A query sees the keys of its window that are in its chunk, those of the prefix, and the sink tokens up to where its window or chunk
/// ends. With intervals, of these only the keys of its own interval, and sink tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Mask {
    /// Keys before its own that a query sees; all where it is `None`. (A `sliding_window` of W tokens counts the own one: W − 1 here.)
    pub window_left: Option<u32>,
    /// Keys after its own that a query sees; all where it is `None`, none under the causal mask.
    pub window_right: Option<u32>,
    /// Keys of a chunk: no query sees a key outside of its own key's chunk.
    pub chunk: Option<u32>,
    /// Keys at the start of a sequence that all its queries see (prefix-LM).
    pub prefix: u32,
    /// Keys at the start of a sequence that queries see in spite of their windows (StreamingLLM).
    pub sink_tokens: u32,
    /// Whether the caller gives each query's first key and the one past its last: [`crate::problem::Operand::Intervals`].
    pub intervals: bool,
    /// How many of a sequence's last keys each query sees only where its bit is set: [`crate::problem::Operand::TreeMask`]. (The tokens of
    /// a tree of drafts; all other masks hold for them as well.)
    #[serde(default)]
    pub tree: Option<u32>,
}

impl Mask {
    /// Every query sees every key.
    pub const FULL: Mask = Mask {
        window_left: None,
        window_right: None,
        chunk: None,
        prefix: 0,
        sink_tokens: 0,
        intervals: false,
        tree: None,
    };
    /// A query sees the keys up to its own.
    pub const CAUSAL: Mask = Mask { window_right: Some(0), ..Mask::FULL };

    /// A query sees `left` keys before its own and `right` after it; `None` for all.
    pub const fn window(left: Option<u32>, right: Option<u32>) -> Mask {
        Mask { window_left: left, window_right: right, ..Mask::FULL }
    }

    /// The same within chunks of so many keys.
    pub const fn with_chunk(self, keys: u32) -> Mask {
        Mask { chunk: Some(keys), ..self }
    }

    /// The same with a prefix of so many keys that all queries see.
    pub const fn with_prefix(self, keys: u32) -> Mask {
        Mask { prefix: keys, ..self }
    }

    /// The same with so many keys at the start that windows do not hide.
    pub const fn with_sink_tokens(self, keys: u32) -> Mask {
        Mask { sink_tokens: keys, ..self }
    }

    /// The same within intervals of the caller's.
    pub const fn with_intervals(self) -> Mask {
        Mask { intervals: true, ..self }
    }

    /// The same with a bit of each query for each of a sequence's last `keys` keys.
    pub const fn with_tree(self, keys: u32) -> Mask {
        Mask { tree: Some(keys), ..self }
    }

    /// Words of 32 bits that a query has for a tree; 0 without one.
    pub const fn tree_words(&self) -> u32 {
        match self.tree {
            Some(keys) => keys.div_ceil(32),
            None => 0,
        }
    }

    /// Refuses parts that exclude each other, and a tree beside a score that has kernels of its own.
    pub(super) fn check(&self, score: &Score) -> Result<(), Error> {
        let refused = |reason| Err(Error::Mask { reason });
        match self {
            Mask { tree: Some(0), .. } => refused("a tree has at least 1 key"),
            Mask { tree: Some(SIZE_MAX..), .. } => refused("a tree has fewer keys than a sequence may have"),
            Mask { tree: Some(_), .. } if *score != Score::Plain => {
                refused("a tree excludes softcap, ALiBi, bias and users' scores: no kernel computes both")
            }
            Mask { chunk: Some(0), .. } => refused("a chunk has at least 1 key"),
            Mask { prefix: 1.., window_left: Some(_), .. } | Mask { prefix: 1.., chunk: Some(_), .. } => {
                refused(
                    "a prefix that all queries see excludes a left window and chunks: what they saw would not be one interval of keys",
                )
            }
            _ => Ok(()),
        }
    }

    /// As kernels of ragged batches are told.
    pub(crate) fn band(&self) -> Band {
        let side = |side: Option<u32>| side.and_then(|keys| i32::try_from(keys).ok()).unwrap_or(i32::MAX);
        Band {
            window_left: side(self.window_left),
            window_right: side(self.window_right),
            chunk: self.chunk.unwrap_or(0),
            chunk_divisor: Divisor::new(self.chunk.unwrap_or(1).min(1 << 31)),
            // Kernels compare it with keys in i32, where more would be less than none.
            prefix: self.prefix.min(i32::MAX as u32),
        }
    }

    /// The most k-loop steps of `block_n` keys for a block of `queries` queries of a sequence of at most `seqlen_k` keys.
    pub(crate) fn steps_most(&self, seqlen_k: u32, queries: u32, block_n: u32) -> u32 {
        let all = seqlen_k.div_ceil(block_n);
        // No query sees further than its chunk reaches.
        let side = |window: Option<u32>| {
            let in_chunk = self.chunk.map(|keys| keys - 1);
            window.into_iter().chain(in_chunk).min()
        };
        let (Some(left), Some(right)) = (side(self.window_left), side(self.window_right)) else { return all };
        let keys = u64::from(left) + u64::from(right) + u64::from(queries);
        // The first block and the last one are cut.
        let seen = keys.div_ceil(block_n.into()) + 1 + u64::from(self.sink_tokens.div_ceil(block_n));
        seen.min(all.into()) as u32
    }

    /// Blocks of `block_n` keys that a kernel goes through for a block of `step` queries of a sequence with these lengths: the mean of eight of the
    /// sequence's blocks of queries, and the most of those and the last. Keys that intervals or a tree hide are counted.
    pub(crate) fn steps(&self, [seqlen_q, seqlen_k]: [u32; 2], step: u32, block_n: u32) -> (f64, f64) {
        const LOOKED_AT: u32 = 8;
        let sequence = sequence_of(seqlen_q, seqlen_k);
        let band = self.band();
        let blocks = seqlen_q.div_ceil(step);
        let steps_of = |block: u32| {
            let (first, past) = (block * step, ((block + 1) * step).min(seqlen_q));
            let begin = band.of_query(first, &sequence).begin / block_n;
            let end = band.of_query(past - 1, &sequence).end.div_ceil(block_n);
            let of_sinks = self.sink_tokens.div_ceil(block_n).min(begin);
            f64::from(end.saturating_sub(begin) + of_sinks)
        };
        let count = blocks.min(LOOKED_AT);
        // The middles of equal parts.
        let middle = |part: u32| u64::from(2 * part + 1) * u64::from(blocks) / u64::from(2 * count);
        let looked_at = (0..count).map(|part| steps_of(middle(part) as u32));
        let (sum, most) = looked_at.fold((0.0, 0.0), |(sum, most), steps| (sum + steps, steps.max(most)));
        (sum / f64::from(count), steps_of(blocks - 1).max(most))
    }

    /// Keys of a sequence with these lengths that at least one of its queries sees. Keys that intervals or a tree hide are counted.
    pub(crate) fn keys_seen(&self, [seqlen_q, seqlen_k]: [u32; 2]) -> u32 {
        let (sequence, band) = (sequence_of(seqlen_q, seqlen_k), self.band());
        let (first, last) = (band.of_query(0, &sequence), band.of_query(seqlen_q - 1, &sequence));
        last.end.saturating_sub(first.begin) + self.sink_tokens.min(first.begin)
    }
}

fn sequence_of(seqlen_q: u32, seqlen_k: u32) -> Sequence<'static> {
    Sequence { seqlen_q: QueryCount::Own(seqlen_q), seqlen_k, q_start: 0, k_start: 0 }
}

impl std::fmt::Display for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |side: Option<u32>| side.map_or("all".to_owned(), |keys| keys.to_string());
        match (self.window_left, self.window_right) {
            (None, None) => write!(f, "full")?,
            (None, Some(0)) => write!(f, "causal")?,
            (left, right) => write!(f, "window {},{}", side(left), side(right))?,
        }
        if let Some(chunk) = self.chunk {
            write!(f, ", chunks of {chunk}")?;
        }
        if self.prefix > 0 {
            write!(f, ", prefix {}", self.prefix)?;
        }
        if self.sink_tokens > 0 {
            write!(f, ", {} sink tokens", self.sink_tokens)?;
        }
        if self.intervals {
            write!(f, ", intervals")?;
        }
        if let Some(keys) = self.tree {
            write!(f, ", tree of {keys}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_that_counting_finds() {
        let masks = [
            Mask::CAUSAL,
            Mask::window(Some(99), Some(0)),
            Mask::window(Some(30), Some(17)),
            Mask::window(Some(0), Some(0)).with_sink_tokens(5),
            Mask::CAUSAL.with_chunk(70),
            Mask::window(Some(20), None).with_chunk(128),
            Mask::FULL.with_chunk(33).with_sink_tokens(40),
            Mask::CAUSAL.with_prefix(90),
        ];
        for (mask, lengths @ [seqlen_q, seqlen_k]) in
            masks.iter().flat_map(|mask| [[1, 300], [200, 200], [77, 500], [300, 90]].map(|of| (mask, of)))
        {
            let sequence = sequence_of(seqlen_q, seqlen_k);
            // Sink tokens are seen up to where a query's own keys end.
            let sees = |query: u32, key: u32| {
                let of_query = mask.band().of_query(query, &sequence);
                key < of_query.end && (key >= of_query.begin || key < mask.sink_tokens)
            };
            let seen = (0..seqlen_k).filter(|&key| (0..seqlen_q).any(|query| sees(query, key))).count();
            assert_eq!(mask.keys_seen(lengths) as usize, seen, "{mask} {lengths:?}");
            for (step, block_n) in [(64, 64), (16, 32), (128, 64)] {
                let blocks: Vec<u32> = (0..seqlen_q.div_ceil(step))
                    .map(|block| {
                        let queries = block * step..((block + 1) * step).min(seqlen_q);
                        let is_seen = |of: &u32| {
                            (of * block_n..((of + 1) * block_n).min(seqlen_k))
                                .any(|key| queries.clone().any(|query| sees(query, key)))
                        };
                        (0..seqlen_k.div_ceil(block_n)).filter(is_seen).count() as u32
                    })
                    .collect();
                let most = *blocks.iter().max().expect("one");
                let what = format!("{mask} {lengths:?} {step} {block_n}: {blocks:?}");
                assert!(mask.steps_most(seqlen_k, step.min(seqlen_q), block_n) >= most, "{what}");
                let (mean, found_most) = mask.steps(lengths, step, block_n);
                let counted = blocks.iter().sum::<u32>() as f64 / blocks.len() as f64;
                assert!(found_most <= f64::from(most), "{what}: {found_most}");
                // All are looked at where there are few.
                let apart = if blocks.len() <= 8 { 1e-9 } else { 0.35 };
                assert!((mean - counted).abs() <= apart, "{what}: {mean} for {counted}");
            }
        }
    }
}
