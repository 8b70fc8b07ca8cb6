//! Global-memory races between the CTAs of a grid: a cell for every granule remembers who wrote and who read it.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// More than one CTA has read the granule.
const MANY: u32 = 0xffff;
/// The writer's tag of a granule that only atomic operations have changed.
const ATOMIC: u32 = 0xffff;

/// What an access collides with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collision {
    pub(crate) write: bool,
    /// Tag of the other CTA; `None` if several read.
    pub(crate) cta: Option<u32>,
    /// Where in the allocation the two meet.
    pub(crate) offset: u64,
}

/// How a CTA accesses a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RaceAccess {
    Read,
    Write,
    /// Collides with the plain accesses of others only.
    Atomic,
}

/// A granule whose first access of certain kinds is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) offset: u64,
    pub(crate) accesses: [Option<RaceAccess>; 2],
}

/// Cells of one allocation. A cell holds the writer in its low half and the reader in its high half, as tags.
#[derive(Debug, Default)]
pub(crate) struct RaceShadow {
    granule: u64,
    cells: Vec<AtomicU32>,
    wanted: Option<Wanted>,
}

/// The tag of a CTA: 1 to 65534. CTAs that share a tag are not told apart, which misses races but invents none.
pub(crate) fn tag(cta: u64) -> u32 {
    (cta % 65534) as u32 + 1
}

impl RaceShadow {
    /// Forgets everything and takes a new granule; `None` watches nothing.
    pub(crate) fn reset(&mut self, granule: Option<u32>, bytes: u64) {
        self.granule = granule.unwrap_or(1).into();
        self.wanted = None;
        let length = if granule.is_some() { bytes.div_ceil(self.granule) as usize } else { 0 };
        if self.cells.len() == length {
            self.cells.iter_mut().for_each(|c| *c.get_mut() = 0);
        } else {
            self.cells = std::iter::repeat_with(|| AtomicU32::new(0)).take(length).collect();
        }
    }

    /// Forgets everything; the first access that is wanted will count as a collision.
    pub(crate) fn look_for(&mut self, wanted: Wanted) {
        self.cells = Vec::new();
        self.wanted = Some(wanted);
    }

    /// Notes an access by the CTA of that tag.
    #[inline]
    pub(crate) fn note(
        &self,
        access: RaceAccess,
        offset: u64,
        bytes: u32,
        tag: u32,
    ) -> Result<(), Collision> {
        if self.cells.is_empty() {
            return self.seek(access, offset, bytes);
        }
        let first = offset / self.granule;
        let last = (offset + u64::from(bytes) - 1) / self.granule;
        let cells = self.cells[first as usize..=last as usize].iter().zip(first..);
        for (cell, index) in cells {
            let noted = match access {
                RaceAccess::Read => read(cell, tag),
                RaceAccess::Write => write(cell, tag),
                RaceAccess::Atomic => atomic(cell, tag),
            };
            if let Err((write, cta)) = noted {
                return Err(Collision { write, cta, offset: offset.max(index * self.granule) });
            }
        }
        Ok(())
    }

    fn seek(&self, access: RaceAccess, offset: u64, bytes: u32) -> Result<(), Collision> {
        match self.wanted {
            Some(wanted)
                if wanted.accesses.contains(&Some(access))
                    && offset / self.granule <= wanted.offset / self.granule
                    && wanted.offset / self.granule <= (offset + u64::from(bytes) - 1) / self.granule =>
            {
                Err(Collision { write: access != RaceAccess::Read, cta: None, offset: wanted.offset })
            }
            _ => Ok(()),
        }
    }
}

/// Whether the other access writes, and its CTA's tag less one where it is one CTA.
type Other = (bool, Option<u32>);

#[inline]
fn read(cell: &AtomicU32, tag: u32) -> Result<(), Other> {
    let old = cell.load(Relaxed);
    let (writer, reader) = (old & 0xffff, old >> 16);
    if writer != 0 && writer != tag {
        return Err((true, (writer != ATOMIC).then(|| writer - 1)));
    }
    if reader != tag && reader != MANY {
        let mark = |old: u32| Some(old & 0xffff | (if old >> 16 == 0 { tag } else { MANY }) << 16);
        let _ = cell.fetch_update(Relaxed, Relaxed, mark);
    }
    Ok(())
}

#[inline]
fn write(cell: &AtomicU32, tag: u32) -> Result<(), Other> {
    let (writer, reader) = replace_writer(cell, tag);
    if writer != 0 && writer != tag {
        return Err((true, (writer != ATOMIC).then(|| writer - 1)));
    }
    by_another_reader(reader, tag)
}

#[inline]
fn atomic(cell: &AtomicU32, tag: u32) -> Result<(), Other> {
    let (writer, reader) = replace_writer(cell, ATOMIC);
    if writer != 0 && writer != ATOMIC && writer != tag {
        return Err((true, Some(writer - 1)));
    }
    by_another_reader(reader, tag)
}

/// The writer and the reader that the cell held.
#[inline]
fn replace_writer(cell: &AtomicU32, tag: u32) -> (u32, u32) {
    let old = match cell.fetch_update(Relaxed, Relaxed, |old| Some(old & !0xffff | tag)) {
        Ok(old) | Err(old) => old,
    };
    (old & 0xffff, old >> 16)
}

fn by_another_reader(reader: u32, tag: u32) -> Result<(), Other> {
    if reader != 0 && reader != tag { Err((false, (reader != MANY).then(|| reader - 1))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::RaceAccess::{Atomic, Read, Write};
    use super::*;

    #[test]
    fn only_accesses_of_two_ctas_with_a_write_collide() {
        let mut shadow = RaceShadow::default();
        shadow.reset(Some(4), 64);
        let (a, b) = (tag(0), tag(1));
        let collision = |write, cta, offset| Err(Collision { write, cta, offset });
        assert!(shadow.note(Read, 0, 16, a).is_ok() && shadow.note(Read, 0, 16, b).is_ok());
        assert_eq!(shadow.note(Write, 12, 4, a), collision(false, None, 12));
        assert!(shadow.note(Write, 16, 4, a).is_ok() && shadow.note(Read, 16, 4, a).is_ok());
        assert_eq!(shadow.note(Read, 16, 4, b), collision(true, Some(0), 16));
        assert!(shadow.note(Write, 20, 4, b).is_ok());
        assert_eq!(shadow.note(Write, 20, 4, a), collision(true, Some(1), 20));
        shadow.reset(Some(4), 64);
        assert!(shadow.note(Write, 20, 4, a).is_ok());
        assert!(shadow.note(Atomic, 32, 4, a).is_ok() && shadow.note(Atomic, 32, 4, b).is_ok());
        assert_eq!(shadow.note(Read, 24, 16, b), collision(true, None, 32));
    }

    #[test]
    fn the_first_wanted_access_is_found() {
        let mut shadow = RaceShadow::default();
        shadow.reset(Some(4), 64);
        shadow.look_for(Wanted { offset: 20, accesses: [Some(Write), None] });
        assert!(shadow.note(Read, 16, 16, 1).is_ok() && shadow.note(Write, 24, 4, 1).is_ok());
        assert_eq!(shadow.note(Write, 16, 8, 1), Err(Collision { write: true, cta: None, offset: 20 }));
    }
}
