//! Dropout in kernels: weights of a fragment that are dropped, and the score that stands for it in rows of the table.

use crate::dropout::{Dropout, KEYS, WeightRow, bit_of_row, bits_of_rows, of_keys};
use crate::element::TypeOf;
use crate::math::softmax::scale_rows;
use crate::params::ForwardParams;
use crate::ptx::{halves, of_halves, opaque};
use crate::row::ScoreKind;
use crate::score::{RowAt, Score, ScoreOf};
use crate::tile::warp_tile::{Tiles, WarpTile};

impl<E> TypeOf for ScoreOf<{ ScoreKind::Dropout.number() }, E> {
    type Type = Dropped;
}

/// The scaled product, and weights that are dropped.
#[derive(Clone, Copy, Debug)]
pub struct Dropped {
    scale_log2: f32,
}

impl Score for Dropped {
    type Row = WeightRow;
    type Keys = ();

    const OF_KEYS: bool = false;
    const DROPS: bool = true;

    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        Self { scale_log2: params.scale_log2 }
    }

    #[inline(always)]
    fn scale_log2(self) -> f32 {
        self.scale_log2
    }

    #[inline(always)]
    fn row(params: &ForwardParams, at: impl FnOnce() -> RowAt) -> WeightRow {
        let RowAt { batch, head, query, .. } = at();
        WeightRow { head: batch * params.heads_q + head, query }
    }

    #[inline(always)]
    fn keys(self, _: WeightRow, _: u32) -> Self::Keys {}

    #[inline(always)]
    fn score(self, qk: f32, (): Self::Keys, _: u32) -> f32 {
        qk
    }

    #[inline(always)]
    fn weights(row: WeightRow) -> WeightRow {
        row
    }
}

/// The random numbers of a launch. Cheap: read anew where they are needed.
#[inline(always)]
pub fn dropout(params: &ForwardParams) -> Dropout {
    let score = &params.ragged.score;
    Dropout { seed: score.address, offset: score.batch_stride as u64, most: score.tree_keys }
}

/// What weights that are kept are multiplied with.
#[inline(always)]
pub fn factor(params: &ForwardParams) -> f32 {
    params.ragged.score.factor
}

/// The same of a score, which may drop none.
#[inline(always)]
pub fn factor_of<S: Score>(params: &ForwardParams) -> f32 {
    if S::DROPS { factor(params) } else { 1.0 }
}

/// Sets weights that are dropped to 0, in a fragment whose columns start at `first_key`, a multiple of 16; `rows` is what the score keeps of
/// the lane's rows.
#[inline(always)]
pub fn drop_weights<W: WarpTile, S: Score>(
    params: &ForwardParams,
    p: &mut W::S<[f32; 4]>,
    rows: &W::Rows<S::Row>,
    first_key: u32,
    lane: u32,
) {
    let dropout = dropout(params);
    // Where rows are of one head, those 8 apart share a call. Opaque, or the main loop is there twice.
    let share = opaque(params.group.value) == 1;
    for m in 0..W::M {
        let rows = [0, 1].map(|half| S::weights(rows.row(m)[half]));
        let p = p.row_mut(m);
        for pair in 0..p.len() / 2 {
            let key = first_key + pair as u32 * 16;
            let words = |row: WeightRow| dropout.words(row, row.query % 8 * 4 + lane % 4, key / KEYS);
            let mut keep = |half: usize, words: [u32; 4]| {
                let words = of_keys(words, key);
                for n in 0..2 {
                    let bytes = words[n] >> (rows[half].query / 8 % 2 * 16);
                    for i in 0..2 {
                        let p = &mut p[2 * pair + n][2 * half + i];
                        *p = if dropout.keeps_byte(bytes >> (i * 8)) { *p } else { 0.0 };
                    }
                }
            };
            let low = words(rows[0]);
            keep(0, low);
            keep(1, if share { low } else { words(rows[1]) });
        }
    }
}

/// A bit for each weight of a fragment whose rows are queries: a word for eight n8 tiles.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptByRow([u32; 2]);

impl KeptByRow {
    /// Those of a block whose keys start at `first_key`, a multiple of [`KEYS`]; `rows` is what the score keeps of the lane's rows.
    #[inline(always)]
    pub fn new<W: WarpTile, S: Score>(
        params: &ForwardParams,
        rows: &W::Rows<S::Row>,
        first_key: u32,
        lane: u32,
    ) -> KeptByRow {
        let calls = const {
            let tiles = <W::S<[f32; 4]> as Tiles<[f32; 4]>>::N;
            assert!(!S::DROPS || matches!(tiles, 4 | 8 | 12 | 16), "whole calls of the block's own");
            tiles as u32 / 4
        };
        let mut dropout = dropout(params);
        // Or the keys of all rounds are kept through the main loop, in registers that then spill.
        dropout.seed = of_halves(halves(dropout.seed).map(opaque));
        let (dropout, rows) = (dropout, [0, 1].map(|half| S::weights(rows.row(0)[half])));
        let share = params.group.value == 1;
        let mut kept = KeptByRow::default();
        for call in 0..calls {
            let words =
                |row: WeightRow| dropout.words(row, row.query % 8 * 4 + lane % 4, first_key / KEYS + call);
            let low = dropout.bits(words(rows[0]));
            let high = if share { low } else { dropout.bits(words(rows[1])) };
            kept.0[call as usize / 2] |= bits_of_rows(rows, [low, high]) << (4 * (call % 2));
        }
        kept
    }

    /// Sets weights that are dropped to 0.
    #[inline(always)]
    pub fn drop<W: WarpTile>(self, p: &mut W::S<[f32; 4]>) {
        for (n, p) in p.row_mut(0).iter_mut().enumerate() {
            for (i, p) in (0..).zip(p) {
                *p = if self.0[n / 8] >> bit_of_row(n as u32, i) & 1 != 0 { *p } else { 0.0 };
            }
        }
    }
}

/// Multiplies O of weights that are kept with what makes up for the others.
#[inline(always)]
pub fn scale_kept<W: WarpTile>(params: &ForwardParams, acc_o: &mut W::O) {
    for m in 0..W::M {
        scale_rows(acc_o.row_mut(m), [factor(params); 2]);
    }
}
