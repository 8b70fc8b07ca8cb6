//! The backward pass on the simulator: gradients of drawn problems against float64, and what holds between calls.

use crate::support;
use check::random_input::{self, InputKind};
use check::verification::BackwardCase;
use check::workload::Workload;
use ferroflash::attention::OperandValues;
use ferroflash::problem::{BiasShape, Operand, Score};
use ferroflash::rounding::{narrow, widen};
use ferroflash::{
    Attention, Backward, BackwardPlan, BackwardTensors, DeviceModel, DeviceTensors, Dtype, Error,
    GradientInputs, Gradients, HostTensors, Mask, Problem, Sizes, StreamHandle,
};
use kernels_gpu::backward::table::BACKWARD_VARIANTS;
use kernels_gpu::row::ScoreKind;
use ptx_sim::Schedule;
use std::collections::BTreeSet;

support::trials!(
    drawn_passes_are_right,
    lengths_at_the_edges_of_blocks_are_right,
    masks_of_every_kind_are_right,
    rows_that_see_nothing_have_gradients_of_zero,
    nan_reaches_the_rows_that_see_it_and_no_others,
    scores_are_in_the_gradients_at_the_edges_of_blocks,
    rows_past_the_last_add_nothing_whatever_the_slopes,
    sinks_have_gradients_and_rows_of_no_sequence_none,
    biases_of_every_shape_have_gradients,
    a_bias_of_packed_sequences_has_a_gradient_of_zero_where_they_end,
    a_bias_of_minus_infinity_has_a_gradient_of_zero,
    nan_reaches_the_elements_of_a_bias_that_it_concerns_and_no_others,
    rows_past_the_last_of_a_sequence_add_nothing_to_a_bias_that_sequences_share,
    a_bias_has_the_same_gradients_on_every_run_and_one_only_where_it_is_wanted,
    trees_hide_what_they_hide_at_the_edges_of_blocks,
    what_the_forward_pass_gives_is_what_the_backward_pass_takes,
    a_pass_is_the_same_in_every_schedule_and_batch,
    gradients_scale_with_that_of_the_output,
    what_cannot_be_is_refused_by_name,
    a_plan_takes_the_kernels_of_its_device_and_grid,
);

fn sizes(batch: u32, heads: (u32, u32), seqlens: (u32, u32), head_dim: u32) -> Sizes {
    Sizes { batch, heads_q: heads.0, heads_kv: heads.1, seqlen_q: seqlens.0, seqlen_k: seqlens.1, head_dim }
}

/// The gradients by the kernels that the plan takes; those of every other kernel that computes them are judged, too.
#[track_caller]
fn check(attention: &Attention, case: &BackwardCase) -> Gradients {
    let (library, info) = (attention.library(), attention.device().info());
    let plans = BackwardPlan::covering(&case.backward, library, info).expect("planned");
    let mut gradients = plans.iter().map(|plan| {
        let kernels = plan.entries();
        let gradients =
            case.run_plan(attention, plan).unwrap_or_else(|error| panic!("{case}, {kernels:?}: {error}"));
        let verdict = case.judge(&gradients).expect("whole");
        assert!(verdict.passed, "{case}, {kernels:?}: {verdict}");
        gradients
    });
    let of_best = gradients.next().expect("a plan");
    gradients.for_each(drop);
    of_best
}

fn case(problem: &Problem, kind: InputKind, seed: u64) -> BackwardCase {
    let backward = Backward::new(problem).expect("it has kernels");
    BackwardCase::new(&backward, Workload::of(problem), (kind, seed), true).expect("a case")
}

fn drawn_passes_are_right() {
    let attention = support::scheduled(Schedule::Deterministic);
    let of = BACKWARD_VARIANTS.iter().map(|variant| {
        let row = &variant.row;
        (row.dtype, row.head_dim, row.score)
    });
    for (dtype, head_dim, score) in of.collect::<BTreeSet<_>>() {
        let draws = if score == ScoreKind::Plain && head_dim < 256 { 5 } else { 3 };
        // Kernels of other dtypes and widths are alike: each has problems of its own, and of these the ones with few blocks.
        let first = u64::from(head_dim) << 8 | u64::from(dtype == Dtype::Bf16) << 7;
        let drawn =
            (first..).map(|seed| BackwardCase::draw(dtype, head_dim, score, seed).expect("a problem"));
        let is_small = |case: &BackwardCase| {
            let Sizes { batch, heads_q, seqlen_q, seqlen_k, .. } = *case.backward.problem().sizes();
            batch * heads_q * seqlen_q.div_ceil(64) * seqlen_k.div_ceil(64) <= 64
        };
        drawn.filter(is_small).take(draws).for_each(|case| drop(check(&attention, &case)));
    }
}

