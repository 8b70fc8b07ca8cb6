//! Attention on the CPU as candidates of the stand-in compute it that make a mistake.

use super::in_blocks::MMA_DEPTH;
use super::keys::Keys;
use super::{Rows, Wrong, gapped};
use check::reference::{self, Reference, reference_of, row_coordinates, row_start, visible_keys};
use check::verification::Oracle;
use ferroflash::attention::Output;
use ferroflash::rounding::{narrow, widen};
use ferroflash::{Dtype, HostTensors, Problem, TensorRole};
use std::cell::OnceCell;

/// Attention with a mistake, in float64; right without one.
pub(super) fn wrong(right: &Oracle, mistake: Option<Wrong>) -> Output {
    let Oracle { problem, qkv: [q, k, v], seqlens_k, reference, .. } = right;
    let rows_of = |problem: &Problem, reference: &Reference| {
        let head_dim = problem.sizes().head_dim as usize;
        let row = |row: usize| {
            let start = row_start(problem, TensorRole::O, row_coordinates(problem, row));
            reference.o[start..start + head_dim].to_vec()
        };
        let lse = reference.lse.iter().map(|&lse| lse as f32).collect();
        ((0..problem.lse_len()).map(row).collect::<Vec<_>>(), lse)
    };
    let other = |problem: &Problem, [q, k, v]: [&[u16]; 3]| {
        let tensors = HostTensors::new(q, k, v).with_seqlens_k(seqlens_k.as_deref());
        rows_of(problem, &reference_of(problem, &tensors, &|_, _| ()))
    };
    let scaled = |scale: f32| other(&problem.with_scale(scale).unwrap_or(*problem), [q, k, v]);
    let changed = |tensor: &[u16], of: &dyn Fn(f64) -> f64| -> Vec<u16> {
        let each = |bits: &u16| narrow(problem.dtype(), of(widen(problem.dtype(), *bits)));
        tensor.iter().map(each).collect()
    };
    // Every row goes over most keys, which are widened once for all of them.
    let widened = OnceCell::new();
    let wide = || {
        let each = |tensor: &Vec<u16>| tensor.iter().map(|&bits| widen(problem.dtype(), bits)).collect();
        widened.get_or_init(|| right.qkv.each_ref().map(each))
    };
    let by_rows = |of: &dyn Fn(&OneRow<'_>) -> (Vec<f64>, f64)| by_rows(right, wide(), of);
    let (mut rows, mut lse): (Vec<Vec<f64>>, Vec<f32>) = match mistake {
        Some(Wrong::Keys(seen)) => by_rows(&|row| row.over(seen)),
        Some(Wrong::KeysTwice) => by_rows(&|row| row.weighted(|key, p| if key < 16 { 2.0 * p } else { p })),
        Some(Wrong::CoarseP(bits)) => by_rows(&|row| row.weighted(|_, p| coarse(p, bits))),
        Some(Wrong::Fp8P) => by_rows(&|row| {
            let least = f64::exp2(-9.0);
            row.weighted(|_, p| if p < f64::exp2(-6.0) { (p / least).round() * least } else { coarse(p, 3) })
        }),
        Some(Wrong::CrudeExp(share)) => {
            by_rows(&|row| row.weighted(|_, p| p * (1.0 + share * (7.0 * p.ln()).sin())))
        }
        Some(Wrong::SquareExp) => by_rows(&|row| {
            row.weighted(|_, p| {
                let (whole, rest) = (p.log2().floor(), p.log2() - p.log2().floor());
                if p > 0.0 { whole.exp2() * (1.0 + rest * (0.6565 + 0.3435 * rest)) } else { p }
            })
        }),
        Some(Wrong::LseOfRoundedP) => by_rows(&|row| {
            let (_, lse) = row.weighted(|_, p| widen(problem.dtype(), narrow(problem.dtype(), p)));
            (row.weighted(|_, p| p).0, lse)
        }),
        Some(
            Wrong::Acc16
            | Wrong::AccBf16
            | Wrong::RowSum16
            | Wrong::RowSumBf16
            | Wrong::StaleO
            | Wrong::StaleOLast
            | Wrong::StaleSum
            | Wrong::StaleSumLast,
        ) => by_rows(&|row| row.in_blocks(mistake)),
        Some(Wrong::MaximumFrom(least)) => by_rows(&|row| row.relative_to(|largest| largest.max(least))),
        Some(Wrong::ExpFloor(least)) => by_rows(&|row| row.weighted(|_, p| p.max(least.exp()))),
        Some(Wrong::HiddenScore(hidden)) => by_rows(&|row| row.hiding_by(hidden)),
        Some(Wrong::NoMaximum) => by_rows(&|row| row.relative_to(|_| 0.0)),
        Some(Wrong::Scale(factor)) => scaled(problem.scale() * factor as f32),
        Some(Wrong::ScaleBf16) => {
            scaled(widen(Dtype::Bf16, narrow(Dtype::Bf16, problem.scale().into())) as f32)
        }
        Some(Wrong::OwnScale) => scaled(1.0 / (problem.sizes().head_dim as f32).sqrt()),
        Some(
            Wrong::NanSwallowed
            | Wrong::NanSwallowedIn(_)
            | Wrong::NegativeNanSwallowed
            | Wrong::InfinityClamped,
        ) => {
            let each = |role: TensorRole, tensor: &[u16]| {
                changed(tensor, &|value: f64| match mistake {
                    _ if value.is_finite() => value,
                    Some(Wrong::InfinityClamped) if value.is_infinite() => value.signum() * 65504.0,
                    Some(Wrong::NanSwallowed) => 0.0,
                    Some(Wrong::NanSwallowedIn(swallows)) if swallows == role => 0.0,
                    Some(Wrong::NegativeNanSwallowed) if value.is_nan() && value.is_sign_negative() => 0.0,
                    _ => value,
                })
            };
            other(problem, [&each(TensorRole::Q, q), &each(TensorRole::K, k), &each(TensorRole::V, v)])
        }
        Some(Wrong::FlushedV | Wrong::FlushedQk) => {
            let flushed = |value: f64| if value.abs() < f64::exp2(-14.0) { 0.0 } else { value };
            match mistake {
                Some(Wrong::FlushedV) => other(problem, [q, k, &changed(v, &flushed)]),
                _ => other(problem, [&changed(q, &flushed), &changed(k, &flushed), v]),
            }
        }
        Some(Wrong::ProductsUpTo(most)) => by_rows(&|row| {
            let most = f64::from(problem.scale()) * most;
            row.of_scores(|score| if score > most { most } else { score })
        }),
        _ => rows_of(problem, reference),
    };
    for row in 0..rows.len() {
        let [batch, head, at] = row_coordinates(problem, row);
        let length = reference::keys(problem, seqlens_k.as_deref(), batch);
        let o = &mut rows[row];
        match mistake {
            Some(Wrong::Constant(value)) => o.fill(value),
            Some(Wrong::Factor(factor)) => o.iter_mut().for_each(|o| *o *= factor),
            Some(Wrong::LseFactor(factor)) => lse[row] = (f64::from(lse[row]) * factor) as f32,
            Some(Wrong::LseOffset(offset)) => lse[row] = (f64::from(lse[row]) + offset) as f32,
            Some(Wrong::LseRounded(to)) => lse[row] = widen(to, narrow(to, lse[row].into())) as f32,
            Some(Wrong::FactorIn(rows)) if rows.have(problem, [batch, head, at]) => {
                o.iter_mut().for_each(|o| *o *= 1.03);
            }
            Some(Wrong::InfinityForNan | Wrong::ZeroForNan) => {
                let instead = if mistake == Some(Wrong::ZeroForNan) { 0.0 } else { f64::INFINITY };
                o.iter_mut().filter(|o| o.is_nan()).for_each(|o| *o = instead);
            }
            Some(Wrong::InfinityOver(most)) => {
                o.iter_mut().filter(|o| o.abs() > most).for_each(|o| *o = f64::INFINITY * o.signum());
            }
            Some(Wrong::LseClamped) if lse[row] > f32::NEG_INFINITY => lse[row] = lse[row].max(0.0),
            Some(Wrong::SwappedChannels) => o.rotate_left(16),
            Some(Wrong::LengthsNotClamped)
                if seqlens_k.as_ref().is_some_and(|lengths| lengths[batch] as usize > length) =>
            {
                o.fill(f64::NAN);
            }
            Some(Wrong::BlindNan | Wrong::BlindMean | Wrong::BlindLse)
                if visible_keys(problem, length, at) == 0 =>
            {
                match mistake {
                    Some(Wrong::BlindNan) => o.fill(f64::NAN),
                    Some(Wrong::BlindLse) => lse[row] = 0.0,
                    _ => *o = OneRow { of: right, wide: wide(), at: [batch, head, at] }.mean(length),
                }
            }
            _ => {}
        }
    }
    match mistake {
        Some(Wrong::OneElement) => rows.last_mut().into_iter().for_each(|row| row[3] += 0.25),
        Some(Wrong::NanSpreads) => rows.chunks_mut(problem.sizes().seqlen_q as usize).for_each(|head| {
            for block in head.chunks_mut(16).filter(|block| block.iter().flatten().any(|o| o.is_nan())) {
                block.iter_mut().for_each(|row| row.fill(f64::NAN));
            }
        }),
        Some(Wrong::GroupSwapped) if problem.group() > 1 => {
            let queries = problem.sizes().seqlen_q as usize;
            for group in rows.chunks_mut(queries * problem.group() as usize) {
                let (first, others) = group.split_at_mut(queries);
                first.swap_with_slice(&mut others[..queries]);
            }
        }
        Some(Wrong::RowTwice) => (1..rows.len()).step_by(2).for_each(|row| rows[row] = rows[row - 1].clone()),
        _ => {}
    }
    gapped(problem, rows.into_iter(), lse)
}

impl Rows {
    fn have(self, problem: &Problem, [batch, head, row]: [usize; 3]) -> bool {
        let sizes = problem.sizes();
        match self {
            Rows::LastBatch => batch > 0 && batch + 1 == sizes.batch as usize,
            Rows::OddOfGroup => head % problem.group() as usize % 2 == 1,
            Rows::From(first) => row >= first,
            Rows::EndOfBlock => row % 64 == 63,
            Rows::HeadsFrom(first) => head >= first,
            Rows::Batch(entry) => batch == entry,
            Rows::Query(query) => row == query,
        }
    }
}

/// P rounded to `bits` bits behind its leading one.
fn coarse(p: f64, bits: i32) -> f64 {
    let step = (p.log2().floor() - f64::from(bits)).exp2();
    if p > 0.0 { (p / step).round() * step } else { p }
}

/// One row of a problem, for mistakes of single rows.
struct OneRow<'a> {
    of: &'a Oracle,
    /// Q, K and V in float64.
    wide: &'a [Vec<f64>; 3],
    at: [usize; 3],
}

