//! A search, step by step: hypothesis, evaluation, decision. The session's records are all of its state.

use crate::candidate::Candidate;
use crate::config::{Config, Thresholds};
use crate::counters::Counters;
use crate::evaluation::Evaluation;
use crate::exam::Fault;
use crate::kernels::{Counted, Machine};
use crate::leaderboard::{Measure, Place, Record};
use crate::predict::Model;
use crate::problem_spec;
use crate::search::budget::Cost;
use crate::search::keep::{Compared, Decision, KeepRule};
use crate::search::{Evaluated, Outcome};
use crate::session::Header;
use crate::statistics::{Bootstrap, Interval, geometric_mean, median, quantile, speed_up};
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
/// The score is the geometric mean over the problems, with a GPU of the median times on fresh inputs in microseconds, without of the
/// clocks that a multiprocessor's units need.
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
        return geometric_mean(evaluation.counted.iter().map(|counted| Some(counted.clocks)));
    }
    geometric_mean(evaluation.timed.iter().map(|timed| median(&timed.fresh_us)))
}

/// The hypothesis of a row against the incumbent, by the resource model.
pub fn hypothesis(
    model: &Model,
    step: usize,
    candidate: &Candidate,
    incumbent: Option<&Row>,
    proposer: &str,
) -> Hypothesis {
    let from = incumbent.unwrap_or(&candidate.row);
    Hypothesis {
        step,
        candidate: candidate.name.clone(),
        proposer: proposer.to_owned(),
        hypothesis: model.hypothesis(from, &candidate.row),
        predicted_gain: incumbent.map(|from| model.gain(from, &candidate.row)),
    }
}

/// Whether a candidate that is right takes the incumbent's place.
pub fn decide(
    candidate: &Evaluation,
    incumbent: Option<&Evaluation>,
    thresholds: &Thresholds,
    simulated: bool,
) -> Decision {
    let Some(incumbent) = incumbent else {
        return Decision::Keep { gained_on: vec!["nothing was right before".to_owned()] };
    };
    let rule = KeepRule {
        gain: thresholds.keep.get(),
        shapes: thresholds.keep_problems.len(),
        noise: thresholds.regression.get(),
    };
    if simulated {
        return rule.counted().decide(&counted(candidate, incumbent));
    }
    // Nothing that is canonical is given up for a place: every problem that is asked for has to be there.
    match timed(candidate, thresholds) {
        few if few.len() < rule.shapes => Decision::TooLittle { gained_on: Vec::new(), needed: rule.shapes },
        all => rule.decide(&all),
    }
}

fn counted(candidate: &Evaluation, incumbent: &Evaluation) -> Vec<Compared> {
    let pairs = candidate.counted.iter().filter_map(|after| {
        let before = incumbent.counted.iter().find(|before| before.problem == after.problem)?;
        let factor = Interval::exact(before.clocks / after.clocks);
        Some(Compared { shape: after.problem.to_string(), factor })
    });
    pairs.collect()
}

/// The speed-ups over the incumbent that was timed in turns with the candidate.
fn timed(candidate: &Evaluation, thresholds: &Thresholds) -> Vec<Compared> {
    let how = Bootstrap { confidence: thresholds.confidence.get().min(0.999), ..Bootstrap::default() };
    let pairs = candidate.timed.iter().filter_map(|own| {
        let other = candidate.incumbent.iter().find(|other| other.problem == own.problem)?;
        let factor = speed_up(&other.fresh_us, &own.fresh_us, how).ok()?;
        Some(Compared { shape: own.problem.to_string(), factor })
    });
    pairs.collect()
}

/// How much better one score is than another: 0.1 is 10 %.
pub fn gain(candidate: &Evaluated, incumbent: Option<&Evaluated>) -> Option<f64> {
    Some(1.0 - candidate.score()? / incumbent?.score()?)
}

/// The places that an evaluation competes for, with its records. Clocks are those of the device that the simulator stands for where it
/// runs such a kernel.
pub fn records(evaluation: &Evaluation, header: &Header, config: &Config) -> Vec<(Place, Record)> {
    let device = match header.device == Machine::simulator().name {
        true => Machine::simulating(evaluation.row.isa).name,
        false => header.device.clone(),
    };
    let place = |problem: &problem_spec::ProblemSpec| Place {
        device: device.clone(),
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
            let score = Interval::exact(counted.clocks);
            let mut record = record(Measure::Clocks, score);
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
