//! Attention on the CPU as candidates of the stand-in compute it: honestly in blocks, or with a mistake.

use super::{Honest, Wrong, gapped};
use crate::inputs::Inputs;
use check::reference::{self, keys, reference_of, row_coordinates, row_start, visible_keys};
use ferroflash::attention::Output;
use ferroflash::rounding::{narrow, widen};
use ferroflash::{Dtype, HostTensors, Problem, TensorRole};
use kernels_gpu::row::Accumulation;

/// Products that an accumulator takes at a time.
const MMA_DEPTH: usize = 16;

/// Which keys a mistaken candidate sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Every second, from the first on.
    Even,
    /// Every second, from the second on.
    Odd,
    /// Every fourth.
    Quarter,
    /// The first half.
    FirstHalf,
    /// All but the last.
    ButLast,
    /// Those of whole blocks of 16, where there is one.
    WholeBlocks,
    /// Those before a key.
    Below(usize),
    /// Those from a key on.
    From(usize),
    /// All but a block of 32 in the middle.
    Middle,
    /// Those whose P is at least 0.03 of the largest.
    LargeP,
    /// One more than the mask shows.
    OneTooMany,
    /// All of K, whatever the lengths say.
    LengthsIgnored,
    /// Those of the next KV head.
    OtherHead,
    /// Those of the batch entry before.
    OtherBatch,
}

/// Attention in the order that a kernel has, in float32 with P rounded to the element type.
pub(super) fn honest(problem: &Problem, inputs: &Inputs, how: Honest) -> Output {
    let (mut rows, mut lse) = (Vec::new(), Vec::new());
    for row in 0..problem.lse_len() {
        let (o, row_lse) = blockwise(problem, inputs, row_coordinates(problem, row), how);
        rows.push(o);
        lse.push(row_lse);
    }
    gapped(problem, rows.into_iter(), lse)
}

fn blockwise(problem: &Problem, inputs: &Inputs, at: [usize; 3], how: Honest) -> (Vec<f64>, f32) {
    let [batch, head, row] = at;
    let head_dim = problem.sizes().head_dim as usize;
    let head_kv = head / problem.group() as usize;
    let vector = |role: TensorRole, at: [usize; 3]| {
        let start = row_start(problem, role, at);
        inputs.qkv[role as usize][start..start + head_dim]
            .iter()
            .map(|&bits| widen(problem.dtype(), bits) as f32)
    };
    let q: Vec<f32> = vector(TensorRole::Q, at).collect();
    let visible = visible_keys(problem, keys(problem, inputs.seqlens_k.as_deref(), batch), row);
    let scale_log2 = problem.scale() * std::f32::consts::LOG2_E;
    let (mut acc_o, mut row_sum, mut row_max) = (vec![0.0_f32; head_dim], 0.0_f32, f32::NEG_INFINITY);
    let blocks = visible.div_ceil(how.block);
    for step in 0..blocks {
        let block = if how.from_the_end { blocks - 1 - step } else { step };
        let range = block * how.block..visible.min((block + 1) * how.block);
        let score = |key: usize| -> f32 {
            let k: Vec<f32> = vector(TensorRole::K, [batch, head_kv, key]).collect();
            let mut sum = 0.0;
            let steps = q.len() / MMA_DEPTH;
            for step in (0..steps).map(|step| if how.from_the_end { steps - 1 - step } else { step }) {
                let [q, k] = [&q, &k].map(|row| &row[step * MMA_DEPTH..][..MMA_DEPTH]);
                sum += q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>();
                if how.acc == Accumulation::F16 {
                    sum = widen(Dtype::F16, narrow(Dtype::F16, sum.into())) as f32;
                }
            }
            scale_log2 * sum
        };
        let scores: Vec<f32> = range.clone().map(score).collect();
        // NaN wins, as every row that sees it is NaN.
        let largest =
            scores.iter().fold(f32::NEG_INFINITY, |max, &s| if s.is_nan() || s > max { s } else { max });
        if largest.is_nan() || largest > row_max + f32::from(how.lazy) {
            let factor = (row_max - largest).exp2();
            acc_o.iter_mut().for_each(|o| *o *= factor);
            row_sum *= factor;
            row_max = largest;
        }
        for (key, score) in range.zip(scores) {
            let p = (score - row_max).exp2();
            row_sum += p;
            let p = widen(problem.dtype(), narrow(problem.dtype(), p.into())) as f32;
            acc_o.iter_mut().zip(vector(TensorRole::V, [batch, head_kv, key])).for_each(|(o, v)| *o += p * v);
        }
    }
    if visible == 0 {
        return (vec![0.0; head_dim], f32::NEG_INFINITY);
    }
    let o = acc_o.into_iter().map(|o| f64::from(o / row_sum)).collect();
    (o, (row_max + row_sum.log2()) * std::f32::consts::LN_2)
}

