//! Tensor maps from the driver: `cuTensorMapEncodeTiled`, which came with CUDA 12.0, after what cust_raw declares.

use super::TensorBox;
use super::driver::{call_since, check};
use crate::error::Error;
use cust::sys::CUresult;
use kernels_gpu::params::TensorMap;
use kernels_gpu::row::Dtype;
use std::ffi::{c_int, c_void};
use std::mem::transmute;

/// The CUDA version whose call this is.
const CUDA_VERSION: c_int = 12000;

/// `CUtensorMapDataType` of cuda.h.
const FLOAT16: u32 = 6;
const BFLOAT16: u32 = 9;
/// `CUtensorMapSwizzle`: rows of 64 and of 128 bytes.
const SWIZZLE_64B: u32 = 2;
const SWIZZLE_128B: u32 = 3;
/// `CUtensorMapL2promotion`: a copy brings 256 bytes to L2 at a time.
const L2_256B: u32 = 3;
/// `CUtensorMapInterleave` and `CUtensorMapFloatOOBfill`: none, and zeros.
const NO_INTERLEAVE: u32 = 0;
const FILL_WITH_ZEROS: u32 = 0;

type EncodeTiled = unsafe extern "C" fn(
    *mut TensorMap,
    u32,
    u32,
    *mut c_void,
    *const u64,
    *const u64,
    *const u32,
    *const u32,
    u32,
    u32,
    u32,
    u32,
) -> CUresult;

/// A map where the driver writes one: at a multiple of 64 bytes.
#[repr(align(64))]
struct Aligned(TensorMap);

/// The driver's call.
#[derive(Clone, Copy)]
pub(super) struct Encoder(EncodeTiled);

impl Encoder {
    /// Looks the call up; `None` where the driver is older than it.
    pub(super) fn find() -> Option<Encoder> {
        let call = call_since(c"cuTensorMapEncodeTiled", CUDA_VERSION)?;
        // SAFETY: the driver's call of this name and version has this signature.
        Some(Encoder(unsafe { transmute::<*mut c_void, EncodeTiled>(call.as_ptr()) }))
    }

    /// The map of a tensor. The context of its memory is current.
    ///
    /// # Errors
    /// What the driver reports.
    pub(super) fn encode(self, tensor: &TensorBox) -> Result<TensorMap, Error> {
        let data_type = match tensor.dtype {
            Dtype::F16 => FLOAT16,
            Dtype::Bf16 => BFLOAT16,
        };
        let swizzle = if tensor.row_bytes() == 64 { SWIZZLE_64B } else { SWIZZLE_128B };
        let mut map = Aligned(TensorMap::default());
        // SAFETY: the lists are as long as the rank says, the map is 128 bytes aligned to 64; the address is only noted.
        let result = unsafe {
            (self.0)(
                &mut map.0,
                data_type,
                tensor.dims().len() as u32,
                tensor.address as *mut c_void,
                tensor.dims().as_ptr(),
                tensor.strides().as_ptr(),
                tensor.box_dims().as_ptr(),
                [1; 5].as_ptr(),
                NO_INTERLEAVE,
                swizzle,
                L2_256B,
                FILL_WITH_ZEROS,
            )
        };
        check("cuTensorMapEncodeTiled", result)?;
        Ok(map.0)
    }
}
