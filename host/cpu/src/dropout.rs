//! Dropout: weights of the softmax that are left out at random, those that FlashAttention-2 and the kernels leave out.

use crate::call::Call;
use crate::real::Real;
use crate::sequence::Sequence;

/// Which weights of the softmax are 0: each with a probability, all others are multiplied with 1 / (1 − p). LSE is that of all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability: at least 0 and below 1.
    pub p: f32,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Where their counters start.
    pub offset: u64,
}

impl Dropout {
    /// Whether the weight of a query and a key is kept, of a head that is counted through all sequences.
    pub fn keeps(&self, head: usize, query: usize, key: usize) -> bool {
        // Of 16 queries and 32 keys each of 32 counters has 16 bytes: of two queries 8 apart, and of two neighbours among each 8 keys.
        let lane = query % 8 * 4 + key % 8 / 2;
        let counter = self.offset.wrapping_add((head * 32 + lane) as u64);
        let numbers = philox([counter, ((key as u64 / 32) << 32) | (query as u64 / 16)], self.seed);
        let byte = numbers[key % 32 / 8].to_le_bytes()[query % 16 / 8 * 2 + key % 2];
        f64::from(byte) <= (f64::from(1.0 - self.p) * 255.0).floor()
    }
}

/// What a weight is multiplied with: 1 where the call has no dropout.
pub(crate) fn factor<R: Real>(
    call: &Call,
    sequence: &Sequence,
    head: usize,
    (query, key): (usize, usize),
) -> R {
    match call.dropout {
        None => R::ONE,
        Some(dropout) if dropout.keeps(sequence.batch * call.sizes.heads_q + head, query, key) => {
            R::ONE / R::of((1.0 - dropout.p).into())
        }
        Some(_) => R::ZERO,
    }
}

/// Philox4x32 of seven rounds (Salmon et al., 2011).
fn philox(counter: [u64; 2], key: u64) -> [u32; 4] {
    let halves = |number: u64| [number as u32, (number >> 32) as u32];
    let ([mut a, mut b], [mut c, mut d]) = (halves(counter[0]), halves(counter[1]));
    for round in 0..7 {
        let [x, y] = halves(key);
        let [x, y] = [(x, 0x9e37_79b9_u32), (y, 0xbb67_ae85)]
            .map(|(key, step)| key.wrapping_add(step.wrapping_mul(round)));
        let [of_a, of_c] = [u64::from(a) * 0xd251_1f53, u64::from(c) * 0xcd9e_8d57].map(halves);
        (a, b, c, d) = (of_c[1] ^ b ^ x, of_c[0], of_a[1] ^ d ^ y, of_a[0]);
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_numbers_that_its_authors_published() {
        assert_eq!(philox([0; 2], 0), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(philox([!0; 2], !0), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
        let of_pi = philox([0x85a3_08d3_243f_6a88, 0x0370_7344_1319_8a2e], 0x299f_31d0_a409_3822);
        assert_eq!(of_pi, [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]);
    }
}
