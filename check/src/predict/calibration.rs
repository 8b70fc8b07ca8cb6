//! What turns simulated clocks into coefficients of the planner's cost model: factors fitted to measured times of one device, by kernels
//! of `mma.sync` and of `wgmma`, and what they are worth on times that they were not fitted to.

use super::Simulated;
use crate::measure::fit::{self, Sample};
use crate::measure::sweep::Record;
use ferroflash::plan::cost::Coefficients;
use ferroflash::{Error, Planner};
use kernels_gpu::row::{Isa, Row};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of four kernels one is left out of the fit, and of two problems one.
const KERNELS_APART: u64 = 4;

/// Factors of one family of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// Without splits of the keys.
    pub whole: Coefficients,
    /// With several.
    pub split: Coefficients,
}

/// Factors, and how far predicted times were from measured ones that were left out of the fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The device whose times were fitted.
    pub device: String,
    /// Kernels of `mma.sync`.
    pub mma: Family,
    /// Kernels of `wgmma`.
    pub wgmma: Family,
    /// What was fitted.
    pub fitted_to: String,
    /// How far predictions are off on problems and kernels that were both left out.
    pub apart: Accuracy,
    /// The same without any factor: what the model earns on a device that it was not calibrated on.
    pub untouched: Accuracy,
}

/// How far predicted times are from measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// Times that were compared.
    pub pairs: usize,
    /// Spearman's rank correlation.
    pub spearman: f64,
    /// The median of |predicted / measured − 1|.
    pub median: f64,
    /// Its 90th percentile.
    pub p90: f64,
}

/// A number that a name gives, the same on every machine (FNV-1a).
fn drawn(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
        >> 7
}

/// Which times a fit may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Kernels and problems of the fit.
    Fitted,
    /// Its kernels on other problems.
    NewProblems,
    /// Other kernels on its problems.
    NewKernels,
    /// Other kernels on other problems.
    Apart,
}

impl Part {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Part::Fitted => "what was fitted",
            Part::NewProblems => "problems that were left out",
            Part::NewKernels => "kernels that were left out",
            Part::Apart => "kernels and problems that were left out",
        }
    }
}

/// Whether the kernel of this name in profiles was left out of the fit.
pub fn is_left_out(kernel: &str) -> bool {
    drawn(kernel).is_multiple_of(KERNELS_APART)
}

/// A kernel's part in the fit follows from its name, a problem's from its number.
fn part(kernel: &str, record: &Record) -> Part {
    match (is_left_out(kernel), drawn(&format!("{}/{}", record.seed, record.index)).is_multiple_of(2)) {
        (false, false) => Part::Fitted,
        (false, true) => Part::NewProblems,
        (true, false) => Part::NewKernels,
        (true, true) => Part::Apart,
    }
}

/// Times of all kernels that were left out or not, by the part that they are of.
type Judged = Vec<(Part, Accuracy)>;

/// Fits factors to records, given what each kernel is simulated to cost, by its name in profiles; and judges them by what was left out.
///
/// # Errors
/// Those of planning what the records name.
pub fn calibrate(
    planner: &Planner,
    records: &[Record],
    kernels: &Simulated,
) -> Result<(Calibration, Judged), Error> {
    let mut groups: [Vec<Sample>; 4] = Default::default();
    let mut exact: Vec<(Part, usize, Sample)> = Vec::new();
    for ((kernel, is_split), samples) in fit::samples(planner, records, Record::is_of)? {
        let Some((row, prior)) = kernels.get(&kernel) else { continue };
        let group = 2 * usize::from(row.isa == Isa::Wgmma) + usize::from(is_split);
        for sample in samples {
            let sample = Sample { prior: *prior, ..sample };
            let part = part(&kernel, &records[sample.problem]);
            if part == Part::Fitted {
                groups[group].push(sample);
            }
            if sample.is_exact {
                exact.push((part, group, sample));
            }
        }
    }
    let fitted: usize = groups.iter().map(Vec::len).sum();
    let free: Vec<usize> = (0..Coefficients::NAMES.len()).collect();
    let fit = |samples: &mut Vec<Sample>| {
        fit::level(samples);
        fit::rounded(fit::factors(samples, &free))
    };
    let factors: Vec<Coefficients> = groups.par_iter_mut().map(fit).collect();
    let accuracy = |part: Part, factors: &[Coefficients]| {
        let of = exact.iter().filter(|(of, ..)| *of == part);
        let time = |group: usize, sample: &Sample| {
            let one = Coefficients::from_slice(&[1.0; Coefficients::NAMES.len()]);
            sample.prior.scaled(factors.get(group).unwrap_or(&one)).time_us(&sample.work)
        };
        Accuracy::of(&of.map(|(_, group, sample)| (time(*group, sample), sample.us)).collect::<Vec<_>>())
    };
    let parts = [Part::Fitted, Part::NewProblems, Part::NewKernels, Part::Apart];
    let judged: Judged = parts.map(|part| (part, accuracy(part, &factors))).into();
    let family = |at: usize| Family { whole: factors[at], split: factors[at + 1] };
    let calibration = Calibration {
        device: planner.device().name.clone(),
        fitted_to: format!("{fitted} times of {} problems", records.len()),
        mma: family(0),
        wgmma: family(2),
        apart: accuracy(Part::Apart, &factors),
        untouched: accuracy(Part::Apart, &[]),
    };
    Ok((calibration, judged))
}

