//! Ragged batches: sequences packed one after the other or in pages, scores with a function, and what a call gives beside Q, K and V.

use super::sizes::{Sizes, check_rows};
use super::user_score::UserScore;
use super::{Problem, TensorRole};
use crate::error::Error;
use ferroflash_score::Elements;
use kernels_gpu::row::ScoreKind;
use std::hash::{Hash, Hasher};

/// How sequences lie in Q and O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QuerySequences {
    /// A batch entry each.
    #[default]
    Batch,
    /// One after the other in one row of `total` queries.
    Packed {
        /// Queries of all sequences, and of what lies behind the last.
        total: u32,
    },
}

/// How sequences lie in K and V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeySequences {
    /// A batch entry each.
    #[default]
    Batch,
    /// One after the other in one row of `total` keys.
    Packed {
        /// Keys of all sequences, and of what lies behind the last.
        total: u32,
    },
    /// In pages.
    Paged(Pages),
}

/// A pool of pages of K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pages {
    /// Keys of a page.
    pub page: u32,
    /// Pages of the pool.
    pub pages: u32,
    /// Where it is written which pages a sequence has.
    pub table: BlockTable,
}

/// The block table: the number of each page of a sequence, in the order of its keys. A page below 0 inside a sequence's length is a hole,
/// whose keys and values are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockTable {
    /// `[batch, entries]`; entries past a sequence's length are not read.
    Rows {
        /// Entries of a sequence.
        entries: u32,
    },
    /// `[entries]`, sequence after sequence, and [`Operand::PageIndptr`] says where each starts.
    Csr {
        /// Entries of all sequences.
        entries: u32,
    },
}

/// What touches every score between scale · Q·Kᵀ and the mask.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Score {
    /// Nothing.
    #[default]
    Plain,
    /// cap · tanh(score / cap).
    Softcap(f32),
    /// score − slope · |own key − key|, with [`Operand::Slopes`] of each query head, or of each query head of each batch entry.
    Alibi {
        /// Whether every batch entry has slopes of its own.
        per_batch: bool,
    },
    /// score + bias, with [`Operand::Bias`]. −∞ leaves a key no weight; unlike one that the mask hides, its NaN in V reaches the row.
    Bias(BiasShape),
    /// A function of your own, with [`Operand::Table0`] and so on, as it has tables.
    User(UserScore),
}

/// Which dimensions a bias tensor `[batch, heads_q, seqlen_q, seqlen_k]` has; it is the same along the others, which it has with size 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BiasShape {
    /// Whether batch entries have their own.
    pub batch: bool,
    /// Whether query heads have their own.
    pub heads: bool,
    /// Whether queries have their own.
    pub queries: bool,
}

/// What a call gives beside Q, K and V and the keys of each sequence, as the problem says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// The first row of each sequence in packed queries, u32 `[batch + 1]`: ascending from 0.
    CuSeqlensQ,
    /// The first row of each sequence in packed keys, u32 `[batch + 1]`: ascending from 0.
    CuSeqlensK,
    /// The pages of each sequence, i32: [`BlockTable`].
    BlockTable,
    /// The first entry of each sequence in the block table, u32 `[batch + 1]`: ascending from 0.
    PageIndptr,
    /// The first key of each query and the one past its last, u32 `[batch, seqlen_q, 2]`, or `[total, 2]`.
    Intervals,
    /// The score of each query head's sink, float32 `[heads_q]`: after the scale, in natural-log units; −∞ for none.
    Sinks,
    /// ALiBi's slopes, float32 `[heads_q]` or `[batch, heads_q]`.
    Slopes,
    /// The bias in the problem's dtype, contiguous.
    Bias,
    /// The bits of the last keys, u32 `[batch, seqlen_q, words]`, or `[total, words]`, of [`crate::Mask::tree_words`]: bit b of word w says whether
    /// the query sees the key number 32 · w + b of those that the tree has, counted from its first.
    TreeMask,
    /// The first table of a user's score: float32 or u32, as it says.
    Table0,
    /// The second.
    Table1,
    /// The third.
    Table2,
    /// The fourth.
    Table3,
}

impl Operand {
    /// All of them.
    pub const ALL: [Operand; 13] = [
        Operand::CuSeqlensQ,
        Operand::CuSeqlensK,
        Operand::BlockTable,
        Operand::PageIndptr,
        Operand::Intervals,
        Operand::Sinks,
        Operand::Slopes,
        Operand::Bias,
        Operand::TreeMask,
        Operand::Table0,
        Operand::Table1,
        Operand::Table2,
        Operand::Table3,
    ];

    /// The tables of a user's score.
    pub const TABLES: [Operand; 4] = [Operand::Table0, Operand::Table1, Operand::Table2, Operand::Table3];

