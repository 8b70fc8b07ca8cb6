//! Device time of plans: CUDA-graph replays between events, candidates interleaved, inputs rotated.

pub mod at_once;
pub mod backward;
pub mod contest;
mod copy;
pub mod draw;
mod drawn;
pub mod fit;
mod fresh;
pub mod kept;
mod leftover;
mod load;
pub mod ranks;
pub mod regret;
pub mod sweep;
mod tensors;

use crate::workload::Workload;
use ferroflash::attention::{Attention, CudaOptions};
use ferroflash::device::Device;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::graph::{Graph, Mark, Timeline};
use ferroflash::device::nvml::{Nvml, Reading};
use ferroflash::error::Error;
use ferroflash::module::Library;
use ferroflash::plan::Plan;
pub use fresh::Fresh;
pub use load::Load;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use tensors::{Check, ERROR_MAX};
use tensors::{TensorSets, check_problems};

/// The most launches in one graph.
const LAUNCHES_MAX: usize = 4096;
/// Launches of the replay from which the time of one is estimated.
const LAUNCHES_TO_CALIBRATE: usize = 5;

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasureOptions {
    /// Timed replays of each candidate.
    pub reps: u32,
    /// Whether inputs and outputs are rotated through more than twice the L2 cache, so that each launch finds it cold. Without,
    /// every launch works on the same tensors, as the usual benchmarks do.
    pub cold: bool,
    /// Whether the kernels write LSE too, as those of training libraries always do.
    pub lse: bool,
    /// The least time that one replay takes, in microseconds: launches are added until it does.
    pub replay_us: f64,
    /// Time spent on untimed replays before, so that the clocks are up.
    pub warm_up: Duration,
    /// For kernels that nobody trusts: a seed that gives the inputs, and random rows of every head that are judged, instead of a few of
    /// inputs that are always the same.
    pub secret: Option<u64>,
    /// Whether a backward pass writes the gradient of its problem's bias too, which is a launch more.
    pub bias_gradient: bool,
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions {
            reps: 31,
            cold: false,
            lse: false,
            replay_us: 300.0,
            warm_up: Duration::from_millis(200),
            secret: None,
            bias_gradient: false,
        }
    }
}

/// Device time of one launch, in microseconds, over the replays.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Timing {
    /// The median.
    pub median_us: f64,
    /// The 10th percentile.
    pub p10_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// (p90 − p10) / median.
    pub spread: f64,
}

/// What became of one candidate.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Measured {
    /// The kernel's name.
    pub entry: String,
    /// Whether it is one of the baseline's: see [`Bench::open_baseline`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_baseline: bool,
    /// What it was loaded from, "cubin sm_90" or "PTX sm_80".
    pub source: String,
    /// Ranges that the keys are split into.
    pub splits: u32,
    /// Whether the splits are merged in the same launch.
    pub is_fused: bool,
    /// CTAs of a launch, those of the combine kernel not counted.
    pub ctas: u32,
    /// CTAs an SM gets, on average.
    pub ctas_per_sm: f64,
    /// CTAs that an SM holds at a time.
    pub resident_ctas_per_sm: u32,
    /// Waves of CTAs, or of the tiles that persistent CTAs take.
    pub waves: f64,
    /// Launches in one replay.
    pub launches_per_replay: usize,
    /// Timed replays.
    pub reps: u32,
    /// Whether the output of one launch was right, checked before.
    pub check: Check,
    /// Device time; `None` where the check failed.
    pub timing: Option<Timing>,
    /// Device time of one launch in each timed replay, in microseconds, in their order; empty where the check failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub times_us: Vec<f64>,
    /// What the device does under this load.
    #[serde(flatten)]
    pub load: Load,
}

/// A CUDA device to measure on.
pub struct Bench {
    device: Arc<CudaDevice>,
    attention: Attention,
    baseline: Option<Attention>,
    nvml: Option<Nvml>,
}

/// A plan, and the kernels that it was made for.
#[derive(Clone, Copy)]
struct Subject<'a> {
    attention: &'a Attention,
    plan: &'a Plan,
}

/// A plan ready to replay. The marks lie around each timed replay.
struct Candidate<'a> {
    subject: Subject<'a>,
    graph: Graph,
    launches: usize,
    marks: (Mark, Mark),
    times_us: Vec<f64>,
    load: Load,
}

