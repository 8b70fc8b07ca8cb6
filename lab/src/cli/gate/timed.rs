//! The timed part of the gate: the best from its own commit, a copy of it, a slowed copy, and the candidate, two at a time.

use crate::candidate::Candidate;
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::error::{Error, Result};
use crate::gate::{GateRule, Pairs, Samples, Subject, Verdict, run};
use crate::job::Timed;
use crate::kernels::KernelRef;
use crate::leaderboard::Standing;
use crate::merge::side_by_side;
use crate::patched::PatchedTree;
use crate::plant::{Plant, plant};
use crate::problem_spec::ProblemSpec;
use crate::stages::{Cascade, Context, Watcher};
use crate::statistics::Bootstrap;
use crate::tree::Tree;
use std::path::Path;

/// What is planted: well over any threshold.
const PLANTED_INSTRUCTIONS: u32 = 512;

/// What the gate says of one place.
pub(super) struct Gate {
    pub(super) verdict: Verdict,
    pub(super) reason: String,
    pub(super) log_change: Option<f64>,
}

/// The gate's rule by lab.toml.
pub(super) fn rule(context: &Context) -> GateRule {
    let thresholds = &context.config.thresholds;
    GateRule {
        threshold: thresholds.regression.get(),
        bootstrap: Bootstrap { confidence: thresholds.confidence.get().min(0.999), ..Bootstrap::default() },
        ..GateRule::default()
    }
}

/// Times a candidate against the best of a place; `earlier` is the folder that the best's kernel comes from where nothing is
/// compiled, if it is another than the candidate's.
pub(super) fn gate(
    lab: &mut Lab,
    standing: &Standing,
    candidate: &Candidate,
    earlier: Option<&Path>,
    screen: &mut Screen,
) -> Result<Gate> {
    let verdict = |verdict, reason| Ok(Gate { verdict, reason, log_change: None });
    let now = lab.evaluate(&Cascade::test(), candidate, None, screen)?;
    if !now.passed() {
        return verdict(Verdict::Wrong, now.verdict());
    }
    let problem = problem(standing)?;
    let best = best(lab, standing, earlier, screen)?;
    let entry = candidate.row.entry_name();
    let own = own(lab, candidate)?;
    let planted = slower(lab, &own, PLANTED_INSTRUCTIONS)?;
    let rule = rule(&lab.context);
    let lab = &*lab;
    let gate = run(&rule, &standing.changes, |subject, rerun| {
        let (name, other) = match subject {
            Subject::Control => ("control", &best),
            Subject::Planted => ("planted", &planted),
            Subject::Candidate => ("candidate", &own),
        };
        screen.stage(&entry, &format!("time {name}, run {}", rerun + 1));
        sample(lab, &format!("{}-{name}", candidate.name), other, &best, problem)
    });
    match gate {
        Ok(gate) => Ok(Gate { verdict: gate.verdict, reason: gate.reason(), log_change: gate.log_change() }),
        Err(error) => verdict(Verdict::HarnessError, error.to_string()),
    }
}

/// The kernel of a candidate that went through the cascade.
pub(crate) fn own(lab: &Lab, candidate: &Candidate) -> Result<KernelRef> {
    let context = &lab.context;
    let folder = context.compiled.clone().unwrap_or_else(|| context.ptx_folder(&candidate.name));
    context.tree.compiled(&candidate.row, &folder)
}

/// A copy of a kernel with so many further instructions in each step of its main loop.
pub(super) fn slower(lab: &Lab, kernel: &KernelRef, instructions: u32) -> Result<KernelRef> {
    let out = lab.context.ptx_folder(&format!("{}-slower-{instructions}", kernel.entry));
    plant(kernel, Plant::Slower { instructions }, &out)
}

/// The best's kernel, compiled from the commit that the leaderboard has of it, or from a folder of compiled kernels.
fn best(lab: &Lab, standing: &Standing, earlier: Option<&Path>, screen: &mut Screen) -> Result<KernelRef> {
    let context = &lab.context;
    let record = standing.best();
    if let Some(folder) = earlier.or(context.compiled.as_deref()) {
        return context.tree.compiled(&record.row, folder);
    }
    let commit = record.commit.trim_end_matches('+');
    let out = context.ptx_folder(&format!("best-{}-{commit}", record.row.entry_name()));
    if let Ok(kernel) = context.tree.compiled(&record.row, &out) {
        return Ok(kernel);
    }
    screen.stage(&record.row.entry_name(), &format!("compile from {commit}"));
    let at_commit = PatchedTree::at_commit(&context.tree, commit, &context.folder.join("worktrees"));
    let patched = match at_commit {
        Ok(patched) => Some(patched),
        Err(error) => {
            screen::say(&format!("{error}: the best is compiled from the tree as it is"));
            None
        }
    };
    let tree = patched.as_ref().map_or(&context.tree, PatchedTree::tree);
    compile(lab, tree, record.row, &out)
}

fn compile(lab: &Lab, tree: &Tree, row: ferroflash::Row, out: &std::path::Path) -> Result<KernelRef> {
    let context = &lab.context;
    let log = context.log(&row.entry_name(), "gate-compile")?;
    tree.compile(&[row], out, &context.machine.arch(), &log, context.config.limits.build_s.duration())?;
    context.tree.compiled(&row, out)
}

/// Timed replays of each kernel in a measurement that a gate decides by.
pub(super) const REPS: u32 = 41;

/// Measurements in one process: the best and others in turns, on inputs that no launch has seen. Of each run the samples of each other.
pub(super) fn samples(
    lab: &Lab,
    name: &str,
    others: &[KernelRef],
    best: &KernelRef,
    problem: ProblemSpec,
    how: [u32; 2],
) -> Result<Vec<Vec<Samples>>> {
    let context = &lab.context;
    let out = context.ptx_folder(&format!("{name}-and-best"));
    let (kernel, against) = side_by_side(best, others, &out)?;
    let runs = context.in_turns(&kernel, against, [name, "gate"], problem, how)?;
    Ok(runs.iter().map(|run| run[1..].iter().map(|other| pairs(&run[0], other)).collect()).collect())
}

/// One measurement of one other.
pub(super) fn sample(
    lab: &Lab,
    name: &str,
    other: &KernelRef,
    best: &KernelRef,
    problem: ProblemSpec,
) -> Result<Samples> {
    let mut runs = samples(lab, name, std::slice::from_ref(other), best, problem, [REPS, 1])?;
    Ok(runs.swap_remove(0).swap_remove(0))
}

fn pairs(best: &Timed, other: &Timed) -> Samples {
    let time = Pairs { best: best.fresh_us.clone(), other: other.fresh_us.clone() };
    let clocks = best.sm_clock_mhz.zip(other.sm_clock_mhz);
    let scaled = |times: &[f64], clock: u32| times.iter().map(|time| time * f64::from(clock)).collect();
    let cycles = clocks.map(|(best_mhz, other_mhz)| Pairs {
        best: scaled(&best.fresh_us, best_mhz),
        other: scaled(&other.fresh_us, other_mhz),
    });
    Samples { time, cycles }
}

fn problem(standing: &Standing) -> Result<ProblemSpec> {
    let place = &standing.place;
    let bad = |error: crate::problem_spec::ShapeError| Error::NoSuchRow {
        wanted: place.to_string(),
        reason: error.to_string(),
    };
    Ok(ProblemSpec { shape: place.shape.parse().map_err(bad)?, dtype: place.dtype, mask: place.mask })
}
