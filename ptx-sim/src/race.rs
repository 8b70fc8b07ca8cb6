//! Global-memory races: what is known of every block of 16 bytes, who wrote its bytes and who has read them since.
//!
//! In a kernel without any synchronisation between CTAs nothing orders two clusters; then of bytes that two of them have read
//! no more need be known.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::finding::FindingKind;
use crate::mark::{Mark, Who};
use crate::op::{MemoryOrder, Proxy, Scope, Strength};

mod log;
mod others;

use log::Log;
use others::Others;

/// Bytes of a block, and blocks of a page.
const BLOCK: u64 = 16;
const PAGE: u64 = 256;
/// Accesses that are remembered of one block; of more the oldest read is dropped.
const MOST: usize = 192;

/// What an access collides with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collision {
    /// A race, what a bulk copy has yet to write, or a missing proxy fence.
    pub(crate) kind: FindingKind,
    pub(crate) write: bool,
    /// Cluster of the other access, and the access.
    pub(crate) group: u32,
    pub(crate) past: Mark,
    /// Where in the allocation the two meet.
    pub(crate) offset: u64,
    /// Whether hardware forgives it.
    pub(crate) forgiven: Option<&'static str>,
}

/// How global memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RaceAccess {
    Read,
    /// A read that promises that nobody writes there while the kernel runs.
    ReadOnly,
    /// A read by another proxy than the generic one.
    ProxyRead(Proxy),
    /// A write, and whether it changes nothing.
    Write {
        same_value: bool,
    },
}

impl RaceAccess {
    /// That of a load.
    pub(crate) fn of_load(order: MemoryOrder) -> RaceAccess {
        if order.read_only { RaceAccess::ReadOnly } else { RaceAccess::Read }
    }

    /// The proxy that it goes through, where that is not the generic one.
    fn proxy(self, who: &Who<'_>) -> Option<Proxy> {
        match self {
            RaceAccess::Read | RaceAccess::ReadOnly => None,
            RaceAccess::ProxyRead(proxy) => Some(proxy),
            RaceAccess::Write { .. } => {
                who.later.filter(|later| later.by_async_proxy).map(|_| Proxy::AsyncGlobal)
            }
        }
    }
}

/// A past access to some bytes of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    mark: Mark,
    group: u32,
    bytes: u16,
    write: bool,
    /// Whether it is a read of memory that is to be read only.
    read_only: bool,
}

#[derive(Debug, Default)]
struct Block {
    /// The oldest access, of no bytes if there is none: most blocks have no other.
    first: Entry,
    more: Option<Box<Others>>,
    /// Bytes that several clusters have read, where nothing can order these.
    read_by_many: u16,
    /// Bytes that are to be read only.
    read_only: u16,
    /// Whether anybody has written here.
    is_written: bool,
    /// The strength of every access that is remembered, if they are all of one: those to a lock or a counter, of which there are many.
    alike: Option<Strength>,
}

/// A past access that the new one must not meet, the rule that this breaks, and whether hardware forgives it.
struct Met {
    entry: Entry,
    kind: FindingKind,
    forgiven: Option<&'static str>,
}

/// What is known of the blocks of a page.
#[derive(Debug, Default)]
struct Watched {
    /// None yet where nobody has accessed the page but by reads of the log.
    blocks: Vec<Block>,
    /// The reads before any write: nothing can be wrong with one, and mostly no write follows.
    log: Log,
    is_written: bool,
}

type Page = Mutex<Watched>;

/// The page that a thread has locked: the lanes of one instruction mostly access the same.
#[derive(Default)]
pub(crate) struct Held<'r>(Option<(&'r RaceShadow, usize, MutexGuard<'r, Watched>)>);

/// What is known about one allocation.
#[derive(Debug, Default)]
pub(crate) struct RaceShadow {
    pages: Vec<OnceLock<Box<Page>>>,
}

