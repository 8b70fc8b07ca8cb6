//! Registers of a warpgroup, and named barriers between warpgroups. sm_90a.

use core::arch::asm;

/// `setmaxnreg.dec`: gives registers back, down to `REGISTERS` a thread.
///
/// # Safety
/// All threads of the warpgroup take part, and hold no more live registers.
#[inline(always)]
pub unsafe fn give_registers<const REGISTERS: u32>() {
    // SAFETY: the caller's.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const REGISTERS, options(nostack)) }
}

/// `setmaxnreg.inc`: takes registers, up to `REGISTERS` a thread; waits until others have given them back.
///
/// # Safety
/// All threads of the warpgroup take part, and the CTA's pool comes to hold that many.
#[inline(always)]
pub unsafe fn take_registers<const REGISTERS: u32>() {
    // SAFETY: the caller's.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const REGISTERS, options(nostack)) }
}

/// `bar.sync`: waits at a named barrier until `threads` threads have come, those that only arrive among them.
///
/// # Safety
/// As many threads come to the barrier, all lanes of a warp together.
#[inline(always)]
pub unsafe fn named_barrier_sync(barrier: u32, threads: u32) {
    // SAFETY: the caller's.
    unsafe { asm!("bar.sync {b}, {n};", b = in(reg32) barrier, n = in(reg32) threads, options(nostack)) }
}

/// `bar.arrive`: arrives at a named barrier and goes on.
///
/// # Safety
/// As for [`named_barrier_sync`].
#[inline(always)]
pub unsafe fn named_barrier_arrive(barrier: u32, threads: u32) {
    // SAFETY: the caller's.
    unsafe { asm!("bar.arrive {b}, {n};", b = in(reg32) barrier, n = in(reg32) threads, options(nostack)) }
}

/// `bar.red.or.pred`: waits at a named barrier as [`named_barrier_sync`] does, and says whether the condition holds in any of the
/// threads.
///
/// # Safety
/// As for [`named_barrier_sync`], by threads that all wait.
#[inline(always)]
pub unsafe fn named_barrier_or(barrier: u32, threads: u32, condition: bool) -> bool {
    let r: u32;
    // SAFETY: the caller's.
    unsafe {
        asm!("{{ .reg .pred p, q; setp.ne.u32 p, {c}, 0; bar.red.or.pred q, {b}, {n}, p; selp.u32 {r}, 1, 0, q; }}",
            r = out(reg32) r, b = in(reg32) barrier, n = in(reg32) threads, c = in(reg32) condition as u32, options(nostack));
    }
    r != 0
}
