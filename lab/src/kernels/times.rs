//! Device times of kernels of one folder, side by side.

use super::{HostResult, find_in};
use crate::error::Result;
use crate::problem_spec::ProblemSpec;
use check::measure::{Bench, Fresh, MeasureOptions, Measured};
use ferroflash::{CudaOptions, Plan, PlanOptions};
use std::path::Path;
use std::time::Duration;

/// Device times of kernels of one folder on one problem, side by side.
#[derive(Clone, Debug)]
pub struct Times {
    /// With the same tensors in every launch, in the order of the entries.
    pub warm: Vec<Measured>,
    /// With tensors that the L2 cache has lost.
    pub cold: Vec<Measured>,
    /// With inputs that no launch has seen.
    pub fresh: Vec<Fresh>,
    /// By the host's clock, in microseconds, where it was asked for.
    pub wall_us: Vec<Option<f64>>,
}

/// Opens a GPU with a folder of kernels.
///
/// # Errors
/// [`crate::error::Error::Host`].
pub fn open_bench(folder: &Path, ordinal: u32) -> Result<Bench> {
    Ok(Bench::open(&CudaOptions::default().with_ptx(Some(folder.to_owned())).with_ordinal(ordinal))?)
}

/// Time spent on untimed replays before: the clocks are up from the measurement before.
const WARM_UP: Duration = Duration::from_millis(60);

/// How a kernel is measured that may know the usual inputs.
fn untrusted(seed: u64) -> MeasureOptions {
    MeasureOptions { lse: true, warm_up: WARM_UP, secret: Some(seed), ..MeasureOptions::default() }
}

/// Times entries of a bench's folder on one problem: warm, cold, and on fresh inputs.
///
/// # Errors
/// [`crate::error::Error::NoSuchRow`], [`crate::error::Error::Host`].
pub fn time(bench: &Bench, entries: &[String], spec: &ProblemSpec, seed: u64, reps: u32) -> Result<Times> {
    let plans = plans(bench, entries, spec)?;
    let warm = MeasureOptions { reps, ..untrusted(seed) };
    let cold = MeasureOptions { cold: true, ..warm };
    let wall_us = wall_us(bench, entries, spec)?.into_iter().map(Some).collect();
    Ok(Times {
        wall_us,
        warm: bench.measure(&plans, &warm, &mut |_, _| ())?,
        cold: bench.measure(&plans, &cold, &mut |_, _| ())?,
        fresh: bench.measure_fresh(&plans, &warm, seed, &mut |_, _| ())?,
    })
}

/// Times of entries of a bench's folder on one problem by the host's clock, in microseconds.
///
/// # Errors
/// [`crate::error::Error::NoSuchRow`], [`crate::error::Error::Host`].
pub fn wall_us(bench: &Bench, entries: &[String], spec: &ProblemSpec) -> Result<Vec<f64>> {
    let plans = plans(bench, entries, spec)?;
    Ok(plans.iter().map(|plan| bench.wall_us(plan)).collect::<HostResult<_>>()?)
}

/// Replays on the usual tensors that check the output and let the clocks be read, before those that count.
const CHECKING_REPS: u32 = 3;

/// Times entries of a bench's folder on one problem on fresh inputs; the first list has their clocks.
///
/// # Errors
/// [`crate::error::Error::NoSuchRow`], [`crate::error::Error::Host`].
pub fn time_fresh(
    bench: &Bench,
    entries: &[String],
    spec: &ProblemSpec,
    seed: u64,
    reps: u32,
) -> Result<(Vec<Measured>, Vec<Fresh>)> {
    let plans = plans(bench, entries, spec)?;
    let few = MeasureOptions { reps: CHECKING_REPS, ..untrusted(seed) };
    let warm = bench.measure(&plans, &few, &mut |_, _| ())?;
    let fresh = bench.measure_fresh(&plans, &MeasureOptions { reps, ..few }, seed, &mut |_, _| ())?;
    Ok((warm, fresh))
}

/// Times entries of a bench's folder on one problem, warm only: enough to rank them.
///
/// # Errors
/// [`crate::error::Error::NoSuchRow`], [`crate::error::Error::Host`].
pub fn time_briefly(
    bench: &Bench,
    entries: &[String],
    spec: &ProblemSpec,
    seed: u64,
    reps: u32,
) -> Result<Vec<Measured>> {
    let options = MeasureOptions { reps, ..untrusted(seed) };
    Ok(bench.measure(&plans(bench, entries, spec)?, &options, &mut |_, _| ())?)
}

fn plans(bench: &Bench, entries: &[String], spec: &ProblemSpec) -> Result<Vec<Plan>> {
    let problem = spec.problem()?;
    let library = bench.attention().library();
    let mut plans = Vec::new();
    for entry in entries {
        let kernel = find_in(library, entry)?;
        plans.push(bench.attention().planner().with_kernel(&problem, &kernel, &PlanOptions::new())?);
    }
    Ok(plans)
}
