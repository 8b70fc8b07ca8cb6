//! The library on a fake driver, with tensors that the caller put on the device. Each test has a process of its own, as a process
//! opens the driver once. No GPU is used.

use crate::nccl;
use crate::support::{self, fake_driver, fake_nccl, folder, write_kernels};
use check::random_input::{self, InputKind};
use check::reference::reference;
use cust::context::{Context, CurrentContext};
use cust::memory::{CopyDestination, DeviceBuffer, GpuBuffer};
use cust::stream::{Stream, StreamFlags};
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::graph::{Graph, Timeline};
use ferroflash::module::Library;
use ferroflash::{
    Attention, CudaOptions, DeviceTensors, Dtype, ElementStrides, Error, HostTensors, L2Policy, Layout, Plan,
    PlanOptions, Problem, Splits, StreamHandle, TensorRole, Workspace,
};
use kernels_gpu::row::Isa;
use libtest_mimic::Trial;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Names the test that this process runs on a fake driver.
const CHILD: &str = "FERROFLASH_TEST_CHILD";

/// The test whose device has wgmma.
const WGMMA_TEST: &str = "wgmma_is_captured_and_replayed";

/// The test whose streams wait for a flag behind the host's back.
const GONE_TEST: &str = "a_rank_that_is_gone_leaves_the_others_their_devices";
/// The test whose ranks share memory.
const RANKS_TEST: &str = "ranks_over_nccl_compute_what_one_device_does";

const TESTS: &[(&str, fn())] = &[
    ("device_pointers_on_a_callers_stream", device_pointers_on_a_callers_stream),
    ("misaligned_pointers_launch_nothing", misaligned_pointers_launch_nothing),
    (
        "strides_without_contiguous_or_aligned_rows_are_refused",
        strides_without_contiguous_or_aligned_rows_are_refused,
    ),
    ("pointers_outside_memory_are_the_drivers_error", pointers_outside_memory_are_the_drivers_error),
    ("out_of_memory_gives_back_what_was_taken", out_of_memory_gives_back_what_was_taken),
    ("the_callers_context_stays_current", the_callers_context_stays_current),
    ("threads_share_one_device", threads_share_one_device),
    ("splits_are_captured_and_replayed", splits_are_captured_and_replayed),
    (WGMMA_TEST, wgmma_is_captured_and_replayed),
    ("a_capture_without_a_reservation_is_refused", a_capture_without_a_reservation_is_refused),
    ("a_stream_of_another_device_is_refused", a_stream_of_another_device_is_refused),
    ("two_streams_have_a_workspace_each", two_streams_have_a_workspace_each),
    ("threads_split_on_one_stream", threads_split_on_one_stream),
    ("bindings_compute_on_a_gpu_what_they_do_on_the_cpu", crate::bindings::a_gpu_computes_what_the_cpu_does),
    (RANKS_TEST, nccl::ranks_compute_what_one_device_does),
    ("a_world_of_one_is_captured_and_replayed", nccl::a_world_of_one_is_captured_and_replayed),
    ("a_communicator_is_borrowed", nccl::a_communicator_is_borrowed),
    ("a_rank_that_never_comes_is_named", nccl::a_rank_that_never_comes_is_named),
    ("a_rank_that_stalls_is_given_up", nccl::a_rank_that_stalls_is_given_up),
    (GONE_TEST, nccl::a_rank_that_is_gone_leaves_the_others_their_devices),
    ("a_hundred_thousand_calls_on_a_gpu_leave_nothing", crate::bindings::many_calls_on_a_gpu_leave_nothing),
    (
        "a_hundred_thousand_calls_on_the_cpu_leave_nothing",
        crate::bindings::many_calls_on_the_cpu_leave_nothing,
    ),
];

/// The tests of this module.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = |&(name, _): &(&'static str, fn())| {
        Trial::test(format!("fake_library::{name}"), move || {
            in_a_child(name);
            Ok(())
        })
    };
    TESTS.iter().map(trial).collect()
}

