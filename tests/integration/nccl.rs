//! The transport over NCCL, on a fake driver and a fake NCCL: ranks are threads of one process. Run by `fake_library`, each in a process of
//! its own.

use crate::support::problem;
use check::random_input::{InputKind, qkv};
use check::verification::Oracle;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::graph::{Graph, Timeline};
use ferroflash::device::{Buffer, Device};
use ferroflash::module::Library;
use ferroflash::problem::TensorRole;
use ferroflash::{Attention, Dtype, HostTensors, L2Policy, Output, Problem, StreamHandle};
use ferroflash_distributed::nccl::{Nccl, NcclOptions, UniqueId};
use ferroflash_distributed::{
    ContextOptions, ContextParallel, Error, Method, RankTensors, Step, Transport, shard_runs,
};
use kernels_gpu::row::Accumulation;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(4);

fn options() -> NcclOptions {
    NcclOptions { limit: LIMIT, ..NcclOptions::default() }
}

/// A device of the fake driver, and attention on it.
fn opened(ordinal: u32) -> (Arc<CudaDevice>, Arc<Attention>) {
    let device = Arc::new(CudaDevice::open(ordinal, L2Policy::Default).expect("the fake driver opens"));
    let library = Arc::new(Library::find(None).expect("kernels"));
    let attention = Attention::new(device.clone(), library).expect("attention");
    (device, Arc::new(attention))
}

/// A rank's tensors on its device.
struct OnDevice {
    buffers: [Buffer<CudaDevice>; 4],
    lse: Buffer<CudaDevice>,
}

impl OnDevice {
    fn new(
        device: &Arc<CudaDevice>,
        context: &ContextParallel,
        problem: &Problem,
        whole: &[Vec<u16>; 3],
    ) -> OnDevice {
        let buffers = TensorRole::ALL.map(|role| {
            let buffer = Buffer::new(device, context.bytes(role)).expect("memory");
            buffer.fill(0xff).expect("written");
            if let Some(from) = whole.get(role as usize) {
                for run in shard_runs(problem, role, context.sharding(role), context.rank()) {
                    let [from_at, to, count] =
                        [run.whole, run.local, run.bytes].map(|bytes| bytes as usize / 2);
                    buffer.write(to, &from[from_at..from_at + count]).expect("written");
                }
            }
            buffer
        });
        let lse = Buffer::new(device, context.lse_bytes()).expect("memory");
        OnDevice { buffers, lse }
    }

    fn tensors(&self) -> RankTensors {
        let [q, k, v, o] = [0, 1, 2, 3].map(|tensor: usize| self.buffers[tensor].address());
        RankTensors { q, k, v, o, lse: Some(self.lse.address()) }
    }

    /// Puts the rank's rows of O to those of the whole.
    fn place(&self, context: &ContextParallel, problem: &Problem, whole: &mut [u16]) {
        for run in shard_runs(problem, TensorRole::O, context.sharding(TensorRole::O), context.rank()) {
            let [to, from, count] = [run.whole, run.local, run.bytes].map(|bytes| bytes as usize / 2);
            self.buffers[3].read(from, &mut whole[to..to + count]).expect("read");
        }
    }
}

#[track_caller]
fn judge(problem: &Problem, whole: &[Vec<u16>; 3], o: Vec<u16>) {
    let tensors = HostTensors::from(whole);
    let oracle = Oracle::of_tensors(problem, &tensors, &[Accumulation::F32], &|_, _| ());
    let verdict =
        oracle.judge(Accumulation::F32, &Output::new(o, None)).expect("as long as the problem says");
    assert!(verdict.passed, "{verdict}");
}

/// A rank from the agreement to O, enqueued, and then as a graph that is replayed twice where ranks share memory: the fake NCCL cannot be
/// captured.
fn rank(
    attention: Arc<Attention>,
    device: &Arc<CudaDevice>,
    transport: Nccl,
    (problem, whole, method, peer_memory): (&Problem, &[Vec<u16>; 3], Method, bool),
) -> Result<Vec<u16>, Error> {
    let options = ContextOptions { method, ..ContextOptions::default() };
    let mut context = ContextParallel::new(attention, Box::new(transport), problem, &options)?;
    let own = OnDevice::new(device, &context, problem, whole);
    // SAFETY: the tensors are as long as the context says, and outlive the wait.
    unsafe {
        context.reserve(StreamHandle::DEFAULT)?;
        context.forward(&own.tensors(), StreamHandle::DEFAULT)?;
        context.wait(StreamHandle::DEFAULT)?;
    }
    let mut o = vec![0; problem.o_len()];
    own.place(&context, problem, &mut o);
    let timeline = Timeline::new(device)?;
    let stream = timeline.stream();
    // SAFETY: the stream lives as long as the timeline.
    unsafe { context.reserve(stream)? };
    let graph = captured(&timeline, &mut context, &own.tensors())?;
    for _ in 0..2 * u32::from(peer_memory) {
        own.buffers[3].fill(0xff)?;
        // SAFETY: context and tensors outlive every replay.
        unsafe {
            timeline.replay(&graph)?;
            context.wait(stream)?;
        }
        let mut again = vec![0; problem.o_len()];
        own.place(&context, problem, &mut again);
        assert!(o == again, "a replay has other bits");
    }
    Ok(o)
}

