//! Plain reads of what a compare-and-swap then expects. Loops around `atomicCAS` begin with one, the programming guide's own too
//! (CUDA C++ Programming Guide, Atomic Functions): whatever it gives, the comparison tells. Such a read counts as relaxed.

use std::collections::HashMap;

use crate::compact::{self, Role};
use crate::op::{AtomicOp, MemoryOrder, Op, Program, Scope, Space};
use crate::regs::{Bank, Slot};

/// Makes those reads relaxed, in the scope of the compare-and-swap. Registers do not share places yet.
pub(super) fn relax(program: &mut Program) {
    let mut expected: HashMap<(Bank, Slot), Option<Scope>> = HashMap::new();
    for inst in &program.insts {
        if let Op::Atomic(atomic) = &inst.op
            && atomic.op == AtomicOp::CompareAndSwap
        {
            let halves = std::iter::once(atomic.operand).chain(atomic.wide.map(|wide| wide[1]));
            expected.extend(halves.map(|reg| ((reg.bank, reg.slot), atomic.order.scope)));
        }
    }
    let mut known = 0;
    while known != expected.len() {
        known = expected.len();
        for inst in &program.insts {
            // What makes one register of one other is a copy, or the same bits as another type.
            if !matches!(inst.op, Op::Int(..) | Op::Convert(..) | Op::Cvt(_)) {
                continue;
            }
            let (mut reads, mut scope) = (Vec::new(), None);
            compact::each(&inst.op, &mut |bank, slot, role| match role {
                Role::Read => reads.push((bank, slot)),
                Role::Write => scope = expected.get(&(bank, slot)).copied(),
            });
            if let ([read], Some(scope)) = (&*reads, scope) {
                expected.entry(*read).or_insert(scope);
            }
        }
    }
    for inst in &mut program.insts {
        if let Op::Load(access) = &mut inst.op
            && matches!(access.space, Space::Global | Space::Shared | Space::Cluster | Space::Generic)
            && !access.order.is_strong()
            && let Some(scope) = access.regs.iter().find_map(|reg| expected.get(&(reg.bank, reg.slot)))
        {
            access.order = MemoryOrder { scope: *scope, ..MemoryOrder::WEAK };
        }
    }
}
