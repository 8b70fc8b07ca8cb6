//! K and V on their way through the stages of shared memory.
//!
//! With one stage, K of the next block is on its way while V of this one is multiplied, and V while Q·Kᵀ is computed. With more, a
//! stage holds K and V of a block, and `STAGES` − 1 blocks are on their way. Copies of a thread complete group by group: each
//! step commits as many groups, empty ones included, so that a count of groups says which block has landed.

use super::copy::TileCopy;
use crate::config::Config;
use crate::keys::{KeyRows, RaggedKeys};
use crate::ptx::cp_async::{cp_async_commit_group, cp_async_wait_group};
use crate::ptx::opaque;
use crate::shape::Shape;
use crate::tile::smem_tile::SmemTile;
use crate::visible::KeyBlocks;
use cuda_std::thread::sync_threads;

/// The pipeline of a CTA, as each of its threads has it.
pub struct Pipeline<'a, C: Config> {
    k: TileCopy<C::K>,
    v: TileCopy<C::V>,
    /// The stage that is written next, and the one that is read next.
    write: u32,
    read: u32,
    first: u32,
    /// Whether non-finite elements of V are replaced by 0 in blocks that are seen only in part.
    scrub: bool,
    /// What is copied, where the batch may be ragged.
    ragged: Option<RaggedBlocks<'a>>,
    /// There, a page of the block that is copied next: see [`TileCopy::page_of_lane`]. Asked for a block ahead, so that it has come by then.
    page: u32,
}

/// The blocks of keys of a ragged batch that are still to be copied.
#[derive(Clone, Copy)]
pub struct RaggedBlocks<'a> {
    /// Rows of K and V.
    pub keys: RaggedKeys<'a>,
    /// Elements of a row of K, and of V.
    pub widths: (u32, u32),
    /// Keys of the sequence.
    pub seqlen_k: u32,
    /// All blocks.
    pub blocks: KeyBlocks,
}

impl RaggedBlocks<'_> {
    /// The first key of a step's block, and how many keys there are from there on.
    #[inline(always)]
    fn rows_of<C: Config>(&self, step: u32) -> (u32, u32) {
        let first_key = self.blocks.block(step) * C::K::ROWS;
        (first_key, self.seqlen_k.saturating_sub(first_key))
    }
}

/// The tiles of a block of keys.
pub struct Stage<C: Config> {
    /// Keys.
    pub k: SmemTile<C::K>,
    /// Values.
    pub v: SmemTile<C::V>,
}

impl<C: Config> Stage<C> {
    /// Bytes of a stage.
    const BYTES: u32 = C::K::BYTES + C::V::BYTES;

    #[inline(always)]
    fn at(start: u32) -> Self {
        Self { k: SmemTile::at(start), v: SmemTile::at(start + C::K::BYTES) }
    }
}

