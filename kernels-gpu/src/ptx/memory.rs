//! Plain loads and stores with their state space, and the address of dynamic shared memory.

use core::arch::{asm, global_asm};

// 1024 bytes: a whole swizzle pattern, so that tiles that follow each other stay aligned to theirs.
global_asm!(".extern .shared .align 1024 .b8 dynamic_smem[];");

/// The start of the CTA's dynamic shared memory, a multiple of 1024.
#[inline(always)]
pub fn dynamic_smem() -> u32 {
    let r;
    // SAFETY: the address of a symbol.
    unsafe { asm!("mov.u32 {r}, dynamic_smem;", r = out(reg32) r, options(pure, nomem, nostack)) }
    r
}

/// `cvta.to.global`: a generic address of global memory as an address in the global window.
#[inline(always)]
pub fn to_global(generic: u64) -> u64 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvta.to.global.u64 {r}, {g};", r = out(reg64) r, g = in(reg64) generic,
            options(pure, nomem, nostack));
    }
    r
}

/// As [`to_global`], computed anew at each call, so that the result is not kept in registers for later.
#[inline(always)]
pub fn to_global_again(generic: u64) -> u64 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvta.to.global.u64 {r}, {g};", r = out(reg64) r, g = in(reg64) generic,
            options(nomem, nostack));
    }
    r
}

/// `ld.shared.v4.b32`.
///
/// # Safety
/// `smem` is a multiple of 16 with 16 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_shared_v4(smem: u32) -> [u32; 4] {
    let (r0, r1, r2, r3);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.shared.v4.b32 {{{r0}, {r1}, {r2}, {r3}}}, [{s}];",
            r0 = out(reg32) r0, r1 = out(reg32) r1, r2 = out(reg32) r2, r3 = out(reg32) r3,
            s = in(reg32) smem, options(nostack, readonly));
    }
    [r0, r1, r2, r3]
}

/// `ld.shared.v2.f32`.
///
/// # Safety
/// `smem` is a multiple of 8 with 8 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_shared_v2_f32(smem: u32) -> [f32; 2] {
    let (r0, r1);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.shared.v2.f32 {{{r0}, {r1}}}, [{s}];", r0 = out(reg32) r0, r1 = out(reg32) r1,
            s = in(reg32) smem, options(nostack, readonly));
    }
    [r0, r1]
}

/// `ld.shared.v4.f32`. As floats from the start, what is negated of them costs no instruction.
///
/// # Safety
/// As for [`ld_shared_v4`].
#[inline(always)]
pub unsafe fn ld_shared_v4_f32(smem: u32) -> [f32; 4] {
    let (f0, f1, f2, f3);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.shared.v4.f32 {{{f0}, {f1}, {f2}, {f3}}}, [{s}];",
            f0 = out(reg32) f0, f1 = out(reg32) f1, f2 = out(reg32) f2, f3 = out(reg32) f3,
            s = in(reg32) smem, options(nostack, readonly));
    }
    [f0, f1, f2, f3]
}

/// `ld.shared.b32`, each time anew.
///
/// # Safety
/// `smem` is a multiple of 4 with 4 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_shared(smem: u32) -> u32 {
    let r;
    // SAFETY: the caller's.
    unsafe { asm!("ld.shared.b32 {r}, [{s}];", r = out(reg32) r, s = in(reg32) smem, options(nostack)) }
    r
}

/// `st.shared.v2.f32`.
///
/// # Safety
/// `smem` is a multiple of 8 with 8 writable bytes behind it.
#[inline(always)]
pub unsafe fn st_shared_v2_f32(smem: u32, value: [f32; 2]) {
    // SAFETY: the caller's.
    unsafe {
        asm!("st.shared.v2.f32 [{s}], {{{a}, {b}}};", s = in(reg32) smem, a = in(reg32) value[0],
            b = in(reg32) value[1], options(nostack));
    }
}

/// `st.shared.b32`.
///
/// # Safety
/// `smem` is a multiple of 4 with 4 writable bytes behind it.
#[inline(always)]
pub unsafe fn st_shared(smem: u32, value: u32) {
    // SAFETY: the caller's.
    unsafe { asm!("st.shared.b32 [{s}], {v};", s = in(reg32) smem, v = in(reg32) value, options(nostack)) }
}

/// `st.relaxed.cta.shared.b32`: 32 bits that several warps may write at a time.
///
/// PTX ISA "Data Movement and Conversion Instructions: st"; sm_70.
///
/// # Safety
/// `smem` is a multiple of 4 and its 4 bytes are the CTA's.
#[inline(always)]
pub unsafe fn st_shared_relaxed(smem: u32, value: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("st.relaxed.cta.shared.b32 [{s}], {v};", s = in(reg32) smem, v = in(reg32) value, options(nostack))
    }
}