fn captured(
    timeline: &Timeline,
    context: &mut ContextParallel,
    tensors: &RankTensors,
) -> Result<Graph, Error> {
    let launches = |stream: StreamHandle| {
        // SAFETY: who replays the graph promises that the tensors live.
        let done = unsafe { context.forward(tensors, stream) };
        done.map_err(|error| ferroflash::Error::Cuda { call: "a rank", reason: error.to_string() })
    };
    Ok(timeline.capture(launches)?)
}

pub(crate) fn ranks_compute_what_one_device_does() {
    let cases = [
        (Method::AllGather, 2, true, false),
        (Method::AllGather, 3, true, false),
        (Method::AllGather, 3, false, true),
        (Method::Ring, 3, true, true),
        (Method::Ring, 2, false, false),
        (Method::Ulysses, 2, true, false),
        (Method::Ulysses, 2, false, true),
    ];
    for (method, world, peer_memory, is_blocking) in cases {
        let problem = problem(Dtype::Bf16, [1, 8, 4, 135, 135, 64]).with_causal(true);
        let whole = qkv(&problem, InputKind::Random, 3);
        let id = UniqueId::from_bytes(UniqueId::new().expect("an id").to_bytes());
        let options = NcclOptions { is_blocking, peer_memory, max_ctas: Some(8), ..options() };
        let parts: Vec<Vec<u16>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..world)
                .map(|number| {
                    let (problem, whole, options) = (&problem, &whole, &options);
                    scope.spawn(move || {
                        let (device, attention) = opened(number);
                        let nccl = Nccl::from_id(&device, &id, (number, world), options).expect("all come");
                        rank(attention, &device, nccl, (problem, whole, method, peer_memory))
                            .expect("computed")
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        // Each has its own rows, and 0 in the others'.
        let o = (0..problem.o_len()).map(|at| parts.iter().fold(0, |bits, part| bits | part[at])).collect();
        judge(&problem, &whole, o);
    }
}

pub(crate) fn a_world_of_one_is_captured_and_replayed() {
    let (device, attention) = opened(0);
    let problem = problem(Dtype::Bf16, [1, 4, 2, 70, 70, 64]).with_causal(true);
    let whole = qkv(&problem, InputKind::Random, 4);
    let id = UniqueId::new().expect("an id");
    let nccl = Nccl::from_id(&device, &id, (0, 1), &options()).expect("it is alone");
    let mut context = ContextParallel::new(attention, Box::new(nccl), &problem, &ContextOptions::default())
        .expect("agreed");
    let own = OnDevice::new(&device, &context, &problem, &whole);
    let timeline = Timeline::new(&device).expect("a stream");
    // SAFETY: the stream lives as long as the timeline.
    unsafe { context.reserve(timeline.stream()) }.expect("reserved");
    let graph = captured(&timeline, &mut context, &own.tensors()).expect("captured");
    let mut o = vec![0; problem.o_len()];
    own.place(&context, &problem, &mut o);
    assert!(o.iter().all(|&bits| bits == 0xffff), "nothing has run yet");
    // SAFETY: context and tensors outlive every replay.
    unsafe {
        timeline.replay(&graph).expect("replayed");
        context.wait(timeline.stream()).expect("over");
    }
    own.place(&context, &problem, &mut o);
    judge(&problem, &whole, o);
}

pub(crate) fn a_communicator_is_borrowed() {
    let (device, attention) = opened(0);
    // SAFETY: null is refused before it is used.
    let error =
        unsafe { Nccl::from_raw(&device, std::ptr::null_mut(), &options()) }.err().expect("it is null");
    assert!(error.to_string().contains("null"), "{error}");
    let owner = Nccl::from_id(&device, &UniqueId::new().expect("an id"), (0, 1), &options()).expect("alone");
    // SAFETY: the owner outlives it, and communicates nothing meanwhile.
    let borrowed = unsafe { Nccl::from_raw(&device, owner.as_raw(), &options()) }.expect("borrowed");
    assert_eq!((borrowed.rank(), borrowed.world()), (0, 1));
    let problem = problem(Dtype::Bf16, [1, 4, 2, 70, 70, 64]);
    let whole = qkv(&problem, InputKind::Random, 4);
    let o = rank(attention, &device, borrowed, (&problem, &whole, Method::Ring, true)).expect("computed");
    judge(&problem, &whole, o);
}

pub(crate) fn a_rank_that_never_comes_is_named() {
    let (device, _) = opened(0);
    let id = UniqueId::new().expect("an id");
    let start = Instant::now();
    let error = Nccl::from_id(&device, &id, (0, 3), &options()).err().expect("nobody else comes");
    assert!(matches!(&error, Error::Unfinished { ranks, .. } if *ranks == [1, 2]), "{error}");
    assert!(error.to_string().contains("joining, step 0"), "{error}");
    assert!(start.elapsed() < 4 * LIMIT);
}

pub(crate) fn a_rank_that_stalls_is_given_up() {
    let id = UniqueId::new().expect("an id");
    let problem = problem(Dtype::Bf16, [1, 4, 2, 135, 135, 64]).with_causal(true);
    let whole = qkv(&problem, InputKind::Random, 3);
    std::thread::scope(|scope| {
        let staller = scope.spawn(|| {
            let (device, _) = opened(1);
            let mut nccl = Nccl::from_id(&device, &id, (1, 2), &options()).expect("both come");
            std::thread::sleep(LIMIT + LIMIT / 2);
            let all = Buffer::<CudaDevice>::new(&device, 512).expect("memory");
            let step = Step { what: "agreement", index: 0 };
            // SAFETY: the buffer is long enough, and the call has failed or is over when it returns.
            unsafe { nccl.all_gather(step, (all.address(), 256), StreamHandle::DEFAULT) }
        });
        let (device, attention) = opened(0);
        let nccl = Nccl::from_id(&device, &id, (0, 2), &options()).expect("both come");
        let error = rank(attention, &device, nccl, (&problem, &whole, Method::AllGather, true))
            .expect_err("rank 1 stalls");
        assert!(matches!(&error, Error::Unfinished { ranks, .. } if *ranks == [1]), "{error}");
        assert!(error.to_string().contains("agreement, step 0"), "{error}");
        // What was given up fails for the other, too, as soon as it comes.
        let late = staller.join().expect("it ends").expect_err("rank 0 has given up");
        assert!(matches!(late, Error::Nccl { .. } | Error::Unfinished { .. }), "{late}");
    });
}

/// A rank of three ends without a word. The others' streams wait for its flags: the one with the shorter limit gives up and tells the third, and
/// both can use their devices after that.
pub(crate) fn a_rank_that_is_gone_leaves_the_others_their_devices() {
    let id = UniqueId::new().expect("an id");
    let problem = problem(Dtype::Bf16, [1, 4, 2, 135, 135, 64]).with_causal(true);
    let whole = qkv(&problem, InputKind::Random, 3);
    let run = |number: u32| {
        let (device, attention) = opened(number);
        let limit = if number == 2 { 10 * LIMIT } else { LIMIT };
        let options = NcclOptions { limit, ..options() };
        let nccl = Nccl::from_id(&device, &id, (number, 3), &options).expect("all come");
        let options = ContextOptions { method: Method::AllGather, ..ContextOptions::default() };
        let mut context =
            ContextParallel::new(attention.clone(), Box::new(nccl), &problem, &options).expect("agreed");
        let own = OnDevice::new(&device, &context, &problem, &whole);
        let timeline = Timeline::new(&device).expect("a stream");
        let mut call = || {
            // SAFETY: the tensors are as long as the context says, and live on, as the stream does.
            unsafe {
                context.forward(&own.tensors(), timeline.stream())?;
                context.wait(timeline.stream())
            }
        };
        call().expect("all compute");
        if number == 1 {
            std::mem::forget((context, own, timeline));
            return;
        }
        let start = Instant::now();
        let error = call().expect_err("rank 1 is gone");
        let step = match &error {
            Error::Unfinished { ranks, step, .. } if number == 0 && *ranks == [1, 2] => step,
            Error::Died { rank: 0, step, .. } if number == 2 => step,
            other => panic!("rank {number}: {other}"),
        };
        assert_eq!(step.what, "keys and values", "{error}");
        assert!(start.elapsed() < 4 * LIMIT, "{:?}", start.elapsed());
        // SAFETY: the stream lives.
        unsafe { device.synchronize(timeline.stream()) }.expect("nothing waits any more");
        let again = call().expect_err("it was given up");
        assert!(matches!(again, Error::Died { rank, .. } if rank == number), "{again}");
        drop(context);
        let output = attention.forward(&problem, &whole[0], &whole[1], &whole[2], false).expect("computed");
        judge(&problem, &whole, output.o.clone());
        drop((own, timeline));
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|number| scope.spawn(move || run(number))).collect();
        ranks.into_iter().for_each(|rank| rank.join().expect("no rank panics"));
    });
}
