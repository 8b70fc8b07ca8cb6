//! Which conditions of a function follow from a thread's number alone: these are the same in every launch, whatever its parameters, its
//! memory and its CTA are.

use crate::compact::{self, Operand, Role};
use crate::op::{Constant, EXIT, Op, Pc, Program, Special};
use crate::regs::{Bank, LANES, Regs, Slot, Slots};
use crate::table::integer::IntOp;

/// What an instruction's conditions are: bit 0 its guard, bits 1 and 2 the predicates that it writes, in their order; bit 1 also whether an integer
/// is less than the constant that it is cut to.
pub(crate) type Conditions = u8;

/// The conditions of each instruction that anything but a thread's number decides. Of the predicates that it writes those that are read by more
/// than guards: a guard is a condition itself. To be asked before registers share places.
pub(crate) fn conditions(program: &Program) -> Vec<Conditions> {
    let operands = compact::operands(&program.insts);
    let varying = Varying::of(program, &operands);
    let mut is_read = vec![false; program.registers[Bank::Pred as usize]];
    for &(_, slot, _) in operands.iter().flatten().filter(|of| (of.0, of.2) == (Bank::Pred, Role::Read)) {
        is_read[slot as usize] = true;
    }
    let of = |at: usize| {
        let guard = program.insts[at].guard.is_some_and(|guard| varying.has(Bank::Pred, guard.slot));
        let mut conditions = u8::from(guard);
        let is_decided = is_of_a_lane(&program.insts[at].op)
            && operands[at].iter().any(|&(bank, slot, role)| role == Role::Read && varying.has(bank, slot));
        for (number, slot) in predicates(&operands[at]).enumerate().take(2) {
            conditions |= u8::from(is_decided && is_read[slot as usize]) << (1 + number);
        }
        let of_constant = |&(bank, slot, role): &Operand| {
            role == Role::Read
                && program.constants.iter().any(|constant| (constant.bank, constant.slot) == (bank, slot))
        };
        let is_cut = orders(&program.insts[at].op).is_some() && operands[at].iter().any(of_constant);
        conditions |= u8::from(is_decided && is_cut) << 1;
        conditions
    };
    (0..program.insts.len()).map(of).collect()
}

/// The operands of a minimum or maximum of two integers, and how they are ordered.
pub(crate) fn orders(op: &Op) -> Option<(Slots, Order)> {
    use IntOp::{MaxSDouble, MaxSHalf, MaxSWord, MaxUDouble, MaxUHalf, MaxUWord};
    use IntOp::{MinSDouble, MinSHalf, MinSWord, MinUDouble, MinUHalf, MinUWord};
    let Op::Int(op, slots) = op else { return None };
    let order = match op {
        MinUHalf | MaxUHalf | MinUWord | MaxUWord => Order { is_signed: false, bits: 32 },
        MinSHalf | MaxSHalf => Order { is_signed: true, bits: 16 },
        MinSWord | MaxSWord => Order { is_signed: true, bits: 32 },
        MinUDouble | MaxUDouble => Order { is_signed: false, bits: 64 },
        MinSDouble | MaxSDouble => Order { is_signed: true, bits: 64 },
        _ => return None,
    };
    Some((*slots, order))
}

/// How integers are ordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    is_signed: bool,
    bits: u32,
}

impl Order {
    /// The lanes in which the first is the less, and those in which it is the larger.
    pub(crate) fn lanes(self, regs: &Regs, slots: &Slots) -> [u32; 2] {
        let bank = if self.bits == 64 { Bank::Double } else { Bank::Word };
        let value = |slot: Slot, lane: usize| {
            let value = regs.bits(bank, slot, lane);
            // In the order of their bits, whatever the sign.
            if self.is_signed { (value << (64 - self.bits)) ^ (1 << 63) } else { value }
        };
        let mut found = [0; 2];
        for lane in 0..LANES {
            let (a, b) = (value(slots[1], lane), value(slots[2], lane));
            found[0] |= u32::from(a < b) << lane;
            found[1] |= u32::from(a > b) << lane;
        }
        found
    }
}

/// The predicates that an operation writes.
pub(crate) fn predicates(operands: &[Operand]) -> impl Iterator<Item = Slot> {
    operands
        .iter()
        .filter(|(bank, _, role)| (*bank, *role) == (Bank::Pred, Role::Write))
        .map(|(_, slot, _)| *slot)
}

