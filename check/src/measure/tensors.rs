//! The tensors that are measured on, in one or several sets, and the check that a kernel computes something with them.

use crate::random_input::{self, InputKind};
use crate::reference::{attention_row, row_coordinates, row_start};
use ferroflash::attention::{Attention, DeviceTensors};
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::{Buffer, StreamHandle};
use ferroflash::error::Error;
use ferroflash::plan::Plan;
use ferroflash::problem::{Problem, Sizes, TensorRole};
use ferroflash::rounding::widen;
use kernels_gpu::row::Dtype;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// Elements after which the inputs repeat: a prime under 2²⁰, so that no row or head repeats another at the same place.
const PATTERN_LEN: usize = 1_048_573;
/// The most sets, so that a graph that uses each stays small.
const SETS_MAX: u64 = 2048;
/// Rows of O that are computed again.
const ROWS_CHECKED: usize = 6;
/// The largest error of an element of O that passes. Loose, as `ferroflash verify` is what judges precision: this tells a kernel
/// that computes attention from one that computes something else.
pub const ERROR_MAX: f64 = 0.05;

/// Whether a launch wrote all of O, and LSE where it is timed with it, and a sample of it right.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Check {
    /// Elements of O and LSE that are NaN after a launch on an O and LSE of NaN.
    pub nan: usize,
    /// The largest error of O and LSE in the rows that were computed again in float64.
    pub max_error: f64,
}

impl Check {
    /// Whether nothing is NaN and the error is under [`ERROR_MAX`].
    pub fn passed(&self) -> bool {
        self.nan == 0 && self.max_error < ERROR_MAX
    }
}

/// Q, K, V, O and where it is wanted LSE on the device, in as many sets as the cache calls for.
pub(super) struct TensorSets {
    /// In the order of the roles; one set behind the other in each.
    buffers: [Buffer<CudaDevice>; 4],
    /// Elements from one set to the next in each buffer.
    steps: [usize; 4],
    /// LSE, one set behind the other, where the kernels are timed with it.
    lse: Option<Buffer<CudaDevice>>,
    /// Elements from one set to the next in LSE.
    lse_step: usize,
    /// Keys of each sequence, where the problem has lengths; the same for all sets.
    seqlens_k: Option<Buffer<CudaDevice>>,
    sets: usize,
    inputs: Inputs,
}

impl TensorSets {
    /// Enough sets that all together are more than `bytes`; at least one. With LSE where `lse`.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        problem: &Problem,
        lse: bool,
        bytes: u64,
    ) -> Result<TensorSets, Error> {
        // Each set begins on a multiple of 256 bytes, as an allocation does.
        let steps = TensorRole::ALL.map(|role| problem.len(role).next_multiple_of(128));
        let lse_step = if lse { problem.lse_len().next_multiple_of(64) } else { 0 };
        let set_bytes = 2 * steps.iter().sum::<usize>() as u64 + 4 * lse_step as u64;
        let sets = bytes.div_ceil(set_bytes).clamp(1, SETS_MAX) as usize;
        let inputs = Inputs::new(problem)?;
        let seqlens_k = inputs.seqlens_k.as_ref();
        let seqlens_k = seqlens_k.map(|lengths| Buffer::from_elements(device, lengths)).transpose()?;
        let buffer = |role: TensorRole| {
            let elements = steps[role as usize] * sets;
            let buffer = Buffer::new(device, elements as u64 * 2)?;
            if role != TensorRole::O {
                inputs.write(role, &buffer, elements)?;
            }
            Ok::<_, Error>(buffer)
        };
        let [q, k, v, o] = TensorRole::ALL;
        let buffers = [buffer(q)?, buffer(k)?, buffer(v)?, buffer(o)?];
        let lse = lse.then(|| Buffer::new(device, (lse_step * sets) as u64 * 4)).transpose()?;
        Ok(TensorSets { buffers, steps, lse, lse_step, seqlens_k, sets, inputs })
    }

    pub(super) fn sets(&self) -> usize {
        self.sets
    }

    /// The tensors of launch `i`: the sets in turns.
    pub(super) fn set(&self, i: usize) -> DeviceTensors {
        let [q, k, v, o] = TensorRole::ALL.map(|role| {
            let elements = (i % self.sets) * self.steps[role as usize];
            self.buffers[role as usize].address() + elements as u64 * 2
        });
        let lse_at = (i % self.sets) * self.lse_step;
        let lse = self.lse.as_ref().map(|lse| lse.address() + lse_at as u64 * 4);
        let seqlens_k = self.seqlens_k.as_ref().map(Buffer::address);
        DeviceTensors::new(q, k, v, o).with_lse(lse).with_seqlens_k(seqlens_k)
    }

    /// Runs a plan once on the first set, with O and LSE full of NaN before, and looks at what it wrote.
    pub(super) fn check(&self, attention: &Attention, plan: &Plan) -> Result<Check, Error> {
        self.poison_outputs()?;
        // SAFETY: the tensors are as long as the problem says and live until the read, which waits for the launch.
        unsafe { attention.launch(plan, &self.set(0), StreamHandle::DEFAULT)? };
        self.judge(plan.problem())
    }

    /// Fills O and LSE of every set with NaN, in the order of the default stream.
    pub(super) fn poison_outputs(&self) -> Result<(), Error> {
        self.buffers[TensorRole::O as usize].fill(0xff)?;
        self.lse.as_ref().map_or(Ok(()), |lse| lse.fill(0xff))
    }

    /// Replaces Q, K and V of every set by others, which `seed` gives, at the same addresses.
    pub(super) fn renew_inputs(&self, seed: u64) -> Result<(), Error> {
        self.inputs.restart((seed % PATTERN_LEN as u64) as usize);
        for role in [TensorRole::Q, TensorRole::K, TensorRole::V] {
            self.inputs.write(role, &self.buffers[role as usize], self.steps[role as usize] * self.sets)?;
        }
        Ok(())
    }

    /// Looks at what the launches before wrote to the first set.
    pub(super) fn judge(&self, problem: &Problem) -> Result<Check, Error> {
        let output = &self.buffers[TensorRole::O as usize];
        let mut o = vec![0u16; problem.o_len()];
        output.read(0, &mut o)?;
        let gaps = problem.o_len() - problem.elements(TensorRole::O);
        let nan = nans(problem.dtype(), &o);
        let mut check =
            Check { nan: nan.saturating_sub(gaps), max_error: self.inputs.max_error_o(problem, &o) };
        if let Some(buffer) = &self.lse {
            let mut lse = vec![0f32; problem.lse_len()];
            buffer.read(0, &mut lse)?;
            check.nan += lse.iter().filter(|lse| lse.is_nan()).count();
            check.max_error = check.max_error.max(self.inputs.max_error_lse(problem, &lse));
        }
        Ok(check)
    }
}

