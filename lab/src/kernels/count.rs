//! What a kernel does on the simulator, counted: with every check on, and its output judged.

use super::{Machine, model};
use crate::counters::Counters;
use crate::error::Result;
use crate::exam::{self, Fault, Refusal};
use crate::problem_spec::ProblemSpec;
use crate::profile::{clocks, units};
use check::random_input::{InputKind, qkv};
use check::verification::{GuardedTensors, Oracle};
use ferroflash::device::sim::SimDevice;
use ferroflash::module::Library;
use ferroflash::{Attention, Output, PlanOptions, Problem, SimOptions, Splits};
use kernels_gpu::manifest::Kernel;
use ptx_sim::Schedule;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a launch on the simulator counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// The problem.
    pub problem: ProblemSpec,
    /// CTAs of the launch.
    pub ctas: u64,
    /// Clocks that the units of a multiprocessor need, as [`crate::profile::clocks`] weighs them.
    #[serde(default)]
    pub clocks: f64,
    /// Every counter by name.
    pub numbers: Counters,
}

impl Counted {
    /// A counter, 0 where there is none of this name.
    pub fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).unwrap_or(0)
    }

    /// The counts that a launch of the same kernel always gives: how often branches diverge depends on the schedule.
    pub fn counters(&self) -> Counters {
        self.numbers.without("divergent_branches")
    }

    /// Passes over the banks of shared memory.
    pub fn wavefronts(&self) -> u64 {
        self.numbers.shared_wavefronts().unwrap_or(0)
    }

    /// Passes beyond those that conflict-free accesses would take.
    pub fn conflicts(&self) -> u64 {
        self.numbers.shared_conflicts().unwrap_or(0)
    }

    /// Bytes of global memory in whole sectors.
    pub fn global_bytes(&self) -> u64 {
        32 * self.numbers.global_sectors().unwrap_or(0)
    }
}

/// The inputs of every count: softmax takes a branch wherever a maximum grows, so other values are other counts.
const COUNTED_SEED: u64 = 0;

/// Runs a kernel on the simulator with every check on, counts, and judges the whole output; in a shaken schedule, and on other
/// inputs, where a seed says so.
///
/// # Errors
/// [`ferroflash::Error::Simulation`] where the kernel breaks a rule; whatever else keeps it from running.
pub fn count(
    library: &Arc<Library>,
    kernel: &Arc<Kernel>,
    spec: &ProblemSpec,
    seed: Option<u64>,
) -> Result<std::result::Result<Counted, Refusal>> {
    let (counted, judged) = run(library, kernel, spec, seed)?;
    let (problem, qkv, output) = judged;
    let oracle = Oracle::new(&problem, qkv, None, &[kernel.row.acc], &|_, _| ());
    if let Err(refusal) = exam::judge(&oracle, kernel.row.acc, &output)? {
        let evidence = format!("{spec}, as it was counted: {}", refusal.evidence);
        return Ok(Err(Refusal { evidence, ..refusal }));
    }
    Ok(Ok(counted))
}

/// Runs a kernel on the simulator as [`count`] does, and counts: for kernels that compute something else.
///
/// # Errors
/// Those of [`count`].
pub fn count_unjudged(library: &Arc<Library>, kernel: &Arc<Kernel>, spec: &ProblemSpec) -> Result<Counted> {
    Ok(run(library, kernel, spec, None)?.0)
}

/// What was run, on what, and what came out.
type Judged = (Problem, [Vec<u16>; 3], Output);

fn run(
    library: &Arc<Library>,
    kernel: &Arc<Kernel>,
    spec: &ProblemSpec,
    seed: Option<u64>,
) -> Result<(Counted, Judged)> {
    let schedule = seed.map_or(Schedule::Deterministic, Schedule::Seeded);
    let device = Arc::new(SimDevice::new(
        SimOptions::default().with_model(model(kernel.row.isa)).with_schedule(schedule),
    ));
    let attention = Attention::new(device.clone(), library.clone())?;
    let problem = spec.problem()?;
    // One split is one launch, whose report is the whole of it.
    let splits = if kernel.row.schedule == kernels_gpu::row::Schedule::Split {
        Splits::Count(1)
    } else {
        Splits::Auto
    };
    let options = PlanOptions { splits, ..PlanOptions::new() };
    let plan = attention.planner().with_kernel(&problem, kernel, &options)?;
    let qkv = qkv(&problem, InputKind::Random, seed.unwrap_or(COUNTED_SEED));
    let tensors = GuardedTensors::new(&attention, &plan)?;
    tensors.write_inputs(qkv.each_ref().map(Vec::as_slice))?;
    tensors.poison_outputs()?;
    tensors.launch(&attention)?;
    let output = tensors.output()?;
    // A launch that succeeded has a report.
    let report = device.report(&kernel.entry);
    let numbers = report.map(|report| report.numbers().into_iter().collect()).unwrap_or_default();
    let mut counted = Counted { problem: *spec, ctas: u64::from(plan.grid()), clocks: 0.0, numbers };
    counted.clocks = clocks(&units(&counted, &Machine::simulating(kernel.row.isa)));
    Ok((counted, (problem, qkv, output)))
}

/// Share of a counter by which two launches of one kernel may differ that have the same sizes and other inputs: where maxima grow,
/// which is the inputs' alone, softmax has a little more to do.
const OF_INPUTS: f64 = 0.1;

/// Whether less was done on the inputs that are counted than on others, and what.
pub fn special_cased(counted: &Counted, others: &Counted) -> Option<Refusal> {
    let work = [
        "warp_instructions",
        "tensor_flops",
        "global_load.sectors",
        "async_global.sectors",
        "bulk_load_bytes",
    ];
    let less = work
        .into_iter()
        .find(|name| (counted.number(name) as f64) < (1.0 - OF_INPUTS) * others.number(name) as f64)?;
    let evidence = format!(
        "{}: {} {less} where it is counted, {} on other inputs",
        counted.problem,
        counted.number(less),
        others.number(less)
    );
    Some(Refusal { fault: Fault::SpecialCased, evidence })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(numbers: &[(&str, u64)]) -> Counted {
        let shape = "1,1,1,64,64,64".parse().expect("a shape");
        let problem =
            ProblemSpec { shape, dtype: ferroflash::Dtype::F16, mask: crate::problem_spec::Mask::Full };
        let numbers = numbers.iter().copied().collect();
        Counted { problem, ctas: 1, clocks: 0.0, numbers }
    }

    #[test]
    fn a_kernel_that_does_less_where_it_is_counted_is_named_and_one_whose_maxima_grow_is_not() {
        let usual =
            counted(&[("warp_instructions", 1000), ("tensor_flops", 500), ("async_global.sectors", 64)]);
        for name in ["warp_instructions", "tensor_flops", "async_global.sectors"] {
            let mut less = usual.clone();
            less.numbers.set(name, usual.number(name) * 3 / 4);
            let refusal = special_cased(&less, &usual).expect("less");
            assert!(refusal.fault == Fault::SpecialCased && refusal.evidence.contains(name), "{refusal:?}");
            assert_eq!(special_cased(&usual, &less), None, "more is no gain");
        }
        let mut rescaled = usual.clone();
        rescaled.numbers.set("warp_instructions", 1040);
        assert_eq!(special_cased(&usual, &rescaled), None);
    }
}
