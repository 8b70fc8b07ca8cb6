//! The kernels of one dtype and head_dim that a device runs, with what they cost there.

use super::cost::Coefficients;
use super::curves::MergeCurves;
use super::profile::{self, Profile};
use super::{PlanOptions, RowSelection, Splits};
use crate::device::DeviceInfo;
use crate::occupancy;
use crate::problem::Problem;
use ferroflash_kernels::Arch;
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::{Isa, Row, Schedule, ScoreKind};
use std::sync::Arc;

/// A kernel that the device runs.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) kernel: Arc<Kernel>,
    /// CTAs of it that an SM holds at a time, at least 1.
    pub(super) resident_ctas: u32,
    /// What it costs without splits of the keys, and with several.
    pub(super) costs: [Coefficients; 2],
    /// By how much its times are longer than that.
    pub(super) curves: MergeCurves,
}

impl Candidate {
    pub(super) fn new(kernel: &Arc<Kernel>, device: &DeviceInfo, profile: Option<&Profile>) -> Candidate {
        let known = profile::of(kernel, device, profile);
        let whole = known.whole.unwrap_or(Coefficients::START);
        let split = known.split.unwrap_or(whole);
        Candidate {
            kernel: kernel.clone(),
            resident_ctas: resident_ctas(kernel, device),
            costs: [whole, split],
            curves: known.curves,
        }
    }

    /// What it costs with so many splits.
    pub(super) fn coefficients(&self, splits: u32) -> &Coefficients {
        &self.costs[usize::from(splits > 1)]
    }
}

/// CTAs of a kernel that an SM holds at a time, at least 1. A kernel with wgmma starts with all registers that its CTAs leave each other, to
/// share them out.
fn resident_ctas(kernel: &Kernel, device: &DeviceInfo) -> u32 {
    let estimate = || match kernel.row.isa {
        Isa::Mma => geometry::registers_estimate(&kernel.row),
        Isa::Wgmma => geometry::registers_at_start(&kernel.row),
    };
    resident_ctas_of(kernel, device, estimate)
}

/// CTAs of any kernel that an SM holds at a time: by shared memory, threads, and the registers that ptxas reported for the nearest
/// architecture, or their estimate.
pub(super) fn resident_ctas_of<R>(
    kernel: &Kernel<R>,
    device: &DeviceInfo,
    estimate: impl FnOnce() -> u32,
) -> u32 {
    let reported =
        kernel.resources.iter().filter_map(|(arch, found)| Some((Arch::parse(arch)?.sm, found.registers)));
    let nearest = reported.filter(|(sm, _)| *sm <= device.sm && sm / 10 == device.sm / 10).max();
    let registers = nearest.map_or_else(estimate, |(_, registers)| registers);
    occupancy::resident_ctas(device, kernel.threads, registers, kernel.smem_bytes)
}

/// Whether a row comes into question: it can do what is asked, and what is not ragged is left to the other rows unless it is asked for.
pub(super) fn allows(problem: &Problem, options: &PlanOptions, row: &Row) -> bool {
    let is_asked =
        options.schedule == Some(Schedule::Ragged) || matches!(options.rows, RowSelection::Named(_));
    holds(problem, row)
        && can_compute(problem, options, row)
        && (row.schedule != Schedule::Ragged || problem.is_ragged() || is_asked)
}

/// Whether the tile of a row is what a problem runs in: one of its width, and where a ragged batch's score has no rows of that, a wider one.
pub(super) fn holds(problem: &Problem, row: &Row) -> bool {
    let head_dim = problem.tile_head_dim();
    geometry::problems_head_dim(row) == head_dim
        && geometry::holds_widths(row, problem.sizes().head_dim, problem.head_dim_v())
        || row.head_dim > head_dim
            && row.schedule == Schedule::Ragged
            && problem.is_ragged()
            && row.score != ScoreKind::Plain
}

/// Whether a row can do what is asked.
pub(super) fn can_compute(problem: &Problem, options: &PlanOptions, row: &Row) -> bool {
    let is_ragged = row.schedule == Schedule::Ragged;
    // The one thread that hands out tiles cannot look through intervals.
    let intervals = problem.mask().intervals && row.isa == Isa::Wgmma;
    options.schedule.is_none_or(|schedule| schedule == row.schedule)
        && (row.schedule.splits() || options.splits == Splits::Auto && !problem.has_lengths())
        && (is_ragged || !problem.is_ragged())
        && row.score == problem.score_kind()
        && !intervals
}
