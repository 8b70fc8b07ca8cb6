//! What ragged batches are drawn from: every size has a wide range, and all of them together a bounded cost.

use crate::random_input::Random;
use ferroflash::error::Error;
use ferroflash::plan::{Combine, PlanOptions, Splits};
use ferroflash::problem::{
    BiasShape, BlockTable, Dropout, Layout, Mask, Pages, Problem, QuerySequences, Score, Sizes,
};
use kernels_gpu::geometry::{self, SPLITS_MAX};
use kernels_gpu::row::{Dtype, HEAD_DIMS, ScoreKind};
use std::ops::RangeInclusive;

/// How large a batch may be.
#[derive(Clone, Copy, Debug)]
pub(in crate::verification) struct Limits {
    /// Blocks of 64 query rows and 64 keys of all KV heads, about.
    blocks: u32,
    sequences: u32,
    /// Query heads that share a KV head.
    group: u32,
    heads_kv: u32,
    /// Keys of one sequence.
    keys: u32,
}

impl Limits {
    pub(in crate::verification) const FORWARD: Limits =
        Limits { blocks: 100, sequences: 420, group: 130, heads_kv: 80, keys: 4300 };
    /// Float64 and the simulator take several times as long.
    pub(in crate::verification) const BACKWARD: Limits =
        Limits { blocks: 40, sequences: 9, group: 20, heads_kv: 8, keys: 600 };
}

/// Sequences above which most are empty, and heads are few: what remains to be computed shows what depends on their number.
const MANY_SEQUENCES: u32 = 64;
/// Rows of all heads that K, or Q, may have where sequences are not packed, or in all pages.
const ROWS: u32 = 60_000;
/// Rows of O of all splits.
const SPLIT_ROWS: u32 = 40_000;
/// Elements of a bias.
const BIAS_ELEMENTS: u64 = 8_000_000;
/// Tiles up to which splits may be merged in the same launch.
const FUSED_TILES: u64 = 4096;

/// CTAs without keys, and rows of splits, that take as long as a block.
const EMPTY_CTAS: u32 = 10;
const MERGED_ROWS: u32 = 200;

/// Queries and keys of each sequence.
#[derive(Clone, Debug)]
pub(in crate::verification) struct Lengths {
    pub(in crate::verification) q: Vec<u32>,
    pub(in crate::verification) k: Vec<u32>,
}

impl Lengths {
    /// Those of the longest sequence, 1 at least.
    fn most(lengths: &[u32]) -> u32 {
        lengths.iter().copied().max().unwrap_or(0).max(1)
    }
}

/// Draws one batch.
pub(in crate::verification) struct Draw<'a> {
    pub(in crate::verification) random: &'a mut Random,
    /// Numbers that any size may be: those in a kernel's code.
    pub(in crate::verification) numbers: &'a [u32],
    pub(in crate::verification) limits: Limits,
}

