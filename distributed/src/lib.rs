//! Context parallelism: attention over a sequence that is split among several devices (**ranks**).
//!
//! Each rank holds two chunks of the sequence ([`Sharding`]) and computes O and LSE of its queries. [`ContextParallel`] is the schedule of
//! one rank: what it exchanges with the others, and which problems it computes on what it received. It moves nothing itself: a
//! [`Transport`] does, over NCCL ([`nccl::Nccl`]) or between threads of one process ([`Local`]). [`SplitCache`] decodes over a KV cache
//! that is split among ranks. [`model`] predicts bytes, memory and times, and chooses among the methods.

mod agreement;
mod all_gather;
mod alone;
mod context;
mod copies;
mod error;
mod lane;
mod local;
pub mod model;
pub mod nccl;
mod ring;
mod shape;
mod sharding;
mod split_cache;
mod transport;
mod ulysses;

pub use context::{ContextOptions, ContextParallel, Method, RankTensors};
pub use copies::Copies;
pub use error::Error;
pub use local::{Local, RankRun, in_threads, over_ranks, over_transports};
pub use sharding::{ShardRun, Sharding, shard_runs};
pub use split_cache::SplitCache;
pub use transport::{Message, Piece, Step, Tensor, Ticket, Traffic, Transport};