/// Whether a lane's result follows from what the lane's operands are.
fn is_of_a_lane(op: &Op) -> bool {
    matches!(
        op,
        Op::Int(..)
            | Op::Float(..)
            | Op::Half(..)
            | Op::Compare(..)
            | Op::Convert(..)
            | Op::Rare(..)
            | Op::Set(_)
            | Op::Cvt(_)
            | Op::CvtPack { .. }
            | Op::Combine { .. }
            | Op::Pack(_)
            | Op::Unpack(_)
    )
}

/// Registers whose values anything but a thread's number decides.
struct Varying([Vec<bool>; 3]);

impl Varying {
    fn of(program: &Program, operands: &[Box<[Operand]>]) -> Varying {
        let mut varying = Varying(program.registers.map(|count| vec![false; count]));
        let mut writes = program.registers.map(|count| vec![0_u32; count]);
        for &(bank, slot, role) in operands.iter().flatten() {
            writes[bank as usize][slot as usize] += u32::from(role == Role::Write);
        }
        for constant in &program.constants {
            varying.0[constant.bank as usize][constant.slot as usize] = !is_fixed(constant.value);
        }
        // What lies between a varying branch and where its ways meet again is executed or not.
        let mut is_optional = vec![false; program.insts.len()];
        let mut is_followed = vec![false; program.insts.len()];
        loop {
            let mut changes = false;
            for (at, inst) in program.insts.iter().enumerate() {
                let is_guarded = inst.guard.is_some_and(|guard| varying.has(Bank::Pred, guard.slot));
                let reads = |of: &Operand| of.2 == Role::Read && varying.has(of.0, of.1);
                let from_varying = !is_or_exchanges(&inst.op) || operands[at].iter().any(reads);
                let is_switch = matches!(inst.op, Op::BranchTable { .. }) && operands[at].iter().any(reads);
                if (is_guarded || is_switch) && !std::mem::replace(&mut is_followed[at], true) {
                    follow(program, at, &mut is_optional);
                    changes = true;
                }
                for &(bank, slot, _) in operands[at].iter().filter(|operand| operand.2 == Role::Write) {
                    let is_one_of_several = writes[bank as usize][slot as usize] > 1;
                    if from_varying || is_guarded || (is_optional[at] && is_one_of_several) {
                        changes |= !std::mem::replace(&mut varying.0[bank as usize][slot as usize], true);
                    }
                }
            }
            if !changes {
                return varying;
            }
        }
    }

    fn has(&self, bank: Bank, slot: Slot) -> bool {
        self.0[bank as usize][slot as usize]
    }
}

/// Also what lanes of a warp hand each other, of which each has its number.
fn is_or_exchanges(op: &Op) -> bool {
    is_of_a_lane(op) || matches!(op, Op::Shuffle(_) | Op::Collective(_))
}

fn is_fixed(value: Constant) -> bool {
    use Special::{
        LaneId, LaneMaskEq, LaneMaskGe, LaneMaskGt, LaneMaskLe, LaneMaskLt, Ntid, Tid, WarpCount, WarpId,
    };
    match value {
        Constant::Bits(_) => true,
        Constant::Special(special) => matches!(
            special,
            Tid(_)
                | Ntid(_)
                | LaneId
                | WarpId
                | WarpCount
                | LaneMaskEq
                | LaneMaskLe
                | LaneMaskLt
                | LaneMaskGe
                | LaneMaskGt
        ),
        Constant::Variable(..) | Constant::Local(..) | Constant::Function(_) => false,
    }
}

/// Marks what follows a branch up to where its ways meet.
fn follow(program: &Program, branch: usize, marked: &mut [bool]) {
    let end = match &program.insts[branch].op {
        Op::Branch { reconverge, .. } | Op::BranchTable { reconverge, .. } => *reconverge,
        _ => return,
    };
    let mut left: Vec<Pc> = next(program, branch).collect();
    while let Some(at) = left.pop() {
        if at != end && at != EXIT && !std::mem::replace(&mut marked[at as usize], true) {
            left.extend(next(program, at as usize));
        }
    }
}

/// Where control may go behind an instruction.
pub(crate) fn next(program: &Program, at: usize) -> impl Iterator<Item = Pc> {
    let inst = &program.insts[at];
    let (targets, goes_on): (&[Pc], bool) = match &inst.op {
        Op::Branch { target, .. } => (std::slice::from_ref(target), inst.guard.is_some()),
        Op::BranchTable { targets, .. } => (targets, inst.guard.is_some()),
        Op::Return | Op::Exit | Op::Trap => (&[], inst.guard.is_some()),
        _ => (&[], true),
    };
    let behind = (goes_on && at + 1 < program.insts.len()).then_some(at as Pc + 1);
    targets.iter().copied().chain(behind)
}
