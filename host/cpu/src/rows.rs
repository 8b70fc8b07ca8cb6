//! One query row after the other: scores, softmax, the sum of values.

use crate::call::Call;
use crate::dropout::factor;
use crate::read::write_number;
use crate::real::{Real, add_scaled, dot};
use crate::sequence::Sequence;

/// Query rows of one head, and the keys and values that they see.
pub(crate) struct Block<'a, R> {
    pub(crate) sequence: &'a Sequence,
    pub(crate) head: usize,
    /// The first query, and how many.
    pub(crate) first_row: usize,
    pub(crate) count: usize,
    /// Rows of K and V from key `begin` on.
    pub(crate) keys: &'a [R],
    pub(crate) values: &'a [R],
    pub(crate) begin: usize,
}

/// Computes the rows.
///
/// # Safety
/// As [`Call::forward`], for these rows.
pub(crate) unsafe fn rows<R: Real>(call: &Call, block: &Block<'_, R>) {
    let Block { sequence, head, begin, .. } = *block;
    let (width, width_v, scale) = (call.sizes.head_dim, call.head_dim_v, R::of(call.scale()));
    let (mut query, mut output, mut scores) = (vec![R::ZERO; width], vec![R::ZERO; width_v], Vec::new());
    // SAFETY: the caller's promise.
    let (slope, sink) = unsafe { sequence.of_head::<R>(call, head) };
    for row in block.first_row..block.first_row + block.count {
        // SAFETY: the caller's promise.
        let visible = unsafe { sequence.visible(call, row) };
        // SAFETY: the caller's promise.
        let is_hidden = |key: usize| unsafe { visible.hides(key) };
        // SAFETY: the caller's promise.
        unsafe { R::read_row(call.dtype, sequence.query_row(call, &call.q, head, row), &mut query) };
        scores.clear();
        scores.extend(visible.keys.clone().map(|key| {
            if is_hidden(key) {
                return R::NEG_INFINITY;
            }
            let score = dot(&query, row_of(block.keys, key - begin, width)) * scale;
            let changed = changed(score, call.softcap, slope, sequence.own(row).abs_diff(key as i64)).0;
            // SAFETY: the caller's promise.
            changed + unsafe { sequence.bias(call, head, row, key) }
        }));
        let (max, sum) = softmax(&mut scores, sink);
        output.fill(R::ZERO);
        // A key that is hidden may hold what is no number.
        for (key, &weight) in visible.keys.clone().zip(&scores).filter(|&(key, _)| !is_hidden(key)) {
            let weight = weight * factor(call, sequence, head, (row, key));
            add_scaled(&mut output, weight, row_of(block.values, key - begin, width_v));
        }
        // A row that sees nothing has the sum 0 and O 0.
        let factor = if sum == R::ZERO { R::ZERO } else { R::ONE / sum };
        output.iter_mut().for_each(|value| *value *= factor);
        // SAFETY: the caller's promise.
        unsafe {
            R::write_row(call.dtype, sequence.query_row(call, &call.o, head, row), &output);
            if let Some(address) = call.lse {
                let lse = if sum == R::ZERO { R::NEG_INFINITY } else { max + sum.ln() };
                write_number(call.dtype.of_sums(), address, sequence.lse_row(call, head, row), lse);
            }
        }
    }
}

pub(crate) fn row_of<R>(rows: &[R], row: usize, width: usize) -> &[R] {
    &rows[row * width..][..width]
}

/// A score after softcap and ALiBi, and its derivative by the score before.
pub(crate) fn changed<R: Real>(score: R, softcap: f32, slope: Option<R>, distance: u64) -> (R, R) {
    let (capped, derivative) = if softcap > 0.0 {
        let softcap = R::of(softcap.into());
        let tanh = (score / softcap).tanh();
        (softcap * tanh, R::ONE - tanh * tanh)
    } else {
        (score, R::ONE)
    };
    (slope.map_or(capped, |slope| capped - slope * R::of(distance as f64)), derivative)
}

/// Turns scores into their exponentials relative to the largest, and returns that and the sum; the sink takes part in both.
fn softmax<R: Real>(scores: &mut [R], sink: Option<R>) -> (R, R) {
    let max = scores.iter().copied().chain(sink).fold(R::NEG_INFINITY, R::max);
    if max == R::NEG_INFINITY && !scores.iter().any(|score| score.is_nan()) {
        scores.fill(R::ZERO);
        return (max, R::ZERO);
    }
    let mut sum = sink.map_or(R::ZERO, |sink| (sink - max).exp());
    for score in scores {
        *score = (*score - max).exp();
        sum += *score;
    }
    (max, sum)
}
