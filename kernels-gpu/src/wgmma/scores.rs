//! From the products of a block to P: the score, the mask and the softmax of a step, and the ways that are shorter where a block is seen whole.

use super::config::{WARPGROUP, WgmmaConfig};
use super::gemm::WgmmaTile;
use super::k_loop::{Fragments, KLoop};
use super::pipeline::{Consumer, lane_again};
use super::work_tile::Tile;
use crate::config::Config;
use crate::dropped::KeptByRow;
use crate::element::{Bf16, Element};
use crate::math::mask::SeenKeys;
use crate::math::softmax::{AsIs, LAZY_RESCALE_AT, OnlineSoftmax, Reading, halves};
use crate::ptx::math::min;
use crate::ptx::warp::vote_any;
use crate::ptx::{opaque, thread_idx_x_again};
use crate::score::{NEAR_LOG2_MAX, Score, ShortWay};
use crate::score_fragment::{Products, Shifted, hide_all, load_pairs, score_all, score_pairs, slopes};
use crate::shape::Shape;
use crate::tile::descriptor::Descriptor;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::work::{intervals_of_rows, score_rows};

/// Whether O is to be rescaled, if so in one lane of a warp, and its factors.
pub(super) type Rescaling<C> = (bool, <<C as Config>::Warp as WarpTile>::Rows<f32>);

/// Which blocks a step masks, and what else it knows of them.
pub(super) trait Masking {
    /// Whether all rows see all of its blocks whole.
    const WHOLE: bool = false;
    /// Whether the score takes its short way, too.
    const SHORT: bool = false;

    /// Whether it masks a block that some row sees only in part, or one that all rows see whole.
    fn applies(is_partial: impl FnOnce() -> bool) -> bool;
}

/// None: all rows see the block whole.
pub(super) enum Never {}
/// None: all rows see the block whole, and the score takes its short way.
pub(super) enum NeverShort {}
/// All: some row sees the block only in part.
pub(super) enum Always {}
/// Those that some row sees only in part.
pub(super) enum AsNeeded {}

impl Masking for Never {
    const WHOLE: bool = true;

    #[inline(always)]
    fn applies(_: impl FnOnce() -> bool) -> bool {
        false
    }
}

impl Masking for NeverShort {
    const WHOLE: bool = true;
    const SHORT: bool = true;

    #[inline(always)]
    fn applies(_: impl FnOnce() -> bool) -> bool {
        false
    }
}

impl Masking for Always {
    #[inline(always)]
    fn applies(_: impl FnOnce() -> bool) -> bool {
        true
    }
}

impl Masking for AsNeeded {
    #[inline(always)]
    fn applies(is_partial: impl FnOnce() -> bool) -> bool {
        is_partial()
    }
}

/// Turns S into P in place, relative to row_max, which grows with S, and takes both into row_sum. Whether O is to be rescaled, if so in one
/// lane of a warp, and its factors.
#[inline(always)]
fn exponentials<C: WgmmaConfig, R: Reading<C::Warp>>(
    softmax: &mut OnlineSoftmax<C::Warp>,
    s: &mut <C::Warp as WarpTile>::S<[f32; 4]>,
    reading: &R,
    scale_log2: f32,
) -> Rescaling<C> {
    let rescaling = softmax.grow_rows(s, reading, (scale_log2, rescale_at::<C>()));
    if R::AS_IS {
        softmax.exponentiate(s, scale_log2);
    } else {
        softmax.exponentiate_as(s, reading);
    }
    rescaling
}

/// Whether weights have room for as much as scores of products near 0 are apart.
const fn spans_near_scores<C: WgmmaConfig>() -> bool {
    C::Score::MONOTONE && C::Q::WIDTH < 256 && C::Element::LOG2_MAX > 2.0 * NEAR_LOG2_MAX
}

/// How far, in powers of 2, a row's scores may grow past row_max before O and row_sum are rescaled: as far as scores of products near 0 are
/// apart, if weights have room for it, so that their maximum need not be known.
const fn rescale_at<C: WgmmaConfig>() -> f32 {
    if spans_near_scores::<C>() { 2.0 * NEAR_LOG2_MAX } else { LAZY_RESCALE_AT }
}

