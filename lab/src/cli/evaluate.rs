//! `lab build`, `lab test` and `lab evaluate`: candidates through as much of the cascade as each asks for.

use crate::candidate::{self, Candidate};
use crate::cli::lab::{Lab, absolute};
use crate::cli::screen::{self, Screen};
use crate::cli::{Common, misuse};
use crate::error::{EXIT_DONE, Error, Result};
use crate::evaluation::{Evaluation, Outcome};
use crate::stages::{Cascade, Context};
use crate::table::{Table, short};
use clap::Args;
use ferroflash::Row;
use kernels_gpu::table::VARIANTS;
use serde_json::json;
use std::path::PathBuf;

/// Which candidates.
#[derive(Args, Clone, Debug)]
pub(crate) struct Candidates {
    /// Entries of the table, rows as JSON, files of rows, or patches to the device crate [default: every row of the table]
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// Take compiled kernels from this folder instead of compiling; without rows, all it holds
    #[arg(long, value_name = "FOLDER")]
    ptx: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    candidates: Candidates,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TestArgs {
    #[command(flatten)]
    candidates: Candidates,
    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  # a row of the table; without a GPU everything but its times
  cargo lab evaluate fwd_f16_d64_m64n64_w8s2c1

  # a patch to kernels-gpu/src, applied to the last commit in a throw-away worktree, for one row
  cargo lab evaluate faster.patch --row fwd_f16_d64_m128n64_w4s2c1

A candidate that is refused is refused by a name: hang, wrong-scale, late-write, spills, … docs/lab.md lists them.";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    candidates: Candidates,
    /// The row that a patch is compiled for
    #[arg(long, value_name = "ROW", default_value = DEFAULT_ROW)]
    row: String,
    /// The incumbent that candidates are timed against, in turns
    #[arg(long, value_name = "ROW", default_value = DEFAULT_ROW)]
    against: String,
    #[command(flatten)]
    common: Common,
}

/// The row that patches are compiled for and candidates timed against where none is named: the middle of the canonical shapes.
pub(crate) const DEFAULT_ROW: &str = "fwd_f16_d64_m64n64_w4s3c1";

pub(crate) fn build(args: &BuildArgs) -> Result<u8> {
    let list = args.candidates.list(default_row()?)?;
    through("build", &Cascade::build(), &args.candidates, list, None, &args.common)
}

pub(crate) fn test(args: &TestArgs) -> Result<u8> {
    let list = args.candidates.list(default_row()?)?;
    through("test", &Cascade::test(), &args.candidates, list, None, &args.common)
}

pub(crate) fn evaluate(args: &EvaluateArgs) -> Result<u8> {
    let list = args.candidates.list(row_of("--row", &args.row)?)?;
    let incumbent = Candidate::of_row(row_of("--against", &args.against)?);
    through("evaluate", &Cascade::whole(), &args.candidates, list, Some(incumbent), &args.common)
}

impl Candidates {
    /// The candidates named, each once.
    pub(crate) fn list(&self, patched_row: Row) -> Result<Vec<Candidate>> {
        let mut list: Vec<Candidate> = Vec::new();
        if self.rows.is_empty() {
            list = match &self.ptx {
                Some(folder) => {
                    let library = ferroflash::module::Library::open(folder)?;
                    library.kernels().iter().map(|kernel| Candidate::of_row(kernel.row)).collect()
                }
                None => VARIANTS.iter().map(|variant| Candidate::of_row(variant.row)).collect(),
            };
        }
        for argument in &self.rows {
            for candidate in candidate::parse(argument, patched_row)? {
                if candidate.patch.is_some() && self.ptx.is_some() {
                    return misuse("--ptx", "a patch has to be compiled");
                }
                if !list.contains(&candidate) {
                    list.push(candidate);
                }
            }
        }
        Ok(list)
    }

