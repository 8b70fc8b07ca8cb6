//! What a way to compute a problem is estimated to take, and the choice among all of them.

use super::candidate::Candidate;
use super::curves::{Curves, Place};
use super::reason::{Estimate, Trace};
use super::splitting::Splitting;
use super::tensors::obstacle;
use super::tiling::{Posed, Tiling};
use super::work::{Fill, Filled, Merge, Work};
use super::{COUNTERS_MAX, Combine, PlanOptions, Splits, limit};
use crate::device::DeviceInfo;
use crate::error::Error;
use crate::problem::Problem;
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
        match Fill::shorter(self.problem) {
            None => self.cheapest_of([Fill::FULL], candidates, trace),
            Some([less, half, more]) => self.cheapest_of([Fill::FULL, less, half, more], candidates, trace),
        }
    }

    /// The same where sequences are filled in one of these ways, each as likely.
    fn cheapest_of<'b, const N: usize>(
        self,
        fills: [Fill; N],
        candidates: impl Iterator<Item = &'b Candidate>,
        trace: &mut Trace,
    ) -> Result<Option<Choice<'b>>, Error> {
        let Choosing { problem, options, device, .. } = self;
        let of_problem = Work::of_problem(problem, device);
        let posed = Posed::new(problem);
        let page = Place::of_page(&of_problem);
        let l2 = fills.map(|fill| Place::of_l2(of_problem.l2_share(fill)));
        // A size is the same for all sequences, whatever they have.
        let by_sequence = problem.has_lengths() && !matches!(options.splits, Splits::Size(_));
        let mut room = [Splitting::whole(0); Splitting::CHOICES];
        let mut best: Option<Choice<'b>> = None;
        for candidate in candidates {
            let row = &candidate.kernel.row;
            let problem = posed.to(row);
            let tiling = Tiling::new(problem, row);
            let whole = of_problem.of_kernel(problem, row, &tiling, candidate.resident_ctas);
            let filled = fills.map(|fill| whole.filled(fill));
            let copied = filled.each_ref().map(Place::of_copied);
            let streamed = filled.each_ref().map(Filled::streamed);
            let (tiles, key_blocks) = (tiling.possible_tiles(problem), tiling.key_blocks);
            // Each slice of a tile is merged by itself.
            let several = self.merges(tiles.saturating_mul(geometry::value_groups(row).into()));
            let mut is_usable = None;
            for &splitting in self.considered(&mut room, candidate, tiles, key_blocks)? {
                let splitting = if by_sequence { splitting.by_sequence(key_blocks) } else { splitting };
                let costs = candidate.coefficients(splitting.splits);
                let merges = match several {
                    _ if splitting.splits == 1 => &[Merge::Nothing],
                    Ok(merges) => merges,
                    Err(error) => return Err(error),
                };
                let work = whole.with_splits(splitting, Merge::Kernel);
                let rounds = Place::of_rounds(&work);
                // The kernel's time for each fill: exact for the first `exact` of them, a lower bound for the others.
                let mut kernel_us = filled.each_ref().map(|filled| costs.least_us(&whole, filled, splitting));
                let mut exact = 0;
                'merges: for &merge in merges {
                    let (merge_us, curves) = (costs.merged_us(&work, merge), candidate.curves.of(merge));
                    let (of_launch, of_stream) = (curves.of_launch(rounds, page), curves.of_stream(rounds));
                    let logarithm = |fill: usize| {
                        let of_tensors = curves.of_tensors(copied[fill], l2[fill]);
                        Curves::limited(of_launch + of_tensors + streamed[fill] * of_stream)
                    };
                    let logarithm = (0..N).map(logarithm).sum::<f64>() / N as f64;
                    let product = loop {
                        let product = kernel_us.iter().fold(1.0, |product, us| product * (us + merge_us));
                        // The factor of a logarithm is never less than this.
                        let least = product * (1.0 + logarithm).powi(N as i32);
                        if trace.is_silent() && best.is_some_and(|best| least >= best.us.powi(N as i32)) {
                            continue 'merges;
                        }
                        if exact == N {
                            break product;
                        }
                        kernel_us[exact] = costs.filled_us(&work, &filled[exact].with_splits(splitting));
                        exact += 1;
                    };
                    // Lengths are weighed by ratios: a plan that takes twice as long with some may take half as long with others.
                    let mean = if N == 4 { product.sqrt().sqrt() } else { product };
                    let us = mean * logarithm.exp();
                    if best.is_some_and(|best| us >= best.us) && trace.is_silent() {
                        continue;
                    }
                    if !*is_usable.get_or_insert_with(|| obstacle(problem, row, device).is_none()) {
                        break;
                    }
                    let choice = Choice { candidate, splitting, merge, us };
                    trace.consider(|| choice.estimate());
                    if best.is_none_or(|best| us < best.us) {
                        best = Some(choice);
                    }
                }
            }
        }
        Ok(best)
    }

    /// The splits among which the plan chooses for a kernel: what was asked for, or all that the model estimates. `room` is for them.
    ///
    /// # Errors
    /// [`Error::Splits`].
    fn considered<'r>(
        self,
        room: &'r mut [Splitting; Splitting::CHOICES],
        candidate: &Candidate,
        tiles: u64,
        key_blocks: u32,
    ) -> Result<&'r [Splitting], Error> {
        let row = &candidate.kernel.row;
        let only = if row.schedule.splits() {
            Splitting::asked(self.options.splits, key_blocks, row.block_n)?
        } else {
            Some(Splitting::whole(key_blocks))
        };
        if let Some(only) = only {
            room[0] = only;
            return Ok(&room[..1]);
        }
        let capacity = u64::from(self.device.sm_count * candidate.resident_ctas);
        Ok(Splitting::choices(room, key_blocks, tiles, capacity))
    }

    /// How several splits may be merged.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`] where several were asked for and nothing merges them, [`Error::TooLarge`].
    fn merges(self, tiles: u64) -> Result<&'static [Merge], Error> {
        let Choosing { problem, options, .. } = self;
        if !self.merges_splits && options.splits == Splits::Auto {
            return Ok(&[]);
        }
        if !self.merges_splits {
            let wanted = format!("that merges splits of {}", problem.dtype().name());
            return Err(Error::NoSuchKernel {
                wanted,
                available: format!("there is none in {}", self.origin),
            });
        }
        if options.combine == Combine::Fused && options.splits != Splits::Auto {
            limit("the number of tiles whose splits are merged in the same launch", tiles, COUNTERS_MAX)?;
        }
        let in_kernel = options.combine != Combine::Fused;
        let is_fused = options.combine != Combine::Kernel && tiles <= COUNTERS_MAX;
        Ok(match (in_kernel, is_fused) {
            (true, true) => &[Merge::Kernel, Merge::Fused],
            (true, false) => &[Merge::Kernel],
            (false, true) => &[Merge::Fused],
            (false, false) => &[],
        })
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

