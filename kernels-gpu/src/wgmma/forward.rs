//! The forward kernel on wgmma and bulk copies: one warpgroup copies, the others compute 64 query rows each.
//!
//! The producer, one thread or two warps, fills the stages of K and V in shared memory as they come free; barriers count the bytes. A
//! consumer issues S(j) = Q·K(j)ᵀ and O += P(j+1)·V(j+1) together and takes the softmax of S(j) while the tensor cores work on
//! the latter and on the other consumers' products: the consumers take turns to issue. Blocks of keys are walked from the last
//! visible one to the first, as in [`crate::forward`].
//!
//! Where value vectors are wider than a thread's registers hold of O, consumers share the 64 query rows: each has a slice of the values, and
//! the first one the scores for all of them.

use super::config::{WARPGROUP, WgmmaConfig};
use super::consumer::consume;
use super::producer::{produce, produce_values};
use super::ring::TILES_AHEAD;
use super::scrubber::scrub_tiles;
use crate::element::{Bf16, Element};
use crate::geometry::WEIGHTS_BUFFERS;
use crate::params::{ForwardParams, WgmmaParams};
use crate::ptx::bulk::prefetch_tensor_map;
use crate::ptx::grid::{launch_dependents, wait_for_prerequisites};
use crate::ptx::mbarrier::{fence_mbarrier_init, fence_proxy_async, mbarrier_init};
use crate::ptx::memory::st_shared_v4;
use crate::ptx::warpgroup::{give_registers, named_barrier_arrive, named_barrier_sync, take_registers};
use crate::score::{Score, ShortWay};
use crate::shape::Shape;
use crate::tile::swizzle::Swizzle;
use crate::work::rows_differ;
use core::mem::offset_of;
use cuda_std::thread::thread_idx_x;

/// Zeroes the rows of Q that no copy fills, where the packed heads do not divide the block; stale shared memory could otherwise change
/// when a warp rescales, and results would not repeat.
///
/// # Safety
/// By all threads of the CTA, before anything is copied; a barrier of the CTA follows.
#[inline(always)]
unsafe fn clear_unused_rows<C: WgmmaConfig>(params: &ForwardParams, thread: u32) {
    let first = C::BLOCK.rows_used(params.group) * C::Q::COLUMN_ROW_BYTES;
    let mut at = first + thread * Swizzle::CHUNK_BYTES;
    while at < C::Q::COLUMN_BYTES {
        for buffer in 0..C::LAYOUT.q_buffers() {
            for number in 0..C::Q::COLUMNS {
                // SAFETY: a chunk of Q.
                unsafe { st_shared_v4(C::LAYOUT.q(buffer) + number * C::Q::COLUMN_BYTES + at, [0; 4]) }
            }
        }
        at += C::THREADS * Swizzle::CHUNK_BYTES;
    }
    fence_proxy_async();
}

/// Writes the numbers of a block's keys, which slopes are multiplied with.
///
/// # Safety
/// By all threads of the CTA; a barrier of the CTA follows.
#[inline(always)]
unsafe fn write_key_numbers<C: WgmmaConfig>(thread: u32) {
    // Elements 8 to 15 of the keys are zeros, behind elements 0 to 7 of all.
    if thread < 2 * C::K::ROWS {
        let number = if thread < C::K::ROWS { thread as f32 } else { 0.0 };
        let elements = [Bf16::pack(number, number), Bf16::pack(number, 0.0), 0, 0];
        // SAFETY: a row of the operand.
        unsafe { st_shared_v4(C::LAYOUT.key_numbers() + thread * 16, elements) }
    }
    fence_proxy_async();
}

/// The kernel, with the registers of a thread that copies and of one that computes.
///
/// # Safety
/// Launched with the threads and shared memory that [`crate::geometry`] gives for the row, as many CTAs as its schedule says, and
/// parameters that describe device memory as [`WgmmaParams`] says.
#[inline(always)]
pub unsafe fn forward_wgmma<C: WgmmaConfig, const PRODUCER_REGISTERS: u32, const CONSUMER_REGISTERS: u32>(
    params: &ForwardParams,
    arrived: &u64,
) {
    const { crate::config::check::<C>() }
    let thread = thread_idx_x();
    let (readers, weighers) = (C::CONSUMERS * 4, C::CONSUMERS * 4 / C::VALUE_GROUPS);
    // SAFETY: the caller's; one thread initialises the barriers before the others pass the CTA's.
    unsafe {
        if thread == 32 {
            for map in [offset_of!(WgmmaParams, q), offset_of!(WgmmaParams, k), offset_of!(WgmmaParams, v)] {
                prefetch_tensor_map(C::parameter_address() + map as u64);
            }
        }
        if thread == 0 {
            C::LAYOUT.q_ring().init(C::LAYOUT.q_buffers(), weighers);
            let scrubbers = if rows_differ::<C>(params) { C::SCRUBBERS } else { 0 };
            C::LAYOUT.tile_ring().init(TILES_AHEAD, readers + scrubbers + C::COPIERS - 1);
            for buffer in 0..C::LAYOUT.kv_buffers() {
                mbarrier_init(C::LAYOUT.scrubbed(buffer), C::SCRUBBERS);
            }
            C::LAYOUT.k_ring().init(C::LAYOUT.kv_buffers(), C::WARPS.along_rows);
            C::LAYOUT.v_ring().init(C::LAYOUT.kv_buffers(), C::WARPS.along_rows + scrubbers);
            if C::VALUE_GROUPS > 1 {
                C::LAYOUT.weights_ring().init_with_writers(WEIGHTS_BUFFERS, weighers, weighers);
            }
            fence_mbarrier_init();
        }
        if matches!(C::Score::SHORT_WAY, ShortWay::Slope) {
            write_key_numbers::<C>(thread);
        }
        if C::SPLIT {
            clear_unused_rows::<C>(params, thread);
        }
        if thread < 32 {
            // The producer knows the barriers: it need not wait for the others.
            named_barrier_arrive(0, C::THREADS);
        } else {
            named_barrier_sync(0, C::THREADS);
        }
        wait_for_prerequisites();
        if thread < WARPGROUP {
            give_registers::<PRODUCER_REGISTERS>();
            if thread < if C::RAGGED { 32 } else { 1 } {
                produce::<C>(params, arrived);
                launch_dependents();
            } else if C::RAGGED && thread < 64 {
                produce_values::<C>(params, arrived);
            } else if thread >= C::COPIERS * 32 && rows_differ::<C>(params) {
                scrub_tiles::<C>(params, thread - C::COPIERS * 32);
            }
        } else {
            take_registers::<CONSUMER_REGISTERS>();
            consume::<C>(params);
        }
    }
}
