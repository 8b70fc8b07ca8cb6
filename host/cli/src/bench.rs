//! `ferroflash bench`: device time of kernels, side by side.

use crate::bench_args::{Args, DeviceName, L2Name};
use crate::bench_at_once::{self, Turns};
use crate::bench_backward;
use crate::bench_devices;
use crate::bench_report::{self, Measurement, Report};
use crate::bench_sim::{self, Simulated};
use crate::failure::Failure;
use crate::output::{self, Progress};
use crate::regret;
use check::measure::{Bench, MeasureOptions, Measured};
use check::workload::Workload;
use ferroflash::module::Library;
use ferroflash::output_file::OutputFile;
use ferroflash::{CudaOptions, Error, L2Policy, Problem, RowSelection};
use std::sync::Arc;
use std::time::Duration;

/// Measures, prints a table a problem, and writes the file. A problem that cannot be measured is reported and the others go on;
/// the command then fails.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let workloads = args.workloads()?;
    if args.device == DeviceName::Sim
        && let Some(option) = args.about_times()
    {
        return Err(Failure::NoTimes { option });
    }
    let file = args.json.as_deref().map(|path| OutputFile::create(path, args.force)).transpose()?;
    if args.device == DeviceName::Sim {
        let library = Arc::new(Library::find(args.ptx.as_deref())?);
        if args.backward {
            return bench_sim::run_backward((&workloads, args.of_backward), args.device_model, library, file);
        }
        check_names(&args.rows, &library)?;
        let simulated = Simulated {
            rows: &args.rows,
            plan: &args.plan,
            model: args.device_model,
            predictor: args.predict.predictor(|| Ok(library.clone()), Some(args.device_model))?,
            lse: args.lse,
        };
        return bench_sim::run(&workloads, &simulated, library, file);
    }
    let cuda = CudaOptions::default().with_ptx(args.ptx.clone()).with_ordinal(args.ordinal);
    if args.regret.regret {
        let given = if args.shape.is_empty() { Vec::new() } else { workloads };
        return regret::run(&args.regret, &cuda, given, file);
    }
    if !args.devices.devices.is_empty() {
        let problems: Vec<Problem> = workloads.iter().map(|workload| *workload.problem()).collect();
        let warm_up = args.warm_up.map(Duration::from_millis);
        if let Some(nccl) = args.over.nccl() {
            let rest = Duration::from_millis(args.rest);
            let turns = Turns { reps: args.reps, warm_up, rest, repeats: args.repeats, graph: args.graph };
            return bench_at_once::run(&args.devices, (&cuda, &nccl), &problems, turns, file);
        }
        return bench_devices::run(&args.devices, &cuda, &problems, (args.reps, warm_up), file);
    }
    let l2 = match args.l2 {
        L2Name::Default => L2Policy::Default,
        L2Name::Persist => L2Policy::Persist,
    };
    let mut bench = Bench::open(&cuda.with_l2(l2))?;
    if !args.backward {
        check_names(&args.rows, bench.attention().library())?;
    }
    if let Some(folder) = &args.baseline {
        bench.open_baseline(folder)?;
        bench.baseline().map_or(Ok(()), |attention| check_names(&args.rows, attention.library()))?;
    }
    let default = MeasureOptions::default();
    let options = MeasureOptions {
        reps: args.reps.unwrap_or(default.reps),
        cold: args.cold,
        lse: args.lse,
        bias_gradient: args.bias_gradient,
        warm_up: args.warm_up.map_or(default.warm_up, Duration::from_millis),
        ..default
    };
    if args.backward {
        return bench_backward::run(
            &bench,
            (&workloads, args.of_backward, &args.rows),
            (&options, args.turns),
            file,
        );
    }
    let mut report = Report::new(&bench, &options);
    output::print(&bench_report::heading(&report));

    let mut errors = Vec::new();
    for workload in &workloads {
        let measurement = match measure(&bench, workload, args, &options) {
            Ok(rows) => Measurement::new(workload, rows, report.copy_gbytes_per_s()),
            Err(error) => {
                let measurement = Measurement::failed(workload, &error);
                // A single one is what the command ends with.
                if workloads.len() > 1 {
                    output::say_error(&format!("{}: {error}", bench_report::title(workload.problem())));
                }
                errors.push(error);
                measurement
            }
        };
        bench_report::table(&measurement).iter().for_each(|line| output::print(line));
        report.results.push(measurement);
    }
    if let Some(mut file) = file {
        file.write(report.to_json().as_bytes())?;
        file.commit()?;
    }
    verdict(&report, errors)
}

fn verdict(report: &Report, mut errors: Vec<Error>) -> Result<(), Failure> {
    let (failed, total) = (errors.len(), report.results.len());
    if let (Some(error), 1) = (errors.pop(), total) {
        return Err(error.into());
    }
    if failed > 0 {
        return Err(Failure::Unmeasured { failed, total });
    }
    let rows = || report.results.iter().flat_map(|measurement| &measurement.rows);
    match rows().filter(|row| !row.measured.check.passed()).count() {
        0 => Ok(()),
        failed => Err(Failure::Wrong { failed, total: rows().count() }),
    }
}

/// Refuses a row that no kernel has before anything runs.
fn check_names(rows: &[RowSelection], library: &Library) -> Result<(), Failure> {
    for row in rows {
        let RowSelection::Named(name) = row else { continue };
        if !library.kernels().iter().any(|kernel| kernel.entry == *name) {
            let source =
                Error::unknown_kernel(name, library.kernels().iter().map(|kernel| kernel.entry.as_str()));
            return Err(Failure::Argument { option: "--rows", source });
        }
    }
    Ok(())
}

fn measure(
    bench: &Bench,
    workload: &Workload,
    args: &Args,
    options: &MeasureOptions,
) -> Result<Vec<Measured>, Error> {
    let problem = workload.problem();
    let plans_of = |attention| args.plan.distinct_plans(attention, problem, &args.rows);
    let plans = plans_of(bench.attention())?;
    let baseline_plans = bench.baseline().map(plans_of).transpose()?.unwrap_or_default();
    let progress = Progress::new("measuring");
    let title = bench_report::title(problem);
    let mut turn = |done: u32, total: u32| {
        progress.set(done as usize, total as usize);
        if args.turns {
            take_turn(done, total, &title);
        }
    };
    let mut measured =
        bench.measure_workload(workload.clone(), &plans, &baseline_plans, options, &mut turn)?;
    if !args.replays {
        measured.iter_mut().for_each(|measured| measured.times_us.clear());
    }
    Ok(measured)
}

/// Says that the next replay of a problem is about to start, or that none is left, and waits for the word.
pub(crate) fn take_turn(done: u32, total: u32, title: &str) {
    output::print(&format!("turn {done} of {total}: {title}"));
    // At the end of the input nobody else takes turns any more.
    let _ = std::io::stdin().read_line(&mut String::new());
}
