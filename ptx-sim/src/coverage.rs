//! What of a kernel's code a launch has not tested: instructions that it did not reach, and conditions that were the same in every lane. Left
//! out are conditions that follow from a thread's number alone, with what they never lead to, and what leads to a trap.

use crate::counters::Counters;
use crate::fixed;
use crate::module::Module;
use crate::op::{Callee, NO_PREDICATE, Op, Pc, Program};
use std::fmt;

/// Of a condition, whether it held in a lane, and whether it did not in one.
const HELD: u8 = 1;
const FAILED: u8 = 2;
/// Bits of a condition. An instruction has up to three: its guard, and the predicates that it writes.
pub(crate) const BITS: usize = 2;

/// What came of a condition in the lanes of `mask`, of which it holds in those of `holds`.
#[inline]
pub(crate) fn outcomes(holds: u32, mask: u32) -> u8 {
    (u8::from(holds != 0) * HELD) | (u8::from(holds != mask) * FAILED)
}

/// One thing that a launch has not tested. What several launches have not is what each has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gap {
    /// The function of the module, and the number of its instruction.
    pub at: [u32; 2],
    /// The line of the PTX.
    pub line: u32,
    /// 0 for the instruction's guard, 1 and 2 for the predicates that it writes; 1 for whether the first of an integer and a constant is the less.
    pub condition: u8,
    /// What is not tested.
    pub kind: GapKind,
}

/// What is not tested of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GapKind {
    /// It was executed in no lane.
    NotExecuted,
    /// The condition held in no lane.
    NeverHeld,
    /// It failed in no lane.
    NeverFailed,
}

impl fmt::Display for GapKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GapKind::NotExecuted => "was never executed",
            GapKind::NeverHeld => "never held, or its first number was never the less",
            GapKind::NeverFailed => "always held, or its first number was never the larger",
        })
    }
}

/// What a launch that noted its conditions has not tested of what its entry can reach, in ascending order.
pub(crate) fn gaps(module: &Module, counters: &Counters) -> Vec<Gap> {
    if counters.outcomes.is_empty() {
        return Vec::new();
    }
    let traps = Traps::of(module);
    let mut gaps = Vec::new();
    let programs = module.programs.iter().zip(counters.counts.iter().zip(&counters.outcomes));
    for (function, (program, (counts, outcomes))) in
        programs.enumerate().filter(|(_, (_, (counts, _)))| !counts.is_empty())
    {
        let may_be_reached = reachable(program, outcomes, &traps.0[function]);
        let traps = |at: Pc| traps.0[function][at as usize];
        // Behind the last statement stands a return of the simulator's own.
        for (at, inst) in program.insts.iter().enumerate().take(program.insts.len() - 1) {
            if !may_be_reached[at] || traps(at as Pc) {
                continue;
            }
            let mut note = |condition, kind| {
                let at = [function as u32, at as u32];
                gaps.push(Gap { at, line: inst.line, condition, kind });
            };
            if counts[at][1] == 0 && !inst.continues && inst.guard.is_none() {
                note(0, GapKind::NotExecuted);
            }
            let is_condition = |number: usize| match number {
                0 => program.conditions[at] & 1 != 0,
                number => inst.decides[number - 1] != NO_PREDICATE || (number == 1 && inst.chooses),
            };
            for number in (0..3).filter(|number| is_condition(*number)) {
                let seen = outcomes[at] >> (BITS * number);
                let outcomes = [(HELD, true, GapKind::NeverHeld), (FAILED, false, GapKind::NeverFailed)];
                for (_, holds, kind) in outcomes.into_iter().filter(|(bit, ..)| seen & bit == 0) {
                    let next = match inst.op {
                        Op::Branch { target, .. } if number == 0 => {
                            Some(if holds { target } else { at as Pc + 1 })
                        }
                        _ => None,
                    };
                    let is_trap = matches!(inst.op, Op::Trap) && holds;
                    if !is_trap && next.is_none_or(|next| !traps(next)) {
                        note(number as u8, kind);
                    }
                }
            }
        }
    }
    gaps
}

