//! What touches every score between Q·Kᵀ and the softmax: a type of the kernel, so that a plain score costs nothing.

use crate::dropout::WeightRow;
use crate::element::{Element, TypeOf};
use crate::params::ForwardParams;
use crate::ptx::math::fma;
use crate::ptx::memory::{ld_global_b16, ld_global_b32, ld_global_constant_b32, to_global};
use crate::ptx::of_halves;
use crate::row::ScoreKind;
use crate::visible::Band;
use core::marker::PhantomData;

/// The score of a [`ScoreKind`], by its number, in kernels of an element type.
pub struct ScoreOf<const KIND: u8, E>(PhantomData<E>);

impl<E> TypeOf for ScoreOf<{ ScoreKind::Plain.number() }, E> {
    type Type = Plain;
}

impl<E> TypeOf for ScoreOf<{ ScoreKind::Alibi.number() }, E> {
    type Type = Alibi;
}

impl<E: Element> TypeOf for ScoreOf<{ ScoreKind::Bias.number() }, E> {
    type Type = Bias<E>;
}

impl<E> TypeOf for ScoreOf<{ ScoreKind::Tree.number() }, E> {
    type Type = Tree;
}

/// A query row.
#[derive(Clone, Copy, Debug)]
pub struct RowAt {
    /// Batch entry.
    pub batch: u32,
    /// Query head.
    pub head: u32,
    /// Query, counted within its sequence.
    pub query: u32,
    /// Queries of the sequence.
    pub seqlen_q: u32,
    /// Keys of the sequence.
    pub seqlen_k: u32,
    /// Where the query stands in Q without heads: `[batch, seqlen_q]`, or packed.
    pub row: u64,
}

/// What blocks that all rows see whole spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortWay {
    /// Nothing.
    None,
    /// No key is behind a row's own: the score is the product, [`Score::slope`] a key and [`Score::shift`]. The slopes are a product, too, of
    /// the warpgroup's rows with the numbers of a block's keys.
    Slope,
    /// What scores are made of besides is loaded for two keys at a time, and before the products have come: [`Score::load_pair`].
    Pairs,
}

/// The greatest power of 2 that scores of products near 0 reach.
pub const NEAR_LOG2_MAX: f32 = 40.0;

/// Scores of products near 0 as a polynomial.
#[derive(Clone, Copy, Debug)]
pub struct Near {
    /// The square of the product that is the first that is far.
    pub square: f32,
    /// Of what a product's square has beyond that one: a product is multiplied with it for its score times [`Score::scale_log2`].
    pub powers: [f32; 3],
}

impl Near {
    /// What a product's square has beyond the square of those that are near: these have less, and a minus.
    #[inline(always)]
    pub fn beyond(self, product: f32) -> f32 {
        fma(product, product, -self.square)
    }

    /// The exponent, in base 2, of a product that is near, relative to another.
    #[inline(always)]
    pub fn exponent(self, product: f32, offset: f32) -> f32 {
        let [constant, first, second] = self.powers;
        let beyond = self.beyond(product);
        fma(product, fma(fma(second, beyond, first), beyond, constant), offset)
    }
}

/// Turns Q·Kᵀ into scores. The order is: Q·Kᵀ, [`Score::score`], mask, times [`Score::scale_log2`], softmax.
pub trait Score: Copy {
    /// What it keeps of a query row.
    type Row: Copy;
    /// What it keeps of a query row and a block of keys.
    type Keys: Copy;

    /// What the launch says of it. Cheap: made anew where it is needed, so that nothing of it is kept in registers.
    fn new(params: &ForwardParams) -> Self;

    /// What scores are multiplied with in the softmax, times log2(e): exp is taken in base 2. Positive and finite.
    fn scale_log2(self) -> f32;

    /// What it keeps of a query row, which exists.
    fn row(params: &ForwardParams, at: impl FnOnce() -> RowAt) -> Self::Row;

