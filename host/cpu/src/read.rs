//! Elements and integers at addresses.

use crate::call::Dtype;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Adds to an address a distance in elements of `bytes` each.
pub(crate) fn at(address: u64, elements: i64, bytes: usize) -> u64 {
    address.wrapping_add_signed(elements.wrapping_mul(bytes as i64))
}

/// Reads contiguous elements as float32.
///
/// # Safety
/// `out.len()` elements of this type lie from `address` on, aligned.
pub(crate) unsafe fn read_row(dtype: Dtype, address: u64, out: &mut [f32]) {
    let length = out.len();
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Dtype::F16 => std::slice::from_raw_parts(address as *const f16, length).convert_to_f32_slice(out),
            Dtype::Bf16 => {
                std::slice::from_raw_parts(address as *const bf16, length).convert_to_f32_slice(out);
            }
            Dtype::F32 => out.copy_from_slice(std::slice::from_raw_parts(address as *const f32, length)),
        }
    }
}

/// Writes contiguous elements, rounded to nearest even.
///
/// # Safety
/// `row.len()` elements of this type may be written from `address` on, aligned.
pub(crate) unsafe fn write_row(dtype: Dtype, address: u64, row: &[f32]) {
    let length = row.len();
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            Dtype::F16 => {
                std::slice::from_raw_parts_mut(address as *mut f16, length).convert_from_f32_slice(row);
            }
            Dtype::Bf16 => {
                std::slice::from_raw_parts_mut(address as *mut bf16, length).convert_from_f32_slice(row);
            }
            Dtype::F32 => std::slice::from_raw_parts_mut(address as *mut f32, length).copy_from_slice(row),
        }
    }
}

/// Entry `index` of 32-bit integers, `None` where there are none.
///
/// # Safety
/// The entry lies there, aligned.
pub(crate) unsafe fn integer(address: Option<u64>, index: i64) -> Option<i64> {
    // SAFETY: the caller's promise.
    address.map(|address| unsafe { *(at(address, index, 4) as *const i32) }.into())
}

/// Entry `index` of float32 numbers.
///
/// # Safety
/// The entry lies there, aligned.
pub(crate) unsafe fn float(address: u64, index: i64) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { *(at(address, index, 4) as *const f32) }
}
