//! Dropout on the simulator: which weights are kept, what follows from seeds and from nothing else, and its gradients.

use crate::support::{self, problem};
use check::random_input::{self, InputKind};
use check::verification::{BackwardCase, Oracle};
use check::workload::Workload;
use ferroflash::problem::{BiasShape, Score};
use ferroflash::rounding::{narrow, widen};
use ferroflash::{
    Attention, Backward, Dropout, Dtype, Error, HostTensors, Mask, PlanOptions, Problem, RowSelection, Splits,
};
use kernels_gpu::row::{Accumulation, ScoreKind};
use ptx_sim::Schedule;

support::trials!(
    weights_are_kept_where_the_definition_says,
    outputs_are_right_at_the_edges_of_blocks_and_in_splits,
    a_seed_gives_the_same_bits_and_another_one_others,
    a_share_of_weights_is_kept_that_is_p_s,
    gradients_are_right_at_the_edges_of_blocks,
    gradients_are_those_of_what_the_forward_pass_gave,
    gradients_are_the_same_in_every_schedule,
    without_dropout_the_usual_kernels_are_taken,
    what_cannot_be_is_refused_by_name,
);

const DROPOUT: Dropout = Dropout { p: 0.3, seed: 0x0123_4567_89ab_cdef, offset: 1 << 40 };

fn dropped(dtype: Dtype, sizes: [u32; 6], mask: Mask) -> Problem {
    let problem = problem(dtype, sizes).with_mask(mask).expect("a mask");
    problem.with_dropout(DROPOUT).expect("dropout")
}

/// Queries of zeros weigh all keys alike, and where values are the rows of a unit matrix, O is the weights.
fn weights_are_kept_where_the_definition_says() {
    let attention = support::scheduled(Schedule::Deterministic);
    for (head_dim, splits) in [(64, 1), (128, 2), (256, 3), (72, 1)] {
        let [batch, heads_q, heads_kv, seqlen_q, seqlen_k] = [2, 6, 2, 37, head_dim - 5];
        let sizes = [batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim];
        let dropped = dropped(Dtype::F16, sizes, Mask::FULL);
        let one = narrow(Dtype::F16, 1.0);
        let width = head_dim as usize;
        let v: Vec<u16> = (0..dropped.v_len())
            .map(|at| if at / width % seqlen_k as usize == at % width { one } else { 0 })
            .collect();
        let (q, k) = (vec![0; dropped.q_len()], vec![one; dropped.k_len()]);
        let options = PlanOptions { splits: Splits::Count(splits), ..PlanOptions::new() };
        let plan = attention.planner().plan(&dropped, &options).expect("planned");
        let output = attention.forward_with(&plan, &HostTensors::new(&q, &k, &v), true).expect("computed");
        let weight = 1.0 / (1.0 - 0.3) / f64::from(seqlen_k);
        for (index, row) in output.o.chunks_exact(width).enumerate() {
            let (head, query) = (index as u32 / seqlen_q, index as u32 % seqlen_q);
            for (key, &bits) in (0..seqlen_k).zip(row) {
                let expected = if DROPOUT.keeps(head, query, key) { weight } else { 0.0 };
                let got = widen(Dtype::F16, bits);
                assert!((got - expected).abs() <= weight / 512.0, "{head} {query} {key}: {got}");
            }
        }
        let lse = f64::from(seqlen_k).ln() as f32;
        assert!(output.lse.expect("asked for").iter().all(|of| (of - lse).abs() < 1e-5), "of all weights");
    }
}