    /// What it keeps of a query row and the keys from `first_key` on.
    fn keys(self, row: Self::Row, first_key: u32) -> Self::Keys;

    /// The score of a query and the key that is `offset` behind the first, given their product. The key may be past the sequence's last, or
    /// hidden: what it has then does not count.
    fn score(self, qk: f32, keys: Self::Keys, offset: u32) -> f32;

    /// The derivative of the natural-log score with respect to scale · Q·Kᵀ, where [`Score::score`] gave `score`: a factor of dS.
    #[inline(always)]
    fn derivative(self, score: f32) -> f32 {
        let _ = score;
        1.0
    }

    /// Whether [`Score::derivative`] is not 1.
    const BENDS: bool = false;

    /// Whether [`Score::score`] depends on more than the product.
    const OF_KEYS: bool = true;

    /// Whether, where all rows see a whole block, row maxima are taken of products: the score grows with them and depends on nothing else.
    const MONOTONE: bool = false;

    /// The score of a product, where it is [`Score::MONOTONE`].
    #[inline(always)]
    fn of_product(self, qk: f32) -> f32 {
        qk
    }

    /// Scores of products near 0 as a polynomial, where it is [`Score::MONOTONE`].
    #[inline(always)]
    fn near(self) -> Near {
        Near { square: 0.0, powers: [0.0; 3] }
    }

    /// Whether blocks that all rows see whole have a shorter way, in launches that it [`Score::has_short_way`] for.
    const SHORT_WAY: ShortWay = ShortWay::None;

    /// Whether a launch is one of them.
    #[inline(always)]
    fn has_short_way(params: &ForwardParams) -> bool {
        let _ = params;
        false
    }

    /// What a row's scores grow by from key to key, up to its own.
    #[inline(always)]
    fn slope(self, row: Self::Row) -> f32 {
        let _ = row;
        0.0
    }

    /// What is added to the scores of a row besides, where no key is behind its own.
    #[inline(always)]
    fn shift(self, keys: Self::Keys) -> f32 {
        let _ = keys;
        0.0
    }

    /// What is loaded for the key that is `offset` behind the first, an even number, and the one behind it, both of which exist.
    #[inline(always)]
    fn load_pair(self, keys: Self::Keys, offset: u32) -> u32 {
        let _ = (keys, offset);
        0
    }

    /// The scores of two neighbouring keys, given what [`Score::load_pair`] has loaded.
    #[inline(always)]
    fn of_pair(self, qk: [f32; 2], loaded: u32) -> [f32; 2] {
        let _ = loaded;
        qk
    }

    /// Whether weights are dropped after the softmax.
    const DROPS: bool = false;

    /// The row of weights of a query row, where it [`Score::DROPS`].
    #[inline(always)]
    fn weights(row: Self::Row) -> WeightRow {
        let _ = row;
        WeightRow::default()
    }

    /// Whether it hides keys: [`Score::sees`].
    const HIDES: bool = false;

    /// The first key of a sequence of `seqlen_k` keys that it may hide from any query. Blocks before it are not asked for.
    #[inline(always)]
    fn hides_from(params: &ForwardParams, seqlen_k: u32) -> u32 {
        let _ = (params, seqlen_k);
        u32::MAX
    }

    /// Whether a query sees the key that is `offset` behind the first, if the mask shows it.
    #[inline(always)]
    fn sees(self, keys: Self::Keys, offset: u32) -> bool {
        let _ = (keys, offset);
        true
    }
}

/// The scaled product, and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    scale_log2: f32,
}

impl Score for Plain {
    type Row = ();
    type Keys = ();

    const OF_KEYS: bool = false;

    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        Self { scale_log2: params.scale_log2 }
    }

    #[inline(always)]
    fn scale_log2(self) -> f32 {
        self.scale_log2
    }

    #[inline(always)]
    fn row(_: &ForwardParams, _: impl FnOnce() -> RowAt) -> Self::Row {}

    #[inline(always)]
    fn keys(self, (): Self::Row, _: u32) -> Self::Keys {}

    #[inline(always)]
    fn score(self, qk: f32, (): Self::Keys, _: u32) -> f32 {
        qk
    }
}

