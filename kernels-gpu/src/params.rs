//! The parameter blocks of the kernels, written by the host and read by the device.

mod bulk;

pub use bulk::{DenseParams, TensorMap, WgmmaBlock, WgmmaParams};

use crate::divisor::Divisor;
use ferroflash_score::TABLES_MAX;

/// Distance in bytes between neighbours along each dimension of a `[batch, head, row, head_dim]` view.
/// The last dimension is contiguous; every stride is a multiple of 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// From one batch entry to the next.
    pub batch: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one sequence position to the next.
    pub row: i64,
}

/// Parameters of a forward launch. All pointers are device addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardParams {
    /// Q `[batch, heads_q, seqlen_q, head_dim]`, 16-byte aligned.
    pub q: u64,
    /// K `[batch, heads_kv, seqlen_k, head_dim]`, 16-byte aligned.
    pub k: u64,
    /// V `[batch, heads_kv, seqlen_k, head_dim]`, 16-byte aligned.
    pub v: u64,
    /// O `[batch, heads_q, seqlen_q, head_dim]`, 16-byte aligned.
    pub o: u64,
    /// LSE, float32, contiguous `[batch, heads_q, seqlen_q]`; 0 where none is wanted.
    pub lse: u64,
    /// Strides of Q.
    pub q_strides: Strides,
    /// Strides of K.
    pub k_strides: Strides,
    /// Strides of V.
    pub v_strides: Strides,
    /// Strides of O.
    pub o_strides: Strides,
    /// Query rows.
    pub seqlen_q: u32,
    /// Keys: of every sequence, or the most that any has where `seqlens_k` is given.
    pub seqlen_k: u32,
    /// Query heads.
    pub heads_q: u32,
    /// Batch entries.
    pub batch: u32,
    /// Heads whose query rows make up blocks: heads_q, or heads_kv where rows are packed.
    pub tile_heads: Divisor,
    /// Query heads that share one KV head: heads_q / heads_kv.
    pub group: Divisor,
    /// Blocks of query rows of one of `tile_heads`.
    pub query_blocks: Divisor,
    /// Heads that are worked on together, block by block: divides batch · tile_heads. Unused by `Schedule::Split`.
    pub heads_together: Divisor,
    /// With a causal mask, how many query blocks of a head are taken last, in ascending order; the others are taken before
    /// them in descending order, the longest first. Unused by `Schedule::Split`.
    pub ascending_blocks: u32,
    /// Blocks of keys before a rank's own ones, and one: own keys are the last ones, and lie where [`DenseParams`] says. 0 where all keys are
    /// in K. With [`OWN_WAITS`] the others' keys are waited for. It stands beside what every launch reads first: another line of parameters would
    /// be a tenth of a short launch's time.
    pub own_from: u32,
    /// 1 for the bottom-right aligned causal mask, else 0.
    pub causal: u32,
    /// Softmax scale times log2(e), so that the kernel can use exp2. Positive and finite.
    pub scale_log2: f32,
    /// What `Schedule::Persistent` reads, and `Schedule::Ragged` with wgmma.
    pub persistent: PersistentParams,
    /// What `Schedule::Split` and `Schedule::Ragged` read.
    pub split: SplitParams,
    /// What only `Schedule::Ragged` reads.
    pub ragged: RaggedParams,
}

/// What CTAs that draw their tiles share.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PersistentParams {
    /// A u32, 0 before the launch and after it.
    pub counter: u64,
    /// Blocks of query rows of all heads.
    pub tiles: u32,
    /// Keeps the block a multiple of 8 bytes without hidden padding.
    pub reserved: u32,
}

/// How `Schedule::Split` divides the keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitParams {
    /// Keys of each sequence, u32 `[batch]`; each is clamped to seqlen_k. 0 where all have seqlen_k.
    pub seqlens_k: u64,
    /// O of each split, float32 `[splits, batch, heads_q, seqlen_q, head_dim]`, 16-byte aligned; unused for one split.
    pub partial_o: u64,
    /// LSE of each split, float32 `[splits, batch, heads_q, seqlen_q]`; unused for one split.
    pub partial_lse: u64,
    /// A u32 a block of query rows, 0 before the launch and after it, by which the last CTA of the block knows that it is to merge the
    /// splits; 0 where there is one split, or the combine kernel merges them.
    pub counters: u64,
    /// Splits, which take all blocks of keys.
    pub splits: Divisor,
    /// Blocks of keys of a split, to which
    pub split_blocks: u32,
    /// each block of the tile adds this share of one, in units of 2^-32.
    pub split_share: u32,
    /// 0.
    pub reserved: u32,
}

