//! Who proposes the next row. A strategy is a function of the seed and the history; it keeps nothing else.

mod crossover;
mod local;
mod random;
mod ranker;

pub use crossover::Crossover;
pub use local::Local;
pub use random::Random;
pub use ranker::Ranker;

use super::population::Management;
use super::space::Space;
use super::{Evaluated, Rng, rng};
use kernels_gpu::row::Row;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Proposes rows.
pub trait Strategy {
    /// A row that is not in the history; none when every row of the space is.
    fn propose(&mut self, history: &[Evaluated], rng: &mut Rng) -> Option<Row>;
}

/// The strategies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StrategyKind {
    /// [`Random`].
    Random,
    /// [`Local`].
    Local,
    /// [`Crossover`].
    Crossover,
    /// [`Ranker`].
    Ranker,
}

/// A name that no strategy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no strategy: there are random, local, crossover and ranker")]
pub struct UnknownStrategy {
    /// The name.
    pub name: String,
}

impl StrategyKind {
    /// Every strategy.
    pub const ALL: [StrategyKind; 4] =
        [StrategyKind::Random, StrategyKind::Local, StrategyKind::Crossover, StrategyKind::Ranker];

    /// The strategy's name.
    pub fn name(self) -> &'static str {
        match self {
            StrategyKind::Random => "random",
            StrategyKind::Local => "local",
            StrategyKind::Crossover => "crossover",
            StrategyKind::Ranker => "ranker",
        }
    }

    /// The strategy on a space, with parents from a population where it has any.
    pub fn on(self, space: Space, management: Management) -> Box<dyn Strategy> {
        match self {
            StrategyKind::Random => Box::new(Random { space }),
            StrategyKind::Local => Box::new(Local { space, management }),
            StrategyKind::Crossover => Box::new(Crossover { space, management }),
            StrategyKind::Ranker => Box::new(Ranker { space }),
        }
    }
}

impl fmt::Display for StrategyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for StrategyKind {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| UnknownStrategy { name: name.to_owned() })
    }
}

/// A strategy with the seed that its random numbers come from.
pub struct Search {
    strategy: Box<dyn Strategy>,
    space: Space,
    seed: u64,
}

impl Search {
    /// A search of `space` that begins at its start row.
    pub fn new(kind: StrategyKind, space: Space, management: Management, seed: u64) -> Self {
        Self { strategy: kind.on(space.clone(), management), space, seed }
    }

    /// The next row to evaluate after `history`: the start row, then what the strategy proposes. None when all are tried.
    pub fn next(&mut self, history: &[Evaluated]) -> Option<Row> {
        let start = self.space.start();
        if self.space.contains(&start) && !history.iter().any(|candidate| candidate.row == start) {
            return Some(start);
        }
        self.strategy.propose(history, &mut rng(self.seed, history.len()))
    }
}

/// The rows of a history.
fn tried(history: &[Evaluated]) -> BTreeSet<Row> {
    history.iter().map(|candidate| candidate.row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::{scored, usual_row};
    use crate::search::{Outcome, best};
    use kernels_gpu::geometry;

    /// A landscape with one valley, and rows that turn out to be wrong.
    fn evaluate(row: &Row) -> Evaluated {
        let off = |n: u32, best: u32| (f64::from(n) / f64::from(best)).log2().abs();
        let score = 10.0
            + off(row.block_m, 64)
            + 2.0 * off(row.block_n, 128)
            + f64::from(row.min_ctas - 1)
            + f64::from(row.stages.abs_diff(2))
            + f64::from(geometry::warps_n(row));
        let candidate = scored(*row, score);
        if row.min_ctas == 3 {
            let outcome = Outcome::Refused { reason: "test: wrong".to_owned() };
            return Evaluated { outcome, ..candidate };
        }
        candidate
    }

    fn start() -> Row {
        Row { block_m: 64, block_n: 32, stages: 1, ..usual_row() }
    }

    fn run(kind: StrategyKind, management: Management, seed: u64, steps: usize) -> Vec<Evaluated> {
        continued(kind, management, seed, Vec::new(), steps)
    }

    fn continued(
        kind: StrategyKind,
        management: Management,
        seed: u64,
        mut history: Vec<Evaluated>,
        steps: usize,
    ) -> Vec<Evaluated> {
        let mut search = Search::new(kind, Space::new(start()), management, seed);
        while history.len() < steps
            && let Some(row) = search.next(&history)
        {
            history.push(evaluate(&row));
        }
        history
    }

    #[test]
    fn every_strategy_proposes_every_row_once_and_begins_at_the_start() {
        for kind in StrategyKind::ALL {
            // The ranker learns anew at each step: a small space is enough.
            let space = Space::new(start()).restricted(|row| row.min_ctas < 3);
            let mut search = Search::new(kind, space.clone(), Management::ISLANDS, 3);
            let mut history = Vec::new();
            while let Some(row) = search.next(&history) {
                assert!(space.contains(&row), "{kind}: {row:?}");
                assert!(!tried(&history).contains(&row), "{kind} proposes {row:?} twice");
                history.push(evaluate(&row));
            }
            assert_eq!(history.len(), space.rows().len(), "{kind}");
            assert_eq!(history[0].row, start());
        }
    }

    #[test]
    fn a_seed_is_a_run_and_a_killed_run_goes_on_as_if_undisturbed() {
        for kind in StrategyKind::ALL {
            for management in [Management::SingleBest, Management::ELITE, Management::ISLANDS] {
                let whole = run(kind, management, 7, 24);
                assert_eq!(whole, run(kind, management, 7, 24), "{kind}");
                for cut in [1, 9, 17] {
                    let resumed = continued(kind, management, 7, whole[..cut].to_vec(), 24);
                    assert_eq!(resumed, whole, "{kind} cut at {cut}");
                }
                assert_ne!(whole, run(kind, management, 8, 24), "{kind}");
            }
        }
    }

    #[test]
    fn strategies_that_learn_beat_chance_on_a_valley() {
        let mean_best = |kind| {
            let bests = (0..12).map(|seed| {
                best(&run(kind, Management::SingleBest, seed, 24))
                    .and_then(Evaluated::score)
                    .expect("a score")
            });
            bests.sum::<f64>() / 12.0
        };
        let random = mean_best(StrategyKind::Random);
        for kind in [StrategyKind::Local, StrategyKind::Ranker, StrategyKind::Crossover] {
            assert!(mean_best(kind) < random, "{kind}: {} against {random}", mean_best(kind));
        }
    }

    #[test]
    fn a_history_of_failures_and_duplicates_is_survived() {
        for kind in StrategyKind::ALL {
            let mut search = Search::new(kind, Space::new(start()), Management::ISLANDS, 1);
            let mut history: Vec<Evaluated> = Vec::new();
            for step in 0..30 {
                let row = search.next(&history).expect("a row");
                let outcome = match step % 3 {
                    0 => Outcome::Refused { reason: "spills".to_owned() },
                    1 => Outcome::Duplicate { of: "another".to_owned() },
                    _ => Outcome::Scored { score: f64::NAN },
                };
                history.push(Evaluated { outcome, ..scored(row, 0.0) });
            }
            assert_eq!(tried(&history).len(), 30, "{kind}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for kind in StrategyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("annealing".parse::<StrategyKind>().is_err());
    }
}
