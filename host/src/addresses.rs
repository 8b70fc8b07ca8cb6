//! What is asked of the addresses of a call: that they are aligned, and that tensors which must lie apart do.

use crate::error::Error;
use std::ops::Range;

/// Refuses an address of a tensor that is not aligned.
pub(crate) fn aligned(tensor: &'static str, address: u64, required: u64) -> Result<(), Error> {
    if address.is_multiple_of(required) {
        return Ok(());
    }
    Err(Error::Misaligned { tensor, what: "address", value: address.into(), required })
}

/// The addresses that so many elements take.
pub(crate) fn range(address: u64, elements: usize, element_bytes: u32) -> Range<u64> {
    address..address.saturating_add(elements as u64 * u64::from(element_bytes))
}

/// Whether an address is in both.
pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
