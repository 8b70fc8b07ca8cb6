//! What a call refuses, asks of the device, and keeps.

use super::*;
use crate::device::model::DeviceModel;
use crate::device::tests::{CAPTURING, FOREIGN, Recorder};
use crate::device::{DeviceInfo, L2Window};
use crate::module::tests::library;
use crate::plan::tests::{ROW, SPLIT, WGMMA};
use crate::plan::{COUNTERS_BYTES, Combine, Splits};
use crate::problem::{ElementStrides, Sizes};
use crate::workspace_bytes_for;
use kernels_gpu::params::{CombineParams, ForwardParams, SplitParams};
use kernels_gpu::row::Dtype;
use std::mem::offset_of;

const SIZES: Sizes = Sizes { batch: 1, heads_q: 4, heads_kv: 2, seqlen_q: 65, seqlen_k: 599, head_dim: 64 };
const TENSORS: DeviceTensors = DeviceTensors::new(1 << 12, 1 << 16, 1 << 18, 1 << 20);

fn setup() -> (Arc<Recorder>, Attention, Problem) {
    let device = Recorder::new(89, 58);
    let attention = Attention::new(device.clone(), library(&[ROW])).expect("new enough");
    (device, attention, Problem::new(SIZES, Dtype::F16).expect("valid"))
}

fn setup_split() -> (Arc<Recorder>, Attention, Problem) {
    let device = Recorder::new(89, 58);
    let attention = Attention::new(device.clone(), library(&[ROW, SPLIT])).expect("new enough");
    (device, attention, Problem::new(SIZES, Dtype::F16).expect("valid"))
}

