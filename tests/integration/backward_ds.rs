//! The backward pass that keeps dS in memory, on the simulator: the same bits in one launch or several, whatever is computed when and together
//! with what.

use crate::support;
use check::random_input::InputKind;
use check::verification::BackwardCase;
use check::workload::Workload;
use ferroflash::problem::{ElementStrides, TensorRole};
use ferroflash::{Attention, Backward, BackwardPlan, Dtype, GradientInputs, Gradients, Mask, Problem, Sizes};
use kernels_gpu::row::Isa;
use ptx_sim::Schedule;
use std::num::NonZeroU32;

support::trials!(
    chunks_and_schedules_do_not_change_a_bit,
    a_batch_entry_is_the_same_wherever_it_stands,
    ds_of_blocks_that_nobody_sees_is_neither_written_nor_read,
    no_plan_keeps_ds_over_its_limit,
    packed_sequences_of_any_length_are_right_by_five_products,
    a_packed_sequence_is_the_same_wherever_it_stands,
    pairs_of_mma_sync_are_right_whatever_is_computed_when,
);

fn sizes(batch: u32, heads: (u32, u32), seqlens: (u32, u32), head_dim: u32) -> Sizes {
    Sizes { batch, heads_q: heads.0, heads_kv: heads.1, seqlen_q: seqlens.0, seqlen_k: seqlens.1, head_dim }
}

/// The plans with wgmma that keep dS: of one launch, or of pairs of launches.
fn plans(backward: &Backward, attention: &Attention) -> Vec<BackwardPlan> {
    plans_of(Isa::Wgmma, backward, attention)
}

fn plans_of(isa: Isa, backward: &Backward, attention: &Attention) -> Vec<BackwardPlan> {
    let mut all =
        BackwardPlan::all(backward, attention.library(), attention.device().info()).expect("planned");
    all.retain(|plan| plan.statistics_ctas().is_some());
    for plan in &all {
        let isas: Vec<Isa> = plan.steps().iter().map(|step| step.kernel().row.isa).collect();
        assert!(isas.iter().all(|isa| *isa == isas[0]), "{:?} are of two families", plan.entries());
    }
    all.retain(|plan| plan.steps()[0].kernel().row.isa == isa);
    all
}

/// Computes a case by all plans that keep dS, and asserts that the gradients are right and the same. Of each plan, `kept` has how often it
/// launches its kernels, and of how many KV heads it keeps dS.
#[track_caller]
fn computed(case: &BackwardCase, kept: &[(u32, u32)], attention: &Attention) -> Gradients {
    computed_by(&plans(&case.backward, attention), case, kept, attention)
}

/// As [`computed`], by these plans.
#[track_caller]
fn computed_by(
    plans: &[BackwardPlan],
    case: &BackwardCase,
    kept: &[(u32, u32)],
    attention: &Attention,
) -> Gradients {
    assert_eq!(plans.iter().map(|plan| (plan.chunks(), plan.heads_kept())).collect::<Vec<_>>(), kept);
    let mut gradients = plans.iter().map(|plan| case.run_plan(attention, plan).expect("computed"));
    let first = gradients.next().expect("it can keep dS");
    let verdict = case.judge(&first).expect("whole");
    assert!(verdict.passed, "{case}: {verdict}");
    assert!(gradients.all(|of_plan| of_plan == first), "{case}: the plans differ");
    first
}

fn chunks_and_schedules_do_not_change_a_bit() {
    for (dtype, head_dim, seqlens) in [(Dtype::F16, 64, (150, 200)), (Dtype::Bf16, 128, (200, 140))] {
        let problem = Problem::new(sizes(2, (4, 2), seqlens, head_dim), dtype).expect("valid");
        let backward = Backward::new(&problem.with_causal(true)).expect("it has kernels");
        let of = |bytes| {
            let backward = backward.with_ds_bytes_max(bytes);
            let workload = Workload::of(backward.problem());
            BackwardCase::new(&backward, workload, (InputKind::Outliers, 1), true).expect("a case")
        };
        let attention = support::scheduled(Schedule::Deterministic);
        // Kernels of two launches are of head_dim 128.
        let kept = |of: &[(u32, u32)]| if head_dim == 64 { of[of.len() - 1..].to_vec() } else { of.to_vec() };
        let whole = computed(&of(u64::MAX), &kept(&[(1, 4), (1, 4)]), &attention);
        let of_head = plans(&backward, &attention)[0].ds_bytes() / 4;
        // Two or three KV heads of four at a time.
        for (heads, of_plans, seed) in [
            (2, [(2, 2), (1, 2)], 1),
            (4, [(1, 4), (1, 4)], 3),
            (2, [(2, 2), (1, 2)], 4),
            (3, [(2, 2), (1, 3)], 5),
            (2, [(2, 2), (1, 2)], 6),
        ] {
            let attention = support::scheduled(Schedule::Seeded(seed));
            let gradients = computed(&of(heads * of_head), &kept(&of_plans), &attention);
            assert_eq!(gradients, whole, "{heads} heads, seed {seed}");
        }
        if head_dim == 128 {
            assert_eq!(computed(&of(of_head), &[(4, 1)], &support::scheduled(Schedule::Seeded(2))), whole);
        }
    }
}

