//! dQ = dS·K of one block of queries, with the dS that a `dkv` has written: blocks of keys are streamed, K and dS of each.
//!
//! dS of queries that do not see a block was not written; the producer copies zeros instead. So consumers multiply all that a stage has,
//! without looking at the mask.

use super::config::WgmmaBackwardConfig;
use super::consumer::{
    Gradient, keep_out, lane_again, release, store, sync_consumers, threads, wait_steps, wait_streamed,
};
use super::layout;
use super::producer::{At, KEYS, copy, start, tell_steps};
use super::turns::{done_with_ds, tile, wait_for_ds};
use crate::backward::dq_tile::{destination, key_blocks, spread_keys};
use crate::backward::params::BackwardParams;
use crate::backward::query_steps::{ds_head, piece};
use crate::backward::spill::{DS_QUERIES, KEYS_STEP, QUERIES_STEP, ds_bytes};
use crate::backward::work::query_work;
use crate::config::check_backward;
use crate::dropped::factor_of;
use crate::ptx::bulk::bulk_copy;
use crate::ptx::mbarrier::mbarrier_arrive_expect_tx;
use crate::ptx::memory::{dynamic_smem, st_shared_v4, to_global};
use crate::ptx::thread_idx_x_again;
use crate::ptx::warp::first_lane;
use crate::ptx::warpgroup::{give_registers, take_registers};
use crate::ptx::wgmma::{wgmma_commit_group, wgmma_fence};
use crate::shape::Shape;
use crate::tile::descriptor::{self, Descriptor};
use crate::tile::warp_tile::WarpTile;
use crate::wgmma::config::WARPGROUP;
use crate::wgmma::gemm::WgmmaTile;
use crate::wgmma::ring::Ring;

/// Queries of a gradient of a consumer, which has one or two.
const QUERIES: u32 = 64;

/// The kernel: a CTA computes dQ of one block of queries of one head.
///
/// # Safety
/// As for [`super::dq::dq`], behind a kernel on the stream that has written dS of the launch's heads, and one that has written the
/// zeros.
#[inline(always)]
pub unsafe fn dqds<C: WgmmaBackwardConfig, const PRODUCER_REGISTERS: u32, const CONSUMER_REGISTERS: u32>(
    params: &BackwardParams,
) {
    const { check_backward::<C>() }
    // SAFETY: the caller's; the tile is the same for all threads.
    unsafe {
        start::<C>(1);
        if thread_idx_x_again() < WARPGROUP {
            give_registers::<PRODUCER_REGISTERS>();
            if thread_idx_x_again() < 32 {
                produce::<C>(params);
            }
        } else {
            take_registers::<CONSUMER_REGISTERS>();
            match C::GRADIENTS {
                1 => consume::<C, 1>(params),
                _ => consume::<C, 2>(params),
            }
        }
    }
}

/// Where K of a stage lies; its dS lies behind it.
#[inline(always)]
fn k_smem<C: WgmmaBackwardConfig>(stage: u32) -> u32 {
    dynamic_smem() + stage * (C::Streamed::BYTES + C::DS_BYTES)
}

/// Where dS of a stage lies, of the queries from `query` of the block on.
#[inline(always)]
fn ds_smem<C: WgmmaBackwardConfig>(stage: u32, query: u32) -> u32 {
    k_smem::<C>(stage) + C::Streamed::BYTES + ds_bytes(query)
}

