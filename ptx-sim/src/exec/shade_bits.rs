//! What becomes of undefined bits in instructions that move bits: copies, logic, shifts, selections, conversions of integers; and in those
//! that compute, where part of the result does not depend on them.

use super::shade_sums::dark_sum;
use crate::bits;
use crate::op::{BoolOp, Op, Scalar};
use crate::regs::{Bank, Regs, Slots};
use crate::table::{LaneRow, Shape, float::FloatOp, half::HalfOp, integer::IntOp, rare::RareOp};

/// The undefined bits of the results of an instruction that moves bits; `None` for one that computes.
pub(super) fn moved_bits(op: &Op, regs: &Regs, shade: &Regs, lane: usize) -> Option<Vec<u64>> {
    let one = |bits: u64| Some(vec![bits]);
    match op {
        Op::Int(..) | Op::Rare(..) => {
            let (pattern, result, args, slots) = lane_row(op)?;
            moved_by(pattern, args, result.bits, slots, regs, shade, lane).map(|b| vec![b])
        }
        Op::Convert(op, slots) => {
            let row = &crate::table::convert::ConvertOp::ROWS[*op as usize];
            let from = shade.bits(row.args[0].bank, slots[1], lane);
            match row.pattern {
                "cvt {u64 s64} s32" => one(from as u32 as i32 as i64 as u64),
                "cvt {u64 s64 b64} {u32 b32}" | "cvt {u32 s32} {u64 s64}" => one(from),
                _ => None,
            }
        }
        Op::Cvt(cvt) if !cvt.to.is_float() && !cvt.from.is_float() && !cvt.saturate => {
            let bits = u32::from(cvt.from.bits());
            let from = shade.bits(cvt.operand.bank, cvt.operand.slot, lane) << (64 - bits);
            let wide = match cvt.from {
                Scalar::S(_) => (from as i64 >> (64 - bits)) as u64,
                _ => from >> (64 - bits),
            };
            let to = u32::from(cvt.to.bits());
            one(if to == 64 { wide } else { wide & ((1 << to) - 1) })
        }
        Op::Pack(pack) => {
            let parts = pack.1.iter().rev();
            one(parts.fold(0, |sum, r| {
                let bits = shade.bits(r.bank, r.slot, lane);
                sum << r.bits | if r.bits == 64 { bits } else { bits & ((1 << r.bits) - 1) }
            }))
        }
        Op::Unpack(unpack) => {
            let from = shade.bits(unpack.1.bank, unpack.1.slot, lane);
            let width = u32::from(unpack.1.bits) / unpack.0.len() as u32;
            let mask = (1u64 << width) - 1;
            let parts = unpack.0.iter().enumerate().filter(|(_, reg)| reg.is_some());
            Some(parts.map(|(i, _)| from >> (width * i as u32) & mask).collect())
        }
        Op::Combine { op, compared, c, c_negated, .. } => {
            let value = |slot: u32| regs.pred[slot as usize] >> lane & 1;
            let dark = |slot: u32| shade.pred[slot as usize] >> lane & 1;
            let (t, ut, uc) = (value(*compared), dark(*compared), dark(*c));
            let c = value(*c) ^ u32::from(*c_negated);
            let out = |t: u32| match op {
                BoolOp::And => (ut & uc) | (ut & c) | (uc & t),
                BoolOp::Or => (ut & uc) | (ut & (c ^ 1)) | (uc & (t ^ 1)),
                BoolOp::Xor => ut | uc,
                BoolOp::First => ut,
            };
            Some(vec![out(t).into(), out(t ^ 1).into()])
        }
        Op::Compare(op, slots) => {
            let row = &crate::table::compare::CompareOp::ROWS[*op as usize];
            let exact = row.pattern.starts_with("setp eq {b") || row.pattern.starts_with("setp ne {b");
            let (a, b) = (row.args[0], row.args[1]);
            let dark = shade.bits(a.bank, slots[1], lane) | shade.bits(b.bank, slots[2], lane);
            let unlike = regs.bits(a.bank, slots[1], lane) ^ regs.bits(b.bank, slots[2], lane);
            // Bits that are defined and differ decide alone.
            if dark == 0 || exact && unlike & !dark != 0 { one(0) } else { None }
        }
        _ => None,
    }
}

