//! Loads and stores of every state space (PTX ISA §9.7.9.8, §9.7.9.11).

use crate::finding::{Fault, FindingKind, OtherAccess, Outcome};
use crate::memory::{Allocation, Words};
use crate::op::{Access, Addr, Reg, Space};
use crate::race::{self, Collision, RaceAccess};
use crate::regs::{Bank, LANES, Regs};
use crate::shared::Who;
use crate::window;

use super::cta::Cta;
use super::warp::Warp;

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
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 == 1)
}

/// The space and the address in it of a generic address (PTX ISA §5.1).
fn resolve(space: Space, address: u64) -> (Space, u64) {
    if space != Space::Generic {
        return (space, address);
    }
    for (window, space) in [
        (window::SHARED_WINDOW, Space::Shared),
        (window::LOCAL_WINDOW, Space::Local),
        (window::PARAM_WINDOW, Space::Param),
    ] {
        if window::holds(window, address) {
            return (space, address - window);
        }
    }
    (Space::Global, address)
}

impl Warp {
    pub(super) fn load(&mut self, access: &Access, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        let bytes = u32::from(access.element_bytes) * access.regs.len() as u32;
        let list = addresses(&self.frame(frame)?.regs, &access.addr);
        cta.counters.request(access.space, &list, active, bytes, false);
        for lane in lanes(active) {
            let words = self.read(access.space, list[lane], (lane, bytes), access.strong, frame, cta)?;
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
        cta.counters.request(access.space, &list, active, bytes, true);
        for lane in lanes(active) {
            let words = gather(&self.frame(frame)?.regs, &access.regs, lane, access.element_bytes);
            self.write(access.space, list[lane], (lane, bytes), &words, access.strong, frame, cta)?;
        }
        Ok(())
    }

    /// One lane's read of `bytes` ≤ 16 in any space.
    pub(super) fn read(
        &mut self,
        space: Space,
        address: u64,
        (lane, bytes): (usize, u32),
        strong: bool,
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome<Words> {
        let (space, address) = resolve(space, address);
        check_alignment(cta, lane, address, bytes)?;
        match space {
            Space::Global => self.load_global(lane, address, bytes, strong, cta),
            Space::Shared => self.load_shared(lane, address, bytes, strong, cta),
            Space::Local => self.load_local(lane, address, bytes, cta),
            Space::Frame => Ok(load_frame(&self.frame(frame)?.params, lane, address, bytes)),
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
        strong: bool,
        frame: usize,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let (space, address) = resolve(space, address);
        check_alignment(cta, lane, address, bytes)?;
        match space {
            Space::Global => self.store_global(lane, address, bytes, words, strong, cta),
            Space::Shared => self.store_shared(lane, address, bytes, words, strong, cta),
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
        strong: bool,
        cta: &mut Cta<'_>,
    ) -> Outcome<Words> {
        let Some((allocation, offset)) = self.locate(lane, address, bytes, cta)? else { return Ok([0; 4]) };
        let checks = &cta.launch.config.checks;
        if checks.initialized && !allocation.is_written(offset, bytes) {
            return Err(Fault::at(FindingKind::Uninitialized, lane, address));
        }
        if !strong && !cta.synchronized {
            let noted = allocation.races.note(RaceAccess::Read, offset, bytes, race::tag(cta.id));
            noted.map_err(|collision| global_race(lane, allocation.base, collision))?;
        }
        Ok(allocation.load(offset, bytes))
    }

    fn store_global(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        words: &Words,
        strong: bool,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let Some((allocation, offset)) = self.locate(lane, address, bytes, cta)? else { return Ok(()) };
        if !strong && !cta.synchronized {
            let noted = allocation.races.note(RaceAccess::Write, offset, bytes, race::tag(cta.id));
            noted.map_err(|collision| global_race(lane, allocation.base, collision))?;
        }
        allocation.store(offset, bytes, words);
        Ok(())
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

    /// Who accesses shared memory, one lane.
    pub(super) fn who(&self, lane: usize, strong: bool, cta: &Cta<'_>) -> Who<'_> {
        let line = cta.launch.line(self.at);
        Who {
            warp: self.index,
            lane,
            lanes: 1 << lane,
            line,
            strong,
            clock: &self.clock,
            now: self.now,
            synced: self.synced,
            proxy: None,
            order: self.order.as_deref(),
        }
    }

    fn load_shared(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        strong: bool,
        cta: &mut Cta<'_>,
    ) -> Outcome<Words> {
        let Some(offset) = cta.shared.offset(lane, address, bytes)? else { return Ok([0; 4]) };
        let who = self.who(lane, strong, cta);
        cta.note_read(offset, bytes, &who, (self.index, self.at))?;
        Ok(cta.shared.load(offset, bytes))
    }

    fn store_shared(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        words: &Words,
        strong: bool,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let Some(offset) = cta.shared.offset(lane, address, bytes)? else { return Ok(()) };
        let who = self.who(lane, strong, cta);
        cta.shared.note_write(offset, bytes, words, &who)?;
        cta.shared.store(offset, bytes, words);
        Ok(())
    }

    fn load_local(&mut self, lane: usize, address: u64, bytes: u32, cta: &Cta<'_>) -> Outcome<Words> {
        match self.local.load(lane, address, bytes) {
            Some((_, false)) if cta.launch.config.checks.initialized => {
                Err(Fault::at(FindingKind::Uninitialized, lane, address))
            }
            Some((words, _)) => Ok(words),
            None => outside(cta, lane, address).map(|()| [0; 4]),
        }
    }
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

/// The fault of a race in the allocation at `base`.
pub(super) fn global_race(lane: usize, base: u64, collision: Collision) -> Box<Fault> {
    let mut fault = Fault::at(FindingKind::GlobalRace, lane, base + collision.offset);
    fault.other =
        Some(OtherAccess { write: collision.write, line: None, warp: None, lanes: 0, cta: collision.cta });
    fault
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

fn sign_extend(value: u64, bytes: u8, reg: &Reg) -> u64 {
    let shift = 64 - 8 * u32::from(bytes);
    let wide = ((value << shift) as i64 >> shift) as u64;
    if reg.bits == 16 { wide & 0xffff } else { wide }
}

/// The bytes that a lane stores.
fn gather(regs: &Regs, list: &[Reg], lane: usize, bytes: u8) -> Words {
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

pub(super) fn words_of(bytes: &[u8]) -> Words {
    let mut words = [0; 4];
    for (i, byte) in bytes.iter().enumerate() {
        words[i / 4] |= u32::from(*byte) << (8 * (i % 4));
    }
    words
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
