//! Ranks as threads of one process: for tests, and for devices that nothing but the host connects.

use crate::context::{ContextOptions, ContextParallel, RankTensors};
use crate::transport::{Message, Step, Ticket, Traffic, Transport};
use crate::{Error, Sharding, shard_runs};
use ferroflash::device::{Buffer, Device};
use ferroflash::problem::TensorRole;
use ferroflash::{Attention, HostTensors, Output, Problem, StreamHandle};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A rank that is a thread. What it sends goes through the host's memory; a call returns when all that it receives is there.
///
/// A rank whose `Local` is dropped has ended: what it sent before still arrives, and who waits for more gets [`Error::Died`].
pub struct Local {
    rank: u32,
    device: Arc<dyn Device>,
    hub: Arc<Hub>,
    limit: Duration,
    step: Step,
    tickets: u64,
}

struct Hub {
    world: u32,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Sent and not yet received, by (from, to).
    parcels: HashMap<(u32, u32), VecDeque<Parcel>>,
    /// Ranks that have ended, with the step that they came to.
    ended: HashMap<u32, Step>,
    /// The first failure, which is everybody's.
    failure: Option<Error>,
}

struct Parcel {
    step: Step,
    bytes: Vec<u8>,
}

impl Local {
    /// One transport for each device, in the order of ranks; none waits for another longer than `limit`.
    pub fn world(devices: Vec<Arc<dyn Device>>, limit: Duration) -> Vec<Local> {
        let world = devices.len() as u32;
        let hub = Arc::new(Hub { world, state: Mutex::default(), arrived: Condvar::new() });
        let rank = |(rank, device)| Local {
            rank,
            device,
            hub: hub.clone(),
            limit,
            step: Step { what: "start", index: 0 },
            tickets: 0,
        };
        (0..).zip(devices).map(rank).collect()
    }

    fn receive(&self, from: u32, step: Step, bytes: u64) -> Result<Vec<u8>, Error> {
        let until = Instant::now() + self.limit;
        let mut state = self.hub.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if let Some(parcel) = state.parcels.get_mut(&(from, self.rank)).and_then(VecDeque::pop_front) {
                let got = parcel.bytes.len() as u64;
                if got == bytes && parcel.step == step {
                    return Ok(parcel.bytes);
                }
                let (what, theirs, ours) = match parcel.step == step {
                    true => ("a message of bytes", got, bytes),
                    false => ("come to step", parcel.step.index.into(), step.index.into()),
                };
                let error = Error::Disagree { rank: from, other: self.rank, what, theirs, ours, step };
                return Err(self.hub.fail(state, error));
            }
            if let Some(&last) = state.ended.get(&from) {
                let reason = format!("its last was {last}");
                return Err(self.hub.fail(state, Error::Died { rank: from, step, reason }));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.hub.fail(state, Error::Stalled { rank: from, step, limit: self.limit }));
            }
            state = self.hub.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, address: u64, bytes: u64) -> Result<Vec<u8>, Error> {
        let mut read = vec![0; bytes as usize];
        // SAFETY: by the promise of exchange, the bytes are allocated.
        unsafe { self.device.read(address, &mut read)? };
        Ok(read)
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a failure everybody's, unless there was one before, and returns what everybody's is.
    fn fail(&self, mut state: MutexGuard<'_, State>, error: Error) -> Error {
        let failure = state.failure.get_or_insert(error).clone();
        drop(state);
        self.arrived.notify_all();
        failure
    }
}

impl Transport for Local {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.hub.world
    }

    unsafe fn exchange(
        &mut self,
        step: Step,
        messages: &[Message],
        compute: StreamHandle,
    ) -> Result<Ticket, Error> {
        self.step = step;
        // SAFETY: the stream is the caller's promise.
        unsafe { self.device.synchronize(compute)? };
        for message in messages {
            if let Message::Send { to, address, bytes, .. } = *message {
                let parcel = Parcel { step, bytes: self.read(address, bytes)? };
                self.hub.lock().parcels.entry((self.rank, to)).or_default().push_back(parcel);
                self.hub.arrived.notify_all();
            }
        }
        for message in messages {
            if let Message::Receive { from, address, bytes, .. } = *message {
                let parcel = self.receive(from, step, bytes)?;
                // SAFETY: by the promise of exchange, as many bytes are allocated.
                unsafe { self.device.write(address, &parcel)? };
            }
        }
        self.tickets += 1;
        Ok(Ticket(self.tickets))
    }

    fn announces(&self) -> bool {
        true
    }

    unsafe fn write(&mut self, (word, value): (u64, u32), after: Option<StreamHandle>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(stream) = after {
                self.device.synchronize(stream)?;
            }
            self.device.write(word, &value.to_ne_bytes())?;
        }
        Ok(())
    }

    unsafe fn join(&mut self, _: Ticket, _: StreamHandle) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn wait(&mut self, compute: StreamHandle) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.device.synchronize(compute) }?)
    }

    fn abort(&mut self, reason: &Error) {
        let error = match reason {
            Error::Library(_) => Error::Died { rank: self.rank, step: self.step, reason: reason.to_string() },
            other => other.clone(),
        };
        self.hub.fail(self.hub.lock(), error);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.hub.lock().ended.insert(self.rank, self.step);
        self.hub.arrived.notify_all();
    }
}

/// What became of one rank.
#[derive(Clone, Debug)]
pub struct RankRun {
    /// Bytes moved, those of the agreement aside.
    pub traffic: Traffic,
    /// Bytes of device memory for received tensors and partial results.
    pub buffer_bytes: u64,
    /// The kernels of its launches, in order.
    pub kernels: Vec<String>,
}

