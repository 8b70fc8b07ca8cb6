//! The command `ferroflash`.

mod backward_args;
mod backward_rows;
mod bench;
mod bench_args;
mod bench_at_once;
mod bench_backward;
mod bench_devices;
mod bench_report;
mod bench_sim;
mod device;
mod devices_args;
mod doctor;
mod doctor_tools;
mod failure;
mod input;
mod memory;
mod named_rows;
mod output;
mod plan;
mod plan_args;
mod plan_backward;
mod plan_devices;
mod predict_args;
mod ragged_args;
mod regret;
mod run;
mod shape;
mod tune;
mod verify;
mod verify_backward;
mod verify_devices;
mod verify_grid;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// What a shell reports of a program that Ctrl-C ended.
const EXIT_INTERRUPTED: i32 = 130;

/// Flash attention: kernels in Rust, compiled to PTX.
#[derive(Parser)]
#[command(name = "ferroflash", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  ferroflash run --input qkv.safetensors --output o.safetensors --causal
  ferroflash verify --input tests/data/minilm_layer2.safetensors
  ferroflash bench --shape 4,32,32,4096,4096,64 --causal
  ferroflash plan --shape 8,32,8,1,8192,128 --device-model h200
  ferroflash tune
  ferroflash doctor

Exit codes: 0 done, 1 failed (also: a verification that found errors), 2 misuse, 130 interrupted.";

#[derive(Subcommand)]
enum Command {
    /// Compute attention on tensors from a file
    Run(run::Args),
    /// Compute, compare with the float64 reference, and print the errors
    Verify(verify::Args),
    /// Measure kernels on the GPU
    Bench(bench_args::Args),
    /// Say how a problem would be computed on a device, and why so; needs no GPU
    Plan(plan::Args),
    /// Measure what kernels cost on this GPU, so that plans fit it
    Tune(tune::Args),
    /// Say what of driver, device and tools is there, and what to do about the rest
    Doctor(doctor::Args),
}

impl Command {
    /// What to do without a GPU, of the devices that the command has, as the end of a message.
    fn without_gpu(&self) -> Option<&'static str> {
        match self {
            Command::Run(_) | Command::Verify(_) => Some("; use --device cpu"),
            Command::Bench(_) => Some("; --device sim counts instructions instead"),
            Command::Plan(_) | Command::Tune(_) | Command::Doctor(_) => None,
        }
    }
}

fn main() -> ExitCode {
    // Without a handler the signal still ends the program, but leaves a temporary file.
    if let Err(error) = ctrlc::set_handler(interrupted) {
        output::say(&format!("cannot watch for Ctrl-C: {error}"));
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && error.kind() != HELP_ON_NOTHING => return misuse(&error),
        Err(error) => error.exit(),
    };
    let outcome = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Doctor(args) => doctor::run(args),
    };
    let shown = || output::unwritten().map_or(Ok(()), |source| Err(failure::Failure::Stdout { source }));
    match outcome.and_then(|()| shown()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let advice = cli.command.without_gpu().filter(|_| failure.is_without_gpu());
            output::say_error(&format!("{failure}{}", advice.unwrap_or_default()));
            ExitCode::from(failure.exit_code())
        }
    }
}

const HELP_ON_NOTHING: clap::error::ErrorKind =
    clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;

/// clap's message in one line, without the usage that follows it.
fn misuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    output::say_error(&format!("{line}; see `ferroflash --help`"));
    ExitCode::from(failure::EXIT_MISUSE)
}

fn interrupted() {
    output::say("interrupted: no output was written");
    ferroflash::output_file::remove_unfinished_and_exit(EXIT_INTERRUPTED)
}
