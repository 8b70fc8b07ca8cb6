//! The common accesses, a warp at a time: weak ones whose lanes all access global memory, or all the CTA's own shared memory.

use crate::finding::{Fault, Outcome};
use crate::memory::Words;
use crate::op::{Access, Reg, Space};
use crate::race::{Held, RaceAccess};
use crate::regs::{Bank, LANES, Regs};
use crate::window;

use super::access::{check_alignment, lanes, note_global, note_global_write, read_shared, sign_extend};
use super::cta::Cta;
use super::generic::resolve;
use super::order::weak_write;
use super::shape;
use super::undefined::{Origin, Shade};
use super::warp::Warp;

/// Words of every lane: word `i` of a lane's bytes is `rows[i][lane]`.
type Rows = [[u32; LANES]; 4];

/// Where lanes access that all access one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    Global,
    /// Shared memory of the own CTA, and what is taken off a generic address.
    Shared {
        window: u64,
    },
}

/// The space of a weak access, if it is one for all lanes.
#[inline]
pub(super) fn plain_space(access: &Access, list: &[u64; LANES], active: u32, cta: &Cta<'_>) -> Option<Plain> {
    if access.order.is_strong() || active == 0 {
        return None;
    }
    let is_own = |address: u64| window::rank(address).is_none_or(|rank| rank == cta.rank);
    match access.space {
        Space::Global => Some(Plain::Global),
        Space::Shared | Space::Cluster => {
            lanes(active).all(|lane| is_own(list[lane])).then_some(Plain::Shared { window: 0 })
        }
        Space::Generic => {
            let all = |space: Space| lanes(active).all(|lane| resolve(Space::Generic, list[lane]).0 == space);
            match resolve(Space::Generic, list[active.trailing_zeros() as usize % LANES]).0 {
                Space::Global => all(Space::Global).then_some(Plain::Global),
                Space::Cluster => {
                    let window = cta.shared_window;
                    let own = |lane: usize| {
                        let address = list[lane].wrapping_sub(window);
                        address <= u32::MAX.into() && is_own(address)
                    };
                    lanes(active).all(own).then_some(Plain::Shared { window })
                }
                _ => None,
            }
        }
        _ => None,
    }
}

impl Warp {
    pub(super) fn load_plain(
        &mut self,
        access: &Access,
        space: Plain,
        list: &[u64; LANES],
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let bytes = u32::from(access.element_bytes) * access.regs.len() as u32;
        let last = (u32::BITS - 1 - active.leading_zeros()) as usize;
        let taken = if let Plain::Shared { window } = space { window } else { 0 };
        self.watch.last_read = Some((list[last].wrapping_sub(taken), self.place()));
        if let Plain::Shared { window } = space
            && self.load_at_once(access, window, list, frame, active, cta)?
        {
            return Ok(());
        }
        cta.counters.request(access.space, list, active, bytes, false);
        let (mut rows, mut dark): (Rows, [u32; LANES]) = Default::default();
        let (by, mut hint, mut held) = ((self.index, self.place()), self.hint, Held::default());
        let checks = cta.launch.config.checks;
        let mut who = self.who(0, None, cta);
        for lane in lanes(active) {
            (who.lane, who.lanes) = (lane, 1 << lane);
            let address = list[lane].wrapping_sub(taken);
            check_alignment(cta, lane, address, bytes)?;
            let words = match space {
                Plain::Shared { .. } => {
                    let Some(offset) = cta.shared.offset(lane, window::in_cta(address), bytes)? else {
                        continue;
                    };
                    let (words, unwritten) = read_shared(cta.rank, offset, bytes, &who, by, cta)?;
                    dark[lane] = unwritten;
                    words
                }
                Plain::Global => {
                    let (allocation, offset) =
                        match cta.launch.memory.locate(address, bytes.into(), &mut hint) {
                            Ok(found) => found,
                            Err(kind) if checks.bounds => return Err(Fault::at(kind, lane, address)),
                            Err(_) => continue,
                        };
                    if checks.initialized {
                        dark[lane] = allocation.unwritten(offset, bytes);
                    }
                    let kind = RaceAccess::of_load(access.order);
                    note_global(kind, (allocation, offset, bytes), &who, &mut held, by, cta)?;
                    allocation.load(offset, bytes)
                }
            };
            // Word by word, as they were read: a move of all four would wait for the single ones.
            rows[0][lane] = words[0];
            if bytes > 4 {
                rows[1][lane] = words[1];
                rows[2][lane] = words[2];
                rows[3][lane] = words[3];
            }
        }
        drop(held);
        self.hint = hint;
        self.keep(access, &rows, frame, active)?;
        if dark.iter().all(|mask| *mask == 0) {
            return self.all_defined(access, frame, active);
        }
        let space = if space == Plain::Global { Space::Global } else { Space::Shared };
        for lane in lanes(active) {
            self.dark = (0, None);
            self.darken(dark[lane], (lane, list[lane].wrapping_sub(taken)), space, cta);
            self.shade_loaded(access, frame, lane)?;
        }
        Ok(())
    }

