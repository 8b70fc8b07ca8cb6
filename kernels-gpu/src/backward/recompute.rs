//! The element step of the backward pass: S and dP become P and dS.
//!
//! L and δ belong to queries, which are a lane's rows in `dq` and its columns in `dkv`: the orientation is a type.

use crate::ptx::math::{ex2, fma};
use crate::ptx::memory::ld_shared_v4;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::Visible;

/// What the queries of a lane's elements say of them.
pub trait Statistics: Copy {
    /// L·log2(e) and δ of the four elements of n8 tile `n`.
    fn of(&self, n: usize) -> [[f32; 2]; 4];

    /// Whether the mask hides the four elements of n8 tile `n`.
    fn hides(&self, n: usize) -> [bool; 4];
}

/// P of a score.
#[inline(always)]
fn probability(score: f32, scale_log2: f32, lse_log2: f32) -> f32 {
    ex2(fma(score, scale_log2, -lse_log2))
}

/// Turns S into P = exp2(S · scale_log2 − L·log2(e)) and dP into dS = P∘(dP − δ), without the scale.
#[inline(always)]
pub fn recompute<W: WarpTile>(
    s: &mut W::S<[f32; 4]>,
    dp: &mut W::S<[f32; 4]>,
    statistics: &impl Statistics,
    scale_log2: f32,
) {
    for (n, (s, dp)) in s.row_mut(0).iter_mut().zip(dp.row_mut(0)).enumerate() {
        let of = statistics.of(n);
        for (i, [lse_log2, delta]) in of.into_iter().enumerate() {
            s[i] = probability(s[i], scale_log2, lse_log2);
            dp[i] = s[i] * (dp[i] - delta);
        }
    }
}

/// The first half of [`recompute`]: S becomes P, while dP is not there yet.
#[cfg(ferroflash_wgmma)]
#[inline(always)]
pub fn probabilities<W: WarpTile>(s: &mut W::S<[f32; 4]>, statistics: &impl Statistics, scale_log2: f32) {
    for (n, s) in s.row_mut(0).iter_mut().enumerate() {
        for (i, [lse_log2, _]) in statistics.of(n).into_iter().enumerate() {
            s[i] = probability(s[i], scale_log2, lse_log2);
        }
    }
}

/// The second half of [`recompute`]: dP becomes dS.
#[cfg(ferroflash_wgmma)]
#[inline(always)]
pub fn score_gradients<W: WarpTile>(
    p: &W::S<[f32; 4]>,
    dp: &mut W::S<[f32; 4]>,
    statistics: &impl Statistics,
) {
    for (n, (p, dp)) in p.row(0).iter().zip(dp.row_mut(0)).enumerate() {
        for (i, [_, delta]) in statistics.of(n).into_iter().enumerate() {
            dp[i] = p[i] * (dp[i] - delta);
        }
    }
}

/// Sets P and dS of hidden pairs to 0, whatever they are: 0 · NaN would be NaN.
#[inline(always)]
pub fn hide<W: WarpTile>(p: &mut W::S<[f32; 4]>, ds: &mut W::S<[f32; 4]>, statistics: &impl Statistics) {
    for (n, (p, ds)) in p.row_mut(0).iter_mut().zip(ds.row_mut(0)).enumerate() {
        for (i, hidden) in statistics.hides(n).into_iter().enumerate() {
            if hidden {
                (p[i], ds[i]) = (0.0, 0.0);
            }
        }
    }
}

/// Queries are rows: a lane has two, g and g + 8.
#[derive(Clone, Copy, Debug)]
pub struct ByRow {
    /// L·log2(e) and δ of both.
    pub of: [[f32; 2]; 2],
    /// The keys that each sees.
    pub visible: [Visible; 2],
    /// Keys at the start of the sequence that are seen whatever the beginning of `visible`.
    pub sink_tokens: u32,
    /// The key of the lane's first column.
    pub lane_key: u32,
}

impl Statistics for ByRow {
    #[inline(always)]
    fn of(&self, _n: usize) -> [[f32; 2]; 4] {
        let [low, high] = self.of;
        [low, low, high, high]
    }

    #[inline(always)]
    fn hides(&self, n: usize) -> [bool; 4] {
        core::array::from_fn(|i| {
            let key = self.lane_key + (n * 8 + i % 2) as u32;
            is_hidden(key, self.visible[i / 2], self.sink_tokens)
        })
    }
}

/// Queries are columns: a lane has columns 2t and 2t + 1 of each n8 tile, and keys g and g + 8.
#[derive(Clone, Copy, Debug)]
pub struct ByColumn {
    /// The address of the statistics of the lane's first column in shared memory.
    statistics: u32,
    /// That of what it sees.
    limits: u32,
    /// The lane's first key.
    lane_key: u32,
    sink_tokens: u32,
}

impl ByColumn {
    /// Those of a block, whose statistics and limits have been written.
    #[inline(always)]
    pub fn new((statistics, limits): (u32, u32), lane_key: u32, lane: u32, sink_tokens: u32) -> Self {
        let along = lane % 4 * 16;
        Self { statistics: statistics + along, limits: limits + along, lane_key, sink_tokens }
    }
}

impl Statistics for ByColumn {
    #[inline(always)]
    fn of(&self, n: usize) -> [[f32; 2]; 4] {
        // SAFETY: the statistics of two queries of the stage, 8 bytes each, which nobody writes meanwhile.
        let [l0, d0, l1, d1] = unsafe { ld_shared_v4(self.statistics + n as u32 * 64) }.map(f32::from_bits);
        [[l0, d0], [l1, d1], [l0, d0], [l1, d1]]
    }

    #[inline(always)]
    fn hides(&self, n: usize) -> [bool; 4] {
        // SAFETY: the limits of two queries of the stage, as above.
        let [b0, e0, b1, e1] = unsafe { ld_shared_v4(self.limits + n as u32 * 64) };
        let visible = [Visible { begin: b0, end: e0 }, Visible { begin: b1, end: e1 }];
        core::array::from_fn(|i| {
            let key = self.lane_key + (i / 2) as u32 * 8;
            is_hidden(key, visible[i % 2], self.sink_tokens)
        })
    }
}

/// Whether a query that sees these keys does not see a key.
#[inline(always)]
pub fn is_hidden(key: u32, Visible { begin, end }: Visible, sink_tokens: u32) -> bool {
    // Not `&&` and `||`, which would be branches.
    (key >= end) | ((key < begin) & (key >= sink_tokens))
}
