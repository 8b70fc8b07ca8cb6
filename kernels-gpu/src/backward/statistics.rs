//! The statistics of all queries, for a backward pass whose kernels do not compute them on the way: L·log2(e) and δ = rowsum(dO∘O) − dL; and where
//! dS of each block of keys starts.

use super::dq_tile::statistics_of_row;
use super::params::BackwardParams;
use super::query_steps::{keys_of_block, queries_of};
use super::spill::{DS_KEYS, DS_QUERIES, Piece, ds_bytes};
use super::work::ds_block_at;
use super::{STATISTICS_LANES, STATISTICS_ROWS};
use crate::element::{Element, half};
use crate::keys::KeyRows;
use crate::ptx::memory::{ld_global_v4, st_global_b32, st_global_v4, to_global};
use crate::ptx::warp::{shfl_bfly, shfl_idx_b32};
use crate::scheduler::Work;
use crate::sequence::Sequence;
use crate::steps::STEP_THREADS;
use cuda_std::thread::{block_idx_x, thread_idx_x};

/// The kernel: a CTA has [`STATISTICS_ROWS`] queries of a head. The first one also writes the zeros before dS and sets counters to 0, and one a batch entry, or the first
/// one of packed sequences, where its pieces start.
///
/// # Safety
/// Launched with [`STEP_THREADS`] threads, a CTA for [`STATISTICS_ROWS`] rows of each head, and parameters that describe device memory as
/// [`BackwardParams`] says.
#[inline(always)]
pub unsafe fn statistics<E: Element>(params: &BackwardParams) {
    let forward = &params.forward;
    let (lane, group) = (thread_idx_x() % STATISTICS_LANES, thread_idx_x() / STATISTICS_LANES);
    let blocks = forward.seqlen_q.div_ceil(STATISTICS_ROWS);
    let (index, block) = (block_idx_x() / blocks, block_idx_x() % blocks);
    let (batch, head) = forward.tile_heads.divide(index);
    let rows = |base, strides| KeyRows::new(to_global(base), strides, batch, head);
    let (o, d_o) = (rows(forward.o, &forward.o_strides), rows(params.d_o, &params.d_o_strides));
    let groups = STEP_THREADS / STATISTICS_LANES;
    // SAFETY: the caller's; rows that do not exist are neither read nor written.
    unsafe {
        for step in 0..STATISTICS_ROWS / groups {
            let row = block * STATISTICS_ROWS + step * groups + group;
            let exists = row < forward.seqlen_q;
            let mut delta = 0.0;
            if exists {
                let mut chunk = lane;
                while chunk * 8 < forward.ragged.width_v {
                    let [o, d_o] = [&o, &d_o].map(|rows| ld_global_v4(rows.address(row, chunk * 16)));
                    for i in 0..8 {
                        delta += half::<E>(o[i / 2], i % 2) * half::<E>(d_o[i / 2], i % 2);
                    }
                    chunk += STATISTICS_LANES;
                }
            }
            delta += shfl_bfly::<1>(delta);
            delta += shfl_bfly::<2>(delta);
            delta += shfl_bfly::<4>(delta);
            if exists {
                let index = u64::from(index) * u64::from(forward.seqlen_q) + u64::from(row);
                statistics_of_row(params, index, delta, lane == 0);
            }
        }
        let is_packed = forward.ragged.cu_seqlens_k != 0;
        let entries = if is_packed { 1 } else { forward.batch };
        if (block_idx_x() < entries) & (thread_idx_x() < 32) {
            write_starts(params, block_idx_x());
        }
        if block_idx_x() == 0 {
            let counters = if params.counters == 0 { 0 } else { params.order.counters() };
            let mut counter = thread_idx_x();
            while counter < counters {
                st_global_b32(to_global(params.counters) + u64::from(counter) * 4, 0);
                counter += STEP_THREADS;
            }
            let mut at = thread_idx_x() * 16;
            while at < const { ds_bytes(DS_QUERIES) } {
                st_global_v4(to_global(params.zeros()) + u64::from(at), [0; 4]);
                at += STEP_THREADS * 16;
            }
        }
    }
}

/// Writes where dS of each block of keys starts, of batch entry `batch` or of all packed sequences: how much those before it have.
///
/// # Safety
/// As for [`statistics`], by one warp.
#[inline(always)]
unsafe fn write_starts(params: &BackwardParams, batch: u32) {
    let blocks = params.key_blocks.value;
    let lane = thread_idx_x() % 32;
    let (mut first, mut before) = (0, 0_u32);
    while first < blocks {
        let block = first + lane;
        let mut groups = 0;
        if block < blocks {
            // SAFETY: the caller's.
            let seen = unsafe {
                let (batch, first_row) = ds_block_at(params, batch, block);
                let sequence = Sequence::of_ragged(&params.forward, batch);
                let work = Work { batch, head_q: 0, head_kv: 0, first_row, split: 0, slice: 0, sequence };
                let (first, past) = keys_of_block(&work, first_row, DS_KEYS);
                // There may be more numbers than blocks.
                if first < past { queries_of(params, &work, (first, past)) } else { (0, 0) }
            };
            let piece = Piece::new(params, seen, 0);
            groups = (piece.past - piece.first) / 8;
        }
        let mut sum = groups;
        let mut step = 1;
        while step < 32 {
            let other = shfl_idx_b32(sum, lane.wrapping_sub(step) % 32);
            sum = sum.wrapping_add(if lane >= step { other } else { 0 });
            step *= 2;
        }
        if block < blocks {
            let at = to_global(params.ds_starts) + u64::from(batch * blocks + block) * 4;
            // SAFETY: the caller's; an element a block.
            unsafe { st_global_b32(at, before.wrapping_add(sum).wrapping_sub(groups)) };
        }
        before = before.wrapping_add(shfl_idx_b32(sum, 31));
        first += 32;
    }
}
