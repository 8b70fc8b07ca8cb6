//! Atomic operations and reductions (PTX ISA §9.7.13.5–6). Lanes act one after the other, lowest first.

use std::sync::PoisonError;

use crate::finding::{Fault, FindingKind, Outcome};
use crate::float::{self, Format};
use crate::memory::Words;
use crate::op::{Atomic, AtomicOp, Reg, Scalar, Space};
use crate::race::RaceAccess;
use crate::window;

use super::access::{addresses, check_alignment, lanes, outside};
use super::cta::Cta;
use super::order::{Modifies, Strong};
use super::warp::Warp;

/// What one lane's operation does to the memory: old bits to new bits, of up to 128.
type Apply<'f> = dyn Fn(u128) -> u128 + 'f;

/// One lane's operation.
struct How<'f> {
    bytes: u32,
    apply: &'f Apply<'f>,
    modifies: Modifies,
    /// What memory must hold for it to write, if it compares.
    compare: Option<u128>,
    /// Whether the lane sees the old value, so that a chain of such operations is a flag.
    tells: bool,
}

impl How<'_> {
    /// Whether it writes: a failed comparison releases nothing.
    fn writes(&self, old: u128) -> bool {
        self.compare.is_none_or(|compare| old == compare)
    }
}

impl Warp {
    pub(super) fn atomic(&mut self, op: &Atomic, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        let bytes = if op.wide.is_some() { 16 } else { u32::from(op.ty.bits()) / 8 };
        let list = addresses(&self.frame(frame)?.regs, &op.addr);
        cta.counters.atomics += u64::from(active.count_ones());
        for lane in lanes(active) {
            let (space, address) = self.resolve_own(op.space, list[lane], lane, cta)?;
            check_alignment(cta, lane, address, op.aligned.max(bytes))?;
            let regs = &self.frame(frame)?.regs;
            let bits = |reg: Reg| u128::from(regs.bits(reg.bank, reg.slot, lane));
            let swap = op.swap.map_or(0, bits);
            let operand = bits(op.operand);
            let (operand, swap) = match op.wide {
                Some([_, high, swap_high]) => (operand | bits(high) << 64, swap | bits(swap_high) << 64),
                None => (operand, swap),
            };
            let apply = move |old: u128| match (op.op, op.wide) {
                (AtomicOp::Exchange, Some(_)) => operand,
                (_, Some(_)) if old == operand => swap,
                (_, Some(_)) => old,
                (_, None) => combine(op, old as u64, operand as u64, swap as u64).into(),
            };
            let strong = Strong { address, lane, order: op.order, shared: false };
            let how = How {
                bytes,
                apply: &apply,
                modifies: match op.op {
                    AtomicOp::CompareAndSwap | AtomicOp::Exchange => Modifies::Swaps,
                    _ => Modifies::Counts,
                },
                compare: (op.op == AtomicOp::CompareAndSwap)
                    .then_some(operand & u128::MAX >> (128 - 8 * bytes)),
                tells: op.result.is_some(),
            };
            let old = match space {
                Space::Shared | Space::Cluster => self.atomic_shared(space, strong, &how, cta)?,
                Space::Global | Space::Generic => self.atomic_global(strong, &how, cta)?,
                _ => {
                    outside(cta, lane, address)?;
                    0
                }
            };
            let regs = &mut self.frame(frame)?.regs;
            if let Some(result) = op.result {
                regs.set_bits(result.bank, result.slot, lane, old as u64);
            }
            if let Some([result, ..]) = op.wide {
                regs.set_bits(result.bank, result.slot, lane, (old >> 64) as u64);
            }
        }
        Ok(())
    }

    fn atomic_shared(&mut self, space: Space, at: Strong, how: &How<'_>, cta: &mut Cta<'_>) -> Outcome<u128> {
        let bytes = how.bytes;
        let (lane, by) = (at.lane, (self.index, self.place()));
        let rank = cta.rank_of(space, lane, &mut { at.address })?;
        let address = window::in_cta(at.address);
        let Some(offset) = cta.at_rank(rank).shared.offset(lane, address, bytes)? else { return Ok(0) };
        let at = Strong { address: window::of_rank(rank, address), shared: true, ..at };
        self.strong_read(at, how.modifies, cta);
        let who = self.who(lane, at.order.strength(true), cta);
        cta.note_read(rank, offset, bytes, &who, by)?;
        let old = value(&cta.at_rank(rank).shared.load(offset, bytes));
        let new = words((how.apply)(old));
        cta.note_write(rank, offset, bytes, &new, &who, by)?;
        if how.writes(old) {
            self.strong_write(at, true, how.tells, cta);
        }
        if value(&new) != old {
            cta.at_rank(rank).shared.store(offset, bytes, &new);
            cta.changed_memory(true);
        }
        self.watch.last_read = Some((at.address, self.place()));
        Ok(old)
    }

