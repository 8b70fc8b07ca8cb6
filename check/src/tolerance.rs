//! What counts as correct: errors against the float64 reference, beside those of a plain implementation.
//!
//! O passes if its largest error is at most twice that of [`plain()`] attention in the same dtype on the same input, of the
//! worst of its [`Plain`]s: where few scores decide, the errors of one alone can cancel by luck.
//! Small outputs can be lucky: with few elements the plain error may be near zero by chance. So one unit in the last
//! place of the largest output is always allowed, twice what rounding O to the dtype costs a perfect kernel.
//!
//! LSE stays in float32 from end to end and has a bound of its own, a value a row: see `lse_allowed`.

pub mod backward;
mod plain;

pub use plain::{Plain, plain};

use crate::reference::{Ragged, Reference, keys, row_coordinates, row_start};
use ferroflash::attention::{HostTensors, Output};
use ferroflash::error::Error;
use ferroflash::problem::{Problem, TensorRole};
use ferroflash::rounding::{narrow, widen};
use half::{bf16, f16};
use kernels_gpu::row::{Accumulation, Dtype};

/// How an O, and an LSE where there is one, compare with the reference.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Verdict {
    /// Largest |out − reference|, over elements that are numbers in both.
    pub max_error: f64,
    /// Root of the mean squared error, over the same elements.
    pub rms_error: f64,
    /// Largest error that passes.
    pub allowed: f64,
    /// Largest error of [`plain()`] on the same input.
    pub plain_error: f64,
    /// Where the largest error is, or the first element that is not finite where it should be or the other way
    /// round: batch, head, row, element.
    pub worst: [usize; 4],
    /// Elements that are NaN or infinite in one and not in the other.
    pub not_finite_mismatches: usize,
    /// The same of LSE.
    pub lse: Option<LseVerdict>,
    /// Everything is within bounds.
    pub passed: bool,
}

/// How an LSE compares with the reference.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct LseVerdict {
    /// Largest |lse − reference|.
    pub max_error: f64,
    /// What is allowed in the row whose error takes the largest share of its bound.
    pub allowed: f64,
    /// That row: batch, head, row.
    pub worst: [usize; 3],
    /// Its error as a share of its bound.
    pub worst_ratio: f64,
    /// Rows that are NaN or infinite in one and not in the other.
    pub not_finite_mismatches: usize,
    /// Everything is within bounds.
    pub passed: bool,
}

/// The bounds for one input: computed once, then used for as many kernels as there are.
#[derive(Clone, Debug)]
pub struct Tolerance {
    plain_error: f64,
    allowed: f64,
    lse_allowed: Vec<f64>,
}

impl Verdict {
    /// The share of the allowed error that was taken, of O or LSE, whichever is more: 1 is the limit.
    pub fn ratio(&self) -> f64 {
        if self.not_finite_mismatches > 0 || self.lse.is_some_and(|lse| lse.not_finite_mismatches > 0) {
            return f64::INFINITY;
        }
        let o = if self.max_error > 0.0 { self.max_error / self.allowed } else { 0.0 };
        self.lse.map_or(o, |lse| o.max(lse.worst_ratio))
    }
}

/// The decisive numbers in one line.
impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Verdict { max_error, rms_error, allowed, worst: [batch, head, row, element], .. } = self;
        write!(f, "O max error {max_error:.2e} (allowed {allowed:.2e}), RMS {rms_error:.2e}")?;
        write!(f, ", worst at batch {batch} head {head} row {row} element {element}")?;
        if self.not_finite_mismatches > 0 {
            write!(
                f,
                ", {} elements not finite where they should be or the reverse",
                self.not_finite_mismatches
            )?;
        }
        let Some(lse) = self.lse else { return Ok(()) };
        let LseVerdict { max_error, allowed, worst: [batch, head, row], .. } = lse;
        write!(
            f,
            "; LSE max error {max_error:.2e} (allowed {allowed:.2e} at batch {batch} head {head} row {row})"
        )?;
        if lse.not_finite_mismatches > 0 {
            write!(f, ", {} rows not finite where they should be or the reverse", lse.not_finite_mismatches)?;
        }
        Ok(())
    }
}

