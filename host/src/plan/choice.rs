//! What a way to compute a problem is estimated to take, and the choice among all of them.

use super::candidate::{Candidate, tiles};
use super::reason::{Estimate, Trace};
use super::splitting::Splitting;
use super::tensors::obstacle;
use super::work::{self, Fill, Merge, Work};
use super::{COUNTERS_MAX, Combine, PlanOptions, Splits, limit};
use crate::device::DeviceInfo;
use crate::error::Error;
use crate::problem::{Problem, QuerySequences};
use kernels_gpu::geometry;
use kernels_gpu::row::Isa;

/// What is chosen for: a problem, what was asked for, a device.
#[derive(Clone, Copy)]
pub(super) struct Choosing<'a> {
    pub(super) problem: &'a Problem,
    pub(super) options: &'a PlanOptions,
    pub(super) device: &'a DeviceInfo,
    /// Whether there is a kernel that merges splits.
    pub(super) merges_splits: bool,
    /// Where the kernels are, for messages.
    pub(super) origin: &'a str,
}

/// A way to compute a problem, and the time that it is estimated to take.
#[derive(Clone, Copy)]
pub(super) struct Choice<'a> {
    pub(super) candidate: &'a Candidate,
    pub(super) splitting: Splitting,
    pub(super) merge: Merge,
    pub(super) us: f64,
}

/// What one candidate is estimated to take for one problem, whatever the lengths turn out to be.
pub(super) struct Estimates<'a> {
    candidate: &'a Candidate,
    tiles: u64,
    /// With all keys.
    full: Work,
    /// With lengths, where there are any: each as likely.
    shorter: Option<[Work; 3]>,
}

/// A kernel with its splits: what it does, and how long that takes before anything is merged; with all keys, and with lengths where there
/// are any.
struct Kernels {
    full: (f64, Work),
    shorter: Option<[(f64, Work); 3]>,
}

impl<'a> Estimates<'a> {
    pub(super) fn new(problem: &Problem, candidate: &'a Candidate, device: &DeviceInfo) -> Estimates<'a> {
        let row = &candidate.kernel.row;
        let place = (device, candidate.resident_ctas);
        let of = |fill| Work::new(problem, row, place, fill);
        let (full, shorter) = Fill::expected(problem);
        let shorter = shorter.map(|fills| fills.map(of));
        Estimates { candidate, tiles: tiles(row, problem), full: of(full), shorter }
    }

    fn kernels(&self, splitting: Splitting) -> Kernels {
        let coefficients = self.candidate.coefficients(splitting.splits);
        let split = |work: &Work| match splitting.splits {
            1 => *work,
            _ => work.with_splits(splitting, Merge::Kernel),
        };
        let of = |work: &Work| {
            let work = split(work);
            (coefficients.kernel_us(&work), work)
        };
        Kernels { full: of(&self.full), shorter: self.shorter.as_ref().map(|works| works.each_ref().map(of)) }
    }

    /// The time, of which merging takes `merge_us`.
    fn us(&self, kernels: &Kernels, merge: Merge, merge_us: f64) -> f64 {
        let curves = self.candidate.curves.of(merge);
        kernels.mean(|(kernel_us, work)| (kernel_us + merge_us) * curves.factor(work))
    }

    /// What no way to merge takes less than.
    fn least_us(&self, splitting: Splitting, kernels: &Kernels) -> f64 {
        kernels.mean(|(kernel_us, _)| *kernel_us) * self.candidate.least[usize::from(splitting.splits > 1)]
    }

    /// The time of merging, which no length changes.
    pub(super) fn merge_us(&self, splitting: Splitting, merge: Merge) -> f64 {
        let coefficients = self.candidate.coefficients(splitting.splits);
        coefficients.merge_us(&self.full.with_splits(splitting, merge))
    }
}

impl Kernels {
    /// Lengths are weighed by ratios: a plan that takes twice as long with some may take half as long with others.
    fn mean(&self, us: impl Fn(&(f64, Work)) -> f64) -> f64 {
        let full = us(&self.full);
        let of_four = |shorter: &[(f64, Work); 3]| {
            shorter.iter().map(&us).fold(full, |product, us| product * us).sqrt().sqrt()
        };
        self.shorter.as_ref().map_or(full, of_four)
    }
}

impl Choice<'_> {
    pub(super) fn estimate(&self) -> Estimate {
        let (kernel, splits) = (self.candidate.kernel.entry.clone(), self.splitting.splits);
        Estimate { kernel, splits, fused: self.merge == Merge::Fused, us: self.us }
    }
}

