//! Loads and stores of every state space (PTX ISA §9.7.9.8, §9.7.9.11).

use crate::finding::{Fault, FindingKind, OtherAccess, Outcome};
use crate::mark::Who;
use crate::memory::{Allocation, Words, words_of};
use crate::op::{Access, Addr, MemoryOrder, Pc, Reg, Space, Strength};
use crate::race::{Collision, Held, RaceAccess};
use crate::regs::{Bank, LANES, Regs};
use crate::window;

use super::cta::Cta;
use super::order::{Modifies, Strong, weak_write};
use super::plain::plain_space;
use super::shape::first_lane;
use super::warp::Warp;

/// How often a write that collides looks whether the other is of the same value.
const MOST_YIELDS: u32 = 500;

/// The address of every lane.
pub(super) fn addresses(regs: &Regs, addr: &Addr) -> [u64; LANES] {
    let mut list = [0; LANES];
    match addr.bank {
        Bank::Double => list = regs.double[addr.slot as usize].map(|a| a.wrapping_add(addr.offset as u64)),
        _ => {
            for (to, from) in list.iter_mut().zip(&regs.word[addr.slot as usize]) {
                *to = from.wrapping_add(addr.offset as u32).into();
            }
        }
    }
    list
}

/// The lanes of a mask.
#[inline]
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

impl Warp {
    pub(super) fn load(&mut self, access: &Access, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        let bytes = u32::from(access.element_bytes) * access.regs.len() as u32;
        let list = addresses(&self.frame(frame)?.regs, &access.addr);
        if let Some(space) = plain_space(access, &list, active, cta) {
            return self.load_plain(access, space, &list, frame, active, cta);
        }
        cta.counters.request(access.space, &list, active, bytes, false);
        let first = first_lane(active);
        if access.space == Space::Param && lanes(active).all(|lane| list[lane] == list[first]) {
            // A parameter is the same for all lanes, and defined.
            let words = self.read(access.space, list[first], (first, bytes), access.order, frame, cta)?;
            self.keep(access, &words.map(|word| [word; LANES]), frame, active)?;
            return self.all_defined(access, frame, active);
        }
        for lane in lanes(active) {
            self.dark = (0, None);
            let words = self.read(access.space, list[lane], (lane, bytes), access.order, frame, cta)?;
            self.shade_loaded(access, frame, lane)?;
            let regs = &mut self.frame(frame)?.regs;
            for (i, reg) in access.regs.iter().enumerate() {
                let value = element(&words, i, access.element_bytes);
                let value = if access.signed { sign_extend(value, access.element_bytes, reg) } else { value };
                regs.set_bits(reg.bank, reg.slot, lane, value);
            }
        }
        Ok(())
    }

    pub(super) fn store(&mut self, access: &Access, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        let bytes = u32::from(access.element_bytes) * access.regs.len() as u32;
        let list = addresses(&self.frame(frame)?.regs, &access.addr);
        if let Some(space) = plain_space(access, &list, active, cta) {
            return self.store_plain(access, space, &list, frame, active, cta);
        }
        cta.counters.request(access.space, &list, active, bytes, true);
        for lane in lanes(active) {
            let words = gather(&self.frame(frame)?.regs, &access.regs, lane, access.element_bytes);
            let dark = self.dark_stored(access, frame, lane);
            self.write(access.space, list[lane], (lane, bytes), &words, access.order, frame, cta)?;
            self.shade_stored(access.space, list[lane], (lane, bytes), dark, frame, cta)?;
        }
        Ok(())
    }