impl Draw<'_> {
    /// A size: one of [`Draw::numbers`] for one in four where that is in the range, otherwise what `drawn` gives.
    fn size(&mut self, range: RangeInclusive<u32>, drawn: impl FnOnce(&mut Random) -> u32) -> u32 {
        if !self.numbers.is_empty() && self.random.below(4) == 0 {
            let number = self.random.one_of(self.numbers);
            if range.contains(&number) {
                return number;
            }
        }
        drawn(self.random).clamp(*range.start(), *range.end())
    }

    fn coin(&mut self) -> bool {
        self.random.below(2) == 0
    }

    /// A problem for kernels of this dtype, tile width and score, and the lengths of its sequences.
    pub(in crate::verification) fn problem(
        &mut self,
        dtype: Dtype,
        head_dim: u32,
        kind: ScoreKind,
    ) -> Result<(Problem, Lengths), Error> {
        let (width_qk, width_v) = self.widths(head_dim);
        let batch = self.sequences();
        let (group, heads_kv) = self.heads(batch);
        let is_packed = self.random.below(3) > 0;
        let lengths = self.lengths(batch, (group, heads_kv), is_packed);
        let sizes = Sizes {
            batch,
            heads_q: group * heads_kv,
            heads_kv,
            seqlen_q: Lengths::most(&lengths.q),
            seqlen_k: Lengths::most(&lengths.k),
            head_dim: width_qk,
        };
        let mut problem = Problem::new(sizes, dtype)?.with_lengths(true);
        if width_v != width_qk {
            problem = problem.with_head_dim_v(width_v)?;
        }
        if is_packed {
            let total = lengths.q.iter().sum::<u32>().max(1);
            let unused = self.random.one_of(&[0, 0, 3, 70]);
            problem = problem.with_packed_queries(self.size(total..=total + 5000, |_| total + unused))?;
        }
        problem = self.with_keys(problem, &lengths)?;
        if self.coin() {
            problem = problem.with_layout(Layout::Bhsd);
        }
        let mask = self.mask(sizes);
        problem = problem.with_mask(mask)?.with_sinks(self.random.below(3) == 0);
        if self.random.below(3) == 0 {
            problem = problem.with_scale(self.random.log_uniform(40, 1000) as f32 / 1000.0)?;
        }
        let problem = self.with_score(problem, kind)?;
        Ok((problem, lengths))
    }

    fn widths(&mut self, head_dim: u32) -> (u32, u32) {
        // The next smaller tile's width is too narrow for the wider of both.
        let narrower = HEAD_DIMS.into_iter().rev().find(|&dim| dim < head_dim).unwrap_or(0);
        let (step, widest_v) = (if head_dim <= 256 { 8 } else { 16 }, geometry::widest_value(head_dim));
        let width = |random: &mut Random| narrower + step * (1 + random.below((head_dim - narrower) / step));
        let any_width = |random: &mut Random, most: u32| step * (1 + random.below(most / step));
        let random = &mut *self.random;
        match random.below(4) {
            0 => (width(random), any_width(random, widest_v)),
            1 if widest_v == head_dim => (any_width(random, head_dim), width(random)),
            _ => (head_dim, widest_v),
        }
    }

    fn sequences(&mut self) -> u32 {
        let most = self.limits.sequences;
        self.size(1..=most.max(4096), |random| match random.below(16) {
            0 if most > 256 => random.log_uniform(257, most),
            1 | 2 => random.log_uniform(1, most.min(MANY_SEQUENCES)),
            _ => 1 + random.below(most.min(20)),
        })
    }

    /// Query heads a KV head, and KV heads.
    fn heads(&mut self, batch: u32) -> (u32, u32) {
        let Limits { group: most_group, heads_kv: most_kv, .. } = self.limits;
        if batch > MANY_SEQUENCES {
            let most = ((1 << 16) / batch).clamp(1, 24);
            return (1 + self.random.below(2), self.size(1..=most, |random| random.log_uniform(1, most)));
        }
        let heads_kv = self.size(1..=1024, |random| match random.below(12) {
            0 => random.log_uniform(most_kv.min(9), most_kv),
            _ => random.log_uniform(1, most_kv.min(8)),
        });
        let most_group = if heads_kv > 8 { most_group.min(4) } else { most_group };
        let group = self.size(1..=most_group.max(512 / heads_kv), |random| match random.below(12) {
            0 => random.log_uniform(most_group.min(17), most_group.min(64)),
            1 => random.log_uniform(most_group.min(65), most_group),
            _ => 1 + random.below(most_group.min(16)),
        });
        // As many query heads as one of the numbers.
        let heads_q = self.size(1..=1024, |_| group * heads_kv);
        let is_shared = heads_q.is_multiple_of(heads_kv) && heads_q / heads_kv <= most_group.max(64);
        (if is_shared { heads_q / heads_kv } else { group }, heads_kv)
    }

    /// Lengths that cost no more than is allowed: each sequence takes of what is left, in any order, and is empty where nothing is.
    fn lengths(&mut self, batch: u32, (group, heads_kv): (u32, u32), is_packed: bool) -> Lengths {
        // A number in the code may be large.
        let times = if !self.numbers.is_empty() && self.random.below(4) == 0 { 4 } else { 1 };
        // Most batches are small, so that what few of them have need not cost much.
        let blocks = self.limits.blocks >> self.random.below(4);
        let mut left = (times * blocks / heads_kv).max(1);
        let is_decoding = self.random.below(3) == 0;
        let blocks_of = |queries: u32| (queries * group).div_ceil(64);
        let most_queries = |left: u32| (left * 64 / group).max(1);
        let most = most_queries(left / batch.min(left).max(1)).min(ROWS / 2 / (batch * group * heads_kv));
        let equal = (!is_packed).then(|| self.queries(most.max(1), is_decoding).max(1));
        let mut order: Vec<usize> = (0..batch as usize).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.random.below(at as u32 + 1) as usize);
        }
        let [mut q, mut k] = [(); 2].map(|()| vec![0; batch as usize]);
        let mut before = 1;
        for at in order {
            if left == 0 {
                q[at] = equal.unwrap_or(0);
                continue;
            }
            q[at] = equal.unwrap_or_else(|| self.queries(most_queries(left), is_decoding));
            let of_queries = blocks_of(q[at]).max(1);
            let most = 64 * (left / of_queries).max(1);
            k[at] = self.keys(most, before);
            before = k[at];
            left = left.saturating_sub(blocks_of(q[at]) * k[at].div_ceil(64).max(1));
        }
        Lengths { q, k }
    }

    fn queries(&mut self, most: u32, is_decoding: bool) -> u32 {
        self.size(0..=most, |random| match random.below(8) {
            _ if is_decoding => random.one_of(&[0, 1, 1, 1, 1, 2, 3, 4, 8]),
            0 => 0,
            1 => 1 + random.below(16),
            2..=4 => around_blocks(most.min(1100), random),
            _ => random.log_uniform(1, most.min(700)),
        })
    }

    /// Keys of a sequence, most of which are few; of some sequences as many as of the one `before`.
    fn keys(&mut self, most: u32, before: u32) -> u32 {
        let far = self.limits.keys;
        self.size(0..=most, |random| {
            let most = most.min(if random.below(4) == 0 { far } else { far.min(520) });
            match random.below(12) {
                0 => 0,
                1 => 1 + random.below(16),
                2 => before,
                3..=7 => around_blocks(most, random),
                _ => random.log_uniform(1, most),
            }
        })
    }

    /// Puts keys into a batch, packs them, or puts them into pages.
    fn with_keys(&mut self, problem: Problem, lengths: &Lengths) -> Result<Problem, Error> {
        let Sizes { batch, heads_kv, seqlen_k, .. } = *problem.sizes();
        let is_large = u64::from(batch) * u64::from(heads_kv) * u64::from(seqlen_k) > ROWS.into();
        let all = lengths.k.iter().sum::<u32>().max(1);
        match self.random.below(4) {
            0 if !is_large => Ok(problem),
            0 | 1 => {
                let unused = self.random.below(5);
                let total = self.size(all..=all + 5000, |_| all + unused);
                Ok(problem.with_packed_keys(total)?.with_lengths(false))
            }
            kind => {
                let filled = lengths.k.iter().filter(|length| **length > 0).count().max(1) as u32;
                let most = (ROWS / 2 / (filled * heads_kv)).clamp(16, 4096);
                let page = self.size(1..=most, |random| match random.below(6) {
                    0 | 1 => 1 << random.below(11),
                    2 | 3 => 16 * (1 + random.below(16)),
                    4 => 8 * (1 + random.below(40)),
                    _ => random.log_uniform(1, 600),
                });
                let needed: u32 = lengths.k.iter().map(|length| length.div_ceil(page)).sum();
                let longest = seqlen_k.div_ceil(page);
                let unused = self.random.below(3);
                let table = match kind {
                    2 => BlockTable::Rows {
                        entries: self.size(longest..=longest + 2000, |_| longest + unused),
                    },
                    _ => {
                        let least = needed.max(longest);
                        BlockTable::Csr { entries: self.size(least..=least + 2000, |_| needed + unused) }
                    }
                };
                let least = needed + 1;
                let spare = self.random.below(4);
                let pages = self.size(least..=least + (ROWS / page / heads_kv), |_| least + spare);
                problem.with_pages(Pages { page, pages, table })
            }
        }
    }

    fn mask(&mut self, sizes: Sizes) -> Mask {
        let [left, right] = [(); 2].map(|()| self.side(sizes));
        let mask = match self.random.below(10) {
            0 => Mask::FULL,
            1 => Mask::CAUSAL,
            2 | 3 => Mask::window(Some(left), Some(0)),
            4 => Mask::window(Some(left), Some(right)),
            5 => Mask::window(None, Some(right)),
            6 => Mask::window(Some(left), None),
            7 => Mask::CAUSAL.with_chunk(self.side(sizes).max(1)),
            8 => return Mask::CAUSAL.with_prefix(right.max(1)),
            _ => Mask::CAUSAL.with_intervals(),
        };
        if self.random.below(3) > 0 {
            return mask;
        }
        let most = sizes.seqlen_k;
        let tokens = self.size(1..=1 << 20, |random| match random.below(2) {
            0 => 1 + random.below(4),
            _ => random.log_uniform(1, most.max(128)),
        });
        mask.with_sink_tokens(tokens)
    }

    /// Keys on one side of a query, of a chunk or a prefix: few, as many as blocks have, any number that hides some keys, or more than there are.
    fn side(&mut self, sizes: Sizes) -> u32 {
        let most = sizes.seqlen_k;
        self.size(0..=1 << 20, |random| match random.below(8) {
            0 => random.below(4),
            1..=3 => {
                // Windows of as many keys begin one less to the left.
                let keys = 16 << random.below(((most / 16).max(1).ilog2() + 1).min(8));
                keys - random.below(2)
            }
            4 => around_blocks(most, random),
            5 => most + random.below(300),
            _ => random.log_uniform(1, most),
        })
    }

    fn with_score(&mut self, mut problem: Problem, kind: ScoreKind) -> Result<Problem, Error> {
        if kind == ScoreKind::Tree {
            let keys = self.size(1..=4096, |random| match random.below(3) {
                0 => 32 * (1 + random.below(6)) + random.below(3) - 1,
                _ => random.log_uniform(1, 400),
            });
            problem = problem.with_mask(problem.mask().with_tree(keys))?;
        }
        if kind == ScoreKind::Dropout {
            let [seed, offset] =
                [(); 2].map(|()| u64::from(self.random.below(u32::MAX)) << self.random.below(33));
            let p = (50 + self.random.below(900)) as f32 / 1000.0;
            problem = problem.with_dropout(Dropout { p, seed, offset })?;
        }
        let Sizes { batch, heads_q, seqlen_q, seqlen_k, .. } = *problem.sizes();
        problem.with_score(match kind {
            ScoreKind::Plain | ScoreKind::Tree | ScoreKind::Dropout | ScoreKind::User(_) => Score::Plain,
            ScoreKind::Softcap => Score::Softcap(self.random.log_uniform(1, 50) as f32),
            ScoreKind::Alibi => Score::Alibi { per_batch: self.coin() },
            ScoreKind::Bias => {
                let mut elements = u64::from(seqlen_k);
                let mut has = |size: u32| {
                    let is_own = self.coin() && elements * u64::from(size) <= BIAS_ELEMENTS;
                    elements *= if is_own { size.into() } else { 1 };
                    is_own
                };
                let [queries, heads, batch] = [has(seqlen_q), has(heads_q), has(batch)];
                Score::Bias(BiasShape { batch, heads, queries })
            }
        })
    }

    /// How a problem is to be split, and who merges the splits.
    pub(super) fn options(&mut self, problem: &Problem) -> PlanOptions {
        let Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, .. } = *problem.sizes();
        let most = (SPLIT_ROWS / problem.lse_len().max(1) as u32).clamp(1, SPLITS_MAX);
        let splits = match self.random.below(8) {
            0 | 1 => Splits::Count(1),
            2 => Splits::Auto,
            3 | 4 => {
                // Of few keys less than any block.
                let least = seqlen_k.div_ceil(most).max(17);
                Splits::Size(self.size(least..=1 << 16, |random| random.log_uniform(17, 1024)))
            }
            _ => Splits::Count(self.size(1..=most, |random| match random.below(4) {
                0 => random.log_uniform(1, most),
                _ => 2 + random.below(8),
            })),
        };
        let rows = u64::from(seqlen_q) * u64::from(heads_q / heads_kv);
        let is_fused = u64::from(batch * heads_kv) * (rows.div_ceil(16) + 1) <= FUSED_TILES;
        let combine = match self.random.below(3) {
            1 if is_fused => Combine::Fused,
            2 => Combine::Kernel,
            _ => Combine::Auto,
        };
        PlanOptions { splits, combine, ..PlanOptions::new() }
    }
}

