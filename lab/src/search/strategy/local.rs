//! Local refinement: one column of a good row changes at a time.

use super::{Strategy, tried};
use crate::search::population::{Management, Member, Population};
use crate::search::space::{Space, choose};
use crate::search::{Evaluated, Rng};
use kernels_gpu::row::Row;
use std::collections::BTreeSet;

/// Tries the neighbours of a parent, then those of the next best, and draws by chance when all are tried.
pub struct Local {
    /// The rows.
    pub space: Space,
    /// Where parents come from.
    pub management: Management,
}

impl Strategy for Local {
    fn propose(&mut self, history: &[Evaluated], rng: &mut Rng) -> Option<Row> {
        let population = Population::after(self.management, history);
        refine(&self.space, &population, history, rng)
    }
}

/// An untried neighbour of a member of the population, else of any scored candidate from the best on, else any row.
pub(super) fn refine(
    space: &Space,
    population: &Population,
    history: &[Evaluated],
    rng: &mut Rng,
) -> Option<Row> {
    let tried = tried(history);
    let parent = population.parent(rng);
    let mut scored: Vec<Member> = history
        .iter()
        .filter_map(|candidate| Some(Member { row: candidate.row, score: candidate.score()? }))
        .collect();
    scored.sort_by(|a, b| a.score.total_cmp(&b.score));
    let mut parents = parent.into_iter().chain(population.parents()).chain(scored);
    parents
        .find_map(|parent| neighbour(space, &parent.row, &tried, rng))
        // Nothing is correct so far: look around the start before looking anywhere.
        .or_else(|| neighbour(space, &space.start(), &tried, rng))
        .or_else(|| space.random(&tried, rng))
}

fn neighbour(space: &Space, row: &Row, tried: &BTreeSet<Row>, rng: &mut Rng) -> Option<Row> {
    choose(&space.neighbours(row), tried, rng)
}
