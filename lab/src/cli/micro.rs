//! `lab micro`: every feasible row, briefly; the best eight seed a search.

use crate::candidate::Candidate;
use crate::cli::Common;
use crate::cli::evaluate::row_in;
use crate::cli::evolve::mediocre;
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::cli::searched::Searched;
use crate::error::{EXIT_DONE, Error, Result};
use crate::exam::Fault;
use crate::job::{Report, Task, Timed};
use crate::kernels::{self, KernelRef};
use crate::predict::Model;
use crate::search::budget::Cost;
use crate::search::{Evaluated, Outcome, same_ptx, top};
use crate::session::write_whole;
use crate::stages::Watcher;
use crate::statistics::{geometric_mean, median};
use crate::table::{Table, short};
use clap::Args;
use ferroflash::Row;
use ferroflash::module::Library;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The record of a row.
const MICRO: &str = "micro";
/// Rows that are compiled at once.
const COMPILED_AT_ONCE: usize = 24;
/// Timed replays: enough to rank.
const REPS: u32 = 9;
/// Rows that seed a search.
const KEPT: usize = 8;
/// What seeds a search, in the session's folder.
pub(crate) const TOP_FILE: &str = "top.json";

#[derive(Args, Clone, Debug)]
pub(crate) struct MicroArgs {
    /// A row with the dtype and head_dim whose rows are measured [default: f16, head_dim 64]
    #[arg(long, value_name = "ROW")]
    start: Option<String>,
    /// At most so many rows, those first that the resource model expects most of
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &MicroArgs) -> Result<u8> {
    let mut lab = Lab::open("micro", &args.common)?;
    let start = match &args.start {
        Some(start) => row_in("--start", start, &args.common)?,
        None => mediocre(),
    };
    let measured = measure_all(&mut lab, start, args.rows.unwrap_or(usize::MAX));
    let history: Vec<Evaluated> = lab.session.records(MICRO);
    show(&lab, &history, args.common.json)?;
    measured.map(|()| EXIT_DONE)
}

/// Measures every row that is not recorded yet and returns the best: how a search begins.
pub(crate) fn seeds(lab: &mut Lab, start: Row) -> Result<Vec<Row>> {
    measure_all(lab, start, usize::MAX)?;
    let history: Vec<Evaluated> = lab.session.records(MICRO);
    Ok(top(&history, KEPT).into_iter().map(|evaluated| evaluated.row).collect())
}

/// Measures the rows that are not recorded yet.
fn measure_all(lab: &mut Lab, start: Row, most: usize) -> Result<()> {
    let searched = Searched::of(lab, start)?;
    searched.announce(lab)?;
    // A session that is cut short has the likeliest.
    let model = Model::new(&lab.context.config.problems, &lab.context.machine);
    let mut rows = likeliest_first(&model, searched.space.rows());
    rows.truncate(most);
    let mut screen = Screen::new(rows.len() as u64);
    let done: Vec<Evaluated> = lab.session.records(MICRO);
    let is_done = |row: &Row| done.iter().any(|known| known.row == *row);
    let left: Vec<Row> = rows.iter().copied().filter(|row| !is_done(row)).collect();
    screen.progress((rows.len() - left.len()) as u64, None);
    for (number, chunk) in left.chunks(COMPILED_AT_ONCE).enumerate() {
        lab.check_time()?;
        let compiled = match compile(lab, chunk, number, &mut screen)? {
            // Opened once: the PTX of a large folder takes a while to read.
            Ok(folder) => Ok(Library::open(&folder)?),
            Err(reason) => Err(reason),
        };
        let ranked = match &compiled {
            Ok(library) if !lab.context.machine.simulated => {
                together(lab, &unspilled(lab, chunk, library), library.folder(), &mut screen)?
            }
            _ => BTreeMap::new(),
        };
        for row in chunk {
            lab.check_time()?;
            let name = row.entry_name();
            screen.stage(&name, "measure");
            let evaluated = match &compiled {
                Ok(library) => {
                    measure(lab, row, library, ranked.get(&name)).map_err(|error| lab.with_folder(error))?
                }
                Err(reason) => Evaluated {
                    row: *row,
                    ptx_sha256: None,
                    outcome: Outcome::Refused { reason: reason.clone() },
                    cost: Cost::default(),
                },
            };
            lab.session.append(MICRO, &evaluated)?;
            let said = match &evaluated.outcome {
                Outcome::Scored { score } => short(*score),
                Outcome::Refused { reason } => reason.clone(),
                Outcome::Duplicate { of } => format!("the same PTX as {of}"),
            };
            screen.done(&format!("{name}: {said}"));
        }
    }
    Ok(())
}

