//! The kernels on mma.sync and cp.async: sm_80 and everything later.

#[cfg(not(ferroflash_wgmma))]
pub mod backward;
pub mod copy;
pub mod forward;
pub mod gemm;
pub mod pipeline;
