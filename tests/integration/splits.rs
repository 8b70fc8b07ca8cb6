//! Splits of the keys, lengths on the device and persistent CTAs, on the simulator: what holds between calls rather than within one.

use crate::support::{self, problem, simulator};
use check::random_input::{self, InputKind};
use check::verification::{KernelRun, Oracle, RunKernel, same_bits};
use ferroflash::device::Buffer;
use ferroflash::rounding::widen;
use ferroflash::{
    Attention, Combine, DeviceModel, DeviceTensors, Dtype, Error, HostOperand, HostTensors, Operand, Output,
    PlanOptions, Problem, RowSelection, Schedule, Splits, StreamHandle, Workspace,
};
use kernels_gpu::geometry::SPLITS_MAX;
use kernels_gpu::row::Accumulation;
use std::sync::Arc;

support::trials!(
    with_a_split_size_a_sequence_is_the_same_in_any_batch_and_cache,
    up_to_the_most_splits_are_merged_right,
    rows_that_a_cta_merges_together_have_the_bits_of_rows_merged_alone,
    splits_of_packed_rows_have_the_same_bits_either_way_and_other_rows_are_left_alone,
    a_workspace_serves_one_call_after_the_other,
    a_sequence_without_keys_merges_to_nothing,
    lengths_are_clamped_on_the_device,
);

fn with(splits: Splits) -> PlanOptions {
    PlanOptions { splits, ..PlanOptions::new() }
}

/// `keys` of the keys of every head of one batch entry, and all of its queries, as tensors of their own.
fn cut(of: &Problem, qkv: &[Vec<u16>; 3], batch: usize, keys: usize) -> [Vec<u16>; 3] {
    let sizes = of.sizes();
    let head_dim = sizes.head_dim as usize;
    let head = |rows: u32| rows as usize * head_dim;
    let q_batch = sizes.heads_q as usize * head(sizes.seqlen_q);
    let q = qkv[0][batch * q_batch..][..q_batch].to_vec();
    let [k, v] = [&qkv[1], &qkv[2]].map(|tensor| {
        let heads = sizes.heads_kv as usize;
        let heads = (0..heads).map(|index| &tensor[(batch * heads + index) * head(sizes.seqlen_k)..]);
        heads.flat_map(|rows| rows[..keys * head_dim].to_vec()).collect()
    });
    [q, k, v]
}

fn with_a_split_size_a_sequence_is_the_same_in_any_batch_and_cache() {
    const LENGTHS: [u32; 3] = [57, 131, 300];
    const CACHE: u32 = 300;
    for (dtype, seqlen_q, causal) in [(Dtype::F16, 1, false), (Dtype::Bf16, 3, true)] {
        let batch = problem(dtype, [3, 4, 2, seqlen_q, CACHE, 64]).with_causal(causal);
        let qkv = random_input::qkv(&batch, InputKind::Random, 9);
        let options = with(Splits::Size(128));
        let run = |attention: &Attention, problem: &Problem, qkv: &[Vec<u16>; 3], lengths: Option<&[u32]>| {
            let plan = attention.planner().plan(problem, &options).expect("planned");
            attention
                .forward_with(&plan, &HostTensors::from(qkv).with_seqlens_k(lengths), true)
                .expect("computed")
        };
        let small = simulator(DeviceModel::L4);
        let together = run(&small, &batch.with_lengths(true), &qkv, Some(&LENGTHS));
        assert_eq!(
            together,
            run(&simulator(DeviceModel::H200), &batch.with_lengths(true), &qkv, Some(&LENGTHS))
        );
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let entry = |output: &Output| {
                let [o, lse] = [64, 1].map(|width| 4 * seqlen_q as usize * width);
                let lses = output.lse.as_ref().expect("asked for");
                let bits: Vec<u32> = lses[index * lse..][..lse].iter().map(|lse| lse.to_bits()).collect();
                (output.o[index * o..][..o].to_vec(), bits)
            };
            let first = |output: Output| {
                (output.o, output.lse.expect("asked for").into_iter().map(f32::to_bits).collect::<Vec<_>>())
            };
            let cache = problem(dtype, [1, 4, 2, seqlen_q, CACHE, 64]).with_causal(causal).with_lengths(true);
            let in_cache = cut(&batch, &qkv, index, CACHE as usize);
            assert_eq!(entry(&together), first(run(&small, &cache, &in_cache, Some(&[length]))), "{length}");
            let alone = problem(dtype, [1, 4, 2, seqlen_q, length, 64]).with_causal(causal);
            let tensors = cut(&batch, &qkv, index, length as usize);
            assert_eq!(entry(&together), first(run(&small, &alone, &tensors, None)), "{length}");
        }
    }
}

