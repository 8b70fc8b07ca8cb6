//! Ragged batches that kernels are verified on, drawn at random: packed and paged sequences, masks, sinks, scores, widths, all together.

use crate::random_input::{self, InputKind, Random};
use crate::reference::{Reference, reference_of};
use crate::tolerance::{Tolerance, Verdict};
use crate::workload::{Choices, Workload};
use ferroflash::attention::{HostTensors, OperandValues, Output};
use ferroflash::error::Error;
use ferroflash::plan::{PlanOptions, Splits};
use ferroflash::problem::{
    BiasShape, BlockTable, Dropout, KeySequences, Layout, Mask, Operand, Pages, Problem, Score, Sizes,
    UserScore,
};
use kernels_gpu::geometry;
use kernels_gpu::row::{Accumulation, Dtype, HEAD_DIMS, Isa, Row, ScoreKind, ScoreName};

/// A user's score as a case has it.
pub struct UserCase {
    /// The score, with the lengths of its tables.
    pub score: UserScore,
    /// Its tables.
    pub tables: Vec<OperandValues>,
}

/// What gives a user's score and its tables for a problem and a seed.
pub type DrawUser<'a> = &'a dyn Fn(&Problem, u64) -> Result<UserCase, Error>;

/// A ragged batch with its inputs, what is right, and how far a kernel may be from it.
pub struct RaggedCase {
    /// The problem.
    pub problem: Problem,
    /// How it is to be split.
    pub options: PlanOptions,
    workload: Workload,
    qkv: [Vec<u16>; 3],
    reference: Reference,
    tolerance: Tolerance,
}

impl RaggedCase {
    /// Whether the case of a seed has NaN among the queries, keys and values that sequences have.
    pub fn has_nan(seed: u64) -> bool {
        kind(seed) == InputKind::NotANumber
    }

    /// Draws a case for kernels of this dtype, tile width and score, which is one of Ferroflash.
    ///
    /// # Errors
    /// [`Error::Operand`] of a user's score, whose tables [`RaggedCase::draw_user`] is told; else where the problem cannot be, which is a
    /// fault of what is drawn.
    pub fn draw(dtype: Dtype, head_dim: u32, kind: ScoreKind, seed: u64) -> Result<RaggedCase, Error> {
        let refused = |_: &Problem, _: u64| -> Result<UserCase, Error> {
            let reason = "it is a user's score, whose tables are not known: RaggedCase::draw_user";
            Err(Error::Operand { operand: Operand::Table0.name(), reason })
        };
        RaggedCase::drawn((dtype, head_dim), (kind, &refused), seed)
    }

    /// As [`RaggedCase::draw`], of the user's score and the tables that `user` gives for a problem, whose score is not set yet, and a seed.
    ///
    /// # Errors
    /// Those of `user`; where its tables are not those of the score.
    pub fn draw_user(
        dtype: Dtype,
        head_dim: u32,
        user: DrawUser<'_>,
        seed: u64,
    ) -> Result<RaggedCase, Error> {
        // Any name: the score is what `user` says.
        let name = ScoreName::new("user").map_or(ScoreKind::Plain, ScoreKind::User);
        RaggedCase::drawn((dtype, head_dim), (name, user), seed)
    }

    /// The problem of [`RaggedCase::draw`] alone, which is told at once: what is right takes seconds.
    ///
    /// # Errors
    /// As there.
    pub fn sketch(dtype: Dtype, head_dim: u32, kind: ScoreKind, seed: u64) -> Result<Problem, Error> {
        begin(dtype, head_dim, kind, seed).map(|(problem, ..)| problem)
    }

