//! What a plan has to do, counted: CTAs, blocks of keys, bytes, what is merged. The cost model turns it into time.

use super::numbers::{ceil, floor, greater, lesser, within};
use super::splitting::Splitting;
use super::tiling::Tiling;
use crate::device::DeviceInfo;
use crate::problem::{Extent, KeySequences, Mask, Problem, QuerySequences, Sizes, TensorRole};
use kernels_gpu::geometry;
use kernels_gpu::row::Row;

/// Where the partial results of several splits are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// There is one split.
    #[default]
    Nothing,
    /// In the CTA of each tile that finishes last.
    Fused,
    /// In a kernel of its own.
    Kernel,
}

/// How much of K and V the sequences of a problem with lengths have, as shares of seqlen_k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fill {
    /// On average.
    pub mean: f64,
    /// The longest.
    pub longest: f64,
}

/// The counts of one launch, or of two where a kernel of its own merges splits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Multiprocessors.
    pub sms: f64,
    /// CTAs that one holds at a time.
    pub resident: f64,
    /// Blocks of query rows of all heads.
    pub tiles: f64,
    /// Tiles × splits.
    pub ctas: f64,
    /// Ranges of keys.
    pub splits: f64,
    /// Blocks of a tile that a causal mask cuts.
    pub masked: f64,
    /// Whether the last block of keys is not full, without a causal mask: 0 or 1.
    pub ragged: f64,
    /// Query rows of a tile × head_dim, in units of 8192 elements.
    pub tile_rows: f64,
    /// Q and O, in MB.
    pub qo_mb: f64,
    /// The L2 cache, in MB.
    pub l2_mb: f64,
    /// Partial O and LSE, as a share of the L2 cache.
    pub l2_partial: f64,
    /// 1 where rows of neighbouring heads alternate in memory, else 0.
    pub interleaved: f64,
    /// 1 where sequences have lengths on the device, else 0.
    pub lengths: f64,
    /// Keys of a page, 0 where K and V have none.
    pub page: f64,
    /// Where splits are merged.
    pub merge: Merge,
    /// Partial O and LSE, in MB.
    pub partial_mb: f64,
    /// Rows that are merged, as a share of those that the merging kernel's CTAs have at once.
    pub merge_waves: f64,
    /// Groups of rows that the last CTA of a tile merges one after the other.
    pub merge_rounds: f64,
    /// Splits × head_dim, in units of 256 elements.
    pub merge_width: f64,
    /// What depends on how full sequences are.
    pub filled: Filled,
}

/// The counts of one launch that depend on how full sequences are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Filled {
    /// CTAs that have keys: a split of a short sequence, or of queries that see few keys, may have none.
    pub active: f64,
    /// Blocks of keys of a CTA, on average.
    pub blocks: f64,
    /// Blocks of keys of the CTA that has most.
    pub blocks_max: f64,
    /// K and V of all heads once, in MB.
    pub kv_mb: f64,
    /// What all CTAs copy of K and V, in MB.
    pub copied_mb: f64,
    /// Q, K, V and O, as a share of the L2 cache.
    pub l2_share: f64,
}

/// Shares of L2 between which a launch comes to read all from memory: a place on a scale, as the knots of curves are, whose values are fitted.
const STREAMED_FROM: f64 = 0.7;
/// See [`STREAMED_FROM`].
const STREAMED_BEYOND: f64 = 1.0;

impl Filled {
    /// How far memory bounds the launch, from 0 to 1: 1 where L2 keeps nothing between launches and one CTA copies each key, 0 where L2
    /// keeps all or two copy each.
    pub fn streamed(&self) -> f64 {
        let beyond = (self.l2_share - STREAMED_FROM) / (STREAMED_BEYOND - STREAMED_FROM);
        let copies = self.copied_mb / greater(self.kv_mb, 1e-9);
        within(beyond, 0.0, 1.0) * within(2.0 - copies, 0.0, 1.0)
    }
}

/// Blocks of keys of a CTA that has hardly any.
const BLOCKS_LEAST: f64 = 0.3;
/// CTAs of the merging kernel that a multiprocessor holds: 256 threads each.
const MERGE_CTAS: u32 = 8;

/// CTAs of the merging kernel that the device holds.
fn merging_ctas(device: &DeviceInfo) -> u32 {
    device.sm_count.max(1) * MERGE_CTAS
}

/// Query rows of a CTA of the merging kernel: more than one where there are more rows than the device holds CTAs.
pub(super) fn combine_rows(problem: &Problem, device: &DeviceInfo) -> u32 {
    let rows = problem.lse_len() as u64;
    rows.div_ceil(merging_ctas(device).into()).clamp(1, geometry::COMBINE_CTA_ROWS.into()) as u32
}