fn up_to_the_most_splits_are_merged_right() {
    // As many blocks of 64 keys as there may be splits, the last of them ragged.
    let problem = problem(Dtype::F16, [1, 2, 1, 1, 64 * SPLITS_MAX - 5, 128]);
    let qkv = random_input::qkv(&problem, InputKind::Outliers, 4);
    let attention = simulator(DeviceModel::L4);
    let oracle = Oracle::new(&problem, qkv.clone(), None, &[Accumulation::F32], &|_, _| ());
    for count in [1, 2, 3, SPLITS_MAX] {
        let options = &with(Splits::Count(count));
        let plan = attention.planner().plan(&problem, options).expect("planned");
        assert_eq!(plan.splits(), count, "{}", plan.kernel().entry);
        let kernel = &Arc::new(plan.kernel().clone());
        let tensors = HostTensors::from(&qkv);
        let output = attention.run(&KernelRun { kernel, problem: &problem, options, tensors }).expect("ran");
        let verdict = oracle.judge(Accumulation::F32, &output).expect("of the right length");
        assert!(verdict.passed, "{count} splits: {verdict}");
    }
    let error =
        attention.planner().plan(&problem, &with(Splits::Count(SPLITS_MAX + 1))).expect_err("too many");
    assert!(matches!(error, Error::Splits { splits: 257, limit: 256, .. }), "{error}");
}

fn rows_that_a_cta_merges_together_have_the_bits_of_rows_merged_alone() {
    const NARROW: DeviceModel = DeviceModel::L4.with_sm_count(1);
    let (wide, narrow) = (simulator(DeviceModel::L4), simulator(&NARROW));
    // Values of 416 elements have two slices; 40 splits are more than there are groups of any width.
    let shapes = [([1, 3, 1, 5, 500, 64], 3), ([2, 4, 2, 3, 2560, 32], 40), ([1, 5, 5, 9, 700, 416], 5)];
    for (dtype, (shape, splits)) in
        [Dtype::F16, Dtype::Bf16].into_iter().flat_map(|dtype| shapes.map(|of| (dtype, of)))
    {
        let problem = problem(dtype, shape);
        let tensors = random_input::qkv(&problem, InputKind::Outliers, 8);
        let tensors = HostTensors::from(&tensors);
        let options = PlanOptions { combine: Combine::Kernel, ..with(Splits::Count(splits)) };
        let alone = wide.planner().plan(&problem, &options).expect("planned");
        let rows = RowSelection::Named(alone.kernel().entry.clone());
        let together = narrow.planner().plan(&problem, &PlanOptions { rows, ..options }).expect("planned");
        assert!(together.combine_grid() < alone.combine_grid());
        let bits = wide.forward_with(&alone, &tensors, true).expect("computed");
        assert_eq!(
            narrow.forward_with(&together, &tensors, true).expect("computed"),
            bits,
            "{shape:?} {dtype:?}"
        );
    }
}

/// Room for 60 queries of which sequences have 44, one of them none; several rows a merging CTA, slices of V, sinks.
fn splits_of_packed_rows_have_the_same_bits_either_way_and_other_rows_are_left_alone() {
    const NARROW: DeviceModel = DeviceModel::L4.with_sm_count(1);
    let (room, starts) = (60, [0_u32, 3, 3, 43, 44]);
    let lengths = [150, 9, 77, 131];
    for (model, width) in
        [(DeviceModel::L4, 64), (&NARROW, 96), (DeviceModel::H200, 64), (DeviceModel::L4, 416)]
    {
        let attention = simulator(model);
        let batch = problem(Dtype::Bf16, [4, 6, 2, 40, 150, width]).with_lengths(true).with_sinks(true);
        let packed = batch.with_packed_queries(room).expect("packed");
        let qkv = random_input::qkv(&packed, InputKind::Outliers, 13);
        let sinks: Vec<f32> = (0..6).map(|head| head as f32 * 0.5 - 1.0).collect();
        let tensors = HostTensors::from(&qkv)
            .with_seqlens_k(Some(&lengths))
            .with_operand(Operand::CuSeqlensQ, HostOperand::U32(&starts))
            .with_operand(Operand::Sinks, HostOperand::F32(&sinks));
        let planned = |options: &PlanOptions| attention.planner().plan(&packed, options).expect("planned");
        let rows = RowSelection::Named(planned(&with(Splits::Count(3))).kernel().entry.clone());
        let [fused, other] = [Combine::Fused, Combine::Kernel].map(|combine| {
            let rows = rows.clone();
            let plan = planned(&PlanOptions { combine, rows, ..with(Splits::Count(3)) });
            assert_eq!(plan.is_fused(), combine == Combine::Fused);
            assert!(plan.combine_rows() > 1 || plan.is_fused() || model != &NARROW);
            attention.forward_with(&plan, &tensors, true).expect("computed")
        });
        assert!(same_bits(&fused, &other), "{model:?} {width}");
    }
}

