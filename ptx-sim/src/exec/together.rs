//! Instructions that need lanes of several paths, and paths that wait for one another.

use crate::finding::{Fault, FindingKind, Outcome};
use crate::op::{Inst, Op, Pc, Space};

use super::cta::Cta;
use super::warp::{Wait, Warp};
use super::wgmma::agent_of;

impl Warp {
    /// Nothing is ready: lets waiting paths at one instruction run it together. False if only the CTA's barrier can help.
    pub(super) fn resume_together(&mut self, cta: &mut Cta<'_>) -> Outcome<bool> {
        if self.retry_waits(false, cta)? {
            return Ok(true);
        }
        let mut seen: Vec<(usize, Pc)> = Vec::new();
        for at in 0..self.paths.len() {
            let (frame, pc, wait) = (self.paths[at].frame, self.paths[at].pc, self.paths[at].wait);
            if wait.is_outside() || seen.contains(&(frame, pc)) {
                continue;
            }
            seen.push((frame, pc));
            let lanes = self.lanes_at(frame, pc);
            let complete = match wait {
                Wait::Lanes(needed) => needed & self.live & !lanes == 0,
                _ => lanes == self.lanes,
            };
            if complete && self.waits_outside(frame, pc, cta)? {
                return Ok(false);
            }
            if complete {
                self.run_waiting(frame, pc, cta)?;
                return Ok(true);
            }
        }
        // Lanes that wait for something outside the warp may still come to where others wait for them.
        if self.paths.iter().any(|p| p.wait.is_outside() && p.wait != Wait::Barrier) {
            return Ok(false);
        }
        match self.paths.iter().find(|p| p.wait != Wait::Barrier) {
            None => self.at_barrier(cta),
            Some(path) => {
                let (frame, pc, wait) = (path.frame, path.pc, path.wait);
                self.at = (self.frame(frame)?.program, pc);
                let inst = &cta.launch.program(self.at.0).insts[pc as usize];
                let alone = !matches!(inst.op, Op::Wgmma(_) | Op::SetRegisters { .. });
                if cta.launch.config.checks.convergence || !alone {
                    let missing = match wait {
                        Wait::Lanes(needed) => needed & !self.lanes_at(frame, pc),
                        _ => self.lanes & !self.lanes_at(frame, pc),
                    };
                    let mut fault = Fault::new(FindingKind::DivergedWarp);
                    fault.lane = Some(missing.trailing_zeros() as usize);
                    return Err(fault);
                }
                self.run_waiting(frame, pc, cta)?;
                Ok(true)
            }
        }
    }

    /// All lanes are at an instruction for which they then wait for others: true if it is one.
    fn waits_outside(&mut self, frame: usize, pc: Pc, cta: &mut Cta<'_>) -> Outcome<bool> {
        let program = self.frame(frame)?.program;
        let wait = match &cta.launch.program(program).insts[pc as usize].op {
            Op::Wgmma(_) => Wait::Warpgroup,
            Op::SetRegisters { .. } => {
                cta.changed = true;
                Wait::Registers
            }
            _ => return Ok(false),
        };
        self.paths.iter_mut().for_each(|p| p.wait = wait);
        Ok(true)
    }

    /// Lanes that wait at an instruction.
    fn lanes_at(&self, frame: usize, pc: Pc) -> u32 {
        let waiting = |p: &&super::warp::Path| p.frame == frame && p.pc == pc && p.wait != Wait::Ready;
        self.paths.iter().filter(waiting).fold(0, |lanes, p| lanes | p.mask)
    }

    /// Later accesses of these lanes come after everything that they did before.
    fn order_lanes(&mut self, active: u32) {
        if self.live & !active != 0 && self.order.get_or_insert_default().join(active) {
            return;
        }
        // The whole warp, or so many barriers that they are no longer told apart.
        self.sync_lanes();
    }

    /// Runs an instruction with all lanes that wait at it, and lets them go on.
    fn run_waiting(&mut self, frame: usize, pc: Pc, cta: &mut Cta<'_>) -> Outcome {
        let program_index = self.frame(frame)?.program;
        let inst = &cta.launch.program(program_index).insts[pc as usize];
        self.at = (program_index, pc);
        let active = self.guarded(inst, frame, self.lanes_at(frame, pc))?;
        self.together(inst, frame, active, cta)?;
        self.release(|p| p.frame == frame && p.pc == pc);
        Ok(())
    }

    /// Lets waiting paths go on to their next instruction; paths with the same future become one.
    pub(super) fn release(&mut self, which: impl Fn(&super::warp::Path) -> bool) {
        for path in self.paths.iter_mut().filter(|p| p.wait != Wait::Ready) {
            if which(path) {
                path.pc += 1;
                path.wait = Wait::Ready;
            }
        }
        let mut at = 0;
        while at < self.paths.len() {
            let path = self.paths[at].clone();
            let twin = self.paths[..at].iter_mut().find(|p| {
                (p.frame, p.pc, p.join, p.rejoin, p.wait)
                    == (path.frame, path.pc, path.join, path.rejoin, path.wait)
            });
            match twin {
                Some(twin) => {
                    twin.mask |= path.mask;
                    self.paths.swap_remove(at);
                }
                None => at += 1,
            }
        }
    }

