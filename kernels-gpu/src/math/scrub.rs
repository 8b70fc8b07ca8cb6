//! NaN and infinities in V at keys that the mask hides from some rows of a block: found, and replaced by 0.
//!
//! P is 0 for a hidden key, but 0 · NaN is NaN: the product P·V would carry a NaN of V into rows that do not see it. So kernels
//! replace such elements by 0 in partly visible blocks ([`scrub_chunk`]), and in the end add them to the rows that do see them
//! ([`crate::math::restore`]). On mma.sync a CTA does so only once it found its O not finite, and starts again: finite
//! inputs pay only for a look at O. With wgmma, warps that copy nothing look through such blocks of V before they are multiplied.

use crate::element::Element;
use crate::ptx::math::fma;
use crate::ptx::memory::{ld_shared_v4, st_shared};
use crate::ptx::opaque;
use crate::tile::warp_tile::Tiles;

/// Both halves' exponents.
const fn exponents<E: Element>() -> u32 {
    (E::EXPONENT as u32) << 16 | E::EXPONENT as u32
}

/// Whether any element of a lane's part of O is NaN or infinite.
#[inline(always)]
pub fn in_fragment<O: Tiles<[f32; 4]>>(acc_o: &O) -> bool {
    // 0 · x is 0 for finite x and NaN otherwise, and NaN stays in a sum.
    let mut sums = [0.0; 4];
    for m in 0..O::M {
        for tile in acc_o.row(m) {
            for (sum, &o) in sums.iter_mut().zip(tile) {
                *sum = fma(o, 0.0, *sum);
            }
        }
    }
    // Equal to itself and to 0, or NaN.
    sums[0] + sums[1] + sums[2] + sums[3] != 0.0
}

/// Takes in packed elements: the result holds NaN once any of them was NaN or infinite, and else zeros.
#[inline(always)]
pub fn take_in<E: Element>(seen: u32, pair: u32) -> u32 {
    // 0 · x is 0 for finite x and NaN otherwise, and NaN stays in a sum.
    E::fma_pair(pair, 0, seen)
}

/// Whether anything but zeros was seen.
#[inline(always)]
pub fn was_seen(seen: u32) -> bool {
    // Zeros may be negative.
    seen & 0x7fff_7fff != 0
}

/// Replaces NaN and infinities by 0 in a 16-byte chunk of shared memory.
///
/// # Safety
/// `at` is a multiple of 16, and no other thread uses the chunk.
#[inline(always)]
pub unsafe fn scrub_chunk<E: Element>(at: u32) {
    // SAFETY: the caller's.
    let chunk = unsafe { ld_shared_v4(at) };
    if chunk.iter().any(|&pair| in_pair::<E>(pair)) {
        for (i, &pair) in (0..).zip(&chunk) {
            // SAFETY: the caller's.
            unsafe { st_shared(at + 4 * i, zeroed::<E>(pair)) }
        }
    }
}

/// Whether any of this thread's chunks of a tile of `bytes` bytes holds NaN or infinities. Called by all `threads` threads; `thread` is
/// this one's index.
///
/// # Safety
/// The tile starts at a multiple of 16, was written before a barrier, and nobody writes it meanwhile.
#[inline(always)]
pub unsafe fn in_tile<E: Element>(start: u32, bytes: u32, (thread, threads): (u32, u32)) -> bool {
    let mut found = false;
    let mut at = thread * 16;
    // A loop, not unrolled code: it would fill the registers beside the fragments.
    while at < opaque(bytes) {
        // SAFETY: the caller's.
        let chunk = unsafe { ld_shared_v4(start + at) };
        found |= chunk.iter().fold(false, |found, &pair| found | in_pair::<E>(pair));
        at += threads * 16;
    }
    found
}

/// Replaces NaN and infinities by 0 in this thread's chunks of a tile; which they are is as for [`in_tile`].
///
/// # Safety
/// As for [`in_tile`], and no other thread uses the tile between the barriers around this.
#[inline(always)]
pub unsafe fn scrub_tile<E: Element>(start: u32, bytes: u32, (thread, threads): (u32, u32)) {
    let mut at = thread * 16;
    while at < opaque(bytes) {
        // SAFETY: the caller's.
        unsafe { scrub_chunk::<E>(start + at) };
        at += threads * 16;
    }
}

/// Whether either half of a packed pair is NaN or infinite.
#[inline(always)]
fn in_pair<E: Element>(pair: u32) -> bool {
    // Adding an exponent's lowest bit to an exponent of ones carries into the cleared sign bit, and no further.
    let lowest = E::EXPONENT & E::EXPONENT.wrapping_neg();
    let carried = (pair & exponents::<E>()) + (u32::from(lowest) << 16 | u32::from(lowest));
    carried & 0x8000_8000 != 0
}

/// A packed pair with NaN and infinities replaced by 0.
#[inline(always)]
fn zeroed<E: Element>(pair: u32) -> u32 {
    let half = |bits: u16| if bits & E::EXPONENT == E::EXPONENT { 0 } else { u32::from(bits) };
    half((pair >> 16) as u16) << 16 | half(pair as u16)
}
