//! Lane-wise instructions outside the tables: general conversions, carries, packing, predicates, timers.

use crate::finding::{Fault, FindingKind, Outcome};
use crate::float::{self, Format, Round};
use crate::op::{BoolOp, Carry, Cmp, Cvt, Op, ProductHalf, Reg, Scalar, SetCompare, SetResult, Timer};
use crate::regs::{Regs, Slots};

use super::access::lanes;

/// Executes one of them in the lanes of `active`.
pub(super) fn execute(op: &Op, regs: &mut Regs, active: u32) -> Outcome {
    match op {
        Op::Cvt(cvt) => {
            for lane in lanes(active) {
                let value = regs.bits(cvt.operand.bank, cvt.operand.slot, lane);
                regs.set_bits(cvt.result.bank, cvt.result.slot, lane, convert(cvt, value));
            }
        }
        Op::CvtPack { signed, bits, slots } => {
            let mask = (1i64 << bits) - 1;
            let (least, most) =
                if *signed { (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1) } else { (0, mask) };
            for lane in lanes(active) {
                let part = |slot: u32| {
                    (i64::from(regs.word[slot as usize][lane] as i32).clamp(least, most) & mask) as u32
                };
                let above = (u64::from(regs.word[slots[3] as usize][lane]) << (2 * bits)) as u32;
                regs.word[slots[0] as usize][lane] = above | part(slots[1]) << bits | part(slots[2]);
            }
        }
        Op::Video(video) => three_words(&video.slots, regs, active, |words| video.lane(words)),
        Op::VideoMad(mad) => three_words(&mad.slots, regs, active, |words| mad.lane(words)),
        Op::Set(set) => lanes(active).for_each(|lane| set_lane(set, regs, lane)),
        Op::MapRank { result, address, rank, generic } => {
            for lane in lanes(active) {
                let address = regs.bits(address.bank, address.slot, lane);
                // A generic address keeps its window.
                let inside = if *generic { address & u64::from(u32::MAX) } else { address };
                let mapped = crate::window::of_rank(regs.word[*rank as usize][lane], inside);
                regs.set_bits(result.bank, result.slot, lane, mapped.wrapping_add(address - inside));
            }
        }
        Op::Carry(carry) => lanes(active).for_each(|lane| add_with_carry(carry, regs, lane)),
        Op::Combine { op, compared, c, c_negated, p, q } => {
            let (t, c) = (regs.pred[*compared as usize], regs.pred[*c as usize]);
            let c = if *c_negated { !c } else { c };
            let with = |t: u32| match op {
                BoolOp::And => t & c,
                BoolOp::Or => t | c,
                BoolOp::Xor => t ^ c,
                BoolOp::First => t,
            };
            regs.set_pred(*p, active, with(t));
            regs.set_pred(*q, active, with(!t));
        }
        Op::Pack(pack) => {
            let (to, from) = &**pack;
            for lane in lanes(active) {
                let parts = from.iter().rev();
                let value = parts
                    .fold(0, |sum: u64, r| sum << r.bits | regs.bits(r.bank, r.slot, lane) & mask(r.bits));
                regs.set_bits(to.bank, to.slot, lane, value);
            }
        }
        Op::Unpack(unpack) => unpack_lanes(&unpack.0, unpack.1, regs, active),
        _ => return Err(Fault::new(FindingKind::BadTarget)),
    }
    Ok(())
}

/// A function of three words, in the lanes of `active`.
fn three_words(slots: &Slots, regs: &mut Regs, active: u32, f: impl Fn([u32; 3]) -> u32) {
    for lane in lanes(active) {
        let words = [slots[1], slots[2], slots[3]].map(|slot| regs.word[slot as usize][lane]);
        regs.word[slots[0] as usize][lane] = f(words);
    }
}