fn by_rows(
    right: &Oracle,
    wide: &[Vec<f64>; 3],
    of: &dyn Fn(&OneRow<'_>) -> (Vec<f64>, f64),
) -> (Vec<Vec<f64>>, Vec<f32>) {
    let row = |row: usize| of(&OneRow { of: right, wide, at: row_coordinates(&right.problem, row) });
    (0..right.problem.lse_len()).map(row).map(|(o, lse)| (o, lse as f32)).unzip()
}

/// Keys of a block of [`OneRow::in_blocks`].
const BLOCK: usize = 64;
/// Growth of a maximum up to which nothing is rescaled, in powers of two.
const LAZY: f64 = 8.0;

impl OneRow<'_> {
    /// A row of Q, K or V.
    fn elements(&self, role: TensorRole, at: [usize; 3]) -> &[f64] {
        let start = row_start(&self.of.problem, role, at);
        &self.wide[role as usize][start..start + self.of.problem.sizes().head_dim as usize]
    }

    /// Scores and values of the first keys of a KV head.
    fn scores(&self, [batch, head]: [usize; 2], count: usize) -> Vec<f64> {
        let q = self.elements(TensorRole::Q, self.at);
        let score = |key: usize| {
            let products = q.iter().zip(self.elements(TensorRole::K, [batch, head, key])).map(|(q, k)| q * k);
            f64::from(self.of.problem.scale()) * products.sum::<f64>()
        };
        (0..count).map(score).collect()
    }

    fn over(&self, seen: Keys) -> (Vec<f64>, f64) {
        let [batch, head, row] = self.at;
        let sizes = self.of.problem.sizes();
        let own = [batch, head / self.of.problem.group() as usize];
        let all = sizes.seqlen_k as usize;
        let length = reference::keys(&self.of.problem, self.of.seqlens_k.as_deref(), batch);
        let visible = visible_keys(&self.of.problem, length, row);
        let (place, count) = match seen {
            Keys::OtherHead => ([batch, (own[1] + 1) % sizes.heads_kv as usize], visible),
            Keys::OtherBatch => {
                ([(batch + sizes.batch as usize - 1) % sizes.batch as usize, own[1]], visible)
            }
            Keys::OneTooMany => (own, (visible + 1).min(length)),
            Keys::LengthsIgnored => (own, visible_keys(&self.of.problem, all, row)),
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
            Keys::Without(gone) => key != gone || count == 1,
            Keys::Middle => count < 96 || !(32..64).contains(&key),
            Keys::LargeP(power) => {
                let less = largest - scores[key];
                less <= f64::from(power) * std::f64::consts::LN_2 || less.is_nan()
            }
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
        let place = [batch, head / self.of.problem.group() as usize];
        let length = reference::keys(&self.of.problem, self.of.seqlens_k.as_deref(), batch);
        let scores = self.scores(place, visible_keys(&self.of.problem, length, row));
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

    /// Keys that the row does not see are there with this score.
    fn hiding_by(&self, hidden: f64) -> (Vec<f64>, f64) {
        let (place, mut scores, _) = self.own();
        scores.resize(self.of.problem.sizes().seqlen_k as usize, hidden);
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights = scores.iter().map(|score| f64::from(((score - largest) as f32).exp()));
        self.sum(place, largest, weights)
    }

    /// Each score as this function of the right one.
    fn of_scores(&self, of: impl Fn(f64) -> f64) -> (Vec<f64>, f64) {
        let (place, scores, largest) = self.own();
        let largest = of(largest);
        self.sum(place, largest, scores.into_iter().map(|score| (of(score) - largest).exp()))
    }

    /// Each P as this function of the key and the right one.
    fn weighted(&self, of: impl Fn(usize, f64) -> f64) -> (Vec<f64>, f64) {
        let (place, scores, largest) = self.own();
        self.sum(
            place,
            largest,
            scores.iter().enumerate().map(|(key, score)| of(key, (score - largest).exp())),
        )
    }

    /// Block by block, with what one of a block's steps does wrong.
    fn in_blocks(&self, mistake: Option<Wrong>) -> (Vec<f64>, f64) {
        let (place, scores, _) = self.own();
        let rounded = |value: f64, [to_f16, to_bf16]: [Wrong; 2]| match mistake {
            Some(is) if is == to_f16 => widen(Dtype::F16, narrow(Dtype::F16, value)),
            Some(is) if is == to_bf16 => widen(Dtype::Bf16, narrow(Dtype::Bf16, value)),
            _ => value,
        };
        let last = scores.len().saturating_sub(1) / BLOCK;
        let mut o = vec![0.0; self.of.problem.sizes().head_dim as usize];
        let (mut row_sum, mut row_max) = (0.0, f64::NEG_INFINITY);
        for (block, scores) in scores.chunks(BLOCK).enumerate() {
            let largest = scores.iter().copied().fold(row_max, f64::max);
            if largest > row_max + LAZY * std::f64::consts::LN_2 {
                let factor = (row_max - largest).exp();
                let is_stale =
                    |always, at_last| mistake == Some(always) || (mistake == Some(at_last) && block == last);
                if !is_stale(Wrong::StaleO, Wrong::StaleOLast) {
                    o.iter_mut().for_each(|o| *o *= factor);
                }
                if !is_stale(Wrong::StaleSum, Wrong::StaleSumLast) {
                    row_sum *= factor;
                }
                row_max = largest;
            }
            for (key, score) in scores.iter().enumerate() {
                let p = (score - row_max).exp();
                row_sum = rounded(row_sum + p, [Wrong::RowSum16, Wrong::RowSumBf16]);
                let v = self.elements(TensorRole::V, [place[0], place[1], block * BLOCK + key]);
                o.iter_mut().zip(v).for_each(|(o, v)| *o += p * v);
                if key % MMA_DEPTH == MMA_DEPTH - 1 {
                    o.iter_mut().for_each(|o| *o = rounded(*o, [Wrong::Acc16, Wrong::AccBf16]));
                }
            }
        }
        if row_sum != 0.0 {
            o.iter_mut().for_each(|o| *o /= row_sum);
        }
        (o, row_max + row_sum.ln())
    }

    /// The mean of the first values.
    fn mean(&self, count: usize) -> Vec<f64> {
        let [batch, head, _] = self.at;
        let place = [batch, head / self.of.problem.group() as usize];
        self.sum(place, 0.0, (0..count).map(|_| 1.0)).0
    }

    fn sum(
        &self,
        [batch, head]: [usize; 2],
        largest: f64,
        weights: impl Iterator<Item = f64>,
    ) -> (Vec<f64>, f64) {
        let mut o = vec![0.0; self.of.problem.sizes().head_dim as usize];
        let mut row_sum = 0.0;
        for (key, p) in weights.enumerate().filter(|(_, p)| *p != 0.0) {
            row_sum += p;
            let v = self.elements(TensorRole::V, [batch, head, key]);
            o.iter_mut().zip(v).for_each(|(o, v)| *o += p * v);
        }
        if row_sum != 0.0 {
            o.iter_mut().for_each(|o| *o /= row_sum);
        }
        (o, largest + row_sum.ln())
    }
}
