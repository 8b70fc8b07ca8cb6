//! Questions of an examination: problems of the library's whole domain, drawn anew for each candidate from a secret seed.

mod edges;
mod literals;
mod once;
mod paths;
mod wild;

use crate::inputs::{Inputs, Kind, Odd, RealTensors};
use crate::problem_spec::{Mask, ProblemSpec, Shape};
use check::random_input::poison_behind;
use edges::{Sides, edges};
use fastrand::Rng;
use ferroflash::problem::ElementStrides;
use ferroflash::{Combine, Error, Layout, PlanOptions, Problem, Row, Sizes, Splits, TensorRole};
use kernels_gpu::geometry::rows_of_block;
use kernels_gpu::row::Schedule;
pub use literals::Literals;
pub use paths::{Launched, Paths};
use serde::{Deserialize, Serialize};

/// Where rows of Q, K, V and O lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Contiguous `[batch, heads, seqlen, head_dim]`.
    Bhsd,
    /// Contiguous `[batch, seqlen, heads, head_dim]`.
    Bshd,
    /// As `Bshd`, with gaps of so many 16-byte chunks behind every head, row and batch entry.
    Padded(u16),
    /// As `Bhsd`, with such gaps behind every row, head and batch entry.
    PaddedHeads(u16),
    /// Q and O as `Bhsd`, K and V as `Bshd`: caches seldom lie as queries do.
    Mixed,
    /// Q and K as `Bhsd`, V and O as `Bshd`.
    Crossed,
    /// As `Bhsd`, but all KV heads lie at one place: who expands a head repeats it with a stride of 0.
    Shared,
    /// As `Bhsd`, but K and V of all batch entries lie at one place.
    OneBatch,
    /// As `Bhsd`, but V is K, as in attention whose values are its keys.
    OneTensor,
}

/// What is known of a kernel's code by those who ask such questions.
pub struct Code<'a, Asked = Question> {
    /// The numbers that it compares its parameters with.
    pub literals: Literals,
    /// What of it a question reaches, as numbers; nothing where its kernel cannot answer the question.
    pub reached: &'a (dyn Fn(&Asked) -> Vec<u32> + Sync),
}

impl<Asked> Code<'_, Asked> {
    /// Of which nothing is known.
    pub fn unknown() -> Code<'static, Asked> {
        Code { literals: Literals::default(), reached: &|_| Vec::new() }
    }
}

/// One question: a problem, where its tensors lie, how it is to be run, and on which inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Sizes, element type and mask.
    pub spec: ProblemSpec,
    /// Where rows lie.
    pub placement: Placement,
    /// The caller's softmax scale; 1/√head_dim without.
    pub scale: Option<f32>,
    /// Whether LSE is wanted.
    pub lse: bool,
    /// Whether each sequence has a number of keys of its own, on the device.
    pub lengths: bool,
    /// Ranges of keys, for kernels that split them.
    pub splits: Option<u32>,
    /// Whether tensors begin 16 bytes behind a multiple of 256, as slices of others do.
    #[serde(default)]
    pub is_slice: bool,
    /// Whether the device has so few multiprocessors that a persistent CTA has several tiles; on a simulator only.
    pub few_sms: bool,
    /// NaN or an infinity in one of the inputs of the third launch.
    pub odd: Option<Odd>,
    /// Distributions of the inputs beside random ones.
    pub kinds: Vec<Kind>,
    /// Whether one launch on each distribution answers it: what launches leave behind is asked by others.
    #[serde(default)]
    pub once: bool,
}

impl Question {
    /// A problem as it is counted and timed: contiguous, with the usual scale and LSE.
    pub fn measured(spec: ProblemSpec, kinds: &[Kind]) -> Question {
        let kinds = kinds.to_vec();
        let (placement, scale, lengths, splits) = (Placement::Bhsd, None, false, None);
        let [is_slice, few_sms, once] = [false; 3];
        Question {
            spec,
            placement,
            scale,
            lse: true,
            lengths,
            splits,
            is_slice,
            few_sms,
            odd: None,
            kinds,
            once,
        }
    }

