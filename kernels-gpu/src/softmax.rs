//! Online softmax of a warp's rows (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1), in base 2.
//!
//! A lane holds two rows of each m16 tile, row g and row g + 8; four lanes share a row.

use crate::ptx::math::{ex2, fma, lg2, max, rcp};
use crate::ptx::warp::{shfl_bfly, vote_any};
use crate::tile::{OutputFragment, ScoreFragment};

/// How far, in powers of 2, a row's scores may grow past row_max before O and row_sum are rescaled. P stays
/// below 2^8, far from float16's 65504, and most steps need no rescaling. The result is the same: row_max is
/// only a common factor of O and row_sum.
const RESCALE_AT: f32 = 8.0;

/// Running maximum and sum of the rows a lane shares.
#[derive(Clone, Copy)]
pub struct OnlineSoftmax<const M: usize> {
    /// Maximum of the unscaled scores that P is relative to.
    pub row_max: [[f32; 2]; M],
    /// Sum of P over the columns of this lane (over all columns after [`Self::reduce_sum`]).
    pub row_sum: [[f32; 2]; M],
}

impl<const M: usize> OnlineSoftmax<M> {
    /// Before any key has been seen.
    pub const EMPTY: Self = Self { row_max: [[f32::NEG_INFINITY; 2]; M], row_sum: [[0.0; 2]; M] };

    /// Turns S into P in place, and rescales O and row_sum where the maximum grew.
    #[inline(always)]
    pub fn step<const N: usize, const D: usize>(
        &mut self,
        s: &mut ScoreFragment<M, N>,
        acc_o: &mut OutputFragment<M, D>,
        scale_log2: f32,
    ) {
        self.grow_max(s, scale_log2, |correction| {
            for m in 0..M {
                scale_rows(&mut acc_o[m], correction[m]);
            }
        });
        self.exponentiate(s, scale_log2);
    }

    /// Turns S into P in place, relative to row_max.
    #[inline(always)]
    pub fn exponentiate<const N: usize>(&mut self, s: &mut ScoreFragment<M, N>, scale_log2: f32) {
        for m in 0..M {
            for half in 0..2 {
                let offset = -base(self.row_max[m][half]) * scale_log2;
                let mut sum = 0.0;
                for tile in &mut s[m] {
                    for p in &mut tile[2 * half..2 * half + 2] {
                        *p = ex2(fma(*p, scale_log2, offset));
                        sum += *p;
                    }
                }
                self.row_sum[m][half] += sum;
            }
        }
    }

    /// Takes in the maxima of S. Where one has grown too far, rescales row_sum and hands on the factors that O is to be multiplied
    /// with. The same for all lanes of a warp.
    #[inline(always)]
    pub fn grow_max<const N: usize>(
        &mut self,
        s: &ScoreFragment<M, N>,
        scale_log2: f32,
        rescale: impl FnOnce([[f32; 2]; M]),
    ) {
        let mut new_max = self.row_max;
        let mut grew = false;
        for m in 0..M {
            for half in 0..2 {
                let mut row_max = self.row_max[m][half];
                for tile in &s[m] {
                    row_max = max(row_max, max(tile[2 * half], tile[2 * half + 1]));
                }
                row_max = max(row_max, shfl_bfly::<1>(row_max));
                row_max = max(row_max, shfl_bfly::<2>(row_max));
                new_max[m][half] = row_max;
                // −∞ before and after is no growth: the difference is NaN.
                grew |= (row_max - self.row_max[m][half]) * scale_log2 > RESCALE_AT;
            }
        }
        if vote_any(grew) {
            let mut correction = [[1.0; 2]; M];
            for m in 0..M {
                for half in 0..2 {
                    correction[m][half] = ex2((self.row_max[m][half] - base(new_max[m][half])) * scale_log2);
                    self.row_sum[m][half] *= correction[m][half];
                }
            }
            rescale(correction);
            self.row_max = new_max;
        }
    }

    /// Adds the sums of the four lanes that share each row.
    #[inline(always)]
    pub fn reduce_sum(&mut self) {
        for sums in &mut self.row_sum {
            for sum in sums {
                *sum += shfl_bfly::<1>(*sum);
                *sum += shfl_bfly::<2>(*sum);
            }
        }
    }

    /// Takes in the rows of m16 tile `m` of another warp, which saw other keys: its row_max, row_sum and O.
    #[inline(always)]
    pub fn merge<const D: usize>(
        &mut self,
        m: usize,
        acc_o: &mut [[f32; 4]; D],
        (other_max, other_sum): ([f32; 2], [f32; 2]),
        mut other_o: impl FnMut(usize) -> [f32; 4],
        scale_log2: f32,
    ) {
        let new_max: [f32; 2] = core::array::from_fn(|half| max(self.row_max[m][half], other_max[half]));
        let factor = |row_max: [f32; 2]| -> [f32; 2] {
            core::array::from_fn(|half| ex2((row_max[half] - base(new_max[half])) * scale_log2))
        };
        let (own, other) = (factor(self.row_max[m]), factor(other_max));
        for half in 0..2 {
            self.row_sum[m][half] = self.row_sum[m][half] * own[half] + other_sum[half] * other[half];
        }
        for (n, o) in acc_o.iter_mut().enumerate() {
            let other_o = other_o(n);
            for (i, o) in o.iter_mut().enumerate() {
                *o = *o * own[i / 2] + other_o[i] * other[i / 2];
            }
        }
        self.row_max[m] = new_max;
    }

    /// What O is multiplied with at the end: 1 / row_sum, and 0 for a row that saw no key.
    #[inline(always)]
    pub fn normalizer(&self, m: usize) -> [f32; 2] {
        self.row_sum[m].map(|sum| if sum == 0.0 { 0.0 } else { rcp(sum) })
    }

    /// Natural log-sum-exp of the scaled scores; −∞ for a row that saw no key.
    #[inline(always)]
    pub fn lse(&self, m: usize, scale_log2: f32) -> [f32; 2] {
        core::array::from_fn(|half| {
            let sum = self.row_sum[m][half];
            let lse_log2 = self.row_max[m][half] * scale_log2 + lg2(sum);
            if sum == 0.0 { f32::NEG_INFINITY } else { lse_log2 * core::f32::consts::LN_2 }
        })
    }
}

/// Multiplies row g of an m16 tile of O with `factor[0]` and row g + 8 with `factor[1]`.
#[inline(always)]
pub fn scale_rows<const D: usize>(acc_o: &mut [[f32; 4]; D], factor: [f32; 2]) {
    for o in acc_o {
        for (i, o) in o.iter_mut().enumerate() {
            *o *= factor[i / 2];
        }
    }
}

/// What scores are taken relative to: row_max, or 0 while no key was seen, as −∞ − −∞ would be NaN.
#[inline(always)]
fn base(row_max: f32) -> f32 {
    if row_max == f32::NEG_INFINITY { 0.0 } else { row_max }
}
