//! What is right on inputs that several candidates are asked about: computed once.

use crate::inputs::Inputs;
use check::verification::Oracle;
use ferroflash::Problem;
use kernels_gpu::row::Accumulation;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Elements of each tensor that an index is made of.
const SAMPLES: usize = 8;

/// Oracles by what they are of.
#[derive(Default)]
pub struct Oracles(Mutex<HashMap<Vec<u16>, Vec<Known>>>);

/// An oracle of inputs for kernels with an accumulation.
type Known = (Accumulation, Arc<Oracle>);

impl Oracles {
    /// The oracle of these inputs for kernels with this accumulation.
    pub fn of(&self, problem: &Problem, inputs: &Inputs, accumulation: Accumulation) -> Arc<Oracle> {
        // A few elements find the inputs, and only equal inputs are the same: a hash of all of them would take longer than comparing.
        let few = |tensor: &'_ Vec<u16>| tensor.iter().step_by(tensor.len() / SAMPLES + 1).copied().collect();
        let index: Vec<u16> = inputs.qkv.iter().map(few).collect::<Vec<Vec<u16>>>().concat();
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |(of, oracle): &&Known| {
            *of == accumulation
                && oracle.problem == *problem
                && oracle.qkv == inputs.qkv
                && oracle.seqlens_k == inputs.seqlens_k
        };
        if let Some((_, oracle)) = lock().get(&index).and_then(|known| known.iter().find(is_same)) {
            return oracle.clone();
        }
        // Without the lock: others need not wait for float64.
        let made = Arc::new(oracle(problem, inputs, accumulation));
        lock().entry(index).or_default().push((accumulation, made.clone()));
        made
    }
}

/// The oracle of some inputs.
pub(super) fn oracle(problem: &Problem, inputs: &Inputs, accumulation: Accumulation) -> Oracle {
    let Inputs { qkv, seqlens_k } = inputs.clone();
    Oracle::new(problem, qkv, seqlens_k, &[accumulation], &|_, _| ())
}