/// The instructions that some launch can reach. A branch that a thread's number alone decides goes only where it went in this launch, and
/// instructions that `traps` marks lead nowhere.
fn reachable(program: &Program, outcomes: &[u8], traps: &[bool]) -> Vec<bool> {
    let mut is_reached = vec![false; program.insts.len()];
    let mut left = vec![0];
    while let Some(at) = left.pop() {
        if std::mem::replace(&mut is_reached[at as usize], true) || traps[at as usize] {
            continue;
        }
        let at = at as usize;
        let inst = &program.insts[at];
        let is_fixed =
            inst.guard.is_some() && program.conditions[at] & 1 == 0 && outcomes[at] & (HELD | FAILED) != 0;
        match inst.op {
            Op::Branch { target, .. } if is_fixed => {
                left.extend((outcomes[at] & HELD != 0).then_some(target));
                left.extend((outcomes[at] & FAILED != 0).then_some(at as Pc + 1));
            }
            _ => left.extend(fixed::next(program, at)),
        }
    }
    is_reached
}

/// Of each function the instructions from which every way leads to a trap, or to a function that is defined nowhere and so does not come back.
struct Traps(Vec<Vec<bool>>);

impl Traps {
    fn of(module: &Module) -> Traps {
        let mut traps =
            Traps(module.programs.iter().map(|program| vec![false; program.insts.len()]).collect());
        loop {
            let mut changes = false;
            for (function, program) in module.programs.iter().enumerate() {
                for at in (0..program.insts.len()).rev() {
                    let is_trap = traps.0[function][at] || traps.leads(program, at, &traps.0[function]);
                    changes |= std::mem::replace(&mut traps.0[function][at], is_trap) != is_trap;
                }
            }
            if !changes {
                return traps;
            }
        }
    }

