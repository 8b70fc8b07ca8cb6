//! The crate's only inline assembly: one function an instruction, under the instruction's name.
//!
//! Shared-memory addresses are `u32` in the shared window; global addresses are `u64` in the global window.

pub mod cp_async;
pub mod ldmatrix;
pub mod math;
pub mod memory;
pub mod mma;
pub mod warp;
