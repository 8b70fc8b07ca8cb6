//! The standard problems, by name.

use ferroflash::{Dtype, Error, Problem, Sizes};

/// B, HQ, HKV, SQ, SKV, D.
pub type Shape = [u32; 6];

/// Decoding: one query, four query heads a KV head.
pub const DECODE: Shape = [8, 32, 8, 1, 8192, 128];
/// Too few tiles to fill a device, and many keys.
pub const FEW_HEADS: Shape = [1, 8, 1, 128, 32768, 128];

/// The shapes of the device's benchmarks: short, long and very long, each head_dim, grouped heads, few heads, and one query.
pub const STANDARD: [Shape; 20] = [
    [1, 1, 1, 128, 128, 64],
    [1, 8, 8, 512, 512, 64],
    [2, 8, 8, 512, 512, 64],
    [4, 8, 8, 512, 512, 64],
    [4, 16, 16, 512, 512, 64],
    [8, 16, 16, 512, 512, 64],
    [4, 32, 32, 4096, 4096, 64],
    [4, 16, 16, 4096, 4096, 128],
    [1, 16, 16, 16384, 16384, 128],
    [4, 32, 32, 4096, 4096, 32],
    [4, 16, 16, 4096, 4096, 96],
    [8, 8, 8, 512, 512, 256],
    [4, 8, 8, 4096, 4096, 256],
    [2, 32, 8, 2048, 2048, 128],
    [1, 2, 2, 16384, 16384, 128],
    FEW_HEADS,
    DECODE,
    [1, 32, 8, 1, 32768, 128],
    [64, 32, 8, 1, 4096, 128],
    [8, 32, 4, 1, 8192, 512],
];

/// A problem without a mask.
///
/// # Errors
/// Those of [`Problem::new`].
pub fn problem(shape: Shape, dtype: Dtype) -> Result<Problem, Error> {
    let [batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim] = shape;
    Problem::new(Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim }, dtype)
}

/// Every standard shape with both dtypes and masks; a single query sees every key under either mask, and is there once.
///
/// # Errors
/// Those of [`Problem::new`].
pub fn standard() -> Result<Vec<Problem>, Error> {
    let mut problems = Vec::new();
    for shape in STANDARD {
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let full = problem(shape, dtype)?;
            problems.push(full);
            if full.sizes().seqlen_q > 1 {
                problems.push(full.with_causal(true));
            }
        }
    }
    Ok(problems)
}

/// `4,32,32,4096,4096,64 f16 causal`.
pub fn name(problem: &Problem) -> String {
    let s = problem.sizes();
    let sizes = [s.batch, s.heads_q, s.heads_kv, s.seqlen_q, s.seqlen_k, s.head_dim];
    let mask = if problem.causal() { "causal" } else { "full" };
    format!("{} {} {mask}", sizes.map(|size| size.to_string()).join(","), problem.dtype().name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_standard_problem_is_valid_and_has_a_name_of_its_own() {
        let problems = standard().expect("valid");
        let names: BTreeSet<String> = problems.iter().map(name).collect();
        assert_eq!(names.len(), STANDARD.len() * 4 - 4 * 2);
        assert_eq!(names.len(), problems.len());
        assert!(names.contains("2,32,8,2048,2048,128 bf16 causal"));
    }

    #[test]
    fn every_head_dim_of_the_table_is_measured_but_those_of_ragged_batches_alone() {
        let head_dims: BTreeSet<u32> = STANDARD.iter().map(|shape| shape[5]).collect();
        let all = kernels_gpu::table::VARIANTS.iter();
        for variant in all
            .filter(|variant| kernels_gpu::geometry::problems_head_dim(&variant.row) == variant.row.head_dim)
        {
            assert!(head_dims.contains(&variant.row.head_dim), "{}", variant.entry);
        }
    }
}
