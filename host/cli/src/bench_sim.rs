//! `ferroflash bench --device sim`: what kernels execute, counted by the simulator. Never a time.

use crate::bench_report;
use crate::failure::Failure;
use crate::output::{self, Progress};
use crate::plan_args::PlanArgs;
use check::random_input::{self, InputKind};
use check::workload::Workload;
use ferroflash::device::sim::{SimDevice, SimOptions};
use ferroflash::module::Library;
use ferroflash::output_file::OutputFile;
use ferroflash::{Attention, DeviceModel, RowSelection};
use ptx_sim::{InstructionClass, Report};
use serde_json::json;
use std::sync::Arc;

/// What is simulated.
pub(crate) struct Simulated<'a> {
    /// Kernels.
    pub(crate) rows: &'a [RowSelection],
    /// How they are planned.
    pub(crate) plan: &'a PlanArgs,
    /// The device that the simulator stands for.
    pub(crate) model: &'static DeviceModel,
    /// Whether LSE is written too.
    pub(crate) lse: bool,
}

/// Runs every problem with every row asked for, prints a table a problem, and writes the file.
pub(crate) fn run(
    workloads: &[Workload],
    simulated: &Simulated<'_>,
    library: Library,
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let device = Arc::new(SimDevice::new(SimOptions::default().with_model(simulated.model)));
    let attention = Attention::new(device.clone(), Arc::new(library))?;
    output::print(&format!(
        "{}: counts of what the kernels execute, every access checked; no times",
        attention.device_name()
    ));
    let mut results = Vec::new();
    for workload in workloads {
        let problem = workload.problem();
        let qkv = random_input::qkv(problem, InputKind::Random, 0);
        let tensors = workload.tensors(&qkv);
        let plans = simulated.plan.distinct_plans(&attention, problem, simulated.rows)?;
        let progress = Progress::new("simulating");
        let mut reports = Vec::new();
        for (done, plan) in plans.iter().enumerate() {
            progress.set(done, plans.len());
            attention.forward_with(plan, &tensors, simulated.lse)?;
            // Launches that succeeded have reports.
            let entries =
                std::iter::once(&plan.kernel().entry).chain(plan.combine().map(|kernel| &kernel.entry));
            reports.extend(entries.filter_map(|entry| Some((entry.clone(), device.report(entry)?))));
        }
        drop(progress);
        output::print("");
        output::print(&bench_report::title(problem));
        table(&reports).iter().for_each(|line| output::print(line));
        let rows = reports.iter().map(|(entry, report)| json!({ "entry": entry, "counts": counts(report) }));
        results.push(json!({ "problem": bench_report::title(problem), "rows": rows.collect::<Vec<_>>() }));
    }
    if let Some(mut file) = file {
        let all = json!({ "device": attention.device_name(), "results": results });
        file.write(format!("{all:#}\n").as_bytes())?;
        file.commit()?;
    }
    Ok(())
}

/// Everything that was counted, by name.
fn counts(report: &Report) -> serde_json::Map<String, serde_json::Value> {
    report.numbers().into_iter().map(|(name, count)| (name, count.into())).collect()
}

fn table(reports: &[(String, Report)]) -> Vec<String> {
    let width = reports.iter().map(|(entry, _)| entry.len()).max().unwrap_or(0);
    let mut lines = vec![format!(
        "  {:width$}  {:>6} {:>12} {:>8} {:>11} {:>12} {:>10} {:>14} {:>9} {:>11}",
        "kernel",
        "CTAs",
        "instructions",
        "mma",
        "mma share",
        "wavefronts",
        "conflicts",
        "wavefronts/mma",
        "barriers",
        "global KB"
    )];
    for (entry, report) in reports {
        let mma = report.class(InstructionClass::Tensor);
        let shared = [report.shared_load, report.shared_store, report.async_shared];
        let wavefronts: u64 = shared.iter().map(|traffic| traffic.wavefronts).sum();
        let conflicts: u64 = shared.iter().map(|traffic| traffic.conflicts).sum();
        let global: u64 = [report.global_load, report.global_store, report.async_global]
            .iter()
            .map(|traffic| traffic.sectors * 32)
            .sum();
        lines.push(format!(
            "  {entry:width$}  {:>6} {:>12} {:>8} {:>9.1} % {:>12} {:>10} {:>14.2} {:>9} {:>11.1}",
            report.ctas,
            report.warp_instructions,
            mma,
            100.0 * mma as f64 / report.warp_instructions as f64,
            wavefronts,
            conflicts,
            wavefronts as f64 / mma as f64,
            report.barriers,
            global as f64 / 1024.0,
        ));
    }
    lines
}