fn lengths_at_the_edges_of_blocks_are_right() {
    let attention = support::scheduled(Schedule::Deterministic);
    // Blocks are 128 of stationary and 64 or 32 of streamed rows.
    let seqlens =
        [(1, 1), (2, 33), (63, 65), (128, 64), (129, 31), (65, 127), (31, 257), (257, 128), (113, 203)];
    for (i, seqlens) in seqlens.into_iter().enumerate() {
        let heads = [(1, 1), (3, 1), (4, 2), (8, 1)][i % 4];
        let (dtype, head_dim) = ([Dtype::F16, Dtype::Bf16][i % 2], [64, 128, 40, 96, 200][i / 2 % 5]);
        for causal in [false, true] {
            let problem = Problem::new(sizes(1, heads, seqlens, head_dim), dtype).expect("valid");
            let problem = problem.with_causal(causal);
            check(&attention, &case(&problem, InputKind::Outliers, i as u64));
        }
    }
}

fn masks_of_every_kind_are_right() {
    let attention = support::scheduled(Schedule::Deterministic);
    let masks = [
        Mask::FULL.with_intervals(),
        Mask::CAUSAL.with_intervals(),
        Mask::window(Some(70), Some(20)),
        Mask::window(Some(30), Some(0)).with_sink_tokens(5),
        Mask::window(None, Some(40)),
        Mask::window(Some(90), None),
        Mask::CAUSAL.with_chunk(75),
        Mask::CAUSAL.with_prefix(150),
    ];
    for (i, mask) in masks.into_iter().enumerate() {
        // Long enough that blocks are hidden, seen in part and seen entirely.
        let (dtype, head_dim) = ([Dtype::F16, Dtype::Bf16][i % 2], [64, 128][i / 2 % 2]);
        let problem = Problem::new(sizes(1, (2, 1), (230, 290), head_dim), dtype).expect("valid");
        check(&attention, &case(&problem.with_mask(mask).expect("valid"), InputKind::Random, 7));
    }
}

fn rows_that_see_nothing_have_gradients_of_zero() {
    let attention = support::scheduled(Schedule::Deterministic);
    // More queries than keys: the first ones see none. A window that ends before the first key of the last queries' chunk.
    for mask in [Mask::CAUSAL, Mask::window(Some(5), Some(0)), Mask::CAUSAL.with_chunk(16)] {
        let problem = Problem::new(sizes(2, (2, 1), (150, 40), 64), Dtype::F16).expect("valid");
        let problem = problem.with_mask(mask).expect("valid");
        let gradients = check(&attention, &case(&problem, InputKind::Random, 3));
        let unseeing = 110 * 64;
        assert!(gradients.q[..unseeing].iter().all(|&bits| bits & 0x7fff == 0), "{mask}");
        assert!(gradients.q[unseeing..150 * 64].iter().any(|&bits| bits & 0x7fff != 0), "{mask}");
    }
    // Keys behind a sequence's length, where NaN lies.
    let problem =
        Problem::new(sizes(3, (2, 2), (20, 300), 64), Dtype::Bf16).expect("valid").with_lengths(true);
    let backward = Backward::new(&problem).expect("it has kernels");
    let workload = Workload::with_sequences(&problem, [vec![20; 3], vec![0, 300, 129]], 1);
    let case = BackwardCase::new(&backward, workload, (InputKind::Random, 1), false).expect("a case");
    let gradients = check(&attention, &case);
    assert!(gradients.k[..300 * 64 * 2].iter().all(|&bits| bits & 0x7fff == 0), "a sequence without keys");
}

