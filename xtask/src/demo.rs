//! `cargo xtask demo`: from a bare checkout to attention on the Q, K and V of a real layer, compared with the reference.

use crate::{build_ptx, process, workspace};
use anyhow::bail;

/// Q, K and V of a layer of all-MiniLM-L6-v2 on real text, with the float64 output.
const TENSORS: &str = "tests/data/minilm_layer2.safetensors";

/// How to run it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Passed on to `ferroflash verify`, for instance `--device cpu`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if !workspace::root().join(TENSORS).is_file() {
        bail!("{TENSORS} is not in this checkout");
    }
    println!("1/3  the kernels: Rust to PTX");
    build_ptx::run(&build_ptx::Options::default())?;
    println!("2/3  the program: cargo build --release -p ferroflash-cli");
    process::run(workspace::cargo().args(["build", "--release", "-p", "ferroflash-cli"]))?;
    println!("3/3  attention on {TENSORS}: all-MiniLM-L6-v2, layer 2, on real text");
    let mut verify = workspace::cargo();
    verify.args(["run", "--release", "--quiet", "-p", "ferroflash-cli", "--", "verify", "--input", TENSORS]);
    process::run(verify.args(&options.arguments))?;
    Ok(())
}
