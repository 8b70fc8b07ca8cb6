//! What became of one candidate: the record that sessions keep.

use crate::candidate::Candidate;
use crate::exam::{Examined, Refusal};
use crate::job::Timed;
use crate::kernels::Counted;
use ferroflash::Row;
use kernels_gpu::manifest::Resources;
use serde::{Deserialize, Serialize};

/// The kind of record that an evaluation is.
pub const EVALUATION: &str = "evaluation";

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Passed.
    Passed,
    /// Not done, and why.
    Skipped(String),
    /// The candidate is refused.
    Refused(Refusal),
}

/// One stage of a cascade, done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// The stage.
    pub stage: String,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, in seconds.
    pub time_s: f64,
}

/// What became of one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The candidate's name.
    pub name: String,
    /// Its row.
    pub row: Row,
    /// Its patch, where there is one.
    pub patch: Option<String>,
    /// SHA-256 of its PTX.
    pub ptx_sha256: Option<String>,
    /// Kernels beside the row's that its patch changes, or may change, and that nobody examined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unexamined: Vec<String>,
    /// Shared memory of a CTA, in bytes.
    pub smem_bytes: u32,
    /// What ptxas says, where there is one.
    pub resources: Option<Resources>,
    /// The stages that were done, in their order.
    pub stages: Vec<StageRecord>,
    /// Counters, a problem each.
    pub counted: Vec<Counted>,
    /// Errors, a problem each.
    pub examined: Vec<Examined>,
    /// Times of the candidate, a problem each.
    pub timed: Vec<Timed>,
    /// Times of the incumbent in the same runs.
    pub incumbent: Vec<Timed>,
}

impl Evaluation {
    /// That of a candidate before any stage.
    pub fn new(candidate: &Candidate) -> Evaluation {
        Evaluation {
            name: candidate.name.clone(),
            row: candidate.row,
            patch: candidate.patch.clone(),
            ptx_sha256: None,
            unexamined: Vec::new(),
            smem_bytes: 0,
            resources: None,
            stages: Vec::new(),
            counted: Vec::new(),
            examined: Vec::new(),
            timed: Vec::new(),
            incumbent: Vec::new(),
        }
    }

    /// Why the candidate is refused; `None` where it is not.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.stages.iter().find_map(|stage| match &stage.outcome {
            Outcome::Refused(refusal) => Some(refusal),
            _ => None,
        })
    }

    /// Whether every stage that was done was passed.
    pub fn passed(&self) -> bool {
        self.refusal().is_none()
    }

    /// Seconds in all stages.
    pub fn time_s(&self) -> f64 {
        self.stages.iter().map(|stage| stage.time_s).sum()
    }

    /// Seconds of the stages that used a GPU.
    pub fn gpu_s(&self) -> f64 {
        let on_gpu = |stage: &&StageRecord| stage.stage == crate::stages::TIMING;
        self.stages.iter().filter(on_gpu).map(|stage| stage.time_s).sum()
    }

    /// The largest share of the allowed error that an output took.
    pub fn worst_share(&self) -> Option<f64> {
        self.examined.iter().map(|examined| examined.worst_share).reduce(f64::max)
    }

    /// "passed" and what was not examined, or the fault and what shows it.
    pub fn verdict(&self) -> String {
        match self.refusal() {
            None if !self.unexamined.is_empty() => {
                format!(
                    "passed; other kernels that it changes are not examined: {}",
                    self.unexamined.join(", ")
                )
            }
            None => "passed".to_owned(),
            Some(refusal) => format!("refused: {}: {}", refusal.fault, refusal.evidence),
        }
    }
}
