//! Video instructions (PTX ISA §9.7.18): arithmetic on words, on their halves and on their bytes, which operands select.

use crate::op::Cmp;
use crate::regs::Slots;

/// What is computed of two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VideoOp {
    Add,
    Sub,
    Average,
    Difference,
    Min,
    Max,
    Set(Cmp),
    /// Left, else right; the distance clamped, else wrapped.
    Shift {
        left: bool,
        clamps: bool,
    },
}

/// What is done with the result and the third operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    Nothing,
    Add,
    Min,
    Max,
}

/// A part of a word: its lowest bit and its bits.
pub(crate) type Part = (u32, u32);

/// A whole word.
pub(crate) const WHOLE: Part = (0, 32);

/// A video instruction.
#[derive(Clone, Debug)]
pub(crate) struct Video {
    pub(crate) op: VideoOp,
    /// Whether the result, a and b have signs.
    pub(crate) signed: [bool; 3],
    pub(crate) saturates: bool,
    pub(crate) second: Second,
    /// For each part of the result what it is made of: parts of the 64 bits of b and a, a lowest. Only those that are written.
    pub(crate) parts: Vec<(Part, Part, Part)>,
    pub(crate) slots: Slots,
}

/// `vmad`.
#[derive(Clone, Debug)]
pub(crate) struct VideoMad {
    pub(crate) signed: [bool; 2],
    /// Parts of a and of b.
    pub(crate) parts: [Part; 2],
    pub(crate) negates_product: bool,
    pub(crate) negates_c: bool,
    pub(crate) plus_one: bool,
    pub(crate) saturates: bool,
    /// Bits that the sum is shifted right by.
    pub(crate) shift: u32,
    pub(crate) slots: Slots,
}

fn part(word: u64, (at, bits): Part, signed: bool) -> i64 {
    let shifted = word >> at << (64 - bits);
    if signed { shifted as i64 >> (64 - bits) } else { (shifted >> (64 - bits)) as i64 }
}

fn clamped(value: i128, bits: u32, signed: bool) -> i128 {
    let (least, most) =
        if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    value.clamp(least, most)
}

impl Video {
    fn compute(&self, x: i64, y: i64) -> i128 {
        let (x, y) = (i128::from(x), i128::from(y));
        match self.op {
            VideoOp::Add => x + y,
            VideoOp::Sub => x - y,
            // Rounded away from zero.
            VideoOp::Average => (x + y + i128::from(x + y >= 0)) >> 1,
            VideoOp::Difference => (x - y).abs(),
            VideoOp::Min => x.min(y),
            VideoOp::Max => x.max(y),
            VideoOp::Set(cmp) => i128::from(match cmp {
                Cmp::Eq => x == y,
                Cmp::Ne => x != y,
                Cmp::Lt => x < y,
                Cmp::Le => x <= y,
                Cmp::Gt => x > y,
                _ => x >= y,
            }),
            VideoOp::Shift { left, clamps } => {
                let by = if clamps { (y as u32).min(32) } else { y as u32 & 31 };
                if left { x << by } else { x >> by }
            }
        }
    }

    /// The undefined bits of the result, of those of a, b and c: parts are computed apart.
    pub(crate) fn dark(&self, [a, b, c]: [u32; 3]) -> u32 {
        let both = u64::from(b) << 32 | u64::from(a);
        let is_dark = |at: Part| part(both, at, false) != 0;
        let parts = self.parts.iter().map(|&(to, from_a, from_b)| (to, is_dark(from_a) || is_dark(from_b)));
        if self.second != Second::Nothing {
            let any = c != 0 || parts.into_iter().any(|(_, dark)| dark);
            return if any { u32::MAX } else { 0 };
        }
        parts.fold(c, |word, ((at, bits), dark)| {
            let mask = (u32::MAX >> (32 - bits)) << at;
            word & !mask | if dark { mask } else { 0 }
        })
    }

