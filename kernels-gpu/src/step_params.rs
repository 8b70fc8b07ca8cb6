//! The parameter blocks of the step kernels that are launched by themselves: merge, append, copy, and the gradients of sinks and of a bias.

use crate::backward::params::BackwardParams;
use crate::divisor::Divisor;
use crate::params::{Bytes, Strides};

/// Parameters of a merge launch: O and LSE of several calls over disjoint keys become one. All pointers are device addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeParams {
    /// O of the first state, `[batch, heads, rows, width]`, 16-byte aligned.
    pub partial_o: u64,
    /// LSE of the first state, float32, contiguous `[batch, heads, rows]`.
    pub partial_lse: u64,
    /// Bytes from a state's O to the next one's: a multiple of 16, of either sign.
    pub o_next: i64,
    /// Bytes from a state's LSE to the next one's: a multiple of 4, of either sign.
    pub lse_next: i64,
    /// O, 16-byte aligned; the first state's own, or apart from all of them.
    pub o: u64,
    /// LSE, as `partial_lse` and apart from it; 0 where none is wanted.
    pub lse: u64,
    /// Strides of every state's O.
    pub partial_strides: Strides,
    /// Strides of O.
    pub o_strides: Strides,
    /// A u32: rows of each head that count, where others belong to no sequence and are not written; 0 where all count.
    pub rows_used: u64,
    /// Sinks, as [`crate::params::RaggedParams::sinks`].
    pub sinks: u64,
    /// Rows of all heads and batch entries.
    pub rows: u32,
    /// Heads.
    pub heads: Divisor,
    /// Rows of a head.
    pub seqlen: Divisor,
    /// States.
    pub states: u32,
    /// Chunks of eight elements of a row: width / 8.
    pub chunks: u32,
    /// The threads of a row are 2 to this power, at least `chunks` and at most 32.
    pub threads_log2: u32,
}

/// Parameters of an append launch, one CTA a new token, one a token of Q that is rotated, and one for the lengths. All pointers are device
/// addresses; whatever lies there, nothing outside of the tensors is read or written.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendParams {
    /// New keys `[batch, heads_kv, tokens, width_k]`, 16-byte aligned.
    pub new_k: u64,
    /// New values `[batch, heads_kv, tokens, width_v]`, 16-byte aligned.
    pub new_v: u64,
    /// The cache of keys `[pages, heads_kv, page, width_k]`, 16-byte aligned. A contiguous cache has a page a sequence.
    pub k: u64,
    /// The cache of values, as that of keys.
    pub v: u64,
    /// Q, 16-byte aligned; unused where `q_tokens` is 0.
    pub q: u64,
    /// The rotated Q: Q's own address and strides, or apart from it.
    pub rotated_q: u64,
    /// Cosines, `[positions, rotary / 2]` in the type of Q, 16-byte aligned; 0 where nothing is rotated.
    pub cos: u64,
    /// Sines, as the cosines.
    pub sin: u64,
    /// Keys that each sequence has in the cache already, u32 `[batch]`.
    pub seqlens_k: u64,
    /// Where the lengths after the call go, u32 `[batch]`, apart from `seqlens_k`; 0 where they are not wanted.
    pub lengths_after: u64,
    /// Positions that rotations of each sequence start at, u32 `[batch]`; 0 where they start at `seqlens_k`.
    pub rotary_starts: u64,
    /// The first new token of each sequence, u32 `[batch + 1]`; 0 where every sequence has as many.
    pub cu_seqlens_new: u64,
    /// The first query of each sequence, u32 `[batch + 1]`; 0 where every sequence has as many.
    pub cu_seqlens_q: u64,
    /// The pages of each sequence, i32; 0 where sequence b has page b. What would go to a page that is not there is left out.
    pub block_table: u64,
    /// Where each sequence's pages start in `block_table`, u32 `[batch + 1]`; 0 where they start `table_stride` apart.
    pub page_indptr: u64,
    /// Where each new token goes, page · keys of a page + row, i64 `[tokens]`; below 0 it is left out. 0 where the lengths say it.
    pub slots: u64,
    /// Strides of the new keys.
    pub new_k_strides: Strides,
    /// Strides of the new values.
    pub new_v_strides: Strides,
    /// Strides of the cache of keys; `batch` is from one page to the next.
    pub k_strides: Strides,
    /// Strides of the cache of values.
    pub v_strides: Strides,
    /// Strides of Q.
    pub q_strides: Strides,
    /// Strides of the rotated Q.
    pub rotated_q_strides: Strides,
    /// New tokens of a sequence; unused where they are packed.
    pub seqlen_new: Divisor,
    /// Queries of a sequence; unused where they are packed.
    pub seqlen_q: Divisor,
    /// Keys of a page.
    pub page: Divisor,
    /// Pieces of a row of K and of Q that a thread works on at a time: [`AppendParams::pieces`].
    pub pieces_k: Divisor,
    /// Chunks of eight elements of a row of V.
    pub chunks_v: Divisor,
    /// New tokens of all sequences.
    pub tokens: u32,
    /// Tokens of Q that are rotated.
    pub q_tokens: u32,
    /// Sequences.
    pub batch: u32,
    /// Heads of K and V.
    pub heads_kv: u32,
    /// Heads of Q.
    pub heads_q: u32,
    /// Pages of the cache.
    pub pages: u32,
    /// Entries of `block_table` of a sequence, or of all where `page_indptr` is given.
    pub table_stride: u32,
    /// Chunks of eight elements of a row of K and Q that are rotated: a multiple of 2.
    pub rotated_chunks: u32,
    /// Rows of the cosines and sines; positions past the last are taken for it.
    pub positions: u32,
    /// 1 where elements 2i and 2i + 1 are rotated together, 0 where i and i + rotary / 2 are.
    pub interleaved: u32,
    /// 1 where query i of a sequence is rotated by the position i after the first, 0 where all are by the first.
    pub each_query: u32,
}

