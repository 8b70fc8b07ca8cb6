//! Which registers a `wgmma` on its way still writes or reads (PTX ISA §9.7.15.5.2, §9.7.15.7): its accumulators may not be touched,
//! and its A not be written, before its group is waited for; and what other instructions wrote must be fenced before.
//!
//! Copies from register to register are what compilers make of one variable, and only rename: the copy is in the state of what
//! was copied. So are the halves of a register, and a register that is put together from halves.

use crate::finding::{Fault, FindingKind, Outcome};
use crate::op::{Inst, Op, Pc, Program, Reg, Wgmma, WgmmaA};
use crate::regs::{Bank, Slot};
use crate::table::integer::IntOp;

use super::warp::Warp;

/// What is known about a word register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tracked {
    /// The fences when another instruction last wrote it, plus one; 0 if none did.
    written: u32,
    /// The newest group that accumulates into it, and its N.
    result: u32,
    n: u16,
    /// The newest group that reads it as A.
    source: u32,
}

/// The groups of a warp.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Groups {
    /// `wgmma.fence` executed.
    fences: u32,
    committed: u32,
    /// The newest group that was waited for.
    completed: u32,
}

impl Groups {
    /// The group to which products belong that are issued now.
    pub(super) fn open_group(&self) -> u32 {
        self.committed + 1
    }

    pub(super) fn fence(&mut self) {
        self.fences += 1;
    }

    pub(super) fn commit(&mut self) {
        self.committed += 1;
    }

    /// Waits until at most `keep` groups are open; gives the newest that is complete.
    pub(super) fn wait(&mut self, keep: u32) -> u32 {
        self.completed = self.completed.max(self.committed.saturating_sub(keep));
        self.completed
    }
}

impl Tracked {
    /// What is known about a register of which this and another are parts.
    fn newest(self, other: Tracked) -> Tracked {
        let (result, n) = (self.result, self.n).max((other.result, other.n));
        Tracked { written: self.written.max(other.written), result, n, source: 0 }
    }
}

/// Whether an operation moves words, whole or in parts, and computes nothing.
fn is_renaming(op: &Op) -> bool {
    let is_word = |register: &Reg| register.bank == Bank::Word;
    match op {
        Op::Int(IntOp::MovWord, _) => true,
        Op::Unpack(moved) => is_word(&moved.1) && moved.0.iter().flatten().all(is_word),
        Op::Pack(moved) => is_word(&moved.0) && moved.1.iter().all(is_word),
        _ => false,
    }
}

fn pending(detail: &'static str) -> Box<Fault> {
    Fault::new(FindingKind::WgmmaPending).saying(detail)
}

impl Warp {
    /// Checks and notes what an instruction other than `wgmma` does to registers.
    pub(super) fn track(&mut self, program: &Program, inst: &Inst, pc: Pc, frame: usize) -> Outcome {
        if matches!(inst.op, Op::Wgmma(_)) {
            return Ok(());
        }
        let groups = self.wgmma;
        let list = &mut self.frame(frame)?.tracked;
        let open = |group: u32| group > groups.completed;
        let touches = &program.touches[pc as usize];
        if is_renaming(&inst.op) {
            let from = touches.reads.iter().map(|slot| list[*slot as usize]);
            let from = from.reduce(Tracked::newest).unwrap_or_default();
            for slot in &touches.writes {
                let to = &mut list[*slot as usize];
                if open(to.source) {
                    return Err(pending("a register of A is written before its wgmma is waited for"));
                }
                if open(to.result) && !open(from.result) {
                    return Err(pending("an accumulator is written before its wgmma is waited for"));
                }
                *to = Tracked { source: 0, ..from };
            }
            return Ok(());
        }
        for slot in &touches.reads {
            if open(list[*slot as usize].result) {
                return Err(pending("an accumulator is read before its wgmma is waited for"));
            }
        }
        for slot in &touches.writes {
            let state = &mut list[*slot as usize];
            if open(state.result) {
                return Err(pending("an accumulator is written before its wgmma is waited for"));
            }
            if open(state.source) {
                return Err(pending("a register of A is written before its wgmma is waited for"));
            }
            *state = Tracked { written: groups.fences + 1, ..Tracked::default() };
        }
        Ok(())
    }

    /// A `wgmma` takes its registers.
    pub(super) fn claim_registers(&mut self, op: &Wgmma, frame: usize) -> Outcome {
        let groups = self.wgmma;
        let list = &mut self.frame(frame)?.tracked;
        if list.is_empty() {
            return Ok(());
        }
        let fault = |detail| Err(Fault::new(FindingKind::WgmmaFence).saying(detail));
        if groups.fences == 0 {
            return fault("there is no wgmma.fence before the first wgmma");
        }
        let unfenced = |state: &Tracked| state.written == groups.fences + 1;
        let a: &[Slot] = match &op.a {
            WgmmaA::Registers(slots) => slots,
            WgmmaA::Shared(_) => &[],
        };
        for slot in a {
            let state = &mut list[*slot as usize];
            if state.result > groups.completed {
                return Err(pending("an accumulator is read as A before its wgmma is waited for"));
            }
            if unfenced(state) {
                return fault("a register of A was written after the last wgmma.fence");
            }
            state.source = groups.open_group();
        }
        for slot in &op.d {
            let state = &mut list[*slot as usize];
            if state.source > groups.completed && !a.contains(slot) {
                return Err(pending("a register of A is written before its wgmma is waited for"));
            }
            if unfenced(state) {
                return fault("an accumulator was written after the last wgmma.fence");
            }
            if state.result > groups.completed && state.n != op.n as u16 {
                return fault("an accumulator goes from a wgmma to one of another shape without a wait");
            }
            *state =
                Tracked { written: 0, result: groups.open_group(), n: op.n as u16, source: state.source };
        }
        Ok(())
    }
}
