//! The backward pass: its table, rows, parameters, which tile a CTA has, and what both families' kernels do alike. The kernels
//! themselves are in `mma/backward/` and `wgmma/backward/`.
//!
//! Two kernels, without atomics. `dq` keeps queries and takes blocks of keys: S = Q·Kᵀ, dP = dO·Vᵀ, dQ += dS·K. `dkv` keeps keys and
//! takes blocks of queries of all query heads of its KV head: Sᵀ = K·Qᵀ, dPᵀ = V·dOᵀ, dV += Pᵀ·dO, dK += dSᵀ·Q. With the forward's L,
//! P = exp(S − L), and dS = P∘(dP − δ) with δ = rowsum(dO∘O) − dL (FlashAttention-2, algorithm 2).
//!
//! Or five products instead of seven: a step kernel computes the statistics, `dkvds` is a `dkv` that also writes dS to memory, and `dqds` is
//! dQ = dS·K alone; with wgmma `dqdkv` is both in one launch.
//!
//! Where there are fewer blocks of keys than two rounds of the device's CTAs, several CTAs share the steps of each, and a step kernel adds up their
//! float32 sums in order (`sums.rs`).

/// Queries of a head of a CTA of the kernel of statistics.
pub const STATISTICS_ROWS: u32 = 64;
/// Lanes of that kernel that share a row, 16 bytes of it at a time.
pub const STATISTICS_LANES: u32 = 8;

/// Queries and keys of a tile of the kernel of a bias' gradient, and elements of head_dim that it multiplies at a time.
pub const BIAS_TILE: u32 = 64;

/// Keys whose sums a CTA of the kernel adds that brings the splits of a block together; blocks are multiples of it.
pub const SUM_ROWS: u32 = 16;

pub mod order;
pub mod params;
pub mod row;
mod row_error;
pub mod spill;
#[macro_use]
pub mod table;

#[cfg(all(target_arch = "nvptx64", not(ferroflash_wgmma)))]
pub mod bias;
#[cfg(target_arch = "nvptx64")]
pub mod dq_tile;
#[cfg(target_arch = "nvptx64")]
pub mod nonfinite;
#[cfg(target_arch = "nvptx64")]
pub mod query_steps;
#[cfg(target_arch = "nvptx64")]
pub mod recompute;
#[cfg(target_arch = "nvptx64")]
pub mod score_rows;
#[cfg(target_arch = "nvptx64")]
pub mod sinks;
#[cfg(all(target_arch = "nvptx64", not(ferroflash_wgmma)))]
pub mod statistics;
#[cfg(target_arch = "nvptx64")]
pub mod sums;
#[cfg(target_arch = "nvptx64")]
pub mod work;
