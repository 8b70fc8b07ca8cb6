//! Which bits of registers nobody has defined: what was loaded from memory that nobody wrote, and what was computed of it.
//! Copying such bits is no fault; a branch, an address or a result that depends on them is (Valgrind's rule). Only frames that
//! hold such bits are followed.

use crate::compact::{Operand, Role};
use crate::finding::{Fault, Outcome};
use crate::op::{Access, Inst, Op, Pc, Program, Reg, Space};
use crate::regs::{Bank, LANES, Slot};

use super::access::lanes;
use super::cta::Cta;
use super::shade_bits::{computed_bits, moved_bits};
use super::undefined::{Origin, Shade, ones};
use super::warp::Warp;

impl Warp {
    /// Undefined bits came to a register.
    pub(super) fn shade_register(
        &mut self,
        frame: usize,
        (bank, slot, lane): (Bank, Slot, usize),
        bits: u64,
        origin: Option<Origin>,
    ) -> Outcome {
        let frame = self.frame(frame)?;
        if bits == 0 && frame.shade.is_none() {
            return Ok(());
        }
        let shade = frame.shade.get_or_insert_with(|| Box::new(Shade::new(&frame.regs, frame.params.len())));
        shade.set(bank, slot, lane, bits, origin);
        Ok(())
    }

    /// The undefined bits of a register, and where they come from.
    pub(super) fn shade_of(
        &self,
        frame: usize,
        bank: Bank,
        slot: Slot,
        lane: usize,
    ) -> (u64, Option<Origin>) {
        match self.frames[frame].as_ref().and_then(|f| f.shade.as_ref()) {
            Some(shade) if !shade.is_clear(bank, slot, 1 << lane) => {
                (shade.regs.bits(bank, slot, lane), shade.origin(bank, slot, lane))
            }
            _ => (0, None),
        }
    }

    /// Undefined bytes of the parameter area.
    pub(super) fn shade_params(
        &mut self,
        frame: usize,
        at: usize,
        mask: u32,
        bytes: u32,
        origin: Option<Origin>,
    ) {
        let Some(frame) = self.frames[frame].as_mut() else { return };
        if mask == 0 && frame.shade.is_none() {
            return;
        }
        let shade = frame.shade.get_or_insert_with(|| Box::new(Shade::new(&frame.regs, frame.params.len())));
        for byte in 0..bytes as usize {
            shade.params[at + byte] = (mask >> byte & 1) as u8;
        }
        if mask != 0 {
            shade.param_origin = origin;
        }
    }

    /// The undefined ones among some bytes of the parameter area.
    pub(super) fn params_shade(&self, frame: usize, at: usize, bytes: u32) -> (u32, Option<Origin>) {
        match self.frames[frame].as_ref().and_then(|f| f.shade.as_ref()) {
            Some(shade) => {
                let mask = (0..bytes as usize).fold(0, |m, b| m | u32::from(shade.params[at + b]) << b);
                (mask, shade.param_origin)
            }
            None => (0, None),
        }
    }

    /// The fault of depending on what nobody has defined. One from shared memory is reported at the end: if another warp
    /// turns out to write there, the fault is the missing barrier.
    pub(super) fn undefined(&self, origin: Option<Origin>, what: &'static str, cta: &mut Cta<'_>) -> Outcome {
        let Some(origin) = origin else { return Ok(()) };
        let line = cta.launch.line(self.place());
        let fault = origin.fault(what, line);
        let finding = cta.finding(*fault, self.index, origin.at);
        let races = if origin.shared {
            cta.launch.config.checks.shared_races
        } else {
            origin.global && cta.launch.config.checks.global_races
        };
        if races && cta.launch.threads() > 1 {
            cta.deferred.get_or_insert(finding);
            return Ok(());
        }
        let mut fault = Fault::new(finding.kind);
        (fault.lane, fault.address, fault.detail) =
            (finding.lane.map(|l| l as usize), finding.address, finding.detail);
        fault.other = finding.other;
        fault.at = Some(origin.at);
        Err(fault)
    }