    /// The result of one lane.
    pub(crate) fn lane(&self, [a, b, c]: [u32; 3]) -> u32 {
        let both = u64::from(b) << 32 | u64::from(a);
        let values = self.parts.iter().map(|&(to, from_a, from_b)| {
            let (x, y) = (part(both, from_a, self.signed[1]), part(both, from_b, self.signed[2]));
            let value = self.compute(x, y);
            (to, if self.saturates { clamped(value, to.1, self.signed[0]) } else { value } as u32)
        });
        match self.second {
            Second::Nothing => values.fold(c, |word, ((at, bits), value)| {
                let mask = (u32::MAX >> (32 - bits)) << at;
                word & !mask | value << at & mask
            }),
            Second::Add => values.fold(c, |sum, (_, value)| sum.wrapping_add(value)),
            second => values.fold(c, |c, (_, value)| {
                let value_is_less = if self.signed[0] { (value as i32) < c as i32 } else { value < c };
                if value_is_less == (second == Second::Min) { value } else { c }
            }),
        }
    }
}

impl VideoMad {
    /// The result of one lane.
    pub(crate) fn lane(&self, [a, b, c]: [u32; 3]) -> u32 {
        let is_signed = self.signed[0] || self.signed[1] || self.negates_product || self.negates_c;
        let product = i128::from(part(a.into(), self.parts[0], self.signed[0]))
            * i128::from(part(b.into(), self.parts[1], self.signed[1]));
        let c = if is_signed { i128::from(c as i32) } else { i128::from(c) };
        let sum = if self.negates_product { -product } else { product }
            + if self.negates_c { -c } else { c }
            + i128::from(self.plus_one);
        let result = sum >> self.shift;
        (if self.saturates { clamped(result, 32, is_signed) } else { result }) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(op: VideoOp, second: Second, saturates: bool, signed: bool) -> Video {
        let parts = (0..4).map(|i| ((8 * i, 8), (8 * i, 8), (32 + 8 * i, 8))).collect();
        Video { op, signed: [signed; 3], saturates, second, parts, slots: [0; 5] }
    }

    #[test]
    fn parts_are_computed_apart() {
        let sum =
            |second| bytes(VideoOp::Difference, second, false, false).lane([0x0102_0304, 0x0403_0201, 100]);
        assert_eq!((sum(Second::Nothing), sum(Second::Add)), (0x0301_0103, 108));
        assert_eq!(bytes(VideoOp::Add, Second::Nothing, true, true).lane([0x7f, 1, 0]), 0x7f);
        let less = bytes(VideoOp::Set(Cmp::Lt), Second::Nothing, false, true);
        assert_eq!(less.lane([0x00ff_0001, 0, 0]), 0x0001_0000);
    }

    #[test]
    fn undefined_parts_spoil_no_others() {
        let sum = bytes(VideoOp::Add, Second::Nothing, false, false);
        assert_eq!(sum.dark([0x0001_0000, 0x8000_0000, 0xff]), 0xffff_0000);
        assert_eq!(bytes(VideoOp::Add, Second::Add, false, false).dark([0, 0, 1]), u32::MAX);
    }

    #[test]
    fn products_are_scaled_and_clamped() {
        let mad = VideoMad {
            signed: [true, false],
            parts: [(16, 16), WHOLE],
            negates_product: false,
            negates_c: false,
            plus_one: true,
            saturates: false,
            shift: 7,
            slots: [0; 5],
        };
        // −2 × 640 + 1279 + 1, by 128.
        assert_eq!(mad.lane([0xfffe_0000, 640, 1279]), 0);
        assert_eq!(mad.lane([0xfffe_0000, 640, 0]) as i32, -10);
        let mad = VideoMad { saturates: true, shift: 0, ..mad };
        assert_eq!(mad.lane([0x8000_0000, u32::MAX, 0]), 0x8000_0000);
    }
}
