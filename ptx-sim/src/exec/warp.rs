//! A warp: its frames, and the paths that its lanes are on. Lanes that part at a branch are paths of their own until they
//! meet at the branch's post-dominator; paths run in any order, and an instruction that needs several lanes together waits
//! until they have come.

use std::collections::HashSet;

use crate::clock::{Agent, Clock};
use crate::finding::{Fault, FindingKind, Outcome};
use crate::fixed;
use crate::lane_order::LaneOrder;
use crate::op::{EXIT, Inst, MbarrierAction, NO_PREDICATE, Op, Pc};
use crate::regs::{LANES, Regs};
use crate::time::{Moved, WarpTime};

use super::copy::CopyQueue;
use super::cta::Cta;
use super::join::{Join, JoinId};
use super::local::LocalMemory;
use super::spin::Watch;
use super::tracking::{Groups, Tracked};
use super::undefined::{Origin, Shade};

/// What a path waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing: it can run.
    Ready,
    /// These lanes at the same instruction.
    Lanes(u32),
    /// Every lane that has not exited, at the same instruction.
    Whole,
    /// The CTA's barrier.
    Barrier,
    /// The end of an mbarrier's phase, or of the time that a wait takes.
    Mbarrier,
    /// Registers of the CTA's pool.
    Registers,
    /// The other warps of the warpgroup.
    Warpgroup,
    /// A change of memory, for which it spins.
    Memory,
    /// The barrier of the cluster.
    Cluster,
}

impl Wait {
    /// Whether something outside the warp must happen.
    pub(super) fn is_outside(self) -> bool {
        !matches!(self, Wait::Ready | Wait::Lanes(_) | Wait::Whole)
    }
}

/// Lanes that execute together.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) pc: Pc,
    pub(super) mask: u32,
    pub(super) frame: usize,
    /// Where the path ends and joins others.
    pub(super) rejoin: Pc,
    pub(super) join: JoinId,
    pub(super) wait: Wait,
}

/// One activation of a function.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) program: usize,
    pub(super) regs: Regs,
    /// The parameter area of each lane, one after the other.
    pub(super) params: Vec<u8>,
    /// The undefined bits of its registers and parameters, if there are any.
    pub(super) shade: Option<Box<Shade>>,
    /// The state of each word register, in a function with `wgmma`.
    pub(super) tracked: Vec<Tracked>,
    /// Where the call goes back to: the caller's frame, instruction, meeting point and join.
    pub(super) caller: Option<(usize, Pc, Pc, JoinId)>,
    /// In a function that stands in no file of the user's, the call of it where he wrote one.
    pub(super) called_at: Option<(usize, Pc)>,
}

/// Why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Every lane has exited.
    Exited,
    /// It waits for other warps or for what runs on its own.
    Waits,
    /// Its time slice is over.
    Slice,
}

/// Instructions after which another path of the warp has its turn.
const PATH_TURN: u64 = 1 << 12;

/// A warp.
#[derive(Debug)]
pub(super) struct Warp {
    pub(super) index: u32,
    /// Its number among all warps of the cluster.
    pub(super) agent: Agent,
    /// Lanes that exist: fewer than 32 in the last warp of an odd block.
    pub(super) lanes: u32,
    /// Lanes that have not exited.
    pub(super) live: u32,
    pub(super) paths: Vec<Path>,
    pub(super) joins: Vec<Option<Join>>,
    pub(super) frames: Vec<Option<Frame>>,
    pub(super) local: LocalMemory,
    pub(super) copies: CopyQueue,
    /// The vector clock: what this warp has seen of every other agent.
    pub(super) clock: Clock,
    /// Its own time, and its time when all of its lanes were last in order with each other.
    pub(super) now: u32,
    pub(super) synced: u32,
    /// Its time when some lanes last met in a shuffle, a vote or the like, and which.
    pub(super) met: (u32, u32),
    /// The order among its lanes beyond the clock, once a barrier names some of them only.
    pub(super) order: Option<Box<LaneOrder>>,
    /// Its groups of `wgmma`.
    pub(super) wgmma: Groups,
    /// Waits for an mbarrier that have failed once (function and instruction), as they may at any time.
    pub(super) failed_waits: HashSet<(usize, Pc)>,
    /// Instruction that is executed, for findings.
    pub(super) at: (usize, Pc),
    /// Its frame, whose callers say where the user wrote it.
    pub(super) at_frame: usize,
    /// The allocation that was accessed last.
    pub(super) hint: usize,
    pub(super) watch: Watch,
    /// For each lane, the phase of the cluster's barrier at which it has arrived and not yet waited.
    pub(super) cluster_arrived: [Option<u32>; LANES],
    /// When another path has its turn.
    turn_ends: u64,
    /// The undefined bytes of what was read last, and where they come from.
    pub(super) dark: (u32, Option<Origin>),
    /// Lanes that went on from a meeting point while others waited for them elsewhere, and one of them that has exited so.
    pub(super) passed: u32,
    pub(super) missed: Option<usize>,
    /// How far it is in the model of time, where there is one.
    pub(super) time: Option<Box<WarpTime>>,
}

