//! f64 arithmetic rounded toward zero or an infinity: the exact result in integers, cut once.

use crate::float::Round;

/// A finite number: a sign, and `mantissa` × 2^`exponent`. The lowest bit may stand for all that are below it and are not zero.
#[derive(Clone, Copy, Debug)]
struct Exact {
    negative: bool,
    mantissa: u128,
    exponent: i32,
}

/// Exponent of the lowest bit of a subnormal number.
const LOWEST: i32 = -1074;

impl Exact {
    fn of(x: f64) -> Exact {
        let (field, bits) = ((x.to_bits() >> 52 & 0x7ff) as i32, x.to_bits() & ((1 << 52) - 1));
        let (mantissa, exponent) =
            if field == 0 { (bits, LOWEST) } else { (bits | 1 << 52, LOWEST + field - 1) };
        Exact { negative: x.is_sign_negative(), mantissa: mantissa.into(), exponent }
    }

    /// The product of two numbers of 53 bits.
    fn times(self, other: Exact) -> Exact {
        Exact {
            negative: self.negative != other.negative,
            mantissa: self.mantissa * other.mantissa,
            exponent: self.exponent + other.exponent,
        }
    }

    /// The same number with its highest bit at 125: room for a carry, and for bits that a shift moves out.
    fn raised(self) -> Exact {
        let by = self.mantissa.leading_zeros() as i32 - 2;
        if self.mantissa == 0 {
            return self;
        }
        Exact { mantissa: self.mantissa << by, exponent: self.exponent - by, ..self }
    }

    /// The sum of two numbers of at most 106 bits.
    fn plus(self, other: Exact, mode: Round) -> Exact {
        let (a, b) = (self.raised(), other.raised());
        let (high, low) =
            if b.mantissa == 0 || a.mantissa != 0 && a.exponent >= b.exponent { (a, b) } else { (b, a) };
        let shifted = shift_right(low.mantissa, high.exponent.saturating_sub(low.exponent) as u32);
        let sum = match high.negative == low.negative {
            true => Exact { mantissa: high.mantissa + shifted, ..high },
            false if high.mantissa >= shifted => Exact { mantissa: high.mantissa - shifted, ..high },
            false => Exact { mantissa: shifted - high.mantissa, negative: low.negative, ..high },
        };
        // An exact zero of numbers unlike in sign.
        let negative =
            if sum.mantissa == 0 && a.negative != b.negative { mode == Round::Down } else { sum.negative };
        Exact { negative, ..sum }
    }

    fn round(self, mode: Round) -> f64 {
        let Exact { negative, mantissa, exponent } = self;
        let sign = if negative { 1 << 63 } else { 0 };
        if mantissa == 0 {
            return f64::from_bits(sign);
        }
        let highest = 127 - mantissa.leading_zeros() as i32;
        let lowest = (highest + exponent - 52).max(LOWEST);
        let cut = lowest - exponent;
        // Two bits below the last one that is kept: half of it, and all the rest.
        let kept = if cut > 2 { shift_right(mantissa, cut as u32 - 2) } else { mantissa << (2 - cut) };
        let (whole, rest) = ((kept >> 2) as u64, kept & 3);
        let up = match mode {
            Round::Nearest => rest == 3 || rest == 2 && whole & 1 == 1,
            Round::Zero => false,
            Round::Up => rest != 0 && !negative,
            Round::Down => rest != 0 && negative,
        };
        // The hidden bit of a normal number adds one to its exponent, as a carry does.
        let bits = (((lowest - LOWEST) as u64) << 52) + whole + u64::from(up);
        let infinity = f64::INFINITY.to_bits();
        let stays_finite = match mode {
            Round::Nearest => false,
            Round::Zero => true,
            Round::Up => negative,
            Round::Down => !negative,
        };
        f64::from_bits(sign | if bits >= infinity { infinity - u64::from(stays_finite) } else { bits })
    }
}

/// A shift that keeps in the lowest bit whether any bit went out.
fn shift_right(bits: u128, by: u32) -> u128 {
    let kept = bits.checked_shr(by).unwrap_or(0);
    kept | u128::from(kept.checked_shl(by).unwrap_or(0) != bits)
}

/// The sum.
pub(crate) fn add(a: f64, b: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() {
        return a + b;
    }
    Exact::of(a).plus(Exact::of(b), mode).round(mode)
}

/// The product.
pub(crate) fn mul(a: f64, b: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() {
        return a * b;
    }
    Exact::of(a).times(Exact::of(b)).round(mode)
}

/// The product plus c.
pub(crate) fn fma(a: f64, b: f64, c: f64, mode: Round) -> f64 {
    if mode == Round::Nearest || !a.is_finite() || !b.is_finite() || !c.is_finite() {
        return a.mul_add(b, c);
    }
    Exact::of(a).times(Exact::of(b)).plus(Exact::of(c), mode).round(mode)
}

/// The quotient.
pub(crate) fn div(a: f64, b: f64, mode: Round) -> f64 {
    if b == 0.0 || !b.is_finite() || !a.is_finite() {
        return a / b;
    }
    let (a, b) = (Exact::of(a).raised(), Exact::of(b));
    let quotient = a.mantissa / b.mantissa;
    let mantissa = quotient | u128::from(quotient * b.mantissa != a.mantissa);
    Exact { negative: a.negative != b.negative, mantissa, exponent: a.exponent - b.exponent }.round(mode)
}

