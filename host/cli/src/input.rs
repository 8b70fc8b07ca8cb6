//! The options that `run` and `verify` share: tensors and what is computed of them.

use crate::failure::Failure;
use crate::ragged_args::MaskArgs;
use check::workload;
use clap::ValueEnum;
use ferroflash::tensor_file::{self, Inputs, Options, Source};
use ferroflash::{Dtype, Error, Layout, Problem};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How to compute.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ProblemArgs {
    /// Causal mask, aligned bottom-right: query i sees key j where j ≤ i + seqlen_k − seqlen_q
    ///
    /// `--causal=false` overrides a file that says causal.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    causal: Option<bool>,

    /// The same as --causal or --causal=false
    #[arg(long = "mask", value_enum, conflicts_with_all = ["causal", "window"])]
    mask_name: Option<MaskName>,

    /// Softmax scale [default: what the file says, else 1/√head_dim]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    scale: Option<f32>,

    /// Order of the dimensions: bhsd is [batch, heads, seqlen, head_dim] [default: what the file says, else bhsd]
    #[arg(long)]
    layout: Option<LayoutName>,

    /// Element type to compute in [default: that of the tensors; f16 for f32]
    #[arg(long)]
    dtype: Option<DtypeName>,

    #[command(flatten)]
    pub(crate) mask_parts: MaskArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MaskName {
    Full,
    Causal,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutName {
    Bhsd,
    Bshd,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DtypeName {
    F16,
    Bf16,
}

impl ProblemArgs {
    /// The mask, where the command line names one.
    pub(crate) fn causal(&self) -> Option<bool> {
        self.mask_name.map(|mask| mask == MaskName::Causal).or(self.causal)
    }

    pub(crate) fn layout(&self) -> Option<Layout> {
        self.layout.map(|name| match name {
            LayoutName::Bhsd => Layout::Bhsd,
            LayoutName::Bshd => Layout::Bshd,
        })
    }

    pub(crate) fn dtype(&self) -> Option<Dtype> {
        self.dtype.map(|name| match name {
            DtypeName::F16 => Dtype::F16,
            DtypeName::Bf16 => Dtype::Bf16,
        })
    }

    pub(crate) fn scaled(&self, problem: Problem) -> Result<Problem, Failure> {
        match self.scale {
            Some(scale) => {
                problem.with_scale(scale).map_err(|source| Failure::Argument { option: "--scale", source })
            }
            None => Ok(problem),
        }
    }

    /// Reads the files named in `--input`.
    pub(crate) fn read(&self, input: &[OsString]) -> Result<Inputs, Failure> {
        let mut options = Options::default();
        (options.layout, options.dtype) = (self.layout(), self.dtype());
        (options.scale, options.causal) = (self.scale, self.causal());
        let mut inputs = tensor_file::read(&source(input)?, &options).map_err(|error| match error {
            Error::InvalidScale { scale }
                if self.scale == Some(scale) || self.scale.is_some_and(f32::is_nan) =>
            {
                Failure::Argument { option: "--scale", source: error }
            }
            error => Failure::from(error),
        })?;
        inputs.problem = self.mask_parts.problem(inputs.problem)?;
        Ok(inputs)
    }
}

fn source(input: &[OsString]) -> Result<Source, Failure> {
    let is_npy = |path: &OsString| Path::new(path).extension().is_some_and(|extension| extension == "npy");
    match input {
        [file] if !is_npy(file) => Ok(Source::Safetensors(PathBuf::from(file))),
        [q, k, v] if [q, k, v].into_iter().all(is_npy) => {
            Ok(Source::Npy { q: q.into(), k: k.into(), v: v.into() })
        }
        _ => Err(Failure::Input { found: input.to_vec() }),
    }
}

/// A problem in words, for people.
pub(crate) fn describe(problem: &Problem) -> String {
    let sizes = problem.sizes();
    format!(
        "batch {} heads {}/{} seqlen {}×{} head_dim {} {} {}{}",
        sizes.batch,
        sizes.heads_q,
        sizes.heads_kv,
        sizes.seqlen_q,
        sizes.seqlen_k,
        sizes.head_dim,
        problem.dtype().name(),
        workload::describe(problem),
        if problem.has_lengths() { " lengths" } else { "" },
    )
}

/// A problem for machines.
pub(crate) fn to_json(problem: &Problem) -> Value {
    let sizes = problem.sizes();
    json!({
        "batch": sizes.batch,
        "heads_q": sizes.heads_q,
        "heads_kv": sizes.heads_kv,
        "seqlen_q": sizes.seqlen_q,
        "seqlen_k": sizes.seqlen_k,
        "head_dim": sizes.head_dim,
        "dtype": problem.dtype().name(),
        "causal": problem.causal(),
        "mask_and_score": workload::describe(problem),
        "lengths": problem.has_lengths(),
        "scale": problem.scale(),
    })
}
