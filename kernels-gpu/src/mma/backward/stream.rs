//! Streamed blocks on their way through the stages of shared memory: K and V, or Q and dO with what their rows say of them.

use crate::backward::row::{LIMITS_BYTES, STATISTICS_BYTES};
use crate::config::BackwardConfig;
use crate::keys::KeyRows;
use crate::mma::copy::TileCopy;
use crate::ptx::cp_async::{cp_async_8_or_zero, cp_async_commit_group, cp_async_wait_group};
use crate::ptx::memory::st_shared;
use crate::shape::Shape;
use crate::tile::smem_tile::SmemTile;
use crate::visible::Visible;
use core::marker::PhantomData;
use cuda_std::thread::sync_threads;

/// A pair of tensors, whose rows are copied together: Q and dO, or K and V.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Their rows.
    pub rows: [KeyRows; 2],
    /// Elements of a row of each.
    pub widths: [u32; 2],
}

impl Pair {
    /// Starts copying `valid` rows from `first` on, and zeros behind them, to a tile of each from `start` on in shared memory; with `whole`, by a way of
    /// its own where all rows are there.
    ///
    /// # Safety
    /// As for [`TileCopy::copy_within`].
    #[inline(always)]
    pub unsafe fn copy<S: Shape>(
        &self,
        start: u32,
        (first, valid): (u32, u32),
        threads: (u32, u32),
        whole: bool,
    ) {
        for (i, tile) in [start, start + S::BYTES].into_iter().enumerate() {
            let copy = TileCopy::<S>::new(self.rows[i], first, threads);
            let (tile, width) = (SmemTile::at(tile), self.widths[i]);
            // SAFETY: the caller's.
            unsafe {
                if whole {
                    copy.copy_whole_or_within(tile, valid, width);
                } else {
                    copy.copy_within(tile, valid, width);
                }
            }
        }
    }
}

/// A block in shared memory.
pub struct Stage<C: BackwardConfig> {
    /// Where it starts.
    pub start: u32,
    config: PhantomData<C>,
}

impl<C: BackwardConfig> Stage<C> {
    #[inline(always)]
    fn at(start: u32) -> Self {
        Self { start, config: PhantomData }
    }

    /// Rows of K, or of Q.
    #[inline(always)]
    pub fn first(&self) -> SmemTile<C::Streamed> {
        SmemTile::at(self.start)
    }

    /// Rows of V, or of dO.
    #[inline(always)]
    pub fn second(&self) -> SmemTile<C::Streamed> {
        SmemTile::at(self.start + C::Streamed::BYTES)
    }

    /// Where L·log2(e) and δ of each query are.
    #[inline(always)]
    pub fn statistics(&self) -> u32 {
        self.start + 2 * C::Streamed::BYTES
    }

    /// Where the keys that each query sees are.
    #[inline(always)]
    pub fn limits(&self) -> u32 {
        self.statistics() + C::Streamed::ROWS * STATISTICS_BYTES
    }

    /// Starts copying the statistics of query number `row` of the block from the global address given; zeros where it does not exist.
    ///
    /// # Safety
    /// Nobody reads the stage until this thread has waited for its copies and passed a barrier. The address holds the statistics.
    #[inline(always)]
    pub unsafe fn copy_statistics(&self, row: u32, address: u64, exists: bool) {
        let source_bytes = if exists { STATISTICS_BYTES } else { 0 };
        // SAFETY: the caller's; nothing is read where the query does not exist.
        unsafe { cp_async_8_or_zero(self.statistics() + row * STATISTICS_BYTES, address, source_bytes) }
    }

    /// Notes what query number `row` of the block sees.
    ///
    /// # Safety
    /// As for [`Self::copy_statistics`].
    #[inline(always)]
    pub unsafe fn note_limits(&self, row: u32, Visible { begin, end }: Visible) {
        let limits = self.limits() + row * LIMITS_BYTES;
        // SAFETY: the caller's.
        unsafe {
            st_shared(limits, begin);
            st_shared(limits + 4, end);
        }
    }
}

/// The stages, as each thread of a CTA has them. Every step commits one group of copies, an empty one where there is nothing left to
/// copy, so that a count of groups says which block has landed.
pub struct Stream<C: BackwardConfig> {
    first: u32,
    /// The stage that is written next, and the one that is read next.
    write: u32,
    read: u32,
    config: PhantomData<C>,
}

impl<C: BackwardConfig> Stream<C> {
    /// Stages from `first` on in shared memory.
    #[inline(always)]
    pub fn new(first: u32) -> Self {
        Self { first, write: first, read: first, config: PhantomData }
    }

    /// The stage that is written next; its copies are closed by [`Self::commit`].
    #[inline(always)]
    pub fn next(&mut self) -> Stage<C> {
        let stage = Stage::at(self.write);
        self.write = self.after(self.write);
        stage
    }

    /// Closes the group of copies since the last one.
    #[inline(always)]
    pub fn commit() {
        cp_async_commit_group();
    }

    /// Waits until what was committed before the first stage has landed for this thread; `STAGES` − 1 groups may have been committed
    /// since.
    #[inline(always)]
    pub fn wait_for_stationary() {
        match C::STAGES {
            2 => cp_async_wait_group::<1>(),
            3 => cp_async_wait_group::<2>(),
            _ => cp_async_wait_group::<3>(),
        }
    }

    /// The stage that is read next, once it has landed for all threads and all are done with the one that is written next.
    ///
    /// # Safety
    /// All threads of the CTA take part.
    #[inline(always)]
    pub unsafe fn wait(&mut self) -> Stage<C> {
        match C::STAGES {
            2 => cp_async_wait_group::<0>(),
            3 => cp_async_wait_group::<1>(),
            _ => cp_async_wait_group::<2>(),
        }
        let stage = Stage::at(self.read);
        self.read = self.after(self.read);
        sync_threads();
        stage
    }

    #[inline(always)]
    fn after(&self, stage: u32) -> u32 {
        let next = stage + C::STAGE_BYTES;
        if next == self.first + C::STAGES * C::STAGE_BYTES { self.first } else { next }
    }
}
