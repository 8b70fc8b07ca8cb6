//! The order in which the CTAs of a grid take their tiles.

use super::{Addresses, Plan, Planner};
use crate::device::DeviceInfo;
use crate::problem::Problem;
use kernels_gpu::geometry;
use kernels_gpu::row::{Row, Schedule};
use kernels_gpu::scheduler::{QueryBlock, Work};
use kernels_gpu::sequence::Sequence;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The share of L2 that K and V of the heads that are worked on together may take: measured, docs/notes/hopper.md.
const L2_SHARE: f64 = 0.5;

/// Heads whose query blocks a grid takes in turns: under a causal mask as many as have K and V in L2 together, so that the longest blocks of
/// all of them start first, the end is made of short ones, and K and V are read from memory once. Full masks do not care.
pub(super) fn heads_together(problem: &Problem, row: &Row, device: &DeviceInfo, heads: u32) -> u32 {
    if !problem.causal() {
        return 1;
    }
    let sizes = problem.sizes();
    let kv_bytes = 2.0 * f64::from(sizes.seqlen_k) * f64::from(sizes.head_dim * row.dtype.bytes());
    let kv_heads = L2_SHARE * device.l2_bytes as f64 / kv_bytes;
    let heads_of_kv = problem.group() / geometry::packed_heads(row, problem.group());
    (kv_heads as u32).max(1).saturating_mul(heads_of_kv).min(heads)
}

/// Query blocks of a head that are taken last, in ascending order: half of them under a causal mask where the device holds the whole
/// grid at once, two CTAs an SM, so that a short block lies beside each long one.
pub(super) fn ascending_blocks(
    problem: &Problem,
    resident_ctas: u32,
    device: &DeviceInfo,
    tiles: u64,
    query_blocks: u32,
) -> u32 {
    let sms = u64::from(device.sm_count);
    let two_an_sm = tiles > sms && tiles <= sms * u64::from(resident_ctas.min(2));
    if problem.causal() && two_an_sm { query_blocks / 2 } else { 0 }
}

/// What a tile takes beside its blocks of keys, in quarters of a block.
const TILE_QUARTERS: u64 = 6;

impl Planner {
    /// The makespan of plans whose tiles the device takes up one after the other, each as soon as a CTA has room, in quarters of a block of
    /// keys: when the last CTA is done. It tells apart orders of tiles ([`super::PlanOptions::heads_together`]) whose ends leave more or fewer
    /// multiprocessors idle. `None` where there is no plan, or one of a ragged batch or of several splits.
    pub fn makespan(&self, plans: &[&Plan]) -> Option<u64> {
        let room = plans.iter().map(|plan| plan.resident_ctas).min()? * self.device().sm_count;
        let mut free: BinaryHeap<Reverse<u64>> = (0..room).map(|_| Reverse(0)).collect();
        let mut end = 0;
        for plan in plans {
            let row = &plan.kernel.row;
            if row.schedule == Schedule::Ragged || plan.splits() > 1 {
                return None;
            }
            let (params, queries) = (plan.params(&Addresses::default()), QueryBlock::of(row));
            let rows = geometry::rows_of_block(row, plan.problem.group());
            for index in 0..plan.tiles() {
                let work = match row.schedule.splits() {
                    true => Work::of_split(&params, index, rows, |_| Sequence::dense(&params)),
                    false => Work::of_head(&params, index, rows),
                };
                let blocks = u64::from(queries.key_blocks(&params, &work, row.block_n).end);
                let Reverse(start) = free.pop()?;
                let done = start + 4 * blocks + TILE_QUARTERS;
                end = end.max(done);
                free.push(Reverse(done));
            }
        }
        Some(end)
    }
}
