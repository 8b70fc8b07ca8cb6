//! `wgmma` (PTX ISA §9.7.15): four warps multiply a 64×16 A, from shared memory or registers, with a 16×N B from shared memory.
//! The four come together at each product, as B is read for all of them; it is computed then, and its registers and tiles may
//! not be touched until its group is waited for. Products are exact; each element is summed in f32 in order of k.
//!
//! With g = lane/4 and t = lane mod 4, register i of D in warp w holds row 16·w + g + 8·(i/2 mod 2), column
//! 8·(i/4) + 2t + i mod 2; A in registers is the fragment of `mma` m16n8k16.

use crate::clock::{AgentOf, Clock};
use crate::finding::{Fault, FindingKind, Outcome};
use crate::float::{bf16_to_f32, canonical_bits, f16_to_f32};
use crate::op::{MatrixType, Op, Pc, Wgmma, WgmmaA};
use crate::regs::{LANES, Regs, Slot};
use crate::shared::Who;

use super::cta::Cta;
use super::descriptor::Descriptor;
use super::schedule::{Blamed, State};
use super::warp::{Wait, Warp};

/// Warps of a warpgroup.
pub(super) const WARPS: usize = 4;
const K: usize = 16;

/// The agent of a warpgroup's groups.
pub(super) fn agent_of(warp: u32) -> AgentOf {
    AgentOf::Warpgroup(warp / WARPS as u32)
}

impl Warp {
    /// Where the warp waits for the rest of its warpgroup.
    pub(super) fn at_wgmma(&self) -> Option<(usize, Pc)> {
        let first = self.paths.first()?;
        let waits = self.paths.iter().all(|p| p.wait == Wait::Warpgroup);
        waits.then_some((self.frames[first.frame].as_ref()?.program, first.pc))
    }
}

/// The parts of the operands that do not depend on the warp.
struct Tiles {
    /// Row k holds N values.
    b: Vec<f32>,
    /// Row m holds 16 values; `None` if A is in registers.
    a: Option<Vec<f32>>,
}

