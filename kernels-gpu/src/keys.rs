//! Where the rows of K and V lie in global memory.

#[cfg(target_arch = "nvptx64")]
use crate::params::RaggedParams;
use crate::params::Strides;
#[cfg(target_arch = "nvptx64")]
use crate::ptx::memory::{ld_global_b32, to_global};
#[cfg(target_arch = "nvptx64")]
use crate::sequence::between;

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

    /// The rows from another key on.
    #[inline(always)]
    pub fn from(self, key: u32) -> Self {
        Self { head: self.head + i64::from(key) * self.stride, ..self }
    }

    /// Bytes from a row to the one `rows` rows further on.
    #[inline(always)]
    pub fn distance(&self, rows: i64) -> i64 {
        rows * self.stride
    }
}

/// The rows of one KV head of K or V of a ragged batch: contiguous from the sequence's first key on, or in pages.
#[cfg(target_arch = "nvptx64")]
#[derive(Clone, Copy, Debug)]
pub struct RaggedKeys<'a> {
    params: &'a RaggedParams,
    rows: KeyRows,
    /// Bytes from one page to the next.
    page_stride: i64,
    /// The global address of the sequence's first entry in the block table, and entries from there on.
    table: u64,
    entries: u32,
}

#[cfg(target_arch = "nvptx64")]
impl<'a> RaggedKeys<'a> {
    /// Those of the tensor at the global address `base`, for a sequence whose first key is row `k_start` of packed K and V.
    ///
    /// # Safety
    /// As for [`crate::sequence::Sequence::of_ragged`].
    #[inline(always)]
    pub unsafe fn new(
        params: &'a RaggedParams,
        base: u64,
        strides: &Strides,
        (batch, head_kv, k_start): (u32, u32, u32),
    ) -> Self {
        if params.block_table == 0 {
            let rows = KeyRows::new(base, strides, batch, head_kv).from(k_start);
            return Self { params, rows, page_stride: 0, table: 0, entries: 0 };
        }
        let (first, entries) = match params.page_indptr {
            0 => (u64::from(batch) * u64::from(params.table_stride), params.table_stride),
            starts => {
                // SAFETY: the caller's.
                let (first, entries) = unsafe { between(starts, batch, params.table_stride) };
                (u64::from(first), entries)
            }
        };
        let table = to_global(params.block_table) + first * 4;
        Self { params, rows: KeyRows::new(base, strides, 0, head_kv), page_stride: strides.batch, table, entries }
    }

    /// The global address of a key's row, unless it lies in a page that is not there: such a key is all zeros.
    ///
    /// # Safety
    /// The key is one of the sequence's.
    #[inline(always)]
    pub unsafe fn row(&self, key: u32) -> Option<u64> {
        if self.table == 0 {
            return Some(self.rows.address(key, 0));
        }
        let (entry, within) = self.params.page.divide(key);
        if entry >= self.entries {
            return None;
        }
        // SAFETY: an entry of the sequence.
        let page = unsafe { ld_global_b32(self.table + u64::from(entry) * 4) };
        // A negative number is past the last page, too.
        let address = self.rows.address(within, 0).wrapping_add_signed(i64::from(page) * self.page_stride);
        (page < self.params.pages).then_some(address)
    }
}
