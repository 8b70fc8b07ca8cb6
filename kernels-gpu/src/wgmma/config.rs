//! What a row's kernel on wgmma has beside [`Config`], and the numbers that its roles share.

use super::gemm::WgmmaTile;
use super::ring::Layout;
use crate::config::Config;
use crate::geometry;

/// Threads of a warpgroup.
pub(super) const WARPGROUP: u32 = 128;
/// The named barrier of all consumers; 0 is the one of the whole CTA.
pub(super) const CONSUMERS_BARRIER: u32 = 1;
/// The first of the named barriers of the ping-pong order, one a consumer.
pub(super) const FIRST_PING_PONG_BARRIER: u32 = 2;

/// What a row of the table says, and where its kernel finds the tensor maps.
pub trait WgmmaConfig: Config<Warp: WgmmaTile> {
    /// The generic address of the kernel's parameter block, a [`crate::params::WgmmaParams`]. Found again at each call.
    fn parameter_address() -> u64;

    /// Where everything lies in shared memory.
    const LAYOUT: Layout = Layout::of(&Self::ROW);
    /// Warpgroups that compute, each 64 query rows or a slice of their values.
    const CONSUMERS: u32 = geometry::consumer_warpgroups(&Self::ROW);
    /// Warps that copy, the first of the producer's warpgroup: one, or in kernels for ragged batches one for Q and K and one for V.
    const COPIERS: u32 = if Self::RAGGED { 2 } else { 1 };
    /// Warps of the producer's warpgroup that look for NaN and infinities in V.
    const SCRUBBERS: u32 = geometry::PRODUCER_WARPS - Self::COPIERS;
    /// Threads of all consumers.
    const CONSUMER_THREADS: u32 = Self::CONSUMERS * WARPGROUP;
    /// How many consumers share query rows, each with every `KEY_GROUPS`-th block of keys.
    const KEY_GROUPS: u32 = geometry::warps_n(&Self::ROW);
    /// How many consumers share query rows and keys, each with a slice of the values; the first has the scores. As many as K has parts.
    const VALUE_GROUPS: u32 = geometry::value_groups(&Self::ROW);
    /// Whether the next tile begins with this one's last product.
    const TILES_OVERLAP: bool = geometry::tiles_overlap(&Self::ROW);
    /// Whether consumers issue their products in ping-pong order: all have as many of them.
    const PING_PONG: bool = Self::CONSUMERS > 1 && Self::KEY_GROUPS == 1 && Self::VALUE_GROUPS == 1;
}
