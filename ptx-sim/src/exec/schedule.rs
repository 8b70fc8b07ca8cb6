//! The order in which the warps of a CTA run, and what happens between their turns.

use crate::counters::Counters;
use crate::finding::{Fault, Finding, FindingKind};

use super::barrier::BARRIERS;
use super::cta::Cta;
use super::warp::{Stop, Warp};

/// Whether a warp can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Waiting,
    Exited,
}

/// A fault and the warp to blame.
pub(super) type Blamed<T = ()> = Result<T, (usize, Box<Fault>)>;

impl Cta<'_> {
    /// Runs every warp to its end.
    pub(crate) fn run(mut self) -> Result<Counters, Box<Finding>> {
        let count = self.launch.warps();
        let mut warps: Vec<Warp> = (0..count as u32).map(|index| self.warp(index)).collect();
        let mut states = vec![State::Ready; count];
        loop {
            let turn = match self.pick(&states) {
                Some(at) => self.turn(at, &mut warps, &mut states).map(|()| true),
                None => self.wake(&mut warps, &mut states),
            };
            match turn {
                Ok(true) => {}
                Ok(false) => break,
                Err((at, fault)) => return Err(self.blame(*fault, &warps[at])),
            }
        }
        self.finish_stores();
        match (self.deferred.take(), states.iter().position(|s| *s == State::Waiting)) {
            (Some(deferred), _) => Err(deferred),
            (None, None) => match self.left_over() {
                None => Ok(self.counters),
                Some(finding) => Err(finding),
            },
            (None, Some(at)) => {
                let blocked = self.blocked(&warps, &states);
                let kind = match super::blocked::is_diverged(&blocked, &states) {
                    true => FindingKind::DivergedWarpgroup,
                    false => FindingKind::Deadlock,
                };
                let mut finding = self.blame(*Fault::new(kind), &warps[at]);
                finding.blocked = blocked;
                Err(finding)
            }
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
    fn turn(&mut self, at: usize, warps: &mut [Warp], states: &mut [State]) -> Blamed {
        if self.random_bit() {
            self.land(warps)?;
            self.set_free(warps, states)?;
        }
        let slice = if self.is_random() { 1 + self.random() % 64 } else { u64::MAX };
        match warps[at].run(self, slice).map_err(|fault| (at, fault))? {
            Stop::Slice => {}
            Stop::Waits => {
                states[at] = State::Waiting;
                self.join_warpgroup(at, warps, states)?;
            }
            Stop::Exited => {
                states[at] = State::Exited;
                self.live_warps -= 1;
                self.progress += 1;
                // A barrier for all threads does not wait for those that have exited.
                (0..BARRIERS).for_each(|id| self.complete_barrier(id));
            }
        }
        self.set_free(warps, states)
    }

    /// Lets warps go on that wait for what has happened.
    fn set_free(&mut self, warps: &mut [Warp], states: &mut [State]) -> Blamed {
        for release in std::mem::take(&mut self.releases) {
            let index = release.warp as usize;
            release.apply(&mut warps[index]).map_err(|fault| (index, fault))?;
            states[index] = State::Ready;
        }
        if std::mem::take(&mut self.changed) {
            self.retry(false, warps, states)?;
        }
        Ok(())
    }

    fn retry(&mut self, time_over: bool, warps: &mut [Warp], states: &mut [State]) -> Blamed<bool> {
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
    fn wake(&mut self, warps: &mut [Warp], states: &mut [State]) -> Blamed<bool> {
        if self.land(warps)? {
            self.set_free(warps, states)?;
            return Ok(true);
        }
        if self.progress == self.progress_at_timeout {
            return Ok(false);
        }
        self.progress_at_timeout = self.progress;
        self.retry(true, warps, states)
    }

    /// The next warp to run.
    fn pick(&mut self, states: &[State]) -> Option<usize> {
        let ready = states.iter().filter(|s| **s == State::Ready).count() as u64;
        let skip = if ready > 1 && self.is_random() { self.random() % ready } else { 0 };
        let mut indices = states.iter().enumerate().filter(|(_, s)| **s == State::Ready);
        indices.nth(skip as usize).map(|(at, _)| at)
    }
}