/// One lane of `set`, or of `setp` on packed halves.
fn set_lane(set: &SetCompare, regs: &mut Regs, lane: usize) {
    let value = |reg: Reg| regs.bits(reg.bank, reg.slot, lane) & mask(reg.bits);
    let (a, b) = (value(set.a), value(set.b));
    let combine = |holds: bool| match set.with {
        None => holds,
        Some((op, slot, negated)) => {
            let c = (regs.pred[slot as usize] >> lane & 1 == 1) != negated;
            match op {
                BoolOp::And => holds & c,
                BoolOp::Or => holds | c,
                BoolOp::Xor => holds ^ c,
                BoolOp::First => holds,
            }
        }
    };
    let half = match set.ty {
        Scalar::F16x2 => Some(Scalar::F16),
        Scalar::Bf16x2 => Some(Scalar::Bf16),
        _ => None,
    };
    let holds = match half {
        Some(ty) => [0, 16].map(|shift| combine(compare(set, ty, a >> shift & 0xffff, b >> shift & 0xffff))),
        None => [combine(compare(set, set.ty, a, b)); 2],
    };
    match set.result {
        SetResult::Preds(p, q) => {
            regs.set_pred(p, 1 << lane, u32::from(holds[0]) << lane);
            regs.set_pred(q, 1 << lane, u32::from(holds[1]) << lane);
        }
        SetResult::Mask(reg) => {
            let half = |at: usize| if holds[at] { 0xffff << (16 * at) } else { 0 };
            regs.set_bits(reg.bank, reg.slot, lane, (half(0) | half(1)) & mask(reg.bits));
        }
        SetResult::One(reg, ty) => {
            let one = match ty {
                Scalar::F16 | Scalar::F16x2 => 0x3c00,
                Scalar::Bf16 | Scalar::Bf16x2 => 0x3f80,
                _ => 0x3f80_0000,
            };
            let part = |at: usize| if holds[at] { one << (16 * at) } else { 0 };
            let value =
                if matches!(ty, Scalar::F16x2 | Scalar::Bf16x2) { part(0) | part(1) } else { part(0) };
            regs.set_bits(reg.bank, reg.slot, lane, value);
        }
    }
}

/// Whether two values of a type, zero-extended, compare so.
fn compare(set: &SetCompare, ty: Scalar, a: u64, b: u64) -> bool {
    let number = |x: u64| match ty {
        Scalar::F16 => f64::from(float::f16_to_f32(x as u16)),
        Scalar::Bf16 => f64::from(float::bf16_to_f32(x as u16)),
        Scalar::F32 if set.flush => f64::from(float::flush(f32::from_bits(x as u32))),
        Scalar::F32 => f64::from(f32::from_bits(x as u32)),
        _ => f64::from_bits(x),
    };
    let (order, unordered) = match ty {
        Scalar::S(bits) => {
            let signed = |x: u64| (x << (64 - bits)) as i64;
            (Some(signed(a).cmp(&signed(b))), false)
        }
        Scalar::U(_) => (Some(a.cmp(&b)), false),
        _ => {
            let order = number(a).partial_cmp(&number(b));
            (order, order.is_none())
        }
    };
    let is = |holds: fn(std::cmp::Ordering) -> bool| order.is_some_and(holds);
    match set.cmp {
        Cmp::Eq => is(std::cmp::Ordering::is_eq),
        Cmp::Ne => is(std::cmp::Ordering::is_ne),
        Cmp::Lt => is(std::cmp::Ordering::is_lt),
        Cmp::Le => is(std::cmp::Ordering::is_le),
        Cmp::Gt => is(std::cmp::Ordering::is_gt),
        Cmp::Ge => is(std::cmp::Ordering::is_ge),
        Cmp::Equ => unordered || is(std::cmp::Ordering::is_eq),
        Cmp::Neu => unordered || is(std::cmp::Ordering::is_ne),
        Cmp::Ltu => unordered || is(std::cmp::Ordering::is_lt),
        Cmp::Leu => unordered || is(std::cmp::Ordering::is_le),
        Cmp::Gtu => unordered || is(std::cmp::Ordering::is_gt),
        Cmp::Geu => unordered || is(std::cmp::Ordering::is_ge),
        Cmp::Num => !unordered,
        Cmp::Nan => unordered,
    }
}

fn unpack_lanes(to: &[Option<Reg>], from: Reg, regs: &mut Regs, active: u32) {
    let bits = u32::from(from.bits) / to.len() as u32;
    for lane in lanes(active) {
        let value = regs.bits(from.bank, from.slot, lane);
        for (i, reg) in to.iter().enumerate() {
            if let Some(reg) = reg {
                regs.set_bits(reg.bank, reg.slot, lane, value >> (bits * i as u32) & mask(bits as u8));
            }
        }
    }
}

fn mask(bits: u8) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Timers count the warp instructions that the CTA has executed, mostly (`clocks.rs`).
pub(super) fn timer(timer: Timer, result: Reg, regs: &mut Regs, active: u32, now: u64) {
    let value = match timer {
        Timer::ClockHigh => now >> 32,
        Timer::Clock => now & 0xffff_ffff,
        Timer::Clock64 => now,
    };
    lanes(active).for_each(|lane| regs.set_bits(result.bank, result.slot, lane, value));
}

