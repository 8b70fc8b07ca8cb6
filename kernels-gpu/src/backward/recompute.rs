//! The element step of the backward pass: S and dP become P and dS.
//!
//! L and δ belong to queries, which are a lane's rows in `dq` and its columns in `dkv`: the orientation is a type. So is what touches every
//! score, whose derivative dS is multiplied with.

use super::row::STATISTICS_BYTES;
use crate::dropout::{Dropout, KEYS, QUERIES, Transposed, WeightRow, of_keys};
use crate::ptx::math::{ex2, fma, select};
use crate::ptx::memory::{ld_shared_v2_f32, ld_shared_v4, ld_shared_v4_f32};
use crate::ptx::warp::{shfl_bfly_b32, sync_warp};
use crate::score::Score;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::Visible;

/// What the queries of a lane's elements say of them.
pub trait Statistics<S: Score>: Copy {
    /// The scores of the four elements of n8 tile `n` of m16 tile `m`, given their products.
    fn scores(&self, score: S, products: [f32; 4], at: (usize, usize)) -> [f32; 4];

    /// L·log2(e) and δ of the four elements of n8 tile `n`: of all m16 tiles where queries are columns, and of the one where they are rows.
    fn of(&self, n: usize) -> [[f32; 2]; 4];

    /// Whether the mask hides the four elements of n8 tile `n` of m16 tile `m`.
    fn hides(&self, at: (usize, usize)) -> [bool; 4];

    /// Whether the score shows the four elements of n8 tile `n` of m16 tile `m`, if the mask does.
    fn sees(&self, score: S, at: (usize, usize)) -> [bool; 4];

    /// Whether dropout keeps the weights of the n8 tiles 2 · `pair` and the one behind it, of a score that [`Score::DROPS`]. All lanes take
    /// part.
    fn kept(&self, dropout: &Dropout, pair: usize) -> [[bool; 4]; 2];
}

/// P of a score.
#[inline(always)]
fn probability(score: f32, scale_log2: f32, lse_log2: f32) -> f32 {
    ex2(fma(score, scale_log2, -lse_log2))
}

/// Turns Q·Kᵀ into P = exp2(S · scale_log2 − L·log2(e)) and dP into dS = P∘(dP − δ)∘S′, without the scale.
#[inline(always)]
pub fn recompute<W: WarpTile, S: Score>(
    s: &mut W::S<[f32; 4]>,
    dp: &mut W::S<[f32; 4]>,
    statistics: &impl Statistics<S>,
    score: S,
) {
    let step = |of: [[f32; 2]; 4], s: &mut [f32; 4], dp: &mut [f32; 4], at| {
        let scores = statistics.scores(score, *s, at);
        for (i, [lse_log2, delta]) in of.into_iter().enumerate() {
            s[i] = probability(scores[i], score.scale_log2(), lse_log2);
            dp[i] = s[i] * (dp[i] - delta) * score.derivative(scores[i]);
        }
    };
    if W::M == 1 {
        // By iterators, without which ptxas spills some of it.
        for (n, (s, dp)) in s.row_mut(0).iter_mut().zip(dp.row_mut(0)).enumerate() {
            step(statistics.of(n), s, dp, (0, n));
        }
        return;
    }
    for n in 0..<W::S<[f32; 4]> as Tiles<[f32; 4]>>::N {
        let of = statistics.of(n);
        for m in 0..W::M {
            step(of, &mut s.row_mut(m)[n], &mut dp.row_mut(m)[n], (m, n));
        }
    }
}

