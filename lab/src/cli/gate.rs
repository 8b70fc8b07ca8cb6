//! `lab gate`: the tree as it is against the leaderboard; exact on what is counted, careful on what is timed.
//!
//! Each run first proves that it can tell: planted cheats are refused by name, the best compared with itself is the same, and
//! a slow-down planted in the main loop is seen.

mod self_test;
pub(crate) mod timed;

use crate::candidate::Candidate;
use crate::cheats;
use crate::cli::evaluate::DEFAULT_ROW;
use crate::cli::evolve::bad_file;
use crate::cli::lab::Lab;
use crate::cli::leaderboard::path;
use crate::cli::screen::{self, Screen};
use crate::cli::{Common, misuse};
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::evaluation::Evaluation;
use crate::evolution::{self, PTXAS};
use crate::gate::{Counted, Verdict, compare_counters};
use crate::leaderboard::{Leaderboard, LeaderboardError, Measure, Standing};
use crate::stages::{Cascade, Context, Watcher};
use crate::table::Table;
use clap::Args;
use ferroflash::Row;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The record of a place.
const GATED: &str = "gated";

const EXAMPLES: &str = "\
Examples:
  # fill a leaderboard from a session, then hold the tree to it: exact counters here, times too on a GPU
  cargo lab evaluate --device sim fwd_f16_d64_m64n64_w4s3c1
  cargo lab leaderboard --add lab-runs/20261120T141500Z
  cargo lab gate --device sim

  # would this patch pass?
  cargo lab gate --patch faster.patch

  # without a compiler: the kernels of one folder against those of an earlier one
  lab gate --ptx kernels --against kernels-of-the-release

  # can it tell at all, here? A/A runs, a planted slow-down of 3 %, planted wrong kernels, a kernel that never ends
  lab gate --self-test --ptx kernels

Exit codes: 0 as good, 1 slower or wrong, 3 inconclusive, 4 the gate does not work here (a control failed), 5 no baseline.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GateArgs {
    /// The leaderboard [default: lab/leaderboard.json of the project]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Compare this patch instead of the tree as it is
    #[arg(long, value_name = "FILE")]
    patch: Option<PathBuf>,
    /// With --ptx: the folder that the best's kernels were compiled into [default: the same, and each is compared with itself]
    #[arg(long, value_name = "FOLDER", requires = "ptx")]
    against: Option<PathBuf>,
    /// Show that the gate works here, on one kernel and the first of its problems; needs no leaderboard
    #[arg(long, conflicts_with_all = ["file", "patch", "against"])]
    self_test: bool,
    /// The row whose kernel the self test takes
    #[arg(long, value_name = "ROW", default_value = DEFAULT_ROW, requires = "self_test")]
    row: String,
    /// Runs of the self test in which a kernel is compared with itself; half as many have a slow-down planted [default: 20 on a GPU, 2
    /// on the simulator, whose counts are exact]
    #[arg(long, value_name = "N", requires = "self_test")]
    repeats: Option<u32>,
    /// Seconds after which the self test ends with what it has (exit code 3); --resume goes on
    #[arg(long, value_name = "S", requires = "self_test")]
    seconds: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// What became of one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Gated {
    place: String,
    entry: String,
    verdict: Verdict,
    reason: String,
}

