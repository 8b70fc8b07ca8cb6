//! Integers and single numbers at addresses.

use crate::call::Dtype;
use crate::real::Real;

/// Adds to an address a distance in elements of `bytes` each.
pub(crate) fn at(address: u64, elements: i64, bytes: usize) -> u64 {
    address.wrapping_add_signed(elements.wrapping_mul(bytes as i64))
}

/// Entry `index` of 32-bit integers, `None` where there are none.
///
/// # Safety
/// The entry lies there, aligned.
pub(crate) unsafe fn integer(address: Option<u64>, index: i64) -> Option<i64> {
    // SAFETY: the caller's promise.
    address.map(|address| unsafe { *(at(address, index, 4) as *const i32) }.into())
}

/// Entry `index` of numbers of a type.
///
/// # Safety
/// The entry lies there, aligned.
pub(crate) unsafe fn number<R: Real>(dtype: Dtype, address: u64, index: i64) -> R {
    let mut found = [R::ZERO];
    // SAFETY: the caller's promise.
    unsafe { R::read_row(dtype, at(address, index, dtype.bytes()), &mut found) };
    found[0]
}

/// Writes entry `index` of numbers of a type.
///
/// # Safety
/// The entry may be written, aligned.
pub(crate) unsafe fn write_number<R: Real>(dtype: Dtype, address: u64, index: i64, value: R) {
    // SAFETY: the caller's promise.
    unsafe { R::write_row(dtype, at(address, index, dtype.bytes()), &[value]) };
}
