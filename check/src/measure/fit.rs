//! Fits a device profile to measured times: least squares of the logarithms, kernel by kernel, by Levenberg and Marquardt's method.

use super::contest::Round;
use super::leftover;
use super::sweep::{PlanTime, Record};
use crate::workload::Workload;
use ferroflash::device::DeviceInfo;
use ferroflash::error::Error;
use ferroflash::plan::cost::Coefficients;
use ferroflash::plan::curves::MergeCurves;
use ferroflash::plan::profile::{KernelCosts, Profile, estimated};
use ferroflash::plan::work::{Fill, Merge, Work};
use ferroflash::{Combine, Plan, PlanOptions, Planner, Problem, RowSelection, Splits};
use kernels_gpu::row::Schedule;
use kernels_gpu::table::VARIANTS;
use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Times up to this multiple of the best of their problem count in full; others the less the longer they are, as nobody would choose them.
const NEAR: f64 = 1.25;
/// The weight of a time that is far off.
const WEIGHT_LEAST: f64 = 0.05;
/// The weight of a time that was taken of a launch or a few.
const WEIGHT_TRIAL: f64 = 0.5;
/// How much the many splits of one problem count less than as many problems.
const CROWDING: f64 = 0.35;
/// Errors from which on they count in proportion, not squared.
const ROBUST: f64 = 0.12;
/// How strongly a coefficient is held to what the fit starts from, per hundred times.
const RIDGE: f64 = 0.025;
/// Fewer times than this hold coefficients no less: they are not many more than these.
const HELD_TIMES: usize = 1600;
const STEPS_MOST: usize = 80;
/// The least times that a kernel's coefficients are fitted to.
const TIMES_LEAST: usize = 12;
/// Coefficients that are the device's, not the kernel's.
const SHARED: [&str; 9] = [
    "memory",
    "l2_free",
    "l2_span",
    "l2_near",
    "merge_launch",
    "merge_bytes",
    "merge_cta",
    "merge_width",
    "merge_wave",
];

/// A measured time, and what took it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// What its kernel is estimated to cost before anything was measured.
    pub(crate) prior: Coefficients,
    pub(crate) work: Work,
    pub(crate) us: f64,
    /// As a multiple of the best of its problem.
    pub(crate) over: f64,
    pub(crate) weight: f64,
    pub(crate) problem: usize,
    /// Whether it was replayed, not only tried once or a few times.
    pub(crate) is_exact: bool,
}

/// A profile for a device, fitted to records.
///
/// # Errors
/// Those of planning what the records name.
pub fn fit(planner: &Planner, records: &[Record]) -> Result<Profile, Error> {
    let device = planner.device();
    let mut samples = samples(planner, records, Record::is_launched_as)?;
    samples.values_mut().for_each(|samples| level(samples));
    let row_of = |(name, _): &(String, bool)| {
        VARIANTS.iter().find(|variant| Profile::key(variant.entry) == *name).map(|variant| &variant.row)
    };
    let is_ragged = |key: &(String, bool)| row_of(key).is_some_and(|row| row.schedule == Schedule::Ragged);
    let (mut ragged, mut dense): (Samples, Samples) =
        samples.into_iter().partition(|(key, _)| is_ragged(key));
    let known = known(device);
    begin_with(&mut dense, |(name, is_split)| known.get(name)?.of(*is_split));
    let shared = shared(&dense);
    let mut profile = Profile {
        device: device.name.clone(),
        sm_count: device.sm_count,
        fitted_to: String::new(),
        kernels: known.clone(),
    };
    fit_into(&mut profile.kernels, dense, &shared);
    // What was measured of one of a kernel's two parts and what a relative costs of the other would not compare.
    let enough = |name: &str, is_split| {
        ragged.get(&(name.to_owned(), is_split)).is_some_and(|samples| samples.len() >= TIMES_LEAST)
    };
    let mut names: BTreeSet<String> = ragged.keys().map(|(name, _)| name.clone()).collect();
    names.retain(|name| known.contains_key(name) || (enough(name, false) && enough(name, true)));
    ragged.retain(|(name, _), _| names.contains(name));
    // Kernels for ragged batches have fewer times: unknown ones begin with what the dense ones cost that take tiles as they do.
    begin_with(&mut ragged, |key| match known.get(&key.0) {
        Some(costs) => costs.of(key.1),
        None => {
            let relatives = profile.costs_of_relatives(row_of(key)?);
            relatives.of(key.1).or(relatives.whole)
        }
    });
    fit_into(&mut profile.kernels, ragged, &shared);
    let records = records.iter().filter(|record| is_planned_so(record));
    let seeds: BTreeSet<u64> = records.clone().map(|record| record.seed).collect();
    let seeds = seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let problems: BTreeSet<(u64, u64)> = records.map(|record| (record.seed, record.index)).collect();
    Ok(Profile { fitted_to: format!("{} problems of seeds {seeds}", problems.len()), ..profile })
}

