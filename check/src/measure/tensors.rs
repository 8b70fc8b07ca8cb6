//! The tensors that are measured on, in one or several sets, and the check that a kernel computes something with them.

use super::drawn::{Drawn, PATTERN_LEN, at_pattern};
use crate::random_input::{self, InputKind, Random};
use crate::reference::{row_coordinates, row_start};
use crate::verification::Oracle;
use crate::workload::Workload;
use ferroflash::attention::{Attention, DeviceTensors, Output};
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::{Buffer, StreamHandle};
use ferroflash::error::Error;
use ferroflash::plan::Plan;
use ferroflash::problem::{Extent, Operand, Problem, Sizes, TensorRole};
use ferroflash::rounding::widen;
use kernels_gpu::row::{Accumulation, Dtype};
use rayon::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The most sets, so that a graph that uses each stays small.
const SETS_MAX: u64 = 2048;
/// Rows of O that are judged of a kernel that is trusted.
const ROWS_TRUSTED: usize = 6;
/// The fewest and the most random rows that are judged of one that is not: one of each head at least where there are no more heads.
const ROWS_SECRET: [usize; 2] = [16, 256];
/// The largest share of the allowed error that passes.
pub const ERROR_MAX: f64 = 1.0;

/// Whether a launch wrote all of O, and LSE where it is timed with it, and a sample of it right.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Check {
    /// Elements of O and LSE that are NaN after a launch on an O and LSE of NaN.
    pub nan: usize,
    /// The largest error of O and LSE in the rows that were judged, as a share of what the judge of all kernels allows.
    pub max_error: f64,
}

impl Check {
    /// Whether nothing is NaN and no error is over what is allowed.
    pub fn passed(&self) -> bool {
        self.nan == 0 && self.max_error <= ERROR_MAX
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
    /// The same for all sets.
    operands: Vec<(Operand, Buffer<CudaDevice>)>,
    sets: usize,
    inputs: Inputs,
}

impl TensorSets {
    /// Enough sets that all together are more than `bytes`; at least one. With LSE where `lse`.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        workload: Workload,
        lse: bool,
        bytes: u64,
        secret: Option<u64>,
    ) -> Result<TensorSets, Error> {
        let problem = *workload.problem();
        // Each set begins on a multiple of 256 bytes, as an allocation does.
        let steps = TensorRole::ALL.map(|role| problem.len(role).next_multiple_of(128));
        let lse_step = if lse { problem.lse_len().next_multiple_of(64) } else { 0 };
        let set_bytes = 2 * steps.iter().sum::<usize>() as u64 + 4 * lse_step as u64;
        let sets = bytes.div_ceil(set_bytes).clamp(1, SETS_MAX) as usize;
        let seqlens_k = workload.seqlens_k();
        let seqlens_k = seqlens_k.map(|lengths| Buffer::from_elements(device, lengths)).transpose()?;
        let operands = workload.operands().iter().map(|(operand, values)| {
            Ok((*operand, Buffer::from_elements(device, values.as_operand().bytes())?))
        });
        let operands = operands.collect::<Result<Vec<_>, Error>>()?;
        let inputs = Inputs::new(workload, secret)?;
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
        Ok(TensorSets { buffers, steps, lse, lse_step, seqlens_k, operands, sets, inputs })
    }

    /// Fresh memory for a tensor of each set, `elements` elements of 2 bytes each from one set to the next a multiple of 256 bytes, and
    /// that distance in bytes; with `inputs` it holds the pattern of a dO.
    pub(super) fn more(
        &self,
        device: &Arc<CudaDevice>,
        elements: usize,
        inputs: bool,
    ) -> Result<(Buffer<CudaDevice>, u64), Error> {
        let step = elements.next_multiple_of(128);
        let buffer = Buffer::new(device, (step * self.sets) as u64 * 2)?;
        if inputs {
            self.inputs.write(TensorRole::O, &buffer, step * self.sets)?;
        }
        Ok((buffer, step as u64 * 2))
    }

    /// The first set's Q, K, V and O.
    pub(super) fn read_first(&self, problem: &Problem) -> Result<[Vec<u16>; 4], Error> {
        let read = |role: TensorRole| {
            let mut elements = vec![0; problem.len(role)];
            self.buffers[role as usize].read(0, &mut elements).map(|()| elements)
        };
        let [q, k, v, o] = TensorRole::ALL;
        Ok([read(q)?, read(k)?, read(v)?, read(o)?])
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
        let tensors = DeviceTensors::new(q, k, v, o).with_lse(lse).with_seqlens_k(seqlens_k);
        let with = |tensors: DeviceTensors, (operand, buffer): &(Operand, Buffer<CudaDevice>)| {
            tensors.with_operand(*operand, buffer.address())
        };
        self.operands.iter().fold(tensors, with)
    }

