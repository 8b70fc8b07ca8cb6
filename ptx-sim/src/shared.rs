//! Shared memory of a CTA and what is known about each granule of it: who wrote it, who read it, which asynchronous copy
//! is on its way to it. Two accesses are ordered if a barrier lies between them; each warp carries a vector clock, which
//! barriers join. Bulk copies and `wgmma` access it through the async proxy, as agents of their own (`clock.rs`).

use crate::clock::{Agent, Clock};
use crate::config::Checks;
use crate::finding::{Fault, FindingKind, OtherAccess, Outcome, Severity};
use crate::mark::{Mark, Who};
use crate::memory::Words;
use crate::op::Proxy;
use crate::shadow::{Cell, Shadow};
use crate::window::SHARED_BASE;

mod at_once;

/// Stores of one warp to one place in no order, as CUB's compactions make to a slot that nobody reads: the bytes that they leave undefined,
/// and the line of the other store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clash {
    pub(crate) bytes: u32,
    pub(crate) line: u32,
}

/// Shared memory with its shadow.
#[derive(Debug)]
pub(crate) struct Shared {
    words: Vec<u32>,
    bytes: u64,
    /// Whether the kernel uses the bytes before its own, which the system keeps.
    reserved: bool,
    shadow: Shadow,
    /// A bit for every byte that holds what nobody defined; empty where there is none.
    dark: Vec<u32>,
    checks: Checks,
}

