//! The steps of a tile of `dkv`: blocks of queries of all query heads of its KV head, head by head.

use super::nonfinite::{Destination, Taint, rows_to_spread, spread};
use super::params::BackwardParams;
use super::recompute::is_hidden;
use super::spill::{DS_KEYS, Piece};
use super::sums::Sums;
use super::work::{ds_block_index, key_rows, query_rows};
use crate::config::BackwardConfig;
use crate::keys::KeyRows;
use crate::ptx::memory::{ld_global_b32, to_global};
use crate::ptx::opaque;
use crate::scheduler::Work;
use crate::score::Score;
use crate::shape::Shape;
use crate::visible::Band;
use crate::work::{query_at, score_sees, visible_of_query};

/// A step of the main loop: a block of queries of one query head.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Query head, counted from the first of the KV head.
    pub head: u32,
    /// Block of queries.
    pub block: u32,
}

/// The keys that exist of a block of `rows`: the first, and the one past the last.
#[inline(always)]
pub fn keys_of_block(work: &Work<'_>, first: u32, rows: u32) -> (u32, u32) {
    (first, (first + rows).min(work.sequence.seqlen_k))
}

/// The queries that see some of these keys, and maybe some between them that see none: the first, and the one past the last.
#[inline(always)]
pub fn queries_of(params: &BackwardParams, work: &Work<'_>, keys: (u32, u32)) -> (u32, u32) {
    let ragged = &params.forward.ragged;
    Band::of(ragged).queries_of(keys, ragged.sink_tokens, &work.sequence)
}

/// Where dS of a block of keys of the work's sequence lies.
///
/// # Safety
/// As for [`crate::sequence::Sequence::of_ragged`]; the kernel of statistics has written where pieces start.
#[inline(always)]
pub unsafe fn piece(params: &BackwardParams, work: &Work<'_>, block: u32) -> Piece {
    let at = to_global(params.ds_starts) + u64::from(ds_block_index(params, work, block)) * 4;
    // SAFETY: the caller's.
    let start = unsafe { ld_global_b32(at) };
    Piece::new(params, queries_of(params, work, keys_of_block(work, block * DS_KEYS, DS_KEYS)), start)
}

/// A query head of the work's batch entry among those of which dS is kept: packed sequences share one.
#[inline(always)]
pub fn ds_head(params: &BackwardParams, work: &Work<'_>, head_q: u32) -> u32 {
    let batch = if params.forward.ragged.cu_seqlens_q == 0 { work.batch } else { 0 };
    batch * params.forward.heads_q + head_q
}

/// The steps of a tile.
pub struct Steps<'a, C> {
    pub(crate) params: &'a BackwardParams,
    pub(crate) work: &'a Work<'a>,
    /// The first block of queries, and the one past the last.
    blocks: (u32, u32),
    /// The first step of all heads', and the one past the last, where several CTAs share them.
    range: (u32, u32),
    /// The tile's keys that exist.
    keys: (u32, u32),
    config: core::marker::PhantomData<C>,
}

impl<'a, C: BackwardConfig> Steps<'a, C> {
    /// Those of a tile of keys, or of a split of it.
    #[inline(always)]
    pub fn new(params: &'a BackwardParams, work: &'a Work<'a>) -> Self {
        let keys = keys_of_block(work, work.first_row, C::Stationary::ROWS);
        let mut seen = keys;
        if C::WRITES_DS {
            // dS of half a block of keys is written for all queries that see any of it.
            seen = keys_of_block(work, work.first_row / DS_KEYS * DS_KEYS, DS_KEYS);
        }
        let (first, past) = queries_of(params, work, seen);
        let blocks = (first / C::Streamed::ROWS, past.div_ceil(C::Streamed::ROWS));
        // No query: no block either, whatever the first one is.
        let blocks = if past > first { blocks } else { (0, 0) };
        let (count, splits) = ((blocks.1 - blocks.0) * params.forward.group.value, params.query_splits);
        let of_split = splits.quotient(count + splits.value - 1);
        let first = of_split * work.split;
        // Without steps: none behind the last either, whose statistics a warp asks for before it has counted.
        let range = if first < count { (first, (first + of_split).min(count)) } else { (0, 0) };
        Self { params, work, blocks, range, keys, config: core::marker::PhantomData }
    }

    /// Blocks of each head.
    #[inline(always)]
    fn of_head(&self) -> u32 {
        self.blocks.1 - self.blocks.0
    }

