//! The exact part of the gate: counters and resources, which have no noise.

use super::Verdict;
use crate::counters::Counters;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Counts that describe the launch: other ones mean that something else was counted.
const MUST_EQUAL: [&str; 2] = ["ctas", "warps_per_cta"];

/// A count that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The counter.
    pub name: String,
    /// What it was in the best.
    pub best: u64,
    /// What it is; none if it is not counted any more.
    pub now: Option<u64>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.now {
            Some(now) => write!(f, "{}: {} → {now}", self.name, self.best),
            None => write!(f, "{}: {} → not counted", self.name, self.best),
        }
    }
}

/// What became of the counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// More than in the best, not counted any more, or of another launch.
    pub worse: Vec<Change>,
    /// Less than in the best: worth a new entry of the leaderboard.
    pub better: Vec<Change>,
}

impl Counted {
    /// Passes only if nothing is worse, whatever is better. A trade takes a blessing.
    pub fn verdict(&self) -> Verdict {
        if self.worse.is_empty() { Verdict::Pass } else { Verdict::Slower }
    }
}

/// Compares counts exactly. What the best did not count is not compared.
pub fn compare_counters(best: &Counters, now: &Counters) -> Counted {
    let mut counted = Counted::default();
    for (name, best) in best.iter() {
        let change = Change { name: name.to_owned(), best, now: now.get(name) };
        match change.now {
            Some(now) if now == best => {}
            Some(now) if now < best && !MUST_EQUAL.contains(&name) => counted.better.push(change),
            _ => counted.worse.push(change),
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::tests::counters;

    #[test]
    fn one_more_is_slower_and_one_less_is_better() {
        let best = counters(&[("barriers", 10), ("ctas", 4)]);
        assert_eq!(compare_counters(&best, &best), Counted::default());
        let more = compare_counters(&best, &counters(&[("barriers", 11), ("ctas", 4)]));
        assert_eq!(more.verdict(), Verdict::Slower);
        assert_eq!(more.worse[0].to_string(), "barriers: 10 → 11");
        let less = compare_counters(&best, &counters(&[("barriers", 9), ("ctas", 4)]));
        assert_eq!((less.verdict(), less.better.len()), (Verdict::Pass, 1));
    }

    #[test]
    fn another_launch_or_a_lost_counter_is_no_pass() {
        let best = counters(&[("barriers", 10), ("ctas", 4)]);
        for now in [counters(&[("barriers", 10), ("ctas", 3)]), counters(&[("ctas", 4)])] {
            assert_eq!(compare_counters(&best, &now).verdict(), Verdict::Slower);
        }
    }

    #[test]
    fn a_counter_that_the_best_does_not_know_is_not_compared() {
        let now = counters(&[("barriers", 10), ("new", 1)]);
        assert_eq!(compare_counters(&counters(&[("barriers", 10)]), &now), Counted::default());
    }
}
