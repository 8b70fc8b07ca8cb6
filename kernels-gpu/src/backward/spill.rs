//! dS in memory, between the kernel that computes it with dK and dV and the one that multiplies it with K: where its elements lie.
//!
//! It lies as the accumulators of wgmma and of mma.sync hold dSᵀ: in core matrices of 8 keys and 8 queries, 128 bytes each, of which a warp writes
//! one with each of its registers; a key's 8 queries are 16 bytes. Of a head and a block of keys, those of 8 queries and all keys follow each other,
//! then come the next 8 queries. So any 64 queries are an operand of wgmma without a swizzle, as they lie (PTX ISA, "Canonical Layouts",
//! MN-major), and with mma.sync transposed by `ldmatrix`.
//!
//! Of a block of keys, dS of the queries that see any of it is kept, in whole blocks, and no other: a [`Piece`]. A head's pieces follow each
//! other, through all packed sequences of it, and the kernel of statistics sums up where each starts: so a causal mask needs half of the
//! memory, a window a strip, and packed sequences what they have.

use super::params::BackwardParams;
#[cfg(target_arch = "nvptx64")]
use crate::{
    ptx::memory::st_global_b32,
    tile::warp_tile::{Tiles, WarpTile},
};

/// Keys of a block.
pub const DS_KEYS: u32 = 128;
/// Queries that are copied at a time, and of which the blocks of both kernels are multiples.
pub const DS_QUERIES: u32 = 32;
/// Bytes from 8 keys to the next 8: a core matrix.
pub const KEYS_STEP: u32 = 128;
/// Bytes from 8 queries to the next 8.
pub const QUERIES_STEP: u32 = DS_KEYS / 8 * KEYS_STEP;

/// Bytes of dS of `queries` queries, a multiple of 8, and a block of keys.
pub const fn ds_bytes(queries: u32) -> u32 {
    queries / 8 * QUERIES_STEP
}

/// Where a register of a lane lies that holds two neighbouring queries of a key: those of n8 tile `n` of a step's queries, 8 more keys down
/// with `half` 1. Counted from the lane's [`lane_offset`].
pub const fn register_offset(n: u32, half: u32) -> u32 {
    n * QUERIES_STEP + half * KEYS_STEP
}

/// Where the first register of a lane lies in dS of a step, of a warp whose keys start at `warp_row`.
pub const fn lane_offset(warp_row: u32, lane: u32) -> u32 {
    warp_row / 8 * KEYS_STEP + lane * 4
}

/// Writes a warp's dS of a step from `lane` on, the global address of the lane's first register.
///
/// # Safety
/// All lanes take part, and the places are writable.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub unsafe fn write<W: WarpTile>(lane: u64, ds: &W::P) {
    for m in 0..W::M {
        let lane = lane + u64::from(lane_offset(16 * m as u32, 0));
        for (step, registers) in (0..).zip(ds.row(m)) {
            for (i, &pair) in (0..).zip(registers) {
                // SAFETY: the caller's; each lane has places of its own.
                unsafe { st_global_b32(lane + u64::from(register_offset(2 * step + i / 2, i % 2)), pair) }
            }
        }
    }
}

/// The queries of which dS is written for a block of keys, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first query, a multiple of [`BackwardParams::ds_block_rows`].
    pub first: u32,
    /// The query past the last: whole blocks.
    pub past: u32,
    /// Where the first query's dS lies in that of its head, in groups of 8 queries.
    pub start: u32,
}

impl Piece {
    /// Of the queries that see some of a block's keys, the first and the one past the last, with dS from `start` on; but within what its head
    /// has room for, as `start` follows from lengths on the device, which may be wrong.
    #[inline(always)]
    pub fn new(params: &BackwardParams, seen: (u32, u32), start: u32) -> Piece {
        let (first, past) = params.queries_written(seen);
        Piece { first, past, start: start.min(params.ds_groups.saturating_sub((past - first) / 8)) }
    }