/// The seed of lengths.
const LENGTHS_SEED: u64 = 1;

/// The keys of each sequence of a problem with lengths, as it is measured: the same on every machine.
pub fn lengths(problem: &Problem) -> Option<Vec<u32>> {
    problem.has_lengths().then(|| random_input::lengths(problem, LENGTHS_SEED))
}

/// Standard normal inputs, the same on every machine, made of one pattern that starts elsewhere for each tensor.
struct Inputs {
    dtype: Dtype,
    pattern: &'static [u16],
    seqlens_k: Option<Vec<u32>>,
    /// Where in the pattern Q begins.
    start: Cell<usize>,
    /// Rows of O and their LSE that were computed again from these inputs, by `[batch, head, row]`: the same for every plan.
    rows: RefCell<BTreeMap<[usize; 3], OutputRow>>,
}

/// A row of O, and its LSE.
type OutputRow = (Vec<f64>, f64);

/// One head of 2²⁰ elements of a dtype, made once.
fn pattern(dtype: Dtype) -> Result<&'static [u16], Error> {
    static PATTERNS: [OnceLock<Vec<u16>>; 2] = [const { OnceLock::new() }; 2];
    let sizes = Sizes { batch: 1, heads_q: 1, heads_kv: 1, seqlen_q: 1 << 14, seqlen_k: 1, head_dim: 64 };
    let problem = Problem::new(sizes, dtype)?;
    Ok(PATTERNS[dtype as usize].get_or_init(|| {
        let [mut pattern, _, _] = random_input::qkv(&problem, InputKind::Random, 1);
        pattern.truncate(PATTERN_LEN);
        pattern
    }))
}

/// Elements that are NaN, from their bits: a whole O is looked through after every check.
fn nans(dtype: Dtype, bits: &[u16]) -> usize {
    let infinity = match dtype {
        Dtype::F16 => 0x7c00,
        Dtype::Bf16 => 0x7f80,
    };
    bits.iter().map(|&bits| usize::from(bits & 0x7fff > infinity)).sum()
}

impl Inputs {
    fn new(problem: &Problem) -> Result<Inputs, Error> {
        let (dtype, seqlens_k) = (problem.dtype(), lengths(problem));
        let (start, rows) = (Cell::new(0), RefCell::default());
        Ok(Inputs { dtype, pattern: pattern(dtype)?, seqlens_k, start, rows })
    }

    /// Has Q begin elsewhere in the pattern.
    fn restart(&self, start: usize) {
        self.start.set(start);
        self.rows.borrow_mut().clear();
    }

    /// Where in the pattern element `index` of a tensor lies.
    fn at(&self, role: TensorRole, index: usize) -> usize {
        (index + self.start.get() + role as usize * (PATTERN_LEN / 4)) % PATTERN_LEN
    }

    fn value(&self, role: TensorRole, index: usize) -> f64 {
        widen(self.dtype, self.pattern[self.at(role, index)])
    }

    fn write(&self, role: TensorRole, buffer: &Buffer<CudaDevice>, elements: usize) -> Result<(), Error> {
        let mut index = 0;
        while index < elements {
            let start = self.at(role, index);
            let count = (PATTERN_LEN - start).min(elements - index);
            buffer.write(index, &self.pattern[start..start + count])?;
            index += count;
        }
        Ok(())
    }

