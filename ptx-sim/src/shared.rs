//! Shared memory of a CTA and what is known about each granule of it: who wrote it, who read it, which asynchronous copy
//! is on its way to it. Two accesses are ordered if a barrier lies between them; each warp carries a vector clock, which
//! barriers join.

use crate::config::Checks;
use crate::finding::{Fault, FindingKind, OtherAccess, Outcome};
use crate::lane_order::LaneOrder;
use crate::memory::Words;
use crate::window::SHARED_BASE;

/// A past access.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// The warp's clock at the access; 0 for no access.
    clock: u32,
    /// PTX line.
    line: u32,
    /// Lanes that took part.
    lanes: u32,
    warp: u16,
    strong: bool,
    /// Barriers of some of the warp's lanes before it.
    barriers: u8,
}

/// What is known about a granule.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Mark,
    /// The latest reads of two warps.
    reads: [Mark; 2],
    /// Asynchronous copies on their way, and the PTX line of the latest.
    pending: u32,
    pending_line: u32,
}

/// Who accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'c> {
    pub(crate) warp: u32,
    pub(crate) lane: usize,
    /// Lanes that take part in the access; more than one where they act together.
    pub(crate) lanes: u32,
    pub(crate) line: u32,
    /// Volatile or atomic: does not race with others of its kind.
    pub(crate) strong: bool,
    /// The vector clock of the warp.
    pub(crate) clock: &'c [u32],
    /// The order among its lanes, where barriers of some of them gave one.
    pub(crate) order: Option<&'c LaneOrder>,
}

/// Shared memory with its shadow.
#[derive(Debug)]
pub(crate) struct Shared {
    words: Vec<u32>,
    bytes: u64,
    granule: u64,
    cells: Vec<Cell>,
    checks: Checks,
}

impl Shared {
    /// `bytes` of unwritten memory, watched in granules of the smallest access that the kernel makes.
    pub(crate) fn new(bytes: u64, granule: u32, checks: Checks) -> Self {
        let watched = checks.shared_races || checks.initialized || checks.async_copies;
        let cells = if watched { bytes.div_ceil(granule.into()) as usize } else { 0 };
        Shared {
            words: vec![0; bytes.div_ceil(4) as usize],
            bytes,
            granule: granule.into(),
            cells: vec![Cell::default(); cells],
            checks,
        }
    }

    /// The offset of an address, or the fault of being outside; `None` where that is not checked.
    #[inline]
    pub(crate) fn offset(&self, lane: usize, address: u64, bytes: u32) -> Outcome<Option<u64>> {
        let offset = address.wrapping_sub(SHARED_BASE);
        if offset < self.bytes && u64::from(bytes) <= self.bytes - offset {
            return Ok(Some(offset));
        }
        if self.checks.bounds { Err(Fault::at(FindingKind::OutOfBounds, lane, address)) } else { Ok(None) }
    }

