//! The parameter block of the forward kernels, written by the host and read by the device.

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
    /// Keys.
    pub seqlen_k: u32,
    /// Query heads.
    pub heads_q: Divisor,
    /// Query heads that share one KV head: heads_q / heads_kv.
    pub group: Divisor,
    /// Blocks of query rows of one head: ⌈seqlen_q / block_m⌉.
    pub query_blocks: Divisor,
    /// 1 for the bottom-right aligned causal mask, else 0.
    pub causal: u32,
    /// Softmax scale times log2(e), so that the kernel can use exp2. Positive and finite.
    pub scale_log2: f32,
    /// Keeps the block a multiple of 8 bytes without hidden padding.
    pub reserved: u32,
}

impl ForwardParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<ForwardParams>()] {
        let mut bytes = [0; size_of::<ForwardParams>()];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        for pointer in [self.q, self.k, self.v, self.o, self.lse] {
            put(&pointer.to_ne_bytes());
        }
        for strides in [self.q_strides, self.k_strides, self.v_strides, self.o_strides] {
            for stride in [strides.batch, strides.head, strides.row] {
                put(&stride.to_ne_bytes());
            }
        }
        put(&self.seqlen_q.to_ne_bytes());
        put(&self.seqlen_k.to_ne_bytes());
        for word in [self.heads_q, self.group, self.query_blocks].map(Divisor::words).as_flattened() {
            put(&word.to_ne_bytes());
        }
        put(&self.causal.to_ne_bytes());
        put(&self.scale_log2.to_ne_bytes());
        put(&self.reserved.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn bytes_lie_where_the_fields_do() {
        let strides = |n| Strides { batch: n, head: n + 1, row: n + 2 };
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
            heads_q: Divisor::new(52),
            group: Divisor::new(53),
            query_blocks: Divisor::new(54),
            causal: 1,
            scale_log2: 0.25,
            reserved: 0,
        };
        let bytes = params.to_bytes();
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(u64_at(offset_of!(ForwardParams, lse)), 5);
        assert_eq!(u64_at(offset_of!(ForwardParams, v_strides) + offset_of!(Strides, row)), 32);
        assert_eq!(u64_at(offset_of!(ForwardParams, o_strides)), 40);
        assert_eq!(u32_at(offset_of!(ForwardParams, seqlen_q)), 50);
        assert_eq!(u32_at(offset_of!(ForwardParams, query_blocks)), 54);
        assert_eq!(u32_at(offset_of!(ForwardParams, causal)), 1);
        assert_eq!(f32::from_bits(u32_at(offset_of!(ForwardParams, scale_log2))), 0.25);
        assert_eq!(bytes.len() % 8, 0);
    }
}
