//! From one multiprocessor's time to that of a grid.

use std::fmt;

use super::gpu::Gpu;
use super::timeline::{Timer, Unit};
use crate::config::{Checks, LaunchConfig};
use crate::error::SimError;
use crate::launch::launch;
use crate::memory::Memory;
use crate::module::Module;
use crate::report::Report;

/// Rounds of CTAs that are run where there are more: the first alone, and two after it.
const ROUNDS: u64 = 3;
/// A launch's own time in microseconds: the least that an empty kernel takes between two others on a stream.
const LAUNCH_US: f64 = 1.7;
/// What of the stated memory bandwidth copies reach.
const MEMORY_REACHED: f64 = 0.9;
/// The share of L2 up to which what a launch uses stays in it from one launch to the next.
const KEPT_SHARE: f64 = 0.6;

/// Predicts how long a kernel takes on a device.
///
/// CTAs of the grid are run, as many as one multiprocessor gets or three rounds of them, without checks; global memory holds what they
/// wrote afterwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predictor {
    gpu: Gpu,
    registers: u32,
}

/// A predicted time, never a measured one.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Microseconds of one launch, caches warm.
    pub us: f64,
    /// Of these, what the multiprocessors take, and what memory takes meanwhile.
    pub compute_us: f64,
    /// See `compute_us`.
    pub memory_us: f64,
    /// CTAs that a multiprocessor holds at a time, and rounds of them.
    pub resident_ctas: u32,
    /// See `resident_ctas`.
    pub rounds: f64,
    /// The share of its time that each unit is busy, in order of [`Unit::ALL`].
    pub busy: [f64; 7],
    /// The device.
    pub gpu: Gpu,
}

impl Predictor {
    /// For a device, and a kernel of so many registers a thread, as `ptxas -v` says.
    pub fn new(gpu: Gpu, registers: u32) -> Predictor {
        Predictor { gpu, registers }
    }

    /// The time of a launch.
    ///
    /// # Errors
    /// Those of [`launch`]; [`SimError::Geometry`] where not even one CTA fits on a multiprocessor.
    pub fn predict(
        &self,
        module: &Module,
        entry: &str,
        params: &[u8],
        memory: &mut Memory,
        config: &LaunchConfig,
    ) -> Result<Prediction, SimError> {
        let gpu = &self.gpu;
        let grid: u64 = config.grid.iter().map(|d| u64::from(*d)).product();
        let threads = config.block.iter().product();
        let static_bytes = module.entry(entry).map_or(0, |found| found.smem_bytes());
        let shared = config.dynamic_smem_bytes + static_bytes as u32;
        let fits = gpu.multiprocessor.occupancy(threads, self.registers, shared);
        let none = SimError::Geometry { what: "CTAs that fit on a multiprocessor", got: 0, limit: 1 };
        let resident = fits.ok_or(none)?.ctas;
        let share = grid.div_ceil(u64::from(gpu.sms));
        let ran = share.min(ROUNDS * u64::from(resident));
        let timer = Timer::new(gpu, resident);
        // One multiprocessor's CTAs lie all over the grid.
        let ctas = (0..ran).map(|at| (at * grid / ran) as u32).collect();
        let config = LaunchConfig {
            checks: Checks::NONE,
            ctas: Some(ctas),
            timer: Some(timer.clone()),
            ..config.clone()
        };
        let report = launch(module, entry, params, memory, &config)?;
        let first = timer.clocks_of(resident as usize) as f64;
        let more = (share - ran) as f64;
        let each = (timer.clocks() as f64 - first) / (ran.saturating_sub(u64::from(resident))).max(1) as f64;
        let compute_us = gpu.us(timer.clocks() as f64 + more * each);
        let memory_us = memory_bytes(&report, memory, gpu) / (MEMORY_REACHED * gpu.memory_gb_s * 1e3);
        let (long, short) = (compute_us.max(memory_us), compute_us.min(memory_us));
        Ok(Prediction {
            // Where both take as long, a fifth of the lesser shows.
            us: LAUNCH_US + long + 0.2 * short * short / long.max(1e-9),
            compute_us,
            memory_us,
            resident_ctas: resident,
            rounds: share as f64 / f64::from(resident),
            busy: Unit::ALL.map(|unit| timer.busy(unit)),
            gpu: *gpu,
        })
    }
}

/// Bytes that memory moves: what the grid moves, once each, where L2 does not keep it.
fn memory_bytes(report: &Report, memory: &Memory, gpu: &Gpu) -> f64 {
    let traffic = [&report.global_load, &report.global_store, &report.async_global];
    let sectors: u64 = traffic.iter().map(|t| t.sectors).sum();
    let moved = sectors * 32 + report.bulk_load_bytes + report.bulk_store_bytes;
    let moved = moved as f64 * report.grid_ctas as f64 / report.ctas.max(1) as f64;
    let used = moved.min(memory.allocated() as f64);
    if used < KEPT_SHARE * f64::from(gpu.l2_mib) * f64::from(1 << 20) { 0.0 } else { used }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prediction { us, gpu, resident_ctas, rounds, compute_us, memory_us, .. } = self;
        writeln!(f, "predicted for {} at {} MHz, not measured: {us:.1} µs", gpu.title, gpu.clock_mhz)?;
        writeln!(
            f,
            "  multiprocessors {compute_us:.1} µs: {rounds:.2} rounds of {resident_ctas} CTAs; memory {memory_us:.1} µs"
        )?;
        let busy = Unit::ALL
            .iter()
            .zip(self.busy)
            .map(|(unit, share)| format!("{} {:.0} %", unit.name(), 100.0 * share));
        write!(f, "  busy: {}", busy.collect::<Vec<_>>().join(", "))
    }
}