/// As [`recompute`], where weights are dropped: dP counts where they are kept, `factor` times, and P is 0 where they are not. What makes up for
/// those, P lacks.
#[inline(always)]
pub fn recompute_kept<W: WarpTile, S: Score>(
    s: &mut W::S<[f32; 4]>,
    dp: &mut W::S<[f32; 4]>,
    statistics: &impl Statistics<S>,
    score: S,
    (dropout, factor): (Dropout, f32),
) {
    for pair in 0..<W::S<[f32; 4]> as Tiles<[f32; 4]>>::N / 2 {
        let kept = statistics.kept(&dropout, pair);
        for half in 0..2 {
            let n = 2 * pair + half;
            let (s, dp) = (&mut s.row_mut(0)[n], &mut dp.row_mut(0)[n]);
            let (of, scores) = (statistics.of(n), statistics.scores(score, *s, (0, n)));
            for i in 0..4 {
                let [lse_log2, delta] = of[i];
                let p = probability(scores[i], score.scale_log2(), lse_log2);
                let one = f32::from_bits(select(kept[half][i], 1f32.to_bits(), 0));
                // A NaN stays one.
                s[i] = p * one;
                dp[i] = p * fma(dp[i], one * factor, -delta);
            }
        }
    }
}

/// The first half of [`recompute`]: S becomes P, while dP is not there yet. Where it is `paced`, what scores load and work out is of two n8 tiles at a
/// time: that of more would take registers that are not there. All lanes take part.
#[inline(always)]
pub fn probabilities<W: WarpTile, S: Score>(
    s: &mut W::S<[f32; 4]>,
    statistics: &impl Statistics<S>,
    score: S,
    paced: bool,
) {
    for (n, s) in s.row_mut(0).iter_mut().enumerate() {
        if paced && n % 2 == 0 {
            sync_warp();
        }
        let scores = statistics.scores(score, *s, (0, n));
        for (i, [lse_log2, _]) in statistics.of(n).into_iter().enumerate() {
            s[i] = probability(scores[i], score.scale_log2(), lse_log2);
        }
    }
}

/// Turns Q·Kᵀ into scores, of which [`weights`] and [`bent_gradients`] make P and dS, where the derivative is not 1: that needs the scores still.
#[inline(always)]
pub fn scores_of<W: WarpTile, S: Score>(s: &mut W::S<[f32; 4]>, statistics: &impl Statistics<S>, score: S) {
    for (n, s) in s.row_mut(0).iter_mut().enumerate() {
        *s = statistics.scores(score, *s, (0, n));
    }
}

/// Turns scores into P.
#[inline(always)]
pub fn weights<W: WarpTile, S: Score>(
    scores: &mut W::S<[f32; 4]>,
    statistics: &impl Statistics<S>,
    score: S,
) {
    for (n, s) in scores.row_mut(0).iter_mut().enumerate() {
        for (i, [lse_log2, _]) in statistics.of(n).into_iter().enumerate() {
            s[i] = probability(s[i], score.scale_log2(), lse_log2);
        }
    }
}

/// Turns dP into dS, given the scores.
#[inline(always)]
pub fn bent_gradients<W: WarpTile, S: Score>(
    scores: &W::S<[f32; 4]>,
    dp: &mut W::S<[f32; 4]>,
    statistics: &impl Statistics<S>,
    score: S,
) {
    for (n, (s, dp)) in scores.row(0).iter().zip(dp.row_mut(0)).enumerate() {
        for (i, [lse_log2, delta]) in statistics.of(n).into_iter().enumerate() {
            let p = probability(s[i], score.scale_log2(), lse_log2);
            dp[i] = p * (dp[i] - delta) * score.derivative(s[i]);
        }
    }
}

/// As [`score_gradients`], where weights are dropped: P has all weights still, and dS and δ are without the factor of those that are kept.
#[inline(always)]
pub fn score_gradients_kept<W: WarpTile, S: Score, F: Fn(u32) -> S::Row + Copy>(
    p: &W::S<[f32; 4]>,
    dp: &mut W::S<[f32; 4]>,
    statistics: &ByColumn<F>,
    kept: KeptByColumn,
) {
    for (n, (p, dp)) in p.row(0).iter().zip(dp.row_mut(0)).enumerate() {
        for (i, [_, delta]) in Statistics::<S>::of(statistics, n).into_iter().enumerate() {
            dp[i] = p[i] * (if kept.keeps(n, i) { dp[i] } else { 0.0 } - delta);
        }
    }
}

/// Sets P of weights that are dropped to 0, but for NaN, which stays one.
#[inline(always)]
pub fn drop_probabilities<W: WarpTile>(p: &mut W::S<[f32; 4]>, kept: KeptByColumn) {
    for (n, p) in p.row_mut(0).iter_mut().enumerate() {
        for (i, p) in p.iter_mut().enumerate() {
            *p = if kept.keeps(n, i) { *p } else { *p * 0.0 };
        }
    }
}

