//! The regression gate: exact on what is counted, careful on what is timed.
//!
//! Three answers instead of two: a candidate is as good as the best, slower, or the measurement does not say. Each run also
//! times the best against itself and against a copy that was made slower on purpose. A gate that sees a difference in the first,
//! or none in the second, can judge nothing and says so.

mod counted;
mod plant;
mod timed;

pub use counted::{Change, Counted, compare_counters};
pub use plant::calibrate;
pub use timed::{
    Finding, GateRule, Pairs, Samples, Subject, TimeGate, Timed, TimedGateError, judge, run, settle,
};

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a gate run comes to, the weightier the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As good as the best, or better.
    Pass,
    /// The measurements are too noisy to say.
    Inconclusive,
    /// Slower than the best, or more of something that is counted.
    Slower,
    /// Wrong results.
    Wrong,
    /// The gate itself does not work here: nothing it says is worth anything.
    HarnessError,
}

impl Verdict {
    /// The process's exit code. 2 is misuse, as everywhere.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Pass => 0,
            Verdict::Slower | Verdict::Wrong => 1,
            Verdict::Inconclusive => 3,
            Verdict::HarnessError => 4,
        }
    }

    /// The verdict of a run over several kernels and shapes: the weightiest. Of none at all, nothing can be said.
    pub fn of_all(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
        verdicts.into_iter().max().unwrap_or(Verdict::Inconclusive)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Pass => "pass",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Slower => "slower",
            Verdict::Wrong => "wrong",
            Verdict::HarnessError => "harness error",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_end_has_its_code_and_none_is_misuse() {
        let all =
            [Verdict::Pass, Verdict::Inconclusive, Verdict::Slower, Verdict::Wrong, Verdict::HarnessError];
        assert_eq!(all.map(Verdict::exit_code), [0, 3, 1, 1, 4]);
    }

    #[test]
    fn the_weightiest_verdict_stands_and_nothing_is_no_pass() {
        use Verdict::*;
        assert_eq!(Verdict::of_all([Pass, Slower, Inconclusive]), Slower);
        assert_eq!(Verdict::of_all([Wrong, HarnessError, Pass]), HarnessError);
        assert_eq!(Verdict::of_all([Pass, Pass]), Pass);
        assert_eq!(Verdict::of_all([]), Inconclusive);
    }
}
