//! The float64 reference against three plain loops, and its conventions.

use crate::support::{self, problem};
use check::random_input::{self, InputKind};
use check::reference::{Reference, reference};
use ferroflash::rounding::widen;
use ferroflash::{Dtype, ElementStrides, Layout, Problem, TensorRole};

support::trials!(
    plain_loops_agree,
    plain_loops_agree_in_any_layout,
    the_causal_mask_is_aligned_bottom_right,
    rows_without_keys_are_zero_and_minus_infinity,
    nan_reaches_only_the_rows_that_see_it,
    progress_reaches_the_end,
);

fn compute(problem: &Problem, qkv: &[Vec<u16>; 3]) -> Reference {
    reference(problem, &qkv[0], &qkv[1], &qkv[2], &|_, _| ())
}

/// Attention as in a textbook, one query row at a time, over `[batch, heads, rows, head_dim]` closures.
fn naive(problem: &Problem, qkv: &[Vec<u16>; 3]) -> Reference {
    let sizes = *problem.sizes();
    let [d, group] = [sizes.head_dim as usize, (sizes.heads_q / sizes.heads_kv) as usize];
    let [seqlen_q, seqlen_k] = [sizes.seqlen_q as usize, sizes.seqlen_k as usize];
    let at = |role: TensorRole, b: usize, h: usize, s: usize, e: usize| {
        let ElementStrides { batch, head, row, dim } = problem.strides(role);
        (b as i64 * batch + h as i64 * head + s as i64 * row + e as i64 * dim) as usize
    };
    let element =
        |role: TensorRole, b, h, s, e| widen(problem.dtype(), qkv[role as usize][at(role, b, h, s, e)]);
    let mut o = vec![0.0; problem.o_len()];
    let mut lse = Vec::new();
    for b in 0..sizes.batch as usize {
        for h in 0..sizes.heads_q as usize {
            for i in 0..seqlen_q {
                let sees = |j: &usize| !problem.causal() || j + seqlen_q <= i + seqlen_k;
                let keys: Vec<usize> = (0..seqlen_k).filter(sees).collect();
                let score = |&j: &usize| {
                    let dot: f64 = (0..d)
                        .map(|e| {
                            element(TensorRole::Q, b, h, i, e) * element(TensorRole::K, b, h / group, j, e)
                        })
                        .sum();
                    dot * f64::from(problem.scale())
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let row_sum: f64 = scores.iter().map(|s| s.exp()).sum();
                lse.push(row_sum.ln());
                for e in 0..d {
                    let weighted = keys
                        .iter()
                        .zip(&scores)
                        .map(|(&j, s)| s.exp() / row_sum * element(TensorRole::V, b, h / group, j, e));
                    o[at(TensorRole::O, b, h, i, e)] = weighted.sum();
                }
            }
        }
    }
    Reference { o, lse }
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let close =
            (actual - expected).abs() < 1e-12 || actual == expected || (actual.is_nan() && expected.is_nan());
        assert!(close, "element {index}: {actual} is not {expected}");
    }
}

fn plain_loops_agree() {
    for (shape, causal) in [
        ([1, 1, 1, 1, 1, 32], false),
        ([2, 2, 2, 7, 5, 32], false),
        ([1, 6, 2, 9, 131, 64], true),
        ([1, 3, 1, 131, 9, 32], true),
        ([2, 4, 2, 17, 17, 96], true),
        ([1, 1, 1, 3, 257, 256], false),
        ([1, 2, 1, 40, 129, 128], true),
    ] {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let problem = problem(dtype, shape).with_causal(causal);
            let qkv = random_input::qkv(&problem, InputKind::Random, 1);
            let (actual, expected) = (compute(&problem, &qkv), naive(&problem, &qkv));
            assert_close(&actual.o, &expected.o);
            assert_close(&actual.lse, &expected.lse);
        }
    }
}

