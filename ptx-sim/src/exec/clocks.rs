//! What kernels read of the time. Where they look at it over and over and nothing changes, it stands still, so that a loop that waits for memory
//! and looks at a clock (for a timeout, or to wait longer each time) comes back to what it held, and is found to spin. Where nothing
//! can go on any more, the time does, by more at each step: a timeout ends so, and who only measures how long it waits goes on waiting.

/// Looks at a clock, and instructions of the CTA, without a change after which the time stands still.
const LOOKS: u32 = 16;
const QUIET: u64 = 1 << 15;
/// The same once the time has stood still: a lock that waits by the clock does so for each of its threads.
const LOOKS_AGAIN: u32 = 4;
const QUIET_AGAIN: u64 = 1 << 9;
/// Steps that the time makes without a change, each of which may be the end of a delay: the last is longer than a month of nanoseconds.
const STEPS: u32 = 1024;

/// The time of a CTA: warp instructions executed, and what was skipped.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    skipped: u64,
    /// What had changed when looks were counted first, and the instructions executed then.
    changes: (u64, u64),
    since: u64,
    looks: u32,
    steps: u32,
    still: Option<u64>,
    has_stood: bool,
}

impl Clocks {
    pub(super) fn look(&mut self, changes: (u64, u64), executed: u64) -> u64 {
        if self.changes != changes {
            let (skipped, has_stood) = (self.skipped, self.has_stood);
            *self = Clocks { skipped, has_stood, changes, since: executed, ..Clocks::default() };
        }
        if let Some(still) = self.still {
            return still;
        }
        self.looks += 1;
        let now = executed + self.skipped;
        let (looks, quiet) = if self.has_stood { (LOOKS_AGAIN, QUIET_AGAIN) } else { (LOOKS, QUIET) };
        if self.looks >= looks && executed - self.since > quiet {
            self.still = Some(now);
            self.has_stood = true;
        }
        now
    }

    pub(super) fn stands_still(&self) -> bool {
        self.still.is_some()
    }

    /// Lets the time go on; false where it does not stand still, or has gone on too often.
    pub(super) fn skip(&mut self) -> bool {
        if self.steps == STEPS || self.still.take().is_none() {
            return false;
        }
        self.skipped += 1 << (20 + self.steps / 32);
        self.steps += 1;
        self.looks = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_where_nothing_changes_and_goes_on_in_steps() {
        let mut clocks = Clocks::default();
        let mut executed = 0;
        let mut looks = |clocks: &mut Clocks, changes| {
            executed += QUIET / 8;
            clocks.look((changes, 0), executed)
        };
        let mut before = 0;
        for _ in 0..LOOKS {
            let now = looks(&mut clocks, 0);
            assert!(now > before);
            before = now;
        }
        assert_eq!([looks(&mut clocks, 0), looks(&mut clocks, 0)], [before; 2]);
        assert!(clocks.skip() && !clocks.skip());
        assert!(looks(&mut clocks, 0) > before + (1 << 20));
        assert!(!clocks.skip(), "it goes on");
        let moved = looks(&mut clocks, 1);
        assert!(looks(&mut clocks, 1) > moved, "something changed");
    }

    #[test]
    fn time_that_has_stood_still_does_so_sooner() {
        let mut clocks = Clocks::default();
        let mut executed = 0;
        let mut looks_until_still = |clocks: &mut Clocks, changes| {
            let mut count = 0;
            while clocks.still.is_none() {
                executed += 40;
                clocks.look((changes, 0), executed);
                count += 1;
            }
            count
        };
        assert_eq!(looks_until_still(&mut clocks, 0), QUIET / 40 + 1);
        assert!(clocks.skip());
        clocks.look((1, 0), 0);
        assert!(clocks.still.is_none(), "something changed");
        assert!(looks_until_still(&mut clocks, 2) <= u64::from(LOOKS));
    }
}
