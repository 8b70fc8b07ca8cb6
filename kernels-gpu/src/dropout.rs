//! Dropout: which weights of the softmax are kept, a function of a seed, an offset, and where a weight stands. Tiles, warps, splits and
//! the order of anything have no part in it, so that the backward pass, and any other program, finds the same weights again.
//!
//! The layout is FlashAttention-2's (`csrc/flash_attn/src/dropout.h`). One call of Philox4x32-7 gives 16 random bytes, those of a lane's
//! weights of 16 queries and 32 keys, in the order of the accumulators of mma.m16n8k16: four n8 tiles side by side, a word each.

#[cfg(target_arch = "nvptx64")]
use crate::ptx::math::mul_wide;

#[cfg(not(target_arch = "nvptx64"))]
fn mul_wide(a: u32, b: u32) -> u64 {
    u64::from(a) * u64::from(b)
}

/// Queries of a block of weights that 32 calls of Philox serve.
pub const QUERIES: u32 = 16;
/// Keys of such a block.
pub const KEYS: u32 = 32;
/// Calls for a block, a counter each: one of every lane of a warp.
pub const LANES: u64 = 32;
/// Rounds of Philox.
const ROUNDS: u32 = 7;

/// Philox4x32: four random words of a counter and a key (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
#[inline(always)]
pub fn philox<const ROUNDS: u32>(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..ROUNDS {
        let (a, b) = (mul_wide(c0, 0xd251_1f53), mul_wide(c2, 0xcd9e_8d57));
        [c0, c1, c2, c3] = [(b >> 32) as u32 ^ c1 ^ k0, b as u32, (a >> 32) as u32 ^ c3 ^ k1, a as u32];
        (k0, k1) = (k0.wrapping_add(0x9e37_79b9), k1.wrapping_add(0xbb67_ae85));
    }
    [c0, c1, c2, c3]
}

/// Where the random byte of a weight is among those of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The lane that calls Philox for it.
    pub lane: u32,
    /// Which of the 16 bytes of that call.
    pub byte: u32,
}

impl Place {
    /// That of a query and a key, of any block.
    pub const fn of(query: u32, key: u32) -> Place {
        let lane = query % 8 * 4 + key % 8 / 2;
        Place { lane, byte: key % KEYS / 8 * 4 + query % QUERIES / 8 * 2 + key % 2 }
    }

    /// The query and the key that it is of, counted from the first ones of the block.
    pub const fn query_and_key(self) -> (u32, u32) {
        let Place { lane, byte } = self;
        (lane / 4 + byte / 2 % 2 * 8, byte / 4 * 8 + lane % 4 * 2 + byte % 2)
    }
}

/// A row of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightRow {
    /// Query head, counted through all batch entries.
    pub head: u32,
    /// Query, counted within its sequence.
    pub query: u32,
}

/// The random numbers of a call, and which of them keep a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropout {
    /// The key of Philox.
    pub seed: u64,
    /// Where its counters start.
    pub offset: u64,
    /// The greatest byte that keeps its weight.
    pub most: u32,
}

