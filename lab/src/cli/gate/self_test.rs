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
use std::time::Duration;

/// What is planted on a GPU: 3 %, as near as instructions come to it.
const SLOW_DOWN: RangeInclusive<f64> = 0.027..=0.034;
/// How often each wrong kernel is planted, with other inputs and other hidden problems each time.
const WRONG_EACH: u32 = 3;
/// The most that a kernel gets that never ends.
const HANG_LIMIT: Duration = Duration::from_secs(20);
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
    works: bool,
}

/// A self test under way.
struct SelfTest {
    lab: Lab,
    screen: Screen,
    candidate: Candidate,
    kernel: KernelRef,
    /// The first is what all parts are tested on but for the slow-down, which takes the one that it can be planted in.
    problems: Vec<ProblemSpec>,
}

pub(super) fn run(row: &str, count: u32, common: &Common) -> Result<u8> {
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
    let mut test = SelfTest { lab, screen, candidate, kernel, problems };
    let lines =
        [test.cheats()?, test.same(count)?, test.slower(count.div_ceil(2))?, test.wrong()?, test.hang()?];
    test.screen.finish();
    show(&test, &lines, common.json)
}

fn show(test: &SelfTest, lines: &[Line], as_json: bool) -> Result<u8> {
    let works = lines.iter().all(|line| line.works);
    let verdict = if works { Verdict::Pass } else { Verdict::HarnessError };
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
            let mark = if *works { "" } else { "  <- does not work" };
            screen::print(&format!("{part}: {result}{mark}"));
        }
        let said =
            if works { "the gate works here" } else { "nothing that the gate says here is worth anything" };
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

    /// The planted cheats on the stand-in, as in each run of the gate.
    fn cheats(&mut self) -> Result<Line> {
        let missed = missed_cheats(&mut self.screen)?;
        let planted = cheats::PLANTED.len().div_ceil(super::GATE_CHEATS);
        let result = match &missed {
            None => format!("{planted} of {planted} refused by name"),
            Some(missed) => missed.clone(),
        };
        Ok(Line { part: "planted cheats", result, works: missed.is_none() })
    }

    /// The kernel against itself: no run may see a difference.
    fn same(&mut self, count: u32) -> Result<Line> {
        let (kernel, problem) = (self.kernel.clone(), self.problem());
        let runs = self
            .repeat(Kind::Same, count, |test, number| test.compare(Kind::Same, number, &kernel, problem))?;
        let alarms = runs.iter().filter(|run| run.found != Found::Same).count();
        let result = format!("{alarms} of {count} called different{}", spread(&runs));
        Ok(Line { part: "A/A", result, works: alarms == 0 })
    }

    /// The kernel against a slower copy of it: nine runs of ten must see it.
    fn slower(&mut self, count: u32) -> Result<Line> {
        let part = "planted slow-down";
        let Some(planted) = self.planted()? else {
            let tried: Vec<Planted> = self.lab.session.records(TRIED);
            let tried = tried.iter().map(|Planted { problem, instructions, slow_down }| {
                format!("{instructions} by {:.2} % ({problem})", 100.0 * slow_down.unwrap_or_default())
            });
            let tried = tried.collect::<Vec<_>>().join(", ");
            let result = format!("no number of instructions slows the kernel down by 3 %: {tried}");
            return Ok(Line { part, result, works: false });
        };
        let kernel = super::timed::slower(&self.lab, &self.kernel, planted.instructions)?;
        let runs = self.repeat(Kind::Slower, count, |test, number| {
            test.compare(Kind::Slower, number, &kernel, planted.problem)
        })?;
        let caught = runs.iter().filter(|run| run.found == Found::Slower).count();
        let result = format!(
            "{caught} of {count} found{}; instructions added to each step of the main loop: {}, on {}",
            spread(&runs),
            planted.instructions,
            planted.problem
        );
        Ok(Line { part, result, works: 10 * caught >= 9 * count as usize })
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
            let found = crate::gate::calibrate(&SLOW_DOWN, |instructions| {
                let slow_down = self.slow_down(problem, instructions)?;
                let tried = Planted { problem, instructions, slow_down: Some(slow_down) };
                self.lab.session.append(TRIED, &tried)?;
                Ok::<_, Error>(slow_down)
            })?;
            if let Some((instructions, slow_down)) = found {
                return Ok(Some(Planted { problem, instructions, slow_down: Some(slow_down) }));
            }
        }
        Ok(None)
    }

    /// Wrong kernels: each must be refused, always, and the kernel without a fault never.
    fn wrong(&mut self) -> Result<Line> {
        let count = WRONG_EACH * Plant::WRONG.len() as u32;
        let runs = self.repeat(Kind::Wrong, 1 + count, |test, number| match number.checked_sub(1) {
            None => test.examine(number, None),
            Some(at) => test.examine(number, Some(Plant::WRONG[at as usize % Plant::WRONG.len()])),
        })?;
        let (right, wrong) = (&runs[0], &runs[1..]);
        let refused = wrong.iter().filter(|run| run.found == Found::Refused).count();
        let mut names: Vec<&str> = wrong.iter().map(|run| run.evidence.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let without = &right.evidence;
        let result =
            format!("{refused} of {count} refused ({}); without a fault: {without}", names.join(", "));
        let works = refused == wrong.len() && right.found == Found::Same;
        Ok(Line { part: "wrong kernels", result, works })
    }

    /// A kernel that never ends is killed on its limit and named, and the next one runs.
    fn hang(&mut self) -> Result<Line> {
        let runs = self.repeat(Kind::Hang, 2, |test, number| match number {
            0 => test.launch("never-ends", Plant::NeverEnds),
            _ => {
                let kernel = test.kernel.clone();
                test.launched("next", &kernel)
            }
        })?;
        let works = runs.iter().map(|run| run.found).eq([Found::Refused, Found::Same])
            && runs[0].evidence.starts_with(crate::exam::Fault::Hang.name());
        let said: Vec<&str> = runs.iter().map(|run| run.evidence.as_str()).collect();
        Ok(Line { part: "a kernel that never ends", result: said.join("; the next kernel: "), works })
    }

    /// Launches a kernel once, and no longer than a hang may take.
    fn launched(&mut self, name: &str, kernel: &KernelRef) -> Result<Run> {
        let context = &self.lab.context;
        let limit = context.config.limits.test_s.duration().min(HANG_LIMIT);
        let name = format!("{}-{name}", self.candidate.name);
        let done = context.child(kernel, &name, "hang", Task::Launch, vec![self.problem()], limit)?;
        Ok(Run::of_launch(done.report))
    }
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