pub(crate) fn run(args: &GateArgs) -> Result<u8> {
    if args.self_test {
        return self_test::run(&args.row, args.repeats, args.seconds, &args.common);
    }
    if args.patch.is_some() && args.common.compiled().is_some() {
        return misuse("--ptx", "a patch has to be compiled");
    }
    let file = path(args.file.as_deref());
    let mut board = Leaderboard::read(&file).map_err(|error| bad_file(&file, &error))?;
    let mut lab = Lab::open("gate", &args.common)?;
    let own = board.of_devices(&lab.context.machine.stands_for());
    let standings: Vec<Standing> =
        own.map_err(|error| no_baseline(&file, &error))?.into_iter().cloned().collect();
    if standings.is_empty() {
        let reason = format!("{} is empty; `cargo lab leaderboard --add SESSION` fills it", file.display());
        return Err(Error::NoBaseline { reason });
    }
    let patch = match &args.patch {
        Some(patch) => Some(crate::whole_file::read(patch).map_err(|source| Error::io(patch, source))?),
        None => None,
    };
    if lab.context.machine.simulated {
        // What is counted is what the places are of, whatever lab.toml counts.
        let problems = &mut lab.context.config.problems;
        let shapes = standings.iter().filter_map(|standing| standing.place.shape.parse().ok());
        problems.sim_shapes = shapes.collect();
        problems.masks = standings.iter().map(|standing| standing.place.mask).collect();
    }
    let mut screen = Screen::new(standings.len() as u64);
    let mut gated: Vec<Gated> = Vec::new();
    if let Some(reason) = missed_cheats(&mut screen)? {
        gated.push(Gated {
            place: "planted cheats".to_owned(),
            entry: "stand-in".to_owned(),
            verdict: Verdict::HarnessError,
            reason,
        });
    }
    for standing in &standings {
        lab.check_time()?;
        let row = standing.best().row;
        let candidate = match &patch {
            Some(patch) => Candidate::of_patch(row, patch.clone()),
            None => Candidate::of_row(row),
        };
        let (verdict, reason) =
            match (not_compiled(&lab, args.against.as_deref(), &row), standing.best().measure) {
                (Some(reason), _) => (Verdict::Inconclusive, reason),

                (None, Measure::Clocks) => by_counters(&mut lab, standing, &candidate, &mut screen)?,
                (None, Measure::Microseconds) => {
                    let earlier = args.against.as_deref();
                    let timed = timed::gate(&mut lab, standing, &candidate, earlier, &mut screen)?;
                    if let (Some(change), Some(standing)) = (timed.log_change, board.get_mut(&standing.place))
                    {
                        standing.add_change(change);
                    }
                    (timed.verdict, timed.reason)
                }
            };
        let line = Gated { place: standing.place.to_string(), entry: candidate.name, verdict, reason };
        lab.session.append(GATED, &line)?;
        screen.done(&format!("{}: {}", line.place, line.verdict));
        gated.push(line);
    }
    drop(screen);
    if !lab.context.machine.simulated {
        // What this run saw of the noise widens or narrows the thresholds of later ones.
        board.write(&file).map_err(|error| bad_file(&file, &error))?;
    }
    let verdict = Verdict::of_all(gated.iter().map(|line| line.verdict));
    show(&lab, verdict, &gated, args.common.json)?;
    Ok(verdict.exit_code())
}

fn no_baseline(file: &Path, error: &LeaderboardError) -> Error {
    Error::NoBaseline { reason: format!("{}: {error}", file.display()) }
}

fn show(lab: &Lab, verdict: Verdict, gated: &[Gated], as_json: bool) -> Result<()> {
    let device = &lab.session.header().device;
    let object = json!({ "session": lab.shown(), "device": device, "verdict": verdict, "places": gated });
    lab.results(&object, as_json)?;
    if as_json {
        return Ok(());
    }
    let mut table = Table::new(&["place", "candidate", "verdict", "why"]);
    for line in gated {
        table.add(vec![
            line.place.clone(),
            line.entry.clone(),
            line.verdict.to_string(),
            line.reason.clone(),
        ]);
    }
    table.lines().iter().for_each(|line| screen::print(line));
    screen::print(&format!("gate: {verdict} (exit code {})", verdict.exit_code()));
    Ok(())
}

/// Every how many-th cheat a gate plants: the tests plant them all.
const GATE_CHEATS: usize = 6;
/// Of the questions that planted cheats are asked: a control is the same each time, so that its failure is one of the harness.
const CONTROL_SEED: u64 = 1;

