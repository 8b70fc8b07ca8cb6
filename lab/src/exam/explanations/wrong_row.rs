//! One row of O that is wrong, with what its keys give.

use check::reference::{keys, row_coordinates, row_start, visible_keys};
use check::verification::Oracle;
use ferroflash::TensorRole;
use ferroflash::rounding::widen;

/// One wrong row with the keys that it could see.
pub(in crate::exam) struct WrongRow {
    pub(super) at: [usize; 3],
    pub(in crate::exam) visible: usize,
    /// exp(score − the largest), of all keys of the sequence.
    pub(super) p: Vec<f64>,
    /// Scores without the scale.
    pub(in crate::exam) scores: Vec<f64>,
    pub(super) o: Vec<f64>,
    pub(super) expected: Vec<f64>,
}

impl WrongRow {
    pub(in crate::exam) fn new(oracle: &Oracle, row: usize, o: &dyn Fn(usize) -> f64) -> WrongRow {
        let Oracle { problem, seqlens_k, reference, .. } = oracle;
        let at = row_coordinates(problem, row);
        let head_dim = problem.sizes().head_dim as usize;
        let length = keys(problem, seqlens_k.as_deref(), at[0]);
        let visible = visible_keys(problem, length, at[2]);
        let q: Vec<f64> = elements(oracle, TensorRole::Q, at).collect();
        let score = |key: usize| -> f64 {
            let k = elements(oracle, TensorRole::K, [at[0], at[1] / problem.group() as usize, key]);
            q.iter().zip(k).map(|(q, k)| q * k).sum()
        };
        let scores: Vec<f64> = (0..problem.sizes().seqlen_k as usize).map(score).collect();
        let scale = f64::from(problem.scale());
        // Of all keys: a row that sees none has no other.
        let largest = scores[..length].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let p = scores.iter().map(|score| (scale * (score - largest)).exp()).collect();
        let start = row_start(problem, TensorRole::O, at);
        WrongRow {
            at,
            visible,
            p,
            scores,
            o: (start..start + head_dim).map(o).collect(),
            expected: reference.o[start..start + head_dim].to_vec(),
        }
    }
}

/// The elements of a row of Q, K or V.
pub(super) fn elements(oracle: &Oracle, role: TensorRole, at: [usize; 3]) -> impl Iterator<Item = f64> {
    let Oracle { problem, qkv, .. } = oracle;
    let (dtype, start) = (problem.dtype(), row_start(problem, role, at));
    let bits = &qkv[role as usize][start..start + problem.sizes().head_dim as usize];
    bits.iter().map(move |&bits| widen(dtype, bits))
}
