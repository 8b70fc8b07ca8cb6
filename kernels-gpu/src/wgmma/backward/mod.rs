//! The backward pass on wgmma and bulk copies: one warpgroup copies, the others compute 64 stationary rows each.
//!
//! A producer thread fills stages of streamed rows as they come free, and says of each stage whether it is seen in part; with `dkv` a
//! second warp writes its queries' statistics and limits beside it. A consumer issues S and dP of its rows and a stage from shared
//! memory, and multiplies P and dS, which stay in registers, with the same stage along its rows. Consumers share nothing but the stages,
//! so that one's element work runs under another's products; only in blocks that are seen in part do they look for NaN together.
//! `dqds` has one product, of the dS that a `dkv` has written, from shared memory, and 128 rows a consumer.
//! `dqdkv` has CTAs of both kinds.

pub mod config;
mod consumer;
pub mod dkv;
pub mod dq;
pub mod dqdkv;
pub mod dqds;
mod layout;
mod producer;
mod turns;