fn nan_reaches_the_rows_that_see_it_and_no_others() {
    let attention = support::scheduled(Schedule::Deterministic);
    for (dtype, head_dim) in [(Dtype::F16, 64), (Dtype::Bf16, 128)] {
        for mask in [Mask::CAUSAL, Mask::window(Some(40), Some(3))] {
            let problem = Problem::new(sizes(1, (2, 1), (140, 150), head_dim), dtype).expect("valid");
            let problem = problem.with_mask(mask).expect("valid");
            let gradients = check(&attention, &case(&problem, InputKind::NotANumber, 2));
            let nans = |of: &[u16]| of.iter().filter(|&&bits| widen(dtype, bits).is_nan()).count();
            let counts = [&gradients.q, &gradients.k, &gradients.v].map(|of| nans(of));
            assert!(counts.iter().all(|&count| count > 0), "{mask}: {counts:?}");
            // Under the causal mask the last query sees every key.
            let [q, k] = [counts[0] < gradients.q.len(), counts[1] < gradients.k.len()];
            assert_eq!([q, k], [true, mask.window_left.is_some()], "{mask}: {counts:?}");
        }
    }
}

fn scores_are_in_the_gradients_at_the_edges_of_blocks() {
    let attention = support::scheduled(Schedule::Deterministic);
    // Blocks are 64 of stationary and 32 or 16 of streamed rows.
    let seqlens = [(1, 1), (63, 65), (64, 31), (33, 129), (129, 64)];
    let scores = [Score::Softcap(1.5), Score::Alibi { per_batch: false }, Score::Softcap(0.2)];
    for (i, seqlens) in seqlens.into_iter().enumerate() {
        for (j, (score, head_dim)) in scores.into_iter().zip([96, 128, 256]).enumerate() {
            let (dtype, heads) = ([Dtype::F16, Dtype::Bf16][(i + j) % 2], [(2, 1), (3, 3)][j % 2]);
            let problem = Problem::new(sizes(1, heads, seqlens, head_dim), dtype).expect("valid");
            let problem = problem.with_causal(i % 2 == 0).with_score(score).expect("valid");
            check(&attention, &case(&problem, InputKind::Random, (i * 3 + j) as u64));
        }
    }
}

/// Zeros in place of queries past the last have a score all the same: of a negative slope one whose exponential is infinite.
fn rows_past_the_last_add_nothing_whatever_the_slopes() {
    let attention = support::scheduled(Schedule::Deterministic);
    let problem = Problem::new(sizes(1, (2, 2), (70, 200), 64), Dtype::F16).expect("valid");
    let problem = problem.with_score(Score::Alibi { per_batch: false }).expect("valid");
    let slopes = (Operand::Slopes, OperandValues::F32(vec![-2.0, -1.5]));
    let workload = Workload::of(&problem).with_operand(slopes);
    let backward = Backward::new(&problem).expect("it has kernels");
    check(&attention, &BackwardCase::new(&backward, workload, (InputKind::Random, 3), true).expect("a case"));
}

fn sinks_have_gradients_and_rows_of_no_sequence_none() {
    let attention = support::scheduled(Schedule::Deterministic);
    // More rows than threads sum at once, several batch entries, and rows that see nothing but the sink.
    for (batch, seqlens, mask) in [(1, (1100, 8), Mask::FULL), (3, (50, 30), Mask::CAUSAL)] {
        let problem = Problem::new(sizes(batch, (2, 1), seqlens, 64), Dtype::Bf16).expect("valid");
        let problem = problem.with_mask(mask).expect("valid").with_sinks(true);
        let gradients = check(&attention, &case(&problem, InputKind::Random, 8));
        assert!(gradients.sinks.expect("of sinks").iter().all(|sink| sink.is_finite() && *sink != 0.0));
    }
    // Packed queries, the last of which belong to no sequence: the workspace has no statistics of those.
    let problem = Problem::new(sizes(3, (2, 1), (40, 64), 64), Dtype::F16).expect("valid").with_sinks(true);
    let problem = problem.with_packed_queries(80).expect("valid");
    let backward = Backward::new(&problem).expect("it has kernels");
    let workload = Workload::with_sequences(&problem, [vec![40, 0, 23], vec![64; 3]], 2);
    // A head without a sink, and one whose sink outweighs every key.
    let sinks = (Operand::Sinks, OperandValues::F32(vec![f32::NEG_INFINITY, 80.0]));
    let workload = workload.with_operand(sinks);
    let case = BackwardCase::new(&backward, workload, (InputKind::Random, 2), false).expect("a case");
    let gradients = check(&attention, &case);
    assert_eq!(gradients.sinks.as_ref().expect("of sinks")[0], 0.0);
    assert_eq!(case.run(&support::scheduled(Schedule::Seeded(5))).expect("computed"), gradients);
}

