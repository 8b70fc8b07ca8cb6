//! The parameter block of the backward pass's kernels, written by the host and read by the device.

use super::order::Order;
use crate::divisor::Divisor;
use crate::params::{Bytes, ForwardParams, Strides, TensorMap};

/// Parameters of both launches of a backward pass. All pointers are device addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackwardParams {
    /// Tensors, lengths and mask as the forward pass had them: Q, K, V, and O and LSE, which are read here. `tile_heads` is the query
    /// heads, `query_blocks` the blocks of the stationary queries of `dq`, and `ragged.block_rows` their rows.
    pub forward: ForwardParams,
    /// dO, as O in strides of its own, 16-byte aligned.
    pub d_o: u64,
    /// The gradient of LSE, float32, contiguous as LSE; 0 where there is none.
    pub d_lse: u64,
    /// dQ, as Q in strides of its own, 16-byte aligned.
    pub d_q: u64,
    /// dK, as K in strides of its own, 16-byte aligned.
    pub d_k: u64,
    /// dV, as V in strides of its own, 16-byte aligned.
    pub d_v: u64,
    /// L·log2(e) and δ of each query row, pairs of float32, contiguous as LSE: `dq` writes them, `dkv` reads them.
    pub statistics: u64,
    /// dS ([`crate::backward::spill`]) behind zeros, at a multiple of 128 bytes; 0 where it is not kept.
    pub d_s: u64,
    /// Where dS of each block of keys starts in that of its head, in groups of 8 queries: a u32 a block, of each batch entry or of all packed
    /// sequences.
    pub ds_starts: u64,
    /// [`Order::counters`], u32 each, which the kernel of statistics sets to 0; 0 where there are none.
    pub counters: u64,
    /// Where the sums of each CTA lie that shares a block of keys with others (`sums.rs`), at a multiple of 128 bytes; 0 where none
    /// does.
    pub sums: u64,
    /// Strides of dO.
    pub d_o_strides: Strides,
    /// Strides of dQ.
    pub d_q_strides: Strides,
    /// Strides of dK.
    pub d_k_strides: Strides,
    /// Strides of dV.
    pub d_v_strides: Strides,
    /// Blocks of the stationary keys of `dkv`: of a head, or of all packed sequences of it.
    pub key_blocks: Divisor,
    /// KV heads.
    pub heads_kv: Divisor,
    /// Rows of a block of stationary keys.
    pub key_block_rows: Divisor,
    /// KV heads whose blocks `dkv` takes in turns, of all batch entries: a divisor of their number.
    pub kv_heads_together: Divisor,
    /// Query heads that dS has room for, of all batch entries: they take the room in turns.
    pub ds_heads: Divisor,
    /// CTAs that share a block of keys: each has some of its steps.
    pub query_splits: Divisor,
    /// The order of CTAs where one launch computes all gradients.
    pub order: Order,
    /// The softmax scale, which dQ and dK are multiplied with at the end.
    pub scale: f32,
    /// The tile of the launch's first CTA.
    pub first_tile: u32,
    /// Groups of 8 queries of dS that a head has room for, those of all its blocks of keys together.
    pub ds_groups: u32,
    /// Queries of a block of the kernel that writes it.
    pub ds_block_rows: u32,
    /// Bytes of a row of sums.
    pub sums_row_bytes: u32,
}

impl BackwardParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<BackwardParams>()] {
        let mut bytes = Bytes::new();
        bytes.put(&self.forward.to_bytes());
        bytes.u64s([self.d_o, self.d_lse, self.d_q, self.d_k, self.d_v, self.statistics]);
        bytes.u64s([self.d_s, self.ds_starts, self.counters, self.sums]);
        bytes.strides([self.d_o_strides, self.d_q_strides, self.d_k_strides, self.d_v_strides]);
        bytes.divisors([self.key_blocks, self.heads_kv, self.key_block_rows, self.kv_heads_together]);
        let Order { keys, queries, chunks, lag, slots } = self.order;
        bytes.divisors([self.ds_heads, self.query_splits, keys, queries]);
        bytes.u32s([chunks, lag, slots]);
        bytes.u32s([self.scale.to_bits(), self.first_tile, self.ds_groups, self.ds_block_rows]);
        bytes.u32s([self.sums_row_bytes]);
        // Up to a multiple of 8.
        bytes.fill();
        bytes.finish()
    }
}

/// Parameters of a launch of [`crate::row::Isa::Wgmma`], at a multiple of [`crate::params::WgmmaParams::ALIGN`] bytes. Every tensor is
/// `[batch, heads, rows, head_dim]`; boxes have 64 or 32 elements of head_dim, which the swizzle of the same width spans, and the rows
/// of the kernel's block of queries or of keys; rows out of bounds read as 0.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WgmmaBackwardParams {
    /// Q.
    pub q: TensorMap,
    /// dO.
    pub d_o: TensorMap,
    /// K.
    pub k: TensorMap,
    /// V.
    pub v: TensorMap,
    /// What every launch has.
    pub backward: BackwardParams,
}

