//! Runs decoded programs: CTAs of warps of paths of lanes.

mod access;
mod atomic;
mod barrier;
mod blocked;
mod bulk;
mod call;
mod collective;
mod copy;
pub(crate) mod cta;
mod descriptor;
mod join;
mod local;
mod matrix;
mod mbarrier;
mod mma;
mod registers;
mod scalar;
mod schedule;
mod together;
mod tracking;
mod warp;
mod wgmma;
mod wmma;