/// As [`exponentials`], of a block that all rows see whole under a score that is [`Score::MONOTONE`]. Most blocks have no product that is far;
/// the branch stands behind `output_done`, as one while products are on their way would serialise them.
#[inline(always)]
fn monotone<C: WgmmaConfig>(
    score: C::Score,
    softmax: &mut OnlineSoftmax<C::Warp>,
    s: &mut <C::Warp as WarpTile>::S<[f32; 4]>,
    scale_log2: f32,
    output_done: impl FnOnce(),
) -> Rescaling<C> {
    let grow = |softmax: &mut OnlineSoftmax<C::Warp>, s: &_| {
        softmax.grow_rows(s, &Products::<_, false>::new(score), (scale_log2, rescale_at::<C>()))
    };
    let mut rescaling = (false, Tiles::splat(1.0));
    if !spans_near_scores::<C>() {
        rescaling = grow(softmax, s);
    }
    // All are near if each has its minus.
    let near = score.near();
    let beyond = s.row(0).iter().flatten().map(|&product| near.beyond(product).to_bits());
    let mut far = beyond.fold(u32::MAX, |all, bits| all & bits) >> 31 == 0;
    if spans_near_scores::<C>() {
        let [low, high] = halves(&softmax.row_max, 0);
        // So is a row that has seen none but far ones, beside which a near one's weight could be too great.
        far |= min(low, high) * scale_log2 < -NEAR_LOG2_MAX;
    }
    output_done();
    if vote_any(far) {
        if spans_near_scores::<C>() {
            rescaling = grow(softmax, s);
        }
        softmax.exponentiate_as(s, &Products::<_, true>::new(score));
    } else {
        softmax.exponentiate_as(s, &Products::<_, false>::new(score));
    }
    rescaling
}

/// What a step works out before the products of its block have come.
pub(super) struct Ahead<W: WarpTile> {
    /// What the score loads for pairs of keys.
    loaded: W::S<[u32; 2]>,
    /// The slopes of the rows as an operand.
    slopes: [u32; 4],
    /// Which weights dropout keeps.
    kept: KeptByRow,
    /// Which keys the mask of a ragged batch shows.
    seen: SeenKeys<W>,
}

/// The first key of the k-loop's current block, where the score asks for it.
#[inline(always)]
fn first_key_of_scores<C: WgmmaConfig>(k_loop: &KLoop<C>) -> u32 {
    if C::Score::OF_KEYS { k_loop.blocks.block(k_loop.block) * C::K::ROWS } else { 0 }
}

/// Whether a bit for each key that the mask shows is kept in registers while products are on their way.
const fn has_room_for_seen<C: WgmmaConfig>() -> bool {
    !C::Score::DROPS && C::VALUE_GROUPS == 1
}

/// The warp's first row in the block, and the lane. Not by `position_again`: shuffles while products are on their way serialise them.
#[inline(always)]
fn warp_row_and_lane<C: WgmmaConfig>() -> (u32, u32) {
    let thread = thread_idx_x_again() - WARPGROUP;
    (thread / 32 % C::WARPS.along_rows * 16, thread % 32)
}