/// scale · Q·Kᵀ − slope · |distance|, of the query's own key and the key.
#[derive(Clone, Copy, Debug)]
pub struct Alibi {
    scale_log2: f32,
}

impl Score for Alibi {
    /// The slope over the scale, negative, and the query's own key.
    type Row = (f32, i32);
    /// The slope, and how far the first key is from the query's own.
    type Keys = (f32, f32);

    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        Self { scale_log2: params.scale_log2 }
    }

    #[inline(always)]
    fn scale_log2(self) -> f32 {
        self.scale_log2
    }

    #[inline(always)]
    fn row(params: &ForwardParams, at: impl FnOnce() -> RowAt) -> Self::Row {
        let RowAt { batch, head, query, seqlen_q, seqlen_k, .. } = at();
        let score = &params.ragged.score;
        let offset = i64::from(batch) * score.batch_stride + i64::from(head) * score.head_stride;
        // SAFETY: an element of the slopes.
        let slope = unsafe { ld_global_b32(to_global(score.address).wrapping_add_signed(offset)) };
        let own = query.wrapping_add(seqlen_k).wrapping_sub(seqlen_q) as i32;
        (-f32::from_bits(slope) * score.factor, own)
    }

    #[inline(always)]
    fn keys(self, (slope, own): Self::Row, first_key: u32) -> Self::Keys {
        (slope, own.wrapping_sub(first_key as i32) as f32)
    }

    #[inline(always)]
    fn score(self, qk: f32, (slope, distance): Self::Keys, offset: u32) -> f32 {
        fma(slope, (distance - offset as f32).abs(), qk)
    }

    const SHORT_WAY: ShortWay = ShortWay::Slope;

    #[inline(always)]
    fn has_short_way(params: &ForwardParams) -> bool {
        Band::of(&params.ragged).hides_behind()
    }

    #[inline(always)]
    fn slope(self, (slope, _): Self::Row) -> f32 {
        -slope
    }

    #[inline(always)]
    fn shift(self, (slope, distance): Self::Keys) -> f32 {
        slope * distance
    }
}

/// scale · Q·Kᵀ + bias, an element of a tensor `[batch, heads_q, seqlen_q, seqlen_k]`.
#[derive(Clone, Copy, Debug)]
pub struct Bias<E> {
    scale_log2: f32,
    /// 1 / scale.
    factor: f32,
    /// Elements of a row.
    keys: u32,
    element: PhantomData<E>,
}

impl<E: Element> Score for Bias<E> {
    /// The global address of the row's first element.
    type Row = u64;
    /// The global address of the first key's element, and how far the row's last element is behind it.
    type Keys = (u64, i32);

    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        let (keys, factor) = (params.seqlen_k, params.ragged.score.factor);
        Self { scale_log2: params.scale_log2, factor, keys, element: PhantomData }
    }

    #[inline(always)]
    fn scale_log2(self) -> f32 {
        self.scale_log2
    }

    #[inline(always)]
    fn row(params: &ForwardParams, at: impl FnOnce() -> RowAt) -> Self::Row {
        let RowAt { batch, head, query, .. } = at();
        let score = &params.ragged.score;
        let offset = i64::from(batch) * score.batch_stride
            + i64::from(head) * score.head_stride
            + i64::from(query) * score.row_stride;
        to_global(score.address).wrapping_add_signed(offset)
    }

    #[inline(always)]
    fn keys(self, row: Self::Row, first_key: u32) -> Self::Keys {
        (row + u64::from(first_key) * 2, (self.keys - 1).wrapping_sub(first_key) as i32)
    }

    #[inline(always)]
    fn score(self, qk: f32, (first, last): Self::Keys, offset: u32) -> f32 {
        // Past the row's end, its last element; what is behind the sequence's last key the mask hides.
        let offset = (offset as i32).min(last);
        // SAFETY: an element of the bias.
        let bias = unsafe { ld_global_b16(first.wrapping_add_signed(i64::from(offset) * 2)) };
        fma(E::widen(bias), self.factor, qk)
    }

    const SHORT_WAY: ShortWay = ShortWay::Pairs;

    #[inline(always)]
    fn has_short_way(params: &ForwardParams) -> bool {
        let score = &params.ragged.score;
        let strides = score.batch_stride | score.head_stride | score.row_stride;
        (score.address as u32 | strides as u32).is_multiple_of(4)
    }

    #[inline(always)]
    fn load_pair(self, (first, _): Self::Keys, offset: u32) -> u32 {
        // SAFETY: two elements of the bias, of an even key and the one behind it.
        unsafe { ld_global_b32(first + u64::from(offset) * 2) }
    }

    #[inline(always)]
    fn of_pair(self, qk: [f32; 2], loaded: u32) -> [f32; 2] {
        let bias = E::unpack(loaded);
        core::array::from_fn(|i| fma(bias[i], self.factor, qk[i]))
    }
}