/// Times by kernel, and by whether the keys are split.
type Samples = BTreeMap<(String, bool), Vec<Sample>>;

/// What is known of a device's kernels before its own times are: the profile that comes with the library.
fn known(device: &DeviceInfo) -> BTreeMap<String, KernelCosts> {
    let mut kernels = Profile::embedded(device).map(|profile| profile.kernels).unwrap_or_default();
    let names: BTreeSet<String> = VARIANTS.iter().map(|variant| Profile::key(variant.entry)).collect();
    kernels.retain(|name, _| names.contains(name));
    kernels
}

/// Lets the fit of each kernel begin with what `cost` says of it, where it says anything.
fn begin_with(samples: &mut Samples, cost: impl Fn(&(String, bool)) -> Option<Coefficients>) {
    for (key, samples) in samples {
        if let Some(prior) = cost(key) {
            samples.iter_mut().for_each(|sample| sample.prior = prior);
        }
    }
}

/// Replaces what kernels cost that have enough times.
fn fit_into(kernels: &mut BTreeMap<String, KernelCosts>, samples: Samples, shared: &Coefficients) {
    let fitted: Vec<((String, bool), Coefficients, MergeCurves)> = samples
        .into_par_iter()
        .filter(|(_, samples)| samples.len() >= TIMES_LEAST)
        .map(|(key, samples)| {
            let coefficients = rounded(fit_kernel(&samples, Some(shared)));
            (key, coefficients, leftover::curves(&samples, &coefficients))
        })
        .collect();
    for ((name, is_split), coefficients, curves) in fitted {
        let costs = kernels.entry(name).or_default();
        if is_split {
            costs.split = Some(coefficients);
            costs.curves = MergeCurves { whole: costs.curves.whole, ..curves };
        } else {
            costs.whole = Some(coefficients);
            costs.curves.whole = curves.whole;
        }
    }
}

/// Whether plans still split the keys as those that were measured did: sequences with lengths into ranges of their own keys.
fn is_planned_so(record: &Record) -> bool {
    !record.lengths || record.by_sequence
}

/// The times in records of plans that `counts` lets count, by kernel and by whether the keys are split.
pub(crate) fn samples(
    planner: &Planner,
    records: &[Record],
    counts: impl Fn(&Record, &Plan) -> bool,
) -> Result<Samples, Error> {
    let mut samples = Samples::new();
    for (number, record) in records.iter().enumerate().filter(|(_, record)| is_planned_so(record)) {
        let workload = record.workload()?;
        let (problem, fill) = (workload.problem(), fill(&workload));
        let best = record.times.iter().map(|time| time.us).fold(f64::INFINITY, f64::min);
        for time in record.times.iter().filter(|time| time.us.is_finite()) {
            let plan = plan_of(planner, problem, time).filter(|plan| counts(record, plan));
            let Some((work, prior)) = plan.and_then(|plan| work(planner, &plan, time, fill)) else {
                continue;
            };
            let over = NEAR * best / time.us;
            let weight = if over >= 1.0 { 1.0 } else { (over * over).max(WEIGHT_LEAST) };
            let weight = if time.round == Round::Trial { weight * WEIGHT_TRIAL } else { weight };
            let key = (Profile::key(&time.entry), time.splits > 1);
            samples.entry(key).or_default().push(Sample {
                prior,
                work,
                us: time.us,
                over: time.us / best,
                weight,
                problem: number,
                is_exact: time.round != Round::Trial,
            });
        }
    }
    Ok(samples)
}

/// The time of what a planner chooses for a measured problem; `None` where that was not measured.
pub fn planned<'a>(planner: &Planner, record: &'a Record) -> Option<&'a PlanTime> {
    let plan = planner
        .plan(record.workload().ok()?.problem(), &PlanOptions::new())
        .ok()
        .filter(|plan| record.is_launched_as(plan))?;
    let is_it = |time: &&PlanTime| {
        (time.entry.as_str(), time.splits, time.fused)
            == (plan.kernel().entry.as_str(), plan.splits(), plan.is_fused())
    };
    record.times.iter().find(is_it).filter(|time| time.us.is_finite())
}