impl Dropout {
    /// The random bytes of a lane's weights of the row's 16 queries, and of the 32 keys of block `key_block`.
    #[inline(always)]
    pub fn words(&self, row: WeightRow, lane: u32, key_block: u32) -> [u32; 4] {
        let low = self.offset.wrapping_add(row.head as u64 * LANES + lane as u64);
        let counter = [low as u32, (low >> 32) as u32, row.query / QUERIES, key_block];
        philox::<ROUNDS>(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// Whether a random byte, the lowest one of `word`, keeps its weight.
    #[inline(always)]
    pub const fn keeps_byte(&self, word: u32) -> bool {
        word & 0xff <= self.most
    }

    /// The same of all four bytes of a word: bit 7 of each.
    #[inline(always)]
    pub const fn keeps_bytes(&self, word: u32) -> u32 {
        // A sum reaches bit 7 where the lower seven bits are more than those of `most`. With that and bit 7 itself, a byte is more than `most`
        // by either one where `most` is below 128, and else by both: the majority of three.
        let lower = (word & 0x7f7f_7f7f) + (0x7f - (self.most & 0x7f)) * 0x0101_0101;
        let either = if self.most < 128 { !0 } else { 0 };
        !((word & lower) | ((word | lower) & either)) & 0x8080_8080
    }

    /// The bits of a call for a fragment whose rows are queries: of a byte's tile of four, and then of the byte, as [`bit_of_row`] says of the
    /// first of two calls.
    #[inline(always)]
    pub const fn bits(&self, [w0, w1, w2, w3]: [u32; 4]) -> u32 {
        self.keeps_bytes(w0) >> 7
            | self.keeps_bytes(w1) >> 6
            | self.keeps_bytes(w2) >> 5
            | self.keeps_bytes(w3) >> 4
    }

    /// Whether the weight of a row and a key is kept.
    pub fn keeps(&self, row: WeightRow, key: u32) -> bool {
        let Place { lane, byte } = Place::of(row.query, key);
        let word = self.words(row, lane, key / KEYS)[byte as usize / 4];
        self.keeps_byte(word >> (byte % 4 * 8))
    }
}

/// Where queries are rows, the bit of element `i` of n8 tile `n`, among those of eight tiles: [`Dropout::bits`] of two calls, the second four
/// places up.
#[inline(always)]
pub const fn bit_of_row(n: u32, i: u32) -> u32 {
    i * 8 + n % 8
}

/// From the bits of the calls of rows g and g + 8, those of the weights of both.
#[inline(always)]
pub const fn bits_of_rows(rows: [WeightRow; 2], bits: [u32; 2]) -> u32 {
    let ([low, high], [a, b]) = (rows, bits);
    a >> (low.query / 8 % 2 * 16) & 0xffff | (b >> (high.query / 8 % 2 * 16)) << 16
}

/// The two words of four that have the bytes of the 16 keys among which `key` is, the first or the second ones of 32.
#[inline(always)]
pub const fn of_keys([w0, w1, w2, w3]: [u32; 4], key: u32) -> [u32; 2] {
    if key % KEYS < 16 { [w0, w1] } else { [w2, w3] }
}

/// Where queries are columns and keys are rows, a lane has queries 2t and 2t + 1 of an n8 tile, and keys g and g + 8. The bytes of both
/// queries are in the calls of two lanes; the lane whose g differs in its last bit needs the same two, so that each makes one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transposed {
    /// Whether this lane's call is that of query 2t + 1.
    pub is_odd: bool,
    /// The query of its call, in a tile of 8.
    pub query: u32,
    /// The lane whose call it is where queries are rows.
    pub lane: u32,
}

impl Transposed {
    /// The call of a lane.
    #[inline(always)]
    pub const fn of(lane: u32) -> Transposed {
        let (g, t) = (lane / 4, lane % 4);
        let query = t * 2 + g % 2;
        Transposed { is_odd: g % 2 == 1, query, lane: query * 4 + g / 2 }
    }

    /// From this lane's words of 16 keys ([`of_keys`]: of keys g, and of keys g + 8) and those of the lane whose g differs in its last bit,
    /// the words of query 2t and of query 2t + 1. The lane's byte of the first 8 queries comes down to the lowest place, that of the others
    /// to the third.
    #[inline(always)]
    pub const fn of_queries(self, own: [u32; 2], other: [u32; 2]) -> [[u32; 2]; 2] {
        let shift = self.is_odd as u32 * 8;
        let own = [own[0] >> shift, own[1] >> shift];
        let other = [other[0] >> shift, other[1] >> shift];
        if self.is_odd { [other, own] } else { [own, other] }
    }

