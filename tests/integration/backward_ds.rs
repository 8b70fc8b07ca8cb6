//! The backward pass that keeps dS in memory, on the simulator: the same bits whatever is computed when and together with what.

use crate::support;
use check::random_input::InputKind;
use check::verification::BackwardCase;
use check::workload::Workload;
use ferroflash::problem::{ElementStrides, TensorRole};
use ferroflash::{
    Attention, Backward, BackwardPlan, DeviceModel, Dtype, Gradients, Mask, Problem, SimOptions, Sizes,
};
use ptx_sim::Schedule;

support::trials!(
    chunks_and_schedules_do_not_change_a_bit,
    a_batch_entry_is_the_same_wherever_it_stands,
    ds_of_blocks_that_nobody_sees_is_neither_written_nor_read,
    no_plan_keeps_ds_over_its_limit_or_of_packed_sequences,
);

fn simulator(schedule: Schedule) -> Attention {
    let options = SimOptions::default().with_model(DeviceModel::H200).with_schedule(schedule);
    Attention::simulator(None, options).expect("compiled kernels")
}

fn sizes(batch: u32, heads: (u32, u32), seqlens: (u32, u32), head_dim: u32) -> Sizes {
    Sizes { batch, heads_q: heads.0, heads_kv: heads.1, seqlen_q: seqlens.0, seqlen_k: seqlens.1, head_dim }
}

/// The plan that keeps dS.
fn plan(backward: &Backward, attention: &Attention) -> Option<BackwardPlan> {
    let all = BackwardPlan::all(backward, attention.library(), attention.device().info()).expect("planned");
    all.into_iter().find(|plan| plan.statistics_ctas().is_some())
}

/// Computes a case by the plan that keeps dS, in `chunks` chunks, and asserts that the gradients are right.
#[track_caller]
fn computed(case: &BackwardCase, chunks: u32, attention: &Attention) -> Gradients {
    let plan = plan(&case.backward, attention).expect("it can keep dS");
    assert_eq!(plan.chunks(), chunks);
    let gradients = case.run_plan(attention, &plan).expect("computed");
    let verdict = case.judge(&gradients).expect("whole");
    assert!(verdict.passed, "{case}: {verdict}");
    gradients
}

fn chunks_and_schedules_do_not_change_a_bit() {
    for (dtype, head_dim, seqlens) in [(Dtype::F16, 64, (150, 200)), (Dtype::Bf16, 128, (300, 140))] {
        let problem = Problem::new(sizes(2, (4, 2), seqlens, head_dim), dtype).expect("valid");
        let backward = Backward::new(&problem.with_causal(true)).expect("it has kernels");
        let of = |bytes| {
            let backward = backward.with_ds_bytes_max(bytes);
            let workload = Workload::of(backward.problem());
            BackwardCase::new(&backward, workload, (InputKind::Outliers, 1), true).expect("a case")
        };
        let attention = simulator(Schedule::Deterministic);
        let whole = computed(&of(u64::MAX), 1, &attention);
        let of_head = plan(&backward, &attention).expect("it can keep dS").workspace_bytes() / 4;
        // Two KV heads of four at most, then one.
        for (bytes, chunks, seed) in
            [(2 * of_head, 2, 1), (of_head, 4, 2), (u64::MAX, 1, 3), (2 * of_head, 2, 4)]
        {
            let attention = simulator(Schedule::Seeded(seed));
            assert_eq!(computed(&of(bytes), chunks, &attention), whole, "{chunks} chunks, seed {seed}");
        }
    }
}

fn a_batch_entry_is_the_same_wherever_it_stands() {
    let attention = simulator(Schedule::Seeded(9));
    let problem = Problem::new(sizes(3, (2, 1), (130, 190), 64), Dtype::F16).expect("valid");
    let mut problem = problem.with_causal(true);
    // All batch entries are one.
    for role in [TensorRole::Q, TensorRole::K, TensorRole::V] {
        let strides = ElementStrides { batch: 0, ..problem.strides(role) };
        problem = problem.with_strides(role, strides).expect("an input");
    }
    let backward = Backward::new(&problem).expect("it has kernels");
    let d_o = ElementStrides { batch: 0, ..backward.strides(TensorRole::O) };
    let backward = backward.with_strides(TensorRole::O, d_o).expect("an input").with_ds_bytes_max(200_000);
    let workload = Workload::of(backward.problem());
    let case = BackwardCase::new(&backward, workload, (InputKind::Random, 2), false).expect("a case");
    let gradients = computed(&case, 3, &attention);
    for of in [gradients.q, gradients.k, gradients.v] {
        let entry = of.len() / 3;
        assert!(of[..entry] == of[entry..2 * entry] && of[..entry] == of[2 * entry..]);
    }
}

fn ds_of_blocks_that_nobody_sees_is_neither_written_nor_read() {
    // The workspace of a case is NaN before; of a window most blocks are hidden, and blocks of both kernels start at other queries.
    let attention = simulator(Schedule::Seeded(4));
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
        computed(&case, 1, &attention);
    }
}

fn no_plan_keeps_ds_over_its_limit_or_of_packed_sequences() {
    let attention = simulator(Schedule::Deterministic);
    let problem = Problem::new(sizes(1, (4, 2), (64, 128), 128), Dtype::Bf16).expect("valid");
    let backward = Backward::new(&problem).expect("it has kernels");
    // Two heads of 64 queries and 128 keys of each KV head.
    let of_head = 2 * 64 * 128 * 2;
    assert!(plan(&backward.with_ds_bytes_max(of_head - 1), &attention).is_none());
    let kept = plan(&backward.with_ds_bytes_max(of_head), &attention).expect("one head fits");
    assert_eq!((kept.chunks(), kept.statistics_ctas()), (2, Some(4)));
    let apart =
        BackwardPlan::new(&backward, attention.library(), attention.device().info()).expect("planned");
    let zeros = 32 * 128 * 2;
    assert_eq!(kept.workspace_bytes(), apart.workspace_bytes() + zeros + of_head);
    let packed = problem.with_packed_queries(64).expect("valid");
    assert!(plan(&Backward::new(&packed).expect("it has kernels"), &attention).is_none());
}
