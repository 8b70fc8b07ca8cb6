//! The runs of a self test: each is recorded when it is done, so that a session that was killed goes on behind it.

use super::SelfTest;
use crate::cli::gate::timed::{REPS, rule, sample, samples, slower};
use crate::error::{Error, Result};
use crate::exam::Refusal;
use crate::gate::{Finding, Samples, Subject, Timed, compare_counters, judge, settle};
use crate::interrupt;
use crate::job::{Report, Task};
use crate::kernels::KernelRef;
use crate::plant::{Plant, plant};
use crate::problem_spec::ProblemSpec;
use crate::stages::{Cascade, Context, Watcher};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::time::Instant;

/// The record of a run.
pub(super) const RUN: &str = "self_test";

/// What a run is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// A kernel against itself.
    Same,
    /// Against a slower copy.
    Slower,
    /// A wrong copy.
    Wrong,
    /// A copy that never ends, and the kernel after it.
    Hang,
}

impl Kind {
    /// Seconds of a run, about: on an H200 beside 16 processors, or on the simulator on two, whose limit ends what hangs. A guess, until
    /// the session has runs of its own.
    fn guess_s(self, simulated: bool) -> f64 {
        match (self, simulated) {
            (Kind::Same | Kind::Slower, false) => 2.0,
            (Kind::Wrong, false) => 4.0,
            (Kind::Hang, false) => 6.0,
            (Kind::Same | Kind::Slower, true) => 20.0,
            (Kind::Wrong, true) => 15.0,
            (Kind::Hang, true) => 10.0,
        }
    }
}

/// Measurements of one process: its start, and what is compiled in it, then serve them all, and a session that is killed loses no more.
const AT_ONCE: u32 = 5;
/// Timed replays of a measurement that looks for how much to plant.
const CALIBRATING_REPS: u32 = 21;

/// What a run found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Found {
    /// No difference, or nothing wrong.
    Same,
    /// A slower kernel.
    Slower,
    /// A faster kernel.
    Faster,
    /// The samples do not say.
    Unclear,
    /// The kernel is refused.
    Refused,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) kind: Option<Kind>,
    pub(super) number: u32,
    pub(super) found: Found,
    /// The relative change of time that was measured.
    pub(super) change: Option<f64>,
    /// The fault and its figures, or what was counted.
    pub(super) evidence: String,
    /// What it took.
    #[serde(default)]
    pub(super) seconds: f64,
}

impl Run {
    fn new(found: Found, change: Option<f64>, evidence: String) -> Run {
        Run { kind: None, number: 0, found, change, evidence, seconds: 0.0 }
    }

    pub(super) fn of_launch(report: Report) -> Run {
        match report {
            Report::Refused(refusal) => {
                Run::new(Found::Refused, None, format!("{}, {}", refusal.fault, refusal.evidence))
            }
            _ => Run::new(Found::Same, None, "ran".to_owned()),
        }
    }

    fn of_times(timed: &Timed) -> Run {
        let found = match timed.finding {
            Finding::Slower => Found::Slower,
            _ if timed.is_alarm() => Found::Faster,
            Finding::NotSlower => Found::Same,
            Finding::Unclear => Found::Unclear,
        };
        let evidence = format!("{} pairs, threshold {:.2} %", timed.pairs, 100.0 * timed.threshold);
        Run::new(found, Some(timed.time.estimate), evidence)
    }
}

impl SelfTest {
    /// Seconds that the runs take that are not recorded yet, about.
    pub(super) fn left_s(&self, wanted: &[(Kind, u32)]) -> f64 {
        let recorded: Vec<Run> = self.lab.session.records(RUN);
        let of_kind = |(kind, count): &(Kind, u32)| {
            let took = recorded.iter().filter(|run| run.kind == Some(*kind)).map(|run| run.seconds);
            let (done, seconds) = took.fold((0, 0.0), |(done, all), seconds| (done + 1, all + seconds));
            let each = match done {
                0 => kind.guess_s(self.lab.context.machine.simulated),
                done => seconds / f64::from(done),
            };
            each * f64::from(count.saturating_sub(done))
        };
        wanted.iter().map(of_kind).sum()
    }

