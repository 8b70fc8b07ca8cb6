//! Which candidates are remembered as parents: the single best, an elite, or islands whose members differ in resources.

use super::{Evaluated, Rng};
use kernels_gpu::geometry;
use kernels_gpu::row::Row;
use rand::Rng as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;

/// How a population is managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Management {
    /// Only the best candidate.
    SingleBest,
    /// The best `size` candidates.
    Elite {
        /// Candidates that are kept, at least 1.
        size: usize,
    },
    /// Islands that evolve apart. Each keeps the best candidate of every [`Cell`].
    Islands {
        /// Islands, at least 1.
        islands: usize,
        /// After so many candidates the best of each island also joins the next one; 0 for never.
        migrate_every: usize,
    },
}

impl Management {
    /// Four islands that exchange their best after every 16 candidates.
    pub const ISLANDS: Management = Management::Islands { islands: 4, migrate_every: 16 };
    /// The best four.
    pub const ELITE: Management = Management::Elite { size: 4 };
}

/// A name that no management has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no population: there are single-best, elite and islands")]
pub struct UnknownManagement {
    /// The name.
    pub name: String,
}

impl FromStr for Management {
    type Err = UnknownManagement;

    /// By name, with the usual sizes.
    fn from_str(name: &str) -> Result<Self, UnknownManagement> {
        match name {
            "single-best" => Ok(Management::SingleBest),
            "elite" => Ok(Management::ELITE),
            "islands" => Ok(Management::ISLANDS),
            _ => Err(UnknownManagement { name: name.to_owned() }),
        }
    }
}

/// What makes candidates different enough for both to be kept: shared memory, registers and stages, in classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    smem: usize,
    registers: usize,
    stages: u32,
}

impl Cell {
    /// The cell of a row. Its registers are the estimate that the resource model makes before anything is compiled.
    pub fn of(row: &Row) -> Self {
        const SMEM_KB: [u32; 5] = [16, 32, 48, 64, 99];
        const REGISTERS: [u32; 4] = [80, 112, 144, 192];
        let class = |limits: &[u32], value: u32| limits.iter().filter(|limit| value > **limit).count();
        Self {
            smem: class(&SMEM_KB, geometry::smem_bytes(row).div_ceil(1024)),
            registers: class(&REGISTERS, geometry::registers_estimate(row)),
            stages: row.stages,
        }
    }
}

/// A candidate that is remembered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Its row.
    pub row: Row,
    /// Its score; lower is better.
    pub score: f64,
}

/// The candidates that are remembered after a history.
#[derive(Clone, Debug, PartialEq)]
pub struct Population {
    islands: Vec<BTreeMap<Cell, Member>>,
    /// Best first; empty with islands.
    elite: Vec<Member>,
    /// Candidates taken in, which says whose turn it is.
    taken: usize,
}

impl Population {
    /// What is remembered after `history`: a function of it, so that nothing has to be stored.
    pub fn after(management: Management, history: &[Evaluated]) -> Self {
        let islands = match management {
            Management::Islands { islands, .. } => islands.max(1),
            _ => 0,
        };
        let mut population = Self { islands: vec![BTreeMap::new(); islands], elite: Vec::new(), taken: 0 };
        for candidate in history.iter().filter(|candidate| candidate.is_counted()) {
            if let Some(score) = candidate.score() {
                population.take(management, Member { row: candidate.row, score });
            }
            population.taken += 1;
            if let Management::Islands { migrate_every, .. } = management
                && migrate_every > 0
                && population.taken.is_multiple_of(migrate_every)
            {
                population.migrate();
            }
        }
        population
    }

    fn take(&mut self, management: Management, member: Member) {
        let size = match management {
            Management::SingleBest => 1,
            Management::Elite { size } => size.max(1),
            Management::Islands { .. } => {
                let turn = self.turn();
                settle(&mut self.islands[turn], member);
                return;
            }
        };
        // After equal ones: the earlier candidate stays in front.
        let at = self.elite.partition_point(|other| other.score <= member.score);
        self.elite.insert(at, member);
        self.elite.truncate(size);
    }

    /// The best of each island, as it was before, also joins the next one.
    fn migrate(&mut self) {
        let travellers: Vec<Option<Member>> = self.islands.iter().map(best_of).collect();
        let count = self.islands.len();
        for (from, traveller) in travellers.into_iter().enumerate() {
            if let Some(member) = traveller {
                settle(&mut self.islands[(from + 1) % count], member);
            }
        }
    }

    /// The island that the next candidate belongs to.
    fn turn(&self) -> usize {
        self.taken % self.islands.len().max(1)
    }

