//! Paths that part and meet again: a join for every branch whose lanes go different ways.

use crate::finding::{Fault, FindingKind, Outcome};
use crate::op::{Op, Pc};
use crate::regs::LANES;

use super::cta::Cta;
use super::warp::{Path, Wait, Warp};

/// Index of a [`Join`].
pub(super) type JoinId = Option<usize>;

/// A point where paths meet.
#[derive(Clone, Debug)]
pub(super) struct Join {
    pc: Pc,
    frame: usize,
    expected: u32,
    arrived: u32,
    outer_rejoin: Pc,
    outer: JoinId,
}

impl Warp {
    /// Splits a path; the parts meet at `meet`. The last part runs first.
    pub(super) fn part(&mut self, at: usize, meet: Pc, parts: &[(Pc, u32)], cta: &mut Cta<'_>) {
        cta.counters.divergent_branches += 1;
        let Path { mask, frame, rejoin, join, .. } = self.paths.swap_remove(at);
        let (rejoin, join) = if meet == rejoin && join.is_some() {
            (rejoin, join)
        } else {
            let new = Join { pc: meet, frame, expected: mask, arrived: 0, outer_rejoin: rejoin, outer: join };
            let free = self.joins.iter().position(Option::is_none);
            let index = free.unwrap_or(self.joins.len());
            if free.is_none() {
                self.joins.push(None);
            }
            self.joins[index] = Some(new);
            (meet, Some(index))
        };
        for &(pc, mask) in parts {
            self.paths.push(Path { pc, mask, frame, rejoin, join, wait: Wait::Ready });
        }
    }

    /// A path has come to its meeting point or to the end of its function.
    pub(super) fn end_path(&mut self, at: usize, cta: &mut Cta<'_>) -> Outcome {
        let Path { mask, frame, join, .. } = self.paths[at];
        match join {
            Some(join) => {
                self.paths.swap_remove(at);
                if let Some(point) = &mut self.joins[join] {
                    point.arrived |= mask;
                }
                self.complete(join);
                Ok(())
            }
            None if self.frame(frame)?.caller.is_some() => self.return_from(at, cta),
            None => {
                self.exit(mask);
                Ok(())
            }
        }
    }

    /// Goes on from a meeting point once all of its lanes have come or exited.
    fn complete(&mut self, join: usize) {
        let Some(point) = self.joins[join].clone() else { return };
        if point.arrived != point.expected {
            return;
        }
        self.joins[join] = None;
        if point.arrived != 0 {
            self.paths.push(Path {
                pc: point.pc,
                mask: point.arrived,
                frame: point.frame,
                rejoin: point.outer_rejoin,
                join: point.outer,
                wait: Wait::Ready,
            });
        }
    }

    /// Lets lanes that wait at meeting points go on without the others, which wait for something that these may bring. Gives
    /// the lanes.
    pub(super) fn release_joins(&mut self) -> u32 {
        let mut released = 0;
        for index in 0..self.joins.len() {
            let Some(point) = &mut self.joins[index] else { continue };
            if point.arrived == 0 {
                continue;
            }
            released |= point.arrived;
            self.paths.push(Path {
                pc: point.pc,
                mask: point.arrived,
                frame: point.frame,
                rejoin: point.outer_rejoin,
                join: point.outer,
                wait: Wait::Ready,
            });
            point.expected &= !point.arrived;
            point.arrived = 0;
            if point.expected == 0 {
                self.joins[index] = None;
            }
        }
        released
    }

    /// Ends lanes that wait where paths meet only to exit: nobody need wait for them. True if there are any.
    pub(super) fn end_finished(&mut self, cta: &Cta<'_>) -> bool {
        let mut finished = 0;
        for point in self.joins.iter().flatten() {
            let Some(frame) = self.frames.get(point.frame).and_then(Option::as_ref) else { continue };
            let inst = cta.launch.program(frame.program).insts.get(point.pc as usize);
            let ends = inst.is_none_or(|i| matches!(i.op, Op::Return | Op::Exit) && i.guard.is_none());
            if frame.caller.is_none() && ends {
                finished |= point.arrived;
            }
        }
        if finished != 0 {
            self.exit(finished);
        }
        finished != 0
    }

    /// Whether lanes will come to a meeting point in a frame.
    pub(super) fn is_joined(&self, frame: usize) -> bool {
        self.joins.iter().flatten().any(|j| j.frame == frame && j.expected != 0)
    }

    /// Ends lanes for good.
    pub(super) fn exit(&mut self, lanes: u32) {
        let left = self.passed & lanes;
        let wanted = |p: &Path| matches!(p.wait, Wait::Lanes(members) if members & left != 0);
        if left != 0 && self.paths.iter().any(wanted) {
            self.missed = Some(left.trailing_zeros() as usize);
        }
        self.live &= !lanes;
        self.paths.iter_mut().for_each(|p| p.mask &= !lanes);
        self.paths.retain(|p| p.mask != 0);
        for join in 0..self.joins.len() {
            if let Some(point) = &mut self.joins[join] {
                let touched = point.expected & lanes != 0;
                point.expected &= !lanes;
                point.arrived &= !lanes;
                if touched {
                    self.complete(join);
                }
            }
        }
    }

    pub(super) fn branch_table(
        &mut self,
        at: usize,
        index: u32,
        targets: &[Pc],
        reconverge: Pc,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let Path { pc, mask, frame, .. } = self.paths[at];
        let values = self.frame(frame)?.regs.word[index as usize];
        let mut parts: Vec<(Pc, u32)> = Vec::new();
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 == 1) {
            let to = if active >> lane & 1 == 0 {
                pc + 1
            } else {
                let target = targets.get(values[lane] as usize);
                *target.ok_or_else(|| Fault::at(FindingKind::BadTarget, lane, values[lane].into()))?
            };
            match parts.iter_mut().find(|(pc, _)| *pc == to) {
                Some((_, lanes)) => *lanes |= 1 << lane,
                None => parts.push((to, 1 << lane)),
            }
        }
        if let [(to, _)] = parts[..] {
            self.paths[at].pc = to;
        } else {
            self.part(at, reconverge, &parts, cta);
        }
        Ok(())
    }
}
