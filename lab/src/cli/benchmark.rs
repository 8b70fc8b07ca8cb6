//! `lab benchmark`: device times side by side, with PyTorch's in the same job; counts, never times, on the simulator.

use crate::candidate::Candidate;
use crate::cli::Common;
use crate::cli::evaluate::{Candidates, DEFAULT_ROW, default_row, evaluate_all, row_of};
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::error::{EXIT_DONE, Error, Result};
use crate::evaluation::Evaluation;
use crate::page::{Page, Section};
use crate::peer::{PeerReport, SCRIPT, comparisons, quantiles};
use crate::process;
use crate::session::write_whole;
use crate::stages::{Cascade, Watcher};
use crate::table::{Table, short};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The record of a comparison with a peer.
pub(crate) const PEER: &str = "peer";

const EXAMPLES: &str = "\
Examples:
  # two kernels on the canonical shapes: times on a GPU, counts on the simulator
  cargo lab benchmark fwd_f16_d64_m64n64_w4s3c1 fwd_f16_d64_m128n64_w4s2c1

  # against PyTorch in the same job, with p50, p90, speed-up and its interval, as JSON, CSV, Markdown and a page
  cargo lab benchmark --peer torch";

#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchmarkArgs {
    #[command(flatten)]
    candidates: Candidates,
    /// Measure a peer in the same job, round by round
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// The program `ferroflash` that takes turns with the peer [default: built now]
    #[arg(long, value_name = "PATH", requires = "peer")]
    ferroflash: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Who can be measured beside this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// PyTorch's scaled_dot_product_attention: flash, cuDNN and what it takes by default
    Torch,
}

pub(crate) fn run(args: &BenchmarkArgs) -> Result<u8> {
    let mut lab = Lab::open("benchmark", &args.common)?;
    match args.peer {
        Some(Peer::Torch) => against_torch(&mut lab, args),
        None => alone(&mut lab, args),
    }
}

/// Rows side by side, each in turns with the usual one.
fn alone(lab: &mut Lab, args: &BenchmarkArgs) -> Result<u8> {
    let list = args.candidates.list(default_row()?, &args.common)?;
    let simulated = lab.context.machine.simulated;
    let cascade = if simulated { Cascade::count() } else { Cascade::whole() };
    lab.context.incumbent = Some(Candidate::of_row(row_of("ROW", DEFAULT_ROW)?));
    let mut screen = Screen::new(list.len() as u64);
    let (evaluations, ended) = evaluate_all(lab, &cascade, &list, &mut screen);
    drop(screen);
    let table = if simulated { counted_table(&evaluations) } else { timed_table(&evaluations) };
    write(lab, &table, &json!({ "evaluations": evaluations }), None)?;
    if args.common.json {
        screen::print(&json!({ "session": lab.shown(), "evaluations": evaluations }).to_string());
    } else {
        table.lines().iter().for_each(|line| screen::print(line));
        screen::print(&format!(
            "{}; benchmark.json, .csv and .md in {}",
            lab.session.header().device,
            lab.shown()
        ));
    }
    ended?;
    let failed = evaluations.iter().filter(|evaluation| !evaluation.passed()).count();
    if failed > 0 { Err(Error::Refused { failed, total: list.len() }) } else { Ok(EXIT_DONE) }
}

fn against_torch(lab: &mut Lab, args: &BenchmarkArgs) -> Result<u8> {
    if lab.context.machine.simulated {
        let reason = "a peer is timed on a GPU, and the simulator has no times".to_owned();
        return Err(Error::Missing { what: "a GPU", reason });
    }
    let mut screen = Screen::new(1);
    let report = match lab.session.records::<PeerReport>(PEER).pop() {
        Some(recorded) => recorded,
        None => {
            let report = measure(lab, args, &mut screen)?;
            lab.session.append(PEER, &report)?;
            report
        }
    };
    drop(screen);
    let table = comparisons(&report);
    write(lab, &table, &json!(report), Some(&report))?;
    if args.common.json {
        screen::print(&json!({ "session": lab.shown(), "peer": report }).to_string());
    } else {
        table.lines().iter().for_each(|line| screen::print(line));
        report.errors.iter().for_each(|error| screen::print(error));
        screen::print(&format!("{}; benchmark.json, .csv, .md and .html in {}", report.device, lab.shown()));
    }
    Ok(EXIT_DONE)
}

