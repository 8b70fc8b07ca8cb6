//! Inputs of every distribution that a candidate is tested on: the same seed gives the same bits.

use crate::error::{Error, Result};
use check::random_input::{InputKind, qkv};
use check::reference::{keys, row_start, visible_keys};
use ferroflash::problem::Extent;
use ferroflash::rounding::{narrow, widen};
use ferroflash::tensor_file::{Options, Source, read};
use ferroflash::{Accumulation, Dtype, Problem, TensorRole};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a launch reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Q, K and V, bits of the problem's dtype where it has them.
    pub qkv: [Vec<u16>; 3],
    /// Keys of each sequence, where the problem has lengths.
    pub seqlens_k: Option<Vec<u32>>,
}

/// What is no number, in one of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Odd {
    role: usize,
    is_nan: bool,
}

impl Odd {
    /// NaN and an infinity in Q, in K and in V.
    pub const ALL: [Odd; 6] = {
        const fn odd(role: usize, is_nan: bool) -> Odd {
            Odd { role, is_nan }
        }
        [odd(0, true), odd(0, false), odd(1, true), odd(1, false), odd(2, true), odd(2, false)]
    };

    /// Puts it in a few places that the seed gives. Where infinities could make every score of a row −∞, whose softmax is 0 / 0 and a
    /// matter of taste, as where all keys that a row sees have one sign, or where a weight may be 0 as the element type rounds it, it is
    /// NaN instead.
    pub fn put(self, problem: &Problem, kind: Kind, Inputs { qkv, seqlens_k }: &mut Inputs, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let role = [TensorRole::Q, TensorRole::K, TensorRole::V][self.role];
        let sizes = problem.sizes();
        let (heads, rows) = match role {
            TensorRole::Q | TensorRole::O => (sizes.heads_q, sizes.seqlen_q),
            TensorRole::K | TensorRole::V => (sizes.heads_kv, sizes.seqlen_k),
        };
        // Infinities of V in one channel meet in O.
        let meets = role == TensorRole::V && random.bool();
        let mut first = None;
        for _ in 0..2 {
            let [mut batch, mut head, row] =
                [sizes.batch, heads, rows].map(|size| random.usize(0..size as usize));
            let mut channel = random.usize(0..sizes.head_dim as usize);
            if let Some(place) = first.filter(|_| meets) {
                [batch, head, channel] = place;
            }
            first = Some([batch, head, channel]);
            let start = row_start(problem, role, [batch, head, row]) + channel;
            let sign = if random.bool() { 1.0 } else { -1.0 };
            // Whoever sees another key than the first sees the first too.
            let is_safe = match role {
                TensorRole::Q => {
                    let keys = keys(problem, seqlens_k.as_deref(), batch);
                    !kind.has_slope() && visible_keys(problem, keys, row) >= KEYS_TO_BE_SAFE
                }
                TensorRole::K => row > 0,
                TensorRole::V | TensorRole::O => !kind.has_slope(),
            };
            qkv[self.role][start] = match self.is_nan || !is_safe {
                true => nan(problem.dtype(), &mut random),
                false => narrow(problem.dtype(), sign * f64::INFINITY),
            };
        }
    }
}

/// A NaN of either sign: the usual one, the ones with the least and the largest payload, or any.
fn nan(dtype: Dtype, random: &mut fastrand::Rng) -> u16 {
    let (infinity, quiet, most) = match dtype {
        Dtype::F16 => (0x7c00, 0x200, 0x3ff),
        Dtype::Bf16 => (0x7f80, 0x40, 0x7f),
    };
    let payload = [quiet, quiet, [1, most][random.usize(0..2)], random.u16(1..=most)][random.usize(0..4)];
    u16::from(random.bool()) << 15 | infinity | payload
}

/// Keys of which some have a score of +∞, whatever the signs.
const KEYS_TO_BE_SAFE: usize = 40;

