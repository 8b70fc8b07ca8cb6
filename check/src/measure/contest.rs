//! Which of many plans of one problem is the fastest, in little time: each is checked and tried once, the best are replayed in turns,
//! and the winners once more, so that luck among many is not taken for speed.

use super::tensors::{TensorSets, check_problems};
use super::{
    Bench, Candidate, Check, Load, MeasureOptions, Subject, capture, launches_to_fill, replay_between,
    statistics,
};
use crate::workload::Workload;
use ferroflash::device::graph::{Mark, Timeline};
use ferroflash::error::Error;
use ferroflash::plan::Plan;
use std::time::Duration;

/// Plans that take longer than this in the trial, compared with the best one, are out.
const TRIAL_SHARE: f64 = 1.6;
/// As much over the best of the trial, for launches of a few microseconds, whose trial is coarse.
const TRIAL_SLACK_US: f64 = 1.0;
/// Launches of a trial's second part.
const TRIAL_LAUNCHES: usize = 6;
/// A single launch from which on its own time is near enough, in microseconds.
const TRIAL_LONG_US: f64 = 150.0;
/// Replays of the heat, and the device time that it may take, in microseconds.
const HEAT_REPS: (u32, u32) = (5, 9);
const HEAT_US: f64 = 40_000.0;
/// Plans of the final beside the first one given, and its replays.
const FINALISTS: usize = 3;
const FINAL_REPS: (u32, u32) = (9, 25);
const FINAL_US: f64 = 40_000.0;
/// The least time of one replay, in microseconds.
const REPLAY_US: f64 = 80.0;

/// How far a plan came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Round {
    /// Too slow in the trial: its time is that of a launch or a few.
    Trial,
    /// In turns with all that came so far.
    Heat,
    /// In turns with the best and with the first plan.
    Final,
}

/// What became of one plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entrant {
    /// Whether its output was right.
    pub check: Check,
    /// Device time of one launch in the last round that it was in, in microseconds; the median. NaN where the output was wrong.
    pub time_us: f64,
    /// That round.
    pub round: Round,
}

impl Bench {
    /// Measures all of these plans of a workload's problem; the first one, and the best, are in the final. Warm caches, LSE written.
    /// `hopeless` is asked before each plan's turn, with the number of the plan and what was tried so far: it is then left out.
    ///
    /// # Errors
    /// Those of [`Bench::measure`].
    pub fn contest(
        &self,
        workload: &Workload,
        plans: &[Plan],
        hopeless: &dyn Fn(usize, &[Option<Entrant>]) -> bool,
    ) -> Result<Vec<Option<Entrant>>, Error> {
        let subjects = self.subjects(plans);
        if plans.is_empty() {
            return Ok(Vec::new());
        }
        check_problems(workload.problem(), plans.iter())?;
        let options = MeasureOptions {
            lse: true,
            replay_us: REPLAY_US,
            warm_up: Duration::ZERO,
            ..MeasureOptions::default()
        };
        let tensors = self.tensors(workload.clone(), &options)?;
        let timeline = Timeline::new(&self.device)?;
        let marks = (timeline.mark()?, timeline.mark()?);
        let mut entrants = Vec::new();
        for (at, subject) in subjects.iter().enumerate() {
            let is_hopeless = at > 0 && hopeless(at, &entrants);
            let tried = || trial(*subject, &tensors, &timeline, &marks, best(&entrants));
            let entrant = if is_hopeless { None } else { Some(tried()?) };
            entrants.push(entrant);
        }
        self.rounds(&subjects, &tensors, &timeline, &mut entrants)?;
        // SAFETY: every replay was waited for, and no graph is left.
        unsafe { self.release(&timeline) };
        Ok(entrants)
    }