#[cfg(test)]
mod tests {
    use super::super::Planner;
    use super::*;
    use crate::device::model::DeviceModel;
    use crate::problem::Sizes;
    use kernels_gpu::row::Dtype;

    /// Every estimate of a candidate for a problem, however full its sequences are, with the one that it is never less than.
    fn check_least(problem: &Problem, candidate: &Candidate, device: &DeviceInfo) {
        let tiling = Tiling::new(problem, &candidate.kernel.row);
        let of_problem = Work::of_problem(problem, device);
        let whole = of_problem.of_kernel(problem, &candidate.kernel.row, &tiling, candidate.resident_ctas);
        let fills = Fill::shorter(problem).map_or(vec![], |fills| fills.to_vec());
        for fill in fills.into_iter().chain([Fill::FULL]) {
            let filled = whole.filled(fill);
            for splits in [1, 2, 3, 7, 40].into_iter().filter(|splits| *splits <= tiling.key_blocks) {
                let splitting = Splitting::of(tiling.key_blocks, splits);
                for splitting in [splitting, splitting.by_sequence(tiling.key_blocks)] {
                    let costs = candidate.coefficients(splitting.splits);
                    let work = whole.with_splits(splitting, Merge::Kernel);
                    let us = costs.filled_us(&work, &filled.with_splits(splitting));
                    let least = costs.least_us(&whole, &filled, splitting);
                    let name = &candidate.kernel.entry;
                    assert!(least <= us * (1.0 + 1e-9), "{problem:?} {name} {splitting:?}: {least} for {us}");
                }
            }
        }
    }

    #[test]
    fn no_estimate_is_less_than_the_least() {
        for name in ["h200", "h100", "l4"] {
            let device = DeviceModel::find(name).expect("a model").info();
            let planner = Planner::of_table(&device);
            for (seqlen_q, seqlen_k) in [(1, 64), (1, 5000), (77, 3001), (4096, 4096), (2000, 300)] {
                for (batch, heads_q, heads_kv) in [(1, 8, 1), (3, 32, 8), (64, 16, 16)] {
                    for head_dim in [64, 128] {
                        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
                        let problem = Problem::new(sizes, Dtype::Bf16).expect("sizes");
                        for problem in [problem, problem.with_causal(true), problem.with_lengths(true)] {
                            for candidate in planner.group(&problem, &PlanOptions::new()) {
                                check_least(&problem, candidate, &device);
                            }
                        }
                    }
                }
            }
        }
    }
}
