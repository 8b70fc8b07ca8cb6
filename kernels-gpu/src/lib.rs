//! Flash attention kernels in Rust: the table of kernels, their geometry, and the device code itself.
//!
//! Built for `nvptx64-nvidia-cuda` this crate is the kernels. Built for the host it is what the host and the
//! tests share with them: the table, the geometry, the parameter block, the lane maps and the swizzle.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

#[cfg(feature = "manifest")]
extern crate alloc;

// First: its macro is in scope from here on.
#[macro_use]
pub mod table;

pub mod descriptor;
pub mod divisor;
pub mod fragment;
pub mod geometry;
#[cfg(feature = "manifest")]
pub mod manifest;
pub mod params;
pub mod row;
pub mod scheduler;
pub mod swizzle;

#[cfg(target_arch = "nvptx64")]
pub mod combine;
#[cfg(target_arch = "nvptx64")]
pub mod copy;
#[cfg(target_arch = "nvptx64")]
pub mod element;
#[cfg(target_arch = "nvptx64")]
pub mod entry;
#[cfg(target_arch = "nvptx64")]
pub mod epilogue;
#[cfg(target_arch = "nvptx64")]
pub mod forward;
#[cfg(all(target_arch = "nvptx64", ferroflash_wgmma))]
pub mod forward_wgmma;
#[cfg(target_arch = "nvptx64")]
pub mod gemm;
#[cfg(target_arch = "nvptx64")]
pub mod mask;
#[cfg(target_arch = "nvptx64")]
pub mod nonfinite;
#[cfg(target_arch = "nvptx64")]
pub mod ptx;
#[cfg(target_arch = "nvptx64")]
pub mod softmax;
#[cfg(target_arch = "nvptx64")]
pub mod tile;
