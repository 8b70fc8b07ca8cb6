//! A tile on its way from the producer to those who work on it.

use crate::forward::{Config, key_blocks, work_of};
use crate::params::ForwardParams;
use crate::ptx::memory::{ld_shared_v4, st_shared_v4};
use crate::ptx::warp::first_lane;
use crate::scheduler::{KeyBlocks, Work};

/// A tile as the producer hands it to the consumers, through shared memory: worked out once instead of by every thread.
pub(super) struct Tile {
    pub(super) work: Work,
    pub(super) blocks: KeyBlocks,
}

impl Tile {
    /// # Safety
    /// As for [`super::forward_wgmma`].
    #[inline(always)]
    pub(super) unsafe fn new<C: Config>(params: &ForwardParams, index: u32) -> Self {
        // SAFETY: the caller's.
        let work = unsafe { work_of::<C>(params, index) };
        let blocks = key_blocks::<C>(params, &work);
        Self { work, blocks }
    }

    /// # Safety
    /// Nobody reads the slot.
    #[inline(always)]
    pub(super) unsafe fn write(&self, slot: u32) {
        let Work { batch, head_q, first_row, split, seqlen_k, .. } = self.work;
        let KeyBlocks { first, full, end } = self.blocks;
        // SAFETY: the caller's; slots are multiples of 16.
        unsafe {
            st_shared_v4(slot, [batch, head_q, first_row, split]);
            st_shared_v4(slot + 16, [seqlen_k, first, full, end]);
        }
    }

    /// # Safety
    /// The slot is written.
    #[inline(always)]
    pub(super) unsafe fn read(params: &ForwardParams, slot: u32) -> Self {
        // SAFETY: the caller's.
        let ([batch, head_q, first_row, split], [seqlen_k, first, full, end]) =
            unsafe { (ld_shared_v4(slot), ld_shared_v4(slot + 16)) };
        let [batch, first, full, end] = [batch, first, full, end].map(first_lane);
        let work = Work { batch, head_q, head_kv: params.group.quotient(head_q), first_row, split, seqlen_k };
        Self { work, blocks: KeyBlocks { first, full, end } }
    }
}

/// Whether rows of one block may see different keys of what was copied: under a causal mask, or where sequences end before what
/// the tensor maps know. Bulk copies read 0 past the end that they know.
#[inline(always)]
pub(super) fn rows_differ(params: &ForwardParams) -> bool {
    params.causal != 0 || params.split.seqlens_k != 0
}
