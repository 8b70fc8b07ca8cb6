//! Clocks that each unit of a multiprocessor needs at least for what was counted. These are bounds, never a time.

use crate::kernels::{Counted, Machine};
use serde::{Deserialize, Serialize};

/// Whether a unit computes or moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnitKind {
    /// Computes.
    Compute,
    /// Moves.
    Memory,
}

/// A unit and what it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: UnitKind,
    /// Clocks that it needs at least for a multiprocessor's share of the launch.
    pub clocks: f64,
}

/// What a multiprocessor does in a clock, from NVIDIA's data sheets and CUDA's programming guide.
pub(crate) struct Rates {
    /// Dense f16 operations of the tensor cores.
    tensor_flops: f64,
    /// Share of them that mma.sync reaches, where wgmma is what reaches all.
    of_mma_sync: f64,
    /// Bytes from L2, of its whole bandwidth.
    l2_bytes: f64,
    /// Bytes from DRAM, of its whole bandwidth at the boost clock.
    dram_bytes: f64,
}

/// Warp instructions that the four schedulers issue in a clock.
const ISSUED: f64 = 4.0;
/// Lanes of a special-function instruction that are done in a clock.
const SPECIAL_LANES: f64 = 16.0;

/// Dense f16 operations of the tensor cores of one multiprocessor a clock; `None` of architectures that are not known here.
pub fn tensor_flops_per_clock(sm: u32) -> Option<f64> {
    match sm {
        80 => Some(2048.0),
        86..=89 => Some(1024.0),
        90 => Some(4096.0),
        _ => None,
    }
}

fn rates(sm: u32) -> Rates {
    let tensor_flops = tensor_flops_per_clock(sm).unwrap_or(1024.0);
    let [of_mma_sync, l2_bytes, dram_bytes] = match sm {
        80 => [1.0, 48.0, 10.0],
        86 => [1.0, 32.0, 6.5],
        90.. => [0.63, 34.0, 14.0],
        _ => [1.0, 32.0, 2.5],
    };
    Rates { tensor_flops, of_mma_sync, l2_bytes, dram_bytes }
}

/// What the busiest multiprocessor of a launch has to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) tensor_flops: f64,
    /// Whether wgmma does them, and not mma.sync.
    pub(crate) is_wgmma: bool,
    pub(crate) warp_instructions: f64,
    /// Warp instructions of the special-function units.
    pub(crate) special: f64,
    /// Passes over the banks of shared memory, those of wgmma's operands too.
    pub(crate) wavefronts: f64,
    pub(crate) global_bytes: f64,
    pub(crate) dram_bytes: f64,
}

impl Work {
    /// The units by what they need, the most first.
    pub(crate) fn units(&self, sm: u32) -> Vec<Unit> {
        let rates = rates(sm);
        let share = if self.is_wgmma { 1.0 } else { rates.of_mma_sync };
        let unit = |name: &str, kind, clocks| Unit { name: name.to_owned(), kind, clocks };
        let (compute, memory) = (UnitKind::Compute, UnitKind::Memory);
        let mut units = vec![
            unit("tensor cores", compute, self.tensor_flops / (share * rates.tensor_flops)),
            unit("issue", compute, self.warp_instructions / ISSUED),
            unit("special functions", compute, 32.0 * self.special / SPECIAL_LANES),
            unit("shared memory", memory, self.wavefronts),
            unit("L2", memory, self.global_bytes / rates.l2_bytes),
            unit("DRAM (each tensor once)", memory, self.dram_bytes / rates.dram_bytes),
        ];
        units.sort_by(|a, b| b.clocks.total_cmp(&a.clocks));
        units
    }
}

/// Share of what the other units need that the busiest does not hide.
const NOT_HIDDEN: f64 = 0.25;

/// Clocks that units working beside each other need, about: those of the busiest, and a part of the others'. What a search without a
/// GPU makes small. It is no time: it knows nothing of latencies.
pub fn clocks(units: &[Unit]) -> f64 {
    let all: f64 = units.iter().map(|unit| unit.clocks).sum();
    let busiest = units.iter().map(|unit| unit.clocks).fold(0.0, f64::max);
    busiest + NOT_HIDDEN * (all - busiest)
}

/// The units by what they need for what was counted, the most first. The busiest multiprocessor has ⌈CTAs / multiprocessors⌉ of the
/// CTAs.
pub fn units(counted: &Counted, machine: &Machine) -> Vec<Unit> {
    let rounds = counted.ctas.div_ceil(u64::from(machine.sm_count).max(1)) as f64;
    let share = rounds / counted.ctas.max(1) as f64;
    let number = |name: &str| share * counted.number(name) as f64;
    // Tensors that the L2 cache holds need not be fetched again; benchmarks with warm caches find them there.
    let fits_l2 = counted.problem.bytes() <= machine.l2_bytes as f64;
    let dram_bytes = if fits_l2 { 0.0 } else { counted.problem.bytes() / f64::from(machine.sm_count) };
    let work = Work {
        tensor_flops: number("tensor_flops"),
        is_wgmma: counted.number("wgmma") > 0,
        warp_instructions: number("warp_instructions"),
        special: number("instructions.special"),
        wavefronts: share * counted.wavefronts() as f64,
        global_bytes: share * counted.global_bytes() as f64,
        dram_bytes,
    };
    work.units(machine.sm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mma_and_wgmma_have_their_own_rates_and_what_is_hidden_counts_less() {
        let work = Work { tensor_flops: 4096.0 * 1000.0, ..Work::default() };
        let wgmma = Work { is_wgmma: true, ..work };
        assert_eq!(clocks(&wgmma.units(90)), 1000.0);
        assert!((clocks(&work.units(90)) - 1000.0 / 0.63).abs() < 1e-6);
        assert_eq!(clocks(&work.units(89)), 4000.0);
        let read = Work { wavefronts: 400.0, ..wgmma };
        assert_eq!(clocks(&read.units(90)), 1100.0);
        assert_eq!(read.units(90)[0].name, "tensor cores");
    }
}