    /// Bits of the 16 queries and 16 keys of pair `pair` of n8 tiles, of four, that this lane's call has, from its words of the keys: what
    /// [`Transposed::bits_of_queries`] takes, together with those of the other pairs.
    #[inline(always)]
    pub const fn bits(dropout: &Dropout, [low, high]: [u32; 2], pair: u32) -> u32 {
        (dropout.keeps_bytes(low) >> 7 | dropout.keeps_bytes(high) >> 6) << (2 * pair)
    }

    /// From this lane's bits of four pairs of n8 tiles and those of the lane whose g differs in its last bit, a bit for each weight of this
    /// lane's fragment: [`Transposed::bit`] says which.
    #[inline(always)]
    pub const fn bits_of_queries(self, own: u32, other: u32) -> u32 {
        let shift = self.is_odd as u32 * 8;
        let (own, other) = (own >> shift & 0x00ff_00ff, other >> shift & 0x00ff_00ff);
        if self.is_odd { other | own << 8 } else { own | other << 8 }
    }

    /// The bit of element `i` of n8 tile `n`, among those of its four pairs of tiles.
    #[inline(always)]
    pub const fn bit(n: u32, i: u32) -> u32 {
        n % 2 * 16 + i % 2 * 8 + n / 2 % 4 * 2 + i / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::fragment::accumulator_place;

    const DROPOUT: Dropout = Dropout { seed: 0x1234_5678_9abc_def0, offset: u64::MAX - 40, most: 127 };

    #[test]
    fn philox_gives_the_numbers_that_its_authors_published() {
        let pi = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        let ten = philox::<10>;
        assert_eq!(ten([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(ten([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(ten(pi.0, pi.1), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
        let seven = philox::<7>;
        assert_eq!(seven([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(seven([!0; 4], [!0; 2]), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
        assert_eq!(seven(pi.0, pi.1), [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]);
    }

    #[test]
    fn every_weight_of_a_block_has_a_place_of_its_own_which_is_that_of_an_accumulator() {
        let mut seen = [[false; 16]; 32];
        for (lane, byte) in (0..32).flat_map(|lane| (0..16).map(move |byte| (lane, byte))) {
            let (query, key) = Place { lane, byte }.query_and_key();
            assert_eq!(Place::of(48 + query, 96 + key), Place { lane, byte });
            let at = accumulator_place(lane, byte % 4);
            assert_eq!((query, key), (at.row, byte / 4 * 8 + at.column));
            assert!(!std::mem::replace(&mut seen[lane as usize][byte as usize], true));
        }
    }

    #[test]
    fn where_queries_are_columns_each_weight_gets_the_same_byte() {
        for second in [false, true] {
            let words = |lane: u32| {
                let call = Transposed::of(lane);
                // The call's own number in each of its bytes' places.
                of_keys(core::array::from_fn(|word| (call.lane << 8) | word as u32), u32::from(second) * 16)
            };
            for lane in 0..32 {
                let call = Transposed::of(lane);
                let bytes = |words: [u32; 2]| words.map(|word| word << (call.is_odd as u32 * 8));
                let of = call.of_queries(bytes(words(lane)), bytes(words(lane ^ 4)));
                for (register, tile) in (0..4).flat_map(|register| [0, 1].map(|tile| (register, tile))) {
                    let at = accumulator_place(lane, register);
                    let (key, query) = (at.row + 16 * u32::from(second), at.column + 8 * tile);
                    let place = Place::of(query, key);
                    let word = of[register as usize % 2][register as usize / 2];
                    assert_eq!(word, (place.lane << 8) | (place.byte / 4), "{query} {key}");
                    assert_eq!(place.byte % 4, tile * 2 + u32::from(call.is_odd), "{query} {key}");
                }
            }
        }
    }

    #[test]
    fn four_bytes_at_a_time_are_kept_as_each_by_itself() {
        for (most, byte) in (0..256).flat_map(|most| (0..256).map(move |byte| (most, byte))) {
            let dropout = Dropout { most, ..DROPOUT };
            let word = byte | (byte ^ 0x80) << 8 | (255 - byte) << 16 | (byte ^ 1) << 24;
            let kept = (0..4).filter(|i| dropout.keeps_byte(word >> (8 * i))).map(|i| 0x80 << (8 * i)).sum();
            assert_eq!(dropout.keeps_bytes(word), kept, "{most} {word:x}");
        }
    }

    #[test]
    fn where_queries_are_rows_each_weight_has_its_own_bit() {
        // Rows 8 apart are of one call where the heads of a group are not packed, and else of two.
        let packed = |row: u32| WeightRow { head: 4 + row % 3, query: 7 + row / 3 };
        let of_head = |row: u32| WeightRow { head: 4, query: 32 + row };
        for (at, first_key) in [(&packed as &dyn Fn(u32) -> WeightRow, 64), (&of_head, 32)] {
            for lane in 0..32 {
                let rows = [at(lane / 4), at(lane / 4 + 8)];
                let bits = (0..2).fold(0, |bits, call| {
                    let of = rows.map(|row| {
                        DROPOUT.bits(DROPOUT.words(
                            row,
                            row.query % 8 * 4 + lane % 4,
                            first_key / KEYS + call,
                        ))
                    });
                    bits | bits_of_rows(rows, of) << (4 * call)
                });
                for (n, i) in (0..8).flat_map(|n| (0..4).map(move |i| (n, i))) {
                    let kept = DROPOUT.keeps(rows[i as usize / 2], first_key + n * 8 + lane % 4 * 2 + i % 2);
                    assert_eq!(bits >> bit_of_row(n, i) & 1 == 1, kept, "{lane} {n} {i}");
                }
            }
        }
    }

    #[test]
    fn where_queries_are_columns_each_weight_has_its_own_bit() {
        let (head, first_query) = (5, 32);
        for (first_key, most) in [(64, 127), (80, 40), (16, 200)] {
            let dropout = Dropout { most, ..DROPOUT };
            let bits = |lane: u32| {
                let call = Transposed::of(lane);
                (0..4).fold(0, |bits, pair| {
                    let row = WeightRow { head, query: first_query + pair * 16 + call.query };
                    let words = dropout.words(row, call.lane, first_key / KEYS);
                    bits | Transposed::bits(&dropout, of_keys(words, first_key), pair)
                })
            };
            for lane in 0..32 {
                let of = Transposed::of(lane).bits_of_queries(bits(lane), bits(lane ^ 4));
                for (n, i) in (0..8).flat_map(|n| (0..4).map(move |i| (n, i))) {
                    let at = accumulator_place(lane, i);
                    let (key, query) = (first_key + at.row, first_query + n * 8 + at.column);
                    let kept = dropout.keeps(WeightRow { head, query }, key);
                    assert_eq!(of >> Transposed::bit(n, i) & 1 == 1, kept, "{lane} {n} {i}");
                }
            }
        }
    }

    #[test]
    fn a_weight_is_kept_by_its_own_byte() {
        let row = |query| WeightRow { head: 3, query };
        for (query, key) in (0..40).flat_map(|query| (0..70).map(move |key| (query, key))) {
            let Place { lane, byte } = Place::of(query, key);
            let low = DROPOUT.offset.wrapping_add(3 * 32 + u64::from(lane));
            let counter = [low as u32, (low >> 32) as u32, query / 16, key / 32];
            let bytes = philox::<7>(counter, [0x9abc_def0, 0x1234_5678]).map(u32::to_le_bytes).concat();
            assert_eq!(DROPOUT.keeps(row(query), key), bytes[byte as usize] <= 127);
        }
        let kept = |most| {
            let dropout = Dropout { most, ..DROPOUT };
            (0..256)
                .flat_map(|query| (0..256).map(move |key| (query, key)))
                .filter(|&(query, key)| dropout.keeps(row(query), key))
                .count()
        };
        assert_eq!(kept(255), 65536);
        assert!(kept(127).abs_diff(32768) < 4 * 128, "half of them, within four standard deviations");
        assert!(kept(0).abs_diff(256) < 4 * 16);
    }
}
