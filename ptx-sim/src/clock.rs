//! Vector clocks: what a warp has seen of every agent. The agents of a CTA are its warps and, after them, what runs on its own:
//! the phases of each mbarrier, the `wgmma` groups of each warpgroup, the bulk groups of each thread.
//!
//! Further clocks say what of it the other proxies have seen: generic writes reach them through a proxy fence only (PTX ISA §8.6).

use std::collections::HashMap;
use std::sync::Arc;

use crate::op::Proxy;

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

/// What has been seen of the agents of other clusters, in the order of the clusters' numbers.
type Others = Vec<(u32, Arc<Vec<Seen>>)>;

/// What has been seen of the agents of the own cluster, and of those of others, before a proxy fence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Fenced {
    seen: Vec<Seen>,
    others: Option<Arc<Others>>,
}

impl Fenced {
    fn join(&mut self, other: &Fenced) {
        join(&mut self.seen, &other.seen);
        join_others(&mut self.others, &other.others);
    }

    /// Takes in what a thread of that cluster had fenced. Before the acquire that may follow, nothing is lost: what is not in order is a
    /// race first.
    fn hear(&mut self, own: u32, group: u32, other: &Fenced) {
        if group == own {
            join(&mut self.seen, &other.seen);
        } else {
            see_other(&mut self.others, group, &other.seen);
        }
        join_others(&mut self.others, &other.others);
        join_own(&mut self.seen, &other.others, own);
    }
}

/// What has been seen of every agent; those beyond the end not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    seen: Vec<Seen>,
    /// What of it came before a proxy fence, for each proxy; `None` where there was none.
    fenced: Option<Arc<[Fenced; Proxy::COUNT]>>,
    others: Option<Arc<Others>>,
    /// What came before a fence of the CTA's scope, and of the device's: a strong write that follows tells of it.
    flushed: [Vec<Seen>; 2],
    flushed_others: Option<Arc<Others>>,
    /// What strong reads have told of, which the next fence acquires.
    told: Vec<Seen>,
    told_others: Option<Arc<Others>>,
    /// What would be seen, had every atomic operation been followed by a fence.
    nearly: Vec<Seen>,
    nearly_others: Option<Arc<Others>>,
    /// Strong accesses that strong reads have come after: whoever has read a counter may reset it by a weak write (PTX ISA §8.10,
    /// coherence), and needs no fence for that.
    strong: Vec<Seen>,
    strong_others: Option<Arc<Others>>,
    /// When that was, in clocks of the model of time, where there is one.
    pub(crate) when: u64,
}

/// What a release leaves at an address for those who acquire it.
#[derive(Clone, Debug)]
pub(crate) struct Released {
    /// The cluster that released.
    pub(crate) group: u32,
    pub(crate) clock: Arc<Clock>,
}

impl Clock {
    /// Whether what some lanes of an agent did at that time came before.
    #[inline]
    pub(crate) fn covers(&self, agent: Agent, time: u32, lanes: u32) -> bool {
        self.seen.get(usize::from(agent)).is_some_and(|s| s.covers(time, lanes))
    }

    /// Whether a fence of the proxy came between what an agent of a cluster did and now.
    pub(crate) fn is_fenced(&self, proxy: Proxy, own: u32, group: u32, past: (Agent, u32, u32)) -> bool {
        let (Some(fenced), (agent, time, lanes)) = (&self.fenced, past) else { return false };
        let fenced = &fenced[proxy as usize];
        if own == group {
            return fenced.seen.get(usize::from(agent)).is_some_and(|s| s.covers(time, lanes));
        }
        covers_in(&fenced.others, group, agent, time, lanes)
    }

    /// Nothing seen, at the same time of the model of time.
    pub(crate) fn nothing_seen(&self) -> Clock {
        Clock { when: self.when, ..Clock::default() }
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
        self.when = self.when.max(other.when);
        join(&mut self.seen, &other.seen);
        join_fenced(&mut self.fenced, &other.fenced);
        join(&mut self.nearly, &other.nearly);
        join(&mut self.flushed[0], &other.flushed[0]);
        join(&mut self.flushed[1], &other.flushed[1]);
        join_others(&mut self.flushed_others, &other.flushed_others);
        join_others(&mut self.others, &other.others);
        join_others(&mut self.nearly_others, &other.nearly_others);
        join(&mut self.told, &other.told);
        join_others(&mut self.told_others, &other.told_others);
        join(&mut self.strong, &other.strong);
        join_others(&mut self.strong_others, &other.strong_others);
    }

