//! Steps that a program proposes: a prompt, an answer, a patch in a throw-away tree, the same cascade.

use crate::candidate::Candidate;
use crate::cli::evolve::Evolution;
use crate::cli::lab::Lab;
use crate::error::{Error, Result};
use crate::evaluation::Evaluation;
use crate::evolution::{Hypothesis, PTXAS, Step};
use crate::insights::{Insight, differences, losses};
use crate::kernels::Machine;
use crate::patched::{Base, PatchedTreeError, copy_folder};
use crate::profile;
use crate::proposer::boxed::Boxed;
use crate::proposer::{DEVICE_SOURCE, Earlier, ProgramError, Proposal, Task, ask, hygiene, render};
use crate::search::budget::Cost;
use crate::search::keep::KeepRule;
use crate::search::{Evaluated, Outcome};
use crate::session::write_whole;
use crate::stages::{self, Watcher};
use crate::statistics::median;
use crate::table::short;
use ferroflash::Schedule;
use kernels_gpu::row::Isa;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// The record of a proposal.
pub(crate) const PROPOSAL: &str = "proposal";
/// Proposals that may fail in a row before the search ends: a program that is broken stays so.
const FAILURES_MAX: usize = 5;

/// What was asked and answered. Prompt, answer and patch lie in the session's `proposals` folder under its number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// The proposal's number, from 1.
    pub(crate) number: usize,
    /// The step that it led to.
    pub(crate) step: usize,
    /// The proposal, where there was one.
    pub(crate) proposal: Option<Proposal>,
    /// Everything that differs from the commit with the proposal and what was kept before it, as one patch.
    #[serde(default)]
    pub(crate) patch: Option<String>,
    /// Why there was none.
    pub(crate) error: Option<String>,
    /// Seconds that the program took.
    pub(crate) took_s: f64,
}

impl Evolution {
    /// Asks for a patch and takes it through a step. An answer that is none is a step that is refused.
    pub(crate) fn propose(&mut self) -> Result<()> {
        let asked: Vec<Asked> = self.lab.session.records(PROPOSAL);
        let step = self.steps.len();
        // A session that was killed behind the answer goes on with it.
        let asked = match asked.iter().find(|asked| asked.step == step) {
            Some(asked) => asked.clone(),
            None => {
                let failures = asked.iter().rev().take_while(|asked| asked.proposal.is_none()).count();
                if failures >= FAILURES_MAX {
                    let reason = format!("{failures} answers in a row were no proposals");
                    return Err(Error::Missing { what: "a proposer that proposes", reason });
                }
                let fresh = self.ask(asked.len() + 1, step)?;
                self.lab.session.append(PROPOSAL, &fresh)?;
                fresh
            }
        };
        let number = asked.number;
        let row = self.incumbent().map_or(self.plan.start, |(incumbent, _)| incumbent.row);
        let proposer = self.plan.proposer.as_ref().map_or_else(String::new, |words| words.join(" "));
        match asked.proposal.zip(asked.patch) {
            Some((proposal, patch)) => {
                let candidate = Candidate::of_step(row, patch, number, &proposal.hypothesis);
                let hypothesis = Hypothesis {
                    step,
                    candidate: candidate.name.clone(),
                    proposer,
                    hypothesis: proposal.hypothesis,
                    predicted_gain: Some(proposal.expected_gain),
                };
                self.step(candidate, hypothesis)
            }
            None => {
                let reason = asked.error.unwrap_or_default();
                let candidate = Candidate { name: format!("proposal-{number}"), row, patch: None };
                let cost = Cost { seconds: asked.took_s, gpu_seconds: 0.0 };
                let outcome = Outcome::Refused { reason: reason.clone() };
                let evaluated = Evaluated { row, ptx_sha256: None, outcome, cost };
                self.finish_step(Step {
                    step,
                    candidate,
                    evaluated,
                    gain: None,
                    kept: false,
                    decision: reason,
                })
            }
        }
    }