    /// One lane's read of `bytes` ≤ 16 in any space.
    pub(super) fn read(
        &mut self,
        space: Space,
        address: u64,
        (lane, bytes): (usize, u32),
        order: MemoryOrder,
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome<Words> {
        let (space, address) = self.resolve_own(space, address, lane, cta)?;
        if matches!(space, Space::Global | Space::Shared | Space::Cluster) {
            self.watch.last_read = Some((address, self.place()));
        }
        check_alignment(cta, lane, address, bytes)?;
        match space {
            Space::Global => self.load_global(lane, address, bytes, order, cta),
            Space::Shared | Space::Cluster => {
                let rank = cta.rank_of(space, lane, &mut { address })?;
                self.load_shared((lane, rank), window::in_cta(address), bytes, order, cta)
            }
            Space::Local => self.load_local(lane, address, bytes, cta),
            Space::Frame => {
                let at = lane * (self.frame(frame)?.params.len() / LANES) + address as usize;
                self.dark = self.params_shade(frame, at, bytes);
                Ok(load_frame(&self.frame(frame)?.params, lane, address, bytes))
            }
            Space::Param | Space::Generic => load_param(cta, lane, address, bytes),
        }
    }

    /// One lane's write of `bytes` ≤ 16 in any space.
    #[expect(clippy::too_many_arguments, reason = "each is a plain part of one access")]
    pub(super) fn write(
        &mut self,
        space: Space,
        address: u64,
        (lane, bytes): (usize, u32),
        words: &Words,
        order: MemoryOrder,
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let (space, address) = self.resolve_own(space, address, lane, cta)?;
        check_alignment(cta, lane, address, bytes)?;
        match space {
            Space::Global => self.store_global(lane, address, bytes, words, order, cta),
            Space::Shared | Space::Cluster => {
                let rank = cta.rank_of(space, lane, &mut { address })?;
                self.store_shared((lane, rank), window::in_cta(address), bytes, words, order, cta)
            }
            Space::Local if self.local.store(lane, address, bytes, words) => Ok(()),
            Space::Frame => {
                store_frame(&mut self.frame(frame)?.params, lane, address, bytes, words);
                Ok(())
            }
            Space::Local | Space::Param | Space::Generic => outside(cta, lane, address),
        }
    }

    /// A global read of one lane.
    pub(super) fn load_global(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        order: MemoryOrder,
        cta: &mut Cta<'_>,
    ) -> Outcome<Words> {
        let Some((allocation, offset)) = self.locate(lane, address, bytes, cta)? else { return Ok([0; 4]) };
        if order.is_strong() {
            self.strong_read(Strong { address, lane, order, shared: false }, Modifies::No, cta);
        }
        if cta.launch.config.checks.initialized {
            self.darken(allocation.unwritten(offset, bytes), (lane, address), Space::Global, cta);
        }
        let access = RaceAccess::of_load(order);
        self.note_global(access, allocation, (lane, offset, bytes), order.strength(false), cta)?;
        Ok(allocation.load(offset, bytes))
    }

    fn store_global(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        words: &Words,
        order: MemoryOrder,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let Some((allocation, offset)) = self.locate(lane, address, bytes, cta)? else { return Ok(()) };
        let who = self.who(lane, order.strength(false), cta);
        let by = (self.index, self.place());
        let at = (allocation, offset, bytes);
        let same_value = note_global_write(at, words, &who, &mut Held::default(), by, cta)?;
        if order.is_strong() {
            self.strong_write(Strong { address, lane, order, shared: false }, false, false, cta);
        } else {
            weak_write(address, false, cta);
        }
        if !same_value {
            cta.changed_memory(false);
        }
        allocation.store(offset, bytes, words);
        Ok(())
    }

    /// Notes an access to global memory, where races are looked for.
    pub(super) fn note_global<'c>(
        &mut self,
        access: RaceAccess,
        allocation: &'c Allocation,
        (lane, offset, bytes): (usize, u64, u32),
        strong: Option<Strength>,
        cta: &mut Cta<'c>,
    ) -> Outcome {
        if !allocation.races.is_watching() {
            return Ok(());
        }
        let who = self.who(lane, strong, cta);
        let by = (self.index, self.place());
        note_global(access, (allocation, offset, bytes), &who, &mut Held::default(), by, cta)
    }