    /// Whether strong accesses of some lanes of an agent at that time came before.
    pub(crate) fn covers_strong(&self, own: u32, group: u32, agent: Agent, time: u32, lanes: u32) -> bool {
        if own == group {
            return self.strong.get(usize::from(agent)).is_some_and(|s| s.covers(time, lanes));
        }
        covers_in(&self.strong_others, group, agent, time, lanes)
    }

    /// Whoever reads what a strong write leaves comes after it, and after the strong accesses that `writer` came after.
    pub(crate) fn see_strong(&mut self, writer: &Clock, agent: Agent, time: u32, lanes: u32) {
        join(&mut self.strong, &writer.strong);
        join_others(&mut self.strong_others, &writer.strong_others);
        let seen = entry(&mut self.strong, agent);
        *seen = seen.join(Seen { whole: 0, part: time, lanes });
    }

    fn hear_strong(&mut self, own: u32, released: &Released) {
        if let Some(theirs) = &released.clock.fenced {
            let mine = Arc::make_mut(self.fenced.get_or_insert_default());
            mine.iter_mut()
                .zip(theirs.iter())
                .for_each(|(mine, theirs)| mine.hear(own, released.group, theirs));
        }
        if released.group == own {
            join(&mut self.strong, &released.clock.strong);
        } else {
            see_other(&mut self.strong_others, released.group, &released.clock.strong);
        }
        join_others(&mut self.strong_others, &released.clock.strong_others);
        join_own(&mut self.strong, &released.clock.strong_others, own);
    }

    /// Whether what some lanes of an agent of another cluster did at that time came before.
    pub(crate) fn covers_other(&self, group: u32, agent: Agent, time: u32, lanes: u32) -> bool {
        covers_in(&self.others, group, agent, time, lanes)
    }

    /// Whether that came before but for a fence after the read that tells of it.
    pub(crate) fn nearly_covers(&self, own: u32, group: u32, agent: Agent, time: u32, lanes: u32) -> bool {
        if own == group {
            return self.nearly.get(usize::from(agent)).is_some_and(|s| s.covers(time, lanes));
        }
        covers_in(&self.nearly_others, group, agent, time, lanes)
    }

    /// A fence: strong writes that follow tell others, in the CTA or beyond, of what `released` has seen.
    pub(crate) fn flush(&mut self, released: &Clock, beyond: bool) {
        join(&mut self.flushed[0], &released.seen);
        if beyond {
            join(&mut self.flushed[1], &released.seen);
            join_others(&mut self.flushed_others, &released.others);
        }
    }

    /// What a strong write that does not release by itself tells of; `None` if nothing came before a fence.
    pub(crate) fn flushed(&self, beyond: bool) -> Option<Clock> {
        let seen = &self.flushed[usize::from(beyond)];
        let others = if beyond { self.flushed_others.clone() } else { None };
        if seen.is_empty() && others.is_none() {
            return None;
        }
        let (seen, fenced) = (seen.clone(), self.fenced.clone());
        Some(Clock { seen, fenced, others, when: self.when, ..Clock::default() })
    }

    /// Acquires what was released.
    pub(crate) fn acquire(&mut self, own: u32, released: &Released) {
        self.when = self.when.max(released.clock.when);
        self.acquire_nearly(own, released);
        self.hear_strong(own, released);
        if released.group == own {
            join(&mut self.seen, &released.clock.seen);
        } else {
            see_other(&mut self.others, released.group, &released.clock.seen);
        }
        join_others(&mut self.others, &released.clock.others);
        join_own(&mut self.seen, &released.clock.others, own);
    }

