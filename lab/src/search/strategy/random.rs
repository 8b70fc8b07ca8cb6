//! Any row that was not tried: what the others have to beat.

use super::{Strategy, tried};
use crate::search::space::Space;
use crate::search::{Evaluated, Rng};
use kernels_gpu::row::Row;

/// Draws from all untried rows alike.
pub struct Random {
    /// The rows.
    pub space: Space,
}

impl Strategy for Random {
    fn propose(&mut self, history: &[Evaluated], rng: &mut Rng) -> Option<Row> {
        self.space.random(&tried(history), rng)
    }
}
