//! The undefined bits of integer arithmetic: of an operand with some undefined bits the least and the greatest value are known, and low bits
//! of a sum or a product depend on no higher ones.

use crate::op::Op;
use crate::regs::Regs;
use crate::table::Shape;

use super::shade_bits::lane_row;

/// What an operand may be: its defined bits, with zeros for the others, and which are undefined.
#[derive(Clone, Copy, Debug)]
struct Range {
    value: u64,
    dark: u64,
}

impl Range {
    fn least(self) -> u64 {
        self.value
    }

    fn most(self) -> u64 {
        self.value | self.dark
    }

    /// Its low bits.
    fn low(self, bits: u32) -> Range {
        let mask = u64::MAX >> (64 - bits);
        Range { value: self.value & mask, dark: self.dark & mask }
    }

    /// A number of so many bits with its sign in front.
    fn extended(self, bits: u32) -> Range {
        let extend = |x: u64| ((x << (64 - bits)) as i64 >> (64 - bits)) as u64;
        Range { value: extend(self.value), dark: extend(self.dark) }
    }

    /// In an order in which signed numbers of so many bits are unsigned ones.
    fn unsigned(self, bits: u32) -> Range {
        Range { value: (self.value ^ 1 << (bits - 1)) & !self.dark, ..self }
    }

    /// Undefined bits change what stands above them, as a carry may pass.
    fn plus(self, other: Range) -> Range {
        let (low, high) = (self.least().wrapping_add(other.least()), self.most().wrapping_add(other.most()));
        let dark = low ^ high | self.dark | other.dark;
        Range { value: low & !dark, dark }
    }

    fn minus(self, other: Range) -> Range {
        let (low, high) = (self.least().wrapping_sub(other.most()), self.most().wrapping_sub(other.least()));
        let dark = low ^ high | self.dark | other.dark;
        Range { value: low & !dark, dark }
    }

    /// An undefined bit of one operand counts as often as the other is: not below the other's lowest bit that may be set, and not at all if
    /// there is none.
    fn times(self, other: Range) -> Range {
        if self.most() == 0 || other.most() == 0 {
            return Range { value: 0, dark: 0 };
        }
        let from = |a: Range, b: Range| a.dark.trailing_zeros() + b.most().trailing_zeros();
        let dark = u64::MAX.checked_shl(from(self, other).min(from(other, self))).unwrap_or(0);
        Range { value: self.value.wrapping_mul(other.value) & !dark, dark }
    }

    /// |self − other|, of unsigned numbers. Where either may be the greater, the difference and its negative are alike as far as the lowest
    /// bit that is set.
    fn distance(self, other: Range) -> Range {
        if self.least() >= other.most() {
            return self.minus(other);
        }
        if other.least() >= self.most() {
            return other.minus(self);
        }
        let both = self.minus(other);
        let known = both.dark.trailing_zeros().min(both.value.trailing_zeros().saturating_add(1));
        let dark = u64::MAX.checked_shl(known).unwrap_or(0);
        Range { value: both.value & !dark, dark }
    }

    /// The undefined bits of the lesser of two unsigned numbers, or of the greater.
    fn dark_extreme(self, other: Range, greater: bool) -> u64 {
        let is_picked =
            |a: Range, b: Range| if greater { a.least() >= b.most() } else { a.most() <= b.least() };
        if is_picked(self, other) {
            return self.dark;
        }
        if is_picked(other, self) {
            return other.dark;
        }
        let pick = if greater { u64::max } else { u64::min };
        // Between the least and the greatest that it may be, bits above those in which the two differ are the same.
        let unlike = pick(self.least(), other.least()) ^ pick(self.most(), other.most());
        u64::MAX.checked_shr(unlike.leading_zeros()).unwrap_or(0)
    }
}

