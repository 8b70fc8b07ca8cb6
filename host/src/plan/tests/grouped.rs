//! Query heads that share a KV head, computed as one.

use super::*;

#[test]
fn kernels_that_do_not_pack_heads_are_told_one_head_of_all_rows() {
    let device = DeviceModel::H200.info();
    let planner = planner(&[WGMMA, WGMMA_SPLIT, WIDE, WIDE_SPLIT], &device);
    let grouped = shaped([3, 12, 4, 50, 200, 128]);
    for problem in [grouped, grouped.with_causal(true), grouped.with_layout(Layout::Bshd)] {
        let all = PlanOptions { rows: RowSelection::All, ..PlanOptions::new() };
        let plans = planner.plans(&problem, &all).expect("plans");
        assert_eq!(plans.len(), 4);
        for plan in plans {
            let (row, params) = (&plan.kernel().row, plan.params(&Addresses::default()));
            assert_eq!((plan.problem(), params.batch), (&problem, 3));
            let expected = match (row.schedule.splits(), problem == grouped) {
                (false, true) => (4, 150, 1, 4, 150_u32.div_ceil(row.block_m)),
                (false, false) => (12, 50, 3, 12, 1),
                (true, _) => (12, 50, 3, 4, 150_u32.div_ceil(geometry::rows_of_block(row, 3))),
            };
            let found = (
                params.heads_q,
                params.seqlen_q,
                params.group.value,
                params.tile_heads.value,
                params.query_blocks.value,
            );
            assert_eq!(found, expected, "{}", plan.kernel().entry);
            assert_eq!(plan.groups_heads(), !row.schedule.splits() && problem == grouped);
            assert_eq!(plan.tiles(), 3 * found.3 * found.4);
        }
    }
}

#[test]
fn a_plan_says_that_heads_are_computed_as_one() {
    let planner = planner(&[WGMMA], &DeviceModel::H200.info());
    let (_, reasons) =
        planner.explain(&shaped([3, 12, 4, 50, 200, 128]), &PlanOptions::new()).expect("a plan");
    assert!(reasons.contains(&Reason::GroupedHeads { heads: 3, rows: 150 }), "{reasons:?}");
}
