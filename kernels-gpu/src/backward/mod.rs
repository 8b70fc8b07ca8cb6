//! The backward pass: its table, rows, parameters, and which tile a CTA has. The kernels themselves are in `mma/backward/`.
//!
//! Two kernels, without atomics. `dq` keeps queries and takes blocks of keys: S = Q·Kᵀ, dP = dO·Vᵀ, dQ += dS·K. `dkv` keeps keys and
//! takes blocks of queries of all query heads of its KV head: Sᵀ = K·Qᵀ, dPᵀ = V·dOᵀ, dV += Pᵀ·dO, dK += dSᵀ·Q. With the forward's L,
//! P = exp(S − L), and dS = P∘(dP − δ) with δ = rowsum(dO∘O) − dL (FlashAttention-2, algorithm 2).

pub mod params;
pub mod row;
#[macro_use]
pub mod table;

#[cfg(target_arch = "nvptx64")]
pub mod work;
