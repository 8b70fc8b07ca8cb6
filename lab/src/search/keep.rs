//! The keep rule: when a correct candidate takes the place of the incumbent.

use crate::statistics::Interval;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// The rule's thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeepRule {
    /// The least gain: 0.03 is 3 % faster. The whole interval must lie above.
    pub gain: f64,
    /// Canonical shapes that must gain as much.
    pub shapes: usize,
    /// How much slower other shapes may look, as noise.
    pub noise: f64,
}

impl Default for KeepRule {
    fn default() -> Self {
        Self { gain: 0.03, shapes: 2, noise: 0.02 }
    }
}

/// A candidate against the incumbent on one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedShape {
    /// The shape, for people.
    pub shape: String,
    /// Whether a gain on it counts.
    pub canonical: bool,
    /// How many times faster the candidate is.
    pub speed_up: Interval,
    /// What the incumbent varies against itself on this shape, if that was measured; the rule's noise holds where that is more.
    pub noise: Option<f64>,
}

/// A candidate against the incumbent on one shape on the simulator, where counts are exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedShape {
    /// The shape, for people.
    pub shape: String,
    /// Whether a gain on it counts.
    pub canonical: bool,
    /// The incumbent's shared-memory wavefronts and FLOPs.
    pub before: [u64; 2],
    /// The candidate's.
    pub after: [u64; 2],
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
    /// It gives wrong results, somewhere.
    Wrong,
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
            Decision::Wrong => f.write_str("dropped: wrong results"),
            Decision::TooLittle { gained_on, needed } => {
                write!(
                    f,
                    "dropped: enough better on {} canonical shapes, {needed} are needed",
                    gained_on.len()
                )
            }
            Decision::WorseOn { shape } => write!(f, "dropped: worse on {shape}"),
        }
    }
}

impl KeepRule {
    /// Decides by time. Nothing measured is nothing gained.
    pub fn by_time(&self, correct: bool, shapes: &[TimedShape]) -> Decision {
        let is_worse = |shape: &TimedShape| {
            let least = 1.0 - self.noise.max(shape.noise.unwrap_or(0.0));
            shape.speed_up.estimate.is_nan() || shape.speed_up.estimate < least
        };
        let gained = |shape: &TimedShape| shape.canonical && shape.speed_up.low >= 1.0 + self.gain;
        decide(correct, shapes, |shape| &shape.shape, is_worse, gained, self.shapes)
    }

    /// Decides by the simulator's counts, which have no noise: fewer shared-memory wavefronts a FLOP on the canonical shapes,
    /// and not more on any. With fewer canonical shapes than the rule asks for, all of them.
    pub fn by_counters(&self, correct: bool, shapes: &[CountedShape]) -> Decision {
        let canonical = shapes.iter().filter(|shape| shape.canonical).count();
        let needed = self.shapes.min(canonical).max(1);
        decide(
            correct,
            shapes,
            |shape| &shape.shape,
            |shape| compare_ratios(shape.after, shape.before) == Ordering::Greater,
            |shape| shape.canonical && compare_ratios(shape.after, shape.before) == Ordering::Less,
            needed,
        )
    }
}

fn decide<T>(
    correct: bool,
    shapes: &[T],
    name: impl Fn(&T) -> &String,
    is_worse: impl Fn(&T) -> bool,
    gained: impl Fn(&T) -> bool,
    needed: usize,
) -> Decision {
    if !correct {
        return Decision::Wrong;
    }
    if let Some(worse) = shapes.iter().find(|shape| is_worse(shape)) {
        return Decision::WorseOn { shape: name(worse).clone() };
    }
    let gained_on: Vec<String> =
        shapes.iter().filter(|shape| gained(shape)).map(|shape| name(shape).clone()).collect();
    if gained_on.len() < needed {
        return Decision::TooLittle { gained_on, needed };
    }
    Decision::Keep { gained_on }
}

/// Compares a / b of two pairs exactly. No FLOPs make a ratio worse than any.
fn compare_ratios([a, b]: [u64; 2], [c, d]: [u64; 2]) -> Ordering {
    match (b, d) {
        (0, 0) => Ordering::Equal,
        (0, _) => Ordering::Greater,
        (_, 0) => Ordering::Less,
        _ => (u128::from(a) * u128::from(d)).cmp(&(u128::from(c) * u128::from(b))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(canonical: bool, low: f64, estimate: f64) -> TimedShape {
        let speed_up = Interval { low, estimate, high: estimate + 0.01 };
        TimedShape { shape: format!("{estimate}"), canonical, speed_up, noise: None }
    }

    #[test]
    fn two_canonical_shapes_must_gain_with_confidence() {
        let rule = KeepRule::default();
        let (gain, unsure, other) =
            (timed(true, 1.031, 1.05), timed(true, 1.02, 1.05), timed(false, 1.2, 1.3));
        assert!(rule.by_time(true, &[gain.clone(), gain.clone()]).is_keep());
        for shapes in [vec![], vec![gain.clone(), unsure], vec![gain.clone(), other]] {
            assert!(
                matches!(rule.by_time(true, &shapes), Decision::TooLittle { needed: 2, .. }),
                "{shapes:?}"
            );
        }
        assert_eq!(rule.by_time(false, &[gain.clone(), gain]), Decision::Wrong);
    }

    #[test]
    fn a_loss_over_noise_anywhere_drops_it() {
        let rule = KeepRule::default();
        let gain = timed(true, 1.1, 1.2);
        let with = |loss| rule.by_time(true, &[gain.clone(), gain.clone(), loss]);
        assert!(with(timed(false, 0.97, 0.985)).is_keep());
        assert!(matches!(with(timed(false, 0.95, 0.97)), Decision::WorseOn { .. }));
        assert!(matches!(with(timed(false, 0.95, f64::NAN)), Decision::WorseOn { .. }));
        let noisy = TimedShape { noise: Some(0.04), ..timed(false, 0.95, 0.97) };
        assert!(with(noisy).is_keep());
    }

    #[test]
    fn counts_are_compared_exactly() {
        let rule = KeepRule::default();
        let counted = |after: [u64; 2]| CountedShape {
            shape: String::new(),
            canonical: true,
            before: [u64::MAX / 2, u64::MAX],
            after,
        };
        let (fewer, same) = ([u64::MAX / 2 - 1, u64::MAX], [u64::MAX / 2, u64::MAX]);
        assert!(rule.by_counters(true, &[counted(fewer), counted(fewer)]).is_keep());
        assert!(rule.by_counters(true, &[counted(fewer)]).is_keep(), "all of one");
        assert!(matches!(
            rule.by_counters(true, &[counted(fewer), counted(same)]),
            Decision::TooLittle { .. }
        ));
        let more = [u64::MAX / 2 + 1, u64::MAX];
        let shapes = [counted(fewer), counted(fewer), counted(more)];
        assert!(matches!(rule.by_counters(true, &shapes), Decision::WorseOn { .. }));
        assert!(!rule.by_counters(true, &[]).is_keep());
        assert!(!rule.by_counters(true, &[counted([1, 0])]).is_keep(), "no FLOPs");
    }
}