impl Tolerance {
    /// Computes the bounds that hold for kernels with this accumulation of Q·Kᵀ.
    pub fn new(
        problem: &Problem,
        tensors: &HostTensors<'_>,
        reference: &Reference,
        accumulation: Accumulation,
    ) -> Tolerance {
        let all = Plain::all(problem.sizes().head_dim as usize, accumulation);
        let plain: Vec<_> = all.into_iter().map(|how| plain(problem, tensors, accumulation, how)).collect();
        let lse_allowed = lse_allowed(problem, tensors, &reference.lse, accumulation);
        Tolerance::of_plain(problem, &plain, reference, lse_allowed)
    }

    /// The bounds from what each plain implementation makes of it, and those of each LSE.
    pub fn of_plain(
        problem: &Problem,
        plain: &[Vec<f32>],
        reference: &Reference,
        lse_allowed: Vec<f64>,
    ) -> Tolerance {
        let dtype = problem.dtype();
        let error_of = |plain: &Vec<f32>| {
            let pairs = o_indices(problem).map(|at| (f64::from(plain[at]), reference.o[at]));
            Errors::of(pairs, |expected| held(dtype, expected)).max_error
        };
        let plain_error = plain.iter().map(error_of).fold(0.0, f64::max);
        let largest = reference.o.iter().filter(|o| o.is_finite()).fold(0.0, |max: f64, o| max.max(o.abs()));
        let floor = 2.0 * unit_roundoff(dtype) * largest.max(smallest_normal(dtype));
        Tolerance { plain_error, allowed: f64::max(2.0 * plain_error, floor), lse_allowed }
    }

    /// Judges an output. `o` is bits in the problem's layout; `lse` is contiguous `[batch, heads_q, seqlen_q]`.
    ///
    /// # Errors
    /// [`Error::WrongLength`] where an output is not as long as the problem says.
    pub fn judge(
        &self,
        problem: &Problem,
        reference: &Reference,
        o: &[u16],
        lse: Option<&[f32]>,
    ) -> Result<Verdict, Error> {
        let dtype = problem.dtype();
        let lse: Option<Vec<f64>> = lse.map(|lse| lse.iter().map(|&lse| f64::from(lse)).collect());
        let o_at = |at: usize| widen(dtype, o[at]);
        self.judge_each(problem, reference, (o.len(), &o_at), lse.as_deref())
    }

    /// As [`Tolerance::judge`], for results that another program stored in whatever type.
    ///
    /// # Errors
    /// Those of [`Tolerance::judge`].
    pub fn judge_values(
        &self,
        problem: &Problem,
        reference: &Reference,
        o: &[f64],
        lse: Option<&[f64]>,
    ) -> Result<Verdict, Error> {
        self.judge_each(problem, reference, (o.len(), &|at| o[at]), lse)
    }

    /// As [`Tolerance::judge_values`], where the caller gives the length of O and a function from an index to the element there.
    fn judge_each(
        &self,
        problem: &Problem,
        reference: &Reference,
        (len, o): (usize, &impl Fn(usize) -> f64),
        lse: Option<&[f64]>,
    ) -> Result<Verdict, Error> {
        check_length("O", problem.o_len(), len)?;
        let dtype = problem.dtype();
        let pairs = o_indices(problem).map(|at| (o(at), reference.o[at]));
        let errors = Errors::of(pairs, |expected| held(dtype, expected));
        let lse = lse.map(|lse| self.judge_lse(problem, reference, lse)).transpose()?;
        let o_passed = errors.not_finite_mismatches == 0 && errors.max_error <= self.allowed;
        let head_dim = problem.head_dim_v() as usize;
        let [batch, head, row] = row_coordinates(problem, errors.worst / head_dim);
        Ok(Verdict {
            max_error: errors.max_error,
            rms_error: errors.rms_error,
            allowed: self.allowed,
            plain_error: self.plain_error,
            worst: [batch, head, row, errors.worst % head_dim],
            not_finite_mismatches: errors.not_finite_mismatches,
            lse,
            passed: o_passed && lse.is_none_or(|lse| lse.passed),
        })
    }

