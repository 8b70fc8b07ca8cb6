//! The call that bindings share, on a fake driver and on the simulator, against the same call on the CPU.

use crate::support;
use check::random_input::{self, InputKind};
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use ferroflash::Layout;
use ferroflash_call::{Alibi, Call, Dtype, Engine, Pages, Sizes, error::Code, lacking};
use half::bf16;

support::trials!(the_simulator_computes_what_the_cpu_does);

const SIZES: Sizes = Sizes { batch: 2, heads_q: 4, heads_kv: 2, seqlen_q: 3, seqlen_k: 1024, head_dim: 64 };
const USED: [u32; 2] = [1024, 700];

fn inputs() -> [Vec<u16>; 3] {
    let problem = support::problem(ferroflash::Dtype::Bf16, [2, 4, 2, 3, 1024, 64]).with_layout(Layout::Bshd);
    random_input::qkv(&problem, InputKind::Random, 5)
}

/// A causal call without addresses.
fn call() -> Call {
    Call { window_right: Some(0), ..Call::bshd(Dtype::Bf16, SIZES) }
}

/// O and LSE of the call on tensors of the host.
fn on_host(engine: &Engine) -> (Vec<u16>, Vec<f32>) {
    let [q, k, v] = inputs();
    let (mut o, mut lse) = (vec![0xffffu16; q.len()], vec![f32::NAN; 2 * 4 * 3]);
    let mut call = call();
    for (tensor, address) in [
        (&mut call.q, q.as_ptr()),
        (&mut call.k, k.as_ptr()),
        (&mut call.v, v.as_ptr()),
        (&mut call.o, o.as_mut_ptr().cast_const()),
    ] {
        tensor.address = address as u64;
    }
    call.lse = Some(lse.as_mut_ptr() as u64);
    call.lengths.used_k = Some(USED.as_ptr() as u64);
    // SAFETY: every address is of a vector as long as the sizes say.
    unsafe { engine.forward(&call, 0) }.expect("computed");
    (o, lse)
}

fn assert_close(found: &(Vec<u16>, Vec<f32>), expected: &(Vec<u16>, Vec<f32>)) {
    for (found, expected) in found.0.iter().zip(&expected.0) {
        let (found, expected) = (bf16::from_bits(*found).to_f32(), bf16::from_bits(*expected).to_f32());
        assert!((found - expected).abs() <= 0.02, "O is {found}, {expected} on the CPU");
    }
    for (found, expected) in found.1.iter().zip(&expected.1) {
        assert!((found - expected).abs() <= 1e-3, "LSE is {found}, {expected} on the CPU");
    }
}

fn the_simulator_computes_what_the_cpu_does() {
    let simulator = Engine::simulator(None, None).expect("compiled kernels");
    assert_close(&on_host(&simulator), &on_host(&Engine::Cpu));
}

/// Runs in a child of `fake_library`.
pub(crate) fn a_gpu_computes_what_the_cpu_does() {
    let _context = cust::quick_init().expect("the caller's context");
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).expect("the caller's stream");
    let raw = stream.as_inner() as u64;
    let engine = Engine::cuda(0, None).expect("the fake driver opens");
    let [q, k, v] = inputs().map(|tensor| DeviceBuffer::from_slice(&tensor).expect("on the device"));
    let o = DeviceBuffer::from_slice(&vec![0xffffu16; q.len()]).expect("on the device");
    let lse = DeviceBuffer::from_slice(&[f32::NAN; 2 * 4 * 3]).expect("on the device");
    let used = DeviceBuffer::from_slice(&USED).expect("on the device");
    let mut call = call();
    for (tensor, buffer) in [(&mut call.q, &q), (&mut call.k, &k), (&mut call.v, &v), (&mut call.o, &o)] {
        tensor.address = buffer.as_device_ptr().as_raw();
    }
    call.lse = Some(lse.as_device_ptr().as_raw());
    call.lengths.used_k = Some(used.as_device_ptr().as_raw());
    let missing = engine.missing_workspace(&call, raw).expect("planned");
    // A workspace that was given is taken whether or not the plan splits, which depends on the device.
    let missing = missing.max(256);
    let workspace = DeviceBuffer::from_slice(&vec![0xffu8; missing as usize]).expect("on the device");
    // SAFETY: the buffers are as long as the sizes say, and outlive the synchronisation.
    unsafe {
        engine.give_workspace(raw, workspace.as_device_ptr().as_raw(), missing).expect("aligned");
        assert_eq!(engine.missing_workspace(&call, raw).expect("planned"), 0);
        engine.forward(&call, raw).expect("launched");
    }
    stream.synchronize().expect("done");
    let mut found = (vec![0; o.len()], vec![0.0; lse.len()]);
    o.copy_to(&mut found.0).expect("read");
    lse.copy_to(&mut found.1).expect("read");
    assert_close(&found, &on_host(&Engine::Cpu));
    what_the_kernels_lack_is_refused_by_name(&engine, &call, raw);
    let text = engine.explain(&call).expect("planned");
    assert!(text.contains("splits of the keys"), "{text}");
}

fn what_the_kernels_lack_is_refused_by_name(engine: &Engine, call: &Call, stream: u64) {
    let lengths = call.lengths;
    let with = |change: &dyn Fn(&mut Call)| {
        let mut call = *call;
        change(&mut call);
        // SAFETY: it is refused before anything is launched.
        let error = unsafe { engine.forward(&call, stream) }.expect_err("refused");
        assert_eq!(error.code(), Code::Unsupported, "{error}");
        error.to_string()
    };
    let refused = [
        with(&|call| call.dtype = Dtype::F32),
        with(&|call| {
            call.alibi = Some(Alibi { slopes: 64, stride: 0 });
            call.softcap = 2.0;
        }),
        with(&|call| call.lengths.first_k = lengths.used_k),
        with(&|call| {
            call.lengths.entry_k = lengths.used_k;
            call.pages = Some(Pages { table: 64, stride: 64, page_size: 16, count: 200 });
        }),
    ];
    for (name, message) in lacking::names().zip(&refused) {
        assert!(message.starts_with(name), "{name}: {message}");
    }
    assert_eq!(lacking::names().count(), refused.len());
    let unknown = with(&|call| call.sizes.head_dim = 20);
    assert!(unknown.contains("head_dim 20"), "{unknown}");
}