/// The second half of [`recompute`], of a score whose derivative is 1: dP becomes dS.
#[inline(always)]
pub fn score_gradients<W: WarpTile, S: Score>(
    p: &W::S<[f32; 4]>,
    dp: &mut W::S<[f32; 4]>,
    statistics: &impl Statistics<S>,
) {
    for (n, (p, dp)) in p.row(0).iter().zip(dp.row_mut(0)).enumerate() {
        for (i, [_, delta]) in statistics.of(n).into_iter().enumerate() {
            dp[i] = p[i] * (dp[i] - delta);
        }
    }
}

/// Sets P and dS of hidden pairs to 0, whatever they are: 0 · NaN would be NaN. One of them, or both.
#[inline(always)]
pub fn hide<W: WarpTile, S: Score, const COUNT: usize>(
    mut factors: [&mut W::S<[f32; 4]>; COUNT],
    statistics: &impl Statistics<S>,
) {
    for m in 0..W::M {
        for n in 0..<W::S<[f32; 4]> as Tiles<[f32; 4]>>::N {
            for (i, hidden) in statistics.hides((m, n)).into_iter().enumerate() {
                if hidden {
                    for factors in &mut factors {
                        factors.row_mut(m)[n][i] = 0.0;
                    }
                }
            }
        }
    }
}

/// As [`hide`], of pairs that the score hides.
#[inline(always)]
pub fn hide_by_score<W: WarpTile, S: Score, const COUNT: usize>(
    mut factors: [&mut W::S<[f32; 4]>; COUNT],
    statistics: &impl Statistics<S>,
    score: S,
) {
    if !S::HIDES {
        return;
    }
    for m in 0..W::M {
        for n in 0..<W::S<[f32; 4]> as Tiles<[f32; 4]>>::N {
            for (i, seen) in statistics.sees(score, (m, n)).into_iter().enumerate() {
                if !seen {
                    for factors in &mut factors {
                        factors.row_mut(m)[n][i] = 0.0;
                    }
                }
            }
        }
    }
}

/// Queries are rows: a lane has two, g and g + 8.
#[derive(Clone, Copy, Debug)]
pub struct ByRow<R> {
    /// What the score keeps of both.
    pub rows: [R; 2],
    /// L·log2(e) and δ of both.
    pub of: [[f32; 2]; 2],
    /// The keys that each sees.
    pub visible: [Visible; 2],
    /// Keys at the start of the sequence that are seen whatever the beginning of `visible`.
    pub sink_tokens: u32,
    /// The key of the lane's first column.
    pub lane_key: u32,
}

impl<S: Score<Row = R>, R: Copy> Statistics<S> for ByRow<R> {
    #[inline(always)]
    fn scores(&self, score: S, products: [f32; 4], (_, n): (usize, usize)) -> [f32; 4] {
        let keys = self.rows.map(|row| score.keys(row, self.lane_key));
        core::array::from_fn(|i| score.score(products[i], keys[i / 2], (n * 8 + i % 2) as u32))
    }

    #[inline(always)]
    fn of(&self, _n: usize) -> [[f32; 2]; 4] {
        let [low, high] = self.of;
        [low, low, high, high]
    }

    #[inline(always)]
    fn hides(&self, (_, n): (usize, usize)) -> [bool; 4] {
        core::array::from_fn(|i| {
            let key = self.lane_key + (n * 8 + i % 2) as u32;
            is_hidden(key, self.visible[i / 2], self.sink_tokens)
        })
    }

    #[inline(always)]
    fn sees(&self, score: S, (_, n): (usize, usize)) -> [bool; 4] {
        let keys = self.rows.map(|row| score.keys(row, self.lane_key));
        core::array::from_fn(|i| score.sees(keys[i / 2], (n * 8 + i % 2) as u32))
    }