fn in_a_child(name: &str) {
    let kernels = folder();
    write_kernels(kernels.path(), |_| ());
    let memory = if [RANKS_TEST, GONE_TEST].contains(&name) { RANKS_MEMORY_BYTES } else { MEMORY_BYTES };
    let output = Command::new(std::env::current_exe().expect("this program"))
        .env(CHILD, name)
        .env("FERROFLASH_LIBCUDA", fake_driver())
        .env("FERROFLASH_LIBNCCL", fake_nccl())
        .env("FERROFLASH_PTX", kernels.path())
        .env("FAKE_DRIVER_MEMORY", memory.to_string())
        .env("FAKE_DRIVER_DEVICES", "3")
        .env("FAKE_DRIVER_SM", if name == WGMMA_TEST { "90" } else { "89" })
        .env("FAKE_DRIVER_PATIENCE_MS", if name == GONE_TEST { "500" } else { "20000" })
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(!stderr.contains("left behind"), "nothing is left on the device: {stderr}");
}

/// Whether this process is to run one test on a fake driver.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs that test; a panic ends the process with an error.
pub(crate) fn child() {
    let name = std::env::var(CHILD).expect("UTF-8");
    let (_, test) = TESTS.iter().find(|(test, _)| *test == name).expect("a test of this name");
    test();
}

const MEMORY_BYTES: u64 = 2 << 20;
/// For ranks, whose mailboxes alone have so much.
const RANKS_MEMORY_BYTES: u64 = 64 << 20;

fn attention() -> Attention {
    let attention = Attention::cuda(&CudaOptions::default()).expect("the fake driver opens");
    assert_eq!(attention.device_name(), "fake driver (no GPU)");
    attention
}

fn problem() -> Problem {
    support::problem(Dtype::Bf16, [2, 4, 2, 33, 65, 64]).with_layout(Layout::Bshd).with_causal(true)
}

fn address(buffer: &DeviceBuffer<u16>) -> u64 {
    buffer.as_device_ptr().as_raw()
}

fn device_pointers_on_a_callers_stream() {
    let _context = cust::quick_init().expect("the caller's context");
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).expect("the caller's stream");
    let (attention, problem) = (attention(), problem());
    let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 5);
    let device = [&q, &k, &v].map(|tensor| DeviceBuffer::from_slice(tensor).expect("on the device"));
    let o = DeviceBuffer::from_slice(&vec![0xffffu16; problem.o_len()]).expect("on the device");
    let lse = DeviceBuffer::from_slice(&vec![f32::NAN; problem.lse_len()]).expect("on the device");
    let tensors =
        DeviceTensors::new(address(&device[0]), address(&device[1]), address(&device[2]), address(&o))
            .with_lse(Some(lse.as_device_ptr().as_raw()));
    let handle = StreamHandle::from_raw(stream.as_inner().cast());
    // SAFETY: the tensors are as long as the problem says, and outlive the synchronisation below.
    unsafe { attention.forward_device(&problem, &tensors, handle) }.expect("launched");
    stream.synchronize().expect("done");
    let expected = reference(&problem, &q, &k, &v, &|_, _| ());
    let bits = expected.rounded(Dtype::Bf16).o;
    let different = o.as_host_vec().expect("read").into_iter().zip(bits).filter(|(a, b)| a != b).count();
    assert!(different <= problem.o_len() / 1000, "{different} of {}", problem.o_len());
    for (lse, expected) in lse.as_host_vec().expect("read").into_iter().zip(expected.lse) {
        assert!((f64::from(lse) - expected).abs() < 1e-5, "{lse} {expected}");
    }
}

fn misaligned_pointers_launch_nothing() {
    let (attention, problem) = (attention(), problem());
    let good = DeviceTensors::new(1 << 12, 1 << 13, 1 << 14, 1 << 15).with_lse(Some(1 << 16));
    for (name, value, tensors) in [
        ("Q", 4098, DeviceTensors::new(4098, good.k, good.v, good.o)),
        ("K", 8200, DeviceTensors::new(good.q, 8200, good.v, good.o)),
        ("V", 16385, DeviceTensors::new(good.q, good.k, 16385, good.o)),
        ("O", 32772, DeviceTensors::new(good.q, good.k, good.v, 32772)),
        ("LSE", 65538, good.with_lse(Some(65538))),
    ] {
        // SAFETY: nothing is launched.
        let error = unsafe { attention.forward_device(&problem, &tensors, StreamHandle::DEFAULT) };
        let error = error.expect_err("misaligned");
        assert!(
            matches!(error, Error::Misaligned { tensor, value: found, .. } if (tensor, found) == (name, value)),
            "{error}"
        );
    }
}

