//! A score on a fragment, the lane's products of a block of keys: all of them, or by a shorter way.

use crate::element::{Bf16, Element};
use crate::math::softmax::Reading;
use crate::ptx::math::{fma, select};
use crate::ptx::opaque;
use crate::score::{Near, Score};
use crate::tile::warp_tile::{Tiles, WarpTile};

/// Sets the scores of keys that the score hides to −∞, in a fragment as that of [`score_all`].
#[inline(always)]
pub fn hide_all<W: WarpTile, S: Score>(
    score: S,
    s: &mut W::S<[f32; 4]>,
    rows: &W::Rows<S::Row>,
    first_key: u32,
    lane: u32,
) {
    let lane_key = first_key + lane % 4 * 2;
    for m in 0..W::M {
        let keys = [0, 1].map(|half| score.keys(rows.row(m)[half], lane_key));
        for (n, tile) in (0..).zip(s.row_mut(m)) {
            for (i, s) in tile.iter_mut().enumerate() {
                let seen = score.sees(keys[i / 2], n * 8 + i as u32 % 2);
                *s = f32::from_bits(select(seen, s.to_bits(), f32::NEG_INFINITY.to_bits()));
            }
        }
    }
}

/// Turns products into scores, in a fragment whose columns start at `first_key`; `rows` is what the score keeps of the lane's rows.
#[inline(always)]
pub fn score_all<W: WarpTile, S: Score>(
    score: S,
    s: &mut W::S<[f32; 4]>,
    rows: &W::Rows<S::Row>,
    first_key: u32,
    lane: u32,
) {
    let lane_key = first_key + lane % 4 * 2;
    for m in 0..W::M {
        let keys = [0, 1].map(|half| score.keys(rows.row(m)[half], lane_key));
        for (n, tile) in (0..).zip(s.row_mut(m)) {
            for (i, s) in tile.iter_mut().enumerate() {
                *s = score.score(*s, keys[i / 2], n * 8 + i as u32 % 2);
            }
        }
    }
}

/// Products of a block that all rows see whole, under a score that is [`Score::MONOTONE`]: near ones by [`Score::near`], and the others,
/// if there are any, by [`Score::of_product`]. So a weight does not depend on which others share its warp.
pub struct Products<S, const FAR: bool> {
    score: S,
    near: Near,
}

impl<S: Score, const FAR: bool> Products<S, FAR> {
    /// Those that a score reads.
    #[inline(always)]
    pub fn new(score: S) -> Self {
        Self { score, near: score.near() }
    }
}

impl<W: WarpTile, S: Score, const FAR: bool> Reading<W> for Products<S, FAR> {
    #[inline(always)]
    fn score(&self, _: usize, _: usize, product: f32) -> f32 {
        self.score.of_product(product)
    }

    #[inline(always)]
    fn exponents(&self, _: usize, _: usize, products: [f32; 4], base: f32) -> [f32; 4] {
        let scale_log2 = self.score.scale_log2();
        let offset = -base * scale_log2;
        products.map(|product| {
            if !FAR || self.near.beyond(product) < 0.0 {
                self.near.exponent(product, offset)
            } else {
                fma(self.score.of_product(product), scale_log2, offset)
            }
        })
    }
}

/// Products and [`Score::slope`] of keys that are not behind the rows' own: scores but for what is added to all of a row.
pub struct Shifted<W: WarpTile> {
    shifts: W::Rows<f32>,
    scale_log2: f32,
}

impl<W: WarpTile> Shifted<W> {
    /// Of a block of keys from `first_key` on; `rows` is what the score keeps of the lane's rows.
    #[inline(always)]
    pub fn new<S: Score>(score: S, rows: &W::Rows<S::Row>, first_key: u32) -> Self {
        let shifts = Tiles::from_fn(|m, half| score.shift(score.keys(rows.row(m)[half], first_key)));
        Self { shifts, scale_log2: score.scale_log2() }
    }
}

impl<W: WarpTile> Reading<W> for Shifted<W> {
    #[inline(always)]
    fn score(&self, m: usize, half: usize, number: f32) -> f32 {
        number + self.shifts.row(m)[half]
    }

    #[inline(always)]
    fn exponents(&self, m: usize, half: usize, numbers: [f32; 4], base: f32) -> [f32; 4] {
        let offset = (self.shifts.row(m)[half] - base) * self.scale_log2;
        numbers.map(|number| fma(number, self.scale_log2, offset))
    }
}

/// The first m16 tile's rows of [`Score::slope`] as the A operand of a k16 step, whose B operand has a key's number within its block in its first
/// three elements, exactly: three bfloat16 that add up to the slope.
#[inline(always)]
pub fn slopes<W: WarpTile, S: Score>(score: S, rows: &W::Rows<S::Row>, lane: u32) -> [u32; 4] {
    let [low, high] = [0, 1].map(|half| {
        let slope = score.slope(rows.row(0)[half]);
        let rounded = |x: f32| Bf16::unpack(Bf16::pack(x, 0.0))[0];
        let first = rounded(slope);
        let second = rounded(slope - first);
        let third = slope - first - second;
        let two = if lane % 4 == 0 { Bf16::pack(first, second) } else { Bf16::pack(third, 0.0) };
        if lane % 4 < 2 { two } else { 0 }
    });
    [low, high, 0, 0]
}

/// What [`Score::load_pair`] loads for a fragment as that of [`score_all`]: of each n8 tile a word for each of the lane's rows.
#[inline(always)]
pub fn load_pairs<W: WarpTile, S: Score>(
    score: S,
    rows: &W::Rows<S::Row>,
    first_key: u32,
    lane: u32,
) -> W::S<[u32; 2]> {
    let mut lane_key = first_key + lane % 4 * 2;
    if <W::S<[u32; 2]> as Tiles<_>>::N.is_power_of_two() {
        // Nothing is to be known of its bits: else each load has an address of its own.
        lane_key = opaque(lane_key);
    }
    Tiles::from_fn(|m, n| {
        [0, 1].map(|half| score.load_pair(score.keys(rows.row(m)[half], lane_key), n as u32 * 8))
    })
}

/// As [`score_all`], given what [`load_pairs`] has loaded.
#[inline(always)]
pub fn score_pairs<W: WarpTile, S: Score>(score: S, s: &mut W::S<[f32; 4]>, loaded: &W::S<[u32; 2]>) {
    for m in 0..W::M {
        for (tile, loaded) in s.row_mut(m).iter_mut().zip(loaded.row(m)) {
            let [low, high] = *loaded;
            [tile[0], tile[1]] = score.of_pair([tile[0], tile[1]], low);
            [tile[2], tile[3]] = score.of_pair([tile[2], tile[3]], high);
        }
    }
}