fn a_batch_entry_is_the_same_wherever_it_stands() {
    let attention = support::scheduled(Schedule::Seeded(9));
    let problem = Problem::new(sizes(3, (2, 1), (130, 190), 64), Dtype::F16).expect("valid");
    let mut problem = problem.with_causal(true);
    // All batch entries are one.
    for role in [TensorRole::Q, TensorRole::K, TensorRole::V] {
        let strides = ElementStrides { batch: 0, ..problem.strides(role) };
        problem = problem.with_strides(role, strides).expect("an input");
    }
    let backward = Backward::new(&problem).expect("it has kernels");
    let d_o = ElementStrides { batch: 0, ..backward.strides(TensorRole::O) };
    let backward = backward.with_strides(TensorRole::O, d_o).expect("an input").with_ds_bytes_max(400_000);
    let workload = Workload::of(backward.problem());
    let case = BackwardCase::new(&backward, workload, (InputKind::Random, 2), false).expect("a case");
    let gradients = computed(&case, &[(1, 2)], &attention);
    for of in [gradients.q, gradients.k, gradients.v] {
        let entry = of.len() / 3;
        assert!(of[..entry] == of[entry..2 * entry] && of[..entry] == of[2 * entry..]);
    }
}

fn ds_of_blocks_that_nobody_sees_is_neither_written_nor_read() {
    // The workspace of a case is NaN before; of a window most blocks are hidden, and blocks of both kernels start at other queries.
    let attention = support::scheduled(Schedule::Seeded(4));
    for (head_dim, mask) in [
        (64, Mask::window(Some(40), Some(0))),
        (128, Mask::window(Some(20), Some(90)).with_sink_tokens(3)),
        (64, Mask::CAUSAL.with_chunk(75)),
    ] {
        let dtype = if head_dim == 64 { Dtype::F16 } else { Dtype::Bf16 };
        let problem = Problem::new(sizes(1, (2, 1), (610, 530), head_dim), dtype).expect("valid");
        let backward = Backward::new(&problem.with_mask(mask).expect("valid")).expect("it has kernels");
        let workload = Workload::of(backward.problem());
        let case = BackwardCase::new(&backward, workload, (InputKind::NotANumber, 5), true).expect("a case");
        computed(&case, if head_dim == 64 { &[(1, 1)] } else { &[(1, 1), (1, 1)] }, &attention);
    }
}

fn no_plan_keeps_ds_over_its_limit() {
    let attention = support::scheduled(Schedule::Deterministic);
    let problem = Problem::new(sizes(1, (4, 2), (64, 128), 128), Dtype::Bf16).expect("valid");
    let backward = Backward::new(&problem).expect("it has kernels");
    // Two heads of 64 queries and 128 keys of each KV head.
    let of_head = 2 * 64 * 128 * 2;
    assert!(plans(&backward.with_ds_bytes_max(of_head - 1), &attention).is_empty());
    let [kept] = &plans(&backward.with_ds_bytes_max(of_head), &attention)[..] else { panic!("one plan") };
    assert_eq!((kept.chunks(), kept.statistics_ctas(), kept.ds_bytes()), (2, Some(4), of_head));
    // There is room for all of them, so that CTAs of one launch hardly wait for each other: that plan comes first.
    let both = plans(&backward.with_ds_bytes_max(2 * of_head), &attention);
    assert_eq!(
        both.iter().map(|plan| (plan.steps().len(), plan.ds_bytes())).collect::<Vec<_>>(),
        [(1, 2 * of_head), (2, 2 * of_head)]
    );
    let apart =
        BackwardPlan::new(&backward, attention.library(), attention.device().info()).expect("planned");
    let (zeros, starts) = (32 * 128 * 2, 128);
    assert_eq!(kept.workspace_bytes(), apart.workspace_bytes() + zeros + starts + of_head);
    let counters = 128;
    assert_eq!(both[0].workspace_bytes(), kept.workspace_bytes() + counters + of_head);
    // Of queries and keys, both or none are packed.
    let packed = problem.with_packed_queries(64).expect("valid");
    assert!(plans(&Backward::new(&packed).expect("it has kernels"), &attention).is_empty());
}

