//! A CTA: what its warps share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;

use crate::clock::Agents;
use crate::config::Schedule;
use crate::counters::Counters;
use crate::finding::{Fault, Finding, FindingKind, Outcome, Severity, SourceLine};
use crate::launch::Launch;
use crate::mark::Who;
use crate::op::{Inst, Pc, Space};
use crate::regs::LANES;
use crate::shared::{Clash, Shared};
use crate::sync::Flags;
use crate::window;

use super::barrier::{BARRIERS, BarrierState, Release};
use super::bulk::BulkLoad;
use super::bulk_store::BulkGroups;
use super::call;
use super::clocks::Clocks;
use super::cluster::ClusterBarrier;
use super::mbarrier::Mbarrier;
use super::registers::Pool;
use super::shape::Shapes;
use super::undefined::{Origin, Shade};
use super::warp::{Frame, Warp};

/// Warnings that a launch keeps.
pub(crate) const MOST_WARNINGS: usize = 16;

/// What the warps of a CTA share.
pub(crate) struct Cta<'c> {
    pub(crate) launch: &'c Launch<'c>,
    /// Linear index in the grid.
    pub(crate) id: u64,
    pub(crate) index: [u32; 3],
    /// Generic addresses of its shared memory.
    pub(super) shared_window: u64,
    /// Its cluster, by number, and its rank in it.
    pub(crate) group: u32,
    pub(crate) rank: u32,
    /// The other CTAs of the cluster by rank; none at the own place.
    pub(super) peers: Vec<Option<Box<Cta<'c>>>>,
    pub(super) cluster: ClusterBarrier,
    /// What was released at which shared address.
    pub(crate) flags: Flags,
    /// Findings that do not end the launch.
    pub(super) warnings: Vec<Finding>,
    pub(super) shared: Shared,
    /// Where the undefined bytes in it come from, by word.
    pub(super) origins: HashMap<u64, Origin>,
    /// The patterns of its instructions' addresses.
    pub(super) shapes: Shapes,
    pub(super) barriers: Vec<BarrierState>,
    pub(super) releases: Vec<Release>,
    /// By offset in shared memory; those that are no longer valid stay.
    pub(super) mbarriers: BTreeMap<u64, Mbarrier>,
    /// Bulk copies to shared memory that have not landed.
    pub(super) loads: Vec<BulkLoad>,
    /// By warp and lane.
    pub(super) bulk_groups: BTreeMap<(u32, usize), BulkGroups>,
    pub(super) registers: Pool,
    /// Whether a phase has ended, or the pool has changed, since the waiting warps were last looked at.
    pub(super) changed: bool,
    pub(super) agents: Agents,
    /// Counts what other warps could notice, and how far it was when waits last ran out of time.
    pub(super) progress: u64,
    pub(super) progress_at_timeout: u64,
    /// How much of it were arrivals at barriers, which are no news for those who wait for memory to change.
    pub(super) arrivals: u64,
    /// The warps that were found to repeat themselves from barrier to barrier, with the progress but for arrivals then.
    pub(super) repeating: (u64, u32),
    pub(super) live_warps: usize,
    pub(super) counters: Counters,
    /// Warp instructions executed.
    pub(super) executed: u64,
    /// The time that kernels read.
    pub(super) clocks: Clocks,
    /// Whether a warp has waited in a loop for memory to change.
    pub(super) has_spun: bool,
    /// Whether every warp has exited: its shared memory is gone.
    pub(super) ended: bool,
    /// Threads that have not exited.
    pub(super) live_threads: u32,
    /// A read of shared memory that nobody had written, unless its writer turns out to come later.
    pub(super) deferred: Option<Box<Finding>>,
    random: u64,
    /// When the running warp's turn is over, in instructions of the CTA.
    pub(super) turn_ends: u64,
    /// Whether a warp has released something at a flag, and a number for the turns from then on.
    pub(super) talks: bool,
    pub(super) turns: u64,
    /// Whether others beyond the CTA were told something in this turn, and have theirs.
    pub(super) yields: bool,
}

