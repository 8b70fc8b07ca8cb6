//! Mbarriers (PTX ISA §9.7.13.15): eight opaque bytes of shared memory with a phase, the arrivals that it lacks, and the bytes
//! that asynchronous copies have yet to bring. A phase ends when both are zero, and the next begins at once. An arrival
//! releases what its thread has seen into the phase; a wait that finds the phase complete takes it over.
//!
//! A wait for a phase that is not complete suspends its lanes. It may fail at any time (§9.7.13.15.16), so it fails once at each
//! place, at random under a seed, and when nothing else can go on: a program that forgets to try again is found.

use crate::clock::{Agent, AgentOf, Clock};
use crate::finding::{Fault, FindingKind, Outcome};
use crate::mark::Who;
use crate::op::{MbarrierAction, MbarrierOp, Op, PhaseOperand, Proxy, Space};
use crate::window;

use super::access::{addresses, check_alignment, lanes};
use super::bulk::Issued;
use super::cta::Cta;
use super::warp::{Wait, Warp};

/// The most arrivals, and the most bytes, that a phase can lack (PTX ISA §9.7.13.15.1).
pub(super) const LIMIT: u32 = (1 << 20) - 1;

/// One mbarrier.
#[derive(Debug)]
pub(super) struct Mbarrier {
    valid: bool,
    /// Arrivals that a phase takes.
    pub(super) count: u32,
    /// Arrivals that the current phase lacks.
    pub(super) pending: u32,
    /// Bytes that it lacks; negative where they came before they were expected.
    pub(super) bytes: i64,
    /// Phases that are complete.
    pub(super) phase: u32,
    pub(super) agent: Agent,
    /// Phases completed since the memory was first an mbarrier, as the agent's time.
    pub(super) time: u32,
    /// What was released into the current phase, and into those before it.
    filling: Clock,
    done: Clock,
    /// Warp and line of every arrival, each once.
    pub(super) sites: Vec<(u32, u32)>,
    initialized_by: u32,
    /// The lanes of that warp that initialised it.
    initialized_lanes: u32,
    /// Whether the async proxy knows of the initialisation.
    pub(super) fenced: bool,
    /// The phase of the cluster's barrier whose end makes the initialisation known, by `fence.mbarrier_init`.
    published: Option<u32>,
    /// Where bytes were last expected.
    expected: Option<Issued>,
    /// The newest bulk copy of a phase that nobody has waited for.
    pub(super) unwaited: Option<Issued>,
}

impl Mbarrier {
    /// Bytes of the current phase have come at that time of the model of time.
    pub(super) fn filled_at(&mut self, when: u64) {
        self.filling.when = self.filling.when.max(when);
    }

    /// Whether this very thread of the mbarrier's CTA initialised it.
    pub(super) fn is_initialized_by(&self, warp: u32, lane: usize) -> bool {
        self.initialized_by == warp && self.initialized_lanes >> lane & 1 == 1
    }

    /// Ends the phase if nothing is missing; true if it did.
    fn settle(&mut self) -> bool {
        if self.pending != 0 || self.bytes != 0 {
            return false;
        }
        (self.phase, self.time) = (self.phase + 1, self.time + 1);
        self.pending = self.count;
        self.done.join(&std::mem::take(&mut self.filling));
        self.done.see(self.agent, self.time);
        true
    }
}

/// The shared address of an operand.
pub(super) fn shared_address(space: Space, address: u64) -> u64 {
    match space {
        Space::Generic if window::holds(window::SHARED_WINDOW, address) => {
            window::anyones(address) - window::SHARED_WINDOW
        }
        // No shared address is that large: it is found to be out of bounds.
        Space::Generic => u64::MAX - 15,
        _ => address,
    }
}

fn misuse(lane: usize, address: u64, detail: &'static str) -> Box<Fault> {
    Fault::at(FindingKind::Mbarrier, lane, address).saying(detail)
}