fn strides_without_contiguous_or_aligned_rows_are_refused() {
    let problem = problem();
    let good = problem.strides(TensorRole::K);
    let error = problem.with_strides(TensorRole::K, ElementStrides { dim: 2, ..good }).expect_err("gaps");
    assert!(matches!(error, Error::NotContiguous { tensor: "K", stride: 2 }), "{error}");
    let error = problem.with_strides(TensorRole::K, ElementStrides { row: good.row + 4, ..good });
    let error = error.expect_err("8 bytes more");
    assert!(matches!(error, Error::Misaligned { tensor: "K", required: 16, .. }), "{error}");
}

fn pointers_outside_memory_are_the_drivers_error() {
    let (attention, problem) = (attention(), problem());
    let tensors = DeviceTensors::new(1 << 12, 1 << 13, 1 << 14, 1 << 15);
    // SAFETY: the fake driver looks before it reads.
    let error = unsafe { attention.forward_device(&problem, &tensors, StreamHandle::DEFAULT) };
    let error = error.expect_err("nothing is allocated there");
    let text = error.to_string();
    assert!(text.contains("cuLaunchKernel") && text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
}

fn out_of_memory_gives_back_what_was_taken() {
    let attention = attention();
    // Q takes half of the memory, K fits, V does not.
    let problem = support::problem(Dtype::F16, [1, 1, 1, 8192, 4097, 64]);
    let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 1);
    let error = attention.forward(&problem, &q, &k, &v, false).expect_err("V does not fit");
    let (requested, free) = (4097 * 128, MEMORY_BYTES - 8192 * 128 - 4097 * 128);
    assert!(
        matches!(error, Error::OutOfMemory { requested: r, free: f } if (r, f) == (requested, free)),
        "{error}"
    );
    assert_eq!(attention.device().memory_free().expect("known"), MEMORY_BYTES);
    let problem = support::problem(Dtype::F16, [1, 1, 1, 64, 64, 64]);
    let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 1);
    attention.forward(&problem, &q, &k, &v, false).expect("the next one fits");
}

fn the_callers_context_stays_current() {
    let problem = problem();
    let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 1);
    let device = attention();
    device.forward(&problem, &q, &k, &v, true).expect("computed");
    assert!(CurrentContext::get_device().is_err(), "no context was current, and none is");
    drop(device);
    let context = cust::quick_init().expect("the caller's context");
    let device = attention();
    device.forward(&problem, &q, &k, &v, true).expect("computed");
    assert!(CurrentContext::get_device().is_ok(), "the caller's context is still current");
    drop((device, context));
}

fn threads_share_one_device() {
    let (attention, problem) = (attention(), support::problem(Dtype::F16, [1, 2, 1, 33, 65, 64]));
    let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 1);
    let expected = attention.forward(&problem, &q, &k, &v, true).expect("computed");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let output = attention.forward(&problem, &q, &k, &v, true).expect("computed");
                assert_eq!(output, expected);
            });
        }
    });
}

/// Tensors of a problem on the device, and what is right.
struct Case {
    problem: Problem,
    inputs: [DeviceBuffer<u16>; 3],
    o: DeviceBuffer<u16>,
    expected: Vec<u16>,
}

impl Case {
    fn new() -> Case {
        Case::of(support::problem(Dtype::Bf16, [2, 4, 2, 3, 700, 64]).with_causal(true))
    }

    fn of(problem: Problem) -> Case {
        let qkv = random_input::qkv(&problem, InputKind::Random, 5);
        let expected = reference(&problem, &qkv[0], &qkv[1], &qkv[2], &|_, _| ());
        let expected = expected.rounded(Dtype::Bf16).o;
        let inputs = qkv.map(|tensor| DeviceBuffer::from_slice(&tensor).expect("on the device"));
        let o = DeviceBuffer::from_slice(&vec![0xffff_u16; problem.o_len()]).expect("on the device");
        Case { problem, inputs, o, expected }
    }