    fn drawn(
        (dtype, head_dim): (Dtype, u32),
        (kind, user): (ScoreKind, DrawUser<'_>),
        seed: u64,
    ) -> Result<RaggedCase, Error> {
        let (mut problem, lengths, mut random) = begin(dtype, head_dim, kind, seed)?;
        let mut tables = Vec::new();
        if let ScoreKind::User(_) = kind {
            let drawn = user(&problem, seed)?;
            problem = problem.with_score(Score::User(drawn.score))?;
            tables = drawn.tables;
        }
        let (workload, qkv) = draw_tensors(&problem, &lengths, seed, &mut random);
        let workload = Operand::TABLES.into_iter().zip(tables).fold(workload, Workload::with_operand);
        let tensors = workload.tensors(&qkv);
        tensors.check_operands(&problem)?;
        let reference = reference_of(&problem, &tensors, &|_, _| ());
        let tolerance = Tolerance::new(&problem, &tensors, &reference, Accumulation::F32);
        let splits = random.one_of(&[
            Splits::Count(1),
            Splits::Count(2),
            Splits::Count(5),
            Splits::Auto,
            Splits::Size(64),
        ]);
        let options = PlanOptions { splits, ..PlanOptions::new() };
        Ok(RaggedCase { problem, options, workload, qkv, reference, tolerance })
    }

    /// How long its sequences are, and its operands.
    #[cfg(test)]
    pub(crate) fn workload(&self) -> &Workload {
        &self.workload
    }

    /// What a kernel is given.
    pub fn tensors(&self) -> HostTensors<'_> {
        self.workload.tensors(&self.qkv)
    }

    /// Whether kernels of a row compute it.
    pub fn fits(&self, row: &Row) -> bool {
        fits(&self.problem, row)
    }

    /// Judges the output of a kernel.
    ///
    /// # Errors
    /// [`Error::WrongLength`] where an output is not as long as the problem says.
    pub fn judge(&self, output: &Output) -> Result<Verdict, Error> {
        self.tolerance.judge(&self.problem, &self.reference, &output.o, output.lse.as_deref())
    }

    /// The rows in which O, and those in which the LSE, is further from right than is allowed.
    pub fn wrong_rows(&self, output: &Output) -> [Vec<usize>; 2] {
        self.tolerance.wrong_rows(&self.problem, &self.reference, output)
    }
}

/// The problem and the lengths that a seed gives, and the generator behind them.
fn begin(
    dtype: Dtype,
    head_dim: u32,
    kind: ScoreKind,
    seed: u64,
) -> Result<(Problem, Lengths, Random), Error> {
    let mut random = Random::new(seed);
    let lengths = Lengths::draw(&mut random);
    let problem = draw_problem(dtype, head_dim, kind, &lengths, &mut random)?;
    Ok((problem, lengths, random))
}

/// Whether kernels of a row compute a problem that was drawn for its dtype, head_dim and score.
pub fn fits(problem: &Problem, row: &Row) -> bool {
    let pages_fit = match problem.keys() {
        // Boxes of fewer keys do not land as one of a whole block would.
        KeySequences::Paged(pages) => row.isa == Isa::Mma || page_box(pages.page, row.block_n) >= 8,
        KeySequences::Batch | KeySequences::Packed { .. } => true,
    };
    row.score == problem.score_kind()
        && geometry::problems_head_dim(row) == problem.tile_head_dim()
        && geometry::holds_widths(row, problem.sizes().head_dim, problem.head_dim_v())
        && (row.isa == Isa::Mma || !problem.mask().intervals)
        && pages_fit
}

/// Whether LSE is wanted of a ragged batch, as it is of most.
pub fn wants_lse(problem: &Problem) -> bool {
    let sizes = problem.sizes();
    !(sizes.seqlen_q + sizes.seqlen_k + sizes.batch).is_multiple_of(4)
}

/// Keys of a box that never crosses the end of a page or of a block.
fn page_box(page: u32, block_n: u32) -> u32 {
    if page == 0 { block_n } else { page_box(block_n % page, page) }
}

impl std::fmt::Display for RaggedCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let problem = &self.problem;
        let Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim } = problem.sizes();
        write!(
            f,
            "B{batch} H{heads_q}/{heads_kv} S{seqlen_q}x{seqlen_k} D{head_dim}/{} ",
            problem.head_dim_v()
        )?;
        write!(
            f,
            "{}, Q {:?}, K {:?}, {:?}",
            problem.mask(),
            problem.queries(),
            problem.keys(),
            problem.score()
        )?;
        if let Some(dropout) = problem.dropout() {
            write!(f, ", {dropout:?}")?;
        }
        if problem.has_sinks() {
            write!(f, ", sinks")?;
        }
        write!(f, ", lengths {:?}, {}", self.workload.seqlens_k(), self.options.splits)
    }
}

