//! Scores of users: what a problem knows of one, and its evaluation in float64.

use crate::error::Error;
use ferroflash_score::{Elements, Query, Score, TABLES_MAX, Tables};
use kernels_gpu::row::ScoreName;
use std::hash::{Hash, Hasher};

/// A function of a user's crate ([`ferroflash_score::Score`]), by its name, with the lengths of its tables.
#[derive(Clone, Copy)]
pub struct UserScore {
    name: ScoreName,
    elements: &'static [Elements],
    lengths: [u32; TABLES_MAX],
    of: fn(Query, u32, f64, &ScoreTables<'_>) -> f64,
    sees: Option<fn(Query, u32, &ScoreTables<'_>) -> bool>,
}

/// The tables of a score on the host.
#[derive(Clone, Copy, Debug)]
pub struct ScoreTables<'a>(pub [ScoreTable<'a>; TABLES_MAX]);

/// A table.
#[derive(Clone, Copy, Debug)]
pub enum ScoreTable<'a> {
    /// The score has none.
    None,
    /// float32.
    F32(&'a [f32]),
    /// u32.
    U32(&'a [u32]),
}

impl UserScore {
    /// The score of this type, whose tables have so many elements.
    ///
    /// # Errors
    /// [`Error::UserScore`] where its name cannot be one, or there is not one length, at least 1, for each of its tables.
    pub fn new<S: Score<f64>>(lengths: &[u32]) -> Result<UserScore, Error> {
        let refused = |reason: String| Error::UserScore { score: S::NAME, reason };
        let name = ScoreName::new(S::NAME).ok_or_else(|| refused(ScoreName::RULE.to_owned()))?;
        let tables = S::TABLES.len();
        if tables > TABLES_MAX {
            return Err(refused(format!("it has {tables} tables, {TABLES_MAX} at most")));
        }
        if lengths.len() != tables {
            return Err(refused(format!("it has {tables} tables, {} lengths were given", lengths.len())));
        }
        if let Some(table) = lengths.iter().position(|&length| length == 0) {
            return Err(refused(format!("table {table} has no elements")));
        }
        let mut all = [0; TABLES_MAX];
        all[..tables].copy_from_slice(lengths);
        Ok(UserScore {
            name,
            elements: S::TABLES,
            lengths: all,
            of: |query, key, scaled, tables| S::new(query, tables).score(scaled, key, tables),
            sees: S::MASKS.then_some(|query, key, tables| S::new(query, tables).sees(key, tables)),
        })
    }

    /// Its name.
    pub fn name(&self) -> ScoreName {
        self.name
    }

    /// The type and the number of the elements of a table, where it has one of this number.
    pub fn table(&self, number: usize) -> Option<(Elements, u32)> {
        Some((*self.elements.get(number)?, self.lengths[number]))
    }

    /// The score of a key in float64, from scale · Q·Kᵀ.
    pub fn of(&self, query: Query, key: u32, scaled: f64, tables: &ScoreTables<'_>) -> f64 {
        (self.of)(query, key, scaled, tables)
    }

    /// Whether it shows a key to a query.
    pub fn sees(&self, query: Query, key: u32, tables: &ScoreTables<'_>) -> bool {
        self.sees.is_none_or(|sees| sees(query, key, tables))
    }
}

impl std::fmt::Debug for UserScore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tables = &self.lengths[..self.elements.len()];
        f.debug_struct("UserScore").field("name", &self.name).field("tables", &tables).finish()
    }
}

/// One crate has one function of a name.
impl PartialEq for UserScore {
    fn eq(&self, other: &Self) -> bool {
        (self.name, self.elements, self.lengths) == (other.name, other.elements, other.lengths)
    }
}

impl Eq for UserScore {}

impl Hash for UserScore {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.name, self.elements, self.lengths).hash(state);
    }
}

/// The element of this index, or the last one.
fn element<T: Copy + Default>(elements: &[T], index: u32) -> T {
    let at = (index as usize).min(elements.len().saturating_sub(1));
    elements.get(at).copied().unwrap_or_default()
}

impl Tables<f64> for ScoreTables<'_> {
    fn number<const TABLE: usize>(&self, index: u32) -> f64 {
        match self.0[TABLE] {
            ScoreTable::F32(numbers) => element(numbers, index).into(),
            ScoreTable::None | ScoreTable::U32(_) => f64::NAN,
        }
    }

    fn word<const TABLE: usize>(&self, index: u32) -> u32 {
        match self.0[TABLE] {
            ScoreTable::U32(words) => element(words, index),
            ScoreTable::None | ScoreTable::F32(_) => 0,
        }
    }
}
