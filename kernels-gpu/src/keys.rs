//! Where the rows of K and V lie in global memory.

use crate::params::Strides;

/// The rows of one KV head of K or V: evenly spaced, from the first key of the sequence on.
#[derive(Clone, Copy, Debug)]
pub struct KeyRows {
    /// The global address of the tensor.
    base: u64,
    /// Bytes from there to the head's first row.
    head: i64,
    /// Bytes from one row to the next.
    stride: i64,
}

impl KeyRows {
    /// Those of the tensor at the global address `base`.
    #[inline(always)]
    pub fn new(base: u64, strides: &Strides, batch: u32, head_kv: u32) -> Self {
        let head = i64::from(batch) * strides.batch + i64::from(head_kv) * strides.head;
        Self { base, head, stride: strides.row }
    }

    /// The global address of byte `along` of a key's row.
    #[inline(always)]
    pub fn address(&self, key: u32, along: u32) -> u64 {
        self.base.wrapping_add_signed(self.head + i64::from(key) * self.stride + i64::from(along))
    }

    /// The global address of the first row.
    #[inline(always)]
    pub fn start(&self) -> u64 {
        self.base.wrapping_add_signed(self.head)
    }

    /// Bytes from a row to the one `rows` rows further on.
    #[inline(always)]
    pub fn distance(&self, rows: i64) -> i64 {
        rows * self.stride
    }
}