    /// Whether a block of this row holds the query heads that share a KV head, where it packs them.
    fn has_room(&self, row: &Row) -> bool {
        let [_, heads_q, heads_kv, ..] = self.spec.shape.0;
        rows_of_block(row, heads_q / heads_kv) > 0
    }

    /// The host's problem.
    ///
    /// # Errors
    /// Those of [`Problem`].
    pub fn problem(&self) -> Result<Problem, Error> {
        let mut problem = self.spec.problem()?.with_lengths(self.lengths);
        if let Some(scale) = self.scale {
            problem = problem.with_scale(scale)?;
        }
        match self.placement {
            Placement::Bhsd | Placement::OneTensor => Ok(problem),
            Placement::Bshd => Ok(problem.with_layout(Layout::Bshd)),
            Placement::Mixed | Placement::Crossed => {
                let bshd = problem.with_layout(Layout::Bshd);
                let strided = |problem: Problem, role| problem.with_strides(role, bshd.strides(role));
                let first = if self.placement == Placement::Mixed { TensorRole::K } else { TensorRole::O };
                [first, TensorRole::V].into_iter().try_fold(problem, strided)
            }
            Placement::Shared | Placement::OneBatch => {
                let strided = |problem: Problem, role| {
                    let strides = problem.strides(role);
                    let strides = match self.placement {
                        Placement::Shared => ElementStrides { head: 0, ..strides },
                        _ => ElementStrides { batch: 0, ..strides },
                    };
                    problem.with_strides(role, strides)
                };
                [TensorRole::K, TensorRole::V].into_iter().try_fold(problem, strided)
            }
            Placement::Padded(_) | Placement::PaddedHeads(_) => {
                let strided = |problem: Problem, role| {
                    problem.with_strides(role, padded(&problem, role, self.placement))
                };
                TensorRole::ALL.into_iter().try_fold(problem, strided)
            }
        }
    }

    /// Whether the scale makes scores so large that softmax is a choice of one key, which hides most mistakes.
    pub fn is_steep(&self) -> bool {
        self.scale.is_some_and(|scale| scale * (self.spec.shape.head_dim() as f32).sqrt() > 2.0)
    }

    /// Whether float32 itself decides between random keys by chance: only inputs whose scores are all alike can be judged.
    pub fn is_choice(&self) -> bool {
        self.scale.is_some_and(|scale| scale * (self.spec.shape.head_dim() as f32).sqrt() > 1000.0)
    }

    /// How many bytes behind an aligned address Q, K, V and O begin: another multiple of 16 each, in slices.
    pub fn offsets(&self) -> [usize; 4] {
        let [batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim] = self.spec.shape.0;
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        let mut random = Rng::with_seed(hash(&sizes));
        [(); 4].map(|()| if self.is_slice { 16 * random.usize(1..16) } else { 0 })
    }

    /// How a kernel of this row is to run it.
    pub fn options(&self, row: &Row) -> PlanOptions {
        let usual = PlanOptions::new();
        match (row.schedule, self.splits) {
            (Schedule::Split, Some(count)) => {
                let combine = if self.is_merged_by_a_kernel() { Combine::Kernel } else { Combine::Fused };
                PlanOptions { splits: Splits::Count(count), combine, ..usual }
            }
            _ => usual,
        }
    }

    /// Whether splits are merged by a kernel of their own, or by the last CTA of a tile: neither goes with some numbers of splits alone.
    fn is_merged_by_a_kernel(&self) -> bool {
        self.splits.is_some_and(|splits| (splits + self.spec.shape.0[4]).is_multiple_of(2))
    }