fn outputs_are_right_at_the_edges_of_blocks_and_in_splits() {
    let attention = support::scheduled(Schedule::Deterministic);
    let seqlens = [(1, 1), (2, 33), (63, 65), (64, 31), (129, 16), (17, 300), (113, 203)];
    let masks = [Mask::FULL, Mask::CAUSAL, Mask::window(Some(40), Some(7)), Mask::window(Some(30), Some(0))];
    for (i, (seqlen_q, seqlen_k)) in seqlens.into_iter().enumerate() {
        let (heads_q, heads_kv) = [(1, 1), (3, 1), (4, 2), (8, 1), (2, 2)][i % 5];
        let (dtype, head_dim) = ([Dtype::F16, Dtype::Bf16][i % 2], [64, 128, 40, 256, 96][i / 2 % 5]);
        for (j, splits) in [(i, 1), (i + 1, 3)] {
            let sizes = [2, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim];
            let problem = dropped(dtype, sizes, masks[j % 4]);
            let qkv = random_input::qkv(&problem, InputKind::Random, i as u64);
            let oracle = Oracle::new(&problem, qkv.clone(), None, &[Accumulation::F32], &|_, _| ());
            let options = PlanOptions { splits: Splits::Count(splits), ..PlanOptions::new() };
            let plan = attention.planner().plan(&problem, &options).expect("planned");
            assert_eq!(plan.kernel().row.score, ScoreKind::Dropout);
            let output = attention.forward_with(&plan, &HostTensors::from(&qkv), true).expect("computed");
            let verdict = oracle.judge(Accumulation::F32, &output).expect("whole");
            assert!(verdict.passed, "{sizes:?}, {}, {splits} splits: {verdict}", problem.mask());
        }
    }
}

fn a_seed_gives_the_same_bits_and_another_one_others() {
    let attention = support::scheduled(Schedule::Deterministic);
    let base = dropped(Dtype::Bf16, [2, 4, 2, 70, 150, 64], Mask::CAUSAL);
    let qkv = random_input::qkv(&base, InputKind::Random, 1);
    let of = |attention: &Attention, dropout: Dropout| {
        let problem = base.with_dropout(dropout).expect("dropout");
        // By the plans that are kept, which have no seed.
        let output = attention.forward(&problem, &qkv[0], &qkv[1], &qkv[2], true).expect("computed");
        (output.o, output.lse.expect("asked for"))
    };
    let (first, lse) = of(&attention, DROPOUT);
    assert_eq!(of(&attention, DROPOUT).0, first);
    assert_eq!(of(&support::scheduled(Schedule::Seeded(3)), DROPOUT).0, first);
    let others = [
        Dropout { seed: DROPOUT.seed ^ 1, ..DROPOUT },
        Dropout { seed: DROPOUT.seed ^ (1 << 63), ..DROPOUT },
        Dropout { offset: DROPOUT.offset + Dropout::counters(&base), ..DROPOUT },
        Dropout { p: 0.4, ..DROPOUT },
    ];
    for other in others {
        let (o, other_lse) = of(&attention, other);
        let same = o.iter().zip(&first).filter(|(a, b)| a == b).count();
        assert!(same < first.len() / 10, "{other:?}: {same} of {}", first.len());
        assert_eq!(other_lse, lse, "without dropout");
    }
    assert_eq!(of(&attention, DROPOUT).0, first, "of the plan that another seed had meanwhile");
}

fn a_share_of_weights_is_kept_that_is_p_s() {
    for p in [0.05, 0.17, 0.5, 0.9] {
        let dropout = Dropout { p, ..DROPOUT };
        let weights = |head| (0..300).flat_map(move |query| (0..300).map(move |key| (head, query, key)));
        let is_kept = |&(head, query, key): &(u32, u32, u32)| dropout.keeps(head, query, key);
        let kept = weights(0).chain(weights(7)).filter(is_kept).count();
        let share = kept as f64 / 180_000.0;
        // p is a 256th off at most, and this is more than eight standard deviations.
        assert!((share - (1.0 - f64::from(p))).abs() < 0.01 + 1.0 / 256.0, "{p}: {share}");
    }
}

fn case(problem: &Problem, kind: InputKind, seed: u64) -> BackwardCase {
    let backward = Backward::new(problem).expect("it has kernels");
    BackwardCase::new(&backward, Workload::of(problem), (kind, seed), true).expect("a case")
}

