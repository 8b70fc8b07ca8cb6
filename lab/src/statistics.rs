//! The statistics of measurements: quantiles, spread, and speed-ups of pairs with an interval.

use crate::search::rng;
use rand::Rng as _;
use serde::{Deserialize, Serialize};

/// Why samples give no figure.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum StatisticsError {
    /// There are too few.
    #[error("{got} samples, at least {least} are needed")]
    TooFew {
        /// How many there are.
        got: usize,
        /// How many it takes.
        least: usize,
    },
    /// Pairs were measured, and one side has more.
    #[error("{before} samples before and {after} after: they are not pairs")]
    NotPairs {
        /// Samples before.
        before: usize,
        /// Samples after.
        after: usize,
    },
    /// Times are positive numbers.
    #[error("sample {index} is {value}, not a positive number")]
    NotPositive {
        /// Its place.
        index: usize,
        /// The sample.
        value: f64,
    },
    /// A confidence is between 0 and 1.
    #[error("a confidence of {confidence} is not between 0 and 1")]
    Confidence {
        /// The confidence.
        confidence: f64,
    },
}

/// An estimate, and where it lies with some confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The estimate.
    pub estimate: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// An exact figure.
    pub fn exact(value: f64) -> Self {
        Self { low: value, estimate: value, high: value }
    }

    /// The interval after an increasing function.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { low: f(self.low), estimate: f(self.estimate), high: f(self.high) }
    }
}

/// The quantile `q` (0 to 1) of samples, between neighbours by their distance; none without samples.
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, q)
}

fn quantile_of_sorted(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    // Not low + 0 · (high − low): infinite samples have no difference.
    Some(if low == high { low } else { low + (high - low) * place.fract() })
}

/// The median; none without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The geometric mean of positive figures; none without any, or where one is lacking.
pub fn geometric_mean(figures: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let logs: Vec<f64> = figures.map(|figure| figure.map(f64::ln)).collect::<Option<_>>()?;
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// The interquartile range; none without samples.
pub fn iqr(samples: &[f64]) -> Option<f64> {
    Some(quantile(samples, 0.75)? - quantile(samples, 0.25)?)
}

/// How an interval is found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bootstrap {
    /// The share of intervals that hold the true value.
    pub confidence: f64,
    /// Resamples.
    pub resamples: u32,
    /// The seed of the resamples.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { confidence: 0.95, resamples: 2000, seed: 0 }
    }
}

/// Pairs that an interval takes at least: with fewer, resamples repeat each other.
pub const LEAST_PAIRS: usize = 8;

/// The median of ln(after / before) over pairs of samples, with its bootstrap interval. What two runs of a pair share (clocks,
/// temperature, neighbours) cancels.
///
/// # Errors
/// Samples that are not pairs, too few (below [`LEAST_PAIRS`]), or not positive.
pub fn median_log_ratio(before: &[f64], after: &[f64], how: Bootstrap) -> Result<Interval, StatisticsError> {
    if before.len() != after.len() {
        return Err(StatisticsError::NotPairs { before: before.len(), after: after.len() });
    }
    if before.len() < LEAST_PAIRS {
        return Err(StatisticsError::TooFew { got: before.len(), least: LEAST_PAIRS });
    }
    if !(how.confidence > 0.0 && how.confidence < 1.0) {
        return Err(StatisticsError::Confidence { confidence: how.confidence });
    }
    for samples in [before, after] {
        if let Some(index) = samples.iter().position(|sample| !(sample.is_finite() && *sample > 0.0)) {
            return Err(StatisticsError::NotPositive { index, value: samples[index] });
        }
    }
    let mut ratios: Vec<f64> =
        before.iter().zip(after).map(|(before, after)| (after / before).ln()).collect();
    ratios.sort_by(f64::total_cmp);
    let middle = |sorted: &[f64], q| quantile_of_sorted(sorted, q).unwrap_or(f64::NAN);
    let mut rng = rng(how.seed, 0);
    let mut medians: Vec<f64> = Vec::new();
    let mut places: Vec<usize> = vec![0; ratios.len()];
    for _ in 0..how.resamples.max(1) {
        for place in &mut places {
            *place = rng.random_range(0..ratios.len());
        }
        // Places of sorted ratios: their median is the ratios' median.
        let half = places.len() / 2;
        let (_, &mut upper, _) = places.select_nth_unstable(half);
        let lower = if places.len().is_multiple_of(2) {
            places[..half].iter().copied().max().unwrap_or(upper)
        } else {
            upper
        };
        medians.push((ratios[lower] + ratios[upper]) / 2.0);
    }
    medians.sort_by(f64::total_cmp);
    let tail = (1.0 - how.confidence) / 2.0;
    Ok(Interval {
        low: middle(&medians, tail),
        estimate: middle(&ratios, 0.5),
        high: middle(&medians, 1.0 - tail),
    })
}

