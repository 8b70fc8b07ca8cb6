//! The library on a fake driver, with tensors that the caller put on the device. Each test has a process of its own, as a process
//! opens the driver once. No GPU is used.

use crate::support::{self, fake_driver, folder, write_kernels};
use cust::context::CurrentContext;
use cust::memory::{DeviceBuffer, GpuBuffer};
use cust::stream::{Stream, StreamFlags};
use ferroflash::random_input::{self, InputKind};
use ferroflash::reference::{narrow, reference};
use ferroflash::{
    Attention, CudaOptions, DeviceTensors, Dtype, ElementStrides, Error, Layout, Problem, StreamHandle,
    TensorRole,
};
use libtest_mimic::Trial;
use std::process::{Command, Stdio};

/// Names the test that this process runs on a fake driver.
const CHILD: &str = "FERROFLASH_TEST_CHILD";

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
    let output = Command::new(std::env::current_exe().expect("this program"))
        .env(CHILD, name)
        .env("FERROFLASH_LIBCUDA", fake_driver())
        .env("FERROFLASH_PTX", kernels.path())
        .env("FAKE_DRIVER_MEMORY", MEMORY_BYTES.to_string())
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

const MEMORY_BYTES: u64 = 1 << 20;

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
    let tensors = DeviceTensors {
        q: address(&device[0]),
        k: address(&device[1]),
        v: address(&device[2]),
        o: address(&o),
        lse: Some(lse.as_device_ptr().as_raw()),
        seqlens_k: None,
    };
    let handle = StreamHandle::from_raw(stream.as_inner().cast());
    // SAFETY: the tensors are as long as the problem says, and outlive the synchronisation below.
    unsafe { attention.forward_device(&problem, &tensors, handle) }.expect("launched");
    stream.synchronize().expect("done");
    let expected = reference(&problem, &q, &k, &v, &|_, _| ());
    let bits = expected.o.iter().map(|&o| narrow(Dtype::Bf16, o));
    let different = o.as_host_vec().expect("read").into_iter().zip(bits).filter(|(a, b)| a != b).count();
    assert!(different <= problem.o_len() / 1000, "{different} of {}", problem.o_len());
    for (lse, expected) in lse.as_host_vec().expect("read").into_iter().zip(expected.lse) {
        assert!((f64::from(lse) - expected).abs() < 1e-5, "{lse} {expected}");
    }
}

fn misaligned_pointers_launch_nothing() {
    let (attention, problem) = (attention(), problem());
    let good =
        DeviceTensors { q: 1 << 12, k: 1 << 13, v: 1 << 14, o: 1 << 15, lse: Some(1 << 16), seqlens_k: None };
    for (name, value, tensors) in [
        ("Q", 4098, DeviceTensors { q: 4098, ..good }),
        ("K", 8200, DeviceTensors { k: 8200, ..good }),
        ("V", 16385, DeviceTensors { v: 16385, ..good }),
        ("O", 32772, DeviceTensors { o: 32772, ..good }),
        ("LSE", 65538, DeviceTensors { lse: Some(65538), ..good }),
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
    let tensors =
        DeviceTensors { q: 1 << 12, k: 1 << 13, v: 1 << 14, o: 1 << 15, lse: None, seqlens_k: None };
    // SAFETY: the fake driver looks before it reads.
    let error = unsafe { attention.forward_device(&problem, &tensors, StreamHandle::DEFAULT) };
    let error = error.expect_err("nothing is allocated there");
    let text = error.to_string();
    assert!(text.contains("cuLaunchKernel") && text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
}

fn out_of_memory_gives_back_what_was_taken() {
    let attention = attention();
    // Q takes half of the memory, K fits, V does not.
    let problem = support::problem(Dtype::F16, [1, 1, 1, 4096, 2049, 64]);
    let [q, k, v] = random_input::qkv(&problem, InputKind::Random, 1);
    let error = attention.forward(&problem, &q, &k, &v, false).expect_err("V does not fit");
    let (requested, free) = (2049 * 128, MEMORY_BYTES - 4096 * 128 - 2049 * 128);
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
