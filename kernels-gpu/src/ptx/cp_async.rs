//! Asynchronous copies from global to shared memory (PTX ISA, "cp.async"). sm_80.

use core::arch::asm;

/// `cp.async.cg.shared.global`, 16 bytes, past L1, with a 128-byte prefetch into L2.
///
/// # Safety
/// Both addresses are multiples of 16 and 16 bytes are accessible behind each. The bytes may be read only after
/// the copying thread has waited for their group and, by other threads, after a barrier that follows.
#[inline(always)]
pub unsafe fn cp_async_16(smem: u32, global: u64) {
    // SAFETY: the caller's.
    unsafe {
        asm!("cp.async.cg.shared.global.L2::128B [{s}], [{g}], 16;",
            s = in(reg32) smem, g = in(reg64) global, options(nostack));
    }
}

/// As [`cp_async_16`], but only `source_bytes` (0 or 16) are read and the rest is filled with zeros.
///
/// # Safety
/// As for [`cp_async_16`]; with `source_bytes` 0 nothing is read behind `global`.
#[inline(always)]
pub unsafe fn cp_async_16_or_zero(smem: u32, global: u64, source_bytes: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("cp.async.cg.shared.global.L2::128B [{s}], [{g}], 16, {n};",
            s = in(reg32) smem, g = in(reg64) global, n = in(reg32) source_bytes, options(nostack));
    }
}

/// `cp.async.ca.shared.global`, 8 bytes, of which only `source_bytes` (0 or 8) are read and the rest is filled with zeros.
///
/// # Safety
/// As for [`cp_async_16`], with multiples of 8; with `source_bytes` 0 nothing is read behind `global`.
#[inline(always)]
pub unsafe fn cp_async_8_or_zero(smem: u32, global: u64, source_bytes: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("cp.async.ca.shared.global [{s}], [{g}], 8, {n};",
            s = in(reg32) smem, g = in(reg64) global, n = in(reg32) source_bytes, options(nostack));
    }
}

/// `cp.async.commit_group`: closes this thread's group of copies issued since the last one.
#[inline(always)]
pub fn cp_async_commit_group() {
    // SAFETY: no precondition; an empty group is complete at once.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

/// `cp.async.wait_group`: waits until at most `PENDING` of this thread's latest groups are incomplete.
#[inline(always)]
pub fn cp_async_wait_group<const PENDING: u32>() {
    // SAFETY: no precondition.
    unsafe { asm!("cp.async.wait_group {n};", n = const PENDING, options(nostack)) }
}
