//! Floating-point rules that the host does not have: small formats, directed rounding, exact fused multiply-add, the
//! approximations of PTX ISA §9.7.3–9.7.4.

/// A rounding mode of an instruction (PTX ISA §9.7, rounding modifiers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// To nearest, ties to even.
    Nearest,
    /// Toward zero.
    Zero,
    /// Toward minus infinity.
    Down,
    /// Toward plus infinity.
    Up,
}

/// A binary format narrower than f64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// Stored significand bits.
    mantissa: i32,
    /// Exponent of the smallest normal number.
    emin: i32,
    /// Largest finite number.
    max: f64,
    /// Total bits.
    bits: u32,
}

impl Format {
    pub(crate) const F16: Format = Format { mantissa: 10, emin: -14, max: 65504.0, bits: 16 };
    pub(crate) const BF16: Format =
        Format { mantissa: 7, emin: -126, max: 3.389_531_389_251_535_5e38, bits: 16 };
    pub(crate) const F32: Format = Format { mantissa: 23, emin: -126, max: f32::MAX as f64, bits: 32 };

    /// `x` rounded to this format, as an f64.
    pub(crate) fn round(self, x: f64, mode: Round) -> f64 {
        if x == 0.0 || !x.is_finite() {
            return x;
        }
        let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(self.emin);
        // A power of two between 2^-149 and 2^1000: both scalings are exact.
        let ulp = power_of_two(exponent - self.mantissa);
        let scaled = x / ulp;
        let rounded = match mode {
            Round::Nearest => scaled.round_ties_even(),
            Round::Zero => scaled.trunc(),
            Round::Down => scaled.floor(),
            Round::Up => scaled.ceil(),
        } * ulp;
        if rounded.abs() <= self.max {
            return rounded.copysign(x);
        }
        let to_infinity = match mode {
            Round::Nearest => true,
            Round::Zero => false,
            Round::Down => x < 0.0,
            Round::Up => x > 0.0,
        };
        if to_infinity { f64::INFINITY.copysign(x) } else { self.max.copysign(x) }
    }

    /// The 16 bits of `x` rounded to nearest even; NaN is the canonical 0x7fff.
    pub(crate) fn encode(self, x: f64) -> u16 {
        self.bits_of(x, Round::Nearest) as u16
    }

    /// The bits of `x` rounded by `mode`; NaN is all ones but the sign.
    pub(crate) fn bits_of(self, x: f64, mode: Round) -> u32 {
        let top = self.bits - 1;
        if x.is_nan() {
            return (1 << top) - 1;
        }
        let sign = u32::from(x.is_sign_negative()) << top;
        let value = self.round(x, mode).abs();
        let exponent_bits = top - self.mantissa as u32;
        if value.is_infinite() {
            return sign | ((1 << exponent_bits) - 1) << self.mantissa;
        }
        let exponent = (value.to_bits() >> 52) as i32 - 1023;
        if value == 0.0 || exponent < self.emin {
            // Subnormal: a whole number of the smallest step.
            return sign | (value / power_of_two(self.emin - self.mantissa)) as u32;
        }
        let fraction = (value.to_bits() & ((1 << 52) - 1)) >> (52 - self.mantissa);
        sign | ((exponent - self.emin + 1) as u32) << self.mantissa | fraction as u32
    }
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// f32 bits with every NaN replaced by the canonical one (PTX ISA §9.7.3).
#[inline]
pub(crate) fn canonical_bits(x: f32) -> u32 {
    if x.is_nan() { 0x7fff_ffff } else { x.to_bits() }
}

/// A subnormal becomes a zero of its sign.
#[inline]
pub(crate) fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { x }
}

/// Clamped to [0, 1]; NaN gives +0.
#[inline]
pub(crate) fn saturate(x: f32) -> f32 {
    if x > 0.0 { if x < 1.0 { x } else { 1.0 } } else { 0.0 }
}

/// f16 to f32, exact.
#[inline]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff) << 13;
    // 2^112 moves the exponent from the bias of f16 to that of f32; subnormals come out exact.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(sign | scaled | special)
}

