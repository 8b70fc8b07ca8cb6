//! `setmaxnreg` (PTX ISA §9.7.19.5): the warps of a CTA give registers back to its pool and take them. What a warp starts with is
//! ptxas' choice; here it is the most that lets the CTA start, as for kernels with `.maxntid`.

use crate::finding::{Fault, FindingKind, Outcome};

use super::cta::Cta;
use super::warp::Warp;

/// Registers of a multiprocessor.
const REGISTERS: u32 = 1 << 16;
/// The most of a thread.
const MOST: u32 = 256;

/// The registers of a CTA.
#[derive(Debug)]
pub(super) struct Pool {
    /// Registers that no warp has.
    pub(super) free: u32,
    /// What a thread starts with.
    initial: u32,
    /// For each warp, the counts that it has set.
    set: Vec<Vec<(bool, u32)>>,
}

impl Pool {
    pub(super) fn new(warps: usize) -> Self {
        let warps_registers = 32 * warps as u32;
        let initial = (REGISTERS / warps_registers.max(1) / 8 * 8).min(MOST);
        Pool { free: REGISTERS - initial * warps_registers, initial, set: vec![Vec::new(); warps] }
    }
}

impl Cta<'_> {
    /// A warp sets its registers: false if the pool has too few and it must wait.
    pub(super) fn set_registers(&mut self, warp: &Warp, increase: bool, count: u32) -> Outcome<bool> {
        let index = warp.index as usize;
        let own = &self.registers.set[index];
        let (turn, current) = (own.len(), own.last().map_or(self.registers.initial, |s| s.1));
        // All warps of the warpgroup execute the same.
        let group = index / 4 * 4..(index / 4 * 4 + 4).min(self.registers.set.len());
        if self.registers.set[group].iter().any(|s| s.get(turn).is_some_and(|s| *s != (increase, count))) {
            let detail = "the warps of a warpgroup set different register counts";
            return Err(Fault::new(FindingKind::DivergedWarpgroup).saying(detail));
        }
        // Without a first setmaxnreg the current count is an estimate.
        if turn > 0 && (increase && count < current || !increase && count > current) {
            let mut fault = Fault::new(FindingKind::BadOperand);
            fault.address = Some(count.into());
            return Err(fault.saying("setmaxnreg.inc below, or .dec above, what the warp has"));
        }
        let (wanted, has) = (32 * count, 32 * current);
        if wanted > has + self.registers.free {
            return Ok(false);
        }
        self.registers.free = self.registers.free + has - wanted;
        self.registers.set[index].push((increase, count));
        self.progress += 1;
        self.changed = true;
        Ok(true)
    }
}