impl Cta<'_> {
    /// Runs the product that a warp has come to, if the other three have come too.
    pub(super) fn join_warpgroup(&mut self, at: usize, warps: &mut [Warp], states: &mut [State]) -> Blamed {
        let Some(place) = warps[at].at_wgmma() else { return Ok(()) };
        let first = at / WARPS * WARPS;
        let diverged = |detail| Fault::new(FindingKind::DivergedWarpgroup).saying(detail);
        let Some(group) = warps.get_mut(first..first + WARPS) else {
            return Err((at, diverged("the last warps of the CTA are no whole warpgroup")));
        };
        if group.iter().any(|w| w.at_wgmma().is_none()) {
            return Ok(());
        }
        if group.iter().any(|w| w.at_wgmma() != Some(place)) {
            return Err((at, diverged("the warps of a warpgroup wait at different wgmma")));
        }
        self.wgmma(place, group).map_err(|(i, fault)| (first + i, fault))?;
        for (warp, state) in group.iter_mut().zip(&mut states[first..]) {
            warp.release(|p| p.wait == Wait::Warpgroup);
            *state = State::Ready;
        }
        Ok(())
    }

    fn wgmma(&mut self, (program, pc): (usize, Pc), group: &mut [Warp]) -> Blamed {
        let launch = self.launch;
        let Op::Wgmma(op) = &launch.program(program).insts[pc as usize].op else { return Ok(()) };
        let frames: Vec<usize> = group.iter().map(|w| w.paths[0].frame).collect();
        for (i, warp) in group.iter_mut().enumerate() {
            warp.at = (program, pc);
            if self.launch.config.checks.async_copies {
                warp.claim_registers(op, frames[i]).map_err(|fault| (i, fault))?;
            }
        }
        let number = group[0].wgmma.open_group();
        if let Some(i) = group.iter().position(|w| w.wgmma.open_group() != number) {
            let detail = "the warps of a warpgroup have committed different numbers of groups";
            return Err((i, Fault::new(FindingKind::DivergedWarpgroup).saying(detail)));
        }
        let tiles = self.tiles(op, &frames, number, group).map_err(|fault| (0, fault))?;
        for (i, warp) in group.iter_mut().enumerate() {
            let regs = &mut warp.frame(frames[i]).map_err(|fault| (i, fault))?.regs;
            multiply(op, regs, &tiles, i);
        }
        self.counters.wgmma += 1;
        self.counters.tensor_flops += 2 * 64 * (op.n * K) as u64;
        self.progress += 1;
        Ok(())
    }

    /// Reads what lies in shared memory, as the warpgroup's agent.
    fn tiles(&mut self, op: &Wgmma, frames: &[usize], number: u32, group: &mut [Warp]) -> Outcome<Tiles> {
        check_scale(op, frames, group)?;
        let b = uniform(group, frames, op.b)?;
        let a = match op.a {
            WgmmaA::Shared(slot) => Some(uniform(group, frames, slot)?),
            WgmmaA::Registers(_) => None,
        };
        let mut clock: Option<Clock> = None;
        for warp in group.iter() {
            let seen = warp.release_clock(warp.live);
            // What all four have seen: any of them may be the one that reads.
            match &mut clock {
                Some(clock) => clock.meet(&seen),
                None => clock = Some(seen),
            }
        }
        let clock = clock.unwrap_or_default();
        let agent = self.agents.number(agent_of(group[0].index));
        let (leader, place) = (group[0].index, group[0].at);
        let who = Who {
            // None of them alone: what each of them wrote must be known to the others.
            warp: u32::MAX,
            lane: 0,
            lanes: 0,
            line: self.launch.line(place),
            strong: false,
            clock: &clock,
            now: 0,
            synced: 0,
            proxy: Some((agent, number)),
            order: None,
        };
        let widen = match op.input {
            MatrixType::F16 => f16_to_f32,
            MatrixType::Bf16 => bf16_to_f32,
        };
        let mut read = |bits: u64, mn_major: bool, extent: usize, sign: f32| -> Outcome<Vec<f32>> {
            let descriptor = Descriptor::decode(bits, mn_major, extent as u64)
                .map_err(|detail| Fault::at(FindingKind::BadOperand, 0, bits).saying(detail))?;
            // A row for every row or column, 16 values each.
            let mut tile = vec![0.0; extent * K];
            let (steps_mn, steps_k) = if descriptor.mn_major() { (8, 1) } else { (1, 8) };
            for mn in (0..extent).step_by(steps_mn) {
                for k in (0..K).step_by(steps_k) {
                    let address = descriptor.chunk(mn as u64, k as u64);
                    let Some(offset) = self.shared.offset(0, address, 16)? else { continue };
                    self.note_read(offset, 16, &who, (leader, place))?;
                    for (i, word) in self.shared.load(offset, 16).into_iter().enumerate() {
                        let (even, odd) = (sign * widen(word as u16), sign * widen((word >> 16) as u16));
                        let at = |i: usize| if mn_major { (mn + i) * K + k } else { mn * K + k + i };
                        (tile[at(2 * i)], tile[at(2 * i + 1)]) = (even, odd);
                    }
                }
            }
            Ok(tile)
        };
        let sign = |negative: bool| if negative { -1.0 } else { 1.0 };
        let a = match a {
            Some(bits) => Some(read(bits, op.a_mn_major, 64, sign(op.a_negative))?),
            None => None,
        };
        let columns = read(b, op.b_mn_major, op.n, sign(op.b_negative))?;
        let b = (0..K * op.n).map(|i| columns[i % op.n * K + i / op.n]).collect();
        Ok(Tiles { a, b })
    }
}

