//! Crossover: each column from one of two good rows, and now and then a changed column.

use super::local::refine;
use super::{Strategy, tried};
use crate::search::population::{Management, Population};
use crate::search::space::Space;
use crate::search::{Evaluated, Rng};
use kernels_gpu::row::Row;
use rand::Rng as _;

/// Crossings that are drawn before the parents count as exhausted.
const CROSSINGS: u32 = 8;
/// How often a child differs from both parents in one more column, or a parent is refined instead.
const MUTATION: f64 = 0.3;

/// Crosses two parents of the population; refines one where they have no untried child.
pub struct Crossover {
    /// The rows.
    pub space: Space,
    /// Where parents come from. The single best has nobody to be crossed with, so an elite takes its place.
    pub management: Management,
}

impl Strategy for Crossover {
    fn propose(&mut self, history: &[Evaluated], rng: &mut Rng) -> Option<Row> {
        let management = match self.management {
            Management::SingleBest => Management::ELITE,
            other => other,
        };
        let population = Population::after(management, history);
        let tried = tried(history);
        for _ in 0..CROSSINGS {
            let (Some(a), Some(b)) = (population.parent(rng), population.parent(rng)) else { break };
            let Some(mut child) = self.space.crossover(&a.row, &b.row, rng) else { continue };
            if rng.random_bool(MUTATION) {
                child = self.space.step(&child, &tried, rng).unwrap_or(child);
            }
            if !tried.contains(&child) {
                return Some(child);
            }
        }
        refine(&self.space, &population, history, rng)
    }
}
