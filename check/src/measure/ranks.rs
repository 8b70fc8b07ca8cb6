//! Ranks of a split sequence, one after the other on one GPU: what each takes beside what one device takes for all, communication replaced by
//! copies of the same bytes on a stream of their own.

use crate::measure::{Timing, statistics};
use crate::random_input::{InputKind, qkv};
use ferroflash::CopyRun;
use ferroflash::device::Buffer;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::graph::{Mark, Timeline};
use ferroflash::device::nvml::{Nvml, Reading};
use ferroflash::device::side::SideStream;
use ferroflash::module::Library;
use ferroflash::problem::TensorRole;
use ferroflash::rounding::widen;
use ferroflash::{Attention, CudaOptions, DeviceTensors, Dtype, Problem, Sizes, StreamHandle};
use ferroflash_distributed::model::Footprint;
use ferroflash_distributed::{
    ContextOptions, ContextParallel, Copies, Error, Method, RankTensors, ShardRun, Sharding, shard_runs,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The least that one replay takes, in microseconds.
const REPLAY_US: f64 = 300.0;
/// Where one device takes longer than this, a rank's replay is of as many calls as last as long: at the power limit clocks change by 3 % some ten
/// times a second, and a shorter replay would see only one of them. Where one device takes less, a rank's few milliseconds have the clock of what
/// came before; as many calls as last as long would find what the power of the other's replay left of it.
const STEADY_US: f64 = 100e3;
/// Where shards start.
const ALIGNMENT: u64 = 256;
/// Rows of a head that are made anew; longer tensors repeat them.
const FRESH_ROWS: u32 = 4096;
/// Elements of each run of O that are compared, at its start and at its end.
const COMPARED: usize = 4096;

/// How to measure.
#[derive(Clone, Debug)]
pub struct RankOptions {
    /// Devices that the sequence is split among.
    pub devices: u32,
    /// How.
    pub context: ContextOptions,
    /// Timed replays of each.
    pub reps: u32,
    /// Time spent on untimed replays before.
    pub warm_up: Duration,
    /// Whether ranks' calls are enqueued one by one, instead of replayed as a graph.
    pub eager: bool,
}

/// What one rank takes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RankMeasured {
    /// The rank.
    pub rank: u32,
    /// Rows that it holds.
    pub rows: u32,
    /// Whether its calls were replayed as a graph: not where that was asked for, or could not be captured.
    pub is_captured: bool,
    /// Its time; `None` without replays.
    pub timing: Option<Timing>,
    /// The time of one device for the whole, in turns with it.
    pub one: Option<Timing>,
    /// Bytes that it receives, and what the model predicts.
    pub received: [u64; 2],
    /// Bytes of its buffers, and what the model predicts.
    pub buffers: [u64; 2],
    /// The kernels of its launches, in order.
    pub kernels: Vec<String>,
    /// Rows of O compared with those of one device: the largest difference, and the largest |O|. `None` where a method's O depends on
    /// other ranks.
    pub difference: Option<[f64; 2]>,
    /// Whether all bits that were compared are equal.
    pub is_bitwise: bool,
}

/// What all ranks take.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RanksMeasured {
    /// The method.
    pub method: Method,
    /// Devices.
    pub devices: u32,
    /// Queries of the whole sequence.
    pub tokens: u32,
    /// The kernel of one device.
    pub kernel: String,
    /// Each rank's.
    pub ranks: Vec<RankMeasured>,
    /// The largest share of one device's time, times the devices, less 1: what is lost to the schedule.
    pub loss: f64,
}

impl RankMeasured {
    /// Its time as a share of one device's.
    pub fn share(&self) -> f64 {
        self.timing.zip(self.one).map_or(0.0, |(timing, one)| timing.median_us / one.median_us)
    }
}

impl RanksMeasured {
    /// Whether all that was compared is as it must be: two units in the last place of bf16 at most, of the largest |O|.
    pub fn is_right(&self) -> bool {
        self.ranks.iter().filter_map(|rank| rank.difference).all(is_close)
    }

