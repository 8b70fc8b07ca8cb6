//! Problems that nobody knows before the session: lengths, heads, batch and mask from its seed.

use crate::problem_spec::{Mask, ProblemSpec, Shape};
use ferroflash::Row;

/// The longest hidden sequence: small enough for the simulator, long enough for several blocks and a ragged tail.
const SEQLEN_MAX: u32 = 320;

/// `count` problems for a row. Every second is causal, and no length is a multiple of a block.
pub fn hidden_problems(row: &Row, count: usize, seed: u64) -> Vec<ProblemSpec> {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x4c61_6221);
    let mut problems = Vec::new();
    for number in 0..count {
        let heads_kv = random.u32(1..=2);
        let heads_q = heads_kv * random.u32(1..=3);
        let mut length = || {
            let length = random.u32(2..=SEQLEN_MAX);
            if length.is_multiple_of(16) { length - 1 } else { length }
        };
        let (seqlen_q, seqlen_k) = (length(), length());
        let batch = random.u32(1..=2);
        let shape = Shape([batch, heads_q, heads_kv, seqlen_q, seqlen_k, row.head_dim]);
        let mask = if number % 2 == 0 { Mask::Causal } else { Mask::Full };
        problems.push(ProblemSpec { shape, dtype: row.dtype, mask });
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_problems_and_another_seed_others() {
        let row = kernels_gpu::table::VARIANTS[0].row;
        let problems = hidden_problems(&row, 6, 1);
        assert_eq!(problems, hidden_problems(&row, 6, 1));
        assert_ne!(problems, hidden_problems(&row, 6, 2));
        assert!(problems.iter().all(|spec| spec.problem().is_ok() && spec.fits(&row)));
        assert!(problems.iter().any(|spec| spec.mask == Mask::Full));
    }
}