/// Blocks of a copy launch.
pub const COPY_BLOCKS: usize = 8;
/// Pieces that a thread of a copy launch moves.
pub const COPY_PIECES: u32 = 8;
/// Bytes of a piece, where everything is a multiple of that.
pub const COPY_PIECE_BYTES: u32 = 16;
/// Bytes of a piece elsewhere, where everything is a multiple of these.
pub const COPY_PIECE_BYTES_LEAST: u32 = 4;

/// Rows of one length, equally far apart, that are copied. All addresses, pitches and lengths are multiples of a piece.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyBlock {
    /// The first row's address.
    pub from: u64,
    /// Where it goes.
    pub to: u64,
    /// Bytes from one row's start to the next one's.
    pub from_pitch: u64,
    /// The same, where they go.
    pub to_pitch: u64,
    /// Pieces of a row.
    pub row: Divisor,
    /// Pieces of all rows: at least one, at most 2^30.
    pub pieces: u32,
    /// The share with the first piece; `u32::MAX` of a block that is not used.
    pub first_share: u32,
    /// Bytes of a piece: [`COPY_PIECE_BYTES`] or [`COPY_PIECE_BYTES_LEAST`].
    pub piece_bytes: u32,
}

/// Parameters of a copy launch: the blocks, those in use first. CTAs, however many, take its shares in turns.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyParams {
    /// The blocks.
    pub blocks: [CopyBlock; COPY_BLOCKS],
    /// Shares of all blocks: [`crate::steps::COPY_THREADS`] · [`COPY_PIECES`] pieces of one block each, or what is left of it.
    pub shares: u32,
}

impl CopyParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<CopyParams>()] {
        let mut bytes = Bytes::new();
        for block in &self.blocks {
            bytes.u64s([block.from, block.to, block.from_pitch, block.to_pitch]);
            bytes.divisors([block.row]);
            bytes.u32s([block.pieces, block.first_share, block.piece_bytes]);
        }
        bytes.u32s([self.shares]);
        // Up to a multiple of 8.
        bytes.fill();
        bytes.finish()
    }
}

/// Parameters of a launch that computes the gradient of sinks, one CTA a query head. All pointers are device addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkGradientParams {
    /// [`crate::backward::params::BackwardParams::statistics`], which `dq` has written.
    pub statistics: u64,
    /// Sinks, as [`crate::params::RaggedParams::sinks`].
    pub sinks: u64,
    /// Their gradients, float32 `[heads]`.
    pub d_sinks: u64,
    /// Where packed queries start, u32 `[batch + 1]`, or 0.
    pub cu_seqlens_q: u64,
    /// Rows of a head: of a batch entry, or of all packed queries.
    pub rows: u32,
    /// Query heads.
    pub heads: u32,
    /// Batch entries, or packed sequences.
    pub batch: u32,
}

impl SinkGradientParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<SinkGradientParams>()] {
        let mut bytes = Bytes::new();
        bytes.u64s([self.statistics, self.sinks, self.d_sinks, self.cu_seqlens_q]);
        bytes.u32s([self.rows, self.heads, self.batch]);
        // Up to a multiple of 8.
        bytes.fill();
        bytes.finish()
    }
}