    /// The rank with the largest share of one device's time.
    pub fn slowest(&self) -> Option<&RankMeasured> {
        self.ranks.iter().max_by(|a, b| a.share().total_cmp(&b.share()))
    }
}

/// A GPU to measure ranks on.
pub struct RankBench {
    device: Arc<CudaDevice>,
    attention: Arc<Attention>,
    nvml: Option<Nvml>,
}

/// The tensors of the whole problem, and every rank's part of Q, K and V.
pub(super) struct RankTensorsOnDevice {
    whole: [Buffer<CudaDevice>; 4],
    shards: [Buffer<CudaDevice>; 3],
    /// Where each rank's part starts in each of them.
    starts: [Vec<u64>; 3],
    o: Buffer<CudaDevice>,
    lse: Buffer<CudaDevice>,
}

/// Something to replay.
struct Subject<'a> {
    replay: Box<dyn FnMut() -> Result<(), ferroflash::Error> + 'a>,
    is_captured: bool,
    launches: usize,
    /// What a replay takes, by the time of the second launch.
    replay_us: f64,
    us: Vec<f64>,
}

impl RankBench {
    /// Opens the device and the folder of compiled kernels.
    ///
    /// # Errors
    /// Those of [`Attention::cuda`].
    pub fn open(options: &CudaOptions) -> Result<RankBench, ferroflash::Error> {
        let device = Arc::new(CudaDevice::open(options.ordinal, options.l2)?);
        let library = Arc::new(Library::find(options.ptx.as_deref())?);
        let attention = Arc::new(Attention::new(device.clone(), library)?);
        let nvml = Nvml::open(device.pci_bus_id());
        Ok(RankBench { device, attention, nvml })
    }

    /// Clocks, power and the driver's version now, where NVML tells.
    pub fn reading(&self) -> Reading {
        self.nvml.as_ref().map(Nvml::read).unwrap_or_default()
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        self.attention.device_name()
    }

