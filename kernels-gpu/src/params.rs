//! The parameter blocks of the kernels, written by the host and read by the device.

use crate::divisor::Divisor;

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
    /// Keeps the block a multiple of 8 bytes without hidden padding.
    pub reserved: u32,
    /// 1 for the bottom-right aligned causal mask, else 0.
    pub causal: u32,
    /// Softmax scale times log2(e), so that the kernel can use exp2. Positive and finite.
    pub scale_log2: f32,
    /// What only `Schedule::Persistent` reads.
    pub persistent: PersistentParams,
    /// What only `Schedule::Split` reads.
    pub split: SplitParams,
}

/// What the CTAs of `Schedule::Persistent` share.
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
    /// Splits: at least ⌈key blocks / split_blocks⌉.
    pub splits: Divisor,
    /// Blocks of keys of a split.
    pub split_blocks: u32,
}

/// A tensor map (PTX ISA, "Tensor"): what a bulk copy has to know of a tensor in global memory, in the device's own encoding.
/// It lies at a multiple of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// Parameters of a forward launch of [`crate::row::Isa::Wgmma`]. The block lies at a multiple of 64 bytes, so that the maps do;
/// rustc knows no parameter of more than 16, `cargo xtask build-ptx` says it in the PTX.
///
/// Boxes have [`crate::geometry::column_width`] elements of head_dim, which the swizzle of the same width spans; rows out of
/// bounds read as 0.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WgmmaParams {
    /// Q as `[batch, tile_heads, seqlen_q, packed heads, head_dim]`: a box is one block of query rows.
    pub q: TensorMap,
    /// K as `[batch, heads_kv, seqlen_k, head_dim]`: a box is one block of keys.
    pub k: TensorMap,
    /// V, as K.
    pub v: TensorMap,
    /// What every forward launch has.
    pub forward: ForwardParams,
}

impl WgmmaParams {
    /// The least alignment of the block, in bytes.
    pub const ALIGN: u32 = 64;
}

/// Parameters of a combine launch, one CTA a query row. All pointers are device addresses.
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
}

/// A parameter block as bytes, field by field.
struct Bytes<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Bytes<N> {
    fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    fn u64s<const L: usize>(&mut self, values: [u64; L]) {
        values.iter().for_each(|value| self.put(&value.to_ne_bytes()));
    }

    fn u32s<const L: usize>(&mut self, values: [u32; L]) {
        values.iter().for_each(|value| self.put(&value.to_ne_bytes()));
    }

    fn strides<const L: usize>(&mut self, strides: [Strides; L]) {
        for Strides { batch, head, row } in strides {
            self.u64s([batch, head, row].map(i64::cast_unsigned));
        }
    }

    fn divisors<const L: usize>(&mut self, divisors: [Divisor; L]) {
        divisors.into_iter().for_each(|divisor| self.u32s(divisor.words()));
    }

    fn finish(self) -> [u8; N] {
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
        bytes.u32s([self.ascending_blocks, self.reserved, self.causal, self.scale_log2.to_bits()]);
        let PersistentParams { counter, tiles, reserved } = self.persistent;
        bytes.u64s([counter]);
        bytes.u32s([tiles, reserved]);
        let SplitParams { seqlens_k, partial_o, partial_lse, counters, splits, split_blocks } = self.split;
        bytes.u64s([seqlens_k, partial_o, partial_lse, counters]);
        bytes.divisors([splits]);
        bytes.u32s([split_blocks]);
        bytes.finish()
    }
}

impl WgmmaParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<WgmmaParams>()] {
        let mut bytes = Bytes::new();
        for map in [self.q, self.k, self.v] {
            bytes.u64s(map.0);
        }
        bytes.put(&self.forward.to_bytes());
        // Up to the struct's own alignment.
        bytes.at = bytes.bytes.len();
        bytes.finish()
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
        bytes.u32s([self.splits]);
        bytes.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
    }

    fn strides(n: i64) -> Strides {
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
            reserved: 0,
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
        assert_eq!(u32_at(&bytes, offset_of!(ForwardParams, causal)), 1);
        assert_eq!(f32::from_bits(u32_at(&bytes, offset_of!(ForwardParams, scale_log2))), 0.25);
        assert_eq!(u64_at(&bytes, persistent + offset_of!(PersistentParams, counter)), 60);
        assert_eq!(u32_at(&bytes, persistent + offset_of!(PersistentParams, tiles)), 61);
        assert_eq!(u64_at(&bytes, split + offset_of!(SplitParams, partial_lse)), 72);
        assert_eq!(u64_at(&bytes, split + offset_of!(SplitParams, counters)), 75);
        assert_eq!(u32_at(&bytes, split + offset_of!(SplitParams, splits)), 73);
        assert_eq!(u32_at(&bytes, split + offset_of!(SplitParams, split_blocks)), 74);
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
        };
        let bytes = params.to_bytes();
        assert_eq!(u64_at(&bytes, offset_of!(CombineParams, lse)), 4);
        assert_eq!(u64_at(&bytes, offset_of!(CombineParams, o_strides) + offset_of!(Strides, row)), 12);
        assert_eq!(u64_at(&bytes, offset_of!(CombineParams, rows)), 20);
        assert_eq!(u32_at(&bytes, offset_of!(CombineParams, chunks)), 23);
        assert_eq!(u32_at(&bytes, offset_of!(CombineParams, splits)), 24);
        assert_eq!(bytes.len() % 8, 0);
    }
}
