//! What the consumer with the scores tells those that have other slices of the values of the same rows: P of each block and what O is
//! multiplied with before it is added, and at a tile's end what is known of its rows. A lane tells the lane of the same number.

use super::config::{WARPGROUP, WgmmaConfig};
use super::pipeline::{Consumer, lane_again};
use crate::geometry::WEIGHTS_BUFFERS;
use crate::math::softmax::OnlineSoftmax;
use crate::ptx::mbarrier::mbarrier_arrive_if;
use crate::ptx::memory::{ld_shared_v4, st_shared_v4};
use crate::ptx::thread_idx_x_again;
use crate::ptx::warp::sync_warp;
use crate::tile::warp_tile::{Tiles, WarpTile};

/// Bytes that a lane writes or reads at a time.
const CHUNK_BYTES: u32 = 16;
/// Bytes from one of a lane's chunks to its next: those of other lanes lie between, so that a warp's are next to each other.
const NEXT_CHUNK: u32 = WARPGROUP * CHUNK_BYTES;

impl Consumer<'_> {
    /// Where the lane's first chunk lies in the current buffer.
    #[inline(always)]
    fn chunk<C: WgmmaConfig>(&self) -> u32 {
        C::LAYOUT.weights(self.weights.buffer) + thread_idx_x_again() % WARPGROUP * CHUNK_BYTES
    }

    /// Where the lane's chunk of what is known of its rows lies: behind P.
    #[inline(always)]
    fn rows_chunk<C: WgmmaConfig>(&self) -> u32 {
        self.chunk::<C>() + <<C::Warp as WarpTile>::P as Tiles<[u32; 4]>>::N as u32 * NEXT_CHUNK
    }

    /// The warp has written the current buffer.
    ///
    /// # Safety
    /// All lanes take part, once a buffer.
    #[inline(always)]
    unsafe fn told(&mut self) {
        // Every lane has written; one says so.
        sync_warp();
        // SAFETY: the caller's.
        unsafe { mbarrier_arrive_if(self.weights.full(), lane_again() == 0) }
        self.weights.advance(WEIGHTS_BUFFERS);
    }

    /// The warp has read the current buffer.
    ///
    /// # Safety
    /// As for [`Self::told`].
    #[inline(always)]
    unsafe fn heard(&mut self) {
        // Every lane has read; one says so.
        sync_warp();
        // SAFETY: the caller's.
        unsafe { self.weights.release(WEIGHTS_BUFFERS, lane_again()) }
        self.weights.advance(WEIGHTS_BUFFERS);
    }

    /// Tells P and the factors of the lane's rows of O, if there is somebody to hear it.
    ///
    /// # Safety
    /// All lanes take part, once a block.
    #[inline(always)]
    pub(super) unsafe fn tell_weights<C: WgmmaConfig>(
        &mut self,
        p: &<C::Warp as WarpTile>::P,
        factors: [f32; 2],
    ) {
        if C::VALUE_GROUPS == 1 {
            return;
        }
        let [first, second] = factors.map(f32::to_bits);
        // SAFETY: chunks of this lane, in a buffer that has been read.
        unsafe {
            self.weights.wait_empty(WEIGHTS_BUFFERS);
            for (step, p) in (0..).zip(p.row(0)) {
                st_shared_v4(self.chunk::<C>() + step * NEXT_CHUNK, *p);
            }
            st_shared_v4(self.rows_chunk::<C>(), [first, second, 0, 0]);
            self.told();
        }
    }

    /// Hears P of the next block. The factors of the lane's rows of O.
    ///
    /// # Safety
    /// As for [`Self::tell_weights`].
    #[inline(always)]
    pub(super) unsafe fn hear_weights<C: WgmmaConfig>(
        &mut self,
        p: &mut <C::Warp as WarpTile>::P,
    ) -> [f32; 2] {
        // SAFETY: what the lane of the same number has written.
        unsafe {
            self.weights.wait_full();
            for (step, p) in (0..).zip(p.row_mut(0)) {
                *p = ld_shared_v4(self.chunk::<C>() + step * NEXT_CHUNK);
            }
            let [first, second, ..] = ld_shared_v4(self.rows_chunk::<C>());
            self.heard();
            [first, second].map(f32::from_bits)
        }
    }

    /// Tells row_max and row_sum of a tile's rows, if there is somebody to hear it.
    ///
    /// # Safety
    /// All lanes take part, once a tile, behind its last block.
    #[inline(always)]
    pub(super) unsafe fn tell_rows<C: WgmmaConfig>(&mut self, softmax: &OnlineSoftmax<C::Warp>) {
        if C::VALUE_GROUPS == 1 {
            return;
        }
        let [max, sum] =
            [&softmax.row_max, &softmax.row_sum].map(|rows| [0, 1].map(|half| rows.row(0)[half].to_bits()));
        // SAFETY: a chunk of this lane, in a buffer that has been read.
        unsafe {
            self.weights.wait_empty(WEIGHTS_BUFFERS);
            st_shared_v4(self.rows_chunk::<C>(), [max[0], max[1], sum[0], sum[1]]);
            self.told();
        }
    }

    /// Hears row_max and row_sum of a tile's rows.
    ///
    /// # Safety
    /// As for [`Self::tell_rows`].
    #[inline(always)]
    pub(super) unsafe fn hear_rows<C: WgmmaConfig>(&mut self, softmax: &mut OnlineSoftmax<C::Warp>) {
        // SAFETY: what the lane of the same number has written.
        unsafe {
            self.weights.wait_full();
            let heard = ld_shared_v4(self.rows_chunk::<C>()).map(f32::from_bits);
            self.heard();
            for (half, [max, sum]) in [[heard[0], heard[2]], [heard[1], heard[3]]].into_iter().enumerate() {
                softmax.row_max.row_mut(0)[half] = max;
                softmax.row_sum.row_mut(0)[half] = sum;
            }
        }
    }
}
