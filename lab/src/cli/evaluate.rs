//! `lab build`, `lab test` and `lab evaluate`: candidates through as much of the cascade as each asks for.

mod folder;

use crate::candidate::{self, Candidate};
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::cli::{Common, misuse};
use crate::error::{EXIT_DONE, Error, Result};
use crate::evaluation::{Evaluation, Outcome};
use crate::stages::Cascade;
use crate::statistics::{geometric_mean, median};
use crate::table::{Table, short};
use clap::Args;
use ferroflash::Row;
use ferroflash::module::Library;
use kernels_gpu::table::VARIANTS;
use serde_json::json;

/// Which candidates.
#[derive(Args, Clone, Debug)]
pub(crate) struct Candidates {
    /// Entries of the table, rows as JSON, files of rows, or patches to the device crate [default: every row of the table]
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
}

const BUILD_EXAMPLES: &str = "\
Examples:
  # registers, spills and shared memory of one row
  cargo lab build fwd_f16_d64_m64n64_w4s3c1

  # everything that a search from this row may try, with machine code for an H200, to search where there is no compiler
  cargo lab build --space fwd_f16_d64_m64n64_w4s1c1 --arch sm_90 --out kernels
  lab evolve --micro --ptx kernels";

#[derive(Args, Clone, Debug)]
#[command(after_help = BUILD_EXAMPLES)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    candidates: Candidates,
    #[command(flatten)]
    folder: folder::FolderArgs,
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
  cargo lab evaluate fwd_f16_d64_m64n64_w4s3c1

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
    if args.folder.out.is_some() {
        return folder::build(&args.candidates, &args.folder, &args.common);
    }
    let list = args.candidates.list(default_row()?, &args.common)?;
    through("build", &Cascade::build(), list, None, &args.common)
}

pub(crate) fn test(args: &TestArgs) -> Result<u8> {
    let list = args.candidates.list(default_row()?, &args.common)?;
    through("test", &Cascade::test(), list, None, &args.common)
}

pub(crate) fn evaluate(args: &EvaluateArgs) -> Result<u8> {
    let list = args.candidates.list(row_in("--row", &args.row, &args.common)?, &args.common)?;
    let incumbent = Candidate::of_row(row_in("--against", &args.against, &args.common)?);
    through("evaluate", &Cascade::whole(), list, Some(incumbent), &args.common)
}

impl Candidates {
    /// The candidates named, each once.
    pub(crate) fn list(&self, patched_row: Row, common: &Common) -> Result<Vec<Candidate>> {
        let mut list: Vec<Candidate> = Vec::new();
        let compiled = common.compiled();
        if self.rows.is_empty() {
            list = match &compiled {
                Some(folder) => {
                    let library = Library::open(folder)?;
                    library.kernels().iter().map(|kernel| Candidate::of_row(kernel.row)).collect()
                }
                None => VARIANTS.iter().map(|variant| Candidate::of_row(variant.row)).collect(),
            };
        }
        for argument in &self.rows {
            let candidates = match compiled_row(argument, common)? {
                Some(row) => vec![Candidate::of_row(row)],
                None => candidate::parse(argument, patched_row)?,
            };
            for candidate in candidates {
                if candidate.patch.is_some() && compiled.is_some() {
                    return misuse("--ptx", "a patch has to be compiled");
                }
                if !list.contains(&candidate) {
                    list.push(candidate);
                }
            }
        }
        Ok(list)
    }
}

/// As [`row_of`], where an entry may also be one of the folder of compiled kernels.
pub(crate) fn row_in(option: &'static str, argument: &str, common: &Common) -> Result<Row> {
    match compiled_row(argument, common)? {
        Some(row) => Ok(row),
        None => row_of(option, argument),
    }
}

/// The row of an entry of the folder of compiled kernels.
fn compiled_row(entry: &str, common: &Common) -> Result<Option<Row>> {
    let Some(folder) = common.compiled() else { return Ok(None) };
    let library = Library::open(&folder)?;
    Ok(library.kernels().iter().find(|kernel| kernel.entry == entry).map(|kernel| kernel.row))
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
    list: Vec<Candidate>,
    incumbent: Option<Candidate>,
    common: &Common,
) -> Result<u8> {
    let mut lab = Lab::open(command, common)?;
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
        "clocks",
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
            known(clocks(evaluation).map(short)),
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
        (true, false) => format!("{}, {}", evaluation.verdict(), remarks.join(", ")),
        _ => evaluation.verdict(),
    }
}

/// Median device time on fresh inputs, added up over the problems.
fn median_us(evaluation: &Evaluation) -> Option<f64> {
    let medians: Option<Vec<f64>> = evaluation.timed.iter().map(|timed| median(&timed.fresh_us)).collect();
    medians.filter(|medians| !medians.is_empty()).map(|medians| medians.iter().sum())
}

/// Clocks that a multiprocessor's units need, in the geometric mean over the problems.
fn clocks(evaluation: &Evaluation) -> Option<f64> {
    geometric_mean(evaluation.counted.iter().map(|counted| Some(counted.clocks)))
}

/// How many times faster than the incumbent, in the geometric mean over the problems.
fn speed_up(evaluation: &Evaluation) -> Option<f64> {
    let pairs = evaluation.timed.iter().zip(&evaluation.incumbent);
    geometric_mean(pairs.map(|(own, other)| Some(median(&other.fresh_us)? / median(&own.fresh_us)?)))
}