/// bf16 to f32, exact.
#[inline]
pub(crate) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// f32 to f16, to nearest even; NaN gives 0x7fff.
#[inline]
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        return 0x7fff;
    } else if magnitude >= 0x477f_f000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        // Adding 0.5 aligns the subnormal's last bit with that of the sum, whose rounding is then the wanted one.
        (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000)
    } else {
        let odd = magnitude >> 13 & 1;
        (magnitude - 0x3800_0000 + 0xfff + odd) >> 13
    };
    sign | half as u16
}

/// f32 to bf16, to nearest even; NaN gives 0x7fff.
#[inline]
pub(crate) fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return 0x7fff;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// a + b rounded to odd: a later rounding to a narrower format is then correct.
#[inline]
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let virtual_b = sum - a;
    let error = (a - (sum - virtual_b)) + (b - virtual_b);
    let bits = sum.to_bits();
    // The neighbour on the side of the error is odd. Without branches, so that lanes are computed several at a time.
    let is_moved = (error != 0.0) & (sum.abs() < f64::INFINITY) & (bits & 1 == 0);
    let step = if (error > 0.0) == (sum > 0.0) { 1 } else { u64::MAX };
    f64::from_bits(bits.wrapping_add(if is_moved { step } else { 0 }))
}

/// a × b + c in f32, rounded once: the product is exact in f64.
#[inline]
pub(crate) fn fma_f32(a: f32, b: f32, c: f32) -> f32 {
    add_odd(f64::from(a) * f64::from(b), f64::from(c)) as f32
}

/// a × b + c for formats whose products are exact in f64.
#[inline]
pub(crate) fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    add_odd(a * b, c)
}

/// An f64 that is exact or rounded to odd, to f32 by `mode`.
pub(crate) fn to_f32(x: f64, mode: Round) -> f32 {
    Format::F32.round(x, mode) as f32
}

/// The smaller; the other operand if one is NaN; −0 is less than +0.
#[inline]
pub(crate) fn min<T: Float>(a: T, b: T) -> T {
    if a.is_nan() || b < a || (b == a && b.is_negative()) { b } else { a }
}

/// The larger; the other operand if one is NaN; +0 is more than −0.
#[inline]
pub(crate) fn max<T: Float>(a: T, b: T) -> T {
    if a.is_nan() || b > a || (b == a && a.is_negative()) { b } else { a }
}

/// The smaller, NaN if either is (`.NaN`).
pub(crate) fn min_nan<T: Float>(a: T, b: T) -> T {
    if b.is_nan() {
        b
    } else if a.is_nan() {
        a
    } else {
        min(a, b)
    }
}

/// The larger, NaN if either is (`.NaN`).
pub(crate) fn max_nan<T: Float>(a: T, b: T) -> T {
    if b.is_nan() {
        b
    } else if a.is_nan() {
        a
    } else {
        max(a, b)
    }
}

/// What minimum and maximum ask of a number.
pub(crate) trait Float: Copy + PartialOrd {
    fn is_nan(self) -> bool;
    fn is_negative(self) -> bool;
}

impl Float for f32 {
    #[inline]
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }
    #[inline]
    fn is_negative(self) -> bool {
        self.is_sign_negative()
    }
}

impl Float for f64 {
    #[inline]
    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
    #[inline]
    fn is_negative(self) -> bool {
        self.is_sign_negative()
    }
}

