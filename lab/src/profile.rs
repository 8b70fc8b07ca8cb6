//! What keeps a kernel from being faster: one verdict, and the two figures that prove it.

mod ncu;
mod targets;
mod timeline;
mod units;

pub use ncu::{METRICS, parse_ncu, verdict_of_ncu};
pub use targets::{Target, targets};
pub use timeline::parse_timeline;
pub(crate) use units::Work;
pub use units::{Unit, UnitKind, clocks, tensor_flops_per_clock, units};

use crate::evaluation::Evaluation;
use crate::kernels::{Counted, Machine};
use crate::problem_spec::ProblemSpec;
use crate::statistics::median;
use kernels_gpu::geometry;
use ptx_sim::{Multiprocessor, Occupancy, OccupancyLimit};
use serde::{Deserialize, Serialize};

/// What a kernel is bound by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Tensor cores, special functions or the issue of instructions.
    Compute,
    /// Shared memory, L2 or DRAM.
    Memory,
    /// Nothing is busy: instructions wait for each other.
    Latency,
    /// There are fewer CTAs than multiprocessors.
    Parallelism,
    /// A multiprocessor holds too few warps to hide what they wait for.
    Occupancy,
}

impl Bound {
    /// `compute-bound`.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Compute => "compute-bound",
            Bound::Memory => "memory-bound",
            Bound::Latency => "latency-bound",
            Bound::Parallelism => "parallelism-bound",
            Bound::Occupancy => "occupancy-bound",
        }
    }
}

/// A figure with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it is of.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &str) -> Figure {
        Figure { name: name.into(), value, unit: unit.to_owned() }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}{}", self.name, crate::table::short(self.value), self.unit)
    }
}

/// A verdict and its proof.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What the kernel is bound by.
    pub bound: Bound,
    /// The two figures that prove it.
    pub proof: [Figure; 2],
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}, {}", self.bound.name(), self.proof[0], self.proof[1])
    }
}

/// The profile of a kernel on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The kernel.
    pub name: String,
    /// The problem.
    pub problem: ProblemSpec,
    /// Where the figures are from: `simulator`, `simulator and measured time`, `ncu`, or the two before and PyTorch's profiler.
    pub source: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Clocks that each unit of a multiprocessor needs at least, the most first; empty where ncu measured instead.
    pub units: Vec<Unit>,
    /// Warps that a multiprocessor holds at a time, of how many, and what limits them.
    pub occupancy: Option<(u32, u32, String)>,
    /// Median device time in microseconds, where it was measured.
    pub time_us: Option<f64>,
    /// Speed at that time, and what the tensor cores could do at the highest clock, in TFLOP/s.
    pub tflops: Option<(f64, Option<f64>)>,
    /// What ncu measured, by metric, or what PyTorch's profiler saw.
    pub metrics: Vec<Figure>,
    /// What a good kernel reaches.
    #[serde(default)]
    pub targets: Vec<Target>,
}

/// Warps of a multiprocessor below which waiting is not hidden: two a scheduler.
const WARPS_LEAST: u32 = 8;
/// Below this share of the measured time that the busiest unit needs, nothing is busy.
const BUSY_LEAST: f64 = 0.4;

/// Profiles a kernel from what the simulator counted, what ptxas says, and the measured time where there is one.
pub fn of_counters(evaluation: &Evaluation, counted: &Counted, machine: &Machine) -> Profile {
    let units = units(counted, machine);
    let occupancy = occupancy(evaluation, machine);
    let timed = evaluation.timed.iter().find(|timed| timed.problem == counted.problem);
    let time_us = timed.and_then(|timed| median(&timed.warm_us));
    let clock_mhz = timed.and_then(|timed| timed.sm_clock_mhz).map(f64::from);
    let clocks = time_us.zip(clock_mhz).map(|(time_us, clock_mhz)| time_us * clock_mhz);
    let tflops = time_us.map(|us| (counted.problem.flops() / us / 1e6, crate::stages::roofline(machine)));
    let source = if time_us.is_some() { "simulator and measured time" } else { "simulator" };
    Profile {
        name: evaluation.name.clone(),
        problem: counted.problem,
        source: source.to_owned(),
        verdict: verdict(counted, &units, occupancy, clocks, machine),
        units,
        occupancy: occupancy.map(|o| (o.warps, o.warps_max, limit_name(o.limit).to_owned())),
        time_us,
        tflops,
        metrics: Vec::new(),
        targets: targets(counted, machine, &[]),
    }
}

