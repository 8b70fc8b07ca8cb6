//! Ragged batches that kernels are verified on, drawn at random: packed and paged sequences, masks, sinks, scores, widths, all together.

mod draw;

use draw::Lengths;
pub(super) use draw::{Draw, Limits};

use crate::random_input::{self, InputKind, Random};
use crate::reference::{Reference, reference_of};
use crate::tolerance::{Tolerance, Verdict};
use crate::workload::{Choices, Workload};
use ferroflash::attention::{HostTensors, OperandValues, Output};
use ferroflash::error::Error;
use ferroflash::plan::PlanOptions;
use ferroflash::problem::{KeySequences, Operand, Problem, QuerySequences, Score, Sizes, UserScore};
use kernels_gpu::geometry;
use kernels_gpu::row::{Accumulation, Dtype, Isa, Row, ScoreKind, ScoreName};

/// A user's score as a case has it.
pub struct UserCase {
    /// The score, with the lengths of its tables.
    pub score: UserScore,
    /// Its tables.
    pub tables: Vec<OperandValues>,
}

/// What gives a user's score and its tables for a problem and a seed.
pub type DrawUser<'a> = &'a dyn Fn(&Problem, u64) -> Result<UserCase, Error>;

/// A ragged batch before its inputs are drawn: what is right of it, which takes seconds, is not known yet.
#[derive(Clone, Debug)]
pub struct RaggedSketch {
    /// The problem; of a user's score without it.
    pub problem: Problem,
    /// How it is to be split.
    pub options: PlanOptions,
    seed: u64,
    lengths: Lengths,
    /// What goes on behind what was drawn.
    random: Random,
}

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

impl RaggedSketch {
    /// Draws a batch for kernels of this dtype, tile width and score, with `numbers` among the sizes of any place: those in a kernel's code.
    ///
    /// # Errors
    /// Where the problem cannot be, which is a fault of what is drawn.
    pub fn draw(
        dtype: Dtype,
        head_dim: u32,
        kind: ScoreKind,
        numbers: &[u32],
        seed: u64,
    ) -> Result<RaggedSketch, Error> {
        let mut random = Random::new(seed);
        let mut draw = Draw { random: &mut random, numbers, limits: Limits::FORWARD };
        let (problem, lengths) = draw.problem(dtype, head_dim, kind)?;
        let options = draw.options(&problem);
        Ok(RaggedSketch { problem, options, seed, lengths, random })
    }

    /// Whether NaN is among the queries, keys and values that its sequences have.
    pub fn has_nan(&self) -> bool {
        kind(self.seed) == InputKind::NotANumber
    }

    /// Queries and keys of each sequence.
    pub fn seqlens(&self) -> impl Iterator<Item = (u32, u32)> {
        let equal = match self.problem.queries() {
            QuerySequences::Packed { .. } => None,
            QuerySequences::Batch => Some(self.problem.sizes().seqlen_q),
        };
        let Lengths { q, k } = &self.lengths;
        q.iter().zip(k).map(move |(&q, &k)| (equal.unwrap_or(q), k))
    }

    /// What it costs, about, in blocks of 64 query rows and 64 keys.
    pub fn cost(&self) -> u32 {
        draw::cost(&self.problem, &self.lengths, &self.options)
    }

    /// The same with inputs, and what is right.
    ///
    /// # Errors
    /// Where operands are not those of the problem, which is a fault of what is drawn.
    pub fn case(self) -> Result<RaggedCase, Error> {
        self.with_tables(Vec::new())
    }

    fn with_tables(self, tables: Vec<OperandValues>) -> Result<RaggedCase, Error> {
        let RaggedSketch { problem, options, seed, lengths, mut random } = self;
        let (workload, qkv) = draw_tensors(&problem, &lengths, seed, &mut random);
        let workload = Operand::TABLES.into_iter().zip(tables).fold(workload, Workload::with_operand);
        let tensors = workload.tensors(&qkv);
        tensors.check_operands(&problem)?;
        let reference = reference_of(&problem, &tensors, &|_, _| ());
        let tolerance = Tolerance::new(&problem, &tensors, &reference, Accumulation::F32);
        Ok(RaggedCase { problem, options, workload, qkv, reference, tolerance })
    }
}

impl RaggedCase {
    /// Draws a case for kernels of this dtype, tile width and score, which is one of Ferroflash.
    ///
    /// # Errors
    /// [`Error::Operand`] of a user's score, whose tables [`RaggedCase::draw_user`] is told; else where the problem cannot be, which is a
    /// fault of what is drawn.
    pub fn draw(dtype: Dtype, head_dim: u32, kind: ScoreKind, seed: u64) -> Result<RaggedCase, Error> {
        if let ScoreKind::User(_) = kind {
            let reason = "it is a user's score, whose tables are not known: RaggedCase::draw_user";
            return Err(Error::Operand { operand: Operand::Table0.name(), reason });
        }
        RaggedSketch::draw(dtype, head_dim, kind, &[], seed)?.case()
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
        let mut sketch = RaggedSketch::draw(dtype, head_dim, name, &[], seed)?;
        let drawn = user(&sketch.problem, seed)?;
        sketch.problem = sketch.problem.with_score(Score::User(drawn.score))?;
        sketch.with_tables(drawn.tables)
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
        && geometry::rows_of_block(row, problem.group()) > 0
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
