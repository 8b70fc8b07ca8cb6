//! Online softmax of a warp's rows (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1), in base 2.
//!
//! A lane holds two rows of each m16 tile, row g and row g + 8; four lanes share a row.

use crate::ptx::math::{ex2, fma, lg2, max, rcp};
use crate::ptx::warp::{shfl_bfly, vote_any};
use crate::tile::warp_tile::{Tiles, WarpTile};
use core::f32::consts::{LN_2, LOG2_E};

/// How far, in powers of 2, a row's scores may grow past row_max before O and row_sum are rescaled, where P·V accumulates in float32.
/// P stays below 2^8, far from float16's 65504, and most steps need no rescaling. The result is the same: row_max is
/// only a common factor of O and row_sum.
pub const LAZY_RESCALE_AT: f32 = 8.0;

/// How the numbers of a fragment stand for scores. Of a row, the greatest score is that of the greatest number.
pub trait Reading<W: WarpTile> {
    /// Whether they are the scores.
    const AS_IS: bool = false;

    /// The score of the greatest number of a row.
    fn score(&self, m: usize, half: usize, number: f32) -> f32;

    /// The exponents, in base 2, of four numbers of a row relative to the score `base`.
    fn exponents(&self, m: usize, half: usize, numbers: [f32; 4], base: f32) -> [f32; 4];
}

/// The numbers are the scores.
pub struct AsIs;

impl<W: WarpTile> Reading<W> for AsIs {
    const AS_IS: bool = true;

    #[inline(always)]
    fn score(&self, _: usize, _: usize, number: f32) -> f32 {
        number
    }

    #[inline(always)]
    fn exponents(&self, _: usize, _: usize, numbers: [f32; 4], _: f32) -> [f32; 4] {
        numbers
    }
}

/// Running maximum and sum of the rows a lane shares.
#[derive(Clone, Copy, Debug)]
pub struct OnlineSoftmax<W: WarpTile> {
    /// Maximum of the unscaled scores that P is relative to.
    pub row_max: W::Rows<f32>,
    /// Sum of P over the columns of this lane (over all columns after [`Self::reduce_sum`]).
    pub row_sum: W::Rows<f32>,
}

impl<W: WarpTile> OnlineSoftmax<W> {
    /// Before any key has been seen.
    pub const EMPTY: Self = Self { row_max: W::NO_MAX, row_sum: W::NO_SUM };

    /// Turns S into P in place, and rescales O and row_sum where the maximum grew by more than 2 to the power of `rescale_at`.
    #[inline(always)]
    pub fn step(&mut self, s: &mut W::S<[f32; 4]>, acc_o: &mut W::O, (scale_log2, rescale_at): (f32, f32)) {
        self.grow_max(s, &AsIs, (scale_log2, rescale_at), |correction| {
            for m in 0..W::M {
                scale_rows(acc_o.row_mut(m), halves(&correction, m));
            }
        });
        self.exponentiate(s, scale_log2);
    }

    /// Turns S into P in place, relative to row_max, and adds P to row_sum.
    #[inline(always)]
    pub fn exponentiate(&mut self, s: &mut W::S<[f32; 4]>, scale_log2: f32) {
        for m in 0..W::M {
            for half in 0..2 {
                let offset = -base(self.row_max.row(m)[half]) * scale_log2;
                let mut sum = 0.0;
                for tile in s.row_mut(m) {
                    for p in &mut tile[2 * half..2 * half + 2] {
                        *p = ex2(fma(*p, scale_log2, offset));
                        sum += *p;
                    }
                }
                self.row_sum.row_mut(m)[half] += sum;
            }
        }
    }

    /// As [`Self::exponentiate`], of numbers that stand for scores.
    #[inline(always)]
    pub fn exponentiate_as(&mut self, s: &mut W::S<[f32; 4]>, reading: &impl Reading<W>) {
        for m in 0..W::M {
            for half in 0..2 {
                let base = base(self.row_max.row(m)[half]);
                let mut sum = 0.0;
                for tiles in s.row_mut(m).chunks_exact_mut(2) {
                    let at = 2 * half;
                    let numbers = [tiles[0][at], tiles[0][at + 1], tiles[1][at], tiles[1][at + 1]];
                    let p = reading.exponents(m, half, numbers, base).map(ex2);
                    (tiles[0][at], tiles[0][at + 1]) = (p[0], p[1]);
                    (tiles[1][at], tiles[1][at + 1]) = (p[2], p[3]);
                    for p in p {
                        sum += p;
                    }
                }
                self.row_sum.row_mut(m)[half] += sum;
            }
        }
    }

