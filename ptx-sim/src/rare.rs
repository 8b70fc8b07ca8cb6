//! Arithmetic of the rows in `table/rare.rs`.

use crate::float::{self, Format, Round};

/// `bmsk`: ones from bit `from` on, `count` of them.
pub(crate) fn mask(from: u32, count: u32, clamps: bool) -> u32 {
    let (from, count) = if clamps { (from.min(32), count.min(32)) } else { (from & 31, count & 31) };
    (((1u64 << count) - 1) << from) as u32
}

/// `szext`: the low `bits` of `a`.
pub(crate) fn size_extend(a: u32, bits: u32, clamps: bool, signed: bool) -> u32 {
    let bits = if clamps { bits.min(32) } else { bits & 31 };
    match bits {
        0 => 0,
        32.. => a,
        _ if signed => ((a << (32 - bits)) as i32 >> (32 - bits)) as u32,
        _ => a & ((1 << bits) - 1),
    }
}

/// `fns`: the place of the n-th one from bit `base` on, upward for positive n; all ones where there is none.
pub(crate) fn find_nth_set(a: u32, base: u32, n: i32) -> u32 {
    let base = base as i32;
    if !(0..32).contains(&base) {
        return u32::MAX;
    }
    let (mut left, step) = if n >= 0 { (n.max(1), 1) } else { (-n, -1) };
    if n == 0 {
        return if a >> base & 1 == 1 { base as u32 } else { u32::MAX };
    }
    let mut at = base;
    while (0..32).contains(&at) {
        if a >> at & 1 == 1 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += step;
    }
    u32::MAX
}

fn byte(word: u32, at: u32, signed: bool) -> i32 {
    let byte = (word >> (8 * at)) as u8;
    if signed { (byte as i8).into() } else { byte.into() }
}

fn half(word: u32, at: u32, signed: bool) -> i32 {
    let half = (word >> (16 * at)) as u16;
    if signed { (half as i16).into() } else { half.into() }
}

/// c + Σ of four byte products.
pub(crate) fn dot4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    (0..4).fold(c, |sum, i| sum.wrapping_add((byte(a, i, a_signed) * byte(b, i, b_signed)) as u32))
}

/// c + Σ of the products of the halves of a and two bytes of b from `first` on.
pub(crate) fn dot2(a: u32, b: u32, c: u32, first: u32, a_signed: bool, b_signed: bool) -> u32 {
    (0..2).fold(c, |sum, i| {
        sum.wrapping_add(half(a, i, a_signed).wrapping_mul(byte(b, first + i, b_signed)) as u32)
    })
}

/// Both halves through `f`.
pub(crate) fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

/// A number whose sign is the exclusive or of two signs.
pub(crate) fn xor_sign(a: f32, b: f32) -> f32 {
    f32::from_bits(0x3f80_0000 | (a.to_bits() ^ b.to_bits()) & 0x8000_0000)
}

/// A number whose sign is the exclusive or of two signs.
pub(crate) fn xor_sign64(a: f64, b: f64) -> f64 {
    if a.is_sign_negative() != b.is_sign_negative() { -1.0 } else { 1.0 }
}

/// To [0, 1]; NaN gives 0.
pub(crate) fn clamp(x: f64) -> f64 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// An f16 number with subnormals as zeros of their sign.
pub(crate) fn flush(x: f64) -> f64 {
    if x.abs() < 2f64.powi(-14) { 0.0f64.copysign(x) } else { x }
}

/// a × b + c. The NaN that stands for out of bounds is not told from others here, as operands come as numbers.
pub(crate) fn fma_oob(a: f64, b: f64, c: f64) -> f64 {
    if a.is_nan() || b.is_nan() { 0.0 } else { float::fma_odd(a, b, c) }
}

/// The upper word of 1 / a; the lower one is zero (PTX ISA §9.7.3.14).
pub(crate) fn reciprocal_high(a: f64) -> f64 {
    high_word(1.0 / flush64(a))
}

/// The upper word of 1 / √a; the lower one is zero (PTX ISA §9.7.3.18).
pub(crate) fn rsqrt_high(a: f64) -> f64 {
    high_word(1.0 / flush64(a).sqrt())
}