    /// The query rows, by their index in the order of LSE, in which O, and those in which the LSE, is further from right than is
    /// allowed: what shows where a kernel is wrong.
    pub fn wrong_rows(&self, problem: &Problem, reference: &Reference, output: &Output) -> [Vec<usize>; 2] {
        let (dtype, head_dim) = (problem.dtype(), problem.head_dim_v() as usize);
        let is_off = |out: f64, expected: f64, held: f64, allowed: f64| {
            if out.is_finite() && held.is_finite() {
                (out - expected).abs() > allowed
            } else {
                !(out == held || (out.is_nan() && held.is_nan()))
            }
        };
        let is_wrong_o = |&row: &usize| {
            let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
            (start..start + head_dim).any(|at| {
                let expected = reference.o[at];
                is_off(widen(dtype, output.o[at]), expected, held(dtype, expected), self.allowed)
            })
        };
        let is_wrong_lse = |&row: &usize| {
            let (expected, allowed) = (reference.lse[row], self.lse_allowed[row]);
            output.lse.as_ref().is_some_and(|lse| is_off(f64::from(lse[row]), expected, expected, allowed))
        };
        let rows = 0..problem.lse_len();
        [rows.clone().filter(is_wrong_o).collect(), rows.filter(is_wrong_lse).collect()]
    }

    /// The largest error of O that passes.
    pub fn allowed(&self) -> f64 {
        self.allowed
    }

    fn judge_lse(&self, problem: &Problem, reference: &Reference, lse: &[f64]) -> Result<LseVerdict, Error> {
        check_length("LSE", problem.lse_len(), lse.len())?;
        let pairs = || lse.iter().copied().zip(reference.lse.iter().copied());
        let errors = Errors::of(pairs(), |expected| expected);
        // Rows that are not finite are counted in `errors`.
        let ratio = |((out, expected), allowed): ((f64, f64), &f64)| {
            let ratio = (out - expected).abs() / allowed;
            if ratio.is_finite() { ratio } else { 0.0 }
        };
        let ratios = pairs().zip(&self.lse_allowed).map(ratio);
        let (worst, ratio) =
            ratios.enumerate().fold((0, 0.0), |max, row| if row.1 > max.1 { row } else { max });
        Ok(LseVerdict {
            max_error: errors.max_error,
            allowed: self.lse_allowed[worst],
            worst: row_coordinates(problem, worst),
            worst_ratio: ratio,
            not_finite_mismatches: errors.not_finite_mismatches,
            passed: errors.not_finite_mismatches == 0 && ratio <= 1.0,
        })
    }
}

fn check_length(tensor: &'static str, expected: usize, got: usize) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::WrongLength { tensor, expected, got }) }
}

/// Where O's elements lie in its buffer, in the order batch, head, row, element.
fn o_indices(problem: &Problem) -> impl Iterator<Item = usize> {
    let head_dim = problem.head_dim_v() as usize;
    (0..problem.lse_len()).flat_map(move |index| {
        let start = row_start(problem, TensorRole::O, row_coordinates(problem, index));
        start..start + head_dim
    })
}

struct Errors {
    max_error: f64,
    rms_error: f64,
    worst: usize,
    not_finite_mismatches: usize,
}

impl Errors {
    /// Compares outputs with what is expected. `rounded` is the expected value as the output's type holds it: past
    /// its range, that is infinite.
    fn of(pairs: impl Iterator<Item = (f64, f64)>, rounded: impl Fn(f64) -> f64) -> Errors {
        let mut errors = Errors { max_error: 0.0, rms_error: 0.0, worst: 0, not_finite_mismatches: 0 };
        let mut squares = 0.0;
        let mut compared = 0_u64;
        // A `for` loop would ask the iterator over all rows' elements anew for each.
        pairs.enumerate().for_each(|(index, (out, expected))| {
            let held = rounded(expected);
            if !out.is_finite() || !held.is_finite() {
                let same = out == held || (out.is_nan() && held.is_nan());
                if !same && errors.not_finite_mismatches == 0 {
                    errors.worst = index;
                }
                errors.not_finite_mismatches += usize::from(!same);
                return;
            }
            let error = (out - expected).abs();
            if error > errors.max_error {
                errors.max_error = error;
                if errors.not_finite_mismatches == 0 {
                    errors.worst = index;
                }
            }
            squares += error * error;
            compared += 1;
        });
        errors.rms_error = (squares / compared.max(1) as f64).sqrt();
        errors
    }
}