    /// A strong read tells of what was released; a fence makes it an acquire.
    pub(crate) fn hear(&mut self, own: u32, released: &Released) {
        self.hear_strong(own, released);
        if released.group == own {
            join(&mut self.told, &released.clock.seen);
        } else {
            see_other(&mut self.told_others, released.group, &released.clock.seen);
        }
        join_others(&mut self.told_others, &released.clock.others);
    }

    /// A fence: what strong reads before it have told of comes before what follows, in the CTA or beyond.
    pub(crate) fn acquire_told(&mut self, beyond: bool, own: u32) {
        let told = std::mem::take(&mut self.told);
        join(&mut self.seen, &told);
        if beyond {
            let others = self.told_others.take();
            join_others(&mut self.others, &others);
            join_own(&mut self.seen, &others, own);
        }
    }

    /// Reads what was released without ordering anything by it.
    pub(crate) fn acquire_nearly(&mut self, own: u32, released: &Released) {
        if released.group == own {
            join(&mut self.nearly, &released.clock.seen);
            join(&mut self.nearly, &released.clock.nearly);
        } else {
            see_other(&mut self.nearly_others, released.group, &released.clock.seen);
            see_other(&mut self.nearly_others, released.group, &released.clock.nearly);
        }
        join_others(&mut self.nearly_others, &released.clock.others);
        join_others(&mut self.nearly_others, &released.clock.nearly_others);
        join_own(&mut self.nearly, &released.clock.others, own);
        join_own(&mut self.nearly, &released.clock.nearly_others, own);
    }

    /// Both releases together: read-modify-write operations go on with what was released before them.
    pub(crate) fn and(own: u32, released: &Released, more: &Clock) -> Clock {
        let mut clock = more.clone();
        clock.acquire(own, released);
        clock
    }

    /// A proxy fence: the proxy sees what `other` has seen.
    pub(crate) fn fence(&mut self, proxy: Proxy, other: &Clock) {
        let fenced = &mut Arc::make_mut(self.fenced.get_or_insert_default())[proxy as usize];
        join(&mut fenced.seen, &other.seen);
        if proxy != Proxy::AsyncShared {
            // Nobody outside the cluster writes its shared memory.
            join_others(&mut fenced.others, &other.others);
        }
    }

    /// The proxy of tensor maps sees what was released to it and has been seen since.
    pub(crate) fn acquire_tensor_maps(&mut self) {
        let Some(fenced) = &mut self.fenced else { return };
        let fenced = Arc::make_mut(fenced);
        let released = fenced[Proxy::TensorMapReleased as usize].clone();
        fenced[Proxy::TensorMap as usize].join(&released);
    }

    /// Keeps only what the other has seen too.
    pub(crate) fn meet(&mut self, other: &Clock) {
        meet(&mut self.seen, &other.seen);
        match (&mut self.fenced, &other.fenced) {
            (Some(mine), Some(theirs)) => {
                let mine = Arc::make_mut(mine).iter_mut().zip(theirs.iter());
                mine.for_each(|(mine, theirs)| meet(&mut mine.seen, &theirs.seen));
            }
            (mine, _) => *mine = None,
        }
    }
}

fn join_fenced(mine: &mut Option<Arc<[Fenced; Proxy::COUNT]>>, theirs: &Option<Arc<[Fenced; Proxy::COUNT]>>) {
    match (&mut *mine, theirs) {
        (_, None) => {}
        (None, Some(theirs)) => *mine = Some(theirs.clone()),
        (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) => {}
        (Some(mine), Some(theirs)) => {
            Arc::make_mut(mine).iter_mut().zip(theirs.iter()).for_each(|(mine, theirs)| mine.join(theirs));
        }
    }
}

fn covers_in(others: &Option<Arc<Others>>, group: u32, agent: Agent, time: u32, lanes: u32) -> bool {
    let seen = list_of(others, group).and_then(|list| list.get(usize::from(agent)));
    seen.is_some_and(|s| s.covers(time, lanes))
}

/// What has been seen of one cluster's agents.
fn list_of(others: &Option<Arc<Others>>, group: u32) -> Option<&Arc<Vec<Seen>>> {
    let others = others.as_ref()?;
    let at = others.binary_search_by_key(&group, |(group, _)| *group).ok()?;
    Some(&others[at].1)
}

