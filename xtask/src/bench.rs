//! `cargo xtask bench`: the kernels, then `cargo bench`.

use crate::{build_ptx, process, workspace};

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Passed on to the benchmarks, for instance a name to filter by
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    build_ptx::run(&build_ptx::Options::default())?;
    process::run(workspace::cargo().args(["bench", "-p", "benches", "--"]).args(&options.arguments))?;
    Ok(())
}
