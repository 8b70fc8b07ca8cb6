//! The problems that every kernel is verified on.

use super::RaggedSketch;
use crate::random_input::{self, InputKind};
use ferroflash::error::Error;
use ferroflash::plan::{Combine, PlanOptions, Splits};
use ferroflash::problem::{Layout, Problem, Sizes};
use kernels_gpu::geometry::SPLITS_MAX;
use kernels_gpu::row::{Dtype, Row, Schedule, ScoreKind};

/// Ragged batches that the quick grid draws for each dtype, tile width and score.
const QUICK_BATCHES: usize = 8;
/// What the largest of them costs, in blocks as [`RaggedSketch::cost`] counts them. A third of all that are drawn cost more, some fifty times as
/// much.
const QUICK_BLOCKS: u32 = 64;

/// A set of problems, posed to every kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// A few small problems that reach every branch, in one layout each: seconds on a simulator.
    Quick,
    /// Every pair of the lengths 1, 17, 63, 65, 127, 199, 513, 1023, with every GQA ratio and mask, in both layouts.
    Odd,
}

/// One problem of a grid, but for dtype and head_dim, which the kernel gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Batch entries.
    pub batch: u32,
    /// Query heads and KV heads.
    pub heads: (u32, u32),
    /// Query rows and keys.
    pub seqlens: (u32, u32),
    /// The causal mask.
    pub causal: bool,
    /// Distribution of the inputs.
    pub kind: InputKind,
    /// Which of several ways to split keys, order heads and choose lengths.
    pub variation: usize,
    /// Whether sequences have lengths of their own: only kernels that split keys take them.
    pub lengths: bool,
}

impl Case {
    /// The problem for kernels of this dtype and head_dim.
    ///
    /// # Errors
    /// Those of [`Problem::new`].
    pub fn problem(&self, dtype: Dtype, head_dim: u32) -> Result<Problem, Error> {
        let sizes = Sizes {
            batch: self.batch,
            heads_q: self.heads.0,
            heads_kv: self.heads.1,
            seqlen_q: self.seqlens.0,
            seqlen_k: self.seqlens.1,
            head_dim,
        };
        Ok(Problem::new(sizes, dtype)?.with_causal(self.causal).with_lengths(self.lengths))
    }

    /// Its inputs for a problem of it. Where sequences have lengths, one has none, one is over seqlen_k, and behind each of the others lies
    /// NaN.
    pub fn inputs(&self, problem: &Problem, seed: u64) -> ([Vec<u16>; 3], Option<Vec<u32>>) {
        let mut qkv = random_input::qkv(problem, self.kind, seed);
        if !self.lengths {
            return (qkv, None);
        }
        let keys = self.seqlens.1;
        // Any three neighbours have one of the first and the third.
        let lengths = [0, keys / 2 + 1, keys + 7, keys - 1];
        let length = |batch: u32| lengths[(batch as usize + self.variation) % lengths.len()];
        let seqlens_k: Vec<u32> = (0..self.batch).map(length).collect();
        random_input::poison_behind(problem, &seqlens_k, &mut qkv);
        (qkv, Some(seqlens_k))
    }

    /// How a kernel is to run it; `round` goes on to the next way.
    pub fn options(&self, row: &Row, round: usize) -> PlanOptions {
        let variation = self.variation + round;
        match row.schedule {
            Schedule::Split | Schedule::Ragged => {
                // The smallest size that makes no more than the most splits; of few keys, less than any block.
                let size = self.seqlens.1.div_ceil(SPLITS_MAX).max(17);
                let [one, two, three, most] = [1, 2, 3, SPLITS_MAX].map(Splits::Count);
                let splits = [one, three, Splits::Size(size), two, most, Splits::Auto][variation % 6];
                let combine = [Combine::Fused, Combine::Kernel][variation / 6 % 2];
                PlanOptions { splits, combine, ..PlanOptions::new() }
            }
            Schedule::Grid | Schedule::Persistent => {
                let heads_together = [None, Some(2), Some(3)][variation % 3];
                PlanOptions { heads_together, ..PlanOptions::new() }
            }
        }
    }

    /// Whether a kernel of this row can run it.
    pub fn fits(&self, row: &Row) -> bool {
        row.schedule != Schedule::Ragged && (!self.lengths || row.schedule.splits())
    }
}

