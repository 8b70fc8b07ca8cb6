//! The command `ptx-sim`: runs PTX on the CPU, with buffers from npy files, and says what the kernel does wrong.

#![forbid(unsafe_code)]

mod arguments;
mod check;
mod error;
mod npy;
mod options;
mod run;

use std::process::ExitCode;

use clap::Parser;

use options::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Run(options) => run::run(options),
        Command::Check(options) => check::check(options),
        Command::Support => print(&ptx_sim::support_matrix()).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("ptx-sim: {error}");
        ExitCode::from(2)
    })
}

/// Writes to standard output; whoever stops reading is no error.
pub(crate) fn print(text: &str) -> Result<(), error::Error> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(reason) if reason.kind() != std::io::ErrorKind::BrokenPipe => Err(error::Error::Output(reason)),
        _ => Ok(()),
    }
}