    fn ask(&mut self, number: usize, step: usize) -> Result<Asked> {
        let base = self.base()?;
        let prompt = self.prompt(number, base.root())?;
        let folder = self.lab.session.subfolder("proposals")?;
        write_whole(&folder.join(format!("{number:03}-prompt.md")), &prompt)?;
        self.screen.stage(&format!("proposal {number}"), "waiting for the proposer");
        let begun = std::time::Instant::now();
        let reply = self.reply(number, &prompt, base.root())?;
        let took_s = begun.elapsed().as_secs_f64();
        let asked = |proposal, patch, error| Asked { number, step, proposal, patch, error, took_s };
        let parsed = match reply {
            Ok(answer) => {
                write_whole(&folder.join(format!("{number:03}-reply.md")), &answer)?;
                Proposal::parse(&answer).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        let proposal = match parsed {
            Ok(proposal) => proposal,
            Err(error) => return Ok(asked(None, None, Some(error))),
        };
        match base.change(&proposal.patch) {
            Ok([change, all]) => {
                write_whole(&folder.join(format!("{number:03}.patch")), &change)?;
                Ok(asked(Some(Proposal { patch: change, ..proposal }), Some(all), None))
            }
            Err(error) => match error.fault() {
                Some(fault) => Ok(asked(Some(proposal), None, Some(format!("refused: {fault}: {error}")))),
                None => Err(no_worktree(&error)),
            },
        }
    }

    /// The source that the next proposal changes: the commit with what was kept.
    fn base(&self) -> Result<Base> {
        let kept = self.incumbent().and_then(|(incumbent, _)| incumbent.patch.as_deref());
        Base::new(&self.lab.context.tree, kept, &self.lab.context.folder.join("worktrees"))
            .map_err(|error| no_worktree(&error))
    }

    /// Asks the program, in a box unless it is trusted.
    fn reply(
        &self,
        number: usize,
        prompt: &str,
        source: &Path,
    ) -> Result<std::result::Result<String, ProgramError>> {
        let words = self.plan.proposer.clone().unwrap_or_default();
        let limit = Duration::from_secs(self.plan.proposer_limit_s);
        let log = self.lab.context.log(&format!("proposal-{number}"), "proposer")?;
        if self.plan.trust {
            return ask(&words, prompt, &log, limit).map_err(|error| self.lab.with_folder(error));
        }
        let temporary =
            || tempfile::tempdir().map_err(|source| Error::io(Path::new("a temporary folder"), source));
        let (root, task) = (temporary()?, temporary()?);
        copy_folder(&source.join(DEVICE_SOURCE), &task.path().join(DEVICE_SOURCE))?;
        let (root_path, task_path) = (root.path().to_owned(), task.path().to_owned());
        let boxed = Boxed { root: root_path, task: task_path, paths: self.plan.sees.clone() };
        ask(&boxed.command(&words), prompt, &log, limit).map_err(|error| self.lab.with_folder(error))
    }

    fn prompt(&self, number: usize, source: &Path) -> Result<String> {
        let asked: Vec<Asked> = self.lab.session.records(PROPOSAL);
        let earlier: Vec<Earlier> = asked.iter().filter_map(|asked| self.earlier(asked)).collect();
        let incumbent = self.incumbent();
        let row = incumbent.map_or(self.plan.start, |(candidate, _)| candidate.row);
        let evaluation = incumbent.map(|(_, evaluation)| evaluation);
        let last = self.steps.last().and_then(|step| self.lab.recorded(&step.candidate));
        let insights = insights(evaluation, last.as_ref());
        let mut task = task(&self.lab, number, row, evaluation, source)?;
        task.kept = incumbent.and_then(|(candidate, _)| candidate.patch.clone());
        Ok(render(self.plan.configuration, &task, &earlier, &insights))
    }

    /// An earlier proposal with what became of it.
    fn earlier(&self, asked: &Asked) -> Option<Earlier> {
        let proposal = asked.proposal.as_ref()?;
        let step = self.steps.iter().find(|step| step.step == asked.step)?;
        Some(Earlier {
            hypothesis: proposal.hypothesis.clone(),
            expected_gain: proposal.expected_gain,
            patch: proposal.patch.clone(),
            kept: step.kept,
            verdict: step.decision.clone(),
            speed_up: step.gain.map(|gain| 1.0 / (1.0 - gain)),
        })
    }
}

fn no_worktree(error: &PatchedTreeError) -> Error {
    Error::Missing { what: "a worktree for the patch", reason: error.to_string() }
}

/// The task of a row: `source` is the root of the tree that is shown.
pub(crate) fn task(
    lab: &Lab,
    number: usize,
    row: ferroflash::Row,
    evaluation: Option<&Evaluation>,
    source: &Path,
) -> Result<Task> {
    let context = &lab.context;
    let thresholds = &context.config.thresholds;
    let machine = context.machine.running(row.isa).limited(&context.config.device);
    let simulated = machine.simulated;
    let measure = if simulated {
        "clocks that a multiprocessor's units need, counted and weighed"
    } else {
        "median time in µs"
    };
    Ok(Task {
        number,
        device: machine.name.clone(),
        row,
        measure: measure.to_owned(),
        figures: evaluation.map(|evaluation| figures(evaluation, simulated)).unwrap_or_default(),
        facts: evaluation.map(|evaluation| facts(evaluation, &machine)).unwrap_or_default(),
        kept: None,
        keep: KeepRule {
            gain: thresholds.keep.get(),
            shapes: thresholds.keep_problems.len(),
            noise: thresholds.regression.get(),
        },
        sources: sources(source, &row)?,
    })
}

/// What is known of the device and of the kernel on it: resources, occupancy, what bounds it and the figures that prove it, and the
/// least time that the tensor cores need.
fn facts(evaluation: &Evaluation, machine: &Machine) -> Vec<String> {
    let mut facts = vec![format!(
        "The device: {} multiprocessors of sm_{}, {} bytes of shared memory a CTA at most, {} MiB of L2{}",
        machine.sm_count,
        machine.sm,
        machine.smem_opt_in_bytes,
        machine.l2_bytes >> 20,
        machine.clock_max_mhz.map_or_else(String::new, |mhz| format!(", {mhz} MHz at most"))
    )];
    let smem = evaluation.smem_bytes;
    facts.push(match evaluation.resources {
        Some(found) => format!(
            "The kernel: {} registers a thread, {} bytes of spills, {smem} bytes of shared memory a CTA",
            found.registers,
            found.spill_stores + found.spill_loads
        ),
        None => {
            format!("The kernel: {smem} bytes of shared memory a CTA; no ptxas here to tell its registers")
        }
    });
    for counted in &evaluation.counted {
        let profile = profile::of_counters(evaluation, counted, machine);
        let occupancy = profile.occupancy.map_or_else(String::new, |(warps, most, limit)| {
            format!("; {warps} of {most} warps of a multiprocessor, limited by {limit}")
        });
        let floor = stages::floor_us(&counted.problem, machine);
        let floor = floor.map_or_else(String::new, |us| format!("; the tensor cores alone need {us:.1} µs"));
        facts.push(format!("{}: {}{occupancy}{floor}", counted.problem, profile.verdict));
    }
    facts
}

fn figures(evaluation: &Evaluation, simulated: bool) -> Vec<(String, String)> {
    if simulated {
        let figure = |counted: &crate::kernels::Counted| {
            (counted.problem.to_string(), format!("{} clocks", short(counted.clocks)))
        };
        return evaluation.counted.iter().map(figure).collect();
    }
    let figure = |timed: &crate::job::Timed| {
        let median = median(&timed.fresh_us)?;
        Some((timed.problem.to_string(), format!("{} µs", short(median))))
    };
    evaluation.timed.iter().filter_map(figure).collect()
}

/// What the incumbent loses, and what the last candidate changed.
pub(crate) fn insights(incumbent: Option<&Evaluation>, last: Option<&Evaluation>) -> Vec<Insight> {
    let counters = |evaluation: &Evaluation| {
        let counters = evaluation.counted.first().map(|counted| counted.counters()).unwrap_or_default();
        match &evaluation.resources {
            Some(resources) => counters.with_resources(PTXAS, resources),
            None => counters,
        }
    };
    let Some(incumbent) = incumbent else { return Vec::new() };
    let mut insights = losses(&counters(incumbent));
    if let Some(last) = last.filter(|last| last.name != incumbent.name && !last.counted.is_empty()) {
        insights.extend(differences(&counters(incumbent), &counters(last)));
    }
    insights
}

/// The source that the row's kernel is made of and that a proposal may change, without tests: what matters most first.
fn sources(root: &Path, row: &ferroflash::Row) -> Result<Vec<(String, String)>> {
    let mut sources = Vec::new();
    let hosts = hygiene::Hosts::of(root);
    let mut folders = vec![root.join(DEVICE_SOURCE)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|source| Error::io(&folder, source))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                let file = name.strip_prefix(DEVICE_SOURCE).unwrap_or(&name);
                if let Some(rank) = rank(file, row).filter(|_| !hosts.read(file)) {
                    let text = std::fs::read_to_string(&path).map_err(|source| Error::io(&path, source))?;
                    let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or(&text);
                    sources.push((rank, name, code.to_owned()));
                }
            }
        }
    }
    sources.sort();
    Ok(sources.into_iter().map(|(_, name, text)| (name, text)).collect())
}

