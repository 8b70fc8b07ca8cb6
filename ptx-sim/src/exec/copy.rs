//! `cp.async`: copies that land late (PTX ISA §9.7.9.25.3). The source is read when the copy is issued; the bytes reach
//! shared memory when the thread waits for them, or earlier at random under a seed. The hardware may read the source at
//! any time before the wait, so a source that has changed by then is a fault.

use crate::clock::Clock;
use crate::finding::{Fault, FindingKind, OtherAccess, Outcome};
use crate::mark::Who;
use crate::memory::Words;
use crate::op::{CopyArrive, CopyAsync};
use crate::race::{Held, RaceAccess};
use crate::regs::LANES;

use super::access::{addresses, check_alignment, lanes, note_global};
use super::cta::Cta;
use super::mbarrier::{LIMIT, shared_address};
use super::warp::Warp;

/// One instruction's copies.
#[derive(Debug)]
struct Copy {
    /// Lanes whose copy its thread has not waited for.
    open: u32,
    /// Lanes whose bytes are already in shared memory.
    landed: u32,
    bytes: u32,
    /// Offsets in shared memory.
    to: [u64; LANES],
    data: [Words; LANES],
    /// The bytes that nobody wrote.
    dark: [u32; LANES],
    /// Addresses in global memory, and bytes read there.
    from: [u64; LANES],
    source_bytes: [u32; LANES],
    /// The group of each lane.
    group: [u32; LANES],
    /// Where it was issued, as a PTX line.
    line: u32,
    /// How many were issued before.
    number: u64,
}

/// An arrival at an mbarrier once a thread's copies so far have landed (`cp.async.mbarrier.arrive`).
#[derive(Debug)]
struct CopyArrival {
    lane: usize,
    /// Offset and address of the mbarrier.
    mbarrier: (u64, u64),
    /// Copies with lower numbers come before it.
    number: u64,
    /// What the thread had seen and done, and its time then.
    clock: Clock,
    now: u32,
    line: u32,
}

/// The copies of a warp on their way.
#[derive(Debug, Default)]
pub(super) struct CopyQueue {
    copies: Vec<Copy>,
    /// Each lane's open group: copies issued now belong to it.
    group: [u32; LANES],
    issued: u64,
    arrivals: Vec<CopyArrival>,
}

impl CopyQueue {
    /// Whether an arrival waits for copies.
    pub(super) fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Closes the open group of some lanes.
    pub(super) fn commit(&mut self, active: u32) {
        for lane in lanes(active) {
            self.group[lane] += 1;
        }
    }
}

impl Warp {
    pub(super) fn copy_async(
        &mut self,
        copy: &CopyAsync,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let bytes = u32::from(copy.bytes);
        let regs = &self.frame(frame)?.regs;
        let (to, from) = (addresses(regs, &copy.to), addresses(regs, &copy.from));
        let mut source_bytes = [bytes; LANES];
        for lane in lanes(active) {
            if let Some(reg) = copy.source_bytes {
                source_bytes[lane] = regs.bits(reg.bank, reg.slot, lane) as u32;
            }
            if copy.ignore.is_some_and(|p| regs.pred[p as usize] >> lane & 1 == 1) {
                source_bytes[lane] = 0;
            }
        }
        cta.counters.copy(&to, &from, &source_bytes, active, bytes);
        let group = self.copies.group;
        let line = cta.launch.line(self.at);
        let (open, data) = (0, [[0; 4]; LANES]);
        let number = self.copies.issued;
        self.copies.issued += 1;
        let to_offsets = [0; LANES];
        let mut new = Copy {
            open,
            landed: 0,
            bytes,
            to: to_offsets,
            data,
            dark: [0; LANES],
            from,
            source_bytes,
            group,
            line,
            number,
        };
        let (by, mut hint, mut held) = ((self.index, self.place()), self.hint, Held::default());
        let mut who = self.who(0, None, cta);
        let checked = cta.launch.config.checks;
        for lane in lanes(active) {
            let size = source_bytes[lane];
            if size > bytes {
                return Err(Fault::at(FindingKind::BadOperand, lane, size.into()));
            }
            check_alignment(cta, lane, to[lane], bytes)?;
            check_alignment(cta, lane, from[lane], bytes)?;
            (who.lane, who.lanes) = (lane, 1 << lane);
            if size > 0 {
                match cta.launch.memory.locate(from[lane], size.into(), &mut hint) {
                    Ok((allocation, offset)) => {
                        if checked.initialized {
                            new.dark[lane] = allocation.unwritten(offset, size);
                        }
                        note_global(RaceAccess::Read, (allocation, offset, size), &who, &mut held, by, cta)?;
                        // Bytes beyond the size are zero, as the words start out.
                        new.data[lane] = allocation.load(offset, size);
                    }
                    Err(kind) if checked.bounds => return Err(Fault::at(kind, lane, from[lane])),
                    Err(_) => {}
                }
            }
            let Some(offset) = cta.shared.offset(lane, to[lane], bytes)? else { continue };
            let noted = cta.shared.note_copy(offset, bytes, &who);
            cta.tolerate(noted, by)?;
            new.to[lane] = offset;
            new.open |= 1 << lane;
        }
        drop(held);
        self.hint = hint;
        self.copies.copies.push(new);
        if cta.random_bit() {
            self.land_some(cta);
        }
        Ok(())
    }

