//! Which tile a CTA has, and where one launch has CTAs that write dS and CTAs that read it, how they wait for each other: through counters in
//! global memory, two a chunk, in which the thread that copies counts its CTA.

use super::config::WgmmaBackwardConfig;
use crate::backward::order::Tile;
use crate::backward::params::BackwardParams;
use crate::ptx::block_idx_x_again;
use crate::ptx::mbarrier::fence_proxy_async_global;
use crate::ptx::memory::{dynamic_smem, ld_acquire_b32, ld_shared, red_add_release, to_global};
use crate::wgmma::ring::Ring;

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
/// As for [`super::dqdkv::dqdkv`].
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
/// As for [`super::dqdkv::dqdkv`], by the thread that copies, once, behind its last copy, with the stage behind that.
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