impl<'a, C: Config> Pipeline<'a, C> {
    /// Nothing is on its way yet. Its stages start at `first_stage` in shared memory, and the first block at key `first_key`.
    #[inline(always)]
    pub fn new(
        (k, v): (KeyRows, KeyRows),
        first_key: u32,
        first_stage: u32,
        (thread, ragged): (u32, Option<RaggedBlocks<'a>>),
        scrub: bool,
    ) -> Self {
        Self {
            k: TileCopy::new(k, first_key, (thread, C::THREADS)),
            v: TileCopy::new(v, first_key, (thread, C::THREADS)),
            write: first_stage,
            read: first_stage,
            first: first_stage,
            scrub,
            ragged,
            page: 0,
        }
    }

    /// Starts the copies of the first blocks, the last ones of `blocks`: the very last one has `valid_rows` rows, or more than a tile.
    ///
    /// # Safety
    /// All threads of the CTA take part, and none uses the stages.
    #[inline(always)]
    pub unsafe fn fill(&mut self, blocks: &KeyBlocks, valid_rows: u32) {
        // SAFETY: the caller's.
        unsafe {
            self.ask_for_page(blocks.end - 1);
            if C::STAGES == 1 && C::RAGGED {
                self.copy_ragged((true, false), &Stage::at(self.write), blocks.end - 1);
            } else if C::STAGES == 1 {
                self.k.copy_bounded(Stage::<C>::at(self.write).k, valid_rows);
            } else {
                self.copy_stage(blocks.end - 1, Some(valid_rows));
            }
            cp_async_commit_group();
            let mut stage = 1;
            // A loop, where each copy is long.
            while stage < if C::RAGGED { opaque(C::STAGES - 1) } else { 1 } {
                if blocks.end > blocks.first + stage {
                    self.copy_stage(blocks.end - 1 - stage, None);
                }
                cp_async_commit_group();
                stage += 1;
            }
            for stage in 1..if C::RAGGED { 1 } else { C::STAGES.max(2) - 1 } {
                if blocks.end > blocks.first + stage {
                    self.copy_stage(blocks.end - 1 - stage, None);
                }
                cp_async_commit_group();
            }
        }
    }

    /// Waits for K of the next block, of which `valid_rows` keys exist: its stage, or with one stage its K, has landed for all
    /// threads, and all are done with the block before. It is block `block`, counted from the first one that is worked on; `masked` ones are
    /// seen only in part, or are ragged.
    ///
    /// # Safety
    /// All threads of the CTA take part, after [`Self::fill`] and in turn with [`Self::wait_v`] and [`Self::refill`].
    #[inline(always)]
    pub unsafe fn wait_k(&mut self, masked: bool, block: u32, valid_rows: u32) -> Stage<C> {
        let stage = Stage::at(self.read);
        // SAFETY: the caller's; the barriers say which hazard they close.
        unsafe {
            if C::STAGES == 1 {
                // K has landed for all, and all are done with V of the block before, which is overwritten.
                cp_async_wait_group::<0>();
                sync_threads();
                if C::RAGGED {
                    let step = self.first_step() + block;
                    self.copy_ragged((false, true), &stage, step);
                    self.ask_for_page(step.saturating_sub(1));
                } else if masked {
                    self.v.copy_bounded(stage.v, valid_rows);
                } else {
                    self.v.copy(stage.v);
                }
                cp_async_commit_group();
            } else {
                // The block's stage has landed for all, and all are done with the one that is written next.
                Self::wait_for_oldest_stage();
                self.scrub_v(masked, &stage);
                sync_threads();
            }
        }
        stage
    }

    /// Waits for V of the block whose K was waited for.
    ///
    /// # Safety
    /// As for [`Self::wait_k`]; all threads are done with K of the block once they pass here.
    #[inline(always)]
    pub unsafe fn wait_v(&mut self, masked: bool, stage: &Stage<C>) {
        if C::STAGES == 1 {
            // V has landed for all, and all are done with K, which is overwritten.
            cp_async_wait_group::<0>();
            // SAFETY: the caller's.
            unsafe { self.scrub_v(masked, stage) }
            sync_threads();
        }
    }

    /// Starts the copies of a block that is still to come, where there is one: `block` blocks follow this one. Behind Q·Kᵀ, as copies
    /// that are under way hold up reads of shared memory, and the softmax has none.
    ///
    /// # Safety
    /// As for [`Self::wait_k`].
    #[inline(always)]
    pub unsafe fn refill(&mut self, block: u32) {
        // SAFETY: the caller's; all threads are done with what is written.
        unsafe {
            if C::STAGES == 1 {
                if block > 0 && C::RAGGED {
                    self.copy_ragged((true, false), &Stage::at(self.write), self.first_step() + block - 1);
                } else if block > 0 {
                    self.k.copy(Stage::<C>::at(self.write).k);
                }
            } else if block >= C::STAGES - 1 {
                self.copy_stage(self.first_step() + block - (C::STAGES - 1), None);
            }
        }
        cp_async_commit_group();
        if C::STAGES > 1 {
            self.read = self.next(self.read);
        }
    }

    /// Waits until the stage that is read next has landed for this thread: all but the latest `STAGES` − 2.
    #[inline(always)]
    pub fn wait_for_oldest_stage() {
        match C::STAGES {
            1 | 2 => cp_async_wait_group::<0>(),
            3 => cp_async_wait_group::<1>(),
            _ => cp_async_wait_group::<2>(),
        }
    }

    /// Starts copying K and V of the next block, that of step `step`. Only the last block of the sequence may have fewer valid rows than a tile, and it is the
    /// first one copied.
    ///
    /// # Safety
    /// All threads of the CTA take part, and all have read what the written stage held.
    #[inline(always)]
    unsafe fn copy_stage(&mut self, step: u32, valid_rows: Option<u32>) {
        let stage = Stage::<C>::at(self.write);
        // SAFETY: the caller's.
        unsafe {
            match valid_rows {
                _ if C::RAGGED => {
                    self.copy_ragged((true, true), &stage, step);
                    self.ask_for_page(step.saturating_sub(1));
                }
                Some(valid_rows) => {
                    self.k.copy_bounded(stage.k, valid_rows);
                    self.v.copy_bounded(stage.v, valid_rows);
                }
                None => {
                    self.k.copy(stage.k);
                    self.v.copy(stage.v);
                }
            }
        }
        self.write = self.next(self.write);
    }

    /// Starts copying the block of step `step` of a ragged batch, whose page was asked for: K, V or both.
    ///
    /// # Safety
    /// As for [`Self::copy_stage`].
    #[inline(always)]
    unsafe fn copy_ragged(&self, (k, v): (bool, bool), stage: &Stage<C>, step: u32) {
        let Some(ragged) = &self.ragged else { return };
        let tiles = [
            k.then(|| self.k.ragged_tile(stage.k.start, ragged.widths.0)),
            v.then(|| self.v.ragged_tile(stage.v.start, ragged.widths.1)),
        ];
        // SAFETY: the caller's.
        unsafe { self.k.copy_ragged(tiles, &ragged.keys, ragged.rows_of::<C>(step), self.page) }
    }

    /// The step of the first block that is worked on.
    #[inline(always)]
    fn first_step(&self) -> u32 {
        self.ragged.as_ref().map_or(0, |ragged| ragged.blocks.first)
    }

    /// Asks for a page of the block of step `step`, in a ragged batch.
    ///
    /// # Safety
    /// As for [`TileCopy::page_of_lane`].
    #[inline(always)]
    unsafe fn ask_for_page(&mut self, step: u32) {
        if let Some(ragged) = &self.ragged {
            // SAFETY: the caller's.
            self.page = unsafe { self.k.page_of_lane(&ragged.keys, ragged.rows_of::<C>(step)) };
        }
    }

    /// Keeps what V holds at keys that only some rows see from reaching the others: see [`crate::math::scrub`].
    ///
    /// # Safety
    /// As for [`TileCopy::scrub`].
    #[inline(always)]
    unsafe fn scrub_v(&mut self, masked: bool, stage: &Stage<C>) {
        if masked && self.scrub {
            // SAFETY: the caller's.
            unsafe { self.v.scrub::<C::Element>(stage.v) };
        }
    }

    /// The stage after `stage`.
    #[inline(always)]
    fn next(&self, stage: u32) -> u32 {
        let next = stage + Stage::<C>::BYTES;
        if next == self.first + C::STAGES * Stage::<C>::BYTES { self.first } else { next }
    }
}