/// A pass of packed sequences with so many queries and keys, with room for `behind` rows more.
fn packed(sequences: &[(u32, u32)], mask: Mask, (dtype, head_dim): (Dtype, u32), behind: u32) -> Backward {
    let most = |of: fn(&(u32, u32)) -> u32| sequences.iter().map(of).max().unwrap_or(1).max(1);
    let sum = |of: fn(&(u32, u32)) -> u32| sequences.iter().map(of).sum::<u32>() + behind;
    let longest = (most(|of| of.0), most(|of| of.1));
    let problem = Problem::new(sizes(sequences.len() as u32, (6, 3), longest, head_dim), dtype)
        .and_then(|problem| problem.with_mask(mask))
        .and_then(|problem| problem.with_packed_queries(sum(|of| of.0)))
        .and_then(|problem| problem.with_packed_keys(sum(|of| of.1)));
    Backward::new(&problem.expect("valid")).expect("it has kernels")
}

fn case_of(backward: &Backward, sequences: &[(u32, u32)], kind: InputKind) -> BackwardCase {
    let lengths = [sequences.iter().map(|of| of.0).collect(), sequences.iter().map(|of| of.1).collect()];
    let workload = Workload::with_sequences(backward.problem(), lengths, 7);
    BackwardCase::new(backward, workload, (kind, 3), true).expect("a case")
}

fn packed_sequences_of_any_length_are_right_by_five_products() {
    let attention = support::scheduled(Schedule::Seeded(6));
    let sequences = [(130, 190), (0, 70), (129, 257), (1, 1), (65, 0), (70, 129)];
    let rows = [(Dtype::F16, 64), (Dtype::Bf16, 128)];
    let (all, two) = (&[(1, 3)][..], &[(3, 1), (1, 2)][..]);
    for (mask, kind, row, kept) in [
        (Mask::FULL, InputKind::Random, rows[0], all),
        (Mask::CAUSAL, InputKind::NotANumber, rows[1], two),
        (Mask::window(Some(30), Some(0)).with_sink_tokens(3), InputKind::Outliers, rows[1], two),
    ] {
        let backward = packed(&sequences, mask, row, 9);
        let of_head = plans(&backward, &attention)[0].ds_bytes() / 3;
        let backward = backward.with_ds_bytes_max(of_head * u64::from(kept[kept.len() - 1].1));
        computed(&case_of(&backward, &sequences, kind), kept, &attention);
    }
}

fn a_packed_sequence_is_the_same_wherever_it_stands() {
    const SEQUENCE: (u32, u32) = (130, 190);
    let row = (Dtype::Bf16, 128);
    // How many CTAs share a block of keys would follow from the batch.
    let unshared = |backward: Backward| backward.with_query_splits(NonZeroU32::new(1));
    let alone = unshared(packed(&[SEQUENCE], Mask::CAUSAL, row, 0));
    let alone = case_of(&alone, &[SEQUENCE], InputKind::Random);
    let expected = computed(&alone, &[(1, 3), (1, 3)], &support::scheduled(Schedule::Deterministic));
    for (sequences, at, chunks, seed) in [
        (&[SEQUENCE, (70, 300)][..], 0, 3, 1),
        (&[(257, 64), SEQUENCE], 1, 1, 2),
        (&[(0, 5), (33, 33), SEQUENCE, (1, 129)], 2, 3, 3),
    ] {
        let backward = unshared(packed(sequences, Mask::CAUSAL, row, 0));
        let attention = support::scheduled(Schedule::Seeded(seed));
        let all = plans(&backward, &attention)[0].ds_bytes();
        let backward = backward.with_ds_bytes_max(all / u64::from(chunks));
        let case = case_of(&backward, sequences, InputKind::Random);
        // The rows of the sequence take those of the one alone; the plan is that of everybody.
        let before = |of: fn(&(u32, u32)) -> u32| sequences[..at].iter().map(of).sum::<u32>() as usize;
        let (first_q, first_k) = (before(|of| of.0), before(|of| of.1));
        let (total_q, own) = (sequences.iter().map(|of| of.0 as usize).sum::<usize>(), alone.inputs());
        let given = case.inputs();
        let pasted = |into: &[u16], from: &[u16], first: usize, heads: usize| {
            let (mut all, first) = (into.to_vec(), first * heads * 128);
            all[first..first + from.len()].copy_from_slice(from);
            all
        };
        let lse = |into: &[f32], from: &[f32]| {
            let mut all = into.to_vec();
            for (all, from) in all.chunks_mut(total_q).zip(from.chunks(SEQUENCE.0 as usize)) {
                all[first_q..first_q + from.len()].copy_from_slice(from);
            }
            all
        };
        let qkv = [
            pasted(given.tensors.q, own.tensors.q, first_q, 6),
            pasted(given.tensors.k, own.tensors.k, first_k, 3),
            pasted(given.tensors.v, own.tensors.v, first_k, 3),
        ];
        let (o, d_o) = (pasted(given.o, own.o, first_q, 6), pasted(given.d_o, own.d_o, first_q, 6));
        let [own_d_lse, given_d_lse] = [&own, &given].map(|inputs| inputs.d_lse.expect("it has one"));
        let (all_lse, d_lse) = (lse(given.lse, own.lse), lse(given_d_lse, own_d_lse));
        let inputs = GradientInputs::new(case.workload().tensors(&qkv), &o, &all_lse, &d_o);
        let taken = attention.plan_backward(&backward).expect("planned");
        assert_eq!((taken.chunks(), taken.statistics_ctas().is_some()), (chunks, true));
        let found = attention.backward(&backward, &inputs.with_d_lse(Some(&d_lse))).expect("computed");
        for (name, of, all, first, heads) in [
            ("dQ", &expected.q, &found.q, first_q, 6),
            ("dK", &expected.k, &found.k, first_k, 3),
            ("dV", &expected.v, &found.v, first_k, 3),
        ] {
            let first = first * heads * 128;
            assert!(
                all[first..first + of.len()] == of[..],
                "{name} at {at} of {sequences:?}, {chunks} chunks"
            );
        }
    }
}