/// `st.shared.v4.b32`: 128 bits.
///
/// # Safety
/// `smem` is a multiple of 16 with 16 writable bytes behind it.
#[inline(always)]
pub unsafe fn st_shared_v4(smem: u32, value: [u32; 4]) {
    // SAFETY: the caller's.
    unsafe {
        asm!("st.shared.v4.b32 [{s}], {{{a}, {b}, {c}, {d}}};", s = in(reg32) smem, a = in(reg32) value[0],
            b = in(reg32) value[1], c = in(reg32) value[2], d = in(reg32) value[3], options(nostack));
    }
}

/// `st.global.v4.b32`: 128 bits.
///
/// # Safety
/// `global` is a multiple of 16 with 16 writable bytes behind it.
#[inline(always)]
pub unsafe fn st_global_v4(global: u64, value: [u32; 4]) {
    // SAFETY: the caller's.
    unsafe {
        asm!("st.global.v4.b32 [{g}], {{{a}, {b}, {c}, {d}}};", g = in(reg64) global, a = in(reg32) value[0],
            b = in(reg32) value[1], c = in(reg32) value[2], d = in(reg32) value[3], options(nostack));
    }
}

/// `st.global.b32`.
///
/// # Safety
/// `global` is a multiple of 4 with 4 writable bytes behind it.
#[inline(always)]
pub unsafe fn st_global_b32(global: u64, value: u32) {
    // SAFETY: the caller's.
    unsafe { asm!("st.global.b32 [{g}], {v};", g = in(reg64) global, v = in(reg32) value, options(nostack)) }
}

/// `st.global.f32`.
///
/// # Safety
/// `global` is a multiple of 4 with 4 writable bytes behind it.
#[inline(always)]
pub unsafe fn st_global_f32(global: u64, value: f32) {
    // SAFETY: the caller's.
    unsafe { asm!("st.global.f32 [{g}], {v};", g = in(reg64) global, v = in(reg32) value, options(nostack)) }
}

/// `ld.global.b16`.
///
/// # Safety
/// `global` is a multiple of 2 with 2 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_global_b16(global: u64) -> u16 {
    let r;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.b16 {r}, [{g}];", r = out(reg16) r, g = in(reg64) global, options(nostack, readonly));
    }
    r
}

/// `st.global.b16`.
///
/// # Safety
/// `global` is a multiple of 2 with 2 writable bytes behind it.
#[inline(always)]
pub unsafe fn st_global_b16(global: u64, value: u16) {
    // SAFETY: the caller's.
    unsafe { asm!("st.global.b16 [{g}], {v};", g = in(reg64) global, v = in(reg16) value, options(nostack)) }
}

/// `st.global.v2.b32`: 64 bits.
///
/// # Safety
/// `global` is a multiple of 8 with 8 writable bytes behind it.
#[inline(always)]
pub unsafe fn st_global_v2(global: u64, value: [u32; 2]) {
    // SAFETY: the caller's.
    unsafe {
        asm!("st.global.v2.b32 [{g}], {{{a}, {b}}};", g = in(reg64) global, a = in(reg32) value[0],
            b = in(reg32) value[1], options(nostack));
    }
}

/// `ld.global.v4.b32`: 128 bits.
///
/// # Safety
/// `global` is a multiple of 16 with 16 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_global_v4(global: u64) -> [u32; 4] {
    let (r0, r1, r2, r3);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.v4.b32 {{{r0}, {r1}, {r2}, {r3}}}, [{g}];", r0 = out(reg32) r0, r1 = out(reg32) r1,
            r2 = out(reg32) r2, r3 = out(reg32) r3, g = in(reg64) global, options(nostack, readonly));
    }
    [r0, r1, r2, r3]
}

/// `ld.global.v2.b32`: 64 bits.
///
/// # Safety
/// `global` is a multiple of 8 with 8 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_global_v2(global: u64) -> [u32; 2] {
    let (r0, r1);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.v2.b32 {{{r0}, {r1}}}, [{g}];", r0 = out(reg32) r0, r1 = out(reg32) r1,
            g = in(reg64) global, options(nostack, readonly));
    }
    [r0, r1]
}

/// `ld.global.b32`.
///
/// # Safety
/// `global` is a multiple of 4 with 4 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_global_b32(global: u64) -> u32 {
    let r;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.b32 {r}, [{g}];", r = out(reg32) r, g = in(reg64) global, options(nostack, readonly));
    }
    r
}