    /// Measures every rank of a problem of the whole sequence in turns with one device.
    ///
    /// # Errors
    /// [`Error::Refused`], and what planning, allocating and launching report. A wrong O is no error: see [`RanksMeasured::is_right`].
    pub fn measure(
        &self,
        problem: &Problem,
        options: &RankOptions,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<RanksMeasured, Error> {
        let timeline = Timeline::new(&self.device)?;
        let tensors =
            RankTensorsOnDevice::new(&self.device, problem, options.devices, options.context.granule)?;
        let plan = self.attention.plan(problem)?;
        // SAFETY: the stream lives as long as the timeline.
        unsafe { self.attention.reserve(&plan, timeline.stream())? };
        let whole = tensors.whole();
        let launch = |stream: StreamHandle| {
            // SAFETY: the tensors are as long as the problem says, and outlive every replay.
            unsafe { self.attention.launch(&plan, &whole, stream) }
        };
        let mut one = subject(&timeline, launch, (REPLAY_US, false))?;
        let mut ranks = Vec::new();
        for rank in 0..options.devices {
            progress(rank, options.devices);
            ranks.push(self.rank(problem, options, &tensors, &timeline, (rank, &mut one))?);
        }
        progress(options.devices, options.devices);
        let mut measured = RanksMeasured {
            method: options.context.method,
            devices: options.devices,
            tokens: problem.sizes().seqlen_q,
            kernel: plan.kernel().entry.clone(),
            ranks,
            loss: 0.0,
        };
        let share = measured.slowest().map_or(0.0, RankMeasured::share);
        measured.loss = share * f64::from(options.devices) - 1.0;
        Ok(measured)
    }

    fn rank(
        &self,
        problem: &Problem,
        options: &RankOptions,
        tensors: &RankTensorsOnDevice,
        timeline: &Timeline,
        (rank, one): (u32, &mut Subject<'_>),
    ) -> Result<RankMeasured, Error> {
        let sources = (0..options.devices).map(|rank| tensors.of(rank)).collect();
        // SAFETY: the shards are those of this problem and these options, and outlive every replay.
        let copies = unsafe { Copies::new((self.attention.clone(), &self.device), rank, sources)? };
        let mut context =
            ContextParallel::new(self.attention.clone(), Box::new(copies), problem, &options.context)?;
        // SAFETY: the stream lives as long as the timeline.
        unsafe { context.reserve(timeline.stream())? };
        tensors.spoil_o()?;
        let own = tensors.of(rank);
        // SAFETY: as below.
        unsafe { context.forward(&own, timeline.stream())? };
        timeline.finish()?;
        let received = context.traffic().received;
        let (kernels, buffer_bytes) = (context.kernels(), context.buffer_bytes());
        let of_q = context.sharding(TensorRole::Q).clone();
        let mut failed = None;
        let forward = |stream: StreamHandle| {
            // SAFETY: the rank's tensors are as long as the context says, and outlive every replay.
            unsafe { context.forward(&own, stream) }.map_err(|error| library_error(error, &mut failed))
        };
        let least_us = if one.replay_us > STEADY_US { one.replay_us } else { REPLAY_US };
        let timed = subject(timeline, forward, (least_us, options.eager)).and_then(|mut subject| {
            time(timeline, (&mut *one, &mut subject), options)?;
            Ok((statistics(&subject.us), subject.is_captured))
        });
        let (timing, is_captured) = timed.map_err(|error| failed.unwrap_or(error.into()))?;
        let footprint = Footprint::new(problem, options.context.method, rank, options.devices);
        let difference = match options.context.method {
            Method::Ulysses => None,
            _ => Some(tensors.compare(problem, &of_q, rank)?),
        };
        Ok(RankMeasured {
            rank,
            rows: of_q.rows(rank),
            is_captured,
            timing,
            one: statistics(&one.us),
            received: [received, footprint.received as u64],
            buffers: [buffer_bytes, footprint.buffers as u64],
            kernels,
            is_bitwise: difference.is_some_and(|[difference, _]| difference == 0.0),
            difference,
        })
    }
}

/// Whether the largest difference from one device's O is two units in the last place of bf16 at most, of the largest |O|.
pub(super) fn is_close([difference, largest]: [f64; 2]) -> bool {
    difference <= largest * 2.0 / 128.0
}

/// Keeps a rank's error aside, as captures return the library's alone.
pub(super) fn library_error(error: Error, aside: &mut Option<Error>) -> ferroflash::Error {
    let reason = error.to_string();
    *aside = Some(error);
    ferroflash::Error::Cuda { call: "a rank's launches", reason }
}

/// Captures launches, as many as make a replay at least so long in microseconds; where they cannot be captured, or are not to be, they are enqueued as often.
fn subject<'a>(
    timeline: &'a Timeline,
    mut launch: impl FnMut(StreamHandle) -> Result<(), ferroflash::Error> + 'a,
    (least_us, eager): (f64, bool),
) -> Result<Subject<'a>, ferroflash::Error> {
    // The first use loads kernels and encodes maps.
    launch(timeline.stream())?;
    timeline.finish()?;
    let once = replay_us(timeline, &mut || launch(timeline.stream()))?;
    let launches = (least_us / once).ceil().clamp(1.0, 256.0) as usize;
    let mut all = move |stream| (0..launches).try_for_each(|_| launch(stream));
    let captured = if eager { None } else { timeline.capture(&mut all).ok() };
    let is_captured = captured.is_some();
    let replay: Box<dyn FnMut() -> Result<(), ferroflash::Error> + 'a> = match captured {
        // SAFETY: what was captured lives as long as its tensors, which outlive every replay.
        Some(graph) => Box::new(move || unsafe { timeline.replay(&graph) }),
        None => Box::new(move || all(timeline.stream())),
    };
    Ok(Subject { replay, is_captured, launches, replay_us: once * launches as f64, us: Vec::new() })
}

