//! The timed part of the gate: pairs of the best and the candidate, with a control and a planted slow-down in every run.

use super::Verdict;
use crate::statistics::{Bootstrap, Interval, StatisticsError, iqr, median_log_ratio};
use serde::{Deserialize, Serialize};
use std::error::Error;

/// Relative changes of earlier runs that an interquartile range takes.
const LEAST_HISTORY: usize = 4;

/// The gate's thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GateRule {
    /// A slow-down that is tolerated: 0.02 is 2 %.
    pub threshold: f64,
    /// How many interquartile ranges of earlier runs are tolerated, where that is more.
    pub spread_factor: f64,
    /// How often samples are added while the interval does not say.
    pub reruns: u32,
    /// How intervals are found.
    pub bootstrap: Bootstrap,
}

impl Default for GateRule {
    fn default() -> Self {
        Self { threshold: 0.02, spread_factor: 3.0, reruns: 3, bootstrap: Bootstrap::default() }
    }
}

impl GateRule {
    /// The tolerated ln(candidate / best), after the relative changes (as logarithms) of earlier runs.
    fn log_threshold(&self, history: &[f64]) -> f64 {
        let spread = if history.len() < LEAST_HISTORY { None } else { iqr(history) };
        self.threshold.ln_1p().max(self.spread_factor * spread.unwrap_or(0.0))
    }
}

/// Measurements of the best and of another kernel, interleaved: those with the same index belong together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// Of the best.
    pub best: Vec<f64>,
    /// Of the other one.
    pub other: Vec<f64>,
}

impl Pairs {
    fn extend(&mut self, more: Pairs) {
        self.best.extend(more.best);
        self.other.extend(more.other);
    }
}

/// What one measurement gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Times, in one unit.
    pub time: Pairs,
    /// SM cycles, by which a change of the clock is told from one of the kernel; none where no clock can be read.
    pub cycles: Option<Pairs>,
}

/// What is measured against the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The best itself: no difference may show.
    Control,
    /// The best, made slower on purpose, by well over the threshold (twice or more): the difference must show.
    Planted,
    /// The candidate.
    Candidate,
}

/// What an interval says about a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// All of it lies above.
    Slower,
    /// None of it lies above.
    NotSlower,
    /// It lies across.
    Unclear,
}

impl Finding {
    fn of(interval: Interval, log_threshold: f64) -> Self {
        if interval.low > log_threshold {
            Finding::Slower
        } else if interval.high <= log_threshold {
            Finding::NotSlower
        } else {
            Finding::Unclear
        }
    }
}

/// What the samples of one subject say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Slower only if time and cycles both say so; not slower as soon as one of them does.
    pub finding: Finding,
    /// Median of other / best − 1 in time.
    pub time: Interval,
    /// The same in cycles, if they were read.
    pub cycles: Option<Interval>,
    /// The tolerated change, as other / best − 1.
    pub threshold: f64,
    /// Pairs.
    pub pairs: usize,
}

/// Judges samples against the threshold that `rule` and the relative changes (as logarithms) of earlier runs give.
///
/// # Errors
/// Samples that are not pairs, too few, or not positive.
pub fn judge(rule: &GateRule, history: &[f64], samples: &Samples) -> Result<Timed, StatisticsError> {
    let log_threshold = rule.log_threshold(history);
    let interval = |pairs: &Pairs| median_log_ratio(&pairs.best, &pairs.other, rule.bootstrap);
    let time = interval(&samples.time)?;
    let cycles = samples.cycles.as_ref().map(interval).transpose()?;
    let by_time = Finding::of(time, log_threshold);
    let by_cycles = cycles.map_or(by_time, |cycles| Finding::of(cycles, log_threshold));
    let finding = match (by_time, by_cycles) {
        (Finding::Slower, Finding::Slower) => Finding::Slower,
        (Finding::NotSlower, _) | (_, Finding::NotSlower) => Finding::NotSlower,
        _ => Finding::Unclear,
    };
    Ok(Timed {
        finding,
        time: time.map(f64::exp_m1),
        cycles: cycles.map(|cycles| cycles.map(f64::exp_m1)),
        threshold: log_threshold.exp_m1(),
        pairs: samples.time.best.len(),
    })
}

/// A whole run of the gate on one kernel and shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeGate {
    /// What it comes to.
    pub verdict: Verdict,
    /// The best against itself.
    pub control: Timed,
    /// The best against the planted slow-down; not measured if the control failed.
    pub planted: Option<Timed>,
    /// The best against the candidate; not measured if the gate does not work.
    pub candidate: Option<Timed>,
}

impl TimeGate {
    /// Why it came to its verdict, in a sentence with the figures.
    pub fn reason(&self) -> String {
        let percent = |interval: Interval| {
            let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(|x| 100.0 * x);
            format!("{estimate:+.2} % ({low:+.2} to {high:+.2})")
        };
        let threshold = 100.0 * self.control.threshold;
        match (&self.planted, &self.candidate) {
            (None, _) => format!("the best differs from itself by {}", percent(self.control.time)),
            (Some(planted), None) => format!(
                "the planted slow-down was not caught: {} against a threshold of {threshold:.2} %",
                percent(planted.time)
            ),
            (_, Some(candidate)) => format!(
                "{} in time, threshold {threshold:.2} %, {} pairs",
                percent(candidate.time),
                candidate.pairs
            ),
        }
    }

