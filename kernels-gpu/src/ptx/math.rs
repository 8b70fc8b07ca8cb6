//! Single-instruction arithmetic and conversions. Errors are the PTX ISA's; subnormals are flushed (`.ftz`).

use core::arch::asm;

macro_rules! unary_f32 {
    ($($(#[$doc:meta])* $name:ident => $mnemonic:literal;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(x: f32) -> f32 {
            let r;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!(concat!($mnemonic, " {r}, {x};"), r = out(reg32) r, x = in(reg32) x,
                    options(pure, nomem, nostack));
            }
            r
        }
    )* };
}

unary_f32! {
    /// 2^x, at most 2 ulp off; 2^−∞ is 0.
    ex2 => "ex2.approx.ftz.f32";
    /// log2(x), absolute error at most 2^−22 for x in 0.5..2, else relative 2^−22.
    lg2 => "lg2.approx.ftz.f32";
    /// 1 / x, at most 1 ulp off.
    rcp => "rcp.approx.ftz.f32";
}

/// The larger number; a NaN gives way to a number (`max.f32`).
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("max.f32 {r}, {a}, {b};", r = out(reg32) r, a = in(reg32) a, b = in(reg32) b,
            options(pure, nomem, nostack));
    }
    r
}

/// The smaller number; a NaN gives way to a number (`min.f32`).
#[inline(always)]
pub fn min(a: f32, b: f32) -> f32 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("min.f32 {r}, {a}, {b};", r = out(reg32) r, a = in(reg32) a, b = in(reg32) b,
            options(pure, nomem, nostack));
    }
    r
}

/// `a` where the condition holds, else `b` (`selp.b32`). Where Rust's own choice between two elements of an array would become an
/// array in memory.
#[inline(always)]
pub fn select(condition: bool, a: u32, b: u32) -> u32 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.u32 p, {c}, 0; selp.b32 {r}, {a}, {b}, p; }}", r = out(reg32) r,
            a = in(reg32) a, b = in(reg32) b, c = in(reg32) u32::from(condition), options(pure, nomem, nostack));
    }
    r
}

/// The 64 bits of a product (`mul.wide.u32`). Where the compiler would make 64-bit arithmetic of what follows.
#[inline(always)]
pub fn mul_wide(a: u32, b: u32) -> u64 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("mul.wide.u32 {r}, {a}, {b};", r = out(reg64) r, a = in(reg32) a, b = in(reg32) b,
            options(pure, nomem, nostack));
    }
    r
}

/// a · b + c, rounded once (`fma.rn.ftz.f32`).
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("fma.rn.ftz.f32 {r}, {a}, {b}, {c};", r = out(reg32) r, a = in(reg32) a, b = in(reg32) b,
            c = in(reg32) c, options(pure, nomem, nostack));
    }
    r
}

macro_rules! fma_pairs {
    ($($(#[$doc:meta])* $name:ident => $mnemonic:literal;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(a: u32, b: u32, c: u32) -> u32 {
            let r;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!(concat!($mnemonic, " {r}, {a}, {b}, {c};"), r = out(reg32) r, a = in(reg32) a,
                    b = in(reg32) b, c = in(reg32) c, options(pure, nomem, nostack));
            }
            r
        }
    )* };
}

fma_pairs! {
    /// a · b + c of two packed float16 each (`fma.rn.f16x2`).
    fma_f16x2 => "fma.rn.f16x2";
    /// a · b + c of two packed bfloat16 each (`fma.rn.bf16x2`, sm_80).
    fma_bf16x2 => "fma.rn.bf16x2";
}

/// Two float32 rounded to float16, `low` in the lower half (`cvt.rn.f16x2.f32`, sm_80).
#[inline(always)]
pub fn pack_f16(low: f32, high: f32) -> u32 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {r}, {h}, {l};", r = out(reg32) r, h = in(reg32) high, l = in(reg32) low,
            options(pure, nomem, nostack));
    }
    r
}

/// Two float32 rounded to bfloat16, `low` in the lower half (`cvt.rn.bf16x2.f32`, sm_80).
#[inline(always)]
pub fn pack_bf16(low: f32, high: f32) -> u32 {
    let r;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {r}, {h}, {l};", r = out(reg32) r, h = in(reg32) high, l = in(reg32) low,
            options(pure, nomem, nostack));
    }
    r
}

/// The two halves of a packed float16 pair as float32 (`cvt.f32.f16`, exact).
#[inline(always)]
pub fn unpack_f16(pair: u32) -> [f32; 2] {
    let (low, high);
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("{{ .reg .b16 l, h; mov.b32 {{l, h}}, {p}; cvt.f32.f16 {a}, l; cvt.f32.f16 {b}, h; }}",
            p = in(reg32) pair, a = out(reg32) low, b = out(reg32) high, options(pure, nomem, nostack));
    }
    [low, high]
}
