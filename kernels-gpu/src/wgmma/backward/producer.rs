//! What copies: boxes of Q, dO, K and V, by one thread.

use super::config::WgmmaBackwardConfig;
use super::layout;
use crate::backward::params::{BackwardParams, WgmmaBackwardParams};
use crate::ptx::bulk::bulk_tensor_4d;
use crate::ptx::mbarrier::{
    fence_mbarrier_init, mbarrier_arrive_expect_tx, mbarrier_arrive_if, mbarrier_init,
};
use crate::ptx::memory::st_shared;
use crate::ptx::thread_idx_x_again;
use crate::ptx::warpgroup::named_barrier_sync;
use crate::scheduler::Work;
use crate::shape::Shape;
use crate::wgmma::ring::Ring;
use core::mem::offset_of;

/// A first row, the head and the batch entry in a tensor.
#[derive(Clone, Copy)]
pub(super) struct At {
    row: u32,
    head: u32,
    batch: u32,
}

impl At {
    /// Of a query of the work's sequence.
    #[inline(always)]
    pub(super) fn query(params: &BackwardParams, work: &Work<'_>, head: u32, query: u32) -> Self {
        let batch = if params.forward.ragged.cu_seqlens_q == 0 { work.batch } else { 0 };
        Self { row: work.sequence.q_start + query, head, batch }
    }

    /// Of a key of the work's sequence.
    #[inline(always)]
    pub(super) fn key(params: &BackwardParams, work: &Work<'_>, key: u32) -> Self {
        let batch = if params.forward.ragged.cu_seqlens_k == 0 { work.batch } else { 0 };
        Self { row: work.sequence.k_start + key, head: work.head_kv, batch }
    }
}

/// The tensor maps of Q and dO in the parameter block.
pub(super) const QUERIES: [usize; 2] =
    [offset_of!(WgmmaBackwardParams, q), offset_of!(WgmmaBackwardParams, d_o)];
/// Those of K and V.
pub(super) const KEYS: [usize; 2] = [offset_of!(WgmmaBackwardParams, k), offset_of!(WgmmaBackwardParams, v)];

/// Initialises the barriers, of which `writers` threads say that a stage is full, and lets all threads of the CTA know them.
///
/// # Safety
/// By all threads of the CTA, first of all.
#[inline(always)]
pub(super) unsafe fn start<C: WgmmaBackwardConfig>(writers: u32) {
    // SAFETY: one thread initialises the barriers before the others pass the CTA's.
    unsafe {
        if thread_idx_x_again() == 0 {
            mbarrier_init(layout::stationary_barrier::<C>(), 1);
            let mut ring = layout::stages::<C>();
            for _ in 0..C::STAGES {
                mbarrier_init(ring.full(), writers);
                mbarrier_init(ring.empty(C::STAGES), C::CONSUMERS * 4);
                ring.advance(C::STAGES);
            }
            fence_mbarrier_init();
        }
        named_barrier_sync(0, C::THREADS);
    }
}

/// Says how many steps a tile has, where there are no stationary tiles to copy.
///
/// # Safety
/// One thread of the CTA, once, after [`start`].
#[inline(always)]
pub(super) unsafe fn tell_steps<C: WgmmaBackwardConfig>(steps: u32) {
    // SAFETY: the caller's; who waits for the barrier sees what was written before.
    unsafe {
        st_shared(layout::steps::<C>(), steps);
        mbarrier_arrive_if(layout::stationary_barrier::<C>(), true);
    }
}

/// Starts copying the stationary tiles.
///
/// # Safety
/// One thread of the CTA, once, after [`start`].
#[inline(always)]
pub(super) unsafe fn copy_stationary<C: WgmmaBackwardConfig>(maps: [usize; 2], at: At) {
    let barrier = layout::stationary_barrier::<C>();
    // SAFETY: the caller's; the barrier expects just what is copied.
    unsafe {
        mbarrier_arrive_expect_tx(barrier, 2 * C::Stationary::BYTES);
        for which in 0..2 {
            copy::<C, C::Stationary>(
                (maps[which as usize], C::Stationary::ROWS),
                layout::stationary::<C>(which),
                at,
                barrier,
            );
        }
    }
}

/// Starts copying the tiles of a stage, and says so: one of its writers.
///
/// # Safety
/// One thread, after [`Ring::wait_empty`].
#[inline(always)]
pub(super) unsafe fn copy_streamed<C: WgmmaBackwardConfig>(ring: Ring, maps: [usize; 2], at: At) {
    // SAFETY: the caller's; the barrier expects just what is copied.
    unsafe {
        mbarrier_arrive_expect_tx(ring.full(), 2 * C::Streamed::BYTES);
        for which in 0..2 {
            let tile = layout::streamed::<C>(ring.buffer, which);
            copy::<C, C::Streamed>((maps[which as usize], C::Streamed::ROWS), tile, at, ring.full());
        }
    }
}

/// Starts copying a tile of the tensor whose map is at `map` in the parameter block, `rows` rows at a time.
///
/// # Safety
/// The barrier expects the tile's bytes, and nobody uses the tile.
#[inline(always)]
pub(super) unsafe fn copy<C: WgmmaBackwardConfig, S: Shape>(
    (map, rows): (usize, u32),
    smem: u32,
    at: At,
    barrier: u32,
) {
    for column in 0..S::COLUMNS {
        let (to, map) = (smem + column * S::COLUMN_BYTES, C::parameter_address() + map as u64);
        for part in 0..S::ROWS.div_ceil(rows) {
            let at = [column * S::COLUMN_WIDTH, at.row + part * rows, at.head, at.batch];
            // SAFETY: the caller's.
            unsafe { bulk_tensor_4d(to + part * (S::COLUMN_BYTES / S::ROWS * rows), map, at, barrier) }
        }
    }
}
