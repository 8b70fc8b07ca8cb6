//! The formats of a byte and less: e4m3, which has no infinity, e5m2, and e2m1, e2m3 and e3m2, which have numbers only (PTX ISA
//! §5.2.3).

use crate::float::{f16_to_f32, f32_to_f16};

/// A format of a byte at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    /// Bits with the sign.
    bits: u32,
    mantissa: i32,
    /// Exponent of the smallest normal number.
    emin: i32,
    max: f64,
    has_infinity: bool,
}

impl Small {
    pub(crate) const E4M3: Small = Small { bits: 8, mantissa: 3, emin: -6, max: 448.0, has_infinity: false };
    pub(crate) const E5M2: Small =
        Small { bits: 8, mantissa: 2, emin: -14, max: 57344.0, has_infinity: true };
    pub(crate) const E2M1: Small = Small { bits: 4, mantissa: 1, emin: 0, max: 6.0, has_infinity: false };
    pub(crate) const E2M3: Small = Small { bits: 6, mantissa: 3, emin: 0, max: 7.5, has_infinity: false };
    pub(crate) const E3M2: Small = Small { bits: 6, mantissa: 2, emin: -2, max: 28.0, has_infinity: false };

    /// To nearest even, clamped to the largest number. NaN is 0x7f, or the largest number of a format that has none.
    pub(crate) fn encode(self, x: f64) -> u8 {
        if x.is_nan() {
            return (1 << (self.bits - 1)) - 1;
        }
        let sign = u8::from(x.is_sign_negative()) << (self.bits - 1);
        let magnitude = x.abs().min(self.max);
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(self.emin);
        let steps = (magnitude / 2f64.powi(exponent - self.mantissa)).round_ties_even();
        // A carry out of the fraction goes on into the exponent by itself.
        let one = 1i32 << self.mantissa;
        let bits = if magnitude == 0.0 { 0 } else { (exponent - self.emin) * one + steps as i32 };
        sign | bits as u8
    }

    /// The number, exact.
    pub(crate) fn decode(self, bits: u8) -> f32 {
        let sign_bit = 1 << (self.bits - 1);
        let sign = if bits & sign_bit == 0 { 1.0 } else { -1.0 };
        let (magnitude, one) = (i32::from(bits & (sign_bit - 1)), 1i32 << self.mantissa);
        let (exponent, fraction) = (magnitude >> self.mantissa, magnitude & (one - 1));
        let top = (1 << (7 - self.mantissa)) - 1;
        if self.bits == 8 && exponent == top && (self.has_infinity || fraction == one - 1) {
            let infinite = self.has_infinity && fraction == 0;
            return if infinite { sign * f32::INFINITY } else { f32::from_bits(0x7fff_ffff) };
        }
        let (whole, scale) =
            if exponent == 0 { (fraction, self.emin) } else { (fraction + one, self.emin + exponent - 1) };
        sign * (whole as f32) * 2f32.powi(scale - self.mantissa)
    }
}

fn at_least_zero(x: f64, relu: bool) -> f64 {
    if relu && x <= 0.0 { 0.0 } else { x }
}

/// `a` in the high byte, `b` in the low byte.
pub(crate) fn pack(format: Small, a: f32, b: f32, relu: bool) -> u16 {
    let byte = |x: f32| u16::from(format.encode(at_least_zero(x.into(), relu)));
    byte(a) << 8 | byte(b)
}

/// Both halves of an f16x2.
pub(crate) fn pack_halves(format: Small, pair: u32, relu: bool) -> u16 {
    pack(format, f16_to_f32((pair >> 16) as u16), f16_to_f32(pair as u16), relu)
}

/// Both bytes as an f16x2.
pub(crate) fn unpack_halves(format: Small, pair: u16, relu: bool) -> u32 {
    let half = |bits: u8| {
        let x = format.decode(bits);
        u32::from(f32_to_f16(if relu && x <= 0.0 { 0.0 } else { x }))
    };
    half((pair >> 8) as u8) << 16 | half(pair as u8)
}

/// Two numbers of four bits in a byte.
pub(crate) fn pack_fours(a: f32, b: f32, relu: bool) -> u8 {
    let pair = pack(Small::E2M1, a, b, relu);
    (pair >> 4) as u8 | pair as u8
}

