//! Renumbers the registers of a function so that only those that it names take space, and lists those that each instruction
//! reads and writes.

use std::collections::HashMap;

use crate::fixed;
use crate::op::{
    Addr, BulkTo, Callee, Inst, MbarrierAction, MbarrierOp, Op, PhaseOperand, Program, Reg, SetCompare,
    SetResult, Touches, Wgmma, WgmmaA,
};
use crate::regs::{Bank, Slot, Slots};
use crate::table::Shape;

/// Gives the registers that the program names the numbers from 0 on, in order of appearance.
pub(crate) fn renumber(program: &mut Program) {
    let mut map: HashMap<(Bank, Slot), Slot> = HashMap::new();
    let mut counts = [0; 3];
    let mut number = |bank: Bank, slot: &mut Slot, _| {
        let count = &mut counts[bank as usize];
        *slot = *map.entry((bank, *slot)).or_insert_with(|| {
            *count += 1;
            *count as Slot - 1
        });
    };
    each_mut(program, &mut number);
    program.registers = counts;
}

/// The word registers that each instruction touches; empty for a function without `wgmma`, which needs no such list.
pub(crate) fn touches(program: &Program) -> Vec<Touches> {
    if !program.insts.iter().any(|inst| matches!(inst.op, Op::Wgmma(_))) {
        return Vec::new();
    }
    let one = |inst: &Inst| {
        let mut touches = Touches::default();
        let mut note = |bank: Bank, slot: &mut Slot, role: Role| match (bank, role) {
            (Bank::Word, Role::Read) => touches.reads.push(*slot),
            (Bank::Word, Role::Write) => touches.writes.push(*slot),
            _ => {}
        };
        Visitor(&mut note).op(&mut inst.op.clone());
        touches
    };
    program.insts.iter().map(one).collect()
}

/// Notes with each instruction the predicates that it writes of which the program's list says that they are conditions.
pub(crate) fn name_decisions(program: &mut Program) {
    for (inst, conditions) in program.insts.iter_mut().zip(&program.conditions) {
        inst.chooses = conditions >> 1 & 1 == 1 && fixed::orders(&inst.op).is_some();
        if conditions >> 1 != 0 {
            let operands = operands(std::slice::from_ref(inst));
            for (number, slot) in fixed::predicates(&operands[0]).enumerate().take(2) {
                if conditions >> (1 + number) & 1 == 1 {
                    inst.decides[number] = slot;
                }
            }
        }
    }
}

/// Calls `f` with every register of a program, constants first.
pub(crate) fn each_mut(program: &mut Program, f: &mut impl FnMut(Bank, &mut Slot, Role)) {
    for constant in &mut program.constants {
        f(constant.bank, &mut constant.slot, Role::Write);
    }
    program.insts.iter_mut().for_each(|inst| each_of(inst, f));
}

/// Calls `f` with every register of an instruction, its guard included.
pub(crate) fn each_of(inst: &mut Inst, f: &mut impl FnMut(Bank, &mut Slot, Role)) {
    if let Some(guard) = &mut inst.guard {
        f(Bank::Pred, &mut guard.slot, Role::Read);
    }
    Visitor(f).op(&mut inst.op);
}

/// A register of an operation.
pub(crate) type Operand = (Bank, Slot, Role);

/// The registers of every instruction's operation.
pub(crate) fn operands(insts: &[Inst]) -> Vec<Box<[Operand]>> {
    let of = |inst: &Inst| {
        let mut operands = Vec::new();
        each(&inst.op, &mut |bank, slot, role| operands.push((bank, slot, role)));
        operands.into_boxed_slice()
    };
    insts.iter().map(of).collect()
}

/// Calls `f` with every register that an operation reads or writes.
pub(crate) fn each(op: &Op, f: &mut dyn FnMut(Bank, Slot, Role)) {
    let mut op = op.clone();
    Visitor(&mut |bank: Bank, slot: &mut Slot, role: Role| f(bank, *slot, role)).op(&mut op);
}

/// What an instruction does with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Read,
    Write,
}

/// Calls a function with every register of an operation.
struct Visitor<'f, F: FnMut(Bank, &mut Slot, Role)>(&'f mut F);