/// How inputs are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Standard normal.
    Random,
    /// As trained models have them: single channels and tokens larger than the rest.
    Outliers,
    /// Every element of a tensor the same, another in each tensor.
    Constant,
    /// Zero.
    Zero,
    /// Values of a real layer's Q, K and V, from a place that the seed gives.
    Real,
    /// Standard normal, but the first key has about as much weight as all others together, each of which has a small P.
    Sink,
    /// Standard normal, but the last key has nearly all of the weight: the maximum of a row that sees it grows in the last block, whatever
    /// block that is.
    Late,
    /// Scores grow from key to key, so that the row's maximum grows in every block.
    Rising,
    /// Scores fall from key to key: the same for who begins at the end.
    Falling,
    /// V so small that float16 has only subnormal numbers for it, and bfloat16 what float16 has none for.
    Small,
    /// V so large that a few of its elements add up to more than float16 holds.
    Large,
    /// V so large, and of one sign in each channel, that O is nearly the largest number.
    Huge,
    /// Q and K so large that products of rows are tens of thousands: for a scale that makes usual scores of them.
    Loud,
    /// Q and K so small that float16 has only subnormal numbers for them: for such a scale too.
    Faint,
}

impl Kind {
    /// Those that lab.toml lists where nothing is said.
    pub const ALL: [Kind; 5] = [Kind::Random, Kind::Outliers, Kind::Constant, Kind::Zero, Kind::Real];

    /// Those that every examination has, whatever lab.toml says.
    pub const DEALT: [Kind; 7] =
        [Kind::Sink, Kind::Late, Kind::Rising, Kind::Falling, Kind::Small, Kind::Large, Kind::Huge];

    /// Whether some keys have far more weight than others.
    fn has_slope(self) -> bool {
        matches!(self, Kind::Sink | Kind::Late | Kind::Rising | Kind::Falling)
    }

    /// Whether kernels that accumulate so compute these: a few values of [`Kind::Large`] and [`Kind::Huge`] are more than float16 sums hold, and products of
    /// [`Kind::Loud`] and [`Kind::Faint`] more and less.
    pub fn is_for(self, accumulation: Accumulation) -> bool {
        !(matches!(self, Kind::Large | Kind::Huge | Kind::Loud | Kind::Faint)
            && accumulation == Accumulation::F16)
    }

    /// What Q and K are multiplied with.
    fn of_queries_and_keys(self) -> f64 {
        match self {
            Kind::Loud => f64::exp2(5.0),
            Kind::Faint => f64::exp2(-16.0),
            _ => 1.0,
        }
    }

    /// What makes usual scores of these, times the usual scale.
    pub fn scale(self) -> f32 {
        (1.0 / self.of_queries_and_keys().powi(2)) as f32
    }

    /// The name in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Random => "random",
            Kind::Outliers => "outliers",
            Kind::Constant => "constant",
            Kind::Zero => "zero",
            Kind::Real => "real",
            Kind::Sink => "sink",
            Kind::Late => "late",
            Kind::Rising => "rising",
            Kind::Falling => "falling",
            Kind::Small => "small",
            Kind::Large => "large",
            Kind::Huge => "huge",
            Kind::Loud => "loud",
            Kind::Faint => "faint",
        }
    }
}

/// The tensors of a real layer, each as one list of values.
#[derive(Clone, Debug)]
pub struct RealTensors {
    dtype: Dtype,
    qkv: [Vec<u16>; 3],
}

impl RealTensors {
    /// Reads a safetensors file with `q`, `k` and `v`; `None` where there is no such file.
    ///
    /// # Errors
    /// [`Error::Host`] where the file cannot be used.
    pub fn read(path: &Path) -> Result<Option<RealTensors>> {
        if !path.is_file() {
            return Ok(None);
        }
        let inputs = read(&Source::Safetensors(path.to_owned()), &Options::default())?;
        Ok(Some(RealTensors { dtype: inputs.problem.dtype(), qkv: [inputs.q, inputs.k, inputs.v] }))
    }

    /// As many values as asked for, from a place that the seed gives, over and over where the layer has fewer.
    fn values(&self, role: TensorRole, count: usize, dtype: Dtype, seed: u64) -> Vec<u16> {
        let values = &self.qkv[role as usize];
        let start = seed as usize % values.len();
        let cycled = values.iter().cycle().skip(start).take(count);
        if dtype == self.dtype {
            return cycled.copied().collect();
        }
        cycled.map(|&bits| narrow(dtype, widen(self.dtype, bits))).collect()
    }
}