impl Cta<'_> {
    /// The valid mbarrier at an offset.
    pub(super) fn mbarrier(&mut self, offset: u64, lane: usize, address: u64) -> Outcome<&mut Mbarrier> {
        let found = self.mbarriers.get_mut(&offset).filter(|m| m.valid);
        found.ok_or_else(|| misuse(lane, address, "there is no initialised mbarrier at this address"))
    }

    /// Bytes of the current phase have come, or `expected` more are to come.
    pub(super) fn transact(&mut self, offset: u64, change: i64, lane: usize, address: u64) -> Outcome {
        self.progress += 1;
        let mbarrier = self.mbarrier(offset, lane, address)?;
        mbarrier.bytes += change;
        if mbarrier.bytes.unsigned_abs() > LIMIT.into() {
            return Err(misuse(lane, address, "more bytes are pending than a phase can count"));
        }
        if mbarrier.settle() {
            self.changed = true;
        }
        Ok(())
    }

    /// Arrivals of one thread, with what it has seen.
    pub(super) fn arrive_at(
        &mut self,
        at: (u64, usize, u64),
        count: u32,
        site: (u32, u32),
        clock: &Clock,
    ) -> Outcome {
        let (offset, lane, address) = at;
        let mbarrier = self.mbarrier(offset, lane, address)?;
        if count == 0 || count > LIMIT {
            return Err(Fault::at(FindingKind::BadOperand, lane, count.into()));
        }
        if count > mbarrier.pending {
            return Err(misuse(lane, address, "more arrivals than the phase lacks"));
        }
        mbarrier.pending -= count;
        mbarrier.filling.join(clock);
        if !mbarrier.sites.contains(&site) {
            mbarrier.sites.push(site);
        }
        if mbarrier.settle() {
            self.changed = true;
        }
        Ok(())
    }

    /// Where bytes were expected that have not come.
    pub(super) fn missing_bytes(&self) -> Option<Issued> {
        self.mbarriers.values().filter(|m| m.valid && m.bytes > 0).find_map(|m| m.expected)
    }

    /// The async proxy knows of the mbarriers that the warp has initialised.
    pub(super) fn fence_mbarriers(&mut self, warp: u32) {
        self.mbarriers.values_mut().filter(|m| m.initialized_by == warp).for_each(|m| m.fenced = true);
    }

    /// `fence.mbarrier_init`: releases the initialisations alone, to whoever waits for the cluster's barrier, even a relaxed one.
    pub(super) fn publish_mbarriers(&mut self, warp: u32, arrived: bool) {
        self.fence_mbarriers(warp);
        let next = self.cluster_phases() + u32::from(arrived);
        let own = self.mbarriers.values_mut().filter(|m| m.initialized_by == warp);
        own.for_each(|m| m.published = m.published.or(Some(next)));
    }

    /// The fault of using an mbarrier whose initialisation is not ordered before; `waits` is of a lane that has arrived at
    /// the cluster's barrier.
    pub(super) fn check_mbarrier(&mut self, rank: u32, offset: u64, waits: bool, who: &Who<'_>) -> Outcome {
        let phase = self.cluster_phases();
        let target = self.at_rank(rank);
        match target.mbarriers.get(&offset) {
            Some(m) if waits || m.published.is_none_or(|published| published >= phase) => {
                target.shared.check_mbarrier(offset, who)
            }
            _ => Ok(()),
        }
    }
}

impl Warp {
    /// A fence between the generic and other proxies.
    pub(super) fn fence_proxy(&mut self, proxies: &[Proxy], active: u32, cta: &mut Cta<'_>) {
        let released = self.release_clock(active);
        proxies.iter().for_each(|proxy| match proxy {
            Proxy::TensorMap => self.clock.acquire_tensor_maps(),
            _ => self.clock.fence(*proxy, &released),
        });
        // What these lanes write from here on needs another fence.
        self.now += 1;
        if proxies.contains(&Proxy::AsyncShared) {
            cta.fence_mbarriers(self.index);
        }
    }