    fn plan(&self, attention: &Attention) -> Plan {
        let options = PlanOptions {
            splits: Splits::Count(4),
            combine: ferroflash::Combine::Kernel,
            ..PlanOptions::new()
        };
        let plan = attention.planner().plan(&self.problem, &options).expect("planned");
        assert!(plan.combine().is_some() && plan.workspace_bytes() > 0);
        plan
    }

    fn tensors(&self) -> DeviceTensors {
        let [q, k, v] = [0, 1, 2].map(|i| address(&self.inputs[i]));
        DeviceTensors::new(q, k, v, address(&self.o))
    }

    /// The launch as a graph, whose capture allocates nothing.
    ///
    /// # Safety
    /// The case's tensors outlive the graph's replays.
    unsafe fn captured(&self, attention: &Attention, plan: &Plan, timeline: &Timeline) -> Graph {
        let free = || attention.device().memory_free().expect("known");
        let reserved = free();
        // SAFETY: the caller's.
        let capture = |stream| unsafe { attention.launch(plan, &self.tensors(), stream) };
        let graph = timeline.capture(capture).expect("captured");
        assert_eq!(free(), reserved, "a launch allocates nothing");
        graph
    }

    fn replayed(&mut self, timeline: &Timeline, graph: &Graph) {
        // SAFETY: who captured it promised that the tensors live.
        unsafe { timeline.replay(graph) }.expect("replayed");
        timeline.finish().expect("done");
        self.check();
    }

    fn launched(&mut self, attention: &Attention, plan: &Plan, timeline: &Timeline) {
        // SAFETY: the tensors are the case's, and the launch is waited for.
        unsafe { attention.launch(plan, &self.tensors(), timeline.stream()) }.expect("launched");
        timeline.finish().expect("done");
        self.check();
    }

    /// Asserts that O is right, and makes it wrong for the next time.
    fn check(&mut self) {
        let o = self.o.as_host_vec().expect("read");
        let different = o.iter().zip(&self.expected).filter(|(a, b)| a != b).count();
        assert!(different <= o.len() / 100, "{different} of {}", o.len());
        self.o.copy_from(&vec![0xffff_u16; o.len()][..]).expect("written");
    }
}

fn device() -> (Arc<CudaDevice>, Attention) {
    let device = Arc::new(CudaDevice::open(0, L2Policy::Default).expect("the fake driver opens"));
    let library = Arc::new(Library::find(None).expect("kernels"));
    let attention = Attention::new(device.clone(), library).expect("new enough");
    (device, attention)
}

fn splits_are_captured_and_replayed() {
    let _context = cust::quick_init().expect("the caller's context");
    let (device, attention) = device();
    let mut case = Case::new();
    let plan = case.plan(&attention);
    let timeline = Timeline::new(&device).expect("a stream");
    // SAFETY: the case's tensors outlive the replays, which are finished each time.
    unsafe {
        attention.reserve(&plan, timeline.stream()).expect("reserved");
        let graph = case.captured(&attention, &plan, &timeline);
        // A larger workspace for later calls leaves the graph its own.
        let options = PlanOptions { splits: Splits::Count(6), ..PlanOptions::new() };
        let larger = attention.planner().plan(&case.problem, &options).expect("planned");
        assert!(larger.workspace_bytes() > plan.workspace_bytes());
        attention.reserve(&larger, timeline.stream()).expect("reserved");
        for _ in 0..3 {
            case.replayed(&timeline, &graph);
        }
        case.launched(&attention, &larger, &timeline);
    }
}

fn wgmma_is_captured_and_replayed() {
    let _context = cust::quick_init().expect("the caller's context");
    let (device, attention) = device();
    let problem = support::problem(Dtype::Bf16, [1, 4, 2, 400, 600, 64]).with_causal(true);
    let [mut first, mut second] = [Case::of(problem), Case::of(problem)];
    let plan = attention.plan(&problem).expect("planned");
    assert_eq!(plan.kernel().row.isa, Isa::Wgmma, "{}", plan.kernel().entry);
    let timeline = Timeline::new(&device).expect("a stream");
    // SAFETY: the cases' tensors outlive the replays, which are finished each time.
    unsafe {
        attention.reserve(&plan, timeline.stream()).expect("reserved");
        // No tensor map was made before: those of the first launch are made while the stream is captured.
        let graph = first.captured(&attention, &plan, &timeline);
        for _ in 0..2 {
            first.replayed(&timeline, &graph);
        }
        second.launched(&attention, &plan, &timeline);
        first.replayed(&timeline, &graph);
    }
}

