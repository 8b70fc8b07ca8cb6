//! What bulk copies are told of Q, K and V, for kernels of [`Isa::Wgmma`].

use crate::device::{DeviceInfo, TensorBox};
use crate::error::Error;
use crate::problem::{Problem, TensorRole};
use kernels_gpu::geometry;
use kernels_gpu::row::{Isa, Row};

/// Why a kernel with wgmma cannot compute a problem.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// A block has no room for one query of all heads that share a KV head.
    Group { heads: u32, block_m: u32 },
    /// What [`Error::NoTensorMap`] and [`Error::NoTensorMaps`] say.
    Tensor(Error),
}

/// Why a row's kernel cannot compute a problem on a device, if that is so. Rows without wgmma always can.
pub(super) fn obstacle(problem: &Problem, row: &Row, device: &DeviceInfo) -> Option<Obstacle> {
    if row.isa == Isa::Mma {
        return None;
    }
    if !device.has_tensor_maps {
        return Some(Obstacle::Tensor(Error::NoTensorMaps { name: device.name.clone() }));
    }
    let heads = geometry::packed_heads(row, problem.group());
    if geometry::rows_of_block(row, problem.group()) == 0 {
        return Some(Obstacle::Group { heads, block_m: row.block_m });
    }
    boxes(problem, row).err().map(Obstacle::Tensor)
}

/// Q, K and V without their addresses, and the box of each that one copy brings: a block of query rows, or of keys.
///
/// # Errors
/// [`Error::NoTensorMap`].
pub(super) fn boxes(problem: &Problem, row: &Row) -> Result<[TensorBox; 3], Error> {
    let (sizes, dtype) = (problem.sizes(), problem.dtype());
    let (width, head_dim) = (geometry::column_width(row), u64::from(sizes.head_dim));
    let element = i64::from(dtype.bytes());
    let packed = geometry::packed_heads(row, problem.group());
    let strides = problem.byte_strides(TensorRole::Q);
    let q = TensorBox::new(
        "Q",
        dtype,
        [
            ("head_dim", head_dim, element),
            ("packed heads", packed.into(), strides.head),
            ("rows", sizes.seqlen_q.into(), strides.row),
            ("heads", (sizes.heads_q / packed).into(), strides.head.saturating_mul(packed.into())),
            ("batch", sizes.batch.into(), strides.batch),
        ],
        [width, packed, row.block_m / packed, 1, 1],
    )?;
    let key_block = |role: TensorRole| {
        let strides = problem.byte_strides(role);
        TensorBox::new(
            role.name(),
            dtype,
            [
                ("head_dim", head_dim, element),
                ("rows", sizes.seqlen_k.into(), strides.row),
                ("heads", sizes.heads_kv.into(), strides.head),
                ("batch", sizes.batch.into(), strides.batch),
            ],
            [width, row.block_n, 1, 1],
        )
    };
    Ok([q, key_block(TensorRole::K)?, key_block(TensorRole::V)?])
}
