//! `lab evolve`: the search, a step at a time, by strategies or by a proposer.

mod plan;
pub(crate) mod proposals;
mod summary;

use crate::candidate::Candidate;
use crate::cli::evaluate::row_of;
use crate::cli::lab::Lab;
use crate::cli::micro;
use crate::cli::screen::{self, Screen};
use crate::cli::searched::Searched;
use crate::cli::{Common, misuse};
use crate::error::{EXIT_DONE, Error, Result};
use crate::evaluation::Evaluation;
use crate::evolution::{self, HYPOTHESIS, Hypothesis, STEP, Step};
use crate::exam::Fault;
use crate::proposer::{Configuration, Worktree};
use crate::search::budget::{Budget, Spent};
use crate::search::population::Management;
use crate::search::replay::Recording;
use crate::search::strategy::{Search, StrategyKind};
use crate::search::{Evaluated, best};
use crate::stages::Cascade;
use clap::Args;
pub(crate) use plan::{Plan, mediocre};
use std::path::{Path, PathBuf};
pub(crate) use summary::RECORDING_FILE;

const EXAMPLES: &str = "\
Examples:
  # from a mediocre row, twelve candidates, on the simulator: fewer shared-memory wavefronts per FLOP
  cargo lab evolve --device sim --budget 12

  # on the GPU for ten minutes, with the model that learns to rank, from the best of `cargo lab micro`
  cargo lab evolve --budget 10m --strategy ranker --micro

  # let a program propose patches: it reads a prompt on stdin and prints hypothesis, gain and patch
  cargo lab evolve --proposer 'python3 my_client.py' --configuration full --budget 20

  # which strategy would have found the best row soonest? no GPU: a recorded search space is enough
  cargo lab evolve --strategy all --replay lab-runs/20261120T141500Z/recording.json";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EvolveArgs {
    /// The row to begin with [default: a mediocre one, 64 × 32, 4 warps, 1 stage, head_dim 64, f16]
    #[arg(long, value_name = "ROW")]
    start: Option<String>,
    /// What it may cost: candidates (12), time (90s, 10m), GPU time (30gpu-s), joined by commas [default: lab.toml's]
    #[arg(long, value_name = "BUDGET")]
    budget: Option<Budget>,
    /// Who proposes rows: random, local, crossover or ranker; all with --replay
    #[arg(long, value_name = "NAME", default_value = "ranker")]
    strategy: String,
    /// Which candidates are parents: single-best, elite, or islands that keep the best of each class of resources
    #[arg(long, value_name = "NAME", default_value = "islands")]
    population: Management,
    /// Rows to evaluate before any strategy is asked: a file of rows, as `micro` writes it [default: two that the resource
    /// model expects most of]
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Begin with the best eight of every feasible row, measured briefly as `micro` does; beyond the budget
    #[arg(long, conflicts_with = "from")]
    micro: bool,
    /// Compare strategies on a recorded search space instead of searching
    #[arg(long, value_name = "FILE", conflicts_with_all = ["proposer", "from", "micro", "budget"])]
    replay: Option<PathBuf>,
    /// Seeds of a replay
    #[arg(long, value_name = "N", default_value_t = 32, requires = "replay")]
    seeds: u64,
    /// A program that proposes patches; its words are split at blanks
    #[arg(long, value_name = "CMD")]
    proposer: Option<String>,
    /// What the proposer is told: free (the task), insight (and insights), or full (and earlier proposals)
    #[arg(long, value_name = "NAME", default_value = "full", requires = "proposer")]
    configuration: Configuration,
    /// Seconds that the proposer may take for one answer
    #[arg(long, value_name = "S", default_value_t = 600, requires = "proposer")]
    proposer_limit: u64,
    /// Do not examine the numbers: only for comparing strategies quickly
    #[arg(long, hide = true)]
    counters_only: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &EvolveArgs) -> Result<u8> {
    if let Some(file) = &args.replay {
        return replay(args, file);
    }
    let mut lab = Lab::open("evolve", &args.common)?;
    let mut plan = Plan::of_session(&mut lab, args)?;
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
        let mut search = Search::new(self.plan.strategy, searched.space, self.plan.management, seed);
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
                seeded.copied().or_else(|| search.next(&history))
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
                evolution::hypothesis(self.steps.len(), &candidate, incumbent.as_ref(), proposer);
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
        let decision = match (evaluation.passed(), incumbent) {
            (false, _) => None,
            (true, incumbent) => Some(evolution::decide(&evaluation, incumbent, &thresholds, simulated)),
        };
        let before = incumbent.map(|incumbent| evolution::evaluated(incumbent, simulated));
        let step = Step {
            step: hypothesis.step,
            gain: evolution::gain(&evaluated, before.as_ref()),
            kept: decision.as_ref().is_some_and(|decision| decision.is_keep()),
            decision: match decision {
                None => evaluation.verdict(),
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
        if let Some(best) = best(&self.history()) {
            let score = crate::table::short(best.score().unwrap_or(f64::NAN));
            self.screen.best(format!("{} {score}", best.row.entry_name()));
        }
        Ok(())
    }
}

/// Compares strategies on a recorded search space.
fn replay(args: &EvolveArgs, file: &Path) -> Result<u8> {
    let recording = Recording::read(file).map_err(|error| bad_file(file, &error))?;
    let kinds = match args.strategy.as_str() {
        "all" => StrategyKind::ALL.to_vec(),
        name => vec![strategy(name)?],
    };
    let start = match &args.start {
        Some(start) => row_of("--start", start)?,
        None => recording.rows[0].row,
    };
    let management = args.population;
    let compared = recording
        .compare(&kinds, management, start, args.seeds, recording.rows.len())
        .map_err(|error| bad_file(file, &error))?;
    if args.common.json {
        screen::print(&serde_json::to_string(&compared).unwrap_or_default());
    } else {
        screen::print(compared.markdown().trim_end());
    }
    Ok(EXIT_DONE)
}

/// A strategy by its name.
pub(crate) fn strategy(name: &str) -> Result<StrategyKind> {
    if name == "all" {
        return misuse("--strategy", "all strategies are compared with --replay FILE only");
    }
    name.parse().map_err(|error: crate::search::strategy::UnknownStrategy| Error::Argument {
        option: "--strategy",
        reason: error.to_string(),
    })
}

pub(crate) fn bad_file(file: &Path, error: &dyn std::error::Error) -> Error {
    let text = error.to_string();
    let reason = text.strip_prefix(&format!("{}: ", file.display())).unwrap_or(&text).to_owned();
    Error::BadFile { path: file.to_owned(), reason }
}
