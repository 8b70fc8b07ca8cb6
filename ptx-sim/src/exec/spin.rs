//! Loops that wait for memory to change: lanes that come back to the same instruction with the same registers and the same local
//! memory, while nothing else has changed, will do so for ever. They are put aside until something changes; if nothing can, that is a deadlock.

use std::collections::HashMap;

use crate::op::Pc;
use crate::regs::{LANES, Regs};

use super::cta::Cta;
use super::local::LocalMemory;
use super::warp::{Wait, Warp};

/// Instructions of the CTA without a change after which a warp is watched: more than a loop that computes executes between two writes.
const QUIET: u64 = 1 << 15;
/// The same once a warp of the CTA has been found to spin: then others may.
const SPINS: u64 = 1 << 8;
/// States that a spinning loop may go through.
const PERIOD: u32 = 4;
/// Bytes of local memory that one executed instruction pays for looking at: a deep recursion has much of it, of which its loops
/// change next to nothing.
const BYTES_PER_INSTRUCTION: u64 = 64;
/// Places that are watched at once.
const MOST: usize = 64;

/// What lanes at a frame and an instruction held when seen.
type Seen = HashMap<(usize, Pc, u32), Visits>;

#[derive(Debug, Default)]
struct Visits {
    count: u32,
    /// The state at the visit from which on it is looked at, and at the last one.
    first: Option<u64>,
    last: Option<u64>,
}

/// The watch over one warp.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Changes when it began, and the instructions executed then.
    changes: u64,
    since: u64,
    seen: Seen,
    time_stands_still: bool,
    /// The same of loops in which the CTA meets at barriers, whose arrivals change nothing.
    still: u64,
    still_since: u64,
    met: Seen,
    /// Instructions of the CTA when a state was last looked at.
    looked_at: u64,
    /// The last read of memory that others can write.
    pub(super) last_read: Option<(u64, (usize, Pc))>,
}

impl Warp {
    /// A path goes back to an earlier instruction: puts it aside if it spins.
    #[inline]
    pub(super) fn looped(&mut self, at: usize, cta: &mut Cta<'_>) {
        if self.watch.changes != cta.progress {
            self.watch.changes = cta.progress;
            self.watch.since = cta.executed;
            self.watch.seen.clear();
            self.looped_through_barriers(at, cta);
            return;
        }
        // What a loop read of the time was another at each visit before.
        if self.watch.time_stands_still != cta.clocks.stands_still() {
            self.watch.time_stands_still = !self.watch.time_stands_still;
            self.watch.seen.clear();
        }
        let quiet = if cta.has_spun { SPINS } else { QUIET };
        if cta.executed - self.watch.since > quiet && self.may_look(cta) {
            let mut seen = std::mem::take(&mut self.watch.seen);
            if self.repeats(at, &mut seen) {
                self.paths[at].wait = Wait::Memory;
                cta.has_spun = true;
            }
            self.watch.seen = seen;
        }
    }

    /// A loop in which warps meet at barriers spins if every warp of the CTA comes back to what it held.
    fn looped_through_barriers(&mut self, at: usize, cta: &mut Cta<'_>) {
        let still = cta.progress - cta.arrivals;
        if self.watch.still != still {
            self.watch.still = still;
            self.watch.still_since = cta.executed;
            self.watch.met.clear();
            return;
        }
        if cta.executed - self.watch.still_since <= QUIET || !self.may_look(cta) {
            return;
        }
        let mut met = std::mem::take(&mut self.watch.met);
        if self.repeats(at, &mut met) {
            if cta.repeating.0 != still {
                cta.repeating = (still, 0);
            }
            cta.repeating.1 |= 1 << self.index;
            if cta.repeating.1.count_ones() as usize == cta.live_warps {
                self.paths[at].wait = Wait::Memory;
            }
        }
        self.watch.met = met;
    }

    /// Whether enough was executed since the last look for another to cost little.
    fn may_look(&mut self, cta: &Cta<'_>) -> bool {
        let may = cta.executed - self.watch.looked_at >= self.local.bytes() / BYTES_PER_INSTRUCTION;
        if may {
            self.watch.looked_at = cta.executed;
        }
        may
    }

    fn repeats(&self, at: usize, seen: &mut Seen) -> bool {
        let (frame, pc, mask) = (self.paths[at].frame, self.paths[at].pc, self.paths[at].mask);
        if seen.len() >= MOST {
            seen.clear();
        }
        let visits = seen.entry((frame, pc, mask)).or_default();
        // Registers are looked at on every doubling of the visits and on the few visits after it: that finds loops of few
        // states, and costs a loop that computes next to nothing.
        visits.count = visits.count.wrapping_add(1).max(1);
        let since = visits.count - (1 << visits.count.ilog2());
        if since > PERIOD {
            return false;
        }
        let Some(regs) = self.frames[frame].as_ref().map(|f| &f.regs) else { return false };
        let now = Some(state(regs, &self.local, mask));
        let same = now == visits.first || now == visits.last;
        if since == 0 {
            visits.first = now;
        }
        visits.last = now;
        same
    }

    /// Lets spinning paths look again; false if there are none. One that comes back to what it held, and nothing has changed
    /// meanwhile, spins on.
    pub(super) fn stop_spinning(&mut self, progress: u64, executed: u64) -> bool {
        let mut held = Seen::new();
        for path in self.paths.iter_mut().filter(|p| p.wait == Wait::Memory) {
            path.wait = Wait::Ready;
            let key = (path.frame, path.pc, path.mask);
            let last = self.watch.seen.get(&key).and_then(|visits| visits.last);
            held.insert(key, Visits { count: 1, first: None, last });
        }
        self.watch.met.clear();
        let any = !held.is_empty();
        self.watch.seen = held;
        self.watch.changes = progress;
        self.watch.since = executed.saturating_sub(SPINS + 1);
        any
    }

    /// Where the warp spins: the read on which it does, if that is known.
    pub(super) fn spins_at(&self) -> Option<(usize, Pc)> {
        let path = self.paths.iter().find(|p| p.wait == Wait::Memory)?;
        let program = self.frames[path.frame].as_ref()?.program;
        Some(self.watch.last_read.map_or((program, path.pc), |(_, at)| at))
    }
}

/// A number that differs for two different states of one loop, nothing more: odd numbers, one a lane, and a rotation do. They are of 32
/// bits, as the host multiplies several of those at once.
fn state(regs: &Regs, local: &LocalMemory, mask: u32) -> u64 {
    const ODD: u64 = 0x517c_c1b7_2722_0a95;
    let (mut factors, mut power) = ([0u32; LANES], 1u64);
    for (lane, factor) in factors.iter_mut().enumerate() {
        power = power.wrapping_mul(ODD);
        *factor = if mask >> lane & 1 == 1 { (power >> 32) as u32 | 1 } else { 0 };
    }
    let sum = |values: &[u32; LANES]| {
        let products =
            values.iter().zip(&factors).map(|(value, factor)| u64::from(*value) * u64::from(*factor));
        products.fold(0, u64::wrapping_add)
    };
    let mut hash = 0u64;
    let mut mix = |sum: u64| hash = (hash.rotate_left(5) ^ sum).wrapping_mul(ODD);
    regs.word.iter().for_each(|values| mix(sum(values)));
    for values in &regs.double {
        mix(sum(&values.map(|value| value as u32)));
        mix(sum(&values.map(|value| (value >> 32) as u32)));
    }
    regs.pred.iter().for_each(|bits| mix((bits & mask).into()));
    local.words(mask, mix);
    hash
}
