//! The kernels of the tables, compiled or not.

use kernels_gpu::backward::row::BackwardRow;
use kernels_gpu::backward::table::{BACKWARD_VARIANTS, BackwardVariant};
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::Isa;
use kernels_gpu::steps::{STEP_VARIANTS, StepRow, StepVariant};
use kernels_gpu::table::VARIANTS;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A kernel that is not compiled: what follows from its row.
pub(super) fn uncompiled<R>(entry: &str, row: R, isa: Isa, (threads, smem_bytes): (u32, u32)) -> Kernel<R> {
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