    /// Runs of one kind: those that are recorded, and those that are left, a few at a time; fewer where the time is over.
    pub(super) fn repeat(
        &mut self,
        kind: Kind,
        count: u32,
        mut few: impl FnMut(&mut SelfTest, Range<u32>) -> Result<Vec<Run>>,
    ) -> Result<Vec<Run>> {
        let recorded: Vec<Run> = self.lab.session.records(RUN);
        let mut runs: Vec<Run> = recorded.into_iter().filter(|run| run.kind == Some(kind)).collect();
        runs.truncate(count as usize);
        while (runs.len() as u32) < count && !self.is_over() {
            self.lab.check_time()?;
            let first = runs.len() as u32;
            let is_timed = matches!(kind, Kind::Same | Kind::Slower) && !self.lab.context.machine.simulated;
            let numbers = first..count.min(first + if is_timed { AT_ONCE } else { 1 });
            let name = self.candidate.name.clone();
            self.screen.stage(&name, &format!("{kind:?}, run {} of {count}", first + 1));
            let begun = Instant::now();
            let found = few(self, numbers.clone()).map_err(|error| self.lab.with_folder(error))?;
            let seconds = begun.elapsed().as_secs_f64() / found.len().max(1) as f64;
            for (number, run) in numbers.zip(found) {
                let run = Run { kind: Some(kind), number, seconds, ..run };
                self.lab.session.append(RUN, &run)?;
                runs.push(run);
            }
            let done = self.lab.session.records::<Run>(RUN).len() as u64;
            let left_s = self.left_s(&self.wanted);
            self.screen.progress(done, Some(left_s));
        }
        Ok(runs)
    }

    /// The kernel against another as the gate does it: counters on the simulator, times on a GPU, with reruns.
    pub(super) fn compare(
        &mut self,
        kind: Kind,
        numbers: Range<u32>,
        other: &KernelRef,
        problem: ProblemSpec,
    ) -> Result<Vec<Run>> {
        if self.lab.context.machine.simulated {
            return numbers.map(|number| self.compare_counters(number, other, problem)).collect();
        }
        let subject = if kind == Kind::Same { Subject::Control } else { Subject::Planted };
        let (rule, best) = (rule(&self.lab.context), &self.kernel);
        let name = |number| format!("{}-{kind:?}-{number}", self.candidate.name);
        let others = std::slice::from_ref(other);
        let how = [REPS, numbers.len() as u32];
        let first = samples(&self.lab, &name(numbers.start), others, best, problem, how)?;
        let of_run = |(number, mut first): (u32, Vec<Samples>)| {
            let mut first = first.pop();
            let timed = settle(&rule, &[], subject, &mut |_, rerun| match first.take() {
                Some(samples) => Ok(samples),
                None => sample(&self.lab, &format!("{}-{rerun}", name(number)), other, best, problem),
            });
            match timed {
                Ok(timed) => Ok(Run::of_times(&timed)),
                // A test that was interrupted is not one that failed.
                Err(_) if interrupt::requested() => {
                    Err(Error::Interrupted { folder: self.lab.session.folder().to_owned() })
                }
                Err(error) => Err(Error::Missing { what: "a measurement", reason: error.to_string() }),
            }
        };
        numbers.zip(first).map(of_run).collect()
    }

    fn compare_counters(&mut self, number: u32, other: &KernelRef, problem: ProblemSpec) -> Result<Run> {
        let counted = |kernel| self.counted(number, kernel, problem);
        let (best, now) = match (counted(&self.kernel)?, counted(other)?) {
            (Ok(best), Ok(now)) => (best, now),
            (Err(refusal), _) | (_, Err(refusal)) => {
                return Ok(Run::of_launch(Report::Refused(refusal)));
            }
        };
        let compared = compare_counters(&best, &now);
        let found = match (compared.worse.is_empty(), compared.better.is_empty()) {
            (false, _) => Found::Slower,
            (true, false) => Found::Faster,
            (true, true) => Found::Same,
        };
        let changes: Vec<String> =
            compared.worse.iter().chain(&compared.better).map(ToString::to_string).collect();
        Ok(Run::new(found, None, changes.join(", ")))
    }

