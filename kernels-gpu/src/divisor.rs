//! Division by a number that the host knows and the compiler does not: a multiplication and a shift.
//!
//! Source: Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994). With
//! l = ⌈log2 d⌉ and m = ⌈2^(31+l) / d⌉, which fits 32 bits, ⌊n / d⌋ = ⌊n · m / 2^(31+l)⌋ for all n < 2^31.

/// A divisor, prepared.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    /// The divisor itself, at least 1.
    pub value: u32,
    multiplier: u32,
    shift: u32,
}

impl Divisor {
    /// Prepares a divisor.
    ///
    /// # Panics
    /// If it is 0 or over 2^31.
    pub const fn new(value: u32) -> Self {
        assert!(value != 0 && value <= 1 << 31);
        let shift = 31 + value.next_power_of_two().trailing_zeros();
        Self { value, multiplier: (1u64 << shift).div_ceil(value as u64) as u32, shift }
    }

    /// ⌊n / divisor⌋ for n < 2^31.
    #[inline(always)]
    pub const fn quotient(self, n: u32) -> u32 {
        ((n as u64 * self.multiplier as u64) >> self.shift) as u32
    }

    /// Quotient and remainder for n < 2^31.
    #[inline(always)]
    pub const fn divide(self, n: u32) -> (u32, u32) {
        let quotient = self.quotient(n);
        (quotient, n - quotient * self.value)
    }

    /// As it lies in memory.
    pub(crate) const fn words(self) -> [u32; 3] {
        [self.value, self.multiplier, self.shift]
    }
}

impl Default for Divisor {
    fn default() -> Self {
        Self::new(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_divides_as_division_does() {
        let edges =
            |d: u32| [0, 1, d - 1, d, d + 1, 2 * d - 1, 2 * d, (1 << 31) - 1, ((1 << 31) - 1) / d * d];
        let divisors = (1..2000).chain([4095, 4096, 4097, 65_537, 1 << 20, (1 << 30) - 1, 1 << 30]);
        for d in divisors {
            let divisor = Divisor::new(d);
            for n in edges(d).into_iter().chain((0..1 << 31).step_by(7_654_321)) {
                if n < 1 << 31 {
                    assert_eq!(divisor.divide(n), (n / d, n % d), "{n} / {d}");
                }
            }
        }
    }
}
