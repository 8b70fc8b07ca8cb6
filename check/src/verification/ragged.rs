//! Ragged batches that kernels are verified on, drawn at random: packed and paged sequences, masks, sinks, scores, widths, all together.

use crate::random_input::{self, InputKind, Random};
use crate::reference::{Reference, reference_of, row_start};
use crate::tolerance::{Tolerance, Verdict};
use ferroflash::attention::{HostOperand, HostTensors, Output};
use ferroflash::error::Error;
use ferroflash::plan::{PlanOptions, Splits};
use ferroflash::problem::{
    BiasShape, BlockTable, Extent, KeySequences, Layout, Mask, Operand, Pages, Problem, QuerySequences,
    Score, Sizes, TensorRole, UserScore,
};
use ferroflash::rounding::narrow;
use kernels_gpu::row::{Accumulation, Dtype, Isa, Row, ScoreKind, ScoreName};

/// A ragged batch with its inputs, what is right, and how far a kernel may be from it.
pub struct RaggedCase {
    /// The problem.
    pub problem: Problem,
    /// How it is to be split.
    pub options: PlanOptions,
    inputs: Inputs,
    reference: Reference,
    tolerance: Tolerance,
}

/// What a call is given.
struct Inputs {
    qkv: [Vec<u16>; 3],
    seqlens_k: Option<Vec<u32>>,
    operands: Vec<(Operand, Values)>,
}

/// A user's score as a case has it.
pub struct UserCase {
    /// The score, with the lengths of its tables.
    pub score: UserScore,
    /// Its tables.
    pub tables: Vec<Values>,
}

/// The elements of an operand.
#[derive(Clone, Debug)]
pub enum Values {
    /// u32.
    U32(Vec<u32>),
    /// i32.
    I32(Vec<i32>),
    /// float32.
    F32(Vec<f32>),
    /// The bits of the problem's dtype.
    Bits(Vec<u16>),
}

impl RaggedCase {
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
        user: &dyn Fn(&Problem, u64) -> Result<UserCase, Error>,
        seed: u64,
    ) -> Result<RaggedCase, Error> {
        // Any name: the score is what `user` says.
        let name = ScoreName::new("user").map_or(ScoreKind::Plain, ScoreKind::User);
        RaggedCase::drawn((dtype, head_dim), (name, user), seed)
    }

    fn drawn(
        (dtype, head_dim): (Dtype, u32),
        (kind, user): (ScoreKind, &dyn Fn(&Problem, u64) -> Result<UserCase, Error>),
        seed: u64,
    ) -> Result<RaggedCase, Error> {
        let mut random = Random::new(seed);
        let lengths = Lengths::draw(&mut random);
        let mut problem = draw_problem(dtype, head_dim, kind, &lengths, &mut random)?;
        let mut tables = Vec::new();
        if let ScoreKind::User(_) = kind {
            let drawn = user(&problem, seed)?;
            problem = problem.with_score(Score::User(drawn.score))?;
            tables = drawn.tables;
        }
        let mut inputs = Inputs::draw(&problem, &lengths, seed, &mut random);
        inputs.operands.extend(Operand::TABLES.into_iter().zip(tables));
        let tensors = inputs.tensors();
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
        Ok(RaggedCase { problem, options, inputs, reference, tolerance })
    }

    /// What a kernel is given.
    pub fn tensors(&self) -> HostTensors<'_> {
        self.inputs.tensors()
    }

    /// Whether kernels of a row compute it.
    pub fn fits(&self, row: &Row) -> bool {
        let pages_fit = match self.problem.keys() {
            // Boxes of fewer keys do not land as one of a whole block would.
            KeySequences::Paged(pages) => row.isa == Isa::Mma || page_box(pages.page, row.block_n) >= 8,
            KeySequences::Batch | KeySequences::Packed { .. } => true,
        };
        row.score == self.problem.score_kind()
            && row.head_dim == self.problem.tile_head_dim()
            && (row.isa == Isa::Mma || !self.problem.mask().intervals)
            && pages_fit
    }

    /// Judges the output of a kernel.
    ///
    /// # Errors
    /// [`Error::WrongLength`] where an output is not as long as the problem says.
    pub fn judge(&self, output: &Output) -> Result<Verdict, Error> {
        self.tolerance.judge(&self.problem, &self.reference, &output.o, output.lse.as_deref())
    }
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
        if problem.has_sinks() {
            write!(f, ", sinks")?;
        }
        write!(f, ", lengths {:?}, {}", self.inputs.seqlens_k, self.options.splits)
    }
}