    /// The candidate's relative change as a logarithm: what the history of later runs is made of. None where it says nothing.
    pub fn log_change(&self) -> Option<f64> {
        let candidate = self.candidate.filter(|_| self.verdict == Verdict::Pass)?;
        Some(candidate.time.estimate.ln_1p())
    }
}

/// Why a run of the gate has no verdict.
#[derive(Debug, thiserror::Error)]
pub enum TimedGateError<E: Error> {
    /// A measurement failed.
    #[error("measuring the {subject:?}: {source}")]
    Measurement {
        /// What was measured.
        subject: Subject,
        /// Why.
        source: E,
    },
    /// Samples say nothing.
    #[error("the samples of the {subject:?}: {source}")]
    Samples {
        /// What was measured.
        subject: Subject,
        /// Why.
        source: StatisticsError,
    },
}

/// Runs the gate: the control, the planted slow-down, the candidate. `measure` times a subject against the best, interleaved, and
/// is called again (with the number of the rerun) for more pairs while the answer is unclear.
///
/// # Errors
/// A measurement that fails, or whose samples say nothing.
pub fn run<E: Error>(
    rule: &GateRule,
    history: &[f64],
    mut measure: impl FnMut(Subject, u32) -> Result<Samples, E>,
) -> Result<TimeGate, TimedGateError<E>> {
    let mut settle = |subject| settle(rule, history, subject, &mut measure);
    let control = settle(Subject::Control)?;
    let stopped = |verdict, planted| TimeGate { verdict, control, planted, candidate: None };
    if control.is_alarm() {
        return Ok(stopped(Verdict::HarnessError, None));
    }
    let planted = settle(Subject::Planted)?;
    if planted.finding != Finding::Slower {
        return Ok(stopped(Verdict::HarnessError, Some(planted)));
    }
    let candidate = settle(Subject::Candidate)?;
    let verdict = match (candidate.finding, control.finding) {
        (Finding::NotSlower, _) => Verdict::Pass,
        (Finding::Slower, Finding::NotSlower) => Verdict::Slower,
        // A control that could not be told from slower proves nothing about the candidate.
        _ => Verdict::Inconclusive,
    };
    Ok(TimeGate { verdict, control, planted: Some(planted), candidate: Some(candidate) })
}

impl Timed {
    /// Whether one of the two is faster by more than the threshold: for a kernel against itself, an alarm.
    pub fn is_alarm(&self) -> bool {
        self.finding == Finding::Slower || self.time.high < -self.threshold
    }
}