    /// Rows of all splits that a kernel of its own merges, where there is one.
    fn merged(&self) -> u64 {
        let [batch, heads_q, _, seqlen_q, seqlen_k, _] = self.spec.shape.0.map(u64::from);
        let splits = self.splits.filter(|splits| *splits > 1 && self.is_merged_by_a_kernel());
        batch * heads_q * seqlen_q * splits.map_or(0, u64::from).min(seqlen_k.div_ceil(64))
    }

    /// The same with one key more where a kernel of its own would not merge the splits.
    fn merged_by_a_kernel(mut self) -> Question {
        self.spec.shape.0[4] += u32::from(!self.is_merged_by_a_kernel());
        self
    }

    /// Inputs of one distribution; `None` where there is no real layer.
    pub fn inputs(
        &self,
        problem: &Problem,
        kind: Kind,
        seed: u64,
        real: Option<&RealTensors>,
    ) -> Option<Inputs> {
        let mut qkv = crate::inputs::make(problem, kind, seed, real)?;
        if self.placement == Placement::OneTensor {
            qkv[2] = qkv[1].clone();
        }
        let mut random = Rng::with_seed(seed ^ 0x6c65_6e67);
        let keys = self.spec.shape.0[4];
        let seqlens_k = self.lengths.then(|| {
            // Of four sequences one has all of the keys, one none, one is said to have more than there are, and one has one or half.
            let some = if random.bool() { 1 } else { (keys / 2).max(1) };
            let lengths = [keys, 0, keys + 3, some];
            let length =
                |batch: u32| lengths.get(batch as usize).copied().unwrap_or_else(|| random.u32(1..=keys));
            let mut lengths: Vec<u32> = (0..self.spec.shape.0[0]).map(length).collect();
            random.shuffle(&mut lengths);
            lengths
        });
        if let Some(lengths) = &seqlens_k {
            poison_behind(problem, lengths, &mut qkv);
        }
        Some(Inputs { qkv, seqlens_k })
    }
}

impl std::fmt::Display for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.spec)?;
        match self.placement {
            Placement::Bhsd => {}
            Placement::OneTensor => write!(f, ", V is K")?,
            Placement::Bshd => write!(f, ", bshd")?,
            Placement::Padded(chunks) => write!(f, ", bshd padded by {chunks} chunks")?,
            Placement::PaddedHeads(chunks) => write!(f, ", bhsd padded by {chunks} chunks")?,
            Placement::Mixed => write!(f, ", K and V bshd")?,
            Placement::Crossed => write!(f, ", V and O bshd")?,
            Placement::Shared => write!(f, ", KV heads at one place")?,
            Placement::OneBatch => write!(f, ", K and V of all batch entries at one place")?,
        }
        if let Some(scale) = self.scale {
            write!(f, ", scale {scale:.4}")?;
        }
        if !self.lse {
            write!(f, ", no LSE")?;
        }
        if self.lengths {
            write!(f, ", lengths")?;
        }
        if let Some(splits) = self.splits {
            write!(f, ", {splits} splits")?;
        }
        if self.is_slice {
            write!(f, ", at addresses of slices")?;
        }
        Ok(())
    }
}

/// Strides with gaps, of which the four tensors have different ones, in an order that follows from the sizes.
fn padded(problem: &Problem, role: TensorRole, placement: Placement) -> ElementStrides {
    let sizes = problem.sizes();
    let (heads, rows) = match role {
        TensorRole::Q | TensorRole::O => (sizes.heads_q, sizes.seqlen_q),
        TensorRole::K | TensorRole::V => (sizes.heads_kv, sizes.seqlen_k),
    };
    let (chunks, is_by_heads) = match placement {
        Placement::PaddedHeads(chunks) => (chunks, true),
        Placement::Padded(chunks) => (chunks, false),
        _ => (0, false),
    };
    let mut order = [0, 1, 2, 3];
    Rng::with_seed(hash(sizes)).shuffle(&mut order);
    let gap = 8 * (i64::from(chunks) + order[role as usize]);
    let inner = i64::from(sizes.head_dim) + gap;
    let outer = i64::from(if is_by_heads { rows } else { heads }) * inner + gap;
    let batch = i64::from(if is_by_heads { heads } else { rows }) * outer + 3 * gap;
    let (head, row) = if is_by_heads { (outer, inner) } else { (inner, outer) };
    ElementStrides { batch, head, row, dim: 1 }
}

