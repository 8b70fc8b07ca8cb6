//! `lab benchmark --against`: many rows in one process and in turns, each compared with one of them.

use crate::candidate::Candidate;
use crate::cli::benchmark::{BenchmarkArgs, write};
use crate::cli::evaluate::{default_row, row_in};
use crate::cli::lab::Lab;
use crate::cli::misuse;
use crate::cli::screen::{self, Screen};
use crate::error::{EXIT_DONE, Error, Result};
use crate::job::Timed;
use crate::kernels::KernelRef;
use crate::problem_spec::ProblemSpec;
use crate::stages::Watcher;
use crate::statistics::{Bootstrap, Interval, median, speed_up};
use crate::table::{Table, short};
use ferroflash::Row;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::PathBuf;

/// The record of a comparison.
const COMPARED: &str = "compared";

/// One row on one problem, compared with the one that all are compared with.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Compared {
    problem: ProblemSpec,
    entry: String,
    median_us: f64,
    /// How many times faster it is.
    speed_up: Interval,
}

/// Times the rows in turns with one of them, on inputs that no launch has seen.
pub(super) fn run(lab: &mut Lab, args: &BenchmarkArgs, against: &str) -> Result<u8> {
    if lab.context.machine.simulated {
        let reason = "a comparison is of times, and the simulator has none".to_owned();
        return Err(Error::Missing { what: "a GPU", reason });
    }
    let against = row_in("--against", against, &args.common)?;
    let recorded: Vec<Compared> = lab.session.records(COMPARED);
    let compared = if recorded.is_empty() {
        let rows = rows(args, &against)?;
        let compared = compare(lab, &against, &rows)?;
        for line in &compared {
            lab.session.append(COMPARED, line)?;
        }
        compared
    } else {
        recorded
    };
    show(lab, &against, &compared, args.common.json)?;
    Ok(EXIT_DONE)
}

/// The rows of the arguments that compute what `against` computes, without itself.
fn rows(args: &BenchmarkArgs, against: &Row) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for Candidate { row, patch, .. } in args.candidates.list(default_row()?, &args.common)? {
        if patch.is_some() {
            return misuse("--against", "rows are compared, not patches: `lab evaluate` takes those");
        }
        if (row.dtype, row.head_dim) == (against.dtype, against.head_dim) && row != *against {
            rows.push(row);
        }
    }
    if rows.is_empty() {
        let reason = format!("no other row computes what {} computes", against.entry_name());
        return misuse("--against", reason);
    }
    Ok(rows)
}

fn compare(lab: &Lab, against: &Row, rows: &[Row]) -> Result<Vec<Compared>> {
    let context = &lab.context;
    let mut screen = Screen::new(1);
    let all: Vec<Row> = std::iter::once(against).chain(rows).copied().collect();
    let folder = folder(lab, &all, &mut screen)?;
    let mut entries = Vec::new();
    for row in &all {
        let kernel: KernelRef = context.tree.compiled(row, &folder)?;
        crate::kernels::find(&kernel)?;
        entries.push(kernel.entry);
    }
    let kernel = KernelRef { folder, entry: entries.remove(0) };
    screen.stage(&kernel.entry, &format!("measure in turns with {}", entries.len()));
    let problems = context.config.problems.of_row(against, false)?;
    let timed = context.in_turns(&kernel, entries, ["in-turns", "benchmark"], problems)?;
    let confidence = context.config.thresholds.confidence.get().min(0.999);
    compared(&timed, &kernel.entry, Bootstrap { confidence, ..Bootstrap::default() })
}

/// The folder that holds all rows.
fn folder(lab: &Lab, rows: &[Row], screen: &mut Screen) -> Result<PathBuf> {
    let context = &lab.context;
    if let Some(folder) = &context.compiled {
        return Ok(folder.clone());
    }
    screen.stage(&format!("{} rows", rows.len()), "compile");
    let out = context.ptx_folder("in-turns");
    let log = context.log("in-turns", "compile")?;
    let limit = context.config.limits.build_s.duration().saturating_mul(rows.len() as u32);
    context.tree.compile(rows, &out, &context.machine.arch(), &log, limit)?;
    Ok(out)
}