/// Queries and keys of each sequence.
pub(super) struct Lengths {
    pub(super) q: Vec<u32>,
    pub(super) k: Vec<u32>,
}

impl Lengths {
    pub(super) fn draw(random: &mut Random) -> Lengths {
        let batch = random.one_of(&[1, 2, 3, 4, 5, 9]);
        let decode = random.below(3) == 0;
        let q_lengths: &[u32] = if decode { &[1, 1, 1, 2, 0] } else { &[0, 1, 5, 17, 63, 64, 65, 100, 140] };
        // Float64 follows a few queries over many keys.
        let k_lengths: &[u32] = match decode {
            true => &[0, 1, 15, 64, 65, 150, 300, 1030, 2050],
            false => &[0, 1, 15, 16, 63, 64, 65, 128, 150, 200, 300],
        };
        let mut of = |lengths: &[u32]| -> Vec<u32> { (0..batch).map(|_| random.one_of(lengths)).collect() };
        Lengths { q: of(q_lengths), k: of(k_lengths) }
    }
}

pub(super) fn draw_problem(
    dtype: Dtype,
    head_dim: u32,
    kind: ScoreKind,
    lengths: &Lengths,
    random: &mut Random,
) -> Result<Problem, Error> {
    // The next smaller tile's width is too narrow for the wider of both.
    let narrower = HEAD_DIMS.into_iter().rev().find(|&dim| dim < head_dim).unwrap_or(0);
    let (step, widest_v) = (if head_dim <= 256 { 8 } else { 16 }, geometry::widest_value(head_dim));
    let width = |random: &mut Random| narrower + step * (1 + random.below((head_dim - narrower) / step));
    let any_width = |random: &mut Random, most: u32| step * (1 + random.below(most / step));
    let (width_qk, width_v) = match random.below(4) {
        0 => (width(random), any_width(random, widest_v)),
        1 if widest_v == head_dim => (any_width(random, head_dim), width(random)),
        _ => (head_dim, widest_v),
    };
    let (heads_q, heads_kv) =
        random.one_of(&[(1, 1), (2, 2), (4, 2), (3, 1), (5, 1), (6, 1), (8, 1), (7, 7), (14, 2), (20, 1)]);
    let most = |lengths: &[u32]| lengths.iter().copied().max().unwrap_or(0).max(1);
    let sizes = Sizes {
        batch: lengths.q.len() as u32,
        heads_q,
        heads_kv,
        seqlen_q: most(&lengths.q),
        seqlen_k: most(&lengths.k),
        head_dim: width_qk,
    };
    let mut problem = Problem::new(sizes, dtype)?.with_lengths(true);
    if width_v != width_qk {
        problem = problem.with_head_dim_v(width_v)?;
    }
    if random.below(3) > 0 {
        let unused = random.one_of(&[0, 0, 3, 70]);
        problem = problem.with_packed_queries((lengths.q.iter().sum::<u32>() + unused).max(1))?;
    }
    match random.below(4) {
        0 => {}
        1 => {
            problem = problem
                .with_packed_keys((lengths.k.iter().sum::<u32>() + random.below(5)).max(1))?
                .with_lengths(false)
        }
        table => {
            let page = random.one_of(&[1, 2, 3, 8, 16, 24, 32, 48, 64, 100, 128, 256]);
            let needed: u32 = lengths.k.iter().map(|length| length.div_ceil(page)).sum();
            let table = match table {
                2 => BlockTable::Rows { entries: sizes.seqlen_k.div_ceil(page) + random.below(3) },
                _ => {
                    BlockTable::Csr { entries: (needed + random.below(3)).max(sizes.seqlen_k.div_ceil(page)) }
                }
            };
            problem = problem.with_pages(Pages { page, pages: needed + 1 + random.below(4), table })?;
        }
    }
    if random.below(2) == 0 {
        problem = problem.with_layout(Layout::Bhsd);
    }
    problem = problem.with_mask(draw_mask(random))?.with_sinks(random.below(3) == 0);
    if random.below(3) == 0 {
        problem = problem.with_scale(random.one_of(&[0.05, 0.3, 1.0]))?;
    }
    if kind == ScoreKind::Tree {
        let keys = random.one_of(&[1, 4, 5, 31, 32, 33, 63, 64, 100, 128, 400]);
        problem = problem.with_mask(problem.mask().with_tree(keys))?;
    }
    if kind == ScoreKind::Dropout {
        let [seed, offset] = [(); 2].map(|()| u64::from(random.below(u32::MAX)) << random.below(33));
        problem = problem.with_dropout(Dropout { p: random.one_of(&[0.17, 0.5, 0.9]), seed, offset })?;
    }
    let mut coin = || random.below(2) == 0;
    problem.with_score(match kind {
        ScoreKind::Plain | ScoreKind::Tree | ScoreKind::Dropout | ScoreKind::User(_) => Score::Plain,
        ScoreKind::Softcap => Score::Softcap(random.one_of(&[1.0, 15.0, 30.0, 50.0])),
        ScoreKind::Alibi => Score::Alibi { per_batch: coin() },
        ScoreKind::Bias => Score::Bias(BiasShape { batch: coin(), heads: coin(), queries: coin() }),
    })
}