    /// The allocation that holds a range; `None` outside, where that is not checked.
    pub(super) fn locate<'c>(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        cta: &Cta<'c>,
    ) -> Outcome<Option<(&'c Allocation, u64)>> {
        match cta.launch.memory.locate(address, bytes.into(), &mut self.hint) {
            Ok(found) => Ok(Some(found)),
            Err(kind) if cta.launch.config.checks.bounds => Err(Fault::at(kind, lane, address)),
            Err(_) => Ok(None),
        }
    }

    /// Who accesses memory, one lane.
    pub(super) fn who(&self, lane: usize, strong: Option<Strength>, cta: &Cta<'_>) -> Who<'_> {
        Who {
            agent: cta.agents.warp(self.index),
            group: cta.group,
            lane,
            lanes: 1 << lane,
            line: cta.launch.line(self.place()),
            strong,
            clock: &self.clock,
            now: self.now,
            synced: self.synced,
            met: self.met,
            later: None,
            order: self.order.as_deref(),
            warps: cta.launch.warps() as u16,
        }
    }

    fn load_shared(
        &mut self,
        (lane, rank): (usize, u32),
        address: u64,
        bytes: u32,
        order: MemoryOrder,
        cta: &mut Cta<'_>,
    ) -> Outcome<Words> {
        let Some(offset) = cta.at_rank(rank).shared.offset(lane, address, bytes)? else { return Ok([0; 4]) };
        if order.is_strong() {
            let flag = window::of_rank(rank, address);
            self.strong_read(Strong { address: flag, lane, order, shared: true }, Modifies::No, cta);
        }
        let who = self.who(lane, order.strength(false), cta);
        let by = (self.index, self.place());
        let (words, dark) = read_shared(rank, offset, bytes, &who, by, cta)?;
        self.darken(dark, (lane, address), Space::Shared, cta);
        Ok(words)
    }

    fn store_shared(
        &mut self,
        (lane, rank): (usize, u32),
        address: u64,
        bytes: u32,
        words: &Words,
        order: MemoryOrder,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let Some(offset) = cta.at_rank(rank).shared.offset(lane, address, bytes)? else { return Ok(()) };
        let who = self.who(lane, order.strength(false), cta);
        cta.note_write(rank, offset, bytes, words, &who, (self.index, self.place()))?;
        let flag = window::of_rank(rank, address);
        if order.is_strong() {
            self.strong_write(Strong { address: flag, lane, order, shared: true }, false, false, cta);
        } else {
            weak_write(flag, true, cta);
        }
        let shared = &mut cta.at_rank(rank).shared;
        if !shared.holds(offset, bytes, words) {
            shared.store(offset, bytes, words);
            cta.changed_memory(true);
        }
        Ok(())
    }

    fn load_local(&mut self, lane: usize, address: u64, bytes: u32, cta: &Cta<'_>) -> Outcome<Words> {
        match self.local.load(lane, address, bytes) {
            Some((words, dark)) => {
                if cta.launch.config.checks.initialized {
                    self.darken(dark, (lane, address), Space::Local, cta);
                }
                Ok(words)
            }
            None => outside(cta, lane, address).map(|()| [0; 4]),
        }
    }
}

/// An instruction of a warp, for findings.
pub(super) type By = (u32, (usize, Pc));

/// Notes a global access, where races are looked for.
#[inline]
pub(super) fn note_global<'c>(
    access: RaceAccess,
    (allocation, offset, bytes): (&'c Allocation, u64, u32),
    who: &Who<'_>,
    held: &mut Held<'c>,
    by: By,
    cta: &mut Cta<'c>,
) -> Outcome {
    if !allocation.races.is_watching() {
        return Ok(());
    }
    match allocation.races.note(access, offset, bytes, who, cta.launch.orders_clusters, held) {
        Ok(()) => Ok(()),
        Err(collision) => {
            let fault = global_race(who.lane, allocation, collision, cta);
            cta.tolerate(Err(fault), by)
        }
    }
}

/// Notes a write of `words`; says whether memory holds them already.
#[inline]
pub(super) fn note_global_write<'c>(
    (allocation, offset, bytes): (&'c Allocation, u64, u32),
    words: &Words,
    who: &Who<'_>,
    held: &mut Held<'c>,
    by: By,
    cta: &mut Cta<'c>,
) -> Outcome<bool> {
    let at = (allocation, offset, bytes);
    if allocation.is_const {
        let fault = Fault::at(FindingKind::OutOfBounds, who.lane, allocation.base + offset);
        return Err(fault.saying("constant memory is read only"));
    }
    let mut same_value = allocation.holds(offset, bytes, words);
    let noted = note_global(RaceAccess::Write { same_value }, at, who, held, by, cta);
    match noted {
        Err(fault) if fault.kind == FindingKind::GlobalRace && !same_value => {
            // A CTA on another core may have noted its write and not yet made it: that may be of the same value.
            *held = Held::default();
            same_value = (0..MOST_YIELDS).any(|_| {
                std::thread::yield_now();
                allocation.holds(offset, bytes, words)
            });
            if !same_value {
                return Err(fault);
            }
            note_global(RaceAccess::Write { same_value }, at, who, held, by, cta)?;
        }
        outcome => outcome?,
    }
    Ok(same_value)
}

/// Reads shared memory: the words, and which bytes of them are undefined.
#[inline(always)]
pub(super) fn read_shared(
    rank: u32,
    offset: u64,
    bytes: u32,
    who: &Who<'_>,
    by: By,
    cta: &mut Cta<'_>,
) -> Outcome<(Words, u32)> {
    let shared = &mut cta.at_rank(rank).shared;
    let unwritten = match shared.note_read(offset, bytes, who) {
        Ok(unwritten) => unwritten,
        fault => {
            cta.tolerate(fault.map(drop), by)?;
            0
        }
    };
    let shared = &cta.at_rank(rank).shared;
    Ok((shared.load(offset, bytes), unwritten | shared.dark(offset, bytes)))
}