    fn leads(&self, program: &Program, at: usize, within: &[bool]) -> bool {
        let is_called = |called: u32| self.0[called as usize].first().is_none_or(|traps| *traps);
        let inst = &program.insts[at];
        let ends = match &inst.op {
            Op::Trap => true,
            Op::Call(call) => matches!(call.callee, Callee::Function(called) if is_called(called)),
            _ => false,
        };
        let mut next = fixed::next(program, at).peekable();
        (ends && inst.guard.is_none()) || (next.peek().is_some() && next.all(|next| within[next as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sim, args};

    /// What launches of 64 threads with these values of a parameter, which is also in memory, have not tested of a body.
    fn untested(body: &str, values: &[u32]) -> Vec<(u32, u8, GapKind)> {
        let mut sim = Sim::new(&format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n.func gone() .noreturn {{ trap; }}\n.visible .entry k(.param .u64 to, .param .u32 n) .maxntid 64, 1, 1\n{{\n\
             .reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %d<3>;\nld.param.u64 %d0, [to]; ld.param.u32 %r0, [n]; ld.global.u32 %r1, [%d0];\n\
             mov.u32 %r2, %tid.x; mul.wide.u32 %d1, %r2, 4; add.s64 %d2, %d0, %d1;\n{body}\n$end: ret;\n}}\n"
        ))
        .expect("PTX")
        .with_coverage();
        let mut left: Option<Vec<Gap>> = None;
        for &value in values {
            let memory = sim.buffer(&[value; 128]);
            let report = sim.launch("k", 1, 64, args!(&memory, value)).expect("a launch");
            left = Some(match left {
                Some(mut left) => {
                    left.retain(|gap| report.untested.binary_search(gap).is_ok());
                    left
                }
                None => report.untested,
            });
        }
        // The body begins at line 10.
        left.unwrap_or_default().into_iter().map(|gap| (gap.line - 9, gap.condition, gap.kind)).collect()
    }

    const STORE: &str = "st.global.u32 [%d2+256], 1;";

    #[test]
    fn what_never_happened_is_told_however_it_is_written() {
        use GapKind::{NeverHeld, NotExecuted};
        // A branch by a parameter, by memory, and an instruction with a guard.
        for register in ["%r0", "%r1"] {
            let branch = format!("setp.ne.u32 %p0, {register}, 7;\n@%p0 bra $end;\n{STORE}");
            assert_eq!(untested(&branch, &[6, 8]), [(2, 0, GapKind::NeverFailed), (3, 0, NotExecuted)]);
            assert_eq!(untested(&branch, &[6, 7]), []);
            let guard = format!("setp.eq.u32 %p0, {register}, 7;\n@%p0 {STORE}");
            assert_eq!(untested(&guard, &[6, 8]), [(2, 0, NeverHeld)]);
            assert_eq!(untested(&guard, &[6, 7]), []);
        }
        // A selection, and two conditions each of which was both, but never together.
        let select = "setp.eq.u32 %p0, %r1, 7;\nselp.u32 %r3, 1, 2, %p0; st.global.u32 [%d2+256], %r3;";
        assert_eq!(untested(select, &[1, 2]), [(1, 1, NeverHeld)]);
        let both = "setp.gt.u32 %p0, %r1, 7;\nand.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 1;\nand.pred %p2, %p0, %p1;\n@%p2 st.global.u32 [%d2+256], 1;";
        assert_eq!(untested(both, &[3, 8]), [(4, 0, NeverHeld)]);
        assert_eq!(untested(both, &[3, 8, 9]), []);
        // The less of two, signed and not.
        let least = "min.u32 %r3, %r1, 1000; st.global.u32 [%d2+256], %r3;";
        assert_eq!(untested(least, &[3, 8]), [(1, 1, GapKind::NeverFailed)]);
        assert_eq!(untested(least, &[3, 1001]), []);
        let most = "sub.u32 %r3, %r1, 5; max.s32 %r3, %r3, 0; st.global.u32 [%d2+256], %r3;";
        assert_eq!(untested(most, &[3, 5]), [(1, 1, GapKind::NeverFailed)]);
        assert_eq!(untested(most, &[3, 8]), []);
        assert_eq!(untested("min.u32 %r3, %r1, %r2; st.global.u32 [%d2+256], %r3;", &[99]), []);
        // What a count of such events comes to.
        let count = "mov.u32 %r3, 0; setp.gt.u32 %p0, %r1, 7;\n@%p0 mov.u32 %r3, 1;\nsetp.eq.u32 %p1, %r1, 3;\n@%p1 add.u32 %r3, %r3, 1;\n\
                     setp.eq.u32 %p2, %r3, 2;\n@%p2 st.global.u32 [%d2+256], 1;";
        assert_eq!(untested(count, &[3, 8]), [(6, 0, NeverHeld)]);
    }

    #[test]
    fn what_follows_from_a_threads_number_or_leads_to_a_trap_is_no_gap() {
        let bound = format!("setp.gt.u32 %p0, %r2, 99;\n@%p0 bra $far;\n{STORE} bra $end;\n$far: {STORE}");
        assert_eq!(untested(&bound, &[1]), []);
        // A loop of a fixed number of steps.
        let steps = "mov.u32 %r3, %r2;\n$L: add.u32 %r3, %r3, 64;\nsetp.lt.u32 %p0, %r3, 64;\n@%p0 bra $L;";
        assert_eq!(untested(steps, &[1]), []);
        // The same loop where memory decides whether a step is taken twice.
        let optional = "mov.u32 %r3, %r2; setp.eq.u32 %p1, %r1, 7;\n@!%p1 bra $L;\nmov.u32 %r3, 0;\n$L: setp.gt.u32 %p0, %r3, 99;\n@%p0 bra $end;";
        assert_eq!(untested(optional, &[1, 7]), [(5, 0, GapKind::NeverHeld)]);
        for ends in ["trap;", "call.uni gone, (); exit;", "bra $more;\n$more: trap;"] {
            let trap = format!("setp.ne.u32 %p0, %r1, 7;\n@%p0 bra $end;\n{ends}");
            assert_eq!(untested(&trap, &[1]), [], "{ends}");
        }
    }
}