fn pairs_of_mma_sync_are_right_whatever_is_computed_when() {
    let window = Mask::window(Some(40), Some(0));
    let sinks = Mask::window(Some(20), Some(90)).with_sink_tokens(3);
    // Keys that end with the first half of a block of dS, or behind it; more keys than queries, and the reverse.
    for (dtype, head_dim, (seqlen_q, seqlen_k), mask, kind) in [
        (Dtype::F16, 64, (150, 190), Mask::FULL, InputKind::Random),
        (Dtype::Bf16, 128, (200, 140), Mask::CAUSAL, InputKind::Outliers),
        (Dtype::Bf16, 64, (70, 420), window, InputKind::NotANumber),
        (Dtype::F16, 128, (310, 250), sinks, InputKind::NotANumber),
        (Dtype::F16, 40, (230, 160), Mask::CAUSAL.with_chunk(75), InputKind::NotANumber),
        (Dtype::Bf16, 72, (140, 180), Mask::FULL.with_intervals(), InputKind::Outliers),
    ] {
        let problem = Problem::new(sizes(1, (4, 2), (seqlen_q, seqlen_k), head_dim), dtype)
            .and_then(|problem| problem.with_mask(mask))
            .expect("valid");
        let backward = Backward::new(&problem).expect("it has kernels");
        let of = |backward: Backward| {
            let workload = Workload::of(backward.problem());
            BackwardCase::new(&backward, workload, (kind, 1), true).expect("a case")
        };
        let computed = |backward: Backward, kept, schedule| {
            let attention = support::scheduled(schedule);
            let plans = plans_of(Isa::Mma, &backward, &attention);
            computed_by(&plans, &of(backward), &[kept], &attention)
        };
        let whole = computed(backward, (1, 2), Schedule::Deterministic);
        let of_head =
            plans_of(Isa::Mma, &backward, &support::scheduled(Schedule::Deterministic))[0].ds_bytes() / 2;
        let of_one_head = backward.with_ds_bytes_max(of_head);
        assert_eq!(computed(of_one_head, (2, 1), Schedule::Seeded(3)), whole, "{problem:?}");
    }
    let sequences = [(130, 190), (0, 70), (129, 257), (1, 1), (65, 0), (70, 129)];
    for (dtype, head_dim, mask) in [(Dtype::F16, 64, Mask::CAUSAL), (Dtype::Bf16, 128, Mask::FULL)] {
        let attention = support::scheduled(Schedule::Seeded(6));
        let backward = packed(&sequences, mask, (dtype, head_dim), 9);
        let plans = plans_of(Isa::Mma, &backward, &attention);
        computed_by(&plans, &case_of(&backward, &sequences, InputKind::NotANumber), &[(1, 3)], &attention);
    }
}