fn flush64(a: f64) -> f64 {
    if a.is_subnormal() { 0.0f64.copysign(a) } else { a }
}

fn high_word(x: f64) -> f64 {
    if x.is_nan() { x } else { flush64(f64::from_bits(x.to_bits() & !0xffff_ffff)) }
}

/// f32 bits rounded to 10 bits of fraction.
pub(crate) fn tf32(x: f32, mode: Round) -> u32 {
    let bits = x.to_bits();
    if !x.is_finite() {
        return bits & 0xffff_e000;
    }
    let rounded = match mode {
        Round::Nearest => bits.wrapping_add(0xfff + (bits >> 13 & 1)),
        _ => bits,
    };
    rounded & 0xffff_e000
}

/// Arithmetic on two packed f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pair {
    Add,
    Sub,
    Mul,
    Fma,
}

/// Both f32 halves of 64-bit operands.
pub(crate) fn f32_pair(op: Pair, operands: [u64; 3], mode: Round, flushes: bool) -> u64 {
    let one = |shift: u32| {
        let [a, b, c] = operands.map(|x| {
            let x = f32::from_bits((x >> shift) as u32);
            f64::from(if flushes { float::flush(x) } else { x })
        });
        let exact = match op {
            Pair::Add => float::add_odd(a, b),
            Pair::Sub => float::add_odd(a, -b),
            Pair::Mul => a * b,
            Pair::Fma => float::fma_odd(a, b, c),
        };
        let x = float::to_f32(exact, mode);
        u64::from(float::canonical_bits(if flushes { float::flush(x) } else { x })) << shift
    };
    one(0) | one(32)
}

/// To f16 or bf16, infinities and what would become one to the largest finite number of their sign.
pub(crate) fn finite(a: f32, format: Format, mode: Round) -> u16 {
    let bits = format.bits_of(a.into(), mode) as u16;
    let infinity = format.bits_of(f64::INFINITY, mode) as u16;
    if bits & 0x7fff == infinity { bits - 1 } else { bits }
}

/// `a` in the high half, `b` in the low half.
pub(crate) fn finite_pair(a: f32, b: f32, format: Format, mode: Round) -> u32 {
    u32::from(finite(a, format, mode)) << 16 | u32::from(finite(b, format, mode))
}

/// What `pick` chooses of two f16 magnitudes, subnormals flushed, with the exclusive or of their signs.
pub(crate) fn xor_flushed(a: f64, b: f64, pick: impl Fn(f64, f64) -> f64) -> f64 {
    let (a, b) = (flush(a), flush(b));
    pick(a.abs(), b.abs()).copysign(xor_sign64(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_extensions() {
        assert_eq!((mask(4, 8, true), mask(40, 8, true), mask(36, 4, false)), (0xff0, 0, 0xf0));
        assert_eq!((mask(0, 32, true), mask(0, 32, false)), (u32::MAX, 0));
        assert_eq!((size_extend(0x1ff, 8, true, true), size_extend(0x1ff, 8, true, false)), (u32::MAX, 0xff));
        assert_eq!((size_extend(5, 40, true, false), size_extend(5, 0, true, true)), (5, 0));
        assert_eq!(
            (find_nth_set(0b1011, 0, 3), find_nth_set(0b1011, 2, -1), find_nth_set(0, 0, 1)),
            (3, 1, u32::MAX)
        );
    }

    #[test]
    fn products_of_parts() {
        assert_eq!(dot4(0xff, 0xff, 0, false, true), (-255i32) as u32);
        assert_eq!(dot2(0x0002_ffff, 0x0403_0201, 10, 2, true, false), (10i32 - 3 + 8) as u32);
    }

    #[test]
    fn tf32_rounds_to_ten_bits() {
        assert_eq!(tf32(1.0 + 2f32.powi(-11), Round::Nearest), 0x3f80_0000);
        assert_eq!(tf32(1.0 + 3.0 * 2f32.powi(-11), Round::Nearest), 0x3f80_4000);
        assert_eq!(tf32(1.0 + 3.0 * 2f32.powi(-11), Round::Zero), 0x3f80_2000);
    }
}
