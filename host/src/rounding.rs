//! Elements as bit patterns of f16 and bf16: from float64 and back.

use half::bf16;
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
        Dtype::F16 => narrow_f16(value as f32),
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

/// As `f16::from_f32`, which asks for each number what the processor can do, and is not inlined.
#[inline]
fn narrow_f16(value: f32) -> u16 {
    /// Bits of the least normal number of f16, of half a step beyond its largest, and of infinity.
    const NORMAL: u32 = (127 - 14) << 23;
    const TOO_LARGE: u32 = 0x477f_f000;
    const INFINITY: u32 = 0xff << 23;
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let narrowed = match magnitude {
        // A step of float32 at 0.5 is the least subnormal number of f16, so the addition rounds to a multiple of it.
        0..NORMAL => (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits(),
        // Half a step more rounds up, less than that where the last bit that stays is even.
        NORMAL..TOO_LARGE => (magnitude - NORMAL + (1 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13,
        TOO_LARGE..=INFINITY => 0x7c00,
        _ => 0x7e00 | (magnitude >> 13 & 0x1ff),
    };
    sign | narrowed as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn every_f16_is_widened_to_the_bits_of_the_crate_that_defines_it() {
        for bits in 0..=u16::MAX {
            let expected = f16::from_bits(bits).to_f64().to_bits();
            assert_eq!(widen(Dtype::F16, bits).to_bits(), expected, "{bits:#06x}");
        }
    }

    #[test]
    fn every_number_is_narrowed_to_the_bits_of_the_crate_that_defines_f16() {
        let check = |bits: u32| {
            let value = f32::from_bits(bits);
            let expected = f16::from_f32(value).to_bits();
            assert_eq!(narrow(Dtype::F16, value.into()), expected, "{bits:#010x}");
        };
        // Each number of f16, the middle between it and the next, and what lies beside these.
        for bits in 0..=u16::MAX {
            let at = f16::from_bits(bits).to_f32().to_bits();
            [at, at + 0xfff, at + 0x1000, at + 0x1001].into_iter().for_each(check);
            check(at.wrapping_sub(1));
        }
        (0..=u32::MAX).step_by(4093).for_each(check);
    }
}
