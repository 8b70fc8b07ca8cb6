//! Ranks of a split sequence at once, each on a GPU of its own, over NCCL: in turns with one GPU for the whole.
//!
//! A turn is the whole problem on every GPU by itself, then calls of all ranks together. Calls are timed on each rank's own stream, behind one
//! that is not timed: ranks wait for each other's keys in every call, so that they are in step by then. What a call takes is the slowest
//! rank's time, what one GPU takes is the fastest GPU's.

use crate::measure::ranks::{RankTensorsOnDevice, is_close, library_error, replay_us};
use crate::measure::{Timing, statistics};
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::graph::Timeline;
use ferroflash::device::nvml::{Nvml, Reading};
use ferroflash::module::Library;
use ferroflash::problem::TensorRole;
use ferroflash::{Attention, CudaOptions, DeviceTensors, Layout, Problem, Sizes, StreamHandle};
use ferroflash_distributed::model::{Cluster, Forecast, forecast};
use ferroflash_distributed::nccl::{Nccl, NcclOptions};
use ferroflash_distributed::{
    ContextOptions, ContextParallel, Error, Sharding, SplitCache, Transport, in_threads,
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The least that the calls of a turn take together, in microseconds.
const TURN_US: f64 = 10_000.0;
/// The most calls of a turn.
const CALLS_MOST: f64 = 64.0;

/// How to measure.
#[derive(Clone, Debug)]
pub struct AtOnceOptions {
    /// How the sequence is split; `None` decodes over a split cache.
    pub context: Option<ContextOptions>,
    /// Timed turns.
    pub reps: u32,
    /// Time spent on untimed turns before.
    pub warm_up: Duration,
    /// How long all GPUs rest before a turn, so that none is at its power limit in it.
    pub rest: Duration,
    /// Calls whose O is compared with the first one's, bit by bit, after the timing.
    pub repeats: u32,
    /// Whether a turn's calls are replayed as a graph, which all ranks capture, instead of enqueued one by one.
    pub graph: bool,
}

/// What one rank found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RankAtOnce {
    /// The rank.
    pub rank: u32,
    /// A call of all ranks on this one's stream.
    pub timing: Option<Timing>,
    /// The whole problem on this GPU by itself.
    pub one: Option<Timing>,
    /// Bytes that a call receives.
    pub received: u64,
    /// The kernels of its launches, in order.
    pub kernels: Vec<String>,
    /// The largest difference of its O from one GPU's, and the largest |O|, of the rows that were compared.
    pub difference: [f64; 2],
    /// Repeats whose O had other bits.
    pub unequal: u32,
    #[serde(skip)]
    turns: Vec<[f64; 2]>,
}

/// What all ranks found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AtOnce {
    /// The method.
    pub method: &'static str,
    /// GPUs.
    pub devices: u32,
    /// The kernel of one GPU.
    pub kernel: String,
    /// Each rank's.
    pub ranks: Vec<RankAtOnce>,
    /// A call: the slowest rank's, turn by turn.
    pub timing: Option<Timing>,
    /// The whole on one GPU: the fastest one's, turn by turn.
    pub one: Option<Timing>,
    /// One GPU's time over this one times the GPUs; the median of the turns.
    pub efficiency: f64,
    /// What the model on paper predicts, where it knows the method.
    pub predicted: Option<Forecast>,
    /// Calls that were compared bit by bit.
    pub repeats: u32,
}

impl AtOnce {
    /// Whether every O that was compared is as it must be: two units in the last place of bf16 at most, of the largest |O|, and the same
    /// bits in every call.
    pub fn is_right(&self) -> bool {
        self.ranks.iter().all(|rank| is_close(rank.difference) && rank.unequal == 0)
    }
}

/// What computes on a GPU, and what connects it with the others.
pub type Connected = (Arc<Attention>, Box<dyn Transport>);

/// A GPU, what computes on it, and its communicator.
struct Member {
    device: Arc<CudaDevice>,
    attention: Arc<Attention>,
    nccl: Nccl,
    options: NcclOptions,
}

/// Several GPUs of this machine, connected by NCCL.
pub struct GpuRanks {
    members: Vec<Member>,
}

