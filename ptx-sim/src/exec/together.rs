//! Instructions that need lanes of several paths, and paths that wait for one another.

use crate::finding::{Fault, FindingKind, Outcome};
use crate::op::{Collective, CollectiveOp, Inst, Op, Pc, Proxy, Reg, Shuffle, ShuffleMode, Space};
use crate::regs::{Bank, LANES, Regs};

use super::cta::Cta;
use super::warp::{Wait, Warp};
use super::wgmma::agent_of;

/// What lanes must agree on to execute an instruction of a mask together, wherever in the program they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shuffle(ShuffleMode),
    Collective(CollectiveOp),
    Barrier,
}

impl Warp {
    /// Nothing is ready: lets waiting paths run together what they wait at. False if only something outside can help.
    pub(super) fn resume_together(&mut self, cta: &mut Cta<'_>) -> Outcome<bool> {
        if self.retry_waits(false, cta)? {
            return Ok(true);
        }
        for at in 0..self.paths.len() {
            match self.paths[at].wait {
                Wait::Lanes(_) => {
                    if let Some(paths) = self.complete_group(at, cta)? {
                        self.run_group(&paths, cta)?;
                        return Ok(true);
                    }
                }
                Wait::Whole => {
                    let (frame, pc) = (self.paths[at].frame, self.paths[at].pc);
                    if self.lanes_at(frame, pc) == self.lanes {
                        if self.waits_outside(frame, pc, cta)? {
                            return Ok(false);
                        }
                        self.run_waiting(frame, pc, cta)?;
                        return Ok(true);
                    }
                }
                _ => {}
            }
        }
        // Lanes that wait for something outside the warp may still come to where others wait for them.
        if self.paths.iter().any(|p| p.wait.is_outside() && p.wait != Wait::Barrier) {
            return Ok(false);
        }
        if self.end_finished(cta) {
            return Ok(true);
        }
        let checked = cta.launch.config.checks.convergence;
        if self.missed.is_none() && self.paths.iter().any(|p| matches!(p.wait, Wait::Lanes(_))) {
            // Lanes at a meeting point may be on their way to the same instruction at another place.
            let released = self.release_joins();
            self.passed |= released;
            if released != 0 {
                return Ok(true);
            }
        }
        match self.paths.iter().find(|p| p.wait != Wait::Barrier) {
            None => self.at_barrier(cta),
            Some(path) => {
                let (frame, pc, wait) = (path.frame, path.pc, path.wait);
                (self.at, self.at_frame) = ((self.frame(frame)?.program, pc), frame);
                let inst = &cta.launch.program(self.at.0).insts[pc as usize];
                let alone = !matches!(inst.op, Op::Wgmma(_) | Op::SetRegisters { .. });
                if checked || !alone {
                    let missing = match wait {
                        Wait::Lanes(needed) => needed & !self.lanes_at(frame, pc),
                        _ => self.lanes & !self.lanes_at(frame, pc),
                    };
                    let mut fault = Fault::new(FindingKind::DivergedWarp);
                    fault.lane = Some(self.missed.unwrap_or(missing.trailing_zeros() as usize));
                    return Err(fault);
                }
                self.run_waiting(frame, pc, cta)?;
                Ok(true)
            }
        }
    }

    /// The waiting paths that make up the members of the mask that a path names, once all of them have come.
    fn complete_group(&mut self, at: usize, cta: &Cta<'_>) -> Outcome<Option<Vec<usize>>> {
        let Some((kind, members)) = self.waits_for(at, cta)? else { return Ok(None) };
        let (mut group, mut lanes) = (Vec::new(), 0);
        for other in 0..self.paths.len() {
            if matches!(self.paths[other].wait, Wait::Lanes(_))
                && self.waits_for(other, cta)? == Some((kind, members))
            {
                group.push(other);
                lanes |= self.paths[other].mask;
            }
        }
        if members & self.live & !lanes != 0 {
            return Ok(None);
        }
        if let (Some(_), true) = (self.missed, cta.launch.config.checks.convergence) {
            // A member has gone around the instruction and exited.
            return Ok(None);
        }
        Ok(Some(group))
    }

    /// What kind of instruction a path waits at, and the mask that it names.
    fn waits_for(&mut self, at: usize, cta: &Cta<'_>) -> Outcome<Option<(Kind, u32)>> {
        let (frame, pc, mask) = (self.paths[at].frame, self.paths[at].pc, self.paths[at].mask);
        let frame = self.frame(frame)?;
        let (kind, members) = match &cta.launch.program(frame.program).insts[pc as usize].op {
            Op::Shuffle(op) => (Kind::Shuffle(op.mode), op.members),
            Op::Collective(op) => (Kind::Collective(op.op), op.members),
            Op::WarpBarrier(members) => (Kind::Barrier, *members),
            _ => return Ok(None),
        };
        Ok(Some((kind, frame.regs.word[members as usize][mask.trailing_zeros() as usize % LANES])))
    }