/// A number that follows from sizes.
fn hash(sizes: &Sizes) -> u64 {
    let Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, .. } = *sizes;
    [batch, heads_q, heads_kv, seqlen_q, seqlen_k]
        .into_iter()
        .fold(7, |hash, size| 31 * hash + u64::from(size))
}

/// Queries times keys of all heads together, about.
const PAIRS: u32 = 120_000;
/// Groups of query heads that share a KV head.
const GROUPS: usize = 8;

/// How many keys a question has.
#[derive(Clone, Copy)]
enum Keys {
    /// An odd number of blocks of 64, an even one.
    Odd,
    Even,
    /// Whole fragments of 16 that are no whole blocks.
    Sixteens,
    /// Some that end amid a fragment behind two whole ones, or more of them.
    Amid,
    /// One more than whole blocks, one less.
    Over,
    Under,
    /// Hardly any.
    Tiny,
}

impl Keys {
    /// One such number up to `most`, or where there is none the least.
    fn number(self, most: u32, random: &mut Rng) -> u32 {
        let blocks = |random: &mut Rng, from: u32, step: u32| {
            64 * (from + step * random.u32(0..=(most / 64).saturating_sub(from) / step))
        };
        let sixteens = |random: &mut Rng| random.u32(2..=(most / 16 - 1).max(2));
        match self {
            Keys::Odd => blocks(random, 1, 2),
            Keys::Even => blocks(random, 2, 2),
            // An odd number of them is none of blocks.
            Keys::Sixteens => 16 * (sixteens(random) | 1),
            Keys::Amid => 16 * sixteens(random) + random.u32(1..=15),
            Keys::Over => blocks(random, 1, 1) + 1,
            Keys::Under => blocks(random, 1, 1) - 1,
            Keys::Tiny => log_uniform(random, 2, 16),
        }
    }
}

/// Times 1/√head_dim, a scale that makes most scores larger than float32's exponentials reach.
const STEEP: f32 = 256.0;

