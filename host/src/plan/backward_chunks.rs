//! How a backward pass that keeps dS in memory is divided: into launches for some KV heads each, so that dS of those fits a limit.

use super::backward::blocks;
use super::candidate::resident_ctas_of;
use crate::backward::Backward;
use crate::device::DeviceInfo;
use crate::problem::{KeySequences, QuerySequences, TensorRole};
use kernels_gpu::backward::row::BackwardRow;
use kernels_gpu::backward::spill::{DS_KEYS, ds_bytes};
use kernels_gpu::manifest::Kernel;

/// The chunks of a pass, all of as many KV heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Chunks.
    pub(super) count: u32,
    /// KV heads of a chunk, of all batch entries.
    pub(super) heads_kv: u32,
    /// Queries of dS of a query head and a block of keys.
    pub(super) ds_rows: u32,
    /// Bytes of dS of a chunk.
    pub(super) bytes: u64,
}

impl Chunks {
    /// The chunks with the fewest rounds of CTAs that fit [`Backward::ds_bytes_max`]; of equals the fewest chunks. None where dS of one head does not fit, or sequences are packed.
    pub(super) fn new(
        backward: &Backward,
        keys: &Kernel<BackwardRow>,
        device: &DeviceInfo,
    ) -> Option<Chunks> {
        let problem = backward.problem();
        if problem.queries() != QuerySequences::Batch || problem.keys() != KeySequences::Batch {
            return None;
        }
        let extent = problem.extent(TensorRole::K);
        let heads = extent.batch.checked_mul(extent.heads)?;
        let key_blocks = blocks(extent.rows, DS_KEYS, None);
        let rows = keys.row.block_m;
        let ds_rows = blocks(problem.extent(TensorRole::Q).rows, rows, None).checked_mul(rows)?;
        let of_head = [problem.group(), key_blocks, ds_rows / 8, ds_bytes(8)]
            .into_iter()
            .try_fold(1_u64, |bytes, n| bytes.checked_mul(n.into()))?;
        let at_once = device.sm_count * resident_ctas_of(keys, device, || keys.row.registers_at_start());
        let rounds = |count: u32| {
            let ctas = u64::from(heads / count) * u64::from(key_blocks);
            u64::from(count) * ctas.div_ceil(u64::from(at_once.max(1)))
        };
        let fits = |count: &u32| u64::from(heads / count).saturating_mul(of_head) <= backward.ds_bytes_max();
        let count = (1..=heads)
            .filter(|&count| heads.is_multiple_of(count))
            .filter(fits)
            .min_by_key(|&n| (rounds(n), n))?;
        let heads_kv = heads / count;
        Some(Chunks { count, heads_kv, ds_rows, bytes: u64::from(heads_kv) * of_head })
    }
}