/// A bias that is the same along some dimensions.
fn bias_of(shape: u32) -> Score {
    let has = |bit: u32| shape >> bit & 1 == 0;
    Score::Bias(BiasShape { batch: has(0), heads: has(1), queries: has(2) })
}

fn biases_of_every_shape_have_gradients() {
    let attention = support::scheduled(Schedule::Deterministic);
    // Tiles of the gradient are 64 × 64, and head_dim is taken 64 elements at a time; an odd number of keys, whose rows start at odd elements.
    let seqlens = [(1, 1), (63, 65), (64, 31), (33, 129), (129, 64), (70, 67), (5, 200), (140, 3)];
    let masks = [Mask::FULL, Mask::CAUSAL, Mask::window(Some(20), Some(3)), Mask::CAUSAL.with_intervals()];
    for (shape, seqlens) in (0..).zip(seqlens) {
        for at in [shape, shape + 3] {
            let i = at as usize;
            let (dtype, heads) = ([Dtype::F16, Dtype::Bf16][i % 2], [(2, 1), (3, 3), (4, 2)][i % 3]);
            let head_dim = [64, 40, 128, 200, 256, 8][(i / 2 + shape as usize) % 6];
            let problem = Problem::new(sizes(2, heads, seqlens, head_dim), dtype).expect("valid");
            let problem = problem.with_mask(masks[i % 4]).expect("valid").with_sinks(i.is_multiple_of(5));
            let problem = problem.with_score(bias_of(shape)).expect("valid");
            let gradients = check(&attention, &case(&problem, InputKind::Outliers, u64::from(at)));
            let length = problem.operand_len(Operand::Bias);
            assert_eq!(gradients.bias.map(|bias| bias.len()), length);
        }
    }
    // Values of another width than keys, more and fewer steps along head_dim.
    for (head_dim, head_dim_v) in [(64, 136), (160, 24)] {
        let problem = Problem::new(sizes(1, (2, 1), (20, 90), head_dim), Dtype::F16).expect("valid");
        let problem = problem.with_head_dim_v(head_dim_v).and_then(|of| of.with_score(bias_of(1)));
        check(&attention, &case(&problem.expect("valid"), InputKind::Random, 4));
    }
}

fn a_bias_of_packed_sequences_has_a_gradient_of_zero_where_they_end() {
    let attention = support::scheduled(Schedule::Deterministic);
    let lengths = [vec![40, 0, 70, 1], vec![64, 30, 0, 90]];
    for shape in 0..8 {
        let problem = Problem::new(sizes(4, (2, 1), (70, 90), 64), Dtype::F16).expect("valid");
        let problem = problem.with_packed_queries(130).expect("valid").with_causal(shape % 2 == 1);
        let problem = match shape % 3 {
            0 => problem.with_packed_keys(200).expect("valid"),
            _ => problem.with_lengths(true),
        };
        let problem = problem.with_score(bias_of(shape)).expect("valid");
        let backward = Backward::new(&problem).expect("it has kernels");
        let workload = Workload::with_sequences(&problem, lengths.clone(), 2);
        let case = BackwardCase::new(&backward, workload, (InputKind::Random, 2), true).expect("a case");
        let gradients = check(&attention, &case);
        let bias = gradients.bias.expect("of the bias");
        if shape == 0 {
            let sequence = |batch: usize| &bias[batch * 2 * 70 * 90..][..2 * 70 * 90];
            let zeros = |of: &[u16]| of.iter().all(|&bits| bits == 0);
            assert!([1, 2].into_iter().all(|batch| zeros(sequence(batch))), "no queries, and no keys");
            assert!(!zeros(&sequence(0)[..64]) && zeros(&sequence(0)[64..90]), "past the last key");
            assert!(!zeros(sequence(3)) && zeros(&sequence(3)[90..70 * 90]), "past the last query");
        }
    }
}

