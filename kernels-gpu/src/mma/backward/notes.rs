//! What a tile and its steps are, noted in shared memory: a lane of the first warp works out a step ahead of it. So no thread works out a step's
//! addresses and what of it is seen by itself, nor keeps in registers what these follow from.

use crate::config::BackwardConfig;
use crate::ptx::memory::{dynamic_smem, ld_shared_v4, st_shared_v4};
use crate::ptx::{of_halves, thread_idx_x_again};
use crate::scheduler::Work;
use crate::sequence::{QueryCount, Sequence};
use core::marker::PhantomData;
use cuda_std::thread::sync_threads;

/// Steps that are noted at a time: a lane each. There is room for two times as many, so that those still to be read stay.
const BATCH: u32 = 32;
/// In the word of a block: it is seen in part.
const PARTIAL: u32 = 1 << 31;

/// A block, and whether it is seen in part, in one word.
#[inline(always)]
pub fn block_word(block: u32, is_partial: bool) -> u32 {
    block | if is_partial { PARTIAL } else { 0 }
}

/// The block of a word, and whether it is seen in part.
#[inline(always)]
pub fn block_of_word(word: u32) -> (u32, bool) {
    (word & !PARTIAL, word & PARTIAL != 0)
}

/// The two addresses of four [`crate::ptx::halves`].
#[inline(always)]
pub fn addresses([low, high, second_low, second_high]: [u32; 4]) -> [u64; 2] {
    [of_halves([low, high]), of_halves([second_low, second_high])]
}

/// The notes of a tile, and of its steps: four words that the whole step needs, and four that its copies need.
pub struct Notes<C> {
    count: u32,
    config: PhantomData<C>,
}

impl<C: BackwardConfig> Notes<C> {
    const TILE_BYTES: u32 = 48;
    const STEP_BYTES: u32 = 32;

    /// Those of a tile of `count` steps, which are still to be noted. It ends with a barrier, behind which what is noted of the tile may be read.
    ///
    /// # Safety
    /// All threads of the CTA take part.
    #[inline(always)]
    pub unsafe fn new(count: u32, work: &Work<'_>) -> Self {
        const { assert!(C::NOTES_BYTES == Self::TILE_BYTES + 2 * BATCH * Self::STEP_BYTES, "two batches") }
        let Sequence { seqlen_q, seqlen_k, q_start, k_start } = work.sequence;
        if thread_idx_x_again() == 0 {
            // SAFETY: the caller's; one thread writes.
            unsafe {
                st_shared_v4(Self::start(), [work.first_row, seqlen_q.get(), seqlen_k, work.split]);
                st_shared_v4(Self::start() + 16, [work.batch, work.head_q, work.head_kv, 0]);
                st_shared_v4(Self::start() + 32, [q_start, k_start, 0, 0]);
            }
        }
        sync_threads();
        Self { count, config: PhantomData }
    }

    #[inline(always)]
    fn start() -> u32 {
        dynamic_smem() + C::NOTES_OFFSET
    }

    #[inline(always)]
    fn address(step: u32) -> u32 {
        Self::start() + Self::TILE_BYTES + step % (2 * BATCH) * Self::STEP_BYTES
    }

    /// The tile. Read again at each call, so that nothing of it is kept in registers.
    ///
    /// # Safety
    /// Nobody has written to the notes but these functions.
    #[inline(always)]
    pub unsafe fn work(&self) -> Work<'static> {
        // SAFETY: the caller's.
        let [[first_row, seqlen_q, seqlen_k, split], [batch, head_q, head_kv, _], [q_start, k_start, ..]] =
            unsafe { [0, 16, 32].map(|along| ld_shared_v4(Self::start() + along)) };
        let sequence = Sequence { seqlen_q: QueryCount::Own(seqlen_q), seqlen_k, q_start, k_start };
        Work { batch, head_q, head_kv, first_row, split, slice: 0, sequence }
    }

    /// The tile's first row, and the queries and keys of its sequence.
    ///
    /// # Safety
    /// As for [`Self::work`].
    #[inline(always)]
    pub unsafe fn rows(&self) -> [u32; 3] {
        // SAFETY: the caller's.
        let [first_row, seqlen_q, seqlen_k, _] = unsafe { ld_shared_v4(Self::start()) };
        [first_row, seqlen_q, seqlen_k]
    }

    /// Where `step` is the first of a batch, notes what `note` says of each of its steps of a tile, behind which they may be read.
    ///
    /// # Safety
    /// All threads of the CTA call it for each step in turn, a barrier behind their last read of steps two batches before.
    #[inline(always)]
    pub unsafe fn note_from(&self, step: u32, note: impl Fn(&Work<'_>, u32) -> [[u32; 4]; 2]) {
        if step % BATCH != 0 || step >= self.count {
            return;
        }
        if thread_idx_x_again() < BATCH {
            let step = step + thread_idx_x_again();
            // SAFETY: the caller's; a lane has a place of its own.
            unsafe {
                // All lanes take part in what some masks ask of a warp.
                let [of_step, of_copies] = note(&self.work(), step.min(self.count - 1));
                if step < self.count {
                    st_shared_v4(Self::address(step), of_step);
                    st_shared_v4(Self::address(step) + 16, of_copies);
                }
            }
        }
        sync_threads();
    }

    /// What is noted of a step.
    ///
    /// # Safety
    /// It has been noted.
    #[inline(always)]
    pub unsafe fn of(&self, step: u32) -> [u32; 4] {
        // SAFETY: the caller's.
        unsafe { ld_shared_v4(Self::address(step)) }
    }

    /// What is noted of a step for its copies.
    ///
    /// # Safety
    /// As for [`Self::of`].
    #[inline(always)]
    pub unsafe fn of_copies(&self, step: u32) -> [u32; 4] {
        // SAFETY: the caller's.
        unsafe { ld_shared_v4(Self::address(step) + 16) }
    }
}
