//! The search for better rows: where it looks, what it remembers, who proposes, and when it stops.
//!
//! A session's state is its history and nothing else. Every proposal is a function of the seed and the history, so a session
//! that was killed goes on from its file as if nothing had happened, and the same seed gives the same session. The history is
//! every candidate that was proposed, in order: refused ones and duplicates too, as its length numbers the proposals.

pub mod budget;
pub mod keep;
pub mod space;
pub mod strategy;

use kernels_gpu::row::Row;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

/// The random numbers of a search: the same on every machine and in every release of the library.
pub type Rng = ChaCha8Rng;

/// The random numbers for proposal number `step` of the session with `seed`.
pub fn rng(seed: u64, step: usize) -> Rng {
    let mut rng = Rng::seed_from_u64(seed);
    rng.set_stream(step as u64);
    rng
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// It is correct.
    Scored {
        /// What the search makes small: a time, or shared-memory wavefronts per FLOP.
        score: f64,
    },
    /// It did not get through the evaluation.
    Refused {
        /// The stage that refused it, and why, for people.
        reason: String,
    },
    /// Its PTX is that of an earlier candidate, so it was not evaluated.
    Duplicate {
        /// The entry of the earlier candidate.
        of: String,
    },
}

/// One candidate that was proposed, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluated {
    /// The row that was proposed.
    pub row: Row,
    /// SHA-256 of its PTX, in hexadecimal, if it was compiled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ptx_sha256: Option<String>,
    /// What became of it.
    pub outcome: Outcome,
    /// What the evaluation took.
    #[serde(default)]
    pub cost: budget::Cost,
}

impl Outcome {
    /// What a score comes to: one that is not a number is a refusal, as it can neither be ranked nor written as JSON.
    pub fn of_score(score: f64) -> Self {
        if score.is_finite() {
            Outcome::Scored { score }
        } else {
            Outcome::Refused { reason: format!("a score of {score} is no measurement") }
        }
    }
}

impl Evaluated {
    /// The score of a correct candidate. A score that is not a number is none: it cannot be ranked.
    pub fn score(&self) -> Option<f64> {
        match self.outcome {
            Outcome::Scored { score } if score.is_finite() => Some(score),
            _ => None,
        }
    }

    /// Whether the evaluation took part of the budget.
    pub fn is_counted(&self) -> bool {
        !matches!(self.outcome, Outcome::Duplicate { .. })
    }
}

/// The best `count` correct candidates, best first, the earlier of equal ones before the later.
pub fn top(history: &[Evaluated], count: usize) -> Vec<&Evaluated> {
    let mut scored: Vec<(f64, &Evaluated)> =
        history.iter().filter_map(|candidate| Some((candidate.score()?, candidate))).collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    scored.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// The earlier candidate that was made of the same PTX: a candidate that has one need not be evaluated.
pub fn same_ptx<'a>(history: &'a [Evaluated], ptx_sha256: &str) -> Option<&'a Evaluated> {
    history
        .iter()
        .find(|candidate| candidate.is_counted() && candidate.ptx_sha256.as_deref() == Some(ptx_sha256))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use kernels_gpu::table::VARIANTS;

    /// A row of the table, and rows of the same dtype and head_dim.
    pub(crate) fn usual_row() -> Row {
        VARIANTS.iter().map(|variant| variant.row).find(|row| row.head_dim == 64).expect("a row")
    }

    pub(crate) fn scored(row: Row, score: f64) -> Evaluated {
        Evaluated { row, ptx_sha256: None, outcome: Outcome::Scored { score }, cost: Default::default() }
    }

    #[test]
    fn the_earlier_of_equal_scores_comes_first_and_none_without_a_number() {
        let row = usual_row();
        let other = Row { stages: 1, ..row };
        let refused =
            Evaluated { outcome: Outcome::Refused { reason: "wrong".to_owned() }, ..scored(other, 0.0) };
        let history = [scored(other, f64::NAN), refused, scored(row, 2.0), scored(other, 2.0)];
        assert_eq!(top(&history, 8), [&history[2], &history[3]]);
        assert_eq!(top(&history[..2], 8), Vec::<&Evaluated>::new());
    }

    #[test]
    fn a_candidate_is_one_line_of_json_and_back() {
        let mut candidate = scored(usual_row(), 0.125);
        candidate.ptx_sha256 = Some("ab".to_owned());
        let line = serde_json::to_string(&candidate).expect("JSON");
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Evaluated>(&line).expect("the same"), candidate);
        assert!(serde_json::from_str::<Evaluated>(&line.replace("cost", "costs")).is_err());
    }

    #[test]
    fn scores_are_read_back_to_the_last_bit_as_a_resumed_search_needs_them() {
        for step in 0..200 {
            use rand::Rng as _;
            let outcome = Outcome::of_score(rng(1, step).random::<f64>() * 3.0);
            let text = serde_json::to_string(&outcome).expect("JSON");
            assert_eq!(serde_json::from_str::<Outcome>(&text).expect("the same"), outcome);
        }
        assert!(matches!(Outcome::of_score(f64::NAN), Outcome::Refused { .. }));
    }

    #[test]
    fn steps_have_random_numbers_of_their_own() {
        use rand::Rng as _;
        let draw = |seed, step| rng(seed, step).random::<u64>();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }
}
