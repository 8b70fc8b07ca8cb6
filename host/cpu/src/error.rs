//! Why a call is refused.

/// What is wrong with a call, with the values that show it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A dimension is zero.
    #[error("{dimension} is 0: every dimension must be at least 1")]
    ZeroSized {
        /// The dimension.
        dimension: &'static str,
    },
    /// The query heads cannot share the KV heads evenly.
    #[error("heads_q {heads_q} is not a multiple of heads_kv {heads_kv}")]
    HeadsNotDivisible {
        /// Query heads.
        heads_q: usize,
        /// KV heads.
        heads_kv: usize,
    },
    /// A number cannot be used.
    #[error("{what} {value:?} cannot be used: it must be {allowed}")]
    Number {
        /// What it is.
        what: &'static str,
        /// Its value.
        value: f64,
        /// What it must be.
        allowed: &'static str,
    },
    /// Elements of an output would be at one place.
    #[error("{tensor}: stride {stride} of {dimension} cannot be used: elements of the output would coincide")]
    Coincide {
        /// The output.
        tensor: &'static str,
        /// The dimension.
        dimension: &'static str,
        /// Its stride in elements.
        stride: i64,
    },
    /// The new values would replace the new keys.
    #[error("the caches of K and V are one, and new K and new V are two")]
    OneCache,
    /// An address that the call needs is null.
    #[error("the address of {tensor} is null")]
    Null {
        /// The tensor.
        tensor: &'static str,
    },
    /// Elements of a type that only attention itself takes.
    #[error("float64 is not supported here: attention and its gradients alone take it")]
    Double,
    /// What has no gradient.
    #[error("{what} have no gradients")]
    NoGradient {
        /// What it is.
        what: &'static str,
    },
    /// A number of elements that cannot be rotated.
    #[error("rotary_dim {dim} cannot be rotated: multiples of 16 up to head_dim {head_dim} can")]
    Rotary {
        /// Elements asked for.
        dim: usize,
        /// Elements of a vector.
        head_dim: usize,
    },
    /// Tables of rotations that end before a sequence may.
    #[error(
        "rotary_cos and rotary_sin have {positions} rows, and a sequence of the cache may have {needed} keys"
    )]
    RotaryPositions {
        /// Their rows.
        positions: usize,
        /// Keys that a sequence may have.
        needed: usize,
    },
    /// An index points outside its tensor.
    #[error("{what} of sequence {batch} is {value}, must be {from} to {to}")]
    OutOfRange {
        /// What it is.
        what: &'static str,
        /// The sequence.
        batch: usize,
        /// Its value.
        value: i64,
        /// The least allowed.
        from: i64,
        /// The most allowed.
        to: i64,
    },
}