/// The regret of a planner for a measured problem, as a share of the best time; `None` where what it chooses was not measured.
pub fn regret(planner: &Planner, record: &Record) -> Option<f64> {
    Some(planned(planner, record)?.us / record.best()?.us - 1.0)
}

/// How full the sequences of a problem were when it was measured.
fn fill(workload: &Workload) -> Fill {
    let Some(lengths) = workload.seqlens_k() else { return Fill::FULL };
    let keys = f64::from(workload.problem().sizes().seqlen_k);
    let mean = lengths.iter().copied().map(f64::from).sum::<f64>() / lengths.len() as f64 / keys;
    let longest = lengths.iter().copied().max().map_or(1.0, f64::from) / keys;
    Fill { mean, longest }
}

/// The plan that a time was measured of.
fn plan_of(planner: &Planner, problem: &Problem, time: &PlanTime) -> Option<Plan> {
    let row = &VARIANTS.iter().find(|variant| variant.entry == time.entry)?.row;
    let splits = if row.schedule.splits() { Splits::Count(time.splits) } else { Splits::Auto };
    let combine = if time.fused { Combine::Fused } else { Combine::Kernel };
    let rows = RowSelection::Named(time.entry.clone());
    planner.plan(problem, &PlanOptions { rows, splits, combine, ..PlanOptions::new() }).ok()
}

/// What it has to do, and what its kernel is estimated to cost before anything was measured.
fn work(planner: &Planner, plan: &Plan, time: &PlanTime, fill: Fill) -> Option<(Work, Coefficients)> {
    let costs = estimated(plan.kernel(), planner.device());
    let prior = costs.of(time.splits > 1).or(costs.whole)?;
    Some((plan.work(planner.device(), fill), prior))
}

/// Lessens the weights of the many times of one problem, and brings their mean square to 1.
pub(crate) fn level(samples: &mut [Sample]) {
    let mut counts: BTreeMap<usize, f64> = BTreeMap::new();
    samples.iter().for_each(|sample| *counts.entry(sample.problem).or_default() += 1.0);
    for sample in samples.iter_mut() {
        sample.weight /= counts[&sample.problem].powf(CROWDING);
    }
    let mean = samples.iter().map(|sample| sample.weight * sample.weight).sum::<f64>() / samples.len() as f64;
    samples.iter_mut().for_each(|sample| sample.weight /= mean.sqrt());
}

/// What memory and merging cost on the device: the median over the kernels that decode, which both bound.
fn shared(samples: &Samples) -> Coefficients {
    let merges = |sample: &&Sample| sample.work.merge == Merge::Kernel && sample.work.tile_rows < 1.0;
    let decoding: Vec<Coefficients> = samples
        .par_iter()
        .filter(|((_, is_split), samples)| *is_split && samples.iter().filter(merges).count() > 300)
        .map(|(_, samples)| fit_kernel(samples, None))
        .collect();
    let mut values = Coefficients::START.to_vec();
    for (i, value) in values.iter_mut().enumerate() {
        let mut found: Vec<f64> = decoding.iter().map(|coefficients| coefficients.to_vec()[i]).collect();
        found.sort_by(f64::total_cmp);
        *value = found.get(found.len() / 2).copied().unwrap_or(*value);
    }
    Coefficients::from_slice(&values)
}

/// The coefficients of one kernel; those that are the device's as in `shared`, where that is known.
fn fit_kernel(samples: &[Sample], shared: Option<&Coefficients>) -> Coefficients {
    let mut prior = samples.first().map_or(Coefficients::START, |sample| sample.prior).to_vec();
    let mut free: Vec<usize> = (0..prior.len()).collect();
    if let Some(shared) = shared {
        let is_shared = |i: &usize| SHARED.contains(&Coefficients::NAMES[*i]);
        let values = shared.to_vec();
        free.iter().filter(|i| is_shared(i)).for_each(|&i| prior[i] = values[i]);
        free.retain(|i| !is_shared(i));
    }
    let prior = Coefficients::from_slice(&prior);
    let samples: Vec<Sample> = samples.iter().map(|sample| Sample { prior, ..*sample }).collect();
    prior.scaled(&factors(&samples, &free))
}