    /// Everything but waits.
    pub(super) fn mbarrier(
        &mut self,
        op: &MbarrierOp,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let list = addresses(&self.frame(frame)?.regs, &op.addr);
        for lane in lanes(active) {
            let address = shared_address(op.space, list[lane]);
            let rank = cta.rank_of(Space::Cluster, lane, &mut { address })?;
            let address = window::in_cta(address);
            let Some(offset) = self.mbarrier_offset(op, lane, (rank, address), cta)? else { continue };
            let regs = &self.frame(frame)?.regs;
            let word = |slot: u32| regs.word[slot as usize][lane];
            match &op.action {
                MbarrierAction::Init { count } => {
                    let count = word(*count);
                    self.init_mbarrier(offset, count, (lane, address), cta)?;
                }
                MbarrierAction::Invalidate => {
                    cta.mbarrier(offset, lane, address)?.valid = false;
                    cta.shared.note_mbarrier(offset, false, false, &self.who(lane, None, cta))?;
                }
                MbarrierAction::Arrive { count, bytes, state, drops, keeps_open, releases } => {
                    let (count, bytes) = (count.map_or(1, word), bytes.map(word));
                    let before = cta.at_rank(rank).mbarrier(offset, lane, address)?;
                    let before = u64::from(before.pending) << 32 | u64::from(before.phase);
                    if let Some(bytes) = bytes {
                        self.expect(offset, bytes, (lane, address), cta.at_rank(rank))?;
                    }
                    let site = (self.index, cta.launch.line(self.at));
                    let clock =
                        if *releases { self.release_clock(1 << lane) } else { self.clock.nothing_seen() };
                    let mbarrier = cta.at_rank(rank).mbarrier(offset, lane, address)?;
                    if *keeps_open && count >= mbarrier.pending {
                        return Err(misuse(
                            lane,
                            address,
                            "the arrival would end the phase, which it must not",
                        ));
                    }
                    if *drops {
                        // Of the phases that follow; the current one counts the arrivals themselves.
                        mbarrier.count = mbarrier.count.saturating_sub(count);
                    }
                    cta.at_rank(rank).arrive_at((offset, lane, address), count, site, &clock)?;
                    if let Some(reg) = state {
                        self.frame(frame)?.regs.set_bits(reg.bank, reg.slot, lane, before);
                    }
                }
                MbarrierAction::ExpectTx(bytes) => {
                    let bytes = word(*bytes);
                    self.expect(offset, bytes, (lane, address), cta.at_rank(rank))?;
                }
                MbarrierAction::CompleteTx(bytes) => {
                    let change = -i64::from(word(*bytes));
                    cta.at_rank(rank).transact(offset, change, lane, address)?;
                }
                // A wait is executed by `wait_mbarrier`.
                MbarrierAction::Wait { .. } => {}
            }
        }
        if matches!(op.action, MbarrierAction::Arrive { .. }) {
            // What these lanes do from here on is not released by the arrival.
            self.now += 1;
        }
        Ok(())
    }

    /// Where the mbarrier lies, its initialisation known to this thread.
    fn mbarrier_offset(
        &self,
        op: &MbarrierOp,
        lane: usize,
        (rank, address): (u32, u64),
        cta: &mut Cta<'_>,
    ) -> Outcome<Option<u64>> {
        check_alignment(cta, lane, address, 8)?;
        let who = self.who(lane, None, cta);
        let Some(offset) = cta.at_rank(rank).shared.offset(lane, address, 8)? else { return Ok(None) };
        if !matches!(op.action, MbarrierAction::Init { .. }) {
            cta.check_mbarrier(rank, offset, self.cluster_arrived[lane].is_some(), &who)?;
        }
        Ok(Some(offset))
    }

    fn expect(&self, offset: u64, bytes: u32, (lane, address): (usize, u64), cta: &mut Cta<'_>) -> Outcome {
        if bytes > LIMIT {
            return Err(Fault::at(FindingKind::BadOperand, lane, bytes.into()));
        }
        let mbarrier = cta.mbarrier(offset, lane, address)?;
        mbarrier.expected = Some(Issued { time: mbarrier.time + 1, warp: self.index, at: self.place() });
        cta.transact(offset, bytes.into(), lane, address)
    }

    fn init_mbarrier(
        &self,
        offset: u64,
        count: u32,
        (lane, address): (usize, u64),
        cta: &mut Cta<'_>,
    ) -> Outcome {
        if count == 0 || count > LIMIT {
            return Err(Fault::at(FindingKind::BadOperand, lane, count.into()));
        }
        let (mut time, mut repeats, mut lanes) = (0, false, 1 << lane);
        if let Some(old) = cta.mbarriers.get(&offset) {
            let is_new = old.phase == 0 && old.pending == count && old.count == count && old.bytes == 0;
            time = old.time;
            if old.valid {
                let fault = misuse(lane, address, "the mbarrier is initialised and still valid");
                // Triton does so to mbarriers that nobody has used, and NVIDIA's examples in all threads at once.
                let again = "it is initialised once more, alike and before its use";
                let fault = if is_new { fault.warning(again) } else { fault };
                repeats = is_new;
                lanes |= if is_new && old.initialized_by == self.index { old.initialized_lanes } else { 0 };
                cta.tolerate(Err(fault), (self.index, self.place()))?;
            }
        }
        let who = self.who(lane, None, cta);
        cta.shared.note_mbarrier(offset, true, repeats, &who)?;
        let agent = cta.agents.number(AgentOf::Mbarrier(offset));
        let new = Mbarrier {
            valid: true,
            count,
            pending: count,
            bytes: 0,
            phase: 0,
            agent,
            time,
            filling: Clock::default(),
            done: Clock::default(),
            sites: Vec::new(),
            initialized_by: self.index,
            initialized_lanes: lanes,
            fenced: false,
            published: None,
            expected: None,
            unwaited: None,
        };
        cta.mbarriers.insert(offset, new);
        Ok(())
    }

