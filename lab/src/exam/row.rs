//! One row of attention in float64, over some of its keys and with any scale.

use ferroflash::reference::{self, row_start, visible_keys, widen};
use ferroflash::{Problem, TensorRole};

/// Which keys are used: told a key's number and how many the row sees.
pub(crate) type Keys<'a> = &'a dyn Fn(usize, usize) -> bool;

/// Row `[batch, head, row]` of O and its LSE.
pub(crate) fn attention_row(
    problem: &Problem,
    qkv: &[Vec<u16>; 3],
    at: [usize; 3],
    scale: f64,
    keys: Keys<'_>,
) -> (Vec<f64>, f64) {
    let [batch, head, row] = at;
    let head_dim = problem.sizes().head_dim as usize;
    let head_kv = head / problem.group() as usize;
    let load = |role: TensorRole, at: [usize; 3]| -> Vec<f64> {
        let start = row_start(problem, role, at);
        let bits = &qkv[role as usize][start..start + head_dim];
        bits.iter().map(|&bits| widen(problem.dtype(), bits)).collect()
    };
    let q = load(TensorRole::Q, at);
    let visible = visible_keys(problem, reference::keys(problem, None, batch), row);
    let used: Vec<usize> = (0..visible).filter(|&key| keys(key, visible)).collect();
    let score = |&key: &usize| -> f64 {
        let k = load(TensorRole::K, [batch, head_kv, key]);
        scale * q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>()
    };
    let scores: Vec<f64> = used.iter().map(score).collect();
    let row_max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut o, mut row_sum) = (vec![0.0; head_dim], 0.0);
    for (&key, score) in used.iter().zip(&scores) {
        let p = (score - row_max).exp();
        row_sum += p;
        for (o, v) in o.iter_mut().zip(load(TensorRole::V, [batch, head_kv, key])) {
            *o += p * v;
        }
    }
    if row_sum > 0.0 {
        o.iter_mut().for_each(|o| *o /= row_sum);
    }
    (o, row_max + row_sum.ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::random_input::{InputKind, qkv};
    use ferroflash::reference::reference;
    use ferroflash::{Dtype, Sizes};

    #[test]
    fn over_all_keys_it_is_the_reference() {
        let sizes = Sizes { batch: 2, heads_q: 4, heads_kv: 2, seqlen_q: 5, seqlen_k: 9, head_dim: 32 };
        let problem = Problem::new(sizes, Dtype::F16).expect("valid").with_causal(true);
        let qkv = qkv(&problem, InputKind::Random, 3);
        let right = reference(&problem, &qkv[0], &qkv[1], &qkv[2], &|_, _| ());
        let at = [1, 3, 2];
        let (o, lse) = attention_row(&problem, &qkv, at, f64::from(problem.scale()), &|_, _| true);
        let start = row_start(&problem, TensorRole::O, at);
        assert!(o.iter().zip(&right.o[start..]).all(|(a, b)| (a - b).abs() < 1e-12));
        assert!((lse - right.lse[(4 + 3) * 5 + 2]).abs() < 1e-12);
    }
}
