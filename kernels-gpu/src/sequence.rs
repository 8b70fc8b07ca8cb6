//! How many queries and keys a batch entry has, and where they start: worked out once a tile.

use crate::params::ForwardParams;
#[cfg(target_arch = "nvptx64")]
use crate::ptx::grid::wait_for_prerequisites;
#[cfg(target_arch = "nvptx64")]
use crate::ptx::memory::{ld_global_b32, to_global, to_global_again};

/// One batch entry's lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Queries.
    pub seqlen_q: QueryCount<'a>,
    /// Keys.
    pub seqlen_k: u32,
    /// The first query's row in a packed Q; 0 where sequences are not packed.
    pub q_start: u32,
    /// The first key's row in packed K and V; 0 where sequences are not packed.
    pub k_start: u32,
}

/// A number of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryCount<'a> {
    /// That of all sequences. In the parameter block: read where it is used, and not kept in a register until then.
    OfLaunch(&'a u32),
    /// A sequence's own.
    Own(u32),
}

impl QueryCount<'_> {
    /// The number.
    #[inline(always)]
    pub fn get(self) -> u32 {
        match self {
            QueryCount::OfLaunch(count) => *count,
            QueryCount::Own(count) => count,
        }
    }
}

impl<'a> Sequence<'a> {
    /// A sequence of its own tensors.
    #[inline(always)]
    pub fn unpacked(seqlen_q: &'a u32, seqlen_k: u32) -> Self {
        Self { seqlen_q: QueryCount::OfLaunch(seqlen_q), seqlen_k, q_start: 0, k_start: 0 }
    }

    /// The lengths that all batch entries share.
    #[inline(always)]
    pub fn dense(params: &'a ForwardParams) -> Self {
        Self::unpacked(&params.seqlen_q, params.seqlen_k)
    }

    /// A batch entry's lengths, where those of the keys may lie on the device; clamped, so that a wrong length reads nothing outside
    /// of K and V.
    ///
    /// # Safety
    /// The lengths, if given, hold an element a batch entry, and nobody writes them meanwhile.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub unsafe fn of_batch(params: &'a ForwardParams, batch: u32) -> Self {
        if params.split.seqlens_k != 0 {
            // The kernel before this one may have written them.
            wait_for_prerequisites();
        }
        // SAFETY: the caller's.
        Self::unpacked(&params.seqlen_q, unsafe { keys_of_batch(params, batch) })
    }

    /// As [`Self::of_batch`], of a ragged batch: whatever lies on the device, nothing outside of the tensors is read or written.
    ///
    /// # Safety
    /// As for [`Self::of_batch`], for all that [`crate::params::RaggedParams`] points to.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub unsafe fn of_ragged(params: &'a ForwardParams, batch: u32) -> Self {
        let ragged = &params.ragged;
        // SAFETY: the caller's; there is one element more than batch entries.
        unsafe {
            let most = keys_of_batch(params, batch);
            let (k_start, seqlen_k) = match ragged.cu_seqlens_k {
                0 => (0, most),
                starts => {
                    let (start, length) = between(starts, batch, ragged.total_k);
                    (start, length.min(most))
                }
            };
            let seqlen_k = match ragged.page_indptr {
                0 => seqlen_k,
                starts => {
                    let pages = between(starts, batch, ragged.table_stride).1;
                    seqlen_k.min(pages.saturating_mul(ragged.page.value))
                }
            };
            let (q_start, seqlen_q) = match ragged.cu_seqlens_q {
                0 => (0, params.seqlen_q),
                starts => between(starts, batch, params.seqlen_q),
            };
            Self { seqlen_q: QueryCount::Own(seqlen_q), seqlen_k, q_start, k_start }
        }
    }
}

/// Keys of a batch entry, as far as its own length says.
///
/// # Safety
/// As for [`Sequence::of_batch`].
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
unsafe fn keys_of_batch(params: &ForwardParams, batch: u32) -> u32 {
    let (most, lengths) = (params.seqlen_k, params.split.seqlens_k);
    // SAFETY: an element of seqlens_k.
    let given = || unsafe { ld_global_b32(to_global(lengths) + u64::from(batch) * 4) };
    if lengths == 0 { most } else { given().min(most) }
}

/// The start of a batch entry and how far it is to the next one's, of ascending `starts` that are at most `past`; whatever they are, no
/// more than that.
///
/// # Safety
/// `starts` is the address of one element more than there are batch entries.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub unsafe fn between(starts: u64, batch: u32, past: u32) -> (u32, u32) {
    let at = to_global_again(starts) + u64::from(batch) * 4;
    // SAFETY: the caller's.
    let (start, end) = unsafe { (ld_global_b32(at).min(past), ld_global_b32(at + 4).min(past)) };
    (start, end.saturating_sub(start))
}
