//! Gradients in float64, pair by pair, from the definitions: P = exp(S − L), dP = (dO·Vᵀ)∘Z, dS = P∘(dP − δ)∘S′, and
//! dV = (P∘Z)ᵀ·dO with what dropout makes of weights; the gradient of a bias is dS. And what a plain implementation
//! in float32 makes of them that rounds what it multiplies, O among it, to the problem's dtype, as kernels do.
//!
//! Nothing of it is summed in an order of blocks, and nothing but the problem is shared with the kernels.

use super::{Ragged, Row, Sequence};
use crate::reference::Progress;
use crate::tolerance::unit_roundoff;
use ferroflash::backward::GradientInputs;
use ferroflash::problem::{Extent, KeySequences, Operand, Problem, TensorRole};
use ferroflash::rounding::{narrow, widen};
use ferroflash::{Backward, ElementStrides};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Gradients of Q, K and V, each contiguous `[batch, heads, rows, width]` as its tensor's extent. Rows that belong to no sequence are NaN:
/// nobody writes them.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientsOf<T> {
    /// dQ.
    pub q: Vec<T>,
    /// dK.
    pub k: Vec<T>,
    /// dV.
    pub v: Vec<T>,
    /// The gradient of the sinks, one a query head; empty where there are none.
    pub sinks: Vec<T>,
    /// The gradient of the bias, which lies as the bias does; empty where there is none.
    pub bias: Vec<T>,
    /// By how much an element of each may be off whatever a plain implementation happens to come to: twice what rounding O and dS puts it
    /// off, each element by itself, and what float32 sums of dO·V and δ do, whose difference dS is; of sinks also the weights that float32 has
    /// no normal numbers for. Few rows may round well by chance, and dS may be 0 where its terms are not. 0 for dV, which has no part of it. The
    /// last ones are the sinks' and the bias'.
    pub rounding: [f64; 5],
}

impl<T> GradientsOf<T> {
    /// Those of Q, K, V, the sinks and the bias.
    pub fn all(&self) -> [&[T]; 5] {
        [&self.q, &self.k, &self.v, &self.sinks, &self.bias]
    }
}

/// The numbers that gradients are computed in, and what of them is rounded.
trait Arithmetic: Copy + Send + Sync {
    /// Rounds a sum or an element to what a variable holds.
    fn held(&self, value: f64) -> f64;
    /// Rounds what is multiplied, or returned, to the problem's dtype.
    fn rounded(&self, value: f64) -> f64;
}

#[derive(Clone, Copy)]
struct Exact;

impl Arithmetic for Exact {
    fn held(&self, value: f64) -> f64 {
        value
    }

    fn rounded(&self, value: f64) -> f64 {
        value
    }
}

/// float32, and 16 bits of a problem.
#[derive(Clone, Copy)]
struct Plain<'a>(&'a Problem);

impl Arithmetic for Plain<'_> {
    fn held(&self, value: f64) -> f64 {
        f64::from(value as f32)
    }

    fn rounded(&self, value: f64) -> f64 {
        widen(self.0.dtype(), narrow(self.0.dtype(), value))
    }
}

/// Gradients in float64. O and LSE of the inputs are not read: what they should be is computed.
///
/// # Panics
/// If a slice is shorter than the problem needs: check lengths first.
pub fn gradients(
    backward: &Backward,
    inputs: &GradientInputs<'_>,
    progress: Progress<'_>,
) -> GradientsOf<f64> {
    of(backward, inputs, Exact, progress)
}

/// Gradients as a plain implementation computes them.
///
/// # Panics
/// As [`gradients`].
pub fn plain_gradients(backward: &Backward, inputs: &GradientInputs<'_>) -> GradientsOf<f32> {
    let of = of(backward, inputs, Plain(backward.problem()), &|_, _| ());
    let narrowed = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
    GradientsOf {
        q: narrowed(of.q),
        k: narrowed(of.k),
        v: narrowed(of.v),
        sinks: narrowed(of.sinks),
        bias: narrowed(of.bias),
        rounding: of.rounding,
    }
}

