//! `ferroflash bench --backward`: device time of backward passes, all launches of one together.

use crate::backward_args::BackwardArgs;
use crate::backward_rows;
use crate::bench::take_turn;
use crate::bench_report::title;
use crate::failure::Failure;
use crate::output::{self, Progress};
use check::measure::backward::MeasuredBackward;
use check::measure::{Bench, MeasureOptions};
use check::workload::Workload;
use ferroflash::RowSelection;
use ferroflash::device::Device;
use ferroflash::output_file::OutputFile;
use serde_json::json;

/// Measures every problem with the kernels that rows select, prints a line each, and writes the file; with `turns`, in turns with the
/// program that reads the output. A wrong gradient fails the command.
pub(crate) fn run(
    bench: &Bench,
    (workloads, of_backward, rows): (&[Workload], BackwardArgs, &[RowSelection]),
    (options, turns): (&MeasureOptions, bool),
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let info = bench.device().info();
    output::print(&format!(
        "{} (sm_{}), backward: medians of {} CUDA-graph replays, all launches of a pass together; P: the power limit holds the SM clock down",
        info.name, info.sm, options.reps
    ));
    let (mut results, mut failed, mut total) = (Vec::new(), 0, 0);
    for workload in workloads {
        let backward = of_backward.gradients(workload.problem())?;
        for plan in backward_rows::plans(bench.attention(), &backward, rows)? {
            let progress = Progress::new("measuring");
            let name = title(workload.problem());
            let mut tell = |done: u32, total: u32| {
                progress.set(done as usize, total as usize);
                if turns {
                    take_turn(done, total, &name);
                }
            };
            let measured = bench.measure_backward(&plan, workload.clone(), options, &mut tell)?;
            drop(progress);
            total += 1;
            failed += usize::from(!measured.check.passed());
            let flops = 2.5 * workload.flops();
            let tflops = measured.timing.map(|timing| flops / timing.median_us * 1e-6);
            output::print(&line(workload, &measured, tflops));
            results.push(json!({
                "problem": title(workload.problem()),
                "tflops": tflops,
                "measured": measured,
            }));
        }
    }
    if let Some(mut file) = file {
        let device = json!({ "name": info.name, "sm": info.sm, "sm_count": info.sm_count });
        let text = json!({ "device": device, "pass": "backward", "reps": options.reps, "cold": options.cold, "results": results });
        file.write(format!("{text:#}\n").as_bytes())?;
        file.commit()?;
    }
    if failed > 0 { Err(Failure::Wrong { failed, total }) } else { Ok(()) }
}

/// Times, or what is wrong, and the kernels.
fn line(workload: &Workload, measured: &MeasuredBackward, tflops: Option<f64>) -> String {
    let MeasuredBackward { entries, check, timing, load, .. } = measured;
    let times = match (timing, tflops) {
        (Some(timing), Some(tflops)) => format!(
            "{:.2} µs (p10 {:.2}, p90 {:.2}), {tflops:.1} TFLOP/s, {} MHz",
            timing.median_us,
            timing.p10_us,
            timing.p90_us,
            load.clock()
        ),
        _ => format!("wrong: {check}"),
    };
    format!("{}: {times}; {}", title(workload.problem()), entries.join(" + "))
}
