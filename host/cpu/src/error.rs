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
    #[error("{what} {value} cannot be used: it must be {allowed}")]
    Number {
        /// What it is.
        what: &'static str,
        /// Its value.
        value: f32,
        /// What it must be.
        allowed: &'static str,
    },
    /// An address that the call needs is null.
    #[error("the address of {tensor} is null")]
    Null {
        /// The tensor.
        tensor: &'static str,
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
