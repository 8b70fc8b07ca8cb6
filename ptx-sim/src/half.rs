//! Small helpers of the f16, bf16 and tf32 rows.

use crate::float::{Format, Round};

/// Both halves through `f`.
pub(crate) fn pair2(a: [f64; 2], b: [f64; 2], f: impl Fn(f64, f64) -> f64) -> [f64; 2] {
    [f(a[0], b[0]), f(a[1], b[1])]
}

/// Both halves through `f`.
pub(crate) fn pair3(a: [f64; 2], b: [f64; 2], c: [f64; 2], f: impl Fn(f64, f64, f64) -> f64) -> [f64; 2] {
    [f(a[0], b[0], c[0]), f(a[1], b[1], c[1])]
}

/// max(x, +0); NaN stays.
pub(crate) fn relu(x: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { x }
}

/// max(x, +0); NaN stays.
pub(crate) fn relu32(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// `a` in the high half, `b` in the low half.
pub(crate) fn pack(a: f32, b: f32, format: Format, mode: Round) -> u32 {
    format.bits_of(a.into(), mode) << 16 | format.bits_of(b.into(), mode)
}

/// f32 bits rounded to 10 bits of fraction, ties away from zero.
pub(crate) fn tf32(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_finite() { bits.wrapping_add(0x1000) & 0xffff_e000 } else { bits & 0xffff_e000 }
}
