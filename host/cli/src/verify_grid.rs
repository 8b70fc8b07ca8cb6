//! `ferroflash verify --grid`: one line a kernel and a summary.

use crate::device::Engine;
use crate::failure::Failure;
use crate::named_rows::NamedRows;
use crate::output::{self, Progress};
use crate::verify::{Args, GridName};
use check::verification::{Grid, Observer, RowReport, verify_rows};
use ferroflash::Error;
use kernels_gpu::manifest::Kernel;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

/// Prints what happens, as it happens.
struct Lines {
    progress: Progress,
    json: bool,
}

impl Observer for Lines {
    fn advanced(&mut self, done: usize, total: usize) {
        if done == 1 {
            self.progress.restart("problems of this dtype and head_dim".to_owned());
        }
        self.progress.set(done, total);
    }

    fn finished(&mut self, report: &RowReport) {
        if self.json {
            return;
        }
        let RowReport { entry, cases, failed, worst_ratio, worst_case, repeats, time_s, .. } = report;
        let mut line = format!(
            "{} {entry}: {} of {cases} problems right",
            output::passed(*failed == 0),
            cases - failed.min(cases)
        );
        line += &format!(", at worst {:.0} % of the allowed error ({worst_case})", worst_ratio * 100.0);
        if *repeats > 0 {
            line += &format!(", {repeats} runs bitwise equal");
        }
        line += &format!(", {time_s:.1} s");
        if let Some(failure) = &report.first_failure {
            line += &format!("; first failure: {failure}");
        }
        self.progress.suspend(&line);
    }
}

pub(crate) fn run(args: &Args, grid: GridName, engine: &Engine) -> Result<(), Failure> {
    let Engine::Kernels(attention) = engine else {
        return Err(Failure::NoRows { option: "grid", device: engine.name() });
    };
    let grid = match grid {
        GridName::Quick => Grid::Quick,
        GridName::Odd => Grid::Odd,
    };
    let info = attention.device().info();
    let sm = info.sm;
    let (library, named) = (attention.library(), NamedRows::of(args.rows.as_ref()));
    let names = library.kernels().iter().map(|kernel| kernel.entry.as_str());
    named.check(names.clone())?;
    let kernels: Vec<Arc<Kernel>> = library
        .kernels()
        .iter()
        .filter(|kernel| library.source(kernel, sm).is_some() && kernel.smem_bytes <= info.smem_opt_in_bytes)
        .filter(|kernel| named.mean(&kernel.entry))
        .cloned()
        .collect();
    if kernels.is_empty() {
        return Err(Error::unknown_kernel(&format!("for sm_{sm}"), names).into());
    }
    let start = Instant::now();
    let mut lines = Lines { progress: Progress::new("problems"), json: args.json };
    let reports = verify_rows(&kernels, grid, args.seed, args.repeats, attention.as_ref(), &mut lines)?;
    drop(lines);
    let failed = reports.iter().filter(|report| report.failed > 0).count();
    let time_s = start.elapsed().as_secs_f64();
    if args.json {
        output::print_json(&json!({
            "device": engine.name(),
            "passed": failed == 0,
            "time_s": time_s,
            "rows": reports,
        }));
    } else {
        let (passed, total, problems) = (reports.len() - failed, reports.len(), grid.cases().len());
        let layouts = if matches!(grid, Grid::Odd) { " in two layouts each" } else { "" };
        output::print(&format!(
            "{passed} of {total} kernels right on {problems} problems{layouts}, on {}, in {time_s:.0} s",
            engine.name()
        ));
    }
    if failed > 0 { Err(Failure::Wrong { failed, total: reports.len() }) } else { Ok(()) }
}
