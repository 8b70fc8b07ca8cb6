//! Ranks that die, stall or want something else: every other rank ends with an error that names rank and step, within the limit; and bytes
//! and memory against what the model predicts.

use crate::support::{self, problem, trials};
use check::random_input::{InputKind, qkv};
use ferroflash::device::Buffer;
use ferroflash::problem::TensorRole;
use ferroflash::{
    Attention, DeviceModel, Dtype, HostTensors, Mask, Planner, Problem, SimOptions, StreamHandle,
};
use ferroflash_distributed::model::{Cluster, Footprint, compare, forecast};
use ferroflash_distributed::{
    ContextOptions, ContextParallel, Error, Local, Message, Method, RankTensors, SplitCache, Step, Ticket,
    Transport, over_ranks,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

trials![
    a_rank_that_dies_is_named_by_all_others,
    a_rank_that_stalls_is_named_within_the_limit,
    a_rank_with_another_shape_is_named_before_anything_is_computed,
    a_message_of_another_size_is_no_result,
    bytes_and_memory_are_what_the_model_predicts,
    the_model_predicts_to_64_devices_and_chooses,
    a_split_cache_fails_with_a_rank_that_dies,
];

/// What ranks wait where nobody tells them of a failure.
const LIMIT: Duration = Duration::from_secs(4);
/// What ranks would wait where they are told at once: a test that takes as long has failed.
const LONG: Duration = Duration::from_secs(120);

fn simulator() -> Arc<Attention> {
    Arc::new(support::on_simulator(SimOptions::default()))
}

/// What a planted rank does in its exchange of this number.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Dies,
    Stalls,
    SendsLess,
}

/// A transport that goes wrong.
struct Faulty {
    inner: Option<Local>,
    fault: Fault,
    /// Exchanges before it does.
    after: u32,
}

impl Faulty {
    fn inner(&mut self) -> &mut Local {
        self.inner.as_mut().expect("it lives")
    }
}

impl Transport for Faulty {
    fn rank(&self) -> u32 {
        self.inner.as_ref().map_or(0, Transport::rank)
    }

    fn world(&self) -> u32 {
        self.inner.as_ref().map_or(0, Transport::world)
    }

    unsafe fn exchange(
        &mut self,
        step: Step,
        messages: &[Message],
        stream: StreamHandle,
    ) -> Result<Ticket, Error> {
        if self.after > 0 {
            self.after -= 1;
            // SAFETY: the caller's promise.
            return unsafe { self.inner().exchange(step, messages, stream) };
        }
        let own = Error::Died { rank: self.rank(), step, reason: "planted".to_owned() };
        match self.fault {
            Fault::Dies => {
                self.inner = None;
                Err(own)
            }
            Fault::Stalls => {
                std::thread::sleep(LIMIT + LIMIT / 2);
                Err(own)
            }
            Fault::SendsLess => {
                let less = |message: &Message| match *message {
                    Message::Send { to, address, bytes, place } => {
                        Message::Send { to, address, bytes: bytes - 16, place }
                    }
                    other => other,
                };
                let messages: Vec<Message> = messages.iter().map(less).collect();
                // SAFETY: the caller's promise, for fewer bytes.
                unsafe { self.inner().exchange(step, &messages, stream) }
            }
        }
    }

    unsafe fn join(&mut self, ticket: Ticket, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.inner().join(ticket, stream) }
    }

    unsafe fn wait(&mut self, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.inner().wait(stream) }
    }

    fn abort(&mut self, reason: &Error) {
        // A rank that is planted to die or stall tells nobody.
        if let (Some(inner), Fault::SendsLess) = (&mut self.inner, self.fault) {
            inner.abort(reason);
        }
    }
}

