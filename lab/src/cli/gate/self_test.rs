//! `lab gate --self-test`: that the gate works on this machine. One kernel is compared with itself again and again, and with copies
//! into which a slow-down, wrong numbers and a loop without an end are planted.

mod runs;

use crate::candidate::Candidate;
use crate::cheats;
use crate::cli::Common;
use crate::cli::evaluate::row_in;
use crate::cli::gate::missed_cheats;
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::error::{Error, Result};
use crate::gate::Verdict;
use crate::job::Task;
use crate::kernels::KernelRef;
use crate::plant::Plant;
use crate::problem_spec::ProblemSpec;
use crate::stages::Cascade;
use runs::{Found, Kind, RUN, Run};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// What is planted on a GPU: 3 %, as near as instructions come to it.
const SLOW_DOWN: RangeInclusive<f64> = 0.027..=0.034;
/// How often each wrong kernel is planted, with other inputs and other hidden problems each time.
const WRONG_EACH: u32 = 3;
/// The most that a kernel gets that never ends.
const HANG_LIMIT: Duration = Duration::from_secs(8);
/// How often a kernel is compared with itself where times are measured: half as often with a slow-down planted.
const REPEATS: u32 = 20;
/// The same where counts are compared, which are the same each time.
const REPEATS_COUNTED: u32 = 2;
/// The record of how much is planted.
const PLANTED: &str = "planted";
/// The records of the numbers that were measured on the way.
const TRIED: &str = "planted_tried";

/// How much is planted, and what it costs by the measurement that it was found with; exact on the simulator.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Planted {
    problem: ProblemSpec,
    instructions: u32,
    slow_down: Option<f64>,
}

/// One part of the test, done.
#[derive(Clone, Debug, Serialize)]
struct Line {
    part: &'static str,
    result: String,
    /// `None` where the time was over before enough was seen.
    works: Option<bool>,
}

/// A self test under way.
struct SelfTest {
    lab: Lab,
    screen: Screen,
    candidate: Candidate,
    kernel: KernelRef,
    /// The first is what all parts are tested on but for the slow-down, which takes the one that it can be planted in.
    problems: Vec<ProblemSpec>,
    /// How many runs of each kind belong to it.
    wanted: Vec<(Kind, u32)>,
    /// When it ends, whatever is left.
    deadline: Option<Instant>,
}

pub(super) fn run(row: &str, repeats: Option<u32>, seconds: Option<u64>, common: &Common) -> Result<u8> {
    let deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let row = row_in("--row", row, common)?;
    let lab = Lab::open("gate", common)?;
    let mut screen = Screen::new(0);
    let candidate = Candidate::of_row(row);
    let built = Cascade::build().evaluate(&candidate, None, &lab.context, &mut screen)?;
    if !built.evaluation.passed() {
        return Err(Error::NoSuchRow { wanted: candidate.name, reason: built.evaluation.verdict() });
    }
    let kernel = built.kernel()?.clone();
    let problems = lab.context.config.problems.of_row(&row, lab.context.machine.simulated)?;
    if problems.is_empty() {
        return Err(Error::NoProblem {
            row: candidate.name,
            dtype: row.dtype.name(),
            head_dim: row.head_dim,
        });
    }
    let usual = if lab.context.machine.simulated { REPEATS_COUNTED } else { REPEATS };
    let count = repeats.unwrap_or(usual);
    let wrong = 1 + WRONG_EACH * Plant::WRONG.len() as u32;
    let wanted =
        vec![(Kind::Same, count), (Kind::Slower, count.div_ceil(2)), (Kind::Wrong, wrong), (Kind::Hang, 2)];
    let screen = Screen::new(wanted.iter().map(|(_, count)| u64::from(*count)).sum());
    let mut test = SelfTest { lab, screen, candidate, kernel, problems, wanted, deadline };
    let left_s = test.left_s(&test.wanted);
    screen::say(&format!(
        "about {left_s:.0} s: {count} runs of a kernel against itself, {} against a slower copy, {wrong} examinations, 2 launches; \
         --resume {} goes on where it was ended",
        count.div_ceil(2),
        test.lab.shown()
    ));
    let lines = [
        test.cheats()?,
        test.same(count)?,
        test.slower(count.div_ceil(2))?,
        test.wrong(wrong)?,
        test.hang()?,
    ];
    test.screen.finish();
    show(&test, &lines, common.json)
}