impl Fill {
    /// Every sequence has all keys.
    pub const FULL: Fill = Fill { mean: 1.0, longest: 1.0 };

    /// What may be expected of lengths that nobody knows when the plan is made: that sequences fill the room that was made for them, or
    /// that each length is as likely as any other. The more sequences there are, the nearer to a half they are filled on average.
    ///
    /// These are the latter; the former is as likely as each of them. `None` without lengths.
    pub(super) fn shorter(problem: &Problem) -> Option<[Fill; 3]> {
        /// The middles of three equal parts of what may be, from the middle of all.
        const PARTS: [f64; 3] = [-1.0 / 3.0, 0.0, 1.0 / 3.0];
        /// Some keys are always there.
        const LEAST: f64 = 0.02;
        let batch = f64::from(problem.sizes().batch);
        let fill = |part: f64| {
            let mean = (0.5 + part / batch.sqrt()).clamp(LEAST, 1.0);
            let longest = if batch > 1.0 { mean.max(batch / (batch + 1.0)) } else { mean };
            Fill { mean, longest }
        };
        problem.has_lengths().then(|| PARTS.map(fill))
    }
}

impl Work {
    /// What no kernel changes: the counts of a problem whose sequences have all keys, on a device. Kernels' own are missing.
    pub(super) fn of_problem(problem: &Problem, device: &DeviceInfo) -> Work {
        let sizes = problem.sizes();
        let head_dim = f64::from(sizes.head_dim);
        let bytes = f64::from(problem.dtype().bytes());
        let mb = |role| problem.elements(role) as f64 * bytes * 1e-6;
        // No more than queries see, and of a pool of pages no more than sequences may have.
        let seen = problem.mask().keys_seen([sizes.seqlen_q, sizes.seqlen_k]);
        let held = f64::from(sizes.batch) * f64::from(seen);
        let in_pool = |role| {
            let Extent { batch, rows, .. } = problem.extent(role);
            f64::from(batch) * f64::from(rows)
        };
        let read_mb = |role| mb(role) * (held / in_pool(role)).min(1.0);
        let kv_mb = read_mb(TensorRole::K) + read_mb(TensorRole::V);
        let qo_mb = mb(TensorRole::Q) + mb(TensorRole::O);
        let rows = problem.lse_len() as f64;
        let rows_at_once = f64::from(merging_ctas(device) * combine_rows(problem, device));
        let sms = f64::from(device.sm_count.max(1));
        let l2_mb = device.l2_bytes.max(1) as f64 * 1e-6;
        let key_stride = problem.strides(TensorRole::K).row;
        Work {
            sms,
            splits: 1.0,
            qo_mb,
            l2_mb,
            interleaved: f64::from(u8::from(sizes.heads_kv > 1 && key_stride > i64::from(sizes.head_dim))),
            lengths: f64::from(u8::from(problem.has_lengths())),
            page: match problem.keys() {
                KeySequences::Paged(pages) => f64::from(pages.page),
                _ => 0.0,
            },
            partial_mb: rows * (head_dim + 1.0) * 4e-6,
            merge_waves: rows / rows_at_once,
            merge_width: head_dim / 256.0,
            filled: Filled { kv_mb, l2_share: (kv_mb + qo_mb) / l2_mb, ..Filled::default() },
            ..Work::default()
        }
    }

