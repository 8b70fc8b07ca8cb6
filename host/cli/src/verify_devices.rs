//! `ferroflash verify --devices`: sequences split among ranks, against the float64 reference and against one device.

use crate::bench_report::title;
use crate::device::DeviceArgs;
use crate::devices_args::DevicesArgs;
use crate::failure::Failure;
use crate::output;
use check::random_input::{InputKind, qkv};
use check::verification::Oracle;
use ferroflash::tensor_file::Inputs;
use ferroflash::{
    Attention, Dtype, HostTensors, Layout, Mask, PlanOptions, Problem, RowSelection, Schedule, Sizes,
};
use ferroflash_distributed::{ContextOptions, Error, Method, over_ranks};
use kernels_gpu::row::{Accumulation, Isa};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// No rank waits longer for another.
const LIMIT: Duration = Duration::from_secs(600);

/// Shapes where none is given: odd lengths, GQA, one head, several batch entries.
const SHAPES: [[u32; 6]; 4] =
    [[1, 8, 2, 203, 203, 64], [2, 4, 4, 131, 131, 64], [1, 8, 8, 17, 17, 128], [1, 8, 1, 331, 331, 64]];

/// Computes every problem over every number of ranks by every method, prints a line each, and fails where one is wrong.
pub(crate) fn run(
    args: &DevicesArgs,
    device: &DeviceArgs,
    given: Option<Inputs>,
    (seed, json): (u64, bool),
) -> Result<(), Failure> {
    let most = args.devices.iter().copied().max().unwrap_or(1);
    let attentions = device.open_ranks(most)?;
    let inputs = match given {
        Some(inputs) => vec![inputs],
        None => problems()?.into_iter().zip(seed..).map(generated).collect(),
    };
    let mut values = Vec::new();
    let (mut failed, mut total) = (0, 0);
    for inputs in &inputs {
        let tensors = inputs.tensors();
        let oracle = Oracle::of_tensors(&inputs.problem, &tensors, &[Accumulation::F32], &|_, _| ());
        for &devices in &args.devices {
            for method in args.methods() {
                let ranks = &attentions[..devices as usize];
                let title = format!("{}: {devices} devices, {}", title(&inputs.problem), method.name());
                match judge(&inputs.problem, &tensors, &oracle, ranks, &args.context(method)) {
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

/// Whether a method's O and LSE are right, and all-gather's those of one device bit by bit, and in words what was found.
fn judge(
    problem: &Problem,
    tensors: &HostTensors<'_>,
    oracle: &Oracle,
    ranks: &[Arc<Attention>],
    options: &ContextOptions,
) -> Result<(bool, String), Failure> {
    let (output, _) = over_ranks(ranks, problem, options, tensors, LIMIT)?;
    let verdict = oracle.judge(Accumulation::F32, &output)?;
    let mut said = verdict.to_string();
    if options.method == Method::Ring {
        return Ok((verdict.passed, said));
    }
    // A kernel that splits no keys, and chunks of whole blocks of its: then all plans are equal.
    let unsplit = |schedule| PlanOptions { schedule: Some(schedule), ..PlanOptions::new() };
    let one = &ranks[0];
    let schedules = [Schedule::Grid, Schedule::Persistent];
    let Some(plan) =
        schedules.into_iter().find_map(|schedule| one.planner().plan(problem, &unsplit(schedule)).ok())
    else {
        return Ok((verdict.passed, said));
    };
    let whole = one.forward_with(&plan, tensors, true)?;
    let row = plan.kernel().row;
    let equal = ContextOptions {
        rows: RowSelection::Named(plan.kernel().entry.clone()),
        granule: Some(row.block_m),
        ..options.clone()
    };
    let (output, _) = over_ranks(ranks, problem, &equal, tensors, LIMIT)?;
    let is_equal = output == whole;
    let isa = if row.isa == Isa::Wgmma { "wgmma" } else { "mma.sync" };
    said += &match is_equal {
        true => format!("; at equal plans ({isa}) every bit is one device's"),
        false => format!("; at equal plans ({isa}) it differs from one device"),
    };
    Ok((verdict.passed && is_equal, said))
}
