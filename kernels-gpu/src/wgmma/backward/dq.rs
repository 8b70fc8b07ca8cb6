//! dQ of one block of queries, and the statistics that `dkv` reads: queries are stationary, keys are streamed.

use super::config::WgmmaBackwardConfig;
use super::consumer::{
    Gradient, Operand, issue_gradient, issue_scores_and, keep_out, lane_again, release, store,
    sync_consumers, threads, wait_stationary, wait_streamed, warp_row,
};
use super::layout;
use super::producer::{At, KEYS, QUERIES, copy_stationary, copy_streamed, start};
use crate::backward::dq_tile::{destination, key_blocks, row_statistics, spread_keys, visible};
use crate::backward::params::BackwardParams;
use crate::backward::recompute::{ByRow, hide, probabilities, recompute, score_gradients};
use crate::backward::row::LIMITS_BYTES;
use crate::backward::work::query_work;
use crate::config::check_backward;
use crate::ptx::block_idx_x_again;
use crate::ptx::memory::{ld_shared, st_shared, st_shared_v4};
use crate::ptx::thread_idx_x_again;
use crate::ptx::warp::sync_warp;
use crate::ptx::warpgroup::{give_registers, take_registers};
use crate::scheduler::Work;
use crate::score::{Plain, Score};
use crate::shape::Shape;
use crate::tile::warp_tile::{Tiles, WarpTile};
use crate::visible::Visible;
use crate::wgmma::config::WARPGROUP;
use crate::wgmma::gemm::{WgmmaTile, pack};
use crate::wgmma::ring::Ring;

/// The kernel: a CTA computes dQ of one block of queries of one head. With the registers of a thread that copies and of one that computes.
///
/// # Safety
/// Launched with the threads and shared memory that the row gives, one CTA a block of queries of each head, and parameters that describe
/// device memory as [`crate::backward::params::WgmmaBackwardParams`] says.
#[inline(always)]
pub unsafe fn dq<C: WgmmaBackwardConfig, const PRODUCER_REGISTERS: u32, const CONSUMER_REGISTERS: u32>(
    params: &BackwardParams,
) {
    const { check_backward::<C>() }
    // SAFETY: the caller's; the tile is the same for all threads.
    unsafe {
        let Some(work) = query_work(params, block_idx_x_again()) else { return };
        start::<C>(1);
        if thread_idx_x_again() < WARPGROUP {
            give_registers::<PRODUCER_REGISTERS>();
            if thread_idx_x_again() < 32 {
                produce::<C>(params, &work);
            }
        } else {
            take_registers::<CONSUMER_REGISTERS>();
            consume::<C>(params, &work);
        }
    }
}

/// The producer's part: Q and dO, then K and V of block after block, from the last step to the first: blocks that are seen only in part
/// are first.
///
/// # Safety
/// As for [`dq`], by one warp.
#[inline(always)]
unsafe fn produce<C: WgmmaBackwardConfig>(params: &BackwardParams, work: &Work<'_>) {
    let mut ring = layout::stages::<C>();
    // SAFETY: the caller's.
    unsafe {
        let blocks = key_blocks::<C>(params, work);
        if lane_again() != 0 {
            return;
        }
        copy_stationary::<C>(QUERIES, At::query(params, work, work.head_q, work.first_row));
        let mut step = blocks.end.max(blocks.first);
        while step > blocks.first {
            step -= 1;
            let first_key = blocks.block(step) * C::Streamed::ROWS;
            ring.wait_empty(C::STAGES);
            let note = [u32::from(blocks.is_partial(step)) * layout::PARTIAL, first_key, 0, 0];
            st_shared_v4(layout::note::<C>(ring.buffer), note);
            copy_streamed::<C>(ring, KEYS, At::key(params, work, first_key));
            ring.advance(C::STAGES);
        }
    }
}