    /// `bytes` ≤ 16 at an offset inside.
    #[inline]
    pub(crate) fn load(&self, offset: u64, bytes: u32) -> Words {
        let mut words = [0; 4];
        if offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
            let (at, count) = (offset as usize / 4, bytes as usize / 4);
            words[..count].copy_from_slice(&self.words[at..at + count]);
        } else {
            for i in 0..bytes as usize {
                let byte = offset as usize + i;
                words[i / 4] |= (self.words[byte / 4] >> (8 * (byte % 4)) & 0xff) << (8 * (i % 4));
            }
        }
        words
    }

    /// Stores `bytes` ≤ 16 at an offset inside.
    #[inline]
    pub(crate) fn store(&mut self, offset: u64, bytes: u32, words: &Words) {
        if offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
            let (at, count) = (offset as usize / 4, bytes as usize / 4);
            self.words[at..at + count].copy_from_slice(&words[..count]);
        } else {
            for i in 0..bytes as usize {
                let byte = offset as usize + i;
                let shift = 8 * (byte % 4);
                let value = words[i / 4] >> (8 * (i % 4)) & 0xff;
                let word = &mut self.words[byte / 4];
                *word = *word & !(0xff << shift) | value << shift;
            }
        }
    }

    fn cells(&mut self, offset: u64, bytes: u32) -> impl Iterator<Item = (u64, &mut Cell)> {
        let granule = self.granule;
        let range = if self.cells.is_empty() {
            0..0
        } else {
            (offset / granule) as usize..((offset + u64::from(bytes) - 1) / granule) as usize + 1
        };
        let first = range.start as u64;
        self.cells[range]
            .iter_mut()
            .enumerate()
            .map(move |(i, c)| ((first + i as u64) * granule + SHARED_BASE, c))
    }

    /// Notes a read and says what is wrong with it.
    #[inline]
    pub(crate) fn note_read(&mut self, offset: u64, bytes: u32, who: &Who<'_>) -> Outcome {
        let checks = self.checks;
        let mut unwritten = None;
        for (address, cell) in self.cells(offset, bytes) {
            if checks.async_copies && cell.pending > 0 {
                return Err(pending(address, cell, who));
            }
            if checks.initialized && cell.write.clock == 0 {
                unwritten = unwritten.or(Some(address));
            }
            if checks.shared_races {
                if collides(&cell.write, who) {
                    return Err(race(address, &cell.write, true, who));
                }
                note(cell, who);
            }
        }
        match unwritten {
            Some(address) => Err(Fault::at(FindingKind::Uninitialized, who.lane, address)),
            None => Ok(()),
        }
    }

    /// Notes a write of `words` and says what is wrong with it. Lanes of one instruction may write one value to one
    /// place: whichever comes last, the outcome is the same.
    #[inline]
    pub(crate) fn note_write(&mut self, offset: u64, bytes: u32, words: &Words, who: &Who<'_>) -> Outcome {
        let checks = self.checks;
        let repeats = self.load(offset, bytes) == *words;
        for (address, cell) in self.cells(offset, bytes) {
            if checks.async_copies && cell.pending > 0 {
                return Err(pending(address, cell, who));
            }
            check_write(&checks, address, cell, repeats, who)?;
            cell.write = mark(who);
        }
        Ok(())
    }

    /// Notes the start of an asynchronous copy: like a write, and nobody may touch the granules until it is waited for.
    pub(crate) fn note_copy(&mut self, offset: u64, bytes: u32, who: &Who<'_>) -> Outcome {
        let checks = self.checks;
        for (address, cell) in self.cells(offset, bytes) {
            if checks.async_copies && cell.pending > 0 {
                return Err(pending(address, cell, who));
            }
            check_write(&checks, address, cell, false, who)?;
            cell.pending += 1;
            cell.pending_line = who.line;
        }
        Ok(())
    }

    /// Notes that the issuing thread has waited for a copy: from here on it is a write by that thread.
    pub(crate) fn note_landed(&mut self, offset: u64, bytes: u32, who: &Who<'_>) {
        for (_, cell) in self.cells(offset, bytes) {
            cell.pending = cell.pending.saturating_sub(1);
            let line = cell.pending_line;
            cell.write = Mark { line, ..mark(who) };
        }
    }
}

fn check_write(checks: &Checks, address: u64, cell: &Cell, repeats: bool, who: &Who<'_>) -> Outcome {
    if !checks.shared_races {
        return Ok(());
    }
    let same_instruction = u32::from(cell.write.warp) == who.warp && cell.write.line == who.line;
    if collides(&cell.write, who) && !(repeats && same_instruction) {
        return Err(race(address, &cell.write, true, who));
    }
    match cell.reads.iter().find(|read| collides(read, who)) {
        Some(read) => Err(race(address, read, false, who)),
        None => Ok(()),
    }
}

fn mark(who: &Who<'_>) -> Mark {
    Mark {
        clock: who.clock[who.warp as usize],
        line: who.line,
        lanes: who.lanes,
        warp: who.warp as u16,
        strong: who.strong,
        barriers: who.order.map_or(0, LaneOrder::barriers),
    }
}