    /// The largest error of O in the sampled rows.
    fn max_error_o(&self, problem: &Problem, o: &[u16]) -> f64 {
        let errors = sampled_rows(problem).flat_map(|(_, at)| {
            let start = row_start(problem, TensorRole::O, at);
            let (expected, _) = self.row(problem, at);
            let error = |(d, expected): (usize, f64)| (widen(self.dtype, o[start + d]) - expected).abs();
            expected.into_iter().enumerate().map(error).collect::<Vec<f64>>()
        });
        largest(errors)
    }

    /// The largest error of LSE in the sampled rows.
    fn max_error_lse(&self, problem: &Problem, lse: &[f32]) -> f64 {
        let errors = sampled_rows(problem).map(|(row, at)| {
            let (_, expected) = self.row(problem, at);
            let got = f64::from(lse[row]);
            // Both −∞ where a row sees no key.
            if got == expected { 0.0 } else { (got - expected).abs() }
        });
        largest(errors)
    }

    /// Row `[batch, head, row]` of O and its LSE in float64.
    fn row(&self, problem: &Problem, at: [usize; 3]) -> OutputRow {
        let mut rows = self.rows.borrow_mut();
        let (seqlens_k, scale) = (self.seqlens_k.as_deref(), f64::from(problem.scale()));
        let compute = || {
            attention_row(problem, |role, index| self.value(role, index), seqlens_k, at, scale, &|_, _| true)
        };
        rows.entry(at).or_insert_with(compute).clone()
    }
}

/// A few rows, the first and the last among them: where LSE of each lies, and `[batch, head, row]`.
fn sampled_rows(problem: &Problem) -> impl Iterator<Item = (usize, [usize; 3])> {
    let last = problem.lse_len() - 1;
    (0..ROWS_CHECKED).map(move |sample| {
        let row = (last as f64 * sample as f64 / (ROWS_CHECKED - 1) as f64) as usize;
        (row, row_coordinates(problem, row))
    })
}

/// The largest of the errors; a NaN must not pass as none.
fn largest(errors: impl Iterator<Item = f64>) -> f64 {
    errors.fold(0.0, |largest, error| if error.is_nan() { f64::INFINITY } else { largest.max(error) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::reference;
    use ferroflash::problem::Layout;
    use ferroflash::rounding::narrow;

    fn problem(dtype: Dtype) -> Problem {
        let sizes = Sizes { batch: 2, heads_q: 4, heads_kv: 2, seqlen_q: 5, seqlen_k: 3, head_dim: 32 };
        Problem::new(sizes, dtype).expect("valid").with_layout(Layout::Bshd).with_causal(true)
    }

    #[test]
    fn a_right_output_passes_and_a_wrong_or_nan_one_does_not() {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let problem = problem(dtype);
            let inputs = Inputs::new(&problem).expect("valid");
            let [q, k, v, _] = TensorRole::ALL.map(|role| {
                (0..problem.len(role)).map(|i| inputs.pattern[inputs.at(role, i)]).collect::<Vec<u16>>()
            });
            let right = reference(&problem, &q, &k, &v, &|_, _| {});
            let mut o: Vec<u16> = right.o.into_iter().map(|o| narrow(dtype, o)).collect();
            let error = inputs.max_error_o(&problem, &o);
            assert!(error < 0.01, "{error}");
            let last = o.len() - 1;
            o[last] = narrow(dtype, widen(dtype, o[last]) + 0.1);
            assert!(inputs.max_error_o(&problem, &o) > ERROR_MAX);
            o[last] = 0xffff;
            assert_eq!(inputs.max_error_o(&problem, &o), f64::INFINITY);

            // Five queries and three keys: the first rows of each head see none, their LSE is −∞.
            let mut lse: Vec<f32> = right.lse.into_iter().map(|lse| lse as f32).collect();
            assert_eq!(lse[0], f32::NEG_INFINITY);
            let error = inputs.max_error_lse(&problem, &lse);
            assert!(error < 1e-5, "{error}");
            let last = lse.len() - 1;
            lse[last] += 0.1;
            assert!(inputs.max_error_lse(&problem, &lse) > ERROR_MAX);
            lse[last] = f32::NAN;
            assert_eq!(inputs.max_error_lse(&problem, &lse), f64::INFINITY);
        }
    }

    #[test]
    fn inputs_are_standard_normal_and_differ_between_tensors() {
        let inputs = Inputs::new(&problem(Dtype::F16)).expect("valid");
        let values: Vec<f64> = (0..PATTERN_LEN).map(|i| inputs.value(TensorRole::Q, i)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01, "{mean} {variance}");
        assert_ne!(inputs.value(TensorRole::Q, 0), inputs.value(TensorRole::K, 0));
        assert_eq!(inputs.value(TensorRole::V, 7), inputs.value(TensorRole::V, 7 + PATTERN_LEN));
    }
}
