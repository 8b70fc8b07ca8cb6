//! Reads of a page in the order in which they came, for as long as nobody writes there. What a tile is read by are mostly lanes or copies
//! that read one block after the other: these are one line of the log.

use super::Entry;

/// Lines of a log. One that is full goes to the blocks, where what a read stands for is remembered once.
const MOST: usize = 2048;

/// Reads that follow each other: each of the next block, or of the next bytes of one, and by the next lanes.
#[derive(Clone, Copy, Debug)]
struct Line {
    first: Entry,
    /// Where the first begins, and the bytes of each.
    offset: u16,
    bytes: u16,
    count: u16,
    /// When all lanes of the warp that reads were last in order with each other, and whether clusters can be in order.
    order: (u32, bool),
}

/// The log of a page.
#[derive(Debug, Default)]
pub(super) struct Log(Vec<Line>);

impl Log {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MOST
    }

    /// Notes a read of successive bytes of a block.
    #[inline]
    pub(super) fn push(&mut self, block: u64, read: Entry, order: (u32, bool)) {
        let offset = (16 * block) as u16 + read.bytes.trailing_zeros() as u16;
        let bytes = read.bytes.count_ones() as u16;
        if let Some(line) = self.0.last_mut()
            && (line.offset + line.bytes * line.count, line.bytes, line.order) == (offset, bytes, order)
            && line.read(line.count) == read
        {
            line.count += 1;
            return;
        }
        self.0.push(Line { first: read, offset, bytes, count: 1, order });
    }

    /// The reads with their blocks and their orders. The log is empty then.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (u16, Entry, (u32, bool))> + use<> {
        let each = |line: Line| {
            (0..line.count).map(move |i| ((line.offset + line.bytes * i) / 16, line.read(i), line.order))
        };
        std::mem::take(&mut self.0).into_iter().flat_map(each)
    }
}

impl Line {
    /// The read of that number. Copies are done by no lanes.
    fn read(&self, i: u16) -> Entry {
        let at = (self.offset + self.bytes * i) % 16;
        let mut read = self.first;
        read.bytes = (((1u32 << self.bytes) - 1) << at) as u16;
        read.mark.lanes = self.first.mark.lanes.checked_shl(i.into()).unwrap_or(0);
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_come_out_as_they_went_in_and_those_of_neighbours_are_one_line() {
        let read = |lanes: u32, bytes: u16| {
            let mut read = Entry { bytes, group: 3, ..Entry::default() };
            (read.mark.lanes, read.mark.clock) = (lanes, 7);
            read
        };
        let (early, late) = ((5, true), (6, true));
        let of_lanes = (0..32u64).map(|lane| (lane / 4, read(1 << lane, 15 << (4 * (lane % 4))), early));
        let of_copy = (8..256).map(|block| (block, read(0, u16::MAX), early));
        let others = [(0, read(1, 0xff00), early), (1, read(1, 0x00ff), early), (2, read(2, 0x00ff), early)];
        let later = [(2, read(2, 0xff00), early), (3, read(4, 0x00ff), late), (3, read(8, 0xff00), late)];
        let all: Vec<_> = of_lanes.chain(of_copy).chain(others).chain(later).collect();
        let mut log = Log::default();
        all.iter().for_each(|(block, read, order)| log.push(*block, *read, *order));
        assert_eq!(log.0.iter().map(|line| line.count).collect::<Vec<_>>(), [32, 248, 1, 1, 1, 1, 2]);
        assert!(log.take().eq(all.into_iter().map(|(block, read, order)| (block as u16, read, order))));
        assert!(log.is_empty());
    }
}