fn show(test: &SelfTest, lines: &[Line], as_json: bool) -> Result<u8> {
    let verdict = Verdict::of_all(lines.iter().map(|line| match line.works {
        Some(true) => Verdict::Pass,
        Some(false) => Verdict::HarnessError,
        None => Verdict::Inconclusive,
    }));
    let lab = &test.lab;
    let device = &lab.session.header().device;
    let runs: Vec<Run> = lab.session.records(RUN);
    let object = json!({
        "session": lab.shown(), "device": device, "row": test.candidate.name, "problem": test.problem(),
        "verdict": verdict, "parts": lines, "runs": runs,
    });
    lab.results(&object, as_json)?;
    if !as_json {
        screen::print(&format!("{} on {}, {device}", test.candidate.name, test.problem()));
        for Line { part, result, works } in lines {
            let mark = match works {
                Some(true) => "",
                Some(false) => "  <- does not work",
                None => "  <- not done: the time is over",
            };
            screen::print(&format!("{part}: {result}{mark}"));
        }
        let said = match verdict {
            Verdict::Pass => "the gate works here",
            Verdict::Inconclusive => "what was done works; go on with --resume",
            _ => "nothing that the gate says here is worth anything",
        };
        screen::print(&format!(
            "self test: {said} (exit code {}); records in {}",
            verdict.exit_code(),
            lab.shown()
        ));
    }
    Ok(verdict.exit_code())
}

impl SelfTest {
    fn problem(&self) -> ProblemSpec {
        self.problems[0]
    }

    /// Whether its time is over.
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The planted cheats on the stand-in, as in each run of the gate.
    fn cheats(&mut self) -> Result<Line> {
        let missed = missed_cheats(&mut self.screen)?;
        let planted = cheats::PLANTED.len().div_ceil(super::GATE_CHEATS);
        let works = Some(missed.is_none());
        let result = missed.unwrap_or_else(|| format!("{planted} of {planted} refused by name"));
        Ok(Line { part: "planted cheats", result, works })
    }

    /// The kernel against itself: no run may see a difference.
    fn same(&mut self, count: u32) -> Result<Line> {
        let (kernel, problem) = (self.kernel.clone(), self.problem());
        let runs = self
            .repeat(Kind::Same, count, |test, numbers| test.compare(Kind::Same, numbers, &kernel, problem))?;
        let alarms = runs.iter().filter(|run| run.found != Found::Same).count();
        let result = format!("{alarms} of {} called different{}", runs.len(), spread(&runs));
        let works = if alarms > 0 { Some(false) } else { done(&runs, count).then_some(true) };
        Ok(Line { part: "A/A", result, works })
    }

    /// The kernel against a slower copy of it: nine runs of ten must see it.
    fn slower(&mut self, count: u32) -> Result<Line> {
        let part = "planted slow-down";
        let planted = match self.planted()? {
            Some(planted) => planted,
            None if self.is_over() => return Ok(Line { part, result: String::new(), works: None }),
            None => {
                let tried: Vec<Planted> = self.lab.session.records(TRIED);
                let tried = tried.iter().map(|Planted { problem, instructions, slow_down }| {
                    format!("{instructions} by {:.2} % ({problem})", 100.0 * slow_down.unwrap_or_default())
                });
                let tried = tried.collect::<Vec<_>>().join(", ");
                let result = format!("no number of instructions slows the kernel down by 3 %: {tried}");
                return Ok(Line { part, result, works: Some(false) });
            }
        };
        let kernel = super::timed::slower(&self.lab, &self.kernel, planted.instructions)?;
        let runs = self.repeat(Kind::Slower, count, |test, numbers| {
            test.compare(Kind::Slower, numbers, &kernel, planted.problem)
        })?;
        let caught = runs.iter().filter(|run| run.found == Found::Slower).count();
        let result = format!(
            "{caught} of {} found{}; instructions added to each step of the main loop: {}, on {}",
            runs.len(),
            spread(&runs),
            planted.instructions,
            planted.problem
        );
        let works = done(&runs, count).then_some(10 * caught >= 9 * count as usize);
        Ok(Line { part, result, works })
    }

    /// How much to plant: found once a session.
    fn planted(&mut self) -> Result<Option<Planted>> {
        let recorded: Vec<Planted> = self.lab.session.records(PLANTED);
        if let Some(planted) = recorded.first() {
            return Ok(Some(*planted));
        }
        let planted = if self.lab.context.machine.simulated {
            // What is counted is exact: the least is enough.
            Some(Planted { problem: self.problem(), instructions: 1, slow_down: None })
        } else {
            self.calibrated()?
        };
        if let Some(planted) = &planted {
            self.lab.session.append(PLANTED, planted)?;
        }
        Ok(planted)
    }

