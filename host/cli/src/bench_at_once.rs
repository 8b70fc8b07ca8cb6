//! `ferroflash bench --devices N --over nccl`: all ranks of a split sequence at once, in turns with one GPU for the whole.

use crate::bench_report::title;
use crate::devices_args::DevicesArgs;
use crate::failure::Failure;
use crate::output::{self, Progress};
use check::measure::Timing;
use check::measure::at_once::{AtOnce, AtOnceOptions, GpuRanks};
use ferroflash::output_file::OutputFile;
use ferroflash::{CudaOptions, Mask, Problem};
use ferroflash_distributed::Method;
use ferroflash_distributed::nccl::NcclOptions;
use serde_json::json;
use std::time::Duration;

/// Turns where nobody says how many.
const REPS: u32 = 15;
const WARM_UP: Duration = Duration::from_millis(200);
/// The most queries of a problem without a mask whose cache is split, where more queries are split themselves.
const DECODING_QUERIES_MOST: u32 = 16;

/// Turns, and calls that are compared bit by bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    pub(crate) reps: Option<u32>,
    pub(crate) warm_up: Option<Duration>,
    pub(crate) rest: Duration,
    pub(crate) repeats: u32,
    pub(crate) graph: bool,
}

/// Measures every method over every number of GPUs, prints a table each, and writes the file.
pub(crate) fn run(
    args: &DevicesArgs,
    (options, nccl): (&CudaOptions, &NcclOptions),
    problems: &[Problem],
    turns: Turns,
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let mut results = Vec::new();
    let (mut wrong, mut total) = (0, 0);
    let mut about = json!(null);
    for &devices in &args.devices {
        let ranks = GpuRanks::open(options, devices, nccl)?;
        let readings = ranks.readings();
        let driver = readings.first().and_then(|reading| reading.driver.clone());
        let driver = driver.unwrap_or_else(|| "unknown".to_owned());
        output::print(&format!(
            "{} over NCCL, driver {driver}: all ranks at once, in turns with one GPU for the whole",
            ranks.names().join(" + ")
        ));
        about =
            json!({ "devices": ranks.names(), "driver": driver, "sm_clock_mhz": readings[0].sm_clock_mhz });
        for problem in problems {
            for method in methods(args, problem) {
                let options = AtOnceOptions {
                    context: method.map(|method| args.context(method)),
                    reps: turns.reps.unwrap_or(REPS),
                    warm_up: turns.warm_up.unwrap_or(WARM_UP),
                    rest: turns.rest,
                    repeats: turns.repeats,
                    graph: turns.graph,
                };
                let name = method.map_or("split cache", Method::name);
                let title = format!("{}: {devices} GPUs, {name}", title(problem));
                let progress = Progress::new("turns");
                let tell = |done: u32, all: u32| progress.set(done as usize, all as usize);
                let measured = ranks.measure(problem, &options, &tell);
                drop(progress);
                let Some(measured) = args.unless_refused(&title, measured)? else { continue };
                table(&title, &measured);
                total += 1;
                wrong += usize::from(!measured.is_right());
                results.push(json!({ "problem": title, "measured": measured, "right": measured.is_right() }));
            }
        }
    }
    if let Some(mut file) = file {
        let report = json!({
            "what": "all ranks at once over NCCL, in turns with one GPU for the whole",
            "version": env!("CARGO_PKG_VERSION"),
            "about": about,
            "results": results,
        });
        file.write(format!("{report:#}\n").as_bytes())?;
        file.commit()?;
    }
    if wrong > 0 { Err(Failure::Wrong { failed: wrong, total }) } else { Ok(()) }
}

/// `None` is a split cache.
fn methods(args: &DevicesArgs, problem: &Problem) -> Vec<Option<Method>> {
    let is_decoding = problem.sizes().seqlen_q <= DECODING_QUERIES_MOST && problem.mask() == Mask::FULL;
    if is_decoding && args.named().is_none() {
        return vec![None];
    }
    args.methods().into_iter().map(Some).collect()
}

fn table(title: &str, measured: &AtOnce) {
    let us = |timing: Option<Timing>| timing.map_or(0.0, |timing| timing.median_us);
    output::print(&format!("{title} (one GPU: {})", measured.kernel));
    output::print("  rank         µs   one GPU µs   received MB   O");
    for rank in &measured.ranks {
        let [difference, largest] = rank.difference;
        let o = match difference {
            0.0 => "has one GPU's bits".to_owned(),
            _ => format!("differs by {difference:.1e} of {largest:.1e}"),
        };
        let repeats = match (measured.repeats, rank.unequal) {
            (0, _) => String::new(),
            (repeats, 0) => format!("; {repeats} calls bitwise equal"),
            (repeats, unequal) => format!("; {unequal} of {repeats} calls have other bits"),
        };
        let received = rank.received as f64 / 1e6;
        output::print(&format!(
            "  {:>4} {:>10.1} {:>12.1} {received:>13.2}   {o}{repeats}",
            rank.rank,
            us(rank.timing),
            us(rank.one)
        ));
    }
    let predicted = measured.predicted.map_or(String::new(), |predicted| {
        let off = (predicted.us / us(measured.timing) - 1.0) * 100.0;
        let efficiency = predicted.efficiency * 100.0;
        format!("; predicted on paper: {efficiency:.1} %, {:.1} µs ({off:+.1} %)", predicted.us)
    });
    output::print(&format!(
        "  all: {:.1} µs, one GPU {:.1} µs: {:.1} % of {} times as fast{predicted}",
        us(measured.timing),
        us(measured.one),
        measured.efficiency * 100.0,
        measured.devices
    ));
}
