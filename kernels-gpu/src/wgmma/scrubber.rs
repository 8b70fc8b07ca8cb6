//! The scrubbers: warps that keep what V holds at keys that only some rows see from reaching the others.

use super::config::WgmmaConfig;
use super::ring::TILES_AHEAD;
use super::work_tile::{NO_MORE, Tile};
use crate::math::scrub;
use crate::params::ForwardParams;
use crate::ptx::mbarrier::{fence_proxy_async, mbarrier_arrive_if};
use crate::ptx::memory::{ld_shared_v4, st_shared_relaxed};
use crate::ptx::opaque;
use crate::ptx::warp::{sync_warp, vote_any};
use crate::tile::swizzle::Swizzle;

/// Whether this thread's chunks of a tile of `bytes` bytes hold NaN or infinities.
///
/// # Safety
/// The tile is written.
#[inline(always)]
unsafe fn nonfinite_in_tile<C: WgmmaConfig>(tile: u32, bytes: u32, thread: u32) -> bool {
    /// Loads that are under way together.
    const TOGETHER: u32 = 4;
    let step = C::SCRUBBERS * 32 * Swizzle::CHUNK_BYTES;
    let (mut at, mut seen) = (thread * Swizzle::CHUNK_BYTES, [0; 4]);
    while at < opaque(bytes) {
        let chunks: [[u32; 4]; TOGETHER as usize] = core::array::from_fn(|i| {
            let at = at + i as u32 * step;
            // SAFETY: a chunk of the tile.
            if at < bytes { unsafe { ld_shared_v4(tile + at) } } else { [0; 4] }
        });
        for chunk in chunks {
            seen = core::array::from_fn(|i| scrub::take_in::<C::Element>(seen[i], chunk[i]));
        }
        at += TOGETHER * step;
    }
    seen.into_iter().any(scrub::was_seen)
}

/// The scrubbers' part: replaces NaN and infinities in V by 0 in the blocks that are seen only in part, before they are multiplied
/// (see [`crate::math::scrub`]).
///
/// # Safety
/// As for [`super::forward::forward_wgmma`], by all threads of the scrubbing warps, `thread` counted from the first of them.
#[inline(always)]
pub(super) unsafe fn scrub_tiles<C: WgmmaConfig>(params: &ForwardParams, thread: u32) {
    let (mut tiles, mut v) = (C::LAYOUT.tile_ring(), C::LAYOUT.v_ring());
    let lane = thread % 32;
    loop {
        // SAFETY: the caller's; what is read has been written, and no consumer reads V before it is told to.
        unsafe {
            tiles.wait_full();
            let Tile { work, blocks } = Tile::read::<C>(params, C::LAYOUT.tile_slot(tiles.buffer));
            if work.batch == NO_MORE {
                return;
            }
            let mut block = blocks.end;
            while block > blocks.first {
                block -= 1;
                for slice in 0..C::VALUE_GROUPS {
                    // Wait for every block: an mbarrier shows only phase parity, so a skipped phase is ambiguous.
                    v.wait_full();
                    if blocks.is_partial(block) {
                        let (tile, end) = (C::LAYOUT.v(v.buffer), C::LAYOUT.v_bytes());
                        let seen = nonfinite_in_tile::<C>(tile, end, thread);
                        if seen {
                            let mut at = thread * Swizzle::CHUNK_BYTES;
                            while at < opaque(end) {
                                scrub::scrub_chunk::<C::Element>(tile + at);
                                at += C::SCRUBBERS * 32 * Swizzle::CHUNK_BYTES;
                            }
                            fence_proxy_async();
                        }
                        // By the lane that arrives. Another warp may find something at the same time.
                        if vote_any(seen) && lane == 0 {
                            st_shared_relaxed(C::LAYOUT.found(tiles.buffer, slice), 1);
                        }
                        // The warp's part is done.
                        sync_warp();
                        mbarrier_arrive_if(C::LAYOUT.scrubbed(v.buffer), lane == 0);
                    }
                    v.release(C::LAYOUT.kv_buffers(), lane);
                    v.advance(C::LAYOUT.kv_buffers());
                }
            }
            sync_warp();
            tiles.release(TILES_AHEAD, lane);
        }
        tiles.advance(TILES_AHEAD);
    }
}
