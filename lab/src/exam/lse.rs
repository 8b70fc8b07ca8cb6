//! What is wrong with an LSE beside an O that is right.

use super::Fault;
use super::explanations::{ROWS, WrongRow};
use check::verification::Oracle;
use std::f64::consts::{LN_2, LOG2_E};

/// How near an LSE comes that a mistake explains: float32's sums of many keys, and room.
const NEAR: f64 = 1e-4;

/// The fault of an LSE that is wrong in some rows, and what shows it.
pub(super) fn diagnose(oracle: &Oracle, lse: &[f32], wrong: &[usize]) -> (Fault, String) {
    let expected = &oracle.reference.lse;
    if wrong.iter().any(|&row| lse[row].to_bits() == u32::MAX) {
        return (Fault::NotWritten, "the LSE keeps what stood there".to_owned());
    }
    let largest = |of: &dyn Fn(usize) -> f64| wrong.iter().map(|&row| of(row)).fold(0.0, f64::max);
    for (factor, what) in [(LOG2_E, "in base 2"), (LN_2, "times ln 2"), (-1.0, "negative")] {
        let near = |row: usize| {
            let (is, wanted) = (f64::from(lse[row]), factor * expected[row]);
            if is == wanted { 0.0 } else { (is - wanted).abs() / expected[row].abs().max(1.0) }
        };
        if wrong.iter().all(|&row| near(row) < NEAR) {
            return (Fault::WrongLse, what.to_owned());
        }
    }
    if wrong.iter().any(|&row| !lse[row].is_finite() || !expected[row].is_finite()) {
        return (Fault::WrongNan, "the LSE".to_owned());
    }
    let all = |is: &dyn Fn(f32) -> bool| lse.iter().filter(|lse| lse.is_finite()).all(|&lse| is(lse));
    let relative = largest(&|row| (f64::from(lse[row]) - expected[row]).abs() / expected[row].abs().max(0.1));
    for (bits_lost, what) in [(16, "bfloat16"), (13, "ten bits of mantissa")] {
        if relative < 0.01 && all(&|lse| lse.to_bits() & ((1 << bits_lost) - 1) == 0) {
            return (Fault::RoundedLse, format!("every value is one of {what}"));
        }
    }
    let rows: Vec<(WrongRow, f64)> = (0..ROWS)
        .map(|part| wrong[part * (wrong.len() - 1) / (ROWS - 1)])
        .map(|row| (WrongRow::new(oracle, row, &|_| 0.0), f64::from(lse[row])))
        .collect();
    // One number explains one row whatever is wrong.
    if let Some(factor) = scale(oracle, &rows).filter(|_| wrong.len() >= 3) {
        return (Fault::WrongScale, format!("the LSE is that of {factor:.4} times the scale"));
    }
    if rows.iter().all(|(row, lse)| leaves_out_small(oracle, row, *lse)) {
        return (Fault::SmallP, "the LSE leaves them out".to_owned());
    }
    let offsets: Vec<f64> = wrong.iter().map(|&row| f64::from(lse[row]) - expected[row]).collect();
    let [least, most] = [f64::min, f64::max].map(|pick| offsets.iter().copied().reduce(pick).unwrap_or(0.0));
    (Fault::WrongLse, format!("off by {least:.2e} to {most:.2e}"))
}

/// The factor on the scale that explains all of them, where one does that is no rounding.
fn scale(oracle: &Oracle, rows: &[(WrongRow, f64)]) -> Option<f64> {
    let scale = f64::from(oracle.problem.scale());
    let of = |row: &WrongRow, factor: f64| {
        let scores = row.scores[..row.visible].iter().map(|score| score * scale * factor);
        let largest = scores.clone().fold(f64::NEG_INFINITY, f64::max);
        largest + scores.map(|score| (score - largest).exp()).sum::<f64>().ln()
    };
    let squares =
        |log: f64, _: f64| rows.iter().map(|(row, lse)| (of(row, log.exp()) - lse).powi(2)).sum::<f64>();
    let (log, left) = least(&squares, -0.7, 0.7);
    let factor = log.exp();
    // Where all scores are alike, a factor moves every row's LSE as far, and nearly explains whatever else does.
    let is_near = |(row, lse): &(WrongRow, f64)| (of(row, factor) - lse).abs() < NEAR * lse.abs().max(10.0);
    // Of a few rows one factor explains about what one offset does, which explains it better where it is one.
    let offsets: Vec<f64> = rows.iter().map(|(row, lse)| lse - of(row, 1.0)).collect();
    let mean = offsets.iter().sum::<f64>() / offsets.len() as f64;
    let is_offset = offsets.iter().map(|offset| (offset - mean).powi(2)).sum::<f64>() < 0.01 * left;
    let is_found = left < 0.01 * squares(0.0, f64::INFINITY)
        && log.abs() > 5e-4
        && rows.iter().all(is_near)
        && !is_offset;
    is_found.then_some(factor)
}

/// Whether an LSE is that of a row's largest scores alone: of so few that one more or less would show.
fn leaves_out_small(oracle: &Oracle, row: &WrongRow, lse: f64) -> bool {
    let scale = f64::from(oracle.problem.scale());
    let mut scores: Vec<f64> = row.scores[..row.visible].iter().map(|score| scale * score).collect();
    scores.sort_by(|a, b| b.total_cmp(a));
    let Some(&largest) = scores.first() else { return false };
    let mut sum = 0.0;
    scores.pop();
    scores.iter().any(|score| {
        let p = (score - largest).exp();
        sum += p;
        (largest + sum.ln() - lse).abs() < NEAR.min(0.2 * p / sum)
    })
}

/// Where a function of one number is least: a coarse look, then golden section. The function is told what it need not add up beyond, and
/// gives infinity there.
pub(super) fn least(of: &dyn Fn(f64, f64) -> f64, from: f64, to: f64) -> (f64, f64) {
    let steps = (5.0 * (to - from)).max(70.0) as usize;
    let step = (to - from) / steps as f64;
    let looked = (0..=steps).map(|at| from + step * at as f64);
    let (middle, _) = looked.fold((0.0, f64::INFINITY), |best, x| {
        let value = of(x, best.1);
        if value < best.1 { (x, value) } else { best }
    });
    let (mut a, mut b) = (middle - step, middle + step);
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    for _ in 0..28 {
        let (c, d) = (b - golden * (b - a), a + golden * (b - a));
        let of_c = of(c, f64::INFINITY);
        if of_c < of(d, of_c) { b = d } else { a = c }
    }
    let x = (a + b) / 2.0;
    (x, of(x, f64::INFINITY))
}
