//! `cargo bench --bench device`: what only a GPU can tell; skipped by name where there is none.

use benches::device_time::{self, Arguments};
use std::process::ExitCode;

fn main() -> ExitCode {
    match device_time::run(&Arguments::parse(std::env::args().skip(1))) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("device: {failures} benchmarks failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("device: {error}");
            ExitCode::FAILURE
        }
    }
}
