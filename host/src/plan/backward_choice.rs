//! Which kernel of the backward pass computes a gradient of a problem on a device.

use super::backward::blocks;
use super::candidate::resident_ctas_of;
use super::largest_divisor;
use crate::backward::Backward;
use crate::device::{DeviceInfo, TensorBox};
use crate::error::Error;
use crate::problem::{KeySequences, QuerySequences, TensorRole};
use kernels_gpu::backward::row::{BackwardRow, Pass};
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::Isa;
use std::cmp::Reverse;
use std::sync::Arc;

/// Warps on an SM that hide a kernel's latencies, so that fewer take as long: an estimate, not measured.
const WARPS_ENOUGH: u64 = 6;
/// Blocks of keys of a head that run at once and share what they read of Q and dO through L2: an estimate, not measured.
const BLOCKS_SHARING: u32 = 8;

/// The kernels of a pass that compute a problem, of each family those of the narrowest width, the one that is taken first; and why others do
/// not.
pub(super) struct Choice {
    pub(super) kernels: Vec<Arc<Kernel<BackwardRow>>>,
    pub(super) obstacle: Option<Arc<Error>>,
}

/// Chooses among the kernels that a device runs. Those with wgmma are taken wherever bulk copies take the tensors, and among the kernels of
/// a family the one with the least of an estimate: the rows that an SM works on one after the other. Neither rule has been measured.
///
/// # Errors
/// [`Error::NoSuchKernel`]; `origin` is where the kernels are from.
pub(super) fn choose(
    backward: &Backward,
    pass: Pass,
    kernels: &[Arc<Kernel<BackwardRow>>],
    device: &DeviceInfo,
    origin: &str,
) -> Result<Choice, Error> {
    let problem = backward.problem();
    let width = problem.sizes().head_dim.max(problem.head_dim_v());
    let fits = |kernel: &&Arc<Kernel<BackwardRow>>| {
        let row = &kernel.row;
        let is_kind = (row.pass, row.dtype, row.score) == (pass, problem.dtype(), problem.score_kind());
        is_kind && row.head_dim >= width
    };
    let (mut able, mut obstacle) = (Vec::new(), None);
    for kernel in kernels.iter().filter(fits) {
        match boxes(backward, &kernel.row, device) {
            Ok(_) => able.push(kernel.clone()),
            Err(error) => obstacle = Some(Arc::new(error)),
        }
    }
    if able.is_empty() {
        let score = problem.score_kind();
        let wanted = format!(
            "for {} of {} with head_dim {width} and {} scores",
            pass.name(),
            problem.dtype().name(),
            score.name()
        );
        let available = format!("{origin} has {} kernels of the backward pass", kernels.len());
        return Err(Error::NoSuchKernel { wanted, available });
    }
    let of_family = |isa| able.iter().filter(move |kernel| kernel.row.isa == isa);
    let narrowest = |isa| of_family(isa).map(|kernel| kernel.row.head_dim).min();
    let widths = [Isa::Mma, Isa::Wgmma].map(|isa| (isa, narrowest(isa)));
    able.retain(|kernel| widths.contains(&(kernel.row.isa, Some(kernel.row.head_dim))));
    able.sort_by_key(|kernel| {
        let rows = rows_one_after_another(backward, kernel, device);
        // Of equals, the one with the longer steps: it reads less of shared memory a product.
        (kernel.row.isa == Isa::Mma, rows, Reverse(kernel.row.streamed_rows()))
    });
    Ok(Choice { kernels: able, obstacle })
}

/// What a kernel's grid takes, estimated as rows that the busiest SM works on one after the other, each warp 16 at a time, or 32 at twice the cost: the
/// CTAs of a round are all that an SM holds, and a round of few warps takes as long as one of [`WARPS_ENOUGH`]. A CTA's warps share the copies of each
/// block, which are reckoned as the work of one warp's 16 rows more.
fn rows_one_after_another(backward: &Backward, kernel: &Kernel<BackwardRow>, device: &DeviceInfo) -> u64 {
    let row = &kernel.row;
    let resident = u64::from(resident_ctas_of(kernel, device, || row.registers_at_start()).max(1));
    let ctas = u64::from(ctas(backward, row, 1).unwrap_or(u32::MAX));
    let of_sm = ctas.div_ceil(u64::from(device.sm_count.max(1)));
    let warps = u64::from(row.computing_warps());
    let round = |ctas: u64| if ctas == 0 { 0 } else { (ctas * warps).max(WARPS_ENOUGH) };
    (of_sm / resident * round(resident) + round(of_sm % resident))
        * 16
        * (warps * u64::from(row.m_tiles()) + 1)
        / warps
}