/// How far the predictions of a calibration are from kept times, by the part that each is of; on another device than the calibration's
/// every time is [`Part::Apart`]. Times of a launch or a few, which are coarse, are left out.
///
/// # Errors
/// Those of planning what the records name.
pub fn judge(
    planner: &Planner,
    records: &[Record],
    kernels: &Simulated,
    calibration: &Calibration,
) -> Result<Vec<(Part, Accuracy)>, Error> {
    let mut pairs: BTreeMap<Part, Vec<(f64, f64)>> = BTreeMap::new();
    for ((kernel, is_split), samples) in fit::samples(planner, records, Record::is_of)? {
        let Some((row, simulated)) = kernels.get(&kernel) else { continue };
        let costs = calibration.costs(row, simulated)[usize::from(is_split)];
        for sample in samples.iter().filter(|sample| sample.is_exact) {
            let is_own = calibration.device == planner.device().name;
            let part = if is_own { part(&kernel, &records[sample.problem]) } else { Part::Apart };
            pairs.entry(part).or_default().push((costs.time_us(&sample.work), sample.us));
        }
    }
    Ok(pairs.into_iter().map(|(part, pairs)| (part, Accuracy::of(&pairs))).collect())
}

impl Accuracy {
    /// Of pairs of predicted and measured times.
    pub fn of(pairs: &[(f64, f64)]) -> Accuracy {
        let mut errors: Vec<f64> = pairs.iter().map(|(p, m)| (p / m - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let at = |share: f64| {
            errors.get(((errors.len() as f64 * share) as usize).min(errors.len().saturating_sub(1))).copied()
        };
        let (predicted, measured): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        Accuracy {
            pairs: pairs.len(),
            spearman: correlation(&ranks(&predicted), &ranks(&measured)),
            median: at(0.5).unwrap_or(f64::NAN),
            p90: at(0.9).unwrap_or(f64::NAN),
        }
    }
}

/// The rank of each value; equal ones share theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0.0;
    for group in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let many = group.len() as f64;
        group.iter().for_each(|at| ranks[*at] = below + (many - 1.0) / 2.0);
        below += many;
    }
    ranks
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |list: &[f64]| list.iter().sum::<f64>() / list.len().max(1) as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let product = |x: &[f64], y: &[f64], mx: f64, my: f64| {
        x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum::<f64>()
    };
    product(a, b, mean_a, mean_b) / (product(a, a, mean_a, mean_a) * product(b, b, mean_b, mean_b)).sqrt()
}

impl Calibration {
    /// The one that comes with the project, of the H200.
    ///
    /// # Errors
    /// Where the file in the source is none; a test reads it.
    pub fn embedded() -> Result<Calibration, serde_json::Error> {
        serde_json::from_str(include_str!("calibration.json"))
    }

    /// The text of its file.
    pub fn to_json(&self) -> String {
        // Numbers and strings always have a text.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The coefficients of a kernel, without splits and with.
    pub fn costs(&self, row: &Row, simulated: &Coefficients) -> [Coefficients; 2] {
        let family = match row.isa {
            Isa::Mma => &self.mma,
            Isa::Wgmma => &self.wgmma,
        };
        [simulated.scaled(&family.whole), simulated.scaled(&family.split)]
    }
}
