//! What plans are made of, and why.

mod grouped;
mod merging;
mod packed;
mod relatives;

use super::profile::Profile;
use super::*;
use crate::device::model::DeviceModel;
use crate::module::tests::library;
use crate::problem::{ElementStrides, Layout, Sizes};
use kernels_gpu::geometry;
use kernels_gpu::row::{Accumulation, Dtype, HEAD_DIMS, Isa, Row};
use kernels_gpu::steps::StepRow;
use kernels_gpu::table::{VARIANTS, row_of};

/// A usual row, for tests to vary.
pub(crate) const ROW: Row = Row { stages: 2, ..row_of("fwd_f16_d64_m64n64_w4s3c1") };
const TALL: Row = Row { block_m: 128, warp_rows: 32, ..ROW };
const LOW: Row = Row { block_m: 32, ..ROW };
pub(crate) const SPLIT: Row = Row { block_m: 16, schedule: Schedule::Split, ..ROW };
const TALL_SPLIT: Row = Row { schedule: Schedule::Split, ..ROW };
pub(crate) const PERSISTENT: Row = Row { schedule: Schedule::Persistent, ..ROW };

/// A row with wgmma, for tests to vary, and one that splits keys.
pub(crate) const WGMMA: Row =
    Row { schedule: Schedule::Grid, ..row_of("fwd_wgmma_f16_d128_m128n128_w12s3c1_persistent") };
pub(crate) const WGMMA_SPLIT: Row = Row { schedule: Schedule::Split, ..WGMMA };
/// The same without.
const WIDE: Row = Row { isa: Isa::Mma, block_n: 64, warps: 4, stages: 1, warp_rows: 32, ..WGMMA };
const WIDE_SPLIT: Row = Row { block_m: 16, warp_rows: 16, schedule: Schedule::Split, ..WIDE };

fn problem(batch: u32, seqlen: u32) -> Problem {
    shaped([batch, 8, 2, seqlen, seqlen, 64])
}

fn shaped([batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim]: [u32; 6]) -> Problem {
    let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
    Problem::new(sizes, Dtype::F16).expect("valid")
}

/// A device of so many SMs that holds one CTA of any row with over 50 KB on each, two of the others.
fn info(sm: u32, sm_count: u32) -> DeviceInfo {
    DeviceInfo { sm, sm_count, has_tensor_maps: sm >= 90, ..DeviceModel::L4.info() }
}

fn planner(rows: &[Row], device: &DeviceInfo) -> Planner {
    Planner::new(&library(rows), device)
}

fn with(splits: Splits) -> PlanOptions {
    PlanOptions { splits, ..PlanOptions::new() }
}

fn merged(splits: u32, combine: Combine) -> PlanOptions {
    PlanOptions { combine, ..with(Splits::Count(splits)) }
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
    let plan = planner.plan(&problem, &merged(5, Combine::Kernel)).expect("planned");
    // 20 packed rows are 2 blocks of 16; 16 blocks of keys are 4 splits of 4.
    assert_eq!(
        (plan.schedule(), plan.tiles(), plan.splits(), plan.split_keys()),
        (Schedule::Split, 12, 4, 256)
    );
    assert_eq!((plan.grid(), plan.combine_grid()), (12 * 4, 3 * 8 * 5));
    assert_eq!(plan.combine().map(|kernel| kernel.entry.as_str()), Some("combine_f16"));
    let rows = 4 * 3 * 8 * 5;
    assert_eq!(plan.workspace_bytes(), COUNTERS_BYTES + (rows * 65 * 4_u64).next_multiple_of(256));
    let at = Addresses { o: 64, lse: 80, workspace: 1 << 20, ..Addresses::default() };
    let (forward, combine) = (plan.params(&at), plan.combine_params(&at));
    assert_eq!((forward.tile_heads.value, forward.split.splits.value, forward.split.split_blocks), (2, 4, 4));
    assert_eq!(forward.split.partial_o, (1 << 20) + COUNTERS_BYTES);
    assert_eq!(forward.split.partial_lse, (1 << 20) + COUNTERS_BYTES + rows * 64 * 4);
    assert_eq!((forward.split.counters, plan.is_fused()), (0, false));
    assert_eq!(
        (combine.partial_o, combine.partial_lse),
        (forward.split.partial_o, forward.split.partial_lse)
    );
    assert_eq!((combine.rows, combine.splits, combine.chunks.value, combine.o), (120, 4, 16, 64));
    assert!(forward.split.partial_lse + rows * 4 <= at.workspace + plan.workspace_bytes());

    let one = planner.plan(&problem, &with(Splits::Count(1))).expect("planned");
    assert_eq!((one.workspace_bytes(), one.combine().is_none(), one.grid()), (0, true, 12));
    assert_eq!((one.params(&at).split.partial_o, one.params(&at).split.counters), (0, 0));
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
    assert_eq!(decode.schedule(), Schedule::Split);
    assert!(decode.splits() > 8 && decode.grid() > 132, "{}", decode.splits());
    let full = plan([8, 32, 32, 4096, 4096, 64]);
    assert_eq!((full.schedule(), full.splits()), (Schedule::Grid, 1), "all keys at once");
    assert_eq!(plan([1, 2, 2, 64, 64, 64]).splits(), 1, "one block of keys");
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
    for needle in ["estimated to take", "merging the splits", "data sheet", "next best, ", "CTAs an SM"] {
        assert!(decode.contains(needle), "{needle:?} is in: {decode}");
    }
    let asked = reasons([1, 8, 2, 1, 8192, 64], &with(Splits::Size(1024)));
    assert!(asked.contains("a split size was asked for"), "{asked}");
}