impl GpuRanks {
    /// Opens `count` GPUs, the first of which is the one that `options` names, and connects them.
    ///
    /// # Errors
    /// Those of [`Attention::cuda`] and of [`Nccl::world`].
    pub fn open(options: &CudaOptions, count: u32, nccl: &NcclOptions) -> Result<GpuRanks, Error> {
        let library = Arc::new(Library::find(options.ptx.as_deref())?);
        let open = |ordinal| CudaDevice::open(ordinal, options.l2).map(Arc::new);
        let devices: Vec<_> =
            (options.ordinal..options.ordinal + count).map(open).collect::<Result<_, _>>()?;
        let connected = Nccl::world(&devices, nccl)?;
        let member = |(device, connected): (Arc<CudaDevice>, Nccl)| {
            let attention = Arc::new(Attention::new(device.clone(), library.clone())?);
            Ok(Member { device, attention, nccl: connected, options: *nccl })
        };
        Ok(GpuRanks {
            members: devices.into_iter().zip(connected).map(member).collect::<Result<_, Error>>()?,
        })
    }

    /// What computes on each GPU, and a transport that borrows its communicator: for one computation at a time, while this lives.
    ///
    /// # Errors
    /// Those of [`Nccl::from_raw`].
    pub fn transports(&self) -> Result<Vec<Connected>, Error> {
        self.members
            .iter()
            .map(|member| Ok((member.attention.clone(), Box::new(member.borrowed()?) as Box<dyn Transport>)))
            .collect()
    }

    /// What computes on the first GPU.
    pub fn first(&self) -> &Attention {
        &self.members[0].attention
    }

    /// The GPUs' names.
    pub fn names(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.attention.device_name()).collect()
    }

    /// Clocks, power and the driver's version of each GPU now, where NVML tells.
    pub fn readings(&self) -> Vec<Reading> {
        let read = |member: &Member| Nvml::open(member.device.pci_bus_id()).map(|nvml| nvml.read());
        self.members.iter().map(|member| read(member).unwrap_or_default()).collect()
    }

    /// Measures a problem of the whole sequence; calls `progress` after each turn with the turns done and all turns.
    ///
    /// # Errors
    /// [`Error::Refused`], and what planning, allocating, launching and NCCL report. A wrong O is no error: see [`AtOnce::is_right`].
    pub fn measure(
        &self,
        problem: &Problem,
        options: &AtOnceOptions,
        progress: &(dyn Fn(u32, u32) + Sync),
    ) -> Result<AtOnce, Error> {
        let (devices, turns) = (self.members.len() as u32, OnceLock::new());
        let shared = Shared { problem, options, devices, turns: &turns, progress };
        let ranks = in_threads((0..).zip(&self.members), |(rank, member)| member.measure(rank, &shared));
        let ranks: Vec<RankAtOnce> = ranks.into_iter().collect::<Result<_, _>>()?;
        let planner = self.members[0].attention.planner();
        let predicted = options
            .context
            .as_ref()
            .and_then(|context| forecast(planner, &Cluster::HGX, problem, context, devices).ok());
        let turn = |at: usize| {
            let of = |which: usize| ranks.iter().map(move |rank| rank.turns[at][which]);
            (of(0).fold(0.0, f64::max), of(1).fold(f64::INFINITY, f64::min))
        };
        let (all, one): (Vec<f64>, Vec<f64>) = (0..ranks[0].turns.len()).map(turn).unzip();
        let shares: Vec<f64> =
            all.iter().zip(&one).map(|(all, one)| one / (all * f64::from(devices))).collect();
        Ok(AtOnce {
            method: options.context.as_ref().map_or("split-cache", |context| context.method.name()),
            devices,
            kernel: self.members[0].attention.plan(problem)?.kernel().entry.clone(),
            timing: statistics(&all),
            one: statistics(&one),
            efficiency: statistics(&shares).map_or(0.0, |share| share.median_us),
            predicted,
            repeats: options.repeats,
            ranks,
        })
    }
}