impl Bench {
    /// Opens the device and the folder of compiled kernels.
    ///
    /// # Errors
    /// Those of [`Attention::cuda`].
    pub fn open(options: &CudaOptions) -> Result<Bench, Error> {
        let device = Arc::new(CudaDevice::open(options.ordinal, options.l2)?);
        let library = Arc::new(Library::find(options.ptx.as_deref())?);
        let attention = Attention::new(device.clone(), library)?;
        let nvml = Nvml::open(device.pci_bus_id());
        Ok(Bench { device, attention, baseline: None, nvml })
    }

    /// Opens a second folder of compiled kernels, to measure the first one's against.
    ///
    /// # Errors
    /// Those of [`Library::find`] and [`Attention::new`].
    pub fn open_baseline(&mut self, ptx: &Path) -> Result<(), Error> {
        let library = Arc::new(Library::find(Some(ptx))?);
        self.baseline = Some(Attention::new(self.device.clone(), library)?);
        Ok(())
    }

    /// Attention with the second folder's kernels.
    pub fn baseline(&self) -> Option<&Attention> {
        self.baseline.as_ref()
    }

    /// Attention on the device.
    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// The device.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Clocks, power and the driver's version now, where NVML tells.
    pub fn reading(&self) -> Reading {
        self.nvml.as_ref().map(Nvml::read).unwrap_or_default()
    }

    /// Bytes that a copy within the device reads and writes in a second, in GB/s.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cuda`].
    pub fn copy_bandwidth_gb_s(&self) -> Result<f64, Error> {
        copy::bandwidth_gb_s(&self.device)
    }

