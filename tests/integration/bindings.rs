//! The call that bindings share, on a fake driver and on the simulator, against the same call on the CPU.

use crate::support;
use check::random_input::{self, InputKind};
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use ferroflash::Layout;
use ferroflash_call::{Alibi, Bias, Call, Dropout, Dtype, Engine, Pages, Sizes, Tree, error::Code, lacking};
use half::bf16;
use std::collections::HashMap;

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

/// Calls that a process makes, a tenth of them before it is looked at.
const CALLS: usize = 100_000;
/// Growth of the process that passes: ten bytes a call.
const GROWTH_BYTES: u64 = 1 << 20;
/// Bytes of this process that are in memory.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number of pages") * 4096
}

/// Makes calls of a few lengths in turns, and looks at the process's memory.
fn many_calls_leave_nothing(mut make: impl FnMut(&Call), wait: impl Fn()) {
    let mut tenth = |first: usize| {
        for index in first..first + CALLS / 10 {
            let sizes = Sizes {
                batch: 1,
                heads_q: 1,
                heads_kv: 1,
                seqlen_q: 1,
                seqlen_k: 1 + index % 7,
                head_dim: 64,
            };
            make(&Call { window_right: Some(index % 2), ..Call::bshd(Dtype::Bf16, sizes) });
            // A stream's queue is not what is looked for.
            if index % 500 == 0 {
                wait();
            }
        }
        wait();
    };
    tenth(0);
    let before = resident_bytes();
    (1..10).for_each(|index| tenth(index * CALLS / 10));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown <= GROWTH_BYTES, "{grown} bytes more after {CALLS} calls");
}

/// Runs in a child of `fake_library`, as other tests of the process take memory, too.
pub(crate) fn many_calls_on_the_cpu_leave_nothing() {
    let (tensor, mut o, mut lse) = (vec![0u16; 7 * 64], vec![0u16; 64], [0f32]);
    let (address, o, lse) = (tensor.as_ptr() as u64, o.as_mut_ptr() as u64, lse.as_mut_ptr() as u64);
    let make = |call: &Call| {
        let mut call = Call { lse: Some(lse), ..*call };
        [&mut call.q, &mut call.k, &mut call.v].into_iter().for_each(|tensor| tensor.address = address);
        call.o.address = o;
        // SAFETY: every address is of a vector as long as the sizes say.
        unsafe { Engine::Cpu.forward(&call, 0) }.expect("computed");
    };
    many_calls_leave_nothing(make, || ());
}

/// Runs in a child of `fake_library`.
pub(crate) fn many_calls_on_a_gpu_leave_nothing() {
    let _context = cust::quick_init().expect("the caller's context");
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).expect("the caller's stream");
    let engine = Engine::cuda(0, None).expect("the fake driver opens");
    let on_device = |length: usize| DeviceBuffer::from_slice(&vec![0u16; length]).expect("on the device");
    let (tensor, o) = (on_device(7 * 64), on_device(64));
    let lse = DeviceBuffer::from_slice(&[0f32]).expect("on the device");
    let (mut kept, mut made) = (HashMap::new(), 0usize);
    let make = |call: &Call| {
        let mut call = Call { lse: Some(lse.as_device_ptr().as_raw()), ..*call };
        let address = tensor.as_device_ptr().as_raw();
        [&mut call.q, &mut call.k, &mut call.v].into_iter().for_each(|tensor| tensor.address = address);
        call.o.address = o.as_device_ptr().as_raw();
        let key = (call.sizes.seqlen_k, call.window_right);
        // Every second time as if for the first.
        made += 1;
        // SAFETY: the buffers are as long as the sizes say, and outlive the synchronisation.
        unsafe {
            if made % 2 == 0 {
                return engine.forward(&call, stream.as_inner() as u64).expect("launched");
            }
            let kept = kept.entry(key).or_insert_with(|| engine.keep(&call).expect("planned"));
            assert!(engine.repeat(kept, |_| (), stream.as_inner() as u64).expect("launched"));
        }
    };
    many_calls_leave_nothing(make, || stream.synchronize().expect("done"));
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
    a_call_is_made_again(&engine, &call, raw, (&stream, &o));
    what_the_kernels_lack_is_refused_by_name(&engine, &call, raw);
    let text = engine.explain(&call).expect("planned");
    assert!(text.contains("splits of the keys"), "{text}");
}

/// A call that was kept gives on tensors at other addresses what it gives when it is made for the first time, and needs a workspace as that does.
fn a_call_is_made_again(engine: &Engine, call: &Call, raw: u64, (stream, o): (&Stream, &DeviceBuffer<u16>)) {
    let kept = engine.keep(call).expect("planned");
    let mut first = vec![0; o.len()];
    o.copy_to(&mut first).expect("read");
    let other = DeviceBuffer::from_slice(&vec![0xffffu16; o.len()]).expect("on the device");
    let address = other.as_device_ptr().as_raw();
    // SAFETY: the buffers are as long as the sizes say, and outlive the synchronisation.
    let again = |stream| unsafe { engine.repeat(&kept, |call| call.o.address = address, stream) };
    assert!(again(raw).expect("launched"));
    stream.synchronize().expect("done");
    let mut found = vec![0; o.len()];
    other.copy_to(&mut found).expect("read");
    assert_eq!(found, first);
    // SAFETY: as above; nobody gave this stream a workspace.
    let fresh = Stream::new(StreamFlags::NON_BLOCKING, None).expect("another stream");
    let needed = engine.missing_workspace(call, fresh.as_inner() as u64).expect("planned");
    assert_eq!(again(fresh.as_inner() as u64).expect("launched or not"), needed == 0);
    fresh.synchronize().expect("done");
    let misaligned = |call: &mut Call| call.o.address += 2;
    // SAFETY: it is refused before anything is launched.
    let error = unsafe { engine.repeat(&kept, misaligned, raw) }.expect_err("refused");
    assert_eq!(error.code(), Code::Invalid, "{error}");
    // Memory that holds zeros needs no zeroing: it may be given while the stream is captured.
    let needed = needed.max(256);
    let zeros = DeviceBuffer::from_slice(&vec![0u8; needed as usize]).expect("on the device");
    // SAFETY: it lives until the synchronisation.
    unsafe { engine.give_zeroed_workspace(fresh.as_inner() as u64, zeros.as_device_ptr().as_raw(), needed) }
        .expect("aligned");
    assert!(again(fresh.as_inner() as u64).expect("launched"));
    fresh.synchronize().expect("done");
    other.copy_to(&mut found).expect("read");
    assert_eq!(found, first);
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
        with(&|call| call.dtype = Dtype::F64),
        with(&|call| {
            call.alibi = Some(Alibi { slopes: 64, stride: 0 });
            call.softcap = 2.0;
        }),
        with(&|call| {
            call.tree = Some(Tree { bits: 64, keys: 3 });
            call.softcap = 2.0;
        }),
        with(&|call| {
            call.bias = Some(Bias { values: 64, own: [false; 3] });
            call.softcap = 2.0;
        }),
        with(&|call| {
            call.dropout = Some(Dropout { p: 0.5, seed: 1, offset: 0 });
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
