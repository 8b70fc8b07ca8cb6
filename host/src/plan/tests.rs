//! What plans are made of, and why.

use super::*;
use crate::device::model::DeviceModel;
use crate::module::tests::library;
use crate::problem::{Layout, Sizes};
use kernels_gpu::row::{Accumulation, Dtype, HEAD_DIMS, Row};
use kernels_gpu::table::{VARIANTS, row_of};

/// A usual row, for tests to vary.
pub(crate) const ROW: Row = row_of("fwd_f16_d64_m64n64_w4s2c1");
const TALL: Row = Row { block_m: 128, warp_rows: 32, ..ROW };
const LOW: Row = Row { block_m: 32, ..ROW };
pub(crate) const SPLIT: Row = Row { block_m: 16, schedule: Schedule::Split, ..ROW };
const TALL_SPLIT: Row = Row { schedule: Schedule::Split, ..ROW };
pub(crate) const PERSISTENT: Row = Row { schedule: Schedule::Persistent, ..ROW };

fn problem(batch: u32, seqlen: u32) -> Problem {
    shaped([batch, 8, 2, seqlen, seqlen, 64])
}

fn shaped([batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim]: [u32; 6]) -> Problem {
    let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
    Problem::new(sizes, Dtype::F16).expect("valid")
}

/// A device of so many SMs that holds one CTA of any row with over 50 KB on each, two of the others.
fn info(sm: u32, sm_count: u32) -> DeviceInfo {
    DeviceInfo { sm, sm_count, ..DeviceModel::L4.info() }
}

fn planner(rows: &[Row], device: &DeviceInfo) -> Planner {
    Planner::new(&library(rows), device)
}

fn with(splits: Splits) -> PlanOptions {
    PlanOptions { splits, ..PlanOptions::new() }
}

#[test]
fn parameters_are_the_problems() {
    let problem = shaped([3, 8, 2, 65, 17, 64]).with_layout(Layout::Bshd).with_causal(true);
    let plan = planner(&[ROW], &info(80, 1)).plan(&problem, &PlanOptions::new()).expect("planned");
    assert_eq!((plan.grid(), plan.tiles(), plan.workspace_bytes(), plan.splits()), (48, 48, 0, 1));
    let at = Addresses { q: 16, k: 32, v: 48, o: 64, lse: 80, ..Addresses::default() };
    let params = plan.params(&at);
    assert_eq!((params.q, params.k, params.v, params.o, params.lse), (16, 32, 48, 64, 80));
    assert_eq!((params.seqlen_q, params.seqlen_k, params.heads_q, params.batch), (65, 17, 8, 3));
    assert_eq!((params.group.value, params.tile_heads.value), (4, 8));
    assert_eq!((params.query_blocks.value, params.causal), (2, 1));
    assert_eq!(params.scale_log2, 0.125 * std::f32::consts::LOG2_E);
    assert_eq!((params.q_strides.row, params.q_strides.head), (8 * 128, 128));
    assert_eq!((params.k_strides.batch, params.v_strides.row), (17 * 2 * 128, 2 * 128));
    assert_eq!(params.o_strides, params.q_strides);
}

#[test]
fn splits_have_a_grid_a_workspace_and_a_combine_kernel() {
    let problem = shaped([3, 8, 2, 5, 1000, 64]);
    let planner = planner(&[ROW, SPLIT], &info(80, 58));
    let plan = planner.plan(&problem, &with(Splits::Count(5))).expect("planned");
    // 20 packed rows are 2 blocks of 16; 16 blocks of keys are 4 splits of 4.
    assert_eq!(
        (plan.schedule(), plan.tiles(), plan.splits(), plan.split_keys()),
        (Schedule::Split, 12, 4, 256)
    );
    assert_eq!((plan.grid(), plan.combine_grid()), (12 * 4, 3 * 8 * 5));
    assert_eq!(plan.combine().map(|kernel| kernel.entry.as_str()), Some("combine_f16"));
    let rows = 4 * 3 * 8 * 5;
    assert_eq!(plan.workspace_bytes(), 256 + (rows * 65 * 4_u64).next_multiple_of(256));
    let at = Addresses { o: 64, lse: 80, workspace: 1 << 20, ..Addresses::default() };
    let (forward, combine) = (plan.params(&at), plan.combine_params(&at));
    assert_eq!((forward.tile_heads.value, forward.split.splits.value, forward.split.split_blocks), (2, 4, 4));
    assert_eq!(forward.split.partial_o, (1 << 20) + 256);
    assert_eq!(forward.split.partial_lse, (1 << 20) + 256 + rows * 64 * 4);
    assert_eq!(
        (combine.partial_o, combine.partial_lse),
        (forward.split.partial_o, forward.split.partial_lse)
    );
    assert_eq!((combine.rows, combine.splits, combine.chunks.value, combine.o), (120, 4, 16, 64));
    assert!(forward.split.partial_lse + rows * 4 <= at.workspace + plan.workspace_bytes());

    let one = planner.plan(&problem, &with(Splits::Count(1))).expect("planned");
    assert_eq!((one.workspace_bytes(), one.combine().is_none(), one.grid()), (0, true, 12));
    assert_eq!(one.params(&at).split.partial_o, 0);
}