fn verdict(
    counted: &Counted,
    units: &[Unit],
    occupancy: Option<Occupancy>,
    measured_clocks: Option<f64>,
    machine: &Machine,
) -> Verdict {
    let sm_count = f64::from(machine.sm_count);
    if (counted.ctas as f64) < sm_count {
        let proof =
            [Figure::new("CTAs", counted.ctas as f64, ""), Figure::new("multiprocessors", sm_count, "")];
        return Verdict { bound: Bound::Parallelism, proof };
    }
    if let Some(occupancy) = occupancy.filter(|occupancy| occupancy.warps < WARPS_LEAST) {
        let limited = format!("warps a multiprocessor (limited by {})", limit_name(occupancy.limit));
        let proof = [
            Figure::new(limited, f64::from(occupancy.warps), ""),
            Figure::new("warps it could hold", f64::from(occupancy.warps_max), ""),
        ];
        return Verdict { bound: Bound::Occupancy, proof };
    }
    let most = |kind: UnitKind| units.iter().find(|unit| unit.kind == kind);
    let figure = |unit: Option<&Unit>| match unit {
        Some(unit) => Figure::new(&unit.name, unit.clocks, " clocks a multiprocessor at least"),
        None => Figure::new("nothing else", 0.0, " clocks"),
    };
    let busiest = units.first();
    if let (Some(measured), Some(busiest)) = (measured_clocks, busiest)
        && busiest.clocks < BUSY_LEAST * measured
    {
        let proof = [Figure::new("measured", measured, " clocks"), figure(Some(busiest))];
        return Verdict { bound: Bound::Latency, proof };
    }
    let (compute, memory) = (most(UnitKind::Compute), most(UnitKind::Memory));
    let clocks = |unit: Option<&Unit>| unit.map_or(0.0, |unit| unit.clocks);
    if clocks(memory) > clocks(compute) {
        Verdict { bound: Bound::Memory, proof: [figure(memory), figure(compute)] }
    } else {
        Verdict { bound: Bound::Compute, proof: [figure(compute), figure(memory)] }
    }
}

/// Warps that a multiprocessor holds; registers are estimated where no ptxas told them.
fn occupancy(evaluation: &Evaluation, machine: &Machine) -> Option<Occupancy> {
    let multiprocessor = match machine.sm {
        80 => Multiprocessor::SM_80,
        86 => Multiprocessor::SM_86,
        90.. => Multiprocessor::SM_90,
        _ => Multiprocessor::SM_89,
    };
    let row = &evaluation.row;
    let estimated = geometry::registers_estimate(row).min(geometry::registers_limit(row));
    let registers = evaluation.resources.map_or(estimated, |resources| resources.registers);
    multiprocessor.occupancy(geometry::threads(row), registers, evaluation.smem_bytes)
}

const fn limit_name(limit: OccupancyLimit) -> &'static str {
    match limit {
        OccupancyLimit::Registers => "registers",
        OccupancyLimit::SharedMemory => "shared memory",
        OccupancyLimit::Threads => "threads",
        OccupancyLimit::Ctas => "CTAs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;
    use crate::problem_spec::Mask;

    fn counted(ctas: u64, numbers: &[(&str, u64)]) -> Counted {
        let problem = ProblemSpec {
            shape: "4,16,16,512,512,64".parse().expect("a shape"),
            dtype: ferroflash::Dtype::F16,
            mask: Mask::Full,
        };
        let mut all: Counters = ["shared_load", "shared_store", "async_shared"]
            .map(|part| (format!("{part}.wavefronts"), 0))
            .into_iter()
            .collect();
        numbers.iter().for_each(|(name, count)| all.set(name, *count));
        Counted { problem, ctas, clocks: 0.0, numbers: all }
    }

    fn bound(counted: &Counted, occupancy_warps: u32, measured: Option<f64>) -> Verdict {
        let machine = Machine::simulator();
        let occupancy =
            Occupancy { ctas: 2, warps: occupancy_warps, warps_max: 48, limit: OccupancyLimit::SharedMemory };
        verdict(counted, &units(counted, &machine), Some(occupancy), measured, &machine)
    }

    #[test]
    fn each_bound_is_proved_by_two_figures() {
        let tensor = counted(580, &[("tensor_flops", 58 * 1024 * 1000), ("shared_load.wavefronts", 58 * 10)]);
        assert_eq!(
            bound(&tensor, 12, None).to_string(),
            "compute-bound: tensor cores 1000 clocks a multiprocessor at least, shared memory 10.00 clocks a multiprocessor at least"
        );
        let shared = counted(580, &[("tensor_flops", 58 * 1024), ("shared_load.wavefronts", 58 << 30)]);
        assert_eq!(bound(&shared, 12, None).bound, Bound::Memory);
        let few = bound(&counted(8, &[]), 12, None);
        assert_eq!(few.to_string(), "parallelism-bound: CTAs 8.00, multiprocessors 58.00");
        let low = bound(&tensor, 4, None);
        assert!(
            low.to_string()
                .starts_with("occupancy-bound: warps a multiprocessor (limited by shared memory) 4")
        );
        assert_eq!(bound(&tensor, 12, Some(1e9)).bound, Bound::Latency);
        assert_eq!(
            bound(&tensor, 12, Some(1200.0)).bound,
            Bound::Compute,
            "nearly all of the time is needed"
        );
    }
}