    /// The first problem in which some number of instructions costs 3 %, largest first: where a device is full, one more instruction
    /// costs its issue slot; where it is not, what it does to the order of the others may cost more than many of it.
    fn calibrated(&mut self) -> Result<Option<Planted>> {
        let mut problems = self.problems.clone();
        problems.sort_by(|a, b| b.flops().total_cmp(&a.flops()));
        for problem in problems {
            if self.is_over() {
                break;
            }
            let found = crate::gate::calibrate(&SLOW_DOWN, |numbers| {
                let slow_downs = self.slow_downs(problem, numbers)?;
                for (instructions, slow_down) in numbers.iter().zip(&slow_downs) {
                    let tried = Planted { problem, instructions: *instructions, slow_down: Some(*slow_down) };
                    self.lab.session.append(TRIED, &tried)?;
                }
                Ok::<_, Error>(slow_downs)
            })?;
            if let Some((instructions, slow_down)) = found {
                return Ok(Some(Planted { problem, instructions, slow_down: Some(slow_down) }));
            }
        }
        Ok(None)
    }

    /// Wrong kernels: each must be refused, always, and the kernel without a fault never.
    fn wrong(&mut self, count: u32) -> Result<Line> {
        let part = "wrong kernels";
        let runs = self.repeat(Kind::Wrong, count, |test, numbers| {
            let fault = |number: u32| {
                let at = number.checked_sub(1)?;
                Some(Plant::WRONG[at as usize % Plant::WRONG.len()])
            };
            numbers.map(|number| test.examine(number, fault(number))).collect()
        })?;
        let Some((right, wrong)) = runs.split_first() else {
            return Ok(Line { part, result: String::new(), works: None });
        };
        let refused = wrong.iter().filter(|run| run.found == Found::Refused).count();
        let mut names: Vec<&str> = wrong.iter().map(|run| run.evidence.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let (names, all, without) = (names.join(", "), wrong.len(), &right.evidence);
        let result = format!("{refused} of {all} refused ({names}); without a fault: {without}");
        let is_right = refused == all && right.found == Found::Same;
        let works = if is_right { done(&runs, count).then_some(true) } else { Some(false) };
        Ok(Line { part, result, works })
    }

    /// A kernel that never ends is killed on its limit and named, and the next one runs.
    fn hang(&mut self) -> Result<Line> {
        let runs = self.repeat(Kind::Hang, 2, |test, numbers| {
            let launched = |number| match number {
                0 => test.launch("never-ends", Plant::NeverEnds),
                _ => test.launched("next", &test.kernel),
            };
            numbers.map(launched).collect()
        })?;
        let is_right = runs.iter().map(|run| run.found).eq([Found::Refused, Found::Same])
            && runs[0].evidence.starts_with(crate::exam::Fault::Hang.name());
        let said: Vec<&str> = runs.iter().map(|run| run.evidence.as_str()).collect();
        let works = done(&runs, 2).then_some(is_right);
        Ok(Line { part: "a kernel that never ends", result: said.join("; the next kernel: "), works })
    }

    /// Launches a kernel once, and no longer than a hang may take.
    fn launched(&self, name: &str, kernel: &KernelRef) -> Result<Run> {
        let context = &self.lab.context;
        let limit = context.config.limits.test_s.duration().min(HANG_LIMIT);
        let name = format!("{}-{name}", self.candidate.name);
        let done = context.child(kernel, &name, "hang", Task::Launch, vec![self.problem()], limit)?;
        Ok(Run::of_launch(done.report))
    }
}

/// Whether all runs were done.
fn done(runs: &[Run], count: u32) -> bool {
    runs.len() == count as usize
}

/// The range of what runs measured, where they did.
fn spread(runs: &[Run]) -> String {
    let changes: Vec<f64> = runs.iter().filter_map(|run| run.change).collect();
    let Some(median) = crate::statistics::median(&changes) else { return String::new() };
    let least = changes.iter().copied().fold(f64::INFINITY, f64::min);
    let most = changes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let [median, least, most] = [median, least, most].map(|change| 100.0 * change);
    format!(" ({median:+.2} %, between {least:+.2} and {most:+.2})")
}