    /// Lets a random copy's bytes land early; nobody may look at them before the wait all the same.
    fn land_some(&mut self, cta: &mut Cta<'_>) {
        let count = self.copies.copies.len() as u64;
        let copy = &mut self.copies.copies[(cta.random() % count) as usize];
        for lane in lanes(copy.open & !copy.landed) {
            cta.shared.store(copy.to[lane], copy.bytes, &copy.data[lane]);
        }
        copy.landed = copy.open;
    }

    /// `cp.async.mbarrier.arrive`: arrives when the thread's copies so far have landed. Without `noinc` the phase takes an
    /// arrival more (PTX ISA §9.7.13.15.15).
    pub(super) fn copy_arrive(
        &mut self,
        op: &CopyArrive,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let list = addresses(&self.frame(frame)?.regs, &op.addr);
        for lane in lanes(active) {
            let address = shared_address(op.space, list[lane]);
            check_alignment(cta, lane, address, 8)?;
            let Some(offset) = cta.shared.offset(lane, address, 8)? else { continue };
            let mbarrier = cta.mbarrier(offset, lane, address)?;
            if op.increments {
                mbarrier.pending += 1;
                if mbarrier.pending > LIMIT {
                    return Err(Fault::at(FindingKind::BadOperand, lane, address));
                }
            }
            let (mut clock, number) = (self.release_clock(1 << lane), self.copies.issued);
            clock.when = clock.when.max(self.time.as_ref().map_or(0, |time| time.copies_landed()));
            let (now, line) = (self.now, cta.launch.line(self.at));
            let mbarrier = (offset, address);
            self.copies.arrivals.push(CopyArrival { lane, mbarrier, number, clock, now, line });
        }
        self.now += 1;
        Ok(())
    }

    /// Lets the copies land that arrivals of these lanes wait for, and arrives.
    pub(super) fn land_arrivals(&mut self, active: u32, cta: &mut Cta<'_>) -> Outcome {
        let mut at = 0;
        while at < self.copies.arrivals.len() {
            if active >> self.copies.arrivals[at].lane & 1 == 0 {
                at += 1;
                continue;
            }
            let arrival = self.copies.arrivals.remove(at);
            self.close(1 << arrival.lane, arrival.now, cta, |copy, _| copy.number < arrival.number)?;
            let (offset, address) = arrival.mbarrier;
            let site = (self.index, arrival.line);
            cta.arrive_at((offset, arrival.lane, address), 1, site, &arrival.clock)?;
        }
        Ok(())
    }

    /// `wait_group n`, or `wait_all` without a number.
    pub(super) fn wait_group(&mut self, keep: Option<u32>, active: u32, cta: &mut Cta<'_>) -> Outcome {
        self.land_arrivals(active, cta)?;
        let current = self.copies.group;
        let open: Vec<u32> = self.copies.copies.iter().map(|c| c.group[0]).collect();
        cta.counters.groups(&open, current[0]);
        self.close(active, self.now, cta, |copy, lane| match keep {
            // Group g is complete if at most `keep` groups were committed after it.
            Some(keep) => copy.group[lane].saturating_add(keep) < current[lane],
            None => true,
        })
    }

    /// Some copies of these lanes have landed, and are their threads' writes at that time.
    fn close(
        &mut self,
        active: u32,
        now: u32,
        cta: &mut Cta<'_>,
        complete: impl Fn(&Copy, usize) -> bool,
    ) -> Outcome {
        let mut copies = std::mem::take(&mut self.copies.copies);
        let mut hint = self.hint;
        for copy in &mut copies {
            let mut done = 0;
            let mut who = Who { line: copy.line, now, ..self.who(0, None, cta) };
            for lane in lanes(copy.open & active) {
                if !complete(copy, lane) {
                    continue;
                }
                done |= 1 << lane;
                (who.lane, who.lanes) = (lane, 1 << lane);
                check_source(copy, lane, &mut hint, cta)?;
                if copy.landed >> lane & 1 == 0 {
                    cta.shared.store(copy.to[lane], copy.bytes, &copy.data[lane]);
                }
                cta.shared.note_landed(copy.to[lane], copy.bytes, &who);
                cta.shared.shade(copy.to[lane], copy.bytes, copy.dark[lane]);
            }
            copy.open &= !done;
        }
        copies.retain(|c| c.open != 0);
        self.copies.copies = copies;
        Ok(())
    }
}

/// Whether the source still holds what was copied.
fn check_source(copy: &Copy, lane: usize, hint: &mut usize, cta: &Cta<'_>) -> Outcome {
    let (address, bytes) = (copy.from[lane], copy.source_bytes[lane]);
    if !cta.launch.config.checks.async_copies || bytes == 0 {
        return Ok(());
    }
    match cta.launch.memory.locate(address, bytes.into(), hint) {
        Ok((allocation, offset)) if allocation.differs(offset, bytes, &copy.data[lane]) => {
            let mut fault = Fault::at(FindingKind::AsyncPending, lane, address);
            let line = Some(copy.line);
            fault.other = Some(OtherAccess { write: false, line, warp: None, lanes: 1 << lane, cta: None });
            Err(fault)
        }
        _ => Ok(()),
    }
}