fn draw_mask(random: &mut Random) -> Mask {
    let sides = [0, 1, 3, 13, 37, 63, 64, 128, 299, 1000];
    let left = random.one_of(&sides);
    let right = random.one_of(&sides);
    let mask = match random.below(10) {
        0 => Mask::FULL,
        1 => Mask::CAUSAL,
        2 | 3 => Mask::window(Some(left), Some(0)),
        4 => Mask::window(Some(left), Some(right)),
        5 => Mask::window(None, Some(right)),
        6 => Mask::window(Some(left), None),
        7 => Mask::CAUSAL.with_chunk(1 + random.below(150)),
        8 => return Mask::CAUSAL.with_prefix(right.max(1)),
        _ => Mask::CAUSAL.with_intervals(),
    };
    if random.below(3) == 0 { mask.with_sink_tokens(random.one_of(&[1, 2, 4, 33, 100])) } else { mask }
}

/// How the elements of a case's tensors are distributed.
fn kind(seed: u64) -> InputKind {
    const KINDS: [InputKind; 4] =
        [InputKind::Random, InputKind::Random, InputKind::Outliers, InputKind::NotANumber];
    Random::new(seed ^ 0x6b69_6e64).one_of(&KINDS)
}

/// Q, K and V with NaN in every row that no sequence has, and what a call is given beside them.
fn draw_tensors(
    problem: &Problem,
    lengths: &Lengths,
    seed: u64,
    random: &mut Random,
) -> (Workload, [Vec<u16>; 3]) {
    let kind = kind(seed);
    // A key whose weight is too small for float32, or 0, loses its NaN where splits are merged: there are none so far from the others.
    let is_mild = kind == InputKind::NotANumber;
    let choices = Choices {
        sinks: &[f32::NEG_INFINITY, -3.0, 0.0, 1.5, if is_mild { 20.0 } else { 80.0 }],
        slopes: Some(if is_mild { &[0.0, 0.004, 0.06, 0.125] } else { &[0.0, 0.004, 0.5, 0.707] }),
        biases: if is_mild { &[0.0, -1.0, 0.5, 2.0] } else { &[0.0, -1.0, 0.5, 2.0, f64::NEG_INFINITY] },
        pages_a_hole: 12,
    };
    let workload = Workload::draw(problem, [lengths.q.clone(), lengths.k.clone()], &choices, random);
    let mut qkv = random_input::qkv(problem, kind, seed);
    workload.poison_unused(&mut qkv);
    (workload, qkv)
}
