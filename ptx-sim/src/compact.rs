//! Renumbers the registers of a function so that only those that it names take space.

use std::collections::HashMap;

use crate::op::{Addr, BulkTo, Callee, MbarrierAction, MbarrierOp, Op, PhaseOperand, Program, Reg};
use crate::regs::{Bank, Slot, Slots};
use crate::table::Shape;

/// Gives the registers that the program names the numbers from 0 on, in order of appearance.
pub(crate) fn renumber(program: &mut Program) {
    let mut numbers = Numbers::default();
    for constant in &mut program.constants {
        numbers.slot(constant.bank, &mut constant.slot);
    }
    for inst in &mut program.insts {
        if let Some(guard) = &mut inst.guard {
            numbers.slot(Bank::Pred, &mut guard.slot);
        }
        numbers.op(&mut inst.op);
    }
    program.registers = numbers.counts;
}

/// New numbers by bank and old number.
#[derive(Default)]
struct Numbers {
    map: HashMap<(Bank, Slot), Slot>,
    counts: [usize; 3],
}

impl Numbers {
    fn slot(&mut self, bank: Bank, slot: &mut Slot) {
        let count = &mut self.counts[bank as usize];
        *slot = *self.map.entry((bank, *slot)).or_insert_with(|| {
            *count += 1;
            *count as Slot - 1
        });
    }

    fn word(&mut self, slot: &mut Slot) {
        self.slot(Bank::Word, slot);
    }

    fn pred(&mut self, slot: &mut Slot) {
        self.slot(Bank::Pred, slot);
    }

    fn reg(&mut self, reg: &mut Reg) {
        self.slot(reg.bank, &mut reg.slot);
    }

    fn addr(&mut self, addr: &mut Addr) {
        self.slot(addr.bank, &mut addr.slot);
    }

    fn lane(&mut self, slots: &mut Slots, (result, args): (Shape, &'static [Shape])) {
        self.slot(result.bank, &mut slots[0]);
        for (slot, shape) in slots[1..].iter_mut().zip(args) {
            self.slot(shape.bank, slot);
        }
    }

    fn op(&mut self, op: &mut Op) {
        match op {
            Op::Int(op, s) => self.lane(s, op.shapes()),
            Op::Float(op, s) => self.lane(s, op.shapes()),
            Op::Half(op, s) => self.lane(s, op.shapes()),
            Op::Compare(op, s) => self.lane(s, op.shapes()),
            Op::Convert(op, s) => self.lane(s, op.shapes()),
            Op::Cvt(cvt) => {
                self.reg(&mut cvt.operand);
                self.reg(&mut cvt.result);
            }
            Op::CvtPack { slots, .. } => slots[..3].iter_mut().for_each(|s| self.word(s)),
            Op::Carry(carry) => {
                self.pred(&mut carry.flag);
                carry.regs.iter_mut().for_each(|r| self.reg(r));
            }
            Op::Combine { compared, c, p, q, .. } => {
                [compared, c, p, q].into_iter().for_each(|s| self.pred(s))
            }
            Op::Pack(pack) => {
                pack.1.iter_mut().for_each(|r| self.reg(r));
                self.reg(&mut pack.0);
            }
            Op::Unpack(unpack) => {
                self.reg(&mut unpack.1);
                unpack.0.iter_mut().flatten().for_each(|r| self.reg(r));
            }
            Op::Timer(_, reg) => self.reg(reg),
            Op::Load(access) | Op::Store(access) => {
                self.addr(&mut access.addr);
                access.regs.iter_mut().for_each(|r| self.reg(r));
            }
            Op::Atomic(atomic) => {
                self.addr(&mut atomic.addr);
                self.reg(&mut atomic.operand);
                atomic.swap.iter_mut().chain(&mut atomic.result).for_each(|r| self.reg(r));
            }
            Op::CopyAsync(copy) => {
                self.addr(&mut copy.to);
                self.addr(&mut copy.from);
                copy.source_bytes.iter_mut().for_each(|r| self.reg(r));
                copy.ignore.iter_mut().for_each(|p| self.pred(p));
            }
            Op::LoadMatrix(matrix) | Op::StoreMatrix(matrix) => {
                self.addr(&mut matrix.addr);
                matrix.regs.iter_mut().for_each(|s| self.word(s));
            }
            op => self.warp_op(op),
        }
    }

    fn mbarrier(&mut self, op: &mut MbarrierOp) {
        self.addr(&mut op.addr);
        match &mut op.action {
            MbarrierAction::Init { count: word }
            | MbarrierAction::ExpectTx(word)
            | MbarrierAction::CompleteTx(word) => self.word(word),
            MbarrierAction::Invalidate => {}
            MbarrierAction::Arrive { count, bytes, state } => {
                count.iter_mut().chain(bytes).for_each(|s| self.word(s));
                state.iter_mut().for_each(|r| self.reg(r));
            }
            MbarrierAction::Wait { result, phase } => {
                self.pred(result);
                match phase {
                    PhaseOperand::Parity(word) => self.word(word),
                    PhaseOperand::State(state) => self.slot(Bank::Double, state),
                }
            }
        }
    }

    fn warp_op(&mut self, op: &mut Op) {
        match op {
            Op::MoveMatrix { result, value } => [value, result].into_iter().for_each(|s| self.word(s)),
            Op::Mma(mma) => {
                let lists = [&mut mma.a, &mut mma.b, &mut mma.c, &mut mma.d];
                lists.into_iter().flatten().for_each(|s| self.word(s));
            }
            Op::WmmaLoad(access) | Op::WmmaStore(access) => {
                self.addr(&mut access.addr);
                access.stride.iter_mut().chain(&mut access.regs).for_each(|s| self.word(s));
            }
            Op::WmmaMma(mma) => {
                let lists = [&mut mma.a, &mut mma.b, &mut mma.c, &mut mma.d];
                lists.into_iter().flatten().for_each(|s| self.word(s));
            }
            Op::Shuffle(op) => {
                let words = [&mut op.value, &mut op.lane, &mut op.clamp, &mut op.members, &mut op.result];
                words.into_iter().for_each(|s| self.word(s));
                op.in_range.iter_mut().for_each(|p| self.pred(p));
            }
            Op::Collective(op) => {
                self.reg(&mut op.value);
                self.word(&mut op.members);
                op.result.iter_mut().for_each(|r| self.reg(r));
                op.pred.iter_mut().for_each(|p| self.pred(p));
            }
            Op::Barrier(barrier) => {
                self.word(&mut barrier.id);
                barrier.threads.iter_mut().for_each(|s| self.word(s));
                if let Some((_, reg, pred, _)) = &mut barrier.reduction {
                    self.reg(reg);
                    self.pred(pred);
                }
            }
            Op::Mbarrier(op) => self.mbarrier(op),
            Op::Bulk(op) => {
                self.addr(&mut op.shared);
                self.addr(&mut op.global);
                if let BulkTo::Shared { mbarrier, .. } = &mut op.to {
                    self.addr(mbarrier);
                }
                op.bytes.iter_mut().chain(&mut op.coordinates).for_each(|s| self.word(s));
            }
            Op::CopyArrive(op) => self.addr(&mut op.addr),
            Op::ActiveMask(slot) | Op::WarpBarrier(slot) => self.word(slot),
            Op::BranchTable { index, .. } => self.word(index),
            Op::Call(call) => {
                if let Callee::Register(slot) = &mut call.callee {
                    self.slot(Bank::Double, slot);
                }
            }
            // What is left names no registers.
            _ => {}
        }
    }
}
