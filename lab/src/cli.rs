//! The commands, one file each, and what they share.

mod account;
mod benchmark;
pub mod child;
mod cross_check;
mod evaluate;
mod evolve;
mod gate;
mod invert;
mod lab;
mod leaderboard;
mod micro;
mod profile;
mod prompt;
mod report;
mod sanitize;
mod screen;
mod searched;

use crate::config::DeviceKind;
use crate::error::{EXIT_DONE, EXIT_MISUSE, Error, Result};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  # is this row right, and what does it cost? without a GPU on the simulator, with one also in time
  cargo lab evaluate fwd_f16_d64_m64n64_w4s2c1_accf16
  cargo lab evaluate rows.json

  # search twelve rows for one with fewer shared-memory wavefronts than a bad start, without a GPU
  cargo lab evolve --device sim --budget 12

  # go on with a session that was killed
  cargo lab evolve --resume lab-runs/20261120T141500Z

  # what keeps this kernel from being faster?
  cargo lab profile fwd_f16_d64_m128n64_w4s2c1

Exit codes: 0 done, 1 failed or refused, 2 misuse, 3 inconclusive (gate), 4 the gate itself does not work here, 5 it has no baseline,
130 interrupted.
What is tested, timed and allowed stands in lab.toml; docs/lab.md explains it. Each run keeps its records in lab-runs/.";

/// The workshop: builds, checks, measures and evolves kernels by reversible steps.
#[derive(Parser)]
#[command(name = "lab", bin_name = "cargo lab", version, arg_required_else_help = true, after_help = EXAMPLES)]
#[command(max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile rows and report registers, spills and shared memory
    Build(evaluate::BuildArgs),
    /// Check rows: the simulator's rules, then float64, on known and hidden problems
    Test(evaluate::TestArgs),
    /// Take rows or patches through the whole cascade: compiles, fits, keeps the rules, computes attention, is fast
    Evaluate(evaluate::EvaluateArgs),
    /// Look for broken rules and races: the simulator always, compute-sanitizer where it can run
    Sanitize(sanitize::SanitizeArgs),
    /// Say what keeps a kernel from being faster, with the two figures that prove it
    Profile(profile::ProfileArgs),
    /// Measure rows side by side, and PyTorch's attention in the same job
    Benchmark(benchmark::BenchmarkArgs),
    /// Measure every feasible row briefly and keep the best eight, to seed a search
    Micro(micro::MicroArgs),
    /// Search: rows by strategies, or patches by a program that proposes them
    Evolve(evolve::EvolveArgs),
    /// Print what a proposer is told
    Prompt(prompt::PromptArgs),
    /// Show who is best where, add a session's candidates, bless a slower one
    Leaderboard(leaderboard::LeaderboardArgs),
    /// Compare the tree with the leaderboard: exact on counters, careful on times
    Gate(gate::GateArgs),
    /// Put flaws into a kernel on purpose and rank them by the damage
    Invert(invert::InvertArgs),
    /// Hypothesis, predicted gain, result and decision of every step, as Markdown
    Log(report::LogArgs),
    /// Summarise what was measured and found, as Markdown and as a page with charts
    Report(report::ReportArgs),
    /// Do one job that another process of the lab hands over on stdin
    #[command(name = crate::job::CHILD, hide = true)]
    Child,
}

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// The configuration [default: lab.toml in the project's root, else the seeds' values]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What runs the kernels [default: what lab.toml says]
    #[arg(long, value_enum)]
    pub(crate) device: Option<DeviceKind>,
    /// The GPU's number, from 0 [default: what lab.toml says]
    #[arg(long, value_name = "N")]
    pub(crate) ordinal: Option<u32>,
    /// Shared memory that a CTA may have at most, as in 48K: kernels that need more are refused, and no search tries them
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) smem_max: Option<u32>,
    /// Take compiled kernels from this folder and compile nothing: without rows, all it holds; a search is of the rows in it
    #[arg(long, value_name = "FOLDER")]
    pub(crate) ptx: Option<PathBuf>,
    /// Results as one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Where sessions are kept [default: lab-runs in the project's root]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) runs: Option<PathBuf>,
    /// Go on with this session: what it recorded is not done again
    #[arg(long, value_name = "SESSION")]
    pub(crate) resume: Option<PathBuf>,
    /// Seed of the search [default: drawn, and kept in the session]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

impl Common {
    /// The folder of compiled kernels that candidates come from: the one named, or that of the session which is resumed.
    pub(crate) fn compiled(&self) -> Option<PathBuf> {
        let of_session = || {
            let header = crate::session::read_header(self.resume.as_deref()?).ok()?;
            header.kernels.map(|kernels| kernels.folder)
        };
        self.ptx.clone().or_else(of_session)
    }
}

/// Runs the program; returns its exit code.
pub fn main() -> ExitCode {
    if let Err(error) = crate::interrupt::watch() {
        screen::say(&format!("cannot watch for Ctrl-C: {error}"));
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { EXIT_MISUSE } else { EXIT_DONE };
            // A closed terminal is no reason to fail.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match run(cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            screen::say(&format!("error: {}", error.to_string().replace('\n', " ")));
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(command: Command) -> Result<u8> {
    match command {
        Command::Build(args) => evaluate::build(&args),
        Command::Test(args) => evaluate::test(&args),
        Command::Evaluate(args) => evaluate::evaluate(&args),
        Command::Sanitize(args) => sanitize::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Benchmark(args) => benchmark::run(&args),
        Command::Report(args) => report::report(&args),
        Command::Micro(args) => micro::run(&args),
        Command::Evolve(args) => evolve::run(&args),
        Command::Prompt(args) => prompt::run(&args),
        Command::Leaderboard(args) => leaderboard::run(&args),
        Command::Gate(args) => gate::run(&args),
        Command::Invert(args) => invert::run(&args),
        Command::Log(args) => report::log(&args),
        Command::Child => child::run(),
    }
}

/// A number of bytes, or of KiB with a K.
fn parse_bytes(text: &str) -> std::result::Result<u32, String> {
    let (number, unit) = text.strip_suffix(['K', 'k']).map_or((text, 1), |number| (number, 1024));
    let bytes = number.parse().ok().and_then(|number: u32| number.checked_mul(unit));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("{text} is no number of bytes such as 49152 or 48K"))
}

/// A number from the system's source of randomness: what nobody knows before.
pub(crate) fn draw_seed() -> u64 {
    use std::hash::BuildHasher;
    std::collections::hash_map::RandomState::new().hash_one(std::process::id())
}

/// Refuses an option that has no sense here.
pub(crate) fn misuse<T>(option: &'static str, reason: impl Into<String>) -> Result<T> {
    Err(Error::Argument { option, reason: reason.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn commands_and_options_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bytes_are_plain_or_in_k() {
        assert_eq!((parse_bytes("48K"), parse_bytes("49152")), (Ok(49152), Ok(49152)));
        assert!(["0", "", "K", "-1", "48M", "9999999K"].iter().all(|text| parse_bytes(text).is_err()));
    }

    #[test]
    fn the_examples_name_rows_of_the_table() {
        for name in EXAMPLES.split_whitespace().filter(|word| word.starts_with("fwd_")) {
            assert!(crate::candidate::table_row(name).is_some(), "{name}");
        }
    }
}