#[test]
fn persistent_ctas_are_as_many_as_the_device_holds_or_as_there_are_tiles() {
    let device = info(80, 10);
    let options = PlanOptions { schedule: Some(Schedule::Persistent), ..PlanOptions::new() };
    let planner = planner(&[ROW, PERSISTENT], &device);
    let plan = planner.plan(&problem(4, 640), &options).expect("planned");
    assert_eq!((plan.tiles(), plan.resident_ctas(), plan.grid()), (320, 2, 20));
    assert_eq!(plan.workspace_bytes(), COUNTER_BYTES);
    let at = Addresses { workspace: 4096, ..Addresses::default() };
    assert_eq!((plan.params(&at).persistent.counter, plan.params(&at).persistent.tiles), (4096, 320));
    let few = planner.plan(&problem(1, 64), &options).expect("planned");
    assert_eq!((few.tiles(), few.grid()), (8, 8));
    let unasked = planner.plan(&problem(4, 640), &PlanOptions::new()).expect("planned");
    assert_eq!(unasked.schedule(), Schedule::Grid, "no measurement prefers it");
}

#[test]
fn few_tiles_and_many_keys_are_split_and_full_devices_are_not() {
    let planner = planner(&[LOW, ROW, TALL, SPLIT, TALL_SPLIT], &DeviceModel::H200.info());
    let plan = |shape| planner.plan(&shaped(shape), &PlanOptions::new()).expect("planned");
    let decode = plan([1, 32, 8, 1, 32768, 64]);
    assert_eq!((decode.schedule(), decode.kernel().row.block_m), (Schedule::Split, 16));
    assert!(decode.splits() > 8 && decode.grid() > 132, "{}", decode.splits());
    assert_eq!(plan([8, 32, 32, 4096, 4096, 64]).schedule(), Schedule::Grid);
    assert_eq!(plan([1, 2, 2, 64, 64, 64]).schedule(), Schedule::Grid, "one block of keys");
    let few_heads = plan([1, 8, 1, 128, 32768, 64]);
    assert_eq!((few_heads.schedule(), few_heads.kernel().row.block_m), (Schedule::Split, 64));
}

#[test]
fn a_split_size_makes_the_same_ranges_in_any_batch_and_on_any_device() {
    let options = with(Splits::Size(200));
    for (device, batch, seqlen_k) in [(1, 1, 500), (58, 3, 500), (132, 64, 4000), (1000, 2, 65)] {
        let planner = planner(&[LOW, ROW, SPLIT, TALL_SPLIT], &info(90, device));
        for lengths in [false, true] {
            let problem = shaped([batch, 8, 2, 3, seqlen_k, 64]).with_lengths(lengths);
            let plan = planner.plan(&problem, &options).expect("planned");
            assert_eq!((plan.kernel().row, plan.split_keys()), (SPLIT, 256));
        }
    }
}

#[test]
fn lengths_and_splits_need_kernels_that_can() {
    let device = info(80, 58);
    let lengths = problem(1, 300).with_lengths(true);
    let plan = planner(&[ROW, SPLIT], &device).plan(&lengths, &PlanOptions::new()).expect("planned");
    assert_eq!(plan.schedule(), Schedule::Split);
    let without = planner(&[ROW], &device);
    let error = without.plan(&lengths, &PlanOptions::new()).expect_err("none can").to_string();
    assert!(error.contains("that takes lengths on the device"), "{error}");
    let error = without.plan(&problem(1, 300), &with(Splits::Count(2))).expect_err("none can").to_string();
    assert!(error.contains("that splits the keys"), "{error}");
    let named = PlanOptions { rows: RowSelection::Named(ROW.entry_name()), ..with(Splits::Count(2)) };
    let error =
        planner(&[ROW, SPLIT], &device).plan(&problem(1, 300), &named).expect_err("it cannot").to_string();
    assert!(error.contains("that splits the keys: fwd_f16_d64_m64n64_w4s2c1 is none"), "{error}");
    let kernel = library(&[ROW]).kernels()[0].clone();
    assert!(without.with_kernel(&lengths, &kernel, &PlanOptions::new()).is_err());
    let too_many = planner(&[SPLIT], &device).plan(&problem(1, 300), &with(Splits::Count(257)));
    assert!(matches!(too_many, Err(Error::Splits { splits: 257, limit: 256, .. })));
}