impl Warp {
    pub(super) fn new(index: u32, agent: Agent, lanes: u32, frame: Frame, local_bytes: u32) -> Self {
        let mut local = LocalMemory::default();
        local.push(0, local_bytes);
        let path = Path { pc: 0, mask: lanes, frame: 0, rejoin: EXIT, join: None, wait: Wait::Ready };
        Warp {
            index,
            agent,
            lanes,
            live: lanes,
            paths: vec![path],
            joins: Vec::new(),
            frames: vec![Some(frame)],
            local,
            copies: CopyQueue::default(),
            clock: Clock::default(),
            now: 1,
            synced: 1,
            met: (0, 0),
            order: None,
            wgmma: Groups::default(),
            failed_waits: HashSet::new(),
            at: (0, 0),
            at_frame: 0,
            hint: 0,
            watch: Watch::default(),
            cluster_arrived: [None; LANES],
            turn_ends: 0,
            dark: (0, None),
            passed: 0,
            missed: None,
            time: None,
        }
    }

    /// Where the user wrote what is executed: of the calls that lead to it, the innermost in the file of the entry.
    pub(super) fn place(&self) -> (usize, Pc) {
        self.place_in(self.at_frame, self.at)
    }

    /// The same of an instruction in a frame.
    pub(super) fn place_in(&self, frame: usize, at: (usize, Pc)) -> (usize, Pc) {
        self.frames.get(frame).and_then(Option::as_ref).and_then(|f| f.called_at).unwrap_or(at)
    }

    /// The calls that led to a frame, from the inside out. Of a library's function, those that led to its call.
    pub(super) fn calls(&self, mut frame: usize) -> Vec<(usize, Pc)> {
        let mut list = Vec::new();
        while let Some(own) = self.frames.get(frame).and_then(Option::as_ref)
            && let Some((caller, pc, ..)) = own.caller
            && list.len() < 64
        {
            if let Some(program) = self.frames[caller].as_ref().map(|f| f.program)
                && own.called_at.is_none()
            {
                list.push((program, pc));
            }
            frame = caller;
        }
        list
    }

    /// What others see who are told by these lanes: all that the warp has seen, and what the lanes did.
    pub(super) fn release_clock(&self, active: u32) -> Clock {
        let mut clock = self.clock.clone();
        let own = self.agent;
        // Lanes that a barrier of some has ordered are not told apart here, which may miss a race but invents none.
        if self.live & !active == 0 || self.order.is_some() {
            clock.see(own, self.now);
        } else {
            clock.see(own, self.synced - 1);
            clock.see_part(own, self.now, active);
        }
        clock
    }

    /// What the warp does from here on comes after what all of its lanes have done.
    pub(super) fn sync_lanes(&mut self) {
        self.now += 1;
        self.synced = self.now;
        self.order = None;
    }

    /// Lanes have met in a shuffle, a vote or the like.
    pub(super) fn meet(&mut self, lanes: u32) {
        self.now += 1;
        self.met = (self.now, lanes);
    }

    /// The frame of that index, which is live as long as a path is in it.
    pub(super) fn frame(&mut self, index: usize) -> Outcome<&mut Frame> {
        self.frames[index].as_mut().ok_or_else(|| Fault::new(FindingKind::BadTarget))
    }

    /// Runs until every lane waits or has exited, or `slice` instructions are over.
    pub(super) fn run(&mut self, cta: &mut Cta<'_>, slice: u64) -> Outcome<Stop> {
        cta.turn_ends = cta.executed.saturating_add(slice);
        loop {
            let Some(at) = self.paths.iter().rposition(|p| p.wait == Wait::Ready) else {
                if self.paths.is_empty() {
                    return Ok(Stop::Exited);
                }
                if self.resume_together(cta)? {
                    continue;
                }
                return Ok(Stop::Waits);
            };
            if cta.executed >= self.turn_ends {
                // Paths take turns, so that one that waits for another in a loop does not wait for ever.
                let path = self.paths.remove(at);
                self.paths.insert(0, path);
                self.turn_ends = cta.executed + PATH_TURN;
                continue;
            }
            self.run_path(at, cta)?;
            if cta.executed >= cta.turn_ends {
                return Ok(Stop::Slice);
            }
        }
    }

