//! How much a search may take: candidates, seconds, GPU-seconds.

use super::Evaluated;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What one evaluation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cost {
    /// Seconds on the wall, compilation included.
    pub seconds: f64,
    /// Seconds for which a GPU was held.
    pub gpu_seconds: f64,
}

/// The limits of a search. What is none is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Candidates that are evaluated; duplicates are free.
    pub candidates: Option<u64>,
    /// Seconds on the wall.
    pub seconds: Option<f64>,
    /// Seconds for which a GPU was held.
    pub gpu_seconds: Option<f64>,
}

/// Why a text is not a budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// A part is none of the three kinds.
    #[error(
        "`{part}` is no budget: give candidates (12), time (90s, 10m) or GPU time (30gpu-s), with commas between"
    )]
    Unknown {
        /// The part of the text.
        part: String,
    },
    /// A kind stands twice.
    #[error("`{part}` limits what an earlier part of the budget limits already")]
    Twice {
        /// The part of the text.
        part: String,
    },
}

/// What a history has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spent {
    /// Candidates that were evaluated.
    pub candidates: u64,
    /// Their cost.
    pub cost: Cost,
}

impl Spent {
    /// What `history` took. The cost of a duplicate (its compilation) counts as time, but not as a candidate.
    pub fn of(history: &[Evaluated]) -> Self {
        history.iter().fold(Spent::default(), |spent, candidate| Spent {
            candidates: spent.candidates + u64::from(candidate.is_counted()),
            cost: Cost {
                seconds: spent.cost.seconds + candidate.cost.seconds,
                gpu_seconds: spent.cost.gpu_seconds + candidate.cost.gpu_seconds,
            },
        })
    }
}

impl Budget {
    /// What has run out, if anything, as a sentence.
    pub fn exhausted(&self, spent: &Spent) -> Option<&'static str> {
        if self.candidates.is_some_and(|limit| spent.candidates >= limit) {
            return Some("all candidates of the budget are evaluated");
        }
        if self.seconds.is_some_and(|limit| spent.cost.seconds >= limit) {
            return Some("the time of the budget is over");
        }
        self.gpu_seconds
            .is_some_and(|limit| spent.cost.gpu_seconds >= limit)
            .then_some("the GPU time of the budget is over")
    }

    /// Seconds that are left, estimated from what was spent so far; none while nothing limits them.
    pub fn seconds_left(&self, spent: &Spent) -> Option<f64> {
        let by_time = self.seconds.map(|limit| limit - spent.cost.seconds);
        let each = spent.cost.seconds / spent.candidates.max(1) as f64;
        let by_candidates = self
            .candidates
            .filter(|_| spent.candidates > 0)
            .map(|limit| limit.saturating_sub(spent.candidates) as f64 * each);
        let left = [by_time, by_candidates].into_iter().flatten().reduce(f64::min);
        left.map(|seconds| seconds.max(0.0))
    }
}

impl FromStr for Budget {
    type Err = BudgetError;

    /// `12`, `90s`, `10m`, `30gpu-s`, or several with commas between.
    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let mut budget = Budget::default();
        for part in text.split(',').map(str::trim) {
            let twice = |was_set: bool| {
                if was_set { Err(BudgetError::Twice { part: part.to_owned() }) } else { Ok(()) }
            };
            let unknown = || BudgetError::Unknown { part: part.to_owned() };
            if let Some(number) = part.strip_suffix("gpu-s") {
                twice(budget.gpu_seconds.replace(duration(number).ok_or_else(unknown)?).is_some())?;
            } else if let Some(number) = part.strip_suffix('s') {
                twice(budget.seconds.replace(duration(number).ok_or_else(unknown)?).is_some())?;
            } else if let Some(number) = part.strip_suffix('m') {
                twice(budget.seconds.replace(60.0 * duration(number).ok_or_else(unknown)?).is_some())?;
            } else {
                twice(budget.candidates.replace(part.parse().map_err(|_| unknown())?).is_some())?;
            }
        }
        Ok(budget)
    }
}

fn duration(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::Outcome;
    use crate::search::tests::{scored, usual_row};

    fn spent(candidates: u64, seconds: f64, gpu_seconds: f64) -> Spent {
        Spent { candidates, cost: Cost { seconds, gpu_seconds } }
    }

    #[test]
    fn budgets_are_read_and_nonsense_is_named() {
        let budget: Budget = "12, 10m,30gpu-s".parse().expect("a budget");
        assert_eq!(budget, Budget { candidates: Some(12), seconds: Some(600.0), gpu_seconds: Some(30.0) });
        assert_eq!("0".parse::<Budget>().expect("none").candidates, Some(0));
        for wrong in ["", "x", "-1", "1.5", "NaNs", "infs", "12,", "-3s", "5h"] {
            assert!(matches!(wrong.parse::<Budget>(), Err(BudgetError::Unknown { .. })), "{wrong}");
        }
        assert!(matches!("10s,1m".parse::<Budget>(), Err(BudgetError::Twice { .. })));
    }

    #[test]
    fn each_limit_ends_the_search_by_itself() {
        let exhausted = |text: &str, spent| text.parse::<Budget>().expect("a budget").exhausted(&spent);
        assert_eq!(exhausted("3", spent(2, 1e9, 1e9)), None);
        assert_eq!(exhausted("3", spent(3, 0.0, 0.0)), Some("all candidates of the budget are evaluated"));
        assert_eq!(exhausted("3,5s", spent(1, 5.0, 0.0)), Some("the time of the budget is over"));
        assert_eq!(exhausted("3,2gpu-s", spent(1, 5.0, 2.5)), Some("the GPU time of the budget is over"));
        assert_eq!(Budget::default().exhausted(&spent(u64::MAX, 1e9, 1e9)), None);
    }

    #[test]
    fn duplicates_take_time_but_no_candidate() {
        let cost = Cost { seconds: 2.0, gpu_seconds: 1.0 };
        let evaluated = Evaluated { cost, ..scored(usual_row(), 1.0) };
        let outcome = Outcome::Duplicate { of: "x".to_owned() };
        let duplicate = Evaluated { outcome, ..evaluated.clone() };
        assert_eq!(Spent::of(&[evaluated, duplicate]), spent(1, 4.0, 2.0));
    }

    #[test]
    fn the_time_left_is_the_nearer_end() {
        let left = |text: &str, spent| text.parse::<Budget>().expect("a budget").seconds_left(&spent);
        assert_eq!(left("4", spent(2, 10.0, 0.0)), Some(10.0));
        assert_eq!(left("4,13s", spent(2, 10.0, 0.0)), Some(3.0));
        assert_eq!(left("4", spent(0, 0.0, 0.0)), None);
        assert_eq!(left("1s", spent(0, 5.0, 0.0)), Some(0.0));
    }
}