#[test]
fn a_plan_says_why_it_is_what_it_is() {
    let planner = planner(&[LOW, ROW, SPLIT], &info(80, 58));
    let reasons = |shape, options: &PlanOptions| {
        let (plan, reasons) = planner.explain(&shaped(shape), options).expect("planned");
        let unexplained = planner.plan(&shaped(shape), options).expect("planned");
        assert_eq!((plan.grid(), &plan.kernel().entry), (unexplained.grid(), &unexplained.kernel().entry));
        reasons.iter().map(Reason::to_string).collect::<Vec<_>>().join("\n")
    };
    let decode = reasons([1, 8, 2, 1, 16384, 64], &PlanOptions::new());
    for needle in ["the fewest that fill waves", "taken: the kernel", "enough to read"] {
        assert!(decode.contains(needle), "{needle:?} is in: {decode}");
    }
    let large = reasons([8, 32, 32, 512, 512, 64], &PlanOptions::new());
    assert!(large.contains("not taken: with one split"), "{large}");
    let grouped = reasons([8, 32, 8, 512, 512, 64], &PlanOptions::new());
    assert!(grouped.contains("not taken: the kernel"), "{grouped}");
    let asked = reasons([1, 8, 2, 1, 8192, 64], &with(Splits::Size(1024)));
    assert!(asked.contains("a split size was asked for") && asked.contains("8 splits"), "{asked}");
}

#[test]
fn without_a_line_any_kernel_that_fits_is_taken_the_smallest_where_sms_would_idle() {
    // No line names rows with capped registers.
    let rows = [TALL, LOW, ROW].map(|row| Row { min_ctas: 2, ..row });
    let block_m = |sm_count| {
        let planner = planner(&rows, &info(80, sm_count));
        planner.plan(&problem(1, 512), &PlanOptions::new()).expect("one fits").kernel().row.block_m
    };
    assert_eq!((block_m(32), block_m(33), block_m(64), block_m(1000)), (128, 64, 64, 32));
}

#[test]
fn every_head_dim_and_dtype_has_a_plan_on_every_family() {
    let rows: Vec<Row> = VARIANTS.iter().map(|variant| variant.row).collect();
    for sm in [80, 86, 89, 90, 100, 120] {
        let planner = planner(&rows, &info(sm, 58));
        for head_dim in HEAD_DIMS {
            for dtype in [Dtype::F16, Dtype::Bf16] {
                for (seqlen_q, splits) in [(128, Splits::Auto), (1, Splits::Auto), (1, Splits::Size(256))] {
                    let sizes = Sizes { head_dim, seqlen_q, ..*problem(1, 4096).sizes() };
                    let problem = Problem::new(sizes, dtype).expect("valid");
                    let plan = planner.plan(&problem, &with(splits)).expect("planned");
                    assert_eq!((plan.kernel().row.dtype, plan.kernel().row.head_dim), (dtype, head_dim));
                    assert!(plan.combine().is_none_or(|combine| combine.row.dtype == dtype));
                }
            }
        }
    }
}

#[test]
fn rows_are_selected_by_name_and_f16_accumulation_only_so() {
    let half = Row { acc: Accumulation::F16, ..ROW };
    let bf16 = Row { dtype: Dtype::Bf16, ..ROW };
    let planner = planner(&[half, ROW, bf16], &info(89, 58));
    let select = |rows: &str| {
        let rows: RowSelection = rows.parse().expect("any text is a selection");
        planner.plans(&problem(1, 64), &rows.into())
    };
    let names = |rows| select(rows).expect("some").iter().map(|plan| plan.kernel().row).collect::<Vec<_>>();
    assert_eq!(names("best"), [ROW]);
    assert_eq!(names("all"), [half, ROW]);
    assert_eq!(names(&half.entry_name()), [half]);
    let error = select("fwd_nothing").expect_err("unknown").to_string();
    assert!(error.starts_with("no kernel fwd_nothing: there are fwd_f16"), "{error}");
    assert!(matches!(select(&bf16.entry_name()), Err(Error::NoSuchKernel { .. })), "another dtype");
    let wide = shaped([1, 8, 2, 64, 64, 32]);
    assert!(matches!(planner.plan(&wide, &PlanOptions::new()), Err(Error::NoSuchKernel { .. })));
}