/// Where a row of the gradient of a tensor starts in its buffer.
pub fn gradient_start(backward: &Backward, role: TensorRole, [batch, head, row]: [usize; 3]) -> usize {
    let ElementStrides { batch: of_batch, head: of_head, row: of_row, .. } = backward.strides(role);
    // Checked with the problem: none is negative, and the sum is below the buffer's length.
    batch * of_batch as usize + head * of_head as usize + row * of_row as usize
}

fn of(
    backward: &Backward,
    inputs: &GradientInputs<'_>,
    arithmetic: impl Arithmetic,
    progress: Progress<'_>,
) -> GradientsOf<f64> {
    let problem = backward.problem();
    let ragged = Ragged::new(problem, &inputs.tensors);
    let heads_kv = problem.sizes().heads_kv as usize;
    let heads: Vec<(Sequence, usize)> = (0..problem.sizes().batch as usize)
        .map(|batch| ragged.sequence(batch))
        .flat_map(|sequence| (0..heads_kv).map(move |head| (sequence, head)))
        .collect();
    let (done, total) = (AtomicUsize::new(0), heads.len());
    let parts: Vec<Part> = heads
        .into_par_iter()
        .map(|(sequence, head)| {
            let part = Part::of(&ragged, backward, inputs, (sequence, head), arithmetic);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
            part
        })
        .collect();
    let unwritten = |role| {
        let Extent { batch, heads, rows, width } = problem.extent(role);
        vec![f64::NAN; [batch, heads, rows, width].into_iter().map(|n| n as usize).product()]
    };
    let mut all = GradientsOf {
        q: unwritten(TensorRole::Q),
        k: unwritten(TensorRole::K),
        v: unwritten(TensorRole::V),
        sinks: vec![0.0; if problem.has_sinks() { problem.sizes().heads_q as usize } else { 0 }],
        bias: vec![0.0; problem.operand_len(Operand::Bias).unwrap_or(0)],
        rounding: [0.0; 5],
    };
    let mut of_bias = Rounding::new(all.bias.len());
    for part in &parts {
        let first = part.head_kv * part.group;
        for (sink, of_part) in all.sinks.iter_mut().skip(first).zip(&part.sinks) {
            *sink = arithmetic.held(*sink + of_part);
        }
        for (all, of_part) in all.rounding.iter_mut().zip(part.rounding) {
            *all = all.max(of_part);
        }
        part.put_bias(problem, (&mut all.bias, &mut of_bias), arithmetic);
        part.put(problem, TensorRole::Q, &part.q, &mut all.q);
        part.put(problem, TensorRole::K, &part.k, &mut all.k);
        part.put(problem, TensorRole::V, &part.v, &mut all.v);
    }
    all.bias.iter_mut().for_each(|of| *of = arithmetic.rounded(*of));
    all.rounding[4] = of_bias.largest(unit_roundoff(problem.dtype()));
    all
}

/// The gradients of one KV head of one sequence, and of its query heads.
struct Part {
    sequence: Sequence,
    head_kv: usize,
    group: usize,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// Of the sink of each query head.
    sinks: Vec<f64>,
    /// Where the problem has a bias, dS and what is rounded of it, `[group, seqlen_q, seqlen_k]`.
    ds: Vec<(f64, Terms)>,
    rounding: [f64; 5],
}

