//! All gradients in one launch: each CTA computes dK, dV and dS of a block of keys ([`super::dkv`]) or dQ of a block of queries ([`super::dqds`]),
//! in the order that [`crate::backward::order`] gives. What writes dS and what reads it wait for each other through counters in global
//! memory, two a chunk, in which the thread that copies counts its CTA.

use super::config::WgmmaBackwardConfig;
use super::dkv::dkv;
use super::dqds::dqds;
use crate::backward::order::Tile;
use crate::backward::params::BackwardParams;
use crate::ptx::block_idx_x_again;
use crate::ptx::mbarrier::fence_proxy_async_global;
use crate::ptx::memory::{
    atomic_inc, dynamic_smem, ld_acquire_b32, ld_shared, red_add_release, st_shared, to_global,
};
use crate::ptx::thread_idx_x_again;
use crate::ptx::warpgroup::named_barrier_sync;
use crate::wgmma::ring::Ring;

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

/// The CTA's tile, counted over all launches of its kind. Found again at each call.
///
/// # Safety
/// Where the kernel has two kinds of CTAs, it has written the tile.
#[inline(always)]
pub(super) unsafe fn tile<C: WgmmaBackwardConfig>(params: &BackwardParams) -> u32 {
    match C::TILE_OFFSET {
        // SAFETY: the caller's.
        Some(offset) => unsafe { ld_shared(dynamic_smem() + offset) },
        None => params.first_tile + block_idx_x_again(),
    }
}

/// The tile in the order of both kinds.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn of_order<C: WgmmaBackwardConfig>(params: &BackwardParams) -> Tile {
    // SAFETY: the caller's.
    let index = unsafe { tile::<C>(params) };
    if C::WRITES_DS { Tile::Keys(index) } else { Tile::Queries(index) }
}

/// The address of a counter.
#[inline(always)]
fn counter(params: &BackwardParams, index: u32) -> u64 {
    to_global(params.counters) + u64::from(index) * 4
}

/// Waits until dS that this CTA reads is written, or dS that it overwrites is read. What this thread copies in bulk afterwards, and what
/// threads do that it then lets go on, comes behind.
///
/// # Safety
/// As for [`dqdkv`].
#[inline(always)]
pub(super) unsafe fn wait_for_ds<C: WgmmaBackwardConfig>(params: &BackwardParams) {
    if C::TILE_OFFSET.is_none() {
        return;
    }
    // SAFETY: the caller's; those that it waits for have started, and wait for none that have not.
    unsafe {
        let (index, ctas) = params.order.waits_for(of_order::<C>(params));
        while ld_acquire_b32(counter(params, index)) < ctas {}
        fence_proxy_async_global();
    }
}

/// Waits until the CTA is done with dS, and counts it: all that it reads has landed, or all that it writes is written.
///
/// # Safety
/// As for [`dqdkv`], by the thread that copies, once, behind its last copy, with the stage behind that.
#[inline(always)]
pub(super) unsafe fn done_with_ds<C: WgmmaBackwardConfig>(params: &BackwardParams, mut ring: Ring) {
    if C::TILE_OFFSET.is_none() {
        return;
    }
    // SAFETY: the caller's.
    unsafe {
        // Warps free a stage when they have multiplied its dS, or written it.
        for _ in 0..C::STAGES {
            ring.wait_empty(C::STAGES);
            ring.advance(C::STAGES);
        }
        // Bulk copies of others read what these warps wrote.
        fence_proxy_async_global();
        let index = params.order.counts_in(of_order::<C>(params));
        red_add_release(counter(params, index), 1);
    }
}