    /// The candidates that may be parents of the next one, best first.
    pub fn parents(&self) -> Vec<Member> {
        let Some(island) = self.islands.get(self.turn()) else { return self.elite.clone() };
        let mut members: Vec<Member> = island.values().copied().collect();
        members.sort_by(|a, b| a.score.total_cmp(&b.score));
        members
    }

    /// A parent, by chance: the k-th best is twice as likely as the next.
    pub fn parent(&self, rng: &mut Rng) -> Option<Member> {
        let parents = self.parents();
        let mut at = 0;
        while at + 1 < parents.len() && rng.random_bool(0.5) {
            at += 1;
        }
        parents.get(at).copied()
    }

    /// The islands' members by cell; one group of all for the other managements.
    pub fn groups(&self) -> Vec<Vec<Member>> {
        if self.islands.is_empty() {
            return vec![self.elite.clone()];
        }
        self.islands.iter().map(|island| island.values().copied().collect()).collect()
    }
}

/// Takes a member in where its cell is empty or holds a worse one.
fn settle(island: &mut BTreeMap<Cell, Member>, member: Member) {
    let place = island.entry(Cell::of(&member.row)).or_insert(member);
    if member.score < place.score {
        *place = member;
    }
}

fn best_of(island: &BTreeMap<Cell, Member>) -> Option<Member> {
    island.values().copied().min_by(|a, b| a.score.total_cmp(&b.score))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::space::Space;
    use crate::search::tests::{scored, usual_row};
    use crate::search::{Outcome, rng};

    /// Every seventh row of the space, with scores that go up and down.
    fn history() -> Vec<Evaluated> {
        let space = Space::new(usual_row());
        let rows = space.rows().iter().step_by(7);
        rows.enumerate().map(|(i, row)| scored(*row, ((i * 37) % 101) as f64)).collect()
    }

    #[test]
    fn the_single_best_and_the_elite_are_the_best_in_order() {
        let history = history();
        let mut scores: Vec<f64> = history.iter().filter_map(Evaluated::score).collect();
        scores.sort_by(f64::total_cmp);
        let kept = |management| -> Vec<f64> {
            Population::after(management, &history).parents().iter().map(|member| member.score).collect()
        };
        assert_eq!(kept(Management::SingleBest), scores[..1]);
        assert_eq!(kept(Management::ELITE), scores[..4]);
    }

    #[test]
    fn an_island_keeps_the_best_of_each_cell() {
        let row = usual_row();
        let (better, worse) = (Row { min_ctas: 2, ..row }, row);
        assert_eq!(Cell::of(&better), Cell::of(&worse), "the cap is not in the cell");
        let other = Row { stages: 1, ..row };
        let management = Management::Islands { islands: 1, migrate_every: 0 };
        let population =
            Population::after(management, &[scored(worse, 2.0), scored(better, 1.0), scored(other, 9.0)]);
        let rows: Vec<Row> = population.parents().iter().map(|member| member.row).collect();
        assert_eq!(rows, [better, other]);
    }

    #[test]
    fn islands_evolve_apart_until_their_best_move_on() {
        let row = usual_row();
        let rows = [1, 2, 3].map(|stages| Row { stages, ..row });
        let history = [scored(rows[0], 1.0), scored(rows[1], 2.0)];
        let apart = Population::after(Management::Islands { islands: 2, migrate_every: 0 }, &history);
        assert_eq!(apart.groups().iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
        let met = Population::after(Management::Islands { islands: 2, migrate_every: 2 }, &history);
        assert_eq!(met.groups().iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn refused_candidates_take_their_turn_and_duplicates_do_not() {
        let row = usual_row();
        let management = Management::Islands { islands: 2, migrate_every: 0 };
        let with = |outcome| {
            let first = Evaluated { outcome, ..scored(row, 0.0) };
            Population::after(management, &[first, scored(row, 1.0)]).groups()
        };
        assert_eq!(with(Outcome::Refused { reason: String::new() })[1].len(), 1);
        assert_eq!(with(Outcome::Duplicate { of: String::new() })[0].len(), 1);
    }

    #[test]
    fn managements_have_names() {
        assert_eq!("islands".parse(), Ok(Management::ISLANDS));
        assert!("continents".parse::<Management>().is_err());
    }

    #[test]
    fn sizes_of_zero_are_one() {
        let history = history();
        for management in
            [Management::Elite { size: 0 }, Management::Islands { islands: 0, migrate_every: 0 }]
        {
            assert!(Population::after(management, &history).parent(&mut rng(0, 0)).is_some());
        }
        assert!(Population::after(Management::ISLANDS, &[]).parent(&mut rng(0, 0)).is_none());
    }
}
