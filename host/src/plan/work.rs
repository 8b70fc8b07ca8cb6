//! What a plan has to do, counted: CTAs, blocks of keys, bytes, what is merged. The cost model turns it into time.

use super::splitting::Splitting;
use crate::device::DeviceInfo;
use crate::problem::{Extent, Mask, Problem, QuerySequences, TensorRole};
use kernels_gpu::geometry;
use kernels_gpu::row::Row;

/// Where the partial results of several splits are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// There is one split.
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Multiprocessors.
    pub sms: f64,
    /// CTAs that one holds at a time.
    pub resident: f64,
    /// Blocks of query rows of all heads.
    pub tiles: f64,
    /// Tiles × splits.
    pub ctas: f64,
    /// Those of them that have keys: a split of a short sequence, or of queries that see few keys, may have none.
    pub active: f64,
    /// Ranges of keys.
    pub splits: f64,
    /// Blocks of keys of a CTA, on average.
    pub blocks: f64,
    /// Blocks of keys of the CTA that has most.
    pub blocks_max: f64,
    /// Blocks of a tile that a causal mask cuts.
    pub masked: f64,
    /// Whether the last block of keys is not full, without a causal mask: 0 or 1.
    pub ragged: f64,
    /// Query rows of a tile × head_dim, in units of 8192 elements.
    pub tile_rows: f64,
    /// K and V of all heads once, in MB.
    pub kv_mb: f64,
    /// Q and O, in MB.
    pub qo_mb: f64,
    /// What all CTAs copy of K and V, in MB.
    pub copied_mb: f64,
    /// The L2 cache, in MB.
    pub l2_mb: f64,
    /// Q, K, V and O, as a share of the L2 cache.
    pub l2_share: f64,
    /// Partial O and LSE, as a share of the L2 cache.
    pub l2_partial: f64,
    /// 1 where rows of neighbouring heads alternate in memory, else 0.
    pub interleaved: f64,
    /// 1 where sequences have lengths on the device, else 0.
    pub lengths: f64,
    /// Where splits are merged.
    pub merge: Merge,
    /// Partial O and LSE, in MB.
    pub partial_mb: f64,
    /// Rows that are merged, per multiprocessor and eight CTAs of the merging kernel on it.
    pub merge_waves: f64,
    /// Groups of rows that the last CTA of a tile merges one after the other.
    pub merge_rounds: f64,
    /// Splits × head_dim, in units of 256 elements.
    pub merge_width: f64,
}

/// CTAs of the merging kernel that a multiprocessor holds: 256 threads each.
const MERGE_CTAS: f64 = 8.0;

impl Fill {
    /// Every sequence has all keys.
    pub const FULL: Fill = Fill { mean: 1.0, longest: 1.0 };

    /// What may be expected of lengths that nobody knows when the plan is made: that sequences fill the room that was made for them, or
    /// that each length is as likely as any other. The more sequences there are, the nearer to a half they are filled on average.
    pub fn expected(problem: &Problem) -> (Fill, Option<[Fill; 3]>) {
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
        (Fill::FULL, problem.has_lengths().then(|| PARTS.map(fill)))
    }
}

impl Work {
    /// The counts of a row's kernel without splits for a problem, on a device that holds so many CTAs of it on a multiprocessor.
    pub(super) fn new(
        problem: &Problem,
        row: &Row,
        (device, resident_ctas): (&DeviceInfo, u32),
        fill: Fill,
    ) -> Work {
        let (sizes, group) = (problem.sizes(), problem.group());
        let head_dim = f64::from(sizes.head_dim);
        let packed = geometry::packed_heads(row, group);
        let rows_of_block = geometry::rows_of_block(row, group).max(1);
        // Sizes past what a plan takes are counted too; it refuses them.
        let queries = problem.extent(TensorRole::Q);
        let packed_rows = u64::from(queries.rows) * u64::from(packed);
        let heads = f64::from(queries.batch) * f64::from(sizes.heads_q / packed);
        let tiles = heads * query_blocks(problem, row) as f64;
        let key_blocks = key_blocks(problem, row);
        let (mean, most) = if problem.mask() == Mask::CAUSAL {
            causal_blocks(sizes.seqlen_q, sizes.seqlen_k, (rows_of_block / packed).max(1), row.block_n)
        } else {
            (f64::from(key_blocks), f64::from(key_blocks))
        };
        let mean = (mean * fill.mean).max(0.3);
        let blocks_max = (most * fill.longest).ceil().max(1.0);
        let bytes = f64::from(problem.dtype().bytes());
        let mb = |role| problem.elements(role) as f64 * bytes * 1e-6;
        // Of a pool of pages no more than sequences may have.
        let held = f64::from(sizes.batch) * f64::from(sizes.seqlen_k);
        let in_pool = |role| {
            let Extent { batch, rows, .. } = problem.extent(role);
            f64::from(batch) * f64::from(rows)
        };
        let read_mb = |role| mb(role) * (held / in_pool(role)).min(1.0);
        let kv_mb = (read_mb(TensorRole::K) + read_mb(TensorRole::V)) * fill.mean;
        let qo_mb = mb(TensorRole::Q) + mb(TensorRole::O);
        let rows = problem.lse_len() as f64;
        let tile_rows = packed_rows.min(rows_of_block.into()) as f64;
        let sms = f64::from(device.sm_count.max(1));
        let l2_mb = device.l2_bytes.max(1) as f64 * 1e-6;
        let key_stride = problem.strides(TensorRole::K).row;
        Work {
            sms,
            resident: f64::from(resident_ctas),
            tiles,
            ctas: tiles,
            active: tiles,
            splits: 1.0,
            blocks: mean,
            blocks_max,
            masked: if problem.causal() {
                1.0 + f64::from(rows_of_block / packed) / f64::from(row.block_n)
            } else {
                0.0
            },
            ragged: f64::from(u8::from(!problem.causal() && !sizes.seqlen_k.is_multiple_of(row.block_n))),
            tile_rows: tile_rows * head_dim / 8192.0,
            kv_mb,
            qo_mb,
            copied_mb: tiles * mean * f64::from(row.block_n) * head_dim * 2.0 * bytes * 1e-6,
            l2_share: (kv_mb + qo_mb) / l2_mb,
            l2_mb,
            l2_partial: 0.0,
            interleaved: f64::from(u8::from(sizes.heads_kv > 1 && key_stride > i64::from(sizes.head_dim))),
            lengths: f64::from(u8::from(problem.has_lengths())),
            merge: Merge::Nothing,
            partial_mb: rows * (head_dim + 1.0) * 4e-6,
            merge_waves: rows / (sms * MERGE_CTAS),
            merge_rounds: (tile_rows / f64::from(geometry::combine_rows(row).max(1))).ceil(),
            merge_width: head_dim / 256.0,
        }
    }