    #[inline(always)]
    fn kept(&self, dropout: &Dropout, pair: usize) -> [[bool; 4]; 2] {
        let row = S::weights(self.rows[0]);
        let key = self.lane_key + pair as u32 * 16;
        let words = dropout.words(row, row.query % 8 * 4 + key % 8 / 2, key / KEYS);
        of_keys(words, key)
            .map(|word| core::array::from_fn(|i| dropout.keeps_byte(word >> (i / 2 * 16 + i % 2 * 8))))
    }
}

/// How L·log2(e) and δ of the queries of a block lie in shared memory: 16 bytes for each two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// L and δ of a query, and then the next one's: as they lie in memory.
    Interleaved,
    /// −L of both queries and then −δ of both, so that what is needed at the same time lies side by side. dP is summed up from −δ on
    /// ([`ByColumn::initial_dp`]), and δ is 0 for what comes behind it: an instruction less for each element.
    Negated,
}

impl Pairs {
    /// How far behind −L of a query lies −δ.
    const NEGATED_DELTA: u32 = STATISTICS_BYTES;

    /// Where L and δ of a query lie, and what is written there of them.
    #[inline(always)]
    pub fn written(self, query: u32, [lse_log2, delta]: [f32; 2]) -> [(u32, f32); 2] {
        match self {
            Pairs::Interleaved => {
                [(query * STATISTICS_BYTES, lse_log2), (query * STATISTICS_BYTES + 4, delta)]
            }
            Pairs::Negated => {
                let at = query / 2 * 2 * STATISTICS_BYTES + query % 2 * 4;
                [(at, -lse_log2), (at + Self::NEGATED_DELTA, -delta)]
            }
        }
    }
}

/// Queries are columns: a lane has columns 2t and 2t + 1 of each n8 tile, and keys g and g + 8.
#[derive(Clone, Copy, Debug)]
pub struct ByColumn<F> {
    pairs: Pairs,
    /// What the score keeps of a query of the block.
    row: F,
    /// The lane's first column.
    column: u32,
    /// The address of the statistics of the lane's first column in shared memory.
    statistics: u32,
    /// That of what it sees.
    limits: u32,
    /// The lane's first key.
    lane_key: u32,
    sink_tokens: u32,
}

impl<F> ByColumn<F> {
    /// Those of a block, whose statistics and limits have been written; `row` is what the score keeps of its queries, by their number.
    #[inline(always)]
    pub fn new(
        pairs: Pairs,
        (statistics, limits): (u32, u32),
        (lane_key, lane): (u32, u32),
        sink_tokens: u32,
        row: F,
    ) -> Self {
        let along = lane % 4 * 16;
        let (statistics, limits, column) = (statistics + along, limits + along, lane % 4 * 2);
        Self { pairs, row, column, statistics, limits, lane_key, sink_tokens }
    }

    /// The lane's first key of m16 tile `m`.
    #[inline(always)]
    fn key(&self, m: usize) -> u32 {
        self.lane_key + m as u32 * 16
    }

    /// With [`Pairs::Negated`], what dP is summed up from.
    #[inline(always)]
    pub fn initial_dp<W: WarpTile>(&self) -> W::S<[f32; 4]> {
        W::S::from_fn(|_, n| {
            let address = self.statistics + n as u32 * 64 + Pairs::NEGATED_DELTA;
            // SAFETY: as for [`Statistics::of`].
            let [left, right] = unsafe { ld_shared_v2_f32(address) };
            [left, right, left, right]
        })
    }
}

/// A bit for each weight of a fragment whose columns are queries: a word for four pairs of n8 tiles.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptByColumn([u32; 2]);

impl KeptByColumn {
    /// Whether dropout keeps the weight of element `i` of n8 tile `n`.
    #[inline(always)]
    fn keeps(self, n: usize, i: usize) -> bool {
        self.0[n / 8] >> Transposed::bit(n as u32, i as u32) & 1 != 0
    }
}

