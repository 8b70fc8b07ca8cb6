//! A search, step by step: hypothesis, evaluation, decision. The session's records are all of its state.

use crate::candidate::Candidate;
use crate::config::{Config, Thresholds};
use crate::counters::Counters;
use crate::evaluation::Evaluation;
use crate::exam::Fault;
use crate::kernels::Counted;
use crate::leaderboard::{Measure, Place, Record};
use crate::predict;
use crate::problem_spec;
use crate::search::budget::Cost;
use crate::search::keep::{CountedShape, Decision, KeepRule, TimedShape};
use crate::search::{Evaluated, Outcome};
use crate::session::Header;
use crate::statistics::{Bootstrap, Interval, median, quantile, speed_up};
use ferroflash::Row;
use serde::{Deserialize, Serialize};

/// The record of a hypothesis, written before the candidate is evaluated.
pub const HYPOTHESIS: &str = "hypothesis";
/// The record of a step, written after.
pub const STEP: &str = "step";

/// What the figures of ptxas are filed under; they are those of the session's device.
pub const PTXAS: &str = "ptxas";

/// What is expected of a candidate, before it is evaluated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hypothesis {
    /// The step's number, from 0.
    pub step: usize,
    /// The candidate.
    pub candidate: String,
    /// Who proposed it: a strategy's name or a program's.
    pub proposer: String,
    /// Why it should be better than the incumbent.
    pub hypothesis: String,
    /// How much better: 0.1 is 10 %. `None` where the proposer does not say.
    pub predicted_gain: Option<f64>,
}

/// One step, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The step's number, from 0.
    pub step: usize,
    /// The candidate.
    pub candidate: Candidate,
    /// What became of it.
    pub evaluated: Evaluated,
    /// How much better its score is than the incumbent's: 0.1 is 10 %.
    pub gain: Option<f64>,
    /// Whether it became the incumbent.
    pub kept: bool,
    /// Why, or why not.
    pub decision: String,
}

/// What a search makes of an evaluation: the score, lower is better, or why there is none.
///
/// With a GPU it is the geometric mean of the median times on fresh inputs over the problems, in microseconds; without, the
/// wavefronts of shared memory for each operation.
pub fn evaluated(evaluation: &Evaluation, simulated: bool) -> Evaluated {
    let outcome = match (evaluation.refusal(), score(evaluation, simulated)) {
        (Some(refusal), _) if refusal.fault == Fault::Duplicate => {
            Outcome::Duplicate { of: refusal.evidence.clone() }
        }
        (Some(refusal), _) => Outcome::Refused { reason: format!("{}: {}", refusal.fault, refusal.evidence) },
        (None, Some(score)) => Outcome::of_score(score),
        (None, None) => Outcome::Refused { reason: "it was neither counted nor timed".to_owned() },
    };
    let cost = Cost { seconds: evaluation.time_s(), gpu_seconds: evaluation.gpu_s() };
    Evaluated { row: evaluation.row, ptx_sha256: evaluation.ptx_sha256.clone(), outcome, cost }
}

