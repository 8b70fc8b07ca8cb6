//! A work tile on its way from the producer to the other warps of the CTA, through shared memory.

use crate::config::Config;
use crate::params::ForwardParams;
use crate::ptx::memory::{ld_shared_v4, st_shared_v4};
use crate::ptx::warp::first_lane;
use crate::scheduler::Work;
use crate::sequence::{QueryCount, Sequence};
use crate::visible::KeyBlocks;
use crate::work::{key_blocks, work_of};

/// The batch entry that stands for "no more tiles".
pub(super) const NO_MORE: u32 = u32::MAX;

/// A work tile, worked out once by the producer instead of by every thread.
pub(super) struct Tile<'a> {
    pub(super) work: Work<'a>,
    pub(super) blocks: KeyBlocks,
}

impl<'a> Tile<'a> {
    /// # Safety
    /// As for [`crate::sequence::Sequence::of_batch`].
    #[inline(always)]
    pub(super) unsafe fn new<C: Config>(params: &'a ForwardParams, index: u32) -> Self {
        // SAFETY: the caller's.
        let work = unsafe { work_of::<C>(params, index) };
        // SAFETY: the caller's; no shuffle, as kernels with wgmma have no intervals.
        let blocks = unsafe { key_blocks::<C>(params, &work) };
        Self { work, blocks }
    }

    /// # Safety
    /// One thread, while the slot is free: its readers have released it, and wait for its barrier before they read again.
    #[inline(always)]
    pub(super) unsafe fn write<C: Config>(&self, slot: u32) {
        let Work { batch, head_q, first_row, split, sequence, .. } = self.work;
        let KeyBlocks { first, full, end, left, sink_blocks, skipped } = self.blocks;
        // SAFETY: the caller's; slots are multiples of 16.
        unsafe {
            st_shared_v4(slot, [batch, head_q, first_row, split]);
            st_shared_v4(slot + 16, [sequence.seqlen_k, first, full, end]);
            if C::RAGGED {
                st_shared_v4(slot + 32, [sequence.seqlen_q.get(), sequence.q_start, sequence.k_start, left]);
                st_shared_v4(slot + 48, [sink_blocks, skipped, 0, 0]);
            }
        }
    }

    /// # Safety
    /// All lanes take part; the slot is written, and stays until this warp releases it.
    #[inline(always)]
    pub(super) unsafe fn read<C: Config>(params: &'a ForwardParams, slot: u32) -> Self {
        // SAFETY: the caller's.
        unsafe { Self::read_as::<C>(params, slot, 0, first_lane) }
    }

    /// As [`Self::read`], with this slice of the values.
    ///
    /// # Safety
    /// As for [`Self::read`].
    #[inline(always)]
    pub(super) unsafe fn read_slice<C: Config>(params: &'a ForwardParams, slot: u32, slice: u32) -> Self {
        // SAFETY: the caller's.
        unsafe { Self::read_as::<C>(params, slot, slice, first_lane) }
    }

    /// As [`Self::read`], where nothing is to know that all lanes have the same numbers: for use while products of wgmma are on their way.
    ///
    /// # Safety
    /// As for [`Self::read`].
    #[inline(always)]
    pub(super) unsafe fn read_by_lane<C: Config>(params: &'a ForwardParams, slot: u32) -> Self {
        // SAFETY: the caller's.
        unsafe { Self::read_as::<C>(params, slot, 0, |number| number) }
    }

    #[inline(always)]
    unsafe fn read_as<C: Config>(
        params: &'a ForwardParams,
        slot: u32,
        slice: u32,
        uniform: impl Fn(u32) -> u32 + Copy,
    ) -> Self {
        // SAFETY: the caller's.
        let ([batch, head_q, first_row, split], [seqlen_k, first, full, end]) =
            unsafe { (ld_shared_v4(slot), ld_shared_v4(slot + 16)) };
        let [batch, first, full, end] = [batch, first, full, end].map(uniform);
        let mut sequence = Sequence::unpacked(&params.seqlen_q, seqlen_k);
        let mut blocks = KeyBlocks { first, ..KeyBlocks::before(full, end) };
        if C::RAGGED {
            // SAFETY: the caller's.
            let ([seqlen_q, q_start, k_start, left], [sink_blocks, skipped, ..]) =
                unsafe { (ld_shared_v4(slot + 32), ld_shared_v4(slot + 48)) };
            let [left, sink_blocks, skipped] = [left, sink_blocks, skipped].map(uniform);
            blocks = KeyBlocks { left, sink_blocks, skipped, ..blocks };
            sequence = Sequence { seqlen_q: QueryCount::Own(seqlen_q), q_start, k_start, seqlen_k };
        }
        let work =
            Work { batch, head_q, head_kv: params.group.quotient(head_q), first_row, split, slice, sequence };
        Self { work, blocks }
    }
}