impl SplitParams {
    /// Splits of `split_blocks` blocks of keys each, wherever a sequence ends.
    pub fn of_equal(splits: u32, split_blocks: u32) -> SplitParams {
        SplitParams { splits: Divisor::new(splits), split_blocks, ..SplitParams::default() }
    }

    /// Splits among which each tile's own blocks are divided, so that none of a short sequence is empty; for tiles of at most
    /// [`Self::shared_most`] blocks.
    pub fn of_shares(splits: u32) -> SplitParams {
        // One and a little less than 1 / splits of all is ⌈all / splits⌉.
        SplitParams { split_share: u32::MAX / splits, ..SplitParams::of_equal(splits, 1) }
    }

    /// The most blocks of a tile that are divided right: by then what a share lacks of 1 / splits adds up to that.
    pub const fn shared_most(splits: u32) -> u32 {
        u32::MAX / splits
    }

    /// Blocks of keys of a split of a tile that has `blocks`.
    #[inline(always)]
    pub const fn blocks_of(&self, blocks: u32) -> u32 {
        self.split_blocks + ((blocks as u64 * self.split_share as u64) >> 32) as u32
    }
}

/// A ragged batch: where its sequences and their pages lie, which keys their queries see, and what is done to scores.
///
/// Where sequences of Q are packed, `ForwardParams::seqlen_q` is the rows of all of them, and `batch` strides of Q and O are 0;
/// where those of K and V are packed, so are theirs, and where they lie in pages, `batch` strides are those from one page to the next.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RaggedParams {
    /// The first query of each sequence in a packed Q, u32 `[batch + 1]`, ascending; 0 where sequences are not packed.
    pub cu_seqlens_q: u64,
    /// The first key of each sequence in packed K and V, u32 `[batch + 1]`, ascending; 0 where sequences are not packed.
    pub cu_seqlens_k: u64,
    /// The pages of each sequence's keys in order, i32; 0 where keys do not lie in pages. The keys of a page below 0, or past the
    /// last, are zeros.
    pub block_table: u64,
    /// Where each sequence's pages start in `block_table`, u32 `[batch + 1]`; 0 where they start `table_stride` apart.
    pub page_indptr: u64,
    /// The first key that each query may see and the one past the last, u32 `[rows of Q without heads, 2]`; 0 where there are none.
    pub intervals: u64,
    /// A score of each query head that counts in the softmax and has no value, float32 `[heads_q]`, natural logarithm, after scaling;
    /// 0 where there are none.
    pub sinks: u64,
    /// What the kernel's score reads.
    pub score: ScoreParams,
    /// Keys of a page.
    pub page: Divisor,
    /// Rows of a block of queries that are used.
    pub block_rows: Divisor,
    /// Chunks of four elements of a row of O: width_v / 4.
    pub chunks_v: Divisor,
    /// Keys of a chunk: a query sees none outside of its own. 0 where there are no chunks, and the divisor is then 1.
    pub chunk: u32,
    /// The same, prepared.
    pub chunk_divisor: Divisor,
    /// Entries of `block_table` of a sequence, or of all where `page_indptr` is given.
    pub table_stride: u32,
    /// Pages of K and of V.
    pub pages: u32,
    /// Keys of a box of a bulk copy, which never crosses the end of a page or of a block.
    pub box_rows: u32,
    /// Rows of packed K and V.
    pub total_k: u32,
    /// Keys before a query's own that it sees; i32::MAX for all.
    pub window_left: i32,
    /// Keys after a query's own that it sees; i32::MAX for all, 0 for the causal mask.
    pub window_right: i32,
    /// Keys at the start of a sequence that all its queries see.
    pub prefix: u32,
    /// Keys at the start of a sequence that a query sees whatever the window, unless they are after it.
    pub sink_tokens: u32,
    /// Elements of a query and a key vector: a multiple of 8, at most the tile's.
    pub width_qk: u32,
    /// Elements of a value vector that a CTA works on, as `width_qk`.
    pub width_v: u32,
    /// CTAs that share a value vector; 1 but in tiles of head_dim 512.
    pub slices: u32,
    /// 1 where the blocks of packed sequences follow each other, so that cu_seqlens_q says whose one is; 0 where each has `query_blocks`.
    pub blocks_follow: u32,
    /// Keeps the tables at a multiple of 8 bytes without hidden padding.
    pub reserved: u32,
    /// The tables of a user's score.
    pub tables: [TableParams; TABLES_MAX],
}

