//! What is known about shared memory: who wrote each place, who read it, which asynchronous copy is on its way to it. It is kept
//! for lines of 16 bytes, and for the granules of a line where they differ.

use std::ops::Range;

use crate::finding::Outcome;
use crate::mark::{Mark, Reads};

/// Bytes of a line, and lines of a page.
pub(crate) const LINE: u64 = 16;
const PAGE: usize = 64;

/// What is known about a granule, or about a line whose granules are alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    pub(crate) write: Mark,
    /// The weak write before it, where that is a strong one: strong accesses by others collide with this only.
    pub(crate) weak: Mark,
    pub(crate) reads: Reads,
    /// Asynchronous copies on their way, and the PTX line of the latest.
    pub(crate) pending: u32,
    pub(crate) pending_line: u32,
    /// Part of an mbarrier, which is opaque.
    pub(crate) mbarrier: bool,
}

impl Cell {
    /// Remembers a write that has been found to come after what was there.
    #[inline]
    pub(crate) fn note_write(&mut self, write: Mark) {
        if write.strong.is_none() {
            self.weak = Mark::default();
        } else if self.write.strong.is_none() {
            self.weak = self.write;
        }
        self.write = write;
    }
}

/// A line: one cell, or one for every granule where these differ.
#[derive(Debug, Default)]
struct Line {
    whole: Cell,
    granules: Box<[Cell]>,
}

impl Line {
    /// The granules are one again where nothing tells them apart.
    fn join(&mut self) {
        if let [first, others @ ..] = &mut *self.granules
            && others.iter().all(|other| other == first)
        {
            self.whole = std::mem::take(first);
            self.granules = Box::default();
        }
    }
}

/// The cells of a CTA's shared memory.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// Empty where nobody has accessed a page: a small problem leaves most of what a CTA has.
    pages: Vec<Box<[Line]>>,
    bytes: u64,
    granule: u64,
    /// The granule's logarithm.
    shift: u32,
}

impl Shadow {
    /// Cells of `bytes`, in granules of the smallest access that the kernel makes, a power of
    /// two; of zero bytes there are none.
    pub(crate) fn new(bytes: u64, granule: u32) -> Self {
        let granule = u64::from(granule).min(LINE);
        let pages = bytes.div_ceil(LINE * PAGE as u64) as usize;
        let pages = std::iter::repeat_with(Box::default).take(pages).collect();
        Shadow { pages, bytes, granule, shift: granule.trailing_zeros() }
    }

    /// Whether nothing is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// A line inside.
    #[inline]
    fn line(&mut self, index: usize) -> &mut Line {
        let page = &mut self.pages[index / PAGE];
        if page.is_empty() {
            *page = std::iter::repeat_with(Line::default).take(PAGE).collect();
        }
        &mut page[index % PAGE]
    }

    /// Calls `f` with every cell of a range and the part of the range in it; stops at the first error.
    #[inline]
    pub(crate) fn each(
        &mut self,
        offset: u64,
        bytes: u32,
        mut f: impl FnMut(Range<u64>, &mut Cell) -> Outcome,
    ) -> Outcome {
        if self.is_empty() {
            return Ok(());
        }
        let (mut at, end) = (offset, offset + u64::from(bytes));
        let (granule, shift, all_bytes) = (self.granule, self.shift, self.bytes);
        while at < end {
            let start = at / LINE * LINE;
            let until = end.min(start + LINE);
            let line = self.line((start / LINE) as usize);
            let covers = at == start && until == (start + LINE).min(all_bytes);
            if line.granules.is_empty() {
                if covers || granule == LINE {
                    f(at..until, &mut line.whole)?;
                    at = until;
                    continue;
                }
                line.granules = vec![std::mem::take(&mut line.whole); (LINE / granule) as usize].into();
            }
            for index in (at - start) >> shift..=(until - 1 - start) >> shift {
                let first = start + index * granule;
                f(first.max(at)..(first + granule).min(until), &mut line.granules[index as usize])?;
            }
            if covers {
                line.join();
            }
            at = until;
        }
        Ok(())
    }

    /// Calls `f` with every cell of a range of 4, 8 or 16 bytes that is aligned to its size, until it gives false; says whether it never
    /// did.
    #[inline]
    pub(crate) fn all_of(&mut self, offset: u64, bytes: u32, mut f: impl FnMut(&mut Cell) -> bool) -> bool {
        if self.is_empty() {
            return true;
        }
        let (within, granule, shift) = (offset % LINE, self.granule, self.shift);
        let line = self.line((offset / LINE) as usize);
        if line.granules.is_empty() && (u64::from(bytes) == LINE || granule == LINE) {
            return f(&mut line.whole);
        }
        if !line.granules.is_empty() && u64::from(bytes) < LINE {
            let (first, last) = (within >> shift, (within + u64::from(bytes) - 1) >> shift);
            return line.granules[first as usize..=last as usize].iter_mut().all(f);
        }
        // The line parts or joins.
        let mut all = true;
        let gone = self.each(offset, bytes, |_, cell| {
            all = all && f(cell);
            Ok(())
        });
        all && gone.is_ok()
    }

    /// Every cell that may have been accessed, with its offset.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &Cell)> {
        let granule = self.granule;
        let pages = self.pages.iter().zip((0u64..).step_by(PAGE));
        let lines = pages.flat_map(|(page, first)| page.iter().zip(first..));
        lines.flat_map(move |(line, index)| {
            let cells =
                if line.granules.is_empty() { std::slice::from_ref(&line.whole) } else { &line.granules };
            cells.iter().zip(0u64..).map(move |(cell, at)| (index * LINE + at * granule, cell))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(shadow: &mut Shadow, offset: u64, bytes: u32) -> Vec<(u64, u64)> {
        let mut list = Vec::new();
        let note = |range: Range<u64>, cell: &mut Cell| {
            list.push((range.start, range.end));
            cell.pending += 1;
            Ok(())
        };
        shadow.each(offset, bytes, note).unwrap();
        list
    }

    #[test]
    fn a_line_parts_where_its_granules_differ_and_joins_where_they_are_alike() {
        let mut shadow = Shadow::new(40, 4);
        assert_eq!(ranges(&mut shadow, 0, 32), [(0, 16), (16, 32)]);
        assert_eq!(ranges(&mut shadow, 6, 4), [(6, 8), (8, 10)]);
        assert_eq!(shadow.all().map(|(at, c)| (at, c.pending)).take(4).last(), Some((12, 1)));
        assert_eq!(ranges(&mut shadow, 0, 4).len() + ranges(&mut shadow, 12, 4).len(), 2);
        // All four have been named twice: the next access to the whole line finds them alike.
        assert_eq!(ranges(&mut shadow, 0, 16).len(), 4);
        assert_eq!(ranges(&mut shadow, 0, 16), [(0, 16)]);
        // The last line is covered by what there is of it.
        assert_eq!(ranges(&mut shadow, 32, 8), [(32, 40)]);
    }
}
