//! Where the query rows of a work tile lie in global memory: Q, O, LSE, and the partial O and LSE of a split.

use crate::divisor::Divisor;
use crate::params::ForwardParams;
use crate::ptx::memory::{ld_global_b32, to_global, to_global_again};
use crate::scheduler::{QueryBlock, Rows, Work};

/// The query rows of a work tile. Rows are counted as the tile's head has them, packed or not.
///
/// It only refers to the parameter block and computes anew at each call, so that nothing is kept in registers for later.
#[derive(Clone, Copy, Debug)]
pub struct QueryRows<'a> {
    params: &'a ForwardParams,
    work: &'a Work<'a>,
    block: QueryBlock,
}

/// Rows of Q on their way to a copy.
#[derive(Clone, Copy, Debug)]
pub struct QuerySource<'a> {
    params: &'a ForwardParams,
    rows: Rows,
    /// The global address of a chunk of query 0 of the tile's first head.
    start: u64,
    /// Rows that exist.
    count: u32,
}

impl<'a> QueryRows<'a> {
    /// Those of a work tile.
    #[inline(always)]
    pub fn new(params: &'a ForwardParams, work: &'a Work<'a>, block: QueryBlock) -> Self {
        Self { params, work, block }
    }

    /// The first row of the tile's block.
    #[inline(always)]
    pub fn first(&self) -> u32 {
        self.work.first_row
    }

    /// Past the last row of the block that exists.
    #[inline(always)]
    pub fn past(&self) -> u32 {
        self.block.past_rows(self.params, self.work)
    }

    /// Rows of all heads and batch entries: of the tensor, and of a split.
    #[inline(always)]
    pub fn of_tensor(&self) -> u64 {
        let params = self.params;
        let batch = if self.is_packed() { 1 } else { params.batch };
        u64::from(batch) * u64::from(params.heads_q) * u64::from(params.seqlen_q)
    }

    /// Whether the sequences of Q follow each other in one.
    #[inline(always)]
    fn is_packed(&self) -> bool {
        self.block.ragged && self.params.ragged.cu_seqlens_q != 0
    }

    /// Elements of a row of O of a tile of `tile_width`.
    #[inline(always)]
    pub fn width(&self, tile_width: u32) -> u32 {
        if self.block.ragged { self.params.ragged.width_v } else { tile_width }
    }

    /// Chunks of four elements of a row of O of a tile that has `of_tile` of them.
    #[inline(always)]
    pub fn chunks(&self, of_tile: Divisor) -> Divisor {
        if self.block.ragged { self.params.ragged.chunks_v } else { of_tile }
    }

    /// The query head of a row.
    #[inline(always)]
    pub fn head(&self, row: u32) -> u32 {
        self.work.head_q + self.query_and_head(row).1
    }

    /// The batch entry.
    #[inline(always)]
    pub fn batch(&self) -> u32 {
        self.work.batch
    }

    /// The score of a row's sink, if there are sinks: a natural logarithm.
    ///
    /// # Safety
    /// As for [`crate::sequence::Sequence::of_ragged`].
    #[inline(always)]
    pub unsafe fn sink(&self, row: u32) -> Option<f32> {
        if !self.block.ragged || self.params.ragged.sinks == 0 {
            return None;
        }
        let at = to_global_again(self.params.ragged.sinks) + u64::from(self.head(row)) * 4;
        // SAFETY: an element a query head.
        Some(f32::from_bits(unsafe { ld_global_b32(at) }))
    }

    /// The rows of Q, from byte `along` of each on.
    #[inline(always)]
    pub fn source(&self, along: u32) -> QuerySource<'a> {
        let (params, rows) = (self.params, self.block.rows);
        let strides = &params.q_strides;
        let first_head = i64::from(self.work.batch) * strides.batch
            + i64::from(self.work.head_q) * strides.head
            + i64::from(self.work.sequence.q_start) * strides.row
            + i64::from(along);
        let start = to_global(params.q).wrapping_add_signed(first_head);
        QuerySource {
            params,
            rows,
            start,
            count: rows.count(self.work.sequence.seqlen_q.get(), params.group),
        }
    }

    /// The query of a row.
    #[inline(always)]
    pub fn query(&self, row: u32) -> u32 {
        self.block.rows.query(row, self.params.group)
    }

    /// The global address of a row of O.
    #[inline(always)]
    pub fn o(&self, row: u32) -> u64 {
        let (query, head) = self.query_and_head(row);
        let strides = &self.params.o_strides;
        let offset = i64::from(self.work.batch) * strides.batch
            + i64::from(self.work.head_q + head) * strides.head
            + i64::from(self.work.sequence.q_start + query) * strides.row
            + i64::from(self.work.slice_bytes(self.params));
        to_global(self.params.o).wrapping_add_signed(offset)
    }

    /// Whether LSE is wanted, of which each slice of the value vectors has the same: the first writes it.
    #[inline(always)]
    pub fn wants_lse(&self) -> bool {
        self.params.lse != 0 && self.work.slice == 0
    }

    /// The global address of a row's LSE, where it is wanted; `index` is [`Self::index`].
    #[inline(always)]
    pub fn lse(&self, index: u64) -> u64 {
        to_global(self.params.lse) + index * 4
    }

    /// Where a row stands in `[batch, heads_q, seqlen_q]`.
    #[inline(always)]
    pub fn index(&self, row: u32) -> u64 {
        let (query, head) = self.query_and_head(row);
        let batch = if self.is_packed() { 0 } else { self.work.batch };
        let head = u64::from(batch) * u64::from(self.params.heads_q) + u64::from(self.work.head_q + head);
        head * u64::from(self.params.seqlen_q) + u64::from(self.work.sequence.q_start + query)
    }

    /// The first row of the slice's partial O and LSE, which are `[slices, splits, batch, heads_q, seqlen_q]`.
    #[inline(always)]
    pub fn first_partial_row(&self) -> u64 {
        u64::from(self.work.slice * self.params.split.splits.value) * self.of_tensor()
    }

    /// Where a row stands in `[slices, splits, batch, heads_q, seqlen_q]`.
    #[inline(always)]
    pub fn partial_index(&self, row: u32) -> u64 {
        self.first_partial_row() + u64::from(self.work.split) * self.of_tensor() + self.index(row)
    }

    /// The global address of a row of the partial O, of `head_dim` elements; `index` is [`Self::partial_index`].
    #[inline(always)]
    pub fn partial_o(&self, index: u64, head_dim: u32) -> u64 {
        to_global(self.params.split.partial_o) + index * u64::from(head_dim * 4)
    }

    /// The global address of a row's partial LSE; `index` is [`Self::partial_index`].
    #[inline(always)]
    pub fn partial_lse(&self, index: u64) -> u64 {
        to_global(self.params.split.partial_lse) + index * 4
    }

    #[inline(always)]
    fn query_and_head(&self, row: u32) -> (u32, u32) {
        self.block.rows.query_and_head(row, self.group())
    }

    #[inline(always)]
    fn group(&self) -> Divisor {
        self.params.group
    }
}

impl QuerySource<'_> {
    /// The global address of a row's chunk; it lies outside of Q where the row does not exist.
    #[inline(always)]
    pub fn address(&self, row: u32) -> u64 {
        let (query, head) = self.rows.query_and_head(row, self.params.group);
        let strides = &self.params.q_strides;
        let offset = i64::from(head) * strides.head + i64::from(query) * strides.row;
        self.start.wrapping_add_signed(offset)
    }

    /// Whether a row exists.
    #[inline(always)]
    pub fn exists(&self, row: u32) -> bool {
        row < self.count
    }
}
