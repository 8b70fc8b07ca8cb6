//! `ferroflash bench --device sim`: what kernels execute, counted by the simulator; where asked for, the time that they are predicted to take.

use crate::backward_args::BackwardArgs;
use crate::bench_report;
use crate::failure::Failure;
use crate::output::{self, Progress};
use crate::plan_args::PlanArgs;
use crate::predict_args;
use check::predict::{Predicted, Predictor};
use check::random_input::{self, InputKind};
use check::workload::Workload;
use ferroflash::device::sim::{SimDevice, SimOptions};
use ferroflash::module::Library;
use ferroflash::output_file::OutputFile;
use ferroflash::{Attention, DeviceModel, GradientInputs, Plan, RowSelection};
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
    /// What predicts times, if that is asked for.
    pub(crate) predictor: Option<Predictor>,
    /// Whether LSE is written too.
    pub(crate) lse: bool,
}

/// Runs every problem with every row asked for, prints a table a problem, and writes the file.
pub(crate) fn run(
    workloads: &[Workload],
    simulated: &Simulated<'_>,
    library: Arc<Library>,
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let device = Arc::new(SimDevice::new(SimOptions::default().with_model(simulated.model)));
    let attention = Attention::new(device.clone(), library)?;
    output::print(&format!(
        "{}: counts of what the kernels execute, every access checked; no time is measured",
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
        let mut predicted: Vec<(String, Predicted)> = Vec::new();
        for (done, plan) in plans.iter().enumerate() {
            progress.set(done, plans.len());
            attention.forward_with(plan, &tensors, simulated.lse)?;
            // Launches that succeeded have reports.
            let entries =
                std::iter::once(&plan.kernel().entry).chain(plan.combine().map(|kernel| &kernel.entry));
            if let Some(predictor) = &simulated.predictor {
                predicted.push((named(plan), predictor.predict(plan)?));
            }
            reports.extend(entries.filter_map(|entry| Some((entry.clone(), device.report(entry)?))));
        }
        drop(progress);
        output::print("");
        output::print(&bench_report::title(problem));
        table(&reports).iter().for_each(|line| output::print(line));
        predicted.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
        let width = predicted.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, predicted) in &predicted {
            output::print(&format!("  {name:width$}  {predicted}"));
        }
        let rows = reports.iter().map(|(entry, report)| json!({ "entry": entry, "counts": counts(report) }));
        let predicted: Vec<_> = predicted
            .iter()
            .map(|(name, predicted)| json!({ "plan": name, "predicted": predict_args::to_json(predicted) }))
            .collect();
        results.push(json!({
            "problem": bench_report::title(problem),
            "rows": rows.collect::<Vec<_>>(),
            "predicted": predicted,
        }));
    }
    if let Some(mut file) = file {
        let all = json!({ "device": attention.device_name(), "results": results });
        file.write(format!("{all:#}\n").as_bytes())?;
        file.commit()?;
    }
    Ok(())
}

/// Runs the backward pass of every problem, whose O and LSE the kernel of the plan computes before, and prints what its kernels execute.
pub(crate) fn run_backward(
    (workloads, options): (&[Workload], BackwardArgs),
    model: &'static DeviceModel,
    library: Arc<Library>,
    file: Option<OutputFile>,
) -> Result<(), Failure> {
    let device = Arc::new(SimDevice::new(SimOptions::default().with_model(model)));
    let attention = Attention::new(device.clone(), library)?;
    let mut results = Vec::new();
    for workload in workloads {
        let problem = workload.problem();
        let backward = options.gradients(problem)?;
        let qkv = random_input::qkv(problem, InputKind::Random, 0);
        let (d_o, _) = random_input::d_output(&backward, InputKind::Random, 1);
        let tensors = workload.tensors(&qkv);
        let output = attention.forward_with(attention.plan(problem)?.as_ref(), &tensors, true)?;
        let lse = output.lse.unwrap_or_default();
        attention.backward(&backward, &GradientInputs::new(tensors, &output.o, &lse, &d_o))?;
        let plan = attention.plan_backward(&backward)?;
        let entries = plan.steps().iter().map(|step| step.kernel().entry.clone());
        // Launches that succeeded have reports.
        let reports: Vec<(String, Report)> =
            entries.filter_map(|entry| Some((entry.clone(), device.report(&entry)?))).collect();
        output::print("");
        output::print(&format!("{}, backward", bench_report::title(problem)));
        table(&reports).iter().for_each(|line| output::print(line));
        let rows = reports.iter().map(|(entry, report)| json!({ "entry": entry, "counts": counts(report) }));
        results.push(json!({ "problem": bench_report::title(problem), "rows": rows.collect::<Vec<_>>() }));
    }
    if let Some(mut file) = file {
        let all = json!({ "device": attention.device_name(), "pass": "backward", "results": results });
        file.write(format!("{all:#}\n").as_bytes())?;
        file.commit()?;
    }
    Ok(())
}

/// A plan's kernel, with its splits where there are several.
fn named(plan: &Plan) -> String {
    match (plan.splits(), plan.is_fused()) {
        (1, _) => plan.kernel().entry.clone(),
        (splits, true) => format!("{}, {splits} splits, fused", plan.kernel().entry),
        (splits, false) => format!("{}, {splits} splits", plan.kernel().entry),
    }
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