/// KV heads of `heads` whose blocks of keys `dkv` takes in turns. Under a causal mask the first keys are seen by most queries: so the longest blocks of
/// all those heads start first, and the end is made of short ones; of each as many blocks run at once as share what they read of Q and dO.
pub(super) fn kv_heads_together(
    backward: &Backward,
    dkv: &Kernel<BackwardRow>,
    device: &DeviceInfo,
    heads: u32,
) -> u32 {
    let problem = backward.problem();
    if !problem.causal() || problem.keys() != KeySequences::Batch {
        return 1;
    }
    largest_divisor(heads, (ctas_at_once(dkv, device) / BLOCKS_SHARING).max(1))
}

/// CTAs of a kernel that a device holds at once, on all its multiprocessors.
pub(super) fn ctas_at_once(kernel: &Kernel<BackwardRow>, device: &DeviceInfo) -> u32 {
    (device.sm_count * resident_ctas_of(kernel, device, || kernel.row.registers_at_start())).max(1)
}

/// CTAs of a row's kernel: a block of stationary rows of each head, or two of each, and of keys as many times that as share a block; or those
/// of both its parts.
pub(super) fn ctas(backward: &Backward, row: &BackwardRow, query_splits: u32) -> Option<u32> {
    if row.pass == Pass::DqDkv {
        let [keys, queries] = row.parts().map(|part| ctas(backward, &part, query_splits));
        return keys?.checked_add(queries?);
    }
    let problem = backward.problem();
    let (role, packed) = if row.pass.keeps_keys() {
        (TensorRole::K, problem.keys() != KeySequences::Batch)
    } else {
        (TensorRole::Q, problem.queries() != QuerySequences::Batch)
    };
    let extent = problem.extent(role);
    let blocks = blocks(extent.rows, row.stationary_rows(), packed.then_some(problem.sizes().batch));
    let of_block = row.ctas_of_block() * if row.pass.keeps_keys() { query_splits } else { 1 };
    extent.batch.checked_mul(extent.heads)?.checked_mul(blocks)?.checked_mul(of_block)
}

/// What bulk copies are told of Q, dO, K and V without their addresses: a box is the rows of a block. None for a row without wgmma.
///
/// # Errors
/// [`Error::NoTensorMap`], [`Error::NoTensorMaps`].
pub(super) fn boxes(
    backward: &Backward,
    row: &BackwardRow,
    device: &DeviceInfo,
) -> Result<Option<[TensorBox; 4]>, Error> {
    if row.isa == Isa::Mma {
        return Ok(None);
    }
    if !device.has_tensor_maps {
        return Err(Error::NoTensorMaps { name: device.name.clone() });
    }
    let problem = backward.problem();
    let (dtype, width) = (problem.dtype(), row.column_width());
    let of = |name, role: TensorRole, strides: kernels_gpu::params::Strides, block| {
        let extent = problem.extent(role);
        TensorBox::new(
            name,
            dtype,
            [
                ("head_dim", extent.width.into(), dtype.bytes().into()),
                ("rows", extent.rows.into(), strides.row),
                ("heads", extent.heads.into(), strides.head),
                ("batch", extent.batch.into(), strides.batch),
            ],
            [width, block, 1, 1],
        )
    };
    let [q, k, v, o] = TensorRole::ALL;
    Ok(Some([
        of("Q", q, problem.byte_strides(q), row.block_m)?,
        of("dO", o, backward.byte_strides(o), row.block_m)?,
        of("K", k, problem.byte_strides(k), row.keys_of_box())?,
        of("V", v, problem.byte_strides(v), row.keys_of_box())?,
    ]))
}