    /// The counts of a problem together with those of a row's kernel without splits; a multiprocessor holds `resident_ctas` CTAs of it at a
    /// time.
    pub(super) fn of_kernel(
        &self,
        problem: &Problem,
        row: &Row,
        tiling: &Tiling,
        resident_ctas: u32,
    ) -> Work {
        let Sizes { head_dim, seqlen_q, seqlen_k, .. } = *problem.sizes();
        let rows_of_block = tiling.rows_of_block.max(1);
        let queries_of_block = rows_of_block / tiling.packed_heads;
        let (head_dim, block_n) = (f64::from(head_dim), f64::from(row.block_n));
        let mask = Mask { tree: None, intervals: false, ..problem.mask() };
        let step = queries_of_block.max(1);
        let blocks_of = |lengths @ [queries, keys]: [u32; 2]| match mask {
            Mask::FULL => {
                let blocks = f64::from(keys.div_ceil(row.block_n));
                (blocks, blocks)
            }
            Mask::CAUSAL => causal_blocks(queries, keys, step, row.block_n),
            _ => mask.steps(lengths, step, row.block_n),
        };
        let (mut mean, most) = blocks_of([seqlen_q, seqlen_k]);
        let usual = usual_lengths(problem);
        if usual != [seqlen_q, seqlen_k] {
            (mean, _) = blocks_of(usual);
        }
        let (tiles, blocks) = (tiling.tiles as f64, greater(mean, BLOCKS_LEAST));
        let block_mb = block_n * head_dim * 2.0 * f64::from(problem.dtype().bytes()) * 1e-6;
        // Packed sequences share no block.
        let rows_of_longest = u64::from(seqlen_q) * u64::from(tiling.packed_heads);
        let tile_rows = tiling.packed_rows.min(rows_of_longest).min(rows_of_block.into()) as f64;
        let (masked, is_ragged) = if problem.causal() {
            (1.0 + f64::from(queries_of_block) / block_n, false)
        } else {
            (0.0, !seqlen_k.is_multiple_of(row.block_n))
        };
        let merged_rows = if row.schedule.splits() { geometry::combine_rows(row).max(1) } else { 1 };
        Work {
            resident: f64::from(resident_ctas),
            tiles,
            ctas: tiles,
            masked,
            ragged: f64::from(u8::from(is_ragged)),
            tile_rows: tile_rows * head_dim / 8192.0,
            merge_rounds: ceil(tile_rows / f64::from(merged_rows)),
            filled: Filled {
                active: tiles,
                blocks,
                blocks_max: greater(most, 1.0),
                copied_mb: tiles * blocks * block_mb,
                ..self.filled
            },
            ..*self
        }
    }

    /// What depends on how full sequences are, of a launch whose keys are not split yet, where they are as full as this.
    pub(super) fn filled(&self, fill: Fill) -> Filled {
        let full = &self.filled;
        let blocks = greater(full.blocks * fill.mean, BLOCKS_LEAST);
        Filled {
            active: full.active,
            blocks,
            blocks_max: greater(ceil(full.blocks_max * fill.longest), 1.0),
            kv_mb: full.kv_mb * fill.mean,
            copied_mb: full.copied_mb / full.blocks * blocks,
            l2_share: self.l2_share(fill),
        }
    }

    /// Q, K, V and O, as a share of the L2 cache.
    pub(super) fn l2_share(&self, fill: Fill) -> f64 {
        (self.filled.kv_mb * fill.mean + self.qo_mb) / self.l2_mb
    }

    /// The same with the keys split, but for what depends on how full sequences are.
    pub(super) fn with_splits(&self, splitting: Splitting, merge: Merge) -> Work {
        if splitting.splits == 1 {
            return *self;
        }
        let splits = f64::from(splitting.splits);
        let partial_mb = self.partial_mb * splits;
        Work {
            ctas: self.tiles * splits,
            splits,
            l2_partial: partial_mb / self.l2_mb,
            merge,
            partial_mb,
            merge_width: self.merge_width * splits,
            ..*self
        }
    }
}

impl Filled {
    /// The same with the keys split.
    pub(super) fn with_splits(&self, splitting: Splitting) -> Filled {
        if splitting.splits == 1 {
            return *self;
        }
        let longest = self.longest(splitting);
        Filled {
            // No CTA has more than the longest.
            active: self.active * greater(self.splits_with_keys(splitting), self.blocks / longest),
            blocks: self.blocks / f64::from(splitting.splits),
            blocks_max: longest,
            ..*self
        }
    }

    /// Blocks of the CTA that has most, once the keys are split.
    pub(super) fn longest(&self, splitting: Splitting) -> f64 {
        if splitting.by_sequence {
            ceil(self.blocks_max / f64::from(splitting.splits))
        } else {
            lesser(self.blocks_max, f64::from(splitting.blocks))
        }
    }

    /// Splits of a tile that have keys, on average over tiles that see each number of blocks between the least and the most as often.
    fn splits_with_keys(&self, splitting: Splitting) -> f64 {
        let splits = f64::from(splitting.splits);
        let most = self.blocks_max;
        if self.blocks >= 0.999 * most {
            // None is empty where all have all keys.
            return if splitting.by_sequence { ceil(most / ceil(most / splits)) } else { splits };
        }
        // Of all numbers over `below` and up to `most`.
        let below = within(2.0 * self.blocks - most - 1.0, 0.0, most);
        let found = if splitting.by_sequence {
            (shares_up_to(most, splits) - shares_up_to(below, splits)) / (most - below)
        } else {
            let width = f64::from(splitting.blocks);
            (ranges_up_to(most / width) - ranges_up_to(below / width)) * width / (most - below)
        };
        within(found, 1e-3, splits)
    }
}

