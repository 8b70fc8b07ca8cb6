//! Several CTAs that share a block of keys, on the simulator: right whatever the mask, the lengths and how many they are, and always the same.

use crate::support;
use check::random_input::InputKind;
use check::verification::BackwardCase;
use check::workload::Workload;
use ferroflash::{Backward, BackwardPlan, DeviceModel, Dtype, Mask, Problem, Sizes};
use ptx_sim::Schedule;
use std::num::NonZeroU32;

support::trials!(
    any_number_of_ctas_shares_a_block_of_keys,
    packed_sequences_share_blocks_too,
    the_plan_shares_blocks_where_there_are_few,
);

fn sizes([batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim]: [u32; 6]) -> Sizes {
    Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim }
}

/// Computes a case by every kernel, twice, with each of these numbers of CTAs a block of keys, and asserts that the gradients are right and the
/// same both times.
#[track_caller]
fn shared(problem: &Problem, workload: impl Fn(&Problem) -> Workload, kind: InputKind, splits: &[u32]) {
    for &splits in splits {
        let backward = Backward::new(problem).expect("it has kernels");
        let backward = backward.with_query_splits(NonZeroU32::new(splits));
        let case = BackwardCase::new(&backward, workload(problem), (kind, 3), true).expect("a case");
        let attention = support::scheduled(Schedule::Deterministic);
        let (library, device) = (attention.library(), attention.device().info());
        let plans = BackwardPlan::covering(&backward, library, device).expect("planned");
        for plan in plans {
            let first = case.run_plan(&attention, &plan).expect("computed");
            let verdict = case.judge(&first).expect("whole");
            assert!(verdict.passed, "{case} {splits} {:?}: {verdict}", plan.entries());
            let again = case.run_plan(&support::scheduled(Schedule::Seeded(8)), &plan).expect("computed");
            assert!(first == again, "{case} {splits} {:?}: another order of CTAs", plan.entries());
            assert_eq!(plan.sum_ctas().is_some(), plan.query_splits() > 1);
        }
    }
}

fn any_number_of_ctas_shares_a_block_of_keys() {
    let of = |of, dtype| Problem::new(sizes(of), dtype).expect("valid");
    // 9 steps of a block or more, of three heads, and more CTAs than there are.
    let grouped = of([1, 3, 1, 150, 140, 64], Dtype::F16);
    shared(&grouped, Workload::of, InputKind::Outliers, &[1, 2, 5, 100]);
    // Under a causal mask blocks have fewer steps than CTAs, and queries before the first key see nothing.
    let causal = of([2, 2, 1, 200, 150, 128], Dtype::Bf16).with_causal(true);
    shared(&causal, Workload::of, InputKind::NotANumber, &[3, 8]);
    let window = Mask::window(Some(70), Some(20)).with_sink_tokens(2);
    let window = of([1, 1, 1, 270, 290, 64], Dtype::Bf16).with_mask(window).expect("valid");
    shared(&window, Workload::of, InputKind::NotANumber, &[4]);
    // dK and dV apart, each shared.
    let wide = of([1, 2, 1, 100, 130, 256], Dtype::F16).with_causal(true);
    shared(&wide, Workload::of, InputKind::NotANumber, &[3]);
}

fn packed_sequences_share_blocks_too() {
    let sequences = [(130, 190), (0, 70), (257, 257), (1, 1), (65, 0)];
    let sum = |of: fn(&(u32, u32)) -> u32| sequences.iter().map(of).sum::<u32>() + 9;
    for (mask, dtype, head_dim) in [(Mask::CAUSAL, Dtype::F16, 128), (Mask::FULL, Dtype::Bf16, 64)] {
        let problem = Problem::new(sizes([5, 2, 1, 257, 257, head_dim]), dtype)
            .and_then(|problem| problem.with_mask(mask))
            .and_then(|problem| problem.with_packed_queries(sum(|of| of.0)))
            .and_then(|problem| problem.with_packed_keys(sum(|of| of.1)));
        let workload = |problem: &Problem| {
            let lengths =
                [sequences.iter().map(|of| of.0).collect(), sequences.iter().map(|of| of.1).collect()];
            Workload::with_sequences(problem, lengths, 7)
        };
        shared(&problem.expect("valid"), workload, InputKind::NotANumber, &[3]);
    }
}

fn the_plan_shares_blocks_where_there_are_few() {
    let splits = |of, asked: u32, device: &DeviceModel| {
        let backward = Backward::new(&Problem::new(sizes(of), Dtype::Bf16).expect("valid"));
        let backward = backward.expect("it has kernels").with_query_splits(NonZeroU32::new(asked));
        let plan = BackwardPlan::of_table(&backward, &device.info()).expect("planned");
        assert_eq!(plan.sum_ctas().is_some(), plan.query_splits() > 1);
        plan.query_splits()
    };
    let few = [3, 4, 1, 3011, 3011, 64];
    // 72 blocks of 128 keys for 132 multiprocessors, 128 steps each.
    assert!(
        splits(few, 0, DeviceModel::H200) > 1 && splits([1, 4, 1, 3011, 3011, 64], 0, DeviceModel::L4) > 1
    );
    assert_eq!([1, 7].map(|asked| splits(few, asked, DeviceModel::H200)), [1, 7]);
    assert_eq!(splits([4, 16, 16, 4096, 4096, 128], 0, DeviceModel::H200), 1, "enough blocks");
    assert_eq!(splits([1, 1, 1, 60, 60, 64], 9, DeviceModel::H200), 1, "one step");
}
