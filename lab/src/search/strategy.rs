//! Which row is evaluated next. A search is a function of the seed and the history; it keeps nothing else.
//!
//! Replays of three recorded searches on an H200 showed that islands, elites, crossings, steps in one column and a model that learns to
//! rank found no more than drawing at random did. So there are two ways: by the resource model's prediction, and at random.

use super::space::Space;
use super::{Evaluated, rng};
use crate::predict::Model;
use kernels_gpu::row::Row;
use rand::seq::IndexedRandom;
use serde::{Deserialize, Serialize};

/// How rows are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Those of which the resource model expects most, each kind once before one kind twice; what it expects to be worse than the start last
    Model,
    /// Any row that was not tried
    Random,
    /// The start with every bound on its registers (min_ctas); those that come out alike are one candidate
    Registers,
}

impl Strategy {
    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Strategy::Model => "model",
            Strategy::Random => "random",
            Strategy::Registers => "registers",
        }
    }

    /// An untried row of a space; none when all are tried.
    pub fn next(self, space: &Space, model: &Model, history: &[Evaluated], seed: u64) -> Option<Row> {
        let is_tried = |row: &&Row| history.iter().any(|candidate| candidate.row == **row);
        let untried: Vec<Row> = space.rows().iter().filter(|row| !is_tried(row)).copied().collect();
        let mut rng = rng(seed, history.len());
        let start = space.start();
        match self {
            Strategy::Random => return untried.choose(&mut rng).copied(),
            Strategy::Registers => {
                return untried.into_iter().find(|row| Row { min_ctas: row.min_ctas, ..start } == *row);
            }
            Strategy::Model => {}
        }
        // Rows that the model cannot tell apart are of one kind.
        let kind = |row: &Row| model.clocks(row).to_bits();
        let tried = history.iter().filter(|tried| tried.is_counted()).map(|tried| kind(&tried.row));
        let tried: Vec<u64> = tried.collect();
        let tries = |kind: u64| tried.iter().filter(|tried| **tried == kind).count();
        let start = kind(&start);
        // Bits of positive numbers are in their order.
        let rank = |kind: u64| (kind > start, tries(kind), kind);
        let ranked: Vec<_> = untried.into_iter().map(|row| (rank(kind(&row)), row)).collect();
        let best = ranked.iter().map(|(rank, _)| *rank).min()?;
        let alike: Vec<Row> =
            ranked.into_iter().filter(|(rank, _)| *rank == best).map(|(_, row)| row).collect();
        alike.choose(&mut rng).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Problems;
    use crate::kernels::Machine;
    use crate::search::tests::{scored, usual_row};
    use kernels_gpu::row::Accumulation;

    fn start() -> Row {
        Row { block_m: 64, block_n: 32, stages: 1, ..usual_row() }
    }

    fn model() -> Model {
        Model::new(&Problems::default(), &Machine::simulator())
    }

    /// Rows in the order of a search whose scores are as the model predicts.
    fn run(strategy: Strategy, seed: u64, steps: usize) -> Vec<Evaluated> {
        let space = Space::new(start());
        let mut history = vec![scored(start(), model().clocks(&start()))];
        while history.len() < steps
            && let Some(row) = strategy.next(&space, &model(), &history, seed)
        {
            history.push(scored(row, model().clocks(&row)));
        }
        history
    }

    #[test]
    fn a_seed_gives_one_search_that_tries_every_row_once() {
        for strategy in [Strategy::Model, Strategy::Random] {
            let whole = run(strategy, 3, usize::MAX);
            assert_eq!(whole, run(strategy, 3, usize::MAX));
            assert_ne!(whole, run(strategy, 4, usize::MAX));
            let rows: std::collections::BTreeSet<Row> = whole.iter().map(|tried| tried.row).collect();
            assert_eq!((rows.len(), whole.len()), (Space::new(start()).rows().len(), whole.len()));
            // Resumed anywhere it goes on alike.
            let space = Space::new(start());
            assert_eq!(strategy.next(&space, &model(), &whole[..5], 3), Some(whole[5].row));
        }
    }

    #[test]
    fn the_model_finds_its_best_row_at_once_and_tries_worse_ones_last() {
        let space = Space::new(start());
        let best = space.rows().iter().map(|row| model().clocks(row)).fold(f64::INFINITY, f64::min);
        let first = model().clocks(&start());
        let history = run(Strategy::Model, 1, 12);
        assert_eq!(history[1].score(), Some(best));
        assert!(history.iter().all(|tried| tried.score() <= Some(first)));
        let kinds: std::collections::BTreeSet<u64> =
            history[1..6].iter().filter_map(Evaluated::score).map(f64::to_bits).collect();
        assert_eq!(kinds.len(), 5, "each kind once before one kind twice");
    }

    /// Clocks that the simulator counted of every row of [`start`]'s space, as `lab micro --device sim` writes them: exhaustive search. Rows
    /// that only `min_ctas` tells apart count alike, and stand here once; those that an L4 has no shared memory for do not.
    const MEASURED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/measured.tsv");
    /// Of the best row's, what a search of twelve candidates may miss.
    const MISSED: f64 = 0.05;

    /// A search of twelve candidates from a row, whose scores are those that were measured.
    fn replay(start: Row, seed: u64, strategy: Strategy) -> Vec<f64> {
        let text = std::fs::read_to_string(MEASURED).expect("what was measured");
        let measured: std::collections::BTreeMap<&str, f64> = text
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(entry, clocks)| (entry, clocks.parse().expect("clocks")))
            .collect();
        let clocks = |row: &Row| measured.get(Row { min_ctas: 1, ..*row }.entry_name().as_str()).copied();
        let evaluated = |row: Row| scored(row, clocks(&row).unwrap_or(f64::NAN));
        // As many as an L4 has shared memory for.
        let space = Space::new(start).restricted(|row| clocks(row).is_some());
        let mut history = vec![evaluated(start)];
        while history.len() < 12
            && let Some(row) = strategy.next(&space, &model(), &history, seed)
        {
            history.push(evaluated(row));
        }
        let best = measured.values().copied().fold(f64::INFINITY, f64::min);
        history.iter().filter_map(Evaluated::score).map(|clocks| clocks / best).collect()
    }

    #[test]
    fn twelve_candidates_from_three_bad_rows_find_what_exhaustive_search_finds() {
        let bad = [
            start(),
            Row { block_m: 128, block_n: 128, warps: 8, stages: 1, acc: Accumulation::F16, ..start() },
            Row { block_m: 16, block_n: 128, warps: 8, stages: 1, ..start() },
        ];
        for (row, seed) in bad.into_iter().flat_map(|row| (0..4).map(move |seed| (row, seed))) {
            let found = replay(row, seed, Strategy::Model);
            let least = found.iter().copied().fold(f64::INFINITY, f64::min);
            assert!(found[0] > 1.1, "{} is a bad row: {found:?}", row.entry_name());
            assert!(least <= 1.0 + MISSED, "from {} with seed {seed}: {found:?}", row.entry_name());
        }
    }

    #[test]
    fn a_sweep_of_registers_changes_nothing_else() {
        let found: Vec<Row> = run(Strategy::Registers, 1, 99).iter().map(|tried| tried.row).collect();
        assert!(
            found.len() > 3
                && found.iter().all(|row| Row { min_ctas: 1, ..*row } == Row { min_ctas: 1, ..start() })
        );
    }
}