/// Queries and keys of each sequence.
struct Lengths {
    q: Vec<u32>,
    k: Vec<u32>,
}

impl Lengths {
    fn draw(random: &mut Random) -> Lengths {
        let batch = random.one_of(&[1, 2, 3, 5]);
        let decode = random.below(3) == 0;
        let q_lengths: &[u32] = if decode { &[1, 1, 1, 2, 0] } else { &[0, 1, 5, 17, 63, 64, 65, 100, 140] };
        let k_lengths: &[u32] = &[0, 1, 15, 16, 63, 64, 65, 128, 150, 200, 300];
        let mut of = |lengths: &[u32]| -> Vec<u32> { (0..batch).map(|_| random.one_of(lengths)).collect() };
        Lengths { q: of(q_lengths), k: of(k_lengths) }
    }
}

fn draw_problem(
    dtype: Dtype,
    head_dim: u32,
    kind: ScoreKind,
    lengths: &Lengths,
    random: &mut Random,
) -> Result<Problem, Error> {
    // The next smaller tile's width is too narrow for the wider of both.
    let narrower = |width: u32| if width == 256 { 128 } else { width.saturating_sub(32) };
    let width = |random: &mut Random| {
        narrower(head_dim) + 8 * (1 + random.below((head_dim - narrower(head_dim)) / 8))
    };
    let (width_qk, width_v) = match random.below(4) {
        0 => (width(random), 8 * (1 + random.below(head_dim / 8))),
        1 => (8 * (1 + random.below(head_dim / 8)), width(random)),
        _ => (head_dim, head_dim),
    };
    let (heads_q, heads_kv) = random.one_of(&[(1, 1), (2, 2), (4, 2), (3, 1), (5, 1), (8, 1), (7, 7)]);
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
            let page = random.one_of(&[1, 3, 8, 16, 48, 64, 100, 128, 256]);
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
    let mut coin = || random.below(2) == 0;
    problem.with_score(match kind {
        ScoreKind::Plain | ScoreKind::Tree | ScoreKind::User(_) => Score::Plain,
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
    if random.below(3) == 0 { mask.with_sink_tokens(random.one_of(&[1, 4, 33, 100])) } else { mask }
}

impl Inputs {
    fn draw(problem: &Problem, lengths: &Lengths, seed: u64, random: &mut Random) -> Inputs {
        let kind = random.one_of(&[
            InputKind::Random,
            InputKind::Random,
            InputKind::Outliers,
            InputKind::NotANumber,
        ]);
        let qkv = random_input::qkv(problem, kind, seed);
        let mut inputs = Inputs { qkv, seqlens_k: None, operands: Vec::new() };
        let starts = |lengths: &[u32]| -> Vec<u32> {
            std::iter::once(0)
                .chain(lengths.iter().scan(0, |sum, length| {
                    *sum += length;
                    Some(*sum)
                }))
                .collect()
        };
        // A key whose weight is too small for float32 loses its NaN where splits are merged: there are none so far from the others.
        let is_mild = kind == InputKind::NotANumber;
        for operand in Operand::ALL {
            let Some(elements) = problem.operand_len(operand) else { continue };
            let values = match operand {
                Operand::CuSeqlensQ => Values::U32(starts(&lengths.q)),
                Operand::CuSeqlensK => Values::U32(starts(&lengths.k)),
                Operand::PageIndptr | Operand::BlockTable => continue,
                Operand::Table0 | Operand::Table1 | Operand::Table2 | Operand::Table3 => continue,
                Operand::TreeMask => {
                    // Queries that see all of it, none, and anything between.
                    let word = |random: &mut Random| match random.below(4) {
                        0 => 0,
                        1 => u32::MAX,
                        _ => random.below(1 << 16) << 16 | random.below(1 << 16),
                    };
                    Values::U32((0..elements).map(|_| word(random)).collect())
                }
                Operand::Intervals => {
                    let ends = (0..elements).map(|_| random.below(problem.sizes().seqlen_k + 20));
                    Values::U32(ends.collect())
                }
                Operand::Sinks => {
                    let scores = [f32::NEG_INFINITY, -3.0, 0.0, 1.5, if is_mild { 20.0 } else { 80.0 }];
                    Values::F32((0..elements).map(|_| random.one_of(&scores)).collect())
                }
                Operand::Slopes => {
                    let slopes = if is_mild { [0.0, 0.004, 0.06, 0.125] } else { [0.0, 0.004, 0.5, 0.707] };
                    Values::F32((0..elements).map(|_| random.one_of(&slopes)).collect())
                }
                Operand::Bias => {
                    let values = [0.0, -1.0, 0.5, 2.0, f64::NEG_INFINITY];
                    let element = |_| narrow(problem.dtype(), random.one_of(&values));
                    Values::Bits((0..elements).map(element).collect())
                }
            };
            inputs.operands.push((operand, values));
        }
        if problem.has_lengths() {
            inputs.seqlens_k = Some(lengths.k.clone());
        }
        match problem.keys() {
            KeySequences::Paged(pages) => inputs.draw_pages(problem, pages, lengths, random),
            KeySequences::Packed { .. } => {
                let past = lengths.k.iter().sum();
                inputs.poison_rows(problem, |_, row| row >= past);
            }
            KeySequences::Batch => inputs.poison_rows(problem, |batch, row| row >= lengths.k[batch as usize]),
        }
        if let QuerySequences::Packed { .. } = problem.queries() {
            let past = lengths.q.iter().sum();
            inputs.poison(problem, TensorRole::Q, |_, row| row >= past);
        }
        inputs
    }

    /// Gives each sequence pages in any order, some of them holes, and poisons every other page and what lies behind the last key.
    fn draw_pages(&mut self, problem: &Problem, pages: Pages, lengths: &Lengths, random: &mut Random) {
        let mut free: Vec<i32> = (0..pages.pages.cast_signed()).collect();
        let mut last_keys = vec![0; pages.pages as usize];
        let (rows, entries) = match pages.table {
            BlockTable::Rows { entries } => (true, entries as usize),
            BlockTable::Csr { entries } => (false, entries as usize),
        };
        let (mut table, mut starts) = (Vec::new(), vec![0]);
        for &length in &lengths.k {
            let first = table.len();
            for entry in 0..length.div_ceil(pages.page) {
                let is_hole = random.below(12) == 0;
                let page = free.swap_remove(random.below(free.len() as u32) as usize);
                last_keys[page.cast_unsigned() as usize] = (length - entry * pages.page).min(pages.page);
                table.push(if is_hole { -1 } else { page });
            }
            if rows {
                table.resize(first + entries, -7);
            }
            starts.push(table.len() as u32);
        }
        if !rows {
            table.resize(entries, -7);
            self.operands.push((Operand::PageIndptr, Values::U32(starts)));
        }
        self.operands.push((Operand::BlockTable, Values::I32(table)));
        self.poison_rows(problem, |page, row| row >= last_keys[page as usize]);
    }

    fn poison_rows(&mut self, problem: &Problem, is_unused: impl Fn(u32, u32) -> bool) {
        self.poison(problem, TensorRole::K, &is_unused);
        self.poison(problem, TensorRole::V, &is_unused);
    }

    /// Puts NaN into the rows of a tensor that no sequence has.
    fn poison(&mut self, problem: &Problem, role: TensorRole, is_unused: impl Fn(u32, u32) -> bool) {
        let Extent { batch, heads, rows, width } = problem.extent(role);
        let nan = narrow(problem.dtype(), f64::NAN);
        for (batch, row) in (0..batch).flat_map(|batch| (0..rows).map(move |row| (batch, row))) {
            if is_unused(batch, row) {
                for head in 0..heads {
                    let start = row_start(problem, role, [batch, head, row].map(|n| n as usize));
                    self.qkv[role as usize][start..start + width as usize].fill(nan);
                }
            }
        }
    }

    fn tensors(&self) -> HostTensors<'_> {
        let tensors = HostTensors::from(&self.qkv).with_seqlens_k(self.seqlens_k.as_deref());
        self.operands.iter().fold(tensors, |tensors, (operand, values)| {
            let values = match values {
                Values::U32(values) => HostOperand::U32(values),
                Values::I32(values) => HostOperand::I32(values),
                Values::F32(values) => HostOperand::F32(values),
                Values::Bits(values) => HostOperand::Bits(values),
            };
            tensors.with_operand(*operand, values)
        })
    }
}