fn a_workspace_serves_one_call_after_the_other() {
    let attention = simulator(DeviceModel::L4);
    let device = attention.device();
    let memory = Buffer::new(device, 16 << 20).expect("memory");
    memory.fill(0xff).expect("filled");
    let stream = StreamHandle::DEFAULT;
    // SAFETY: the memory is as long as is said and outlives the workspace.
    let workspace = unsafe { Workspace::from_raw(device.as_ref(), memory.address(), memory.bytes(), stream) }
        .expect("valid");
    let persistent = PlanOptions { schedule: Some(Schedule::Persistent), ..PlanOptions::new() };
    // Fewer tiles than the 58 SMs hold, more, and splits in between, merged in the same launch and in another; each twice.
    let two =
        [Combine::Fused, Combine::Kernel].map(|combine| PlanOptions { combine, ..with(Splits::Count(2)) });
    let shapes = [[1, 2, 1, 150, 70, 64], [3, 20, 2, 300, 65, 64]];
    let options = [&persistent, &two[0], &two[1]];
    for (shape, options) in shapes.into_iter().flat_map(|shape| options.map(|options| (shape, options))) {
        let problem = problem(Dtype::F16, shape).with_causal(true);
        let qkv = random_input::qkv(&problem, InputKind::Random, 2);
        let plan = attention.planner().plan(&problem, options).expect("planned");
        let expected = attention.forward(&problem, &qkv[0], &qkv[1], &qkv[2], false).expect("computed").o;
        let [q, k, v] = [0, 1, 2].map(|i| Buffer::from_elements(device, &qkv[i]).expect("memory"));
        let o = Buffer::new(device, 2 * problem.o_len() as u64).expect("memory");
        for _ in 0..2 {
            o.fill(0xff).expect("filled");
            let [q, k, v, o_at] = [&q, &k, &v, &o].map(Buffer::address);
            let tensors = DeviceTensors::new(q, k, v, o_at);
            // SAFETY: the buffers are as long as the problem says, and the simulator is done when it returns.
            unsafe { attention.launch_in(&plan, &tensors, &workspace, stream) }.expect("launched");
            let mut got = vec![0; problem.o_len()];
            o.read(0, &mut got).expect("read");
            let distance =
                got.iter().zip(&expected).map(|(&a, &b)| (widen(Dtype::F16, a) - widen(Dtype::F16, b)).abs());
            assert!(distance.fold(0.0, f64::max) < 4e-3, "{}", plan.kernel().entry);
            let mut counters = [1_u32; 4096];
            memory.read(0, &mut counters).expect("read");
            assert_eq!(counters, [0; 4096], "the counters of {} are back", plan.kernel().entry);
        }
    }
}

fn a_sequence_without_keys_merges_to_nothing() {
    // Every CTA of a tile counts, those without keys too.
    let attention = simulator(DeviceModel::L4);
    let problem = problem(Dtype::Bf16, [3, 4, 2, 1, 200, 128]).with_lengths(true);
    let qkv = random_input::qkv(&problem, InputKind::Random, 6);
    let tensors = HostTensors::from(&qkv).with_seqlens_k(Some(&[0, 200, 1]));
    let [fused, other] = [Combine::Fused, Combine::Kernel].map(|combine| {
        let options = PlanOptions { combine, ..with(Splits::Count(4)) };
        let plan = attention.planner().plan(&problem, &options).expect("planned");
        assert_eq!((plan.splits(), plan.is_fused()), (4, combine == Combine::Fused));
        attention.forward_with(&plan, &tensors, true).expect("computed")
    });
    assert_eq!(fused, other);
    assert!(fused.o[..4 * 128].iter().all(|&o| widen(Dtype::Bf16, o) == 0.0));
    assert!(fused.lse.expect("asked for")[..4].iter().all(|&lse| lse == f32::NEG_INFINITY));
}

fn lengths_are_clamped_on_the_device() {
    let attention = simulator(DeviceModel::L4);
    let problem = problem(Dtype::F16, [2, 2, 1, 2, 100, 64]).with_lengths(true);
    let qkv = random_input::qkv(&problem, InputKind::Random, 6);
    let options = &with(Splits::Count(2));
    let plan = attention.planner().plan(&problem, options).expect("planned");
    let kernel = &Arc::new(plan.kernel().clone());
    let run = |lengths: &[u32]| {
        let tensors = HostTensors::from(&qkv).with_seqlens_k(Some(lengths));
        attention
            .run(&KernelRun { kernel, problem: &problem, options, tensors })
            .expect("nothing is read outside")
    };
    assert_eq!(run(&[100, u32::MAX]), run(&[101, 100]));
    let empty = run(&[0, 100]);
    assert!(empty.o[..2 * 2 * 64].iter().all(|&o| widen(Dtype::F16, o) == 0.0));
    assert!(empty.lse.expect("always")[..4].iter().all(|&lse| lse == f32::NEG_INFINITY));
    let refused =
        attention.forward_with(&plan, &HostTensors::from(&qkv).with_seqlens_k(Some(&[100, 101])), false);
    assert!(matches!(refused, Err(Error::LengthTooLong { batch: 1, length: 101, seqlen_k: 100 })));
}