    /// Every path waits at a barrier: tells the CTA, once they are all at the same one.
    fn at_barrier(&mut self, cta: &mut Cta<'_>) -> Outcome<bool> {
        let first = self.paths[0].clone();
        let program = self.frame(first.frame)?.program;
        self.at = (program, first.pc);
        let launch = cta.launch;
        let Op::Barrier(barrier) = &launch.program(program).insts[first.pc as usize].op else {
            return Err(Fault::new(FindingKind::BadTarget));
        };
        let together = self.paths.iter().all(|p| (p.frame, p.pc) == (first.frame, first.pc));
        let guarded =
            self.guarded(&launch.program(program).insts[first.pc as usize], first.frame, self.live)?;
        // Lanes that wait where paths meet have gone around the barrier.
        let missing = self.live & !(guarded & self.paths.iter().fold(0, |lanes, p| lanes | p.mask));
        if cta.launch.config.checks.convergence && (barrier.aligned && !together || missing != 0) {
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

    /// The lanes for which an instruction's guard holds.
    pub(super) fn guarded(&mut self, inst: &Inst, frame: usize, lanes: u32) -> Outcome<u32> {
        Ok(match inst.guard {
            None => lanes,
            Some(guard) => {
                let bits = self.frame(frame)?.regs.pred[guard.slot as usize];
                lanes & if guard.negated { !bits } else { bits }
            }
        })
    }

    /// Executes an instruction that is more than lane-wise, with the lanes that it needs.
    pub(super) fn together(&mut self, inst: &Inst, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        if changes_state(&inst.op) {
            cta.progress += 1;
        }
        match &inst.op {
            Op::Load(access) => self.load(access, frame, active, cta),
            Op::Store(access) => self.store(access, frame, active, cta),
            Op::Atomic(atomic) => self.atomic(atomic, frame, active, cta),
            Op::CopyAsync(copy) => self.copy_async(copy, frame, active, cta),
            Op::CommitGroup => {
                self.copies.commit(active);
                Ok(())
            }
            Op::WaitGroup(keep) => self.wait_group(*keep, active, cta),
            Op::LoadMatrix(matrix) => self.load_matrix(matrix, frame, active, cta),
            Op::StoreMatrix(matrix) => self.store_matrix(matrix, frame, active, cta),
            Op::Mma(mma) => {
                cta.counters.tensor_flops += 2 * 16 * 8 * u64::from(mma.k);
                super::mma::execute(mma, &mut self.frame(frame)?.regs, active);
                Ok(())
            }
            Op::WmmaLoad(access) => self.wmma_load(access, frame, active, cta),
            Op::WmmaStore(access) => self.wmma_store(access, frame, active, cta),
            Op::WmmaMma(mma) => {
                cta.counters.tensor_flops += 2 * mma.shape.iter().product::<usize>() as u64;
                super::wmma::execute(mma, &mut self.frame(frame)?.regs, active);
                Ok(())
            }
            Op::Shuffle(shuffle) => {
                let checked = cta.launch.config.checks.shuffles;
                super::collective::shuffle(shuffle, &mut self.frame(frame)?.regs, active, checked)
            }
            Op::Collective(collective) => {
                let checked = cta.launch.config.checks.shuffles;
                super::collective::execute(collective, &mut self.frame(frame)?.regs, active, checked)
            }
            Op::WarpBarrier(members) => {
                let checked = cta.launch.config.checks.shuffles;
                super::collective::check_members(&self.frame(frame)?.regs, *members, active, checked)?;
                self.order_lanes(active);
                Ok(())
            }
            Op::ActiveMask(result) => {
                self.frame(frame)?.regs.set_word(*result, active, &[active; 32]);
                Ok(())
            }
            Op::MoveMatrix { result, value } => {
                super::matrix::transpose(&mut self.frame(frame)?.regs, *result, *value, active);
                Ok(())
            }
            Op::Timer(timer, result) => {
                super::scalar::timer(*timer, *result, &mut self.frame(frame)?.regs, active, cta.executed);
                Ok(())
            }
            Op::Fence => {
                cta.fenced = true;
                Ok(())
            }
            Op::Mbarrier(op) => self.mbarrier(op, frame, active, cta),
            Op::Bulk(op) => self.bulk(op, frame, active, cta),
            Op::CommitBulk => {
                self.commit_bulk(active, cta);
                Ok(())
            }
            Op::WaitBulk { keep, read } => {
                self.wait_bulk(*keep, *read, active, cta);
                Ok(())
            }
            Op::WgmmaFence => {
                self.wgmma.fence();
                Ok(())
            }
            Op::WgmmaCommit => {
                self.wgmma.commit();
                Ok(())
            }
            Op::WgmmaWait(keep) => {
                let completed = self.wgmma.wait(*keep);
                self.clock.see(cta.agents.number(agent_of(self.index)), completed);
                Ok(())
            }
            Op::CopyArrive(op) => self.copy_arrive(op, frame, active, cta),
            Op::MbarrierFence => {
                cta.fence_mbarriers(self.index);
                Ok(())
            }
            Op::ProxyFence => {
                self.fence_proxy(active, cta);
                Ok(())
            }
            Op::Nothing => Ok(()),
            op => super::scalar::execute(op, &mut self.frame(frame)?.regs, active),
        }
    }
}

/// Whether others can notice that the instruction was executed: where nobody executes one, waiting on is in vain.
fn changes_state(op: &Op) -> bool {
    match op {
        Op::Store(access) => matches!(access.space, Space::Generic | Space::Global | Space::Shared),
        Op::Mbarrier(_)
        | Op::Bulk(_)
        | Op::CopyArrive(_)
        | Op::Atomic(_)
        | Op::CopyAsync(_)
        | Op::StoreMatrix(_)
        | Op::WmmaStore(_) => true,
        _ => false,
    }
}
