//! A CTA: what its warps share.

use std::collections::BTreeMap;

use crate::clock::Agents;
use crate::config::Schedule;
use crate::counters::Counters;
use crate::finding::{Fault, Finding, FindingKind, Outcome};
use crate::launch::Launch;
use crate::op::{Inst, Pc};
use crate::regs::LANES;
use crate::shared::{Shared, Who};

use super::barrier::{BARRIERS, BarrierState, Release};
use super::bulk::{BulkGroups, BulkLoad};
use super::call;
use super::mbarrier::Mbarrier;
use super::registers::Pool;
use super::warp::{Frame, Warp};

/// What the warps of a CTA share.
pub(crate) struct Cta<'c> {
    pub(crate) launch: &'c Launch<'c>,
    /// Linear index in the grid.
    pub(crate) id: u64,
    pub(crate) index: [u32; 3],
    pub(super) shared: Shared,
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
    pub(super) live_warps: usize,
    pub(super) counters: Counters,
    /// Warp instructions executed.
    pub(super) executed: u64,
    /// Whether a fence was executed, and whether an atomic followed it.
    pub(super) fenced: bool,
    pub(super) synchronized: bool,
    /// A read of shared memory that nobody had written, unless its writer turns out to come later.
    pub(super) deferred: Option<Box<Finding>>,
    random: u64,
}

impl<'c> Cta<'c> {
    pub(crate) fn new(launch: &'c Launch<'c>, id: u64) -> Self {
        let [x, y, _] = launch.config.grid.map(u64::from);
        let index = [(id % x) as u32, (id / x % y) as u32, (id / (x * y)) as u32];
        let seed = match launch.config.schedule {
            Schedule::Deterministic => 0,
            Schedule::Seeded(seed) => seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63,
        };
        Cta {
            launch,
            id,
            index,
            shared: Shared::new(launch.shared_bytes, launch.shared_granule, launch.config.checks),
            barriers: vec![BarrierState::default(); BARRIERS],
            releases: Vec::new(),
            mbarriers: BTreeMap::new(),
            loads: Vec::new(),
            bulk_groups: BTreeMap::new(),
            registers: Pool::new(launch.warps()),
            changed: false,
            agents: Agents::new(launch.warps()),
            progress: 1,
            progress_at_timeout: 0,
            live_warps: launch.warps(),
            counters: Counters::new(launch),
            executed: 0,
            fenced: false,
            synchronized: false,
            deferred: None,
            random: seed,
        }
    }

    pub(super) fn warp(&self, index: u32) -> Warp {
        let threads = self.launch.threads() - index * LANES as u32;
        let lanes = if threads >= 32 { u32::MAX } else { (1 << threads) - 1 };
        let program = self.launch.entry_program;
        let local_bytes = self.launch.program(program).local_bytes;
        let mut warp = Warp::new(index, lanes, call::empty_frame(program, &Default::default()), local_bytes);
        let base = warp.local.base(0);
        warp.frames[0] = Some(self.frame(program, index, base));
        warp
    }

    /// A frame of a function, its constants in place.
    pub(super) fn frame(&self, program_index: usize, warp: u32, local_base: u64) -> Frame {
        let program = self.launch.program(program_index);
        let mut frame = call::empty_frame(program_index, program);
        self.launch.fill_constants(program, &mut frame.regs, self.index, warp, local_base);
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

    /// Notes a read of shared memory. One that nobody has written is reported at the end: if another warp writes there
    /// before any barrier, the fault is the missing barrier.
    pub(super) fn note_read(
        &mut self,
        offset: u64,
        bytes: u32,
        who: &Who<'_>,
        by: (u32, (usize, Pc)),
    ) -> Outcome {
        match self.shared.note_read(offset, bytes, who) {
            Err(fault) if fault.kind == FindingKind::Uninitialized && self.live_warps > 1 => {
                if self.deferred.is_none() && self.launch.config.checks.shared_races {
                    self.deferred = Some(self.finding(*fault, by.0, by.1));
                    return Ok(());
                }
                if self.deferred.is_some() { Ok(()) } else { Err(fault) }
            }
            outcome => outcome,
        }
    }

    /// The finding that ends the CTA.
    pub(super) fn blame(&mut self, fault: Fault, warp: &Warp) -> Box<Finding> {
        let finding = self.finding(fault, warp.index, warp.at);
        match self.deferred.take() {
            Some(first) if finding.kind != FindingKind::SharedRace || finding.address != first.address => {
                first
            }
            _ => finding,
        }
    }

    pub(super) fn finding(&self, fault: Fault, warp: u32, at: (usize, Pc)) -> Box<Finding> {
        let launch = self.launch;
        let line = launch.line(at);
        Box::new(Finding {
            kind: fault.kind,
            kernel: launch.entry_name.to_owned(),
            line,
            instruction: launch.module.text_line(line).to_owned(),
            source: launch.source(at),
            cta: self.index,
            warp,
            lane: fault.lane.map(|lane| lane as u32),
            address: fault.address,
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