    /// What a kernel counts on inputs of the run's own.
    fn counted(
        &self,
        number: u32,
        kernel: &KernelRef,
        problem: ProblemSpec,
    ) -> Result<std::result::Result<crate::counters::Counters, Refusal>> {
        let context = self.of_run(number);
        let limit = context.config.limits.test_s.duration();
        let task = Task::Count { schedules: 0 };
        let name = format!("{}-{number}", self.candidate.name);
        match context.child(kernel, &name, "self-test", task, vec![problem], limit)?.report {
            Report::Counted(counted) if !counted.is_empty() => Ok(Ok(counted[0].counters())),
            Report::Refused(refusal) => Ok(Err(refusal)),
            report => Err(Error::Missing { what: "a count", reason: format!("{report:?}") }),
        }
    }

    /// The context of a run: inputs and hidden problems that no run before had.
    fn of_run(&self, number: u32) -> Context {
        let context = &self.lab.context;
        Context { secret: context.secret.wrapping_add(u64::from(number)), ..context.clone() }
    }

    /// The relative slow-downs of so many planted instructions each, by one measurement of all.
    pub(super) fn slow_downs(&mut self, problem: ProblemSpec, instructions: &[u32]) -> Result<Vec<f64>> {
        self.lab.check_time()?;
        let name = format!("{}-{}", self.candidate.name, instructions[0]);
        self.screen.stage(&name, "measure the planted slow-down");
        let planted = instructions.iter().map(|number| slower(&self.lab, &self.kernel, *number));
        let planted = planted.collect::<Result<Vec<_>>>()?;
        let runs = samples(&self.lab, &name, &planted, &self.kernel, problem, [CALIBRATING_REPS, 1])?;
        let rule = rule(&self.lab.context);
        let slow_down = |samples| match judge(&rule, &[], samples) {
            Ok(timed) => Ok(timed.time.estimate),
            Err(error) => Err(Error::Missing { what: "a measurement", reason: error.to_string() }),
        };
        runs.iter().flatten().map(slow_down).collect()
    }

    /// Whether the numbers of a copy with a fault, or of the kernel itself, are refused.
    pub(super) fn examine(&mut self, number: u32, what: Option<Plant>) -> Result<Run> {
        let kernel = match what.map(|what| self.plant(what)) {
            None => self.kernel.clone(),
            Some(Ok(kernel)) => kernel,
            // Where there is nothing to change, nothing is refused either.
            Some(Err(Error::BadFile { reason, .. })) => return Ok(Run::new(Found::Same, None, reason)),
            Some(Err(error)) => return Err(error),
        };
        let context = Context { compiled: Some(kernel.folder), ..self.of_run(number) };
        let state = Cascade::numerics().evaluate(&self.candidate, None, &context, &mut self.screen)?;
        let named =
            |said: &str| what.map_or_else(|| said.to_owned(), |what| format!("{}: {said}", what.name()));
        Ok(match state.evaluation.refusal() {
            Some(refusal) => Run::new(Found::Refused, None, named(refusal.fault.name())),
            None => Run::new(Found::Same, None, named("passed")),
        })
    }

    /// Launches a copy with a fault once.
    pub(super) fn launch(&self, name: &str, what: Plant) -> Result<Run> {
        let planted = self.plant(what)?;
        self.launched(name, &planted)
    }

    fn plant(&self, what: Plant) -> Result<KernelRef> {
        let out = self.lab.context.ptx_folder(&format!("{}-{}", self.candidate.name, what.name()));
        plant(&self.kernel, what, &out)
    }
}