/// Half the distance between 1 and the next number.
pub(crate) fn unit_roundoff(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => f64::exp2(-11.0),
        Dtype::Bf16 => f64::exp2(-8.0),
    }
}

/// Below this the distance between numbers stays the same.
fn smallest_normal(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => f16::MIN_POSITIVE.to_f64(),
        Dtype::Bf16 => bf16::MIN_POSITIVE.to_f64(),
    }
}

/// A value that is too large for the dtype as the dtype holds it, and any other as it is: callers ask only whether it is finite there.
fn held(dtype: Dtype, value: f64) -> f64 {
    let largest = match dtype {
        Dtype::F16 => f16::MAX.to_f64(),
        Dtype::Bf16 => bf16::MAX.to_f64(),
    };
    if value.abs() <= largest { value } else { widen(dtype, narrow(dtype, value)) }
}

/// The largest LSE error allowed, one value a query row.
///
/// With a = scale · ‖q‖ · max ‖k‖, which bounds every score and every partial sum of one (Cauchy–Schwarz):
/// - a sum of head_dim products in steps of 16 rounds head_dim / 16 times, at 2⁻²² of the partial sum each (tensor
///   cores truncate); float16 accumulation at 2⁻¹⁰;
/// - scale · log2(e) and the exponent's argument round at 2⁻²² of a score, four times in all;
/// - exp2 and the logarithm are good to 2⁻²², and the rounding of row_sum grows with √seqlen_k;
/// - the result rounds to float32 at 2⁻²³ of itself.
///
/// An error in the scores moves the LSE by no more than itself, as the LSE is a weighted mean of the scores plus
/// an entropy.
fn lse_allowed(
    problem: &Problem,
    tensors: &HostTensors<'_>,
    lse: &[f64],
    accumulation: Accumulation,
) -> Vec<f64> {
    if problem.is_ragged() {
        return Ragged::new(problem, tensors).lse_allowed(lse);
    }
    let HostTensors { q, k, seqlens_k, .. } = *tensors;
    let sizes = problem.sizes();
    let steps = f64::from(sizes.head_dim) / plain::MMA_DEPTH as f64;
    let float = f64::exp2(-22.0);
    let per_score = match accumulation {
        Accumulation::F32 => (steps + 4.0) * float,
        Accumulation::F16 => steps * f64::exp2(-10.0) + 4.0 * float,
    };
    let fixed = (4.0 + f64::from(sizes.seqlen_k).sqrt()) * float;
    let dtype = problem.dtype();
    let norm = |data: &[u16], role: TensorRole, at: [usize; 3]| {
        let row = &data[row_start(problem, role, at)..][..sizes.head_dim as usize];
        row.iter().map(|&bits| widen(dtype, bits).powi(2)).sum::<f64>().sqrt()
    };
    let k_norms: Vec<f64> = (0..(sizes.batch * sizes.heads_kv) as usize)
        .map(|index| {
            let (batch, head) = (index / sizes.heads_kv as usize, index % sizes.heads_kv as usize);
            let norms =
                (0..keys(problem, seqlens_k, batch)).map(|key| norm(k, TensorRole::K, [batch, head, key]));
            // Keys with NaN or ∞ have no bound; rows that see them have no finite LSE.
            norms.filter(|norm| norm.is_finite()).fold(0.0, f64::max)
        })
        .collect();
    let of_row = |(index, lse): (usize, &f64)| {
        let [batch, head, row] = row_coordinates(problem, index);
        let k_norm = k_norms[batch * sizes.heads_kv as usize + head / problem.group() as usize];
        let score = f64::from(problem.scale()) * norm(q, TensorRole::Q, [batch, head, row]) * k_norm;
        let result = if lse.is_finite() { lse.abs() * float } else { 0.0 };
        score * per_score + fixed + result
    };
    lse.iter().enumerate().map(of_row).collect()
}