/// The undefined bits of what is computed; `None` where one undefined bit of an operand makes all of the result undefined.
pub(super) fn computed_bits(op: &Op, regs: &Regs, shade: &Regs, lane: usize) -> Option<u64> {
    if uses_nothing_dark(op, shade, lane) {
        return Some(0);
    }
    match op {
        Op::Video(video) => {
            let [a, b, c] = [1, 2, 3].map(|at| shade.word[video.slots[at] as usize][lane]);
            Some(video.dark([a, b, c]).into())
        }
        _ => dark_halves(op, shade, lane).or_else(|| dark_sum(op, regs, shade, lane)),
    }
}

/// Whether the bits of the operands that an instruction looks at are all defined: registers may be wider than its types.
fn uses_nothing_dark(op: &Op, shade: &Regs, lane: usize) -> bool {
    let is_clear = |bank: Bank, slot: u32, bits: u32| {
        let dark = shade.bits(bank, slot, lane);
        bits != 0 && dark & u64::MAX >> (64 - bits) == 0
    };
    match op {
        Op::Cvt(cvt) => is_clear(cvt.operand.bank, cvt.operand.slot, cvt.from.bits().into()),
        _ => lane_row(op).is_some_and(|(_, _, args, slots)| {
            args.iter().zip(&slots[1..]).all(|(arg, slot)| is_clear(arg.bank, *slot, arg.bits.into()))
        }),
    }
}

/// The undefined bits of what is computed of packed pairs, each half of its own; `None` for other instructions. Compilers leave
/// half of a pair undefined where they need the other alone.
fn dark_halves(op: &Op, shade: &Regs, lane: usize) -> Option<u64> {
    let (pattern, result, args, slots) = lane_row(op)?;
    let alike = args.iter().all(|arg| (arg.bank, arg.bits) == (result.bank, result.bits));
    if !pattern.ends_with("x2") || !alike {
        return None;
    }
    let width = u32::from(result.bits) / 2;
    let low = (1u64 << width) - 1;
    let dark =
        args.iter().zip(&slots[1..]).fold(0, |all, (arg, slot)| all | shade.bits(arg.bank, *slot, lane));
    let half = |mask: u64| if dark & mask != 0 { mask } else { 0 };
    Some(half(low) | half(low << width))
}

/// The pattern, result and arguments of an instruction in the table of its kind, and its registers; `None` for one that no such table has.
pub(super) fn lane_row(op: &Op) -> Option<(&'static str, Shape, &'static [Shape], &Slots)> {
    fn of<'s, O>(
        row: &LaneRow<O>,
        slots: &'s Slots,
    ) -> Option<(&'static str, Shape, &'static [Shape], &'s Slots)> {
        Some((row.pattern, row.result, row.args, slots))
    }
    match op {
        Op::Int(op, slots) => of(&IntOp::ROWS[*op as usize], slots),
        Op::Float(op, slots) => of(&FloatOp::ROWS[*op as usize], slots),
        Op::Half(op, slots) => of(&HalfOp::ROWS[*op as usize], slots),
        Op::Rare(op, slots) => of(&RareOp::ROWS[*op as usize], slots),
        _ => None,
    }
}

