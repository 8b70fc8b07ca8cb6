//! Matrix multiply-accumulate of a warp (PTX ISA, "mma.sync", m16n8k16). sm_80.
//!
//! A is 16×16 in row order, B 16×8 in column order; the lane maps are in [`crate::tile::fragment`]. All 32 lanes of the
//! warp take part in each call, converged.

use core::arch::asm;

macro_rules! mma_f32 {
    ($($(#[$doc:meta])* $name:ident => $types:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// All 32 lanes take part.
        #[inline(always)]
        pub unsafe fn $name(d: &mut [f32; 4], a: [u32; 4], b0: u32, b1: u32) {
            // SAFETY: the caller's; only registers are touched.
            unsafe {
                asm!(concat!("mma.sync.aligned.m16n8k16.row.col.", $types,
                    " {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{d0}, {d1}, {d2}, {d3}}};"),
                    d0 = inout(reg32) d[0], d1 = inout(reg32) d[1], d2 = inout(reg32) d[2], d3 = inout(reg32) d[3],
                    a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                    b0 = in(reg32) b0, b1 = in(reg32) b1, options(pure, nomem, nostack));
            }
        }
    )* };
}

mma_f32! {
    /// D += A·B with float16 operands and float32 accumulators.
    mma_f32_f16 => "f32.f16.f16.f32";
    /// D += A·B with bfloat16 operands and float32 accumulators.
    mma_f32_bf16 => "f32.bf16.bf16.f32";
}

/// D += A·B with float16 operands and float16 accumulators, two a register.
///
/// # Safety
/// All 32 lanes take part.
#[inline(always)]
pub unsafe fn mma_f16_f16(d: &mut [u32; 2], a: [u32; 4], b0: u32, b1: u32) {
    // SAFETY: the caller's; only registers are touched.
    unsafe {
        asm!("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {{{d0}, {d1}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{d0}, {d1}}};",
            d0 = inout(reg32) d[0], d1 = inout(reg32) d[1],
            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
            b0 = in(reg32) b0, b1 = in(reg32) b1, options(pure, nomem, nostack));
    }
}