/// Keys without weight have gradients of 0, and so do all keys of a row where none has any.
fn a_bias_of_minus_infinity_has_a_gradient_of_zero() {
    let attention = support::scheduled(Schedule::Deterministic);
    let (queries, keys) = (70, 75);
    let problem = Problem::new(sizes(1, (2, 2), (queries, keys), 72), Dtype::Bf16).expect("valid");
    let problem = problem.with_score(bias_of(3)).expect("valid");
    let (queries, keys) = (queries as usize, keys as usize);
    let is_hidden = |at: usize| at / keys == 5 || at % keys % 3 == 1;
    let value = |at: usize| if is_hidden(at) { f64::NEG_INFINITY } else { (at % 7) as f64 / 4.0 };
    let bias = (0..queries * keys).map(|at| narrow(Dtype::Bf16, value(at))).collect();
    let workload = Workload::of(&problem).with_operand((Operand::Bias, OperandValues::Bits(bias)));
    let backward = Backward::new(&problem).expect("it has kernels");
    let case = BackwardCase::new(&backward, workload, (InputKind::Random, 3), false).expect("a case");
    let gradients = check(&attention, &case);
    let bias = gradients.bias.expect("of the bias");
    assert!(bias.iter().enumerate().all(|(at, bits)| !is_hidden(at) || bits & 0x7fff == 0));
    assert!(bias.iter().any(|bits| bits & 0x7fff != 0));
}

fn nan_reaches_the_elements_of_a_bias_that_it_concerns_and_no_others() {
    let attention = support::scheduled(Schedule::Deterministic);
    for (dtype, head_dim, shape) in [(Dtype::F16, 64, 0), (Dtype::Bf16, 128, 2), (Dtype::F16, 136, 4)] {
        let problem = Problem::new(sizes(2, (4, 2), (140, 150), head_dim), dtype).expect("valid");
        let problem = problem.with_mask(Mask::window(Some(40), Some(3))).expect("valid");
        let problem = problem.with_score(bias_of(shape)).expect("valid");
        let gradients = check(&attention, &case(&problem, InputKind::NotANumber, 2));
        let bias = gradients.bias.expect("of the bias");
        let nans = bias.iter().filter(|&&bits| widen(dtype, bits).is_nan()).count();
        assert!(nans > 0 && nans < bias.len(), "shape {shape}: {nans} of {}", bias.len());
    }
}

/// Rows past a sequence's last are zeros in place of dO, whose products with NaN are NaN.
fn rows_past_the_last_of_a_sequence_add_nothing_to_a_bias_that_sequences_share() {
    let attention = support::scheduled(Schedule::Deterministic);
    let problem = Problem::new(sizes(2, (2, 1), (70, 80), 64), Dtype::F16).expect("valid");
    let problem = problem.with_packed_queries(110).expect("valid").with_causal(true);
    let problem = problem.with_score(bias_of(1)).expect("valid");
    let backward = Backward::new(&problem).expect("it has kernels");
    let workload = Workload::with_sequences(&problem, [vec![40, 70], vec![80, 80]], 5);
    let case = BackwardCase::new(&backward, workload, (InputKind::Random, 5), true).expect("a case");
    // The last key of the first sequence, which only its last query sees. O, and so δ, are those without the NaN.
    let mut inputs = case.inputs();
    let mut v = inputs.tensors.v.to_vec();
    v[79 * 64..80 * 64].fill(0x7fff);
    inputs.tensors.v = &v;
    let bias = attention.backward(&backward, &inputs).expect("computed").bias.expect("of the bias");
    let is_nan = |&at: &usize| widen(Dtype::F16, bias[at]).is_nan();
    let nans: Vec<usize> = (0..bias.len()).filter(is_nan).collect();
    assert_eq!(nans, [39 * 80 + 79, (70 + 39) * 80 + 79]);
}

