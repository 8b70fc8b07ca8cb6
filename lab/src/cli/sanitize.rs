//! `lab sanitize`: the simulator's checks always, compute-sanitizer's memcheck and racecheck where it can run.

use crate::candidate::Candidate;
use crate::cli::Common;
use crate::cli::evaluate::{Candidates, default_row};
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::error::{EXIT_DONE, Error, Result};
use crate::job::{CHILD, Job, Task};
use crate::kernels::KernelRef;
use crate::process::{self, End};
use crate::stages::{Cascade, Watcher};
use crate::table::Table;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::process::Command;

/// The exit code by which compute-sanitizer says that it found something.
const FOUND: i32 = 99;
/// The record of a sanitized candidate.
pub(crate) const SANITIZED: &str = "sanitized";

#[derive(Args, Clone, Debug)]
pub(crate) struct SanitizeArgs {
    #[command(flatten)]
    candidates: Candidates,
    #[command(flatten)]
    common: Common,
}

/// What one checker said of one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) candidate: String,
    pub(crate) checker: String,
    /// `clean`, `found: …` or `not run: …`.
    pub(crate) said: String,
}

impl Finding {
    fn new(candidate: &Candidate, checker: &str, said: String) -> Finding {
        Finding { candidate: candidate.name.clone(), checker: checker.to_owned(), said }
    }

    /// Whether the candidate broke a rule.
    pub(crate) fn is_bad(&self) -> bool {
        self.said.starts_with("found")
    }
}

/// Looks once more at the memory that a candidate of a search accesses, which passed the cascade: the simulator did with every launch;
/// on a GPU it is compute-sanitizer's turn.
pub(crate) fn memory(lab: &Lab, candidate: &Candidate) -> Result<Finding> {
    let context = &lab.context;
    if context.machine.simulated {
        let schedules = 1 + context.config.tolerances.schedules.get();
        return Ok(Finding::new(candidate, "simulator", format!("clean under {schedules} schedules")));
    }
    let folder = context.compiled.clone().unwrap_or_else(|| context.ptx_folder(&candidate.name));
    let kernel = context.tree.compiled(&candidate.row, &folder)?;
    let said = compute_sanitizer(lab, candidate, &kernel, "memcheck")?;
    Ok(Finding::new(candidate, "memcheck", said))
}

pub(crate) fn run(args: &SanitizeArgs) -> Result<u8> {
    let list = args.candidates.list(default_row()?, &args.common)?;
    let mut lab = Lab::open("sanitize", &args.common)?;
    let mut screen = Screen::new(list.len() as u64);
    let mut findings: Vec<Finding> = lab.session.records(SANITIZED);
    for candidate in &list {
        if findings.iter().any(|finding| finding.candidate == candidate.name) {
            continue;
        }
        lab.check_time()?;
        for finding in sanitize(&lab, candidate, &mut screen)? {
            lab.session.append(SANITIZED, &finding)?;
            findings.push(finding);
        }
        screen.done(&candidate.name);
    }
    drop(screen);
    let mut table = Table::new(&["candidate", "checker", "result"]);
    for finding in &findings {
        table.add(vec![finding.candidate.clone(), finding.checker.clone(), finding.said.clone()]);
    }
    lab.results(&json!({ "session": lab.shown(), "findings": findings }), args.common.json)?;
    if !args.common.json {
        table.lines().iter().for_each(|line| screen::print(line));
    }
    let failed = findings.iter().filter(|finding| finding.is_bad()).count();
    if failed > 0 { Err(Error::Refused { failed, total: list.len() }) } else { Ok(EXIT_DONE) }
}

fn sanitize(lab: &Lab, candidate: &Candidate, screen: &mut Screen) -> Result<Vec<Finding>> {
    let context = &lab.context;
    let state = Cascade::count().evaluate(candidate, None, context, screen)?;
    let schedules = 1 + context.config.tolerances.schedules.get();
    let said = match state.evaluation.refusal() {
        None => format!("clean under {schedules} schedules"),
        Some(refusal) => format!("found {}: {}", refusal.fault, refusal.evidence),
    };
    let mut findings = vec![Finding::new(candidate, "simulator", said)];
    for tool in ["memcheck", "racecheck"] {
        screen.stage(&candidate.name, tool);
        let said = match &state.kernel {
            _ if context.machine.simulated => "not run: no GPU".to_owned(),
            None => "not run: it does not compile".to_owned(),
            Some(kernel) => compute_sanitizer(lab, candidate, kernel, tool)?,
        };
        findings.push(Finding::new(candidate, tool, said));
    }
    Ok(findings)
}

/// One tool of compute-sanitizer around the process that launches the kernel.
fn compute_sanitizer(lab: &Lab, candidate: &Candidate, kernel: &KernelRef, tool: &str) -> Result<String> {
    let context = &lab.context;
    let log = context.log(&candidate.name, tool)?;
    let mut command = Command::new("compute-sanitizer");
    command.args(["--tool", tool, "--error-exitcode", &FOUND.to_string()]).arg(&context.program).arg(CHILD);
    let job = Job {
        kernel: kernel.clone(),
        task: Task::Launch,
        // The tools take a hundred times as long: the simulator's shapes are small enough.
        problems: context.config.problems.of_row(&candidate.row, true)?,
        machine: context.machine.clone(),
        seed: context.secret,
    };
    let input = serde_json::to_vec(&job).unwrap_or_default();
    let limit = context.config.limits.sanitize_s.duration();
    let ended = match process::run_logged(&mut command, &input, &log, limit) {
        Ok(ended) => ended,
        Err(Error::Start { source, .. }) => return Ok(format!("not run: compute-sanitizer: {source}")),
        Err(error) => return Err(error),
    };
    let summary = || {
        let line = ended.stdout.lines().find(|line| line.contains("SUMMARY"));
        line.map_or_else(|| log.display().to_string(), |line| line.trim_matches(['=', ' ']).to_owned())
    };
    Ok(match ended.end {
        End::Exited(status) if status.success() => "clean".to_owned(),
        End::Exited(status) if status.code() == Some(FOUND) => format!("found: {}", summary()),
        End::Exited(status) => {
            format!("not run: compute-sanitizer ended with {status}, see {}", log.display())
        }
        End::PrintedTooMuch => "not run: compute-sanitizer printed without end".to_owned(),
        End::TimedOut => format!("found: killed after {} s", limit.as_secs()),
        End::Interrupted => return Err(lab.with_folder(Error::Interrupted { folder: log })),
    })
}
