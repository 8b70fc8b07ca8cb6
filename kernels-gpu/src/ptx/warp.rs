//! Exchange and agreement within a warp and within a CTA. All lanes, or all threads, take part in each call.

use super::{halves, of_halves};
use core::arch::asm;

/// `shfl.sync.bfly.b32`: the value of the lane whose number differs in the bits of `LANE_MASK`.
#[inline(always)]
pub fn shfl_bfly<const LANE_MASK: u32>(value: f32) -> f32 {
    f32::from_bits(shfl_bfly_b32::<LANE_MASK>(value.to_bits()))
}

/// `shfl.sync.bfly.b32`, of any 32 bits.
#[inline(always)]
pub fn shfl_bfly_b32<const LANE_MASK: u32>(value: u32) -> u32 {
    let r;
    // SAFETY: reads registers of other lanes only.
    unsafe {
        asm!("shfl.sync.bfly.b32 {r}, {v}, {m}, 31, -1;", r = out(reg32) r, v = in(reg32) value,
            m = const LANE_MASK, options(nomem, nostack));
    }
    r
}

/// `shfl.sync.idx.b32`: lane 0's value, which the compiler then knows to be the same in all lanes.
#[inline(always)]
pub fn first_lane(value: u32) -> u32 {
    let r;
    // SAFETY: reads registers of other lanes only.
    unsafe {
        asm!("shfl.sync.idx.b32 {r}, {v}, 0, 31, -1;", r = out(reg32) r, v = in(reg32) value,
            options(nomem, nostack));
    }
    r
}

/// `shfl.sync.idx.b32`: the value of the lane of this number.
#[inline(always)]
pub fn shfl_idx_b32(value: u32, lane: u32) -> u32 {
    let r;
    // SAFETY: reads registers of other lanes only.
    unsafe {
        asm!("shfl.sync.idx.b32 {r}, {v}, {l}, 31, -1;", r = out(reg32) r, v = in(reg32) value,
            l = in(reg32) lane, options(nomem, nostack));
    }
    r
}

/// As [`shfl_idx_b32`], of 64 bits.
#[inline(always)]
pub fn shfl_idx_b64(value: u64, lane: u32) -> u64 {
    of_halves(halves(value).map(|half| shfl_idx_b32(half, lane)))
}

/// `vote.sync.any.pred`: whether the condition holds in any lane.
#[inline(always)]
pub fn vote_any(condition: bool) -> bool {
    let r: u32;
    // SAFETY: reads registers of other lanes only.
    unsafe {
        asm!("{{ .reg .pred p, q; setp.ne.u32 p, {c}, 0; vote.sync.any.pred q, p, -1; selp.u32 {r}, 1, 0, q; }}",
            r = out(reg32) r, c = in(reg32) condition as u32, options(nomem, nostack));
    }
    r != 0
}

/// `bar.warp.sync`: waits for all lanes of the warp and makes their shared-memory writes visible to each other.
#[inline(always)]
pub fn sync_warp() {
    // SAFETY: no precondition beside the participation of all lanes.
    unsafe { asm!("bar.warp.sync -1;", options(nostack)) }
}

/// `bar.red.or.pred`: waits for all threads of the CTA, as a barrier does, and says whether the condition holds in
/// any of them.
#[inline(always)]
pub fn sync_threads_or(condition: bool) -> bool {
    let r: u32;
    // SAFETY: no precondition beside the participation of all threads.
    unsafe {
        asm!("{{ .reg .pred p, q; setp.ne.u32 p, {c}, 0; bar.red.or.pred q, 0, p; selp.u32 {r}, 1, 0, q; }}",
            r = out(reg32) r, c = in(reg32) condition as u32, options(nostack));
    }
    r != 0
}