/// The factors by which what was estimated of each sample's kernel fits the times best.
pub(crate) fn factors(samples: &[Sample], free: &[usize]) -> Coefficients {
    let starts = [0.6, 1.6].map(|factor| {
        let of = |name: &&str| {
            if ["start", "start_busy", "block", "block_busy"].contains(name) { factor } else { 1.0 }
        };
        descend(samples, Coefficients::NAMES.iter().map(of).collect(), free)
    });
    let [(a, cost_a), (b, cost_b)] = starts;
    Coefficients::from_slice(if cost_a <= cost_b { &a } else { &b })
}

/// Levenberg and Marquardt's descent in the logarithms of the free factors; returns where it ends, and the cost there.
fn descend(samples: &[Sample], from: Vec<f64>, free: &[usize]) -> (Vec<f64>, f64) {
    let ridge = RIDGE * (samples.len().max(HELD_TIMES) as f64 / 100.0).sqrt();
    let at = |values: &[f64]| Coefficients::from_slice(values);
    let error = |factors: &Coefficients, sample: &Sample| {
        sample.weight * (sample.prior.scaled(factors).time_us(&sample.work) / sample.us).ln()
    };
    let held = |values: &[f64], i: usize| ridge * values[i].ln();
    let cost = |values: &[f64]| {
        let factors = at(values);
        let robust = |error: f64| ROBUST * ROBUST * 2.0 * ((1.0 + (error / ROBUST).powi(2)).sqrt() - 1.0);
        samples.iter().map(|sample| robust(error(&factors, sample))).sum::<f64>()
            + free.iter().map(|&i| held(values, i).powi(2)).sum::<f64>()
    };
    let (mut values, mut damping) = (from, 1e-2);
    let mut least = cost(&values);
    for _ in 0..STEPS_MOST {
        let (normal, gradient) = normal_equations(samples, &values, free, &error, &held, ridge);
        let mut improved = false;
        for _ in 0..8 {
            let mut damped = normal.clone();
            for i in 0..free.len() {
                damped[(i, i)] += damping * (normal[(i, i)] + 1e-6);
            }
            let Some(cholesky) = damped.cholesky() else {
                damping *= 4.0;
                continue;
            };
            let step = cholesky.solve(&gradient);
            let mut next = values.clone();
            for (&i, step) in free.iter().zip(step.iter()) {
                next[i] = (next[i].ln() - step.clamp(-1.0, 1.0)).clamp(-7.0, 7.0).exp();
            }
            let found = cost(&next);
            if found < least {
                improved = least - found > 1e-5 * least;
                (values, least) = (next, found);
                damping = (damping / 3.0).max(1e-7);
                break;
            }
            damping *= 4.0;
        }
        if !improved {
            break;
        }
    }
    (values, least)
}

/// JᵀJ and Jᵀe of the weighted errors, each discounted as the robust cost does, by differences.
fn normal_equations(
    samples: &[Sample],
    values: &[f64],
    free: &[usize],
    error: &dyn Fn(&Coefficients, &Sample) -> f64,
    held: &dyn Fn(&[f64], usize) -> f64,
    ridge: f64,
) -> (DMatrix<f64>, DVector<f64>) {
    const STEP: f64 = 1e-4;
    let here = Coefficients::from_slice(values);
    let moved: Vec<Coefficients> = free
        .iter()
        .map(|&i| {
            let mut moved = values.to_vec();
            moved[i] *= 1.0 + STEP;
            Coefficients::from_slice(&moved)
        })
        .collect();
    let n = free.len();
    let (mut normal, mut gradient) = (DMatrix::zeros(n, n), DVector::zeros(n));
    let mut row = vec![0.0; n];
    for sample in samples {
        let at_here = error(&here, sample);
        let discount = 1.0 / (1.0 + (at_here / ROBUST).powi(2)).sqrt();
        for (slot, moved) in row.iter_mut().zip(&moved) {
            *slot = (error(moved, sample) - at_here) / STEP;
        }
        for i in 0..n {
            gradient[i] += discount * row[i] * at_here;
            for j in 0..=i {
                normal[(i, j)] += discount * row[i] * row[j];
            }
        }
    }
    for i in 0..n {
        gradient[i] += ridge * held(values, free[i]);
        normal[(i, i)] += ridge * ridge;
        for j in 0..i {
            normal[(j, i)] = normal[(i, j)];
        }
    }
    (normal, gradient)
}

/// Four digits are as many as mean something.
pub(crate) fn rounded(coefficients: Coefficients) -> Coefficients {
    let round = |value: f64| format!("{value:.3e}").parse().unwrap_or(value);
    Coefficients::from_slice(&coefficients.to_vec().into_iter().map(round).collect::<Vec<f64>>())
}
