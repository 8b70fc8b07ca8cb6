//! Copies within the device, in a kernel of its own: the driver's copies are kernels, too, and those of runs of a megabyte have half of the
//! memory's speed (docs/notes/several-gpus.md).
//!
//! A share is neighbouring pieces of one block, for a CTA at a time: each thread loads all of its own before it stores the first, so that
//! enough is on its way to keep the memory busy, and even the share of a few multiprocessors moves fast.

use crate::ptx::memory::{ld_global_b32, ld_global_v4, st_global_b32, st_global_v4, to_global};
use crate::step_params::{COPY_PIECE_BYTES, COPY_PIECES, CopyBlock, CopyParams};
use crate::steps::COPY_THREADS;
use cuda_std::thread::{block_idx_x, grid_dim_x, thread_idx_x};

/// The kernel.
///
/// # Safety
/// Launched with [`COPY_THREADS`] threads and parameters that describe device memory as [`CopyParams`] says. Nobody else touches what is
/// written.
#[inline(always)]
pub unsafe fn copy(params: &CopyParams) {
    let mut share = block_idx_x();
    while share < params.shares {
        // SAFETY: the caller's; the share is one of the launch's.
        unsafe { copy_share(params, share) };
        share += grid_dim_x();
    }
}

/// Copies a share of a launch.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn copy_share(params: &CopyParams, share: u32) {
    let mut block = params.blocks[0];
    // Field by field: all blocks would be copied to the stack where one is chosen by its address.
    for other in &params.blocks[1..] {
        let is_behind = share >= other.first_share;
        let choose = |ours: u64, theirs: u64| if is_behind { theirs } else { ours };
        block.from = choose(block.from, other.from);
        block.to = choose(block.to, other.to);
        block.from_pitch = choose(block.from_pitch, other.from_pitch);
        block.to_pitch = choose(block.to_pitch, other.to_pitch);
        block.row = if is_behind { other.row } else { block.row };
        block.pieces = if is_behind { other.pieces } else { block.pieces };
        block.first_share = if is_behind { other.first_share } else { block.first_share };
        block.piece_bytes = if is_behind { other.piece_bytes } else { block.piece_bytes };
    }
    let first = (share - block.first_share) * (COPY_THREADS * COPY_PIECES) + thread_idx_x();
    // SAFETY: the caller's; pieces lie at multiples of their size.
    unsafe {
        if block.piece_bytes == COPY_PIECE_BYTES {
            copy_pieces(&block, first, |at| ld_global_v4(at), |at, piece| st_global_v4(at, piece));
        } else {
            copy_pieces(&block, first, |at| ld_global_b32(at), |at, piece| st_global_b32(at, piece));
        }
    }
}

/// Copies a thread's pieces of a block, from the first on.
///
/// # Safety
/// As for [`copy`]; `load` and `store` move a piece.
#[inline(always)]
unsafe fn copy_pieces<T>(block: &CopyBlock, first: u32, load: impl Fn(u64) -> T, store: impl Fn(u64, T)) {
    let at = |address: u64, pitch: u64, piece: u32| {
        let (row, column) = block.row.divide(piece);
        to_global(address) + u64::from(row) * pitch + u64::from(column * block.piece_bytes)
    };
    let number = |index: usize| first + index as u32 * COPY_THREADS;
    // Behind the end, the last piece is loaded again, and not stored.
    let loaded: [T; COPY_PIECES as usize] = core::array::from_fn(|index| {
        load(at(block.from, block.from_pitch, number(index).min(block.pieces - 1)))
    });
    for (index, piece) in loaded.into_iter().enumerate() {
        if number(index) < block.pieces {
            store(at(block.to, block.to_pitch, number(index)), piece);
        }
    }
}
