//! Vector clocks: what a warp has seen of every agent. The agents of a CTA are its warps and, after them, what runs on its own:
//! the phases of each mbarrier, the `wgmma` groups of each warpgroup, the bulk groups of each thread.
//!
//! A second clock says what of it the async proxy has seen: generic writes reach it through a proxy fence only (PTX ISA §8.6).

use std::collections::HashMap;

/// Index of an agent; warps come first.
pub(crate) type Agent = u16;

/// What is seen of one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Everything up to this time.
    whole: u32,
    /// What `lanes` did up to this time.
    part: u32,
    lanes: u32,
}

impl Seen {
    fn covers(self, time: u32, lanes: u32) -> bool {
        time <= self.whole || time <= self.part && lanes & !self.lanes == 0
    }

    /// Both together. Parts of different lanes become one, which may miss a race but invents none.
    fn join(self, other: Seen) -> Seen {
        Seen {
            whole: self.whole.max(other.whole),
            part: self.part.max(other.part),
            lanes: self.lanes | other.lanes,
        }
    }

    /// What both have seen.
    fn meet(self, other: Seen) -> Seen {
        Seen {
            whole: self.whole.min(other.whole),
            part: self.part.min(other.part),
            lanes: self.lanes & other.lanes,
        }
    }
}

/// What has been seen of every agent; those beyond the end not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    seen: Vec<Seen>,
    /// What of it came before a proxy fence.
    fenced: Vec<Seen>,
}

impl Clock {
    /// Whether what some lanes of an agent did at that time came before.
    #[inline]
    pub(crate) fn covers(&self, agent: Agent, time: u32, lanes: u32) -> bool {
        self.seen.get(usize::from(agent)).is_some_and(|s| s.covers(time, lanes))
    }

    /// Whether a proxy fence came between that and now.
    pub(crate) fn is_fenced(&self, agent: Agent, time: u32, lanes: u32) -> bool {
        self.fenced.get(usize::from(agent)).is_some_and(|s| s.covers(time, lanes))
    }

    /// Sees everything that the agent did up to a time.
    pub(crate) fn see(&mut self, agent: Agent, time: u32) {
        let seen = entry(&mut self.seen, agent);
        seen.whole = seen.whole.max(time);
    }

    /// Sees what some lanes did up to a time.
    pub(crate) fn see_part(&mut self, agent: Agent, time: u32, lanes: u32) {
        let seen = entry(&mut self.seen, agent);
        *seen = seen.join(Seen { whole: 0, part: time, lanes });
    }

    /// Sees what another has seen.
    pub(crate) fn join(&mut self, other: &Clock) {
        join(&mut self.seen, &other.seen);
        join(&mut self.fenced, &other.fenced);
    }

    /// A proxy fence: the async proxy sees what `other` has seen.
    pub(crate) fn fence(&mut self, other: &Clock) {
        join(&mut self.fenced, &other.seen);
    }

    /// Keeps only what the other has seen too.
    pub(crate) fn meet(&mut self, other: &Clock) {
        meet(&mut self.seen, &other.seen);
        meet(&mut self.fenced, &other.fenced);
    }
}

fn entry(list: &mut Vec<Seen>, agent: Agent) -> &mut Seen {
    let index = usize::from(agent);
    if list.len() <= index {
        list.resize(index + 1, Seen::default());
    }
    &mut list[index]
}

fn join(to: &mut Vec<Seen>, from: &[Seen]) {
    if to.len() < from.len() {
        to.resize(from.len(), Seen::default());
    }
    for (mine, theirs) in to.iter_mut().zip(from) {
        *mine = mine.join(*theirs);
    }
}

fn meet(to: &mut Vec<Seen>, from: &[Seen]) {
    to.truncate(from.len());
    for (mine, theirs) in to.iter_mut().zip(from) {
        *mine = mine.meet(*theirs);
    }
}

/// What gives an agent beside the warps its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AgentOf {
    /// The mbarrier at an offset in shared memory.
    Mbarrier(u64),
    /// The `wgmma` groups of a warpgroup.
    Warpgroup(u32),
    /// The bulk groups of a thread: warp and lane.
    BulkGroups(u32, usize),
}

/// The agents of a CTA.
#[derive(Debug)]
pub(crate) struct Agents {
    warps: usize,
    others: HashMap<AgentOf, Agent>,
}

impl Agents {
    pub(crate) fn new(warps: usize) -> Self {
        Agents { warps, others: HashMap::new() }
    }

    /// The agent's number, a new one at first sight. There are fewer than 2¹⁶, as shared memory bounds the mbarriers.
    pub(crate) fn number(&mut self, of: AgentOf) -> Agent {
        let next = (self.warps + self.others.len()) as Agent;
        *self.others.entry(of).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_seen_of_its_lanes_only() {
        let mut clock = Clock::default();
        clock.see(1, 3);
        clock.see_part(1, 5, 0b1);
        assert!(clock.covers(1, 3, u32::MAX) && clock.covers(1, 5, 0b1));
        assert!(!clock.covers(1, 4, 0b10) && !clock.covers(1, 6, 0b1) && !clock.covers(7, 1, 1));
    }

    #[test]
    fn what_is_fenced_travels_with_the_clock() {
        let (mut writer, mut reader) = (Clock::default(), Clock::default());
        let mut released = Clock::default();
        released.see(0, 4);
        reader.join(&released);
        assert!(reader.covers(0, 4, 1) && !reader.is_fenced(0, 4, 1));
        writer.fence(&released);
        reader.join(&writer);
        assert!(reader.is_fenced(0, 4, 1) && !reader.is_fenced(0, 5, 1));
        let mut both = reader.clone();
        both.meet(&Clock::default());
        assert!(!both.covers(0, 1, 1));
    }

    #[test]
    fn agents_come_after_the_warps() {
        let mut agents = Agents::new(4);
        assert_eq!(agents.number(AgentOf::Mbarrier(8)), 4);
        assert_eq!(agents.number(AgentOf::Warpgroup(0)), 5);
        assert_eq!(agents.number(AgentOf::Mbarrier(8)), 4);
    }
}
