//! Shuffles, votes, matches and reductions over the lanes of a mask (PTX ISA §9.7.9.6, §9.7.13.10–12, §9.7.13.14).

use crate::finding::{Fault, FindingKind, Outcome};
use crate::float;
use crate::op::{Collective, CollectiveOp, Shuffle, ShuffleMode};
use crate::regs::{LANES, Regs, Slot};

use super::access::lanes;

/// Every lane that executes must be in the mask that it gives, and all must give the same.
pub(super) fn check_members(regs: &Regs, members: Slot, active: u32, checked: bool) -> Outcome {
    let values = &regs.word[members as usize];
    let first = values[active.trailing_zeros() as usize % LANES];
    for lane in lanes(active) {
        if checked && (values[lane] != first || first >> lane & 1 == 0) {
            let mut fault = Fault::new(FindingKind::ShuffleInactive);
            fault.lane = Some(lane);
            return Err(fault);
        }
    }
    Ok(())
}

/// The lanes that name each mask.
pub(super) fn by_mask(regs: &Regs, members: Slot, active: u32) -> impl Iterator<Item = u32> + use<> {
    let values = regs.word[members as usize];
    let mut left = active;
    std::iter::from_fn(move || {
        let first = values.get(left.trailing_zeros() as usize)?;
        let group =
            (0..LANES).fold(0, |group, lane| group | u32::from(values[lane] == *first) << lane) & left;
        left &= !group;
        Some(group)
    })
}

pub(super) fn shuffle(op: &Shuffle, regs: &mut Regs, active: u32, checked: bool) -> Outcome {
    check_members(regs, op.members, active, checked)?;
    let value = regs.word[op.value as usize];
    let (offsets, clamps) = (regs.word[op.lane as usize], regs.word[op.clamp as usize]);
    let (mut result, mut in_range) = (value, 0);
    for lane in lanes(active) {
        let (here, offset) = (lane as u32, offsets[lane] & 31);
        let (clamp, segment) = (clamps[lane] & 31, clamps[lane] >> 8 & 31);
        // The segment runs from `least` to `most`; for `up` the clamp is the lower bound instead.
        let most = here & segment | clamp & !segment & 31;
        let least = here & segment;
        let (from, valid) = match op.mode {
            ShuffleMode::Up => (here.wrapping_sub(offset), here >= offset && here - offset >= most),
            ShuffleMode::Down => (here + offset, here + offset <= most),
            ShuffleMode::Butterfly => (here ^ offset, here ^ offset <= most),
            ShuffleMode::Index => {
                let from = least | offset & !segment & 31;
                (from, from <= most)
            }
        };
        if valid {
            if checked && active >> from & 1 == 0 {
                return Err(Fault::at(FindingKind::ShuffleInactive, lane, from.into()));
            }
            result[lane] = value[from as usize];
            in_range |= 1 << lane;
        }
    }
    regs.set_word(op.result, active, &result);
    if let Some(pred) = op.in_range {
        regs.set_pred(pred, active, in_range);
    }
    Ok(())
}

pub(super) fn execute(op: &Collective, regs: &mut Regs, active: u32, checked: bool) -> Outcome {
    check_members(regs, op.members, active, checked)?;
    let values: [u64; LANES] =
        std::array::from_fn(|lane| regs.bits(op.value.bank, op.value.slot, lane) ^ u64::from(op.negated));
    let ones = lanes(active).filter(|&lane| values[lane] & 1 == 1).fold(0u32, |bits, lane| bits | 1 << lane);
    let first = active.trailing_zeros();
    let fold = |start: u32, f: fn(u32, u32) -> u32| {
        lanes(active).fold(start, |sum, lane| f(sum, values[lane] as u32))
    };
    let same = |value: u64| lanes(active).filter(|&l| values[l] == value).fold(0u32, |bits, l| bits | 1 << l);
    let mut preds = None;
    let result = match op.op {
        CollectiveOp::All => uniform(&mut preds, ones == active),
        CollectiveOp::Any => uniform(&mut preds, ones != 0),
        CollectiveOp::Uniform => uniform(&mut preds, ones == 0 || ones == active),
        CollectiveOp::Ballot => ones,
        CollectiveOp::Elect => {
            preds = Some(1 << first);
            first
        }
        CollectiveOp::MatchAny => {
            let words: [u32; LANES] = std::array::from_fn(|lane| same(values[lane]));
            if let Some(result) = op.result {
                regs.set_word(result.slot, active, &words);
            }
            return Ok(());
        }
        CollectiveOp::MatchAll => {
            let all = same(values[first as usize % LANES]) == active;
            uniform(&mut preds, all);
            if all { active } else { 0 }
        }
        CollectiveOp::Add => fold(0, u32::wrapping_add),
        CollectiveOp::MinU => fold(u32::MAX, u32::min),
        CollectiveOp::MaxU => fold(0, u32::max),
        CollectiveOp::MinS => fold(i32::MAX as u32, |a, b| (a as i32).min(b as i32) as u32),
        CollectiveOp::MaxS => fold(i32::MIN as u32, |a, b| (a as i32).max(b as i32) as u32),
        CollectiveOp::FloatMin(abs, nan) | CollectiveOp::FloatMax(abs, nan) => {
            let f = match (matches!(op.op, CollectiveOp::FloatMin(..)), nan) {
                (true, false) => float::min::<f32>,
                (true, true) => float::min_nan::<f32>,
                (false, false) => float::max::<f32>,
                (false, true) => float::max_nan::<f32>,
            };
            let value = |lane: usize| {
                let x = f32::from_bits(values[lane] as u32);
                if abs { x.abs() } else { x }
            };
            float::canonical_bits(lanes(active).map(value).reduce(f).unwrap_or(0.0))
        }
        CollectiveOp::And => fold(u32::MAX, |a, b| a & b),
        CollectiveOp::Or => fold(0, |a, b| a | b),
        CollectiveOp::Xor => fold(0, |a, b| a ^ b),
    };
    if let Some(reg) = op.result {
        lanes(active).for_each(|lane| regs.set_bits(reg.bank, reg.slot, lane, result.into()));
    }
    if let (Some(pred), Some(bits)) = (op.pred, preds) {
        regs.set_pred(pred, active, bits);
    }
    Ok(())
}

fn uniform(preds: &mut Option<u32>, value: bool) -> u32 {
    *preds = Some(if value { u32::MAX } else { 0 });
    value.into()
}
