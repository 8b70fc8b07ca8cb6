//! tanh near 0 as a polynomial.

/// Up to here, in magnitude.
pub const NEAR: f32 = 0.4;
/// What x, x³ and x⁵ are multiplied with: Chebyshev's interpolation of tanh(x) / x in x², at most 7·10⁻⁶ off.
const ODD_POWERS: [f32; 3] = [0.999_993_7, -0.332_624_05, 0.121_267_03];

/// tanh(x) / x as a polynomial of x² − `square`.
#[inline(always)]
pub const fn around(square: f32) -> [f32; 3] {
    let [constant, first, second] = ODD_POWERS;
    [constant + (first + second * square) * square, first + 2.0 * second * square, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_polynomial_is_tanh() {
        for square in [0.0, 0.01, NEAR * NEAR] {
            for step in -1000..=1000 {
                let x = step as f32 / 1000.0 * NEAR;
                let powers = around(square);
                let sum = powers.iter().rev().fold(0.0, |sum, power| sum * (x * x - square) + power) * x;
                let exact = f64::from(x).tanh();
                assert!(
                    (f64::from(sum) - exact).abs() <= 7e-6 * exact.abs(),
                    "tanh {x} is {exact}, not {sum}"
                );
            }
        }
    }
}
