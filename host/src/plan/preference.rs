//! What was measured, in one place: which row for which grid, and the numbers that decide about splits.

use crate::device::DeviceInfo;
use crate::problem::Problem;
use kernels_gpu::row::{Row, Schedule};

/// Tiles fill the device from this share of its resident CTAs on: splitting the keys gains nothing there. As FlashAttention-3's
/// `heuristics.h`.
pub(super) const FILLED_SHARE: f64 = 0.8;
/// The fewest splits are taken whose waves are this well filled, compared with the best number. As FlashAttention-3's
/// `heuristics.h`.
pub(super) const EFFICIENCY_SHARE: f64 = 0.85;
/// Up to so many blocks of keys nothing is split: a split's fixed cost is that of some blocks. As FlashAttention-3's `heuristics.h`.
pub(super) const UNSPLIT_KEY_BLOCKS: u32 = 4;

/// Query rows that an SM must have in flight to be busy: with fewer, a step over keys takes as long as with so many.
pub(super) const BUSY_ROWS: u32 = 128;
/// What a CTA costs beside its keys (its start, Q, the epilogue), in keys.
pub(super) const CTA_KEYS: f64 = 64.0;
/// What a second kernel costs (its launch, the partial O and LSE), in query rows × keys × elements of head_dim on one SM: about 3 µs.
pub(super) const COMBINE_COST: f64 = 3.5e6;

/// The mask that a line of [`BEST`] was measured with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mask {
    Any,
    Full,
    Causal,
}

/// A row but for dtype and head_dim, with float32 accumulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tile {
    pub(super) block_m: u32,
    pub(super) block_n: u32,
    pub(super) warps: u32,
    pub(super) stages: u32,
    pub(super) min_ctas: u32,
    pub(super) warp_rows: u32,
    pub(super) schedule: Schedule,
}

/// A measured preference: on these architectures, for this head_dim and mask, this row, once its own tiles are so many an SM.
#[derive(Debug)]
pub(super) struct Best {
    /// First and last compute capability, 80 and 89 for Ampere and Ada.
    pub(super) sm: (u32, u32),
    pub(super) head_dim: u32,
    pub(super) mask: Mask,
    /// The least tiles an SM that the row must have.
    pub(super) tiles_per_sm: f64,
    pub(super) tile: Tile,
}

/// Of the rows that split keys: on these architectures, for this head_dim, this row, up to so many query rows that share a KV head.
#[derive(Debug)]
pub(super) struct BestSplit {
    pub(super) sm: (u32, u32),
    pub(super) head_dim: u32,
    pub(super) rows_max: u32,
    pub(super) tile: Tile,
}

/// block_m, block_n, warps, stages, min_ctas, warp_rows of a row with one CTA a tile.
type Columns = (u32, u32, u32, u32, u32, u32);

const fn tile(columns: Columns, schedule: Schedule) -> Tile {
    let (block_m, block_n, warps, stages, min_ctas, warp_rows) = columns;
    Tile { block_m, block_n, warps, stages, min_ctas, warp_rows, schedule }
}

const fn best(sm: (u32, u32), head_dim: u32, mask: Mask, tiles_per_sm: f64, columns: Columns) -> Best {
    Best { sm, head_dim, mask, tiles_per_sm, tile: tile(columns, Schedule::Grid) }
}