    /// Runs an instruction that its members have come to, be it at one place or at several.
    fn run_group(&mut self, paths: &[usize], cta: &mut Cta<'_>) -> Outcome {
        self.passed = 0;
        let place = |p: &super::warp::Path| (p.frame, p.pc);
        let (frame, pc) = place(&self.paths[paths[0]]);
        let lanes = paths.iter().fold(0, |lanes, p| lanes | self.paths[*p].mask);
        (self.at, self.at_frame) = ((self.frame(frame)?.program, pc), frame);
        if paths.iter().all(|p| place(&self.paths[*p]) == (frame, pc)) {
            let inst = &cta.launch.program(self.at.0).insts[pc as usize];
            let active = self.guarded(inst, frame, lanes)?;
            self.together(inst, frame, active, cta)?;
        } else {
            self.run_apart(paths, lanes, cta)?;
        }
        for path in paths {
            self.paths[*path].pc += 1;
            self.paths[*path].wait = Wait::Ready;
        }
        self.merge();
        Ok(())
    }

    /// Runs an instruction whose members are at different places: their operands are brought together, the results taken
    /// back.
    fn run_apart(&mut self, paths: &[usize], lanes: u32, cta: &mut Cta<'_>) -> Outcome {
        let checked = cta.launch.config.checks.shuffles;
        let mut regs = Regs::new(6, 2, 3);
        let mut ops = Vec::new();
        for path in paths {
            let (frame, pc, mask) = (self.paths[*path].frame, self.paths[*path].pc, self.paths[*path].mask);
            let program = self.frame(frame)?.program;
            let op = &cta.launch.program(program).insts[pc as usize].op;
            let own = &self.frame(frame)?.regs;
            let word =
                |regs: &mut Regs, to: u32, from: u32| regs.set_word(to, mask, &own.word[from as usize]);
            match op {
                Op::Shuffle(op) => {
                    let from = [op.value, op.lane, op.clamp, op.members];
                    from.into_iter().zip(0..).for_each(|(from, to)| word(&mut regs, to, from));
                }
                Op::Collective(op) => {
                    word(&mut regs, 3, op.members);
                    for lane in super::access::lanes(mask) {
                        let value = own.bits(op.value.bank, op.value.slot, lane) ^ u64::from(op.negated);
                        regs.set_bits(op.value.bank, 0, lane, value);
                    }
                }
                _ => {}
            }
            ops.push((frame, mask, op));
        }
        match ops[0].2 {
            Op::Shuffle(op) => {
                let gathered = Shuffle {
                    mode: op.mode,
                    result: 4,
                    in_range: Some(1),
                    value: 0,
                    lane: 1,
                    clamp: 2,
                    members: 3,
                };
                super::collective::shuffle(&gathered, &mut regs, lanes, checked)?;
            }
            Op::Collective(op) => {
                let result = Some(Reg { bank: Bank::Word, slot: 4, bits: 32 });
                let value = Reg { slot: 0, ..op.value };
                let gathered =
                    Collective { op: op.op, result, pred: Some(1), value, negated: false, members: 3 };
                super::collective::execute(&gathered, &mut regs, lanes, checked)?;
            }
            _ => self.order_lanes(lanes),
        }
        self.meet(lanes);
        for (frame, mask, op) in ops {
            let own = &mut self.frame(frame)?.regs;
            let (result, pred) = match op {
                Op::Shuffle(op) => (Some(op.result), op.in_range),
                Op::Collective(op) => (op.result.map(|r| r.slot), op.pred),
                _ => (None, None),
            };
            if let Some(slot) = result {
                own.set_word(slot, mask, &regs.word[4]);
            }
            if let Some(slot) = pred {
                own.set_pred(slot, mask, regs.pred[1]);
            }
        }
        Ok(())
    }

    /// Lanes that name different masks, and lanes that do not take part, become paths of their own.
    pub(super) fn part_by_mask(&mut self, at: usize, inst: &Inst, active: u32) -> Outcome {
        let members = match &inst.op {
            Op::Shuffle(op) => op.members,
            Op::Collective(op) => op.members,
            Op::WarpBarrier(members) => *members,
            _ => return Ok(()),
        };
        let path = self.paths[at].clone();
        let live = self.live;
        let regs = &self.frame(path.frame)?.regs;
        let groups: Vec<u32> = super::collective::by_mask(regs, members, active).collect();
        if groups.len() == 1 && active == path.mask {
            return Ok(());
        }
        let values = regs.word[members as usize];
        self.paths.remove(at);
        if active != path.mask {
            let mask = path.mask & !active;
            self.paths.push(super::warp::Path { pc: path.pc + 1, mask, wait: Wait::Ready, ..path.clone() });
        }
        for mask in groups {
            let wait = Wait::Lanes(values[mask.trailing_zeros() as usize % LANES] & live);
            self.paths.push(super::warp::Path { mask, wait, ..path.clone() });
        }
        Ok(())
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
        (self.at, self.at_frame) = ((program_index, pc), frame);
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
        self.merge();
    }

