//! When a unit has room. Time is cut into spans of sixteen clocks, each with what of it is taken, so work may be entered in any order:
//! what comes later in the program and is ready earlier fills the gaps that were left.

/// Clocks of a span.
const SPAN: u64 = 16;
/// Parts of a clock: a unit may take a quarter of one.
pub(super) const PARTS: u64 = 4;
const CAPACITY: u64 = SPAN * PARTS;

/// What of a unit's time is taken.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    taken: Vec<u8>,
    /// A span at or after this one, from which on to look for room: itself where it has some.
    next: Vec<u32>,
    /// All that was ever entered, in parts of a clock.
    total: u64,
}

impl Calendar {
    /// Enters work of so many parts of a clock that can start at `from`: when it starts and when it ends, in clocks.
    pub(super) fn enter(&mut self, from: u64, parts: u64) -> (u64, u64) {
        self.total += parts;
        if parts == 0 {
            return (from, from);
        }
        let mut span = self.room(from / SPAN);
        // Where in a span its gaps lie is not kept: what is ready inside a span with room starts at once.
        let start = from.max(span * SPAN);
        let first = span;
        let mut left = parts;
        loop {
            let taken = &mut self.taken[span as usize];
            let here = left.min(CAPACITY - u64::from(*taken));
            *taken += here as u8;
            left -= here;
            let end = span * SPAN + u64::from(*taken).div_ceil(PARTS);
            if u64::from(*taken) == CAPACITY {
                self.next[span as usize] = span as u32 + 1;
            }
            if left == 0 {
                let soonest = start + parts.div_ceil(PARTS);
                return (start, if span == first { soonest } else { end.max(soonest) });
            }
            span = self.room(span + 1);
        }
    }

    /// The first span at or after this one with room; the list grows to hold it.
    fn room(&mut self, span: u64) -> u64 {
        let mut at = span as usize;
        let mut path = Vec::new();
        loop {
            if at >= self.taken.len() {
                let from = self.next.len() as u32;
                self.taken.resize(at + 1, 0);
                self.next.extend(from..=at as u32);
            }
            let next = self.next[at] as usize;
            if next == at {
                break;
            }
            path.push(at);
            at = next;
        }
        // Who looks here again goes straight there.
        path.into_iter().for_each(|passed| self.next[passed] = at as u32);
        at as u64
    }

    /// Clocks that are taken in all.
    pub(super) fn busy(&self) -> u64 {
        self.total / PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_unit_puts_work_off_and_gaps_are_filled() {
        let mut calendar = Calendar::default();
        assert_eq!(calendar.enter(0, 64 * PARTS), (0, 64));
        assert_eq!(calendar.enter(0, 8 * PARTS), (64, 72));
        assert_eq!(calendar.enter(0, 12 * PARTS), (64, 84));
        assert_eq!(calendar.enter(160, 16 * PARTS), (160, 176));
        // Entered later, ready earlier.
        assert_eq!(calendar.enter(96, 4 * PARTS), (96, 100));
        assert_eq!(calendar.busy(), 104);
    }

    #[test]
    fn work_flows_around_what_is_taken() {
        let mut calendar = Calendar::default();
        calendar.enter(16, 16 * PARTS);
        assert_eq!(calendar.enter(0, 32 * PARTS), (0, 48));
    }
}