impl Part {
    fn of(
        ragged: &Ragged<'_>,
        backward: &Backward,
        inputs: &GradientInputs<'_>,
        (sequence, head_kv): (Sequence, usize),
        arithmetic: impl Arithmetic,
    ) -> Part {
        let problem = backward.problem();
        let group = problem.group() as usize;
        let (width, width_v) = (problem.sizes().head_dim as usize, problem.head_dim_v() as usize);
        let (scale, dtype) = (f64::from(problem.scale()), problem.dtype());
        let kept_factor = ragged.kept_factor();
        // Keys behind a sequence's length have rows as well, unless sequences are packed.
        let rows = match problem.keys() {
            KeySequences::Packed { .. } => sequence.seqlen_k,
            _ => problem.extent(TensorRole::K).rows as usize,
        };
        let of_head = |head: usize| Row { sequence, head, query: 0 };
        let first = of_head(head_kv * group);
        let load = |width: usize, of: &dyn Fn(usize) -> Vec<f64>| -> Vec<f64> {
            let rows = (0..sequence.seqlen_k).flat_map(of);
            let all: Vec<f64> = rows.collect();
            assert_eq!(all.len(), sequence.seqlen_k * width, "whole rows");
            all
        };
        let keys = load(width, &|key| ragged.key(first, key));
        let values = load(width_v, &|key| ragged.value(first, key));
        let mut part = Part {
            sequence,
            head_kv,
            group,
            q: vec![0.0; group * sequence.seqlen_q * width],
            k: vec![0.0; rows * width],
            v: vec![0.0; rows * width_v],
            sinks: vec![0.0; group],
            ds: Vec::new(),
            rounding: [0.0; 5],
        };
        if problem.operand_len(Operand::Bias).is_some() {
            let nothing = (0.0, Terms { float: 0.0, shared: 0.0, own: 0.0 });
            part.ds = vec![nothing; group * sequence.seqlen_q * sequence.seqlen_k];
        }
        let mut rounding_k = Rounding::new(rows * width);
        // float32's, for sums of sixteen products at a time and a few steps more, and the dtype's.
        let float = f64::exp2(-22.0) * (width_v as f64 / 16.0 + 4.0);
        let unit = unit_roundoff(dtype);
        let sizes = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum::<f64>();
        for (member, query) in
            (0..group).flat_map(|member| (0..sequence.seqlen_q).map(move |query| (member, query)))
        {
            let row = Row { query, ..of_head(head_kv * group + member) };
            let of_row = (member * sequence.seqlen_q + query) * sequence.seqlen_k;
            let at = ragged.o_at(row);
            let q = ragged.query(row);
            let start = gradient_start(backward, TensorRole::O, at);
            let d_o: Vec<f64> = (start..start + width_v).map(|at| widen(dtype, inputs.d_o[at])).collect();
            let visible: Vec<usize> = (0..sequence.seqlen_k).filter(|&key| ragged.sees(row, key)).collect();
            let dot = |a: &[f64], b: &[f64]| {
                a.iter().zip(b).fold(0.0, |sum, (a, b)| arithmetic.held(sum + arithmetic.held(a * b)))
            };
            let key_row = |key: usize| &keys[key * width..][..width];
            let value_row = |key: usize| &values[key * width_v..][..width_v];
            let products: Vec<f64> =
                visible.iter().map(|&key| arithmetic.held(scale * dot(&q, key_row(key)))).collect();
            let scores: Vec<f64> = visible
                .iter()
                .zip(&products)
                .map(|(&key, &product)| arithmetic.held(ragged.score(row, key, product)))
                .collect();
            let sink = ragged.sink(row.head);
            let most = super::base(scores.iter().copied().fold(sink, f64::max));
            let weights: Vec<f64> =
                scores.iter().map(|score| arithmetic.held((score - most).exp())).collect();
            let of_sink = arithmetic.held((sink - most).exp());
            let sum = weights.iter().fold(of_sink, |sum, weight| arithmetic.held(sum + weight));
            // Scores of −∞ alone: P is 0.
            let p: Vec<f64> = weights
                .iter()
                .map(|weight| if sum == 0.0 { 0.0 } else { arithmetic.held(weight / sum) })
                .collect();
            let kept: Vec<f64> = visible.iter().map(|&key| ragged.kept(row, key)).collect();
            let mut o = vec![0.0; width_v];
            for ((&key, &p), kept) in visible.iter().zip(&p).zip(&kept) {
                add(&mut o, arithmetic.rounded(p) * kept, value_row(key), arithmetic);
            }
            o.iter_mut().for_each(|o| *o = arithmetic.rounded(arithmetic.held(*o * kept_factor)));
            let d_lse = inputs.d_lse.map_or(0.0, |d_lse| d_lse[ragged.lse_index(row)].into());
            let delta = arithmetic.held(dot(&d_o, &o) - d_lse);
            let mut rounding_q = Rounding::new(width);
            let of_o = d_o.iter().zip(&o).map(|(d_o, o)| (d_o * o).powi(2)).sum::<f64>().sqrt();
            if sink > f64::NEG_INFINITY {
                let p = arithmetic.held(of_sink / sum);
                part.sinks[member] = arithmetic.held(part.sinks[member] - arithmetic.held(p * delta));
                let of_float = float * (sizes(&d_o, &o) + d_lse.abs());
                // The device's exponentials are 0 where they are below float32's normal numbers.
                let of_underflow = f64::from(f32::MIN_POSITIVE) * delta.abs();
                let found = p * (of_float + 2.0 * unit * of_o) + of_underflow;
                part.rounding[3] += if found.is_finite() { found } else { 0.0 };
            }
            let derivatives: Vec<f64> = products
                .iter()
                .map(|&product| arithmetic.held(problem.score().derivative(product)))
                .collect();
            for (((&key, &p), &derivative), kept) in visible.iter().zip(&p).zip(&derivatives).zip(&kept) {
                let (v, k) = (value_row(key), key_row(key));
                let kept = kept * kept_factor;
                let of_p = dot(&d_o, v) * kept - delta;
                // What float32 makes of a derivative that is near 0.
                let of_derivative = if derivative == 1.0 { 0.0 } else { p * of_p.abs() * FLOAT_DERIVATIVE };
                let of_ds = Terms {
                    float: p * derivative * float * (sizes(&d_o, v) * kept + sizes(&d_o, &o)) + of_derivative,
                    shared: p * derivative * of_o,
                    own: p * derivative * of_p,
                };
                rounding_q.add(0, of_ds, k);
                // Every query's δ is rounded by itself.
                let own = of_ds.own.hypot(of_ds.shared);
                rounding_k.add(key * width, Terms { shared: 0.0, own, ..of_ds }, &q);
                if let Some(ds) = part.ds.get_mut(of_row + key) {
                    // Nothing but O is rounded of what is summed.
                    ds.1 = Terms { shared: 0.0, own: of_ds.shared, ..of_ds };
                }
            }
            part.rounding[0] = (scale * rounding_q.largest(unit)).max(part.rounding[0]);
            let d_q = &mut part.q[(member * sequence.seqlen_q + query) * width..][..width];
            for (((&key, &p), &derivative), kept) in visible.iter().zip(&p).zip(&derivatives).zip(&kept) {
                let dp = arithmetic.held(dot(&d_o, value_row(key)) * arithmetic.held(kept * kept_factor));
                let of_score = arithmetic.held(p * arithmetic.held(dp - delta));
                let ds = arithmetic.held(of_score * derivative);
                if let Some(of_pair) = part.ds.get_mut(of_row + key) {
                    of_pair.0 = ds;
                }
                let ds = arithmetic.rounded(ds);
                add(d_q, ds, key_row(key), arithmetic);
                add(&mut part.k[key * width..][..width], ds, &q, arithmetic);
                add(&mut part.v[key * width_v..][..width_v], arithmetic.rounded(p) * kept, &d_o, arithmetic);
            }
        }
        let scaled = |values: &mut Vec<f64>, factor: f64| {
            values.iter_mut().for_each(|value| *value = arithmetic.rounded(arithmetic.held(*value * factor)));
        };
        part.rounding[1] = scale * rounding_k.largest(unit);
        scaled(&mut part.q, scale);
        scaled(&mut part.k, scale);
        scaled(&mut part.v, kept_factor);
        part
    }

