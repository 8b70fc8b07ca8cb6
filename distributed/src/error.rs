//! Why attention over several ranks cannot be, or ended.

use crate::transport::Step;
use std::time::Duration;

/// What is wrong, with the values that show it, and the rank that is to blame.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library refused or failed on this rank.
    #[error(transparent)]
    Library(#[from] std::sync::Arc<ferroflash::Error>),
    /// A rank is gone.
    #[error("rank {rank} ended without finishing ({step}): {reason}")]
    Died {
        /// The rank.
        rank: u32,
        /// The step that others needed it for, or that it failed in.
        step: Step,
        /// What it said, or that it said nothing.
        reason: String,
    },
    /// Nothing came from a rank within the limit.
    #[error("nothing came from rank {rank} for {} ms ({step})", limit.as_millis())]
    Stalled {
        /// The rank.
        rank: u32,
        /// The step that it was needed for.
        step: Step,
        /// How long was waited.
        limit: Duration,
    },
    /// An exchange did not end within the limit, and nothing tells which of the ranks keeps it.
    #[error("the exchange with ranks {ranks:?} did not end within {} ms ({step})", limit.as_millis())]
    Unfinished {
        /// The ranks that take part in it.
        ranks: Vec<u32>,
        /// The first step that is not over.
        step: Step,
        /// How long was waited.
        limit: Duration,
    },
    /// Ranks want to compute different things.
    #[error("rank {rank} has {what} {theirs}, rank {other} has {ours} ({step})")]
    Disagree {
        /// The rank that differs.
        rank: u32,
        /// The rank that it is compared with.
        other: u32,
        /// In what.
        what: &'static str,
        /// What the rank has.
        theirs: u64,
        /// What the other has.
        ours: u64,
        /// The step in which that was seen.
        step: Step,
    },
    /// A problem that a method cannot split among ranks.
    #[error("{method} cannot compute this over {world} ranks: {reason}")]
    Refused {
        /// The method.
        method: &'static str,
        /// Ranks.
        world: u32,
        /// Why not, and what can.
        reason: String,
    },
    /// There is no NCCL.
    #[error("no NCCL: {reason} (searched {searched}); install it, or name the library in FERROFLASH_LIBNCCL")]
    NoNccl {
        /// The files searched.
        searched: String,
        /// Why none could be used.
        reason: String,
    },
    /// A call of NCCL failed.
    #[error("NCCL: {call} failed: {reason} ({step})")]
    Nccl {
        /// The call.
        call: &'static str,
        /// NCCL's words.
        reason: String,
        /// In which step.
        step: Step,
    },
}

impl From<ferroflash::Error> for Error {
    fn from(error: ferroflash::Error) -> Error {
        Error::Library(std::sync::Arc::new(error))
    }
}
