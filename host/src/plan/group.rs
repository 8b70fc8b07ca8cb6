//! The kernels of one dtype and head_dim: which are preferred, without splits and with them, and how many CTAs an SM holds.

use super::PlanOptions;
use super::Splits;
use super::preference::{self, BEST, Best, Mask};
use super::reason::{Reason, Trace};
use super::tensors::obstacle;
use crate::device::DeviceInfo;
use crate::module;
use crate::problem::Problem;
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::{Accumulation, Isa, Row, Schedule};
use ptx_sim::Multiprocessor;
use std::sync::Arc;

/// The kernels of one dtype and head_dim.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) candidates: Vec<Candidate>,
    /// The lines of [`BEST`] for this device whose kernel is there, and the candidate they name.
    best: Vec<(&'static Best, usize)>,
}

/// A kernel that the device runs.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) kernel: Arc<Kernel>,
    /// CTAs of it that an SM holds at a time, at least 1.
    pub(super) resident_ctas: u32,
}

impl Group {
    pub(super) fn new<'a>(kernels: impl Iterator<Item = &'a Arc<Kernel>>, device: &DeviceInfo) -> Group {
        let candidates: Vec<Candidate> = kernels
            .filter(|kernel| kernel.smem_bytes <= device.smem_opt_in_bytes)
            .map(|kernel| Candidate::new(kernel, device))
            .collect();
        let named = |line: &Best| {
            let index = candidates.iter().position(|candidate| line.names(&candidate.kernel));
            index.filter(|_| (line.sm.0..=line.sm.1).contains(&device.sm))
        };
        let best = BEST.iter().filter_map(|line| Some((line, named(line)?)));
        let best = best.collect();
        Group { candidates, best }
    }

    /// The preferred row of those with one CTA a tile: the first line of [`BEST`] that fits, else of [`fallback`]. Only float32
    /// accumulation is chosen unasked.
    pub(super) fn unsplit(
        &self,
        problem: &Problem,
        options: &PlanOptions,
        device: &DeviceInfo,
        trace: &mut Trace,
    ) -> Option<&Candidate> {
        let is_allowed = |candidate: &&Candidate| {
            let row = &candidate.kernel.row;
            row.schedule != Schedule::Split
                && row.acc == Accumulation::F32
                && allows(problem, options, row)
                && obstacle(problem, row, device).is_none()
        };
        let measured = self.best.iter().find_map(|&(line, index)| {
            let candidate = Some(&self.candidates[index]).filter(is_allowed)?;
            let tiles = tiles_per_sm(&candidate.kernel.row, problem, device);
            let fits = line.mask.fits(problem.causal())
                && tiles >= line.tiles_per_sm
                && problem.sizes().seqlen_k >= line.keys;
            fits.then(|| {
                trace.note(|| Reason::Measured {
                    tiles_per_sm: tiles,
                    least: line.tiles_per_sm,
                    keys: line.keys,
                    mask: line.mask != Mask::Any,
                });
                candidate
            })
        });
        measured.or_else(|| {
            // Persistent CTAs are for where they measured better.
            let rows = self.candidates.iter().filter(is_allowed).filter(|candidate| {
                options.schedule.is_some() || candidate.kernel.row.schedule == Schedule::Grid
            });
            let candidate = fallback(rows, problem, device)?;
            trace.note(|| Reason::Unmeasured);
            Some(candidate)
        })
    }

    /// The preferred row of those that split keys, by nothing but the query rows that share a KV head: neither batch nor device size
    /// may change a sequence's kernel. With wgmma from [`preference::WGMMA_SPLIT_ROWS`] rows on, and without below, where there are both;
    /// the smallest block that holds all of these rows, else the largest; then more stages and more keys a step; the name decides what
    /// is left.
    pub(super) fn split(
        &self,
        problem: &Problem,
        options: &PlanOptions,
        device: &DeviceInfo,
    ) -> Option<&Candidate> {
        let is_allowed = |candidate: &&Candidate| {
            let row = &candidate.kernel.row;
            row.schedule == Schedule::Split
                && row.acc == Accumulation::F32
                && allows(problem, options, row)
                && obstacle(problem, row, device).is_none()
        };
        let rows = u64::from(problem.sizes().seqlen_q) * u64::from(problem.group());
        self.candidates.iter().filter(is_allowed).max_by_key(|candidate| {
            let row = &candidate.kernel.row;
            let is_for_rows = (row.isa == Isa::Wgmma) == (rows >= preference::WGMMA_SPLIT_ROWS);
            let holds_all = u64::from(geometry::rows_of_block(row, problem.group())) >= rows;
            let size = i64::from(row.block_m);
            let preferred = if holds_all { -size } else { size };
            let name = std::cmp::Reverse(&candidate.kernel.entry);
            (is_for_rows, holds_all, preferred, row.stages, row.block_n, name)
        })
    }
}

