//! Why a step beside attention cannot be: appending, rotating, merging, sharing a prefix.

/// What is wrong with a step, with the values that show it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// Keys that cannot be appended, or queries that cannot be rotated.
    #[error("nothing can be appended: {reason}")]
    Append {
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// A number of elements that cannot be rotated.
    #[error("{dim} elements of a vector cannot be rotated: multiples of 16 up to head_dim {head_dim} can")]
    Rotary {
        /// Elements asked for.
        dim: u32,
        /// Elements of a vector.
        head_dim: u32,
    },
    /// Tables of cosines and sines that end before a sequence may.
    #[error("cos and sin have {positions} positions, and a sequence of the cache may have {needed} keys")]
    RotaryPositions {
        /// Rows of the tables.
        positions: u32,
        /// Keys that a sequence may have.
        needed: u32,
    },
    /// Partial results that cannot be merged.
    #[error("{states} partial results cannot be merged: 1 to {limit} can")]
    States {
        /// How many.
        states: u32,
        /// The most.
        limit: u32,
    },
    /// A prefix that sequences cannot share.
    #[error("a prefix of {keys} keys cannot be shared: {reason}")]
    SharedPrefix {
        /// Its keys.
        keys: u32,
        /// What it must be.
        reason: &'static str,
    },
}
