//! `ferroflash verify --devices`: sequences split among ranks, against the float64 reference and against one device.

use crate::bench_report::title;
use crate::device::DeviceArgs;
use crate::devices_args::{DevicesArgs, OverArgs};
use crate::failure::Failure;
use crate::output;
use check::measure::at_once::GpuRanks;
use check::random_input::{InputKind, qkv};
use check::verification::Oracle;
use ferroflash::tensor_file::Inputs;
use ferroflash::{
    Attention, Dtype, HostTensors, Layout, Mask, Output, PlanOptions, Problem, RowSelection, Schedule, Sizes,
};
use ferroflash_distributed::{ContextOptions, Error, Method, over_ranks, over_transports};
use kernels_gpu::row::{Accumulation, Isa};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// No rank waits longer for another.
const LIMIT: Duration = Duration::from_secs(600);

/// Shapes where none is given: odd lengths, GQA, one head, several batch entries.
const SHAPES: [[u32; 6]; 4] =
    [[1, 8, 2, 203, 203, 64], [2, 4, 4, 131, 131, 64], [1, 8, 8, 17, 17, 128], [1, 8, 1, 331, 331, 64]];

/// What computes, and how ranks reach each other.
enum Ranks<'a> {
    /// Through the host.
    OfHost(&'a [Arc<Attention>]),
    /// A GPU each.
    Gpus(GpuRanks),
}

impl Ranks<'_> {
    fn output(
        &self,
        problem: &Problem,
        options: &ContextOptions,
        tensors: &HostTensors<'_>,
    ) -> Result<Output, Error> {
        let (output, _) = match self {
            Ranks::OfHost(attentions) => over_ranks(attentions, problem, options, tensors, LIMIT),
            Ranks::Gpus(ranks) => over_transports(ranks.transports()?, problem, options, tensors),
        }?;
        Ok(output)
    }

    /// What one device is.
    fn one(&self) -> &Attention {
        match self {
            Ranks::OfHost(attentions) => &attentions[0],
            Ranks::Gpus(ranks) => ranks.first(),
        }
    }
}

/// Computes every problem over every number of ranks by every method, prints a line each, and fails where one is wrong.
pub(crate) fn run(
    args: &DevicesArgs,
    over: OverArgs,
    device: &DeviceArgs,
    given: Option<Inputs>,
    (seed, repeats, json): (u64, usize, bool),
) -> Result<(), Failure> {
    let inputs = match given {
        Some(inputs) => vec![inputs],
        None => problems()?.into_iter().zip(seed..).map(generated).collect(),
    };
    let oracle = |inputs: &Inputs| {
        Oracle::of_tensors(&inputs.problem, &inputs.tensors(), &[Accumulation::F32], &|_, _| ())
    };
    let oracles: Vec<Oracle> = inputs.iter().map(oracle).collect();
    let nccl = over.nccl();
    let most = args.devices.iter().copied().max().unwrap_or(1);
    let attentions = if nccl.is_none() { device.open_ranks(most)? } else { Vec::new() };
    let mut values = Vec::new();
    let (mut failed, mut total) = (0, 0);
    for &devices in &args.devices {
        let ranks = match &nccl {
            Some(nccl) => Ranks::Gpus(GpuRanks::open(&device.cuda_options(), devices, nccl)?),
            None => Ranks::OfHost(&attentions[..devices as usize]),
        };
        for (inputs, oracle) in inputs.iter().zip(&oracles) {
            for method in args.methods() {
                let title = format!("{}: {devices} devices, {}", title(&inputs.problem), method.name());
                match judge(inputs, oracle, &ranks, &args.context(method), repeats) {
                    Ok((passed, said)) => {
                        total += 1;
                        failed += usize::from(!passed);
                        if !json {
                            output::print(&format!("{} {title}: {said}", output::passed(passed)));
                        }
                        values.push(json!({ "problem": title, "passed": passed, "verdict": said }));
                    }
                    Err(Failure::Devices(error @ Error::Refused { .. })) if args.named().is_none() => {
                        if !json {
                            output::print(&format!("   {title}: {error}"));
                        }
                        values.push(json!({ "problem": title, "refused": error.to_string() }));
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
    }
    if json {
        output::print_json(&Value::from(values));
    }
    if failed > 0 { Err(Failure::Wrong { failed, total }) } else { Ok(()) }
}

fn problems() -> Result<Vec<Problem>, Failure> {
    let mut problems = Vec::new();
    for (at, [batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim]) in SHAPES.into_iter().enumerate() {
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        let dtype = if at % 2 == 0 { Dtype::F16 } else { Dtype::Bf16 };
        let problem = Problem::new(sizes, dtype)?;
        problems.push(problem);
        problems.push(problem.with_causal(true));
        problems.push(problem.with_causal(true).with_layout(Layout::Bshd));
        problems.push(problem.with_mask(Mask::window(Some(60), Some(0)))?);
    }
    Ok(problems)
}

fn generated((problem, seed): (Problem, u64)) -> Inputs {
    let layout = problem.layout().unwrap_or_default();
    Inputs::new(problem, layout, qkv(&problem, InputKind::Outliers, seed))
}

/// Whether a method's O and LSE are right, the same in every repeat, and but for the ring's those of one device bit by bit, and in words what
/// was found.
fn judge(
    inputs: &Inputs,
    oracle: &Oracle,
    ranks: &Ranks<'_>,
    options: &ContextOptions,
    repeats: usize,
) -> Result<(bool, String), Failure> {
    let (problem, tensors) = (&inputs.problem, &inputs.tensors());
    let output = ranks.output(problem, options, tensors)?;
    let verdict = oracle.judge(Accumulation::F32, &output)?;
    let (mut passed, mut said) = (verdict.passed, verdict.to_string());
    if repeats > 0 {
        let mut unequal = 0;
        for _ in 0..repeats {
            unequal += usize::from(ranks.output(problem, options, tensors)? != output);
        }
        passed &= unequal == 0;
        said += &match unequal {
            0 => format!("; {repeats} runs bitwise equal"),
            _ => format!("; {unequal} of {repeats} runs have other bits"),
        };
    }
    if options.method == Method::Ring {
        return Ok((passed, said));
    }
    // A kernel that splits no keys, and chunks of whole blocks of its: then all plans are equal.
    let unsplit = |schedule| PlanOptions { schedule: Some(schedule), ..PlanOptions::new() };
    let one = ranks.one();
    let schedules = [Schedule::Grid, Schedule::Persistent];
    let Some(plan) =
        schedules.into_iter().find_map(|schedule| one.planner().plan(problem, &unsplit(schedule)).ok())
    else {
        return Ok((passed, said));
    };
    let whole = one.forward_with(&plan, tensors, true)?;
    let row = plan.kernel().row;
    let equal = ContextOptions {
        rows: RowSelection::Named(plan.kernel().entry.clone()),
        granule: Some(row.block_m),
        ..options.clone()
    };
    let is_equal = ranks.output(problem, &equal, tensors)? == whole;
    let isa = if row.isa == Isa::Wgmma { "wgmma" } else { "mma.sync" };
    said += &match is_equal {
        true => format!("; at equal plans ({isa}) every bit is one device's"),
        false => format!("; at equal plans ({isa}) it differs from one device"),
    };
    Ok((passed && is_equal, said))
}
