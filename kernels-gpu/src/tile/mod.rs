//! Tiles in shared memory and fragments in registers: who holds which element, and where it lies.

pub mod descriptor;
pub mod fragment;
pub mod position;
#[cfg(target_arch = "nvptx64")]
pub mod smem_tile;
pub mod swizzle;
pub mod warp_tile;
