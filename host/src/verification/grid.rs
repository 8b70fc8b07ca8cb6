//! The problems that every kernel is verified on.

use crate::error::Error;
use crate::problem::{Problem, Sizes};
use crate::random_input::InputKind;
use kernels_gpu::row::Dtype;

/// A set of problems, posed to every kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// A few small problems that reach every branch: seconds on a simulator.
    Quick,
    /// Every pair of the lengths 1, 17, 63, 65, 127, 199, 513, 1023, with every GQA ratio, mask and layout.
    Odd,
}

/// One problem of a grid, but for dtype and head_dim, which the kernel gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Batch entries.
    pub batch: u32,
    /// Query heads and KV heads.
    pub heads: (u32, u32),
    /// Query rows and keys.
    pub seqlens: (u32, u32),
    /// The causal mask.
    pub causal: bool,
    /// Distribution of the inputs.
    pub kind: InputKind,
}

impl Case {
    /// The problem for kernels of this dtype and head_dim.
    ///
    /// # Errors
    /// Those of [`Problem::new`].
    pub fn problem(&self, dtype: Dtype, head_dim: u32) -> Result<Problem, Error> {
        let sizes = Sizes {
            batch: self.batch,
            heads_q: self.heads.0,
            heads_kv: self.heads.1,
            seqlen_q: self.seqlens.0,
            seqlen_k: self.seqlens.1,
            head_dim,
        };
        Ok(Problem::new(sizes, dtype)?.with_causal(self.causal))
    }
}

impl Grid {
    /// Its problems; each is run in both layouts.
    pub fn cases(self) -> Vec<Case> {
        let (lengths, ratios): (&[u32], &[(u32, u32)]) = match self {
            Grid::Quick => (&[1, 65, 127], &[(3, 1)]),
            Grid::Odd => (&[1, 17, 63, 65, 127, 199, 513, 1023], &[(2, 2), (4, 2), (3, 1)]),
        };
        let mut cases = Vec::new();
        for (index, &seqlen_q) in lengths.iter().enumerate() {
            for (other, &seqlen_k) in lengths.iter().enumerate() {
                for (ratio, &heads) in ratios.iter().enumerate() {
                    for causal in [false, true] {
                        // Every kind meets every length, ratio and mask somewhere.
                        let kind = match (index + other + ratio) % 4 {
                            0 | 1 => InputKind::Random,
                            2 => InputKind::Outliers,
                            _ => InputKind::NotANumber,
                        };
                        let batch = if seqlen_q.max(seqlen_k) < 128 { 2 } else { 1 };
                        cases.push(Case { batch, heads, seqlens: (seqlen_q, seqlen_k), causal, kind });
                    }
                }
            }
        }
        cases
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Case { batch, heads, seqlens, causal, kind } = self;
        let mask = if *causal { "causal" } else { "full" };
        let (heads_q, heads_kv) = heads;
        let (seqlen_q, seqlen_k) = seqlens;
        write!(f, "B{batch} H{heads_q}/{heads_kv} S{seqlen_q}x{seqlen_k} {mask} {}", kind.name())
    }
}