fn a_bias_has_the_same_gradients_on_every_run_and_one_only_where_it_is_wanted() {
    let attention = support::scheduled(Schedule::Deterministic);
    for shape in [0, 3, 7] {
        let problem = Problem::new(sizes(3, (4, 2), (70, 150), 64), Dtype::F16).expect("valid");
        let problem = problem.with_causal(true).with_score(bias_of(shape)).expect("valid");
        let case = case(&problem, InputKind::Random, 4);
        let gradients = check(&attention, &case);
        for seed in [1, 2] {
            let again = case.run(&support::scheduled(Schedule::Seeded(seed))).expect("computed");
            assert_eq!(again, gradients, "seed {seed}");
        }
    }
    // Where the problem has no bias, a gradient of one is refused by name.
    let plain = Problem::new(sizes(1, (1, 1), (3, 4), 64), Dtype::F16).expect("valid");
    let backward = Backward::new(&plain).expect("it has kernels");
    let plan = attention.plan_backward(&backward).expect("planned");
    assert_eq!(plan.bias_ctas(), None);
    let forward = DeviceTensors::new(256, 512, 768, 1024).with_lse(Some(1280));
    let tensors = BackwardTensors::new(forward, 1536, [2048, 2304, 2560]).with_d_bias(Some(4096));
    // SAFETY: refused before anything is launched.
    let refused = unsafe { attention.backward_device(&plan, &tensors, StreamHandle::DEFAULT) };
    let error = refused.expect_err("no bias");
    assert!(matches!(error, Error::Operand { operand: "the gradient of the bias", .. }), "{error}");
    let biased = plain.with_score(bias_of(0)).expect("valid");
    let plan = attention.plan_backward(&Backward::new(&biased).expect("it has kernels")).expect("planned");
    let forward = forward.with_operand(Operand::Bias, 3072);
    let tensors = BackwardTensors::new(forward, 1536, [2048, 2304, 2560]).with_d_bias(Some(4097));
    // SAFETY: as above.
    let refused = unsafe { attention.backward_device(&plan, &tensors, StreamHandle::DEFAULT) };
    assert!(matches!(refused, Err(Error::Misaligned { .. })), "{refused:?}");
}

fn trees_hide_what_they_hide_at_the_edges_of_blocks() {
    let attention = support::scheduled(Schedule::Deterministic);
    let seqlens = [(1, 1), (63, 65), (64, 31), (33, 129), (70, 200)];
    for (i, seqlens) in seqlens.into_iter().enumerate() {
        for (j, keys) in [1, 33, 64, 100].into_iter().enumerate() {
            let (dtype, heads) = ([Dtype::F16, Dtype::Bf16][(i + j) % 2], [(2, 1), (3, 3)][j % 2]);
            let head_dim = [64, 128, 200][(i + j) % 3];
            let mask = if i % 2 == 0 { Mask::FULL } else { Mask::CAUSAL };
            let problem = Problem::new(sizes(1, heads, seqlens, head_dim), dtype).expect("valid");
            let problem = problem.with_mask(mask.with_tree(keys)).expect("valid");
            let kind = [InputKind::Random, InputKind::NotANumber][(i + j / 2) % 2];
            check(&attention, &case(&problem, kind, (i * 4 + j) as u64));
        }
    }
}

fn what_the_forward_pass_gives_is_what_the_backward_pass_takes() {
    let attention = support::scheduled(Schedule::Deterministic);
    for (mask, head_dim, score) in [
        (Mask::CAUSAL, 64, Score::Plain),
        (Mask::window(Some(30), Some(9)), 72, Score::Plain),
        (Mask::CAUSAL, 256, Score::Softcap(3.0)),
        (Mask::CAUSAL, 96, bias_of(1)),
    ] {
        let problem = Problem::new(sizes(2, (4, 2), (90, 110), head_dim), Dtype::Bf16).expect("valid");
        let problem = problem.with_mask(mask).expect("valid").with_score(score).expect("valid");
        let problem = problem.with_sinks(head_dim > 64);
        let case = case(&problem, InputKind::Random, 9);
        let plan = attention.plan(&problem).expect("planned");
        let output = attention.forward_with(&plan, &case.inputs().tensors, true).expect("computed");
        let case = case.with_output(output);
        let gradients = check(&attention, &case);
        // The form for host tensors computes the same.
        assert_eq!(attention.backward(&case.backward, &case.inputs()).expect("computed"), gradients);
    }
}