fn add_with_carry(carry: &Carry, regs: &mut Regs, lane: usize) {
    let bits = u32::from(carry.regs[0].bits);
    let at = |i: usize| regs.bits(carry.regs[i].bank, carry.regs[i].slot, lane);
    let (a, b) = match carry.product {
        None => (at(1), at(2)),
        Some(half) => (product(carry, at(1), at(2), half, bits), at(3)),
    };
    let flag = u128::from(carry.carry_in && regs.pred[carry.flag as usize] >> lane & 1 == 1);
    let limit = 1u128 << bits;
    let (value, out) = if carry.add {
        let sum = u128::from(a) + u128::from(b) + flag;
        (sum % limit, sum >= limit)
    } else {
        // A subtraction adds the complement, so its flag is set where nothing is borrowed. Between sub.cc and subc that is the
        // manual's borrow; nvcc's division of 128 bits adds the flag of a subtraction, and is right with this alone.
        let take = u128::from(b) + if carry.carry_in { 1 - flag } else { 0 };
        ((u128::from(a) + 2 * limit - take) % limit, u128::from(a) >= take)
    };
    regs.set_bits(carry.regs[0].bank, carry.regs[0].slot, lane, value as u64);
    if carry.carry_out {
        regs.set_pred(carry.flag, 1 << lane, u32::from(out) << lane);
    }
}

fn product(carry: &Carry, a: u64, b: u64, half: ProductHalf, bits: u32) -> u64 {
    let wide = |x: u64| {
        if carry.signed { i128::from((x << (64 - bits)) as i64 >> (64 - bits)) } else { i128::from(x) }
    };
    // Two unsigned 64-bit factors may exceed i128, whose wrapped bits are still those of the product.
    let product = wide(a).wrapping_mul(wide(b));
    let part = if half == ProductHalf::High { product >> bits } else { product };
    part as u64 & mask(bits as u8)
}

/// One value through `cvt`.
fn convert(cvt: &Cvt, value: u64) -> u64 {
    let result = if cvt.from.is_float() { from_float(cvt, value) } else { from_integer(cvt, value) };
    match cvt.to {
        // A signed result fills a wider register with its sign.
        Scalar::S(_) => result & mask(cvt.result.bits),
        ty => result & mask(ty.bits()),
    }
}

fn from_integer(cvt: &Cvt, value: u64) -> u64 {
    let bits = u32::from(cvt.from.bits());
    let cut = value & mask(bits as u8);
    let number = match cvt.from {
        Scalar::S(_) => i128::from((cut << (64 - bits)) as i64 >> (64 - bits)),
        _ => i128::from(cut),
    };
    if cvt.to.is_float() {
        return float_bits(cvt, integer_to_f64(number, cvt), true);
    }
    let number = if cvt.saturate { clamp(cvt.to, number) } else { number } as u64;
    match cvt.to {
        Scalar::S(to) => ((number << (64 - u32::from(to))) as i64 >> (64 - u32::from(to))) as u64,
        _ => number,
    }
}

/// The integer as an f64: exact, or rounded to odd so that the rounding that follows is right.
fn integer_to_f64(number: i128, cvt: &Cvt) -> f64 {
    if cvt.to == Scalar::F64 {
        let near = number as f64;
        let error = number - near as i128;
        return match cvt.round {
            Some(Round::Up) if error > 0 => near.next_up(),
            Some(Round::Down) if error < 0 => near.next_down(),
            Some(Round::Zero) if error != 0 && (error < 0) == (near > 0.0) => {
                if near > 0.0 {
                    near.next_down()
                } else {
                    near.next_up()
                }
            }
            _ => near,
        };
    }
    let magnitude = number.unsigned_abs();
    let excess = (128 - magnitude.leading_zeros()).saturating_sub(53);
    let lost = magnitude & ((1 << excess) - 1) != 0;
    let kept = (magnitude >> excess) as u64 | u64::from(lost);
    let value = kept as f64 * (1u64 << excess) as f64;
    if number < 0 { -value } else { value }
}