/// A table of a user's score: elements of 4 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableParams {
    /// Its first element; a multiple of 4, and readable also where the score has no such table.
    pub address: u64,
    /// The index of its last element.
    pub last: u32,
    /// Keeps the block a multiple of 8 bytes without hidden padding.
    pub reserved: u32,
}

/// What scores read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreParams {
    /// ALiBi: slopes, float32. Bias: its first element. Tree: words of bits, u32 `[rows of Q without heads, words]`. Dropout: no address, but
    /// the seed.
    pub address: u64,
    /// Bytes from one batch entry to the next. Dropout: the offset.
    pub batch_stride: i64,
    /// Bytes from one query head to the next.
    pub head_stride: i64,
    /// Bytes from one query to the next.
    pub row_stride: i64,
    /// What Q·Kᵀ is multiplied with before the score's own function. Dropout: what weights that are kept are multiplied with.
    pub factor: f32,
    /// Tree: the last keys of a sequence, which have a bit each; at least 1. Dropout: the greatest random byte that keeps its weight.
    pub tree_keys: u32,
}

/// Added to [`ForwardParams::own_from`] where [`DenseParams::arrived`] is given.
pub const OWN_WAITS: u32 = 1 << 31;

impl Default for RaggedParams {
    /// A batch that is not ragged, whose queries see all keys.
    fn default() -> Self {
        Self {
            cu_seqlens_q: 0,
            cu_seqlens_k: 0,
            block_table: 0,
            page_indptr: 0,
            intervals: 0,
            sinks: 0,
            score: ScoreParams::default(),
            page: Divisor::default(),
            block_rows: Divisor::default(),
            chunks_v: Divisor::default(),
            chunk: 0,
            chunk_divisor: Divisor::default(),
            table_stride: 0,
            pages: 0,
            box_rows: 0,
            total_k: 0,
            window_left: i32::MAX,
            window_right: i32::MAX,
            prefix: 0,
            sink_tokens: 0,
            width_qk: 0,
            width_v: 0,
            slices: 1,
            blocks_follow: 0,
            reserved: 0,
            tables: [TableParams::default(); TABLES_MAX],
        }
    }
}

/// Parameters of a combine launch, one CTA a few query rows. All pointers are device addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CombineParams {
    /// O of each split, float32 `[splits, batch, heads_q, seqlen_q, head_dim]`, 16-byte aligned.
    pub partial_o: u64,
    /// LSE of each split, float32 `[splits, batch, heads_q, seqlen_q]`.
    pub partial_lse: u64,
    /// O `[batch, heads_q, seqlen_q, head_dim]`, 16-byte aligned.
    pub o: u64,
    /// LSE, float32, contiguous `[batch, heads_q, seqlen_q]`; 0 where none is wanted.
    pub lse: u64,
    /// Strides of O.
    pub o_strides: Strides,
    /// Rows of all heads and batch entries: batch · heads_q · seqlen_q.
    pub rows: u64,
    /// Query heads.
    pub heads_q: Divisor,
    /// Query rows.
    pub seqlen_q: Divisor,
    /// Chunks of four elements of a row: head_dim / 4.
    pub chunks: Divisor,
    /// Splits.
    pub splits: u32,
    /// Query rows of a CTA, at most [`crate::geometry::COMBINE_CTA_ROWS`].
    pub rows_of_cta: u32,
    /// CTAs that all rows take, for each slice of the value vectors.
    pub ctas_of_slice: u32,
    /// Sinks, as [`RaggedParams::sinks`]: counted once, when the splits are merged.
    pub sinks: u64,
    /// The first query of each packed sequence, and behind the last the end of all, as [`RaggedParams::cu_seqlens_q`]; 0 where queries are not
    /// packed. Rows of no sequence are neither read nor written.
    pub cu_seqlens_q: u64,
    /// CTAs of a head, whose rows share no CTA with another head's where queries are packed.
    pub ctas_of_head: Divisor,
    /// Packed sequences.
    pub sequences: u32,
}

