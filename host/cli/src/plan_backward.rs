//! `ferroflash plan --backward`: the launches and the workspace of a backward pass.

use crate::bench_report::title;
use crate::failure::Failure;
use crate::output;
use check::workload::Workload;
use ferroflash::device::DeviceInfo;
use ferroflash::module::Library;
use ferroflash::{Backward, BackwardPlan, Error};
use serde_json::json;
use std::path::Path;

/// Prints the plan of each problem on a device, with the kernels of a folder, or where there is none of the table.
pub(crate) fn run(
    workloads: &[Workload],
    device: &DeviceInfo,
    ptx: Option<&Path>,
    as_json: bool,
) -> Result<(), Failure> {
    let library = match Library::find(ptx) {
        Ok(library) => Some(library),
        Err(Error::NoKernels { .. }) if ptx.is_none() => None,
        Err(error) => return Err(error.into()),
    };
    let mut values = Vec::new();
    for workload in workloads {
        let refused = |source| Failure::Argument { option: "--backward", source };
        let backward = Backward::new(workload.problem()).map_err(refused)?;
        let plan = match &library {
            Some(library) => BackwardPlan::new(&backward, library, device)?,
            None => BackwardPlan::of_table(&backward, device)?,
        };
        let flops = 2.5 * workload.flops();
        if as_json {
            let steps = plan.steps().iter().map(|step| {
                let not_wgmma = step.obstacle().map(ToString::to_string);
                json!({ "kernel": step.kernel().entry, "grid": step.grid(), "not_wgmma": not_wgmma })
            });
            values.push(json!({
                "problem": title(workload.problem()),
                "device": device.name,
                "steps": steps.collect::<Vec<_>>(),
                "workspace_bytes": plan.workspace_bytes(),
                "flops": flops,
            }));
            continue;
        }
        output::print(&format!(
            "{}, backward, on {} (sm_{}, {} SMs)",
            title(workload.problem()),
            device.name,
            device.sm,
            device.sm_count
        ));
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
        output::print(&format!("  workspace   {} bytes", plan.workspace_bytes()));
        output::print(&format!("  work        {:.3} GFLOP, five products", flops * 1e-9));
    }
    if as_json {
        output::print_json(&values.into());
    }
    Ok(())
}
