//! NaN and infinities in V where the causal mask hides them from some rows of a block.
//!
//! P is 0 for a hidden key, but 0 · NaN is NaN: the product P·V would carry a NaN of V into rows that do not see
//! it. That shows in O, which is then not finite in every row of the block. So a causal CTA whose O is not finite starts
//! again, replacing such elements by 0 in partly visible blocks ([`scrub_chunk`]), and in the end adds them to the rows
//! that do see them ([`restore`]). Finite inputs pay only for the look at O.

use crate::element::Element;
use crate::epilogue::{output_row, partial_index, partial_o_row, past_rows};
use crate::forward::Config;
use crate::params::ForwardParams;
use crate::ptx::math::fma;
use crate::ptx::memory::{
    ld_global_b16, ld_global_b32, ld_shared_v4, st_global_b16, st_global_f32, st_shared, to_global,
};
use crate::row::Schedule;
use crate::scheduler::{KeyBlocks, Work};
use crate::tile::OutputFragment;

/// Both halves' exponents.
const fn exponents<E: Element>() -> u32 {
    (E::EXPONENT as u32) << 16 | E::EXPONENT as u32
}

/// Whether any element of a lane's part of O is NaN or infinite.
#[inline(always)]
pub fn in_fragment<const M: usize, const D: usize>(acc_o: &OutputFragment<M, D>) -> bool {
    // 0 · x is 0 for finite x and NaN otherwise, and NaN stays in a sum.
    let mut sums = [0.0; 4];
    for tile in acc_o.as_flattened() {
        for (sum, &o) in sums.iter_mut().zip(tile) {
            *sum = fma(o, 0.0, *sum);
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

/// The sum of `o` and a non-finite `v` times a positive weight.
#[inline(always)]
fn add<E: Element>(o: u16, v: u16) -> u16 {
    const MAGNITUDE: u16 = 0x7fff;
    let is_nan = |bits: u16| bits & MAGNITUDE > E::EXPONENT;
    let opposite_infinities = o & MAGNITUDE == E::EXPONENT && o != v;
    if is_nan(o) || is_nan(v) || opposite_infinities { MAGNITUDE } else { v }
}

/// A non-finite `v` as float32.
#[inline(always)]
fn widened<E: Element>(v: u16) -> f32 {
    let infinity = f32::from_bits(u32::from(v >> 15) << 31 | f32::INFINITY.to_bits());
    if v & 0x7fff > E::EXPONENT { f32::NAN } else { infinity }
}

/// Adds to O (or to the split's partial O), already written, the non-finite elements of V in the blocks that are seen
/// only in part: for `rows` rows from `first_row` on, by `threads` threads of which this one is number `thread`.
///
/// # Safety
/// All those threads take part after a barrier that follows their writes to the rows of O; the rest as for the kernel.
#[inline(always)]
pub unsafe fn restore<C: Config>(
    params: &ForwardParams,
    work: &Work,
    blocks: &KeyBlocks,
    (first_row, rows): (u32, u32),
    (thread, threads): (u32, u32),
) {
    let head_dim = C::ROW.head_dim;
    let strides = &params.v_strides;
    let head = i64::from(work.batch) * strides.batch + i64::from(work.head_kv) * strides.head;
    let v_head = to_global(params.v).wrapping_add_signed(head);
    let partial = matches!(C::ROW.schedule, Schedule::Split) && params.split.splits.value > 1;
    let mut element = thread;
    while element < rows * head_dim {
        let (row, column) = (first_row + element / head_dim, element % head_dim);
        if row < past_rows::<C>(params, work) {
            let end = C::ROWS.visible_end(params, row, work.seqlen_k).min(blocks.end * C::ROW.block_n);
            let mut key = blocks.full.max(blocks.first) * C::ROW.block_n;
            while key < end {
                let v_at = v_head.wrapping_add_signed(i64::from(key) * strides.row) + u64::from(column * 2);
                // SAFETY: an element of V, and this thread's element of O or of the partial O.
                unsafe {
                    let v = ld_global_b16(v_at);
                    if v & C::Element::EXPONENT == C::Element::EXPONENT {
                        if partial {
                            let index = partial_index::<C>(params, work, row);
                            let o_at = partial_o_row::<C>(params, index) + u64::from(column * 4);
                            let o = f32::from_bits(ld_global_b32(o_at));
                            st_global_f32(o_at, o + widened::<C::Element>(v));
                        } else {
                            let o_at = output_row::<C>(params, work, row) + u64::from(column * 2);
                            st_global_b16(o_at, add::<C::Element>(ld_global_b16(o_at), v));
                        }
                    }
                }
                key += 1;
            }
        }
        element += threads;
    }
}