/// Sees what other clusters have seen of the own one: one warp's write may come to another warp of its CTA through another CTA.
fn join_own(to: &mut Vec<Seen>, others: &Option<Arc<Others>>, own: u32) {
    if let Some(list) = list_of(others, own) {
        join(to, list);
    }
}

fn see_other(others: &mut Option<Arc<Others>>, group: u32, seen: &[Seen]) {
    if seen.is_empty() {
        return;
    }
    if list_of(others, group).is_some_and(|list| has(list, seen)) {
        return;
    }
    let others = Arc::make_mut(others.get_or_insert_default());
    match others.binary_search_by_key(&group, |(group, _)| *group) {
        Ok(at) => join(Arc::make_mut(&mut others[at].1), seen),
        Err(at) => others.insert(at, (group, Arc::new(seen.to_vec()))),
    }
}

fn join_others(to: &mut Option<Arc<Others>>, from: &Option<Arc<Others>>) {
    let Some(from) = from else { return };
    let Some(mine) = to else {
        *to = Some(from.clone());
        return;
    };
    if Arc::ptr_eq(mine, from) {
        return;
    }
    // What is shared is copied when it changes: mostly nothing does, and lists that are equal become one, which the next join sees by the
    // pointer.
    let has_all_of_from = has_all(mine, from);
    if has_all_of_from && mine.len() > from.len() {
        return;
    }
    if has_all(from, mine) {
        mine.clone_from(from);
        return;
    }
    if has_all_of_from {
        return;
    }
    let mine = Arc::make_mut(mine);
    for (group, theirs) in from.iter() {
        match mine.binary_search_by_key(group, |(group, _)| *group) {
            Err(at) => mine.insert(at, (*group, theirs.clone())),
            Ok(at) if is_known(&mine[at].1, theirs) => {}
            Ok(at) => join(Arc::make_mut(&mut mine[at].1), theirs),
        }
    }
}

/// Whether joining another's clusters would change nothing.
fn has_all(of: &Others, other: &Others) -> bool {
    let mut rest = of.iter();
    other.iter().all(|(group, theirs)| {
        let next = rest.find(|(number, _)| number >= group);
        next.is_some_and(|(number, list)| number == group && is_known(list, theirs))
    })
}

fn is_known(list: &Arc<Vec<Seen>>, theirs: &Arc<Vec<Seen>>) -> bool {
    Arc::ptr_eq(list, theirs) || has(list, theirs)
}

fn entry(list: &mut Vec<Seen>, agent: Agent) -> &mut Seen {
    let index = usize::from(agent);
    if list.len() <= index {
        list.resize(index + 1, Seen::default());
    }
    &mut list[index]
}

/// Whether a join would change nothing.
fn has(list: &[Seen], other: &[Seen]) -> bool {
    other.len() <= list.len() && list.iter().zip(other).all(|(mine, theirs)| mine.join(*theirs) == *mine)
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
    /// The bulk groups of a thread, by warp and lane, as readers of their sources.
    BulkGroups(u32, usize),
    /// The same as writers of global memory.
    BulkWrites(u32, usize),
}

/// The agents of a CTA.
#[derive(Debug)]
pub(crate) struct Agents {
    warps: usize,
    /// The CTA's number in its cluster, and the CTAs of the cluster.
    rank: usize,
    ctas: usize,
    others: HashMap<AgentOf, Agent>,
}

impl Agents {
    pub(crate) fn new(warps: usize, rank: usize, ctas: usize) -> Self {
        Agents { warps, rank, ctas, others: HashMap::new() }
    }

    /// The agent that a warp of this CTA is.
    pub(crate) fn warp(&self, index: u32) -> Agent {
        (self.rank * self.warps) as Agent + index as Agent
    }

    /// The CTA of the cluster, and the warp in it, that an agent is.
    pub(crate) fn place(&self, agent: Agent) -> (u32, u32) {
        let at = usize::from(agent);
        ((at / self.warps.max(1)) as u32, (at % self.warps.max(1)) as u32)
    }

    /// The CTA of the cluster that an agent beside the warps belongs to.
    pub(crate) fn rank_of_later(&self, agent: Agent) -> u32 {
        (usize::from(agent) % self.ctas) as u32
    }

