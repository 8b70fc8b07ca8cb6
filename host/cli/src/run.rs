//! `ferroflash run`: attention on tensors from a file.

use crate::device::DeviceArgs;
use crate::failure::Failure;
use crate::input::{ProblemArgs, describe, to_json};
use crate::output;
use crate::plan_args::parse_splits;
use ferroflash::output_file::OutputFile;
use ferroflash::tensor_file;
use ferroflash::{Error, PlanOptions, Splits};
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const EXAMPLES: &str = "Examples:
  # q, k and v in one file; O into another, under the name o
  ferroflash run --input qkv.safetensors --output o.safetensors

  # NumPy arrays of shape [batch, seqlen, heads, head_dim], causal, with the log-sum-exp
  ferroflash run --input q.npy,k.npy,v.npy --layout bshd --causal --lse --output o.safetensors

  # a window of 1024 tokens over packed prompts: the file has cu_seqlens_q and cu_seqlens_k too
  ferroflash run --input prompts.safetensors --window 1023,0 --output o.safetensors

  # a KV cache of which each sequence has filled another part
  ferroflash run --input decode.safetensors --lengths 812,37,4096 --output o.safetensors

Tensors are f16, bf16 or f32, of 4 dimensions; heads of Q may be a multiple of
those of K and V (GQA). head_dim is a multiple of 8 up to 256, or of 16 up to 512; V's may be another.

A safetensors file may hold more: with cu_seqlens_q (and cu_seqlens_k) q, k and v
are packed sequences, [total, heads, head_dim]; with block_table k and v are pages,
[pages, page, heads, head_dim] (one list of entries with page_indptr, else a row for
each sequence), and seqlens_k says how many keys each sequence has; sinks, slopes,
bias and intervals are what the library's Operand of that name is.

The output appears whole or not at all.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A .safetensors file with q, k and v, - for one on stdin, or three .npy files joined by commas
    #[arg(long, value_delimiter = ',', required = true, value_name = "FILES")]
    input: Vec<OsString>,

    /// File for O: .safetensors, or .npy for O alone
    #[arg(long, value_name = "FILE")]
    output: PathBuf,

    /// Write the log-sum-exp of every query row too, as lse
    #[arg(long)]
    lse: bool,

    /// Replace the output file where it exists
    #[arg(long)]
    force: bool,

    /// Say what was done as one line of JSON on stdout
    #[arg(long)]
    json: bool,

    /// Keys of each sequence, one for each batch entry, joined by commas: what lies behind them is not read
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    lengths: Option<Vec<u32>>,

    /// Ranges that the keys are split into: auto, or at most so many
    #[arg(long, value_name = "auto|N", value_parser = parse_splits, conflicts_with = "split_size")]
    splits: Option<Splits>,

    /// Keys of a range: the result then does not depend on the batch that a sequence came in
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u32).range(1..))]
    split_size: Option<u32>,

    #[command(flatten)]
    problem: ProblemArgs,

    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    tensor_file::check_output(&args.output, args.lse)
        .map_err(|source| Failure::Argument { option: "--output", source })?;
    check_apart(&args.output, &args.input)
        .map_err(|source| Failure::Argument { option: "--output", source })?;
    let file = OutputFile::create(&args.output, args.force)?;
    let mut inputs = args.problem.read(&args.input)?;
    if let Some(lengths) = &args.lengths {
        inputs.problem = inputs.problem.with_lengths(true);
        inputs
            .problem
            .check_lengths(lengths)
            .map_err(|source| Failure::Argument { option: "--lengths", source })?;
        inputs.seqlens_k = Some(lengths.clone());
    }
    let problem = &inputs.problem;
    let splits = args.split_size.map_or(args.splits.unwrap_or_default(), Splits::Size);
    let options = PlanOptions { splits, ..PlanOptions::new() };
    let engine = args.device.open()?;

    let start = Instant::now();
    let result = engine.forward(problem, &options, &inputs.tensors(), args.lse)?;
    let time_s = start.elapsed().as_secs_f64();
    tensor_file::write(file, problem, inputs.layout, &result.o, result.lse.as_deref())?;

    let path = args.output.display().to_string();
    if args.json {
        output::print_json(&json!({
            "output": path,
            "device": engine.name(),
            "problem": to_json(problem),
            "lse": args.lse,
            "time_s": time_s,
        }));
    } else {
        let tensors = if args.lse { "O and LSE" } else { "O" };
        let (what, ms) = (describe(problem), time_s * 1e3);
        output::print(&format!("{path}: {tensors} of {what}, computed in {ms:.1} ms with copies"));
    }
    Ok(())
}

/// Refuses an output that is one of the input files, which would be lost: by the file itself, as links, folders' names and stdin lead to it under
/// other paths.
fn check_apart(output: &Path, input: &[OsString]) -> Result<(), Error> {
    let file = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let Some(replaced) = file(output) else { return Ok(()) };
    let path_of = |input: &OsString| if input == "-" { PathBuf::from("/dev/stdin") } else { input.into() };
    if input.iter().any(|input| file(&path_of(input)) == Some(replaced)) {
        return Err(Error::OutputFormat {
            path: output.to_owned(),
            reason: "it is an input, which would be lost",
        });
    }
    Ok(())
}
