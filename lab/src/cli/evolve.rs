//! `lab evolve`: the search, a step at a time, by strategies or by a proposer.

mod plan;
pub(crate) mod proposals;
mod summary;

use crate::candidate::Candidate;
use crate::cli::Common;
use crate::cli::cross_check::{CROSS_CHECK, cross_check};
use crate::cli::lab::Lab;
use crate::cli::micro;
use crate::cli::sanitize;
use crate::cli::screen::{self, Screen};
use crate::cli::searched::Searched;
use crate::error::{EXIT_DONE, Error, Result};
use crate::evaluation::Evaluation;
use crate::evolution::{self, HYPOTHESIS, Hypothesis, STEP, Step};
use crate::exam::Fault;
use crate::predict::Model;
use crate::proposer::{Configuration, Worktree, boxed};
use crate::search::Evaluated;
use crate::search::budget::{Budget, Spent};
use crate::search::keep::Decision;
use crate::search::strategy::Strategy;
use crate::stages::Cascade;
use clap::Args;
pub(crate) use plan::{Plan, mediocre};
use std::path::{Path, PathBuf};

/// Every how many-th candidate goes through the memory checker, beside those that are kept.
const CHECKED_EVERY: usize = 5;

const EXAMPLES: &str = "\
Examples:
  # from a mediocre row, twelve candidates, on the simulator: fewer clocks of a multiprocessor's units
  cargo lab evolve --device sim --budget 12

  # on the GPU for ten minutes, from the best of `cargo lab micro`
  cargo lab evolve --budget 10m --micro

  # let a program propose patches: it reads a prompt on stdin and prints hypothesis, gain and patch
  cargo lab evolve --proposer 'python3 my_client.py' --configuration full --budget 20";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EvolveArgs {
    /// The row to begin with [default: a mediocre one, 64 × 32, 4 warps, 1 stage, head_dim 64, f16]
    #[arg(long, value_name = "ROW")]
    start: Option<String>,
    /// What it may cost: candidates (12), time (90s, 10m), GPU time (30gpu-s), joined by commas [default: lab.toml's]
    #[arg(long, value_name = "BUDGET")]
    budget: Option<Budget>,
    /// Which rows are tried
    #[arg(long, value_enum, default_value_t = Strategy::Model)]
    strategy: Strategy,
    /// Rows to evaluate before any strategy is asked: a file of rows, as `micro` writes it
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Begin with the best eight of every feasible row, measured briefly as `micro` does; beyond the budget
    #[arg(long, conflicts_with = "from")]
    micro: bool,
    /// A program that proposes patches; its words are split at blanks
    #[arg(long, value_name = "CMD")]
    proposer: Option<String>,
    /// What the proposer is told
    #[arg(long, value_enum, default_value = "full", requires = "proposer")]
    configuration: Configuration,
    /// Seconds that the proposer may take for one answer
    #[arg(long, value_name = "S", default_value_t = 600, requires = "proposer")]
    proposer_limit: u64,
    /// A path that the proposer may read in its box, beside the system's programs, the source and the paths of its command
    #[arg(long, value_name = "PATH", requires = "proposer")]
    proposer_sees: Vec<PathBuf>,
    /// Run the proposer without a box: it can read and write what you can
    #[arg(long, requires = "proposer")]
    trust: bool,
    /// Do not examine the numbers: only for comparing strategies quickly
    #[arg(long, hide = true)]
    counters_only: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &EvolveArgs) -> Result<u8> {
    let mut lab = Lab::open("evolve", &args.common)?;
    let mut plan = Plan::of_session(&mut lab, args)?;
    if plan.proposer.is_some() && !plan.trust {
        boxed::available().map_err(|error| Error::Missing { what: "a box", reason: error.to_string() })?;
    }
    if let Some(commit) = lab.session.header().commit.as_ref().filter(|commit| commit.ends_with('+')) {
        screen::say(&format!(
            "the tree has changes since {commit}: rows are compiled with them, patches without"
        ));
    }
    if plan.micro {
        plan.from = micro::seeds(&mut lab, plan.start)?;
    }
    let mut evolution = Evolution::open(lab, plan)?;
    let ended = evolution.run();
    let why = match &ended {
        Ok(why) => why.clone(),
        Err(error) => error.to_string(),
    };
    evolution.screen.finish();
    summary::show(&evolution.lab, &evolution.steps, &why, args.common.json)?;
    ended.map(|_| EXIT_DONE)
}