impl<'c> Cta<'c> {
    pub(crate) fn new(launch: &'c Launch<'c>, id: u64) -> Self {
        let index = launch.index_of(id);
        let (group, rank) = launch.group_of(id);
        let seed = match launch.config.schedule {
            Schedule::Deterministic => 0,
            Schedule::Seeded(seed) => seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63,
        };
        Cta {
            launch,
            id,
            index,
            shared_window: launch.shared_window(index),
            group,
            rank,
            peers: Vec::new(),
            cluster: ClusterBarrier::default(),
            flags: Flags::default(),
            warnings: Vec::new(),
            shared: Shared::new(
                launch.shared_bytes,
                launch.shared_granule,
                launch.config.checks,
                launch.uses_reserved(),
            ),
            origins: HashMap::new(),
            shapes: Shapes::default(),
            barriers: vec![BarrierState::default(); BARRIERS],
            releases: Vec::new(),
            mbarriers: BTreeMap::new(),
            loads: Vec::new(),
            bulk_groups: BTreeMap::new(),
            registers: Pool::new(launch.warps()),
            changed: false,
            agents: Agents::new(launch.warps(), rank as usize, launch.cluster_ctas() as usize),
            progress: 1,
            progress_at_timeout: 0,
            arrivals: 0,
            repeating: (0, 0),
            live_warps: launch.warps(),
            counters: Counters::new(launch),
            executed: 0,
            clocks: Clocks::default(),
            has_spun: false,
            ended: false,
            live_threads: launch.threads(),
            deferred: None,
            random: seed,
            talks: false,
            turns: 0,
            turn_ends: 0,
            yields: false,
        }
    }

    pub(super) fn warp(&self, index: u32) -> Warp {
        let threads = self.launch.threads() - index * LANES as u32;
        let lanes = if threads >= 32 { u32::MAX } else { (1 << threads) - 1 };
        let program = self.launch.entry_program;
        let local_bytes = self.launch.program(program).local_bytes;
        let mut warp = Warp::new(
            index,
            self.agents.warp(index),
            lanes,
            call::empty_frame(program, &Default::default()),
            local_bytes,
        );
        let base = warp.local.base(0);
        warp.frames[0] = Some(self.frame(program, index, base));
        warp
    }

    /// A frame of a function, its constants in place.
    pub(super) fn frame(&self, program_index: usize, warp: u32, local_base: u64) -> Frame {
        let program = self.launch.program(program_index);
        let mut frame = call::empty_frame(program_index, program);
        self.launch.fill_constants(program, &mut frame.regs, self.index, warp, local_base);
        let is_defined = program.undefined.is_empty() && program.unset.is_empty();
        if self.launch.config.checks.initialized && !is_defined {
            frame.shade = Some(Box::new(Shade::at_entry(program_index, program, &frame)));
        }
        frame
    }

    /// Counts an instruction; the budget is a finding.
    #[inline]
    pub(super) fn count(&mut self, program: usize, pc: Pc, inst: &Inst, active: u32) -> Outcome {
        if inst.continues {
            return Ok(());
        }
        self.executed += 1;
        self.counters.count(program, pc, active);
        if self.executed > self.launch.config.instruction_budget {
            return Err(Fault::new(FindingKind::Budget));
        }
        Ok(())
    }

    pub(super) fn is_random(&self) -> bool {
        self.random != 0
    }

    /// The next random number of a seeded schedule.
    pub(super) fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// True at random under a seed, never without one.
    pub(super) fn random_bit(&mut self) -> bool {
        self.is_random() && self.random() >> 32 & 1 == 1
    }