/// The producer's part: K and dS of block after block, from the last step to the first.
///
/// # Safety
/// As for [`dqds`], by one warp.
#[inline(always)]
unsafe fn produce<C: WgmmaBackwardConfig>(params: &BackwardParams) {
    let mut ring = layout::stages::<C>();
    // SAFETY: the caller's.
    unsafe {
        let Some(work) = &query_work(params, tile::<C>(params)) else {
            if lane_again() == 0 {
                tell_steps::<C>(0);
                done_with_ds::<C>(params, ring);
            }
            return;
        };
        let blocks = key_blocks::<C>(params, work);
        if lane_again() != 0 {
            return;
        }
        tell_steps::<C>(blocks.end.saturating_sub(blocks.first));
        wait_for_ds::<C>(params);
        let head = ds_head(params, work, work.head_q);
        let mut step = blocks.end.max(blocks.first);
        while step > blocks.first {
            step -= 1;
            let block = blocks.block(step);
            let first_key = block * C::Streamed::ROWS;
            // By what the kernel that wrote dS went by.
            let kept = piece(params, work, block);
            ring.wait_empty(C::STAGES);
            let note = [u32::from(blocks.is_partial(step)) * layout::PARTIAL, first_key, 0, 0];
            st_shared_v4(layout::note::<C>(ring.buffer), note);
            mbarrier_arrive_expect_tx(ring.full(), C::Streamed::BYTES + C::DS_BYTES);
            let at = At::key(params, work, first_key);
            copy::<C, C::Streamed>((KEYS[0], C::KEYS_OF_BOX), k_smem::<C>(ring.buffer), at, ring.full());
            let mut query = 0;
            while query < C::Stationary::ROWS {
                let at = work.first_row + query;
                let is_written = (at >= kept.first) & (at < kept.past);
                let from = if is_written { kept.address(params, head, at) } else { params.zeros() };
                let bytes = const { ds_bytes(DS_QUERIES) };
                bulk_copy(ds_smem::<C>(ring.buffer, query), to_global(from), bytes, ring.full());
                query += DS_QUERIES;
            }
            ring.advance(C::STAGES);
        }
        done_with_ds::<C>(params, ring);
    }
}

/// The first query in the block of this thread's consumer, read again at each call.
#[inline(always)]
fn first_query<const GRADIENTS: usize>() -> u32 {
    (first_lane(thread_idx_x_again() / WARPGROUP) - 1) * GRADIENTS as u32 * QUERIES
}

/// A consumer's part: its rows.
///
/// # Safety
/// As for [`dqds`], by all threads of the consumer's warpgroup.
#[inline(always)]
unsafe fn consume<C: WgmmaBackwardConfig, const GRADIENTS: usize>(params: &BackwardParams) {
    // SAFETY: the caller's; steps are the same for all consumers.
    unsafe {
        let mut steps = wait_steps::<C>();
        let mut ring = layout::stages::<C>();
        let mut d_q = [C::Warp::NO_O; GRADIENTS];
        let mut tainted = false;
        while steps > 0 {
            let (note, _) = wait_streamed::<C>(ring);
            if note != 0 {
                tainted |= keep_out::<C>((k_smem::<C>(ring.buffer), C::Streamed::BYTES));
            }
            multiply::<C, GRADIENTS>(&mut d_q, ring);
            release::<C>(&mut ring);
            steps -= 1;
        }
        // Worked out only here, as registers kept across the loop spill.
        let Some(work) = query_work(params, tile::<C>(params)) else { return };
        let to = destination(params, &work);
        let mut row = first_query::<GRADIENTS>() + thread_idx_x_again() % WARPGROUP / 32 * 16;
        for d_q in &d_q {
            store::<C>(*d_q, params.scale * factor_of::<C::Score>(&params.forward), row, &to);
            row += QUERIES;
        }
        if tainted {
            // dQ is written.
            sync_consumers::<C>();
            let blocks = key_blocks::<C>(params, &work);
            spread_keys::<C>(params, &work, &blocks, &to, threads::<C>());
        }
    }
}

/// dQ += dS·K of a stage.
///
/// # Safety
/// All threads of the warpgroup take part; the stage has landed.
#[inline(always)]
unsafe fn multiply<C: WgmmaBackwardConfig, const GRADIENTS: usize>(
    d_q: &mut [Gradient<C>; GRADIENTS],
    ring: Ring,
) {
    let k = Descriptor::along_rows::<C::Streamed>().at(k_smem::<C>(ring.buffer));
    let mut ds = Descriptor::of_core_matrices(KEYS_STEP, QUERIES_STEP)
        .at(ds_smem::<C>(ring.buffer, first_query::<GRADIENTS>()));
    wgmma_fence();
    // SAFETY: the caller's.
    unsafe {
        for d_q in d_q.iter_mut() {
            for step in 0..C::Streamed::ROWS / 16 {
                let k = k.advance(descriptor::row_step::<C::Streamed>(step)).bits();
                C::Warp::output_from_shared::<C::Element>(d_q, ds.advance(step * 2 * KEYS_STEP).bits(), k);
            }
            ds = ds.advance(ds_bytes(QUERIES));
        }
        wgmma_commit_group();
        for d_q in d_q {
            C::Warp::wait_output(d_q);
        }
    }
}