/// Measures until the finding is clear or the reruns are used up. All pairs count.
///
/// # Errors
/// Those of [`run`].
pub fn settle<E: Error>(
    rule: &GateRule,
    history: &[f64],
    subject: Subject,
    measure: &mut impl FnMut(Subject, u32) -> Result<Samples, E>,
) -> Result<Timed, TimedGateError<E>> {
    let mut samples = Samples::default();
    let mut rerun = 0;
    loop {
        let more =
            measure(subject, rerun).map_err(|source| TimedGateError::Measurement { subject, source })?;
        samples.time.extend(more.time);
        samples.cycles = match (samples.cycles.take(), more.cycles, rerun) {
            (None, cycles, 0) => cycles,
            (Some(mut all), Some(more), _) => {
                all.extend(more);
                Some(all)
            }
            // Cycles of some pairs only are cycles of other pairs.
            _ => None,
        };
        let timed =
            judge(rule, history, &samples).map_err(|source| TimedGateError::Samples { subject, source })?;
        if timed.finding != Finding::Unclear || rerun == rule.reruns {
            return Ok(timed);
        }
        rerun += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Rng, rng};
    use crate::statistics::tests::normal;
    use rand::Rng as _;
    use std::convert::Infallible;

    const PAIRS: usize = 40;

    /// A noisy device: jitter, rare outliers, a clock that drifts and changes between runs.
    struct Device {
        jitter: f64,
        rng: Rng,
        clock: f64,
    }

    impl Device {
        fn new(seed: u64, jitter: f64) -> Self {
            Self { jitter, rng: rng(seed, 0), clock: 1.0 }
        }

        /// Cycles that a kernel takes.
        fn cycles(&mut self, slow_down: f64) -> f64 {
            let outlier = if self.rng.random_bool(0.04) { self.rng.random_range(1.0..1.5) } else { 1.0 };
            1e5 * slow_down * outlier * (self.jitter * normal(&mut self.rng)).exp()
        }

        fn samples(&mut self, slow_down: f64) -> Samples {
            let (mut time, mut cycles) = (Pairs::default(), Pairs::default());
            for _ in 0..PAIRS {
                self.clock = (self.clock * (0.003 * normal(&mut self.rng)).exp()).clamp(0.8, 1.2);
                let (best, other) = (self.cycles(1.0), self.cycles(slow_down));
                time.best.push(best / self.clock);
                time.other.push(other / self.clock);
                cycles.best.push(best);
                cycles.other.push(other);
            }
            Samples { time, cycles: Some(cycles) }
        }

        fn gate(&mut self, candidate: f64) -> TimeGate {
            let measure = |subject, _| {
                Ok::<_, Infallible>(self.samples(match subject {
                    Subject::Control => 1.0,
                    Subject::Planted => 1.05,
                    Subject::Candidate => candidate,
                }))
            };
            run(&GateRule::default(), &[], measure).expect("a verdict")
        }
    }

    fn count(verdict: Verdict, runs: u64, jitter: f64, candidate: f64) -> usize {
        (0..runs).filter(|seed| Device::new(*seed, jitter).gate(candidate).verdict == verdict).count()
    }

    #[test]
    fn twenty_runs_of_the_same_kernel_pass_without_an_alarm() {
        for jitter in [0.002, 0.01, 0.02] {
            assert_eq!(count(Verdict::Pass, 20, jitter, 1.0), 20, "jitter {jitter}");
        }
    }

    #[test]
    fn a_slow_down_of_three_percent_is_caught_in_nine_of_ten_runs() {
        for jitter in [0.002, 0.01] {
            let caught = count(Verdict::Slower, 20, jitter, 1.03);
            assert!(caught >= 18, "jitter {jitter}: {caught} of 20");
        }
    }

    #[test]
    fn a_gain_passes_and_a_slow_down_at_the_threshold_is_inconclusive_rather_than_a_guess() {
        assert_eq!(count(Verdict::Pass, 10, 0.01, 0.9), 10);
        assert!(count(Verdict::Inconclusive, 20, 0.01, 1.02) >= 12);
    }

    #[test]
    fn a_harness_that_prefers_one_side_or_sees_nothing_is_an_error() {
        let gate = |control: f64, planted: f64| {
            let mut device = Device::new(1, 0.005);
            let measure = |subject, _| {
                Ok::<_, Infallible>(device.samples(match subject {
                    Subject::Control => control,
                    Subject::Planted => planted,
                    Subject::Candidate => 1.0,
                }))
            };
            run(&GateRule::default(), &[], measure).expect("a verdict")
        };
        for control in [1.05, 0.95] {
            let biased = gate(control, 1.05);
            assert_eq!((biased.verdict, biased.candidate), (Verdict::HarnessError, None));
            assert!(biased.reason().contains("differs from itself"), "{}", biased.reason());
        }
        let blind = gate(1.0, 1.0);
        assert_eq!((blind.verdict, blind.candidate), (Verdict::HarnessError, None));
        assert!(blind.reason().contains("not caught"), "{}", blind.reason());
    }

    #[test]
    fn a_clock_that_dropped_is_not_the_kernels_fault() {
        let mut samples = Device::new(3, 0.002).samples(1.0);
        for time in &mut samples.time.other {
            *time *= 1.1;
        }
        let timed = judge(&GateRule::default(), &[], &samples).expect("a finding");
        assert_eq!(timed.finding, Finding::NotSlower);
        samples.cycles = None;
        let timed = judge(&GateRule::default(), &[], &samples).expect("a finding");
        assert_eq!(timed.finding, Finding::Slower);
    }

    #[test]
    fn a_place_that_was_always_noisy_has_a_wider_threshold() {
        let noisy: Vec<f64> = (0..20).map(|i| f64::from(i % 5) * 0.01).collect();
        let samples = Device::new(4, 0.002).samples(1.04);
        let finding =
            |history: &[f64]| judge(&GateRule::default(), history, &samples).expect("a finding").finding;
        assert_eq!(finding(&[]), Finding::Slower);
        assert_eq!(finding(&noisy[..3]), Finding::Slower, "three runs are no history");
        assert_eq!(finding(&noisy), Finding::NotSlower);
    }

    #[test]
    fn reruns_are_bounded_and_pool_their_pairs() {
        let mut device = Device::new(5, 0.3);
        let mut calls = 0;
        let timed = settle(&GateRule::default(), &[], Subject::Candidate, &mut |_, rerun| {
            assert_eq!(rerun, calls);
            calls += 1;
            Ok::<_, Infallible>(device.samples(1.02))
        })
        .expect("a finding");
        assert_eq!((timed.finding, calls, timed.pairs), (Finding::Unclear, 4, 4 * PAIRS));
    }

    #[test]
    fn a_failed_measurement_and_useless_samples_are_errors() {
        let failed = run(&GateRule::default(), &[], |_, _| Err::<Samples, _>(std::fmt::Error));
        assert!(matches!(failed, Err(TimedGateError::Measurement { subject: Subject::Control, .. })));
        let empty = run(&GateRule::default(), &[], |_, _| Ok::<_, Infallible>(Samples::default()));
        assert!(matches!(empty, Err(TimedGateError::Samples { .. })));
    }
}
