//! The forward main loop on wgmma and bulk copies: one warpgroup copies, the others compute 64 query rows each.
//!
//! The producer, one thread, fills the stages of K and V in shared memory as they come free; barriers count the bytes. A
//! consumer issues S(j) = Q·K(j)ᵀ and O += P(j+1)·V(j+1) together and takes the softmax of S(j) while the tensor cores work on
//! the latter and on the other consumers' products: the consumers take turns to issue. Blocks of keys are walked from the last
//! visible one to the first, as in [`crate::forward`].

mod consumer;
mod producer;
mod products;
mod ring;
mod scrubber;
mod tile;
mod walk;

use crate::descriptor;
use crate::forward::{Config, rows_of_block};
use crate::geometry;
use crate::params::{ForwardParams, WgmmaParams};
use crate::ptx::bulk::prefetch_tensor_map;
use crate::ptx::grid::{launch_dependents, wait_for_prerequisites};
use crate::ptx::mbarrier::{fence_mbarrier_init, fence_proxy_async, mbarrier_init};
use crate::ptx::memory::st_shared_v4;
use crate::ptx::warpgroup::{give_registers, named_barrier_arrive, named_barrier_sync, take_registers};
use crate::row::Schedule;
use crate::swizzle::Swizzle;
use consumer::consume;
use core::mem::offset_of;
use cuda_std::thread::thread_idx_x;
use producer::produce;
use ring::Layout;
use scrubber::scrub;
use tile::rows_differ;

/// What a row of the table says, and where its kernel finds the tensor maps.
pub trait WgmmaConfig: Config {
    /// The generic address of the kernel's parameter block, a [`WgmmaParams`]. Found again at each call.
    fn parameter_address() -> u64;
}

/// Threads of a warpgroup.
const WARPGROUP: u32 = 128;
/// The named barrier of all consumers; 0 is the one of the whole CTA.
const CONSUMERS: u32 = 1;
/// The first named barrier by which consumers take turns.
const FIRST_TURN: u32 = 2;
/// Tiles that the producer has handed out and that are not stored yet.
const TILES_AHEAD: u32 = 3;
/// Warps of the producer's warpgroup that look for NaN and infinities in V.
const SCRUBBERS: u32 = geometry::PRODUCER_WARPS - 1;
/// Bytes by which the producer says what a tile is.
const TILE_SLOT_BYTES: u32 = 32;
/// The batch entry that stands for "no more tiles".
const NO_MORE: u32 = u32::MAX;

/// Sets the rows of Q to 0 that no copy writes, where the packed heads do not divide the block: what a warp does with its other
/// rows must not depend on what shared memory held.
///
/// # Safety
/// As for [`forward_wgmma`], by all threads of the CTA, before anything is copied.
#[inline(always)]
unsafe fn clear_unused_rows<C: Config>(params: &ForwardParams, thread: u32) {
    let row = &C::ROW;
    let first = rows_of_block::<C>(params) * descriptor::column_row_bytes(row);
    let column = descriptor::column_bytes(row, row.block_m);
    let mut at = first + thread * Swizzle::CHUNK_BYTES;
    while at < column {
        for number in 0..descriptor::columns(row) {
            // SAFETY: a chunk of Q.
            unsafe { st_shared_v4(Layout::q(row, 0) + number * column + at, [0; 4]) }
        }
        at += geometry::threads(row) * Swizzle::CHUNK_BYTES;
    }
    fence_proxy_async();
}

/// The kernel. `N` n8 tiles of keys and `P` k16 steps of them, `D` n8 tiles of head_dim, and the registers of a thread that copies
/// and of one that computes: `entry.rs` derives them from the row.
///
/// # Safety
/// Launched with the threads and shared memory that [`geometry`] gives for the row, as many CTAs as its schedule says, and
/// parameters that describe device memory as [`WgmmaParams`] says.
#[inline(always)]
pub unsafe fn forward_wgmma<
    C: WgmmaConfig,
    const N: usize,
    const D: usize,
    const P: usize,
    const PRODUCER_REGISTERS: u32,
    const CONSUMER_REGISTERS: u32,
>(
    params: &ForwardParams,
) {
    let row = &C::ROW;
    let thread = thread_idx_x();
    let readers = geometry::consumer_warpgroups(row) * 4;
    // SAFETY: the caller's; one thread initialises the barriers before the others pass the CTA's.
    unsafe {
        if thread == 32 {
            for map in [offset_of!(WgmmaParams, q), offset_of!(WgmmaParams, k), offset_of!(WgmmaParams, v)] {
                prefetch_tensor_map(C::parameter_address() + map as u64);
            }
        }
        if thread == 0 {
            Layout::q_ring(row).init(geometry::q_buffers(row), readers);
            let scrubbers = if rows_differ(params) { SCRUBBERS } else { 0 };
            Layout::tile_ring(row).init(TILES_AHEAD, readers + scrubbers);
            for buffer in 0..row.stages {
                mbarrier_init(Layout::scrubbed(row, buffer), SCRUBBERS);
            }
            Layout::k_ring(row).init(row.stages, geometry::warps_m(row));
            Layout::v_ring(row).init(row.stages, geometry::warps_m(row) + scrubbers);
            fence_mbarrier_init();
        }
        if matches!(row.schedule, Schedule::Split) {
            clear_unused_rows::<C>(params, thread);
        }
        if thread < 32 {
            // The producer knows the barriers: it need not wait for the others.
            named_barrier_arrive(0, geometry::threads(row));
        } else {
            named_barrier_sync(0, geometry::threads(row));
        }
        launch_dependents();
        wait_for_prerequisites();
        if thread < WARPGROUP {
            give_registers::<PRODUCER_REGISTERS>();
            if thread == 0 {
                produce::<C>(params);
            } else if thread >= 32 && rows_differ(params) {
                scrub::<C>(params, thread - 32);
            }
        } else {
            take_registers::<CONSUMER_REGISTERS>();
            consume::<C, N, D, P>(params);
        }
    }
}