/// A search under way. Everything in it follows from the session's records.
pub(crate) struct Evolution {
    pub(crate) lab: Lab,
    pub(crate) plan: Plan,
    pub(crate) steps: Vec<Step>,
    cascade: Cascade,
    incumbent: Option<(Candidate, Evaluation)>,
    pub(crate) screen: Screen,
}

impl Evolution {
    fn open(lab: Lab, plan: Plan) -> Result<Evolution> {
        let steps: Vec<Step> = lab.session.records(STEP);
        let screen = Screen::new(plan.budget.candidates.unwrap_or(0));
        // A session that was killed may have left the worktree of the candidate in flight.
        let worktrees = lab.context.folder.join("worktrees");
        if worktrees.is_dir()
            && let Err(error) = Worktree::remove_left_behind(lab.context.tree.root(), &worktrees)
        {
            screen::say(&format!("a worktree is left behind: {error}"));
        }
        let cascade = if plan.counters_only { Cascade::count() } else { Cascade::whole() };
        let mut evolution = Evolution { lab, plan, steps: Vec::new(), cascade, incumbent: None, screen };
        for step in steps {
            evolution.remember(step);
        }
        Ok(evolution)
    }

    /// Takes a step that is recorded into the state.
    fn remember(&mut self, step: Step) {
        if let (Some(hash), true) = (&step.evaluated.ptx_sha256, step.evaluated.is_counted()) {
            self.lab.context.known_ptx.entry(hash.clone()).or_insert_with(|| step.candidate.name.clone());
        }
        if step.kept
            && let Some(evaluation) = self.lab.recorded(&step.candidate)
        {
            self.lab.context.incumbent = Some(step.candidate.clone());
            self.incumbent = Some((step.candidate.clone(), evaluation));
        }
        self.steps.push(step);
    }

    fn history(&self) -> Vec<Evaluated> {
        self.steps.iter().map(|step| step.evaluated.clone()).collect()
    }

    /// The incumbent and what became of it.
    pub(crate) fn incumbent(&self) -> Option<&(Candidate, Evaluation)> {
        self.incumbent.as_ref()
    }

    /// Steps until the budget is used up; returns what ended it.
    fn run(&mut self) -> Result<String> {
        let searched = Searched::of(&self.lab, self.plan.start)?;
        searched.announce(&mut self.lab)?;
        let seed = self.lab.session.header().seed;
        let model = Model::new(&self.lab.context.config.problems, &self.lab.context.machine);
        loop {
            let history = self.history();
            let spent = Spent::of(&history);
            self.screen.progress(spent.candidates, self.plan.budget.seconds_left(&spent));
            if let Some(exhausted) = self.plan.budget.exhausted(&spent) {
                return Ok(exhausted.to_string());
            }
            self.lab.check_time()?;
            let is_start = history.is_empty();
            let seeded = self.plan.from.iter().find(|row| !history.iter().any(|known| known.row == **row));
            if !is_start && seeded.is_none() && self.plan.proposer.is_some() {
                self.propose()?;
                continue;
            }
            let row = if is_start {
                Some(self.plan.start)
            } else {
                seeded.copied().or_else(|| self.plan.strategy.next(&searched.space, &model, &history, seed))
            };
            let Some(row) = row else { return Ok("every row of the search space is evaluated".to_owned()) };
            let proposer = match (is_start, seeded) {
                (true, _) => "start",
                (false, Some(_)) => "seed",
                (false, None) => self.plan.strategy.name(),
            };
            let candidate = Candidate::of_row(row);
            let incumbent = self.incumbent.as_ref().map(|(incumbent, _)| incumbent.row);
            let hypothesis =
                evolution::hypothesis(&model, self.steps.len(), &candidate, incumbent.as_ref(), proposer);
            self.step(candidate, hypothesis)?;
            if is_start {
                self.check_start()?;
            }
        }
    }