    /// The same with the keys split.
    pub(super) fn with_splits(self, splitting: Splitting, merge: Merge) -> Work {
        let splits = f64::from(splitting.splits);
        let longest = if splitting.by_sequence {
            (self.blocks_max / splits).ceil()
        } else {
            self.blocks_max.min(f64::from(splitting.blocks))
        };
        let partial_mb = self.partial_mb * splits;
        Work {
            ctas: self.tiles * splits,
            // No CTA has more than the longest.
            active: self.tiles * self.splits_with_keys(splitting).max(self.blocks / longest),
            splits,
            blocks: self.blocks / splits,
            blocks_max: longest,
            l2_partial: partial_mb / self.l2_mb,
            merge,
            partial_mb,
            merge_width: self.merge_width * splits,
            ..self
        }
    }

    /// Splits of a tile that have keys, on average over tiles that see each number of blocks between the least and the most as often.
    fn splits_with_keys(&self, splitting: Splitting) -> f64 {
        let splits = f64::from(splitting.splits);
        let most = self.blocks_max;
        if self.blocks >= 0.999 * most {
            // None is empty where all have all keys.
            return if splitting.by_sequence { (most / (most / splits).ceil()).ceil() } else { splits };
        }
        let least = (2.0 * self.blocks - most).clamp(0.0, most);
        // Of all numbers over `below` and up to `most`.
        let below = (least - 1.0).max(0.0);
        let found = if splitting.by_sequence {
            (shares_up_to(most, splits) - shares_up_to(below, splits)) / (most - below)
        } else {
            let width = f64::from(splitting.blocks);
            (ranges_up_to(most / width) - ranges_up_to(below / width)) * width / (most - below)
        };
        found.clamp(1e-3, splits)
    }
}

/// The integral of ⌈x⌉ from 0: ranges of equally many blocks that a tile of x times as many reaches.
fn ranges_up_to(x: f64) -> f64 {
    let whole = x.floor();
    whole * (whole + 1.0) * 0.5 + (x - whole) * (whole + 1.0)
}

/// The integral over the blocks of a tile, from 0, of its shares that are not empty: a share has ⌈blocks / splits⌉ of them.
fn shares_up_to(blocks: f64, splits: f64) -> f64 {
    /// Longer shares leave so little over that all are taken for nearly full.
    const LONG: u32 = 4;
    let each = (0..LONG).map(|shorter| {
        let (length, shorter) = (f64::from(shorter + 1), f64::from(shorter));
        let (from, to) = ((shorter * splits).min(blocks), (length * splits).min(blocks));
        // Half a share more where the last is not full.
        let rounding = if shorter == 0.0 { 0.5 } else { 0.5 * shorter / length };
        (to * to - from * from) * 0.5 / length + rounding * (to - from)
    });
    each.sum::<f64>() + (blocks - f64::from(LONG) * splits).max(0.0) * splits * 0.9
}

/// Blocks of query rows of one head, or of all heads of a KV head where rows are packed: of all sequences where those are packed, each of
/// which may leave one unused.
pub(super) fn query_blocks(problem: &Problem, row: &Row) -> u64 {
    let group = problem.group();
    let rows = u64::from(problem.extent(TensorRole::Q).rows) * u64::from(geometry::packed_heads(row, group));
    let block = u64::from(geometry::rows_of_block(row, group).max(1));
    match problem.queries() {
        QuerySequences::Batch => rows.div_ceil(block),
        QuerySequences::Packed { .. } => rows / block + u64::from(problem.sizes().batch),
    }
}

/// Blocks of query rows of all heads and batch entries.
pub(super) fn tiles(problem: &Problem, row: &Row) -> u64 {
    let heads = problem.sizes().heads_q / geometry::packed_heads(row, problem.group());
    u64::from(problem.extent(TensorRole::Q).batch) * u64::from(heads) * query_blocks(problem, row)
}

/// The most blocks of keys that a block of query rows sees.
pub(super) fn key_blocks(problem: &Problem, row: &Row) -> u32 {
    let group = geometry::packed_heads(row, problem.group());
    // Packed rows of one query more than whole ones fill.
    let queries = geometry::rows_of_block(row, problem.group()) / group.max(1) + 1;
    problem.mask().steps_most(problem.sizes().seqlen_k, queries.min(problem.sizes().seqlen_q), row.block_n)
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