    /// The address of dS of the queries from `query` of it on, a multiple of 8, of a query head, counted over all batch entries.
    #[inline(always)]
    pub fn address(&self, params: &BackwardParams, head: u32, query: u32) -> u64 {
        params.d_s + u64::from(self.group(params, head, query)) * u64::from(QUERIES_STEP)
    }

    /// The number of its group of 8 queries, counted over all dS that is kept: 2048 bytes each, of memory that has no 2^32 of them.
    #[inline(always)]
    pub fn group(&self, params: &BackwardParams, head: u32, query: u32) -> u32 {
        params.ds_heads.divide(head).1 * params.ds_groups + self.start + (query - self.first) / 8
    }
}

impl BackwardParams {
    /// The address of zeros, as many as dS of [`DS_QUERIES`].
    #[inline(always)]
    pub fn zeros(&self) -> u64 {
        self.d_s - u64::from(ds_bytes(DS_QUERIES))
    }

    /// The queries of which dS is written, where these see a block of keys: the first, and the one past the last. Whole blocks.
    #[inline(always)]
    pub fn queries_written(&self, (first, past): (u32, u32)) -> (u32, u32) {
        let rows = self.ds_block_rows.max(1);
        if past > first { (first / rows * rows, past.div_ceil(rows) * rows) } else { (0, 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::divisor::Divisor;
    use std::collections::BTreeMap;

    #[test]
    fn registers_of_a_step_fill_its_place_and_lie_where_a_descriptor_finds_them() {
        let mut places = BTreeMap::new();
        for (warp, lane, n, half) in (0..8_u32)
            .flat_map(|warp| (0..32_u32).map(move |lane| (warp, lane)))
            .flat_map(|(warp, lane)| (0..12_u32).map(move |n| (warp, lane, n)))
            .flat_map(|(warp, lane, n)| [0, 1].map(|half| (warp, lane, n, half)))
        {
            // An accumulator's lane map: rows are keys, columns queries.
            let (key, query) = (warp * 16 + half * 8 + lane / 4, n * 8 + lane % 4 * 2);
            let at = lane_offset(warp * 16, lane) + register_offset(n, half);
            // ((8, queries), (8, keys)) as the PTX ISA writes it.
            let descriptor = query / 8 * QUERIES_STEP + query % 8 * 2 + key / 8 * KEYS_STEP + key % 8 * 16;
            assert_eq!(at, descriptor);
            assert!(places.insert(at, (key, query)).is_none(), "{at}");
        }
        assert!(places.keys().copied().eq((0..ds_bytes(96)).step_by(4)));
    }

    #[test]
    fn pieces_follow_heads_and_stay_within_them() {
        let params = BackwardParams {
            d_s: 1 << 20,
            ds_groups: 24,
            ds_block_rows: 64,
            ds_heads: Divisor::new(5),
            ..BackwardParams::default()
        };
        let piece = Piece::new(&params, (70, 200), 3);
        assert_eq!(piece, Piece { first: 64, past: 256, start: 0 }, "24 groups are all that a head has");
        let piece = Piece::new(&params, (70, 128), 3);
        let offset = |head, query| (piece.address(&params, head, query) - params.d_s) / 2048;
        assert_eq!([offset(5, 64), offset(0, 96), offset(6, 64), offset(12, 72)], [3, 7, 27, 52]);
        assert_eq!(Piece::new(&params, (40, 40), u32::MAX), Piece { first: 0, past: 0, start: 24 });
        assert_eq!(params.d_s - params.zeros(), 8192);
    }

    #[test]
    fn what_is_written_is_whole_blocks() {
        let params = BackwardParams { ds_block_rows: 96, ..BackwardParams::default() };
        assert_eq!(params.queries_written((100, 193)), (96, 288));
        assert_eq!(params.queries_written((0, 96)), (0, 96));
        assert_eq!(params.queries_written((40, 40)), (0, 0), "nobody sees them");
    }
}