/// Attention with a mistake, in float64; right without one.
pub(super) fn wrong(problem: &Problem, inputs: &Inputs, mistake: Option<Wrong>) -> Output {
    let [q, k, v] = &inputs.qkv;
    let right = |problem: &Problem, [q, k, v]: [&[u16]; 3]| {
        let tensors = HostTensors::new(q, k, v).with_seqlens_k(inputs.seqlens_k.as_deref());
        let right = reference_of(problem, &tensors, &|_, _| ());
        let head_dim = problem.sizes().head_dim as usize;
        let row = |row: usize| {
            let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
            right.o[start..start + head_dim].to_vec()
        };
        let lse = right.lse.iter().map(|&lse| lse as f32).collect();
        ((0..problem.lse_len()).map(row).collect::<Vec<_>>(), lse)
    };
    let qkv = [&q[..], &k[..], &v[..]];
    let scaled = |scale: f32| problem.with_scale(scale).unwrap_or(*problem);
    let (rows, lse): (Vec<Vec<f64>>, Vec<f32>) = match mistake {
        Some(Wrong::Keys(seen)) => by_rows(problem, inputs, &|row| row.over(seen)),
        Some(Wrong::CoarseP(bits)) => by_rows(problem, inputs, &|row| row.coarse(bits)),
        Some(Wrong::MaximumFrom(least)) => {
            by_rows(problem, inputs, &|row| row.relative_to(|largest| largest.max(least)))
        }
        Some(Wrong::NoMaximum) => by_rows(problem, inputs, &|row| row.relative_to(|_| 0.0)),
        Some(Wrong::Scale(factor)) => right(&scaled(problem.scale() * factor as f32), qkv),
        Some(Wrong::OwnScale) => right(&scaled(1.0 / (problem.sizes().head_dim as f32).sqrt()), qkv),
        Some(Wrong::NanSwallowed) => {
            let finite = [q, k, v].map(|tensor| {
                let zero = |&bits: &u16| if widen(problem.dtype(), bits).is_finite() { bits } else { 0 };
                tensor.iter().map(zero).collect::<Vec<u16>>()
            });
            right(problem, [&finite[0], &finite[1], &finite[2]])
        }
        _ => right(problem, qkv),
    };
    let of_o = |o: f64| match mistake {
        Some(Wrong::Constant(value)) => value,
        Some(Wrong::Factor(factor)) => o * factor,
        _ => o,
    };
    let of_lse = |lse: f32| match mistake {
        Some(Wrong::LseFactor(factor)) => (f64::from(lse) * factor) as f32,
        Some(Wrong::LseRounded) => widen(Dtype::Bf16, narrow(Dtype::Bf16, lse.into())) as f32,
        _ => lse,
    };
    let rows = rows.into_iter().map(|row| row.into_iter().map(of_o).collect());
    gapped(problem, rows, lse.into_iter().map(of_lse).collect())
}

/// One row of a problem, for mistakes of single rows.
struct OneRow<'a> {
    problem: &'a Problem,
    inputs: &'a Inputs,
    at: [usize; 3],
}

