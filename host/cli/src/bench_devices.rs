//! `ferroflash bench --devices`: each rank of a split sequence by itself, in turns with one device for the whole.

use crate::bench_report::title;
use crate::devices_args::DevicesArgs;
use crate::failure::Failure;
use crate::output::{self, Progress};
use check::measure::ranks::{RankBench, RankOptions, RanksMeasured};
use ferroflash::output_file::OutputFile;
use ferroflash::{CudaOptions, Problem};
use serde_json::json;
use std::time::Duration;

/// Replays where nobody says how many: a long sequence takes a second each.
const REPS: u32 = 7;
const WARM_UP: Duration = Duration::from_millis(200);

/// Measures every method over every number of devices, prints a table each, and writes the file.
pub(crate) fn run(
    args: &DevicesArgs,
    options: &CudaOptions,
    problems: &[Problem],
    (reps, warm_up): (Option<u32>, Option<Duration>),
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let bench = RankBench::open(options)?;
    let reading = bench.reading();
    let driver = reading.driver.clone().unwrap_or_else(|| "unknown".to_owned());
    output::print(&format!(
        "{}, driver {driver}: each rank by itself in turns with one device; links are copies of the same bytes on a stream of their own",
        bench.device_name()
    ));
    let mut results = Vec::new();
    let (mut wrong, mut total) = (0, 0);
    for problem in problems {
        for &devices in &args.devices {
            for method in args.methods() {
                let options = RankOptions {
                    devices,
                    context: args.context(method),
                    reps: reps.unwrap_or(REPS),
                    warm_up: warm_up.unwrap_or(WARM_UP),
                    eager: args.eager,
                };
                let title = format!("{}: {devices} devices, {}", title(problem), method.name());
                let progress = Progress::new("ranks");
                let mut tell = |done: u32, all: u32| progress.set(done as usize, all as usize);
                let measured = bench.measure(problem, &options, &mut tell);
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
            "what": "each rank by itself in turns with one device; links are copies on a stream of their own",
            "version": env!("CARGO_PKG_VERSION"),
            "device": bench.device_name(),
            "driver": driver,
            "sm_clock_mhz": reading.sm_clock_mhz,
            "results": results,
        });
        file.write(format!("{report:#}\n").as_bytes())?;
        file.commit()?;
    }
    if wrong > 0 { Err(Failure::Wrong { failed: wrong, total }) } else { Ok(()) }
}

fn table(title: &str, measured: &RanksMeasured) {
    output::print(&format!("{title} (one device: {})", measured.kernel));
    output::print("  rank    rows         µs   one device µs   × devices   received MB   buffers MB   O");
    for rank in &measured.ranks {
        let median = |timing: Option<check::measure::Timing>| timing.map_or(0.0, |timing| timing.median_us);
        let o = match rank.difference {
            None => "is other ranks', too".to_owned(),
            Some(_) if rank.is_bitwise => "has one device's bits".to_owned(),
            Some([difference, largest]) => format!("differs by {difference:.1e} of {largest:.1e}"),
        };
        output::print(&format!(
            "  {:>4} {:>7} {:>10.1} {:>15.1} {:>11.3} {:>13.2} {:>12.2}   {o}",
            rank.rank,
            rank.rows,
            median(rank.timing),
            median(rank.one),
            rank.share() * f64::from(measured.devices),
            rank.received[0] as f64 / 1e6,
            rank.buffers[0] as f64 / 1e6,
        ));
    }
    if measured.ranks.iter().any(|rank| !rank.is_captured) {
        output::print("  ranks' calls were enqueued one by one, not replayed as graphs");
    }
    if let Some(slowest) = measured.slowest() {
        let of = |[counted, predicted]: [u64; 2]| {
            if predicted == 0 { 0.0 } else { (counted as f64 / predicted as f64 - 1.0) * 100.0 }
        };
        output::print(&format!(
            "  lost to the schedule: {:+.2} % (rank {} is the slowest); its bytes are {:+.1} % off the prediction, its buffers {:+.1} %",
            measured.loss * 100.0,
            slowest.rank,
            of(slowest.received),
            of(slowest.buffers),
        ));
    }
}
