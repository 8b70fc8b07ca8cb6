//! Tensor maps: the call that makes them, as strict as the driver's, and what a launch finds in one. The map's bytes are this
//! driver's own.

use crate::context::needs_context;
use crate::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CuResult, call, complain, faults, peers};
use kernels_gpu::geometry;
use kernels_gpu::params::{ForwardParams, Strides, TensorMap, WgmmaParams};
use kernels_gpu::row::{Dtype, Row};
use std::ffi::{CStr, c_char, c_void};

/// What the first word of a map begins with.
const TAG: u64 = 0xfa4e << 48;
/// Words of a map: the tag with type, dimensions and swizzle; the address; sizes, strides and box, each up to 5.
const ADDRESS: usize = 1;
const DIMS: usize = 2;
const STRIDES: usize = 7;
const BOXES: usize = 11;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    address: *mut *const c_void,
    version: i32,
    _: u64,
) -> CuResult {
    call(|| {
        // SAFETY: by the call's contract, the name ends in NUL.
        let name = unsafe { CStr::from_ptr(symbol) };
        // They came with CUDA 12.0, or have their signature since.
        if version < 12000 || faults::cuda_version() < (12, 0) {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        let found = match name.to_bytes() {
            b"cuTensorMapEncodeTiled" => encode_tiled as *const c_void,
            b"cuStreamWriteValue32" => peers::write_value as *const c_void,
            b"cuStreamWaitValue32" => peers::wait_value as *const c_void,
            _ => return Err(CUDA_ERROR_NOT_FOUND),
        };
        // SAFETY: by the call's contract, `address` is valid for a write.
        unsafe { address.write(found) };
        Ok(())
    })
}

unsafe extern "C" fn encode_tiled(
    map: *mut TensorMap,
    data_type: u32,
    rank: u32,
    address: u64,
    dims: *const u64,
    strides: *const u64,
    box_dims: *const u32,
    element_strides: *const u32,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
) -> CuResult {
    call(|| {
        let refuse = |what: &str| {
            complain(&format!("cuTensorMapEncodeTiled: {what}"));
            Err(CUDA_ERROR_INVALID_VALUE)
        };
        needs_context()?;
        if !(map as u64).is_multiple_of(64) {
            return refuse("a map lies at a multiple of 64 bytes");
        }
        if !(1..=5).contains(&rank) || l2_promotion > 3 || (interleave, fill) != (0, 0) {
            return refuse("dimensions, L2 promotion, interleave or fill");
        }
        let rank = rank as usize;
        // SAFETY: by the call's contract, the lists are as long as `rank` says, that of the strides one less.
        let (dims, strides, box_dims, element_strides) = unsafe {
            (
                std::slice::from_raw_parts(dims, rank),
                std::slice::from_raw_parts(strides, rank - 1),
                std::slice::from_raw_parts(box_dims, rank),
                std::slice::from_raw_parts(element_strides, rank),
            )
        };
        // Float16 and bfloat16; rows of 64 and 128 bytes.
        if ![6, 9].contains(&data_type) || box_dims[0] * 2 != 16 << swizzle || !address.is_multiple_of(16) {
            return refuse("type, swizzle or address");
        }
        if !dims.iter().all(|dim| (1..=1 << 32).contains(dim)) || element_strides.iter().any(|&s| s != 1) {
            return refuse("sizes or steps");
        }
        if !strides.iter().all(|stride| stride.is_multiple_of(16) && *stride < 1 << 40) {
            return refuse("strides");
        }
        if !box_dims.iter().all(|length| (1..=256).contains(length)) {
            return refuse("a box");
        }
        let mut words = [0; 16];
        words[0] = TAG | u64::from(data_type) << 16 | (rank as u64) << 8 | u64::from(swizzle);
        words[ADDRESS] = address;
        words[DIMS..DIMS + rank].copy_from_slice(dims);
        words[STRIDES..STRIDES + rank - 1].copy_from_slice(strides);
        let lengths = box_dims.iter().fold(0, |lengths, &length| lengths << 16 | u128::from(length));
        words[BOXES..BOXES + 2].copy_from_slice(&[lengths as u64, (lengths >> 64) as u64]);
        // SAFETY: by the call's contract, `map` is valid for a write.
        unsafe { map.write(TensorMap(words)) };
        Ok(())
    })
}

/// One dimension of a tensor, as a launch must find it: its size, the bytes from one element to the next, and the box.
type Dimension = (u32, i64, u32);

/// The address of a map of keys, and its strides.
pub(crate) fn place(TensorMap(words): &TensorMap) -> (u64, Strides) {
    let [row, head, batch] = [0, 1, 2].map(|dimension| words[STRIDES + dimension].cast_signed());
    (words[ADDRESS], Strides { batch, head, row })
}

/// Whether the maps of a launch describe the tensors that its other parameters do.
pub(crate) fn are_right(params: &WgmmaParams, row: &Row) -> bool {
    let WgmmaParams { forward, q, k, v } = params;
    let packed = geometry::packed_heads(row, forward.group.value);
    let heads_kv = forward.heads_q / forward.group.value;
    let width = geometry::column_width(row);
    let head_dim = (row.head_dim, 0, width);
    let Strides { batch, head, row: row_stride } = forward.q_strides;
    let queries = [
        head_dim,
        (packed, head, packed),
        (forward.seqlen_q, row_stride, row.block_m / packed),
        (forward.heads_q / packed, i64::from(packed) * head, 1),
        (forward.batch, batch, 1),
    ];
    let keys = |strides: &Strides| {
        [
            head_dim,
            (forward.seqlen_k, strides.row, row.block_n),
            (heads_kv, strides.head, 1),
            (forward.batch, strides.batch, 1),
        ]
    };
    let ForwardParams { k_strides, v_strides, .. } = forward;
    is_of(q, row, forward.q, &queries)
        && is_of(k, row, forward.k, &keys(k_strides))
        && is_of(v, row, forward.v, &keys(v_strides))
}

fn is_of(map: &TensorMap, row: &Row, address: u64, dims: &[Dimension]) -> bool {
    let TensorMap(words) = map;
    let data_type = match row.dtype {
        Dtype::F16 => 6,
        Dtype::Bf16 => 9,
    };
    let rank = dims.len() as u64;
    let swizzle = (geometry::column_width(row) / 16).ilog2() + 1;
    let lengths = dims.iter().fold(0, |lengths, dim| lengths << 16 | u128::from(dim.2));
    words[0] == (TAG | data_type << 16 | rank << 8 | u64::from(swizzle))
        && words[ADDRESS] == address
        && words[BOXES..BOXES + 2] == [lengths as u64, (lengths >> 64) as u64]
        && dims.iter().enumerate().all(|(i, &(size, stride, _))| {
            // Along one element nothing steps.
            let is_stride = i == 0 || size == 1 || words[STRIDES + i - 1] == stride as u64;
            words[DIMS + i] == u64::from(size) && is_stride
        })
}
