//! Plans of packed sequences, and of keys that are wider than their values.

use super::*;
use crate::plan::RowSelection;
use crate::plan::work::Fill;
use crate::problem::{BlockTable, Pages, Score};

fn of_table() -> Planner {
    Planner::of_table(&DeviceModel::H200.info())
}

#[test]
fn packed_sequences_of_like_lengths_have_the_tiles_of_others() {
    for seqlen_q in [1, 5, 300, 4096] {
        let (batch, sizes) = (16, shaped([16, 32, 8, seqlen_q, 4096, 128]).with_lengths(true));
        let packed = sizes.with_packed_queries(batch * seqlen_q).expect("valid");
        let options = PlanOptions { schedule: Some(Schedule::Ragged), ..with(Splits::Count(1)) };
        let [packed, dense] = [packed, sizes].map(|of| of_table().plan(&of, &options).expect("planned"));
        assert_eq!(packed.kernel().entry, dense.kernel().entry);
        assert_eq!(packed.tiles(), dense.tiles());
        assert_eq!(packed.params(&Addresses::default()).ragged.blocks_follow, 0);
    }
}

#[test]
fn blocks_of_packed_sequences_of_unlike_lengths_follow_each_other() {
    let sizes = shaped([16, 8, 8, 4096, 4096, 128]).with_lengths(true);
    let packed = sizes.with_packed_queries(4096 + 15).expect("valid");
    let plan = of_table().plan(&packed, &with(Splits::Count(1))).expect("planned");
    let rows = plan.kernel().row.block_m;
    assert_eq!(plan.params(&Addresses::default()).ragged.blocks_follow, 1);
    assert_eq!(plan.tiles(), 8 * (4111 / rows + 16));
}

#[test]
fn keys_of_192_and_values_of_128_elements_have_a_tile_of_their_own() {
    let of = |head_dim: u32, head_dim_v: u32| {
        shaped([1, 8, 8, 4096, 4096, head_dim]).with_head_dim_v(head_dim_v).expect("valid")
    };
    let planner = of_table();
    let row = |problem: &Problem| {
        planner.plan(problem, &PlanOptions::new()).expect("planned").kernel().row.head_dim
    };
    assert_eq!([(192, 128), (136, 8), (160, 128)].map(|(qk, v)| row(&of(qk, v))), [192; 3]);
    assert_eq!([(192, 192), (200, 128), (128, 192), (256, 128)].map(|(qk, v)| row(&of(qk, v))), [256; 4]);
    // It has no rows with scores, and bulk copies bring no pages of one key.
    assert_eq!(row(&of(192, 128).with_score(Score::Softcap(30.0)).expect("valid")), 256);
    let pages = |page| Pages { page, pages: 4096 / page, table: BlockTable::Rows { entries: 4096 / page } };
    assert_eq!([16, 1].map(|page| row(&of(192, 128).with_pages(pages(page)).expect("valid"))), [192, 256]);
    let named = RowSelection::Named("fwd_wgmma_f16_d192_m128n128_w12s2c1_ragged".to_owned());
    let error = planner.plan(&of(192, 192), &PlanOptions { rows: named, ..PlanOptions::new() });
    assert!(error.expect_err("too wide").to_string().contains("head_dim 192"));
}

#[test]
fn blocks_of_packed_sequences_are_counted_between_the_mean_and_the_longest() {
    let (planner, device) = (of_table(), DeviceModel::H200.info());
    let options = PlanOptions { schedule: Some(Schedule::Ragged), ..with(Splits::Count(1)) };
    let blocks = |problem: &Problem| {
        planner.plan(problem, &options).expect("planned").work(&device, Fill::FULL).filled.blocks
    };
    let packed = |total: u32| {
        let longest = shaped([16, 8, 8, 4096, 4096, 128]).with_causal(true);
        longest.with_packed_queries(total).expect("valid").with_packed_keys(total).expect("valid")
    };
    let dense = |seqlen: u32| shaped([16, 8, 8, seqlen, seqlen, 128]).with_causal(true);
    assert_eq!(blocks(&packed(16 * 4096)), blocks(&dense(4096)));
    assert_eq!(blocks(&packed(16 * 1024)), blocks(&dense(2560)), "(1024 + 4096) / 2");
}

#[test]
fn splits_of_packed_sequences_are_merged_either_way_and_by_kernel_head_for_head() {
    let packed = shaped([3, 8, 2, 9, 4096, 128]).with_packed_queries(21).expect("valid").with_lengths(true);
    let plans = of_table().contestants(&packed).expect("contestants");
    let split = || plans.iter().filter(|plan| plan.splits() > 1);
    assert!(split().any(Plan::is_fused) && split().any(|plan| !plan.is_fused()));
    let by_kernel = split().find(|plan| !plan.is_fused()).expect("one");
    let rows = by_kernel.combine_rows();
    assert_eq!(by_kernel.combine_grid(), 8 * 21_u32.div_ceil(rows));
    let params = by_kernel.combine_params(&Addresses::default());
    assert_eq!((params.ctas_of_head.value, params.sequences), (21_u32.div_ceil(rows), 3));
}
