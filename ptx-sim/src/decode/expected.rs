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

/// A compare-and-swap, as far as it matters to the read before it.
#[derive(Clone, Copy)]
struct Swap {
    scope: Option<Scope>,
    bytes: u8,
}

/// The places of one function whose values a compare-and-swap expects.
type Expected = HashMap<Place, Swap>;

/// Makes those reads relaxed, in the scope and of the size of the compare-and-swap: 16 bytes are read as two halves, 8 perhaps
/// too. Registers do not share places yet.
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
        let swaps: Vec<Option<Swap>> = (0..program.insts.len())
            .map(|at| read(program, at).and_then(|access| swap_of(access, expected)))
            .collect();
        // A read of two numbers that are swapped as one may become two reads: of each, and of both.
        let again = |at: usize| {
            let (this, neighbours) = (read(program, at)?, [at.wrapping_sub(1), at + 1]);
            let other = neighbours.into_iter().find(|other| {
                swaps.get(*other).is_some_and(Option::is_some)
                    && read(program, *other).is_some_and(|other| overlap(other, this))
            });
            other.and_then(|other| swaps[other])
        };
        let all: Vec<Option<Swap>> =
            swaps.iter().enumerate().map(|(at, swap)| swap.or_else(|| again(at))).collect();
        for (inst, swap) in program.insts.iter_mut().zip(all) {
            if let (Op::Load(access), Some(swap)) = (&mut inst.op, swap) {
                let element_bytes = access.order.element_bytes.max(swap.bytes);
                let scope = access.order.scope.or(swap.scope);
                access.order = MemoryOrder { scope, element_bytes, ..access.order };
            }
        }
    }
}

/// The read of memory that others may write at this place, if it is one.
fn read(program: &Program, at: usize) -> Option<&Access> {
    match &program.insts.get(at)?.op {
        Op::Load(access) => {
            let shared =
                matches!(access.space, Space::Global | Space::Shared | Space::Cluster | Space::Generic);
            shared.then_some(&**access)
        }
        _ => None,
    }
}

/// Whether two accesses have bytes in common behind one register.
fn overlap(a: &Access, b: &Access) -> bool {
    let end = |of: &Access| of.addr.offset + of.regs.len() as i64 * i64::from(of.element_bytes);
    (a.space, a.addr.bank, a.addr.slot) == (b.space, b.addr.bank, b.addr.slot)
        && a.addr.offset < end(b)
        && b.addr.offset < end(a)
}

/// What the compare-and-swaps of a function expect.
fn compared(program: &Program) -> Expected {
    let mut expected = Expected::new();
    for inst in &program.insts {
        if let Op::Atomic(atomic) = &inst.op
            && atomic.op == AtomicOp::CompareAndSwap
        {
            let halves = std::iter::once(atomic.operand).chain(atomic.wide.map(|wide| wide[1]));
            let swap = Swap { scope: atomic.order.scope, bytes: atomic.order.element_bytes };
            expected.extend(halves.map(|reg| (Place::Register(reg.bank, reg.slot), swap)));
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
            if let Some(swap) = all[index].get(&Place::Parameter(formal.offset.into())) {
                list.insert(Place::Parameter(arg.0.into()), *swap);
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
                    if let (Some(place), Some(swap)) = (place(access, program), swap_of(access, expected)) {
                        expected.entry(place).or_insert(swap);
                    }
                }
                Op::Store(access) => {
                    let swap = place(access, program).and_then(|place| expected.get(&place).copied());
                    if let (Some(swap), [reg]) = (swap, &*access.regs) {
                        expected.entry(Place::Register(reg.bank, reg.slot)).or_insert(swap);
                    }
                }
                // What makes one register of one other is a copy, or the same bits as another type; a pack is one of its parts.
                Op::Int(..) | Op::Convert(..) | Op::Cvt(_) | Op::Pack(_) => {
                    let (mut reads, mut swap) = (Vec::new(), None);
                    compact::each(&inst.op, &mut |bank, slot, role| match role {
                        Role::Read => reads.push(Place::Register(bank, slot)),
                        Role::Write => swap = expected.get(&Place::Register(bank, slot)).copied(),
                    });
                    if let Some(swap) = swap
                        && (reads.len() == 1 || matches!(inst.op, Op::Pack(_)))
                    {
                        reads.into_iter().for_each(|read| {
                            expected.entry(read).or_insert(swap);
                        });
                    }
                }
                _ => {}
            }
        }
    }
}

fn swap_of(access: &Access, expected: &Expected) -> Option<Swap> {
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