/// The fault of an address outside its space, where that is checked.
pub(super) fn outside(cta: &Cta<'_>, lane: usize, address: u64) -> Outcome {
    if cta.launch.config.checks.bounds {
        Err(Fault::at(FindingKind::OutOfBounds, lane, address))
    } else {
        Ok(())
    }
}

/// The fault of an address that is no multiple of the access size, where that is checked.
#[inline]
pub(super) fn check_alignment(cta: &Cta<'_>, lane: usize, address: u64, bytes: u32) -> Outcome {
    if address & u64::from(bytes - 1) != 0 && cta.launch.config.checks.alignment {
        return Err(Fault::at(FindingKind::Misaligned, lane, address));
    }
    Ok(())
}

/// PTX ISA §9.7.9.8 and the CUDA programming guide on `__ldg`.
const READ_ONLY: &str =
    "what ld.global.nc, __ldg and ldu load must not be written while the kernel runs, in whatever order";

/// The fault of a race in an allocation.
fn global_race(lane: usize, allocation: &Allocation, collision: Collision, cta: &Cta<'_>) -> Box<Fault> {
    let address = cta.launch.memory.address(allocation, collision.offset);
    let mut fault = Fault::at(collision.kind, lane, address);
    let (write, past) = (collision.write, collision.past);
    let (rank, warp) = match past.lanes {
        0 => (cta.agents.rank_of_later(past.agent), 0),
        _ => cta.agents.place(past.agent),
    };
    let other_cta = cta.launch.cta_of(collision.group, rank);
    fault.other = Some(OtherAccess {
        write,
        line: Some(past.line).filter(|line| *line != 0),
        warp: (past.lanes != 0).then_some(warp),
        lanes: past.lanes,
        cta: Some(other_cta as u32).filter(|_| other_cta != cta.id),
    });
    match collision.forgiven {
        Some(detail) => fault.warning(detail),
        None if collision.kind == FindingKind::ReadOnly => fault.saying(READ_ONLY),
        None => fault,
    }
}

/// Element `i` of an access, zero-extended.
fn element(words: &Words, i: usize, bytes: u8) -> u64 {
    match bytes {
        8 => u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32,
        4 => words[i].into(),
        2 => (words[i / 2] >> (16 * (i % 2)) & 0xffff).into(),
        _ => (words[i / 4] >> (8 * (i % 4)) & 0xff).into(),
    }
}

pub(super) fn sign_extend(value: u64, bytes: u8, reg: &Reg) -> u64 {
    let shift = 64 - 8 * u32::from(bytes);
    let wide = ((value << shift) as i64 >> shift) as u64;
    if reg.bits == 16 { wide & 0xffff } else { wide }
}

/// The bytes that a lane stores.
pub(super) fn gather(regs: &Regs, list: &[Reg], lane: usize, bytes: u8) -> Words {
    let mut words = [0; 4];
    for (i, reg) in list.iter().enumerate() {
        let value = regs.bits(reg.bank, reg.slot, lane);
        match bytes {
            8 => {
                words[2 * i] = value as u32;
                words[2 * i + 1] = (value >> 32) as u32;
            }
            4 => words[i] = value as u32,
            2 => words[i / 2] |= (value as u32 & 0xffff) << (16 * (i % 2)),
            _ => words[i / 4] |= (value as u32 & 0xff) << (8 * (i % 4)),
        }
    }
    words
}

fn load_param(cta: &Cta<'_>, lane: usize, address: u64, bytes: u32) -> Outcome<Words> {
    let params = cta.launch.params;
    let end = address.saturating_add(bytes.into());
    if end > params.len() as u64 {
        outside(cta, lane, address)?;
        return Ok([0; 4]);
    }
    Ok(words_of(&params[address as usize..end as usize]))
}

/// Frame offsets were checked when the program was decoded.
fn load_frame(params: &[u8], lane: usize, offset: u64, bytes: u32) -> Words {
    let at = lane * (params.len() / LANES) + offset as usize;
    words_of(&params[at..at + bytes as usize])
}

fn store_frame(params: &mut [u8], lane: usize, offset: u64, bytes: u32, words: &Words) {
    let at = lane * (params.len() / LANES) + offset as usize;
    for i in 0..bytes as usize {
        params[at + i] = (words[i / 4] >> (8 * (i % 4))) as u8;
    }
}