impl Candidate {
    pub(super) fn new(kernel: &Arc<Kernel>, device: &DeviceInfo) -> Candidate {
        Candidate { kernel: kernel.clone(), resident_ctas: resident_ctas(kernel, device) }
    }
}

/// CTAs of a kernel that an SM holds at a time, at least 1: by shared memory, threads, and the registers that ptxas reported for the
/// nearest architecture, or their estimate. A kernel with wgmma starts with all that its CTAs leave each other, to share them out.
fn resident_ctas(kernel: &Kernel, device: &DeviceInfo) -> u32 {
    let reported =
        kernel.resources.iter().filter_map(|(arch, found)| Some((module::sm_of(arch)?, found.registers)));
    let nearest = reported.filter(|(sm, _)| *sm <= device.sm && sm / 10 == device.sm / 10).max();
    let estimate = || match kernel.row.isa {
        Isa::Mma => geometry::registers_estimate(&kernel.row),
        Isa::Wgmma => geometry::registers_at_start(&kernel.row),
    };
    let registers = nearest.map_or_else(estimate, |(_, registers)| registers);
    let sm = Multiprocessor {
        name: "",
        smem_bytes: device.smem_per_sm_bytes,
        threads: device.threads_per_sm,
        ctas: device.ctas_per_sm,
    };
    sm.occupancy(kernel.threads, registers, kernel.smem_bytes).map_or(1, |occupancy| occupancy.ctas)
}

/// Whether a row can do what is asked.
pub(super) fn allows(problem: &Problem, options: &PlanOptions, row: &Row) -> bool {
    let is_split = row.schedule == Schedule::Split;
    options.schedule.is_none_or(|schedule| schedule == row.schedule)
        && (is_split || (options.splits == Splits::Auto && !problem.has_lengths()))
}

/// Blocks of query rows of all heads and batch entries.
pub(super) fn tiles(row: &Row, problem: &Problem) -> u64 {
    let sizes = problem.sizes();
    // Packed rows past what a plan takes; it refuses them.
    if u64::from(sizes.seqlen_q) * u64::from(problem.group()) > u64::from(u32::MAX) {
        return u64::MAX;
    }
    geometry::tiles(row, sizes.batch, sizes.heads_q, problem.group(), sizes.seqlen_q)
}

fn tiles_per_sm(row: &Row, problem: &Problem, device: &DeviceInfo) -> f64 {
    tiles(row, problem) as f64 / f64::from(device.sm_count.max(1))
}

/// Of the kernels that can compute the problem: one whose tiles give every SM a CTA before one whose do not, then the largest
/// tile where SMs are busy and the smallest where they are not, then more stages; the name decides what is left, so that the
/// choice is always the same.
fn fallback<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
    problem: &Problem,
    device: &DeviceInfo,
) -> Option<&'a Candidate> {
    candidates.max_by_key(|candidate| {
        let row = &candidate.kernel.row;
        let busy = tiles_per_sm(row, problem, device) >= 1.0;
        let tile = i64::from(row.block_m * row.block_n);
        (busy, if busy { tile } else { -tile }, row.stages, std::cmp::Reverse(&candidate.kernel.entry))
    })
}
