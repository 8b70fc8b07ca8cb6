//! What the CTAs of a cluster share: its barrier (PTX ISA §9.7.13.3). The first CTA keeps it.

use crate::clock::Clock;
use crate::finding::{Fault, FindingKind, Outcome};
use crate::regs::LANES;

use super::cta::Cta;
use super::warp::Warp;

/// The barrier of a cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterBarrier {
    /// Threads that have arrived in the current phase.
    arrived: u32,
    /// Phases that are complete.
    phase: u32,
    filling: Clock,
    done: Clock,
}

impl Cta<'_> {
    /// Threads of the cluster that have not exited.
    fn cluster_threads(&self) -> u32 {
        self.live_threads + self.peers.iter().flatten().map(|p| p.live_threads).sum::<u32>()
    }

    /// Ends the phase of the cluster's barrier if everybody has come.
    pub(super) fn complete_cluster(&mut self) {
        let threads = self.cluster_threads();
        let barrier = &mut self.at_rank(0).cluster;
        if barrier.arrived == 0 || barrier.arrived < threads {
            return;
        }
        barrier.phase += 1;
        barrier.arrived = 0;
        barrier.done = std::mem::take(&mut barrier.filling);
        self.changed = true;
        self.progress += 1;
        for peer in self.peers.iter_mut().flatten() {
            (peer.changed, peer.progress) = (true, peer.progress + 1);
        }
    }

    /// How many phases of the cluster's barrier are complete.
    pub(super) fn cluster_phases(&mut self) -> u32 {
        self.at_rank(0).cluster.phase
    }

    /// How many phases of the cluster's barrier are complete, and what was released into the last.
    pub(super) fn cluster_phase(&mut self) -> (u32, Clock) {
        let barrier = &self.at_rank(0).cluster;
        (barrier.phase, barrier.done.clone())
    }

    /// Threads that have come to the cluster's barrier, and how many must.
    pub(super) fn cluster_progress(&self) -> (u32, u32) {
        let first = if self.rank == 0 { Some(self) } else { self.peers.first().and_then(|p| p.as_deref()) };
        (first.map_or(0, |f| f.cluster.arrived), self.cluster_threads())
    }
}

impl Warp {
    /// `barrier.cluster.arrive`.
    pub(super) fn arrive_cluster(&mut self, releases: bool, active: u32, cta: &mut Cta<'_>) -> Outcome {
        cta.counters.barriers += 1;
        let phase = cta.cluster_phases();
        if let Some(lane) =
            (0..LANES).find(|&lane| active >> lane & 1 == 1 && self.cluster_arrived[lane].is_some())
        {
            let detail = "a second arrival at the cluster's barrier without a wait between";
            let mut fault = Fault::new(FindingKind::BadOperand).saying(detail);
            fault.lane = Some(lane);
            return Err(fault);
        }
        super::access::lanes(active).for_each(|lane| self.cluster_arrived[lane] = Some(phase));
        // One that is relaxed hands on what a fence has released before.
        let clock = if releases { Some(self.release_clock(active)) } else { self.clock.flushed(true) };
        let barrier = &mut cta.at_rank(0).cluster;
        barrier.arrived += active.count_ones();
        if let Some(clock) = clock {
            barrier.filling.join(&clock);
        }
        if active == self.live {
            self.sync_lanes();
        } else {
            self.now += 1;
        }
        cta.progress += 1;
        cta.complete_cluster();
        Ok(())
    }

    /// `barrier.cluster.wait`: false if the lanes must wait on.
    pub(super) fn wait_cluster(&mut self, acquires: bool, active: u32, cta: &mut Cta<'_>) -> Outcome<bool> {
        let (phase, done) = cta.cluster_phase();
        for lane in super::access::lanes(active) {
            match self.cluster_arrived[lane] {
                None => {
                    let detail = "a wait for the cluster's barrier without an arrival before";
                    let mut fault = Fault::new(FindingKind::BadOperand).saying(detail);
                    fault.lane = Some(lane);
                    return Err(fault);
                }
                Some(arrived) if arrived >= phase => return Ok(false),
                Some(_) => {}
            }
        }
        super::access::lanes(active).for_each(|lane| self.cluster_arrived[lane] = None);
        if acquires {
            self.clock.join(&done);
        }
        Ok(true)
    }
}
