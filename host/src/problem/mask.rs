//! Which keys a query sees.

use super::Score;
use super::sizes::SIZE_MAX;
use crate::error::Error;

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

    /// The most k-loop steps of `block_n` keys for a block of `queries` queries of a sequence of `seqlen_k` keys.
    pub(crate) fn steps_most(&self, seqlen_k: u32, queries: u32, block_n: u32) -> u32 {
        let all = seqlen_k.div_ceil(block_n);
        let Some(left) = self.window_left else { return all };
        let reach = |right: u32| {
            let keys = u64::from(left) + u64::from(right) + u64::from(queries);
            // The first block and the last one are cut.
            keys.div_ceil(block_n.into()) + 1 + u64::from(self.sink_tokens.div_ceil(block_n))
        };
        self.window_right.map_or(all, |right| reach(right).min(all.into()) as u32)
    }
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
