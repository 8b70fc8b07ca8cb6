//! Which tile a CTA of the backward pass has, and where the rows of a head lie.

use super::params::BackwardParams;
use super::spill::DS_KEYS;
use crate::divisor::Divisor;
use crate::keys::KeyRows;
use crate::params::{ForwardParams, Strides};
use crate::ptx::memory::{ld_global_b32, to_global, to_global_again};
use crate::scheduler::{Work, block_of_packed};
use crate::sequence::Sequence;

/// Blocks of the stationary rows of all heads, in the order of CTAs.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// Of a head, or of all packed sequences of a head.
    of_head: Divisor,
    heads: Divisor,
    /// Heads whose blocks are taken in turns.
    together: Divisor,
    /// Rows of a block.
    rows: Divisor,
    /// Where packed sequences start, or 0.
    starts: u64,
    /// Rows of all packed sequences.
    total: u32,
}

impl Blocks {
    /// Batch entry, head and first row of block `index`; a head's blocks follow each other, from the last one with `descending`, and where
    /// heads go together, block after block of all of them.
    ///
    /// # Safety
    /// As for [`Sequence::of_ragged`].
    #[inline(always)]
    unsafe fn at(self, index: u32, descending: bool, sequences: u32) -> (u32, u32, u32) {
        let (blocks, within) = self.together.divide(index);
        let (together, order) = self.of_head.divide(blocks);
        let (batch, head) = self.heads.divide(together * self.together.value + within);
        let block = if descending { self.of_head.value - 1 - order } else { order };
        let (batch, block) = if self.starts == 0 {
            (batch, block)
        } else {
            // SAFETY: the caller's.
            let start = |batch| unsafe { packed_start(self.starts, self.total, batch) };
            block_of_packed(sequences, block, |batch| self.rows.quotient(start(batch)) + batch)
        };
        (batch, head, block * self.rows.value)
    }
}

/// The first row of a packed sequence.
///
/// # Safety
/// `starts` has one element a sequence, and one more.
#[inline(always)]
unsafe fn packed_start(starts: u64, total: u32, batch: u32) -> u32 {
    // SAFETY: the caller's.
    unsafe { ld_global_b32(to_global_again(starts) + u64::from(batch) * 4) }.min(total)
}

/// The block of queries of CTA `index` of `dq`; none where the sequence has fewer. Under a causal mask those with most keys are first.
///
/// # Safety
/// As for [`Sequence::of_ragged`].
#[inline(always)]
pub unsafe fn query_work(params: &BackwardParams, index: u32) -> Option<Work<'_>> {
    let forward = &params.forward;
    let blocks = Blocks {
        of_head: forward.query_blocks,
        heads: forward.tile_heads,
        together: forward.heads_together,
        rows: forward.ragged.block_rows,
        starts: forward.ragged.cu_seqlens_q,
        total: forward.seqlen_q,
    };
    // SAFETY: the caller's.
    unsafe {
        let (batch, head_q, first_row) = blocks.at(index, forward.causal != 0, forward.batch);
        let sequence = Sequence::of_ragged(forward, batch);
        let head_kv = forward.group.quotient(head_q);
        let work = Work { batch, head_q, head_kv, first_row, split: 0, slice: 0, sequence };
        (first_row < sequence.seqlen_q.get()).then_some(work)
    }
}

/// The block of keys of CTA `index` of `dkv`, from `first_row` on, which of its splits the CTA has, and the key past the last whose gradients are
/// written; none where there is no such key. Keys behind a sequence's length have gradients of 0, but where sequences are packed.
///
/// # Safety
/// As for [`Sequence::of_ragged`].
#[inline(always)]
pub unsafe fn key_work(params: &BackwardParams, index: u32) -> Option<(Work<'_>, u32)> {
    let forward = &params.forward;
    let blocks = Blocks {
        of_head: params.key_blocks,
        heads: params.heads_kv,
        together: params.kv_heads_together,
        rows: params.key_block_rows,
        starts: forward.ragged.cu_seqlens_k,
        total: forward.ragged.total_k,
    };
    let (index, split) = params.query_splits.divide(index);
    // SAFETY: the caller's.
    unsafe {
        let (batch, head_kv, first_row) = blocks.at(index, false, forward.batch);
        let sequence = Sequence::of_ragged(forward, batch);
        let head_q = head_kv * forward.group.value;
        let work = Work { batch, head_q, head_kv, first_row, split, slice: 0, sequence };
        let past = past_of_keys(params, &work);
        (first_row < past).then_some((work, past))
    }
}

/// The key past the last whose gradients are written: of packed sequences the last of its own, else the last of all.
#[inline(always)]
pub fn past_of_keys(params: &BackwardParams, work: &Work<'_>) -> u32 {
    let forward = &params.forward;
    if forward.ragged.cu_seqlens_k == 0 { forward.seqlen_k } else { work.sequence.seqlen_k }
}

/// Batch entry and first row of a block of keys of dS by its number: in batch entry `batch`, or in all packed sequences.
///
/// # Safety
/// As for [`Sequence::of_ragged`].
#[inline(always)]
pub unsafe fn ds_block_at(params: &BackwardParams, batch: u32, block: u32) -> (u32, u32) {
    let ragged = &params.forward.ragged;
    let (starts, total) = (ragged.cu_seqlens_k, ragged.total_k);
    if starts == 0 {
        return (batch, block * DS_KEYS);
    }
    // SAFETY: the caller's.
    let first = |batch| unsafe { packed_start(starts, total, batch) } / DS_KEYS + batch;
    let (batch, block) = block_of_packed(params.forward.batch, block, first);
    (batch, block * DS_KEYS)
}

/// The number of a block of the work's sequence among all that [`BackwardParams::ds_starts`] lists: the inverse of [`ds_block_at`].
#[inline(always)]
pub fn ds_block_index(params: &BackwardParams, work: &Work<'_>, block: u32) -> u32 {
    let first = match params.forward.ragged.cu_seqlens_k {
        0 => work.batch * params.key_blocks.value,
        _ => work.sequence.k_start / DS_KEYS + work.batch,
    };
    first + block
}

/// The rows of a head of a tensor of queries, from the sequence's first on.
#[inline(always)]
pub fn query_rows(base: u64, strides: &Strides, work: &Work<'_>, head_q: u32) -> KeyRows {
    KeyRows::new(to_global(base), strides, work.batch, head_q).from(work.sequence.q_start)
}

/// The rows of a head of a tensor of keys, from the sequence's first on.
#[inline(always)]
pub fn key_rows(base: u64, strides: &Strides, work: &Work<'_>) -> KeyRows {
    KeyRows::new(to_global(base), strides, work.batch, work.head_kv).from(work.sequence.k_start)
}

/// Where a head's first query of the sequence stands in LSE and in the statistics.
#[inline(always)]
pub fn first_index(params: &ForwardParams, work: &Work<'_>, head_q: u32) -> u64 {
    let batch = if params.ragged.cu_seqlens_q == 0 { work.batch } else { 0 };
    let head = u64::from(batch) * u64::from(params.heads_q) + u64::from(head_q);
    head * u64::from(params.seqlen_q) + u64::from(work.sequence.q_start)
}
