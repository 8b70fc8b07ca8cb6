//! The barriers of a CTA (PTX ISA §9.7.13.1): sixteen, each with its arrivals. A barrier joins what the arriving warps have
//! seen into those that wait.

use crate::clock::Clock;
use crate::finding::{Fault, FindingKind, Outcome};
use crate::op::{Barrier, BarrierReduction, Op, Reg};
use crate::regs::LANES;

use super::cta::Cta;
use super::warp::{Path, Warp};

/// Barriers of a CTA.
pub(super) const BARRIERS: usize = 16;

/// A warp that has come to a barrier.
#[derive(Clone, Debug)]
struct Arrival {
    warp: u32,
    waits: bool,
    /// What the warp had seen and done.
    clock: Clock,
    /// Where the result of a reduction goes.
    result: Option<(usize, Reg, u32)>,
}

/// One barrier.
#[derive(Clone, Debug, Default)]
pub(super) struct BarrierState {
    arrivals: Vec<Arrival>,
    /// Warps that must come; `None` for every warp that has not exited.
    needed: Option<u32>,
    ones: u32,
    threads: u32,
    reduction: Option<BarrierReduction>,
}

impl BarrierState {
    /// The warps that have come, and how many must.
    pub(super) fn progress(&self) -> (Vec<u32>, Option<u32>) {
        (self.arrivals.iter().map(|a| a.warp).collect(), self.needed)
    }
}

/// A waiting warp that may go on.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) warp: u32,
    clock: Clock,
    result: Option<(usize, Reg, u32, u32)>,
}

impl Release {
    /// Lets the warp go on.
    pub(super) fn apply(&self, warp: &mut Warp) -> Outcome {
        self.join(warp)?;
        warp.release(|_| true);
        Ok(())
    }

    /// Gives the warp what the others have done before the barrier.
    fn join(&self, warp: &mut Warp) -> Outcome {
        warp.clock.join(&self.clock);
        if let Some((frame, reg, mask, value)) = self.result {
            let regs = &mut warp.frame(frame)?.regs;
            super::access::lanes(mask).for_each(|lane| regs.set_bits(reg.bank, reg.slot, lane, value.into()));
        }
        Ok(())
    }
}

impl Warp {
    /// Every path waits at a barrier: tells the CTA, once all threads of the warp that have not exited have come. To an aligned
    /// barrier they come together; to others from where they are, so those that went around one go on: to another one, or to
    /// their end, after which nobody waits for them (PTX ISA §9.7.13.1).
    pub(super) fn at_barrier(&mut self, cta: &mut Cta<'_>) -> Outcome<bool> {
        let first = self.paths[0].clone();
        let program = self.frame(first.frame)?.program;
        (self.at, self.at_frame) = ((program, first.pc), first.frame);
        let launch = cta.launch;
        let Op::Barrier(barrier) = &launch.program(program).insts[first.pc as usize].op else {
            return Err(Fault::new(FindingKind::BadTarget));
        };
        let checked = cta.launch.config.checks.convergence;
        let (mut aligned, mut together) = (barrier.aligned, true);
        for at in 1..self.paths.len() {
            let (frame, pc) = (self.paths[at].frame, self.paths[at].pc);
            let program = self.frame(frame)?.program;
            let Op::Barrier(other) = &launch.program(program).insts[pc as usize].op else { continue };
            let differs = other.arrive_only != barrier.arrive_only;
            if checked && (differs || self.number(at, other) != self.number(0, barrier)) {
                let detail = "lanes of the warp wait at different barriers";
                return Err(Fault::new(FindingKind::BarrierDivergence).saying(detail));
            }
            aligned |= other.aligned;
            together &= (frame, pc) == (first.frame, first.pc);
        }
        if !aligned && self.release_joins() != 0 {
            return Ok(true);
        }
        let guarded =
            self.guarded(&launch.program(program).insts[first.pc as usize], first.frame, self.live)?;
        // Lanes that wait where paths meet have gone around the barrier.
        let missing = self.live & !(guarded & self.paths.iter().fold(0, |lanes, p| lanes | p.mask));
        if checked && aligned && (!together || missing != 0) {
            let mut fault = Fault::new(FindingKind::BarrierDivergence);
            fault.lane = (missing != 0).then_some(missing.trailing_zeros() as usize);
            return Err(fault);
        }
        let goes_on = cta.arrive(self, barrier, first.frame)?;
        if goes_on {
            self.release(|_| true);
        }
        Ok(goes_on)
    }