    /// Runs one path until it waits, parts, joins or ends. Paths may have moved in the list when this returns.
    fn run_path(&mut self, at: usize, cta: &mut Cta<'_>) -> Outcome {
        let Path { mut pc, mask, frame, rejoin, .. } = self.paths[at];
        let program_index = self.frame(frame)?.program;
        let program = cta.launch.program(program_index);
        let coverage = cta.launch.config.coverage;
        while pc != rejoin && pc != EXIT {
            let inst = &program.insts[pc as usize];
            (self.at, self.at_frame) = ((program_index, pc), frame);
            let active = self.guarded(inst, frame, mask)?;
            cta.count(program_index, pc, inst, active)?;
            if coverage && inst.guard.is_some() {
                cta.counters.guarded((program_index, pc), mask, active);
            }
            if active != 0 && !program.touches.is_empty() && cta.launch.config.checks.async_copies {
                self.track(program, inst, pc, frame)?;
            }
            if self.frames[frame].as_ref().is_some_and(|f| f.shade.is_some()) {
                self.paths[at].pc = pc;
                self.shade((program, pc), frame, (mask, active), cta)?;
            }
            if coverage
                && inst.chooses
                && let Some((slots, order)) = fixed::orders(&inst.op)
            {
                let [less, larger] = order.lanes(&self.frame(frame)?.regs, &slots);
                cta.counters.chosen((program_index, pc), less & active, larger & active);
            }
            let before = self.time.is_some().then(|| Moved::so_far(&cta.counters));
            if active != 0 && !self.lane_wise(inst, frame, active)? {
                self.paths[at].pc = pc;
                let goes_on = self.step(at, inst, active, cta)?;
                before.into_iter().for_each(|before| self.pass_time((program_index, pc), before, cta));
                if !goes_on {
                    return Ok(());
                }
            } else if let Some(before) = before {
                self.pass_time((program_index, pc), before, cta);
            }
            if coverage && inst.decides != [NO_PREDICATE; 2] {
                let predicates = &self.frame(frame)?.regs.pred;
                cta.counters.decided((program_index, pc), inst.decides, predicates, active);
            }
            pc += 1;
            if cta.executed >= cta.turn_ends {
                break;
            }
        }
        self.paths[at].pc = pc;
        if pc == rejoin || pc == EXIT {
            self.end_path(at, cta)?;
        }
        Ok(())
    }

    /// The time of an instruction, in the model of time.
    fn pass_time(&mut self, (program, pc): (usize, Pc), before: Moved, cta: &Cta<'_>) {
        if let (Some(time), Some(timer)) = (&mut self.time, &cta.launch.config.timer) {
            let moved = (before, Moved::so_far(&cta.counters));
            timer.step(time, (program, cta.launch.program(program), pc), moved, self.clock.when);
            self.clock.when = self.clock.when.max(time.now());
        }
    }