impl<F> ByColumn<F> {
    /// Which weights of the lane's elements dropout keeps. All lanes take part, before products are issued.
    #[inline(always)]
    pub fn kept_bits<W: WarpTile, S: Score>(&self, dropout: &Dropout) -> KeptByColumn
    where
        F: Fn(u32) -> S::Row,
    {
        let pairs = const { <W::S<[f32; 4]> as Tiles<[f32; 4]>>::N as u32 / 2 };
        const { assert!(<W::S<[f32; 4]> as Tiles<[f32; 4]>>::N <= 16, "two words of four pairs") }
        let call = Transposed::of(self.lane_key % 8 * 4 + self.column / 2);
        // All queries of the block are of one head, and follow each other; those behind the sequence's last have no weights.
        let WeightRow { head, query } = S::weights((self.row)(call.query));
        KeptByColumn([0, 4].map(|first| {
            let mut own = 0;
            for pair in first..pairs.min(first + 4) {
                let row = WeightRow { head, query: query + pair * QUERIES };
                let words = dropout.words(row, call.lane, self.lane_key / KEYS);
                own |= Transposed::bits(dropout, of_keys(words, self.lane_key), pair % 4);
            }
            if first < pairs { call.bits_of_queries(own, shfl_bfly_b32::<4>(own)) } else { 0 }
        }))
    }
}

impl<S: Score, F: Fn(u32) -> S::Row + Copy> Statistics<S> for ByColumn<F> {
    #[inline(always)]
    fn scores(&self, score: S, products: [f32; 4], (m, n): (usize, usize)) -> [f32; 4] {
        let keys = [0, 1].map(|i| score.keys((self.row)(self.column + n as u32 * 8 + i), self.key(m)));
        core::array::from_fn(|i| score.score(products[i], keys[i % 2], i as u32 / 2 * 8))
    }

    #[inline(always)]
    fn of(&self, n: usize) -> [[f32; 2]; 4] {
        let address = self.statistics + n as u32 * 64;
        // SAFETY: the statistics of two queries of the stage, which nobody writes meanwhile.
        let [left, right] = unsafe {
            match self.pairs {
                Pairs::Interleaved => {
                    let [l0, d0, l1, d1] = ld_shared_v4_f32(address);
                    [[l0, d0], [l1, d1]]
                }
                // What is subtracted behind dP is +0, which changes no bit.
                Pairs::Negated => ld_shared_v2_f32(address).map(|lse_log2| [-lse_log2, 0.0]),
            }
        };
        [left, right, left, right]
    }

    #[inline(always)]
    fn hides(&self, (m, n): (usize, usize)) -> [bool; 4] {
        // SAFETY: the limits of two queries of the stage, as above.
        let [b0, e0, b1, e1] = unsafe { ld_shared_v4(self.limits + n as u32 * 64) };
        let visible = [Visible { begin: b0, end: e0 }, Visible { begin: b1, end: e1 }];
        core::array::from_fn(|i| {
            let key = self.key(m) + (i / 2) as u32 * 8;
            is_hidden(key, visible[i % 2], self.sink_tokens)
        })
    }

    #[inline(always)]
    fn sees(&self, score: S, (m, n): (usize, usize)) -> [bool; 4] {
        let keys = [0, 1].map(|i| score.keys((self.row)(self.column + n as u32 * 8 + i), self.key(m)));
        core::array::from_fn(|i| score.sees(keys[i % 2], i as u32 / 2 * 8))
    }

    #[inline(always)]
    fn kept(&self, dropout: &Dropout, pair: usize) -> [[bool; 4]; 2] {
        let call = Transposed::of(self.lane_key % 8 * 4 + self.column / 2);
        let row = S::weights((self.row)(pair as u32 * 16 + call.query));
        let own = of_keys(dropout.words(row, call.lane, self.lane_key / KEYS), self.lane_key);
        let of_queries = call.of_queries(own, own.map(shfl_bfly_b32::<4>));
        [0, 16].map(|shift| core::array::from_fn(|i| dropout.keeps_byte(of_queries[i % 2][i / 2] >> shift)))
    }
}

/// Whether a query that sees these keys does not see a key.
#[inline(always)]
pub fn is_hidden(key: u32, Visible { begin, end }: Visible, sink_tokens: u32) -> bool {
    // Not `&&` and `||`, which would be branches.
    (key >= end) | ((key < begin) & (key >= sink_tokens))
}
