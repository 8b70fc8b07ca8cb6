//! Dropout: weights of the softmax that are left out at random, in the forward pass and in its gradients alike.

use super::{Problem, Score};
use crate::error::Error;
use kernels_gpu::dropout::{self, WeightRow};
use kernels_gpu::params::ScoreParams;
use std::hash::{Hash, Hasher};

/// Which weights of the softmax are 0: O = (P∘Z) · V, where Z is 0 for them and 1 / (1 − p) for the others. LSE is that of all weights.
///
/// Z is a function of `seed` and `offset` and of where a weight stands: batch entry, query head, query and key, both counted within their
/// sequence. It is FlashAttention-2's: p is rounded to a 256th, and the factor is not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropout {
    /// The probability with which a weight is left out: 0, which is no dropout, or more, and below 1.
    pub p: f32,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Where their counters start. Calls of one seed whose offsets are at least [`Dropout::counters`] apart share no random numbers.
    pub offset: u64,
}

impl Dropout {
    /// By how much a call of a problem should move the offset of the next one.
    pub fn counters(problem: &Problem) -> u64 {
        u64::from(problem.sizes().batch) * u64::from(problem.sizes().heads_q) * dropout::LANES
    }

    /// What weights that are kept are multiplied with.
    pub fn factor(&self) -> f32 {
        1.0 / (1.0 - self.p)
    }

    /// Whether the weight of a query head, counted through all batch entries, a query and a key is kept.
    pub fn keeps(&self, head: u32, query: u32, key: u32) -> bool {
        self.numbers().keeps(WeightRow { head, query }, key)
    }

    fn numbers(&self) -> dropout::Dropout {
        // At least 0, and below 256.
        let most = (f64::from(1.0 - self.p) * 255.0) as u32;
        dropout::Dropout { seed: self.seed, offset: self.offset, most }
    }

    /// What kernels are told.
    pub(crate) fn params(&self) -> ScoreParams {
        let dropout::Dropout { seed, offset, most } = self.numbers();
        ScoreParams {
            address: seed,
            batch_stride: offset.cast_signed(),
            factor: self.factor(),
            tree_keys: most,
            ..ScoreParams::default()
        }
    }
}

/// p is a number.
impl Eq for Dropout {}

impl Hash for Dropout {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.p.to_bits(), self.seed, self.offset).hash(state);
    }
}

impl Problem {
    /// With dropout; with p 0 there is none.
    ///
    /// # Errors
    /// [`Error::Dropout`] where p is not at least 0 and below 1, or the problem has a score of another kind or a tree.
    pub fn with_dropout(self, dropout: Dropout) -> Result<Problem, Error> {
        if !(0.0..1.0).contains(&dropout.p) {
            return Err(Error::Dropout { p: dropout.p, reason: "p is at least 0 and below 1" });
        }
        Problem { dropout: (dropout.p > 0.0).then_some(dropout), ..self }.checked_for_dropout()
    }

    /// Dropout, where there is any.
    pub fn dropout(&self) -> Option<Dropout> {
        self.dropout
    }

    /// The same where seed and offset are not told apart: what is planned alike.
    pub(crate) fn without_seed(self) -> Problem {
        Problem { dropout: self.dropout.map(|Dropout { p, .. }| Dropout { p, ..Dropout::default() }), ..self }
    }

    /// Refuses what has no kernel beside dropout.
    pub(super) fn checked_for_dropout(self) -> Result<Problem, Error> {
        let refused =
            |reason| self.dropout.map_or(Ok(self), |Dropout { p, .. }| Err(Error::Dropout { p, reason }));
        if self.score != Score::Plain {
            return refused(
                "there are no kernels that have a softcap, ALiBi, a bias or a score of your own as well",
            );
        }
        if self.mask.tree.is_some() {
            return refused("there are no kernels that have a tree mask as well");
        }
        Ok(self)
    }
}