fn a_pass_is_the_same_in_every_schedule_and_batch() {
    let attention = support::scheduled(Schedule::Deterministic);
    let problem = Problem::new(sizes(3, (4, 2), (70, 150), 64), Dtype::F16).expect("valid").with_causal(true);
    let whole = case(&problem, InputKind::Random, 4);
    let gradients = check(&attention, &whole);
    for seed in [1, 2, 3] {
        assert_eq!(
            whole.run(&support::scheduled(Schedule::Seeded(seed))).expect("computed"),
            gradients,
            "seed {seed}"
        );
    }
    // The last sequence alone.
    let alone = Problem::new(sizes(1, (4, 2), (70, 150), 64), Dtype::F16).expect("valid").with_causal(true);
    let inputs = whole.inputs();
    let (q, k, queries) = (2 * alone.q_len(), 2 * alone.k_len(), 2 * alone.lse_len());
    let tensors = HostTensors::new(&inputs.tensors.q[q..], &inputs.tensors.k[k..], &inputs.tensors.v[k..]);
    let last = GradientInputs::new(tensors, &inputs.o[q..], &inputs.lse[queries..], &inputs.d_o[q..])
        .with_d_lse(inputs.d_lse.map(|d_lse| &d_lse[queries..]));
    let backward = Backward::new(&alone).expect("it has kernels");
    let of_last = attention.backward(&backward, &last).expect("computed");
    assert_eq!(
        of_last,
        Gradients::new(gradients.q[q..].into(), gradients.k[k..].into(), gradients.v[k..].into())
    );
}

fn gradients_scale_with_that_of_the_output() {
    let attention = support::scheduled(Schedule::Deterministic);
    let problem =
        Problem::new(sizes(1, (2, 1), (75, 95), 128), Dtype::Bf16).expect("valid").with_causal(true);
    let backward = Backward::new(&problem).expect("it has kernels");
    let case =
        BackwardCase::new(&backward, Workload::of(&problem), (InputKind::Random, 6), false).expect("a case");
    let inputs = case.inputs();
    let scaled = |factor: f64| {
        let of = |&bits: &u16| narrow(Dtype::Bf16, widen(Dtype::Bf16, bits) * factor);
        let d_o: Vec<u16> = inputs.d_o.iter().map(of).collect();
        let inputs = GradientInputs::new(inputs.tensors, inputs.o, inputs.lse, &d_o);
        attention.backward(&backward, &inputs).expect("computed")
    };
    let (once, zero) = (scaled(1.0), scaled(0.0));
    assert!([&zero.q, &zero.k, &zero.v].iter().all(|of| of.iter().all(|&bits| bits & 0x7fff == 0)));
    // A power of two changes exponents and nothing else.
    let times = |of: &[u16], factor: f64| -> Vec<f64> {
        of.iter().map(|&bits| widen(Dtype::Bf16, bits) * factor).collect()
    };
    let twice = scaled(4.0);
    for (once, twice) in [(&once.q, &twice.q), (&once.k, &twice.k), (&once.v, &twice.v)] {
        assert_eq!(times(once, 4.0), times(twice, 1.0));
    }
}

fn what_cannot_be_is_refused_by_name() {
    let attention = support::scheduled(Schedule::Deterministic);
    let problem = Problem::new(sizes(1, (1, 1), (3, 4), 64), Dtype::F16).expect("valid");
    let backward = Backward::new(&problem).expect("it has kernels");
    let qkv = random_input::qkv(&problem, InputKind::Random, 1);
    let (o, lse) = (vec![0; problem.o_len()], vec![0.0; problem.lse_len()]);
    let inputs = GradientInputs::new(HostTensors::from(&qkv), &o, &lse, &o[1..]);
    let error = attention.backward(&backward, &inputs).expect_err("dO is too short");
    assert!(matches!(error, Error::WrongLength { tensor: "dO", expected: 192, got: 191 }), "{error}");
    let wide = Problem::new(sizes(1, (1, 1), (3, 4), 256), Dtype::F16).expect("valid");
    let wide = wide.with_score(Score::Alibi { per_batch: false }).expect("valid");
    assert!(matches!(Backward::new(&wide), Err(Error::Backward { .. })));
}