/// Queries and keys of the sequence that most blocks of queries are of: of packed ones between the mean and the longest.
fn usual_lengths(problem: &Problem) -> [u32; 2] {
    let Sizes { batch, seqlen_q, seqlen_k, .. } = *problem.sizes();
    let usual = |total: u32, longest: u32| (total / batch).midpoint(longest).max(1);
    let queries = match problem.queries() {
        QuerySequences::Packed { total } => usual(total, seqlen_q),
        QuerySequences::Batch => seqlen_q,
    };
    let keys = match problem.keys() {
        KeySequences::Packed { total } => usual(total, seqlen_k),
        KeySequences::Batch | KeySequences::Paged(_) => seqlen_k,
    };
    [queries, keys]
}

/// The integral of ⌈x⌉ from 0: ranges of equally many blocks that a tile of x times as many reaches.
fn ranges_up_to(x: f64) -> f64 {
    let whole = floor(x);
    whole * (whole + 1.0) * 0.5 + (x - whole) * (whole + 1.0)
}

/// The integral over the blocks of a tile, from 0, of its shares that are not empty: a share has ⌈blocks / splits⌉ of them.
fn shares_up_to(blocks: f64, splits: f64) -> f64 {
    /// Longer shares leave so little over that all are taken for nearly full.
    const LONG: u32 = 4;
    let each = (0..LONG).map(|shorter| {
        let (length, shorter) = (f64::from(shorter + 1), f64::from(shorter));
        let (from, to) = (lesser(shorter * splits, blocks), lesser(length * splits, blocks));
        // Half a share more where the last is not full.
        let rounding = if shorter == 0.0 { 0.5 } else { 0.5 * shorter / length };
        (to * to - from * from) * 0.5 / length + rounding * (to - from)
    });
    each.sum::<f64>() + greater(blocks - f64::from(LONG) * splits, 0.0) * splits * 0.9
}

/// Blocks of keys that a block of queries sees under the causal mask: on average over a head's, and at most. Each block of queries sees
/// `step` keys more than the one before.
fn causal_blocks(seqlen_q: u32, seqlen_k: u32, step: u32, block_n: u32) -> (f64, f64) {
    let query_blocks = seqlen_q.div_ceil(step);
    let (step_f, width) = (f64::from(step), f64::from(block_n));
    let most = f64::from(seqlen_k.div_ceil(block_n));
    // Keys that the block with index i sees: first + i · step, but for the last, which sees all.
    let first = i64::from(seqlen_k) - i64::from(seqlen_q) + i64::from(step);
    let hidden = if first > 0 { 0 } else { ((-first) as u64 / u64::from(step) + 1) as u32 };
    let between = f64::from((query_blocks - 1).saturating_sub(hidden));
    if between == 0.0 {
        return (most / f64::from(query_blocks), most);
    }
    let seen_first = first as f64 + f64::from(hidden) * step_f;
    let seen_mean = seen_first + (between - 1.0) * 0.5 * step_f;
    // By how much rounding up to whole blocks adds: the keys seen run through every residue that step and block_n leave.
    let common = gcd(step, block_n);
    let residue = (-(seen_first as i64)).rem_euclid(i64::from(common)) as f64;
    let rounding = (f64::from(block_n - common) * 0.5 + residue) / width;
    ((between * (seen_mean / width + rounding) + most) / f64::from(query_blocks), most)
}

/// The greatest common divisor.
pub(super) const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causal_blocks_are_those_that_counting_finds() {
        for (q, k) in
            [(1, 1), (64, 64), (128, 1000), (1000, 1000), (4096, 4096), (300, 257), (999, 128), (17, 40)]
        {
            for (step, block_n) in [(64, 64), (128, 64), (64, 128), (32, 128), (192, 112), (16, 64), (5, 64)]
            {
                let query_blocks = u32::div_ceil(q, step);
                let counted: Vec<u32> = (0..query_blocks)
                    .map(|i| {
                        let last = i64::from(u32::min(q, (i + 1) * step)) - i64::from(q) + i64::from(k);
                        (last.max(0) as u32).div_ceil(block_n)
                    })
                    .collect();
                let mean = counted.iter().sum::<u32>() as f64 / f64::from(query_blocks);
                let (found, most) = causal_blocks(q, k, step, block_n);
                assert_eq!(most, f64::from(*counted.iter().max().expect("one")), "{q} {k} {step} {block_n}");
                assert!((found - mean).abs() <= 0.35, "{q} {k} {step} {block_n}: {found} for {mean}");
                if step % block_n == 0 {
                    assert!((found - mean).abs() < 1e-9, "{q} {k} {step} {block_n}: {found} for {mean}");
                }
            }
        }
    }
}
