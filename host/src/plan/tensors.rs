//! What bulk copies are told of Q, K and V, for kernels of [`Isa::Wgmma`].

use super::ragged::box_rows;
use crate::device::{DeviceInfo, TensorBox};
use crate::error::Error;
use crate::problem::{KeySequences, Pages, Problem, TensorRole};
use kernels_gpu::geometry;
use kernels_gpu::row::{Isa, Row};

/// Rows after which the swizzle of shared memory repeats: a box of fewer would not lie as in a box of a whole block.
const BOX_ROWS_LEAST: u32 = 8;

/// Why a kernel with wgmma cannot compute a problem.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// A block has no room for one query of all heads that share a KV head.
    Group { heads: u32, block_m: u32 },
    /// A box would have fewer rows than the swizzle's pattern.
    Pages { page: u32 },
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
    if let KeySequences::Paged(Pages { page, .. }) = problem.keys()
        && box_rows(problem, row) < BOX_ROWS_LEAST
    {
        return Some(Obstacle::Pages { page });
    }
    boxes(problem, row).err().map(Obstacle::Tensor)
}

/// Q, K and V without their addresses, and the box of each that one copy brings: a block of query rows, or of keys.
///
/// # Errors
/// [`Error::NoTensorMap`].
pub(super) fn boxes(problem: &Problem, row: &Row) -> Result<[TensorBox; 3], Error> {
    let (dtype, queries) = (problem.dtype(), problem.extent(TensorRole::Q));
    let width = geometry::column_width(row);
    let element = i64::from(dtype.bytes());
    let packed = geometry::packed_heads(row, problem.group());
    let strides = problem.byte_strides(TensorRole::Q);
    let q = TensorBox::new(
        "Q",
        dtype,
        [
            ("head_dim", queries.width.into(), element),
            ("packed heads", packed.into(), strides.head),
            ("rows", queries.rows.into(), strides.row),
            ("heads", (queries.heads / packed).into(), strides.head.saturating_mul(packed.into())),
            ("batch", queries.batch.into(), strides.batch),
        ],
        [width, packed, row.block_m / packed, 1, 1],
    )?;
    let key_block = |role: TensorRole| {
        let (strides, keys) = (problem.byte_strides(role), problem.extent(role));
        TensorBox::new(
            role.name(),
            dtype,
            [
                ("head_dim", keys.width.into(), element),
                ("rows", keys.rows.into(), strides.row),
                ("heads", keys.heads.into(), strides.head),
                ("batch", keys.batch.into(), strides.batch),
            ],
            [width, box_rows(problem, row), 1, 1],
        )
    };
    Ok([q, key_block(TensorRole::K)?, key_block(TensorRole::V)?])
}
