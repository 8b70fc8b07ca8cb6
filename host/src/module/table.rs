//! The kernels of the tables, compiled or not.

use kernels_gpu::backward::row::BackwardRow;
use kernels_gpu::backward::table::{BACKWARD_VARIANTS, BackwardVariant};
use kernels_gpu::geometry;
use kernels_gpu::manifest::{Kernel, PTXAS_RECORD, PtxasRecord, RecordedKernel, Resources};
use kernels_gpu::row::{Isa, Row};
use kernels_gpu::steps::{STEP_VARIANTS, StepRow, StepVariant};
use kernels_gpu::table::VARIANTS;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// A kernel that is not compiled: what follows from its row.
pub(crate) fn uncompiled<R>(entry: &str, row: R, isa: Isa, (threads, smem_bytes): (u32, u32)) -> Kernel<R> {
    Kernel {
        entry: entry.to_owned(),
        family: isa.arch().to_owned(),
        row,
        threads,
        smem_bytes,
        sha256: String::new(),
        resources: BTreeMap::new(),
        cubins: BTreeMap::new(),
        waits: false,
    }
}

/// What ptxas made of a kernel when it saw it last.
fn recorded(entry: &str) -> Option<&'static RecordedKernel> {
    static RECORD: LazyLock<PtxasRecord> =
        LazyLock::new(|| serde_json::from_str(PTXAS_RECORD).unwrap_or_default());
    RECORD.kernels.get(entry)
}

/// What a kernel that no ptxas has seen is likely to take: what it took when one saw the table's kernel of its name, or else the most that kernels
/// of its tile take, whatever their stages and what touches their scores.
pub(crate) fn likely_resources(kernel: &Kernel) -> BTreeMap<String, Resources> {
    let tile = |of: &Row| {
        let Row { isa, dtype, head_dim, block_m, block_n, warps, warp_rows, acc, schedule, .. } = *of;
        (isa, dtype, head_dim, block_m, block_n, warps, warp_rows, acc, schedule)
    };
    let relatives = VARIANTS.iter().filter(|variant| tile(&variant.row) == tile(&kernel.row));
    let most = |known: &&RecordedKernel| known.registers.values().sum::<u32>();
    let known = recorded(&kernel.entry)
        .or_else(|| relatives.filter_map(|variant| recorded(variant.entry)).max_by_key(most));
    known.map(RecordedKernel::resources).unwrap_or_default()
}

/// The kernels of the table as a manifest would have them, compiled or not: those that compute attention, and the steps beside it.
pub fn kernels_of_table() -> (Vec<Arc<Kernel>>, Vec<Arc<Kernel<StepRow>>>) {
    let kernels = VARIANTS.iter().map(|variant| {
        let row = variant.row;
        let launch = (geometry::threads(&row), geometry::smem_bytes(&row));
        Arc::new(uncompiled(variant.entry, row, row.isa, launch))
    });
    let steps = STEP_VARIANTS.iter().map(|&StepVariant { entry, row }| {
        Arc::new(uncompiled(entry, row, Isa::Mma, (row.threads(), row.smem_bytes())))
    });
    (kernels.collect(), steps.collect())
}

/// The kernels of the backward pass's table, as [`kernels_of_table`].
pub fn backward_kernels_of_table() -> Vec<Arc<Kernel<BackwardRow>>> {
    let kernel = |variant: &BackwardVariant| {
        let row = variant.row;
        Arc::new(uncompiled(variant.entry, row, row.isa, (row.threads(), row.smem_bytes())))
    };
    BACKWARD_VARIANTS.iter().map(kernel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registers_of_every_kernel_are_recorded() {
        let (kernels, steps) = kernels_of_table();
        let entries = kernels.iter().map(|kernel| kernel.entry.clone());
        let others = steps.iter().map(|kernel| kernel.entry.clone());
        let backward = backward_kernels_of_table().into_iter().map(|kernel| kernel.entry.clone());
        for entry in entries.chain(others).chain(backward) {
            let arch = if entry.contains("wgmma") { "sm_90a" } else { "sm_90" };
            let registers = recorded(&entry).and_then(|known| known.registers.get(arch).copied());
            assert!(registers.is_some_and(|registers| registers > 0), "{entry} on {arch}");
        }
    }
}
