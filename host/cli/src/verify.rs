//! `ferroflash verify`: kernels against the float64 reference.

use crate::backward_args::BackwardArgs;
use crate::device::{DeviceArgs, Engine};
use crate::devices_args::{DevicesArgs, OverArgs};
use crate::failure::Failure;
use crate::input::{ProblemArgs, describe, to_json};
use crate::memory;
use crate::output::{self, Progress};
use crate::plan_args::PlanArgs;
use crate::ragged_args::SequenceArgs;
use crate::shape;
use crate::verify_backward::{self, What};
use crate::verify_devices;
use crate::verify_grid;
use check::random_input::{self, InputKind};
use check::tolerance::Verdict;
use check::verification::{Agreement, KernelRun, Oracle, RunKernel, first_difference};
use check::workload::Workload;
use clap::ValueEnum;
use ferroflash::tensor_file::Inputs;
use ferroflash::{Attention, Dtype, Error, PlanOptions, Problem, RowSelection, Sizes};
use kernels_gpu::row::Accumulation;
use serde_json::json;
use std::ffi::OsString;
use std::sync::Arc;

const EXAMPLES: &str = "Examples:
  # real tensors; where the file holds o and lse, these are compared too
  ferroflash verify --input tests/data/minilm_layer2.safetensors

  # every kernel that fits one shape, on random tensors with outliers
  ferroflash verify --shape 1,8,2,199,513,128 --causal --rows all --input-kind outliers

  # the GPU against the simulator
  ferroflash verify --shape 1,4,2,199,257,64 --rows all --compare-simulator

  # packed sequences over keys in pages of 16, with a window and learned sinks; NaN lies in every row that no sequence has
  ferroflash verify --shape 3,8,2,70,300,128 --seqlens-q 70,1,0 --seqlens-k 300,17,0 --page 16 --window 63,0 --sinks --rows all

  # sequences split among 2, 3 and 8 simulated devices, every method, against the reference and one device
  ferroflash verify --devices 2,3,8 --device sim

  # the same over two GPUs and NCCL, each result ten times
  ferroflash verify --devices 2 --over nccl --repeats 10

  # gradients: of one shape, and of drawn problems for every backward kernel
  ferroflash verify --backward --shape 2,8,2,199,257,64 --causal --repeats 10
  ferroflash verify --backward --grid quick

  # every kernel on every odd length, GQA ratio, mask and layout, and 250 runs bitwise equal
  ferroflash verify --grid odd --rows all --repeats 250

  # the same of those of one head_dim, and of all for ragged batches
  ferroflash verify --grid odd --rows 'fwd_wgmma_*_d128*,*_ragged' --repeats 250

Correct means: the largest error of O is at most twice that of plain attention
in the same dtype on the same input, and LSE is within float32's rounding.
Exit code 1 where anything is not.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["input", "shape", "grid", "devices"])))]
pub(crate) struct Args {
    /// A .safetensors file with q, k and v (and o and lse to compare with), or three .npy files joined by commas
    #[arg(long, value_delimiter = ',', value_name = "FILES", conflicts_with_all = ["SequenceArgs", "shape", "grid", "devices"])]
    input: Vec<OsString>,

    /// Generated tensors: batch, query heads, KV heads, queries, keys, head_dim
    #[arg(long, value_parser = shape::parse, value_name = "B,HQ,HKV,SQ,SKV,D", conflicts_with = "grid")]
    shape: Option<Sizes>,

    /// A set of generated problems for every kernel
    #[arg(long, value_enum, conflicts_with_all = ["causal", "mask_name", "scale", "layout", "dtype", "input_kind", "MaskArgs", "SequenceArgs", "devices"])]
    grid: Option<GridName>,

    /// The backward pass: dQ, dK and dV on generated tensors, against float64
    #[arg(long, conflicts_with_all = ["input", "compare_simulator", "PlanArgs"])]
    backward: bool,

    #[command(flatten)]
    pub(crate) of_backward: BackwardArgs,

    /// Kernels: best is the one that run would take, all, or one by name [default: best; all with --grid]; with --grid names joined
    /// by commas, in which * stands for any characters
    #[arg(long, value_name = "best|all|NAME")]
    pub(crate) rows: Option<RowSelection>,

    /// Seed of generated tensors
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Distribution of generated tensors
    #[arg(long, value_enum, default_value_t = KindName::Random, conflicts_with = "input")]
    input_kind: KindName,

    /// Sequences of generated tensors have lengths of their own, from the seed; behind each lies NaN
    #[arg(long, conflicts_with_all = ["input", "grid"])]
    lengths: bool,