    fn atomic_global(&mut self, at: Strong, how: &How<'_>, cta: &mut Cta<'_>) -> Outcome<u128> {
        let bytes = how.bytes;
        let (lane, address) = (at.lane, at.address);
        let Some((allocation, offset)) = self.locate(lane, address, bytes, cta)? else {
            outside(cta, lane, address)?;
            return Ok(0);
        };
        if cta.launch.config.checks.initialized && !allocation.is_written(offset, bytes) {
            return Err(Fault::at(FindingKind::Uninitialized, lane, address));
        }
        self.strong_read(at, how.modifies, cta);
        let write = RaceAccess::Write { same_value: false };
        self.note_global(write, allocation, (lane, offset, bytes), at.order.strength(true), cta)?;
        self.watch.last_read = Some((address, self.place()));
        let guard = cta.launch.memory.atomics.lock().unwrap_or_else(PoisonError::into_inner);
        let old = value(&allocation.load(offset, bytes));
        let new = (how.apply)(old);
        allocation.store(offset, bytes, &words(new));
        drop(guard);
        if new != old {
            cta.changed_memory(false);
        }
        if how.writes(old) {
            self.strong_write(at, true, how.tells, cta);
        }
        Ok(old)
    }
}

fn value(words: &Words) -> u128 {
    words.iter().rev().fold(0, |sum, word| sum << 32 | u128::from(*word))
}

fn words(value: u128) -> Words {
    std::array::from_fn(|at| (value >> (32 * at)) as u32)
}

/// The operation on every element of some bytes.
pub(super) fn combine_all(
    op: AtomicOp,
    ty: Scalar,
    old: &[u8; 16],
    operand: &[u8; 16],
    bytes: u32,
) -> [u8; 16] {
    let mut new = *old;
    let each = usize::from(ty.bits() / 8);
    for at in (0..bytes as usize).step_by(each) {
        let value =
            |from: &[u8; 16]| from[at..at + each].iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
        let bits = combine_plain(op, ty, value(old), value(operand), 0);
        new[at..at + each].copy_from_slice(&bits.to_le_bytes()[..each]);
    }
    new
}

/// The new value of the memory.
fn combine(op: &Atomic, old: u64, operand: u64, swap: u64) -> u64 {
    combine_plain(op.op, op.ty, old, operand, swap)
}

fn combine_plain(op: AtomicOp, ty: Scalar, old: u64, operand: u64, swap: u64) -> u64 {
    let bits = u32::from(ty.bits());
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let operand = operand & mask;
    let signed = |x: u64| (x << (64 - bits)) as i64 >> (64 - bits);
    let is_signed = matches!(ty, Scalar::S(_));
    let new = match op {
        AtomicOp::Add => add(ty, old, operand),
        AtomicOp::Min | AtomicOp::Max if ty.is_float() => extreme(op, ty, old, operand),
        AtomicOp::Min if is_signed => signed(old).min(signed(operand)) as u64,
        AtomicOp::Max if is_signed => signed(old).max(signed(operand)) as u64,
        AtomicOp::Min => old.min(operand),
        AtomicOp::Max => old.max(operand),
        AtomicOp::And => old & operand,
        AtomicOp::Or => old | operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Exchange => operand,
        AtomicOp::CompareAndSwap => {
            if old == operand {
                swap
            } else {
                old
            }
        }
        AtomicOp::Increment => {
            if old >= operand {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old == 0 || old > operand {
                operand
            } else {
                old - 1
            }
        }
    };
    new & mask
}

/// The lesser or greater of halves, one or two.
fn extreme(op: AtomicOp, ty: Scalar, old: u64, operand: u64) -> u64 {
    let (format, widen): (Format, fn(u16) -> f32) = match ty {
        Scalar::F16 | Scalar::F16x2 => (Format::F16, float::f16_to_f32),
        _ => (Format::BF16, float::bf16_to_f32),
    };
    let pick = if op == AtomicOp::Min { float::min::<f32> } else { float::max::<f32> };
    let one = |shift: u32| {
        let chosen = pick(widen((old >> shift) as u16), widen((operand >> shift) as u16));
        u64::from(format.encode(chosen.into())) << shift
    };
    one(0) | if ty.bits() == 32 { one(16) } else { 0 }
}

fn add(ty: Scalar, old: u64, operand: u64) -> u64 {
    let halves = |format: Format, widen: fn(u16) -> f32| {
        let one = |shift: u32| {
            let sum =
                float::add_odd(widen((old >> shift) as u16).into(), widen((operand >> shift) as u16).into());
            u64::from(format.encode(sum)) << shift
        };
        one(0) | if ty.bits() == 32 { one(16) } else { 0 }
    };
    match ty {
        Scalar::F32 => {
            float::canonical_bits(f32::from_bits(old as u32) + f32::from_bits(operand as u32)).into()
        }
        Scalar::F64 => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        Scalar::F16 | Scalar::F16x2 => halves(Format::F16, float::f16_to_f32),
        Scalar::Bf16 | Scalar::Bf16x2 => halves(Format::BF16, float::bf16_to_f32),
        Scalar::U(_) | Scalar::S(_) => old.wrapping_add(operand),
    }
}