    /// Which table of a user's score it is, if it is one.
    pub(crate) fn table(self) -> Option<usize> {
        Operand::TABLES.into_iter().position(|table| table == self)
    }

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Operand::CuSeqlensQ => "cu_seqlens_q",
            Operand::CuSeqlensK => "cu_seqlens_k",
            Operand::BlockTable => "block_table",
            Operand::PageIndptr => "page_indptr",
            Operand::Intervals => "intervals",
            Operand::Sinks => "sinks",
            Operand::Slopes => "slopes",
            Operand::Bias => "bias",
            Operand::TreeMask => "tree_mask",
            Operand::Table0 => "table 0",
            Operand::Table1 => "table 1",
            Operand::Table2 => "table 2",
            Operand::Table3 => "table 3",
        }
    }

    /// Bytes of an element.
    pub const fn element_bytes(self) -> u32 {
        match self {
            Operand::Bias => 2,
            _ => 4,
        }
    }
}

impl Pages {
    pub(super) fn check(&self, batch: u32, seqlen_k: u32) -> Result<(), Error> {
        check_rows("K", "page", self.page)?;
        check_rows("K", "pages", self.pages)?;
        let (entries, all) = match self.table {
            BlockTable::Rows { entries } => (entries, entries.saturating_mul(batch)),
            BlockTable::Csr { entries } => (entries, entries),
        };
        check_rows("block_table", "entries", all)?;
        if u64::from(entries) * u64::from(self.page) < seqlen_k.into() {
            return Err(Error::Pages { page: self.page, entries, seqlen_k });
        }
        Ok(())
    }
}

impl Score {
    /// What kernels that compute it are compiled for.
    pub fn kind(&self) -> ScoreKind {
        match self {
            Score::Plain => ScoreKind::Plain,
            Score::Softcap(_) => ScoreKind::Softcap,
            Score::Alibi { .. } => ScoreKind::Alibi,
            Score::Bias(_) => ScoreKind::Bias,
            Score::User(user) => ScoreKind::User(user.name()),
        }
    }

    /// The score of a query and a key from scale · Q·Kᵀ; `distance` is how far the key is from the query's own, and `given` the slope or the
    /// bias. A user's score is evaluated by [`UserScore::of`].
    pub fn of(&self, scaled: f64, distance: f64, given: f64) -> f64 {
        match *self {
            Score::Plain | Score::User(_) => scaled,
            Score::Softcap(cap) => f64::from(cap) * (scaled / f64::from(cap)).tanh(),
            Score::Alibi { .. } => scaled - given * distance.abs(),
            Score::Bias(_) => scaled + given,
        }
    }

    /// The derivative of [`Score::of`] with respect to scale · Q·Kᵀ, but for users' scores, of which it is not known.
    pub fn derivative(&self, scaled: f64) -> f64 {
        match *self {
            Score::Plain | Score::Alibi { .. } | Score::Bias(_) | Score::User(_) => 1.0,
            Score::Softcap(cap) => 1.0 - (scaled / f64::from(cap)).tanh().powi(2),
        }
    }

    pub(super) fn check(&self, scale: f32) -> Result<(), Error> {
        match *self {
            Score::Softcap(cap) if !(cap > 0.0 && cap.is_finite() && (scale / cap).is_normal()) => {
                Err(Error::InvalidSoftcap { cap })
            }
            _ => Ok(()),
        }
    }

    /// What softmax's scores are multiplied with, times log2(e), and what Q·Kᵀ, slopes or biases are multiplied with before: the kernel's
    /// scores are in a unit that makes the one multiplication of its exponential do.
    pub(crate) fn factors(&self, scale: f32) -> (f32, f32) {
        let (scale, log2e) = (f64::from(scale), std::f64::consts::LOG2_E);
        let factors = match *self {
            Score::Plain => (scale * log2e, 0.0),
            Score::Softcap(cap) => (f64::from(cap) * log2e, 2.0 * log2e * scale / f64::from(cap)),
            Score::Alibi { .. } | Score::Bias(_) => (scale * log2e, 1.0 / scale),
            Score::User(_) => (log2e, scale),
        };
        (factors.0 as f32, factors.1 as f32)
    }
}

impl Eq for Score {}

impl Hash for Score {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Score::Plain => {}
            Score::Softcap(cap) => cap.to_bits().hash(state),
            Score::Alibi { per_batch } => per_batch.hash(state),
            Score::Bias(shape) => shape.hash(state),
            Score::User(user) => user.hash(state),
        }
    }
}