impl RaceShadow {
    /// Forgets everything; watches from now on, or not at all.
    pub(crate) fn reset(&mut self, watches: bool, bytes: u64) {
        let pages = if watches { bytes.div_ceil(BLOCK * PAGE) as usize } else { 0 };
        self.pages = std::iter::repeat_with(OnceLock::new).take(pages).collect();
    }

    pub(crate) fn is_watching(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Forgets what was done to a range that has become another's: it begins a block.
    pub(crate) fn forget(&self, offset: u64, bytes: u64) {
        let (first, end) = (offset / BLOCK, (offset + bytes).div_ceil(BLOCK));
        let mut at = first;
        while at < end {
            let until = end.min((at / PAGE + 1) * PAGE);
            // Nobody has accessed a page that is not there.
            if let Some(page) = self.pages.get((at / PAGE) as usize).and_then(OnceLock::get) {
                let mut page = page.lock().unwrap_or_else(PoisonError::into_inner);
                let range = (at % PAGE) as usize..((until - 1) % PAGE + 1) as usize;
                page.blocks_after_log()[range].fill_with(Block::default);
            }
            at = until;
        }
    }

    /// Notes an access of at most 16 bytes. `ordered` says whether clusters can be in order at all.
    #[inline]
    pub(crate) fn note<'r>(
        &'r self,
        access: RaceAccess,
        offset: u64,
        bytes: u32,
        who: &Who<'_>,
        ordered: bool,
        held: &mut Held<'r>,
    ) -> Result<(), Collision> {
        let mut at = offset;
        let end = offset + u64::from(bytes);
        let mut outcome = Ok(());
        let write = matches!(access, RaceAccess::Write { .. });
        while at < end {
            let until = end.min((at / BLOCK + 1) * BLOCK);
            let mask = ((1u32 << (until - at)) - 1) << (at % BLOCK);
            let page = self.page((at / (BLOCK * PAGE)) as usize, held);
            if !write && !page.is_written {
                let read_only = access == RaceAccess::ReadOnly;
                let new = Entry { mark: who.mark(), group: who.group, bytes: mask as u16, write, read_only };
                page.log.push(at / BLOCK % PAGE, new, (who.synced, ordered));
                if page.log.is_full() {
                    page.blocks_after_log();
                }
                at = until;
                continue;
            }
            page.is_written |= write;
            let block = &mut page.blocks_after_log()[(at / BLOCK % PAGE) as usize];
            if let Err(Met { entry, kind, forgiven }) = block.note(access, mask as u16, who, ordered) {
                let first = u64::from((entry.bytes & mask as u16).trailing_zeros());
                let found = Collision {
                    kind,
                    write: entry.write,
                    group: entry.group,
                    past: entry.mark,
                    offset: at / BLOCK * BLOCK + first,
                    forgiven,
                };
                if forgiven.is_none() {
                    return Err(found);
                }
                outcome = Err(found);
            }
            at = until;
        }
        outcome
    }

