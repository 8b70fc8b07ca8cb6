//! The parameter blocks of kernels whose bulk copies read tensor maps.

use super::{Bytes, ForwardParams};
use core::mem::offset_of;

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

/// Parameters of a forward launch of [`crate::row::Isa::Wgmma`] whose keys may lie in two places: of all rows but those of `Schedule::Ragged`.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DenseParams {
    /// What every launch has.
    pub wgmma: WgmmaParams,
    /// Keeps the maps at multiples of 64 bytes.
    pub reserved: [u64; OWN_PADDING],
    /// As K, of the own keys of a rank of a split sequence ([`ForwardParams::own_from`]), which have the same row numbers as if they were in K;
    /// K and V hold those of other ranks.
    pub own_k: TensorMap,
    /// Their values, as V.
    pub own_v: TensorMap,
    /// A u32: the KV heads whose keys and values in K and V are there, of all batch entries; 0 where all are there before the launch.
    pub arrived: u64,
    /// Keeps the block a multiple of its alignment without hidden padding.
    pub padding: u64,
}

const OWN_PADDING: usize =
    (size_of::<WgmmaParams>().next_multiple_of(WgmmaParams::ALIGN as usize) - size_of::<WgmmaParams>()) / 8;

impl DenseParams {
    /// Bytes from the map of K or V to the one of own keys or values.
    pub const TO_OWN: u32 = (offset_of!(DenseParams, own_k) - offset_of!(WgmmaParams, k)) as u32;
}

/// The parameter block of a forward launch of [`crate::row::Isa::Wgmma`], of either kind of batch.
pub trait WgmmaBlock {
    /// What every forward launch has.
    fn forward(&self) -> &ForwardParams;

    /// [`DenseParams::arrived`]. By reference, so that it is read where it is needed.
    fn arrived(&self) -> &u64;
}

impl WgmmaBlock for WgmmaParams {
    #[inline(always)]
    fn forward(&self) -> &ForwardParams {
        &self.forward
    }

    #[inline(always)]
    fn arrived(&self) -> &u64 {
        &0
    }
}

impl WgmmaBlock for DenseParams {
    #[inline(always)]
    fn forward(&self) -> &ForwardParams {
        &self.wgmma.forward
    }

    #[inline(always)]
    fn arrived(&self) -> &u64 {
        &self.arrived
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
        bytes.fill();
        bytes.finish()
    }
}

impl DenseParams {
    /// The block as the bytes of the kernel's one parameter.
    pub fn to_bytes(&self) -> [u8; size_of::<DenseParams>()] {
        let mut bytes = Bytes::new();
        bytes.put(&self.wgmma.to_bytes());
        bytes.u64s(self.reserved);
        for map in [self.own_k, self.own_v] {
            bytes.u64s(map.0);
        }
        bytes.u64s([self.arrived, self.padding]);
        bytes.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::u64_at;

    #[test]
    fn maps_and_own_keys_lie_where_the_fields_do() {
        let map = |n: u64| TensorMap(core::array::from_fn(|i| n + i as u64));
        let wgmma = WgmmaParams { q: map(100), k: map(200), v: map(300), ..Default::default() };
        let params =
            DenseParams { wgmma, own_k: map(400), own_v: map(500), arrived: 7, ..Default::default() };
        let bytes = params.to_bytes();
        for (at, first) in [
            (offset_of!(WgmmaParams, q), 100),
            (offset_of!(WgmmaParams, k), 200),
            (offset_of!(WgmmaParams, v), 300),
            (offset_of!(WgmmaParams, k) + DenseParams::TO_OWN as usize, 400),
            (offset_of!(WgmmaParams, v) + DenseParams::TO_OWN as usize, 500),
        ] {
            assert_eq!([0, 15].map(|i| u64_at(&bytes, at + i * 8)), [first, first + 15]);
        }
        assert_eq!(offset_of!(DenseParams, own_k) % WgmmaParams::ALIGN as usize, 0);
        assert_eq!(u64_at(&bytes, offset_of!(DenseParams, arrived)), 7);
    }
}
