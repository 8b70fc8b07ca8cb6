//! The kernels of one dtype and head_dim that a device runs, with what they cost there.

use super::cost::Coefficients;
use super::curves::MergeCurves;
use super::profile::{self, Profile};
use super::{PlanOptions, RowSelection, Splits};
use crate::device::DeviceInfo;
use crate::module;
use crate::occupancy;
use crate::problem::Problem;
use ferroflash_kernels::Arch;
use kernels_gpu::geometry;
use kernels_gpu::manifest::{Kernel, Resources};
use kernels_gpu::row::{Isa, Row, Schedule, ScoreKind};
use std::collections::BTreeMap;
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
    let row = &kernel.row;
    let estimate = || match row.isa {
        Isa::Mma => nearest_registers(&module::likely_resources(kernel), device).map_or_else(
            || geometry::registers_estimate(row),
            |likely| likely.min(geometry::registers_limit(row)),
        ),
        Isa::Wgmma => geometry::registers_at_start(row),
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
    let registers = nearest_registers(&kernel.resources, device).unwrap_or_else(estimate);
    occupancy::resident_ctas(device, kernel.threads, registers, kernel.smem_bytes)
}

/// The registers that ptxas reported for the architecture that is nearest to a device's.
fn nearest_registers(resources: &BTreeMap<String, Resources>, device: &DeviceInfo) -> Option<u32> {
    let reported =
        resources.iter().filter_map(|(arch, found)| Some((Arch::parse(arch)?.sm, found.registers)));
    let nearest = reported.filter(|(sm, _)| *sm <= device.sm && sm / 10 == device.sm / 10).max();
    nearest.map(|(_, registers)| registers)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::model::DeviceModel;
    use kernels_gpu::table::row_of;

    #[test]
    fn kernels_that_no_ptxas_has_seen_are_taken_for_their_likes() {
        let device = DeviceModel::H200.info();
        let resident = |entry: &str, row: Row| {
            let launch = (geometry::threads(&row), geometry::smem_bytes(&row));
            let kernel = module::uncompiled(entry, row, row.isa, launch);
            resident_ctas(&kernel, &device)
        };
        // 143 registers, where fragments alone have 104.
        let split = row_of("fwd_f16_d64_m64n64_w4s2c1_split");
        assert_eq!(resident("fwd_f16_d64_m64n64_w4s2c1_split", split), 3);
        // A third stage, a user's name: what its likes take.
        assert_eq!(resident("theirs", Row { stages: 3, ..split }), 3);
        // A bound on registers holds.
        assert_eq!(resident("bounded", Row { min_ctas: 4, ..split }), 4);
        // No kernel of the table has this tile.
        let other = Row { block_n: 32, ..split };
        assert_eq!(
            resident("other", other),
            65536 / 128 / (geometry::registers_estimate(&other).next_multiple_of(8))
        );
    }
}