    /// Run each kernel so many times more: every output must be equal to the first in every bit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) repeats: usize,

    /// Run each kernel on the simulator too: O must agree but for the order in which hardware adds
    #[arg(long, conflicts_with = "grid")]
    compare_simulator: bool,

    /// Results as one line of JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    problem: ProblemArgs,

    #[command(flatten)]
    sequences: SequenceArgs,

    #[command(flatten)]
    devices: DevicesArgs,

    #[command(flatten)]
    over: OverArgs,

    #[command(flatten)]
    device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum GridName {
    /// A few small problems that reach every branch
    Quick,
    /// Every pair of the lengths 1, 17, 63, 65, 127, 199, 513, 1023, with GQA ratios, masks and layouts
    Odd,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindName {
    /// Standard normal
    Random,
    /// A few channels and tokens much larger than the rest, as trained models have them
    Outliers,
    /// A key and a query with NaN, which must stay in the rows that see them
    Nan,
}

/// One output and what is thought of it.
struct Judged {
    name: String,
    verdict: Verdict,
    /// The first repeated run that differed, where one did.
    differs_at: Option<usize>,
    /// How it compares with the simulator's, where that was asked for.
    agreement: Option<Agreement>,
}

impl Judged {
    fn passed(&self) -> bool {
        let agrees = self.agreement.is_none_or(|agreement| agreement.passed);
        self.verdict.passed && self.differs_at.is_none() && agrees
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.backward {
        let given = args.shape.map(|sizes| args.workload(sizes)).transpose()?;
        let what = match (given, args.grid) {
            (Some(workload), _) => What::Problem { workload: Box::new(workload), kind: args.kind() },
            (None, grid) => What::Grid(grid.unwrap_or(GridName::Quick)),
        };
        return verify_backward::run(args, what, &args.device.open()?);
    }
    if let Some(grid) = args.grid {
        let engine = args.device.open()?;
        return verify_grid::run(args, grid, &engine);
    }
    if !args.devices.devices.is_empty() {
        let given = args.shape.map(|sizes| args.generate(sizes)).transpose()?;
        let how = (args.seed, args.repeats, args.json);
        return verify_devices::run(&args.devices, args.over, &args.device, given, how);
    }
    let inputs = match args.shape {
        Some(sizes) => args.generate(sizes)?,
        None => args.problem.read(&args.input)?,
    };
    let engine = args.device.open()?;
    let judged = match &engine {
        Engine::Kernels(attention) => args.judge_kernels(attention, &inputs)?,
        Engine::Reference => args.judge_reference(&engine, &inputs)?,
    };
    args.report(&engine, &inputs.problem, &judged);
    let failed = judged.iter().filter(|judged| !judged.passed()).count();
    if failed > 0 { Err(Failure::Wrong { failed, total: judged.len() }) } else { Ok(()) }
}

impl Args {
    /// The problem of a shape, with its sequences and operands.
    fn workload(&self, sizes: Sizes) -> Result<Workload, Failure> {
        let layout = self.problem.layout();
        let dtype = self.problem.dtype().unwrap_or(Dtype::F16);
        let problem = Problem::new(sizes, dtype)
            .map_err(|source| Failure::Argument { option: "--shape", source })?
            .with_causal(self.problem.causal().unwrap_or(false))
            .with_lengths(self.lengths);
        let problem = self.problem.mask_parts.problem(self.problem.scaled(problem)?)?;
        let workload = self.sequences.workload(problem, layout, self.seed)?;
        memory::check(workload.problem())
            .map_err(|source| Failure::Argument { option: "--shape", source })?;
        Ok(workload)
    }

    fn kind(&self) -> InputKind {
        match self.input_kind {
            KindName::Random => InputKind::Random,
            KindName::Outliers => InputKind::Outliers,
            KindName::Nan => InputKind::NotANumber,
        }
    }

    /// Tensors and operands.
    fn generate(&self, sizes: Sizes) -> Result<Inputs, Failure> {
        let workload = self.workload(sizes)?;
        let problem = *workload.problem();
        let mut qkv = random_input::qkv(&problem, self.kind(), self.seed);
        workload.poison_unused(&mut qkv);
        let mut inputs = Inputs::new(problem, problem.layout().unwrap_or_default(), qkv);
        inputs.seqlens_k = workload.seqlens_k().map(<[u32]>::to_vec);
        inputs.operands = workload.operands().to_vec();
        Ok(inputs)
    }

    fn judge_kernels(&self, attention: &Attention, inputs: &Inputs) -> Result<Vec<Judged>, Failure> {
        let problem = &inputs.problem;
        let rows = self.rows.clone().unwrap_or_default();
        let mut plans = Vec::new();
        for options in self.plan.options(&rows) {
            plans.extend(attention.plans(problem, &options)?.into_iter().map(|plan| (plan, options.clone())));
        }
        let mut accumulations: Vec<Accumulation> =
            plans.iter().map(|(plan, _)| plan.kernel().row.acc).collect();
        accumulations.push(Accumulation::F32);
        accumulations.sort_unstable();
        accumulations.dedup();
        let oracle = oracle(inputs, &accumulations);
        let simulator =
            if self.compare_simulator { Some(self.device.simulator_like(attention)?) } else { None };
        let mut judged = stored(inputs, &oracle)?;
        for (plan, options) in &plans {
            let kernel = &Arc::new(plan.kernel().clone());
            let tensors = inputs.tensors();
            let run_on = |on: &Attention| on.run(&KernelRun { kernel, problem, options, tensors });
            let run = || run_on(attention);
            let output = run()?;
            let agreement = match &simulator {
                Some(simulator) => {
                    let (head_dim, acc) = (kernel.row.head_dim, kernel.row.acc);
                    Some(Agreement::new(problem.dtype(), head_dim, acc, &output, &run_on(simulator)?))
                }
                None => None,
            };
            let splits = match plan.splits() {
                1 => String::new(),
                splits => format!(" in {splits} splits"),
            };
            judged.push(Judged {
                name: format!("{}{splits}", kernel.entry),
                verdict: oracle.judge(kernel.row.acc, &output)?,
                differs_at: if self.repeats > 0 { first_difference(self.repeats, run)? } else { None },
                agreement,
            });
        }
        Ok(judged)
    }

    fn judge_reference(&self, engine: &Engine, inputs: &Inputs) -> Result<Vec<Judged>, Failure> {
        if !matches!(self.rows, None | Some(RowSelection::Best)) {
            return Err(Failure::NoRows { option: "rows", device: engine.name() });
        }
        if inputs.stored_o.is_none() {
            output::say(
                "the CPU computes the reference itself: this compares only its rounding to the dtype",
            );
        }
        let oracle = oracle(inputs, &[Accumulation::F32]);
        let mut judged = stored(inputs, &oracle)?;
        let result = engine.forward(&inputs.problem, &PlanOptions::new(), &inputs.tensors(), true)?;
        let verdict = oracle.judge(Accumulation::F32, &result)?;
        judged.push(Judged { name: "cpu".to_owned(), verdict, differs_at: None, agreement: None });
        Ok(judged)
    }

    fn report(&self, engine: &Engine, problem: &Problem, judged: &[Judged]) {
        if self.json {
            let results = judged.iter().map(|judged| {
                json!({
                    "name": judged.name,
                    "passed": judged.passed(),
                    "verdict": judged.verdict,
                    "repeats": self.repeats,
                    "differs_at": judged.differs_at,
                    "agreement": judged.agreement,
                })
            });
            output::print_json(&json!({
                "device": engine.name(),
                "problem": to_json(problem),
                "passed": judged.iter().all(Judged::passed),
                "results": results.collect::<Vec<_>>(),
            }));
            return;
        }
        output::print(&describe(problem));
        for judged in judged {
            let repeats = match judged.differs_at {
                Some(at) => format!("; run {at} differs from the first"),
                None if self.repeats > 0 => format!("; {} runs bitwise equal", self.repeats),
                None => String::new(),
            };
            let passed = output::passed(judged.passed());
            let agreement = judged.agreement.map_or(String::new(), |agreement| format!("; {agreement}"));
            output::print(&format!("{passed} {}: {}{repeats}{agreement}", judged.name, judged.verdict));
        }
    }
}

fn oracle(inputs: &Inputs, accumulations: &[Accumulation]) -> Oracle {
    let progress = Progress::new("float64 reference");
    let tell = |done, total| progress.set(done, total);
    Oracle::of_tensors(&inputs.problem, &inputs.tensors(), accumulations, &tell)
}

/// What the file itself says of O and LSE, judged as if a kernel had computed it.
fn stored(inputs: &Inputs, oracle: &Oracle) -> Result<Vec<Judged>, Error> {
    let Some(o) = &inputs.stored_o else { return Ok(Vec::new()) };
    let verdict = oracle.judge_stored(o, inputs.stored_lse.as_deref())?;
    Ok(vec![Judged { name: "stored o".to_owned(), verdict, differs_at: None, agreement: None }])
}