/// The cheats that the examiner does not tell apart, where there are any.
fn missed_cheats(screen: &mut Screen) -> Result<Option<String>> {
    screen.stage("planted cheats", "examine");
    let missed = cheats::control(CONTROL_SEED, 0, GATE_CHEATS)?;
    Ok((!missed.is_empty()).then(|| missed.join("; ")))
}

/// The exact gate: correctness, then every counter and resource of the place's problem.
fn by_counters(
    lab: &mut Lab,
    standing: &Standing,
    candidate: &Candidate,
    screen: &mut Screen,
) -> Result<(Verdict, String)> {
    let best = &standing.best().counters;
    let broken = |reason: String| Ok((Verdict::HarnessError, reason));
    let now = lab.evaluate(&Cascade::test(), candidate, None, screen)?;
    if !now.passed() {
        return Ok((Verdict::Wrong, now.verdict()));
    }
    let Some(counted) = counters_of(&now, standing) else {
        return Ok((Verdict::Inconclusive, "this place's problem was not counted".to_owned()));
    };
    // The control: the same kernel compiled and counted again. A patch would take another worktree, and proves no more.
    let control = match candidate.patch {
        None => {
            let again = Cascade::count().evaluate(candidate, None, &lab.context, screen)?;
            counters_of(&again.evaluation, standing)
        }
        Some(_) => Some(counted.clone()),
    };
    if control.as_ref() != Some(&counted) {
        return broken("the same kernel was counted differently the second time".to_owned());
    }
    let slowed = planted(lab, candidate, screen)?;
    let seen = counters_of(&slowed, standing).map(|slowed| compare_counters(&counted, &slowed).verdict());
    if seen != Some(Verdict::Slower) {
        return broken(format!("the planted slow-down was not seen: {}", slowed.verdict()));
    }
    let compared = compare_counters(&comparable(best, &counted), &counted);
    Ok((compared.verdict(), words(&compared)))
}

/// The candidate's kernel with a slow-down planted, counted.
fn planted(lab: &Lab, candidate: &Candidate, screen: &mut Screen) -> Result<Evaluation> {
    let slower = timed::slower(lab, &timed::own(lab, candidate)?, 1)?;
    let context = Context { compiled: Some(slower.folder), ..lab.context.clone() };
    Ok(Cascade::count().evaluate(candidate, None, &context, screen)?.evaluation)
}

/// Why a row cannot be compared where nothing is compiled.
fn not_compiled(lab: &Lab, earlier: Option<&Path>, row: &Row) -> Option<String> {
    let folders = lab.context.compiled.as_deref().into_iter().chain(earlier);
    let folder = folders.into_iter().find(|folder| !lab.context.tree.has_compiled(row, folder))?;
    Some(format!("{} is not in {}", row.entry_name(), folder.display()))
}

fn counters_of(evaluation: &Evaluation, standing: &Standing) -> Option<Counters> {
    let place = &standing.place;
    let counted = evaluation.counted.iter().find(|counted| {
        let problem = &counted.problem;
        problem.shape.to_string() == place.shape && problem.mask == place.mask
    })?;
    Some(evolution::counters(evaluation, counted))
}

/// What can be compared: without a ptxas here, nothing is said of registers and spills.
fn comparable(best: &Counters, now: &Counters) -> Counters {
    let is_of_ptxas = |name: &str| name.starts_with(PTXAS);
    let has_ptxas = now.iter().any(|(name, _)| is_of_ptxas(name));
    let mut kept = Counters::default();
    for (name, count) in best.iter().filter(|(name, _)| has_ptxas || !is_of_ptxas(name)) {
        kept.set(name, count);
    }
    kept
}

fn words(compared: &Counted) -> String {
    let list = |changes: &[crate::gate::Change]| {
        changes.iter().take(4).map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    match (compared.worse.is_empty(), compared.better.is_empty()) {
        (true, true) => "every counter is the same".to_owned(),
        (true, false) => format!("less: {}", list(&compared.better)),
        (false, _) => format!("more: {}", list(&compared.worse)),
    }
}
