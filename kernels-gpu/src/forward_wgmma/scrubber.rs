//! The scrubbers: warps that keep what V holds at keys that only some rows see from reaching the others.

use super::ring::Layout;
use super::tile::Tile;
use super::{NO_MORE, SCRUBBERS, TILES_AHEAD};
use crate::forward::Config;
use crate::nonfinite;
use crate::params::ForwardParams;
use crate::ptx::mbarrier::{fence_proxy_async, mbarrier_arrive_if};
use crate::ptx::memory::{ld_shared_v4, st_shared_relaxed};
use crate::ptx::opaque;
use crate::ptx::warp::{sync_warp, vote_any};
use crate::swizzle::Swizzle;

/// Whether this thread's chunks of a tile of `bytes` bytes hold NaN or infinities.
///
/// # Safety
/// The tile is written.
#[inline(always)]
unsafe fn nonfinite_in_tile<C: Config>(tile: u32, bytes: u32, thread: u32) -> bool {
    /// Loads that are under way together.
    const TOGETHER: u32 = 4;
    const STEP: u32 = SCRUBBERS * 32 * Swizzle::CHUNK_BYTES;
    let (mut at, mut seen) = (thread * Swizzle::CHUNK_BYTES, [0; 4]);
    while at < opaque(bytes) {
        let chunks: [[u32; 4]; TOGETHER as usize] = core::array::from_fn(|i| {
            let at = at + i as u32 * STEP;
            // SAFETY: a chunk of the tile.
            if at < bytes { unsafe { ld_shared_v4(tile + at) } } else { [0; 4] }
        });
        for chunk in chunks {
            seen = core::array::from_fn(|i| nonfinite::take_in::<C::Element>(seen[i], chunk[i]));
        }
        at += TOGETHER * STEP;
    }
    seen.into_iter().any(nonfinite::was_seen)
}

/// The scrubbers' part: replaces NaN and infinities in V by 0 in the blocks that are seen only in part, before they are multiplied
/// (see [`nonfinite`]).
///
/// # Safety
/// As for [`super::forward_wgmma`], by all threads of the scrubbing warps, `thread` counted from the first of them.
#[inline(always)]
pub(super) unsafe fn scrub<C: Config>(params: &ForwardParams, thread: u32) {
    let row = &C::ROW;
    let (mut tiles, mut v) = (Layout::tile_ring(row), Layout::v_ring(row));
    let lane = thread % 32;
    loop {
        // SAFETY: the caller's; what is read has been written, and no consumer reads V before it is told to.
        unsafe {
            tiles.wait_full();
            let Tile { work, blocks } = Tile::read(params, Layout::tile_slot(row, tiles.buffer));
            if work.batch == NO_MORE {
                return;
            }
            let mut block = blocks.end;
            while block > blocks.first {
                block -= 1;
                // Every block, also those that are not looked at: a barrier tells its phases apart only for those who wait for each.
                v.wait_full();
                if block >= blocks.full {
                    let (tile, end) = (Layout::v(row, v.buffer), Layout::kv_bytes(row));
                    let seen = nonfinite_in_tile::<C>(tile, end, thread);
                    if seen {
                        let mut at = thread * Swizzle::CHUNK_BYTES;
                        while at < opaque(end) {
                            nonfinite::scrub_chunk::<C::Element>(tile + at);
                            at += SCRUBBERS * 32 * Swizzle::CHUNK_BYTES;
                        }
                        fence_proxy_async();
                    }
                    // By the lane that arrives. Another warp may find something at the same time.
                    if vote_any(seen) && lane == 0 {
                        st_shared_relaxed(Layout::found(row, tiles.buffer), 1);
                    }
                    // The warp's part is done.
                    sync_warp();
                    mbarrier_arrive_if(Layout::scrubbed(row, v.buffer), lane == 0);
                }
                v.release(row.stages, lane);
                v.advance(row.stages);
            }
            sync_warp();
            tiles.release(TILES_AHEAD, lane);
        }
        tiles.advance(TILES_AHEAD);
    }
}