/// Parameters of a launch that computes the gradient of a bias, a CTA for each [`crate::backward::BIAS_TILE`] keys of as many of its rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BiasGradientParams {
    /// What the launches before it had; `dq` has written the statistics.
    pub backward: BackwardParams,
    /// The device address of the gradient, which lies as the bias does, in the same type.
    pub d_bias: u64,
    /// Blocks of keys of a row.
    pub key_blocks: Divisor,
    /// Blocks of rows of a head: 1 where all queries share a row.
    pub query_blocks: Divisor,
    /// Heads of the bias: 1 where all share them.
    pub heads: Divisor,
    /// Rows of a head.
    pub rows: u32,
}

impl BiasGradientParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<BiasGradientParams>()] {
        let mut bytes = Bytes::new();
        bytes.put(&self.backward.to_bytes());
        bytes.u64s([self.d_bias]);
        bytes.divisors([self.key_blocks, self.query_blocks, self.heads]);
        bytes.u32s([self.rows]);
        // Up to a multiple of 8.
        bytes.fill();
        bytes.finish()
    }
}

impl AppendParams {
    /// Pieces of a row of `chunks` chunks: a chunk each, but for two that are rotated together.
    pub const fn pieces(chunks: u32, rotated_chunks: u32, interleaved: bool) -> u32 {
        if interleaved { chunks } else { chunks - rotated_chunks / 2 }
    }

    /// CTAs of a launch.
    pub const fn ctas(&self) -> u64 {
        self.tokens as u64 + self.q_tokens as u64 + (self.lengths_after != 0) as u64
    }

    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<AppendParams>()] {
        let mut bytes = Bytes::new();
        bytes.u64s([self.new_k, self.new_v, self.k, self.v, self.q, self.rotated_q, self.cos, self.sin]);
        bytes.u64s([self.seqlens_k, self.lengths_after, self.rotary_starts]);
        bytes.u64s([self.cu_seqlens_new, self.cu_seqlens_q, self.block_table, self.page_indptr, self.slots]);
        bytes.strides([self.new_k_strides, self.new_v_strides, self.k_strides, self.v_strides]);
        bytes.strides([self.q_strides, self.rotated_q_strides]);
        bytes.divisors([self.seqlen_new, self.seqlen_q, self.page, self.pieces_k, self.chunks_v]);
        bytes.u32s([self.tokens, self.q_tokens, self.batch, self.heads_kv, self.heads_q, self.pages]);
        bytes.u32s([self.table_stride, self.rotated_chunks, self.positions, self.interleaved]);
        bytes.u32s([self.each_query]);
        // Up to a multiple of 8.
        bytes.fill();
        bytes.finish()
    }
}

impl MergeParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<MergeParams>()] {
        let mut bytes = Bytes::new();
        bytes.u64s([self.partial_o, self.partial_lse]);
        bytes.u64s([self.o_next, self.lse_next].map(i64::cast_unsigned));
        bytes.u64s([self.o, self.lse]);
        bytes.strides([self.partial_strides, self.o_strides]);
        bytes.u64s([self.rows_used, self.sinks]);
        bytes.u32s([self.rows]);
        bytes.divisors([self.heads, self.seqlen]);
        bytes.u32s([self.states, self.chunks, self.threads_log2]);
        bytes.fill();
        bytes.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{strides, u32_at, u64_at};
    use core::mem::offset_of;

    #[test]
    fn bytes_of_a_merge_lie_where_the_fields_do() {
        let params = MergeParams {
            partial_lse: 2,
            lse_next: -3,
            lse: 4,
            partial_strides: strides(10),
            o_strides: strides(20),
            rows_used: 5,
            sinks: 6,
            rows: 7,
            heads: Divisor::new(8),
            seqlen: Divisor::new(9),
            states: 30,
            threads_log2: 31,
            ..MergeParams::default()
        };
        let bytes = params.to_bytes();
        assert_eq!(u64_at(&bytes, offset_of!(MergeParams, lse_next)), (-3_i64).cast_unsigned());
        assert_eq!(u64_at(&bytes, offset_of!(MergeParams, lse)), 4);
        assert_eq!(u64_at(&bytes, offset_of!(MergeParams, o_strides) + offset_of!(Strides, row)), 22);
        assert_eq!(u64_at(&bytes, offset_of!(MergeParams, sinks)), 6);
        assert_eq!(u32_at(&bytes, offset_of!(MergeParams, rows)), 7);
        assert_eq!(u32_at(&bytes, offset_of!(MergeParams, seqlen)), 9);
        assert_eq!(u32_at(&bytes, offset_of!(MergeParams, states)), 30);
        assert_eq!(u32_at(&bytes, offset_of!(MergeParams, threads_log2)), 31);
    }

