//! The merge of O and LSE of calls over disjoint keys, in a kernel of its own: a shared prefix and what follows it, chunks of a long
//! sequence, devices that hold a part of the keys each.
//!
//! A thread merges eight neighbouring elements of a row, so that memory is the only cost. The weights are those of the splits
//! (`combine.rs`), summed in the order of the states: a result repeats in every bit, and a row that only one state saw keys of is that
//! state's, bit by bit.

use crate::element::Stored;
use crate::math::combine::{NOTHING, add_weighted, base_of, lse_of, normalizer, share, weight};
use crate::params::Strides;
use crate::ptx::math::max;
use crate::ptx::memory::{ld_global_b32, st_global_f32, to_global};
use crate::step_params::MergeParams;
use crate::steps::STEP_THREADS;
use cuda_std::thread::{block_idx_x, thread_idx_x};

/// The kernel, of states of `I` into an O of `O`.
///
/// # Safety
/// Launched with [`STEP_THREADS`] threads, at least as many as its rows have, and parameters that describe device memory as
/// [`MergeParams`] says.
#[inline(always)]
pub unsafe fn merge<I: Stored, O: Stored>(params: &MergeParams) {
    let (thread, log2) = (thread_idx_x(), params.threads_log2);
    let row = block_idx_x() * (STEP_THREADS >> log2) + (thread >> log2);
    let chunk = thread & ((1 << log2) - 1);
    if row >= params.rows || chunk >= params.chunks {
        return;
    }
    let (head_index, query) = params.seqlen.divide(row);
    let (batch, head) = params.heads.divide(head_index);
    // SAFETY: the caller's: each address is of what its field says, and the row is one of the tensors'.
    unsafe {
        if params.rows_used != 0 && query >= ld_global_b32(to_global(params.rows_used)) {
            return;
        }
        let lse = |state: u32| {
            let at = to_global(params.partial_lse) + u64::from(row) * 4;
            f32::from_bits(ld_global_b32(at.wrapping_add_signed(i64::from(state) * params.lse_next)))
        };
        let sink = (params.sinks != 0)
            .then(|| f32::from_bits(ld_global_b32(to_global(params.sinks) + u64::from(head) * 4)));
        let most = (0..params.states).map(lse).fold(f32::NEG_INFINITY, max);
        let base = base_of(sink.map_or(most, |sink| max(most, sink)));
        let sum = (0..params.states).fold(0.0, |sum, state| sum + share(lse(state), base));
        let sum = sink.map_or(sum, |sink| sum + share(sink, base));
        let normalizer = normalizer(sum);
        let at = |address: u64, strides: &Strides, bytes: u32| {
            let offset = i64::from(batch) * strides.batch
                + i64::from(head) * strides.head
                + i64::from(query) * strides.row
                + i64::from(chunk * 8 * bytes);
            to_global(address).wrapping_add_signed(offset)
        };
        let partial = at(params.partial_o, &params.partial_strides, I::BYTES);
        let mut o = [NOTHING; 8];
        for state in 0..params.states {
            let lse = lse(state);
            let weight = weight(lse, share(lse, base) * normalizer);
            let elements = I::load(partial.wrapping_add_signed(i64::from(state) * params.o_next));
            o = core::array::from_fn(|i| add_weighted(o[i], elements[i], weight));
        }
        // Of a row that saw nothing +0, as kernels that compute attention write it.
        let o = o.map(|o| if sum == 0.0 { 0.0 } else { o });
        O::store(at(params.o, &params.o_strides, O::BYTES), o);
        if chunk == 0 && params.lse != 0 {
            st_global_f32(to_global(params.lse) + u64::from(row) * 4, lse_of(sum, base));
        }
    }
}
