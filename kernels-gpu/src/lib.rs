//! Flash attention kernels in Rust: the table of kernels, their geometry, and the device code itself.
//!
//! Built for `nvptx64-nvidia-cuda` this crate is the kernels. Built for the host it is what the host and the
//! tests share with them: the table, the geometry, the parameter block, the lane maps and the swizzle.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

#[cfg(feature = "manifest")]
extern crate alloc;

// First: their macros are in scope from here on.
#[macro_use]
pub mod steps;
#[macro_use]
pub mod table;
#[macro_use]
pub mod backward;

pub mod divisor;
pub mod dropout;
pub mod geometry;
pub mod keys;
#[cfg(feature = "manifest")]
pub mod manifest;
pub mod params;
pub mod row;
mod row_check;
pub mod scheduler;
mod score_name;
pub mod sequence;
pub mod shape;
pub mod step_params;
pub mod tanh;
pub mod tile;
pub mod visible;

#[cfg(all(target_arch = "nvptx64", not(ferroflash_wgmma)))]
pub mod append;
#[cfg(target_arch = "nvptx64")]
pub mod config;
#[cfg(all(target_arch = "nvptx64", not(ferroflash_wgmma)))]
pub mod copy;
#[cfg(target_arch = "nvptx64")]
pub mod dropped;
#[cfg(target_arch = "nvptx64")]
pub mod element;
#[cfg(target_arch = "nvptx64")]
pub mod entry;
#[cfg(target_arch = "nvptx64")]
pub mod math;
#[cfg(target_arch = "nvptx64")]
pub mod mma;
#[cfg(target_arch = "nvptx64")]
pub mod ptx;
#[cfg(target_arch = "nvptx64")]
pub mod queries;
#[cfg(target_arch = "nvptx64")]
pub mod score;
#[cfg(target_arch = "nvptx64")]
pub mod score_fragment;
#[cfg(target_arch = "nvptx64")]
pub mod softcap;
#[cfg(target_arch = "nvptx64")]
pub mod user_score;
#[cfg(all(target_arch = "nvptx64", ferroflash_wgmma))]
pub mod wgmma;
#[cfg(target_arch = "nvptx64")]
pub mod work;
