//! Loads of 8×8 matrices from shared memory (PTX ISA, "ldmatrix"). sm_75.

use core::arch::asm;

/// `ldmatrix.x4`: four 8×8 matrices of 16-bit elements, one a register. Lanes 8m to 8m + 7 name the rows of
/// matrix m.
///
/// # Safety
/// All 32 lanes take part. Each address is a multiple of 16 with 16 readable bytes behind it.
#[inline(always)]
pub unsafe fn ldmatrix_x4(smem: u32) -> [u32; 4] {
    let (r0, r1, r2, r3);
    // SAFETY: the caller's.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{r0}, {r1}, {r2}, {r3}}}, [{s}];",
            r0 = out(reg32) r0, r1 = out(reg32) r1, r2 = out(reg32) r2, r3 = out(reg32) r3,
            s = in(reg32) smem, options(nostack, readonly));
    }
    [r0, r1, r2, r3]
}

/// `ldmatrix.x4.trans`: as [`ldmatrix_x4`], each matrix transposed.
///
/// # Safety
/// As for [`ldmatrix_x4`].
#[inline(always)]
pub unsafe fn ldmatrix_x4_trans(smem: u32) -> [u32; 4] {
    let (r0, r1, r2, r3);
    // SAFETY: the caller's.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{r0}, {r1}, {r2}, {r3}}}, [{s}];",
            r0 = out(reg32) r0, r1 = out(reg32) r1, r2 = out(reg32) r2, r3 = out(reg32) r3,
            s = in(reg32) smem, options(nostack, readonly));
    }
    [r0, r1, r2, r3]
}