/// `ld.global.b32` of what nobody writes during the launch: equal loads are one.
///
/// # Safety
/// As for [`ld_global_b32`]; nobody writes there meanwhile.
#[inline(always)]
pub unsafe fn ld_global_constant_b32(global: u64) -> u32 {
    let r;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.b32 {r}, [{g}];", r = out(reg32) r, g = in(reg64) global,
            options(pure, nostack, readonly));
    }
    r
}

/// `ld.global.b32` under a predicate: `otherwise` where the condition does not hold, without a branch.
///
/// # Safety
/// Where the condition holds, `global` is a multiple of 4 with 4 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_global_b32_if(condition: bool, global: u64, otherwise: u32) -> u32 {
    let mut r = otherwise;
    // SAFETY: the caller's.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.u32 p, {c}, 0; @p ld.global.b32 {r}, [{g}]; }}", r = inout(reg32) r,
            c = in(reg32) condition as u32, g = in(reg64) global, options(nostack, readonly));
    }
    r
}

/// `ld.global.v4.f32` under a predicate: `otherwise` four times where the condition does not hold, without a branch.
///
/// # Safety
/// Where the condition holds, `global` is a multiple of 16 with 16 readable bytes behind it.
#[inline(always)]
pub unsafe fn ld_global_v4_f32_if(condition: bool, global: u64, otherwise: f32) -> [f32; 4] {
    let [mut r0, mut r1, mut r2, mut r3] = [otherwise; 4];
    // SAFETY: the caller's.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.u32 p, {c}, 0; @p ld.global.v4.f32 {{{r0}, {r1}, {r2}, {r3}}}, [{g}]; }}",
            r0 = inout(reg32) r0, r1 = inout(reg32) r1, r2 = inout(reg32) r2, r3 = inout(reg32) r3,
            c = in(reg32) condition as u32, g = in(reg64) global, options(nostack, readonly));
    }
    [r0, r1, r2, r3]
}

/// `atom.acq_rel.gpu.global.inc.u32`: as [`atomic_inc`]; it publishes the writes that this thread has seen to later increments of the
/// counter, and acquires what earlier ones published.
///
/// PTX ISA "Parallel Synchronization and Communication Instructions: atom", "Memory Consistency Model"; sm_70.
///
/// # Safety
/// As for [`atomic_inc`].
#[inline(always)]
pub unsafe fn atomic_inc_acq_rel(global: u64, last: u32) -> u32 {
    let r;
    // SAFETY: the caller's.
    unsafe {
        asm!("atom.acq_rel.gpu.global.inc.u32 {r}, [{g}], {l};", r = out(reg32) r, g = in(reg64) global,
            l = in(reg32) last, options(nostack));
    }
    r
}

/// `atom.global.inc.u32`: adds 1, or goes back to 0 from `last`; returns what was there.
///
/// # Safety
/// `global` is a multiple of 4 with 4 bytes behind it that all others change by atomics only.
#[inline(always)]
pub unsafe fn atomic_inc(global: u64, last: u32) -> u32 {
    let r;
    // SAFETY: the caller's.
    unsafe {
        asm!("atom.global.inc.u32 {r}, [{g}], {l};", r = out(reg32) r, g = in(reg64) global, l = in(reg32) last,
            options(nostack));
    }
    r
}

/// `ld.acquire.gpu.global.b32`: what was published by the write that it reads, or by those before, has happened.
///
/// PTX ISA "Data Movement and Conversion Instructions: ld", "Memory Consistency Model"; sm_70.
///
/// # Safety
/// `global` is a multiple of 4 with 4 bytes behind it that all others change by atomics only.
#[inline(always)]
pub unsafe fn ld_acquire_b32(global: u64) -> u32 {
    let r;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.acquire.gpu.global.b32 {r}, [{g}];", r = out(reg32) r, g = in(reg64) global, options(nostack))
    }
    r
}

/// `ld.acquire.sys.global.b32`: as [`ld_acquire_b32`], also of what copy engines, the host and other devices published.
///
/// # Safety
/// `global` is a multiple of 4 with 4 bytes behind it that all others change as a whole.
#[inline(always)]
pub unsafe fn ld_acquire_sys_b32(global: u64) -> u32 {
    let r;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.acquire.sys.global.b32 {r}, [{g}];", r = out(reg32) r, g = in(reg64) global, options(nostack))
    }
    r
}

/// `red.release.gpu.global.add.u32`: adds, and publishes the writes that this thread has seen to those who acquire the sum.
///
/// PTX ISA "Parallel Synchronization and Communication Instructions: red", "Memory Consistency Model"; sm_70.
///
/// # Safety
/// As for [`ld_acquire_b32`].
#[inline(always)]
pub unsafe fn red_add_release(global: u64, value: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("red.release.gpu.global.add.u32 [{g}], {v};", g = in(reg64) global, v = in(reg32) value,
            options(nostack));
    }
}