/// Computes one problem over as many ranks as there are `attentions`, each a thread, from host tensors of the whole problem; O and LSE are
/// in the problem's layout again.
///
/// # Errors
/// That of the first rank that failed.
pub fn over_ranks(
    attentions: &[Arc<Attention>],
    problem: &Problem,
    options: &ContextOptions,
    tensors: &HostTensors<'_>,
    limit: Duration,
) -> Result<(Output, Vec<RankRun>), Error> {
    let devices = attentions.iter().map(|attention| attention.device().clone()).collect();
    let local = |local| Box::new(local) as Box<dyn Transport>;
    let ranks = attentions.iter().cloned().zip(Local::world(devices, limit).into_iter().map(local));
    over_transports(ranks.collect(), problem, options, tensors)
}

/// As [`over_ranks`], over other transports, in the order of ranks.
///
/// # Errors
/// That of the first rank that failed.
pub fn over_transports(
    ranks: Vec<(Arc<Attention>, Box<dyn Transport>)>,
    problem: &Problem,
    options: &ContextOptions,
    tensors: &HostTensors<'_>,
) -> Result<(Output, Vec<RankRun>), Error> {
    let results = in_threads(ranks, |rank| one_rank(rank, problem, options, tensors));
    let mut output = Output::new(vec![0; problem.o_len()], Some(vec![0.0; problem.lse_len()]));
    let mut runs = Vec::new();
    for (rank, result) in (0..).zip(results) {
        let (o, lse, parts, run, sharding) = result?;
        place(problem, &sharding, rank, &o, &mut output.o);
        if let Some(all) = &mut output.lse {
            place_lse(problem, &sharding, rank, (&parts, &lse), all);
        }
        runs.push(run);
    }
    Ok((output, runs))
}

/// Runs ranks that wait for each other, each in a thread of its own, and returns what each gives. A panic of one goes on here.
pub fn in_threads<R: Send, T: Send>(
    ranks: impl IntoIterator<Item = R>,
    run: impl Fn(R) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

type RankResult = (Vec<u16>, Vec<f32>, Vec<std::ops::Range<u32>>, RankRun, Sharding);

fn one_rank(
    (attention, transport): (Arc<Attention>, Box<dyn Transport>),
    problem: &Problem,
    options: &ContextOptions,
    tensors: &HostTensors<'_>,
) -> Result<RankResult, Error> {
    let mut context = ContextParallel::new(attention.clone(), transport, problem, options)?;
    let rank = context.rank();
    let [of_q, of_k] = [TensorRole::Q, TensorRole::K].map(|role| context.sharding(role).clone());
    let device = attention.device();
    let buffer = |role, whole: &[u16], sharding: &Sharding| {
        Buffer::from_elements(device, &shard(problem, role, sharding, rank, whole))
    };
    let q = buffer(TensorRole::Q, tensors.q, &of_q)?;
    let k = buffer(TensorRole::K, tensors.k, &of_k)?;
    let v = buffer(TensorRole::V, tensors.v, &of_k)?;
    // NaN in every type: what nobody writes shows.
    let o = Buffer::new(device, context.bytes(TensorRole::O))?;
    o.fill(0xff)?;
    let lse = Buffer::new(device, context.lse_bytes())?;
    lse.fill(0xff)?;
    let rank_tensors = RankTensors {
        q: q.address(),
        k: k.address(),
        v: v.address(),
        o: o.address(),
        lse: Some(lse.address()),
    };
    // SAFETY: the buffers are as long as the context says, and live until all work is done, which the reads below wait for.
    unsafe { context.forward(&rank_tensors, StreamHandle::DEFAULT)? };
    // SAFETY: the default stream lives.
    unsafe { context.wait(StreamHandle::DEFAULT)? };
    let mut output = vec![0u16; context.bytes(TensorRole::O) as usize / 2];
    o.read(0, &mut output)?;
    let mut sums = vec![0f32; context.lse_bytes() as usize / 4];
    lse.read(0, &mut sums)?;
    let run = RankRun {
        traffic: context.traffic(),
        buffer_bytes: context.buffer_bytes(),
        kernels: context.kernels(),
    };
    Ok((output, sums, context.parts().to_vec(), run, of_q))
}

/// A rank's part of a tensor of the whole problem, contiguous in its layout.
pub(crate) fn shard(
    problem: &Problem,
    role: TensorRole,
    sharding: &Sharding,
    rank: u32,
    whole: &[u16],
) -> Vec<u16> {
    let local = crate::context::shape_of(problem, role).with_rows(sharding.rows(rank));
    let mut part = vec![0; local.bytes() as usize / 2];
    for run in shard_runs(problem, role, sharding, rank) {
        let (from, to, count) = run.elements();
        part[to..to + count].copy_from_slice(&whole[from..from + count]);
    }
    part
}

fn place(problem: &Problem, sharding: &Sharding, rank: u32, part: &[u16], whole: &mut [u16]) {
    for run in shard_runs(problem, TensorRole::O, sharding, rank) {
        let (to, from, count) = run.elements();
        whole[to..to + count].copy_from_slice(&part[from..from + count]);
    }
}

/// Puts LSE of a rank's parts to its rows of the whole.
fn place_lse(
    problem: &Problem,
    sharding: &Sharding,
    rank: u32,
    (parts, lse): (&[std::ops::Range<u32>], &[f32]),
    whole: &mut [f32],
) {
    let sizes = problem.sizes();
    let rows: Vec<u32> = sharding.rows_of(rank).into_iter().flatten().collect();
    let mut at = 0;
    for part in parts {
        for head in 0..(sizes.batch * sizes.heads_q) as usize {
            for local in part.clone() {
                whole[head * sizes.seqlen_q as usize + rows[local as usize] as usize] = lse[at];
                at += 1;
            }
        }
    }
}