/// How many times faster `after` is than `before`: 1.1 means that the time is divided by 1.1.
///
/// # Errors
/// As for [`median_log_ratio`].
pub fn speed_up(before: &[f64], after: &[f64], how: Bootstrap) -> Result<Interval, StatisticsError> {
    // The ratio of what comes after to what was before, turned round.
    Ok(median_log_ratio(after, before, how)?.map(f64::exp))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::search::Rng;

    /// A normal number, by Box and Muller.
    pub(crate) fn normal(rng: &mut Rng) -> f64 {
        let (u, v): (f64, f64) = (rng.random(), rng.random());
        (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&samples), Some(2.5));
        assert_eq!(quantile(&samples, 0.0), Some(1.0));
        assert_eq!(quantile(&samples, 1.0), Some(4.0));
        assert_eq!(iqr(&samples), Some(1.5));
        assert_eq!((median(&[]), iqr(&[])), (None, None));
        assert_eq!(median(&[f64::INFINITY, f64::INFINITY]), Some(f64::INFINITY));
    }

    #[test]
    fn what_a_pair_shares_cancels() {
        let drift: Vec<f64> = (0..20).map(|i| 10.0 + f64::from(i)).collect();
        let faster: Vec<f64> = drift.iter().map(|time| time / 1.1).collect();
        let interval = speed_up(&drift, &faster, Bootstrap::default()).expect("an interval");
        for end in [interval.low, interval.estimate, interval.high] {
            assert!((end - 1.1).abs() < 1e-12, "{interval:?}");
        }
    }

    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        let mut held = 0;
        for trial in 0..200 {
            let mut rng = rng(11, trial);
            let mut sample =
                |mean: f64| -> Vec<f64> { (0..30).map(|_| mean * (0.02 * normal(&mut rng)).exp()).collect() };
            let (before, after) = (sample(1.05), sample(1.0));
            let interval = speed_up(&before, &after, Bootstrap { resamples: 500, ..Default::default() })
                .expect("an interval");
            assert!(interval.low <= interval.estimate && interval.estimate <= interval.high);
            held += u32::from(interval.low <= 1.05 && 1.05 <= interval.high);
        }
        assert!((180..=200).contains(&held), "{held} of 200");
    }

    #[test]
    fn a_seed_is_an_interval() {
        let before: Vec<f64> = (1..20).map(f64::from).collect();
        let after: Vec<f64> = (1..20).rev().map(f64::from).collect();
        let with = |seed| median_log_ratio(&before, &after, Bootstrap { seed, ..Default::default() });
        assert_eq!(with(1), with(1));
    }

    #[test]
    fn samples_that_tell_nothing_are_refused() {
        let how = Bootstrap::default();
        let ones = [1.0; 10];
        assert!(matches!(
            speed_up(&ones, &ones[1..], how),
            Err(StatisticsError::NotPairs { before: 9, after: 10 }
                | StatisticsError::NotPairs { before: 10, after: 9 })
        ));
        assert!(matches!(speed_up(&ones[..7], &ones[..7], how), Err(StatisticsError::TooFew { got: 7, .. })));
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut broken = ones;
            broken[3] = value;
            assert!(matches!(
                speed_up(&ones, &broken, how),
                Err(StatisticsError::NotPositive { index: 3, .. })
            ));
        }
        let sure = Bootstrap { confidence: 1.0, ..how };
        assert!(matches!(speed_up(&ones, &ones, sure), Err(StatisticsError::Confidence { .. })));
    }
}
