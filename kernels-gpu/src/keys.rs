//! Where the rows of K and V lie in global memory.

use crate::params::Strides;
#[cfg(target_arch = "nvptx64")]
use crate::params::{ForwardParams, RaggedParams};
#[cfg(target_arch = "nvptx64")]
use crate::ptx::memory::{ld_global_b32, to_global_again};
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

    /// Those from the global address of the first one on.
    #[inline(always)]
    pub fn starting_at(address: u64, strides: &Strides) -> Self {
        Self { base: address, head: 0, stride: strides.row }
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

    /// The rows from another key on, kept as one address.
    #[inline(always)]
    pub fn from(self, key: u32) -> Self {
        let head = self.head + i64::from(key) * self.stride;
        Self { base: self.base.wrapping_add_signed(head), head: 0, stride: self.stride }
    }

    /// The rows from byte `along` of each on.
    #[inline(always)]
    pub fn along(self, along: u32) -> Self {
        Self { base: self.base + u64::from(along), ..self }
    }

    /// Bytes from a row to the one `rows` rows further on.
    #[inline(always)]
    pub fn distance(&self, rows: i64) -> i64 {
        rows * self.stride
    }
}

/// Which pages hold the keys of a sequence.
#[cfg(target_arch = "nvptx64")]
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'a> {
    params: &'a RaggedParams,
    /// The sequence's first entry in the block table.
    first: u32,
}

#[cfg(target_arch = "nvptx64")]
impl<'a> PageTable<'a> {
    /// That of a batch entry.
    ///
    /// # Safety
    /// As for [`crate::sequence::Sequence::of_ragged`].
    #[inline(always)]
    pub unsafe fn new(params: &'a RaggedParams, batch: u32) -> Self {
        let first = match params.page_indptr {
            0 => batch * params.table_stride,
            // SAFETY: the caller's.
            starts => unsafe { between(starts, batch, params.table_stride).0 },
        };
        Self { params, first }
    }

    /// The page of a key: not there if it is none of the pool's, as a negative number is. The load is not waited for before the number is
    /// looked at, so that who asks early waits for nothing.
    ///
    /// # Safety
    /// The key is one of the sequence's, whose pages are in the table, and there is a table.
    #[inline(always)]
    pub unsafe fn page(&self, key: u32) -> u32 {
        let entry = self.params.page.divide(key).0;
        let at = to_global_again(self.params.block_table) + u64::from(self.first + entry) * 4;
        // SAFETY: the caller's.
        unsafe { ld_global_b32(at) }
    }
}

/// The rows of one KV head of K and V of a ragged batch: contiguous from the sequence's first key on, or in pages.
#[cfg(target_arch = "nvptx64")]
#[derive(Clone, Copy, Debug)]
pub struct RaggedKeys<'a> {
    table: PageTable<'a>,
    /// K's and V's.
    rows: [KeyRows; 2],
    /// Bytes from one page to the next.
    page_strides: [i64; 2],
}

#[cfg(target_arch = "nvptx64")]
impl<'a> RaggedKeys<'a> {
    /// Those of a launch, for a sequence whose first key is row `k_start` of packed K and V.
    ///
    /// # Safety
    /// As for [`crate::sequence::Sequence::of_ragged`].
    #[inline(always)]
    pub unsafe fn new(params: &'a ForwardParams, (batch, head_kv, k_start): (u32, u32, u32)) -> Self {
        let ragged = &params.ragged;
        // Pages are what the strides call batch entries.
        let batch_of_rows = if ragged.block_table == 0 { batch } else { 0 };
        let rows = |base, strides| {
            KeyRows::new(to_global_again(base), strides, batch_of_rows, head_kv).from(k_start)
        };
        Self {
            // SAFETY: the caller's.
            table: unsafe { PageTable::new(ragged, batch) },
            rows: [rows(params.k, &params.k_strides), rows(params.v, &params.v_strides)],
            page_strides: [params.k_strides.batch, params.v_strides.batch],
        }
    }

    /// The same, with rows of V from byte `along` of each on.
    #[inline(always)]
    pub fn with_v_from(mut self, along: u32) -> Self {
        self.rows[1].base += u64::from(along);
        self
    }

    /// The global addresses of a key's row of K and of V, unless it lies in a page that is not there: such a key is all zeros.
    ///
    /// # Safety
    /// The key is one of the sequence's.
    #[inline(always)]
    pub unsafe fn row(&self, key: u32) -> Option<[u64; 2]> {
        // SAFETY: the caller's.
        self.row_in(unsafe { self.page(key) }, key)
    }

    /// The page of a key, for [`Self::row_in`].
    ///
    /// # Safety
    /// As for [`Self::row`].
    #[inline(always)]
    pub unsafe fn page(&self, key: u32) -> u32 {
        // SAFETY: the caller's.
        if self.table.params.block_table == 0 { 0 } else { unsafe { self.table.page(key) } }
    }

    /// As [`Self::row`], of a key whose page is known.
    #[inline(always)]
    pub fn row_in(&self, page: u32, key: u32) -> Option<[u64; 2]> {
        let [k, v] = &self.rows;
        if self.table.params.block_table == 0 {
            return Some([k.address(key, 0), v.address(key, 0)]);
        }
        let within = self.table.params.page.divide(key).1;
        let [k_page, v_page] = self.page_strides.map(|stride| i64::from(page) * stride);
        let rows = [
            k.address(within, 0).wrapping_add_signed(k_page),
            v.address(within, 0).wrapping_add_signed(v_page),
        ];
        (page < self.table.params.pages).then_some(rows)
    }
}