    /// The number of the barrier that a path waits at.
    fn number(&self, path: usize, barrier: &Barrier) -> Option<u32> {
        let Path { frame, mask, .. } = self.paths[path];
        let regs = &self.frames[frame].as_ref()?.regs;
        Some(regs.word[barrier.id as usize][mask.trailing_zeros() as usize % LANES])
    }
}

impl Cta<'_> {
    /// A warp has come to a barrier. True if it need not wait.
    pub(super) fn arrive(&mut self, warp: &mut Warp, barrier: &Barrier, frame: usize) -> Outcome<bool> {
        self.counters.barriers += 1;
        self.progress += 1;
        self.arrivals += 1;
        let live = warp.live;
        let lane = 31 & live.trailing_zeros() as usize;
        let regs = &warp.frame(frame)?.regs;
        let id = regs.word[barrier.id as usize][lane];
        let threads = barrier.threads.map(|t| regs.word[t as usize][lane]);
        let bad = id as usize >= BARRIERS || threads.is_some_and(|t| t == 0 || t % 32 != 0);
        if bad {
            return Err(Fault::at(FindingKind::BadOperand, lane, id.into()));
        }
        let mut ones = 0;
        let mut result = None;
        if let Some((_, reg, pred, negated)) = barrier.reduction {
            let bits = regs.pred[pred as usize];
            ones = (live & if negated { !bits } else { bits }).count_ones();
            result = Some((frame, reg, live));
        }
        let state = &mut self.barriers[id as usize];
        let reduction = barrier.reduction.map(|r| r.0);
        if !state.arrivals.is_empty()
            && (state.needed != threads.map(|t| t / 32) || state.reduction != reduction)
        {
            return Err(Fault::at(FindingKind::BadOperand, lane, id.into()));
        }
        state.needed = threads.map(|t| t / 32);
        state.reduction = reduction;
        state.ones += ones;
        state.threads += live.count_ones();
        let waits = !barrier.arrive_only;
        let clock = warp.release_clock(live);
        state.arrivals.push(Arrival { warp: warp.index, waits, clock, result });
        // What the warp does from here on is not ordered by this arrival.
        warp.sync_lanes();
        self.complete_barrier(id as usize);
        if !waits {
            return Ok(true);
        }
        match self.releases.iter().position(|r| r.warp == warp.index) {
            Some(own) => {
                self.releases.swap_remove(own).join(warp)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Releases the waiting warps of a barrier if everybody has come.
    pub(super) fn complete_barrier(&mut self, id: usize) {
        let state = &mut self.barriers[id];
        let complete = match state.needed {
            Some(warps) => state.arrivals.len() >= warps as usize,
            None => state.arrivals.len() >= self.live_warps && !state.arrivals.is_empty(),
        };
        if !complete {
            return;
        }
        let state = std::mem::take(state);
        let mut joined = Clock::default();
        state.arrivals.iter().for_each(|arrival| joined.join(&arrival.clock));
        let value = match state.reduction {
            Some(BarrierReduction::Popc) | None => state.ones,
            Some(BarrierReduction::And) => u32::from(state.ones == state.threads),
            Some(BarrierReduction::Or) => u32::from(state.ones > 0),
        };
        for arrival in state.arrivals.into_iter().filter(|a| a.waits) {
            let result = arrival.result.map(|(frame, reg, mask)| (frame, reg, mask, value));
            self.releases.push(Release { warp: arrival.warp, clock: joined.clone(), result });
        }
    }
}