impl Choosing<'_> {
    /// The choice that is estimated to take least, among all splits and both ways to merge them that `options` leave open; of equals the
    /// first. Whether bulk copies take the tensors is asked of what would be chosen alone, as asking takes longer than an estimate.
    pub(super) fn cheapest<'b>(
        self,
        candidates: impl Iterator<Item = &'b Candidate>,
        trace: &mut Trace,
    ) -> Result<Option<Choice<'b>>, Error> {
        let Choosing { problem, options, device, .. } = self;
        let mut best: Option<Choice<'b>> = None;
        for candidate in candidates {
            let row = &candidate.kernel.row;
            let estimates = Estimates::new(problem, candidate, device);
            let tiles = estimates.tiles;
            let mut is_usable = None;
            let key_blocks = work::key_blocks(problem, row);
            // A size is the same for all sequences, whatever they have.
            let by_sequence = problem.has_lengths() && !matches!(options.splits, Splits::Size(_));
            let mut consider = |splitting: Splitting| {
                let splitting = if by_sequence { splitting.by_sequence(key_blocks) } else { splitting };
                let mut kernels = estimates.kernels(splitting);
                if trace.is_silent()
                    && best.is_some_and(|best| estimates.least_us(splitting, &kernels) >= best.us)
                {
                    return Ok(());
                }
                for merge in self.merges(splitting, tiles)? {
                    kernels.full.1.merge = merge;
                    let merge_us = candidate.coefficients(splitting.splits).merge_us(&kernels.full.1);
                    let us = estimates.us(&kernels, merge, merge_us);
                    if best.is_some_and(|best| us >= best.us) && trace.is_silent() {
                        continue;
                    }
                    if !*is_usable.get_or_insert_with(|| obstacle(problem, row, device).is_none()) {
                        return Ok(());
                    }
                    let choice = Choice { candidate, splitting, merge, us };
                    trace.consider(|| choice.estimate());
                    if best.is_none_or(|best| us < best.us) {
                        best = Some(choice);
                    }
                }
                Ok::<(), Error>(())
            };
            if !row.schedule.splits() {
                consider(Splitting::whole(key_blocks))?;
                continue;
            }
            match Splitting::asked(options.splits, key_blocks, row.block_n)? {
                Some(splitting) => consider(splitting)?,
                None => {
                    let capacity = u64::from(device.sm_count * candidate.resident_ctas);
                    for splitting in Splitting::choices(key_blocks, tiles, capacity) {
                        consider(splitting)?;
                    }
                }
            }
        }
        Ok(best)
    }

    /// How splits may be merged.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where several were asked for and nothing merges them, [`Error::TooLarge`].
    fn merges(self, splitting: Splitting, tiles: u64) -> Result<impl Iterator<Item = Merge>, Error> {
        let Choosing { problem, options, .. } = self;
        let are = |merges: [Option<Merge>; 2]| Ok(merges.into_iter().flatten());
        if splitting.splits == 1 {
            return are([Some(Merge::Nothing), None]);
        }
        // The merging kernel would also write what lies behind the last of packed sequences.
        let is_packed = problem.queries() != QuerySequences::Batch;
        let kernel = self.merges_splits.then_some(Merge::Kernel);
        if kernel.is_none() && options.splits != Splits::Auto {
            let wanted = format!("that merges splits of {}", problem.dtype().name());
            return Err(Error::NoSuchKernel {
                wanted,
                available: format!("there is none in {}", self.origin),
            });
        }
        match options.combine {
            Combine::Kernel => are([kernel.filter(|_| !is_packed), None]),
            Combine::Fused if options.splits == Splits::Auto && tiles > COUNTERS_MAX => are([None, None]),
            Combine::Fused => {
                limit("the number of tiles whose splits are merged in the same launch", tiles, COUNTERS_MAX)?;
                are([kernel.map(|_| Merge::Fused), None])
            }
            Combine::Auto => are([
                kernel.filter(|_| !is_packed),
                kernel.map(|_| Merge::Fused).filter(|_| tiles <= COUNTERS_MAX),
            ]),
        }
    }
}

/// Query rows that share a KV head from which on a split size takes kernels with wgmma, where there are such: their blocks have 64 rows at
/// least.
const WGMMA_SPLIT_ROWS: u64 = 64;

/// The row for splits of a given size, by nothing but the query rows that share a KV head: neither batch nor device size may change a
/// sequence's kernel. With wgmma from [`WGMMA_SPLIT_ROWS`] rows on, and without below, where there are both; the smallest block that
/// holds all of these rows, else the largest; then more stages and more keys a step; the name decides what is left.
pub(super) fn invariant<'a>(
    problem: &Problem,
    candidates: impl Iterator<Item = &'a Candidate>,
) -> Option<&'a Candidate> {
    let rows = u64::from(problem.sizes().seqlen_q) * u64::from(problem.group());
    candidates.max_by_key(|candidate| {
        let row = &candidate.kernel.row;
        let is_for_rows = (row.isa == Isa::Wgmma) == (rows >= WGMMA_SPLIT_ROWS);
        let holds_all = u64::from(geometry::rows_of_block(row, problem.group())) >= rows;
        let size = i64::from(row.block_m);
        let preferred = if holds_all { -size } else { size };
        let name = std::cmp::Reverse(&candidate.kernel.entry);
        (is_for_rows, holds_all, preferred, row.stages, row.block_n, name)
    })
}