/// What all ranks of a measurement are told.
struct Shared<'a> {
    problem: &'a Problem,
    options: &'a AtOnceOptions,
    devices: u32,
    /// Calls of a turn and untimed turns, which the first rank to come there decides for all.
    turns: &'a OnceLock<(u32, u32)>,
    progress: &'a (dyn Fn(u32, u32) + Sync),
}

/// A rank's part of a computation.
enum Part {
    Context(Box<ContextParallel>, ferroflash_distributed::RankTensors),
    Cache(Box<SplitCache>, Box<DeviceTensors>),
}

impl Part {
    fn forward(&mut self, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the tensors are as long as the part's problem says, and outlive it.
        unsafe {
            match self {
                Part::Context(context, tensors) => context.forward(tensors, stream),
                Part::Cache(cache, tensors) => cache.forward(tensors, stream),
            }
        }
    }

    fn wait(&mut self, stream: StreamHandle) -> Result<(), Error> {
        // SAFETY: the timeline's stream lives, and nothing is captured on it.
        unsafe {
            match self {
                Part::Context(context, _) => context.wait(stream),
                Part::Cache(cache, _) => cache.wait(stream),
            }
        }
    }

    fn received(&self) -> u64 {
        match self {
            Part::Context(context, _) => context.traffic().received,
            Part::Cache(cache, _) => cache.traffic().received,
        }
    }
}

impl Member {
    fn borrowed(&self) -> Result<Nccl, Error> {
        // SAFETY: the communicator is this device's and lives as long as the member; members make one computation at a time.
        unsafe { Nccl::from_raw(&self.device, self.nccl.as_raw(), &self.options) }
    }

    fn measure(&self, rank: u32, shared: &Shared<'_>) -> Result<RankAtOnce, Error> {
        let Shared { problem, options, devices, .. } = *shared;
        let timeline = Timeline::new(&self.device)?;
        let stream = timeline.stream();
        let granule = options.context.as_ref().and_then(|context| context.granule);
        let tensors = RankTensorsOnDevice::new(&self.device, problem, devices, granule)?;
        let plan = self.attention.plan(problem)?;
        // SAFETY: the stream lives as long as the timeline.
        unsafe { self.attention.reserve(&plan, stream)? };
        let whole = tensors.whole();
        // SAFETY: the tensors are as long as the problem says, and outlive every launch.
        let one = || unsafe { self.attention.launch(&plan, &whole, stream) };
        one()?;
        timeline.finish()?;
        let one_us = replay_us(&timeline, &mut || one())?;

        let (mut part, kernels, of_q) = self.part(rank, shared, &tensors, stream)?;
        tensors.spoil_o()?;
        part.forward(stream)?;
        part.wait(stream)?;
        let received = part.received();
        let difference = match &of_q {
            Some(of_q) => tensors.compare(problem, of_q, rank)?,
            None => tensors.compare_all(problem)?,
        };

        let (calls, untimed) = *shared.turns.get_or_init(|| {
            let calls = (TURN_US * f64::from(devices) / one_us).ceil().clamp(2.0, CALLS_MOST);
            let turn_us = 2.0 * one_us * calls / f64::from(devices);
            (calls as u32, (options.warm_up.as_micros() as f64 / turn_us).ceil() as u32)
        });
        let by_itself = calls.div_ceil(devices);
        let mut failed = None;
        let mut all = |part: &mut Part, stream| {
            let done = (0..calls).try_for_each(|_| part.forward(stream));
            done.map_err(|error| library_error(error, &mut failed))
        };
        let captured = options.graph.then(|| timeline.capture(|stream| all(&mut part, stream))).transpose();
        let captured = captured.map_err(|error| failed.take().unwrap_or(error.into()))?;
        let mut turns = Vec::new();
        for turn in 0..untimed + options.reps {
            std::thread::sleep(options.rest);
            let marks = [timeline.mark()?, timeline.mark()?, timeline.mark()?, timeline.mark()?];
            timeline.set(&marks[0])?;
            (0..by_itself).try_for_each(|_| one())?;
            timeline.set(&marks[1])?;
            part.forward(stream)?;
            timeline.set(&marks[2])?;
            match &captured {
                // SAFETY: what was captured lives as long as the part and its tensors, which outlive every replay.
                Some(graph) => unsafe { timeline.replay(graph)? },
                None => (0..calls).try_for_each(|_| part.forward(stream))?,
            }
            timeline.set(&marks[3])?;
            part.wait(stream)?;
            if turn >= untimed {
                let all_us = marks[3].since_us(&marks[2])? / f64::from(calls);
                turns.push([all_us, marks[1].since_us(&marks[0])? / f64::from(by_itself)]);
            }
            if rank == 0 {
                (shared.progress)(turn + 1, untimed + options.reps);
            }
        }
        let unequal = repeat(&mut part, &tensors, stream, options.repeats)?;
        let times = |which: usize| statistics(&turns.iter().map(|turn| turn[which]).collect::<Vec<f64>>());
        Ok(RankAtOnce {
            rank,
            timing: times(0),
            one: times(1),
            received,
            kernels,
            difference,
            unequal,
            turns,
        })
    }