/// Q, K and V of a contiguous problem as bits of its dtype. `None` for [`Kind::Real`] where there is no real layer.
pub fn make(problem: &Problem, kind: Kind, seed: u64, real: Option<&RealTensors>) -> Option<[Vec<u16>; 3]> {
    let generated = match kind {
        Kind::Random => InputKind::Random,
        Kind::Outliers => InputKind::Outliers,
        Kind::Constant => InputKind::Constant,
        Kind::Zero => InputKind::Zero,
        Kind::Real => {
            let values = |role| real.map(|real| real.values(role, problem.len(role), problem.dtype(), seed));
            return Some([values(TensorRole::Q)?, values(TensorRole::K)?, values(TensorRole::V)?]);
        }
        Kind::Sink
        | Kind::Late
        | Kind::Rising
        | Kind::Falling
        | Kind::Small
        | Kind::Large
        | Kind::Huge
        | Kind::Loud
        | Kind::Faint => InputKind::Random,
    };
    let mut made = qkv(problem, generated, seed);
    shape(problem, kind, &mut made);
    Some(made)
}

/// Between the largest and the least score of a row, about, where scores rise or fall.
const SLOPE: f64 = 24.0;

/// By how much the last key's score is larger than the others, about: more than a kernel may let the maximum grow before it rescales O.
const LATE: f64 = 16.0;

/// Makes of standard normal tensors what a kind says.
fn shape(problem: &Problem, kind: Kind, qkv: &mut [Vec<u16>; 3]) {
    let keys = f64::from(problem.sizes().seqlen_k);
    // What a key's score has more than its noise.
    let more = |key: usize| match kind {
        Kind::Sink => f64::from(u8::from(key == 0)) * (keys.ln() + 1.0),
        Kind::Late => f64::from(u8::from(key + 1 == problem.sizes().seqlen_k as usize)) * LATE,
        Kind::Rising => SLOPE * key as f64 / keys,
        Kind::Falling => SLOPE * (keys - key as f64) / keys,
        _ => 0.0,
    };
    // A channel has this much of Q in every row, beside half of the noise.
    const OF_Q: f64 = 0.5;
    let a_score = 1.0 / (f64::from(problem.scale()) * OF_Q * f64::from(problem.sizes().head_dim));
    let times = match (kind, problem.dtype()) {
        (Kind::Small, Dtype::F16) => f64::exp2(-18.0),
        (Kind::Small, Dtype::Bf16) => f64::exp2(-60.0),
        (Kind::Large, Dtype::F16) => f64::exp2(13.0),
        (Kind::Large, Dtype::Bf16) => f64::exp2(60.0),
        (Kind::Huge, Dtype::F16) => 58_000.0,
        // What float32 holds the sum of, over all keys.
        (Kind::Huge, Dtype::Bf16) => f64::exp2(110.0),
        _ => kind.of_queries_and_keys(),
    };
    let of_value: &dyn Fn(TensorRole, [usize; 2], f64) -> f64 = match kind {
        Kind::Sink | Kind::Late | Kind::Rising | Kind::Falling => &|role, [row, _], value| match role {
            TensorRole::Q => OF_Q + 0.5 * value,
            TensorRole::K => value + more(row) * a_score,
            TensorRole::V | TensorRole::O => value,
        },
        Kind::Small | Kind::Large => {
            &|role, _, value| if role == TensorRole::V { value * times } else { value }
        }
        Kind::Huge => &|role, [_, channel], value| match role {
            TensorRole::V => times * (1.0 + 0.02 * value.tanh()) * if channel % 2 == 0 { 1.0 } else { -1.0 },
            _ => value,
        },
        Kind::Loud | Kind::Faint => {
            &|role, _, value| if role == TensorRole::V { value } else { value * times }
        }
        _ => return,
    };
    for role in [TensorRole::Q, TensorRole::K, TensorRole::V] {
        let Extent { batch, heads, rows, width } = problem.extent(role);
        for at in 0..(batch * heads * rows) as usize {
            let (head, row) = (at / rows as usize, at % rows as usize);
            let place = [head / heads as usize, head % heads as usize, row];
            let elements = &mut qkv[role as usize][row_start(problem, role, place)..][..width as usize];
            for (channel, bits) in elements.iter_mut().enumerate() {
                *bits =
                    narrow(problem.dtype(), of_value(role, [row, channel], widen(problem.dtype(), *bits)));
            }
        }
    }
}

