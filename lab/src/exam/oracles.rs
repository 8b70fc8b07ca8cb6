//! What is right on inputs that several candidates are asked about: computed once.

use crate::inputs::Inputs;
use check::verification::Oracle;
use ferroflash::Problem;
use kernels_gpu::row::Accumulation;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// Oracles by what they are of.
#[derive(Default)]
pub struct Oracles(Mutex<HashMap<u64, Arc<Oracle>>>);

impl Oracles {
    /// The oracle of these inputs for kernels with this accumulation.
    pub fn of(&self, problem: &Problem, inputs: &Inputs, accumulation: Accumulation) -> Arc<Oracle> {
        let mut hasher = DefaultHasher::new();
        (format!("{problem:?} {accumulation:?}"), &inputs.qkv, &inputs.seqlens_k).hash(&mut hasher);
        let key = hasher.finish();
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(oracle) = known().get(&key) {
            return oracle.clone();
        }
        // Without the lock: others need not wait for float64.
        let made = Arc::new(oracle(problem, inputs, accumulation));
        known().insert(key, made.clone());
        made
    }
}

/// The oracle of some inputs.
pub(super) fn oracle(problem: &Problem, inputs: &Inputs, accumulation: Accumulation) -> Oracle {
    let Inputs { qkv, seqlens_k } = inputs.clone();
    Oracle::new(problem, qkv, seqlens_k, &[accumulation], &|_, _| ())
}