/// A parameter block as bytes, field by field.
pub(crate) struct Bytes<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Bytes<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    pub(crate) fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    pub(crate) fn u64s<const L: usize>(&mut self, values: [u64; L]) {
        values.iter().for_each(|value| self.put(&value.to_ne_bytes()));
    }

    pub(crate) fn u32s<const L: usize>(&mut self, values: [u32; L]) {
        values.iter().for_each(|value| self.put(&value.to_ne_bytes()));
    }

    pub(crate) fn strides<const L: usize>(&mut self, strides: [Strides; L]) {
        for Strides { batch, head, row } in strides {
            self.u64s([batch, head, row].map(i64::cast_unsigned));
        }
    }

    pub(crate) fn divisors<const L: usize>(&mut self, divisors: [Divisor; L]) {
        divisors.into_iter().for_each(|divisor| self.u32s(divisor.words()));
    }

    /// Leaves what follows 0: what pads the struct up to its alignment.
    pub(crate) fn fill(&mut self) {
        self.at = N;
    }

    pub(crate) fn finish(self) -> [u8; N] {
        debug_assert!(self.at == N, "every field is written");
        self.bytes
    }
}

impl ForwardParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<ForwardParams>()] {
        let mut bytes = Bytes::new();
        bytes.u64s([self.q, self.k, self.v, self.o, self.lse]);
        bytes.strides([self.q_strides, self.k_strides, self.v_strides, self.o_strides]);
        bytes.u32s([self.seqlen_q, self.seqlen_k, self.heads_q, self.batch]);
        bytes.divisors([self.tile_heads, self.group, self.query_blocks, self.heads_together]);
        bytes.u32s([self.ascending_blocks, self.own_from, self.causal, self.scale_log2.to_bits()]);
        let PersistentParams { counter, tiles, reserved } = self.persistent;
        bytes.u64s([counter]);
        bytes.u32s([tiles, reserved]);
        let SplitParams {
            seqlens_k,
            partial_o,
            partial_lse,
            counters,
            splits,
            split_blocks,
            split_share,
            reserved,
        } = self.split;
        bytes.u64s([seqlens_k, partial_o, partial_lse, counters]);
        bytes.divisors([splits]);
        bytes.u32s([split_blocks, split_share, reserved]);
        self.ragged.put(&mut bytes);
        bytes.finish()
    }
}

impl RaggedParams {
    fn put<const N: usize>(&self, bytes: &mut Bytes<N>) {
        bytes.u64s([self.cu_seqlens_q, self.cu_seqlens_k, self.block_table, self.page_indptr]);
        bytes.u64s([self.intervals, self.sinks]);
        let ScoreParams { address, batch_stride, head_stride, row_stride, factor, tree_keys } = self.score;
        bytes.u64s([address]);
        bytes.u64s([batch_stride, head_stride, row_stride].map(i64::cast_unsigned));
        bytes.u32s([factor.to_bits(), tree_keys]);
        bytes.divisors([self.page, self.block_rows, self.chunks_v]);
        bytes.u32s([self.chunk]);
        bytes.divisors([self.chunk_divisor]);
        bytes.u32s([self.table_stride, self.pages, self.box_rows, self.total_k]);
        bytes.u32s([self.window_left, self.window_right].map(i32::cast_unsigned));
        bytes.u32s([self.prefix, self.sink_tokens, self.width_qk, self.width_v, self.slices]);
        bytes.u32s([self.blocks_follow, self.reserved]);
        for TableParams { address, last, reserved } in self.tables {
            bytes.u64s([address]);
            bytes.u32s([last, reserved]);
        }
    }
}

