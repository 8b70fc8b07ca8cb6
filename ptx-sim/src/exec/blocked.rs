//! Names what every waiting warp waits for, once nothing can go on.

use crate::blocked::{ArrivalSite, Blocked, BlockedOn};
use crate::op::{MbarrierAction, Op, Pc};
use crate::regs::LANES;

use super::access::{addresses, lanes};
use super::cta::Cta;
use super::schedule::State;
use super::warp::{Path, Wait, Warp};

impl Cta<'_> {
    /// Every warp that waits, and for what.
    pub(super) fn blocked(&self, warps: &[Warp], states: &[State]) -> Vec<Blocked> {
        let mut list = Vec::new();
        for (warp, _) in warps.iter().zip(states).filter(|(_, s)| **s == State::Waiting) {
            list.extend(warp.paths.iter().filter_map(|path| self.blocked_path(warp, path, warps, states)));
        }
        list
    }

    fn blocked_path(&self, warp: &Warp, path: &Path, warps: &[Warp], states: &[State]) -> Option<Blocked> {
        let program = warp.frames[path.frame].as_ref()?.program;
        let here = (program, path.pc);
        let at = warp.place_in(path.frame, here);
        if path.wait == Wait::Memory {
            let (address, at) = warp.watch.last_read.map_or((0, at), |(address, at)| (address, at));
            let (line, source) = (self.launch.line(at), self.launch.source(at));
            let on = BlockedOn::Memory { address };
            return Some(Blocked { warp: warp.index, lanes: path.mask, line, source, on });
        }
        let on = match (&self.launch.program(program).insts[path.pc as usize].op, path.wait) {
            (Op::Barrier(barrier), _) => {
                let lane = path.mask.trailing_zeros() as usize % LANES;
                let regs = &warp.frames[path.frame].as_ref()?.regs;
                self.blocked_on_barrier(regs.word[barrier.id as usize][lane])?
            }
            (Op::Mbarrier(op), Wait::Mbarrier) if matches!(op.action, MbarrierAction::Wait { .. }) => {
                let regs = &warp.frames[path.frame].as_ref()?.regs;
                let list = addresses(regs, &op.addr);
                let first =
                    lanes(path.mask).map(|lane| super::mbarrier::shared_address(op.space, list[lane]));
                // Of the lanes' mbarriers the first whose phase is not complete.
                let mut first = first.filter_map(|address| self.blocked_on_mbarrier(address, states));
                first.next()?
            }
            (Op::ClusterWait { .. }, _) => {
                let (arrived, expected) = self.cluster_progress();
                BlockedOn::Cluster { arrived, expected }
            }
            (Op::Wgmma(_), _) => BlockedOn::Warpgroup { missing: missing(warp, at, warps) },
            (Op::SetRegisters { count, .. }, _) => {
                BlockedOn::Registers { wanted: *count, free: self.registers.free }
            }
            _ => return None,
        };
        let (line, source) = (self.launch.line(at), self.source_with_calls(warp, path.frame, here));
        Some(Blocked { warp: warp.index, lanes: path.mask, line, source, on })
    }

    fn blocked_on_barrier(&self, id: u32) -> Option<BlockedOn> {
        let (warps, needed) = self.barriers.get(id as usize)?.progress();
        let expected = 32 * needed.unwrap_or(self.live_warps as u32);
        Some(BlockedOn::Barrier { id, expected, arrived: 32 * warps.len() as u32, warps })
    }

    fn blocked_on_mbarrier(&self, address: u64, states: &[State]) -> Option<BlockedOn> {
        let offset = self.shared.offset(0, address, 8).ok()??;
        let mbarrier = self.mbarriers.get(&offset)?;
        let exited = |warp: u32| states[warp as usize] == State::Exited;
        let sites = mbarrier.sites.iter();
        Some(BlockedOn::Mbarrier {
            address,
            symbol: self.launch.shared_symbol(address),
            phase: mbarrier.phase,
            arrivals: mbarrier.pending,
            count: mbarrier.count,
            bytes: mbarrier.bytes,
            arrived: sites.map(|&(warp, line)| ArrivalSite { warp, line, exited: exited(warp) }).collect(),
        })
    }
}

/// The warps of a warp's warpgroup that are not where it is.
fn missing(warp: &Warp, at: (usize, Pc), warps: &[Warp]) -> Vec<u32> {
    let group = warps.iter().filter(|w| w.index / 4 == warp.index / 4);
    group.filter(|w| w.at_wgmma() != Some(at)).map(|w| w.index).collect()
}

/// Whether a warp waits at a `wgmma` to which others of its warpgroup never come: they have exited.
pub(super) fn is_diverged(blocked: &[Blocked], states: &[State]) -> bool {
    blocked.iter().any(|b| match &b.on {
        BlockedOn::Warpgroup { missing } => missing.iter().all(|w| states[*w as usize] == State::Exited),
        _ => false,
    })
}