    /// Follows undefined bits through an instruction that is about to be executed, if the frame has any.
    #[inline]
    pub(super) fn shade(
        &mut self,
        (program, pc): (&Program, Pc),
        frame: usize,
        (mask, active): (u32, u32),
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let Some(shade) = self.frames[frame].as_ref().and_then(|f| f.shade.as_ref()) else { return Ok(()) };
        let (inst, operands) = (&program.insts[pc as usize], &program.operands()[pc as usize]);
        let is_dark = |bank, slot| shade.dark(bank, slot) != 0;
        if !inst.guard.is_some_and(|guard| is_dark(Bank::Pred, guard.slot))
            && !operands.iter().any(|&(bank, slot, _)| is_dark(bank, slot))
        {
            return Ok(());
        }
        self.shade_through(inst, operands, frame, (mask, active), cta)?;
        if let Some(frame) = &mut self.frames[frame] {
            frame.shade.take_if(|shade| shade.is_empty());
        }
        Ok(())
    }

    fn shade_through(
        &mut self,
        inst: &Inst,
        operands: &[Operand],
        frame: usize,
        (mask, active): (u32, u32),
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let (unsure, origin) = self.shade_guard(inst, frame, mask, cta)?;
        if active != 0 {
            self.shade_op(inst, operands, frame, active, cta)?;
        }
        // Whether a result was written at all is undefined, whichever way it went.
        for &(bank, slot, _) in operands.iter().filter(|of| unsure != 0 && of.2 == Role::Write) {
            for lane in lanes(unsure) {
                self.shade_register(frame, (bank, slot, lane), ones(bank), origin)?;
            }
        }
        Ok(())
    }

    /// Follows undefined bits through what an instruction does in its active lanes.
    fn shade_op(
        &mut self,
        inst: &Inst,
        operands: &[Operand],
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        match &inst.op {
            // These follow their own data.
            Op::Load(access) => {
                self.shade_used(frame, access.addr.bank, access.addr.slot, active, "an address", cta)
            }
            Op::Store(access) => self.shade_store(access, frame, active, cta),
            Op::Call(_) | Op::Return | Op::Exit | Op::Nothing | Op::Branch { .. } => Ok(()),
            Op::BranchTable { index, .. } => {
                self.shade_used(frame, Bank::Word, *index, active, "a jump", cta)
            }
            Op::Shuffle(op) => {
                for slot in [op.lane, op.clamp, op.members] {
                    self.shade_used(frame, Bank::Word, slot, active, "a shuffle", cta)?;
                }
                self.shade_shuffle(op, frame, active)
            }
            Op::Mma(_) => {
                self.shade_mma(inst, frame, active);
                Ok(())
            }
            Op::WmmaMma(mma) => {
                self.shade_wmma(mma, frame, active);
                Ok(())
            }
            Op::WmmaLoad(access) | Op::WmmaStore(access) => {
                self.shade_used(frame, access.addr.bank, access.addr.slot, active, "an address", cta)?;
                access.stride.map_or(Ok(()), |slot| {
                    self.shade_used(frame, Bank::Word, slot, active, "an address", cta)
                })
            }
            Op::Atomic(_)
            | Op::CopyAsync(_)
            | Op::Bulk(_)
            | Op::Mbarrier(_)
            | Op::Barrier(_)
            | Op::LoadMatrix(_)
            | Op::StoreMatrix(_)
            | Op::StoreBulk(_)
            | Op::Service(_) => {
                for &(bank, slot, _) in operands.iter().filter(|of| of.2 == Role::Read) {
                    self.shade_used(frame, bank, slot, active, "what the instruction does", cta)?;
                }
                for &(bank, slot, _) in operands.iter().filter(|of| of.2 == Role::Write) {
                    self.clear(frame, bank, slot, active);
                }
                Ok(())
            }
            _ => {
                self.shade_lanes(inst, operands, frame, active);
                Ok(())
            }
        }
    }

    /// A store of undefined bits to global memory leaves a wrong result there. A strong one that has defined bits beside them is
    /// a message (the state of a tile in look-back: its status is defined, its sum is not where nobody reads it), and a copy.
    fn shade_store(&mut self, access: &Access, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        self.shade_used(frame, access.addr.bank, access.addr.slot, active, "an address", cta)?;
        if !matches!(access.space, Space::Global | Space::Generic) {
            return Ok(());
        }
        let width = 8 * u32::from(access.element_bytes);
        let all = if width == 64 { u64::MAX } else { (1 << width) - 1 };
        let is_whole = |of: &Reg| self.first_shade(frame, of.bank, of.slot, active).0 & all == all;
        let is_message = access.order.is_strong() && !access.regs.iter().all(is_whole);
        for reg in &access.regs {
            let (bits, origin) = self.first_shade(frame, reg.bank, reg.slot, active);
            // Padding may be copied along with what surrounds it.
            let whole_bytes = (0..8).all(|b| matches!(bits >> (8 * b) & 0xff, 0 | 0xff));
            let is_used = origin.is_some_and(|o| o.computed || o.clashes_with.is_some());
            let is_result = is_used || bits & all == all || !whole_bytes;
            if bits == 0 || !is_result || is_message && whole_bytes {
                continue;
            }
            if self.stores_globally(access.space, frame, access, active) {
                self.undefined(origin, "a result", cta)?;
                self.clear(frame, reg.bank, reg.slot, active);
            }
        }
        Ok(())
    }

