//! Where splits are merged, and how sequences of several lengths are split.

use super::super::work::Fill;
use super::*;

#[test]
fn tiles_merge_their_own_splits_where_that_is_asked_for() {
    let device = DeviceModel::H200.info();
    let planner = planner(&[ROW, SPLIT, TALL_SPLIT, WIDE_SPLIT, WGMMA_SPLIT], &device);
    let plan = |problem: &Problem, options: &PlanOptions| planner.plan(problem, options).expect("planned");
    let decode = shaped([1, 8, 2, 1, 32768, 64]);
    let fused = plan(&decode, &merged(16, Combine::Fused));
    assert!(fused.is_fused() && fused.combine().is_none());
    let at = Addresses { workspace: 1 << 20, ..Addresses::default() };
    let split = fused.params(&at).split;
    assert_eq!((split.counters, split.partial_o), (1 << 20, (1 << 20) + COUNTERS_BYTES));
    // The same in two launches, in as large a workspace.
    let other = plan(&decode, &merged(16, Combine::Kernel));
    assert_eq!((other.is_fused(), other.kernel()), (false, fused.kernel()));
    assert_eq!(other.params(&at).split, SplitParams { counters: 0, ..split });
    assert_eq!(other.workspace_bytes(), fused.workspace_bytes());
    let many = shaped([4097, 1, 1, 1, 512, 64]);
    assert!(!plan(&many, &merged(2, Combine::Auto)).is_fused(), "there are counters for 4096 tiles");
    let refused = planner.plan(&many, &merged(2, Combine::Fused)).expect_err("too many");
    assert!(matches!(refused, Error::TooLarge { limit: COUNTERS_MAX, .. }), "{refused}");
}

#[test]
fn more_rows_than_the_device_holds_ctas_are_merged_several_a_cta() {
    let problem = shaped([3, 8, 2, 5, 1000, 64]);
    let grid = |sms| {
        let plan = planner(&[ROW, SPLIT], &info(80, sms)).plan(&problem, &merged(5, Combine::Kernel));
        plan.expect("planned").combine_grid()
    };
    // 15 SMs hold CTAs for all 120 rows, 14 for 112; those of one take as many as there may be.
    assert_eq!((grid(15), grid(14), grid(1)), (120, 60, 30));
}

#[test]
fn few_rows_are_merged_by_their_tiles_and_many_by_a_kernel_of_their_own() {
    let planner = planner(&[SPLIT, TALL_SPLIT], &DeviceModel::H200.info());
    let fused = |shape, splits| {
        planner.plan(&shaped(shape), &merged(splits, Combine::Auto)).expect("planned").is_fused()
    };
    assert!(fused([1, 4, 1, 1, 8192, 64], 4), "one launch is cheaper than two");
    assert!(!fused([1, 8, 1, 128, 32768, 64], 64), "64 rows of 64 splits, one tile's CTA for each");
}

#[test]
fn kernels_with_wgmma_merge_their_own_splits_too() {
    let planner = planner(&[WGMMA_SPLIT], &DeviceModel::H200.info());
    let problem = shaped([1, 8, 1, 16, 8192, 128]);
    for (combine, is_fused) in [(Combine::Fused, true), (Combine::Kernel, false)] {
        let plan = planner.plan(&problem, &merged(4, combine)).expect("planned");
        assert_eq!((plan.kernel().row, plan.is_fused()), (WGMMA_SPLIT, is_fused));
    }
}

#[test]
fn lengths_divide_each_sequences_own_keys() {
    let planner = planner(&[ROW, SPLIT], &info(80, 58));
    let problem = shaped([3, 8, 2, 5, 1000, 64]);
    let told = |problem: &Problem, splits| {
        let plan = planner.plan(problem, &with(splits)).expect("planned");
        let params = plan.params(&Addresses::default()).split;
        assert_eq!((plan.splits(), plan.split_keys()), (4, 256), "of a sequence with all keys");
        (params.split_blocks, params.split_share)
    };
    assert_eq!(told(&problem, Splits::Count(4)), (4, 0));
    assert_eq!(told(&problem.with_lengths(true), Splits::Count(4)), (1, (1 << 30) - 1));
    // A size says where ranges begin, whatever the length.
    assert_eq!(told(&problem.with_lengths(true), Splits::Size(256)), (4, 0));
    let plan = planner.plan(&problem.with_lengths(true), &with(Splits::Count(4))).expect("planned");
    let half = plan.work(planner.device(), Fill { mean: 0.5, longest: 0.5 });
    assert_eq!((half.filled.blocks, half.filled.blocks_max), (2.0, 2.0), "8 of 16 blocks in 4 ranges");
}
