//! The keep rule: when a correct candidate takes the place of the incumbent.

use crate::statistics::Interval;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The rule's thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeepRule {
    /// The least gain: 0.03 is 3 % faster. The whole interval must lie above.
    pub gain: f64,
    /// Shapes that must gain as much.
    pub shapes: usize,
    /// How much slower other shapes may look, as noise.
    pub noise: f64,
}

/// Less than any count can differ by, relatively: what is counted has to be less, by however little.
const COUNTED: f64 = 1e-9;

impl Default for KeepRule {
    fn default() -> Self {
        Self { gain: 0.03, shapes: 2, noise: 0.02 }
    }
}

/// A candidate against the incumbent on one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The shape, for people.
    pub shape: String,
    /// How many times less the candidate takes: of time, with an interval, or of what is counted, exactly.
    pub factor: Interval,
}

/// Whether a candidate is kept, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It takes the incumbent's place.
    Keep {
        /// The shapes on which it gained enough.
        gained_on: Vec<String>,
    },
    /// It gained enough on too few shapes.
    TooLittle {
        /// The shapes on which it gained enough.
        gained_on: Vec<String>,
        /// How many it takes.
        needed: usize,
    },
    /// It is worse on some shape by more than noise.
    WorseOn {
        /// The first such shape.
        shape: String,
    },
}

impl Decision {
    /// Whether the candidate is kept.
    pub fn is_keep(&self) -> bool {
        matches!(self, Decision::Keep { .. })
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Keep { gained_on } => write!(f, "kept: better on {}", gained_on.join("; ")),
            Decision::TooLittle { gained_on, needed } => {
                write!(f, "dropped: enough better on {} problems, {needed} are needed", gained_on.len())
            }
            Decision::WorseOn { shape } => write!(f, "dropped: worse on {shape}"),
        }
    }
}

impl KeepRule {
    /// The rule for what is counted, which has no noise: less on as many shapes, and not more on any.
    pub fn counted(self) -> KeepRule {
        KeepRule { gain: COUNTED, noise: COUNTED, ..self }
    }

    /// Decides. With fewer shapes than the rule asks for it takes all of them. Nothing measured is nothing gained.
    pub fn decide(&self, shapes: &[Compared]) -> Decision {
        let is_worse = |shape: &&Compared| {
            let factor = shape.factor.estimate;
            factor.is_nan() || factor < 1.0 - self.noise
        };
        if let Some(worse) = shapes.iter().find(is_worse) {
            return Decision::WorseOn { shape: worse.shape.clone() };
        }
        let gained = shapes.iter().filter(|shape| shape.factor.low >= 1.0 + self.gain);
        let gained_on: Vec<String> = gained.map(|shape| shape.shape.clone()).collect();
        let needed = self.shapes.min(shapes.len()).max(1);
        if gained_on.len() < needed {
            return Decision::TooLittle { gained_on, needed };
        }
        Decision::Keep { gained_on }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(low: f64, estimate: f64) -> Compared {
        let factor = Interval { low, estimate, high: estimate + 0.01 };
        Compared { shape: format!("{estimate}"), factor }
    }

    #[test]
    fn two_shapes_must_gain_with_confidence() {
        let rule = KeepRule::default();
        let (gain, unsure, even) = (compared(1.031, 1.05), compared(1.02, 1.05), compared(0.99, 1.0));
        assert!(rule.decide(&[gain.clone(), gain.clone(), even.clone()]).is_keep());
        assert!(rule.decide(&[gain.clone()]).is_keep(), "all of one");
        for shapes in [vec![gain.clone(), unsure], vec![gain, even]] {
            let decision = rule.decide(&shapes);
            assert!(matches!(decision, Decision::TooLittle { needed: 2, .. }), "{shapes:?}");
        }
        assert!(!rule.decide(&[]).is_keep());
    }

    #[test]
    fn a_loss_over_noise_anywhere_drops_it() {
        let rule = KeepRule::default();
        let gain = compared(1.1, 1.2);
        let with = |loss| rule.decide(&[gain.clone(), gain.clone(), loss]);
        assert!(with(compared(0.97, 0.985)).is_keep());
        assert!(matches!(with(compared(0.95, 0.97)), Decision::WorseOn { .. }));
        assert!(matches!(with(compared(0.95, f64::NAN)), Decision::WorseOn { .. }));
    }

    #[test]
    fn what_is_counted_gains_by_however_little_and_loses_by_as_little() {
        let rule = KeepRule::default().counted();
        let exact = |factor| Compared { shape: String::new(), factor: Interval::exact(factor) };
        assert!(rule.decide(&[exact(1.0001), exact(1.0001)]).is_keep());
        assert!(matches!(rule.decide(&[exact(1.1), exact(1.0)]), Decision::TooLittle { .. }));
        let decision = rule.decide(&[exact(1.1), exact(1.1), exact(0.9999)]);
        assert!(matches!(decision, Decision::WorseOn { .. }));
    }
}