    /// Updates row_max of the rows that grew by more than 2 to the power of `rescale_at`, as `reading` has S, and row_sum with them; passes O's factors to
    /// `rescale` if a row of the warp grew. The branch is the same for all lanes of a warp.
    #[inline(always)]
    pub fn grow_max<R: Reading<W>>(
        &mut self,
        s: &W::S<[f32; 4]>,
        reading: &R,
        (scale_log2, rescale_at): (f32, f32),
        rescale: impl FnOnce(W::Rows<f32>),
    ) {
        let mut new_max = self.row_max;
        let mut grew = false;
        for m in 0..W::M {
            for half in 0..2 {
                let mut row_max = if R::AS_IS { self.row_max.row(m)[half] } else { f32::NEG_INFINITY };
                for tile in s.row(m) {
                    row_max = max(row_max, max(tile[2 * half], tile[2 * half + 1]));
                }
                if !R::AS_IS {
                    row_max = max(self.row_max.row(m)[half], reading.score(m, half, row_max));
                }
                row_max = max(row_max, shfl_bfly::<1>(row_max));
                row_max = max(row_max, shfl_bfly::<2>(row_max));
                new_max.row_mut(m)[half] = row_max;
                // −∞ before and after is no growth: the difference is NaN.
                grew |= (row_max - self.row_max.row(m)[half]) * scale_log2 > rescale_at;
            }
        }
        if vote_any(grew) {
            let mut correction = W::Rows::<f32>::splat(1.0);
            for m in 0..W::M {
                for half in 0..2 {
                    let new = new_max.row(m)[half];
                    correction.row_mut(m)[half] = self.grow_row((m, half), new, (scale_log2, rescale_at)).1;
                }
            }
            rescale(correction);
        }
    }

    /// Updates row_max of the rows that grew by more than 2 to the power of `rescale_at`, as `reading` has S, and row_sum with them. The
    /// factors of O, and whether one of the lane's rows grew: if so in one lane of a warp, O is to be rescaled. Without a branch, so that the
    /// exponentials of one row can be taken while the maximum of the next is found.
    #[inline(always)]
    pub fn grow_rows<R: Reading<W>>(
        &mut self,
        s: &W::S<[f32; 4]>,
        reading: &R,
        (scale_log2, rescale_at): (f32, f32),
    ) -> (bool, W::Rows<f32>) {
        let mut correction = W::Rows::<f32>::splat(1.0);
        let mut any = false;
        for m in 0..W::M {
            for half in 0..2 {
                let old = self.row_max.row(m)[half];
                let mut greatest = f32::NEG_INFINITY;
                for tile in s.row(m) {
                    greatest = max(greatest, max(tile[2 * half], tile[2 * half + 1]));
                }
                let mut row_max = max(old, reading.score(m, half, greatest));
                row_max = max(row_max, shfl_bfly::<1>(row_max));
                row_max = max(row_max, shfl_bfly::<2>(row_max));
                let (grew, factor) = self.grow_row((m, half), row_max, (scale_log2, rescale_at));
                correction.row_mut(m)[half] = factor;
                any |= grew;
            }
        }
        (any, correction)
    }

    /// Whether a row grows to the maximum `new` by more than 2 to the power of `rescale_at`, and the factor of its O; row_max and row_sum are
    /// those behind it. A row that does not grow keeps its maximum, so that its bits do not depend on which rows share its warp.
    #[inline(always)]
    fn grow_row(
        &mut self,
        (m, half): (usize, usize),
        new: f32,
        (scale_log2, rescale_at): (f32, f32),
    ) -> (bool, f32) {
        let old = self.row_max.row(m)[half];
        // −∞ before and after is no growth: the difference is NaN.
        let grew = (new - old) * scale_log2 > rescale_at;
        let kept = if grew { new } else { old };
        let factor = ex2((old - base(kept)) * scale_log2);
        self.row_max.row_mut(m)[half] = kept;
        self.row_sum.row_mut(m)[half] *= factor;
        (grew, factor)
    }