    /// A page, which is held from here on instead of another.
    #[inline]
    fn page<'h, 'r>(&'r self, index: usize, held: &'h mut Held<'r>) -> &'h mut Watched {
        let is_held = |(of, page, _): &(&RaceShadow, usize, _)| std::ptr::eq(*of, self) && *page == index;
        if !held.0.as_ref().is_some_and(is_held) {
            // Two that held one page each and wanted the other's would wait for ever.
            held.0 = None;
            let page = self.pages[index].get_or_init(Box::default);
            held.0 = Some((self, index, page.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        match &mut held.0 {
            Some((.., page)) => page,
            None => unreachable!("it was locked above"),
        }
    }
}

impl Watched {
    /// The blocks, which know all that the log knew.
    #[inline]
    fn blocks_after_log(&mut self) -> &mut [Block] {
        if self.blocks.is_empty() {
            self.blocks.resize_with(PAGE as usize, Block::default);
        }
        if !self.log.is_empty() {
            for (block, read, order) in self.log.take() {
                self.blocks[block as usize].remember_read(read, order);
            }
        }
        &mut self.blocks
    }
}

impl Entry {
    /// A number of its agent, which hardly any other has.
    fn key(&self) -> u32 {
        self.group.wrapping_mul(0x9e37_79b1) ^ u32::from(self.mark.agent)
    }

    /// Whether this is a write of another proxy that the proxy of an access that comes after it has not been told of. What the async
    /// proxy has written is known to it.
    fn lacks_fence(&self, proxy: Proxy, who: &Who<'_>) -> bool {
        let of_maps = matches!(proxy, Proxy::TensorMapReleased | Proxy::TensorMap);
        let crosses = self.write && (self.mark.lanes != 0 || of_maps);
        let past = (self.mark.agent, self.mark.clock, self.mark.lanes);
        crosses && !who.clock.is_fenced(proxy, who.group, self.group, past)
    }

    /// Whether one entry is enough for this access and a new one of the same agent; it then stands for both.
    fn takes_in(&mut self, new: &Entry, synced: u32) -> bool {
        let alike = self.bytes != 0
            && self.write == new.write
            && self.read_only == new.read_only
            && self.group == new.group
            && self.mark.agent == new.mark.agent
            && Strength::are_one(self.mark.strong, new.mark.strong);
        if !alike || self.bytes & !new.bytes != 0 {
            return false;
        }
        let same_time = self.mark.clock == new.mark.clock && self.mark.barriers == new.mark.barriers;
        if same_time && self.bytes == new.bytes && new.mark.lanes != 0 {
            self.mark.lanes |= new.mark.lanes;
            return true;
        }
        let stands_for_both = self.mark.clock < synced || self.mark.lanes & !new.mark.lanes == 0;
        if stands_for_both {
            *self = *new;
        }
        stands_for_both
    }
}

impl Block {
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let more = self.more.iter().flat_map(|more| &more.entries);
        std::iter::once(&self.first).chain(more).filter(|e| e.bytes != 0)
    }

    fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let more = self.more.iter_mut().flat_map(|more| &mut more.entries);
        std::iter::once(&mut self.first).chain(more).filter(|e| e.bytes != 0)
    }

    fn note(&mut self, access: RaceAccess, bytes: u16, who: &Who<'_>, ordered: bool) -> Result<(), Met> {
        let write = matches!(access, RaceAccess::Write { .. });
        let read_only = access == RaceAccess::ReadOnly;
        let promised = if read_only { bytes } else { 0 };
        if !write && bytes & !self.read_by_many == 0 && promised & !self.read_only == 0 {
            return Ok(());
        }
        let new = Entry { mark: who.mark(), group: who.group, bytes, write, read_only };
        if !write && !self.is_written {
            self.remember_read(new, (who.synced, ordered));
            return Ok(());
        }
        let mut outcome = self.look(access, bytes, who);
        if outcome.as_ref().is_err_and(|met| met.forgiven.is_none()) {
            return outcome;
        }
        if write && bytes & self.read_only != 0 {
            let of_reader = |e: &&Entry| e.read_only && e.bytes & bytes != 0;
            let entry = self.entries().find(of_reader).copied().unwrap_or_default();
            let changes_nothing = access == RaceAccess::Write { same_value: true };
            let forgiven = changes_nothing.then_some("the write changes nothing");
            outcome = Err(Met { entry, kind: FindingKind::ReadOnly, forgiven });
            if forgiven.is_none() {
                return outcome;
            }
        }
        self.remember(new, who, ordered);
        outcome
    }

    /// What is wrong with an access after those that are remembered.
    #[inline]
    fn look(&self, access: RaceAccess, bytes: u16, who: &Who<'_>) -> Result<(), Met> {
        let (write, proxy) = (matches!(access, RaceAccess::Write { .. }), access.proxy(who));
        if let (Some(alike), Some(own), None) = (self.alike, who.strong, proxy)
            && own.is_like(alike)
            && own.reach(alike, Scope::Gpu)
        {
            return Ok(());
        }
        let mut outcome = Ok(());
        let overlapping = self.entries().filter(|e| e.bytes & bytes != 0 && (write || e.write));
        for entry in overlapping {
            if !who.collides(&entry.mark, entry.group)
                || !entry.write && who.comes_after_read(&entry.mark, entry.group)
            {
                if proxy.is_some_and(|proxy| entry.lacks_fence(proxy, who)) {
                    return Err(Met { entry: *entry, kind: FindingKind::ProxyFence, forgiven: None });
                }
                if access == RaceAccess::ReadOnly {
                    return Err(Met { entry: *entry, kind: FindingKind::ReadOnly, forgiven: None });
                }
                continue;
            }
            let same_value = entry.write && access == RaceAccess::Write { same_value: true };
            // One instruction that gives a place one value, whoever executes it, is no fault.
            if same_value && entry.mark.line == who.line {
                continue;
            }
            let forgiven = if same_value {
                Some("both write the same value")
            } else if who.nearly_ordered(&entry.mark, entry.group) {
                Some("a fence is missing between the read of the flag and this access")
            } else {
                None
            };
            // A bulk copy that its thread has not waited for; of another cluster's the order is what lacks.
            let pending = entry.mark.lanes == 0 && entry.group == who.group;
            let kind = if pending { FindingKind::AsyncPending } else { FindingKind::GlobalRace };
            outcome = Err(Met { entry: *entry, kind, forgiven });
            if forgiven.is_none() {
                return outcome;
            }
        }
        outcome
    }

    fn alike_with(&self, new: &Entry) -> Option<Strength> {
        new.mark.strong.filter(|strong| self.alike == Some(*strong) || self.entries().next().is_none())
    }

    fn remember(&mut self, new: Entry, who: &Who<'_>, ordered: bool) {
        if !new.write {
            return self.remember_read(new, (who.synced, ordered));
        }
        self.is_written = true;
        self.alike = self.alike_with(&new);
        if new.mark.strong.is_none() {
            // Whoever comes after this write comes after what came before it.
            self.first.bytes &= !new.bytes;
            if let Some(more) = &mut self.more {
                more.overwrite(new.bytes);
            }
            self.read_by_many &= !new.bytes;
            self.push(new);
            return;
        }
        if self.alike.is_none() {
            self.entries_mut()
                .filter(|e| !e.write && e.bytes & !new.bytes == 0)
                .for_each(|e| e.mark.follow(who, e.group));
        }
        self.take_in(new, who.synced);
    }

    /// Remembers a read, by when the warp's lanes were last in order, and by whether clusters can be.
    fn remember_read(&mut self, new: Entry, (synced, ordered): (u32, bool)) {
        let promised = if new.read_only { new.bytes } else { 0 };
        if new.bytes & !self.read_by_many == 0 && promised & !self.read_only == 0 {
            return;
        }
        self.read_only |= promised;
        self.alike = self.alike_with(&new);
        if !ordered && new.mark.strong.is_none() {
            let others = |e: &&Entry| !e.write && e.group != new.group && e.mark.strong.is_none();
            let shared = self.entries().filter(others).fold(0, |b, e| b | e.bytes) & new.bytes;
            // This second reader is remembered too: a writer collides with one of the two at least.
            self.read_by_many |= shared;
        }
        self.take_in(new, synced);
    }

    /// Remembers an access by itself, or in one of the same agent.
    fn take_in(&mut self, new: Entry, synced: u32) {
        if self.first.takes_in(&new, synced) {
            return;
        }
        if let Some(more) = &mut self.more {
            let (key, mut from) = (new.key(), 0);
            while let Some(at) = more.position(key, from) {
                if more.entries[at].takes_in(&new, synced) {
                    return;
                }
                from = at + 1;
            }
        }
        if let Some(more) = &mut self.more
            && more.entries.len() + 1 >= MOST
            && let Some(oldest) = more.entries.iter().position(|e| !e.write)
        {
            more.remove(oldest);
        }
        self.push(new);
    }

    fn push(&mut self, new: Entry) {
        let more = self.more.as_mut().filter(|more| !more.entries.is_empty());
        match (self.first.bytes, more) {
            (0, None) => self.first = new,
            (0, Some(more)) => {
                self.first = more.remove(0);
                more.push(new);
            }
            _ => self.more.get_or_insert_default().push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Released};
    use std::sync::Arc;

    fn who(group: u32, agent: u16, lane: usize, clock: &Clock, scope: Option<Scope>) -> Who<'_> {
        let strong = scope.map(|scope| Strength::new(scope, 4, true, false));
        let (now, synced, later, order, lanes) = (1, 1, None, None, 1 << lane);
        let (line, met) = (7 + group, (0, 0));
        Who { agent, group, lane, lanes, line, strong, clock, now, synced, met, later, order, warps: 4 }
    }

    fn noted(
        shadow: &RaceShadow,
        access: RaceAccess,
        (offset, bytes): (u64, u32),
        who: &Who<'_>,
        ordered: bool,
    ) -> Result<(), Collision> {
        shadow.note(access, offset, bytes, who, ordered, &mut Held::default())
    }

    const WRITE: RaceAccess = RaceAccess::Write { same_value: false };

    #[test]
    fn only_unordered_accesses_with_a_write_collide() {
        let mut shadow = RaceShadow::default();
        shadow.reset(true, 64);
        let none = Clock::default();
        let (a, b) = (who(0, 0, 0, &none, None), who(1, 0, 0, &none, None));
        let note = |access, at, bytes, who: &Who<'_>| noted(&shadow, access, (at, bytes), who, false);
        assert!(note(RaceAccess::Read, 0, 16, &a).is_ok() && note(RaceAccess::Read, 0, 16, &b).is_ok());
        let collision = note(WRITE, 12, 4, &a).unwrap_err();
        assert_eq!((collision.write, collision.offset), (false, 12));
        assert!(note(WRITE, 16, 4, &a).is_ok() && note(RaceAccess::Read, 16, 4, &a).is_ok());
        assert!(note(RaceAccess::Read, 18, 1, &b).is_err_and(|c| c.write && c.offset == 18));
        assert!(note(RaceAccess::Read, 20, 4, &b).is_ok());
        // Another lane of the warp, and another warp of the CTA.
        assert!(note(RaceAccess::Read, 16, 4, &who(0, 0, 1, &none, None)).is_err());
        assert!(note(RaceAccess::Read, 16, 4, &who(0, 1, 0, &none, None)).is_err());
    }

    #[test]
    fn atomics_collide_only_beyond_their_scopes_and_with_plain_accesses() {
        let mut shadow = RaceShadow::default();
        shadow.reset(true, 64);
        let none = Clock::default();
        let note = |access, at, who: &Who<'_>| noted(&shadow, access, (at, 4), who, true);
        assert!(note(WRITE, 0, &who(0, 0, 0, &none, Some(Scope::Gpu))).is_ok());
        assert!(note(WRITE, 0, &who(1, 0, 0, &none, Some(Scope::Gpu))).is_ok());
        assert!(note(WRITE, 0, &who(2, 0, 0, &none, Some(Scope::Cta))).is_err());
        assert!(note(RaceAccess::Read, 0, &who(1, 0, 0, &none, None)).is_err());
    }

    #[test]
    fn what_was_acquired_is_in_order() {
        let mut shadow = RaceShadow::default();
        shadow.reset(true, 64);
        let (none, mut released, mut seen) = (Clock::default(), Clock::default(), Clock::default());
        released.see(0, 1);
        assert!(noted(&shadow, WRITE, (0, 4), &who(0, 0, 0, &none, None), true).is_ok());
        let released = Released { group: 0, clock: Arc::new(released) };
        seen.acquire_nearly(1, &released);
        let nearly = noted(&shadow, RaceAccess::Read, (0, 4), &who(1, 0, 0, &seen, None), true);
        assert!(nearly.is_err_and(|c| c.forgiven.is_some()));
        seen.acquire(1, &released);
        assert!(noted(&shadow, RaceAccess::Read, (0, 4), &who(1, 0, 0, &seen, None), true).is_ok());
    }
}
