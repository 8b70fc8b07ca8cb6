//! Where a warp and a lane stand in a block of query rows and keys.

use crate::geometry;
use crate::row::Row;

/// How the warps that compute lie over a block: `along_rows` × `along_keys` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warps {
    /// Warps along the query rows.
    pub along_rows: u32,
    /// Warps along the keys, each with a row_max, row_sum and O of its own.
    pub along_keys: u32,
    /// Query rows of a warp.
    pub rows: u32,
    /// Keys of a block that fall to a warp.
    pub keys: u32,
}

impl Warps {
    /// Those of a row's kernel.
    pub const fn of(row: &Row) -> Self {
        Self {
            along_rows: geometry::warps_m(row),
            along_keys: geometry::warps_n(row),
            rows: 16 * geometry::m_tiles(row),
            keys: geometry::keys_per_warp(row),
        }
    }
}

/// Where a warp and a lane stand in the CTA's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The warp's first query row in the block.
    pub warp_row: u32,
    /// Which part of the keys of each block the warp takes.
    pub warp_n: u32,
    /// Lane of the warp.
    pub lane: u32,
}

impl Position {
    /// The position of a thread, counted from the first one that computes.
    #[inline(always)]
    pub fn new(thread: u32, warps: Warps) -> Self {
        let (warp, warps_m) = (thread / 32, warps.along_rows);
        let warp_row = warp % warps_m * warps.rows;
        Self { warp_row, warp_n: warp / warps_m, lane: thread % 32 }
    }
}
