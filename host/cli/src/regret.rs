//! `ferroflash bench --regret`: how much longer the plans take than the best that the kernels could do.

use crate::failure::Failure;
use crate::output::{self, Progress};
use check::measure::Bench;
use check::measure::draw::{Draw, Kind};
use check::measure::kept::KeptRecords;
use check::measure::regret::Regret;
use check::measure::sweep::{PlanTime, Record};
use check::workload::{Workload, describe};
use ferroflash::CudaOptions;
use ferroflash::device::Device;
use ferroflash::output_file::OutputFile;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Problems of which a sweep by time alone never runs out.
const ENDLESS: u64 = 1 << 40;

#[derive(clap::Args)]
pub(crate) struct RegretArgs {
    /// Measure the plan for each problem against every kernel, number of splits and way to merge them, and say how much longer it takes than
    /// the best; without --shape, of problems drawn at random
    #[arg(long, conflicts_with_all = ["baseline", "turns", "cold", "replays"])]
    pub(crate) regret: bool,

    /// What the random problems are drawn from
    #[arg(long, value_name = "N", default_value_t = 1, requires = "regret")]
    seed: u64,

    #[command(flatten)]
    kind: KindArgs,

    /// Random problems [default: 300, or as many as --minutes leaves]
    #[arg(long, value_name = "N", requires = "regret")]
    problems: Option<u64>,

    /// Stop after this number of minutes
    #[arg(long, value_name = "M", requires = "regret")]
    minutes: Option<f64>,

    /// Keep the times in this file, a line a problem, and go on behind what it holds
    #[arg(long, value_name = "FILE", requires = "regret")]
    keep: Option<PathBuf>,
}

/// Which random problems are drawn.
#[derive(clap::Args)]
pub(crate) struct KindArgs {
    /// Draw dense problems alone, or ragged batches alone: packed sequences, pages, windows, scores
    #[arg(long, value_name = "KIND")]
    only: Option<Only>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Only {
    Dense,
    Ragged,
}

impl KindArgs {
    pub(crate) fn kind(&self) -> Kind {
        match self.only {
            None => Kind::Both,
            Some(Only::Dense) => Kind::Dense,
            Some(Only::Ragged) => Kind::Ragged,
        }
    }
}

/// Measures, keeps each problem as soon as it is done, and prints the regret by class, which goes to `file` too.
pub(crate) fn run(
    args: &RegretArgs,
    options: &CudaOptions,
    given: Vec<Workload>,
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let mut kept = args.keep.as_deref().map(KeptRecords::open).transpose()?.unwrap_or_default();
    let bench = Bench::open(options)?;
    let limit = args.minutes.map(|minutes| Duration::from_secs_f64(minutes.max(0.0) * 60.0));
    let failed = if given.is_empty() {
        let problems = args.problems.unwrap_or(if limit.is_some() { ENDLESS } else { 300 });
        sweep(&bench, (args.seed, args.kind.kind()), problems, limit, &mut kept)?
    } else {
        let progress = Progress::new("measuring");
        let problems = given.len();
        for (number, workload) in given.into_iter().enumerate() {
            progress.set(number, problems);
            let draw = Draw { workload, ragged: None };
            let record = bench.sweep_drawn(&draw, (args.seed, number as u64))?;
            progress.suspend(&line(&record, record.times.first()));
            kept.push(record)?;
        }
        0
    };
    let regrets = Regret::by_class(kept.records(), |_, record| record.regret());
    regrets.iter().for_each(|regret| output::print(&summary(regret)));
    if let Some(mut file) = file {
        let device = &bench.device().info().name;
        let text =
            json!({ "device": device, "seed": args.seed, "regret": regrets, "records": kept.records() });
        file.write(text.to_string().as_bytes())?;
        file.commit()?;
    }
    let wrong: usize = kept.records().iter().map(|record| record.wrong.len()).sum();
    match (wrong, failed) {
        (0, 0) => Ok(()),
        (0, failed) => Err(Failure::Unmeasured { failed, total: failed + kept.records().len() }),
        (failed, _) => {
            kept.records().iter().flat_map(|record| &record.wrong).for_each(|wrong| output::say_error(wrong));
            Err(Failure::Wrong {
                failed,
                total: kept.records().iter().map(|record| record.times.len()).sum(),
            })
        }
    }
}

/// Measures random problems that `kept` does not hold; returns how many could not be measured.
pub(crate) fn sweep(
    bench: &Bench,
    (seed, kind): (u64, Kind),
    problems: u64,
    limit: Option<Duration>,
    kept: &mut KeptRecords,
) -> Result<usize, Failure> {
    let begun = Instant::now();
    let progress = Progress::new("measuring");
    let mut failed = 0;
    for place in 0..problems {
        let index = kind.number(place);
        match limit {
            Some(limit) if begun.elapsed() >= limit => break,
            Some(limit) => progress.set(begun.elapsed().as_secs() as usize, limit.as_secs() as usize),
            None => progress.set(place as usize, problems as usize),
        }
        if kept.holds(seed, index) {
            continue;
        }
        match bench.sweep(seed, index) {
            Ok(record) => kept.push(record)?,
            Err(error) => {
                output::say_error(&format!("problem {index} of seed {seed}: {error}"));
                failed += 1;
            }
        }
    }
    Ok(failed)
}

/// What became of one problem.
pub(crate) fn line(record: &Record, plan: Option<&PlanTime>) -> String {
    let (Some(plan), Some(best)) = (plan, record.best()) else { return String::new() };
    let shape = record.shape.map(|size| size.to_string()).join(",");
    let name = |time: &PlanTime| {
        let merged = if time.fused { " fused" } else { "" };
        let splits =
            if time.splits > 1 { format!(", {} splits{merged}", time.splits) } else { String::new() };
        format!("{:.2} µs ({}{splits})", time.us, time.entry)
    };
    let what = record.workload().map_or_else(|_| String::new(), |workload| describe(workload.problem()));
    format!("{shape} {} {what}: plan {}, best {}", record.dtype.name(), name(plan), name(best))
}

/// One line of a summary.
pub(crate) fn summary(regret: &Regret) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    format!(
        "{:8} {:5} problems: regret median {}, 95th percentile {}, worst {}; over 5 %: {}, over 25 %: {}",
        regret.class,
        regret.problems,
        percent(regret.median),
        percent(regret.p95),
        percent(regret.worst),
        percent(regret.over_5_percent),
        percent(regret.over_25_percent),
    )
}
