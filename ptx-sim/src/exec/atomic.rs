//! Atomic operations and reductions (PTX ISA §9.7.13.5–6). Lanes act one after the other, lowest first.

use std::sync::PoisonError;

use crate::finding::Outcome;
use crate::float::{self, Format};
use crate::memory::Words;
use crate::op::{Atomic, AtomicOp, Scalar, Space};
use crate::race::{self, RaceAccess};
use crate::window;

use super::access::{addresses, check_alignment, lanes, outside};
use super::cta::Cta;
use super::warp::Warp;

impl Warp {
    pub(super) fn atomic(&mut self, op: &Atomic, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        let bytes = u32::from(op.ty.bits()) / 8;
        let list = addresses(&self.frame(frame)?.regs, &op.addr);
        cta.counters.atomics += u64::from(active.count_ones());
        for lane in lanes(active) {
            let (mut space, mut address) = (op.space, list[lane]);
            if space == Space::Generic {
                let shared = window::holds(window::SHARED_WINDOW, address);
                space = if shared { Space::Shared } else { Space::Global };
                address -= if shared { window::SHARED_WINDOW } else { 0 };
            }
            check_alignment(cta, lane, address, bytes)?;
            let regs = &self.frame(frame)?.regs;
            let operand = regs.bits(op.operand.bank, op.operand.slot, lane);
            let swap = op.swap.map_or(0, |r| regs.bits(r.bank, r.slot, lane));
            let apply = |old: u64| combine(op, old, operand, swap);
            let old = match space {
                Space::Shared => self.atomic_shared(lane, address, bytes, apply, cta)?,
                _ => self.atomic_global(lane, address, bytes, apply, cta)?,
            };
            if let Some(result) = op.result {
                self.frame(frame)?.regs.set_bits(result.bank, result.slot, lane, old);
            }
        }
        // What follows a fence and an atomic may rely on other CTAs' writes: races are no longer told apart.
        if op.ordered || cta.fenced {
            cta.synchronized = true;
        }
        Ok(())
    }

    fn atomic_shared(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        apply: impl Fn(u64) -> u64,
        cta: &mut Cta<'_>,
    ) -> Outcome<u64> {
        let Some(offset) = cta.shared.offset(lane, address, bytes)? else { return Ok(0) };
        let who = self.who(lane, true, cta);
        cta.shared.note_read(offset, bytes, &who)?;
        let old = value(&cta.shared.load(offset, bytes));
        let new = words(apply(old));
        cta.shared.note_write(offset, bytes, &new, &who)?;
        cta.shared.store(offset, bytes, &new);
        Ok(old)
    }

    fn atomic_global(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        apply: impl Fn(u64) -> u64,
        cta: &mut Cta<'_>,
    ) -> Outcome<u64> {
        let Some((allocation, offset)) = self.locate(lane, address, bytes, cta)? else {
            outside(cta, lane, address)?;
            return Ok(0);
        };
        if cta.launch.config.checks.initialized && !allocation.is_written(offset, bytes) {
            let kind = crate::finding::FindingKind::Uninitialized;
            return Err(crate::finding::Fault::at(kind, lane, address));
        }
        let noted = allocation.races.note(RaceAccess::Atomic, offset, bytes, race::tag(cta.id));
        if let (Err(collision), false) = (noted, cta.synchronized) {
            return Err(super::access::global_race(lane, allocation.base, collision));
        }
        let _guard = cta.launch.memory.atomics.lock().unwrap_or_else(PoisonError::into_inner);
        let old = value(&allocation.load(offset, bytes));
        allocation.store(offset, bytes, &words(apply(old)));
        Ok(old)
    }
}

fn value(words: &Words) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

fn words(value: u64) -> Words {
    [value as u32, (value >> 32) as u32, 0, 0]
}

/// The new value of the memory.
fn combine(op: &Atomic, old: u64, operand: u64, swap: u64) -> u64 {
    let bits = u32::from(op.ty.bits());
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let operand = operand & mask;
    let signed = |x: u64| (x << (64 - bits)) as i64 >> (64 - bits);
    let is_signed = matches!(op.ty, Scalar::S(_));
    let new = match op.op {
        AtomicOp::Add => add(op.ty, old, operand),
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
