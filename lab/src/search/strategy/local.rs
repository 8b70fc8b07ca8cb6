//! Local refinement: one column of a good row changes at a time.

use super::{Strategy, tried};
use crate::search::population::{Management, Member, Population};
use crate::search::space::Space;
use crate::search::{Evaluated, Rng};
use kernels_gpu::row::Row;

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
        .find_map(|parent| space.step(&parent.row, &tried, rng))
        // Nothing is correct so far: look around the start before looking anywhere.
        .or_else(|| space.step(&space.start(), &tried, rng))
        .or_else(|| space.random(&tried, rng))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::rng;
    use crate::search::tests::{scored, usual_row};

    #[test]
    fn the_best_is_refined_until_all_around_it_is_tried_and_then_the_next_best() {
        let start = Row { stages: 1, ..usual_row() };
        let (best, next) =
            (Row { block_m: 64, block_n: 64, ..start }, Row { block_m: 128, block_n: 32, ..start });
        let space = Space::new(start);
        let mut local = Local { space: space.clone(), management: Management::SingleBest };
        let mut history = vec![scored(start, 3.0), scored(next, 2.0), scored(best, 1.0)];
        let tried = tried(&history);
        let around = space.neighbours(&best).into_iter().filter(|row| !tried.contains(row)).count();
        for step in 0..around {
            let row = local.propose(&history, &mut rng(1, step)).expect("a row");
            assert_eq!(space.distance(&row, &best), 1);
            history.push(scored(row, 9.0));
        }
        let row = local.propose(&history, &mut rng(1, around)).expect("a row");
        assert_eq!(space.distance(&row, &next), 1);
    }
}
