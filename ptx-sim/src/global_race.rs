//! Names both accesses of a race between CTAs, and the same ones in every run: while a grid runs on all cores only the CTA of
//! the other access is known, and which pair of accesses is found first depends on the machine. So the CTAs are run again,
//! in order, on the memory as it is. A kernel whose addresses depend on what it has overwritten may take another course
//! then; its finding stays as it was.

use crate::counters::Counters;
use crate::finding::{Finding, FindingKind, OtherAccess};
use crate::memory::Memory;
use crate::module::Module;
use crate::op::Op;
use crate::race::RaceAccess;

/// Runs CTAs, in order if told so.
pub(crate) type Run<'r> = dyn FnMut(&Memory, &[u64], bool) -> Result<Counters, Box<Finding>> + 'r;

/// The finding of the lowest CTA that collides with an earlier one, with the lowest CTA that it collides with.
pub(crate) fn both_accesses(
    found: Box<Finding>,
    module: &Module,
    memory: &mut Memory,
    granule: Option<u32>,
    ids: &[u64],
    grid: [u32; 3],
    run: &mut Run<'_>,
) -> Box<Finding> {
    memory.watch_races(granule);
    let (mut second, known) = match run(memory, ids, true) {
        Err(again) if again.kind == FindingKind::GlobalRace => (again, true),
        _ => (found, false),
    };
    let (Some(address), Some(other), true) = (second.address, second.other, known) else { return second };
    // Atomic operations do not collide with each other.
    let atomic = (!is_atomic(module, second.line)).then_some(RaceAccess::Atomic);
    let accesses =
        if other.write { [Some(RaceAccess::Write), atomic] } else { [Some(RaceAccess::Read), None] };
    memory.look_for(granule, address, accesses);
    if let Err(first) = run(memory, ids, true)
        && first.kind == FindingKind::GlobalRace
        && first.cta != second.cta
    {
        second.other = Some(OtherAccess {
            write: other.write,
            line: Some(first.line),
            warp: Some(first.warp),
            lanes: first.lane.map_or(0, |lane| 1 << lane),
            cta: Some(first.cta[0] + grid[0] * (first.cta[1] + grid[1] * first.cta[2])),
        });
    }
    second
}

fn is_atomic(module: &Module, line: u32) -> bool {
    let mut insts = module.programs.iter().flat_map(|p| &p.insts);
    insts.any(|inst| inst.line == line && matches!(inst.op, Op::Atomic(_)))
}
