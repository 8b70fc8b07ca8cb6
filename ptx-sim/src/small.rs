//! The formats of one byte: e4m3, which has no infinity, and e5m2 (PTX ISA §5.2.3).

use crate::float::{f16_to_f32, f32_to_f16};

/// A format of one byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Small {
    mantissa: i32,
    /// Exponent of the smallest normal number.
    emin: i32,
    max: f64,
    has_infinity: bool,
}

impl Small {
    pub(crate) const E4M3: Small = Small { mantissa: 3, emin: -6, max: 448.0, has_infinity: false };
    pub(crate) const E5M2: Small = Small { mantissa: 2, emin: -14, max: 57344.0, has_infinity: true };

    /// To nearest even, clamped to the largest number; NaN is 0x7f.
    pub(crate) fn encode(self, x: f64) -> u8 {
        if x.is_nan() {
            return 0x7f;
        }
        let sign = u8::from(x.is_sign_negative()) << 7;
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
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let (magnitude, one) = (i32::from(bits & 0x7f), 1i32 << self.mantissa);
        let (exponent, fraction) = (magnitude >> self.mantissa, magnitude & (one - 1));
        let top = (1 << (7 - self.mantissa)) - 1;
        if exponent == top && (self.has_infinity || fraction == one - 1) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_and_the_limits_are_right() {
        for format in [Small::E4M3, Small::E5M2] {
            for bits in 0..=u8::MAX {
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
    }
}