impl Grid {
    /// The layouts that a kernel of this dtype runs a case in. Kernels of both dtypes are alike: the quick grid leaves each one
    /// layout of every case, and the other dtype the other.
    pub fn layouts(self, case: &Case, dtype: Dtype) -> &'static [Layout] {
        const BOTH: [Layout; 2] = [Layout::Bhsd, Layout::Bshd];
        // Neighbours are the same lengths under both masks.
        let turn = case.variation / 2 + usize::from(dtype == Dtype::Bf16);
        match self {
            Grid::Quick => std::slice::from_ref(&BOTH[turn % 2]),
            Grid::Odd => &BOTH,
        }
    }

    /// The seeds of the ragged batches that the kernels of one dtype, tile width and score are verified on.
    ///
    /// Drawn batches differ a hundred times in what they cost. The quick grid takes the small ones of those that all kernels have, and in place of
    /// the others some of each dtype's and width's own: as these kernels are alike, together they meet many.
    ///
    /// # Errors
    /// Those of [`RaggedSketch::draw`].
    pub(super) fn ragged_seeds(
        self,
        dtype: Dtype,
        head_dim: u32,
        kind: ScoreKind,
        seed: u64,
    ) -> Result<Vec<u64>, Error> {
        let of = |number: u64| seed ^ number << 8 ^ u64::from(kind.number());
        if self == Grid::Odd {
            return Ok((0..200).map(of).collect());
        }
        let own = 1 << 40 | u64::from(head_dim) << 24 | u64::from(dtype == Dtype::Bf16) << 23;
        let (mut seeds, mut numbers) = (Vec::new(), (0..QUICK_BATCHES as u64).chain(own..));
        while seeds.len() < QUICK_BATCHES
            && let Some(number) = numbers.next()
        {
            let sketch = RaggedSketch::draw(dtype, head_dim, kind, &[], of(number))?;
            if sketch.cost() <= QUICK_BLOCKS {
                seeds.push(of(number));
            }
        }
        Ok(seeds)
    }

    /// Its problems.
    pub fn cases(self) -> Vec<Case> {
        let (lengths, ratios): (&[u32], &[(u32, u32)]) = match self {
            Grid::Quick => (&[1, 65, 127], &[(3, 1)]),
            Grid::Odd => (&[1, 17, 63, 65, 127, 199, 513, 1023], &[(2, 2), (4, 2), (3, 1)]),
        };
        let mut cases = Vec::new();
        for (index, &seqlen_q) in lengths.iter().enumerate() {
            for (other, &seqlen_k) in lengths.iter().enumerate() {
                for (ratio, &heads) in ratios.iter().enumerate() {
                    for causal in [false, true] {
                        // Every kind meets every length, ratio and mask somewhere.
                        let kind = match (index + other + ratio) % 4 {
                            0 | 1 => InputKind::Random,
                            2 => InputKind::Outliers,
                            _ => InputKind::NotANumber,
                        };
                        let batch = match self {
                            Grid::Quick => 1 + (index + usize::from(causal)) as u32 % 2,
                            Grid::Odd if seqlen_q.max(seqlen_k) < 128 => 2,
                            Grid::Odd => 1,
                        };
                        let (variation, seqlens) = (cases.len(), (seqlen_q, seqlen_k));
                        cases.push(Case { batch, heads, seqlens, causal, kind, variation, lengths: false });
                    }
                }
            }
        }
        cases.extend(self.decode_cases());
        cases
    }

    /// Few queries and many keys, with and without lengths.
    fn decode_cases(self) -> Vec<Case> {
        const GROUPS: [(u32, u32); 5] = [(2, 2), (4, 2), (3, 1), (8, 2), (8, 1)];
        let shapes: Vec<((u32, u32), (u32, u32))> = match self {
            // Each group and a few lengths once.
            Grid::Quick => GROUPS.into_iter().zip([(1, 131), (5, 64), (16, 129), (2, 300), (3, 1)]).collect(),
            Grid::Odd => {
                let seqlens =
                    [1, 2, 3, 5, 8, 11, 16].into_iter().flat_map(|q| [1, 129, 1000, 4097].map(|k| (q, k)));
                let all = seqlens.flat_map(|seqlens| GROUPS.map(|heads| (heads, seqlens)));
                // As many blocks of keys as the most splits have, whatever the block.
                all.chain([((2, 1), (1, 128 * SPLITS_MAX + 5))]).collect()
            }
        };
        let mut cases = Vec::new();
        for (index, (heads, seqlens)) in shapes.into_iter().enumerate() {
            for lengths in [false, true] {
                let kind = if index % 3 == 2 { InputKind::Outliers } else { InputKind::Random };
                let (causal, variation) = ((index + usize::from(lengths)) % 2 == 1, cases.len());
                cases.push(Case { batch: 3, heads, seqlens, causal, kind, variation, lengths });
            }
        }
        cases
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { batch, heads, seqlens, causal, kind, lengths, .. } = self;
        let mask = if *causal { "causal" } else { "full" };
        let lengths = if *lengths { " lengths" } else { "" };
        let (heads_q, heads_kv) = heads;
        let (seqlen_q, seqlen_k) = seqlens;
        write!(f, "B{batch} H{heads_q}/{heads_kv} S{seqlen_q}x{seqlen_k} {mask} {}{lengths}", kind.name())
    }
}