impl CombineParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<CombineParams>()] {
        let mut bytes = Bytes::new();
        bytes.u64s([self.partial_o, self.partial_lse, self.o, self.lse]);
        bytes.strides([self.o_strides]);
        bytes.u64s([self.rows]);
        bytes.divisors([self.heads_q, self.seqlen_q, self.chunks]);
        bytes.u32s([self.splits, self.rows_of_cta, self.ctas_of_slice]);
        bytes.u64s([self.sinks, self.cu_seqlens_q]);
        bytes.divisors([self.ctas_of_head]);
        bytes.u32s([self.sequences]);
        bytes.finish()
    }
}

#[cfg(test)]
pub(crate) use tests::{strides, u32_at, u64_at};

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
    }

    pub(crate) fn strides(n: i64) -> Strides {
        Strides { batch: n, head: n + 1, row: n + 2 }
    }

    #[test]
    fn bytes_of_a_forward_lie_where_the_fields_do() {
        let params = ForwardParams {
            q: 1,
            k: 2,
            v: 3,
            o: 4,
            lse: 5,
            q_strides: strides(10),
            k_strides: strides(20),
            v_strides: strides(30),
            o_strides: strides(40),
            seqlen_q: 50,
            seqlen_k: 51,
            heads_q: 52,
            batch: 57,
            tile_heads: Divisor::new(53),
            group: Divisor::new(54),
            query_blocks: Divisor::new(55),
            heads_together: Divisor::new(56),
            ascending_blocks: 58,
            own_from: 59,
            causal: 1,
            scale_log2: 0.25,
            persistent: PersistentParams { counter: 60, tiles: 61, reserved: 0 },
            split: SplitParams {
                seqlens_k: 70,
                partial_o: 71,
                partial_lse: 72,
                counters: 75,
                splits: Divisor::new(73),
                split_blocks: 74,
                split_share: 76,
                reserved: 0,
            },
            ragged: RaggedParams {
                sinks: 80,
                score: ScoreParams { address: 81, factor: 0.5, tree_keys: 79, ..ScoreParams::default() },
                page: Divisor::new(82),
                chunk: 83,
                chunk_divisor: Divisor::new(84),
                window_left: -85,
                width_v: 86,
                slices: 92,
                blocks_follow: 93,
                tables: [0, 1, 2, 3].map(|n| TableParams { address: 87, last: 88 + n, reserved: 0 }),
                ..RaggedParams::default()
            },
        };
        let bytes = params.to_bytes();
        let (persistent, split) = (offset_of!(ForwardParams, persistent), offset_of!(ForwardParams, split));
        assert_eq!(u64_at(&bytes, offset_of!(ForwardParams, lse)), 5);
        assert_eq!(u64_at(&bytes, offset_of!(ForwardParams, v_strides) + offset_of!(Strides, row)), 32);
        assert_eq!(u64_at(&bytes, offset_of!(ForwardParams, o_strides)), 40);
        assert_eq!(u32_at(&bytes, offset_of!(ForwardParams, seqlen_q)), 50);
        assert_eq!(u32_at(&bytes, offset_of!(ForwardParams, tile_heads)), 53);
        assert_eq!(u32_at(&bytes, offset_of!(ForwardParams, heads_together)), 56);
        assert_eq!(u32_at(&bytes, offset_of!(ForwardParams, ascending_blocks)), 58);
        assert_eq!(u32_at(&bytes, offset_of!(ForwardParams, own_from)), 59);
        assert_eq!(u32_at(&bytes, offset_of!(ForwardParams, causal)), 1);
        assert_eq!(f32::from_bits(u32_at(&bytes, offset_of!(ForwardParams, scale_log2))), 0.25);
        assert_eq!(u64_at(&bytes, persistent + offset_of!(PersistentParams, counter)), 60);
        assert_eq!(u32_at(&bytes, persistent + offset_of!(PersistentParams, tiles)), 61);
        assert_eq!(u64_at(&bytes, split + offset_of!(SplitParams, partial_lse)), 72);
        assert_eq!(u64_at(&bytes, split + offset_of!(SplitParams, counters)), 75);
        assert_eq!(u32_at(&bytes, split + offset_of!(SplitParams, splits)), 73);
        assert_eq!(u32_at(&bytes, split + offset_of!(SplitParams, split_blocks)), 74);
        assert_eq!(u32_at(&bytes, split + offset_of!(SplitParams, split_share)), 76);
        let ragged = offset_of!(ForwardParams, ragged);
        let score = ragged + offset_of!(RaggedParams, score);
        assert_eq!(u64_at(&bytes, ragged + offset_of!(RaggedParams, sinks)), 80);
        assert_eq!(u64_at(&bytes, score + offset_of!(ScoreParams, address)), 81);
        assert_eq!(f32::from_bits(u32_at(&bytes, score + offset_of!(ScoreParams, factor))), 0.5);
        assert_eq!(u32_at(&bytes, ragged + offset_of!(RaggedParams, page)), 82);
        assert_eq!(u32_at(&bytes, ragged + offset_of!(RaggedParams, chunk)), 83);
        assert_eq!(u32_at(&bytes, ragged + offset_of!(RaggedParams, chunk_divisor)), 84);
        assert_eq!(u32_at(&bytes, ragged + offset_of!(RaggedParams, window_left)), (-85_i32).cast_unsigned());
        assert_eq!(u32_at(&bytes, ragged + offset_of!(RaggedParams, width_v)), 86);
        assert_eq!(u32_at(&bytes, ragged + offset_of!(RaggedParams, slices)), 92);
        assert_eq!(u32_at(&bytes, ragged + offset_of!(RaggedParams, blocks_follow)), 93);
        assert_eq!(u32_at(&bytes, score + offset_of!(ScoreParams, tree_keys)), 79);
        let last_table = ragged + offset_of!(RaggedParams, tables) + 3 * size_of::<TableParams>();
        assert_eq!(u64_at(&bytes, last_table + offset_of!(TableParams, address)), 87);
        assert_eq!(u32_at(&bytes, last_table + offset_of!(TableParams, last)), 91);
        assert_eq!(bytes.len() % 8, 0);
    }

    #[test]
    fn bytes_of_a_combine_lie_where_the_fields_do() {
        let params = CombineParams {
            partial_o: 1,
            partial_lse: 2,
            o: 3,
            lse: 4,
            o_strides: strides(10),
            rows: 20,
            heads_q: Divisor::new(21),
            seqlen_q: Divisor::new(22),
            chunks: Divisor::new(23),
            splits: 24,
            rows_of_cta: 25,
            ctas_of_slice: 26,
            sinks: 27,
            cu_seqlens_q: 28,
            ctas_of_head: Divisor::new(29),
            sequences: 30,
        };
        let bytes = params.to_bytes();
        assert_eq!(u64_at(&bytes, offset_of!(CombineParams, lse)), 4);
        assert_eq!(u64_at(&bytes, offset_of!(CombineParams, o_strides) + offset_of!(Strides, row)), 12);
        assert_eq!(u64_at(&bytes, offset_of!(CombineParams, rows)), 20);
        assert_eq!(u32_at(&bytes, offset_of!(CombineParams, chunks)), 23);
        assert_eq!(u32_at(&bytes, offset_of!(CombineParams, splits)), 24);
        assert_eq!(u32_at(&bytes, offset_of!(CombineParams, rows_of_cta)), 25);
        assert_eq!(u32_at(&bytes, offset_of!(CombineParams, ctas_of_slice)), 26);
        assert_eq!(u64_at(&bytes, offset_of!(CombineParams, sinks)), 27);
        assert_eq!(u64_at(&bytes, offset_of!(CombineParams, cu_seqlens_q)), 28);
        assert_eq!(u32_at(&bytes, offset_of!(CombineParams, ctas_of_head)), 29);
        assert_eq!(u32_at(&bytes, offset_of!(CombineParams, sequences)), 30);
        assert_eq!(bytes.len() % 8, 0);
    }
}