fn plain_loops_agree_in_any_layout() {
    let bshd = problem(Dtype::F16, [2, 4, 2, 11, 13, 32]).with_layout(Layout::Bshd).with_causal(true);
    let padded = ElementStrides { row: 40, head: 13 * 40, batch: 2 * 13 * 40 + 8, dim: 1 };
    let strided = bshd.with_strides(TensorRole::K, padded).expect("valid");
    let padded = ElementStrides { row: 64, head: 11 * 64, batch: 4 * 11 * 64, dim: 1 };
    let strided = strided.with_strides(TensorRole::O, padded).expect("valid");
    for problem in [bshd, strided.with_scale(0.5).expect("valid")] {
        let qkv = random_input::qkv(&problem, InputKind::Random, 2);
        let (actual, expected) = (compute(&problem, &qkv), naive(&problem, &qkv));
        assert_close(&actual.o, &expected.o);
        assert_close(&actual.lse, &expected.lse);
    }
}

/// V whose row j is j everywhere, under scores that are all equal: O of a row is the mean of the keys it sees.
fn mean_of_seen_keys(seqlen_q: u32, seqlen_k: u32) -> Vec<f64> {
    let problem = problem(Dtype::F16, [1, 1, 1, seqlen_q, seqlen_k, 32]).with_causal(true);
    let zeros = vec![0; problem.q_len()];
    let v: Vec<u16> = (0..seqlen_k).flat_map(|key| [half::f16::from_f32(key as f32).to_bits(); 32]).collect();
    let reference = compute(&problem, &[zeros, vec![0; problem.k_len()], v]);
    reference.o.iter().step_by(32).copied().collect()
}

fn the_causal_mask_is_aligned_bottom_right() {
    assert_close(&mean_of_seen_keys(4, 4), &[0.0, 0.5, 1.0, 1.5]);
    assert_close(&mean_of_seen_keys(2, 5), &[1.5, 2.0]);
    assert_close(&mean_of_seen_keys(5, 2), &[0.0, 0.0, 0.0, 0.0, 0.5]);
}

fn rows_without_keys_are_zero_and_minus_infinity() {
    let problem = problem(Dtype::F16, [1, 2, 1, 5, 2, 32]).with_causal(true);
    let qkv = random_input::qkv(&problem, InputKind::Random, 3);
    let reference = compute(&problem, &qkv);
    for head in 0..2 {
        for row in 0..3 {
            assert_eq!(reference.lse[head * 5 + row], f64::NEG_INFINITY);
            assert!(reference.o[(head * 5 + row) * 32..][..32].iter().all(|&o| o == 0.0));
        }
        assert!(reference.lse[head * 5 + 3].is_finite());
    }
}

fn nan_reaches_only_the_rows_that_see_it() {
    let problem = problem(Dtype::Bf16, [1, 2, 2, 9, 9, 32]).with_causal(true);
    let clean = compute(&problem, &random_input::qkv(&problem, InputKind::Random, 4));
    let planted = compute(&problem, &random_input::qkv(&problem, InputKind::NotANumber, 4));
    for row in 0..18 {
        // The last key of head 0 is seen by its last row alone; row 0 of head 1 is NaN itself.
        let expected = row == 8 || row == 9;
        assert_eq!(planted.lse[row].is_nan(), expected, "row {row}");
        for channel in 0..32 {
            // Value 4 of head 1 is NaN in channel 1, and seen from row 4 on.
            let expected = expected || (row >= 9 + 4 && channel == 1);
            let at = row * 32 + channel;
            assert_eq!(planted.o[at].is_nan(), expected, "row {row} channel {channel}");
            assert!(expected || planted.o[at] == clean.o[at]);
        }
    }
}

fn progress_reaches_the_end() {
    let problem = problem(Dtype::F16, [2, 4, 2, 33, 5, 32]);
    let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 5);
    let most = std::sync::Mutex::new((0, 0));
    reference(&problem, &q, &k, &v, &|done, total| {
        let mut most = most.lock().expect("unpoisoned");
        *most = (done.max(most.0), total);
    });
    assert_eq!(most.into_inner().expect("unpoisoned"), (2 * 4 * 33, 2 * 4 * 33));
}
