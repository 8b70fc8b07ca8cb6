//! Past accesses, and whether one is ordered before another.

use crate::clock::{Agent, Clock};
use crate::lane_order::LaneOrder;
use crate::op::{Scope, Strength};

/// A past access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The agent's time at the access; 0 for no access.
    pub(crate) clock: u32,
    /// PTX line.
    pub(crate) line: u32,
    /// Lanes that took part; none for what is done later.
    pub(crate) lanes: u32,
    pub(crate) agent: Agent,
    /// Barriers of some of the warp's lanes before it.
    pub(crate) barriers: u8,
    /// Of a strong access, what others are compared with.
    pub(crate) strong: Option<Strength>,
}

/// An asynchronous access: done by an agent of its own, at a time that its mbarrier or group tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Later {
    pub(crate) agent: Agent,
    pub(crate) time: u32,
    /// Whether the async proxy does it, as copies in bulk and `wgmma`. `st.async` and `red.async` are of the generic proxy.
    pub(crate) by_async_proxy: bool,
}

/// Who accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'c> {
    /// The warp's number among all warps of its cluster.
    pub(crate) agent: Agent,
    /// The cluster.
    pub(crate) group: u32,
    pub(crate) lane: usize,
    /// Lanes that take part in the access; more than one where they act together.
    pub(crate) lanes: u32,
    pub(crate) line: u32,
    /// Volatile, atomic and the like: does not race with others of its kind within the scope.
    pub(crate) strong: Option<Strength>,
    /// The vector clock of the warp.
    pub(crate) clock: &'c Clock,
    /// The warp's own time, and its time when all of its lanes were last in order with each other.
    pub(crate) now: u32,
    pub(crate) synced: u32,
    /// Its time when some of its lanes last met in a shuffle, a vote or the like, and which.
    pub(crate) met: (u32, u32),
    /// As whom it accesses what it does not wait for; `None` where the lane itself does.
    pub(crate) later: Option<Later>,
    /// The order among its lanes, where barriers of some of them gave one.
    pub(crate) order: Option<&'c LaneOrder>,
    /// Warps of a CTA: those of one CTA are numbered in a row.
    pub(crate) warps: u16,
}

impl Who<'_> {
    /// The access as it will be remembered.
    pub(crate) fn mark(&self) -> Mark {
        let (line, strong) = (self.line, self.strong);
        match self.later {
            Some(Later { agent, time, .. }) => {
                Mark { clock: time, line, lanes: 0, agent, barriers: 0, strong }
            }
            None => {
                let barriers = self.order.map_or(0, LaneOrder::barriers);
                Mark { clock: self.now, line, lanes: self.lanes, agent: self.agent, barriers, strong }
            }
        }
    }

    /// Whether a past strong access of that cluster is no race with this one, whatever the clocks say.
    fn comes_after_strong(&self, strong: Strength, past: &Mark, group: u32) -> bool {
        if self.strong.is_some_and(|own| !own.is_like(strong)) {
            return false;
        }
        let least = if group != self.group {
            Scope::Gpu
        } else if past.agent / self.warps.max(1) != self.agent / self.warps.max(1) {
            Scope::Cluster
        } else {
            Scope::Cta
        };
        // Morally strong: they name each other's threads in their scopes, and overlap completely by one proxy (PTX ISA §8.5).
        if self.strong.is_some_and(|own| own.reach(strong, least)) {
            return true;
        }
        // Lanes that took part together with this one: it comes after itself.
        let alone = (group, past.agent) == (self.group, self.agent) && self.lanes.is_power_of_two();
        let lanes = if alone { past.lanes & !self.lanes } else { past.lanes };
        self.clock.covers_strong(self.group, group, past.agent, past.clock, lanes)
    }

    /// Whether a past access of that cluster is not ordered before this one.
    #[inline]
    pub(crate) fn collides(&self, past: &Mark, group: u32) -> bool {
        if past.clock == 0 {
            return false;
        }
        if let Some(strong) = past.strong {
            // Most that meet at one place are atomic operations of the device's scope.
            let own = self.strong;
            if own.is_some_and(|own| own.is_like(strong) && own.reach(strong, Scope::Gpu))
                || self.comes_after_strong(strong, past, group)
            {
                return false;
            }
        }
        if group != self.group {
            return !self.clock.covers_other(group, past.agent, past.clock, past.lanes);
        }
        if past.agent != self.agent {
            return !self.clock.covers(past.agent, past.clock, past.lanes);
        }
        // Within a warp a lane is ordered with itself, and lanes with each other by a warp barrier, an mbarrier or a flag.
        past.clock >= self.synced
            && (past.lanes | self.lanes).count_ones() > 1
            && !self.order.is_some_and(|order| order.ordered(past.lanes, past.barriers, self.lanes))
            && !self.clock.covers(past.agent, past.clock, past.lanes)
    }

    /// Whether a past read was over before this access: a lane that comes to a shuffle or a vote with others has what it read. That
    /// orders no writes, but cooperative groups build on it.
    pub(crate) fn comes_after_read(&self, past: &Mark, group: u32) -> bool {
        let (time, lanes) = self.met;
        (past.agent, group) == (self.agent, self.group)
            && self.later.is_none()
            && past.clock < time
            && (past.lanes | self.lanes) & !lanes == 0
    }

    /// Whether the two would be in order, had a fence followed the read of the flag.
    pub(crate) fn nearly_ordered(&self, past: &Mark, group: u32) -> bool {
        self.clock.nearly_covers(self.group, group, past.agent, past.clock, past.lanes)
    }
}