    /// Runs a plan once on the first set, with O and LSE full of NaN before, and looks at what it wrote.
    pub(super) fn check(&self, attention: &Attention, plan: &Plan) -> Result<Check, Error> {
        self.poison_outputs()?;
        // SAFETY: the tensors are as long as the problem says and live until the read, which waits for the launch.
        unsafe { attention.launch(plan, &self.set(0), StreamHandle::DEFAULT)? };
        self.judge(plan)
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
    pub(super) fn judge(&self, plan: &Plan) -> Result<Check, Error> {
        let (problem, accumulation) = (plan.problem(), plan.kernel().row.acc);
        let output = &self.buffers[TensorRole::O as usize];
        let mut o = vec![0u16; problem.o_len()];
        output.read(0, &mut o)?;
        // Gaps between rows, and rows that belong to no sequence, stay as they are.
        let unused = self.inputs.unused_rows();
        let gaps = problem.o_len() - problem.elements(TensorRole::O)
            + unused * problem.head_dim_v() as usize * problem.sizes().heads_q as usize;
        let nan = nans(problem.dtype(), &o);
        let mut nan = nan.saturating_sub(gaps);
        let lse = match &self.lse {
            Some(buffer) => {
                let mut lse = vec![0f32; problem.lse_len()];
                buffer.read(0, &mut lse)?;
                let unused = unused * problem.sizes().heads_q as usize;
                nan += lse.iter().filter(|lse| lse.is_nan()).count().saturating_sub(unused);
                Some(lse)
            }
            None => None,
        };
        Ok(Check { nan, max_error: self.inputs.max_share(problem, accumulation, &o, lse.as_deref())? })
    }
}

/// All plans work on the same tensors, so these must be of one problem, but for how they take it.
pub(super) fn check_problems<'a>(
    problem: &Problem,
    plans: impl Iterator<Item = &'a Plan>,
) -> Result<(), Error> {
    for plan in plans {
        for role in TensorRole::ALL {
            let (expected, got) = (problem.len(role), plan.problem().len(role));
            if expected != got {
                return Err(Error::WrongLength { tensor: role.name(), expected, got });
            }
        }
        for operand in Operand::ALL {
            let [expected, got] =
                [problem, plan.problem()].map(|problem| problem.operand_len(operand).unwrap_or(0));
            if expected != got {
                return Err(Error::WrongLength { tensor: operand.name(), expected, got });
            }
        }
        if problem.has_lengths() != plan.problem().has_lengths() {
            let reason = "plans with and without lengths cannot be measured against each other";
            return Err(Error::Lengths { reason });
        }
    }
    Ok(())
}

/// Standard normal inputs, made of one pattern that starts elsewhere for each tensor; the same on every machine without a secret.
struct Inputs {
    workload: Workload,
    pattern: Arc<Vec<u16>>,
    secret: Option<u64>,
    /// Where in the pattern Q begins.
    start: Cell<usize>,
    /// Judges of rows of O and LSE on these inputs, by `[batch, head, row]` and how a kernel accumulates: the same for every plan.
    rows: RefCell<BTreeMap<([usize; 3], Accumulation), Oracle>>,
}

/// The seed of the usual pattern.
const PATTERN_SEED: u64 = 1;