#[test]
fn a_grid_over_the_limit_and_shared_memory_over_the_devices_are_refused() {
    let refused = |shape: [u32; 6], options: &PlanOptions| {
        planner(&[ROW, SPLIT], &info(80, 1)).plan(&shaped(shape), options).expect_err("refused")
    };
    let huge = 1 << 15;
    assert!(matches!(refused([huge, huge, 1, 129, 1, 64], &PlanOptions::new()), Error::TooLarge { .. }));
    let rows = refused([1, 1 << 16, 1, 1 << 16, 9, 64], &with(Splits::Count(1)));
    assert!(matches!(rows, Error::TooLarge { what, .. } if what.contains("share a KV head")), "{rows}");
    let ctas = refused([huge, 256, 256, 16, 64 * 256, 64], &with(Splits::Count(256)));
    assert!(matches!(ctas, Error::TooLarge { what, .. } if what.contains("CTAs")), "{ctas}");
    let small = DeviceInfo { smem_opt_in_bytes: 1024, ..info(80, 1) };
    assert!(matches!(
        planner(&[ROW], &small).plan(&problem(1, 1), &PlanOptions::new()),
        Err(Error::NoSuchKernel { .. })
    ));
}

#[test]
fn rows_for_more_shared_memory_are_for_the_devices_that_have_it() {
    let large = Row { stages: 4, block_n: 128, ..TALL };
    let smem = |name: &str| DeviceModel::find(name).expect("a model").info();
    assert!(geometry::smem_bytes(&large) > 99 * 1024 && geometry::smem_bytes(&large) < 163 * 1024);
    let rows = |device| planner(&[ROW, large], &device).plans(&problem(1, 64), &RowSelection::All.into());
    assert_eq!(rows(smem("a100")).expect("some").len(), 2);
    assert_eq!(rows(smem("l4")).expect("some").len(), 1);
    let kernel = library(&[large]).kernels()[0].clone();
    let refused = planner(&[large], &smem("l4")).with_kernel(&problem(1, 64), &kernel, &PlanOptions::new());
    assert!(refused.expect_err("too much").to_string().contains("the device has 101376"));
}

#[test]
fn heads_together_divide_the_heads() {
    let planner = planner(&[ROW], &info(80, 1));
    let together = |asked| {
        let options = PlanOptions { heads_together: Some(asked), ..PlanOptions::new() };
        let plan = planner.plan(&shaped([3, 10, 2, 64, 64, 64]), &options).expect("planned");
        plan.params(&Addresses::default()).heads_together.value
    };
    assert_eq!([1, 4, 7, 14, 29, 30, 1000].map(together), [1, 3, 6, 10, 15, 30, 30]);
}

#[test]
fn causal_blocks_are_taken_longest_first_and_folded_where_two_an_sm_run_at_once() {
    let order = |batch, causal| {
        let problem = shaped([batch, 8, 2, 640, 640, 64]).with_causal(causal);
        let plan = planner(&[ROW], &info(80, 58)).plan(&problem, &PlanOptions::new()).expect("planned");
        let params = plan.params(&Addresses::default());
        (plan.grid(), params.heads_together.value, params.ascending_blocks)
    };
    assert_eq!(order(1, true), (80, 8, 5), "58 SMs hold 116");
    assert_eq!(order(2, true), (160, 16, 0));
    assert_eq!(order(1, false), (80, 1, 0));
    let many = shaped([300, 8, 2, 640, 640, 64]).with_causal(true);
    let plan = planner(&[ROW], &info(80, 58)).plan(&many, &PlanOptions::new()).expect("planned");
    assert_eq!(plan.params(&Addresses::default()).heads_together.value, 2400);
}

#[test]
fn the_window_holds_k_and_v_or_what_fits() {
    let device = DeviceInfo { l2_window_bytes: 1 << 20, ..info(90, 1) };
    let plan = |seqlen| {
        planner(&[ROW], &device)
            .plan(&shaped([1, 1, 1, 64, seqlen, 64]), &PlanOptions::new())
            .expect("planned")
    };
    let window = |seqlen, k, v| plan(seqlen).l2_window(k, v).map(|window| (window.address, window.bytes));
    assert_eq!(window(64, 8192, 16384), Some((8192, 16384)), "8 KB each, side by side");
    assert_eq!(window(64, 1 << 30, 8192), Some((8192, 8192)), "far apart: V");
    assert_eq!(window(1 << 20, 0, 1 << 27), Some((1 << 27, 1 << 20)), "too long");
    let none = planner(&[ROW], &info(90, 1)).plan(&problem(1, 64), &PlanOptions::new()).expect("planned");
    assert_eq!(none.l2_window(0, 0), None);
}