    fn stores_globally(&self, space: Space, frame: usize, access: &crate::op::Access, active: u32) -> bool {
        if space == Space::Global {
            return true;
        }
        let Some(frame) = self.frames[frame].as_ref() else { return false };
        let list = super::access::addresses(&frame.regs, &access.addr);
        lanes(active).all(|lane| super::generic::resolve(space, list[lane]).0 == Space::Global)
    }

    /// The lanes in which it is undefined whether an instruction is executed, and why. A move under such a condition is a selection;
    /// anything else depends on it.
    fn shade_guard(
        &mut self,
        inst: &Inst,
        frame: usize,
        lanes_here: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome<(u32, Option<Origin>)> {
        let shade = self.frames[frame].as_ref().and_then(|f| f.shade.as_ref());
        let (Some(guard), Some(shade)) = (inst.guard, shade) else { return Ok((0, None)) };
        let unsure = shade.dark(Bank::Pred, guard.slot) & lanes_here;
        if unsure == 0 {
            return Ok((0, None));
        }
        let origin = shade.first_origin(Bank::Pred, guard.slot, unsure);
        let selects = matches!(
            inst.op,
            Op::Int(..)
                | Op::Float(..)
                | Op::Half(..)
                | Op::Compare(..)
                | Op::Convert(..)
                | Op::Rare(..)
                | Op::Cvt(_)
        );
        if selects {
            return Ok((unsure, origin));
        }
        self.undefined(origin, "a branch", cta)?;
        self.clear(frame, Bank::Pred, guard.slot, lanes_here);
        Ok((0, None))
    }

    fn first_shade(&self, frame: usize, bank: Bank, slot: Slot, active: u32) -> (u64, Option<Origin>) {
        let shade = self.frames[frame].as_ref().and_then(|f| f.shade.as_ref());
        let dark = shade.map_or(0, |shade| shade.dark(bank, slot) & active);
        lanes(dark).next().map_or((0, None), |lane| self.shade_of(frame, bank, slot, lane))
    }

    /// An operand on which more depends than a result.
    fn shade_used(
        &mut self,
        frame: usize,
        bank: Bank,
        slot: Slot,
        active: u32,
        what: &'static str,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let (bits, origin) = self.first_shade(frame, bank, slot, active);
        if bits != 0 {
            self.undefined(origin, what, cta)?;
            self.clear(frame, bank, slot, active);
        }
        Ok(())
    }

    fn clear(&mut self, frame: usize, bank: Bank, slot: Slot, active: u32) {
        if let Some(shade) = self.frames[frame].as_mut().and_then(|f| f.shade.as_mut()) {
            shade.clear(bank, slot, active);
        }
    }

    fn shade_shuffle(&mut self, op: &crate::op::Shuffle, frame: usize, active: u32) -> Outcome {
        let Some(frame) = self.frames[frame].as_mut() else { return Ok(()) };
        let Some(shade) = frame.shade.as_mut() else { return Ok(()) };
        if let Some(in_range) = op.in_range {
            // It depends on nothing but lane numbers, which are defined here.
            shade.clear(Bank::Pred, in_range, active);
        }
        if shade.is_clear(Bank::Word, op.value, active) {
            shade.clear(Bank::Word, op.result, active);
            return Ok(());
        }
        // The same shuffle, of the undefined bits.
        let mut moved = frame.regs.clone();
        moved.word[op.value as usize] = shade.regs.word[op.value as usize];
        for group in super::collective::by_mask(&frame.regs, op.members, active) {
            super::collective::shuffle(op, &mut moved, group, false)?;
        }
        // And of the lanes' numbers, which says where they come from.
        let mut from = frame.regs.clone();
        from.word[op.value as usize] = std::array::from_fn(|lane| lane as u32);
        for group in super::collective::by_mask(&frame.regs, op.members, active) {
            super::collective::shuffle(op, &mut from, group, false)?;
        }
        let origins: Vec<_> = from.word[op.result as usize]
            .iter()
            .map(|lane| shade.origin(Bank::Word, op.value, *lane as usize % LANES))
            .collect();
        for lane in lanes(active) {
            let bits = moved.bits(Bank::Word, op.result, lane);
            shade.set(Bank::Word, op.result, lane, bits, origins[lane]);
        }
        Ok(())
    }

    /// A row of A makes a row of D undefined, a column of B a column.
    fn shade_mma(&mut self, inst: &Inst, frame: usize, active: u32) {
        let Op::Mma(mma) = &inst.op else { return };
        let Some(shade) = self.frames[frame].as_mut().and_then(|f| f.shade.as_mut()) else { return };
        let (mut rows, mut columns, mut origin) = ([false; 16], [false; 8], None);
        let high = mma.m / 8;
        for (i, reg) in mma.a.iter().enumerate() {
            for lane in lanes(shade.dark(reg.bank, reg.slot)) {
                rows[lane / 4 + 8 * (i % high)] = true;
                origin = origin.or(shade.origin(reg.bank, reg.slot, lane));
            }
        }
        for reg in &mma.b {
            for lane in lanes(shade.dark(reg.bank, reg.slot)) {
                columns[lane / 4] = true;
                origin = origin.or(shade.origin(reg.bank, reg.slot, lane));
            }
        }
        let two = mma.d.len() == mma.m / 8;
        for (i, reg) in mma.d.iter().enumerate() {
            let from = mma.c[i];
            let values: Vec<(u64, Option<Origin>)> = (0..LANES)
                .map(|lane| {
                    let row = lane / 4 + 8 * if two { i } else { i / 2 };
                    let column = 2 * (lane % 4) + if two { 0 } else { i % 2 };
                    let taken = rows[row] || columns[column] || two && columns[column + 1];
                    let old = shade.regs.bits(from.bank, from.slot, lane);
                    let origin = origin
                        .or(shade.origin(from.bank, from.slot, lane))
                        .map(|o| Origin { computed: true, ..o });
                    (if taken || old != 0 { ones(reg.bank) } else { 0 }, origin)
                })
                .collect();
            for lane in lanes(active) {
                shade.set(reg.bank, reg.slot, lane, values[lane].0, values[lane].1);
            }
        }
    }

    /// An instruction whose every lane has its own operands.
    fn shade_lanes(&mut self, inst: &Inst, operands: &[Operand], frame: usize, active: u32) {
        let Some(frame) = self.frames[frame].as_mut() else { return };
        let Some(shade) = frame.shade.as_mut() else { return };
        let of = |wanted: Role| {
            operands.iter().filter(move |of| of.2 == wanted).map(|&(bank, slot, _)| (bank, slot))
        };
        if of(Role::Read).all(|(bank, slot)| shade.is_clear(bank, slot, active)) {
            of(Role::Write).for_each(|(bank, slot)| shade.clear(bank, slot, active));
            return;
        }
        let (reads, writes): (Vec<_>, Vec<_>) = (of(Role::Read).collect(), of(Role::Write).collect());
        let together = matches!(inst.op, Op::Collective(_) | Op::MoveMatrix { .. } | Op::Wgmma(_));
        let origin_of = |shade: &Shade, active: u32| {
            reads.iter().find_map(|(bank, slot)| shade.first_origin(*bank, *slot, active))
        };
        let any_origin = if together { origin_of(shade, active) } else { None };
        for lane in lanes(active) {
            let origin = any_origin.or_else(|| origin_of(shade, 1 << lane));
            let moved = if together { None } else { moved_bits(&inst.op, &frame.regs, &shade.regs, lane) };
            let computed =
                if together { None } else { computed_bits(&inst.op, &frame.regs, &shade.regs, lane) };
            for (at, (bank, slot)) in writes.iter().enumerate() {
                let (bits, computed) = match (&moved, computed) {
                    (_, Some(bits)) => (bits, true),
                    (Some(parts), _) => (parts[at.min(parts.len() - 1)], false),
                    _ => {
                        let any = |l: usize| reads.iter().any(|(b, s)| shade.regs.bits(*b, *s, l) != 0);
                        let taken = if together { lanes(active).any(any) } else { any(lane) };
                        (if taken { ones(*bank) } else { 0 }, true)
                    }
                };
                let origin = origin.map(|o| o.through(computed, lane, self.at));
                shade.set(*bank, *slot, lane, bits, origin);
            }
        }
    }
}
