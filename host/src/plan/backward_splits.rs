//! How many CTAs share the steps of a block of keys, where a problem has fewer blocks than two rounds of a device's CTAs: their float32 sums go to the
//! workspace, and a step kernel adds them up.

use super::backward_choice::{ctas, ctas_at_once};
use crate::backward::Backward;
use crate::device::DeviceInfo;
use crate::problem::{QuerySequences, TensorRole};
use kernels_gpu::backward::row::{BackwardRow, Pass};
use kernels_gpu::manifest::Kernel;

/// What a CTA has beside its steps, as steps: its start, the stationary tiles, and the way out. These three are estimates that choose, of 1 to 6
/// CTAs, one within 5 % of the best for ten problems on an H200 (docs/notes/backward.md).
const STEPS_BESIDE: u32 = 3;
/// What the launch of the kernel takes that adds the sums, as steps.
const STEPS_OF_LAUNCH: u32 = 1;
/// What writing and reading the sums of a CTA takes, as steps.
const STEPS_OF_SUMS: u32 = 1;
/// Rounds of CTAs from which on none share a block: what the last one leaves idle is little.
const ROUNDS_ENOUGH: u32 = 2;
/// CTAs of a block at most.
const SPLITS_MAX: u32 = 32;

/// CTAs that share a block of keys of a kernel: as many as were asked for, or those with the least of an estimate, in steps of the busiest SM.
pub(super) fn query_splits(backward: &Backward, keys: &Kernel<BackwardRow>, device: &DeviceInfo) -> u32 {
    let steps = steps_of_block(backward, &keys.row);
    if let Some(splits) = backward.query_splits() {
        return splits.min(steps);
    }
    let Some(ctas) = ctas(backward, &keys_of(&keys.row), 1) else { return 1 };
    let at_once = ctas_at_once(keys, device);
    if ctas >= ROUNDS_ENOUGH * at_once {
        return 1;
    }
    let takes = |splits: u32| {
        let rounds = (ctas * splits).div_ceil(at_once);
        let sums = STEPS_OF_LAUNCH + STEPS_OF_SUMS * ctas * splits / at_once;
        rounds * (steps.div_ceil(splits) + STEPS_BESIDE) + if splits > 1 { sums } else { 0 }
    };
    (1..=steps.min(SPLITS_MAX)).min_by_key(|&splits| takes(splits)).unwrap_or(1)
}

/// What computes dK and dV of a row.
fn keys_of(row: &BackwardRow) -> BackwardRow {
    if row.pass == Pass::DqDkv { row.parts()[0] } else { *row }
}

/// Steps of a block of keys that all queries see; of packed sequences, of one of average length.
fn steps_of_block(backward: &Backward, row: &BackwardRow) -> u32 {
    let problem = backward.problem();
    let queries = match problem.queries() {
        QuerySequences::Batch => problem.sizes().seqlen_q,
        QuerySequences::Packed { .. } => {
            problem.extent(TensorRole::Q).rows.div_ceil(problem.sizes().batch.max(1))
        }
    };
    queries.div_ceil(row.block_m).saturating_mul(problem.group()).max(1)
}