fn in_splits(splits: u32) -> PlanOptions {
    PlanOptions { splits: Splits::Count(splits), combine: Combine::Kernel, ..PlanOptions::new() }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[test]
fn forward_launches_once_with_its_buffers_and_frees_them() {
    let (device, attention, problem) = setup();
    let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
    for want_lse in [true, false] {
        let output = attention.forward(&problem, &q, &kv, &kv, want_lse).expect("computed");
        assert_eq!(output.o.len(), problem.o_len());
        assert_eq!(output.lse.map(|lse| lse.len()), want_lse.then_some(problem.lse_len()));
    }
    assert_eq!(device.allocated(), 0);
    assert_eq!(*device.loads.lock().expect("unpoisoned"), [ROW.entry_name()], "loaded once");
    let launches = device.launches.lock().expect("unpoisoned");
    let [(grid, with_lse, _), (_, without, _)] = launches.as_slice() else {
        panic!("{} launches", launches.len())
    };
    // Two heads share a KV head and are computed as one of twice the rows.
    assert_eq!(*grid, 2 * 3);
    assert_ne!(u64_at(with_lse, offset_of!(ForwardParams, lse)), 0);
    assert_eq!(u64_at(without, offset_of!(ForwardParams, lse)), 0);
    let pointers: Vec<u64> = (0..4).map(|i| u64_at(with_lse, 8 * i)).collect();
    assert!(pointers.windows(2).all(|pair| pair[0] < pair[1]), "Q, K, V, O in this order: {pointers:?}");
}

#[test]
fn gaps_of_a_strided_output_are_zero() {
    let (_, attention, problem) = setup();
    let strides = ElementStrides { batch: 4 * 65 * 72, head: 65 * 72, row: 72, dim: 1 };
    let problem = problem.with_strides(TensorRole::O, strides).expect("valid");
    let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
    let output = attention.forward(&problem, &q, &kv, &kv, false).expect("computed");
    assert_eq!(output.o[64..72], [0; 8]);
}

#[test]
fn wrong_lengths_and_misaligned_addresses_launch_nothing() {
    let (device, attention, problem) = setup();
    let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
    let error = attention.forward(&problem, &q, &kv[1..], &kv, false).expect_err("K is short");
    assert!(matches!(error, Error::WrongLength { tensor: "K", .. }), "{error}");
    let good = DeviceTensors::new(256, 512, 768, 1024).with_lse(Some(2048));
    let bad = [
        ("Q", DeviceTensors { q: 258, ..good }),
        ("O", DeviceTensors { o: 1032, ..good }),
        ("LSE", DeviceTensors { lse: Some(2), ..good }),
    ];
    for (name, tensors) in bad {
        // SAFETY: the recorder runs nothing.
        let error = unsafe { attention.forward_device(&problem, &tensors, StreamHandle::DEFAULT) };
        assert!(matches!(error, Err(Error::Misaligned { tensor, .. }) if tensor == name), "{name}");
    }
    assert!(device.launches.lock().expect("unpoisoned").is_empty());
    // SAFETY: the recorder runs nothing.
    unsafe { attention.forward_device(&problem, &good, StreamHandle::DEFAULT) }.expect("launched");
    assert_eq!(device.launches.lock().expect("unpoisoned").len(), 1);
}

#[test]
fn splits_are_two_launches_in_a_workspace_that_the_stream_keeps() {
    let (device, attention, problem) = setup_split();
    let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
    let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
    let tensors = HostTensors::new(&q, &kv, &kv);
    for _ in 0..3 {
        attention.forward_with(&plan, &tensors, true).expect("computed");
    }
    assert_eq!(device.allocated(), 1, "the workspace");
    let launches = device.launches.lock().expect("unpoisoned");
    let grids: Vec<u32> = launches.iter().map(|(grid, ..)| *grid).collect();
    assert_eq!(grids, [plan.grid(), plan.combine_grid()].repeat(3));
    let split = offset_of!(ForwardParams, split) + offset_of!(SplitParams, partial_o);
    let partial_o = u64_at(&launches[0].1, split);
    assert_eq!(partial_o, u64_at(&launches[1].1, offset_of!(CombineParams, partial_o)));
    assert_eq!(partial_o, u64_at(&launches[4].1, split), "the same each time");
    assert!(partial_o.is_multiple_of(256));
    assert_eq!(device.loads.lock().expect("unpoisoned").len(), 2, "each kernel once");
}

#[test]
fn splits_that_merge_themselves_are_one_launch() {
    let (device, attention, problem) = setup_split();
    let options = PlanOptions { combine: Combine::Fused, ..in_splits(3) };
    let plan = attention.planner().plan(&problem, &options).expect("planned");
    // SAFETY: the recorder runs nothing.
    unsafe {
        attention.reserve(&plan, StreamHandle::DEFAULT).expect("memory");
        attention.launch(&plan, &TENSORS, StreamHandle::DEFAULT).expect("launched");
    }
    let launches = device.launches.lock().expect("unpoisoned");
    let [(grid, params, _)] = launches.as_slice() else { panic!("{} launches", launches.len()) };
    assert_eq!((*grid, plan.splits()), (plan.grid(), 3));
    let split = offset_of!(ForwardParams, split);
    let at = |field| u64_at(params, split + field);
    let counters = at(offset_of!(SplitParams, counters));
    assert!(counters.is_multiple_of(256) && counters != 0);
    assert_eq!(at(offset_of!(SplitParams, partial_o)), counters + COUNTERS_BYTES);
    assert_eq!(*device.loads.lock().expect("unpoisoned"), [SPLIT.entry_name()], "no kernel merges");
}

#[test]
fn each_stream_has_a_workspace_and_outgrown_ones_are_kept() {
    let (device, attention, problem) = setup_split();
    let plan = |splits| attention.planner().plan(&problem, &in_splits(splits)).expect("planned");
    let [one, other] = [0x1000, 0x2000].map(|raw| StreamHandle::from_raw(raw as *mut _));
    // SAFETY: the recorder's streams are numbers.
    unsafe {
        attention.reserve(&plan(2), one).expect("memory");
        attention.reserve(&plan(2), other).expect("memory");
        attention.reserve(&plan(2), one).expect("there already");
        assert_eq!(device.allocated(), 2);
        attention.reserve(&plan(4), one).expect("memory");
        assert_eq!(device.allocated(), 3, "a captured graph may hold the old one");
        attention.launch(&plan(4), &TENSORS, one).expect("launched");
        attention.launch(&plan(1), &TENSORS, CAPTURING).expect("needs no workspace");
        assert_eq!(device.allocated(), 3);
        attention.release(one);
        assert_eq!(device.allocated(), 1);
        let handles = [(); 2].map(|()| {
            std::thread::scope(|scope| {
                scope.spawn(|| attention.reserve(&plan(2), StreamHandle::PER_THREAD).expect("memory")).join()
            })
        });
        assert!(handles.iter().all(Result::is_ok));
        assert_eq!(device.allocated(), 3, "each thread's own default stream is another one");
    }
}

#[test]
fn nothing_is_allocated_while_a_stream_is_captured() {
    let (device, attention, problem) = setup_split();
    let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
    let bytes = workspace_bytes_for(plan.workspace_bytes());
    // SAFETY: the recorder's streams are numbers.
    let refused = unsafe { attention.launch(&plan, &TENSORS, CAPTURING) }.expect_err("no workspace yet");
    assert!(matches!(refused, Error::AllocationInCapture { needed } if needed == bytes));
    assert!(refused.to_string().contains("call Attention::reserve"), "{refused}");
    // SAFETY: as above; the memory is a number.
    let refused = unsafe { Workspace::from_raw(device.as_ref(), 1 << 32, 1 << 20, CAPTURING) };
    assert!(matches!(refused.err(), Some(Error::AllocationInCapture { .. })));
    assert_eq!(device.allocated() + device.launches.lock().expect("unpoisoned").len(), 0);
}

#[test]
fn a_callers_workspace_must_be_large_enough_aligned_and_of_its_stream() {
    let (device, attention, problem) = setup_split();
    let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
    let needed = plan.workspace_bytes();
    let shared: Arc<dyn Device> = device.clone();
    let memory = Buffer::new(&shared, needed + 512).expect("memory");
    let stream = StreamHandle::from_raw(0x1000 as *mut _);
    // SAFETY: the recorder runs nothing, and the memory outlives the workspaces.
    unsafe {
        let at = |address, bytes| Workspace::from_raw(device.as_ref(), address, bytes, stream);
        let misaligned = at(memory.address() + 16, needed).err().expect("refused");
        assert!(misaligned.to_string().contains("the workspace is misaligned"), "{misaligned}");
        let tiny = at(memory.address(), 255).err().expect("refused");
        assert!(matches!(tiny, Error::WorkspaceTooSmall { needed: 256, got: 255 }), "{tiny}");
        let launch = |workspace: &Workspace, on| attention.launch_in(&plan, &TENSORS, workspace, on);

        let small = at(memory.address(), needed - 1).expect("as such valid");
        let error = launch(&small, stream).expect_err("too small");
        assert!(
            matches!(error, Error::WorkspaceTooSmall { needed: n, got } if (n, got) == (needed, needed - 1)),
            "{error}"
        );
        memory.fill(0xee).expect("filled");
        let good = at(memory.address() + 256, needed).expect("valid");
        let mut start = vec![0xff_u8; COUNTERS_BYTES as usize + 1];
        memory.read(256, &mut start).expect("read");
        let last = start.pop();
        assert_eq!((start.iter().max(), last), (Some(&0), Some(0xee)), "the counters are zeroed");
        let error = launch(&good, StreamHandle::DEFAULT).expect_err("another stream");
        assert!(matches!(error, Error::WorkspaceStream { bound: 0x1000, got: 0 }), "{error}");
        assert!(error.to_string().contains("make one for each stream"), "{error}");
        assert!(device.launches.lock().expect("unpoisoned").is_empty());
        launch(&good, stream).expect("launched");
        assert_eq!(device.launches.lock().expect("unpoisoned").len(), 2);
    }
    assert_eq!(device.allocated(), 1, "the caller's");
}

#[test]
fn no_call_comes_between_the_two_launches_of_another() {
    let (device, attention, problem) = setup_split();
    let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
    let calls = || {
        for _ in 0..100 {
            // SAFETY: the recorder runs nothing.
            unsafe { attention.launch(&plan, &TENSORS, StreamHandle::DEFAULT) }.expect("launched");
        }
    };
    std::thread::scope(|scope| [(); 4].map(|()| scope.spawn(calls)).map(|thread| thread.join().is_ok()));
    let launches = device.launches.lock().expect("unpoisoned");
    let pair = [plan.grid(), plan.combine_grid()];
    let grids: Vec<u32> = launches.iter().map(|(grid, ..)| *grid).collect();
    assert_eq!(grids, pair.repeat(400));
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let (device, attention, problem) = setup_split();
    let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
    // SAFETY: the recorder's streams are numbers.
    unsafe {
        let whole = attention.planner().plan(&problem, &in_splits(1)).expect("planned");
        for plan in [&plan, &whole] {
            let launched = attention.launch(plan, &TENSORS, FOREIGN);
            assert!(matches!(launched, Err(Error::ForeignStream { .. })));
        }
        assert!(matches!(attention.reserve(&plan, FOREIGN), Err(Error::ForeignStream { .. })));
    }
    assert_eq!(device.allocated() + device.launches.lock().expect("unpoisoned").len(), 0);
}

#[test]
fn lengths_are_taken_where_the_problem_has_them_and_only_there() {
    let (device, attention, problem) = setup_split();
    let (q, kv) = (vec![1; problem.q_len()], vec![2; problem.k_len()]);
    let lengths = problem.with_lengths(true);
    let plan = attention.plan(&lengths).expect("planned");
    let forward = |plan: &Plan, seqlens_k| {
        let tensors = HostTensors::new(&q, &kv, &kv).with_seqlens_k(seqlens_k);
        attention.forward_with(plan, &tensors, false)
    };
    let error = forward(&plan, Some(&[SIZES.seqlen_k + 1])).expect_err("too long");
    assert_eq!(error.to_string(), "sequence 0 has 600 keys, its K and V hold 599");
    let error = forward(&plan, Some(&[1, 2])).expect_err("one sequence");
    assert!(matches!(error, Error::WrongLength { tensor: "seqlens_k", expected: 1, got: 2 }), "{error}");
    assert!(matches!(forward(&plan, None), Err(Error::Lengths { .. })));
    let without = attention.plan(&problem).expect("planned");
    assert!(matches!(forward(&without, Some(&[1])), Err(Error::Lengths { .. })));
    let misaligned = DeviceTensors { seqlens_k: Some(4098), ..TENSORS };
    // SAFETY: nothing is launched.
    let error = unsafe { attention.launch(&plan, &misaligned, StreamHandle::DEFAULT) };
    assert!(matches!(error, Err(Error::Misaligned { tensor: "seqlens_k", required: 4, .. })));
    assert!(device.launches.lock().expect("unpoisoned").is_empty());
    forward(&plan, Some(&[0])).expect("a sequence without keys");
    let at = offset_of!(ForwardParams, split) + offset_of!(SplitParams, seqlens_k);
    assert_ne!(u64_at(&device.launches.lock().expect("unpoisoned")[0].1, at), 0);
}

#[test]
fn k_and_v_are_named_to_a_device_that_keeps_them() {
    let info = DeviceInfo { l2_window_bytes: 1 << 30, ..Recorder::new(89, 58).info().clone() };
    let device = Arc::new(Recorder::with_info(info));
    let attention = Attention::new(device.clone(), library(&[ROW, SPLIT])).expect("new enough");
    let problem = Problem::new(SIZES, Dtype::F16).expect("valid");
    let plan = attention.planner().plan(&problem, &in_splits(3)).expect("planned");
    // SAFETY: the recorder runs nothing.
    unsafe { attention.launch(&plan, &TENSORS, StreamHandle::DEFAULT) }.expect("launched");
    let launches = device.launches.lock().expect("unpoisoned");
    let bytes = TENSORS.v - TENSORS.k + 2 * problem.v_len() as u64;
    assert_eq!(launches[0].2, Some(L2Window { address: TENSORS.k, bytes }));
    assert_eq!(launches[1].2, None, "the combine kernel reads neither");
}

#[test]
fn tensor_maps_lie_in_the_parameter_and_are_made_once() {
    use kernels_gpu::params::{DenseParams, WgmmaParams};
    let device = Arc::new(Recorder::with_info(DeviceModel::H200.info()));
    let attention = Attention::new(device.clone(), library(&[WGMMA])).expect("new enough");
    let problem = Problem::new(Sizes { head_dim: 128, ..SIZES }, Dtype::F16).expect("valid");
    let plan = attention.plan(&problem).expect("planned");
    let launch = |tensors: &DeviceTensors, stream| {
        // SAFETY: the recorder runs nothing.
        unsafe { attention.launch(&plan, tensors, stream) }.expect("launched");
        device.encoded()
    };
    attention.preload(&plan).expect("loaded");
    assert_eq!(launch(&TENSORS, StreamHandle::DEFAULT), 3);
    assert_eq!(launch(&TENSORS, CAPTURING), 3, "known by now");
    assert_eq!(launch(&DeviceTensors { o: 1 << 22, ..TENSORS }, StreamHandle::DEFAULT), 3, "O has none");
    assert_eq!(launch(&DeviceTensors { v: 1 << 19, ..TENSORS }, StreamHandle::DEFAULT), 4);
    assert_eq!(device.allocated(), 0);
    let launches = device.launches.lock().expect("unpoisoned");
    for (_, bytes, _) in launches.iter() {
        assert_eq!(bytes.len(), size_of::<DenseParams>());
    }
    let [first, last] = [&launches[0].1, &launches[3].1];
    assert_eq!(first, &launches[1].1, "the maps go by value");
    let map = |bytes: &[u8], at: usize| [0, 8, 16].map(|word| u64_at(bytes, at + word));
    assert_eq!(map(first, offset_of!(WgmmaParams, q)), [TENSORS.q, 128, 1]);
    assert_eq!(map(first, offset_of!(WgmmaParams, k)), [TENSORS.k, 128, 599]);
    assert_eq!(map(first, offset_of!(WgmmaParams, v)), [TENSORS.v, 128, 599]);
    assert_eq!(map(last, offset_of!(WgmmaParams, v))[0], 1 << 19);
    let forward = offset_of!(WgmmaParams, forward);
    assert_eq!(u64_at(first, forward + offset_of!(ForwardParams, o)), TENSORS.o);
    assert_eq!(*device.loads.lock().expect("unpoisoned"), [WGMMA.entry_name()]);
}

#[test]
fn a_device_older_than_the_kernels_is_refused() {
    let error = Attention::new(Recorder::new(75, 40), library(&[ROW])).err().expect("refused");
    assert!(matches!(error, Error::UnsupportedDevice { sm: 75, .. }), "{error}");
}