    /// Paths with the same future become one.
    fn merge(&mut self) {
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
            Op::StoreBulk(op) => self.store_bulk(op, frame, active, cta),
            Op::LoadMatrix(matrix) => self.load_matrix(matrix, frame, active, cta),
            Op::StoreMatrix(matrix) => self.store_matrix(matrix, frame, active, cta),
            Op::Mma(mma) => {
                cta.counters.tensor_flops += 2 * 8 * (mma.m * mma.k) as u64;
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
                let regs = &mut self.frame(frame)?.regs;
                for lanes in super::collective::by_mask(regs, shuffle.members, active) {
                    super::collective::shuffle(shuffle, regs, lanes, checked)?;
                }
                self.meet(active);
                Ok(())
            }
            Op::Collective(collective) => {
                let checked = cta.launch.config.checks.shuffles;
                let regs = &mut self.frame(frame)?.regs;
                for lanes in super::collective::by_mask(regs, collective.members, active) {
                    super::collective::execute(collective, regs, lanes, checked)?;
                }
                self.meet(active);
                Ok(())
            }
            Op::WarpBarrier(members) => {
                let checked = cta.launch.config.checks.shuffles;
                let regs = &self.frame(frame)?.regs;
                for lanes in super::collective::by_mask(regs, *members, active) {
                    super::collective::check_members(&self.frame(frame)?.regs, *members, lanes, checked)?;
                    self.order_lanes(lanes);
                }
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
                let now = cta.clocks.look(cta.seen_changes(), cta.executed);
                super::scalar::timer(*timer, *result, &mut self.frame(frame)?.regs, active, now);
                Ok(())
            }
            Op::Fence(scope) => {
                self.fence(*scope, active, cta.group);
                Ok(())
            }
            Op::ClusterArrive { releases } => self.arrive_cluster(*releases, active, cta),
            Op::Service(op) => self.service(op, frame, active, cta),
            Op::Alloca { result, bytes, align } => self.alloca(*result, *bytes, *align, frame, active),
            Op::StackSave(result) => {
                let top = self.local.top(frame);
                let regs = &mut self.frame(frame)?.regs;
                super::access::lanes(active).for_each(|l| regs.set_bits(result.bank, result.slot, l, top));
                Ok(())
            }
            Op::StackRestore(operand) => self.stack_restore(*operand, frame, active),
            Op::Mbarrier(op) => self.mbarrier(op, frame, active, cta),
            Op::Bulk(op) => self.bulk(op, frame, active, cta),
            Op::StoreAsync(op) => self.store_async(op, frame, active, cta),
            Op::TensorMapReplace(op) => self.tensor_map_replace(op, frame, active, cta),
            Op::TensorMapCopy { to, from, scope } => {
                self.tensor_map_copy((to, from), frame, active, cta)?;
                self.fence_proxy(&[Proxy::TensorMapReleased], active, cta);
                self.fence(*scope, active, cta.group);
                Ok(())
            }
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
                let arrived = super::access::lanes(active).any(|lane| self.cluster_arrived[lane].is_some());
                cta.publish_mbarriers(self.index, arrived);
                Ok(())
            }
            Op::ProxyFence(proxies) => {
                self.fence_proxy(proxies, active, cta);
                Ok(())
            }
            Op::RankOf { result, address, generic } => {
                let space = if *generic { Space::Generic } else { Space::Cluster };
                let regs = &mut self.frame(frame)?.regs;
                for lane in super::access::lanes(active) {
                    let address = regs.bits(address.bank, address.slot, lane);
                    let address = super::mbarrier::shared_address(space, address);
                    regs.word[*result as usize][lane] = crate::window::rank(address).unwrap_or(cta.rank);
                }
                Ok(())
            }
            Op::Nothing => Ok(()),
            op => super::scalar::execute(op, &mut self.frame(frame)?.regs, active),
        }
    }
}

/// Whether others can notice that the instruction was executed: where nobody executes one, waiting on is in vain. Writes of
/// memory count where they change it.
fn changes_state(op: &Op) -> bool {
    match op {
        Op::Store(_) | Op::Atomic(_) => false,
        Op::Mbarrier(_)
        | Op::Bulk(_)
        | Op::CopyArrive(_)
        | Op::CopyAsync(_)
        | Op::StoreMatrix(_)
        | Op::WmmaStore(_) => true,
        _ => false,
    }
}