/// Both numbers of a byte as an f16x2.
pub(crate) fn unpack_fours(pair: u8, relu: bool) -> u32 {
    unpack_halves(Small::E2M1, u16::from(pair >> 4) << 8 | u16::from(pair & 15), relu)
}

/// The exponents of two magnitudes as ue8m0, which is 2^(e − 127), `up` or down to a power of two; what is too small is 2⁻¹²⁷, NaN
/// is 0xff. Infinity is 0xff too, or the largest power if `clamp`.
pub(crate) fn scales(a: f32, b: f32, up: bool, clamp: bool) -> u16 {
    let one = |x: f32| {
        let bits = x.to_bits() & 0x7fff_ffff;
        let (exponent, fraction) = (bits >> 23, bits & 0x7f_ffff);
        match exponent {
            _ if x.is_nan() => 0xff,
            255 if clamp => 0xfe,
            // Subnormal f32 numbers above 2⁻¹²⁷ have that exponent or the next.
            0 => u16::from(up && fraction > 1 << 22),
            _ => (exponent as u16 + u16::from(up && fraction != 0)).min(if clamp { 0xfe } else { 0xff }),
        }
    };
    one(a) << 8 | one(b)
}

/// Both bf16 numbers of a pair as scales.
pub(crate) fn scales_of_pair(pair: u32, up: bool, clamp: bool) -> u16 {
    scales(f32::from_bits(pair & 0xffff_0000), f32::from_bits(pair << 16), up, clamp)
}

/// Both scales as a bf16x2, exact.
pub(crate) fn unpack_scales(pair: u16) -> u32 {
    let half = |e: u16| match e {
        0xff => 0x7fff,
        // 2⁻¹²⁷ is subnormal.
        0 => 0x40,
        _ => u32::from(e) << 7,
    };
    half(pair >> 8) << 16 | half(pair & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_and_the_limits_are_right() {
        for format in [Small::E4M3, Small::E5M2, Small::E2M1, Small::E2M3, Small::E3M2] {
            for bits in 0..=u8::MAX >> (8 - format.bits) {
                let x = format.decode(bits);
                if x.is_finite() {
                    assert_eq!(format.encode(x.into()), bits, "{bits:#x}");
                }
            }
        }
        assert_eq!((Small::E4M3.decode(0x7e), Small::E4M3.decode(0x01)), (448.0, 2f32.powi(-9)));
        assert_eq!((Small::E5M2.decode(0x7b), Small::E5M2.decode(0x7c)), (57344.0, f32::INFINITY));
        assert_eq!((Small::E4M3.encode(1e9), Small::E5M2.encode(-1e9)), (0x7e, 0xfb));
        assert_eq!(Small::E4M3.encode(17.0), Small::E4M3.encode(16.0));
        assert_eq!(Small::E4M3.encode(19.0), Small::E4M3.encode(20.0));
        assert!(Small::E4M3.decode(0x7f).is_nan());
        let largest = [Small::E2M1.decode(7), Small::E2M3.decode(0x1f), Small::E3M2.decode(0x1f)];
        assert_eq!(largest, [6.0, 7.5, 28.0]);
        assert_eq!(
            (Small::E2M1.encode(f64::NAN), Small::E2M1.encode(-0.3), Small::E2M1.encode(2.5)),
            (7, 9, 4)
        );
        assert_eq!((pack_fours(-6.0, 0.5, false), pack_fours(-6.0, 0.5, true)), (0xf1, 0x01));
        assert_eq!(unpack_fours(0xf1, false), 0xc600_3800);
    }

    #[test]
    fn scales_are_powers_of_two_up_or_down() {
        assert_eq!((scales(8.0, 9.0, true, true), scales(-8.0, 9.0, false, true)), (0x8283, 0x8282));
        assert_eq!(scales(f32::NAN, f32::INFINITY, true, true), 0xfffe);
        assert_eq!(
            (scales(f32::INFINITY, f32::MAX, true, false), scales(f32::MAX, 0.0, false, false)),
            (0xffff, 0xfe00)
        );
        let tiny = f32::from_bits(0x0040_0000);
        assert_eq!(
            (scales(tiny, f32::from_bits(0x0040_0001), true, true), unpack_scales(0x0001)),
            (0x0001, 0x0040_0080)
        );
        assert_eq!(f32::from_bits(unpack_scales(0) << 16), tiny);
        assert_eq!((unpack_scales(0xff82), scales_of_pair(0x4110_4100, true, true)), (0x7fff_4100, 0x8382));
    }
}