fn by_rows(
    problem: &Problem,
    inputs: &Inputs,
    of: &(dyn Fn(&OneRow<'_>) -> (Vec<f64>, f64) + Sync),
) -> (Vec<Vec<f64>>, Vec<f32>) {
    let row = |row: usize| of(&OneRow { problem, inputs, at: row_coordinates(problem, row) });
    (0..problem.lse_len()).map(row).map(|(o, lse)| (o, lse as f32)).unzip()
}

impl OneRow<'_> {
    fn element(&self, role: TensorRole, index: usize) -> f64 {
        widen(self.problem.dtype(), self.inputs.qkv[role as usize][index])
    }

    /// Scores and values of the first keys of a KV head.
    fn scores(&self, [batch, head]: [usize; 2], count: usize) -> Vec<f64> {
        let head_dim = self.problem.sizes().head_dim as usize;
        let q = row_start(self.problem, TensorRole::Q, self.at);
        let score = |key: usize| {
            let k = row_start(self.problem, TensorRole::K, [batch, head, key]);
            let products = (0..head_dim)
                .map(|d| self.element(TensorRole::Q, q + d) * self.element(TensorRole::K, k + d));
            f64::from(self.problem.scale()) * products.sum::<f64>()
        };
        (0..count).map(score).collect()
    }

    fn over(&self, seen: Keys) -> (Vec<f64>, f64) {
        let [batch, head, row] = self.at;
        let sizes = self.problem.sizes();
        let own = [batch, head / self.problem.group() as usize];
        let all = sizes.seqlen_k as usize;
        let length = reference::keys(self.problem, self.inputs.seqlens_k.as_deref(), batch);
        let visible = visible_keys(self.problem, length, row);
        let (place, count) = match seen {
            Keys::OtherHead => ([batch, (own[1] + 1) % sizes.heads_kv as usize], visible),
            Keys::OtherBatch => {
                ([(batch + sizes.batch as usize - 1) % sizes.batch as usize, own[1]], visible)
            }
            Keys::OneTooMany => (own, (visible + 1).min(length)),
            Keys::LengthsIgnored => (own, visible_keys(self.problem, all, row)),
            _ => (own, visible),
        };
        let scores = self.scores(place, count);
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let whole = count / 16 * 16;
        let takes = |key: usize| match seen {
            Keys::Even => key.is_multiple_of(2),
            Keys::Odd => key % 2 == 1 || count == 1,
            Keys::Quarter => key.is_multiple_of(4),
            Keys::FirstHalf => key < count.div_ceil(2),
            Keys::ButLast => key + 1 < all || count == 1,
            Keys::WholeBlocks => key < whole || whole == 0,
            Keys::Below(end) => key < end,
            Keys::From(first) => key >= first || count <= first,
            Keys::Middle => count < 96 || !(32..64).contains(&key),
            Keys::LargeP => scores[key] - largest >= (0.03_f64).ln() || (scores[key] - largest).is_nan(),
            _ => true,
        };
        let weights = scores
            .iter()
            .enumerate()
            .map(|(key, score)| if takes(key) { (score - largest).exp() } else { 0.0 });
        self.sum(place, largest, weights)
    }

    /// The KV head of the row, its scores, and the largest of these.
    fn own(&self) -> ([usize; 2], Vec<f64>, f64) {
        let [batch, head, row] = self.at;
        let place = [batch, head / self.problem.group() as usize];
        let length = reference::keys(self.problem, self.inputs.seqlens_k.as_deref(), batch);
        let scores = self.scores(place, visible_keys(self.problem, length, row));
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (place, scores, largest)
    }

    /// Exponentials in float32 of scores from which this function of the largest is taken.
    fn relative_to(&self, base: impl Fn(f32) -> f32) -> (Vec<f64>, f64) {
        let (place, scores, largest) = self.own();
        let base = base(largest as f32);
        let weights: Vec<f64> = scores.iter().map(|&score| f64::from((score as f32 - base).exp())).collect();
        let (mut o, lse) = self.sum(place, base.into(), weights.iter().copied());
        if !scores.is_empty() && weights.iter().sum::<f64>() == 0.0 {
            o.fill(f64::NAN);
        }
        (o, lse)
    }

    /// P with so many bits after the first.
    fn coarse(&self, bits: i32) -> (Vec<f64>, f64) {
        let (place, scores, largest) = self.own();
        let coarse = |p: f64| {
            let step = (p.log2().floor() - f64::from(bits)).exp2();
            if p > 0.0 { (p / step).round() * step } else { p }
        };
        self.sum(place, largest, scores.iter().map(|score| coarse((score - largest).exp())))
    }

    fn sum(
        &self,
        [batch, head]: [usize; 2],
        largest: f64,
        weights: impl Iterator<Item = f64>,
    ) -> (Vec<f64>, f64) {
        let mut o = vec![0.0; self.problem.sizes().head_dim as usize];
        let mut row_sum = 0.0;
        for (key, p) in weights.enumerate().filter(|(_, p)| *p != 0.0) {
            row_sum += p;
            let v = row_start(self.problem, TensorRole::V, [batch, head, key]);
            o.iter_mut().enumerate().for_each(|(d, o)| *o += p * self.element(TensorRole::V, v + d));
        }
        if row_sum != 0.0 {
            o.iter_mut().for_each(|o| *o /= row_sum);
        }
        (o, largest + row_sum.ln())
    }
}
