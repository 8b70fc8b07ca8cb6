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
struct Rates {
    /// Dense f16 operations of the tensor cores.
    tensor_flops: f64,
    /// Bytes from L2, of its whole bandwidth.
    l2_bytes: f64,
    /// Bytes from DRAM, of its whole bandwidth at the boost clock.
    dram_bytes: f64,
}

/// Warp instructions that the four schedulers issue in a clock.
const ISSUED: f64 = 4.0;
/// Lanes of a special-function instruction that are done in a clock.
const SPECIAL_LANES: f64 = 16.0;

fn rates(sm: u32) -> Rates {
    match sm {
        80 => Rates { tensor_flops: 2048.0, l2_bytes: 48.0, dram_bytes: 10.0 },
        86 => Rates { tensor_flops: 1024.0, l2_bytes: 32.0, dram_bytes: 6.5 },
        90.. => Rates { tensor_flops: 4096.0, l2_bytes: 34.0, dram_bytes: 14.0 },
        _ => Rates { tensor_flops: 1024.0, l2_bytes: 32.0, dram_bytes: 2.5 },
    }
}

/// The units by what they need, the most first.
pub fn units(counted: &Counted, machine: &Machine) -> Vec<Unit> {
    let rates = rates(machine.sm);
    let sm_count = f64::from(machine.sm_count);
    let share = |amount: f64, a_clock: f64| amount / sm_count / a_clock;
    let number = |name: &str| counted.number(name) as f64;
    // Tensors that the L2 cache holds need not be fetched again; benchmarks with warm caches find them there.
    let fits_l2 = counted.problem.bytes() <= machine.l2_bytes as f64;
    let dram_bytes = if fits_l2 { 0.0 } else { counted.problem.bytes() };
    let unit = |name: &str, kind, clocks| Unit { name: name.to_owned(), kind, clocks };
    let mut units = vec![
        unit("tensor cores", UnitKind::Compute, share(number("tensor_flops"), rates.tensor_flops)),
        unit("issue", UnitKind::Compute, share(number("warp_instructions"), ISSUED)),
        unit(
            "special functions",
            UnitKind::Compute,
            share(32.0 * number("instructions.special"), SPECIAL_LANES),
        ),
        unit("shared memory", UnitKind::Memory, share(counted.wavefronts() as f64, 1.0)),
        unit("L2", UnitKind::Memory, share(counted.global_bytes() as f64, rates.l2_bytes)),
        unit("DRAM (each tensor once)", UnitKind::Memory, share(dram_bytes, rates.dram_bytes)),
    ];
    units.sort_by(|a, b| b.clocks.total_cmp(&a.clocks));
    units
}