/// Refuses a list of kinds that needs a file which is not there.
///
/// # Errors
/// [`Error::Missing`] where `real` is asked for and there is no file.
pub fn check_real(kinds: &[Kind], real: Option<&RealTensors>, path: &Path) -> Result<()> {
    if kinds.contains(&Kind::Real) && real.is_none() {
        let reason = format!(
            "{} holds the inputs `real` of [problems]; take it out or name another file",
            path.display()
        );
        return Err(Error::Missing { what: "a real layer", reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::Sizes;

    #[test]
    fn each_kind_is_as_long_as_the_problem_and_repeats_with_its_seed() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/minilm_layer2.safetensors");
        let real = RealTensors::read(&path).expect("readable").expect("there");
        let sizes = Sizes { batch: 1, heads_q: 2, heads_kv: 1, seqlen_q: 3, seqlen_k: 5, head_dim: 64 };
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let problem = Problem::new(sizes, dtype).expect("valid");
            for kind in Kind::ALL.into_iter().chain(Kind::DEALT) {
                let made = make(&problem, kind, 7, Some(&real)).expect("made");
                assert_eq!(made.each_ref().map(Vec::len), [2 * 3 * 64, 5 * 64, 5 * 64], "{kind:?}");
                assert!(made.iter().flatten().all(|&bits| widen(dtype, bits).is_finite()), "{kind:?}");
                assert_eq!(make(&problem, kind, 7, Some(&real)), Some(made.clone()), "{kind:?}");
                let is_fixed = matches!(kind, Kind::Constant | Kind::Zero);
                assert_eq!(make(&problem, kind, 8, Some(&real)) == Some(made), is_fixed, "{kind:?}");
            }
        }
    }

    /// The softmax of a row whose scores are all −∞ is 0 / 0: kernels that write 0 there and kernels that write NaN are right both.
    #[test]
    fn no_infinity_leaves_a_row_without_a_score() {
        let sizes = Sizes { batch: 1, heads_q: 1, heads_kv: 1, seqlen_q: 100, seqlen_k: 100, head_dim: 32 };
        for scale in [0.05, 0.18] {
            let problem = Problem::new(sizes, Dtype::Bf16).and_then(|problem| problem.with_scale(scale));
            let problem = problem.expect("valid").with_causal(true);
            let kinds = [Kind::Random, Kind::Sink, Kind::Late, Kind::Rising, Kind::Falling];
            for (kind, seed) in kinds.into_iter().flat_map(|kind| (0..60).map(move |seed| (kind, seed))) {
                for odd in Odd::ALL.into_iter().filter(|odd| odd.role < 2) {
                    let qkv = make(&problem, kind, seed, None).expect("made");
                    let mut inputs = Inputs { qkv, seqlens_k: None };
                    odd.put(&problem, kind, &mut inputs, seed);
                    let row = |role: usize, at: usize| {
                        inputs.qkv[role][at * 32..][..32].iter().map(|&bits| widen(Dtype::Bf16, bits))
                    };
                    let is_blind = |query: usize| {
                        let score = |key| row(0, query).zip(row(1, key)).map(|(q, k)| q * k).sum::<f64>();
                        (0..=query).all(|key| score(key) == f64::NEG_INFINITY)
                    };
                    assert!(!(0..100).any(is_blind), "{kind:?} {odd:?} {seed}");
                }
            }
        }
    }

    #[test]
    fn nan_has_both_signs_and_several_payloads() {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let mut random = fastrand::Rng::with_seed(1);
            let drawn: std::collections::BTreeSet<u16> = (0..200).map(|_| nan(dtype, &mut random)).collect();
            assert!(drawn.iter().all(|&bits| widen(dtype, bits).is_nan()));
            let usual = narrow(dtype, f64::NAN);
            assert!(
                drawn.contains(&(usual & 0x7fff)) && drawn.contains(&(usual | 0x8000)) && drawn.len() > 20
            );
        }
    }

    #[test]
    fn without_a_real_layer_there_are_no_real_inputs() {
        assert!(RealTensors::read(Path::new("nowhere.safetensors")).expect("no error").is_none());
        let path = Path::new("nowhere.safetensors");
        assert!(
            check_real(&[Kind::Real], None, path).is_err() && check_real(&[Kind::Zero], None, path).is_ok()
        );
    }
}