/// Whether a past access is not ordered before this one.
#[inline]
fn collides(past: &Mark, who: &Who<'_>) -> bool {
    if past.clock == 0 || past.strong && who.strong {
        return false;
    }
    if u32::from(past.warp) != who.warp {
        return who.clock[usize::from(past.warp)] < past.clock;
    }
    // Within a warp a lane is ordered with itself, and lanes with each other by a warp barrier.
    past.clock == who.clock[who.warp as usize]
        && (past.lanes | who.lanes).count_ones() > 1
        && !who.order.is_some_and(|order| order.ordered(past.lanes, past.barriers, who.lanes))
}

#[inline]
fn note(cell: &mut Cell, who: &Who<'_>) {
    let now = mark(who);
    let [first, second] = &mut cell.reads;
    if first.clock != 0 && first.warp == now.warp {
        let replaced = first.clock != now.clock
            || who.order.is_some_and(|order| order.ordered(first.lanes, first.barriers, now.lanes));
        if replaced {
            *first = now;
        } else {
            // Of all these reads the earliest count stands, which may miss a race but invents none.
            *first = Mark { lanes: first.lanes | now.lanes, barriers: first.barriers, ..now };
        }
        return;
    }
    *second = *first;
    *first = now;
}

fn pending(address: u64, cell: &Cell, who: &Who<'_>) -> Box<Fault> {
    let mut fault = Fault::at(FindingKind::AsyncPending, who.lane, address);
    fault.other =
        Some(OtherAccess { write: true, line: Some(cell.pending_line), warp: None, lanes: 0, cta: None });
    fault
}

fn race(address: u64, past: &Mark, write: bool, who: &Who<'_>) -> Box<Fault> {
    let mut fault = Fault::at(FindingKind::SharedRace, who.lane, address);
    let (line, warp) = (Some(past.line), Some(u32::from(past.warp)));
    fault.other = Some(OtherAccess { write, line, warp, lanes: past.lanes, cta: None });
    fault
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who<'c>(warp: u32, lane: usize, clock: &'c [u32]) -> Who<'c> {
        Who { warp, lane, lanes: 1 << lane, line: 7, strong: false, clock, order: None }
    }

    #[test]
    fn unordered_warps_collide_and_ordered_ones_do_not() {
        let mut shared = Shared::new(64, 4, Checks::ALL);
        shared.note_write(0, 4, &[5, 0, 0, 0], &who(0, 3, &[1, 0])).unwrap();
        let fault = shared.note_read(0, 4, &who(1, 0, &[0, 1])).unwrap_err();
        assert_eq!((fault.kind, fault.other.unwrap().lanes), (FindingKind::SharedRace, 8));
        shared.note_read(0, 4, &who(1, 0, &[1, 2])).unwrap();
        assert!(shared.note_write(0, 4, &[5, 0, 0, 0], &who(0, 3, &[2, 0])).is_err());
        shared.note_write(0, 4, &[5, 0, 0, 0], &who(0, 3, &[2, 2])).unwrap();
    }

    #[test]
    fn lanes_of_a_warp_need_a_warp_barrier() {
        let mut shared = Shared::new(64, 4, Checks::ALL);
        shared.note_write(8, 4, &[5, 0, 0, 0], &who(0, 0, &[1])).unwrap();
        shared.note_read(8, 4, &who(0, 0, &[1])).unwrap();
        assert!(shared.note_read(8, 4, &who(0, 1, &[1])).is_err());
        shared.note_read(8, 4, &who(0, 1, &[2])).unwrap();
    }

    #[test]
    fn a_copy_is_untouchable_until_it_has_landed() {
        let mut shared = Shared::new(64, 16, Checks::ALL);
        shared.note_copy(16, 16, &who(0, 0, &[1])).unwrap();
        assert_eq!(shared.note_read(20, 4, &who(0, 0, &[1])).unwrap_err().kind, FindingKind::AsyncPending);
        shared.note_landed(16, 16, &who(0, 0, &[1]));
        shared.note_read(20, 4, &who(0, 0, &[1])).unwrap();
        assert_eq!(shared.note_read(32, 4, &who(0, 0, &[1])).unwrap_err().kind, FindingKind::Uninitialized);
    }
}