    /// `test_wait` and `try_wait`: false if the lanes are suspended.
    pub(super) fn wait_mbarrier(
        &mut self,
        op: &MbarrierOp,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome<bool> {
        let complete = self.complete_lanes(op, frame, active, cta)?;
        let fails = complete != active
            && (self.failed_waits.insert(self.at) || cta.is_random() && cta.random() >> 32 & 3 == 0);
        if complete == active || fails {
            self.end_wait(op, frame, active, complete, cta)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// The lanes whose phase is complete.
    fn complete_lanes(
        &mut self,
        op: &MbarrierOp,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome<u32> {
        let MbarrierAction::Wait { phase, .. } = op.action else { return Ok(active) };
        let list = addresses(&self.frame(frame)?.regs, &op.addr);
        let mut complete = 0;
        for lane in lanes(active) {
            let address = shared_address(op.space, list[lane]);
            let address = window::in_cta(address);
            let Some(offset) = self.mbarrier_offset(op, lane, (cta.rank, address), cta)? else { continue };
            let current = cta.mbarrier(offset, lane, address)?.phase;
            let regs = &self.frame(frame)?.regs;
            let is_complete = match phase {
                // The phase before the first one counts as complete.
                PhaseOperand::Parity(slot) => match regs.word[slot as usize][lane] {
                    // Triton's warp-specialised loops have parities of one bit, signed: -1 is odd.
                    parity @ (0 | 1 | u32::MAX) => current & 1 != parity & 1,
                    other => return Err(Fault::at(FindingKind::BadOperand, lane, other.into())),
                },
                PhaseOperand::State(slot) => {
                    // Above the phase stands what it lacked.
                    let state = regs.double[slot as usize][lane] & u64::from(u32::MAX);
                    if state != u64::from(current) && state.checked_add(1) != Some(current.into()) {
                        let detail = "the state is of neither the current phase nor the one before it";
                        return Err(misuse(lane, address, detail));
                    }
                    state != u64::from(current)
                }
            };
            complete |= u32::from(is_complete) << lane;
        }
        Ok(complete)
    }

    fn end_wait(
        &mut self,
        op: &MbarrierOp,
        frame: usize,
        active: u32,
        complete: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let MbarrierAction::Wait { result, acquires, .. } = op.action else { return Ok(()) };
        let list = addresses(&self.frame(frame)?.regs, &op.addr);
        for lane in lanes(complete) {
            let address = window::in_cta(shared_address(op.space, list[lane]));
            if let Some(offset) = cta.shared.offset(lane, address, 8)? {
                let mbarrier = cta.mbarrier(offset, lane, address)?;
                mbarrier.unwaited = mbarrier.unwaited.filter(|u| u.time > mbarrier.time);
                if acquires {
                    self.clock.join(&mbarrier.done);
                }
            }
        }
        cta.counters.mbarrier_waits += u64::from(complete != 0);
        self.frame(frame)?.regs.set_pred(result, active, complete);
        Ok(())
    }

    /// Lets waits go on for which there is what they wait for, and those for mbarriers when their time is over. True if any
    /// does.
    pub(super) fn retry_waits(&mut self, time_over: bool, cta: &mut Cta<'_>) -> Outcome<bool> {
        let mut any = false;
        let mut at = 0;
        while at < self.paths.len() {
            let path = self.paths[at].clone();
            at += 1;
            if !matches!(path.wait, Wait::Mbarrier | Wait::Registers | Wait::Cluster) {
                continue;
            }
            let program = self.frame(path.frame)?.program;
            let inst = &cta.launch.program(program).insts[path.pc as usize];
            (self.at, self.at_frame) = ((program, path.pc), path.frame);
            let goes_on = match &inst.op {
                Op::Mbarrier(op) => {
                    let active = self.guarded(inst, path.frame, path.mask)?;
                    let complete = self.complete_lanes(op, path.frame, active, cta)?;
                    let ends = complete == active || time_over;
                    if ends {
                        self.end_wait(op, path.frame, active, complete, cta)?;
                    }
                    ends
                }
                Op::SetRegisters { increase, count } => cta.set_registers(self, *increase, *count)?,
                Op::ClusterWait { acquires } => {
                    let active = self.guarded(inst, path.frame, path.mask)?;
                    self.wait_cluster(*acquires, active, cta)?
                }
                _ => false,
            };
            if goes_on {
                let all = path.wait == Wait::Registers;
                self.release(|p| (p.frame, p.pc) == (path.frame, path.pc) && (all || p.mask == path.mask));
                (any, at) = (true, 0);
            }
        }
        Ok(any)
    }
}
