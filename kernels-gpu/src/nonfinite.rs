//! NaN and infinities in V where the causal mask hides them from some rows of a block.
//!
//! P is 0 for a hidden key, but 0 · NaN is NaN: the product P·V would carry a NaN of V into rows that do not see
//! it. In partly visible blocks such elements are replaced by 0 before the product ([`crate::copy`]); where any was
//! found, which is rare, [`restore`] adds them afterwards to the rows that do see them.

use crate::element::Element;
use crate::epilogue::output_row;
use crate::forward::Config;
use crate::geometry;
use crate::params::ForwardParams;
use crate::ptx::memory::{ld_global_b16, st_global_b16, to_global};
use crate::scheduler::{KeyBlocks, Work, visible_end};

/// Both halves' exponents.
const fn exponents<E: Element>() -> u32 {
    (E::EXPONENT as u32) << 16 | E::EXPONENT as u32
}

/// Whether either half of a packed pair is NaN or infinite.
#[inline(always)]
pub fn in_pair<E: Element>(pair: u32) -> bool {
    // Adding an exponent's lowest bit to an exponent of ones carries into the cleared sign bit, and no further.
    let lowest = E::EXPONENT & E::EXPONENT.wrapping_neg();
    let carried = (pair & exponents::<E>()) + (u32::from(lowest) << 16 | u32::from(lowest));
    carried & 0x8000_8000 != 0
}

/// A packed pair with NaN and infinities replaced by 0.
#[inline(always)]
pub fn zeroed<E: Element>(pair: u32) -> u32 {
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

/// Adds to O, already written, the non-finite elements of V in the blocks that are seen only in part.
///
/// # Safety
/// All threads of the CTA take part after a barrier that follows the writes to O; the rest as for the kernel.
#[inline(always)]
pub unsafe fn restore<C: Config>(params: &ForwardParams, work: &Work, blocks: KeyBlocks, thread: u32) {
    let (head_dim, threads) = (C::ROW.head_dim, geometry::threads(&C::ROW));
    let strides = &params.v_strides;
    let head = i64::from(work.batch) * strides.batch + i64::from(work.head_kv) * strides.head;
    let v_head = to_global(params.v).wrapping_add_signed(head);
    let mut element = thread;
    while element < C::ROW.block_m * head_dim {
        let (row, bytes) = (work.first_row + element / head_dim, u64::from(element % head_dim * 2));
        if row < params.seqlen_q {
            let o_at = output_row(params, work, row) + bytes;
            let mut key = blocks.full * C::ROW.block_n;
            while key < visible_end(params, row) {
                let v_at = v_head.wrapping_add_signed(i64::from(key) * strides.row) + bytes;
                // SAFETY: an element of V, and this thread's element of O.
                unsafe {
                    let v = ld_global_b16(v_at);
                    if v & C::Element::EXPONENT == C::Element::EXPONENT {
                        st_global_b16(o_at, add::<C::Element>(ld_global_b16(o_at), v));
                    }
                }
                key += 1;
            }
        }
        element += threads;
    }
}
