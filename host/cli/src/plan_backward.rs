//! `ferroflash plan --backward`: the launches and the workspace of a backward pass.

use crate::backward_args::BackwardArgs;
use crate::backward_rows::selected;
use crate::bench_report::title;
use crate::failure::Failure;
use crate::output;
use check::workload::Workload;
use ferroflash::device::DeviceInfo;
use ferroflash::module::{Library, backward_kernels_of_table};
use ferroflash::{BackwardPlan, Error, RowSelection};
use serde_json::{Value, json};
use std::path::Path;

/// Prints the plans of each problem on a device that rows select, with the kernels of a folder, or where there is none of the table.
pub(crate) fn run(
    (workloads, options): (&[Workload], BackwardArgs),
    device: &DeviceInfo,
    (ptx, rows): (Option<&Path>, &RowSelection),
    as_json: bool,
) -> Result<(), Failure> {
    let library = match Library::find(ptx) {
        Ok(library) => Some(library),
        Err(Error::NoKernels { .. }) if ptx.is_none() => None,
        Err(error) => return Err(error.into()),
    };
    let known: Vec<String> = match &library {
        Some(library) => library.backward_kernels().iter().map(|kernel| kernel.entry.clone()).collect(),
        None => backward_kernels_of_table().iter().map(|kernel| kernel.entry.clone()).collect(),
    };
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let mut values = Vec::new();
    for workload in workloads {
        let backward = options.gradients(workload.problem())?;
        let plans = match &library {
            Some(library) => BackwardPlan::all(&backward, library, device)?,
            None => BackwardPlan::all_of_table(&backward, device)?,
        };
        for plan in selected(plans, std::slice::from_ref(rows), &known)? {
            let flops = 2.5 * workload.flops();
            if as_json {
                values.push(to_json(&plan, device, flops));
            } else {
                print(&plan, device, flops);
            }
        }
    }
    if as_json {
        output::print_json(&values.into());
    }
    Ok(())
}

fn to_json(plan: &BackwardPlan, device: &DeviceInfo, flops: f64) -> Value {
    let steps = plan.steps().iter().map(|step| {
        let not_wgmma = step.obstacle().map(ToString::to_string);
        json!({ "kernel": step.kernel().entry, "grid": step.grid(), "not_wgmma": not_wgmma })
    });
    json!({
        "problem": title(plan.backward().problem()),
        "device": device.name,
        "steps": steps.collect::<Vec<_>>(),
        "chunks": plan.chunks(),
        "heads_kept": plan.heads_kept(),
        "statistics_ctas": plan.statistics_ctas(),
        "query_splits": plan.query_splits(),
        "sum_ctas": plan.sum_ctas(),
        "sink_ctas": plan.sink_ctas(),
        "bias_ctas": plan.bias_ctas(),
        "workspace_bytes": plan.workspace_bytes(),
        "ds_bytes": plan.ds_bytes(),
        "flops": flops,
    })
}

fn print(plan: &BackwardPlan, device: &DeviceInfo, flops: f64) {
    let problem = title(plan.backward().problem());
    output::print(&format!(
        "{problem}, backward, on {} (sm_{}, {} SMs)",
        device.name, device.sm, device.sm_count
    ));
    if let Some(ctas) = plan.statistics_ctas() {
        let heads = plan.heads_kept();
        let follows = match plan.chunks() {
            1 => format!("; dS of {heads} KV heads at a time"),
            chunks => format!("; what follows is launched {chunks} times, for {heads} KV heads each"),
        };
        output::print(&format!("  {:<11} {ctas} CTAs{follows}", "statistics"));
    }
    for step in plan.steps() {
        let kernel = step.kernel();
        output::print(&format!(
            "  {:<11} {}, {} CTAs of {} threads and {} bytes of shared memory",
            kernel.row.pass.name(),
            kernel.entry,
            step.grid(),
            kernel.threads,
            kernel.smem_bytes
        ));
        if let Some(obstacle) = step.obstacle() {
            output::print(&format!("  {:<11} not wgmma: {obstacle}", ""));
        }
    }
    if let Some(ctas) = plan.sum_ctas() {
        let splits = plan.query_splits();
        output::print(&format!(
            "  {:<11} {ctas} CTAs; {splits} share a block of keys (--query-splits)",
            "sums"
        ));
    }
    for (name, ctas) in [("sinks", plan.sink_ctas()), ("bias", plan.bias_ctas())] {
        let Some(ctas) = ctas else { continue };
        output::print(&format!("  {name:<11} where their gradient is wanted, {ctas} CTAs"));
    }
    let of_ds = match plan.ds_bytes() {
        0 => String::new(),
        bytes => format!(", {bytes} of them dS (--ds-max)"),
    };
    output::print(&format!("  workspace   {} bytes{of_ds}", plan.workspace_bytes()));
    output::print(&format!("  work        {:.3} GFLOP, five products", flops * 1e-9));
}