/// The square root.
pub(crate) fn sqrt(a: f64, mode: Round) -> f64 {
    if a.is_nan() || a <= 0.0 || a.is_infinite() {
        return a.sqrt();
    }
    let mut of = Exact::of(a).raised();
    if of.exponent % 2 != 0 {
        of = Exact { mantissa: of.mantissa << 1, exponent: of.exponent - 1, ..of };
    }
    let root = of.mantissa.isqrt();
    let mantissa = root | u128::from(root * root != of.mantissa);
    Exact { mantissa, exponent: of.exponent / 2, ..of }.round(mode)
}

/// Rounded to odd, so that a rounding to f32 that follows is right.
fn odd(near: f64, error: f64) -> f64 {
    let bits = near.to_bits();
    if !near.is_finite() || near == 0.0 || error == 0.0 || error.is_nan() || bits & 1 == 1 {
        return near;
    }
    f64::from_bits(if (error > 0.0) == (near > 0.0) { bits + 1 } else { bits - 1 })
}

/// The quotient of two f32, to odd.
pub(crate) fn div_odd(a: f64, b: f64) -> f64 {
    let near = a / b;
    if b == 0.0 || !b.is_finite() || !a.is_finite() {
        return near;
    }
    let rest = (-near).mul_add(b, a);
    odd(near, if b < 0.0 { -rest } else { rest })
}

/// The square root of an f32, to odd.
pub(crate) fn sqrt_odd(a: f64) -> f64 {
    let near = a.sqrt();
    odd(near, (-near).mul_add(near, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_results_bracket_the_nearest() {
        let (a, b) = (1.0, 2f64.powi(-60));
        assert_eq!(add(a, b, Round::Up), 1.0 + f64::EPSILON);
        assert_eq!((add(a, b, Round::Down), add(a, b, Round::Zero)), (1.0, 1.0));
        assert_eq!(add(a, -b, Round::Zero), 1.0 - f64::EPSILON / 2.0);
        assert_eq!(add(-a, b, Round::Zero), -1.0 + f64::EPSILON / 2.0);
        let third: f64 = 1.0 / 3.0;
        assert_eq!((div(1.0, 3.0, Round::Down), div(1.0, 3.0, Round::Up)), (third, third.next_up()));
        assert_eq!(div(-1.0, 3.0, Round::Down), -third.next_up());
        assert!(sqrt(2.0, Round::Up) > sqrt(2.0, Round::Down));
        assert_eq!(sqrt(4.0, Round::Up), 2.0);
        assert_eq!(mul(f64::MAX, 2.0, Round::Zero), f64::MAX);
        let x = 1.0 + f64::EPSILON;
        assert!(fma(x, x, 0.0, Round::Up) > fma(x, x, 0.0, Round::Down));
        assert_eq!(fma(3.0, 5.0, 7.0, Round::Up), 22.0);
    }

    #[test]
    fn to_nearest_they_are_what_the_host_computes() {
        let mut state = 1u64;
        let mut any = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let spread = [1 << 4, 1 << 7, 1 << 11][(state >> 20) as usize % 3];
            let exponent = [1023, 20, 2030][(state >> 24) as usize % 3] + (state >> 30) % spread;
            let bits = (state >> 12)
                & ((1 << 52) - 1)
                & if state >> 29 & 1 == 1 { u64::MAX << 40 } else { u64::MAX };
            f64::from_bits(state & 1 << 63 | (exponent % 2047) << 52 | bits)
        };
        for _ in 0..20_000 {
            let (a, b, c) = (any(), any(), any());
            let near = Round::Nearest;
            let exact = Exact::of(a).times(Exact::of(b)).plus(Exact::of(c), near).round(near);
            let got = [add(a, b, near), mul(a, b, near), exact, div(a, b, near), sqrt(a.abs(), near)];
            let want = [a + b, a * b, a.mul_add(b, c), a / b, a.abs().sqrt()];
            assert_eq!(got.map(f64::to_bits), want.map(f64::to_bits), "{a:e} {b:e} {c:e}");
            // Nearest is one of the two between which the exact result lies.
            let sides = [Round::Down, Round::Up].map(|mode| fma(a, b, c, mode));
            assert!(
                sides[0] <= want[2] && want[2] <= sides[1] && sides[1] <= sides[0].next_up(),
                "{a:e} {b:e} {c:e}"
            );
        }
    }

    #[test]
    fn subnormal_results_and_zeros_go_where_the_mode_says() {
        let tiny = f64::from_bits(3);
        assert_eq!(mul(tiny, 0.5, Round::Zero), f64::from_bits(1));
        assert_eq!(mul(tiny, 0.5, Round::Up), f64::from_bits(2));
        assert_eq!(mul(-tiny, 1e-300, Round::Down), -f64::from_bits(1));
        assert_eq!(div(tiny, 2.0, Round::Down), f64::from_bits(1));
        // The exact sum is a little below 1, by less than the product's low part shows.
        assert_eq!(fma(f64::from_bits(1), -0.5, 1.0, Round::Zero), 1.0 - f64::EPSILON / 2.0);
        assert_eq!(fma(f64::MAX, 2.0, -f64::MAX, Round::Zero), f64::MAX);
        for zero in
            [add(0.0, -0.0, Round::Down), add(1.0, -1.0, Round::Down), fma(0.0, 1.0, -0.0, Round::Down)]
        {
            assert_eq!(zero.to_bits(), (-0.0f64).to_bits());
        }
        assert_eq!(add(-0.0, 0.0, Round::Up).to_bits(), 0);
    }
}
