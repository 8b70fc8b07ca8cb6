//! `cargo xtask test`: sets up what is lacking, then every check and test, to the first failure.
//!
//! The kernels are compiled beside the checks of the host's code: each of their two families takes one thread for minutes, and one of them
//! longer than the other, while nothing before the tests asks for PTX.

use crate::rows::RowsOptions;
use crate::{browser, build_ptx, check_ptx, package, process, ptxas, python, tidy, workspace};
use anyhow::Context;
use clap::ValueEnum;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Which parts to run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Run this step only; may be repeated
    #[arg(long, value_enum, value_name = "STEP")]
    only: Vec<Step>,
    /// Plant the lab's cheats under ten seeds, not under two
    #[arg(long)]
    thorough: bool,
}

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    /// The repository's rules
    Tidy,
    /// cargo fmt --check
    Fmt,
    /// Compile the kernels to PTX, and those of the example of users' scores
    BuildPtx,
    /// The table and the PTX have the same entries; ptxas finds no spill
    CheckPtx,
    /// cargo clippy, warnings denied
    Clippy,
    /// cargo clippy of the library alone, as its users build it: without the simulator; the wheel and the command alone compile
    Library,
    /// cargo doc, warnings denied
    Doc,
    /// Licences and bans of the dependencies, where cargo-deny is installed
    Deny,
    /// Every program, library and test of the workspace, built once for the steps that follow
    Build,
    /// The Python package, and the parts of benches/torch_sdpa.py that need no GPU, where Python is installed
    Python,
    /// cargo test
    Tests,
    /// The crates that are handed out, built and run in an empty workspace with the kernels inside
    Package,
    /// The lab's pages in a browser, which is installed where it is missing
    Pages,
}

/// When a step is run: those of one phase one after the other, the kernels' beside the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// In seconds
    Rules,
    Kernels,
    Host,
    Tests,
}

/// How a step ended, where it did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// It ran, apart from this.
    Partly(String),
    Skipped(String),
}

/// A step that was run.
struct Ran {
    step: Step,
    result: anyhow::Result<Outcome>,
    time: Duration,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let is_chosen = |step: &&Step| options.only.is_empty() || options.only.contains(step);
    let of = |phase: Phase| -> Vec<Step> {
        Step::value_variants()
            .iter()
            .filter(is_chosen)
            .filter(|step| step.phase() == phase)
            .copied()
            .collect()
    };
    let has_failed = AtomicBool::new(false);
    let run = |steps: &[Step]| run_in_order(steps, options.thorough, &has_failed);
    let mut ran = run(&of(Phase::Rules));
    let (kernels, host) = (of(Phase::Kernels), of(Phase::Host));
    let (of_kernels, of_host) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| run(&kernels));
        let of_host = run(&host);
        (beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), of_host)
    });
    ran.extend(of_kernels);
    ran.extend(of_host);
    ran.extend(run(&of(Phase::Tests)));
    let lines: Vec<String> = ran.iter().map(|ran| summary_line(ran.step, &ran.result, ran.time)).collect();
    eprintln!("\n== summary\n{}", lines.join("\n"));
    let failure = ran.into_iter().find_map(|Ran { step, result, .. }| {
        result.err().map(|error| error.context(format!("the step {} failed", step.name())))
    });
    failure.map_or(Ok(()), Err)
}

/// Runs steps one after the other, to the first failure here or beside.
fn run_in_order(steps: &[Step], thorough: bool, has_failed: &AtomicBool) -> Vec<Ran> {
    let mut ran = Vec::new();
    for &step in steps {
        if has_failed.load(Ordering::Relaxed) {
            break;
        }
        eprintln!("\n== {}", step.name());
        let start = Instant::now();
        let result = step.run(thorough);
        if result.is_err() {
            has_failed.store(true, Ordering::Relaxed);
        }
        ran.push(Ran { step, result, time: start.elapsed() });
    }
    ran
}

fn summary_line(step: Step, result: &anyhow::Result<Outcome>, time: Duration) -> String {
    let (word, remark) = match result {
        Ok(Outcome::Passed) => ("passed", ""),
        Ok(Outcome::Partly(remark)) => ("passed", remark.as_str()),
        Ok(Outcome::Skipped(reason)) => ("skipped", reason.as_str()),
        Err(_) => ("FAILED", ""),
    };
    format!("{:<10} {word:<8} {:>5.1} s  {remark}", step.name(), time.as_secs_f32()).trim_end().to_owned()
}

impl Step {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn phase(self) -> Phase {
        match self {
            Step::Tidy | Step::Fmt => Phase::Rules,
            Step::BuildPtx | Step::CheckPtx => Phase::Kernels,
            Step::Clippy | Step::Library | Step::Doc | Step::Deny | Step::Build => Phase::Host,
            Step::Python | Step::Tests | Step::Package | Step::Pages => Phase::Tests,
        }
    }

