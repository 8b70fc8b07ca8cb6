//! dK and dV of a block of keys whose steps several CTAs share: each writes its sums as float32, and a kernel behind them adds those in the order of
//! the CTAs and rounds once. So the result follows from how many share it, and from nothing else.

use super::SUM_ROWS;
use super::params::BackwardParams;
use super::work::{key_rows, key_work};
use crate::element::Element;
use crate::ptx::memory::{ld_global_v4, st_global_v2, st_global_v4, to_global};
use crate::steps::STEP_THREADS;
use crate::tile::warp_tile::{Tiles, WarpTile};
use cuda_std::thread::{block_idx_x, thread_idx_x};

/// Where the sums of a CTA lie for one gradient of its block of keys: rows as wide as the kernel's, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// The global address, or 0 where the CTA has its block for itself.
    start: u64,
    row_bytes: u32,
}

impl Sums {
    /// Of no CTA.
    pub const NONE: Sums = Sums { start: 0, row_bytes: 0 };

    /// Those of CTA `index` for dK, with `which` 0, or dV.
    #[inline(always)]
    pub fn of(params: &BackwardParams, index: u32, which: u32) -> Sums {
        let (row_bytes, rows) = (params.sums_row_bytes, params.key_block_rows.value);
        if params.sums == 0 {
            return Sums::NONE;
        }
        let of_tiles = (u64::from(index) * 2 + u64::from(which)) * u64::from(rows * row_bytes);
        Sums { start: to_global(params.sums) + of_tiles, row_bytes }
    }

    /// Whether gradients go there.
    #[inline(always)]
    pub fn are_wanted(&self) -> bool {
        self.start != 0
    }

    /// The address of an element, by its row in the block.
    #[inline(always)]
    pub fn address(&self, row: u32, column: u32) -> u64 {
        self.start + u64::from(row * self.row_bytes + column * 4)
    }

    /// Writes a warp's rows of an accumulator, from row `first` of the block on, times `factor`.
    ///
    /// # Safety
    /// All 32 lanes take part, and the sums are wanted and writable.
    #[inline(always)]
    pub unsafe fn store<W: WarpTile>(&self, gradient: &W::O, factor: f32, first: u32, lane: u32) {
        for m in 0..W::M {
            let first = first + 16 * m as u32 + lane / 4;
            let [low, high] = [0, 8].map(|down| self.address(first + down, lane % 4 * 2));
            for (n, tile) in (0..).zip(gradient.row(m)) {
                let [a, b, c, d] = tile.map(|sum| (sum * factor).to_bits());
                // SAFETY: the caller's.
                unsafe {
                    st_global_v2(low + n * 32, [a, b]);
                    st_global_v2(high + n * 32, [c, d]);
                }
            }
        }
    }
}

/// The kernel: a CTA adds [`SUM_ROWS`] rows of a block of keys, of dK and of dV.
///
/// # Safety
/// Launched with [`STEP_THREADS`] threads, a CTA for [`SUM_ROWS`] keys of each block, behind the kernels that write the sums, with their
/// parameters.
#[inline(always)]
pub unsafe fn sum<E: Element>(params: &BackwardParams) {
    let groups = (params.key_block_rows.value / SUM_ROWS).max(1);
    let (tile, first) = (block_idx_x() / groups, block_idx_x() % groups * SUM_ROWS);
    let splits = params.query_splits.value;
    let ragged = &params.forward.ragged;
    // SAFETY: the caller's; rows that do not exist are not written.
    unsafe {
        let Some((work, past)) = key_work(params, tile * splits) else { return };
        for which in 0..2 {
            let (base, strides, width) = if which == 0 {
                (params.d_k, &params.d_k_strides, ragged.width_qk)
            } else {
                (params.d_v, &params.d_v_strides, ragged.width_v)
            };
            let (to, chunks) = (key_rows(base, strides, &work), (width / 8).max(1));
            let mut chunk = thread_idx_x();
            while chunk < SUM_ROWS * chunks {
                let (row, column) = (first + chunk / chunks, chunk % chunks * 8);
                if work.first_row + row < past {
                    let mut total = [0.0_f32; 8];
                    let mut split = 0;
                    while split < splits {
                        let at = Sums::of(params, tile * splits + split, which).address(row, column);
                        let halves = [ld_global_v4(at), ld_global_v4(at + 16)];
                        for i in 0..8 {
                            total[i] += f32::from_bits(halves[i / 4][i % 4]);
                        }
                        split += 1;
                    }
                    let pairs = core::array::from_fn(|i| E::pack(total[2 * i], total[2 * i + 1]));
                    st_global_v4(to.address(work.first_row + row, column * 2), pairs);
                }
                chunk += STEP_THREADS;
            }
        }
    }
}
