//! One row of attention in float64, over some of its keys and with any scale: a second opinion, and for what a wrong kernel computes.

use super::{keys, row_start, visible_keys};
use ferroflash::{Problem, TensorRole};

/// Which of the keys that a row sees are used: told a key's number and how many the row sees.
pub type Keys<'a> = &'a dyn Fn(usize, usize) -> bool;

/// Row `[batch, head, row]` of O and its LSE, over the keys that `used` takes. `element` is an element of a tensor by its index in the
/// tensor's buffer, as float64; `seqlens_k` the keys of each sequence, where the problem has lengths.
pub fn attention_row(
    problem: &Problem,
    element: impl Fn(TensorRole, usize) -> f64,
    seqlens_k: Option<&[u32]>,
    at: [usize; 3],
    scale: f64,
    used: Keys<'_>,
) -> (Vec<f64>, f64) {
    let [batch, head, row] = at;
    let head_dim = problem.sizes().head_dim as usize;
    let head_kv = head / problem.group() as usize;
    let q: Vec<f64> = {
        let start = row_start(problem, TensorRole::Q, at);
        (start..start + head_dim).map(|index| element(TensorRole::Q, index)).collect()
    };
    let visible = visible_keys(problem, keys(problem, seqlens_k, batch), row);
    let used: Vec<usize> = (0..visible).filter(|&key| used(key, visible)).collect();
    let score = |&key: &usize| -> f64 {
        let start = row_start(problem, TensorRole::K, [batch, head_kv, key]);
        let products = q.iter().enumerate().map(|(d, q)| q * element(TensorRole::K, start + d));
        scale * products.sum::<f64>()
    };
    let scores: Vec<f64> = used.iter().map(score).collect();
    let row_max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut o, mut row_sum) = (vec![0.0; head_dim], 0.0);
    for (&key, score) in used.iter().zip(&scores) {
        let p = (score - row_max).exp();
        row_sum += p;
        let start = row_start(problem, TensorRole::V, [batch, head_kv, key]);
        for (d, o) in o.iter_mut().enumerate() {
            *o += p * element(TensorRole::V, start + d);
        }
    }
    // A row without keys is 0, its LSE −∞.
    if row_sum > 0.0 {
        o.iter_mut().for_each(|o| *o /= row_sum);
    }
    (o, row_max + row_sum.ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random_input::{self, InputKind};
    use crate::reference::{reference_of, row_coordinates};
    use ferroflash::rounding::widen;
    use ferroflash::{Dtype, HostTensors, Sizes};

    #[test]
    fn over_all_keys_it_is_the_reference() {
        let sizes = Sizes { batch: 2, heads_q: 4, heads_kv: 2, seqlen_q: 5, seqlen_k: 9, head_dim: 32 };
        for (causal, lengths) in [(false, None), (true, None), (true, Some([9, 3])), (false, Some([0, 9]))] {
            let problem = Problem::new(sizes, Dtype::F16).expect("valid").with_causal(causal);
            let problem = problem.with_lengths(lengths.is_some());
            let lengths = lengths.as_ref().map(|lengths| &lengths[..]);
            let qkv = random_input::qkv(&problem, InputKind::Random, 3);
            let right = reference_of(&problem, &HostTensors::from(&qkv).with_seqlens_k(lengths), &|_, _| ());
            let element = |role: TensorRole, index: usize| widen(Dtype::F16, qkv[role as usize][index]);
            for row in 0..problem.lse_len() {
                let at = row_coordinates(&problem, row);
                let scale = f64::from(problem.scale());
                let (o, lse) = attention_row(&problem, element, lengths, at, scale, &|_, _| true);
                let start = row_start(&problem, TensorRole::O, at);
                assert!(o.iter().zip(&right.o[start..]).all(|(a, b)| (a - b).abs() < 1e-12), "{at:?}");
                assert!(lse == right.lse[row] || (lse - right.lse[row]).abs() < 1e-12, "{at:?}");
            }
        }
    }
}
