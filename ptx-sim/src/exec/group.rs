//! A cluster's CTAs, which run at the same time, in turns.

use crate::counters::Counters;
use crate::finding::Finding;
use crate::launch::Launch;

use super::cta::Cta;
use super::schedule::{Advance, State, Warps};

/// Instructions of a CTA's turn, where there are others in its cluster.
const TURN: u64 = 1 << 15;

/// The CTAs of one cluster; without clusters, one CTA.
pub(crate) struct Group<'c> {
    ctas: Vec<Option<Box<Cta<'c>>>>,
    warps: Vec<Warps>,
    done: Vec<bool>,
}

impl<'c> Group<'c> {
    /// The CTAs of these ids, which are one cluster.
    pub(crate) fn new(launch: &'c Launch<'c>, ids: &[u64]) -> Self {
        let ctas: Vec<_> = ids.iter().map(|id| Box::new(Cta::new(launch, *id))).collect();
        let warps = ctas.iter().map(|cta| cta.start()).collect();
        Group { done: vec![false; ctas.len()], warps, ctas: ctas.into_iter().map(Some).collect() }
    }

    /// Runs until all have ended, none can go on, or about `limit` instructions are over.
    pub(crate) fn advance(&mut self, limit: u64) -> Result<Advance, Box<Finding>> {
        let turn = if self.ctas.len() == 1 { limit } else { TURN.min(limit) };
        let mut left = limit;
        loop {
            let (mut all_done, mut any_slice, before) = (true, false, self.progress());
            for rank in 0..self.ctas.len() {
                if self.done[rank] {
                    continue;
                }
                match self.with(rank, |cta, warps| cta.advance(warps, turn))? {
                    Advance::Done => self.done[rank] = true,
                    Advance::Blocked => all_done = false,
                    Advance::Slice => (all_done, any_slice) = (false, true),
                }
            }
            if all_done {
                return Ok(Advance::Done);
            }
            left = left.saturating_sub(turn);
            if any_slice && left == 0 {
                return Ok(Advance::Slice);
            }
            if !any_slice && self.progress() == before {
                return Ok(Advance::Blocked);
            }
        }
    }

    /// How far it is in the model of time: its warp that is furthest behind.
    pub(crate) fn now(&self) -> u64 {
        let warps = self.warps.iter().flat_map(|all| all.list.iter().zip(&all.states));
        let running = warps.filter(|(_, state)| **state != State::Exited);
        running.filter_map(|(warp, _)| Some(warp.time.as_ref()?.now())).min().unwrap_or(0)
    }

    fn progress(&self) -> u64 {
        self.ctas.iter().flatten().map(|cta| cta.progress + u64::from(cta.ended)).sum()
    }

    /// Calls `f` with a CTA that has the others as its peers.
    fn with<R>(&mut self, rank: usize, f: impl FnOnce(&mut Cta<'c>, &mut Warps) -> R) -> R {
        let mut all = std::mem::take(&mut self.ctas);
        let Some(mut cta) = all[rank].take() else { unreachable!("every CTA is at its place between turns") };
        cta.peers = all;
        let result = f(&mut cta, &mut self.warps[rank]);
        all = std::mem::take(&mut cta.peers);
        all[rank] = Some(cta);
        self.ctas = all;
        result
    }

    /// Lets the time go on where all wait for a change; false where nobody has looked at it.
    pub(crate) fn skip_time(&mut self) -> bool {
        (0..self.ctas.len())
            .any(|rank| !self.done[rank] && self.with(rank, |cta, warps| cta.skip_time(warps)))
    }

    /// The finding of a cluster that can never go on.
    pub(crate) fn stuck(&mut self) -> Box<Finding> {
        let rank = self.done.iter().position(|done| !done).unwrap_or(0);
        self.with(rank, |cta, warps| cta.stuck(warps))
    }

    /// What was counted, and the warnings.
    pub(crate) fn finish(self) -> (Counters, Vec<Finding>) {
        let mut sum = (Counters::default(), Vec::new());
        for cta in self.ctas.into_iter().flatten() {
            sum.0 = sum.0.add(cta.counters);
            sum.1.extend(cta.warnings);
        }
        sum
    }
}