fn from_float(cvt: &Cvt, value: u64) -> u64 {
    let mut number: f64 = match cvt.from {
        Scalar::F16 => float::f16_to_f32(value as u16).into(),
        Scalar::Bf16 => float::bf16_to_f32(value as u16).into(),
        Scalar::F32 => {
            let x = f32::from_bits(value as u32);
            if cvt.flush { float::flush(x).into() } else { x.into() }
        }
        _ => f64::from_bits(value),
    };
    if cvt.integral {
        number = match cvt.round {
            Some(Round::Nearest) => number.round_ties_even(),
            Some(Round::Down) => number.floor(),
            Some(Round::Up) => number.ceil(),
            _ => number.trunc(),
        };
    }
    if cvt.to.is_float() {
        return float_bits(cvt, number, false);
    }
    if number.is_nan() {
        // NaN is zero, or the sign bit's pattern where a 64-bit type is involved (PTX ISA §9.7.9.21).
        let wide = cvt.to.bits() == 64 || cvt.from == Scalar::F64;
        return if wide { 1 << (cvt.to.bits() - 1) } else { 0 };
    }
    // Casts saturate, and i128 holds every target range.
    clamp(cvt.to, number as i128) as u64
}

fn clamp(ty: Scalar, number: i128) -> i128 {
    let bits = u32::from(ty.bits());
    match ty {
        Scalar::S(_) => number.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => number.clamp(0, (1 << bits) - 1),
    }
}

fn float_bits(cvt: &Cvt, number: f64, from_integer: bool) -> u64 {
    let number = if cvt.saturate { if number > 0.0 { number.min(1.0) } else { 0.0 } } else { number };
    let mode = match cvt.round {
        Some(mode) if !cvt.integral || from_integer => mode,
        _ => Round::Nearest,
    };
    match cvt.to {
        Scalar::F16 => Format::F16.bits_of(number, mode).into(),
        Scalar::Bf16 => Format::BF16.bits_of(number, mode).into(),
        Scalar::F32 => {
            let x = if number.is_nan() { f32::from_bits(0x7fff_ffff) } else { float::to_f32(number, mode) };
            u64::from((if cvt.flush { float::flush(x) } else { x }).to_bits())
        }
        _ => number.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::Bank;

    fn cvt(to: Scalar, from: Scalar, round: Option<Round>, integral: bool) -> Cvt {
        let reg = Reg { bank: Bank::Double, slot: 0, bits: 64 };
        Cvt { to, from, round, integral, flush: false, saturate: false, result: reg, operand: reg }
    }

    #[test]
    fn integers_wrap_and_extend() {
        assert_eq!(convert(&cvt(Scalar::S(32), Scalar::S(8), None, false), 0x1ff), u64::MAX);
        assert_eq!(convert(&cvt(Scalar::U(8), Scalar::U(32), None, false), 0x1ff), 0xff);
        assert_eq!(convert(&cvt(Scalar::S(8), Scalar::S(32), None, false), 0x80), 0xffff_ffff_ffff_ff80);
        let saturating = Cvt { saturate: true, ..cvt(Scalar::U(8), Scalar::S(32), None, false) };
        assert_eq!((convert(&saturating, 300), convert(&saturating, 0xffff_ffff)), (255, 0));
    }

    #[test]
    fn floats_clamp_to_integers_and_nan_is_zero() {
        let to_int = |x: f32| {
            convert(&cvt(Scalar::S(32), Scalar::F32, Some(Round::Zero), true), x.to_bits().into()) as u32
                as i32
        };
        assert_eq!((to_int(-1.9), to_int(3e9), to_int(-3e9), to_int(f32::NAN)), (-1, i32::MAX, i32::MIN, 0));
        let nearest = cvt(Scalar::U(32), Scalar::F32, Some(Round::Nearest), true);
        assert_eq!(
            (convert(&nearest, 2.5f32.to_bits().into()), convert(&nearest, (-1f32).to_bits().into())),
            (2, 0)
        );
    }

    #[test]
    fn integers_round_once_to_f32() {
        let to_f32 = |x: i64, mode| {
            f32::from_bits(convert(&cvt(Scalar::F32, Scalar::S(64), Some(mode), false), x as u64) as u32)
        };
        for x in
            [0i64, 1, -1, (1 << 24) + 1, (1 << 60) + (1 << 36), (1 << 60) + (1 << 36) + 1, i64::MIN, i64::MAX]
        {
            assert_eq!(to_f32(x, Round::Nearest), x as f32, "{x}");
        }
        assert_eq!(to_f32((1 << 24) + 1, Round::Up), 16_777_218.0);
        assert_eq!(to_f32((1 << 24) + 1, Round::Down), 16_777_216.0);
    }
}
