//! Which thread of which block runs (PTX ISA, "Special Registers"), and the barrier of a block.

use core::arch::nvptx;

/// One safe function a special register.
macro_rules! special_registers {
    ($($(#[$doc:meta])* $name:ident => $intrinsic:ident;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            // SAFETY: reading a special register has no precondition.
            unsafe { nvptx::$intrinsic() }
        }
    )* };
}

special_registers! {
    /// This thread's x index within its block (`%tid.x`).
    thread_idx_x => _thread_idx_x;
    /// This thread's y index within its block (`%tid.y`).
    thread_idx_y => _thread_idx_y;
    /// This thread's z index within its block (`%tid.z`).
    thread_idx_z => _thread_idx_z;
    /// This block's x index within the grid (`%ctaid.x`).
    block_idx_x => _block_idx_x;
    /// This block's y index within the grid (`%ctaid.y`).
    block_idx_y => _block_idx_y;
    /// This block's z index within the grid (`%ctaid.z`).
    block_idx_z => _block_idx_z;
    /// Threads of a block along x (`%ntid.x`).
    block_dim_x => _block_dim_x;
    /// Threads of a block along y (`%ntid.y`).
    block_dim_y => _block_dim_y;
    /// Threads of a block along z (`%ntid.z`).
    block_dim_z => _block_dim_z;
    /// Blocks of the grid along x (`%nctaid.x`).
    grid_dim_x => _grid_dim_x;
    /// Blocks of the grid along y (`%nctaid.y`).
    grid_dim_y => _grid_dim_y;
    /// Blocks of the grid along z (`%nctaid.z`).
    grid_dim_z => _grid_dim_z;
}

/// This thread's index in a launch that is one-dimensional in blocks and in threads.
#[inline(always)]
pub fn index_1d() -> u32 {
    thread_idx_x() + block_idx_x() * block_dim_x()
}

/// Waits until every thread of the block is here, and makes their shared and global writes visible to each other
/// (`bar.sync 0`). All threads of the block must reach the same call.
#[inline(always)]
pub fn sync_threads() {
    // SAFETY: a barrier that only a part of the block reaches hangs or faults the launch; it breaks no memory rule.
    unsafe { nvptx::_syncthreads() }
}