    /// Says which bytes of a range of shared memory hold what nobody defined, and why.
    #[inline]
    pub(super) fn shade_shared(&mut self, offset: u64, bytes: u32, (mask, origin): (u32, Option<Origin>)) {
        self.shared.shade(offset, bytes, mask);
        if mask == 0 {
            return;
        }
        let words =
            (0..u64::from(bytes)).filter(|byte| mask >> byte & 1 == 1).map(|byte| (offset + byte) / 4);
        self.origins
            .extend(words.zip(std::iter::repeat(origin)).filter_map(|(word, from)| Some((word, from?))));
    }

    /// Where what is undefined at an address of the own shared memory comes from, where it was copied there.
    pub(super) fn origin_at(&self, address: u64) -> Option<Origin> {
        let is_own = window::rank(address).is_none_or(|rank| rank == self.rank);
        let offset = window::in_cta(address).checked_sub(window::SHARED_BASE)?;
        self.origins.get(&(offset / 4)).copied().filter(|_| is_own)
    }

    /// The CTA of that rank in the cluster; the own one if there is no such.
    pub(super) fn at_rank(&mut self, rank: u32) -> &mut Cta<'c> {
        if rank == self.rank || !matches!(self.peers.get(rank as usize), Some(Some(_))) {
            return self;
        }
        match &mut self.peers[rank as usize] {
            Some(peer) => peer,
            None => unreachable!("looked at above"),
        }
    }

    /// The rank of the CTA whose shared memory an address names.
    pub(super) fn rank_of(&self, space: Space, lane: usize, address: &mut u64) -> Outcome<u32> {
        let Some(rank) = window::rank(*address) else { return Ok(self.rank) };
        if rank == self.rank {
            return Ok(rank);
        }
        match self.peers.get(rank as usize) {
            Some(Some(peer)) if space == Space::Cluster => {
                if peer.ended {
                    let detail = "the CTA whose shared memory this is has exited";
                    return Err(Fault::at(FindingKind::UseAfterFree, lane, *address).saying(detail));
                }
                Ok(rank)
            }
            _ if self.launch.config.checks.bounds => Err(Fault::at(FindingKind::OutOfBounds, lane, *address)),
            _ => Ok(self.rank),
        }
    }

    /// Others may have waited for a change of memory.
    pub(super) fn changed_memory(&mut self, shared: bool) {
        self.progress += 1;
        if !shared && self.launch.in_turns {
            self.launch.memory.changes.fetch_add(1, Relaxed);
        }
        if shared {
            self.peers.iter_mut().flatten().for_each(|peer| peer.progress += 1);
        }
    }

    /// Keeps a warning and goes on.
    pub(super) fn tolerate(&mut self, outcome: Outcome, by: (u32, (usize, Pc))) -> Outcome {
        match outcome {
            Err(fault) if fault.severity == Severity::Warning => {
                let warning = self.finding(*fault, by.0, by.1);
                let known = |w: &Finding| (w.kind, w.line) == (warning.kind, warning.line);
                if self.warnings.len() < MOST_WARNINGS && !self.warnings.iter().any(known) {
                    self.warnings.push(*warning);
                }
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Notes a read of shared memory. One that nobody has written is reported at the end: if another warp writes there
    /// before any barrier, the fault is the missing barrier.
    pub(super) fn note_read(
        &mut self,
        rank: u32,
        offset: u64,
        bytes: u32,
        who: &Who<'_>,
        by: (u32, (usize, Pc)),
    ) -> Outcome {
        let unwritten = match self.at_rank(rank).shared.note_read(offset, bytes, who) {
            Ok(0) => return self.check_clash((rank, offset, bytes), by.1),
            Ok(unwritten) => unwritten,
            Err(fault) => return self.tolerate(Err(fault), by),
        };
        let address = offset + u64::from(unwritten.trailing_zeros()) + window::SHARED_BASE;
        let fault = Fault::at(FindingKind::Uninitialized, who.lane, address);
        if self.live_warps <= 1 {
            return Err(fault);
        }
        if self.deferred.is_none() && self.launch.config.checks.shared_races {
            self.deferred = Some(self.finding(*fault, by.0, by.1));
            return Ok(());
        }
        if self.deferred.is_some() { Ok(()) } else { Err(fault) }
    }

    /// The fault of a read by what follows no undefined bytes (an atomic operation, a bulk copy, `wgmma`), of a place to which lanes
    /// of one warp wrote different values.
    fn check_clash(&mut self, (rank, offset, bytes): (u32, u64, u32), at: (usize, Pc)) -> Outcome {
        let cta = self.at_rank(rank);
        let dark = cta.shared.dark(offset, bytes);
        let origin = cta.origins.get(&((offset + u64::from(dark.trailing_zeros())) / 4)).copied();
        let Some(origin) = origin.filter(|_| dark != 0) else { return Ok(()) };
        match origin.clashes_with {
            Some(_) => Err(origin.fault("what is done", self.launch.line(at))),
            None => Ok(()),
        }
    }

    /// Notes a store to the own shared memory, which may leave it undefined.
    pub(super) fn note_store(
        &mut self,
        offset: u64,
        bytes: u32,
        words: &crate::memory::Words,
        who: &Who<'_>,
        by: (u32, (usize, Pc)),
    ) -> Outcome<Clash> {
        let mut clash = Clash::default();
        let noted = self.shared.note_store(offset, bytes, words, who, &mut clash);
        self.tolerate(noted, by)?;
        Ok(clash)
    }

    /// Notes a write to shared memory.
    pub(super) fn note_write(
        &mut self,
        rank: u32,
        offset: u64,
        bytes: u32,
        words: &crate::memory::Words,
        who: &Who<'_>,
        by: (u32, (usize, Pc)),
    ) -> Outcome {
        let noted = self.at_rank(rank).shared.note_write(offset, bytes, words, who);
        self.tolerate(noted, by)
    }

    /// The finding that ends the CTA.
    pub(super) fn blame(&mut self, fault: Fault, warp: &Warp) -> Box<Finding> {
        let moved = fault.at.is_some();
        let mut finding = self.finding(fault, warp.index, warp.at);
        if !moved {
            finding.source = self.source_with_calls(warp, warp.at_frame, warp.at);
        }
        match self.deferred.take() {
            // A missing barrier is why nobody had written yet.
            Some(first) if !matches!(finding.kind, FindingKind::SharedRace | FindingKind::GlobalRace) => {
                first
            }
            _ => finding,
        }
    }

    /// The source line of what a frame executes, with those of the calls that led there.
    pub(super) fn source_with_calls(&self, warp: &Warp, frame: usize, at: (usize, Pc)) -> Option<SourceLine> {
        let mut source = self.launch.source(warp.place_in(frame, at))?;
        let calls = warp.calls(frame).into_iter().filter_map(|at| self.launch.source(at));
        let own = calls.filter(|call| call.file == source.file);
        source.called_at.extend(own.flat_map(|call| [vec![call.line], call.called_at].concat()));
        Some(source)
    }

    pub(super) fn finding(&self, fault: Fault, warp: u32, at: (usize, Pc)) -> Box<Finding> {
        let launch = self.launch;
        let at = fault.at.unwrap_or(at);
        let line = launch.line(at);
        Box::new(Finding {
            kind: fault.kind,
            severity: fault.severity,
            kernel: launch.entry_name.to_owned(),
            line,
            instruction: launch.module.text_line(line).to_owned(),
            source: launch.source(at),
            cta: self.index,
            warp,
            lane: fault.lane.map(|lane| lane as u32),
            address: fault.address,
            other_source: fault.other.as_ref().and_then(|o| launch.source_of_line(o.line?)),
            other: fault.other,
            detail: fault.detail,
            blocked: Vec::new(),
            seed: match launch.config.schedule {
                Schedule::Deterministic => None,
                Schedule::Seeded(seed) => Some(seed),
            },
        })
    }
}