impl WgmmaBackwardParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<WgmmaBackwardParams>()] {
        let mut bytes = Bytes::new();
        for map in [self.q, self.d_o, self.k, self.v] {
            bytes.u64s(map.0);
        }
        bytes.put(&self.backward.to_bytes());
        // Up to the struct's own alignment.
        bytes.fill();
        bytes.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn bytes_lie_where_the_fields_do() {
        let strides = |n| Strides { batch: n, head: n + 1, row: n + 2 };
        let params = BackwardParams {
            forward: ForwardParams { q: 1, scale_log2: 2.0, ..ForwardParams::default() },
            d_lse: 3,
            statistics: 4,
            d_s: 6,
            d_o_strides: strides(10),
            d_v_strides: strides(20),
            key_blocks: Divisor::new(5),
            key_block_rows: Divisor::new(7),
            kv_heads_together: Divisor::new(8),
            ds_heads: Divisor::new(13),
            order: Order { queries: Divisor::new(14), lag: 15, slots: 16, ..Order::default() },
            counters: 17,
            sums: 18,
            query_splits: Divisor::new(19),
            sums_row_bytes: 20,
            scale: 0.5,
            first_tile: 9,
            ds_starts: 7,
            ds_groups: 11,
            ds_block_rows: 12,
            ..BackwardParams::default()
        };
        let bytes = params.to_bytes();
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(u64_at(offset_of!(BackwardParams, forward)), 1);
        assert_eq!(u32_at(offset_of!(ForwardParams, scale_log2)), 2f32.to_bits());
        assert_eq!(u64_at(offset_of!(BackwardParams, d_lse)), 3);
        assert_eq!(u64_at(offset_of!(BackwardParams, statistics)), 4);
        assert_eq!(u64_at(offset_of!(BackwardParams, d_s)), 6);
        assert_eq!(u64_at(offset_of!(BackwardParams, d_o_strides)), 10);
        assert_eq!(u64_at(offset_of!(BackwardParams, d_v_strides) + 16), 22);
        assert_eq!(u32_at(offset_of!(BackwardParams, key_blocks)), 5);
        assert_eq!(u32_at(offset_of!(BackwardParams, key_block_rows)), 7);
        assert_eq!(u32_at(offset_of!(BackwardParams, kv_heads_together)), 8);
        assert_eq!(u32_at(offset_of!(BackwardParams, scale)), 0.5f32.to_bits());
        assert_eq!(u32_at(offset_of!(BackwardParams, ds_heads)), 13);
        let order = offset_of!(BackwardParams, order);
        assert_eq!(u32_at(order + offset_of!(Order, queries)), 14);
        assert_eq!(u32_at(order + offset_of!(Order, lag)), 15);
        assert_eq!(u32_at(order + offset_of!(Order, slots)), 16);
        assert_eq!(u64_at(offset_of!(BackwardParams, counters)), 17);
        assert_eq!(u64_at(offset_of!(BackwardParams, sums)), 18);
        assert_eq!(u32_at(offset_of!(BackwardParams, query_splits)), 19);
        assert_eq!(u32_at(offset_of!(BackwardParams, sums_row_bytes)), 20);
        assert_eq!(u32_at(offset_of!(BackwardParams, first_tile)), 9);
        assert_eq!(u64_at(offset_of!(BackwardParams, ds_starts)), 7);
        assert_eq!(u32_at(offset_of!(BackwardParams, ds_groups)), 11);
        assert_eq!(u32_at(offset_of!(BackwardParams, ds_block_rows)), 12);
    }

    #[test]
    fn tensor_maps_stand_before_what_every_launch_has() {
        let map = |n: u64| TensorMap([n; 16]);
        let backward = BackwardParams { scale: 0.5, ..BackwardParams::default() };
        let params = WgmmaBackwardParams { q: map(1), d_o: map(2), k: map(3), v: map(4), backward };
        let bytes = params.to_bytes();
        for (n, at) in [
            (1, offset_of!(WgmmaBackwardParams, q)),
            (2, offset_of!(WgmmaBackwardParams, d_o)),
            (3, offset_of!(WgmmaBackwardParams, k)),
            (4, offset_of!(WgmmaBackwardParams, v)),
        ] {
            assert_eq!(bytes[at..at + 8], u64::to_ne_bytes(n));
            assert!(at.is_multiple_of(64), "tensor maps lie at multiples of 64 bytes");
        }
        let at = offset_of!(WgmmaBackwardParams, backward);
        assert_eq!(bytes[at..at + size_of::<BackwardParams>()], backward.to_bytes());
    }
}
