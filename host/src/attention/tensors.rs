//! What attention takes and gives: tensors on the host and on the device.

#[cfg(doc)]
use crate::problem::Problem;

/// What attention computes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Output {
    /// O as bit patterns of the problem's dtype, `[batch, heads_q, seqlen_q, head_dim]` in the problem's strides; gaps between
    /// strided rows are 0.
    pub o: Vec<u16>,
    /// LSE, natural logarithm, `[batch, heads_q, seqlen_q]`, where it was asked for.
    pub lse: Option<Vec<f32>>,
}

impl Output {
    /// Of O and, where it was asked for, LSE.
    pub fn new(o: Vec<u16>, lse: Option<Vec<f32>>) -> Output {
        Output { o, lse }
    }
}

/// Q, K and V on the host, as bit patterns of a problem's dtype in its strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostTensors<'a> {
    /// Q, [`Problem::q_len`] elements.
    pub q: &'a [u16],
    /// K, [`Problem::k_len`] elements.
    pub k: &'a [u16],
    /// V, [`Problem::v_len`] elements.
    pub v: &'a [u16],
    /// Keys of each sequence, `[batch]`: required exactly when the problem has lengths ([`Problem::with_lengths`]).
    pub seqlens_k: Option<&'a [u32]>,
}

impl<'a> HostTensors<'a> {
    /// Of sequences that all have seqlen_k keys.
    pub fn new(q: &'a [u16], k: &'a [u16], v: &'a [u16]) -> HostTensors<'a> {
        HostTensors { q, k, v, seqlens_k: None }
    }

    /// The same with these keys of each sequence.
    pub fn with_seqlens_k(self, seqlens_k: Option<&'a [u32]>) -> HostTensors<'a> {
        HostTensors { seqlens_k, ..self }
    }
}

impl<'a> From<&'a [Vec<u16>; 3]> for HostTensors<'a> {
    /// Of Q, K and V in this order.
    fn from([q, k, v]: &'a [Vec<u16>; 3]) -> HostTensors<'a> {
        HostTensors::new(q, k, v)
    }
}

/// Tensors on the device, by the address of their first element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceTensors {
    /// Q, 16-byte aligned, [`Problem::q_len`] elements.
    pub q: u64,
    /// K, 16-byte aligned, [`Problem::k_len`] elements.
    pub k: u64,
    /// V, 16-byte aligned, [`Problem::v_len`] elements.
    pub v: u64,
    /// O, 16-byte aligned, [`Problem::o_len`] elements.
    pub o: u64,
    /// LSE in float32, 4-byte aligned, [`Problem::lse_len`] elements, where it is wanted.
    pub lse: Option<u64>,
    /// Keys of each sequence, u32 `[batch]`, 4-byte aligned: required exactly when the problem has lengths ([`Problem::with_lengths`]).
    /// The kernel takes a length over seqlen_k for seqlen_k.
    pub seqlens_k: Option<u64>,
}

impl DeviceTensors {
    /// Of Q, K, V and O, without LSE, of sequences that all have seqlen_k keys.
    pub const fn new(q: u64, k: u64, v: u64, o: u64) -> DeviceTensors {
        DeviceTensors { q, k, v, o, lse: None, seqlens_k: None }
    }

    /// The same with LSE at this address.
    pub const fn with_lse(self, lse: Option<u64>) -> DeviceTensors {
        DeviceTensors { lse, ..self }
    }

    /// The same with the keys of each sequence at this address.
    pub const fn with_seqlens_k(self, seqlens_k: Option<u64>) -> DeviceTensors {
        DeviceTensors { seqlens_k, ..self }
    }
}