    /// Measures plans of one problem against each other: checks each one's output, then replays them in turns, so that whatever
    /// changes meanwhile (clocks, temperature, neighbours) changes for all. `progress` is told replays done and in all, from 0 on; the
    /// device is idle while it is told, so another program can have its turn.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::WrongLength`] where the plans are of problems of other sizes, and what loading and
    /// launching report. A wrong output is no error: it is in [`Measured::check`].
    pub fn measure(
        &self,
        plans: &[Plan],
        options: &MeasureOptions,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<Vec<Measured>, Error> {
        self.measure_beside_baseline(plans, &[], options, progress)
    }

    /// As [`Bench::measure`], with plans that [`Bench::baseline`] made in turns with the others; theirs are the last results. Without
    /// a baseline there are none.
    ///
    /// # Errors
    /// Those of [`Bench::measure`].
    pub fn measure_beside_baseline(
        &self,
        plans: &[Plan],
        baseline_plans: &[Plan],
        options: &MeasureOptions,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<Vec<Measured>, Error> {
        let Some(first) = plans.first().or(baseline_plans.first()) else { return Ok(Vec::new()) };
        let workload = Workload::of(first.problem());
        self.measure_workload(workload, plans, baseline_plans, options, progress)
    }

    /// As [`Bench::measure_beside_baseline`], with sequences and operands of the caller's.
    ///
    /// # Errors
    /// Those of [`Bench::measure`].
    pub fn measure_workload(
        &self,
        workload: Workload,
        plans: &[Plan],
        baseline_plans: &[Plan],
        options: &MeasureOptions,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<Vec<Measured>, Error> {
        let mut subjects = self.subjects(plans);
        if let Some(attention) = &self.baseline {
            subjects.extend(baseline_plans.iter().map(|plan| Subject { attention, plan }));
        }
        check_problems(workload.problem(), subjects.iter().map(|subject| subject.plan))?;
        let tensors = self.tensors(workload, options)?;
        let timeline = Timeline::new(&self.device)?;
        let mut checks = Vec::new();
        let mut candidates = Vec::new();
        for &subject in &subjects {
            let check = tensors.check(subject.attention, subject.plan)?;
            if check.passed() {
                candidates.push(candidate(subject, &tensors, &timeline, options)?);
            }
            checks.push(check);
        }
        self.replay_in_turns(&timeline, &mut candidates, options, progress)?;
        // SAFETY: replay_in_turns waited for the last replay, and the graphs are not replayed again.
        unsafe { self.release(&timeline) };
        let mut timed = candidates.into_iter();
        let results = subjects.iter().zip(checks).map(|(&subject, check)| {
            let candidate = if check.passed() { timed.next() } else { None };
            self.result(subject, check, candidate.as_ref(), options)
        });
        results.collect()
    }

    /// Plans of the first folder's kernels.
    fn subjects<'a>(&'a self, plans: &'a [Plan]) -> Vec<Subject<'a>> {
        plans.iter().map(|plan| Subject { attention: &self.attention, plan }).collect()
    }

    /// Gives back what launches on the timeline's stream kept.
    ///
    /// # Safety
    /// Nothing that was captured there is replayed again.
    unsafe fn release(&self, timeline: &Timeline) {
        for attention in [Some(&self.attention), self.baseline.as_ref()].into_iter().flatten() {
            // SAFETY: the caller's.
            unsafe { attention.release(timeline.stream()) };
        }
    }

    /// Tensors for plans of a workload; over twice the L2 cache of them where launches shall find it cold.
    fn tensors(&self, workload: Workload, options: &MeasureOptions) -> Result<TensorSets, Error> {
        let cold_bytes = if options.cold { 2 * self.device.info().l2_bytes + 1 } else { 0 };
        TensorSets::new(&self.device, workload, options.lse, cold_bytes, options.secret)
    }

    fn replay_in_turns(
        &self,
        timeline: &Timeline,
        candidates: &mut [Candidate<'_>],
        options: &MeasureOptions,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<(), Error> {
        if candidates.is_empty() {
            return Ok(());
        }
        warm_up(timeline, candidates, options)?;
        progress(0, options.reps);
        self.timed_turns(timeline, candidates, options, progress)?;
        for candidate in candidates {
            candidate.load = self.load(timeline, &candidate.graph, &candidate.marks)?;
        }
        Ok(())
    }

    /// Replays all candidates in turns, as often as `options` says, and keeps the time of each replay.
    fn timed_turns(
        &self,
        timeline: &Timeline,
        candidates: &mut [Candidate<'_>],
        options: &MeasureOptions,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<(), Error> {
        let Some(last) = candidates.len().checked_sub(1) else { return Ok(()) };
        for rep in 0..options.reps {
            // An untimed replay keeps the device busy until the timed ones are enqueued behind it.
            let lead_in = &candidates[last];
            replay_between(timeline, &lead_in.graph, &lead_in.marks)?;
            for candidate in candidates.iter() {
                replay_between(timeline, &candidate.graph, &candidate.marks)?;
            }
            timeline.finish()?;
            for candidate in candidates.iter_mut() {
                let replay_us = candidate.marks.1.since_us(&candidate.marks.0)?;
                candidate.times_us.push(replay_us / candidate.launches as f64);
            }
            progress(rep + 1, options.reps);
        }
        Ok(())
    }

    fn result(
        &self,
        Subject { attention, plan }: Subject<'_>,
        check: Check,
        candidate: Option<&Candidate<'_>>,
        options: &MeasureOptions,
    ) -> Result<Measured, Error> {
        debug_assert!(candidate.is_none_or(|candidate| std::ptr::eq(candidate.subject.plan, plan)));
        let loaded = attention.preload(plan)?;
        let resident = self.device.resident_ctas(&loaded)?;
        let sm_count = f64::from(self.device.info().sm_count);
        let pieces = f64::from(plan.tiles()) * f64::from(plan.splits());
        Ok(Measured {
            entry: plan.kernel().entry.clone(),
            is_baseline: !std::ptr::eq(attention, &self.attention),
            source: attention.kernel_source(plan)?,
            splits: plan.splits(),
            is_fused: plan.is_fused(),
            ctas: plan.grid(),
            ctas_per_sm: f64::from(plan.grid()) / sm_count,
            resident_ctas_per_sm: resident,
            waves: pieces / (sm_count * f64::from(resident.max(1))),
            launches_per_replay: candidate.map_or(0, |candidate| candidate.launches),
            reps: options.reps,
            check,
            timing: candidate.and_then(|candidate| statistics(&candidate.times_us)),
            times_us: candidate.map_or_else(Vec::new, |candidate| candidate.times_us.clone()),
            load: candidate.map(|candidate| candidate.load).unwrap_or_default(),
        })
    }
}

/// Captures as many launches as fill a replay, each set of tensors equally often.
fn candidate<'a>(
    subject: Subject<'a>,
    tensors: &TensorSets,
    timeline: &Timeline,
    options: &MeasureOptions,
) -> Result<Candidate<'a>, Error> {
    let Subject { attention, plan } = subject;
    // SAFETY: the timeline's stream lives longer than any work on it; whoever made it releases it when all is done.
    unsafe { attention.reserve(plan, timeline.stream())? };
    let marks = (timeline.mark()?, timeline.mark()?);
    let few = capture(subject, tensors, timeline, LAUNCHES_TO_CALIBRATE)?;
    // The first replay pays for what is lazy; the second is taken.
    for _ in 0..2 {
        replay_between(timeline, &few, &marks)?;
        timeline.finish()?;
    }
    let launch_us = marks.1.since_us(&marks.0)? / LAUNCHES_TO_CALIBRATE as f64;
    let launches = launches_to_fill(launch_us, options.replay_us, tensors.sets());
    let (times_us, load) = (Vec::new(), Load::default());
    let graph = capture(subject, tensors, timeline, launches)?;
    Ok(Candidate { subject, graph, launches, marks, times_us, load })
}

/// A graph of `launches` launches, the sets of tensors in turns.
fn capture(
    Subject { attention, plan }: Subject<'_>,
    tensors: &TensorSets,
    timeline: &Timeline,
    launches: usize,
) -> Result<Graph, Error> {
    timeline.capture(|stream| {
        for i in 0..launches {
            // SAFETY: the tensors are as long as the problem says and outlive every replay: all end in one function of Bench.
            unsafe { attention.launch(plan, &tensors.set(i), stream)? };
        }
        Ok(())
    })
}

/// Replays untimed until the clocks are up.
fn warm_up(timeline: &Timeline, candidates: &[Candidate<'_>], options: &MeasureOptions) -> Result<(), Error> {
    let start = Instant::now();
    while start.elapsed() < options.warm_up {
        for candidate in candidates {
            replay_between(timeline, &candidate.graph, &candidate.marks)?;
        }
        timeline.finish()?;
    }
    Ok(())
}

fn replay_between(timeline: &Timeline, graph: &Graph, marks: &(Mark, Mark)) -> Result<(), Error> {
    timeline.set(&marks.0)?;
    // SAFETY: measure, which owns the tensors of every captured launch, finishes the timeline before it drops them.
    unsafe { timeline.replay(graph)? };
    timeline.set(&marks.1)
}

/// Launches that take `replay_us` together, a multiple of the sets of tensors so that each is used equally often.
fn launches_to_fill(launch_us: f64, replay_us: f64, sets: usize) -> usize {
    let least = (replay_us / launch_us.max(1e-3)).ceil() as usize;
    least.clamp(1, LAUNCHES_MAX).next_multiple_of(sets)
}

/// `None` where there are no times.
fn statistics(times_us: &[f64]) -> Option<Timing> {
    let mut sorted = times_us.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = |share: f64| sorted[(share * last as f64).round() as usize];
    let (median_us, p10_us, p90_us) = (at(0.5), at(0.1), at(0.9));
    Some(Timing { median_us, p10_us, p90_us, spread: (p90_us - p10_us) / median_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times: Vec<f64> = (0..=10).rev().map(|i| 100.0 + f64::from(i)).collect();
        let timing = statistics(&times).expect("times");
        assert_eq!((timing.median_us, timing.p10_us, timing.p90_us), (105.0, 101.0, 109.0));
        assert_eq!(timing.spread, 8.0 / 105.0);
        assert_eq!(statistics(&[]), None);
        assert_eq!(statistics(&[3.0]).map(|timing| timing.spread), Some(0.0));
    }

    #[test]
    fn a_replay_is_filled_and_uses_each_set_equally_often() {
        assert_eq!(launches_to_fill(7.0, 300.0, 1), 43);
        assert_eq!(launches_to_fill(7.0, 300.0, 20), 60);
        assert_eq!(launches_to_fill(5000.0, 300.0, 1), 1);
        assert_eq!(launches_to_fill(5000.0, 300.0, 3), 3);
        assert_eq!(launches_to_fill(0.0, 300.0, 1), LAUNCHES_MAX);
    }
}