    fn rounds(
        &self,
        subjects: &[Subject<'_>],
        tensors: &TensorSets,
        timeline: &Timeline,
        entrants: &mut [Option<Entrant>],
    ) -> Result<(), Error> {
        let limit = best(entrants) * TRIAL_SHARE + TRIAL_SLACK_US;
        let time = |entrants: &[Option<Entrant>], at: usize| {
            entrants[at].map_or(f64::NAN, |entrant| entrant.time_us)
        };
        let mut numbers: Vec<usize> = (0..subjects.len())
            .filter(|&at| time(entrants, at) <= limit || (at == 0 && time(entrants, 0) > 0.0))
            .collect();
        let mut candidates = Vec::new();
        for &at in &numbers {
            let launches = launches_to_fill(time(entrants, at), REPLAY_US, tensors.sets());
            let graph = capture(subjects[at], tensors, timeline, launches)?;
            let marks = (timeline.mark()?, timeline.mark()?);
            candidates.push(Candidate {
                subject: subjects[at],
                graph,
                launches,
                marks,
                times_us: Vec::new(),
                load: Load::default(),
            });
        }
        for (round, (least, most), all_us) in
            [(Round::Heat, HEAT_REPS, HEAT_US), (Round::Final, FINAL_REPS, FINAL_US)]
        {
            let turn_us: f64 = numbers.iter().map(|&at| time(entrants, at).max(REPLAY_US)).sum();
            let reps = ((all_us / turn_us) as u32).clamp(least, most);
            let options = MeasureOptions { reps, warm_up: Duration::ZERO, ..MeasureOptions::default() };
            candidates.iter_mut().for_each(|candidate| candidate.times_us.clear());
            self.timed_turns(timeline, &mut candidates, &options, &mut |_, _| ())?;
            for (&at, candidate) in numbers.iter().zip(&candidates) {
                let time_us = statistics(&candidate.times_us).map_or(f64::NAN, |timing| timing.median_us);
                entrants[at] = entrants[at].map(|entrant| Entrant { time_us, round, ..entrant });
            }
            // The best, and the first.
            let mut order: Vec<usize> = (0..numbers.len()).collect();
            order.sort_by(|&a, &b| time(entrants, numbers[a]).total_cmp(&time(entrants, numbers[b])));
            let keep: Vec<bool> = (0..numbers.len())
                .map(|i| numbers[i] == 0 || order.iter().take(FINALISTS).any(|&kept| kept == i))
                .collect();
            let mut flags = keep.iter();
            candidates.retain(|_| flags.next().is_some_and(|&kept| kept));
            let mut flags = keep.iter();
            numbers.retain(|_| flags.next().is_some_and(|&kept| kept));
        }
        Ok(())
    }
}

/// The least time so far; infinite where there is none.
fn best(entrants: &[Option<Entrant>]) -> f64 {
    entrants.iter().flatten().map(|entrant| entrant.time_us).fold(f64::INFINITY, f64::min)
}

/// One launch, whose output is checked, and a few more where its time may be among the best.
fn trial(
    subject: Subject<'_>,
    tensors: &TensorSets,
    timeline: &Timeline,
    marks: &(Mark, Mark),
    best_us: f64,
) -> Result<Entrant, Error> {
    let check = tensors.check(subject.attention, subject.plan)?;
    let round = Round::Trial;
    if !check.passed() {
        return Ok(Entrant { check, time_us: f64::NAN, round });
    }
    // SAFETY: the timeline's stream lives longer than any work on it; contest releases it when all is done.
    unsafe { subject.attention.reserve(subject.plan, timeline.stream())? };
    let timed = |launches: usize| {
        let graph = capture(subject, tensors, timeline, launches)?;
        replay_between(timeline, &graph, marks)?;
        timeline.finish()?;
        Ok::<f64, Error>(marks.1.since_us(&marks.0)? / launches as f64)
    };
    let mut time_us = timed(1)?;
    if time_us < TRIAL_LONG_US {
        time_us = timed(TRIAL_LAUNCHES)?;
    }
    if time_us < best_us * TRIAL_SHARE * TRIAL_SHARE {
        time_us = time_us.min(timed(if time_us < TRIAL_LONG_US { 2 * TRIAL_LAUNCHES } else { 1 })?);
    }
    Ok(Entrant { check, time_us, round })
}