/// Questions for a row that nobody knows before: one of each GQA group 1 to 8, in each of which the other columns of the domain are
/// dealt anew; those where the domain ends; those at the numbers that its code compares with; those that reach code which no other one
/// does; and `more` others of moderate size.
///
/// Two of the eight have 16 heads and more in at least three batch entries; two have one KV head alone; half are causal; six strided
/// or `bshd`; half at addresses of slices; two without LSE; two have a scale of the caller's and one a steep one; six NaN or an infinity
/// in one input; their numbers of keys are of each kind. Rows that split keys get lengths on the device and 1 to 9 splits, those over
/// many keys 2 at least.
pub fn draw(row: &Row, more: usize, kinds: &[Kind], code: &Code<'_>, seed: u64) -> Vec<Question> {
    let mut random = Rng::with_seed(seed);
    let splits_keys = row.schedule == Schedule::Split;
    let mut placements = [
        Placement::Bhsd,
        Placement::Bhsd,
        Placement::Bshd,
        Placement::Bshd,
        Placement::Padded(1),
        Placement::Padded(3),
        Placement::PaddedHeads(1),
        Placement::PaddedHeads(2),
    ];
    let mut lse = [true, true, true, true, true, true, false, false];
    let mut scaled = [Some(1.0), Some(1.0), Some(STEEP), None, None, None, None, None];
    let mut odd: Vec<Option<Odd>> = Odd::ALL.into_iter().map(Some).chain([None, None]).collect();
    let mut wide = [true, true, false, false, false, false, false, false];
    let (full, causal) = (Mask::Full, Mask::Causal);
    let mut keys = [
        (Keys::Odd, full),
        (Keys::Even, causal),
        (Keys::Sixteens, full),
        (Keys::Amid, causal),
        (Keys::Amid, full),
        (Keys::Over, causal),
        (Keys::Under, full),
        (Keys::Tiny, causal),
    ];
    let mut alone = [true, true, false, false, false, false];
    let mut splits = [1, 1, 2, 3, 4, 5, 7, 9];
    let mut lengths = [true, true, true, true, false, false, false, false];
    let mut slices = lengths;
    let mut dealt = Kind::DEALT;
    let mut groups: Vec<u32> = (1..=GROUPS as u32).collect();
    random.shuffle(&mut placements);
    random.shuffle(&mut lse);
    random.shuffle(&mut scaled);
    random.shuffle(&mut odd);
    random.shuffle(&mut wide);
    random.shuffle(&mut keys);
    random.shuffle(&mut alone);
    random.shuffle(&mut splits);
    random.shuffle(&mut lengths);
    random.shuffle(&mut slices);
    random.shuffle(&mut dealt);
    random.shuffle(&mut groups);
    let other_mask = random.bool();
    // Beside infinities a P that is 0 in float32 and hardly any in float64 tells nothing. Of keys that end amid a fragment there are two.
    let steep = scaled.iter().position(|scale| *scale == Some(STEEP)).unwrap_or(0);
    let amid = keys.iter().position(|(keys, _)| matches!(keys, Keys::Amid)).unwrap_or(0);
    keys.swap(steep, amid);
    let none = odd.iter().position(Option::is_none).unwrap_or(0);
    odd.swap(steep, none);
    lengths[steep] = false;
    let (mut questions, mut alone, mut dealt) = (Vec::new(), alone.into_iter(), dealt.into_iter());
    for (at, &group) in groups.iter().enumerate() {
        let heads_kv = match wide[at] {
            true => random.u32(16..=20).div_ceil(group),
            false if alone.next() == Some(true) => 1,
            false => 2,
        };
        let has_lengths = splits_keys && lengths[at];
        let batch = match wide[at] {
            _ if has_lengths => 4,
            true => random.u32(3..=4),
            false => random.u32(1..=3),
        };
        // Float64 and the simulator have to follow: many heads are short.
        let most = (PAIRS / (batch * heads_kv * group)).isqrt().clamp(48, 300);
        let (keys, mask) = keys[at];
        let seqlen_q = match keys {
            Keys::Odd | Keys::Even => keys.number(most, &mut random),
            _ => log_uniform(&mut random, 1, most),
        };
        let seqlen_k = keys.number(most, &mut random);
        let mask = if (mask == causal) == other_mask { full } else { causal };
        let shape = Shape([batch, heads_kv * group, heads_kv, seqlen_q, seqlen_k, row.head_dim]);
        let usual = 1.0 / (row.head_dim as f32).sqrt();
        let (scale, kinds) = match scaled[at] {
            Some(STEEP) => (Some(STEEP * usual), vec![Kind::Constant]),
            scaled => {
                let mut kinds = some_kind(kinds, &mut random);
                kinds.extend(dealt.next());
                (scaled.map(|_| random.f32().mul_add(0.9, 0.2) * usual), kinds)
            }
        };
        questions.push(Question {
            spec: ProblemSpec { shape, dtype: row.dtype, mask },
            placement: placements[at],
            scale,
            lse: lse[at],
            lengths: has_lengths,
            splits: splits_keys.then_some(splits[at]),
            is_slice: slices[at],
            few_sms: row.schedule == Schedule::Persistent || random.bool(),
            odd: odd[at],
            kinds,
            once: false,
        });
    }
    questions.extend(edges(row, &mut random));
    for _ in 0..more {
        let heads_kv = random.u32(1..=2);
        let both = [random.u32(100..=600), random.u32(100..=600)];
        let shape = [1, heads_kv * random.u32(1..=2), heads_kv, both[0], both[1]];
        let sides = Sides::draw(&mut random);
        questions.push(sides.question(row, shape, 1, &mut random));
    }
    let mut more = once::once(row, &questions, &mut random);
    more.extend(literals::at(row, &code.literals, &mut random));
    let asked: Vec<&Question> = questions.iter().chain(&more).collect();
    more.extend(wild::reaching(row, code, &asked, &mut random));
    questions.extend(more.into_iter().map(|question| Question { once: true, ..question }));
    // What fails is found soonest where it costs least.
    questions.sort_by(|a, b| a.spec.flops().total_cmp(&b.spec.flops()));
    // NaN hides what else is wrong: what only they ask comes last.
    questions.sort_by_key(|question| question.once && question.odd.is_some());
    questions
}

