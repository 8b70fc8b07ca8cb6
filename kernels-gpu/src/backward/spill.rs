//! dS in memory, between the kernel that computes it with dK and dV and the one that multiplies it with K: where its elements lie.
//!
//! A unit is dS of 64 queries and 128 keys, as the accumulators of wgmma hold dSᵀ: core matrices of 8 keys and 8 queries, 128 bytes each, of
//! which a warp writes one with each of its registers; a key's 8 queries are 16 bytes. They are in order of queries first, and so are an
//! operand of wgmma without a swizzle, as they lie (PTX ISA, "Canonical Layouts", MN-major).

use super::params::BackwardParams;

/// Queries of a unit.
pub const UNIT_QUERIES: u32 = 64;
/// Keys of a unit.
pub const UNIT_KEYS: u32 = 128;
/// Bytes of a unit.
pub const UNIT_BYTES: u32 = UNIT_QUERIES * UNIT_KEYS * 2;
/// Bytes of a core matrix, and so from 8 queries to the next 8 of a unit.
pub const QUERIES_STEP: u32 = 128;
/// Bytes from 8 keys to the next 8 of a unit.
pub const KEYS_STEP: u32 = UNIT_QUERIES / 8 * QUERIES_STEP;

/// Where a register of a lane lies that holds two neighbouring queries of a key: those of n8 tile `n` of a step's queries, 8 more keys down
/// with `half` 1. Counted from the lane's [`lane_offset`] in the step's first unit.
pub const fn register_offset(n: u32, half: u32) -> u32 {
    let tiles = UNIT_QUERIES / 8;
    n / tiles * UNIT_BYTES + half * KEYS_STEP + n % tiles * QUERIES_STEP
}

/// Where the first register of a lane lies in a unit, of a warp whose keys start at `warp_row`.
pub const fn lane_offset(warp_row: u32, lane: u32) -> u32 {
    warp_row / 8 * KEYS_STEP + lane * 4
}

impl BackwardParams {
    /// The address of a unit: of a query head, counted over all batch entries, a block of keys and 64 queries.
    #[inline(always)]
    pub fn unit(&self, head: u32, key_block: u32, queries: u32) -> u64 {
        let head = u64::from(head - self.first_head);
        let keys = head * u64::from(self.key_blocks.value) + u64::from(key_block);
        let unit = keys * u64::from(self.query_units) + u64::from(queries);
        // The first one is of zeros.
        self.d_s + (unit + 1) * u64::from(UNIT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn registers_of_a_step_fill_its_units_and_lie_where_a_descriptor_finds_them() {
        let mut places = BTreeMap::new();
        for (warp, lane, n, half) in (0..8_u32)
            .flat_map(|warp| (0..32_u32).map(move |lane| (warp, lane)))
            .flat_map(|(warp, lane)| (0..16_u32).map(move |n| (warp, lane, n)))
            .flat_map(|(warp, lane, n)| [0, 1].map(|half| (warp, lane, n, half)))
        {
            // An accumulator's lane map: rows are keys, columns queries.
            let (key, query) = (warp * 16 + half * 8 + lane / 4, n * 8 + lane % 4 * 2);
            let at = lane_offset(warp * 16, lane) + register_offset(n, half);
            // Unit after unit; ((8, queries), (8, keys)) as the PTX ISA writes it.
            let (unit, query) = (query / UNIT_QUERIES, query % UNIT_QUERIES);
            let descriptor = query / 8 * QUERIES_STEP + query % 8 * 2 + key / 8 * KEYS_STEP + key % 8 * 16;
            assert_eq!(at, unit * UNIT_BYTES + descriptor);
            assert!(places.insert(at, (key, query)).is_none(), "{at}");
        }
        assert!(places.keys().copied().eq((0..2 * UNIT_BYTES).step_by(4)));
    }

    #[test]
    fn units_follow_each_other_by_queries_then_keys_then_heads_behind_one_of_zeros() {
        let params = BackwardParams {
            d_s: 1 << 20,
            key_blocks: crate::divisor::Divisor::new(3),
            query_units: 4,
            first_head: 5,
            ..BackwardParams::default()
        };
        let number = |head, key_block, queries| {
            (params.unit(head, key_block, queries) - params.d_s) / u64::from(UNIT_BYTES)
        };
        assert_eq!(number(5, 0, 0), 1);
        assert_eq!((number(5, 0, 3), number(5, 1, 0), number(6, 0, 0)), (4, 5, 13));
    }
}