impl<F: FnMut(Bank, &mut Slot, Role)> Visitor<'_, F> {
    fn slot(&mut self, bank: Bank, slot: &mut Slot) {
        (self.0)(bank, slot, Role::Read);
    }

    fn result(&mut self, bank: Bank, slot: &mut Slot) {
        (self.0)(bank, slot, Role::Write);
    }

    fn written(&mut self, reg: &mut Reg) {
        self.result(reg.bank, &mut reg.slot);
    }

    fn words_written(&mut self, slots: &mut [Slot]) {
        slots.iter_mut().for_each(|s| self.result(Bank::Word, s));
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
        for (slot, shape) in slots[1..].iter_mut().zip(args) {
            self.slot(shape.bank, slot);
        }
        self.result(result.bank, &mut slots[0]);
    }

    fn three_words(&mut self, slots: &mut Slots) {
        slots[1..4].iter_mut().for_each(|s| self.word(s));
        self.result(Bank::Word, &mut slots[0]);
    }

    fn op(&mut self, op: &mut Op) {
        match op {
            Op::Int(op, s) => self.lane(s, op.shapes()),
            Op::Float(op, s) => self.lane(s, op.shapes()),
            Op::Half(op, s) => self.lane(s, op.shapes()),
            Op::Compare(op, s) => self.lane(s, op.shapes()),
            Op::Convert(op, s) => self.lane(s, op.shapes()),
            Op::Rare(op, s) => self.lane(s, op.shapes()),
            Op::Set(set) => self.set_compare(set),
            Op::Alloca { result, bytes, .. } => {
                self.reg(bytes);
                self.written(result);
            }
            Op::MapRank { result, address, rank, .. } => {
                self.reg(address);
                self.word(rank);
                self.written(result);
            }
            Op::RankOf { result, address, .. } => {
                self.reg(address);
                self.result(Bank::Word, result);
            }
            Op::StackSave(reg) => self.written(reg),
            Op::StackRestore(reg) => self.reg(reg),
            Op::Cvt(cvt) => {
                self.reg(&mut cvt.operand);
                self.written(&mut cvt.result);
            }
            Op::CvtPack { slots, .. } => self.three_words(slots),
            Op::Video(video) => self.three_words(&mut video.slots),
            Op::VideoMad(mad) => self.three_words(&mut mad.slots),
            Op::Carry(carry) => {
                // One that is read and written is named once by what it was before, as its number may change.
                let mut read = carry.flag;
                if carry.carry_in {
                    self.pred(&mut read);
                }
                if carry.carry_out {
                    self.result(Bank::Pred, &mut carry.flag);
                } else {
                    carry.flag = read;
                }
                carry.regs[1..].iter_mut().for_each(|r| self.reg(r));
                self.written(&mut carry.regs[0]);
            }
            Op::Combine { compared, c, p, q, .. } => {
                [compared, c].into_iter().for_each(|s| self.pred(s));
                [p, q].into_iter().for_each(|s| self.result(Bank::Pred, s));
            }
            Op::Pack(pack) => {
                pack.1.iter_mut().for_each(|r| self.reg(r));
                self.written(&mut pack.0);
            }
            Op::Unpack(unpack) => {
                self.reg(&mut unpack.1);
                unpack.0.iter_mut().flatten().for_each(|r| self.written(r));
            }
            Op::Timer(_, reg) => self.written(reg),
            Op::Load(access) => {
                self.addr(&mut access.addr);
                access.regs.iter_mut().for_each(|r| self.written(r));
            }
            Op::Store(access) => {
                self.addr(&mut access.addr);
                access.regs.iter_mut().for_each(|r| self.reg(r));
            }
            Op::Atomic(atomic) => {
                self.addr(&mut atomic.addr);
                self.reg(&mut atomic.operand);
                atomic.swap.iter_mut().for_each(|r| self.reg(r));
                atomic.result.iter_mut().for_each(|r| self.written(r));
                if let Some([result, operand, swap]) = &mut atomic.wide {
                    self.reg(operand);
                    self.reg(swap);
                    self.written(result);
                }
            }
            Op::CopyAsync(copy) => {
                self.addr(&mut copy.to);
                self.addr(&mut copy.from);
                copy.source_bytes.iter_mut().for_each(|r| self.reg(r));
                copy.ignore.iter_mut().for_each(|p| self.pred(p));
            }
            Op::LoadMatrix(matrix) => {
                self.addr(&mut matrix.addr);
                self.words_written(&mut matrix.regs);
            }
            Op::StoreMatrix(matrix) => {
                self.addr(&mut matrix.addr);
                matrix.regs.iter_mut().for_each(|s| self.word(s));
            }
            op => self.warp_op(op),
        }
    }

    fn set_compare(&mut self, set: &mut SetCompare) {
        self.reg(&mut set.a);
        self.reg(&mut set.b);
        if let Some((_, slot, _)) = &mut set.with {
            self.pred(slot);
        }
        match &mut set.result {
            SetResult::Mask(reg) | SetResult::One(reg, _) => self.written(reg),
            SetResult::Preds(p, q) => [p, q].into_iter().for_each(|s| self.result(Bank::Pred, s)),
        }
    }

    fn mbarrier(&mut self, op: &mut MbarrierOp) {
        self.addr(&mut op.addr);
        match &mut op.action {
            MbarrierAction::Init { count: word }
            | MbarrierAction::ExpectTx(word)
            | MbarrierAction::CompleteTx(word) => self.word(word),
            MbarrierAction::Invalidate => {}
            MbarrierAction::Arrive { count, bytes, state, .. } => {
                count.iter_mut().chain(bytes).for_each(|s| self.word(s));
                state.iter_mut().for_each(|r| self.written(r));
            }
            MbarrierAction::Wait { result, phase, .. } => {
                self.result(Bank::Pred, result);
                match phase {
                    PhaseOperand::Parity(word) => self.word(word),
                    PhaseOperand::State(state) => self.slot(Bank::Double, state),
                }
            }
        }
    }

    fn wgmma(&mut self, op: &mut Wgmma) {
        match &mut op.a {
            WgmmaA::Shared(slot) => self.slot(Bank::Double, slot),
            WgmmaA::Registers(slots) => slots.iter_mut().for_each(|s| self.word(s)),
        }
        self.slot(Bank::Double, &mut op.b);
        self.pred(&mut op.scale_d);
        self.words_written(&mut op.d);
    }

    fn warp_op(&mut self, op: &mut Op) {
        match op {
            Op::MoveMatrix { result, value } => {
                self.word(value);
                self.result(Bank::Word, result);
            }
            Op::Mma(mma) => {
                let lists = [&mut mma.a, &mut mma.b, &mut mma.c];
                lists.into_iter().flatten().for_each(|r| self.reg(r));
                if let Some((places, _)) = &mut mma.sparse {
                    self.word(places);
                }
                mma.d.iter_mut().for_each(|r| self.written(r));
            }
            Op::WmmaLoad(access) => {
                self.addr(&mut access.addr);
                access.stride.iter_mut().for_each(|s| self.word(s));
                access.regs.iter_mut().for_each(|r| self.written(r));
            }
            Op::WmmaStore(access) => {
                self.addr(&mut access.addr);
                access.stride.iter_mut().for_each(|s| self.word(s));
                access.regs.iter_mut().for_each(|r| self.reg(r));
            }
            Op::WmmaMma(mma) => {
                let lists = [&mut mma.a, &mut mma.b, &mut mma.c];
                lists.into_iter().flatten().for_each(|r| self.reg(r));
                mma.d.iter_mut().for_each(|r| self.written(r));
            }
            Op::Shuffle(op) => {
                let words = [&mut op.value, &mut op.lane, &mut op.clamp, &mut op.members];
                words.into_iter().for_each(|s| self.word(s));
                self.result(Bank::Word, &mut op.result);
                op.in_range.iter_mut().for_each(|p| self.result(Bank::Pred, p));
            }
            Op::Collective(op) => {
                self.reg(&mut op.value);
                self.word(&mut op.members);
                op.result.iter_mut().for_each(|r| self.written(r));
                op.pred.iter_mut().for_each(|p| self.result(Bank::Pred, p));
            }
            Op::Barrier(barrier) => {
                self.word(&mut barrier.id);
                barrier.threads.iter_mut().for_each(|s| self.word(s));
                if let Some((_, reg, pred, _)) = &mut barrier.reduction {
                    self.written(reg);
                    self.pred(pred);
                }
            }
            Op::Mbarrier(op) => self.mbarrier(op),
            Op::Bulk(op) => {
                self.addr(&mut op.shared);
                self.addr(&mut op.global);
                match &mut op.to {
                    BulkTo::Shared { mbarrier, mask, .. } => {
                        self.addr(mbarrier);
                        mask.iter_mut().for_each(|s| self.word(s));
                    }
                    BulkTo::Peer { mbarrier } | BulkTo::Answer { mbarrier, .. } => self.addr(mbarrier),
                    BulkTo::Global { byte_mask } => byte_mask.iter_mut().for_each(|s| self.word(s)),
                }
                let offsets = op.offsets.iter_mut().flatten();
                op.bytes.iter_mut().chain(&mut op.coordinates).chain(offsets).for_each(|s| self.word(s));
            }
            Op::StoreBulk(op) => {
                self.addr(&mut op.addr);
                self.reg(&mut op.size);
            }
            Op::StoreAsync(op) => {
                self.addr(&mut op.addr);
                self.addr(&mut op.mbarrier);
                op.regs.iter_mut().for_each(|r| self.reg(r));
            }
            Op::TensorMapReplace(op) => {
                self.addr(&mut op.addr);
                self.reg(&mut op.value);
            }
            Op::TensorMapCopy { to, from, .. } => {
                self.addr(to);
                self.addr(from);
            }
            Op::CopyArrive(op) => self.addr(&mut op.addr),
            Op::ActiveMask(slot) => self.result(Bank::Word, slot),
            Op::WarpBarrier(slot) => self.word(slot),
            Op::Wgmma(op) => self.wgmma(op),
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