    /// Adds the sums of the four lanes that share each row.
    #[inline(always)]
    pub fn reduce_sum(&mut self) {
        for m in 0..W::M {
            for sum in self.row_sum.row_mut(m) {
                *sum += shfl_bfly::<1>(*sum);
                *sum += shfl_bfly::<2>(*sum);
            }
        }
    }

    /// Merges the rows of m16 tile `m` of another warp, which saw other keys, into this one's: row_max, row_sum and O.
    #[inline(always)]
    pub fn merge(
        &mut self,
        m: usize,
        acc_o: &mut [[f32; 4]],
        (other_max, other_sum): ([f32; 2], [f32; 2]),
        mut other_o: impl FnMut(usize) -> [f32; 4],
        scale_log2: f32,
    ) {
        let (row_max, row_sum) = (halves(&self.row_max, m), self.row_sum.row_mut(m));
        let new_max: [f32; 2] = core::array::from_fn(|half| max(row_max[half], other_max[half]));
        let factor = |row_max: [f32; 2]| -> [f32; 2] {
            core::array::from_fn(|half| ex2((row_max[half] - base(new_max[half])) * scale_log2))
        };
        let (own, other) = (factor(row_max), factor(other_max));
        for half in 0..2 {
            row_sum[half] = row_sum[half] * own[half] + other_sum[half] * other[half];
        }
        for (n, o) in acc_o.iter_mut().enumerate() {
            let other_o = other_o(n);
            for (i, o) in o.iter_mut().enumerate() {
                *o = *o * own[i / 2] + other_o[i] * other[i / 2];
            }
        }
        let [low, high] = new_max;
        self.row_max.row_mut(m)[0] = low;
        self.row_max.row_mut(m)[1] = high;
    }

    /// Adds the weight of a score that has no value, in natural-log units, to a row's sum after [`Self::reduce_sum`]. It may be infinite
    /// beside the others: O is then 0. A score of −∞ changes nothing.
    #[inline(always)]
    pub fn take_in(&mut self, m: usize, half: usize, score: f32, scale_log2: f32) {
        let relative = fma(base(self.row_max.row(m)[half]), -scale_log2, score * LOG2_E);
        self.row_sum.row_mut(m)[half] += ex2(relative);
    }

    /// What O is multiplied with at the end: 1 / row_sum, and 0 for a row that saw no key.
    #[inline(always)]
    pub fn normalizer(&self, m: usize) -> [f32; 2] {
        halves(&self.row_sum, m).map(|sum| if sum == 0.0 { 0.0 } else { rcp(sum) })
    }

    /// Natural log-sum-exp of the scaled scores; −∞ for a row that saw no key.
    #[inline(always)]
    pub fn lse(&self, m: usize, scale_log2: f32) -> [f32; 2] {
        core::array::from_fn(|half| {
            let sum = self.row_sum.row(m)[half];
            let lse_log2 = self.row_max.row(m)[half] * scale_log2 + lg2(sum);
            if sum == 0.0 { f32::NEG_INFINITY } else { lse_log2 * LN_2 }
        })
    }
}

/// The values of a lane's two rows of m16 tile `m`.
#[inline(always)]
pub fn halves<T: Copy>(rows: &impl Tiles<T>, m: usize) -> [T; 2] {
    [rows.row(m)[0], rows.row(m)[1]]
}

/// Multiplies row g of an m16 tile of O with `factor[0]` and row g + 8 with `factor[1]`.
#[inline(always)]
pub fn scale_rows(acc_o: &mut [[f32; 4]], factor: [f32; 2]) {
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

/// ln(e^a + e^b): the other one's very bits where one of them is −∞, NaN where `a` is.
#[inline(always)]
pub fn log_add_exp(a: f32, b: f32) -> f32 {
    // Not `max`, for which a NaN gives way to a number.
    let (more, less) = if b > a { (b, a) } else { (a, b) };
    let sum = more + lg2(1.0 + ex2((less - more) * LOG2_E)) * LN_2;
    if less == f32::NEG_INFINITY { more } else { sum }
}