/// One head of 2²⁰ elements of a dtype; the usual one is made once.
fn pattern(dtype: Dtype, secret: Option<u64>) -> Result<Arc<Vec<u16>>, Error> {
    static PATTERNS: [OnceLock<Arc<Vec<u16>>>; 2] = [const { OnceLock::new() }; 2];
    let sizes = Sizes { batch: 1, heads_q: 1, heads_kv: 1, seqlen_q: 1 << 14, seqlen_k: 1, head_dim: 64 };
    let problem = Problem::new(sizes, dtype)?;
    let make = |seed| {
        let [mut pattern, _, _] = random_input::qkv(&problem, InputKind::Random, seed);
        pattern.truncate(PATTERN_LEN);
        Arc::new(pattern)
    };
    Ok(match secret {
        Some(secret) => make(secret),
        None => PATTERNS[dtype as usize].get_or_init(|| make(PATTERN_SEED)).clone(),
    })
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
    fn new(workload: Workload, secret: Option<u64>) -> Result<Inputs, Error> {
        let pattern = pattern(workload.problem().dtype(), secret)?;
        let (start, rows) = (Cell::new(0), RefCell::default());
        Ok(Inputs { workload, pattern, secret, start, rows })
    }

    /// Rows of O that belong to no sequence.
    fn unused_rows(&self) -> usize {
        let Extent { batch, rows, .. } = self.workload.problem().extent(TensorRole::O);
        let used: u32 = self.workload.used_rows(TensorRole::O).iter().sum();
        (batch * rows - used) as usize
    }

    /// Has Q begin elsewhere in the pattern.
    fn restart(&self, start: usize) {
        self.start.set(start);
        self.rows.borrow_mut().clear();
    }

    /// Where in the pattern element `index` of a tensor lies.
    fn at(&self, role: TensorRole, index: usize) -> usize {
        at_pattern(role, index, self.start.get())
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

    /// The largest error in the sampled rows, as a share of what is allowed: for O the most that is allowed in any of them, as the judge
    /// of a whole problem has it.
    fn max_share(
        &self,
        problem: &Problem,
        accumulation: Accumulation,
        o: &[u16],
        lse: Option<&[f32]>,
    ) -> Result<f64, Error> {
        let (head_dim, dtype) = (problem.head_dim_v() as usize, problem.dtype());
        let (mut error, mut allowed, mut share) = (0.0_f64, 0.0_f64, 0.0_f64);
        let rows = self.sampled_rows(problem);
        let sampled: Vec<[usize; 3]> = rows.iter().map(|row| row_coordinates(problem, *row)).collect();
        self.prepare(problem, accumulation, &sampled)?;
        let judges = self.rows.borrow();
        for (row, at) in rows.into_iter().zip(sampled) {
            let start = row_start(problem, TensorRole::O, at);
            let (o, lse) = (&o[start..start + head_dim], lse.map(|lse| lse[row]));
            if self.drawn().sees_nothing(problem, at) {
                let is_right = o.iter().all(|&o| widen(dtype, o) == 0.0)
                    && lse.is_none_or(|lse| lse == f32::NEG_INFINITY);
                share = share.max(if is_right { 0.0 } else { f64::INFINITY });
                continue;
            }
            let Some(oracle) = judges.get(&(at, accumulation)) else { continue };
            let verdict = oracle.judge(accumulation, &Output::new(o.to_vec(), lse.map(|lse| vec![lse])))?;
            error = error.max(verdict.max_error);
            allowed = allowed.max(verdict.allowed);
            let wrong = verdict.not_finite_mismatches > 0
                || verdict.lse.is_some_and(|lse| lse.not_finite_mismatches > 0);
            share =
                share.max(if wrong { f64::INFINITY } else { verdict.lse.map_or(0.0, |lse| lse.worst_ratio) });
        }
        Ok(if error > 0.0 { share.max(error / allowed) } else { share })
    }

    fn drawn(&self) -> Drawn<'_> {
        Drawn { workload: &self.workload, pattern: &self.pattern, start: self.start.get() }
    }

    /// Makes the judges of rows that have none yet, beside each other: of a kernel that nobody trusts hundreds are judged after every
    /// replay, and a gate compares kernels in thousands of replays.
    fn prepare(
        &self,
        problem: &Problem,
        accumulation: Accumulation,
        sampled: &[[usize; 3]],
    ) -> Result<(), Error> {
        let (mut judges, drawn) = (self.rows.borrow_mut(), self.drawn());
        let is_unknown =
            |at: &[usize; 3]| !drawn.sees_nothing(problem, *at) && !judges.contains_key(&(*at, accumulation));
        let unknown: Vec<[usize; 3]> = sampled.iter().copied().filter(is_unknown).collect();
        let judge = |at: [usize; 3]| Ok((at, drawn.judge_of(problem, at, accumulation)?));
        let made = unknown.into_par_iter().map(judge).collect::<Result<Vec<_>, Error>>()?;
        let made = made.into_iter().filter_map(|(at, judge)| Some(((at, accumulation), judge?)));
        judges.extend(made);
        Ok(())
    }

    /// Indices of the rows that are judged: a few, the first and the last among them; with a secret random ones of every head.
    fn sampled_rows(&self, problem: &Problem) -> Vec<usize> {
        let (total, Extent { batch, heads, rows, .. }) = (problem.lse_len(), problem.extent(TensorRole::Q));
        let Some(secret) = self.secret else {
            let share = |sample: usize| (total - 1) as f64 * sample as f64 / (ROWS_TRUSTED - 1) as f64;
            return (0..ROWS_TRUSTED).map(|sample| share(sample) as usize).collect();
        };
        let mut random = Random::new(secret ^ self.start.get() as u64);
        let heads = batch as usize * heads as usize;
        let [least, most] = ROWS_SECRET;
        let count = heads.clamp(least, most);
        let of_head = |sample: usize| if heads <= most { sample % heads } else { sample * heads / count };
        (0..count).map(|sample| of_head(sample) * rows as usize + random.below(rows) as usize).collect()
    }
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

    /// A right output of a problem, with or without a secret.
    fn right(problem: &Problem, secret: Option<u64>) -> (Inputs, Vec<u16>, Vec<f32>) {
        let inputs = Inputs::new(Workload::of(problem), secret).expect("valid");
        let [q, k, v, _] = TensorRole::ALL.map(|role| {
            (0..problem.len(role)).map(|i| inputs.pattern[inputs.at(role, i)]).collect::<Vec<u16>>()
        });
        let right = reference(problem, &q, &k, &v, &|_, _| {});
        let o = right.o.iter().map(|&o| narrow(problem.dtype(), o)).collect();
        (inputs, o, right.lse.iter().map(|&lse| lse as f32).collect())
    }

    #[test]
    fn a_right_output_passes_and_a_wrong_or_nan_one_does_not() {
        for (dtype, secret) in
            [(Dtype::F16, None), (Dtype::Bf16, None), (Dtype::F16, Some(7)), (Dtype::Bf16, Some(8))]
        {
            let problem = problem(dtype);
            let (inputs, mut o, mut lse) = right(&problem, secret);
            let share = |o: &[u16], lse: &[f32]| {
                inputs.max_share(&problem, Accumulation::F32, o, Some(lse)).expect("as long as it should be")
            };
            assert!(share(&o, &lse) < 0.9, "{}", share(&o, &lse));
            // Five queries and three keys: the first rows of each head see none, their LSE is −∞.
            assert_eq!(lse[0], f32::NEG_INFINITY);
            let row = inputs.sampled_rows(&problem).into_iter().max().expect("rows");
            let at = row_start(&problem, TensorRole::O, row_coordinates(&problem, row));
            let kept = o[at];
            for (wrong, least) in [(narrow(dtype, widen(dtype, kept) + 0.05), ERROR_MAX), (0xffff, f64::MAX)]
            {
                o[at] = wrong;
                assert!(share(&o, &lse) > least, "{wrong:x}");
            }
            o[at] = kept;
            for wrong in [lse[row] + 0.001, f32::NAN] {
                let kept = std::mem::replace(&mut lse[row], wrong);
                assert!(share(&o, &lse) > ERROR_MAX, "{wrong}");
                lse[row] = kept;
            }
        }
    }

    #[test]
    fn a_secret_gives_other_inputs_and_rows_of_every_head() {
        let problem = problem(Dtype::F16);
        let [usual, one, other] = [None, Some(1 << 40), Some(2)]
            .map(|secret| Inputs::new(Workload::of(&problem), secret).expect("valid"));
        assert!(usual.pattern != one.pattern && one.pattern != other.pattern);
        assert_ne!(one.sampled_rows(&problem), other.sampled_rows(&problem));
        let heads = |inputs: &Inputs| {
            let rows = inputs.sampled_rows(&problem).into_iter();
            rows.map(|row| row / 5).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!((heads(&one), heads(&other)), (8, 8), "2 batch entries of 4 heads");
        let before = one.sampled_rows(&problem);
        one.restart(17);
        assert_ne!(one.sampled_rows(&problem), before, "other inputs are judged in other rows");
    }

    #[test]
    fn inputs_are_standard_normal_and_differ_between_tensors() {
        let inputs = Inputs::new(Workload::of(&problem(Dtype::F16)), None).expect("valid");
        let value = |role, index| widen(Dtype::F16, inputs.pattern[inputs.at(role, index)]);
        let values: Vec<f64> = (0..PATTERN_LEN).map(|i| value(TensorRole::Q, i)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01, "{mean} {variance}");
        assert_ne!(value(TensorRole::Q, 0), value(TensorRole::K, 0));
        assert_eq!(value(TensorRole::V, 7), value(TensorRole::V, 7 + PATTERN_LEN));
    }
}
