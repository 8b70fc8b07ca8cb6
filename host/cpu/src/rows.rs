//! One query row after the other: scores, softmax, the sum of values.

use crate::call::Call;
use crate::read::{at, integer, read_row, write_row};
use std::ops::Range;

/// Query rows of one head, and the keys and values that they see.
pub(crate) struct Block<'a> {
    /// Rows of K and V from key `begin` on, in float32.
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) begin: usize,
    /// Addresses of the first row of Q, O and LSE.
    pub(crate) q: u64,
    pub(crate) o: u64,
    pub(crate) lse: Option<u64>,
    pub(crate) slope: Option<f32>,
    pub(crate) sink: Option<f32>,
    /// The key that the first row is at.
    pub(crate) own: i64,
    pub(crate) tree: Option<TreeRows>,
}

/// The bits of a tree, from a block's first row on.
#[derive(Clone, Copy)]
pub(crate) struct TreeRows {
    pub(crate) bits: u64,
    /// Words of a row.
    pub(crate) words: usize,
    /// The first key of the tree; a sequence may be shorter than the tree.
    pub(crate) first: i64,
}

impl TreeRows {
    /// Whether a row sees a key.
    ///
    /// # Safety
    /// The row is one of the block's, the key one of its sequence's, and their words lie there.
    unsafe fn shows(&self, row: usize, key: usize) -> bool {
        let number = key as i64 - self.first;
        if number < 0 {
            return true;
        }
        let word = (row * self.words) as i64 + number / 32;
        // SAFETY: the caller's promise.
        let bits = unsafe { integer(Some(self.bits), word) }.unwrap_or(0);
        bits >> (number % 32) & 1 != 0
    }
}

/// Computes the rows, each of which sees a range of keys.
///
/// # Safety
/// As [`Call::forward`], for these rows.
pub(crate) unsafe fn rows(call: &Call, block: &Block<'_>, visible: impl Iterator<Item = Range<usize>>) {
    let (head_dim, bytes) = (call.sizes.head_dim, call.dtype.bytes());
    let (mut query, mut output, mut scores) = (vec![0.0; head_dim], vec![0.0; head_dim], Vec::new());
    for (index, keys) in visible.enumerate() {
        let row = index as i64;
        // SAFETY: the caller's promise.
        unsafe { read_row(call.dtype, at(block.q, row * call.q.strides[2], bytes), &mut query) };
        // SAFETY: the caller's promise.
        let is_hidden = |key: usize| block.tree.is_some_and(|tree| unsafe { !tree.shows(index, key) });
        scores.clear();
        scores.extend(keys.clone().map(|key| {
            if is_hidden(key) {
                return f32::NEG_INFINITY;
            }
            let score = dot(&query, row_of(block.keys, key - block.begin, head_dim)) * call.scale();
            changed(score, call.softcap, block.slope, (block.own + row - key as i64).unsigned_abs())
        }));
        let (max, sum) = softmax(&mut scores, block.sink);
        output.fill(0.0);
        // A key that is hidden may hold what is no number.
        for (key, weight) in keys.zip(&scores).filter(|&(key, _)| !is_hidden(key)) {
            for (sum, value) in output.iter_mut().zip(row_of(block.values, key - block.begin, head_dim)) {
                *sum += weight * value;
            }
        }
        // A row that sees nothing has the sum 0 and O 0.
        let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
        output.iter_mut().for_each(|value| *value *= factor);
        // SAFETY: the caller's promise.
        unsafe {
            write_row(call.dtype, at(block.o, row * call.o.strides[2], bytes), &output);
            if let Some(lse) = block.lse {
                *(at(lse, row, 4) as *mut f32) = if sum == 0.0 { f32::NEG_INFINITY } else { max + sum.ln() };
            }
        }
    }
}

fn row_of(rows: &[f32], row: usize, head_dim: usize) -> &[f32] {
    &rows[row * head_dim..][..head_dim]
}

/// A score after softcap and ALiBi.
fn changed(score: f32, softcap: f32, slope: Option<f32>, distance: u64) -> f32 {
    let capped = if softcap > 0.0 { softcap * (score / softcap).tanh() } else { score };
    slope.map_or(capped, |slope| capped - slope * distance as f32)
}

/// Turns scores into their exponentials relative to the largest, and returns that and the sum; the sink takes part in both.
fn softmax(scores: &mut [f32], sink: Option<f32>) -> (f32, f32) {
    let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY && !scores.iter().any(|score| score.is_nan()) {
        scores.fill(0.0);
        return (max, 0.0);
    }
    let mut sum = sink.map_or(0.0, |sink| (sink - max).exp());
    for score in scores {
        *score = (*score - max).exp();
        sum += *score;
    }
    (max, sum)
}

/// In eight sums, which the processor adds at a time.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}
