//! `cargo xtask demo`: from a bare checkout to attention on the Q, K and V of a real layer, compared with the reference.

use crate::rows::{self, RowsOptions};
use crate::{build_ptx, manifest_file, process, workspace};
use anyhow::{Context, bail};
use kernels_gpu::row::{Dtype, Row};

/// Q, K and V of a layer of all-MiniLM-L6-v2 on real text, with the float64 output.
const TENSORS: &str = "tests/data/minilm_layer2.safetensors";
/// Their kind: its kernels are the ones that are compiled.
const KIND: (Dtype, u32) = (Dtype::F16, 32);

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
    let (all, folder) = (rows::of_table(), workspace::target().join("ptx-demo"));
    let own: Vec<&Row> = all.values().filter(|row| (row.dtype, row.head_dim) == KIND).collect();
    println!(
        "1/2  the kernels, Rust to PTX, {} of {} (`cargo xtask build-ptx` compiles all); beside them the program: cargo build -p ferroflash-cli",
        own.len(),
        all.len()
    );
    let file = folder.join("rows.json");
    manifest_file::write_whole(&file, &serde_json::to_vec(&own).context("rows as JSON")?)?;
    let kernels = build_ptx::Options {
        rows: RowsOptions { rows: Some(file), ..RowsOptions::default() },
        out: Some(folder.clone()),
        ..build_ptx::Options::default()
    };
    // Each leaves a core idle for a part of its time: a compiler has one thread at its end.
    let (program, kernels) = std::thread::scope(|scope| {
        let program =
            scope.spawn(|| process::run(workspace::cargo().args(["build", "-p", "ferroflash-cli"])));
        let kernels = build_ptx::run(&kernels);
        (program.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), kernels)
    });
    kernels?;
    program?;
    println!("2/2  attention on {TENSORS}: all-MiniLM-L6-v2, layer 2, on real text");
    let mut verify = workspace::cargo();
    verify.args(["run", "--quiet", "-p", "ferroflash-cli", "--", "verify", "--input", TENSORS]);
    verify.arg("--ptx").arg(&folder);
    process::run(verify.args(&options.arguments))?;
    Ok(())
}