impl Shared {
    /// `bytes` of unwritten memory, watched in granules of the smallest access that the kernel makes.
    pub(crate) fn new(bytes: u64, granule: u32, checks: Checks, reserved: bool) -> Self {
        let watched = checks.shared_races || checks.initialized || checks.async_copies;
        let all = if reserved { bytes.next_multiple_of(16) + SHARED_BASE } else { bytes };
        Shared {
            words: vec![0; all.div_ceil(4) as usize],
            bytes,
            reserved,
            shadow: Shadow::new(if watched { all } else { 0 }, granule),
            dark: Vec::new(),
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
        if self.reserved && address.saturating_add(bytes.into()) <= SHARED_BASE {
            // The bytes that the system keeps lie behind all others here.
            return Ok(Some(self.bytes.next_multiple_of(16) + address));
        }
        if self.checks.bounds { Err(Fault::at(FindingKind::OutOfBounds, lane, address)) } else { Ok(None) }
    }

    /// `bytes` ≤ 16 at an offset inside. Always inlined: words that go through memory are written one by one and read together,
    /// for which the host waits.
    #[inline(always)]
    pub(crate) fn load(&self, offset: u64, bytes: u32) -> Words {
        let mut words = [0; 4];
        let at = offset as usize / 4;
        // Sizes that are known when this is compiled are single moves.
        match bytes {
            4 if offset.is_multiple_of(4) => words[0] = self.words[at],
            8 if offset.is_multiple_of(4) => words[..2].copy_from_slice(&self.words[at..at + 2]),
            16 if offset.is_multiple_of(4) => words.copy_from_slice(&self.words[at..at + 4]),
            _ => {
                for i in 0..bytes as usize {
                    let byte = offset as usize + i;
                    words[i / 4] |= (self.words[byte / 4] >> (8 * (byte % 4)) & 0xff) << (8 * (i % 4));
                }
            }
        }
        words
    }

    /// Stores `bytes` ≤ 16 at an offset inside.
    #[inline]
    pub(crate) fn store(&mut self, offset: u64, bytes: u32, words: &Words) {
        if !self.dark.is_empty() {
            self.shade(offset, bytes, 0);
        }
        let at = offset as usize / 4;
        match bytes {
            4 if offset.is_multiple_of(4) => self.words[at] = words[0],
            8 if offset.is_multiple_of(4) => self.words[at..at + 2].copy_from_slice(&words[..2]),
            16 if offset.is_multiple_of(4) => self.words[at..at + 4].copy_from_slice(words),
            _ => {
                for i in 0..bytes as usize {
                    let byte = offset as usize + i;
                    let shift = 8 * (byte % 4);
                    let value = words[i / 4] >> (8 * (i % 4)) & 0xff;
                    let word = &mut self.words[byte / 4];
                    *word = *word & !(0xff << shift) | value << shift;
                }
            }
        }
    }

    /// Whether the memory holds these bytes already.
    #[inline]
    pub(crate) fn holds(&self, offset: u64, bytes: u32, words: &Words) -> bool {
        if bytes == 4 && offset.is_multiple_of(4) {
            return self.words[offset as usize / 4] == words[0];
        }
        let mut wanted = *words;
        trim(&mut wanted, bytes);
        self.load(offset, bytes) == wanted
    }

    /// The bytes of the range that hold what nobody defined, although they were written.
    #[inline]
    pub(crate) fn dark(&self, offset: u64, bytes: u32) -> u32 {
        if self.dark.is_empty() || !self.checks.initialized {
            return 0;
        }
        let dark = |byte: u64| self.dark[(byte / 32) as usize] >> (byte % 32) & 1;
        (0..bytes).fold(0, |mask, b| mask | dark(offset + u64::from(b)) << b)
    }

    fn is_reserved(&self, byte: u64) -> bool {
        self.reserved && byte >= self.bytes.next_multiple_of(16)
    }

    /// Says which bytes of a range hold what nobody defined.
    pub(crate) fn shade(&mut self, offset: u64, bytes: u32, mask: u32) {
        if mask == 0 && self.dark.is_empty() {
            return;
        }
        self.dark.resize(self.words.len().div_ceil(8), 0);
        for byte in 0..bytes {
            let at = offset + u64::from(byte);
            let word = &mut self.dark[(at / 32) as usize];
            *word = *word & !(1 << (at % 32)) | (mask >> byte & 1) << (at % 32);
        }
    }

    /// Notes a read and says what is wrong with it; gives the bytes that nobody wrote.
    #[inline]
    pub(crate) fn note_read(&mut self, offset: u64, bytes: u32, who: &Who<'_>) -> Outcome<u32> {
        let checks = self.checks;
        let (mut unwritten, mut warning) = (0, None);
        self.shadow.each(offset, bytes, |range, cell| {
            cell.check_open(&checks, range.start, who)?;
            if cell.write.clock == 0 {
                unwritten |= (((1u64 << (range.end - range.start)) - 1) as u32) << (range.start - offset);
            }
            if checks.shared_races {
                check_order(range.start, &cell.write, true, who)?;
                check_order(range.start, &cell.weak, true, who)?;
                cell.reads.note(who.mark(), who.synced);
            }
            if checks.async_copies {
                match check_proxy(range.start, cell, who) {
                    Err(fault) if fault.severity == Severity::Warning => {
                        warning = warning.take().or(Some(fault))
                    }
                    outcome => outcome?,
                }
            }
            Ok(())
        })?;
        if !checks.initialized || self.is_reserved(offset) {
            unwritten = 0;
        }
        match warning {
            Some(warning) if unwritten == 0 => Err(warning),
            _ => Ok(unwritten),
        }
    }

    /// Notes a write of `words` and says what is wrong with it. Lanes of one instruction may write one value to one
    /// place: whichever comes last, the outcome is the same.
    #[inline]
    pub(crate) fn note_write(&mut self, offset: u64, bytes: u32, words: &Words, who: &Who<'_>) -> Outcome {
        self.note_write_beside(offset, bytes, words, who, None)
    }

    /// The same of a store that may come beside other stores of its warp: that is no fault as long as nobody depends on the place.
    #[inline]
    pub(crate) fn note_store(
        &mut self,
        offset: u64,
        bytes: u32,
        words: &Words,
        who: &Who<'_>,
        clash: &mut Clash,
    ) -> Outcome {
        let follows = self.checks.initialized && self.checks.shared_races;
        let outcome =
            self.note_write_beside(offset, bytes, words, who, if follows { Some(clash) } else { None });
        if clash.bytes != 0 {
            let before = self.load(offset, bytes);
            let unlike = (0..bytes).filter(|byte| {
                let at = |words: &Words| words[*byte as usize / 4] >> (8 * (byte % 4)) & 0xff;
                at(&before) != at(words)
            });
            // What was undefined stays so, whichever of the writes comes last.
            clash.bytes &= unlike.fold(self.dark(offset, bytes), |mask, byte| mask | 1 << byte);
        }
        outcome
    }

    #[inline]
    fn note_write_beside(
        &mut self,
        offset: u64,
        bytes: u32,
        words: &Words,
        who: &Who<'_>,
        mut clash: Option<&mut Clash>,
    ) -> Outcome {
        let checks = self.checks;
        let repeats = self.load(offset, bytes) == *words;
        let mut warning = Ok(());
        self.shadow.each(offset, bytes, |range, cell| {
            cell.check_open(&checks, range.start, who)?;
            let mut beside = None;
            let room = clash.is_some().then_some(&mut beside);
            match check_write(&checks, range.start, cell, (repeats, room), who) {
                Err(fault) if fault.severity == Severity::Warning => warning = Err(fault),
                outcome => outcome?,
            }
            if let (Some(clash), Some(line)) = (&mut clash, beside) {
                let bits = ((1u64 << (range.end - range.start)) - 1) as u32;
                (clash.bytes, clash.line) = (clash.bytes | bits << (range.start - offset), line);
            }
            if checks.async_copies {
                match check_proxy(range.start, cell, who) {
                    Err(fault) if fault.severity == Severity::Warning => warning = Err(fault),
                    outcome => outcome?,
                }
            }
            cell.note_write(who.mark());
            Ok(())
        })?;
        warning
    }

    /// Notes the start of an asynchronous copy: like a write, and nobody may touch the granules until it is waited for.
    pub(crate) fn note_copy(&mut self, offset: u64, bytes: u32, who: &Who<'_>) -> Outcome {
        let checks = self.checks;
        self.shadow.each(offset, bytes, |range, cell| {
            cell.check_open(&checks, range.start, who)?;
            check_write(&checks, range.start, cell, (false, None), who)?;
            cell.pending += 1;
            cell.pending_line = who.line;
            Ok(())
        })
    }

    /// Notes the start of a write by the async proxy, which nobody may touch before having seen the agent's time.
    pub(crate) fn note_bulk_write(&mut self, offset: u64, bytes: u32, who: &Who<'_>) -> Outcome {
        // Words that no lane repeats: the value does not excuse a second write.
        let unlike = self.load(offset, bytes).map(|word| !word);
        self.note_write(offset, bytes, &unlike, who)
    }

    /// Makes eight bytes an mbarrier, or no longer one: like a write, and opaque in between. `repeats` says that it is already, the
    /// same and unused, of which the caller warns.
    pub(crate) fn note_mbarrier(
        &mut self,
        offset: u64,
        valid: bool,
        repeats: bool,
        who: &Who<'_>,
    ) -> Outcome {
        let checks = self.checks;
        self.shadow.each(offset, 8, |range, cell| {
            match check_write(&checks, range.start, cell, (repeats, None), who) {
                Err(fault) if repeats && fault.severity == Severity::Warning => {}
                outcome => outcome?,
            }
            cell.note_write(who.mark());
            cell.mbarrier = valid;
            Ok(())
        })
    }

    /// The fault of using an mbarrier whose initialisation is not ordered before.
    pub(crate) fn check_mbarrier(&mut self, offset: u64, who: &Who<'_>) -> Outcome {
        if !self.checks.shared_races {
            return Ok(());
        }
        self.shadow.each(offset, 8, |range, cell| check_order(range.start, &cell.write, true, who))
    }

    /// An access by a warp outside `own`, or by what another CTA's mbarrier counts, that a clock has not seen: its address, and whether
    /// it wrote.
    pub(crate) fn unseen(
        &self,
        own: std::ops::Range<u16>,
        is_own_later: impl Fn(Agent) -> bool,
        clock: &Clock,
    ) -> Option<(u64, Mark, bool)> {
        let unseen = |mark: &Mark| {
            let is_own = if mark.lanes == 0 { is_own_later(mark.agent) } else { own.contains(&mark.agent) };
            mark.clock != 0 && !is_own && !clock.covers(mark.agent, mark.clock, mark.lanes)
        };
        self.shadow.all().find_map(|(offset, cell)| {
            let address = offset + SHARED_BASE;
            let read = cell.reads.iter().find(|m| unseen(m)).map(|m| (address, *m, false));
            read.or_else(|| unseen(&cell.write).then_some((address, cell.write, true)))
        })
    }

    /// Notes that the issuing thread has waited for a copy: from here on it is a write by that thread.
    pub(crate) fn note_landed(&mut self, offset: u64, bytes: u32, who: &Who<'_>) {
        let landed = |_, cell: &mut Cell| {
            cell.pending = cell.pending.saturating_sub(1);
            let line = cell.pending_line;
            cell.note_write(Mark { line, ..who.mark() });
            Ok(())
        };
        let noted = self.shadow.each(offset, bytes, landed);
        assert!(noted.is_ok());
    }
}

impl Cell {
    /// The fault of touching what a copy is on its way to, or an mbarrier.
    #[inline]
    fn check_open(&self, checks: &Checks, offset: u64, who: &Who<'_>) -> Outcome {
        if checks.async_copies && self.pending > 0 {
            return Err(pending(offset, self, who));
        }
        if self.mbarrier {
            return Err(opaque(offset, who));
        }
        Ok(())
    }
}

/// Zeroes what lies beyond the bytes.
pub(crate) fn trim(words: &mut Words, bytes: u32) {
    for (at, word) in words.iter_mut().enumerate() {
        let left = (bytes as usize).saturating_sub(4 * at).min(4);
        if left < 4 {
            *word &= ((1u64 << (8 * left)) - 1) as u32;
        }
    }
}

/// `repeats` says that the place holds what is written already; `beside` takes the line of another store of the warp that may come before or
/// after this one, where that is no fault.
fn check_write(
    checks: &Checks,
    offset: u64,
    cell: &mut Cell,
    (repeats, mut beside): (bool, Option<&mut Option<u32>>),
    who: &Who<'_>,
) -> Outcome {
    if !checks.shared_races {
        return Ok(());
    }
    let mut warning = Ok(());
    for past in [&cell.weak, &cell.write] {
        if !who.collides(past, who.group) {
            continue;
        }
        if let Some(beside) = &mut beside
            && past.agent == who.agent
            && past.lanes != 0
            && past.strong.is_none()
        {
            **beside = Some(past.line);
            if !repeats {
                continue;
            }
        }
        // One instruction that gives all its warps one value, as where a compiler keeps it in each of them, is no fault.
        if repeats && past.line == who.line {
            continue;
        }
        let fault = race(offset, past, true, who);
        if !repeats || fault.kind != FindingKind::SharedRace {
            return Err(fault);
        }
        // Whichever comes last, the memory holds the same.
        warning = Err(fault.warning("both write the same value"));
    }
    cell.reads.iter().try_for_each(|read| check_order(offset, read, false, who))?;
    if who.strong.is_none() {
        // Whoever comes after this write comes after those reads.
        cell.reads.clear();
    } else {
        cell.reads.iter_mut().for_each(|read| read.follow(who, who.group));
    }
    warning
}

/// The fault of a past access that is not ordered before this one.
#[inline]
fn check_order(offset: u64, past: &Mark, write: bool, who: &Who<'_>) -> Outcome {
    if who.collides(past, who.group) && (write || !who.comes_after_read(past, who.group)) {
        return Err(race(offset, past, write, who));
    }
    Ok(())
}

/// The async proxy sees a generic write only through a proxy fence (PTX ISA §8.6). Triton and CUTLASS leave it out between
/// a `cp.async` that was waited for and `wgmma`, and no hardware is known to mind.
#[inline]
fn check_proxy(offset: u64, cell: &Cell, who: &Who<'_>) -> Outcome {
    let write = &cell.write;
    let crosses = who.later.is_some_and(|later| later.by_async_proxy) && write.clock != 0 && write.lanes != 0;
    if !crosses || is_fenced(write, who) {
        return Ok(());
    }
    let mut fault = Fault::at(FindingKind::ProxyFence, who.lane, offset + SHARED_BASE);
    fault.other = Some(other(write, true));
    let by_wgmma = who.agent == Agent::MAX;
    Err(if by_wgmma && cell.pending_line == write.line {
        fault.warning("the ISA asks for fence.proxy.async after cp.async too")
    } else {
        fault
    })
}

fn is_fenced(write: &Mark, who: &Who<'_>) -> bool {
    let past = (write.agent, write.clock, write.lanes);
    who.clock.is_fenced(Proxy::AsyncShared, who.group, who.group, past)
}

fn pending(offset: u64, cell: &Cell, who: &Who<'_>) -> Box<Fault> {
    let mut fault = Fault::at(FindingKind::AsyncPending, who.lane, offset + SHARED_BASE);
    fault.other =
        Some(OtherAccess { write: true, line: Some(cell.pending_line), warp: None, lanes: 0, cta: None });
    fault
}

fn opaque(offset: u64, who: &Who<'_>) -> Box<Fault> {
    Fault::at(FindingKind::Mbarrier, who.lane, offset + SHARED_BASE)
        .saying("an mbarrier is opaque while it is valid")
}

/// A race of two warps, or an access of the async proxy that is not waited for.
fn race(offset: u64, past: &Mark, write: bool, who: &Who<'_>) -> Box<Fault> {
    let kind = if past.lanes == 0 { FindingKind::AsyncPending } else { FindingKind::SharedRace };
    let mut fault = Fault::at(kind, who.lane, offset + SHARED_BASE);
    fault.other = Some(other(past, write));
    if who.nearly_ordered(past, who.group) {
        return fault.warning("a fence is missing between the read of the flag and this access");
    }
    fault
}

fn other(past: &Mark, write: bool) -> OtherAccess {
    let warp = (past.lanes != 0).then_some(u32::from(past.agent));
    OtherAccess { write, line: Some(past.line), warp, lanes: past.lanes, cta: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::Later;

    fn clock(times: &[u32]) -> Clock {
        let mut clock = Clock::default();
        times.iter().enumerate().for_each(|(agent, time)| clock.see(agent as Agent, *time));
        clock
    }

    fn who(warp: u32, lane: usize, clock: &Clock, now: u32) -> Who<'_> {
        let (lanes, synced, agent) = (1 << lane, now, warp as Agent);
        let (group, strong, later, order, warps) = (0, None, None, None, 4);
        let met = (0, 0);
        Who { agent, group, lane, lanes, line: 7, strong, clock, now, synced, met, later, order, warps }
    }

    #[test]
    fn unordered_warps_collide_and_ordered_ones_do_not() {
        let mut shared = Shared::new(64, 4, Checks::ALL, false);
        shared.note_write(0, 4, &[5, 0, 0, 0], &who(0, 3, &clock(&[1, 0]), 1)).unwrap();
        let fault = shared.note_read(0, 4, &who(1, 0, &clock(&[0, 1]), 1)).unwrap_err();
        assert_eq!((fault.kind, fault.other.unwrap().lanes), (FindingKind::SharedRace, 8));
        shared.note_read(0, 4, &who(1, 0, &clock(&[1, 2]), 2)).unwrap();
        assert!(shared.note_write(0, 4, &[5, 0, 0, 0], &who(0, 3, &clock(&[2, 0]), 2)).is_err());
        shared.note_write(0, 4, &[5, 0, 0, 0], &who(0, 3, &clock(&[2, 2]), 2)).unwrap();
    }

    #[test]
    fn lanes_of_a_warp_need_a_warp_barrier() {
        let mut shared = Shared::new(64, 4, Checks::ALL, false);
        let none = clock(&[]);
        shared.note_write(8, 4, &[5, 0, 0, 0], &who(0, 0, &none, 1)).unwrap();
        shared.note_read(8, 4, &who(0, 0, &none, 1)).unwrap();
        assert!(shared.note_read(8, 4, &who(0, 1, &none, 1)).is_err());
        shared.note_read(8, 4, &who(0, 1, &none, 2)).unwrap();
    }

    #[test]
    fn a_copy_is_untouchable_until_it_has_landed() {
        let mut shared = Shared::new(64, 16, Checks::ALL, false);
        let none = clock(&[]);
        shared.note_copy(16, 16, &who(0, 0, &none, 1)).unwrap();
        let early = shared.note_read(20, 4, &who(0, 0, &none, 1)).unwrap_err();
        assert_eq!(early.kind, FindingKind::AsyncPending);
        shared.note_landed(16, 16, &who(0, 0, &none, 1));
        shared.note_read(20, 4, &who(0, 0, &none, 1)).unwrap();
        let unwritten = shared.note_read(32, 4, &who(0, 0, &none, 1)).unwrap();
        assert_eq!(unwritten, 15);
    }

    #[test]
    fn the_async_proxy_needs_a_fence_after_generic_writes_and_a_wait_before_others() {
        let mut shared = Shared::new(64, 4, Checks::ALL, false);
        let mut seen = clock(&[1]);
        shared.note_write(0, 4, &[5, 0, 0, 0], &who(0, 0, &seen, 1)).unwrap();
        fn reader(clock: &Clock) -> Who<'_> {
            let later = Some(Later { agent: 4, time: 1, by_async_proxy: true });
            Who { agent: Agent::MAX, later, ..who(0, 0, clock, 1) }
        }
        let fault = shared.note_read(0, 4, &reader(&seen)).unwrap_err();
        assert_eq!(fault.kind, FindingKind::ProxyFence);
        seen.fence(Proxy::AsyncShared, &clock(&[1]));
        shared.note_read(0, 4, &reader(&seen)).unwrap();
        let fault = shared.note_write(0, 4, &[6, 0, 0, 0], &who(0, 0, &seen, 1)).unwrap_err();
        assert_eq!((fault.kind, fault.other.unwrap().write), (FindingKind::AsyncPending, false));
        seen.see(4, 1);
        shared.note_write(0, 4, &[6, 0, 0, 0], &who(0, 0, &seen, 1)).unwrap();
    }
}