#[test]
fn a_profile_decides() {
    let device = DeviceModel::H200.info();
    let library = library(&[LOW, ROW, TALL]);
    let problem = problem(4, 1024);
    let dearer = |dear: &[Row]| {
        let costs = |row: &Row| {
            let block = if dear.contains(row) { 50.0 } else { 0.4 };
            let coefficients = cost::Coefficients { block, block_busy: block, ..cost::Coefficients::START };
            let costs = profile::KernelCosts { whole: Some(coefficients), ..Default::default() };
            (Profile::key(&row.entry_name()), costs)
        };
        let kernels = [LOW, ROW, TALL].iter().map(costs).collect();
        let profile =
            Profile { device: device.name.clone(), sm_count: 132, fitted_to: "a test".to_owned(), kernels };
        let planner = Planner::with_profile(&library, &device, Some(profile));
        planner.plan(&problem, &PlanOptions::new()).expect("planned").kernel().row
    };
    assert_eq!(dearer(&[LOW, ROW]), TALL);
    assert_eq!(dearer(&[LOW, TALL]), ROW);
    assert_eq!(dearer(&[ROW, TALL]), LOW);
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
                    assert!(plan.combine().is_none_or(|combine| combine.row == StepRow::combine(dtype)));
                }
            }
        }
    }
}

#[test]
fn rows_are_selected_by_name_and_f16_accumulation_only_so_or_on_request() {
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
    let asked = PlanOptions { accumulation: Accumulation::F16, ..PlanOptions::new() };
    assert_eq!(planner.plan(&problem(1, 64), &asked).expect("planned").kernel().row, half);
    let in_splits = PlanOptions { accumulation: Accumulation::F16, ..with(Splits::Count(2)) };
    let error = planner.plan(&problem(1, 64), &in_splits).expect_err("no such row").to_string();
    assert!(error.contains("accumulates in float16"), "{error}");
    let error = select("fwd_nothing").expect_err("unknown").to_string();
    assert!(error.contains("fwd_nothing") && error.contains(&ROW.entry_name()), "{error}");
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
        let problem = shaped([3, 10, 2, 64, 64, 64]).with_causal(true);
        let plan = planner.plan(&problem, &options).expect("planned");
        plan.params(&Addresses::default()).heads_together.value
    };
    assert_eq!([1, 4, 7, 14, 29, 30, 1000].map(together), [1, 3, 6, 10, 15, 30, 30]);
}

