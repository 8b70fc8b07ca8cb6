//! Steps that a program proposes: a prompt, an answer, a patch in a throw-away tree, the same cascade.

use crate::candidate::Candidate;
use crate::cli::evolve::Evolution;
use crate::cli::lab::Lab;
use crate::error::{Error, Result};
use crate::evaluation::Evaluation;
use crate::evolution::{Hypothesis, PTXAS, Step};
use crate::insights::{Insight, differences, losses};
use crate::interrupt;
use crate::proposer::{Configuration, DEVICE_SOURCE, Earlier, Proposal, Task, ask, render};
use crate::search::budget::Cost;
use crate::search::keep::KeepRule;
use crate::search::{Evaluated, Outcome};
use crate::session::write_whole;
use crate::stages::Watcher;
use crate::statistics::median;
use crate::table::short;
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
        match asked.proposal {
            Some(proposal) => {
                let candidate = Candidate::of_patch(row, proposal.patch);
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
        let prompt = self.prompt(number)?;
        let folder = self.lab.session.subfolder("proposals")?;
        write_whole(&folder.join(format!("{number:03}-prompt.md")), &prompt)?;
        self.screen.stage(&format!("proposal {number}"), "waiting for the proposer");
        let words = self.plan.proposer.clone().unwrap_or_default();
        let begun = std::time::Instant::now();
        let reply = ask(&words, &prompt, Duration::from_secs(self.plan.proposer_limit_s), interrupt::flag());
        let took_s = begun.elapsed().as_secs_f64();
        if interrupt::requested() {
            return Err(Error::Interrupted { folder: self.lab.session.folder().to_owned() });
        }
        let proposal = match reply {
            Ok(reply) => {
                write_whole(&folder.join(format!("{number:03}-reply.md")), &reply.answer)?;
                Proposal::parse(&reply.answer).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Ok(proposal) = &proposal {
            write_whole(&folder.join(format!("{number:03}.patch")), &proposal.patch)?;
        }
        let (proposal, error) = match proposal {
            Ok(proposal) => (Some(proposal), None),
            Err(error) => (None, Some(error)),
        };
        Ok(Asked { number, step, proposal, error, took_s })
    }

    fn prompt(&self, number: usize) -> Result<String> {
        let asked: Vec<Asked> = self.lab.session.records(PROPOSAL);
        let earlier: Vec<Earlier> = asked.iter().filter_map(|asked| self.earlier(asked)).collect();
        let incumbent = self.incumbent().map(|(_, evaluation)| evaluation);
        let row = self.incumbent().map_or(self.plan.start, |(candidate, _)| candidate.row);
        let last = self.steps.last().and_then(|step| self.lab.recorded(&step.candidate));
        let insights = insights(incumbent, last.as_ref());
        prompt(&self.lab, number, row, incumbent, self.plan.configuration, &earlier, &insights)
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

/// The prompt for a row, as `lab prompt` prints it.
pub(crate) fn prompt(
    lab: &Lab,
    number: usize,
    row: ferroflash::Row,
    evaluation: Option<&Evaluation>,
    configuration: Configuration,
    earlier: &[Earlier],
    insights: &[Insight],
) -> Result<String> {
    let context = &lab.context;
    let thresholds = &context.config.thresholds;
    let simulated = context.machine.simulated;
    let task = Task {
        number,
        device: context.machine.name.clone(),
        row,
        measure: if simulated { "shared-memory wavefronts per MFLOP" } else { "median time in µs" }
            .to_owned(),
        figures: evaluation.map(|evaluation| figures(evaluation, simulated)).unwrap_or_default(),
        keep: KeepRule {
            gain: thresholds.keep.get(),
            shapes: thresholds.keep_problems.len(),
            noise: thresholds.regression.get(),
        },
        sources: sources(context.tree.root())?,
    };
    Ok(render(configuration, &task, earlier, insights))
}

fn figures(evaluation: &Evaluation, simulated: bool) -> Vec<(String, String)> {
    if simulated {
        let figure = |counted: &crate::kernels::Counted| {
            (
                counted.problem.to_string(),
                format!("{} wavefronts per MFLOP", short(counted.wavefronts_per_mflop())),
            )
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

/// The device crate's source, which a proposal may change.
fn sources(root: &Path) -> Result<Vec<(String, String)>> {
    let mut sources = Vec::new();
    let mut folders = vec![root.join(DEVICE_SOURCE)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|source| Error::io(&folder, source))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).map_err(|source| Error::io(&path, source))?;
                let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                sources.push((name, text));
            }
        }
    }
    sources.sort();
    Ok(sources)
}