/// Past reads: as many as are not known to come before another that is remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reads {
    first: [Mark; 4],
    more: Vec<Mark>,
}

/// Reads that are remembered of one place; of more the oldest is dropped.
const MOST_READS: usize = 128;

impl Reads {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mark> {
        self.first.iter().filter(|m| m.clock != 0).chain(&self.more)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Mark> {
        self.first.iter_mut().filter(|m| m.clock != 0).chain(&mut self.more)
    }

    /// Forgets reads that a write came after.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.first = [Mark::default(); 4];
        // The room is kept: what is read by many warps once is so again.
        self.more.clear();
    }

    /// Remembers a read.
    #[inline]
    pub(crate) fn note(&mut self, now: Mark, synced: u32) {
        for past in &mut self.first {
            if past.clock == 0 {
                *past = now;
                return;
            }
            if past.is_one_with(&now, synced) {
                return;
            }
        }
        if self.more.iter_mut().any(|past| past.is_one_with(&now, synced)) {
            return;
        }
        if self.more.len() == MOST_READS {
            self.more.remove(0);
        }
        self.more.push(now);
    }
}

impl Mark {
    /// Makes a plain read as strong as a strong write that the same lane makes to the same place afterwards: an access that
    /// has seen the write comes after the read. Locks are released like this, by `*(volatile int *)&serving = serving + 1`.
    #[inline]
    pub(crate) fn follow(&mut self, writer: &Who<'_>, group: u32) {
        let by_itself = (self.agent, group) == (writer.agent, writer.group)
            && writer.later.is_none()
            && self.lanes & !writer.lanes == 0;
        if self.strong.is_none() && by_itself {
            self.strong = writer.strong;
        }
    }

    /// Whether a read by the same agent can be remembered in the place of this one: then it is.
    #[inline]
    fn is_one_with(&mut self, now: &Mark, synced: u32) -> bool {
        if self.agent != now.agent || !Strength::are_one(self.strong, now.strong) {
            return false;
        }
        if self.clock == now.clock && self.barriers == now.barriers && now.lanes != 0 {
            self.lanes |= now.lanes;
            return true;
        }
        // Whoever has seen the new read has seen the old one.
        if self.clock < synced || self.lanes & !now.lanes == 0 || now.lanes == 0 {
            *self = *now;
            return true;
        }
        false
    }
}