/// scale · Q·Kᵀ under a mask of bits for the last keys of a sequence: bit b of a query's words is of the b-th of them.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    scale_log2: f32,
    address: u64,
    row_bytes: u32,
    keys: u32,
}

impl Score for Tree {
    /// Where the query stands in Q without heads, and the first key that has a bit; below 0 where the sequence has fewer keys.
    type Row = (u32, i32);
    /// The global address of the query's words, and how far the first key is behind the first that has a bit.
    type Keys = (u64, i32);

    const OF_KEYS: bool = false;
    const HIDES: bool = true;

    #[inline(always)]
    fn new(params: &ForwardParams) -> Self {
        let score = &params.ragged.score;
        let row_bytes = score.row_stride as u32;
        Self { scale_log2: params.scale_log2, address: score.address, row_bytes, keys: score.tree_keys }
    }

    #[inline(always)]
    fn scale_log2(self) -> f32 {
        self.scale_log2
    }

    #[inline(always)]
    fn row(params: &ForwardParams, at: impl FnOnce() -> RowAt) -> Self::Row {
        let RowAt { seqlen_k, row, .. } = at();
        // The host takes no more rows than 32 bits count.
        (row as u32, seqlen_k.wrapping_sub(params.ragged.score.tree_keys) as i32)
    }

    #[inline(always)]
    fn keys(self, (row, first): Self::Row, first_key: u32) -> Self::Keys {
        let words = to_global(self.address) + u64::from(row) * u64::from(self.row_bytes);
        (words, (first_key as i32).wrapping_sub(first))
    }

    #[inline(always)]
    fn score(self, qk: f32, _: Self::Keys, _: u32) -> f32 {
        qk
    }

    #[inline(always)]
    fn hides_from(params: &ForwardParams, seqlen_k: u32) -> u32 {
        seqlen_k.saturating_sub(params.ragged.score.tree_keys)
    }

    #[inline(always)]
    fn sees(self, (words, at): Self::Keys, offset: u32) -> bool {
        // The bits of 32 keys from `at` on: of two words, which all keys of the 32 share. Keys before the tree are seen whatever they are,
        // and what lies past it is hidden by the mask; so addresses are only kept within the query's words.
        let last = (self.keys - 1) / 32;
        let group = (at >> 5) + (offset / 32) as i32;
        let word = |number: i32| {
            let number = number.max(0).cast_unsigned().min(last);
            // SAFETY: one of the query's words, which nobody writes meanwhile.
            unsafe { ld_global_constant_b32(words + u64::from(number) * 4) }
        };
        let bits = (of_halves([word(group), word(group + 1)]) >> (at & 31)) as u32;
        (at < -(offset as i32)) | (bits >> (offset % 32) & 1 != 0)
    }
}