    /// A load of the CTA's own shared memory that nothing is wrong with; false if something may be, and nothing was loaded.
    #[inline]
    fn load_at_once(
        &mut self,
        access: &Access,
        taken: u64,
        list: &[u64; LANES],
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome<bool> {
        let bytes = u32::from(access.element_bytes) * access.regs.len() as u32;
        if !matches!(bytes, 4 | 8 | 16) {
            return Ok(false);
        }
        let Some(mut low) = shape::aligned(list, taken, active, bytes) else { return Ok(false) };
        let first = low[shape::first_lane(active)];
        let at = self.at;
        let who = self.who(shape::first_lane(active), None, cta);
        let shape = cta.shapes.at(at, &low, active, bytes);
        let (least, end) = shape.range(first, bytes);
        let base = first.wrapping_sub(window::SHARED_BASE as u32);
        if !cta.shared.is_own(least, end)
            || !cta.shared.note_reads(base, shape.groups.iter().copied(), bytes, &who)
        {
            return Ok(false);
        }
        if access.space != Space::Cluster {
            cta.counters.shared_load.add_known(shape.wavefronts, active, bytes);
        }
        low.iter_mut().for_each(|address| *address = address.wrapping_sub(window::SHARED_BASE as u32));
        let mut rows: Rows = Default::default();
        cta.shared.load_rows(&low, bytes, &mut rows);
        self.keep(access, &rows, frame, active)?;
        self.all_defined(access, frame, active)?;
        Ok(true)
    }

    /// Nothing that was loaded is undefined.
    #[inline]
    pub(super) fn all_defined(&mut self, access: &Access, frame: usize, active: u32) -> Outcome {
        if let Some(shade) = &mut self.frame(frame)?.shade {
            access.regs.iter().for_each(|reg| shade.clear(reg.bank, reg.slot, active));
        }
        Ok(())
    }

    /// What was loaded goes to the registers.
    pub(super) fn keep(&mut self, access: &Access, rows: &Rows, frame: usize, active: u32) -> Outcome {
        let regs = &mut self.frame(frame)?.regs;
        for (i, reg) in access.regs.iter().enumerate() {
            if access.element_bytes == 4 && !access.signed && reg.bank == Bank::Word {
                regs.set_word(reg.slot, active, &rows[i]);
                continue;
            }
            for lane in lanes(active) {
                let value = element(rows, i, lane, access.element_bytes);
                let value = if access.signed { sign_extend(value, access.element_bytes, reg) } else { value };
                regs.set_bits(reg.bank, reg.slot, lane, value);
            }
        }
        Ok(())
    }

    pub(super) fn store_plain(
        &mut self,
        access: &Access,
        space: Plain,
        list: &[u64; LANES],
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let bytes = u32::from(access.element_bytes) * access.regs.len() as u32;
        let frame_regs = self.frame(frame)?;
        let rows = gather(&frame_regs.regs, &access.regs, access.element_bytes);
        let is_clear = |shade: &Shade| access.regs.iter().all(|r| shade.is_clear(r.bank, r.slot, active));
        let shaded = frame_regs.shade.as_ref().is_some_and(|shade| !is_clear(shade));
        if let Plain::Shared { window } = space
            && !shaded
            && self.store_at_once(access, window, list, &rows, active, cta)
        {
            return Ok(());
        }
        cta.counters.request(access.space, list, active, bytes, true);
        let by = (self.index, self.place());
        let taken = if let Plain::Shared { window } = space { window } else { 0 };
        let (mut hint, mut held) = (self.hint, Held::default());
        let checks = cta.launch.config.checks;
        let mut who = self.who(0, None, cta);
        for lane in lanes(active) {
            (who.lane, who.lanes) = (lane, 1 << lane);
            let address = list[lane].wrapping_sub(taken);
            let words: Words = std::array::from_fn(|i| rows[i][lane]);
            check_alignment(cta, lane, address, bytes)?;
            match space {
                Plain::Shared { .. } => {
                    let address = window::in_cta(address);
                    let Some(offset) = cta.shared.offset(lane, address, bytes)? else { continue };
                    let clash = cta.note_store(offset, bytes, &words, &who, by)?;
                    weak_write(window::of_rank(cta.rank, address), true, cta);
                    if !cta.shared.holds(offset, bytes, &words) {
                        cta.shared.store(offset, bytes, &words);
                        cta.changed_memory(true);
                    }
                    let dark = if shaded { self.dark_stored(access, frame, lane) } else { (0, None) };
                    cta.shade_shared(offset, bytes, dark);
                    if clash.bytes != 0 {
                        let origin = Origin::of_clash(self.place(), (lane, address), clash.line);
                        cta.shade_shared(offset, bytes, (clash.bytes | dark.0, Some(origin)));
                    }
                }
                Plain::Global => {
                    let (allocation, offset) =
                        match cta.launch.memory.locate(address, bytes.into(), &mut hint) {
                            Ok(found) => found,
                            Err(kind) if checks.bounds => return Err(Fault::at(kind, lane, address)),
                            Err(_) => continue,
                        };
                    let at = (allocation, offset, bytes);
                    let same_value = note_global_write(at, &words, &who, &mut held, by, cta)?;
                    weak_write(address, false, cta);
                    if !same_value {
                        cta.changed_memory(false);
                    }
                    allocation.store(offset, bytes, &words);
                    let dark = if shaded { self.dark_stored(access, frame, lane).0 } else { 0 };
                    if dark != 0 {
                        allocation.forget(offset, bytes, dark);
                    }
                }
            }
        }
        drop(held);
        self.hint = hint;
        Ok(())
    }

    /// A store to the CTA's own shared memory, of a place of its own by each lane, that nothing is wrong with; false if something may be,
    /// and nothing was stored.
    #[inline]
    fn store_at_once(
        &mut self,
        access: &Access,
        taken: u64,
        list: &[u64; LANES],
        rows: &Rows,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> bool {
        let bytes = u32::from(access.element_bytes) * access.regs.len() as u32;
        if !matches!(bytes, 4 | 8 | 16) || !cta.flags.is_empty() {
            return false;
        }
        let Some(mut low) = shape::aligned(list, taken, active, bytes) else { return false };
        let first = low[shape::first_lane(active)];
        let who = self.who(shape::first_lane(active), None, cta);
        let shape = cta.shapes.at(self.at, &low, active, bytes);
        let (least, end) = shape.range(first, bytes);
        let base = first.wrapping_sub(window::SHARED_BASE as u32);
        let are_apart = shape.groups.len() == active.count_ones() as usize;
        if !are_apart
            || !cta.shared.is_own(least, end)
            || !cta.shared.note_writes(base, shape.groups.iter().copied(), bytes, &who)
        {
            return false;
        }
        if access.space != Space::Cluster {
            cta.counters.shared_store.add_known(shape.wavefronts, active, bytes);
        }
        low.iter_mut().for_each(|address| *address = address.wrapping_sub(window::SHARED_BASE as u32));
        let changed =
            lanes(active).filter(|lane| cta.shared.store_row(low[*lane], bytes, rows, *lane)).count();
        (0..changed).for_each(|_| cta.changed_memory(true));
        true
    }
}

/// Element `i` of a lane's bytes, zero-extended.
fn element(rows: &Rows, i: usize, lane: usize, bytes: u8) -> u64 {
    match bytes {
        8 => u64::from(rows[2 * i][lane]) | u64::from(rows[2 * i + 1][lane]) << 32,
        4 => rows[i][lane].into(),
        2 => (rows[i / 2][lane] >> (16 * (i % 2)) & 0xffff).into(),
        _ => (rows[i / 4][lane] >> (8 * (i % 4)) & 0xff).into(),
    }
}

/// The bytes that the lanes store.
fn gather(regs: &Regs, list: &[Reg], bytes: u8) -> Rows {
    let mut rows: Rows = Default::default();
    for (i, reg) in list.iter().enumerate() {
        if bytes == 4 && reg.bank == Bank::Word {
            rows[i] = regs.word[reg.slot as usize];
            continue;
        }
        // The first word that the element lies in, and where in it; one of 64 bits goes on in the next.
        let (bits, each) = (8 * usize::from(bytes) * i, 8 * u32::from(bytes));
        let (word, shift) = (bits / 32, bits % 32);
        let kept = if each >= 32 { u32::MAX } else { (1 << each) - 1 };
        for (lane, to) in rows[word].iter_mut().enumerate() {
            *to |= (regs.bits(reg.bank, reg.slot, lane) as u32 & kept) << shift;
        }
        if bytes == 8 {
            for (lane, to) in rows[word + 1].iter_mut().enumerate() {
                *to = (regs.bits(reg.bank, reg.slot, lane) >> 32) as u32;
            }
        }
    }
    rows
}
