//! The common accesses to shared memory, a warp at a time: they are looked at until something may be wrong with one.

use crate::mark::{Mark, Who};
use crate::memory::Words;
use crate::regs::LANES;
use crate::shadow::Cell;
use crate::window::SHARED_BASE;

use super::{Shared, check_proxy};

impl Shared {
    /// Notes reads by a warp's lanes, of distinct ranges of 4, 8 or 16 bytes, each aligned to its size and inside: their offsets beyond
    /// `base`, and their lanes. False if something may be wrong with one: then it is to be noted lane by lane, which finds out what.
    #[inline]
    pub(crate) fn note_reads(
        &mut self,
        base: u32,
        groups: impl Iterator<Item = (u32, u32)>,
        bytes: u32,
        who: &Who<'_>,
    ) -> bool {
        let (races, async_copies) = (self.checks.shared_races, self.checks.async_copies);
        self.note_groups(base, groups, bytes, who, |cell, who, now| {
            let crosses = async_copies && who.later.is_some() && check_proxy(0, cell, who).is_err();
            if cell.pending > 0 || cell.mbarrier || cell.write.clock == 0 || crosses {
                return false;
            }
            if races {
                if who.collides(&cell.write, who.group) || who.collides(&cell.weak, who.group) {
                    return false;
                }
                cell.reads.note(now, who.synced);
            }
            true
        })
    }

    /// Notes plain writes of a warp's lanes, each to a range of its own; otherwise as [`Shared::note_reads`]. Lanes that were noted before one
    /// with which something may be wrong are noted again, which changes nothing: a lane comes after itself.
    #[inline]
    pub(crate) fn note_writes(
        &mut self,
        base: u32,
        groups: impl Iterator<Item = (u32, u32)>,
        bytes: u32,
        who: &Who<'_>,
    ) -> bool {
        let races = self.checks.shared_races;
        self.note_groups(base, groups, bytes, who, |cell, who, now| {
            if cell.pending > 0 || cell.mbarrier {
                return false;
            }
            if races {
                let after =
                    |read: &Mark| !who.collides(read, who.group) || who.comes_after_read(read, who.group);
                if who.collides(&cell.write, who.group)
                    || who.collides(&cell.weak, who.group)
                    || !cell.reads.iter().all(after)
                {
                    return false;
                }
                cell.reads.clear();
            }
            cell.note_write(now);
            true
        })
    }

    /// Notes each group of lanes in the cells of its range, until `note` is false of one: whether it never is.
    #[inline]
    fn note_groups(
        &mut self,
        base: u32,
        mut groups: impl Iterator<Item = (u32, u32)>,
        bytes: u32,
        who: &Who<'_>,
        note: impl Fn(&mut Cell, &Who<'_>, Mark) -> bool,
    ) -> bool {
        if !self.dark.is_empty() {
            return false;
        }
        if self.shadow.is_empty() {
            return true;
        }
        let (mut who, mut now) = (*who, who.mark());
        groups.all(|(beyond, lanes)| {
            (who.lanes, now.lanes) = (lanes, lanes);
            self.shadow.all_of(base.wrapping_add(beyond).into(), bytes, |cell| note(cell, &who, now))
        })
    }

    /// The words of every lane at aligned offsets inside: word `i` of a lane goes to `rows[i][lane]`.
    #[inline]
    pub(crate) fn load_rows(&self, list: &[u32; LANES], bytes: u32, rows: &mut [[u32; LANES]; 4]) {
        for (i, row) in rows.iter_mut().enumerate().take(bytes as usize / 4) {
            for (to, offset) in row.iter_mut().zip(list) {
                *to = self.words[*offset as usize / 4 + i];
            }
        }
    }

    /// Stores a lane's words at an aligned offset inside; says whether that changes anything.
    #[inline]
    pub(crate) fn store_row(
        &mut self,
        offset: u32,
        bytes: u32,
        rows: &[[u32; LANES]; 4],
        lane: usize,
    ) -> bool {
        let mut changes = false;
        let words = &mut self.words[offset as usize / 4..][..bytes as usize / 4];
        for (word, row) in words.iter_mut().zip(rows) {
            changes |= *word != row[lane];
            *word = row[lane];
        }
        changes
    }

    /// 16 bytes at an aligned offset inside.
    #[inline]
    pub(crate) fn row(&self, offset: u32) -> Words {
        let at = offset as usize / 4;
        let mut row = [0; 4];
        row.copy_from_slice(&self.words[at..at + 4]);
        row
    }

    /// Whether a range of addresses is the CTA's own, none of it the system's.
    #[inline]
    pub(crate) fn is_own(&self, first: i64, end: i64) -> bool {
        first >= SHARED_BASE as i64 && end <= (SHARED_BASE + self.bytes) as i64
    }
}
