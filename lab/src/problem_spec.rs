//! A problem by its numbers, as lab.toml, records and child processes write it.

use ferroflash::{Dtype, Problem, Row, Sizes};
use serde::{Deserialize, Serialize};

/// Sizes of a problem, written `B,HQ,HKV,SQ,SKV,D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shape(pub [u32; 6]);

/// Why a shape is refused.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    /// Not six numbers.
    #[error("a shape is six sizes from 1 up, B,HQ,HKV,SQ,SKV,D, not {0:?}")]
    Format(String),
    /// Six numbers that are no problem.
    #[error("shape {shape}: {source}")]
    Impossible {
        /// The shape.
        shape: String,
        /// The host's reason.
        source: ferroflash::Error,
    },
}

impl Shape {
    /// The sizes.
    pub fn sizes(self) -> Sizes {
        let [batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim] = self.0;
        Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim }
    }

    /// Elements of a query, key and value vector.
    pub fn head_dim(self) -> u32 {
        self.0[5]
    }
}

impl std::str::FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Shape, ShapeError> {
        let format = || ShapeError::Format(text.to_owned());
        let numbers: Vec<u32> = text
            .split(',')
            .map(|size| size.trim().parse().map_err(|_| format()))
            .collect::<Result<_, _>>()?;
        let shape = Shape(numbers.try_into().map_err(|_| format())?);
        Problem::new(shape.sizes(), Dtype::F16)
            .map_err(|source| ShapeError::Impossible { shape: text.to_owned(), source })?;
        Ok(shape)
    }
}

impl TryFrom<String> for Shape {
    type Error = ShapeError;

    fn try_from(text: String) -> Result<Shape, ShapeError> {
        text.parse()
    }
}

impl From<Shape> for String {
    fn from(shape: Shape) -> String {
        shape.to_string()
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&words.join(","))
    }
}

/// The mask of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mask {
    /// Every query sees every key.
    Full,
    /// Aligned bottom-right.
    Causal,
}

impl Mask {
    /// The name in files and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Mask::Full => "full",
            Mask::Causal => "causal",
        }
    }
}

impl std::fmt::Display for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A problem to test or time a kernel on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProblemSpec {
    /// The sizes.
    pub shape: Shape,
    /// Element type of Q, K, V and O.
    pub dtype: Dtype,
    /// The mask.
    pub mask: Mask,
}

impl ProblemSpec {
    /// The host's problem, contiguous `bhsd`.
    ///
    /// # Errors
    /// Those of [`Problem::new`].
    pub fn problem(&self) -> Result<Problem, ferroflash::Error> {
        Ok(Problem::new(self.shape.sizes(), self.dtype)?.with_causal(self.mask == Mask::Causal))
    }

    /// Whether a row computes problems of this element type and head_dim.
    pub fn fits(&self, row: &Row) -> bool {
        (row.dtype, row.head_dim) == (self.dtype, self.shape.head_dim())
    }

    /// Floating-point operations of the two products, of a causal mask the visible share.
    pub fn flops(&self) -> f64 {
        let [batch, heads_q, _, seqlen_q, seqlen_k, head_dim] = self.shape.0.map(u64::from);
        let causal = self.mask == Mask::Causal;
        kernels_gpu::geometry::flops(batch, heads_q, seqlen_q, seqlen_k, head_dim, causal)
    }

    /// Bytes of Q, K, V and O, each once.
    pub fn bytes(&self) -> f64 {
        let [batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim] = self.shape.0.map(f64::from);
        let rows = 2.0 * heads_q * seqlen_q + 2.0 * heads_kv * seqlen_k;
        batch * rows * head_dim * f64::from(self.dtype.bytes())
    }
}

impl std::fmt::Display for ProblemSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.shape, self.dtype.name(), self.mask.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_six_sizes_that_make_a_problem() {
        let shape: Shape = "1, 8,8,512,512,64".parse().expect("a shape");
        assert_eq!(shape.to_string(), "1,8,8,512,512,64");
        for bad in ["1,8,8,512,512", "1,8,8,512,512,64,1", "a,8,8,512,512,64", "", "1,-8,8,512,512,64"] {
            assert!(matches!(bad.parse::<Shape>(), Err(ShapeError::Format(_))), "{bad}");
        }
        let error = "1,8,3,512,512,64".parse::<Shape>().expect_err("8 is no multiple of 3");
        assert!(error.to_string().contains("heads_q 8 is not a multiple of heads_kv 3"), "{error}");
        assert!("1,8,8,512,512,84".parse::<Shape>().is_err());
    }

    #[test]
    fn a_causal_mask_has_fewer_operations_and_as_many_bytes() {
        let shape = "1,2,1,4,4,32".parse().expect("a shape");
        let full = ProblemSpec { shape, dtype: Dtype::F16, mask: Mask::Full };
        let causal = ProblemSpec { mask: Mask::Causal, ..full };
        assert_eq!(full.flops(), 4.0 * 2.0 * 16.0 * 32.0);
        assert_eq!(causal.flops(), 4.0 * 2.0 * 10.0 * 32.0);
        assert_eq!(full.bytes(), 2.0 * 32.0 * (2.0 * 2.0 * 4.0 + 2.0 * 4.0));
        assert_eq!(causal.to_string(), "1,2,1,4,4,32 f16 causal");
    }
}