fn moved_by(
    pattern: &str,
    args: &[Shape],
    width: u8,
    slots: &Slots,
    regs: &Regs,
    shade: &Regs,
    lane: usize,
) -> Option<u64> {
    let head = pattern.split(' ').next().unwrap_or("");
    let all = if width == 64 { u64::MAX } else { (1u64 << width) - 1 };
    let value = |i: usize| regs.bits(args[i].bank, slots[i + 1], lane);
    let dark = |i: usize| shade.bits(args[i].bank, slots[i + 1], lane);
    let shift = |at: usize, f: &dyn Fn(u64, u32) -> u64| {
        if dark(at) == 0 { f(dark(0), value(at) as u32) } else { all }
    };
    Some(match head {
        "mov" | "cvta" | "not" => dark(0),
        "and" => dark(0) & dark(1) | dark(0) & value(1) | dark(1) & value(0),
        "or" => dark(0) & dark(1) | dark(0) & !value(1) | dark(1) & !value(0),
        "xor" if slots[1] == slots[2] => 0,
        "xor" => dark(0) | dark(1),
        "shl" => shift(1, &|x, by| if by >= width.into() { 0 } else { x << by & all }),
        "shr" => shift(1, &|x, by| {
            let by = by.min(u32::from(width) - 1);
            let sign = pattern.starts_with("shr s") && x >> (width - 1) & 1 == 1;
            x >> by | if sign { all & !(all >> by) } else { 0 }
        }),
        "selp" if dark(2) == 0 => {
            if value(2) != 0 {
                dark(0)
            } else {
                dark(1)
            }
        }
        "selp" => dark(0) | dark(1) | value(0) ^ value(1),
        "slct" => {
            let (bits, is_float) = (u32::from(args[2].bits), pattern.ends_with("f32"));
            let sign = 1 << (bits - 1);
            // A comparison of floating point looks at all bits of it.
            let decides = if is_float { u64::MAX } else { sign };
            let first = if is_float { f32::from_bits(value(2) as u32) >= 0.0 } else { value(2) & sign == 0 };
            match (dark(2) & decides == 0, first) {
                (true, true) => dark(0),
                (true, false) => dark(1),
                _ => dark(0) | dark(1) | value(0) ^ value(1),
            }
        }
        "shf" if dark(2) == 0 => {
            let (wraps, by) = (pattern.contains("wrap"), value(2) as u32);
            let by = if wraps { by & 31 } else { by.min(32) };
            let shift = if pattern.contains(" l ") { bits::funnel_left } else { bits::funnel_right };
            shift(dark(0) as u32, dark(1) as u32, by).into()
        }
        "add" | "sub" | "mul"
            if pattern.contains("sat") || pattern.contains("hi") || pattern.contains("wide") =>
        {
            return None;
        }
        "prmt" if pattern == "prmt b32" && dark(2) == 0 => {
            bits::permute(dark(0) as u32, dark(1) as u32, value(2) as u32).into()
        }
        "bfe" if dark(1) | dark(2) == 0 => {
            let (at, count) = (value(1) as u32, value(2) as u32);
            bits::extract_unsigned(dark(0), at, count, width.into()) & all
        }
        "bfi" if dark(2) | dark(3) == 0 => {
            bits::insert(dark(0), dark(1), value(2) as u32, value(3) as u32, width.into()) & all
        }
        "lop3" => {
            let [a, b, c] = [0, 1, 2].map(|i| value(i) as u32);
            let [ua, ub, uc] = [0, 1, 2].map(|i| dark(i) as u32);
            let table = value(3) as u32;
            let plain = bits::lop3(a, b, c, table);
            let flipped = |s: u32| {
                let flip = |bit: u32, mask: u32| if s >> bit & 1 == 1 { mask } else { 0 };
                bits::lop3(a ^ flip(0, ua), b ^ flip(1, ub), c ^ flip(2, uc), table) ^ plain
            };
            // One register is one value, however often it is named.
            let tied = |s: u32, i: usize, j: usize| slots[i + 1] != slots[j + 1] || s >> i & 1 == s >> j & 1;
            let may_be = |s: &u32| tied(*s, 0, 1) && tied(*s, 0, 2) && tied(*s, 1, 2);
            (1..8).filter(may_be).fold(0, |m, s| m | flipped(s)).into()
        }
        _ => return None,
    })
}