/// Runs three ranks of which rank 1 has a fault, and returns what became of the others.
fn with_fault(method: Method, fault: Fault, after: u32) -> Vec<(u32, Result<(), Error>, Duration)> {
    let problem = problem(Dtype::F16, [1, 3, 3, 100, 100, 64]).with_causal(true);
    let attention = simulator();
    let limit = if fault == Fault::Stalls { LIMIT } else { LONG };
    let transports = Local::world(vec![attention.device().clone(); 3], limit);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = transports
            .into_iter()
            .map(|local| {
                let (attention, problem) = (attention.clone(), &problem);
                scope.spawn(move || {
                    let rank = local.rank();
                    let transport: Box<dyn Transport> = match rank {
                        1 => Box::new(Faulty { inner: Some(local), fault, after }),
                        _ => Box::new(local),
                    };
                    let start = Instant::now();
                    (rank, run(attention, transport, problem, method), start.elapsed())
                })
            })
            .collect();
        let ended = ranks.into_iter().map(|rank| rank.join().expect("no rank panics"));
        ended.filter(|(rank, ..)| *rank != 1).collect()
    })
}

fn run(
    attention: Arc<Attention>,
    transport: Box<dyn Transport>,
    problem: &Problem,
    method: Method,
) -> Result<(), Error> {
    let options = ContextOptions { method, ..ContextOptions::default() };
    let mut context = ContextParallel::new(attention.clone(), transport, problem, &options)?;
    let memory = |role| Buffer::new(attention.device(), context.bytes(role)).expect("memory");
    let [q, k, v, o] = TensorRole::ALL.map(memory);
    [&q, &k, &v].into_iter().for_each(|tensor| tensor.fill(0).expect("written"));
    let tensors = RankTensors { q: q.address(), k: k.address(), v: v.address(), o: o.address(), lse: None };
    // SAFETY: the buffers are as long as the context says, and outlive the call.
    unsafe {
        context.forward(&tensors, StreamHandle::DEFAULT)?;
        context.wait(StreamHandle::DEFAULT)
    }
}

/// Every rank of `lacking` fails, as it lacks what rank 1 did not send; one that had all before may have finished. Who fails names rank 1.
#[track_caller]
fn name_rank_1(ended: Vec<(u32, Result<(), Error>, Duration)>, lacking: &[u32], needle: &str) {
    assert_eq!(ended.len(), 2);
    for (rank, result, took) in ended {
        assert!(result.is_err() || !lacking.contains(&rank), "rank {rank} takes a partial result for whole");
        if let Err(error) = result {
            let text = error.to_string();
            let says = ["rank 1", "step", needle].into_iter().all(|word| text.contains(word));
            assert!(says, "rank {rank}: {text}");
        }
        assert!(took < LONG, "rank {rank} ended after {took:?}");
    }
}

fn a_rank_that_dies_is_named_by_all_others() {
    for method in Method::ALL {
        // In the agreement, and in the first exchange of tensors.
        for after in [0, 1] {
            name_rank_1(with_fault(method, Fault::Dies, after), &[0, 2], "ended without finishing");
        }
    }
    // In the second, from which rank 0 needs nothing of rank 1.
    name_rank_1(with_fault(Method::Ring, Fault::Dies, 2), &[2], "keys and values, step 1");
}

fn a_rank_that_stalls_is_named_within_the_limit() {
    name_rank_1(with_fault(Method::AllGather, Fault::Stalls, 1), &[0, 2], "nothing came from rank 1");
    name_rank_1(with_fault(Method::Ring, Fault::Stalls, 1), &[0, 2], "nothing came from rank 1");
}

fn a_message_of_another_size_is_no_result() {
    for method in [Method::AllGather, Method::Ring, Method::Ulysses] {
        name_rank_1(with_fault(method, Fault::SendsLess, 1), &[0, 2], "a message of bytes");
    }
}