impl Consumer<'_> {
    /// What the softmax multiplies scores with. Anew at each call, so that nothing is kept in registers.
    #[inline(always)]
    pub(super) fn scale_log2<C: WgmmaConfig>(&self) -> f32 {
        C::Score::new(self.params).scale_log2()
    }

    /// Turns the products of the k-loop's current block into P, as [`exponentials`]. `output_done` waits for a product with V that is on its
    /// way, and may be called before or behind it.
    ///
    /// # Safety
    /// All lanes take part, while the tile's slot is written.
    #[inline(always)]
    pub(super) unsafe fn softmax<C: WgmmaConfig, M: Masking>(
        &self,
        s: &mut <C::Warp as WarpTile>::S<[f32; 4]>,
        k_loop: &mut KLoop<C>,
        (ahead, scale_log2): (&Ahead<C::Warp>, f32),
        output_done: impl FnOnce(),
    ) -> Rescaling<C> {
        // At head_dim 256 ptxas 13.0 would serialise the products (C7520).
        if M::WHOLE && C::Score::MONOTONE && C::Q::WIDTH < 256 {
            let score = C::Score::new(self.params);
            return monotone::<C>(score, &mut k_loop.softmax, s, scale_log2, output_done);
        }
        // SAFETY: the caller's.
        let rescaling = unsafe { self.weights::<C, M>(s, k_loop, (ahead, scale_log2)) };
        if C::Score::DROPS {
            ahead.kept.drop::<C::Warp>(s);
        }
        output_done();
        rescaling
    }

    /// As [`Self::softmax`], with all weights.
    ///
    /// # Safety
    /// As for [`Self::softmax`].
    #[inline(always)]
    unsafe fn weights<C: WgmmaConfig, M: Masking>(
        &self,
        s: &mut <C::Warp as WarpTile>::S<[f32; 4]>,
        k_loop: &mut KLoop<C>,
        (ahead, scale_log2): (&Ahead<C::Warp>, f32),
    ) -> Rescaling<C> {
        let score = C::Score::new(self.params);
        if M::SHORT && matches!(C::Score::SHORT_WAY, ShortWay::Pairs) {
            score_pairs::<C::Warp, _>(score, s, &ahead.loaded);
            return exponentials::<C, _>(&mut k_loop.softmax, s, &AsIs, scale_log2);
        }
        let first_key = first_key_of_scores(k_loop);
        if M::SHORT && matches!(C::Score::SHORT_WAY, ShortWay::Slope) {
            let shifted = Shifted::<C::Warp>::new(score, &k_loop.score_rows, first_key);
            return exponentials::<C, _>(&mut k_loop.softmax, s, &shifted, scale_log2);
        }
        score_all::<C::Warp, _>(score, s, &k_loop.score_rows, first_key, lane_again());
        if M::applies(|| k_loop.is_partial()) {
            if C::RAGGED {
                // SAFETY: the caller's.
                unsafe {
                    if has_room_for_seen::<C>() {
                        ahead.seen.hide_others(s);
                    } else {
                        self.seen_keys::<C>(k_loop).hide_others(s);
                    }
                    if C::Score::HIDES {
                        self.hide_by_score::<C>(s, k_loop);
                    }
                }
            } else {
                k_loop.limits.apply(None, s, k_loop.block * C::K::ROWS, lane_again());
            }
        }
        exponentials::<C, _>(&mut k_loop.softmax, s, &AsIs, scale_log2)
    }

    /// Where what the producer says of the tile stands. Found anew in each step, or ptxas keeps it in a register that then spills.
    #[inline(always)]
    fn tile_slot<C: WgmmaConfig>(&self) -> u32 {
        C::LAYOUT.tile_slot(Self::tile::<C>(opaque(self.tiles_told) - 1).buffer)
    }

    /// What is worked out of the k-loop's current block before its products have come.
    ///
    /// # Safety
    /// While the tile's slot is written, and no products are on their way.
    #[inline(always)]
    pub(super) unsafe fn ahead<C: WgmmaConfig, M: Masking>(&self, k_loop: &KLoop<C>) -> Ahead<C::Warp> {
        let mut ahead = Ahead {
            loaded: Tiles::splat([0; 2]),
            slopes: [0; 4],
            kept: KeptByRow::default(),
            seen: SeenKeys::all(),
        };
        if C::RAGGED && has_room_for_seen::<C>() && M::applies(|| k_loop.is_partial()) {
            // SAFETY: the caller's.
            ahead.seen = unsafe { self.seen_keys::<C>(k_loop) };
        }
        if C::Score::DROPS {
            // The rows and the first key anew, as what is kept of them through the main loop spills.
            let (warp_row, lane) = warp_row_and_lane::<C>();
            // SAFETY: the caller's.
            let Tile { work, blocks } =
                unsafe { Tile::read_by_lane::<C>(self.params, self.tile_slot::<C>()) };
            let rows = score_rows::<C>(self.params, &work, work.first_row + warp_row + lane / 4);
            let first_key = blocks.block(k_loop.block) * C::K::ROWS;
            ahead.kept = KeptByRow::new::<C::Warp, C::Score>(self.params, &rows, first_key, lane);
        }
        if M::SHORT && matches!(C::Score::SHORT_WAY, ShortWay::Pairs) {
            let (score, first_key) = (C::Score::new(self.params), first_key_of_scores(k_loop));
            ahead.loaded = load_pairs::<C::Warp, _>(score, &k_loop.score_rows, first_key, lane_again());
        }
        if M::SHORT && matches!(C::Score::SHORT_WAY, ShortWay::Slope) {
            let score = C::Score::new(self.params);
            // Written here, before the fence of the products, not where they are read.
            ahead.slopes = slopes::<C::Warp, _>(score, &k_loop.score_rows, lane_again()).map(opaque);
        }
        ahead
    }

    /// Issues S = Q·Kᵀ of the k-loop's current block, and what the score adds by a product of its own.
    ///
    /// # Safety
    /// As for [`Self::issue_scores_and`].
    #[inline(always)]
    pub(super) unsafe fn issue_scores<C: WgmmaConfig, M: Masking>(
        &self,
        fragments: &mut Fragments<C::Warp>,
        ahead: &Ahead<C::Warp>,
    ) {
        let by_slopes = |s: &mut _| {
            if M::SHORT && matches!(C::Score::SHORT_WAY, ShortWay::Slope) {
                let numbers = Descriptor::of_core_matrices(C::K::ROWS * 16, 128).at(C::LAYOUT.key_numbers());
                // SAFETY: the caller's; the operand was written before the CTA's first barrier.
                unsafe { C::Warp::scores_from_registers::<Bf16, true>(s, ahead.slopes, numbers.bits()) }
            }
        };
        // SAFETY: the caller's.
        unsafe { self.issue_scores_and::<C>(&mut fragments.s, &fragments.q, by_slopes) }
    }

    /// Which keys of a block of a ragged batch the mask shows. What is known of the rows is worked out anew from the tile's slot: few blocks are
    /// seen only in part, and registers are short in all others.
    ///
    /// # Safety
    /// All lanes take part, while the tile's slot is written.
    #[inline(always)]
    unsafe fn seen_keys<C: WgmmaConfig>(&self, k_loop: &KLoop<C>) -> SeenKeys<C::Warp> {
        let (warp_row, lane) = warp_row_and_lane::<C>();
        // SAFETY: the caller's.
        unsafe {
            let slot = self.tile_slot::<C>();
            let Tile { work, blocks } = Tile::read_by_lane::<C>(self.params, slot);
            let first_key = blocks.block(k_loop.block) * C::K::ROWS;
            let first_row = work.first_row + warp_row + lane / 4;
            let (limits, begins) = intervals_of_rows::<C>(self.params, &work, first_row);
            limits.seen(&begins, first_key, lane)
        }
    }

    /// Hides what the score hides of a block of a ragged batch, its rows worked out anew, too.
    ///
    /// # Safety
    /// All lanes take part, while the tile's slot is written.
    #[inline(always)]
    unsafe fn hide_by_score<C: WgmmaConfig>(
        &self,
        s: &mut <C::Warp as WarpTile>::S<[f32; 4]>,
        k_loop: &KLoop<C>,
    ) {
        let (warp_row, lane) = warp_row_and_lane::<C>();
        // SAFETY: the caller's.
        unsafe {
            let slot = self.tile_slot::<C>();
            let Tile { work, blocks } = Tile::read_by_lane::<C>(self.params, slot);
            let first_key = blocks.block(k_loop.block) * C::K::ROWS;
            let rows = score_rows::<C>(self.params, &work, work.first_row + warp_row + lane / 4);
            hide_all::<C::Warp, _>(C::Score::new(self.params), s, &rows, first_key, lane);
        }
    }
}