/// Rows in the order of what the resource model expects of them.
pub(crate) fn likeliest_first(model: &Model, rows: &[Row]) -> Vec<Row> {
    let mut rows: Vec<(f64, Row)> = rows.iter().map(|row| (model.clocks(row), *row)).collect();
    rows.sort_by(|(one, a), (other, b)| {
        one.total_cmp(other).then(a.min_ctas.cmp(&b.min_ctas)).then(a.cmp(b))
    });
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Rows of one folder in one process and in turns, each problem: what a GPU needs seconds for, one by one, takes it minutes.
/// Nothing where one of them hangs or crashes: then each gets a process of its own.
fn together(
    lab: &Lab,
    rows: &[Row],
    folder: &Path,
    screen: &mut Screen,
) -> Result<BTreeMap<String, (Vec<Timed>, f64)>> {
    let context = &lab.context;
    let mut names: Vec<String> = rows.iter().map(Row::entry_name).collect();
    let (Some(row), Some(entry)) = (rows.first(), names.first().cloned()) else { return Ok(BTreeMap::new()) };
    screen.stage(&format!("{} rows", rows.len()), "measure in turns");
    let kernel = KernelRef { folder: folder.to_owned(), entry: entry.clone() };
    let task = Task::Brief { against: names.split_off(1), reps: REPS };
    let problems = context.config.problems.of_row(row, false)?;
    let limit = context.config.limits.benchmark_s.duration();
    let done = context.child(&kernel, &format!("{entry}-and-others"), MICRO, task, problems, limit)?;
    let mut by_name: BTreeMap<String, (Vec<Timed>, f64)> = BTreeMap::new();
    if let Report::Timed(timed) = done.report {
        let share_s = done.time.as_secs_f64() / rows.len() as f64;
        for timed in timed {
            by_name.entry(timed.entry.clone()).or_insert((Vec::new(), share_s)).0.push(timed);
        }
    }
    Ok(by_name)
}

/// Rows of a folder without those that are known to spill, which nobody has to time.
fn unspilled(lab: &Lab, rows: &[Row], library: &Library) -> Vec<Row> {
    let arch = lab.context.machine.arch();
    let spills = |row: &Row| {
        let kernel = library.kernels().iter().find(|kernel| kernel.row == *row);
        let resources = kernel.and_then(|kernel| kernel.resources.get(&arch));
        resources.is_some_and(|resources| resources.spill_loads + resources.spill_stores > 0)
    };
    rows.iter().copied().filter(|row| !spills(row)).collect()
}

/// Compiles rows together, or takes the folder that they are compiled in; the inner error is the compiler's.
fn compile(
    lab: &Lab,
    rows: &[Row],
    number: usize,
    screen: &mut Screen,
) -> Result<std::result::Result<PathBuf, String>> {
    let context = &lab.context;
    if let Some(folder) = &context.compiled {
        return Ok(Ok(folder.clone()));
    }
    screen.stage(&format!("{} rows", rows.len()), "compile");
    let out =
        context.ptx_folder(&format!("micro-{}-{number}", lab.session.records::<Evaluated>(MICRO).len()));
    let log = context.log("micro", "compile")?;
    let limit = context.config.limits.build_s.duration();
    match context.tree.compile(rows, &out, &context.machine.arch(), &log, limit) {
        Ok(()) => Ok(Ok(out)),
        Err(Error::Failed { reason, .. }) => Ok(Err(format!("{}: {reason}", Fault::DoesNotCompile))),
        Err(error) => Err(lab.with_folder(error)),
    }
}

/// One row; `ranked` holds its times and its share of the seconds where rows were measured together.
fn measure(lab: &Lab, row: &Row, library: &Library, ranked: Option<&(Vec<Timed>, f64)>) -> Result<Evaluated> {
    let context = &lab.context;
    let begun = Instant::now();
    let name = row.entry_name();
    let kernel = KernelRef { folder: library.folder().to_owned(), entry: name.clone() };
    let found = kernels::find_in(library, &name)?;
    let hash = kernels::ptx_hash(library, &found, &context.machine)?;
    let spills = context.machine.resources(&found).map_or(0, |r| r.spill_loads + r.spill_stores);
    let simulated = context.machine.simulated;
    let evaluated = |outcome| {
        let seconds = begun.elapsed().as_secs_f64() + ranked.map_or(0.0, |(_, share_s)| *share_s);
        let cost = Cost { seconds, gpu_seconds: if simulated { 0.0 } else { seconds } };
        Evaluated { row: *row, ptx_sha256: Some(hash.clone()), outcome, cost }
    };
    let history: Vec<Evaluated> = lab.session.records(MICRO);
    if let Some(same) = same_ptx(&history, &hash) {
        return Ok(evaluated(Outcome::Duplicate { of: same.row.entry_name() }));
    }
    if spills > 0 {
        return Ok(evaluated(Outcome::Refused { reason: format!("{}: {spills} bytes", Fault::Spills) }));
    }
    if let Some((timed, _)) = ranked {
        return Ok(evaluated(geometric_mean_us(timed)));
    }
    let problems = context.config.problems.of_row(row, simulated)?;
    let task = if simulated {
        Task::Count { schedules: 0 }
    } else {
        Task::Brief { against: Vec::new(), reps: REPS }
    };
    let limit = context.config.limits.benchmark_s.duration();
    let report = context.child(&kernel, &name, MICRO, task, problems, limit)?.report;
    let nothing = || Outcome::Refused { reason: "nothing was measured".to_owned() };
    Ok(evaluated(match report {
        Report::Counted(counted) => {
            let clocks = geometric_mean(counted.iter().map(|counted| Some(counted.clocks)));
            clocks.map_or_else(nothing, Outcome::of_score)
        }
        Report::Timed(timed) => geometric_mean_us(&timed),
        Report::Refused(refusal) => {
            Outcome::Refused { reason: format!("{}: {}", refusal.fault, refusal.evidence) }
        }
        _ => nothing(),
    }))
}

/// The geometric mean of the medians over the problems; a problem without times had a wrong output.
fn geometric_mean_us(timed: &[Timed]) -> Outcome {
    match geometric_mean(timed.iter().map(|timed| median(&timed.warm_us))) {
        Some(mean) => Outcome::of_score(mean),
        None => Outcome::Refused { reason: format!("{} while it was timed", Fault::WrongNumbers) },
    }
}

/// Writes what seeds a search, and prints the best.
fn show(lab: &Lab, history: &[Evaluated], as_json: bool) -> Result<()> {
    let scored = top(history, usize::MAX);
    let top: Vec<Row> = scored.iter().take(KEPT).map(|evaluated| evaluated.row).collect();
    let folder = lab.session.folder();
    let measured = if lab.context.machine.simulated { "clocks" } else { "µs" };
    if !top.is_empty() {
        write_whole(&folder.join(TOP_FILE), &serde_json::to_string_pretty(&top).unwrap_or_default())?;
    }
    if as_json {
        screen::print(
            &json!({ "session": lab.shown(), "measured": measured, "top": top, "rows": history }).to_string(),
        );
        return Ok(());
    }
    let mut table = Table::new(&["rank", "row", measured]);
    for (rank, evaluated) in scored.iter().take(KEPT).enumerate() {
        let score = evaluated.score().map(short).unwrap_or_default();
        table.add(vec![(rank + 1).to_string(), Candidate::of_row(evaluated.row).name, score]);
    }
    table.lines().iter().for_each(|line| screen::print(line));
    screen::print(&format!(
        "{} of {} rows measured; cargo lab evolve --from {}/{TOP_FILE}",
        scored.len(),
        history.len(),
        lab.shown()
    ));
    Ok(())
}
