//! dS in memory, between the kernel that computes it with dK and dV and the one that multiplies it with K: where its elements lie.
//!
//! It lies as the accumulators of wgmma hold dSᵀ: in core matrices of 8 keys and 8 queries, 128 bytes each, of which a warp writes one with
//! each of its registers; a key's 8 queries are 16 bytes. Of a head and a block of keys, those of 8 queries and all keys follow each other,
//! then come the next 8 queries. So any 64 queries are an operand of wgmma without a swizzle, as they lie (PTX ISA, "Canonical Layouts",
//! MN-major).

use super::params::BackwardParams;

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

impl BackwardParams {
    /// The address of dS of a query head, counted over all batch entries, a block of keys, and the queries from `query` on, a multiple of 8.
    #[inline(always)]
    pub fn ds_of(&self, head: u32, key_block: u32, query: u32) -> u64 {
        let head = u64::from(head - self.first_head);
        let keys = head * u64::from(self.key_blocks.value) + u64::from(key_block);
        let groups = keys * u64::from(self.ds_rows / 8) + u64::from(query / 8);
        self.d_s + u64::from(ds_bytes(DS_QUERIES)) + groups * u64::from(QUERIES_STEP)
    }

    /// The address of zeros, as many as dS of [`DS_QUERIES`].
    #[inline(always)]
    pub fn zeros(&self) -> u64 {
        self.d_s
    }

    /// The queries of which dS was written, where these see a block of keys: the first, and the one past the last. Whole blocks.
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
    fn ds_follows_by_queries_then_keys_then_heads_behind_zeros() {
        let params = BackwardParams {
            d_s: 1 << 20,
            key_blocks: Divisor::new(3),
            ds_rows: 64,
            first_head: 5,
            ..BackwardParams::default()
        };
        let offset = |head, key_block, query| params.ds_of(head, key_block, query) - params.zeros();
        assert_eq!([offset(5, 0, 0), offset(5, 0, 32), offset(5, 1, 0)], [1, 2, 3].map(|n| n * 8192));
        assert_eq!(offset(6, 0, 8), 7 * 8192 + 2048);
    }

    #[test]
    fn what_is_written_is_whole_blocks() {
        let params = BackwardParams { ds_block_rows: 96, ..BackwardParams::default() };
        assert_eq!(params.queries_written((100, 193)), (96, 288));
        assert_eq!(params.queries_written((0, 96)), (0, 96));
        assert_eq!(params.queries_written((40, 40)), (0, 0), "nobody sees them");
    }
}
