//! Barriers in shared memory that count arrivals and bytes (PTX ISA, "mbarrier"). sm_90.
//!
//! A phase is over when all arrivals and all expected bytes have come; the next one starts by itself. Who waits names the
//! parity of the phase it waits for: 0 for the first.

use core::arch::asm;

/// `mbarrier.init.shared::cta.b64`: a barrier whose phases take `arrivals` arrivals.
///
/// # Safety
/// `barrier` is a multiple of 8 with 8 bytes behind it that nobody uses yet.
#[inline(always)]
pub unsafe fn mbarrier_init(barrier: u32, arrivals: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{b}], {n};", b = in(reg32) barrier, n = in(reg32) arrivals,
            options(nostack));
    }
}

/// `fence.mbarrier_init` and `fence.proxy.async`: bulk copies find the barriers initialised.
#[inline(always)]
pub fn fence_mbarrier_init() {
    // SAFETY: fences have no precondition.
    unsafe { asm!("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;", options(nostack)) }
}

/// `fence.proxy.async.shared::cta`: what this thread wrote to shared memory comes before what wgmma and bulk copies do there
/// afterwards.
#[inline(always)]
pub fn fence_proxy_async() {
    // SAFETY: a fence has no precondition.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}

/// `fence.proxy.async.global`: what this thread wrote to global memory, or has seen of what others wrote there, comes before what bulk
/// copies read there afterwards.
#[inline(always)]
pub fn fence_proxy_async_global() {
    // SAFETY: a fence has no precondition.
    unsafe { asm!("fence.proxy.async.global;", options(nostack)) }
}

/// `mbarrier.arrive.shared::cta.b64` where `condition` holds: one arrival; what this thread did before comes before what
/// waiters do after. Predicated, so that no branch parts the warp.
///
/// # Safety
/// `barrier` is initialised, and the arrival is among those that its phase takes.
#[inline(always)]
pub unsafe fn mbarrier_arrive_if(barrier: u32, condition: bool) {
    // SAFETY: the caller's.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.u32 p, {c}, 0; @p mbarrier.arrive.shared::cta.b64 _, [{b}]; }}",
            b = in(reg32) barrier, c = in(reg32) u32::from(condition), options(nostack));
    }
}

/// `mbarrier.arrive.expect_tx.shared::cta.b64`: one arrival, and `bytes` bytes that copies have yet to bring.
///
/// # Safety
/// As for [`mbarrier_arrive_if`].
#[inline(always)]
pub unsafe fn mbarrier_arrive_expect_tx(barrier: u32, bytes: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{b}], {n};", b = in(reg32) barrier,
            n = in(reg32) bytes, options(nostack));
    }
}

/// `mbarrier.try_wait.parity.shared::cta.b64` until the phase of this parity is over.
///
/// # Safety
/// `barrier` is initialised, and its phase of the other parity is over or the first.
#[inline(always)]
pub unsafe fn mbarrier_wait(barrier: u32, parity: u32) {
    loop {
        let over: u32;
        // SAFETY: the caller's.
        unsafe {
            asm!("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{b}], {p}; selp.u32 {r}, 1, 0, p; }}",
                b = in(reg32) barrier, p = in(reg32) parity, r = out(reg32) over, options(nostack));
        }
        if over != 0 {
            return;
        }
    }
}