#[test]
fn kv_heads_of_a_ragged_batch_advance_together_where_keys_are_not_split() {
    let ragged = Row { schedule: Schedule::Ragged, ..ROW };
    let together = |splits| {
        let problem = shaped([3, 8, 2, 640, 640, 64]).with_causal(true).with_sinks(true);
        let plan = planner(&[ragged], &info(80, 58)).plan(&problem, &with(splits)).expect("planned");
        (plan.splits(), plan.params(&Addresses::default()).heads_together.value)
    };
    assert_eq!([1, 2].map(|splits| together(Splits::Count(splits))), [(1, 6), (2, 1)]);
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
    assert_eq!(
        plan.params(&Addresses::default()).heads_together.value,
        600,
        "K and V of 600 of the 2400 query heads fit into half of L2"
    );
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

/// The row with wgmma that is taken for large problems of head_dim 128.
fn preferred() -> Row {
    row_of("fwd_wgmma_f16_d128_m128n128_w12s3c1_persistent")
}

/// The kernel and the reasons for a problem of head_dim 128.
fn explained(planner: &Planner, problem: &Problem, options: &PlanOptions) -> (Row, Vec<Reason>) {
    let (plan, reasons) = planner.explain(problem, options).expect("planned");
    assert_eq!(plan.kernel().row, planner.plan(problem, options).expect("planned").kernel().row);
    (plan.kernel().row, reasons)
}

#[test]
fn wgmma_is_taken_on_the_one_architecture_that_has_it_and_the_plan_says_so() {
    let rows = [WIDE, preferred(), WIDE_SPLIT, WGMMA_SPLIT];
    let problem = shaped([4, 16, 16, 2048, 2048, 128]);
    let taken = |device: &DeviceInfo| explained(&planner(&rows, device), &problem, &PlanOptions::new());
    let (row, reasons) = taken(&DeviceModel::H200.info());
    assert_eq!(row, preferred());
    assert!(reasons.contains(&Reason::Wgmma), "{reasons:?}");
    for sm in [80, 89, 100] {
        let (row, reasons) = taken(&DeviceInfo { sm, ..DeviceModel::H200.info() });
        assert_eq!(row, WIDE, "sm_{sm}");
        assert!(!reasons.iter().any(|reason| matches!(reason, Reason::Wgmma | Reason::NotWgmma { .. })));
    }
    let elsewhere = planner(&rows, &info(89, 58));
    let named = RowSelection::Named(preferred().entry_name()).into();
    let error = elsewhere.plan(&problem, &named).expect_err("none there").to_string();
    assert!(error.contains("does not run on sm_89"), "{error}");
    let kernel = library(&[preferred()]).kernels()[0].clone();
    let error = elsewhere.with_kernel(&problem, &kernel, &PlanOptions::new()).expect_err("none there");
    assert!(error.to_string().contains("is for sm_90a, the device is sm_89"), "{error}");
    let of_table = Planner::of_table(&DeviceModel::L4.info()).plans(&problem, &RowSelection::All.into());
    assert!(of_table.expect("some").iter().all(|plan| plan.kernel().row.isa == Isa::Mma));
}

#[test]
fn without_wgmma_the_plan_says_why() {
    let h200 = DeviceModel::H200.info();
    let why = |rows: &[Row], device: &DeviceInfo, problem: &Problem, options: &PlanOptions| {
        let (row, reasons) = explained(&planner(rows, device), problem, options);
        assert_eq!(row.isa, Isa::Mma);
        let texts: Vec<String> = reasons.iter().map(Reason::to_string).collect();
        texts.into_iter().find(|text| text.starts_with("without wgmma")).expect("a reason")
    };
    let large = shaped([4, 16, 16, 2048, 2048, 128]);
    let all = [WIDE, preferred(), WIDE_SPLIT];
    let none = why(&[WIDE], &h200, &large, &PlanOptions::new());
    assert!(none.contains("there is no kernel with it for this dtype and head_dim"), "{none}");
    let asked = why(&all, &h200, &large, &with(Splits::Count(2)));
    assert!(asked.contains("no kernel with it does what was asked for"), "{asked}");
    let old = DeviceInfo { has_tensor_maps: false, ..h200.clone() };
    let driver = why(&all, &old, &large, &PlanOptions::new());
    assert!(driver.contains("need a driver for CUDA 12.0"), "{driver}");
    let small = why(&all, &h200, &shaped([1, 1, 1, 64, 64, 128]), &PlanOptions::new());
    assert!(small.contains("estimated to be slower"), "{small}");
    let far = far_apart(&large);
    let strides = why(&all, &h200, &far, &PlanOptions::new());
    assert!(strides.contains("do not take K, for its stride of dimension batch"), "{strides}");
    let wide = shaped([1, 129, 1, 200, 4000, 128]).with_lengths(true);
    let group = why(&[WIDE_SPLIT, WGMMA_SPLIT], &h200, &wide, &PlanOptions::new());
    assert!(group.contains("129 query heads share a KV head"), "{group}");
}

/// K's batch entries 2^40 bytes apart, one more than bulk copies take.
fn far_apart(problem: &Problem) -> Problem {
    let strides = problem.strides(TensorRole::K);
    problem.with_strides(TensorRole::K, ElementStrides { batch: 1 << 39, ..strides }).expect("valid")
}

#[test]
fn what_bulk_copies_do_not_take_goes_to_other_kernels_and_is_an_error_by_name() {
    let planner = planner(&[WIDE, preferred(), WIDE_SPLIT, WGMMA_SPLIT], &DeviceModel::H200.info());
    let far = far_apart(&shaped([4, 16, 16, 2048, 2048, 128]));
    for splits in [Splits::Auto, Splits::Count(2), Splits::Size(512)] {
        assert_eq!(planner.plan(&far, &with(splits)).expect("planned").kernel().row.isa, Isa::Mma);
    }
    let all = planner.plans(&far, &RowSelection::All.into()).expect("some");
    assert!(all.iter().all(|plan| plan.kernel().row.isa == Isa::Mma), "only those that can");
    let named = RowSelection::Named(preferred().entry_name()).into();
    let kernel = library(&[preferred()]).kernels()[0].clone();
    let refusals =
        [planner.plan(&far, &named).err(), planner.with_kernel(&far, &kernel, &PlanOptions::new()).err()];
    for refused in refusals {
        let Some(Error::NoTensorMap { tensor, what, dimension, value, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((tensor, what, dimension, value), ("K", "stride", "batch", 1 << 40));
    }
    let near = shaped([4, 16, 16, 2048, 2048, 128]);
    let old = DeviceInfo { has_tensor_maps: false, ..DeviceModel::H200.info() };
    let old = Planner::new(&library(&[WIDE, preferred()]), &old);
    assert!(matches!(old.plan(&near, &named), Err(Error::NoTensorMaps { .. })));
    let crowd = shaped([1, 129, 1, 200, 4000, 128]);
    let split = RowSelection::Named(WGMMA_SPLIT.entry_name()).into();
    let error = planner.plan(&crowd, &split).expect_err("no room").to_string();
    assert!(error.contains("into blocks of 128 rows, and there are 129"), "{error}");
}

#[test]
fn bulk_copies_bring_blocks_of_query_rows_and_of_keys() {
    let planner = planner(&[WGMMA, WGMMA_SPLIT], &DeviceModel::H200.info());
    let problem = shaped([3, 10, 2, 65, 17, 128]).with_layout(Layout::Bshd);
    let at = Addresses { q: 16, k: 32, v: 48, ..Addresses::default() };
    let tensors = |options: &PlanOptions| {
        planner.plan(&problem, options).expect("planned").tensors(&at).expect("with wgmma")
    };
    let [q, k, v] = tensors(&PlanOptions { schedule: Some(Schedule::Grid), ..PlanOptions::new() });
    assert_eq!((q.address, k.address, v.address), (16, 32, 48));
    assert_eq!((q.dims(), q.box_dims()), (&[128, 1, 65, 10, 3][..], &[64, 1, 128, 1, 1][..]));
    assert_eq!(q.strides(), [0, 10 * 256, 256, 65 * 10 * 256]);
    assert_eq!((k.dims(), k.box_dims()), (&[128, 17, 2, 3][..], &[64, 128, 1, 1][..]));
    assert_eq!((k.strides(), v.strides()), (&[2 * 256, 256, 17 * 2 * 256][..], k.strides()));
    // Five heads share a KV head: 25 queries of all of them are 125 rows of a block.
    let [q, _, _] = tensors(&with(Splits::Count(2)));
    assert_eq!((q.dims(), q.box_dims()), (&[128, 5, 65, 2, 3][..], &[64, 5, 25, 1, 1][..]));
    assert_eq!(q.strides(), [256, 10 * 256, 5 * 256, 65 * 10 * 256]);
    let plan = planner.plan(&problem, &with(Splits::Count(1))).expect("planned");
    assert_eq!(plan.params(&at).query_blocks.value, 3, "65 queries, 25 a block");
}

#[test]
fn a_split_size_takes_wgmma_from_64_rows_on() {
    let planner = planner(&[WIDE_SPLIT, WGMMA_SPLIT], &DeviceModel::H200.info());
    let row = |group: u32, seqlen_q| {
        let problem = shaped([1, 2 * group, 2, seqlen_q, 8192, 128]);
        planner.plan(&problem, &with(Splits::Size(2048))).expect("planned").kernel().row
    };
    assert_eq!(
        (row(8, 1), row(1, 63), row(8, 8), row(1, 4096)),
        (WIDE_SPLIT, WIDE_SPLIT, WGMMA_SPLIT, WGMMA_SPLIT)
    );
}

#[test]
fn an_sm_holds_as_many_ctas_with_wgmma_as_registers_and_shared_memory_leave() {
    let options = PlanOptions { schedule: Some(Schedule::Persistent), ..PlanOptions::new() };
    let resident = |row: Row| {
        let row = Row { schedule: Schedule::Persistent, ..row };
        assert_eq!(row.check(), Ok(()));
        let planner = planner(&[row], &DeviceModel::H200.info());
        let problem = Problem::new(
            Sizes { head_dim: row.head_dim, ..*shaped([4, 16, 16, 4096, 4096, 128]).sizes() },
            Dtype::F16,
        );
        let plan = planner.plan(&problem.expect("valid"), &options).expect("planned");
        (plan.resident_ctas(), plan.grid())
    };
    assert_eq!(resident(WGMMA), (1, 132));
    // 72 KB and 128 registers at the start of 256 threads: two CTAs, as min_ctas says.
    let narrow = Row { head_dim: 64, block_m: 64, block_n: 128, warps: 8, min_ctas: 2, ..WGMMA };
    assert_eq!(resident(narrow), (2, 264));
}