/// Whether D is added to must be the same in all lanes of all four warps.
fn check_scale(op: &Wgmma, frames: &[usize], group: &mut [Warp]) -> Outcome {
    let mut all = Vec::with_capacity(WARPS);
    for (warp, frame) in group.iter_mut().zip(frames) {
        all.push(warp.frame(*frame)?.regs.pred[op.scale_d as usize]);
    }
    if all.iter().all(|bits| *bits == 0) || all.iter().all(|bits| *bits == u32::MAX) {
        return Ok(());
    }
    Err(Fault::new(FindingKind::BadOperand).saying("scale-d differs within the warpgroup"))
}

/// A descriptor, which must be the same in all lanes of all four warps.
fn uniform(group: &mut [Warp], frames: &[usize], slot: Slot) -> Outcome<u64> {
    let mut all = Vec::with_capacity(WARPS * LANES);
    for (warp, frame) in group.iter_mut().zip(frames) {
        all.extend(warp.frame(*frame)?.regs.double[slot as usize]);
    }
    match all.iter().find(|value| **value != all[0]) {
        None => Ok(all[0]),
        Some(other) => {
            let detail = "a matrix descriptor differs within the warpgroup";
            Err(Fault::at(FindingKind::BadOperand, 0, *other).saying(detail))
        }
    }
}

/// One warp's sixteen rows.
fn multiply(op: &Wgmma, regs: &mut Regs, tiles: &Tiles, warp: usize) {
    let n = op.n;
    let keeps = regs.pred[op.scale_d as usize] & 1 == 1;
    let mut sum = vec![0f32; 16 * n];
    if keeps != op.scale_d_negated {
        for (i, &slot) in op.d.iter().enumerate() {
            for (lane, &word) in regs.word[slot as usize].iter().enumerate() {
                sum[place_of(i, lane, n)] = f32::from_bits(word);
            }
        }
    }
    let own = match (&tiles.a, &op.a) {
        (None, WgmmaA::Registers(slots)) => fragment(op, regs, slots),
        (tile, _) => tile.iter().flat_map(|t| &t[16 * warp * K..16 * (warp + 1) * K]).copied().collect(),
    };
    for (row, sum) in own.chunks_exact(K).zip(sum.chunks_exact_mut(n)) {
        for (x, b) in row.iter().zip(tiles.b.chunks_exact(n)) {
            for (sum, y) in sum.iter_mut().zip(b) {
                *sum += x * y;
            }
        }
    }
    for (i, &slot) in op.d.iter().enumerate() {
        regs.word[slot as usize] = std::array::from_fn(|lane| canonical_bits(sum[place_of(i, lane, n)]));
    }
}

/// Row and column of register `i` of D, as an index.
fn place_of(i: usize, lane: usize, n: usize) -> usize {
    (lane / 4 + 8 * (i / 2 % 2)) * n + 8 * (i / 4) + 2 * (lane % 4) + i % 2
}

/// A in registers: sixteen rows of 16.
fn fragment(op: &Wgmma, regs: &Regs, slots: &[Slot]) -> Vec<f32> {
    let widen = if op.input == MatrixType::F16 { f16_to_f32 } else { bf16_to_f32 };
    let sign = if op.a_negative { -1.0 } else { 1.0 };
    let mut rows = vec![0.0; 16 * K];
    for (i, &slot) in slots.iter().enumerate() {
        for (lane, &word) in regs.word[slot as usize].iter().enumerate() {
            let at = (lane / 4 + 8 * (i % 2)) * K + 2 * (lane % 4) + 8 * (i / 2);
            rows[at] = sign * widen(word as u16);
            rows[at + 1] = sign * widen((word >> 16) as u16);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_of_the_accumulator_has_one_place() {
        let n = 24;
        let mut places: Vec<usize> =
            (0..n / 2).flat_map(|i| (0..LANES).map(move |lane| place_of(i, lane, n))).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..16 * n));
    }
}