/// How much a file matters for a row, the most at 0; `None` where its kernel has nothing of it.
fn rank(file: &str, row: &ferroflash::Row) -> Option<u32> {
    let is_mma = row.isa == Isa::Mma;
    let of_wgmma =
        ["wgmma/", "ptx/wgmma", "ptx/warpgroup", "ptx/bulk", "ptx/mbarrier", "tile/descriptor", "math/scrub"];
    let of_mma = ["mma/", "ptx/mma", "ptx/ldmatrix", "ptx/cp_async", "math/restore"];
    let foreign: &[&str] = if is_mma { &of_wgmma } else { &of_mma };
    // Gradients, and kernels of other steps.
    const OTHERS: [&str; 10] = [
        "append",
        "backward/",
        "copy",
        "dropout",
        "dropped",
        "mma/copy",
        "math/merge",
        "score_name",
        "step",
        "user_score",
    ];
    let is_of_others = file.contains("/backward/") || OTHERS.iter().any(|start| file.starts_with(start));
    let is_of_splits = file.starts_with("math/combine") && row.schedule != Schedule::Split;
    if is_of_splits || is_of_others || foreign.iter().any(|start| file.starts_with(start)) {
        return None;
    }
    const ORDER: [&str; 7] = ["mma/", "wgmma/", "math/softmax", "math/mask", "tile/", "math/", "scheduler"];
    let found = ORDER.iter().position(|start| file.starts_with(start));
    Some(found.map_or(ORDER.len() as u32 + u32::from(file.starts_with("ptx/")), |at| at as u32))
}