/// The undefined bits of the result; `None` for what is no such arithmetic.
pub(super) fn dark_sum(op: &Op, regs: &Regs, shade: &Regs, lane: usize) -> Option<u64> {
    let (Op::Int(..) | Op::Rare(..)) = op else { return None };
    let (pattern, result, args, slots) = lane_row(op)?;
    let bits = u32::from(args[0].bits);
    let all = |shape: Shape| u64::MAX >> (64 - u32::from(shape.bits));
    let operand = |i: usize| {
        let (shape, slot) = (args[i], slots[i + 1]);
        let dark = shade.bits(shape.bank, slot, lane) & all(shape);
        Range { value: regs.bits(shape.bank, slot, lane) & all(shape) & !dark, dark }
    };
    let (head, rest) = pattern.split_once(' ')?;
    let is_signed = rest.contains('s') && !rest.contains('u');
    let ordered = |i: usize| if is_signed { operand(i).unsigned(bits) } else { operand(i) };
    let factor = |i: usize| match (head, is_signed) {
        ("mul24" | "mad24", true) => operand(i).low(24).extended(24),
        ("mul24" | "mad24", false) => operand(i).low(24),
        (_, true) => operand(i).extended(bits),
        (_, false) => operand(i),
    };
    let dark = match (head, rest) {
        ("add" | "sub" | "neg", "{u16 s16}" | "{u32 s32}" | "{u64 s64}" | "s16" | "s32" | "s64") => {
            match head {
                "add" => operand(0).plus(operand(1)).dark,
                "neg" => Range { value: 0, dark: 0 }.minus(operand(0)).dark,
                _ if slots[1] == slots[2] => 0,
                _ => operand(0).minus(operand(1)).dark,
            }
        }
        ("mul" | "mul24", _) if rest.starts_with("lo") || rest.starts_with("wide") => {
            factor(0).times(factor(1)).dark
        }
        ("mad" | "mad24", _) if rest.starts_with("lo") || rest.starts_with("wide") => {
            factor(0).times(factor(1)).plus(operand(2)).dark
        }
        // Of high halves nothing is followed but that a product by zero is zero.
        ("mul" | "mul24", _) if rest.starts_with("hi") && factor(0).times(factor(1)).most() == 0 => 0,
        ("sad", _) => ordered(0).distance(ordered(1)).plus(operand(2)).dark,
        ("min" | "max", "u16" | "u32" | "u64" | "s16" | "s32" | "s64") => {
            ordered(0).dark_extreme(ordered(1), head == "max")
        }
        ("dp4a", _) => {
            let byte = |i: usize, at: u32| {
                let all = operand(i);
                Range { value: all.value >> (8 * at), dark: all.dark >> (8 * at) }.low(8)
            };
            if (0..4).any(|at| byte(0, at).times(byte(1, at)).dark != 0) {
                return None;
            }
            let sum =
                (0..4).fold(Range { value: 0, dark: 0 }, |sum, at| sum.plus(byte(0, at).times(byte(1, at))));
            if operand(2).dark == 0 { 0 } else { sum.plus(operand(2)).dark }
        }
        ("brev", _) => operand(0).dark.reverse_bits() >> (64 - bits),
        ("clz", _) | ("bfind", "u32" | "u64" | "shiftamt u32" | "shiftamt u64") => {
            // The highest bit that is set is above all that are undefined.
            let Range { value, dark } = operand(0);
            if value.leading_zeros() < dark.leading_zeros() || dark == 0 { 0 } else { u64::MAX }
        }
        _ => return None,
    };
    Some(dark & all(result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::integer::IntOp;
    use crate::table::rare::RareOp;

    /// The undefined bits of an instruction's result, of operands with some undefined bits.
    fn dark(op: Op, operands: &[(u32, u32)]) -> u64 {
        let (mut regs, mut shade) = (Regs::new(5, 2, 0), Regs::new(5, 2, 0));
        for (slot, (value, dark)) in (1..).zip(operands) {
            regs.word[slot][0] = *value;
            shade.word[slot][0] = *dark;
        }
        dark_sum(&op, &regs, &shade, 0).unwrap()
    }

    fn int(op: IntOp) -> Op {
        Op::Int(op, [0, 1, 2, 3, 0])
    }

    #[test]
    fn undefined_bits_change_what_is_above_them() {
        assert_eq!(dark(int(IntOp::AddWord), &[(0x0f00, 0xf000), (0x0100, 0)]), 0x1f000);
        assert_eq!(dark(int(IntOp::SubWord), &[(0x6100, 0xffff_0000), (0x0101_0101, 0)]), 0xffff_0000);
        assert_eq!(dark(int(IntOp::SubWord), &[(0, 0xff), (1, 0)]), u32::MAX.into());
        assert_eq!(dark(int(IntOp::NegWord), &[(0x10, 0xff00)]), 0xff00);
        assert_eq!(dark(int(IntOp::BrevWord), &[(0, 0xff)]), 0xff00_0000);
    }

    /// Each instruction of every two or three small numbers: a bit in which two values of the undefined bits give other results is undefined.
    #[test]
    fn whatever_depends_on_an_undefined_bit_is_undefined() {
        type F = fn(u32, u32, u32) -> u32;
        let ops: [(Op, F); 12] = [
            (int(IntOp::AddWord), |a, b, _| a.wrapping_add(b)),
            (int(IntOp::SubWord), |a, b, _| a.wrapping_sub(b)),
            (int(IntOp::MulLoWord), |a, b, _| a.wrapping_mul(b)),
            (int(IntOp::MadLoWord), |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
            (int(IntOp::SadWordU), |a, b, c| c.wrapping_add(a.abs_diff(b))),
            (int(IntOp::SadWordS), |a, b, c| c.wrapping_add((a as i32).abs_diff(b as i32))),
            (int(IntOp::MinUWord), |a, b, _| a.min(b)),
            (int(IntOp::MaxUWord), |a, b, _| a.max(b)),
            (int(IntOp::MinSWord), |a, b, _| (a as i32).min(b as i32) as u32),
            (int(IntOp::MaxSWord), |a, b, _| (a as i32).max(b as i32) as u32),
            (int(IntOp::Mul24U), |a, b, _| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)),
            (Op::Rare(RareOp::Mad24LoSWord, [0, 1, 2, 3, 0]), |a, b, c| {
                let low = |x: u32| (x as i32) << 8 >> 8;
                low(a).wrapping_mul(low(b)).wrapping_add(c as i32) as u32
            }),
        ];
        // Bits of the masks lie at both ends and in the middle of a word.
        let spread = |x: u32| x & 1 | (x & 2) << 6 | (x & 4) << 21 | (x & 8) << 28;
        let values = [0, 5, 0x8000_0081, u32::MAX, 0x80, 0x00ff_fffe];
        for (op, f) in &ops {
            for (at, a) in values.iter().enumerate() {
                for (b, masks) in values.iter().zip([1, 2, 4, 8, 3, 9, 12, 15, 0].iter().cycle().skip(at)) {
                    let (ua, ub, uc) = (spread(*masks), spread(15 ^ masks), spread(masks & 6));
                    let c = 0x0102_0304 & !uc;
                    let pick = |base: u32, dark: u32, n: u32| base & !dark | spread(n) & dark;
                    let first = f(a & !ua, b & !ub, c);
                    let all = (0..16).flat_map(|p| (0..16).map(move |q| (p, q)));
                    let unlike = all.fold(0, |bits, (p, q)| {
                        bits | first ^ f(pick(*a, ua, p), pick(*b, ub, q), pick(c, uc, p ^ q))
                    });
                    let found = dark(op.clone(), &[(*a, ua), (*b, ub), (c, uc)]) as u32;
                    assert_eq!(found & unlike, unlike, "{op:?} {a:x}/{ua:x} {b:x}/{ub:x} {c:x}/{uc:x}");
                }
            }
        }
    }

    #[test]
    fn low_bits_of_products_and_distances_are_known() {
        assert_eq!(dark(int(IntOp::MulLoWord), &[(7, 0xffff_ff00), (3, 0)]), 0xffff_ff00);
        assert_eq!(dark(int(IntOp::MulLoWord), &[(7, 0xffff_ff00), (16, 0)]), 0xffff_f000);
        assert_eq!(dark(int(IntOp::MulLoWord), &[(7, u32::MAX), (0, 0)]), 0);
        assert_eq!(dark(int(IntOp::MulHiUWord), &[(7, u32::MAX), (0, 0)]), 0);
        assert_eq!(dark(int(IntOp::MadLoWord), &[(7, 0xffff_ff00), (3, 0), (1, 0)]), 0xffff_ff00);
        assert_eq!(dark(int(IntOp::SadWordU), &[(7, 0), (7, 0), (1, 0xff00)]), 0xff00);
        assert_eq!(dark(int(IntOp::SadWordU), &[(8, 0xff00), (0, 0), (0, 0)]), 0xff00);
        assert_eq!(dark(int(IntOp::MinUWord), &[(0, u32::MAX), (0, 0)]), 0);
        assert_eq!(dark(int(IntOp::MaxSWord), &[(0x100, 0xff), (7, 0)]), 0xff);
        assert_eq!(dark(int(IntOp::Dp4aU), &[(3, 0xffff_ff00), (1, 0), (1, 0)]), 0);
        assert_eq!(dark(Op::Rare(RareOp::Mul24S, [0, 1, 2, 0, 0]), &[(3, 0xff00_0000), (1, 0)]), 0);
    }

    #[test]
    fn the_highest_set_bit_is_known_where_it_is_above_the_undefined_ones() {
        assert_eq!(dark(int(IntOp::ClzWord), &[(0x8000, 0xff)]), 0);
        assert_eq!(dark(int(IntOp::ClzWord), &[(0x80, 0xff00)]), u32::MAX.into());
        assert_eq!(dark(int(IntOp::BfindUWord), &[(0, 1)]), u32::MAX.into());
    }
}
