//! What a row's kernel of the backward pass on wgmma has beside [`BackwardConfig`].

use crate::config::BackwardConfig;
use crate::wgmma::config::WARPGROUP;
use crate::wgmma::gemm::WgmmaTile;

/// What a row of the backward pass's table says, and where its kernel finds the tensor maps.
pub trait WgmmaBackwardConfig: BackwardConfig<Warp: WgmmaTile> {
    /// The generic address of the kernel's parameter block, a [`crate::backward::params::WgmmaBackwardParams`]. Found again at each call.
    fn parameter_address() -> u64;

    /// Where the CTA keeps in shared memory which tile it has, in a kernel with two kinds of CTAs: this configuration is of one of them.
    const TILE_OFFSET: Option<u32>;

    /// Warpgroups that compute, 64 stationary rows each.
    const CONSUMERS: u32 = Self::ROW.computing_warps() / 4;
    /// Threads of all consumers.
    const CONSUMER_THREADS: u32 = Self::CONSUMERS * WARPGROUP;
}