    /// Executes what touches nothing but registers; false if it is something else.
    #[inline]
    fn lane_wise(&mut self, inst: &Inst, frame: usize, active: u32) -> Outcome<bool> {
        let Some(frame) = &mut self.frames[frame] else { return Err(Fault::new(FindingKind::BadTarget)) };
        let regs = &mut frame.regs;
        match &inst.op {
            Op::Int(op, s) => op.execute(regs, active, s),
            Op::Float(op, s) => op.execute(regs, active, s),
            Op::Half(op, s) => op.execute(regs, active, s),
            Op::Compare(op, s) => op.execute(regs, active, s),
            Op::Convert(op, s) => op.execute(regs, active, s),
            Op::Rare(op, s) => op.execute(regs, active, s),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Executes any other instruction; false if the path no longer goes on to the next one.
    fn step(&mut self, at: usize, inst: &Inst, active: u32, cta: &mut Cta<'_>) -> Outcome<bool> {
        let Path { pc, mask, frame, .. } = self.paths[at];
        match &inst.op {
            Op::Branch { target, reconverge } => {
                if active == mask {
                    self.paths[at].pc = *target;
                    if *target <= pc {
                        self.looped(at, cta);
                    }
                } else {
                    self.part(at, *reconverge, &[(pc + 1, mask & !active), (*target, active)], cta);
                }
                Ok(false)
            }
            Op::BranchTable { index, targets, reconverge } => {
                self.branch_table(at, *index, targets, *reconverge, active, cta)?;
                Ok(false)
            }
            Op::Call(call) => {
                let mut caller = at;
                if active != mask {
                    self.part(at, pc + 1, &[(pc + 1, mask & !active), (pc, active)], cta);
                    caller = self.paths.len() - 1;
                }
                self.call(caller, call, cta)?;
                Ok(false)
            }
            Op::Return if self.frame(frame)?.caller.is_some() => {
                if active == mask {
                    self.paths[at].pc = EXIT;
                    self.end_path(at, cta)?;
                } else {
                    self.part(at, EXIT, &[(pc + 1, mask & !active), (EXIT, active)], cta);
                }
                Ok(false)
            }
            Op::Return | Op::Exit => {
                // Only this path holds the lanes, so if some stay it stays where it is in the list.
                self.paths[at].pc = pc + 1;
                self.exit(active);
                Ok(false)
            }
            Op::Trap => Err(Fault::new(FindingKind::Trap)),
            Op::ClusterWait { acquires } => {
                let goes_on = self.wait_cluster(*acquires, active, cta)?;
                if !goes_on {
                    self.paths[at].wait = Wait::Cluster;
                }
                Ok(goes_on)
            }
            Op::Mbarrier(op) if matches!(op.action, MbarrierAction::Wait { .. }) => {
                let goes_on = self.wait_mbarrier(op, frame, active, cta)?;
                if !goes_on {
                    self.paths[at].wait = Wait::Mbarrier;
                }
                Ok(goes_on)
            }
            _ => match self.needs(inst, frame, active)? {
                Wait::Ready if let Op::SetRegisters { increase, count } = inst.op => {
                    let goes_on = cta.set_registers(self, increase, count)?;
                    if !goes_on {
                        self.paths[at].wait = Wait::Registers;
                    }
                    Ok(goes_on)
                }
                Wait::Ready => self.together(inst, frame, active, cta).map(|()| true),
                // The others go on, and may come to another barrier.
                Wait::Barrier if active != mask && !is_aligned(&inst.op) => {
                    self.part(at, pc + 1, &[(pc, active), (pc + 1, mask & !active)], cta);
                    Ok(false)
                }
                wait => {
                    self.paths[at].wait = wait;
                    if let Wait::Lanes(_) = wait {
                        self.part_by_mask(at, inst, active)?;
                    }
                    Ok(false)
                }
            },
        }
    }

    /// Whether an instruction can run with these lanes, or what it waits for.
    fn needs(&mut self, inst: &Inst, frame: usize, active: u32) -> Outcome<Wait> {
        let members = match &inst.op {
            Op::Shuffle(op) => op.members,
            Op::Collective(op) => op.members,
            Op::WarpBarrier(members) => *members,
            Op::WmmaLoad(_)
            | Op::WmmaStore(_)
            | Op::WmmaMma(_)
            | Op::Mma(_)
            | Op::LoadMatrix(_)
            | Op::StoreMatrix(_)
            | Op::SetRegisters { .. }
            | Op::WgmmaFence
            | Op::WgmmaCommit
            | Op::WgmmaWait(_)
            | Op::MoveMatrix { .. } => {
                return Ok(if active == self.lanes { Wait::Ready } else { Wait::Whole });
            }
            Op::Wgmma(_) => return Ok(if active == self.lanes { Wait::Warpgroup } else { Wait::Whole }),
            Op::Barrier(_) => return Ok(Wait::Barrier),
            _ => return Ok(Wait::Ready),
        };
        let live = self.live;
        let values = &self.frame(frame)?.regs.word[members as usize];
        let mut lanes = super::access::lanes(active);
        // Lanes may name different masks: half and quarter warps at one instruction.
        let complete = lanes.all(|lane| values[lane] & live & !active == 0);
        let first = values[active.trailing_zeros() as usize % LANES];
        Ok(if complete { Wait::Ready } else { Wait::Lanes(first & live) })
    }
}

/// Whether an instruction is a barrier to which a warp's lanes come together.
fn is_aligned(op: &Op) -> bool {
    matches!(op, Op::Barrier(barrier) if barrier.aligned)
}