/// 2^x; the f64 polynomial's error is far below half an ulp of f32, where the ISA allows 2 ulp (§9.7.3.21).
#[inline]
pub(crate) fn ex2(x: f32) -> f32 {
    // Beyond ±160 every result is infinite or zero.
    let x = f64::from(x.clamp(-160.0, 160.0));
    // Adding 1.5·2^52 rounds to an integer that then sits in the low bits.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let shifted = x + SHIFT;
    let whole = shifted - SHIFT;
    let r = (x - whole) * std::f64::consts::LN_2;
    let tail = 1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0 + r * (1.0 / 40320.0)));
    let p = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * tail))));
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    (p * scale) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_and_back_is_the_identity_on_every_pattern() {
        for bits in 0..=u16::MAX {
            let wide = f16_to_f32(bits);
            let back = f32_to_f16(wide);
            let encoded = Format::F16.encode(wide.into());
            if wide.is_nan() {
                assert_eq!((back, encoded), (0x7fff, 0x7fff), "{bits:#x}");
            } else {
                assert_eq!((back, encoded), (bits, bits), "{bits:#x}");
            }
            let brain = bf16_to_f32(bits);
            if !brain.is_nan() {
                assert_eq!(
                    (f32_to_bf16(brain), Format::BF16.encode(brain.into())),
                    (bits, bits),
                    "{bits:#x}"
                );
            }
        }
    }

    #[test]
    fn narrowing_agrees_with_the_general_rounding() {
        let mut bits = 0u32;
        for _ in 0..2_000_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(bits);
            assert_eq!(f32_to_f16(x), Format::F16.encode(x.into()), "{x:e}");
            assert_eq!(f32_to_bf16(x), Format::BF16.encode(x.into()), "{x:e}");
        }
        for x in [65519.99f32, 65520.0, 5.96e-8, 2.98e-8, 2.981e-8, 6.1e-5, 6.1035156e-5] {
            assert_eq!(f32_to_f16(x), Format::F16.encode(x.into()), "{x:e}");
        }
    }

    #[test]
    fn fma_agrees_with_the_exact_one() {
        let mut bits = 1u32;
        let mut next = || {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(bits)
        };
        for _ in 0..1_000_000 {
            let (a, b, c) = (next(), next(), next());
            let (got, want) = (fma_f32(a, b, c), a.mul_add(b, c));
            assert!(got == want || got.is_nan() && want.is_nan(), "{a:e}·{b:e}+{c:e}: {got:e} {want:e}");
        }
        // Half-way cases in which rounding twice goes wrong.
        let a = 1.0 + f32::EPSILON;
        assert_eq!(fma_f32(a, a, f32::MIN_POSITIVE), a.mul_add(a, f32::MIN_POSITIVE));
    }

    #[test]
    fn directed_rounding_brackets_the_value() {
        let x = 1.0 + 2f64.powi(-30);
        assert_eq!(to_f32(x, Round::Zero), 1.0);
        assert_eq!(to_f32(x, Round::Up), 1.0 + f32::EPSILON);
        assert_eq!(to_f32(-x, Round::Down), -1.0 - f32::EPSILON);
        assert_eq!(to_f32(1e300, Round::Zero), f32::MAX);
        assert_eq!(to_f32(-1e300, Round::Down), f32::NEG_INFINITY);
        assert_eq!(to_f32(1e-300, Round::Up), f32::from_bits(1));
    }

    #[test]
    fn ex2_is_within_one_ulp_and_keeps_the_special_values() {
        for i in -15_000..13_000 {
            let x = i as f32 * 0.01;
            let want = f64::from(x).exp2();
            let got = f64::from(ex2(x));
            let ulp = (want * f64::from(f32::EPSILON)).max(f64::from(f32::from_bits(1)));
            assert!((got - want).abs() <= ulp || got == want as f32 as f64, "{x}: {got:e} {want:e}");
        }
        assert_eq!(ex2(f32::NEG_INFINITY), 0.0);
        assert_eq!(ex2(f32::INFINITY), f32::INFINITY);
        assert!(ex2(f32::NAN).is_nan());
        assert_eq!(ex2(0.0), 1.0);
    }

    #[test]
    fn minimum_and_maximum_order_zeros_and_skip_nan() {
        assert!(min(0.0f32, -0.0).is_sign_negative() && min(-0.0f32, 0.0).is_sign_negative());
        assert!(max(0.0f32, -0.0).is_sign_positive() && max(-0.0f32, 0.0).is_sign_positive());
        assert_eq!((min(f32::NAN, 1.0), max(1.0, f32::NAN)), (1.0, 1.0));
        assert!(max_nan(1.0, f32::NAN).is_nan() && min_nan(f32::NAN, 1.0).is_nan());
    }
}