pub(super) fn replay_us(
    timeline: &Timeline,
    replay: &mut dyn FnMut() -> Result<(), ferroflash::Error>,
) -> Result<f64, ferroflash::Error> {
    let marks = [timeline.mark()?, timeline.mark()?];
    timeline.set(&marks[0])?;
    replay()?;
    timeline.set(&marks[1])?;
    timeline.finish()?;
    marks[1].since_us(&marks[0]).map(|us| us.max(1.0))
}

/// Replays both in turns, without a pause between.
fn time(
    timeline: &Timeline,
    (first, second): (&mut Subject<'_>, &mut Subject<'_>),
    options: &RankOptions,
) -> Result<(), ferroflash::Error> {
    let until = Instant::now() + options.warm_up;
    while Instant::now() < until {
        replay_us(timeline, &mut first.replay)?;
        replay_us(timeline, &mut second.replay)?;
    }
    let mut marks: Vec<[Mark; 3]> = Vec::new();
    for _ in 0..options.reps {
        marks.push([timeline.mark()?, timeline.mark()?, timeline.mark()?]);
    }
    for [start, between, end] in &marks {
        timeline.set(start)?;
        (first.replay)()?;
        timeline.set(between)?;
        (second.replay)()?;
        timeline.set(end)?;
    }
    timeline.finish()?;
    first.us.clear();
    for [start, between, end] in &marks {
        first.us.push(between.since_us(start)? / first.launches as f64);
        second.us.push(end.since_us(between)? / second.launches as f64);
    }
    Ok(())
}

