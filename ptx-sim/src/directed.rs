//! f64 arithmetic rounded toward zero or an infinity: the result to nearest, and on which side of it the exact one lies.

use crate::float::Round;

/// `near`, or its neighbour, where the exact value is `near` plus something of the sign of `error`.
fn toward(near: f64, error: f64, mode: Round) -> f64 {
    if !near.is_finite() || error == 0.0 || error.is_nan() {
        return near;
    }
    match mode {
        Round::Nearest => near,
        Round::Up if error > 0.0 => near.next_up(),
        Round::Down if error < 0.0 => near.next_down(),
        Round::Zero if (error < 0.0) == (near > 0.0) && near != 0.0 => {
            if near > 0.0 {
                near.next_down()
            } else {
                near.next_up()
            }
        }
        _ => near,
    }
}

/// An infinity that rounding made of finite operands stays only where the mode goes that way.
fn finite_overflow(near: f64, finite: bool, mode: Round) -> f64 {
    if !near.is_infinite() || !finite {
        return near;
    }
    match (mode, near > 0.0) {
        (Round::Zero, _) | (Round::Down, true) | (Round::Up, false) => f64::MAX.copysign(near),
        _ => near,
    }
}

/// The sum.
pub(crate) fn add(a: f64, b: f64, mode: Round) -> f64 {
    let sum = a + b;
    if sum == 0.0 && a != 0.0 {
        // An exact zero of numbers unlike in sign.
        return if mode == Round::Down { -0.0 } else { 0.0 };
    }
    let virtual_b = sum - a;
    let error = (a - (sum - virtual_b)) + (b - virtual_b);
    finite_overflow(toward(sum, error, mode), a.is_finite() && b.is_finite(), mode)
}

/// The product.
pub(crate) fn mul(a: f64, b: f64, mode: Round) -> f64 {
    let product = a * b;
    let finite = a.is_finite() && b.is_finite();
    if product == 0.0 && a != 0.0 && b != 0.0 {
        let positive = (a > 0.0) == (b > 0.0);
        return match mode {
            Round::Up if positive => f64::from_bits(1),
            Round::Down if !positive => -f64::from_bits(1),
            _ => product,
        };
    }
    finite_overflow(toward(product, a.mul_add(b, -product), mode), finite, mode)
}

/// The product plus c.
pub(crate) fn fma(a: f64, b: f64, c: f64, mode: Round) -> f64 {
    let near = a.mul_add(b, c);
    if !near.is_finite() {
        return finite_overflow(near, a.is_finite() && b.is_finite() && c.is_finite(), mode);
    }
    // a × b = high + low, and high + c = sum + rest, both exact.
    let high = a * b;
    let low = a.mul_add(b, -high);
    let sum = high + c;
    let virtual_c = sum - high;
    let rest = (high - (sum - virtual_c)) + (c - virtual_c);
    let error = (sum - near) + (rest + low);
    if near == 0.0 && error == 0.0 && (high != 0.0 || c != 0.0) && mode == Round::Down {
        return -0.0;
    }
    toward(near, error, mode)
}

/// The quotient.
pub(crate) fn div(a: f64, b: f64, mode: Round) -> f64 {
    let near = a / b;
    if b == 0.0 || !b.is_finite() || !a.is_finite() {
        return near;
    }
    let rest = (-near).mul_add(b, a);
    finite_overflow(toward(near, if b < 0.0 { -rest } else { rest }, mode), true, mode)
}

/// The square root.
pub(crate) fn sqrt(a: f64, mode: Round) -> f64 {
    let near = a.sqrt();
    if near == 0.0 || !near.is_finite() { near } else { toward(near, (-near).mul_add(near, a), mode) }
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
}