    fn run(self, thorough: bool) -> anyhow::Result<Outcome> {
        match self {
            Step::BuildPtx => {
                build_ptx::run(&build_ptx::Options::default())?;
                build_ptx::run(&build_ptx::Options { rows: scores(), ..Default::default() })?;
                Ok(Outcome::Passed)
            }
            Step::CheckPtx => check(),
            Step::Fmt => with_component("fmt", "rustfmt", &["fmt", "--all", "--check"]),
            Step::Clippy => with_component(
                "clippy",
                "clippy",
                &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"],
            ),
            Step::Library => library(),
            Step::Doc => {
                let mut doc = workspace::cargo();
                doc.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-Dwarnings");
                passed(&mut doc)
            }
            Step::Deny => {
                if !cargo_has("deny") {
                    return Ok(Outcome::Skipped("cargo-deny is not installed".to_owned()));
                }
                passed(workspace::cargo().args(["deny", "check", "licenses", "bans"]))
            }
            Step::Tidy => tidy::run().map(|()| Outcome::Passed),
            Step::Python => python(),
            Step::Build => passed(&mut workspace::build_all()),
            Step::Tests => {
                // What the tests start is built with the features that everything together has: each by itself has others, and the crates
                // that they share would be compiled again.
                process::run(&mut workspace::build_all())?;
                let mut tests = workspace::cargo();
                // All failures of one run: the first would hide those of the programs behind it.
                tests.args(["test", "--workspace", "--no-fail-fast"]);
                tests.envs(PROGRAMS.map(|(variable, file)| (variable, workspace::built(file))));
                tests.envs(thorough.then_some(("FERROFLASH_THOROUGH", "1")));
                passed(&mut tests)
            }
            Step::Package => package::run(&package::Options { crates_only: true, ..Default::default() })
                .map(|()| Outcome::Passed),
            Step::Pages => pages(),
        }
    }
}

/// What the integration tests start, and the variables that name it to them.
const PROGRAMS: [(&str, &str); 4] = [
    ("FERROFLASH_BIN", "ferroflash"),
    ("FERROFLASH_LAB", "lab"),
    ("FERROFLASH_FAKE_DRIVER", "libfake_driver.so"),
    ("FERROFLASH_FAKE_NCCL", "libfake_nccl.so"),
];

/// What is handed out, each without the features that the rest of the workspace would switch on for it.
fn library() -> anyhow::Result<Outcome> {
    let library = ["clippy", "--package", "ferroflash", "--features", "cudarc-0-19", "--all-targets"];
    let outcome =
        with_component("clippy", "clippy", &[&library[..], &["--", "--deny", "warnings"]].concat())?;
    let alone = ["check", "--quiet", "--package"];
    for package in ["ferroflash-cli", "ferroflash-py"] {
        process::run(workspace::cargo().args(alone).arg(package))?;
    }
    Ok(outcome)
}

fn passed(command: &mut Command) -> anyhow::Result<Outcome> {
    process::run(command)?;
    Ok(Outcome::Passed)
}

/// The kernels of the example of users' scores.
fn scores() -> RowsOptions {
    let example = workspace::root().join("examples/scores");
    RowsOptions { rows: Some(example.join("rows.json")), score: Some(example), ..Default::default() }
}

/// The check with ptxas where there is one or the wheel can be fetched, and without it otherwise.
fn check() -> anyhow::Result<Outcome> {
    let has_ptxas = ptxas::resolve_or_fetch().is_some();
    check_ptx::run(&check_ptx::Options::default()).context("the PTX is not as the table says")?;
    check_ptx::run(&check_ptx::Options { rows: scores(), ..Default::default() })
        .context("the PTX of examples/scores is not as its rows say")?;
    if has_ptxas {
        return Ok(Outcome::Passed);
    }
    Ok(Outcome::Partly("entry names only: no ptxas to compile them with".to_owned()))
}

fn python() -> anyhow::Result<Outcome> {
    let Some(python) = python::find() else {
        return Ok(Outcome::Skipped("there is no python3 of 3.10 or newer".to_owned()));
    };
    python::self_test(&python)?;
    Ok(python::test_package(&python)?.map_or_else(Outcome::Partly, |()| Outcome::Passed))
}

/// The tests that `cargo test` leaves out, as they need a browser.
fn pages() -> anyhow::Result<Outcome> {
    let browser = match browser::resolve() {
        Ok(browser) => browser,
        Err(reason) => return Ok(Outcome::Skipped(format!("not run: no browser: {reason}"))),
    };
    eprintln!("pages: in {}", browser.display());
    let mut test = workspace::cargo();
    // Of the whole workspace, whose tests are built: the package alone has other features.
    test.args(["test", "--workspace", "--test", "pages", "--", "--ignored"]);
    passed(test.env(browser::VARIABLE, browser))
}

fn cargo_has(subcommand: &str) -> bool {
    process::answer(workspace::cargo().args([subcommand, "--version"])).is_some()
}

/// Runs a component of the toolchain; installs it where it is lacking and that is allowed.
fn with_component(subcommand: &str, component: &str, arguments: &[&str]) -> anyhow::Result<Outcome> {
    let forbidden = std::env::var_os("RUSTUP_AUTO_INSTALL").is_some_and(|value| value == "0");
    if !cargo_has(subcommand) && !forbidden {
        let mut add = Command::new("rustup");
        add.args(["component", "add", component]).current_dir(workspace::root());
        if let Err(error) = process::run_within(&mut add, Duration::from_secs(180)) {
            eprintln!("{component}: {error}");
        }
    }
    if !cargo_has(subcommand) {
        return Ok(Outcome::Skipped(format!(
            "{component} is not installed (rustup component add {component})"
        )));
    }
    passed(workspace::cargo().args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_what_was_not_done_and_why() {
        let time = Duration::from_millis(1500);
        let line = |result| summary_line(Step::CheckPtx, &result, time);
        assert_eq!(line(Ok(Outcome::Passed)), "check-ptx  passed     1.5 s");
        assert_eq!(line(Ok(Outcome::Partly("names only".into()))), "check-ptx  passed     1.5 s  names only");
        assert_eq!(line(Ok(Outcome::Skipped("not there".into()))), "check-ptx  skipped    1.5 s  not there");
        assert_eq!(line(Err(anyhow::anyhow!("bad"))), "check-ptx  FAILED     1.5 s");
    }
}