impl RankTensorsOnDevice {
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        problem: &Problem,
        devices: u32,
        granule: Option<u32>,
    ) -> Result<RankTensorsOnDevice, Error> {
        let sizes = problem.sizes();
        let sharding = |rows| match granule {
            Some(granule) => Sharding::with_granule(rows, devices, granule),
            None => Sharding::new(rows, devices),
        };
        let bytes = |role| problem.len(role) as u64 * u64::from(problem.dtype().bytes());
        let memory = |role| Buffer::new(device, bytes(role));
        let [q, k, v, o] = TensorRole::ALL.map(memory);
        let whole = [q?, k?, v?, o?];
        fill(problem, &whole)?;
        let side = SideStream::new(device)?;
        let shard = |role, from: &Buffer<CudaDevice>| {
            let of = sharding(problem.extent(role).rows);
            let runs: Vec<Vec<ShardRun>> =
                (0..devices).map(|rank| shard_runs(problem, role, &of, rank)).collect();
            let (mut end, mut starts) = (0, Vec::new());
            for runs in &runs {
                starts.push(end);
                end = (end + runs.iter().map(|run| run.bytes).sum::<u64>()).next_multiple_of(ALIGNMENT);
            }
            let shard = Buffer::new(device, end)?;
            let copies = starts.iter().zip(&runs).flat_map(|(start, runs)| {
                let place = move |run: &ShardRun| CopyRun {
                    from: from.address() + run.whole,
                    to: start + run.local,
                    bytes: run.bytes,
                };
                runs.iter().map(place)
            });
            let placed = |run: CopyRun| CopyRun { to: shard.address() + run.to, ..run };
            let copies: Vec<CopyRun> = copies.map(placed).collect();
            // SAFETY: within both buffers, by the runs; both live until the wait below.
            unsafe { side.copy(&copies)? };
            Ok::<_, Error>((shard, starts))
        };
        let (q, of_q) = shard(TensorRole::Q, &whole[0])?;
        let (k, of_k) = shard(TensorRole::K, &whole[1])?;
        let (v, of_v) = shard(TensorRole::V, &whole[2])?;
        side.finish()?;
        let most = u64::from(sharding(sizes.seqlen_q).rows_most());
        let rows = u64::from(sizes.batch) * u64::from(sizes.heads_q) * most;
        let o = Buffer::new(device, rows * u64::from(problem.head_dim_v()) * 2)?;
        let lse = Buffer::new(device, rows * 4)?;
        Ok(RankTensorsOnDevice { whole, shards: [q, k, v], starts: [of_q, of_k, of_v], o, lse })
    }

    /// The tensors of the whole.
    pub(super) fn whole(&self) -> DeviceTensors {
        let [q, k, v, o] = [0, 1, 2, 3].map(|tensor: usize| self.whole[tensor].address());
        DeviceTensors::new(q, k, v, o)
    }

    /// NaN in a rank's O: what nobody writes shows.
    pub(super) fn spoil_o(&self) -> Result<(), Error> {
        Ok(self.o.fill(0xff)?)
    }

    /// All of a rank's O, as bits.
    pub(super) fn read_o(&self) -> Result<Vec<u16>, Error> {
        let mut o = vec![0; self.o.bytes() as usize / 2];
        self.o.read(0, &mut o)?;
        Ok(o)
    }

    /// A rank's tensors; O and LSE are the same place for all.
    pub(super) fn of(&self, rank: u32) -> RankTensors {
        let [q, k, v] =
            [0, 1, 2].map(|tensor: usize| self.shards[tensor].address() + self.starts[tensor][rank as usize]);
        RankTensors { q, k, v, o: self.o.address(), lse: Some(self.lse.address()) }
    }

    /// The largest difference of a rank's O from one device's, and the largest |O|, of rows at the start and the end of each run.
    pub(super) fn compare(&self, problem: &Problem, of_q: &Sharding, rank: u32) -> Result<[f64; 2], Error> {
        let mut found = [0.0; 2];
        for run in shard_runs(problem, TensorRole::O, of_q, rank) {
            let (whole, local, elements) = run.elements();
            let count = elements.min(COMPARED);
            for at in [0, elements - count] {
                self.compare_range(problem.dtype(), (whole + at, local + at), count, &mut found)?;
            }
        }
        Ok(found)
    }

    /// The same where every rank has all of O.
    pub(super) fn compare_all(&self, problem: &Problem) -> Result<[f64; 2], Error> {
        let mut found = [0.0; 2];
        self.compare_range(problem.dtype(), (0, 0), problem.o_len(), &mut found)?;
        Ok(found)
    }

    fn compare_range(
        &self,
        dtype: Dtype,
        (of_whole, of_rank): (usize, usize),
        count: usize,
        found: &mut [f64; 2],
    ) -> Result<(), Error> {
        let (mut ours, mut theirs) = (vec![0u16; count], vec![0u16; count]);
        self.o.read(of_rank, &mut ours)?;
        self.whole[3].read(of_whole, &mut theirs)?;
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let [a, b] = [*ours, *theirs].map(|bits| widen(dtype, bits));
            let difference = if ours == theirs { 0.0 } else { (a - b).abs() };
            // A number that is none is as wrong as can be.
            found[0] = if difference.is_nan() { f64::INFINITY } else { found[0].max(difference) };
            found[1] = found[1].max(b.abs());
        }
        Ok(())
    }
}

/// Normal numbers, the same in every run; long tensors repeat those of their first rows.
fn fill(problem: &Problem, whole: &[Buffer<CudaDevice>; 4]) -> Result<(), Error> {
    let sizes = problem.sizes();
    let rows = sizes.seqlen_k.min(FRESH_ROWS);
    let fresh =
        Sizes { batch: 1, heads_q: 1, heads_kv: 1, seqlen_q: rows, seqlen_k: rows, head_dim: sizes.head_dim };
    let fresh = Problem::new(fresh, problem.dtype())?;
    for ((pattern, buffer), seed) in qkv(&fresh, InputKind::Random, 7).iter().zip(whole).zip(0usize..) {
        let count = buffer.bytes() as usize / 2;
        let mut at = 0;
        while at < count {
            // Each head begins elsewhere in the pattern.
            let skip = (at / pattern.len() * 8191 * sizes.head_dim as usize + seed * 64) % pattern.len();
            let end = (at + pattern.len() - skip).min(count);
            buffer.write(at, &pattern[skip..skip + end - at])?;
            at = end;
        }
    }
    whole[3].fill(0xff)?;
    Ok(())
}
