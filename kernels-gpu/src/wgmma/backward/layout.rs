//! Where everything lies in shared memory: the stationary tiles, those of each stage, what is noted of stages and rows, the barriers.

use super::config::WgmmaBackwardConfig;
use crate::backward::row::{LIMITS_BYTES, NOTE_BYTES, STATISTICS_BYTES};
use crate::ptx::memory::dynamic_smem;
use crate::shape::Shape;
use crate::wgmma::ring::Ring;

/// A stationary tile: 0 of Q or K, 1 of dO or V.
#[inline(always)]
pub(super) fn stationary<C: WgmmaBackwardConfig>(which: u32) -> u32 {
    dynamic_smem() + which * C::Stationary::BYTES
}

/// A tile of a stage: 0 of K or Q, 1 of V or dO.
#[inline(always)]
pub(super) fn streamed<C: WgmmaBackwardConfig>(stage: u32, which: u32) -> u32 {
    stationary::<C>(2) + (2 * stage + which) * C::Streamed::BYTES
}

/// In a stage's note: it is seen in part.
pub(super) const PARTIAL: u32 = 1;
/// In a stage's note: it is seen in part, and may hold what is not finite.
pub(super) const MAY_TAINT: u32 = 2;

/// What is noted of a stage: [`PARTIAL`] and [`MAY_TAINT`], and the first key: of the stage with `dq`, of the tile with `dkv`.
#[inline(always)]
pub(super) fn note<C: WgmmaBackwardConfig>(stage: u32) -> u32 {
    dynamic_smem() + C::TILES_BYTES + stage * NOTE_BYTES
}

/// With `dq`, the limits of the stationary queries. With `dkv`, where the statistics of the first stage's queries start.
#[inline(always)]
pub(super) fn rows<C: WgmmaBackwardConfig>() -> u32 {
    note::<C>(C::STAGES)
}

/// With `dkv`, the statistics of a stage's queries.
#[inline(always)]
pub(super) fn statistics<C: WgmmaBackwardConfig>(stage: u32) -> u32 {
    rows::<C>() + stage * C::Streamed::ROWS * C::QUERY_BYTES
}

/// With `dkv`, the limits of a stage's queries.
#[inline(always)]
pub(super) fn limits<C: WgmmaBackwardConfig>(stage: u32) -> u32 {
    statistics::<C>(stage) + C::Streamed::ROWS * STATISTICS_BYTES
}

/// With `dkv` of a score that is not plain, what it keeps of a stage's queries.
#[inline(always)]
pub(super) fn score_rows<C: WgmmaBackwardConfig>(stage: u32) -> u32 {
    limits::<C>(stage) + C::Streamed::ROWS * LIMITS_BYTES
}

/// The barrier of the stationary tiles.
#[inline(always)]
pub(super) fn stationary_barrier<C: WgmmaBackwardConfig>() -> u32 {
    dynamic_smem() + C::TILES_BYTES + C::NOTES_BYTES
}

/// How many steps a tile has, but of `dq`.
#[inline(always)]
pub(super) fn steps<C: WgmmaBackwardConfig>() -> u32 {
    stationary_barrier::<C>() + (1 + 2 * C::STAGES) * 8
}

/// Whether the other half of a block of keys of dS is no CTA's, where CTAs have half of one.
#[inline(always)]
pub(super) fn is_alone<C: WgmmaBackwardConfig>() -> u32 {
    steps::<C>() + 4
}

/// The stages, before the first.
#[inline(always)]
pub(super) fn stages<C: WgmmaBackwardConfig>() -> Ring {
    Ring::new(stationary_barrier::<C>() + 8)
}