fn a_capture_without_a_reservation_is_refused() {
    let _context = cust::quick_init().expect("the caller's context");
    let (device, attention) = device();
    let case = Case::new();
    let plan = case.plan(&attention);
    let timeline = Timeline::new(&device).expect("a stream");
    // SAFETY: nothing is launched.
    let captured = timeline.capture(|stream| unsafe { attention.launch(&plan, &case.tensors(), stream) });
    let error = captured.err().expect("there is no workspace yet");
    assert!(matches!(error, Error::AllocationInCapture { .. }), "{error}");
    assert!(error.to_string().contains("call Attention::reserve"), "{error}");
}

fn a_stream_of_another_device_is_refused() {
    let _context = cust::quick_init().expect("the caller's context");
    let (_, attention) = device();
    let case = Case::new();
    let plan = case.plan(&attention);
    let other =
        Context::new(cust::device::Device::get_device(1).expect("a second device")).expect("its context");
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).expect("a stream there");
    let handle = StreamHandle::from_raw(stream.as_inner().cast());
    // One that needs no workspace, so that nothing but the launch looks at the stream.
    let whole = attention.plan(&support::problem(Dtype::Bf16, [2, 4, 2, 3, 64, 64])).expect("planned");
    assert_eq!(whole.workspace_bytes(), 0);
    // SAFETY: the stream lives, and nothing is launched on it.
    let refused = unsafe {
        let [splits, whole] = [&plan, &whole].map(|plan| attention.launch(plan, &case.tensors(), handle));
        [splits, whole, attention.reserve(&plan, handle)]
    };
    for error in refused.map(|refused| refused.expect_err("a stream of device 1")) {
        assert!(matches!(error, Error::ForeignStream { ordinal: 0, .. }), "{error}");
        assert!(error.to_string().contains("belongs to another context"), "{error}");
    }
    drop((stream, other));
}

fn two_streams_have_a_workspace_each() {
    let _context = cust::quick_init().expect("the caller's context");
    let (_, attention) = device();
    let mut case = Case::new();
    let plan = case.plan(&attention);
    let streams =
        [(); 2].map(|()| Stream::new(StreamFlags::NON_BLOCKING, None).expect("the caller's stream"));
    let handles = [0, 1].map(|i| StreamHandle::from_raw(streams[i].as_inner().cast()));
    let free = || attention.device().memory_free().expect("known");
    let before = free();
    // SAFETY: the case's tensors outlive the launches; the streams are released before they are destroyed.
    unsafe {
        for handle in handles {
            attention.launch(&plan, &case.tensors(), handle).expect("launched");
            case.check();
        }
        assert_eq!(before - free(), 2 * ferroflash::workspace_bytes_for(plan.workspace_bytes()));
        let device = attention.device();
        let workspace = Workspace::new(device, plan.workspace_bytes(), handles[0]).expect("memory");
        attention.launch_in(&plan, &case.tensors(), &workspace, handles[0]).expect("launched");
        case.check();
        let error =
            attention.launch_in(&plan, &case.tensors(), &workspace, handles[1]).expect_err("not its own");
        assert!(matches!(error, Error::WorkspaceStream { .. }), "{error}");
        drop(workspace);
        handles.into_iter().for_each(|handle| attention.release(handle));
    }
    assert_eq!(free(), before);
}

fn threads_split_on_one_stream() {
    let attention = attention();
    let problem = support::problem(Dtype::F16, [1, 2, 1, 3, 700, 64]);
    let qkv = random_input::qkv(&problem, InputKind::Random, 1);
    let options = PlanOptions { splits: Splits::Count(4), ..PlanOptions::new() };
    let plan = attention.planner().plan(&problem, &options).expect("planned");
    let forward = || attention.forward_with(&plan, &HostTensors::from(&qkv), true).expect("computed");
    let expected = forward();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(forward(), expected));
        }
    });
}