    /// Adds dS to the gradient of the bias, and to what is rounded of it.
    fn put_bias(
        &self,
        problem: &Problem,
        (bias, rounding): (&mut [f64], &mut Rounding),
        arithmetic: impl Arithmetic,
    ) {
        let Sequence { batch, seqlen_q, seqlen_k, .. } = self.sequence;
        let [of_batch, of_head, of_query] = problem.score_strides().map(|stride| stride as usize);
        for (row, ds) in self.ds.chunks_exact(seqlen_k.max(1)).enumerate() {
            let (head, query) = (self.head_kv * self.group + row / seqlen_q, row % seqlen_q);
            let start = batch * of_batch + head * of_head + query * of_query;
            for (at, &(ds, terms)) in (start..).zip(ds) {
                bias[at] = arithmetic.held(bias[at] + ds);
                rounding.add(at, terms, &[1.0]);
            }
        }
    }

    /// Copies the rows of a gradient to their places in the whole.
    fn put(&self, problem: &Problem, role: TensorRole, rows: &[f64], whole: &mut [f64]) {
        let Extent { heads, rows: of_head, width, .. } = problem.extent(role);
        let (of_head, width) = (of_head as usize, width as usize);
        let (batch, first, head, members) = match role {
            TensorRole::Q | TensorRole::O => {
                (self.sequence.q_at.0, self.sequence.q_at.1, self.head_kv * self.group, self.group)
            }
            TensorRole::K | TensorRole::V => match problem.keys() {
                KeySequences::Packed { .. } => (0, self.sequence.k_start, self.head_kv, 1),
                _ => (self.sequence.batch, 0, self.head_kv, 1),
            },
        };
        for (member, rows) in rows.chunks_exact((rows.len() / members).max(1)).enumerate() {
            let start = ((batch * heads as usize + head + member) * of_head + first) * width;
            whole[start..start + rows.len()].copy_from_slice(rows);
        }
    }
}

