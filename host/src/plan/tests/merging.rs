//! Where splits are merged.

use super::*;

#[test]
fn tiles_merge_their_own_splits_where_that_is_asked_for() {
    let device = DeviceModel::H200.info();
    let planner = planner(&[ROW, SPLIT, TALL_SPLIT, WIDE_SPLIT, WGMMA_SPLIT], &device);
    let explain = |problem: &Problem, options: &PlanOptions| {
        let (plan, reasons) = planner.explain(problem, options).expect("planned");
        let because = reasons.into_iter().find_map(|reason| match reason {
            Reason::Combine { fused, because, .. } => Some((fused, because)),
            _ => None,
        });
        (plan, because)
    };
    let decode = shaped([1, 8, 2, 1, 32768, 64]);
    let (unasked, because) = explain(&decode, &PlanOptions::new());
    let most = preference::FUSED_PARTIAL_BYTES;
    assert_eq!(because, Some((unasked.tile_partial_bytes() <= most, WhyCombine::Bytes { most })));
    let (fused, because) = explain(&decode, &merged(unasked.splits(), Combine::Fused));
    assert_eq!(because, Some((true, WhyCombine::Asked)));
    assert!(fused.is_fused() && fused.combine().is_none());
    let at = Addresses { workspace: 1 << 20, ..Addresses::default() };
    let split = fused.params(&at).split;
    assert_eq!((split.counters, split.partial_o), (1 << 20, (1 << 20) + COUNTERS_BYTES));
    // The same in two launches, in as large a workspace.
    let (other, because) = explain(&decode, &merged(fused.splits(), Combine::Kernel));
    assert_eq!((because, other.is_fused()), (Some((false, WhyCombine::Asked)), false));
    assert_eq!(other.params(&at).split, SplitParams { counters: 0, ..split });
    assert_eq!(other.workspace_bytes(), fused.workspace_bytes());
    let tall = shaped([1, 8, 1, 128, 32768, 64]);
    let (plan, because) = explain(&tall, &merged(8, Combine::Auto));
    assert_eq!(plan.tile_partial_bytes(), 8 * 16384, "64 rows of 64 elements in float32 are 16 KB a split");
    assert_eq!(because, Some((plan.tile_partial_bytes() <= most, WhyCombine::Bytes { most })));
    assert_eq!(explain(&tall, &merged(1, Combine::Auto)).1, None, "there is nothing to merge");
    let many = shaped([4097, 1, 1, 1, 512, 64]);
    let (_, because) = explain(&many, &merged(2, Combine::Auto));
    assert_eq!(because, Some((false, WhyCombine::Tiles { most: COUNTERS_MAX })));
    let refused = planner.plan(&many, &merged(2, Combine::Fused)).expect_err("too many");
    assert!(matches!(refused, Error::TooLarge { limit: COUNTERS_MAX, .. }), "{refused}");
}

#[test]
fn kernels_with_wgmma_merge_their_own_splits_too() {
    let planner = planner(&[WIDE_SPLIT, WGMMA_SPLIT], &DeviceModel::H200.info());
    let problem = shaped([1, 8, 1, 16, 8192, 128]);
    for (combine, is_fused) in [(Combine::Fused, true), (Combine::Kernel, false)] {
        let plan = planner.plan(&problem, &merged(4, combine)).expect("planned");
        assert_eq!((plan.kernel().row, plan.is_fused()), (WGMMA_SPLIT, is_fused));
    }
}