fn a_rank_with_another_shape_is_named_before_anything_is_computed() {
    let attention = simulator();
    let transports = Local::world(vec![attention.device().clone(); 3], LONG);
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3u32)
            .zip(transports)
            .map(|(rank, local)| {
                let attention = attention.clone();
                scope.spawn(move || {
                    let rows = if rank == 2 { 101 } else { 100 };
                    let problem = problem(Dtype::F16, [1, 2, 2, rows, rows, 64]);
                    run(attention, Box::new(local), &problem, Method::Ring).expect_err("they differ")
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    });
    for error in errors {
        assert!(error.to_string().contains("rank 2 has seqlen_q 101, rank 0 has 100"), "{error}");
    }
}

fn bytes_and_memory_are_what_the_model_predicts() {
    for (world, method, mask) in [
        (2, Method::AllGather, Mask::CAUSAL),
        (4, Method::AllGather, Mask::FULL),
        (4, Method::AllGather, Mask::CAUSAL),
        (4, Method::Ring, Mask::CAUSAL),
        (2, Method::Ring, Mask::FULL),
        (4, Method::Ulysses, Mask::CAUSAL),
        (8, Method::Ulysses, Mask::FULL),
    ] {
        let problem = problem(Dtype::Bf16, [1, 8, 4, 1000, 1000, 64]).with_mask(mask).expect("a mask");
        let tensors = qkv(&problem, InputKind::Random, 1);
        let attentions: Vec<_> = (0..world).map(|_| simulator()).collect();
        let options = ContextOptions { method, ..ContextOptions::default() };
        let tensors = HostTensors::from(&tensors);
        let limit = Duration::from_secs(60);
        let (_, runs) = over_ranks(&attentions, &problem, &options, &tensors, limit).expect("computed");
        let (sent, received) = runs
            .iter()
            .fold((0, 0), |(sent, received), run| (sent + run.traffic.sent, received + run.traffic.received));
        assert_eq!(sent, received, "what one sends another receives");
        for (rank, run) in (0..world).zip(&runs) {
            let predicted = Footprint::new(&problem, method, rank, world);
            for (what, counted, predicted) in [
                ("received", run.traffic.received, predicted.received),
                ("buffers", run.buffer_bytes, predicted.buffers),
            ] {
                let ratio = counted as f64 / predicted;
                assert!(
                    (0.95..=1.05).contains(&ratio),
                    "{method:?} {mask}, rank {rank} of {world}: {what} {counted}, predicted {predicted}"
                );
            }
        }
    }
}

fn the_model_predicts_to_64_devices_and_chooses() {
    let planner = Planner::of_table(&DeviceModel::H200.info());
    let llama = |tokens| problem(Dtype::Bf16, [1, 32, 8, tokens, tokens, 128]).with_causal(true);
    let mut before = f64::INFINITY;
    for world in [1, 2, 4, 8, 16, 32, 64] {
        let comparison = compare(&planner, &Cluster::HGX, &llama(1 << 20), (world, 141_000_000_000));
        let (method, why) = comparison.chosen.expect("one fits");
        let options = ContextOptions { method, ..ContextOptions::default() };
        let chosen = forecast(&planner, &Cluster::HGX, &llama(1 << 20), &options, world).expect("predicted");
        assert!(
            chosen.us < before && chosen.efficiency > 0.8 && chosen.efficiency <= 1.05,
            "{world}: {chosen:?}"
        );
        assert!(why.contains("hidden"), "{why}");
        before = chosen.us;
    }
    let short = compare(&planner, &Cluster::HGX, &llama(2048), (8, 141_000_000_000));
    let (method, _) = short.chosen.expect("one fits");
    let options = ContextOptions { method, ..ContextOptions::default() };
    let short = forecast(&planner, &Cluster::HGX, &llama(2048), &options, 8).expect("predicted");
    assert!(short.efficiency < 0.8, "2048 tokens are not worth 8 devices: {short:?}");
    let tight = compare(&planner, &Cluster::HGX, &llama(1 << 20), (8, 3_000_000_000));
    assert!(tight.chosen.is_none_or(|(_, why)| why.contains("GB a device")), "memory counts");
}

fn a_split_cache_fails_with_a_rank_that_dies() {
    let attention = simulator();
    let problem = problem(Dtype::F16, [1, 4, 2, 1, 300, 64]);
    let mut transports = Local::world(vec![attention.device().clone(); 2], LONG).into_iter();
    let (first, second) = (transports.next().expect("rank 0"), transports.next().expect("rank 1"));
    let errors = std::thread::scope(|scope| {
        let dying = scope.spawn(|| drop(second));
        let living = scope.spawn(|| SplitCache::new(attention.clone(), Box::new(first), &problem).err());
        dying.join().expect("it ends");
        living.join().expect("no rank panics")
    });
    let error = errors.expect("nobody agrees alone").to_string();
    assert!(error.contains("rank 1") && error.contains("agreement"), "{error}");
}
