//! All gradients in one launch: each CTA computes dK, dV and dS of a block of keys ([`super::dkv`]) or dQ of a block of queries ([`super::dqds`]),
//! in the order that [`crate::backward::order`] gives.

use super::config::WgmmaBackwardConfig;
use super::dkv::dkv;
use super::dqds::dqds;
use crate::backward::order::Tile;
use crate::backward::params::BackwardParams;
use crate::ptx::memory::{atomic_inc, dynamic_smem, ld_shared, st_shared, to_global};
use crate::ptx::thread_idx_x_again;
use crate::ptx::warpgroup::named_barrier_sync;

/// The kernel: a CTA draws its tile, and computes it as a kernel of one of two configurations.
///
/// # Safety
/// As for [`dkv`] and [`dqds`], with as many CTAs as [`crate::backward::order::Order::ctas`], behind the kernel of statistics on the stream.
#[inline(always)]
pub unsafe fn dqdkv<
    Keys: WgmmaBackwardConfig,
    Queries: WgmmaBackwardConfig,
    const PRODUCER_REGISTERS: u32,
    const CONSUMER_REGISTERS: u32,
>(
    params: &BackwardParams,
) {
    const { assert!(Keys::THREADS == Queries::THREADS && Keys::CONSUMERS == Queries::CONSUMERS) }
    // SAFETY: the caller's; one thread writes the tile before the others pass the barrier.
    unsafe {
        let at = dynamic_smem() + const { Keys::TILE_OFFSET.expect("two kinds of CTAs") };
        if thread_idx_x_again() == 0 {
            let ticket = atomic_inc(to_global(params.counters), u32::MAX);
            let (index, of_queries) = match params.order.tile(ticket) {
                Tile::Keys(index) => (index, 0),
                Tile::Queries(index) => (index, 1),
            };
            st_shared(at, index);
            st_shared(at + 4, of_queries);
        }
        named_barrier_sync(0, Keys::THREADS);
        if ld_shared(at + 4) == 0 {
            dkv::<Keys, PRODUCER_REGISTERS, CONSUMER_REGISTERS>(params);
        } else {
            dqds::<Queries, PRODUCER_REGISTERS, CONSUMER_REGISTERS>(params);
        }
    }
}
