//! The order in which the CTAs of a grid take their tiles.

use crate::device::DeviceInfo;
use crate::problem::Problem;
use kernels_gpu::geometry;
use kernels_gpu::row::Row;

/// The share of L2 that K and V of the heads that are worked on together may take.
const L2_SHARE: f64 = 0.75;

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