fn a_plan_takes_the_kernels_of_its_device_and_grid() {
    let of = |model: &DeviceModel, sizes: Sizes| {
        let backward = Backward::new(&Problem::new(sizes, Dtype::Bf16).expect("valid")).expect("kernels");
        let plan = BackwardPlan::of_table(&backward, &model.info()).expect("planned");
        plan.entries()
    };
    let (a100, l4) = (DeviceModel::find("a100").expect("known"), DeviceModel::L4);
    for head_dim in [40, 64, 72, 96, 104, 128] {
        let large = sizes(4, (16, 16), (4096, 4096), head_dim);
        let small = sizes(1, (4, 4), (200, 200), head_dim);
        for entry in [of(DeviceModel::H200, large), of(DeviceModel::H200, small)].concat() {
            assert!(entry.starts_with("bwd_wgmma_"), "{entry}");
        }
        let width = if head_dim > 64 { 128 } else { 64 };
        let [keys, keys_of_small] = if width == 128 { ["m32n64_w4"; 2] } else { ["m32n128_w4", "m64n64_w4"] };
        // Five products where memory is fast enough for dS.
        for (model, [first, second]) in [(a100, ["dkvds", "dqds"]), (l4, ["dq", "dkv"])] {
            let entries = of(model, large);
            assert!(entries[0].starts_with(&format!("bwd_{first}_bf16_d{width}_")), "{entries:?}");
            assert!(entries[1].starts_with(&format!("bwd_{second}_bf16_d{width}_")), "{entries:?}");
            assert!(entries.iter().any(|entry| entry.contains(keys)), "{entries:?}");
            // Not one CTA an SM: blocks of 64 rows are on twice as many.
            let entries = of(model, small);
            assert!(entries.iter().any(|entry| entry.contains(keys_of_small)), "{entries:?}");
        }
    }
    // Where the driver encodes no tensor maps the plan says so, and takes kernels that need none.
    let mut old = DeviceModel::H200.info();
    old.has_tensor_maps = false;
    for rows in [600, 200] {
        let problem = Problem::new(sizes(1, (4, 4), (rows, rows), 64), Dtype::F16).expect("valid");
        let plan = BackwardPlan::of_table(&Backward::new(&problem).expect("kernels"), &old).expect("planned");
        assert_eq!(plan.statistics_ctas().is_some(), rows == 600, "five products, or seven");
        for step in plan.steps() {
            assert!(!step.kernel().entry.contains("wgmma"), "{}", step.kernel().entry);
            assert!(matches!(step.obstacle(), Some(Error::NoTensorMaps { .. })), "{:?}", step.obstacle());
        }
    }
    let problem = Problem::new(sizes(1, (4, 4), (200, 200), 64), Dtype::F16).expect("valid");
    let backward = Backward::new(&problem).expect("kernels");
    // Every kernel of the table is among those that are verified, the ones that are taken first.
    let plans = BackwardPlan::all_of_table(&backward, &DeviceModel::H200.info()).expect("planned");
    let entries: BTreeSet<String> = plans.iter().flat_map(BackwardPlan::entries).collect();
    let of_width =
        BACKWARD_VARIANTS.iter().filter(|of| of.row.score.is_plain() && of.entry.contains("_f16_d64_"));
    // Widths above 128 are of mma.sync everywhere, and fit where a CTA has 99 KB.
    for model in [DeviceModel::H200, a100, l4] {
        for entry in of(model, sizes(1, (4, 4), (200, 200), 136)) {
            assert!(entry.contains("_d256_"), "{entry}");
        }
    }
    assert_eq!(entries.len(), of_width.count(), "{entries:?}");
    let taken = of(DeviceModel::H200, sizes(1, (4, 4), (200, 200), 64));
    let of_f16: Vec<String> = taken.iter().map(|name| name.replace("bf16", "f16")).collect();
    assert_eq!(plans[0].entries(), of_f16);
}