/// Whole blocks of 64 to 512 rows, or up to two rows more or less.
fn around_blocks(most: u32, random: &mut Random) -> u32 {
    let block = random.one_of(&[64, 64, 128, 256, 512, 1024]);
    match most / block {
        0 => random.log_uniform(1, most),
        blocks => block * (1 + random.below(blocks)) + random.one_of(&[2, 2, 3, 1, 4, 0]) - 2,
    }
}

/// What a batch costs, in blocks of 64 query rows and 64 keys: these of all KV heads, CTAs without any, and rows of splits that are merged.
pub(super) fn cost(problem: &Problem, lengths: &Lengths, options: &PlanOptions) -> u32 {
    let Sizes { batch, heads_kv, seqlen_q, seqlen_k, .. } = *problem.sizes();
    let of = |(&q, &k): (&u32, &u32)| {
        let queries = match problem.queries() {
            QuerySequences::Packed { .. } => q,
            QuerySequences::Batch => seqlen_q,
        };
        (queries * problem.group()).div_ceil(64) * k.div_ceil(64)
    };
    let blocks = heads_kv * lengths.q.iter().zip(&lengths.k).map(of).sum::<u32>();
    let splits = match options.splits {
        Splits::Count(count) => count.min(seqlen_k.div_ceil(64)),
        Splits::Size(size) => seqlen_k.div_ceil(size.max(64)),
        _ => 1,
    };
    let ctas = batch * heads_kv * (seqlen_q * problem.group()).div_ceil(64) * splits;
    let merged = if splits > 1 { problem.lse_len() as u32 * splits } else { 0 };
    blocks + ctas / EMPTY_CTAS + merged / MERGED_ROWS
}