/// Runs the script, once for each mask and element type, and puts the reports together.
fn measure(lab: &Lab, args: &BenchmarkArgs, screen: &mut Screen) -> Result<PeerReport> {
    let context = &lab.context;
    let python = &context.config.peers.python;
    let log = context.log("torch", "peer")?;
    let mut probe = Command::new(python);
    probe.args(["-c", "import torch; assert torch.cuda.is_available(), 'PyTorch finds no CUDA device'"]);
    screen.stage("torch", "is it there?");
    if let Err(error) = process::succeed(&mut probe, &log, Duration::from_secs(120)) {
        let reason = format!("{error} ([peers] python names another Python)");
        return Err(Error::Missing { what: "python3 with torch", reason });
    }
    let program = match &args.ferroflash {
        Some(program) => program.clone(),
        None => build(lab, screen)?,
    };
    let out = lab.session.folder().join("torch.json");
    let mut command = Command::new(python);
    command.current_dir(context.tree.root()).arg(SCRIPT).arg("--replays").arg("--ferroflash").arg(&program);
    command.args(["--rounds", &context.config.peers.rounds.get().max(1).to_string()]);
    command.arg("--out").arg(std::path::absolute(&out).unwrap_or_else(|_| out.clone()));
    if let Some(commit) = &lab.session.header().commit {
        command.args(["--commit", commit]);
    }
    let problems = &context.config.problems;
    let dtypes: BTreeSet<&str> = problems.dtypes.iter().map(|dtype| dtype.name()).collect();
    command
        .args(["--dtype", if dtypes.len() > 1 { "both" } else { dtypes.first().copied().unwrap_or("f16") }]);
    let masks: BTreeSet<&str> = problems.masks.iter().map(|mask| mask.name()).collect();
    command.args(["--mask", if masks.len() > 1 { "both" } else { masks.first().copied().unwrap_or("both") }]);
    command.arg("--shape").args(problems.shapes.iter().map(ToString::to_string));
    screen.stage("torch", "measure in turns");
    let limit = context.config.limits.benchmark_s.duration();
    // The script ends with 1 where something could not be measured, and its report says what.
    match process::succeed(&mut command, &log, limit) {
        Ok(_) => {}
        Err(Error::Failed { .. }) if out.is_file() => {}
        Err(error) => return Err(lab.with_folder(error)),
    }
    PeerReport::read(&out, context.config.thresholds.confidence.get())
}

/// Builds the program that takes turns with the peer, and the table's kernels.
fn build(lab: &Lab, screen: &mut Screen) -> Result<PathBuf> {
    let root = lab.context.tree.root();
    let log = lab.context.log("ferroflash", "build")?;
    let cargo = || {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root).env_remove("CARGO_MANIFEST_DIR");
        cargo
    };
    screen.stage("ferroflash", "build");
    let limit = Duration::from_secs(600);
    process::succeed(cargo().args(["run", "--quiet", "--package", "xtask", "--", "build-ptx"]), &log, limit)?;
    process::succeed(
        cargo().args(["build", "--quiet", "--release", "--package", "ferroflash-cli"]),
        &log,
        limit,
    )?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/ferroflash"))
}

/// The results as files of the session.
fn write(lab: &Lab, table: &Table, json: &serde_json::Value, peer: Option<&PeerReport>) -> Result<()> {
    let folder = lab.session.folder();
    write_whole(&folder.join("benchmark.json"), &format!("{json:#}\n"))?;
    write_whole(&folder.join("benchmark.csv"), &table.csv())?;
    write_whole(&folder.join("benchmark.md"), &table.markdown())?;
    if let Some(report) = peer {
        let path = folder.join("benchmark.html");
        let header = lab.session.header();
        let mut facts = vec![
            ("commit".to_owned(), header.commit.clone().unwrap_or_default()),
            ("measured".to_owned(), header.started.clone()),
        ];
        facts.extend(report.facts.clone());
        let sections = vec![Section::of_table("Device times in turns", table.clone())];
        let page = Page { title: "Ferroflash and PyTorch".to_owned(), facts, sections, ..Page::default() };
        write_whole(&path, &page.html())?;
    }
    Ok(())
}

fn counted_table(evaluations: &[Evaluation]) -> Table {
    let mut table = Table::new(&[
        "kernel",
        "problem",
        "CTAs",
        "warp instructions",
        "mma",
        "wavefronts",
        "conflicts",
        "clocks",
        "barriers",
        "global KB",
    ]);
    for evaluation in evaluations {
        for counted in &evaluation.counted {
            table.add(vec![
                evaluation.name.clone(),
                counted.problem.to_string(),
                counted.ctas.to_string(),
                counted.number("warp_instructions").to_string(),
                counted.number("instructions.tensor").to_string(),
                counted.wavefronts().to_string(),
                counted.conflicts().to_string(),
                short(counted.clocks),
                counted.number("barriers").to_string(),
                (counted.global_bytes() / 1024).to_string(),
            ]);
        }
    }
    table
}

fn timed_table(evaluations: &[Evaluation]) -> Table {
    let mut table = Table::new(&[
        "kernel",
        "problem",
        "CTAs",
        "warm p50 µs",
        "p90",
        "spread",
        "cold p50",
        "fresh p50",
        "TFLOP/s",
        "SM MHz",
    ]);
    for evaluation in evaluations {
        for timed in &evaluation.timed {
            let (warm, cold, fresh) =
                (quantiles(&timed.warm_us), quantiles(&timed.cold_us), quantiles(&timed.fresh_us));
            let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), short);
            table.add(vec![
                evaluation.name.clone(),
                timed.problem.to_string(),
                timed.ctas.to_string(),
                shown(warm.map(|q| q.p50_us)),
                shown(warm.map(|q| q.p90_us)),
                warm.map_or_else(|| "–".to_owned(), |q| format!("{:.1} %", 100.0 * q.spread)),
                shown(cold.map(|q| q.p50_us)),
                shown(fresh.map(|q| q.p50_us)),
                shown(warm.map(|q| timed.problem.flops() / q.p50_us / 1e6)),
                timed.sm_clock_mhz.map(|clock| clock.to_string()).unwrap_or_default(),
            ]);
        }
    }
    table
}
