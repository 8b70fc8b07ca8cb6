//! `ferroflash bench --backward`: device time of backward passes, all launches of one together.

use crate::bench_report::title;
use crate::failure::Failure;
use crate::output::{self, Progress};
use check::measure::backward::MeasuredBackward;
use check::measure::{Bench, MeasureOptions};
use check::workload::Workload;
use ferroflash::Backward;
use ferroflash::device::Device;
use ferroflash::output_file::OutputFile;
use serde_json::json;

/// Measures every problem, prints a line each, and writes the file. A wrong gradient fails the command.
pub(crate) fn run(
    bench: &Bench,
    workloads: &[Workload],
    options: &MeasureOptions,
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let info = bench.device().info();
    output::print(&format!(
        "{} (sm_{}), backward: medians of {} CUDA-graph replays, all launches of a pass together",
        info.name, info.sm, options.reps
    ));
    let (mut results, mut failed) = (Vec::new(), 0);
    for workload in workloads {
        let refused = |source| Failure::Argument { option: "--backward", source };
        let backward = Backward::new(workload.problem()).map_err(refused)?;
        let progress = Progress::new("measuring");
        let mut tell = |done: u32, total: u32| progress.set(done as usize, total as usize);
        let measured = bench.measure_backward(&backward, workload.clone(), options, &mut tell)?;
        drop(progress);
        let MeasuredBackward { entries, check, timing, workspace_bytes, .. } = &measured;
        let flops = 2.5 * workload.flops();
        let tflops = timing.map(|timing| flops / timing.median_us * 1e-6);
        failed += usize::from(!check.passed());
        let times = match (timing, tflops) {
            (Some(timing), Some(tflops)) => format!(
                "{:.2} µs (p10 {:.2}, p90 {:.2}), {tflops:.1} TFLOP/s",
                timing.median_us, timing.p10_us, timing.p90_us
            ),
            _ => format!("wrong: {check}"),
        };
        output::print(&format!("{}: {times}; {}", title(workload.problem()), entries.join(" + ")));
        results.push(json!({
            "problem": title(workload.problem()),
            "tflops": tflops,
            "workspace_bytes": workspace_bytes,
            "measured": measured,
        }));
    }
    if let Some(mut file) = file {
        let device = json!({ "name": info.name, "sm": info.sm, "sm_count": info.sm_count });
        let text = json!({ "device": device, "pass": "backward", "reps": options.reps, "cold": options.cold, "results": results });
        file.write(format!("{text:#}\n").as_bytes())?;
        file.commit()?;
    }
    if failed > 0 { Err(Failure::Wrong { failed, total: workloads.len() }) } else { Ok(()) }
}