/// How far float32 puts 1 − tanh² off, whose tanh is off by 2^−22.
const FLOAT_DERIVATIVE: f64 = 1.0 / (1 << 20) as f64;

/// What is rounded of an element of dS.
#[derive(Clone, Copy)]
struct Terms {
    /// How far float32 sums put it off.
    float: f64,
    /// What O's rounding is a share of, through δ: the same for all keys of a query.
    shared: f64,
    /// What the dtype's rounding is a share of, of every element by itself.
    own: f64,
}

/// What roundings put elements of a gradient off: sums of sizes, sums with signs, and sums of squares of what is independent.
struct Rounding {
    float: Vec<f64>,
    shared: Vec<f64>,
    squares: Vec<f64>,
}

impl Rounding {
    fn new(elements: usize) -> Rounding {
        let zeros = || vec![0.0; elements];
        Rounding { float: zeros(), shared: zeros(), squares: zeros() }
    }

    /// Takes in an element of dS that is multiplied with these values and added from element `start` on.
    fn add(&mut self, start: usize, of_ds: Terms, values: &[f64]) {
        for (at, value) in (start..).zip(values) {
            self.float[at] += of_ds.float * value.abs();
            self.shared[at] += of_ds.shared * value;
            self.squares[at] += (of_ds.own * value).powi(2);
        }
    }

    /// The largest of those that are numbers, with twice the unit roundoff `unit` of the dtype.
    fn largest(&self, unit: f64) -> f64 {
        let of = |at: usize| self.float[at] + 2.0 * unit * (self.shared[at].abs() + self.squares[at].sqrt());
        (0..self.float.len()).map(of).filter(|value| value.is_finite()).fold(0.0, f64::max)
    }
}