    /// What the rank computes, the kernels of it, and which rows of O it has where it has not all.
    fn part(
        &self,
        rank: u32,
        shared: &Shared<'_>,
        tensors: &RankTensorsOnDevice,
        stream: StreamHandle,
    ) -> Result<(Part, Vec<String>, Option<Sharding>), Error> {
        let transport = Box::new(self.borrowed()?);
        let attention = self.attention.clone();
        if let Some(options) = &shared.options.context {
            let context = ContextParallel::new(attention, transport, shared.problem, options)?;
            // SAFETY: the stream lives as long as the timeline, which outlives the context.
            unsafe { context.reserve(stream)? };
            let (kernels, of_q) = (context.kernels(), context.sharding(TensorRole::Q).clone());
            return Ok((Part::Context(Box::new(context), tensors.of(rank)), kernels, Some(of_q)));
        }
        let (problem, first) = own_keys(shared.problem, rank, shared.devices)?;
        let cache = SplitCache::new(attention, transport, &problem)?;
        cache.preload()?;
        let whole = tensors.whole();
        let offset = |role| first * problem.strides(role).row as u64 * u64::from(problem.dtype().bytes());
        let (k, v) = (whole.k + offset(TensorRole::K), whole.v + offset(TensorRole::V));
        let own = DeviceTensors::new(whole.q, k, v, tensors.of(rank).o);
        let kernels = cache.kernels();
        Ok((Part::Cache(Box::new(cache), Box::new(own)), kernels, None))
    }
}

/// Calls of which O is compared with the first one's: how many had other bits.
fn repeat(
    part: &mut Part,
    tensors: &RankTensorsOnDevice,
    stream: StreamHandle,
    repeats: u32,
) -> Result<u32, Error> {
    let (mut first, mut unequal) = (None, 0);
    for _ in 0..repeats {
        tensors.spoil_o()?;
        part.forward(stream)?;
        part.wait(stream)?;
        let o = tensors.read_o()?;
        unequal += u32::from(*first.get_or_insert_with(|| o.clone()) != o);
    }
    Ok(unequal)
}

/// The problem of a rank over its share of the keys, as they lie among all, and its first key.
fn own_keys(problem: &Problem, rank: u32, devices: u32) -> Result<(Problem, u64), Error> {
    let refused = |reason: &str| {
        let (method, world) = ("split cache", devices);
        Error::Refused { method, world, reason: reason.to_owned() }
    };
    let sizes = *problem.sizes();
    if problem.mask() != ferroflash::Mask::FULL || problem.layout() != Some(Layout::Bhsd) {
        return Err(refused("every query sees every key here: give no mask"));
    }
    let start = |rank: u32| (u64::from(sizes.seqlen_k) * u64::from(rank) / u64::from(devices)) as u32;
    let own = Problem::new(Sizes { seqlen_k: start(rank + 1) - start(rank), ..sizes }, problem.dtype())?;
    let own = own.with_scale(problem.scale())?;
    let own = own.with_strides(TensorRole::K, problem.strides(TensorRole::K))?;
    let own = own.with_strides(TensorRole::V, problem.strides(TensorRole::V))?;
    Ok((own, start(rank).into()))
}
