//! Bytes of a function's parameter area that may be read before anything was stored to them: results that a function does not give on every
//! path, and parts of arguments that its caller leaves out.

use crate::cfg::Blocks;
use crate::op::{Access, Addr, Constant, Op, Pc, Program, Space};
use crate::regs::Bank;

/// Bytes, as first and end.
type Bytes = (u32, u32);

/// What an instruction does with the parameter area.
#[derive(Default)]
struct Uses {
    reads: Vec<Bytes>,
    writes: Vec<Bytes>,
}

/// The bytes that may be read so, each with the first instruction in the text that reads it.
pub(crate) fn bytes(program: &Program, is_entry: bool) -> Vec<(u32, Pc)> {
    if program.frame_bytes == 0 {
        return Vec::new();
    }
    let uses: Vec<Uses> = (0..program.insts.len()).map(|pc| uses(program, pc)).collect();
    let blocks = Blocks::new(program);
    let ends: Vec<usize> = (0..blocks.starts.len()).map(|b| blocks.last(b, uses.len()) + 1).collect();
    // Whether each byte may be read before it is stored to, from the start of each block on; the virtual exit reads nothing.
    let mut needed = vec![vec![false; program.frame_bytes as usize]; blocks.starts.len() + 1];
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for (block, start) in blocks.starts.iter().enumerate().rev() {
            let mut now = vec![false; program.frame_bytes as usize];
            for to in &blocks.successors[block] {
                now.iter_mut().zip(&needed[*to]).for_each(|(now, needed)| *now |= needed);
            }
            for uses in uses[*start as usize..ends[block]].iter().rev() {
                uses.writes.iter().for_each(|bytes| fill(&mut now, *bytes, false));
                uses.reads.iter().for_each(|bytes| fill(&mut now, *bytes, true));
            }
            changed |= now != needed[block];
            needed[block] = now;
        }
    }
    let mut unset = needed.swap_remove(0);
    if !is_entry {
        program.params.iter().for_each(|p| fill(&mut unset, (p.offset, p.offset + p.bytes), false));
    }
    let mut list = Vec::new();
    for (uses, pc) in uses.iter().zip(0..) {
        for byte in uses.reads.iter().flat_map(|(first, end)| *first..*end) {
            if std::mem::take(&mut unset[byte as usize]) {
                list.push((byte, pc));
            }
        }
    }
    list
}

fn fill(of: &mut [bool], (first, end): Bytes, value: bool) {
    let end = (end as usize).min(of.len());
    of[(first as usize).min(end)..end].fill(value);
}

fn uses(program: &Program, pc: usize) -> Uses {
    let inst = &program.insts[pc];
    let ranges = |list: &[(u32, u32)]| list.iter().map(|(at, bytes)| (*at, at + bytes)).collect();
    let mut uses = match &inst.op {
        Op::Load(access) => Uses { reads: accessed(program, access), ..Uses::default() },
        Op::Store(access) => Uses { writes: accessed(program, access), ..Uses::default() },
        Op::Call(call) => Uses { reads: ranges(&call.args), writes: ranges(&call.returns) },
        Op::Service(call) => Uses { reads: ranges(&call.args), writes: ranges(call.returns.as_slice()) },
        Op::Return => {
            let returns = program.returns.iter();
            Uses { reads: returns.map(|r| (r.offset, r.offset + r.bytes)).collect(), ..Uses::default() }
        }
        _ => Uses::default(),
    };
    if inst.guard.is_some() {
        uses.writes.clear();
    }
    uses
}

/// The bytes of the area that a load or a store accesses. Its address is a constant.
fn accessed(program: &Program, access: &Access) -> Vec<Bytes> {
    let Addr { slot, offset, .. } = access.addr;
    let is_it = |c: &&crate::op::ConstantSlot| (c.bank, c.slot) == (Bank::Double, slot);
    match program.constants.iter().find(is_it).map(|c| c.value) {
        Some(Constant::Bits(at)) if access.space == Space::Frame => {
            let first = at.wrapping_add_signed(offset) as u32;
            vec![(first, first + u32::from(access.element_bytes) * access.regs.len() as u32)]
        }
        _ => Vec::new(),
    }
}