    /// Lets stages take kernels from the folder that `--ptx` names.
    pub(crate) fn apply(&self, context: &mut Context) {
        context.compiled = self.ptx.as_deref().map(absolute);
    }
}

/// The row of one entry or of one row as JSON.
pub(crate) fn row_of(option: &'static str, argument: &str) -> Result<Row> {
    let parsed = candidate::parse(argument, VARIANTS[0].row)?;
    match parsed.as_slice() {
        [Candidate { row, patch: None, .. }] => Ok(*row),
        _ => misuse(option, format!("{argument} is not one row")),
    }
}

pub(crate) fn default_row() -> Result<Row> {
    row_of("--row", DEFAULT_ROW)
}

fn through(
    command: &str,
    cascade: &Cascade,
    options: &Candidates,
    list: Vec<Candidate>,
    incumbent: Option<Candidate>,
    common: &Common,
) -> Result<u8> {
    let mut lab = Lab::open(command, common)?;
    options.apply(&mut lab.context);
    lab.context.incumbent = incumbent;
    let mut screen = Screen::new(list.len() as u64);
    let (evaluations, ended) = evaluate_all(&mut lab, cascade, &list, &mut screen);
    drop(screen);
    // At Ctrl-C too: what is done is done.
    report(&lab, &evaluations, common.json)?;
    ended?;
    let failed = evaluations.iter().filter(|evaluation| !evaluation.passed()).count();
    if failed > 0 { Err(Error::Refused { failed, total: evaluations.len() }) } else { Ok(EXIT_DONE) }
}

/// Candidates through a cascade, one after the other; what was done before an error comes with it.
pub(crate) fn evaluate_all(
    lab: &mut Lab,
    cascade: &Cascade,
    list: &[Candidate],
    screen: &mut Screen,
) -> (Vec<Evaluation>, Result<()>) {
    let mut evaluations = Vec::new();
    for candidate in list {
        let evaluation = match lab.evaluate(cascade, candidate, None, screen) {
            Ok(evaluation) => evaluation,
            Err(error) => return (evaluations, Err(error)),
        };
        screen.done(&format!("{}: {} ({:.1} s)", evaluation.name, evaluation.verdict(), evaluation.time_s()));
        evaluations.push(evaluation);
    }
    (evaluations, Ok(()))
}

/// Prints what became of candidates, as a table or as JSON.
pub(crate) fn report(lab: &Lab, evaluations: &[Evaluation], as_json: bool) -> Result<()> {
    let header = lab.session.header();
    let object = json!({
        "session": lab.shown(), "device": header.device, "commit": header.commit, "evaluations": evaluations,
    });
    lab.results(&object, as_json)?;
    if !as_json {
        table(evaluations).lines().iter().for_each(|line| screen::print(line));
        screen::print(&format!("{}; records in {}", header.device, lab.shown()));
    }
    Ok(())
}

/// A line a candidate.
pub(crate) fn table(evaluations: &[Evaluation]) -> Table {
    let mut table = Table::new(&[
        "candidate",
        "registers",
        "smem KB",
        "wavefronts/MFLOP",
        "conflicts",
        "error share",
        "µs",
        "× incumbent",
        "verdict",
    ]);
    for evaluation in evaluations {
        let known = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        let conflicts = || evaluation.counted.iter().map(|counted| counted.conflicts()).sum::<u64>();
        let is_counted = !evaluation.counted.is_empty();
        table.add(vec![
            evaluation.name.clone(),
            known(evaluation.resources.map(|resources| resources.registers.to_string())),
            short(f64::from(evaluation.smem_bytes) / 1024.0),
            known(evaluation.wavefronts_per_mflop().map(short)),
            known(is_counted.then(|| conflicts().to_string())),
            known(evaluation.worst_share().map(short)),
            known(median_us(evaluation).map(short)),
            known(speed_up(evaluation).map(short)),
            verdict(evaluation),
        ]);
    }
    table
}

fn verdict(evaluation: &Evaluation) -> String {
    let skipped = |record: &crate::evaluation::StageRecord| match &record.outcome {
        Outcome::Skipped(reason) => Some(format!("{} skipped ({reason})", record.stage)),
        _ => None,
    };
    let remarks: Vec<String> = evaluation.stages.iter().filter_map(skipped).collect();
    match (evaluation.passed(), remarks.is_empty()) {
        (true, false) => format!("passed, {}", remarks.join(", ")),
        _ => evaluation.verdict(),
    }
}

/// Median device time on fresh inputs, added up over the problems.
fn median_us(evaluation: &Evaluation) -> Option<f64> {
    let medians: Option<Vec<f64>> =
        evaluation.timed.iter().map(|timed| crate::statistics::median(&timed.fresh_us)).collect();
    medians.filter(|medians| !medians.is_empty()).map(|medians| medians.iter().sum())
}

/// How many times faster than the incumbent, in the geometric mean over the problems.
fn speed_up(evaluation: &Evaluation) -> Option<f64> {
    let mut logs = Vec::new();
    for (own, other) in evaluation.timed.iter().zip(&evaluation.incumbent) {
        let ratio = crate::statistics::median(&other.fresh_us)? / crate::statistics::median(&own.fresh_us)?;
        logs.push(ratio.ln());
    }
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}