    /// A start that does not compile says more of the machine than of the row: nothing else will compile either.
    fn check_start(&self) -> Result<()> {
        let evaluation = self.steps.first().and_then(|step| self.lab.recorded(&step.candidate));
        let Some(evaluation) = evaluation.filter(|evaluation| evaluation.stages.len() == 1) else {
            return Ok(());
        };
        match evaluation.refusal().filter(|refusal| refusal.fault == Fault::DoesNotCompile) {
            Some(refusal) => {
                Err(Error::Missing { what: "a compiler of kernels", reason: refusal.evidence.clone() })
            }
            None => Ok(()),
        }
    }

    /// One step: the hypothesis is recorded before, the decision after.
    pub(crate) fn step(&mut self, candidate: Candidate, hypothesis: Hypothesis) -> Result<()> {
        let known: Vec<Hypothesis> = self.lab.session.records(HYPOTHESIS);
        if !known.iter().any(|known| known.step == hypothesis.step) {
            self.lab.session.append(HYPOTHESIS, &hypothesis)?;
        }
        let evaluation = self.lab.evaluate(&self.cascade, &candidate, None, &mut self.screen)?;
        let simulated = self.lab.context.machine.simulated;
        let evaluated = evolution::evaluated(&evaluation, simulated);
        let thresholds = self.lab.context.config.thresholds.clone();
        let incumbent = self.incumbent.as_ref().map(|(_, evaluation)| evaluation);
        let mut decision = match (evaluation.passed(), incumbent) {
            (false, _) => None,
            (true, incumbent) => Some(evolution::decide(&evaluation, incumbent, &thresholds, simulated)),
        };
        let before = incumbent.map(|incumbent| evolution::evaluated(incumbent, simulated));
        let is_due =
            decision.as_ref().is_some_and(Decision::is_keep) || hypothesis.step.is_multiple_of(CHECKED_EVERY);
        let mut found = None;
        if evaluation.passed() && is_due {
            let finding = sanitize::memory(&self.lab, &candidate)?;
            self.lab.session.append(sanitize::SANITIZED, &finding)?;
            if finding.is_bad() {
                decision = None;
                found =
                    Some(format!("refused: {}: {}: {}", Fault::RuleBroken, finding.checker, finding.said));
            }
        }
        if decision.as_ref().is_some_and(Decision::is_keep)
            && let Some((before, of_before)) = &self.incumbent
            && let Some(opinion) = cross_check(&self.lab, [(before, of_before), (&candidate, &evaluation)])?
        {
            self.lab.session.append(CROSS_CHECK, &opinion)?;
        }
        let step = Step {
            step: hypothesis.step,
            gain: evolution::gain(&evaluated, before.as_ref()),
            kept: decision.as_ref().is_some_and(|decision| decision.is_keep()),
            decision: match decision {
                None => found.unwrap_or_else(|| evaluation.verdict()),
                Some(_) if before.is_none() => "kept: the first that is right".to_owned(),
                Some(decision) => decision.to_string(),
            },
            candidate,
            evaluated,
        };
        self.finish_step(step)
    }

    /// Records a step.
    pub(crate) fn finish_step(&mut self, step: Step) -> Result<()> {
        self.lab.session.append(STEP, &step)?;
        let score = step.evaluated.score().map_or_else(|| "–".to_owned(), crate::table::short);
        self.screen.done(&format!("{}: {score}, {}", step.candidate.name, step.decision));
        self.remember(step);
        let of_best = self.steps.iter().rfind(|step| step.kept);
        if let Some((best, score)) = of_best.and_then(|step| Some((step, step.evaluated.score()?))) {
            self.screen.best(format!("{} {}", best.candidate.name, crate::table::short(score)));
        }
        Ok(())
    }
}

pub(crate) fn bad_file(file: &Path, error: &dyn std::error::Error) -> Error {
    let text = error.to_string();
    let reason = text.strip_prefix(&format!("{}: ", file.display())).unwrap_or(&text).to_owned();
    Error::BadFile { path: file.to_owned(), reason }
}
