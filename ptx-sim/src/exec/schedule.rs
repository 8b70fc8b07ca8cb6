//! The order in which the warps of a CTA run, and what happens between their turns.

use std::sync::atomic::Ordering::Relaxed;

use crate::clock::Clock;
use crate::finding::{Fault, Finding, FindingKind, OtherAccess, Outcome};

use super::barrier::BARRIERS;
use super::cta::Cta;
use super::warp::{Stop, Wait, Warp};

/// Whether a warp can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Waiting,
    Exited,
}

/// A fault and the warp to blame.
pub(super) type Blamed<T = ()> = Result<T, (usize, Box<Fault>)>;

/// How far a CTA has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    /// Every warp has exited.
    Done,
    /// Only something outside the CTA can help.
    Blocked,
    /// Its time slice is over.
    Slice,
}

/// Warp instructions after which another warp has its turn, should this one not wait before.
const TURN: u64 = 1 << 14;

/// The warps of a CTA, and whose turn it is.
pub(crate) struct Warps {
    pub(super) list: Vec<Warp>,
    pub(super) states: Vec<State>,
    /// The warp whose turn ended without a wait: the others come first.
    last: Option<usize>,
    /// What had changed when the spinning warps were last let go.
    woken: (u64, u64),
}

impl Cta<'_> {
    /// The warps at their start.
    pub(crate) fn start(&self) -> Warps {
        let count = self.launch.warps();
        let mut list: Vec<Warp> = (0..count as u32).map(|index| self.warp(index)).collect();
        if let Some(timer) = &self.launch.config.timer {
            let times = timer.start(count, self.launch.entry_program);
            list.iter_mut().zip(times).for_each(|(warp, time)| warp.time = Some(Box::new(time)));
        }
        Warps { list, states: vec![State::Ready; count], last: None, woken: (0, 0) }
    }

    /// Runs the warps until all have exited, none can go on, or `limit` instructions of this CTA are over.
    pub(crate) fn advance(&mut self, all: &mut Warps, limit: u64) -> Result<Advance, Box<Finding>> {
        let end = self.executed.saturating_add(limit);
        loop {
            if self.executed >= end || std::mem::take(&mut self.yields) {
                return Ok(Advance::Slice);
            }
            let turn = match self.pick(all) {
                Some(at) => self.turn(at, all).map(|()| true),
                None => self.wake(all),
            };
            match turn {
                Ok(true) => {}
                Ok(false) => break,
                Err((at, fault)) => return Err(self.blame(*fault, &all.list[at])),
            }
        }
        if all.states.contains(&State::Waiting) {
            return Ok(Advance::Blocked);
        }
        self.finish_stores();
        if let Some(timer) = &self.launch.config.timer {
            timer.end(all.list.iter().filter_map(|warp| warp.time.as_deref()));
        }
        match self.deferred.take().or_else(|| self.left_over()) {
            Some(finding) => Err(finding),
            None => Ok(Advance::Done),
        }
    }

    /// The finding of a CTA that can never go on.
    pub(crate) fn stuck(&mut self, all: &mut Warps) -> Box<Finding> {
        if let Some(deferred) = self.deferred.take() {
            return deferred;
        }
        let blocked = self.blocked(&all.list, &all.states);
        let kind = match super::blocked::is_diverged(&blocked, &all.states) {
            true => FindingKind::DivergedWarpgroup,
            false => FindingKind::Deadlock,
        };
        let waiting = |s: &State| *s == State::Waiting;
        // Who spins says more than who waits for it at a barrier.
        let at =
            (0..all.list.len()).find(|&at| waiting(&all.states[at]) && all.list[at].spins_at().is_some());
        let at = at.or_else(|| all.states.iter().position(waiting)).unwrap_or(0);
        let mut fault = Fault::new(kind);
        fault.at = all.list[at].spins_at();
        let mut finding = self.blame(*fault, &all.list[at]);
        finding.blocked = blocked;
        finding
    }

    /// Instructions of a warp's turn without a seed. Warps that tell each other something by flags have short ones of many
    /// lengths, so that either side of a queue is ahead at times.
    fn plain_turn(&mut self) -> u64 {
        if self.talks { 1 + self.mixed() % 64 } else { TURN }
    }

    fn mixed(&mut self) -> u64 {
        self.turns = self.turns.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.turns >> 33
    }

    /// A warp has told others something by a flag, or has heard it: at times it is their turn now, one time in `odds`.
    pub(super) fn talk(&mut self, odds: u64, shared: bool) {
        if self.launch.config.timer.is_some() {
            return;
        }
        self.talks = true;
        if self.mixed().is_multiple_of(odds) {
            self.turn_ends = self.executed;
            self.yields = !shared;
        }
    }

    /// What every warp has left undone at its end.
    fn left_over(&self) -> Option<Box<Finding>> {
        if !self.launch.config.checks.async_copies {
            return None;
        }
        let (kind, detail, place) = match (self.unwaited(), self.missing_bytes()) {
            (Some(copy), _) => {
                (FindingKind::AsyncPending, "the CTA ends before anybody has waited for the copy", copy)
            }
            (None, Some(place)) => (FindingKind::Mbarrier, "bytes are expected that never come", place),
            (None, None) => return None,
        };
        Some(self.finding(*Fault::new(kind).saying(detail), place.warp, place.at))
    }

    /// Lets a warp run, and then those that it has set free.
    fn turn(&mut self, at: usize, all: &mut Warps) -> Blamed {
        if self.random_bit() {
            self.land(&mut all.list)?;
            self.set_free(all)?;
        }
        let slice = if self.is_random() { 1 + self.random() % 64 } else { self.plain_turn() };
        all.last = None;
        match all.list[at].run(self, slice).map_err(|fault| (at, fault))? {
            Stop::Slice => all.last = Some(at),
            Stop::Waits => {
                all.states[at] = State::Waiting;
                self.join_warpgroup(at, &mut all.list, &mut all.states)?;
            }
            Stop::Exited => {
                all.states[at] = State::Exited;
                self.live_warps -= 1;
                self.ended = self.live_warps == 0;
                self.progress += 1;
                if self.ended {
                    self.check_end(all).map_err(|fault| (at, fault))?;
                }
                // A barrier for all threads does not wait for those that have exited.
                (0..BARRIERS).for_each(|id| self.complete_barrier(id));
            }
        }
        self.live_threads = all.list.iter().map(|w| w.live.count_ones()).sum();
        self.complete_cluster();
        self.set_free(all)
    }

    /// The CTA has ended, and with it its shared memory: what others of the cluster did there must have come before.
    fn check_end(&self, all: &Warps) -> Outcome {
        let checks = self.launch.config.checks;
        if self.peers.is_empty() || !checks.shared_races || !checks.bounds {
            return Ok(());
        }
        let mut clock = Clock::default();
        all.list.iter().for_each(|warp| clock.join(&warp.clock));
        let first = self.agents.warp(0);
        let own = first..first + all.list.len() as u16;
        let is_own_later = |agent| self.agents.rank_of_later(agent) == self.rank;
        let Some((address, mark, write)) = self.shared.unseen(own, is_own_later, &clock) else {
            return Ok(());
        };
        if mark.lanes == 0 {
            let detail =
                "the CTA exits while its copy to another CTA's shared memory may still be on its way";
            let mut fault = Fault::at(FindingKind::UseAfterFree, 0, address).saying(detail);
            fault.other = Some(OtherAccess { write, line: Some(mark.line), warp: None, lanes: 0, cta: None });
            return Err(fault);
        }
        let lane = mark.lanes.trailing_zeros() as usize;
        let detail = "the CTA exits while another of the cluster may still access its shared memory";
        let mut fault = Fault::at(FindingKind::UseAfterFree, lane, address).saying(detail);
        let (rank, warp) = self.agents.place(mark.agent);
        let cta = Some(self.launch.cta_of(self.group, rank) as u32);
        fault.other =
            Some(OtherAccess { write, line: Some(mark.line), warp: Some(warp), lanes: mark.lanes, cta });
        Err(fault)
    }

    /// What spinning warps may wait for.
    pub(super) fn seen_changes(&self) -> (u64, u64) {
        (self.progress - self.arrivals, self.launch.memory.changes.load(Relaxed))
    }

    /// Lets spinning warps look again, if anything has changed since they last did.
    fn wake_spinning(&mut self, all: &mut Warps) -> bool {
        let now = self.seen_changes();
        if all.woken == now {
            return false;
        }
        all.woken = now;
        self.stop_spinning(all)
    }

    /// Lets the time go on for spinning warps that have looked at it, where nothing else can; false if none has.
    pub(crate) fn skip_time(&mut self, all: &mut Warps) -> bool {
        self.clocks.skip() && self.stop_spinning(all)
    }

    /// Lets spinning warps look again; false if there are none.
    fn stop_spinning(&self, all: &mut Warps) -> bool {
        let mut any = false;
        for (warp, state) in all.list.iter_mut().zip(&mut all.states) {
            if *state == State::Waiting && warp.stop_spinning(self.progress, self.executed) {
                *state = State::Ready;
                any = true;
            }
        }
        any
    }

    /// Lets warps go on that wait for what has happened.
    fn set_free(&mut self, all: &mut Warps) -> Blamed {
        for release in std::mem::take(&mut self.releases) {
            let index = release.warp as usize;
            release.apply(&mut all.list[index]).map_err(|fault| (index, fault))?;
            all.states[index] = State::Ready;
        }
        if std::mem::take(&mut self.changed) {
            self.retry(false, all)?;
        }
        Ok(())
    }

    /// Lets lanes go on that wait where paths meet, while the others spin or wait for what these may bring.
    fn release_joins(&mut self, all: &mut Warps) -> bool {
        let mut any = false;
        for (warp, state) in all.list.iter_mut().zip(&mut all.states) {
            let spins = |w: &Warp| w.paths.iter().any(|p| matches!(p.wait, Wait::Memory | Wait::Mbarrier));
            if *state == State::Waiting && spins(warp) && warp.release_joins() != 0 {
                *state = State::Ready;
                any = true;
            }
        }
        any
    }

    fn retry(&mut self, time_over: bool, all: &mut Warps) -> Blamed<bool> {
        let Warps { list: warps, states, .. } = all;
        let mut any = false;
        for at in 0..warps.len() {
            if states[at] == State::Waiting
                && warps[at].retry_waits(time_over, self).map_err(|fault| (at, fault))?
            {
                states[at] = State::Ready;
                any = true;
            }
        }
        Ok(any)
    }

    /// Lets something land that is on its way; false if nothing is.
    fn land(&mut self, warps: &mut [Warp]) -> Blamed<bool> {
        let arriving = warps.iter().position(|w| w.copies.has_arrivals());
        match arriving.filter(|_| self.loads.is_empty() || self.random_bit()) {
            Some(at) => warps[at].land_arrivals(u32::MAX, self).map_err(|fault| (at, fault))?,
            None if self.loads.is_empty() => return Ok(false),
            None => self.land_bulk().map_err(|(issued, fault)| {
                warps[issued.warp as usize].at = issued.at;
                (issued.warp as usize, fault)
            })?,
        }
        Ok(true)
    }

    /// No warp can run: lets copies land, and ends the time of waits, once between two changes that others could notice. False if nothing helps.
    fn wake(&mut self, all: &mut Warps) -> Blamed<bool> {
        if std::mem::take(&mut self.changed) && self.retry(false, all)? {
            return Ok(true);
        }
        if self.wake_spinning(all) {
            return Ok(true);
        }
        if self.land(&mut all.list)? {
            self.set_free(all)?;
            return Ok(true);
        }
        if self.progress == self.progress_at_timeout {
            return Ok(self.release_joins(all));
        }
        self.progress_at_timeout = self.progress;
        Ok(self.retry(true, all)? || self.release_joins(all))
    }

    /// The next warp to run: the lowest, but after a whole turn the others first.
    fn pick(&mut self, all: &Warps) -> Option<usize> {
        let ready = |at: &usize| all.states[*at] == State::Ready;
        let count = (0..all.states.len()).filter(ready).count();
        if count > 1 && self.is_random() {
            let skip = self.random() as usize % count;
            return (0..all.states.len()).filter(ready).nth(skip);
        }
        let after = all.last.map_or(0, |last| last + 1);
        (after..all.states.len()).find(ready).or_else(|| (0..after).find(ready))
    }
}
