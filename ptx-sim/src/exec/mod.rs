//! Runs decoded programs: CTAs of warps of paths of lanes.

mod access;
mod atomic;
mod barrier;
mod call;
mod collective;
mod copy;
pub(crate) mod cta;
mod join;
mod local;
mod matrix;
mod mma;
mod scalar;
mod together;
mod warp;
mod wmma;