/// Measured on an H200 over 15 shapes of 64 to 4096 keys, both masks, f16; other architectures take the same lines.
/// Between one and two waves of CTAs the balance decides, not the tile: there the preference goes back and forth.
///
/// The first line that fits is taken, so within an architecture and head_dim the rows of large grids stand before those of
/// small ones. Both dtypes share a line. Where no line fits, or its kernel was not compiled, the planner's fallback chooses.
pub(super) const BEST: &[Best] = &[
    // sm       head_dim mask    tiles/SM  block_m block_n warps stages min_ctas warp_rows
    best((80, 999), 32, Mask::Full, 1.75, (128, 64, 4, 2, 1, 32)),
    best((80, 999), 32, Mask::Causal, 15.0, (128, 64, 4, 2, 1, 32)),
    best((80, 999), 32, Mask::Any, 1.9, (64, 64, 4, 2, 1, 16)),
    best((80, 999), 32, Mask::Any, 0.0, (32, 128, 4, 2, 1, 16)),
    best((80, 999), 64, Mask::Full, 1.75, (128, 64, 4, 2, 1, 32)),
    best((80, 999), 64, Mask::Causal, 7.5, (128, 64, 4, 2, 1, 32)),
    best((80, 999), 64, Mask::Any, 1.9, (64, 64, 4, 3, 1, 16)),
    best((80, 999), 64, Mask::Any, 2.5, (32, 128, 4, 2, 1, 16)),
    best((80, 999), 64, Mask::Any, 0.75, (64, 128, 4, 2, 1, 16)),
    best((80, 999), 64, Mask::Any, 0.0, (32, 128, 4, 2, 1, 16)),
    best((80, 999), 96, Mask::Full, 1.75, (128, 64, 4, 1, 1, 32)),
    best((80, 999), 96, Mask::Causal, 7.0, (128, 64, 4, 1, 1, 32)),
    best((80, 999), 96, Mask::Any, 2.2, (64, 64, 4, 2, 1, 16)),
    best((80, 999), 96, Mask::Any, 0.7, (128, 64, 4, 1, 1, 32)),
    best((80, 999), 96, Mask::Any, 0.75, (64, 64, 4, 2, 1, 16)),
    best((80, 999), 96, Mask::Any, 0.0, (32, 64, 4, 2, 1, 16)),
    best((80, 999), 128, Mask::Full, 1.75, (128, 64, 4, 1, 1, 32)),
    best((80, 999), 128, Mask::Causal, 7.0, (128, 64, 4, 1, 1, 32)),
    best((80, 999), 128, Mask::Full, 2.2, (64, 32, 4, 2, 1, 16)),
    best((80, 999), 128, Mask::Causal, 1.9, (64, 32, 4, 2, 1, 16)),
    best((80, 999), 128, Mask::Any, 0.7, (128, 64, 4, 1, 1, 32)),
    best((80, 999), 128, Mask::Any, 0.0, (32, 128, 4, 1, 1, 16)),
    best((80, 999), 256, Mask::Any, 0.75, (64, 64, 4, 1, 1, 16)),
    best((80, 999), 256, Mask::Any, 0.0, (32, 64, 4, 1, 1, 16)),
];

/// The first line that fits is taken; where none fits, or its kernel was not compiled, the smallest block that holds all rows.
pub(super) const BEST_SPLIT: &[BestSplit] = &[];

/// Heads whose query blocks a grid takes in turns.
pub(super) fn heads_together(schedule: Schedule, _problem: &Problem, _device: &DeviceInfo) -> u32 {
    match schedule {
        Schedule::Grid | Schedule::Persistent | Schedule::Split => 1,
    }
}

impl Mask {
    pub(super) fn fits(self, causal: bool) -> bool {
        match self {
            Mask::Any => true,
            Mask::Full => !causal,
            Mask::Causal => causal,
        }
    }
}

impl Tile {
    pub(super) fn is_of(&self, row: &Row) -> bool {
        let of_row = Tile {
            block_m: row.block_m,
            block_n: row.block_n,
            warps: row.warps,
            stages: row.stages,
            min_ctas: row.min_ctas,
            warp_rows: row.warp_rows,
            schedule: row.schedule,
        };
        *self == of_row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::row::{Accumulation, Dtype};
    use kernels_gpu::table::VARIANTS;

    #[test]
    fn every_line_names_a_row_of_the_table() {
        let tiles = BEST.iter().map(|best| (best.head_dim, best.tile));
        let tiles = tiles.chain(BEST_SPLIT.iter().map(|best| (best.head_dim, best.tile)));
        for (head_dim, tile) in tiles {
            for dtype in [Dtype::F16, Dtype::Bf16] {
                let named = VARIANTS.iter().any(|variant| {
                    let row = &variant.row;
                    (row.dtype, row.head_dim, row.acc) == (dtype, head_dim, Accumulation::F32)
                        && tile.is_of(row)
                });
                assert!(named, "{head_dim} {tile:?} {dtype:?}");
            }
        }
        assert!(BEST_SPLIT.iter().all(|best| best.tile.schedule == Schedule::Split));
        assert!(BEST.iter().all(|best| best.tile.schedule != Schedule::Split));
    }
}