fn some_kind(kinds: &[Kind], random: &mut Rng) -> Vec<Kind> {
    if kinds.is_empty() { Vec::new() } else { vec![kinds[random.usize(0..kinds.len())]] }
}

/// One of `least` to `most`, every magnitude as likely.
fn log_uniform(random: &mut Rng, least: u32, most: u32) -> u32 {
    let (least, most) = (f64::from(least), f64::from(most) + 1.0);
    ((least * (most / least).powf(random.f64())) as u32).min(most as u32 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::module::kernels_of_table;
    use ferroflash::{DeviceModel, Planner};
    use kernels_gpu::geometry;
    use kernels_gpu::table::VARIANTS;

    #[test]
    fn every_question_that_is_drawn_for_a_row_can_be_planned_for_it() {
        let planner = Planner::of_table(&DeviceModel::H200.info());
        let (kernels, _) = kernels_of_table();
        let of_size = Code { literals: Literals::of_size(192), ..Code::unknown() };
        for kernel in kernels.iter().filter(|kernel| geometry::computes_plain_batches(&kernel.row)) {
            for question in draw(&kernel.row, 1, &[], &of_size, 1) {
                let problem = question.problem().expect("a problem");
                let planned = planner.with_kernel(&problem, kernel, &question.options(&kernel.row));
                assert!(planned.is_ok(), "{}: {question}: {}", kernel.entry, planned.unwrap_err());
            }
        }
    }

    #[test]
    fn every_draw_covers_the_domain_and_no_two_are_alike() {
        for (at, row) in VARIANTS.iter().map(|variant| variant.row).step_by(7).enumerate() {
            let drawn = |seed| draw(&row, 1, &[Kind::Outliers], &Code::unknown(), seed);
            let mut next = drawn(0);
            for seed in 0..20 {
                let questions = std::mem::replace(&mut next, drawn(seed + 1));
                assert_ne!(questions, next);
                assert_eq!(questions, drawn(seed));
                let any =
                    |what: &dyn Fn(&Question) -> bool| assert!(questions.iter().any(what), "{questions:?}");
                for question in &questions {
                    let problem = question.problem().expect("a problem");
                    let kind = question.kinds.first().copied().unwrap_or(Kind::Random);
                    // Of one row those of long problems too, which take seconds to make.
                    if seed == 0 && (at == 0 || problem.q_len().max(problem.k_len()) < 1 << 20) {
                        let inputs = question.inputs(&problem, kind, seed, None).expect("inputs");
                        assert_eq!(inputs.qkv[0].len(), problem.q_len());
                    }
                    assert!(question.spec.fits(&row) && question.spec.flops() < 2.3e9, "{question}");
                }
                let of = |question: &Question| question.spec.shape.0;
                (1..=8).for_each(|group| any(&|question| of(question)[1] / of(question)[2] == group));
                any(&|question| of(question)[0] >= 3 && of(question)[1] >= 16);
                any(&|question| of(question)[4] > 65_536);
                any(&|question| of(question)[3] > 65_536);
                any(&|question| (9..=32).contains(&(of(question)[1] / of(question)[2])));
                let has_room = rows_of_block(&row, 256) > 0;
                any(&|question| of(question)[1] / of(question)[2] > 32 || !has_room);
                any(&|question| question.is_choice() && question.lse);
                any(&|question| of(question)[0] > 256);
                any(&|question| of(question)[0] * of(question)[1] >= 1024);
                any(&|question| question.placement == Placement::Mixed);
                any(&|question| question.placement == Placement::Shared && of(question)[2] > 1);
                any(&|question| question.placement == Placement::OneBatch && of(question)[0] > 1);
                any(&|question| question.placement == Placement::Crossed);
                any(&|question| question.placement == Placement::OneTensor);
                any(&|question| (4097..=65_536).contains(&of(question)[3]));
                any(&|question| (8193..=65_536).contains(&of(question)[4]));
                any(&|question| of(question)[1] / of(question)[2] > 72 || !has_room);
                any(&|question| of(question)[0] * of(question)[2] > 4096);
                any(&|question| of(question)[2] > 256);
                let times =
                    |question: &Question| question.scale.unwrap_or(1.0) * (row.head_dim as f32).sqrt();
                any(&|question| times(question) < 0.01);
                any(&|question| of(question)[3] >= 1024);
                any(&|question| of(question)[4].is_multiple_of(64));
                any(&|question| of(question)[4] > 32 && !of(question)[4].is_multiple_of(16));
                any(&|question| of(question)[1] / of(question)[2] >= 5 && of(question)[2] >= 2);
                any(&|question| !question.lse);
                any(&|question| question.scale.is_some() && !question.is_steep());
                any(&|question| question.is_steep() && question.kinds == [Kind::Constant]);
                any(&|question| of(question)[4] >= 2048 && of(question)[0] * of(question)[1] >= 6);
                any(&|question| of(question)[3] >= 1024 && of(question)[0] * of(question)[1] >= 6);
                any(&|question| question.is_slice);
                any(&|question| !question.is_slice);
                any(&|question| question.placement == Placement::Bshd);
                any(&|question| matches!(question.placement, Placement::Padded(_)));
                any(&|question| matches!(question.placement, Placement::PaddedHeads(_)));
                any(&|question| of(question)[1] > 64);
                any(&|question| of(question)[0] > 16);
                any(&|question| of(question)[3].min(of(question)[4]) > 1024);
                any(&|question| of(question)[3] == 1);
                any(&|question| of(question)[4] == 1);
                let is_causal = |question: &Question| question.spec.mask == Mask::Causal;
                any(&|question| is_causal(question) && of(question)[3] > of(question)[4]);
                let is_left = |modulus, rest| {
                    any(&|question| {
                        (65..=256).contains(&of(question)[4]) && of(question)[4] % modulus == rest
                    })
                };
                [(64, 1), (64, 63), (128, 0), (128, 64)]
                    .into_iter()
                    .for_each(|(modulus, rest)| is_left(modulus, rest));
                any(&|question| of(question)[4].is_multiple_of(16) && !of(question)[4].is_multiple_of(64));
                for side in [true, false] {
                    let long = |question: &Question| of(question)[4] >= 2048;
                    any(&|question| long(question) && question.lse == side);
                    any(&|question| long(question) && is_causal(question) == side);
                    any(&|question| long(question) && question.is_slice == side);
                }
                Kind::DEALT.into_iter().for_each(|kind| any(&|question| question.kinds.contains(&kind)));
                any(&|question| {
                    let is_late = question.kinds.contains(&Kind::Late) && !question.once;
                    is_late && !is_causal(question) && of(question)[4] > 64
                });
                Odd::ALL.into_iter().for_each(|odd| any(&|question| question.odd == Some(odd)));
                let left = once::pairs_left(&row, questions.iter());
                assert!(left.is_empty(), "{left:?}");
                (0..64).for_each(|rest| any(&|question| of(question)[4] % 64 == rest));
                (0..64).for_each(|rest| any(&|question| of(question)[3] % 64 == rest));
                let splits = row.schedule == Schedule::Split;
                assert_eq!(questions.iter().any(|question| question.lengths), splits);
            }
        }
    }
}