/// A consumer's part: its 64 rows.
///
/// # Safety
/// As for [`dq`], by all threads of the consumer's warpgroup.
#[inline(always)]
unsafe fn consume<C: WgmmaBackwardConfig>(params: &BackwardParams, work: &Work<'_>) {
    // SAFETY: the caller's; steps are the same for all consumers.
    unsafe {
        let blocks = key_blocks::<C>(params, work);
        let mut steps = blocks.end.saturating_sub(blocks.first);
        wait_stationary::<C>();
        let statistics = [0, 1].map(|half| row_of_lane::<C>(params, work, half));
        // The limits are read by other lanes of the warp.
        sync_warp();
        let mut ring = layout::stages::<C>();
        let (mut d_q, mut tainted) = (C::Warp::NO_O, false);
        while steps > 0 {
            let (note, first_key) = wait_streamed::<C>(ring);
            if note != 0 {
                tainted |= step::<C, true>(params, &mut d_q, statistics, (ring, first_key));
            } else {
                step::<C, false>(params, &mut d_q, statistics, (ring, first_key));
            }
            release::<C>(&mut ring);
            steps -= 1;
        }
        // Worked out again, as registers kept across the loop spill.
        let Some(work) = query_work(params, block_idx_x_again()) else { return };
        let to = destination(params, &work);
        store::<C>(d_q, params.scale, warp_row::<C>(), &to);
        if tainted {
            // dQ is written.
            sync_consumers::<C>();
            let blocks = key_blocks::<C>(params, &work);
            spread_keys::<C>(params, &work, &blocks, &to, threads::<C>());
        }
    }
}

/// A lane's row in the stationary block.
#[inline(always)]
fn row_in_block<C: WgmmaBackwardConfig>(half: u32) -> u32 {
    warp_row::<C>() + lane_again() / 4 + half * 8
}

/// The statistics of one of a lane's rows; what it sees goes to shared memory.
///
/// # Safety
/// All 32 lanes take part, and dO has landed.
#[inline(always)]
unsafe fn row_of_lane<C: WgmmaBackwardConfig>(
    params: &BackwardParams,
    work: &Work<'_>,
    half: u32,
) -> [f32; 2] {
    let row = row_in_block::<C>(half);
    let d_o = |chunk: u32| {
        let chunks = C::Stationary::COLUMN_WIDTH / 8;
        let column = layout::stationary::<C>(1) + chunk / chunks * C::Stationary::COLUMN_BYTES;
        column + C::Stationary::COLUMN_SWIZZLE.offset(row, chunk % chunks)
    };
    // SAFETY: the caller's; the limits of the row are the warp's.
    unsafe {
        if lane_again() % 4 == 0 {
            let Visible { begin, end } = visible(params, work, work.first_row + row);
            let at = layout::rows::<C>() + row * LIMITS_BYTES;
            st_shared(at, begin);
            st_shared(at + 4, end);
        }
        row_statistics::<C>(params, work, (work.first_row + row, lane_again()), d_o)
    }
}

/// dQ += dS·K of the stage from key `first_key` on. With `PARTIAL`, some row sees it only in part; whether anything in it was not finite.
///
/// # Safety
/// All threads of the warpgroup take part, and with `PARTIAL` all consumers; the stage has landed.
#[inline(always)]
unsafe fn step<C: WgmmaBackwardConfig, const PARTIAL: bool>(
    params: &BackwardParams,
    d_q: &mut Gradient<C>,
    of: [[f32; 2]; 2],
    (ring, first_key): (Ring, u32),
) -> bool {
    let forward = &params.forward;
    let mut statistics = ByRow {
        rows: [(); 2],
        of,
        visible: [Visible::before(0); 2],
        sink_tokens: forward.ragged.sink_tokens,
        lane_key: first_key + lane_again() % 4 * 2,
    };
    let (mut operand, mut found) = (Operand::<C>::splat([0; 4]), false);
    // SAFETY: the caller's.
    unsafe {
        let (mut p, mut ds) = issue_scores_and::<C, true>(ring.buffer);
        if PARTIAL {
            C::Warp::wait_scores::<0>(&mut p);
            C::Warp::wait_scores::<0>(&mut ds);
            statistics.visible = [0, 1].map(|half| {
                let at = layout::rows::<C>() + row_in_block::<C>(half) * LIMITS_BYTES;
                Visible { begin: ld_shared(at), end: ld_shared(at + 4) }
            });
            recompute::<C::Warp, Plain>(&mut p, &mut ds, &statistics, Plain::new(forward));
            hide::<C::Warp, Plain, 1>([&mut ds], &statistics);
            found = keep_out::<C>((layout::streamed::<C>(ring.buffer, 0), C::Streamed::BYTES));
        } else {
            // P while dP is on its way.
            C::Warp::wait_scores::<1>(&mut p);
            probabilities::<C::Warp, Plain>(&mut p, &statistics, Plain::new(forward), false);
            C::Warp::wait_scores::<0>(&mut ds);
            score_gradients::<C::Warp, Plain>(&p, &mut ds, &statistics);
        }
        pack::<C::Element, C::Warp>(&ds, &mut operand);
        issue_gradient::<C>(d_q, &operand, ring.buffer, 0);
        C::Warp::wait_output(d_q);
    }
    found
}