    /// Steps of the CTA.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.range.1 - self.range.0
    }

    /// A step of the CTA by its number.
    #[inline(always)]
    pub fn at(&self, index: u32) -> Step {
        self.of_all(self.range.0 + index)
    }

    /// A step by its number, counted through all heads.
    #[inline(always)]
    fn of_all(&self, index: u32) -> Step {
        let of_head = self.of_head().max(1);
        Step { head: index / of_head, block: self.blocks.0 + index % of_head }
    }

    /// The first one.
    #[inline(always)]
    pub fn first(&self) -> Step {
        self.at(0)
    }

    /// The one after another.
    #[inline(always)]
    pub fn after(&self, step: Step) -> Step {
        let block = step.block + 1;
        if block < self.blocks.1 {
            Step { block, ..step }
        } else {
            Step { head: step.head + 1, block: self.blocks.0 }
        }
    }

    /// Whether what is past the sequence's last query is past the tensor's end too, where bulk copies write zeros.
    #[inline(always)]
    pub fn ends_with_tensor(&self) -> bool {
        let forward = &self.params.forward;
        (forward.ragged.cu_seqlens_q == 0) & (self.work.sequence.seqlen_q.get() == forward.seqlen_q)
    }

    /// Whether some query of a block sees the tile's keys only in part, or the tile has fewer keys. Queries past the last need no
    /// mask where Q, dO and their statistics are zeros: they add nothing to a gradient.
    #[inline(always)]
    pub fn is_partial(&self, block: u32) -> bool {
        let ragged = &self.params.forward.ragged;
        let first = block * C::Streamed::ROWS;
        let (past, last) = (first + C::Streamed::ROWS, self.work.sequence.seqlen_q.get());
        let seqlen_k = self.work.sequence.seqlen_k;
        let is_whole = (self.keys.0 + C::Stationary::ROWS <= seqlen_k)
            & (!C::Score::HIDES || self.keys.1 <= C::Score::hides_from(&self.params.forward, seqlen_k))
            & (ragged.intervals == 0)
            & (C::ZERO_FILLED | (past <= last) | (!C::Score::OF_KEYS & self.ends_with_tensor()));
        !is_whole || !Band::of(ragged).all_see((first, past.min(last)), self.keys, &self.work.sequence)
    }

    /// The rows of Q and dO of a head.
    #[inline(always)]
    pub fn rows(&self, head: u32) -> [KeyRows; 2] {
        let (params, forward) = (self.params, &self.params.forward);
        // Opaque: addresses are worked out anew in each step, where two gradients leave no registers to keep them.
        let work = Work { batch: opaque(self.work.batch), ..*self.work };
        let rows = |base, strides| query_rows(base, strides, &work, work.head_q + head);
        [rows(forward.q, &forward.q_strides), rows(params.d_o, &params.d_o_strides)]
    }

    /// Where dK and dV of the tile go, those of keys before `past`, as computed by CTA `index`.
    #[inline(always)]
    pub fn destinations(&self, past: u32, index: u32) -> [Destination; 2] {
        let (params, ragged) = (self.params, &self.params.forward.ragged);
        let to = |base, strides, width, which| Destination {
            rows: key_rows(base, strides, self.work),
            range: (self.work.first_row, past),
            width,
            sums: Sums::of(params, index, which),
        };
        [
            to(params.d_k, &params.d_k_strides, ragged.width_qk, 0),
            to(params.d_v, &params.d_v_strides, ragged.width_v, 1),
        ]
    }

    /// Gives what is not finite in Q and dO of blocks that are seen in part to dK and dV of the keys that their rows see, to those of both
    /// that are `wanted`.
    ///
    /// # Safety
    /// All `threads` threads that compute take part, `thread` this one's index, after a barrier behind the stores of dK and dV.
    #[inline(always)]
    pub unsafe fn spread(&self, to: &[Destination; 2], wanted: [bool; 2], threads: (u32, u32)) {
        let (forward, work) = (&self.params.forward, self.work);
        for (i, taint) in [(0, Taint::NotANumber), (1, Taint::Itself)] {
            if !wanted[i] {
                continue;
            }
            let rows = rows_to_spread::<C>();
            let steps = (self.count(), rows);
            let source = |step: u32, streamed: u32, key: u32| {
                let Step { head, block } = self.at(step);
                let query = block * C::Streamed::ROWS + streamed;
                if query >= work.sequence.seqlen_q.get() || !self.is_partial(block) {
                    return None;
                }
                // SAFETY: the caller's.
                let visible = unsafe { visible_of_query(forward, work, true, || query) };
                let is_seen = !is_hidden(key, visible, forward.ragged.sink_tokens)
                    & score_sees::<C::Score>(forward, key, || {
                        query_at(forward, work, (work.head_q + head, query))
                    });
                is_seen.then(|| self.rows(head)[i].address(query, 0))
            };
            // SAFETY: the caller's.
            unsafe { spread::<C::Element>(&to[i], C::Stationary::ROWS, steps, taint, threads, source) }
        }
    }
}