/// Every kernel against the one named, on each problem.
fn compared(timed: &[Timed], against: &str, bootstrap: Bootstrap) -> Result<Vec<Compared>> {
    let mut compared = Vec::new();
    for own in timed {
        let base = timed.iter().find(|base| base.problem == own.problem && base.entry == against);
        let (Some(base), Some(median_us)) = (base, median(&own.fresh_us)) else { continue };
        let speed_up = speed_up(&base.fresh_us, &own.fresh_us, bootstrap)
            .map_err(|error| Error::Missing { what: "a measurement", reason: error.to_string() })?;
        compared.push(Compared { problem: own.problem, entry: own.entry.clone(), median_us, speed_up });
    }
    Ok(compared)
}

/// The fastest of the others on each problem.
fn fastest<'a>(compared: &'a [Compared], against: &str) -> Vec<&'a Compared> {
    let mut fastest: Vec<&Compared> = Vec::new();
    for line in compared.iter().filter(|line| line.entry != against) {
        match fastest.iter_mut().find(|best| best.problem == line.problem) {
            Some(best) if best.speed_up.estimate < line.speed_up.estimate => *best = line,
            Some(_) => {}
            None => fastest.push(line),
        }
    }
    fastest
}

fn show(lab: &Lab, against: &Row, compared: &[Compared], as_json: bool) -> Result<()> {
    let against = against.entry_name();
    let mut lines: Vec<&Compared> = compared.iter().collect();
    lines.sort_by(|a, b| a.problem.cmp(&b.problem).then(b.speed_up.estimate.total_cmp(&a.speed_up.estimate)));
    let mut table = Table::new(&["kernel", "problem", "fresh p50 µs", "× faster", "from", "to"]);
    for Compared { problem, entry, median_us, speed_up } in lines {
        let [estimate, low, high] = [speed_up.estimate, speed_up.low, speed_up.high].map(short);
        table.add(vec![entry.clone(), problem.to_string(), short(*median_us), estimate, low, high]);
    }
    let object = json!({
        "session": lab.shown(), "against": against, "compared": compared, "fastest": fastest(compared, &against),
    });
    write(lab, &table, &object, None)?;
    lab.results(&object, as_json)?;
    if as_json {
        return Ok(());
    }
    table.lines().iter().for_each(|line| screen::print(line));
    for Compared { problem, entry, speed_up, .. } in fastest(compared, &against) {
        let [estimate, low, high] =
            [speed_up.estimate, speed_up.low, speed_up.high].map(|factor| 100.0 * (factor - 1.0));
        screen::print(&format!(
            "{problem}: the fastest of the others is {entry}, {estimate:+.2} % faster than {against} ({low:+.2} to {high:+.2})"
        ));
    }
    screen::print(&format!("{}; records in {}", lab.session.header().device, lab.shown()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job;
    use crate::problem_spec::Mask;

    fn timed(entry: &str, mask: Mask, us: f64) -> Timed {
        let shape = "1,1,1,64,64,64".parse().expect("a shape");
        let problem = ProblemSpec { shape, dtype: ferroflash::Dtype::F16, mask };
        job::tests::timed(problem, entry, us)
    }

    #[test]
    fn the_fastest_of_each_problem_is_compared_with_the_one_named_on_that_problem() {
        let (full, causal) = (Mask::Full, Mask::Causal);
        let times = [
            timed("own", full, 100.0),
            timed("a", full, 98.0),
            timed("b", full, 110.0),
            timed("own", causal, 50.0),
            timed("a", causal, 60.0),
            timed("b", causal, 52.0),
        ];
        let compared = compared(&times, "own", Bootstrap::default()).expect("samples");
        let fastest = fastest(&compared, "own");
        let found: Vec<(&str, Mask)> =
            fastest.iter().map(|line| (line.entry.as_str(), line.problem.mask)).collect();
        assert_eq!(found, [("a", full), ("b", causal)]);
        assert!((fastest[0].speed_up.estimate - 100.0 / 98.0).abs() < 1e-3, "{:?}", fastest[0]);
        assert!((fastest[1].speed_up.estimate - 50.0 / 52.0).abs() < 1e-3, "{:?}", fastest[1]);
    }
}
