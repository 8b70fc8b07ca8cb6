//! Elements as bit patterns of f16 and bf16: from float64 and back.

use half::{bf16, f16};
use kernels_gpu::row::Dtype;

/// One element as float64, from its bits.
#[inline]
pub fn widen(dtype: Dtype, bits: u16) -> f64 {
    match dtype {
        Dtype::F16 => widen_f16(bits),
        Dtype::Bf16 => bf16::from_bits(bits).to_f64(),
    }
}

/// The bits of the element nearest to `value`, ties to even; past the largest finite value ±∞.
#[inline]
pub fn narrow(dtype: Dtype, value: f64) -> u16 {
    match dtype {
        Dtype::F16 => f16::from_f64(value).to_bits(),
        Dtype::Bf16 => bf16::from_f64(value).to_bits(),
    }
}

/// As `f16::to_f64`, which asks at each element what the processor can and calls what stays a call.
#[inline]
fn widen_f16(bits: u16) -> f64 {
    /// The exponents' biases apart, and what an infinity and a NaN have.
    const REBIAS: u64 = (1023 - 15) << 52;
    const NOT_FINITE: u64 = 0x7ff << 52;
    const QUIET: u64 = 1 << 51;
    let (sign, magnitude) = (u64::from(bits & 0x8000) << 48, u64::from(bits & 0x7fff));
    let widened = match magnitude {
        // Multiples of the least subnormal number.
        0..0x400 => (magnitude as f64 * (1.0 / 16_777_216.0)).to_bits(),
        0x400..0x7c00 => (magnitude << 42) + REBIAS,
        0x7c00 => NOT_FINITE,
        _ => NOT_FINITE | QUIET | (magnitude & 0x3ff) << 42,
    };
    f64::from_bits(sign | widened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_is_widened_to_the_bits_of_the_crate_that_defines_it() {
        for bits in 0..=u16::MAX {
            let expected = f16::from_bits(bits).to_f64().to_bits();
            assert_eq!(widen(Dtype::F16, bits).to_bits(), expected, "{bits:#06x}");
        }
    }
}
