//! Questions of an examination: problems of the library's whole domain, drawn anew for each candidate from a secret seed.

use crate::inputs::{Inputs, Kind, Odd, RealTensors};
use crate::problem_spec::{Mask, ProblemSpec, Shape};
use check::random_input::poison_behind;
use fastrand::Rng;
use ferroflash::problem::ElementStrides;
use ferroflash::{Combine, Error, Layout, PlanOptions, Problem, Row, Splits, TensorRole};
use kernels_gpu::row::Schedule;
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
    Padded(u8),
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
}

impl Question {
    /// A problem as it is counted and timed: contiguous, with the usual scale and LSE.
    pub fn measured(spec: ProblemSpec, kinds: &[Kind]) -> Question {
        let kinds = kinds.to_vec();
        let (placement, scale, lengths, splits) = (Placement::Bhsd, None, false, None);
        let [is_slice, few_sms] = [false; 2];
        Question { spec, placement, scale, lse: true, lengths, splits, is_slice, few_sms, odd: None, kinds }
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
            Placement::Bhsd => Ok(problem),
            Placement::Bshd => Ok(problem.with_layout(Layout::Bshd)),
            Placement::Padded(chunks) => TensorRole::ALL.into_iter().try_fold(problem, |problem, role| {
                problem.with_strides(role, padded(&problem, role, chunks))
            }),
        }
    }

    /// Whether the scale makes scores so large that softmax is a choice of one key, which hides most mistakes.
    pub fn is_steep(&self) -> bool {
        self.scale.is_some_and(|scale| scale * (self.spec.shape.head_dim() as f32).sqrt() > 2.0)
    }

    /// How a kernel of this row is to run it.
    pub fn options(&self, row: &Row) -> PlanOptions {
        let usual = PlanOptions::new();
        match (row.schedule, self.splits) {
            (Schedule::Split, Some(count)) => {
                let combine = if count % 2 == 0 { Combine::Fused } else { Combine::Kernel };
                PlanOptions { splits: Splits::Count(count), combine, ..usual }
            }
            _ => usual,
        }
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
        let mut random = Rng::with_seed(seed ^ 0x6c65_6e67);
        let keys = self.spec.shape.0[4];
        let seqlens_k = self.lengths.then(|| {
            // One sequence has none, one all of its keys, and one is said to have more than there are.
            let lengths = [0, keys, keys + 3];
            let length =
                |batch: u32| lengths.get(batch as usize).copied().unwrap_or_else(|| random.u32(1..=keys));
            let mut lengths: Vec<u32> = (0..self.spec.shape.0[0]).map(length).collect();
            lengths.iter_mut().take(1).for_each(|length| *length = (keys / 2).max(1));
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
            Placement::Bshd => write!(f, ", bshd")?,
            Placement::Padded(chunks) => write!(f, ", strides padded by {chunks} chunks")?,
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

/// `[batch, seqlen, heads, head_dim]` with gaps. The four tensors have different ones.
fn padded(problem: &Problem, role: TensorRole, chunks: u8) -> ElementStrides {
    let sizes = problem.sizes();
    let (heads, rows) = match role {
        TensorRole::Q | TensorRole::O => (sizes.heads_q, sizes.seqlen_q),
        TensorRole::K | TensorRole::V => (sizes.heads_kv, sizes.seqlen_k),
    };
    let gap = 8 * (i64::from(chunks) + role as i64);
    let head = i64::from(sizes.head_dim) + gap;
    let row = i64::from(heads) * head + gap;
    ElementStrides { batch: i64::from(rows) * row + 3 * gap, head, row, dim: 1 }
}

/// Queries times keys of all heads together, about.
const PAIRS: u32 = 120_000;
/// Groups of query heads that share a KV head.
const GROUPS: usize = 8;

/// How many keys a question has: whole blocks, some that end amid a fragment of 16 behind two whole ones, or hardly any.
#[derive(Clone, Copy)]
enum Keys {
    Blocks,
    Amid,
    Tiny,
}

/// Times 1/√head_dim, a scale that makes most scores larger than float32's exponentials reach.
const STEEP: f32 = 256.0;

/// Questions for a row that nobody knows before: one of each GQA group 1 to 8, in each of which the other columns of the domain are
/// dealt anew; one over many keys and one of many query rows, each with one head and again with several heads or batch entries; and
/// `more` others of moderate size.
///
/// Two of the eight have 16 heads and more in at least three batch entries; two have one KV head alone; half are causal; five strided
/// or `bshd`; half at addresses of slices; two without LSE; two have a scale of the caller's and one a steep one; six NaN or an infinity
/// in one input; three have lengths that are multiples of a block, four end amid a fragment behind two whole ones, and one is tiny, each
/// kind under both masks. Rows that split keys get lengths on the device and 1 to 9 splits, the one over many keys 2 at least.
pub fn draw(row: &Row, more: usize, kinds: &[Kind], seed: u64) -> Vec<Question> {
    let mut random = Rng::with_seed(seed);
    let splits_keys = row.schedule == Schedule::Split;
    let (bhsd, bshd) = (Placement::Bhsd, Placement::Bshd);
    let (one, three) = (Placement::Padded(1), Placement::Padded(3));
    let mut placements = [bhsd, bhsd, bhsd, bshd, bshd, one, three, one];
    let mut lse = [true, true, true, true, true, true, false, false];
    let mut scaled = [Some(1.0), Some(1.0), Some(STEEP), None, None, None, None, None];
    let mut odd: Vec<Option<Odd>> = Odd::ALL.into_iter().map(Some).chain([None, None]).collect();
    let mut wide = [true, true, false, false, false, false, false, false];
    let (blocks, amid, tiny) = (Keys::Blocks, Keys::Amid, Keys::Tiny);
    let (full, causal) = (Mask::Full, Mask::Causal);
    let mut keys = [
        (blocks, full),
        (blocks, causal),
        (blocks, full),
        (amid, causal),
        (amid, full),
        (amid, causal),
        (amid, full),
        (tiny, causal),
    ];
    let mut alone = [true, true, false, false, false, false];
    let mut splits = [1, 1, 2, 3, 4, 5, 7, 9];
    let mut lengths = [true, true, true, true, false, false, false, false];
    let mut slices = lengths;
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
    random.shuffle(&mut groups);
    let other_mask = random.bool();
    // Beside infinities a P that is 0 in float32 and hardly any in float64 tells nothing.
    let steep = scaled.iter().position(|scale| *scale == Some(STEEP)).unwrap_or(0);
    let none = odd.iter().position(Option::is_none).unwrap_or(0);
    odd.swap(steep, none);
    lengths[steep] = false;
    let (mut questions, mut alone) = (Vec::new(), alone.into_iter());
    for (at, &group) in groups.iter().enumerate() {
        let heads_kv = match wide[at] {
            true => random.u32(16..=20).div_ceil(group),
            false if alone.next() == Some(true) => 1,
            false => 2,
        };
        let batch = if wide[at] { random.u32(3..=4) } else { random.u32(1..=3) };
        // Float64 and the simulator have to follow: many heads are short.
        let most = (PAIRS / (batch * heads_kv * group)).isqrt().clamp(48, 300);
        let whole_blocks = |random: &mut Rng| 64 * random.u32(1..=(most / 64).max(1));
        let (keys, mask) = keys[at];
        let seqlen_q = match keys {
            Keys::Blocks => whole_blocks(&mut random),
            Keys::Amid | Keys::Tiny => log_uniform(&mut random, 1, most),
        };
        let seqlen_k = match keys {
            Keys::Blocks => whole_blocks(&mut random),
            Keys::Amid => 16 * random.u32(2..=(most / 16 - 1).max(2)) + random.u32(1..=15),
            Keys::Tiny => log_uniform(&mut random, 1, 16),
        };
        let mask = if (mask == causal) == other_mask { full } else { causal };
        let shape = Shape([batch, heads_kv * group, heads_kv, seqlen_q, seqlen_k, row.head_dim]);
        let usual = 1.0 / (row.head_dim as f32).sqrt();
        let (scale, kinds) = match scaled[at] {
            Some(STEEP) => (Some(STEEP * usual), vec![Kind::Constant]),
            scaled => (scaled.map(|_| random.f32().mul_add(0.9, 0.2) * usual), some_kind(kinds, &mut random)),
        };
        questions.push(Question {
            spec: ProblemSpec { shape, dtype: row.dtype, mask },
            placement: placements[at],
            scale,
            lse: lse[at],
            lengths: splits_keys && lengths[at],
            splits: splits_keys.then_some(splits[at]),
            is_slice: slices[at],
            few_sms: row.schedule == Schedule::Persistent || random.bool(),
            odd: odd[at],
            kinds,
        });
    }
    let other = |random: &mut Rng, [batch, heads_q, heads_kv, seqlen_q, seqlen_k]: [u32; 5], least_splits| {
        let shape = Shape([batch, heads_q, heads_kv, seqlen_q, seqlen_k, row.head_dim]);
        let spec = ProblemSpec { shape, dtype: row.dtype, mask: if random.bool() { causal } else { full } };
        let splits = splits_keys.then(|| random.u32(least_splits..=9));
        let placement = [bhsd, bshd, one][random.usize(0..3)];
        let (lse, is_slice) = (random.bool(), random.bool());
        Question { placement, splits, lse, is_slice, ..Question::measured(spec, &[]) }
    };
    let several = |random: &mut Rng| {
        let (batch, heads) = if random.bool() { (1, random.u32(8..=10)) } else { (3, random.u32(2..=3)) };
        let group = if heads % 2 == 0 { 2 } else { 1 };
        [batch, heads, heads / group]
    };
    let [keys, queries] = [random.u32(2048..=8192), random.u32(1024..=4096)];
    let few = |random: &mut Rng, most| log_uniform(random, 1, most);
    let long = [1, 1, 1, few(&mut random, 32), keys];
    questions.push(other(&mut random, long, 2));
    let tall = [1, 1, 1, queries, few(&mut random, 64)];
    questions.push(other(&mut random, tall, 1));
    let [batch, heads_q, heads_kv] = several(&mut random);
    let long = [batch, heads_q, heads_kv, few(&mut random, 8), random.u32(2048..=2304)];
    questions.push(other(&mut random, long, 2));
    let [batch, heads_q, heads_kv] = several(&mut random);
    let tall = [batch, heads_q, heads_kv, random.u32(1024..=1152), few(&mut random, 64)];
    questions.push(other(&mut random, tall, 1));
    for _ in 0..more {
        let heads_kv = random.u32(1..=2);
        let both = [random.u32(100..=600), random.u32(100..=600)];
        let shape = [1, heads_kv * random.u32(1..=2), heads_kv, both[0], both[1]];
        questions.push(other(&mut random, shape, 1));
    }
    // What fails is found soonest where it costs least.
    questions.sort_by(|a, b| a.spec.flops().total_cmp(&b.spec.flops()));
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
    use kernels_gpu::table::VARIANTS;

    #[test]
    fn every_draw_covers_the_domain_and_no_two_are_alike() {
        for row in VARIANTS.iter().map(|variant| variant.row).step_by(7) {
            for seed in 0..20 {
                let questions = draw(&row, 1, &[Kind::Outliers], seed);
                assert_ne!(questions, draw(&row, 1, &[Kind::Outliers], seed + 1));
                assert_eq!(questions, draw(&row, 1, &[Kind::Outliers], seed));
                let any =
                    |what: &dyn Fn(&Question) -> bool| assert!(questions.iter().any(what), "{questions:?}");
                for question in &questions {
                    let problem = question.problem().expect("a problem");
                    let kind = question.kinds.first().copied().unwrap_or(Kind::Random);
                    if seed == 0 {
                        let inputs = question.inputs(&problem, kind, seed, None).expect("inputs");
                        assert_eq!(inputs.qkv[0].len(), problem.q_len());
                    }
                    assert!(question.spec.fits(&row) && question.spec.flops() < 2e9, "{question}");
                }
                let of = |question: &Question| question.spec.shape.0;
                (1..=8).for_each(|group| any(&|question| of(question)[1] / of(question)[2] == group));
                any(&|question| of(question)[0] >= 3 && of(question)[1] >= 16);
                any(&|question| of(question)[4] >= 2048);
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
                Odd::ALL.into_iter().for_each(|odd| any(&|question| question.odd == Some(odd)));
                let splits = row.schedule == Schedule::Split;
                assert_eq!(questions.iter().any(|question| question.lengths), splits);
            }
        }
    }
}