    #[test]
    fn bytes_of_a_copy_lie_where_the_fields_do() {
        let block = |n: u32| CopyBlock {
            from: n.into(),
            to_pitch: u64::from(n) + 1,
            row: Divisor::new(n + 2),
            first_share: n + 3,
            piece_bytes: n + 4,
            ..CopyBlock::default()
        };
        let params =
            CopyParams { blocks: core::array::from_fn(|index| block(10 * index as u32)), shares: 99 };
        let bytes = params.to_bytes();
        for index in 0..COPY_BLOCKS {
            let (at, n) = (index * size_of::<CopyBlock>(), 10 * index as u32);
            assert_eq!(u64_at(&bytes, at + offset_of!(CopyBlock, from)), n.into());
            assert_eq!(u64_at(&bytes, at + offset_of!(CopyBlock, to_pitch)), u64::from(n) + 1);
            assert_eq!(u32_at(&bytes, at + offset_of!(CopyBlock, row)), n + 2);
            assert_eq!(u32_at(&bytes, at + offset_of!(CopyBlock, first_share)), n + 3);
            assert_eq!(u32_at(&bytes, at + offset_of!(CopyBlock, piece_bytes)), n + 4);
        }
        assert_eq!(u32_at(&bytes, offset_of!(CopyParams, shares)), 99);
    }

    #[test]
    fn bytes_of_a_sink_gradient_lie_where_the_fields_do() {
        let params =
            SinkGradientParams { sinks: 1, cu_seqlens_q: 2, rows: 3, batch: 4, ..Default::default() };
        let bytes = params.to_bytes();
        assert_eq!(u64_at(&bytes, offset_of!(SinkGradientParams, sinks)), 1);
        assert_eq!(u64_at(&bytes, offset_of!(SinkGradientParams, cu_seqlens_q)), 2);
        assert_eq!(u32_at(&bytes, offset_of!(SinkGradientParams, rows)), 3);
        assert_eq!(u32_at(&bytes, offset_of!(SinkGradientParams, batch)), 4);
    }

    #[test]
    fn bytes_of_a_bias_gradient_lie_where_the_fields_do() {
        let params = BiasGradientParams {
            backward: BackwardParams { scale: 0.5, ..BackwardParams::default() },
            d_bias: 1,
            key_blocks: Divisor::new(2),
            heads: Divisor::new(3),
            rows: 4,
            ..Default::default()
        };
        let bytes = params.to_bytes();
        let of_backward = offset_of!(BiasGradientParams, backward) + offset_of!(BackwardParams, scale);
        assert_eq!(u32_at(&bytes, of_backward), 0.5f32.to_bits());
        assert_eq!(u64_at(&bytes, offset_of!(BiasGradientParams, d_bias)), 1);
        assert_eq!(u32_at(&bytes, offset_of!(BiasGradientParams, key_blocks)), 2);
        assert_eq!(u32_at(&bytes, offset_of!(BiasGradientParams, heads)), 3);
        assert_eq!(u32_at(&bytes, offset_of!(BiasGradientParams, rows)), 4);
    }

    #[test]
    fn bytes_of_an_append_lie_where_the_fields_do() {
        let params = AppendParams {
            sin: 1,
            slots: 2,
            k_strides: strides(10),
            rotated_q_strides: strides(20),
            page: Divisor::new(3),
            chunks_v: Divisor::new(4),
            tokens: 5,
            table_stride: 6,
            each_query: 7,
            ..AppendParams::default()
        };
        let bytes = params.to_bytes();
        assert_eq!(u64_at(&bytes, offset_of!(AppendParams, sin)), 1);
        assert_eq!(u64_at(&bytes, offset_of!(AppendParams, slots)), 2);
        assert_eq!(u64_at(&bytes, offset_of!(AppendParams, k_strides)), 10);
        assert_eq!(u64_at(&bytes, offset_of!(AppendParams, rotated_q_strides) + 16), 22);
        assert_eq!(u32_at(&bytes, offset_of!(AppendParams, page)), 3);
        assert_eq!(u32_at(&bytes, offset_of!(AppendParams, chunks_v)), 4);
        assert_eq!(u32_at(&bytes, offset_of!(AppendParams, tokens)), 5);
        assert_eq!(u32_at(&bytes, offset_of!(AppendParams, table_stride)), 6);
        assert_eq!(u32_at(&bytes, offset_of!(AppendParams, each_query)), 7);
    }
}
