//! Plain reads of what a compare-and-swap then expects. Loops around `atomicCAS` begin with one, the programming guide's own too
//! (CUDA C++ Programming Guide, Atomic Functions): whatever it gives, the comparison tells. Such a read counts as relaxed.
//!
//! What is read comes to the comparison by copies: of registers, and in debug builds by the stack and by parameters of functions.

use std::collections::HashMap;

use crate::compact::{self, Role};
use crate::op::{Access, AtomicOp, Call, Callee, Constant, MemoryOrder, Op, Program, Scope, Space};
use crate::regs::{Bank, Slot};

/// Where a value is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Register(Bank, Slot),
    /// A byte offset of the frame's parameter area.
    Parameter(i64),
    /// At an offset from a register, whatever its space.
    Stack(Slot, i64),
}

/// The places of one function whose values a compare-and-swap of some scope expects.
type Expected = HashMap<Place, Option<Scope>>;

/// Makes those reads relaxed, in the scope of the compare-and-swap. Registers do not share places yet.
pub(super) fn relax(programs: &mut [Program]) {
    let mut all: Vec<Expected> = programs.iter().map(compared).collect();
    let mut changed: Vec<bool> = all.iter().map(|expected| !expected.is_empty()).collect();
    while changed.contains(&true) {
        let callees = std::mem::replace(&mut changed, vec![false; programs.len()]);
        for (index, program) in programs.iter().enumerate() {
            let known = all[index].len();
            let passed = arguments(program, programs, &all, &callees);
            all[index].extend(passed);
            if all[index].len() > known || callees[index] {
                copies(program, &mut all[index]);
            }
            changed[index] = all[index].len() > known;
        }
    }
    for (program, expected) in programs.iter_mut().zip(&all).filter(|(_, expected)| !expected.is_empty()) {
        for inst in &mut program.insts {
            if let Op::Load(access) = &mut inst.op
                && matches!(access.space, Space::Global | Space::Shared | Space::Cluster | Space::Generic)
                && !access.order.is_strong()
                && let Some(scope) = scope_of(access, expected)
            {
                access.order = MemoryOrder { scope, ..access.order };
            }
        }
    }
}

/// What the compare-and-swaps of a function expect.
fn compared(program: &Program) -> Expected {
    let mut expected = Expected::new();
    for inst in &program.insts {
        if let Op::Atomic(atomic) = &inst.op
            && atomic.op == AtomicOp::CompareAndSwap
        {
            let halves = std::iter::once(atomic.operand).chain(atomic.wide.map(|wide| wide[1]));
            expected.extend(halves.map(|reg| (Place::Register(reg.bank, reg.slot), atomic.order.scope)));
        }
    }
    expected
}

/// Arguments that a called function expects, of those about which something new is known.
fn arguments(program: &Program, programs: &[Program], all: &[Expected], changed: &[bool]) -> Expected {
    let mut list = Expected::new();
    let calls = program.insts.iter().filter_map(|inst| match &inst.op {
        Op::Call(call) => Some(&**call),
        _ => None,
    });
    for Call { callee, args, .. } in calls {
        let Callee::Function(index) = *callee else { continue };
        let index = index as usize;
        if !changed[index] {
            continue;
        }
        for (arg, formal) in args.iter().zip(&programs[index].params) {
            if let Some(scope) = all[index].get(&Place::Parameter(formal.offset.into())) {
                list.insert(Place::Parameter(arg.0.into()), *scope);
            }
        }
    }
    list
}

/// Adds the places that those values were copied from.
fn copies(program: &Program, expected: &mut Expected) {
    let mut known = 0;
    while known != expected.len() {
        known = expected.len();
        for inst in &program.insts {
            match &inst.op {
                Op::Load(access) => {
                    if let (Some(place), Some(scope)) = (place(access, program), scope_of(access, expected)) {
                        expected.entry(place).or_insert(scope);
                    }
                }
                Op::Store(access) => {
                    let scope = place(access, program).and_then(|place| expected.get(&place).copied());
                    if let (Some(scope), [reg]) = (scope, &*access.regs) {
                        expected.entry(Place::Register(reg.bank, reg.slot)).or_insert(scope);
                    }
                }
                // What makes one register of one other is a copy, or the same bits as another type.
                Op::Int(..) | Op::Convert(..) | Op::Cvt(_) => {
                    let (mut reads, mut scope) = (Vec::new(), None);
                    compact::each(&inst.op, &mut |bank, slot, role| match role {
                        Role::Read => reads.push(Place::Register(bank, slot)),
                        Role::Write => scope = expected.get(&Place::Register(bank, slot)).copied(),
                    });
                    if let ([read], Some(scope)) = (&*reads, scope) {
                        expected.entry(*read).or_insert(scope);
                    }
                }
                _ => {}
            }
        }
    }
}

fn scope_of(access: &Access, expected: &Expected) -> Option<Option<Scope>> {
    access.regs.iter().find_map(|reg| expected.get(&Place::Register(reg.bank, reg.slot))).copied()
}

/// A place of one value in a function's own memory. A generic address may be one of the stack, where the function has one.
fn place(access: &Access, program: &Program) -> Option<Place> {
    match (access.space, &*access.regs) {
        (Space::Frame, [_]) => {
            let base = program
                .constants
                .iter()
                .find(|c| (c.bank, c.slot) == (access.addr.bank, access.addr.slot))?;
            let Constant::Bits(at) = base.value else { return None };
            Some(Place::Parameter(at as i64 + access.addr.offset))
        }
        (Space::Local | Space::Generic, [_]) if program.local_bytes > 0 => {
            Some(Place::Stack(access.addr.slot, access.addr.offset))
        }
        _ => None,
    }
}
