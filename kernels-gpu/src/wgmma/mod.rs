//! The kernels on wgmma and bulk tensor copies: compute capability 9.0 alone.

pub mod backward;
pub mod config;
mod consumer;
pub mod forward;
mod gemm;
mod k_loop;
mod pipeline;
mod producer;
mod ring;
mod scores;
mod scrubber;
mod weights;
mod work_tile;