fn gradients_are_right_at_the_edges_of_blocks() {
    let attention = support::scheduled(Schedule::Deterministic);
    let seqlens = [(1, 1), (15, 33), (63, 65), (64, 31), (33, 129), (129, 64)];
    let masks = [Mask::FULL, Mask::CAUSAL, Mask::window(Some(40), Some(7)), Mask::CAUSAL.with_sink_tokens(3)];
    for (i, (seqlen_q, seqlen_k)) in seqlens.into_iter().enumerate() {
        let (heads_q, heads_kv) = [(2, 1), (3, 3), (4, 2)][i % 3];
        for (j, head_dim) in [64, 128, 256, 72].into_iter().enumerate() {
            let (dtype, mask) = ([Dtype::F16, Dtype::Bf16][(i + j) % 2], masks[(i + j) % 4]);
            let problem = dropped(dtype, [2, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim], mask);
            let case = case(&problem.with_sinks(j == 1), InputKind::Random, (i * 4 + j) as u64);
            let gradients = case.run(&attention).expect("computed");
            let verdict = case.judge(&gradients).expect("whole");
            assert!(verdict.passed, "{case}: {verdict}");
        }
    }
}

fn gradients_are_those_of_what_the_forward_pass_gave() {
    let attention = support::scheduled(Schedule::Deterministic);
    for (head_dim, mask) in [(64, Mask::CAUSAL), (256, Mask::window(Some(30), Some(9)))] {
        let problem = dropped(Dtype::Bf16, [2, 4, 2, 90, 110, head_dim], mask);
        let case = case(&problem, InputKind::Random, 9);
        let HostTensors { q, k, v, .. } = case.inputs().tensors;
        let output = attention.forward(&problem, q, k, v, true).expect("computed");
        let case = case.with_output(output);
        let gradients = attention.backward(&case.backward, &case.inputs()).expect("computed");
        let verdict = case.judge(&gradients).expect("whole");
        assert!(verdict.passed, "{case}: {verdict}");
        // With other weights left out they are other gradients.
        let other = Dropout { offset: DROPOUT.offset + 1, ..DROPOUT };
        let other = Backward::new(&problem.with_dropout(other).expect("dropout")).expect("it has kernels");
        let others = attention.backward(&other, &case.inputs()).expect("computed");
        assert!(!case.judge(&others).expect("whole").passed);
    }
}

fn gradients_are_the_same_in_every_schedule() {
    let problem = dropped(Dtype::F16, [2, 4, 2, 70, 150, 128], Mask::CAUSAL);
    let case = case(&problem, InputKind::Random, 4);
    let first = case.run(&support::scheduled(Schedule::Deterministic)).expect("computed");
    for seed in [1, 2] {
        assert_eq!(
            case.run(&support::scheduled(Schedule::Seeded(seed))).expect("computed"),
            first,
            "seed {seed}"
        );
    }
}

fn without_dropout_the_usual_kernels_are_taken() {
    let attention = support::scheduled(Schedule::Deterministic);
    let plain = problem(Dtype::F16, [1, 2, 2, 70, 90, 64]);
    let off = plain.with_dropout(Dropout { p: 0.0, ..DROPOUT }).expect("off");
    assert_eq!(off, plain);
    assert_eq!(attention.plan(&off).expect("planned").kernel().row.score, ScoreKind::Plain);
}

fn what_cannot_be_is_refused_by_name() {
    let plain = problem(Dtype::F16, [1, 2, 2, 70, 90, 64]);
    for p in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
        let error = plain.with_dropout(Dropout { p, ..DROPOUT }).expect_err("no probability");
        assert!(matches!(error, Error::Dropout { .. }) && error.to_string().contains("below 1"), "{error}");
    }
    let with = plain.with_dropout(DROPOUT).expect("dropout");
    let tree = Mask::CAUSAL.with_tree(8);
    for refused in [
        with.with_score(Score::Softcap(2.0)),
        with.with_score(Score::Bias(BiasShape::default())),
        with.with_mask(tree),
        plain.with_mask(tree).and_then(|problem| problem.with_dropout(DROPOUT)),
        plain.with_score(Score::Alibi { per_batch: false }).and_then(|it| it.with_dropout(DROPOUT)),
    ] {
        let error = refused.expect_err("refused");
        assert!(matches!(error, Error::Dropout { .. }) && error.to_string().contains("as well"), "{error}");
    }
    let attention = support::scheduled(Schedule::Deterministic);
    let rows = RowSelection::Named("fwd_wgmma_f16_d64_m128n128_w12s3c1_ragged".to_owned());
    let options = PlanOptions { rows, ..PlanOptions::new() };
    let error = attention.planner().plan(&with, &options).expect_err("it drops nothing");
    assert!(error.to_string().contains("dropout"), "{error}");
}
