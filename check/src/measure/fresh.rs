//! Device time on inputs that no launch has seen before: for candidates that nobody trusts.

use super::tensors::{TensorSets, check_problems};
use super::{Bench, Check, MeasureOptions, candidate, replay_between, warm_up};
use crate::workload::Workload;
use ferroflash::device::graph::Timeline;
use ferroflash::device::{Device, StreamHandle};
use ferroflash::error::Error;
use ferroflash::plan::Plan;
use serde::Serialize;
use std::time::Instant;

/// Time between two looks at the host's clock, in microseconds: long beside the 10 that a launch and the wait for it take, short
/// beside the milliseconds for which a busy host's scheduler leaves a process waiting.
const WALL_TRY_US: f64 = 500.0;
/// The most launches between two looks at the host's clock.
const WALL_LAUNCHES: f64 = 100.0;
/// How often the host's clock is read around launches.
const WALL_TRIES: u32 = 25;

/// What became of one candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fresh {
    /// The kernel's name.
    pub entry: String,
    /// Device time of one launch in each timed replay whose output was right, in microseconds, in their order.
    pub times_us: Vec<f64>,
    /// Replays whose output was wrong.
    pub wrong: u32,
    /// What the last of these wrote.
    pub wrong_check: Option<Check>,
}

impl Bench {
    /// Time of one launch by the host's clock, in microseconds, from the first of a few launches to the end of the last: a second
    /// timer that shares nothing with the events. Where a kernel is shorter than a launch takes the host, it is that. The least
    /// of many short tries, as the host may be busy with others: a median of events leaves out the times at which it was.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], and what loading and launching report.
    pub fn wall_us(&self, plan: &Plan) -> Result<f64, Error> {
        let tensors = TensorSets::new(&self.device, Workload::of(plan.problem()), true, 0, None)?;
        let run = |count: u32| -> Result<f64, Error> {
            let start = Instant::now();
            for i in 0..count {
                // SAFETY: the tensors are as long as the problem says and live until the wait below.
                unsafe { self.attention.launch(plan, &tensors.set(i as usize), StreamHandle::DEFAULT)? };
            }
            // SAFETY: the default stream lives as long as the device.
            unsafe { self.device.synchronize(StreamHandle::DEFAULT)? };
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        let least_of = |tries: u32, launches: u32| -> Result<f64, Error> {
            let mut least = f64::INFINITY;
            for _ in 0..tries {
                least = least.min(run(launches)?);
            }
            Ok(least)
        };
        // The first launches pay for what is lazy, and for clocks that are down.
        let one_us = least_of(WALL_TRIES, 1)?;
        let launches = (WALL_TRY_US / one_us).clamp(1.0, WALL_LAUNCHES) as u32;
        Ok(least_of(WALL_TRIES, launches)? / f64::from(launches))
    }

    /// Measures plans of one problem against each other as [`Bench::measure`] does, but before each timed replay Q, K and V are
    /// replaced at their addresses and O and LSE are filled with NaN, and behind it a sample of the output is computed again.
    /// Nothing that was kept from an earlier replay is right then. `seed` gives the inputs.
    ///
    /// # Errors
    /// Those of [`Bench::measure`]. A wrong output is no error: it is counted.
    pub fn measure_fresh(
        &self,
        plans: &[Plan],
        options: &MeasureOptions,
        seed: u64,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<Vec<Fresh>, Error> {
        let subjects = self.subjects(plans);
        let Some(first) = plans.first() else { return Ok(Vec::new()) };
        check_problems(first.problem(), plans.iter())?;
        let tensors = self.tensors(Workload::of(first.problem()), options)?;
        let timeline = Timeline::new(&self.device)?;
        let mut candidates = Vec::new();
        for &subject in &subjects {
            candidates.push(candidate(subject, &tensors, &timeline, options)?);
        }
        warm_up(&timeline, &candidates, options)?;
        let of_plan = |plan: &Plan| {
            let entry = plan.kernel().entry.clone();
            Fresh { entry, times_us: Vec::new(), wrong: 0, wrong_check: None }
        };
        let mut results: Vec<Fresh> = plans.iter().map(of_plan).collect();
        let mut seed = seed;
        for rep in 0..options.reps {
            for turn in 0..candidates.len() {
                // Every second round goes backwards, so that none is always the first: A B B A.
                let at = if rep % 2 == 0 { turn } else { candidates.len() - 1 - turn };
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                tensors.renew_inputs(seed >> 20)?;
                // A replay of another candidate keeps the device busy until the timed one is enqueued behind it; what it wrote
                // is gone before.
                let lead_in = &candidates[(at + 1) % candidates.len()];
                if candidates.len() > 1 {
                    replay_between(&timeline, &lead_in.graph, &lead_in.marks)?;
                }
                tensors.poison_outputs()?;
                let candidate = &candidates[at];
                replay_between(&timeline, &candidate.graph, &candidate.marks)?;
                timeline.finish()?;
                let check = tensors.judge(candidate.subject.plan)?;
                let result = &mut results[at];
                if check.passed() {
                    let replay_us = candidate.marks.1.since_us(&candidate.marks.0)?;
                    result.times_us.push(replay_us / candidate.launches as f64);
                } else {
                    result.wrong += 1;
                    result.wrong_check = Some(check);
                }
            }
            progress(rep + 1, options.reps);
        }
        // SAFETY: every replay was waited for, and the graphs are not replayed again.
        unsafe { self.release(&timeline) };
        Ok(results)
    }
}