impl Problem {
    /// The elements that an operand has in a call of this problem; `None` where the problem has no such operand.
    pub fn operand_len(&self, operand: Operand) -> Option<usize> {
        let [batch, heads] = [self.sizes.batch, self.sizes.heads_q].map(|n| n as usize);
        let queries = self.extent(TensorRole::Q);
        let starts = Some(batch + 1);
        match (operand, self.queries, self.keys, self.score) {
            (Operand::CuSeqlensQ, QuerySequences::Packed { .. }, ..) => starts,
            (Operand::CuSeqlensK, _, KeySequences::Packed { .. }, _) => starts,
            (Operand::BlockTable, _, KeySequences::Paged(pages), _) => Some(match pages.table {
                BlockTable::Rows { entries } => batch * entries as usize,
                BlockTable::Csr { entries } => entries as usize,
            }),
            (Operand::PageIndptr, _, KeySequences::Paged(Pages { table: BlockTable::Csr { .. }, .. }), _) => {
                starts
            }
            (Operand::Intervals, ..) if self.mask.intervals => {
                Some(queries.batch as usize * queries.rows as usize * 2)
            }
            (Operand::Sinks, ..) if self.has_sinks => Some(heads),
            (Operand::Slopes, .., Score::Alibi { per_batch }) => {
                Some(if per_batch { batch * heads } else { heads })
            }
            (Operand::Bias, ..) => self.bias_sizes().map(|sizes| sizes.iter().product()),
            (Operand::TreeMask, ..) if self.mask.tree.is_some() => {
                Some(queries.batch as usize * queries.rows as usize * self.mask.tree_words() as usize)
            }
            (operand, .., Score::User(user)) => Some(user.table(operand.table()?)?.1 as usize),
            _ => None,
        }
    }

    /// The least and the greatest value of an operand's elements, by how much each may be over the one before where they ascend from 0, and
    /// what they must be, in words.
    pub(crate) fn operand_bounds(&self, operand: Operand) -> Option<(i64, i64, Option<i64>, &'static str)> {
        let rows = |role| i64::from(self.extent(role).rows);
        let starts = "starts ascend from 0, and the last is at most the rows of the tensor";
        let starts_q =
            "starts ascend from 0 by at most seqlen_q, and the last is at most the rows of the tensor";
        match (operand, self.keys) {
            (Operand::CuSeqlensQ, _) => {
                Some((0, rows(TensorRole::Q), Some(self.sizes.seqlen_q.into()), starts_q))
            }
            (Operand::CuSeqlensK, _) => Some((0, rows(TensorRole::K), Some(i64::MAX), starts)),
            (Operand::PageIndptr, KeySequences::Paged(Pages { table: BlockTable::Csr { entries }, .. })) => {
                let reason = "starts ascend from 0, and the last is at most the entries of the block table";
                Some((0, entries.into(), Some(i64::MAX), reason))
            }
            (Operand::BlockTable, KeySequences::Paged(pages)) => {
                let reason = "it is below the number of pages, or negative for a hole";
                Some((i32::MIN.into(), i64::from(pages.pages) - 1, None, reason))
            }
            _ => None,
        }
    }

    /// The sizes of the bias, `[batch, heads_q, seqlen_q, seqlen_k]`, of which those that it is the same along are 1; `None` where the problem
    /// has no bias.
    pub fn bias_sizes(&self) -> Option<[usize; 4]> {
        let Score::Bias(shape) = self.score else { return None };
        let of = |has: bool, size: u32| if has { size as usize } else { 1 };
        let Sizes { batch, heads_q, seqlen_q, seqlen_k, .. } = self.sizes;
        let outer = [of(shape.batch, batch), of(shape.heads, heads_q), of(shape.queries, seqlen_q)];
        Some([outer[0], outer[1], outer[2], seqlen_k as usize])
    }

    /// What kernels that compute its scores are compiled for.
    pub fn score_kind(&self) -> ScoreKind {
        match (self.dropout, self.mask.tree) {
            (Some(_), _) => ScoreKind::Dropout,
            (None, Some(_)) => ScoreKind::Tree,
            (None, None) => self.score.kind(),
        }
    }

    /// The type of the elements of a table of a user's score.
    pub(crate) fn table_elements(&self, operand: Operand) -> Option<Elements> {
        match self.score {
            Score::User(user) => Some(user.table(operand.table()?)?.0),
            _ => None,
        }
    }

    /// Bytes of an element of the slopes, of the bias or of a tree's bits.
    pub(crate) fn score_element_bytes(&self) -> u32 {
        match self.score {
            Score::Bias(_) => Operand::Bias.element_bytes(),
            _ => Operand::Slopes.element_bytes(),
        }
    }

    /// Elements from one batch entry, head and query of the bias to the next; of the slopes the first two, and no third; of a tree's bits, whose
    /// queries are counted through the batch, the third alone.
    pub fn score_strides(&self) -> [i64; 3] {
        let sizes = &self.sizes;
        match self.score {
            Score::Alibi { per_batch } => [if per_batch { sizes.heads_q.into() } else { 0 }, 1, 0],
            Score::Bias(shape) => {
                let [_, heads, rows, row] = self.bias_sizes().unwrap_or_default().map(|n| n as i64);
                let of = |has: bool, stride: i64| if has { stride } else { 0 };
                [of(shape.batch, heads * rows * row), of(shape.heads, rows * row), of(shape.queries, row)]
            }
            Score::Plain => [0, 0, self.mask.tree_words().into()],
            Score::Softcap(_) | Score::User(_) => [0; 3],
        }
    }
}