fn score(evaluation: &Evaluation, simulated: bool) -> Option<f64> {
    if simulated {
        return Some(evaluation.wavefronts_per_mflop()? / 1e6);
    }
    let logs: Option<Vec<f64>> =
        evaluation.timed.iter().map(|timed| median(&timed.fresh_us).map(f64::ln)).collect();
    let logs = logs.filter(|logs| !logs.is_empty())?;
    Some((logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// The hypothesis of a row against the incumbent, by the resource model.
pub fn hypothesis(step: usize, candidate: &Candidate, incumbent: Option<&Row>, proposer: &str) -> Hypothesis {
    let from = incumbent.unwrap_or(&candidate.row);
    Hypothesis {
        step,
        candidate: candidate.name.clone(),
        proposer: proposer.to_owned(),
        hypothesis: predict::hypothesis(from, &candidate.row),
        predicted_gain: incumbent.map(|from| predict::gain(from, &candidate.row)),
    }
}

/// Whether a candidate takes the incumbent's place.
pub fn decide(
    candidate: &Evaluation,
    incumbent: Option<&Evaluation>,
    thresholds: &Thresholds,
    simulated: bool,
) -> Decision {
    let Some(incumbent) = incumbent else {
        let gained_on = vec!["nothing was right before".to_owned()];
        return if candidate.passed() { Decision::Keep { gained_on } } else { Decision::Wrong };
    };
    let rule = KeepRule {
        gain: thresholds.keep.get(),
        shapes: thresholds.keep_problems.len(),
        noise: thresholds.regression.get(),
    };
    if simulated {
        rule.by_counters(candidate.passed(), &counted_shapes(candidate, incumbent))
    } else {
        rule.by_time(candidate.passed(), &timed_shapes(candidate, thresholds))
    }
}

fn counted_shapes(candidate: &Evaluation, incumbent: &Evaluation) -> Vec<CountedShape> {
    let pairs = candidate.counted.iter().filter_map(|after| {
        let before = incumbent.counted.iter().find(|before| before.problem == after.problem)?;
        let flops = after.problem.flops() as u64;
        Some(CountedShape {
            shape: after.problem.to_string(),
            canonical: true,
            before: [before.wavefronts(), flops],
            after: [after.wavefronts(), flops],
        })
    });
    pairs.collect()
}

/// The speed-ups over the incumbent that was timed in turns with the candidate.
fn timed_shapes(candidate: &Evaluation, thresholds: &Thresholds) -> Vec<TimedShape> {
    let how = Bootstrap { confidence: thresholds.confidence.get().min(0.999), ..Bootstrap::default() };
    let pairs = candidate.timed.iter().filter_map(|own| {
        let other = candidate.incumbent.iter().find(|other| other.problem == own.problem)?;
        let speed_up = speed_up(&other.fresh_us, &own.fresh_us, how).ok()?;
        Some(TimedShape { shape: own.problem.to_string(), canonical: true, speed_up, noise: None })
    });
    pairs.collect()
}

/// How much better one score is than another: 0.1 is 10 %.
pub fn gain(candidate: &Evaluated, incumbent: Option<&Evaluated>) -> Option<f64> {
    Some(1.0 - candidate.score()? / incumbent?.score()?)
}

/// The places that an evaluation competes for, with its records.
pub fn records(evaluation: &Evaluation, header: &Header, config: &Config) -> Vec<(Place, Record)> {
    let place = |problem: &problem_spec::ProblemSpec| Place {
        device: header.device.clone(),
        shape: problem.shape.to_string(),
        dtype: problem.dtype,
        mask: problem.mask,
    };
    let record = |measure, score| Record {
        when: header.started.clone(),
        commit: header.commit.clone().unwrap_or_default(),
        row: evaluation.row,
        measure,
        score,
        p90_us: None,
        tflops: None,
        counters: Default::default(),
        reason: None,
    };
    let mut records = Vec::new();
    for timed in &evaluation.timed {
        let Some(estimate) = median(&timed.fresh_us) else { continue };
        let tail = (1.0 - config.thresholds.confidence.get()) / 2.0;
        let end = |share| quantile(&timed.fresh_us, share).unwrap_or(estimate);
        let mut record =
            record(Measure::Microseconds, Interval { low: end(tail), estimate, high: end(1.0 - tail) });
        record.p90_us = quantile(&timed.fresh_us, 0.9);
        record.tflops = Some(timed.problem.flops() / estimate / 1e6);
        records.push((place(&timed.problem), record));
    }
    if evaluation.timed.is_empty() {
        for counted in &evaluation.counted {
            let score = Interval::exact(counted.wavefronts_per_mflop() / 1e6);
            let mut record = record(Measure::WavefrontsPerFlop, score);
            record.counters = counters(evaluation, counted);
            records.push((place(&counted.problem), record));
        }
    }
    records
}

/// What the gate compares exactly: what was counted on a problem, and what ptxas says where there is one.
pub fn counters(evaluation: &Evaluation, counted: &Counted) -> Counters {
    match &evaluation.resources {
        Some(resources) => counted.counters().with_resources(PTXAS, resources),
        None => counted.counters(),
    }
}
