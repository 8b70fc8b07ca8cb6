//! How many queries and keys a batch entry has: worked out once a tile.

use crate::params::ForwardParams;
#[cfg(target_arch = "nvptx64")]
use crate::ptx::memory::{ld_global_b32, to_global};

/// One batch entry's lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Queries. In the parameter block: read where it is used, and not kept in a register until then.
    pub seqlen_q: &'a u32,
    /// Keys.
    pub seqlen_k: u32,
}

impl<'a> Sequence<'a> {
    /// The lengths that all batch entries share.
    #[inline(always)]
    pub fn dense(params: &'a ForwardParams) -> Self {
        Self { seqlen_q: &params.seqlen_q, seqlen_k: params.seqlen_k }
    }

    /// A batch entry's lengths, where those of the keys may lie on the device; clamped, so that a wrong length reads nothing outside
    /// of K and V.
    ///
    /// # Safety
    /// The lengths, if given, hold an element a batch entry, and nobody writes them meanwhile.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub unsafe fn of_batch(params: &'a ForwardParams, batch: u32) -> Self {
        let (most, lengths) = (params.seqlen_k, params.split.seqlens_k);
        // SAFETY: an element of seqlens_k.
        let given = || unsafe { ld_global_b32(to_global(lengths) + u64::from(batch) * 4) };
        let seqlen_k = if lengths == 0 { most } else { given().min(most) };
        Self { seqlen_q: &params.seqlen_q, seqlen_k }
    }
}
