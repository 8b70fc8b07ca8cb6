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
}

/// Cells of one allocation. A cell holds the writer in its low half and the reader in its high half, as tags.
#[derive(Debug, Default)]
pub(crate) struct RaceShadow {
    granule: u64,
    cells: Vec<AtomicU32>,
}

/// The tag of a CTA: 1 to 65534. CTAs that share a tag are not told apart, which misses races but invents none.
pub(crate) fn tag(cta: u64) -> u32 {
    (cta % 65534) as u32 + 1
}

impl RaceShadow {
    /// Forgets everything and takes a new granule; `None` watches nothing.
    pub(crate) fn reset(&mut self, granule: Option<u32>, bytes: u64) {
        self.granule = granule.unwrap_or(1).into();
        let length = if granule.is_some() { bytes.div_ceil(self.granule) as usize } else { 0 };
        if self.cells.len() == length {
            self.cells.iter_mut().for_each(|c| *c.get_mut() = 0);
        } else {
            self.cells = std::iter::repeat_with(|| AtomicU32::new(0)).take(length).collect();
        }
    }

    /// Notes a read by the CTA of that tag.
    #[inline]
    pub(crate) fn read(&self, offset: u64, bytes: u32, tag: u32) -> Result<(), Collision> {
        self.each(offset, bytes, |cell| {
            let old = cell.load(Relaxed);
            let (writer, reader) = (old & 0xffff, old >> 16);
            if writer != 0 && writer != tag {
                return Err(Collision { write: true, cta: (writer != ATOMIC).then(|| writer - 1) });
            }
            if reader != tag && reader != MANY {
                let mark = |old: u32| Some(old & 0xffff | (if old >> 16 == 0 { tag } else { MANY }) << 16);
                let _ = cell.fetch_update(Relaxed, Relaxed, mark);
            }
            Ok(())
        })
    }

    /// Notes a write by the CTA of that tag.
    #[inline]
    pub(crate) fn write(&self, offset: u64, bytes: u32, tag: u32) -> Result<(), Collision> {
        self.each(offset, bytes, |cell| {
            let old = match cell.fetch_update(Relaxed, Relaxed, |old| Some(old & !0xffff | tag)) {
                Ok(old) | Err(old) => old,
            };
            let (writer, reader) = (old & 0xffff, old >> 16);
            if writer != 0 && writer != tag {
                return Err(Collision { write: true, cta: (writer != ATOMIC).then(|| writer - 1) });
            }
            if reader != 0 && reader != tag {
                return Err(Collision { write: false, cta: (reader != MANY).then(|| reader - 1) });
            }
            Ok(())
        })
    }

    /// Notes an atomic operation by the CTA of that tag: it collides with the plain accesses of others only.
    pub(crate) fn atomic(&self, offset: u64, bytes: u32, tag: u32) -> Result<(), Collision> {
        self.each(offset, bytes, |cell| {
            let old = match cell.fetch_update(Relaxed, Relaxed, |old| Some(old & !0xffff | ATOMIC)) {
                Ok(old) | Err(old) => old,
            };
            let (writer, reader) = (old & 0xffff, old >> 16);
            if writer != 0 && writer != ATOMIC && writer != tag {
                return Err(Collision { write: true, cta: Some(writer - 1) });
            }
            if reader != 0 && reader != tag {
                return Err(Collision { write: false, cta: (reader != MANY).then(|| reader - 1) });
            }
            Ok(())
        })
    }

    #[inline]
    fn each(
        &self,
        offset: u64,
        bytes: u32,
        f: impl Fn(&AtomicU32) -> Result<(), Collision>,
    ) -> Result<(), Collision> {
        if self.cells.is_empty() {
            return Ok(());
        }
        let first = (offset / self.granule) as usize;
        let last = ((offset + u64::from(bytes) - 1) / self.granule) as usize;
        self.cells[first..=last].iter().try_for_each(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_accesses_of_two_ctas_with_a_write_collide() {
        let mut shadow = RaceShadow::default();
        shadow.reset(Some(4), 64);
        let (a, b) = (tag(0), tag(1));
        assert!(shadow.read(0, 16, a).is_ok() && shadow.read(0, 16, b).is_ok());
        assert_eq!(shadow.write(12, 4, a), Err(Collision { write: false, cta: None }));
        assert!(shadow.write(16, 4, a).is_ok() && shadow.read(16, 4, a).is_ok());
        assert_eq!(shadow.read(16, 4, b), Err(Collision { write: true, cta: Some(0) }));
        assert!(shadow.write(20, 4, b).is_ok());
        assert_eq!(shadow.write(20, 4, a), Err(Collision { write: true, cta: Some(1) }));
        shadow.reset(Some(4), 64);
        assert!(shadow.write(20, 4, a).is_ok());
    }
}