/// `sum += factor · values`.
fn add(sum: &mut [f64], factor: f64, values: &[f64], arithmetic: impl Arithmetic) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum = arithmetic.held(*sum + arithmetic.held(factor * value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_input::Random;
    use crate::reference::{reference_of, row_start};
    use crate::tolerance::backward::row_coordinates;
    use crate::workload::Workload;
    use ferroflash::attention::{HostOperand, OperandValues};
    use ferroflash::problem::{BiasShape, Score};
    use ferroflash::{Dtype, Mask, Sizes};

    /// Exact in float16, as are all elements drawn here and their neighbours at this distance.
    const STEP: f64 = 1.0 / 128.0;

    /// ∑ dO∘O + ∑ dL·L, whose gradients the backward pass computes.
    fn loss(workload: &Workload, qkv: &[Vec<u16>; 3], d_o: &[u16], d_lse: &[f32]) -> f64 {
        let problem = workload.problem();
        let right = reference_of(problem, &workload.tensors(qkv), &|_, _| ());
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        let of_o = right.o.iter().zip(d_o).map(|(o, &d_o)| finite(*o) * widen(Dtype::F16, d_o));
        let of_lse = right.lse.iter().zip(d_lse).map(|(lse, &d_lse)| finite(*lse) * f64::from(d_lse));
        of_o.sum::<f64>() + of_lse.sum::<f64>()
    }

    fn check_differences(problem: Problem, seqlens: [Vec<u32>; 2]) {
        let workload = Workload::with_sequences(&problem, seqlens, 5);
        let backward = Backward::new(workload.problem()).expect("it has kernels");
        let mut random = Random::new(11);
        let mut drawn = |length: usize| -> Vec<u16> {
            (0..length).map(|_| narrow(Dtype::F16, (f64::from(random.below(65)) - 32.0) / 32.0)).collect()
        };
        let qkv = [problem.q_len(), problem.k_len(), problem.v_len()].map(&mut drawn);
        let d_o = drawn(problem.o_len());
        let d_lse: Vec<f32> =
            drawn(problem.lse_len()).into_iter().map(|bits| widen(Dtype::F16, bits) as f32).collect();
        let inputs = GradientInputs::new(workload.tensors(&qkv), &[], &[], &d_o).with_d_lse(Some(&d_lse));
        let right = gradients(&backward, &inputs, &|_, _| ());
        check_sinks(&workload, &qkv, (&d_o, &d_lse), &right.sinks);
        check_bias(&workload, &qkv, (&d_o, &d_lse), &right.bias);
        let mut largest = 0.0_f64;
        for (tensor, gradient) in right.all().into_iter().take(3).enumerate() {
            let role = TensorRole::ALL[tensor];
            let width = problem.extent(role).width as usize;
            let places: Vec<usize> = row_coordinates(&backward, role)
                .flat_map(|row| {
                    let start = row_start(&problem, role, row);
                    start..start + width
                })
                .collect();
            for (&at, &expected) in places.iter().zip(gradient).step_by(5) {
                let moved = |steps: f64| {
                    let mut qkv = qkv.clone();
                    let value = widen(Dtype::F16, qkv[tensor][at]) + steps * STEP;
                    qkv[tensor][at] = narrow(Dtype::F16, value);
                    loss(&workload, &qkv, &d_o, &d_lse)
                };
                // The fourth-order central difference.
                let near = moved(1.0) - moved(-1.0);
                let difference = (8.0 * near - (moved(2.0) - moved(-2.0))) / (12.0 * STEP);
                if expected.is_nan() {
                    assert!(
                        difference.abs() < 1e-9,
                        "tensor {tensor} element {at} is nobody's: {difference}"
                    );
                    continue;
                }
                largest = largest.max(expected.abs());
                assert!(
                    (difference - expected).abs() < 1e-6,
                    "{problem:?}: tensor {tensor} element {at}: {difference} differs from {expected}"
                );
            }
        }
        assert!(largest > 0.05, "gradients of some size");
    }

    /// The gradient of each sink against the loss with that sink moved.
    fn check_sinks(
        workload: &Workload,
        qkv: &[Vec<u16>; 3],
        (d_o, d_lse): (&[u16], &[f32]),
        gradient: &[f64],
    ) {
        let sinks = match workload.tensors(qkv).operand(Operand::Sinks) {
            Some(HostOperand::F32(sinks)) => sinks.to_vec(),
            _ => Vec::new(),
        };
        assert_eq!(gradient.len(), sinks.len());
        for (head, &expected) in gradient.iter().enumerate() {
            let moved = |steps: f32| {
                let mut sinks = sinks.clone();
                sinks[head] += steps * STEP as f32;
                let operand = (Operand::Sinks, OperandValues::F32(sinks));
                loss(&workload.clone().with_operand(operand), qkv, d_o, d_lse)
            };
            let near = moved(1.0) - moved(-1.0);
            let difference = (8.0 * near - (moved(2.0) - moved(-2.0))) / (12.0 * STEP);
            // The sinks' own float32 is what is left.
            assert!(
                (difference - expected).abs() < 1e-4,
                "sink {head}: {difference} differs from {expected}"
            );
        }
        assert!(gradient.is_empty() || gradient.iter().any(|of| of.abs() > 0.02), "of some size");
    }

    /// The gradient of each element of a bias against the loss with that element moved.
    fn check_bias(
        workload: &Workload,
        qkv: &[Vec<u16>; 3],
        (d_o, d_lse): (&[u16], &[f32]),
        gradient: &[f64],
    ) {
        let bias = match workload.tensors(qkv).operand(Operand::Bias) {
            Some(HostOperand::Bits(bias)) => bias.to_vec(),
            _ => Vec::new(),
        };
        assert_eq!(gradient.len(), bias.len());
        for (at, &expected) in gradient.iter().enumerate() {
            let moved = |steps: f64| {
                let mut bias = bias.clone();
                bias[at] = narrow(Dtype::F16, widen(Dtype::F16, bias[at]) + steps * STEP);
                let operand = (Operand::Bias, OperandValues::Bits(bias));
                loss(&workload.clone().with_operand(operand), qkv, d_o, d_lse)
            };
            let near = moved(1.0) - moved(-1.0);
            let difference = (8.0 * near - (moved(2.0) - moved(-2.0))) / (12.0 * STEP);
            assert!(
                (difference - expected).abs() < 1e-6,
                "element {at} of the bias: {difference} differs from {expected}"
            );
        }
        assert!(gradient.is_empty() || gradient.iter().any(|of| of.abs() > 0.02), "of some size");
    }

    fn sizes(heads: (u32, u32), seqlens: (u32, u32), head_dim: u32) -> Sizes {
        Sizes {
            batch: 2,
            heads_q: heads.0,
            heads_kv: heads.1,
            seqlen_q: seqlens.0,
            seqlen_k: seqlens.1,
            head_dim,
        }
    }

    fn problem(heads: (u32, u32), seqlens: (u32, u32)) -> Problem {
        Problem::new(sizes(heads, seqlens, 8), Dtype::F16).expect("valid")
    }

    fn all(problem: &Problem) -> [Vec<u32>; 2] {
        [problem.sizes().seqlen_q, problem.sizes().seqlen_k].map(|length| vec![length; 2])
    }

    #[test]
    fn gradients_are_what_finite_differences_say() {
        let masks = [
            Mask::FULL,
            Mask::CAUSAL,
            Mask::window(Some(2), Some(1)),
            Mask::window(Some(1), Some(0)).with_sink_tokens(2),
            Mask::CAUSAL.with_chunk(3),
            Mask::CAUSAL.with_prefix(2),
            Mask::CAUSAL.with_intervals(),
        ];
        for (i, mask) in masks.into_iter().enumerate() {
            let (heads, seqlens) = ([(1, 1), (3, 1), (4, 2)][i % 3], [(5, 7), (7, 4), (6, 6)][i % 3]);
            let problem = problem(heads, seqlens).with_mask(mask).expect("valid");
            check_differences(problem, all(&problem));
        }
    }

    #[test]
    fn gradients_of_scores_and_sinks_are_what_finite_differences_say() {
        let scores =
            [Score::Softcap(0.7), Score::Alibi { per_batch: true }, Score::Alibi { per_batch: false }];
        for (i, score) in scores.into_iter().enumerate() {
            let problem = problem([(2, 1), (3, 3), (4, 2)][i], (5, 6)).with_causal(i == 1);
            let problem = problem.with_score(score).expect("valid").with_sinks(i != 1);
            check_differences(problem, all(&problem));
        }
        // Rows that see nothing but the sink.
        let alone = problem((2, 2), (7, 3)).with_causal(true).with_sinks(true);
        check_differences(alone, all(&alone));
    }

    #[test]
    fn gradients_of_biases_and_under_trees_are_what_finite_differences_say() {
        for (i, queries) in [true, false].into_iter().enumerate() {
            for (j, (batch, heads)) in
                [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
            {
                let problem = problem([(2, 1), (3, 3), (4, 2)][(i + j) % 3], (5, 6)).with_causal(j == 1);
                let shape = BiasShape { batch, heads, queries };
                let problem = problem.with_score(Score::Bias(shape)).expect("valid").with_sinks(j == 0);
                check_differences(problem, all(&problem));
            }
        }
        let shape = BiasShape { batch: false, heads: true, queries: true };
        let packed = problem((2, 1), (5, 6)).with_score(Score::Bias(shape)).expect("valid");
        let packed = packed.with_packed_queries(9).and_then(|of| of.with_packed_keys(8)).expect("valid");
        check_differences(packed, [vec![5, 3], vec![2, 6]]);
        let tree = problem((2, 1), (5, 6)).with_mask(Mask::CAUSAL.with_tree(4)).expect("valid");
        check_differences(tree, all(&tree));
    }

    #[test]
    fn a_sink_whose_weights_are_below_float32s_normal_numbers_may_have_no_gradient() {
        let problem = problem((1, 1), (3, 5)).with_sinks(true);
        let workload = Workload::with_sequences(&problem, all(&problem), 5);
        let workload = workload.with_operand((Operand::Sinks, OperandValues::F32(vec![-89.0])));
        let backward = Backward::new(workload.problem()).expect("it has kernels");
        let drawn = |length: usize| vec![narrow(Dtype::F16, 0.5); length];
        let (qkv, d_o) =
            ([problem.q_len(), problem.k_len(), problem.v_len()].map(drawn), drawn(problem.o_len()));
        let right =
            gradients(&backward, &GradientInputs::new(workload.tensors(&qkv), &[], &[], &d_o), &|_, _| ());
        let [gradient] = right.sinks[..] else { panic!("one sink") };
        assert!(gradient != 0.0 && gradient.abs() <= right.rounding[3], "{gradient}, {}", right.rounding[3]);
    }

    #[test]
    fn gradients_of_packed_sequences_and_lengths_are_what_finite_differences_say() {
        let widths =
            problem((2, 1), (5, 7)).with_head_dim_v(16).expect("valid").with_scale(0.7).expect("valid");
        check_differences(widths, all(&widths));
        let lengths = problem((2, 2), (4, 6)).with_causal(true).with_lengths(true);
        check_differences(lengths, [vec![4, 4], vec![6, 3]]);
        let packed = problem((2, 1), (5, 6)).with_packed_queries(9).expect("valid");
        let packed = packed.with_packed_keys(8).expect("valid").with_causal(true);
        check_differences(packed, [vec![5, 3], vec![2, 6]]);
    }
}