    /// The agent's number, a new one at first sight. There are fewer than 2¹⁶, as shared memory bounds the mbarriers.
    pub(crate) fn number(&mut self, of: AgentOf) -> Agent {
        let next = (self.ctas * (self.warps + self.others.len()) + self.rank) as Agent;
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
        let fenced = |clock: &Clock, own, time| clock.is_fenced(Proxy::AsyncGlobal, own, 0, (0, time, 1));
        assert!(reader.covers(0, 4, 1) && !fenced(&reader, 0, 4));
        writer.fence(Proxy::AsyncGlobal, &released);
        reader.join(&writer);
        assert!(fenced(&reader, 0, 4) && !fenced(&reader, 0, 5));
        assert!(!reader.is_fenced(Proxy::AsyncShared, 0, 0, (0, 4, 1)));
        // Another cluster acquires it, or fences what it has acquired.
        let (mut acquired, mut late) = (Clock::default(), Clock::default());
        acquired.acquire(1, &Released { group: 0, clock: Arc::new(writer) });
        late.acquire(1, &Released { group: 0, clock: Arc::new(released) });
        assert!(fenced(&acquired, 1, 4) && !fenced(&late, 1, 4));
        let seen = late.clone();
        late.fence(Proxy::AsyncGlobal, &seen);
        assert!(fenced(&late, 1, 4) && !fenced(&late, 1, 5));
        let mut both = reader.clone();
        both.meet(&Clock::default());
        assert!(!both.covers(0, 1, 1));
    }

    #[test]
    fn what_another_cluster_has_seen_of_the_own_one_is_acquired() {
        let (mut first, mut between, mut last) = (Clock::default(), Clock::default(), Clock::default());
        first.see(0, 4);
        between.acquire(1, &Released { group: 0, clock: Arc::new(first) });
        let released = Released { group: 1, clock: Arc::new(between) };
        last.hear(0, &released);
        last.acquire_told(false, 0);
        assert!(!last.covers(0, 4, 1));
        last.acquire_told(true, 0);
        assert!(last.covers(0, 4, 1) && !last.covers(0, 5, 1));
        let mut acquired = Clock::default();
        acquired.acquire(0, &released);
        assert!(acquired.covers(0, 4, 1) && acquired.nearly_covers(0, 0, 0, 4, 1));
    }

    #[test]
    fn a_join_has_what_both_clocks_had_of_every_cluster() {
        let others = |of: &[(u32, u32)]| {
            let mut others = None;
            for &(group, whole) in of {
                see_other(&mut others, group, &[Seen { whole, ..Seen::default() }]);
            }
            others
        };
        for (mine, theirs, both) in [
            (&[(3, 1), (1, 5)][..], &[(2, 4)][..], &[(1, 5), (2, 4), (3, 1)][..]),
            (&[(1, 5), (3, 1)], &[(1, 4), (3, 2)], &[(1, 5), (3, 2)]),
            (&[(1, 5), (3, 1)], &[(1, 5), (3, 1)], &[(1, 5), (3, 1)]),
            (&[(1, 5), (3, 1)], &[(3, 1)], &[(1, 5), (3, 1)]),
            (&[(3, 1)], &[(1, 5), (3, 2)], &[(1, 5), (3, 2)]),
        ] {
            let mut joined = others(mine);
            join_others(&mut joined, &others(theirs));
            assert_eq!(joined, others(both), "{mine:?} and {theirs:?}");
            for &(group, whole) in both {
                assert!(
                    covers_in(&joined, group, 0, whole, 1) && !covers_in(&joined, group, 0, whole + 1, 1)
                );
            }
            assert!(!covers_in(&joined, 4, 0, 1, 1));
        }
    }

    #[test]
    fn agents_come_after_the_warps() {
        let mut agents = Agents::new(4, 0, 1);
        assert_eq!(agents.number(AgentOf::Mbarrier(8)), 4);
        assert_eq!(agents.number(AgentOf::Warpgroup(0)), 5);
        assert_eq!(agents.number(AgentOf::Mbarrier(8)), 4);
    }
}
