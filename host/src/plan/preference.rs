//! What was measured, in one place: which row for which grid, and the numbers that decide about splits.

use super::group::Candidate;
use crate::device::DeviceInfo;
use crate::problem::Problem;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::row::{Isa, Row, Schedule};

/// Tiles fill the device from this share of a wave on, and several waves if the last one is as full: splitting the keys gains nothing
/// there. As FlashAttention-3's `heuristics.h`; 512 tiles on an H200, 1.94 waves, take 239 µs at 64,32/8,1,4096,128, and 271 with 22
/// splits.
pub(super) const FILLED_SHARE: f64 = 0.8;
/// From so many waves on it does not matter how full the last one is, and more are never made.
pub(super) const WAVES_MANY: f64 = 4.0;
/// The fewest splits are taken whose waves are this well filled, compared with the best number. FlashAttention-3's `heuristics.h`
/// has 0.85; on an H200 31 splits instead of 32 cost 3 % where memory bounds the time and 4 % where products do.
pub(super) const EFFICIENCY_SHARE: f64 = 0.99;
/// Up to so many blocks of keys nothing is split: a split's fixed cost is that of some blocks. As FlashAttention-3's `heuristics.h`.
pub(super) const UNSPLIT_KEY_BLOCKS: u32 = 4;
/// Blocks of keys that a split has at least: each CTA reads Q and writes a partial O, and the combine kernel reads them all, however
/// few keys they stand for. 1,8/1,1,32768,128 takes 10.0 µs with 128 splits on an H200, 12.9 with 256.
pub(super) const SPLIT_BLOCKS_LEAST: u32 = 4;
/// CTAs an SM that are enough to read at the memory's bandwidth. More splits cost the combine kernel, fewer leave loads unissued:
/// 8,32/8,1,8192,128 takes 67.1 µs with 256 CTAs on an H200, 67.6 with 384, 68.7 with 192.
pub(super) const CTAS_TO_READ: u32 = 2;
/// Splitting must be estimated to take no more than this share of the time: the other row was measured, the estimate was not.
pub(super) const SPLIT_GAIN: f64 = 0.9;

/// Query rows that an SM must have in flight to be busy: with fewer, a step over keys takes as long as with so many.
pub(super) const BUSY_ROWS: u32 = 128;
/// What a CTA costs beside its keys (its start, Q, the epilogue), in keys.
pub(super) const CTA_KEYS: f64 = 64.0;
/// What a second kernel costs (its launch, the partial O and LSE), in query rows × keys × elements of head_dim on one SM: about 3 µs.
pub(super) const COMBINE_COST: f64 = 3.5e6;
/// Up to so many bytes of partial O a tile, the CTA of it that finishes last merges its splits; above, the combine kernel does, which
/// spreads rows over the device. On an H200 one launch takes 0.96 of the time of two with 1 KB (4,16,1,4096,64) and with 2 KB
/// (2,16,1,8192,64), 0.98 with 3 KB (1,32,1,8192,96), 1.005 with 8 KB (8,32/8,1,8192,128), 1.03 with 64 KB (1,32/8,1,32768,128) and
/// twice as long with 1 MB. The host's time for a call is 3.3 µs with one launch and 6.9 with two: `--combine fused` asks for one where
/// that counts more.
pub(super) const FUSED_PARTIAL_BYTES: u64 = 4096;
/// What a kernel with wgmma takes of the time of one without, where both are busy: 1,16,16384,128 takes 3731 µs on an H200, 6449 without.
pub(super) const WGMMA_TIME: f64 = 0.6;
/// Query rows that share a KV head from which on kernels with wgmma split the keys, where there are such: their blocks have 64 rows at least,
/// and with fewer reading K and V is what takes the time.
pub(super) const WGMMA_SPLIT_ROWS: u64 = 64;

/// The mask that a line of [`BEST`] was measured with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mask {
    Any,
    Full,
    Causal,
}

/// A measured preference: on these architectures, for this head_dim and mask, this row, once its own tiles are so many an SM and
/// the keys so many.
#[derive(Debug)]
pub(super) struct Best {
    /// First and last compute capability, 80 and 89 for Ampere and Ada.
    pub(super) sm: (u32, u32),
    pub(super) isa: Isa,
    pub(super) head_dim: u32,
    pub(super) mask: Mask,
    /// The least tiles an SM that the row must have.
    pub(super) tiles_per_sm: f64,
    /// The least keys.
    pub(super) keys: u32,
    /// The row, by what stands in its name behind head_dim: `m128n64_w4s2c1`.
    pub(super) tile: &'static str,
}

const fn best(
    sm: (u32, u32),
    head_dim: u32,
    mask: Mask,
    tiles_per_sm: f64,
    keys: u32,
    tile: &'static str,
) -> Best {
    Best { sm, isa: Isa::Mma, head_dim, mask, tiles_per_sm, keys, tile }
}

/// A line for a row with wgmma, which compute capability 9.0 alone runs.
const fn wgmma(head_dim: u32, mask: Mask, tiles_per_sm: f64, keys: u32, tile: &'static str) -> Best {
    Best { sm: (90, 90), isa: Isa::Wgmma, head_dim, mask, tiles_per_sm, keys, tile }
}

/// Fitted to an H200's times of 27 rows over 20 shapes of 128 to 16384 keys, both masks, f16: on average within 3 % of the best row
/// of each shape.
///
/// Other architectures take the same lines, but for sm_86 and sm_89 at head_dim 128. Their SMs have 100 KB of shared memory:
/// 128×64 takes 64 KB, one CTA of four warps, while 128×32 and 64×64 take 48 KB, two CTAs. Published tables disagree
/// there: FlashAttention-2 takes 128×32, and 64×64 under a causal mask; FlashAttention-3 takes 128×128 with eight warps and Q in
/// registers. The former is taken, as the latter needs 96 KB for one CTA and reads K and V from shared memory twice as often a
/// FLOP (16 query rows a warp instead of 32).
///
/// The first line that fits is taken, so within an architecture and head_dim the rows of large grids stand before those of
/// small ones. Both dtypes share a line. Where no line fits, or its kernel was not compiled, the planner's fallback chooses.
///
/// Lines of rows with wgmma are fitted to the times of 30 rows over 55 shapes of 256 to 16384 keys on an H200, both masks, f16, and
/// again, with rows that came later, at head_dim 64 to those of the eight best over 25 shapes and at 96 to those of three over 10. They
/// stand first: where they fit they are taken, and the others are for the rest, which is all that other devices have.
pub(super) const BEST: &[Best] = &[
    //   head_dim mask    tiles/SM keys  tile
    wgmma(64, Mask::Full, 2.0, 0, "m192n128_w16s2c1_persistent"),
    wgmma(64, Mask::Causal, 4.0, 2048, "m192n128_w16s2c1_persistent"),
    wgmma(64, Mask::Causal, 2.0, 2048, "m64n128_w8s2c2_persistent"),
    wgmma(64, Mask::Causal, 6.0, 1024, "m64n64_w8s2c3_persistent"),
    wgmma(64, Mask::Causal, 2.0, 1024, "m64n128_w8s2c2_persistent"),
    wgmma(64, Mask::Causal, 3.5, 0, "m64n64_w8s2c3_persistent"),
    wgmma(64, Mask::Any, 2.0, 0, "m64n128_w8s2c2_persistent"),
    wgmma(64, Mask::Any, 1.1, 0, "m64n128_w8s2c2"),
    wgmma(64, Mask::Any, 0.0, 256, "m64n128_w12s4c1"),
    wgmma(96, Mask::Full, 8.0, 2048, "m192n112_w16s2c1_persistent"),
    wgmma(96, Mask::Causal, 8.0, 4096, "m192n112_w16s2c1_persistent"),
    wgmma(96, Mask::Any, 0.9, 0, "m128n128_w12s2c1_persistent"),
    wgmma(96, Mask::Any, 0.0, 256, "m64n128_w12s2c1"),
    wgmma(128, Mask::Any, 0.9, 0, "m128n128_w12s2c1_persistent"),
    wgmma(128, Mask::Any, 0.0, 256, "m64n64_w12s4c1"),
    wgmma(256, Mask::Any, 0.9, 0, "m128n64_w12s2c1_persistent"),
    wgmma(256, Mask::Any, 0.0, 256, "m64n64_w8s2c1"),
    // sm       head_dim mask    tiles/SM keys  tile
    best((80, 999), 32, Mask::Any, 15.0, 0, "m128n64_w4s2c1"),
    best((80, 999), 32, Mask::Causal, 4.5, 0, "m64n64_w4s2c1"),
    best((80, 999), 32, Mask::Causal, 0.0, 4096, "m32n128_w4s2c1"),
    best((80, 999), 32, Mask::Any, 1.5, 0, "m64n64_w4s2c1"),
    best((80, 999), 32, Mask::Any, 0.0, 0, "m32n128_w4s2c1"),
    best((80, 999), 64, Mask::Full, 1.5, 0, "m128n64_w4s2c1"),
    best((80, 999), 64, Mask::Full, 1.5, 0, "m64n64_w4s1c1"),
    best((80, 999), 64, Mask::Full, 2.5, 0, "m32n128_w4s2c1"),
    best((80, 999), 64, Mask::Full, 0.9, 0, "m64n128_w4s2c1"),
    best((80, 999), 64, Mask::Causal, 3.5, 1024, "m128n64_w4s2c1"),
    best((90, 999), 64, Mask::Causal, 3.5, 2048, "m64n128_w4r32s2c1"),
    best((80, 999), 64, Mask::Causal, 1.9, 1024, "m128n64_w4s2c1"),
    best((80, 999), 64, Mask::Causal, 1.2, 0, "m64n64_w4s1c1"),
    best((80, 999), 64, Mask::Any, 0.0, 0, "m32n128_w4s2c1"),
    best((80, 999), 96, Mask::Any, 1.5, 0, "m128n64_w4s1c1"),
    best((80, 999), 96, Mask::Full, 0.6, 0, "m64n64_w4s1c1"),
    best((80, 999), 96, Mask::Causal, 1.2, 0, "m64n64_w4s1c1"),
    best((80, 999), 96, Mask::Any, 0.0, 0, "m32n128_w4s1c1"),
    best((86, 89), 128, Mask::Full, 1.5, 0, "m128n32_w4s1c1"),
    best((86, 89), 128, Mask::Any, 0.6, 0, "m64n64_w4s1c1"),
    best((80, 999), 128, Mask::Full, 1.5, 0, "m128n64_w4s1c1"),
    best((80, 999), 128, Mask::Full, 0.6, 0, "m64n64_w4s1c1"),
    best((80, 999), 128, Mask::Causal, 2.1, 0, "m128n64_w4s1c1"),
    best((80, 999), 128, Mask::Causal, 1.2, 0, "m64n64_w4s1c1"),
    best((80, 999), 128, Mask::Any, 0.0, 0, "m32n128_w4s1c1"),
    best((80, 999), 256, Mask::Full, 0.6, 0, "m64n64_w4s1c1"),
    best((80, 999), 256, Mask::Causal, 1.5, 0, "m64n64_w4s1c1"),
    best((80, 999), 256, Mask::Any, 0.0, 0, "m32n64_w4s1c1"),
];

/// The share of L2 that K and V of the heads that are worked on together may take.
const L2_SHARE: f64 = 0.75;

/// Heads whose query blocks a grid takes in turns: all of them under a causal mask, so that the longest blocks of all heads start
/// first and the end is made of short ones. 10 to 25 % on an H200; full masks do not care.
///
/// With wgmma, CTAs that work on one tile after another are fast enough for memory to bound the time: there, only as many heads as
/// have K and V in L2 together. 32,16,512,128 takes 99.7 µs on an H200 with 64 heads together (17 MB), 117.4 with all 512; 1,16,16384,128
/// takes 1800 µs with 4 (33 MB), 1980 with 1, 1823 with all.
pub(super) fn heads_together(problem: &Problem, row: &Row, device: &DeviceInfo, heads: u32) -> u32 {
    if !problem.causal() {
        return 1;
    }
    if (row.isa, row.schedule) != (Isa::Wgmma, Schedule::Persistent) {
        return heads;
    }
    let sizes = problem.sizes();
    let kv_bytes = 2.0 * f64::from(sizes.seqlen_k) * f64::from(sizes.head_dim * row.dtype.bytes());
    let kv_heads = L2_SHARE * device.l2_bytes as f64 / kv_bytes;
    ((kv_heads as u32).max(1).saturating_mul(problem.group())).min(heads)
}

/// Query blocks of a head that are taken last, in ascending order: half of them under a causal mask where the device holds the whole
/// grid at once, two CTAs an SM, so that a short block lies beside each long one. 7 to 23 % on an H200.
pub(super) fn ascending_blocks(
    problem: &Problem,
    candidate: &Candidate,
    device: &DeviceInfo,
    tiles: u64,
    query_blocks: u32,
) -> u32 {
    let sms = u64::from(device.sm_count);
    let two_an_sm = tiles > sms && tiles <= sms * u64::from(candidate.resident_ctas.min(2));
    if problem.causal() && two_an_sm { query_blocks / 2 } else { 0 }
}

impl Best {
    /// Whether this is the line of a kernel.
    pub(super) fn names(&self, kernel: &Kernel) -> bool {
        (kernel.row.isa, kernel.row.head_dim) == (self.isa, self.head_dim) && tile_name(kernel) == self.tile
    }
}

impl Mask {
    pub(super) fn fits(self, causal: bool) -> bool {
        match self {
            Mask::Any => true,
            Mask::Full => !causal,
            Mask::Causal => causal,
        }
    }
}

/// What stands in a kernel's name behind isa, dtype and head_dim.
pub(super) fn tile_name(kernel: &Kernel) -> &str {
    let before = match kernel.row.isa {
        Isa::Mma => 3,
        Isa::Wgmma => 4,
    };
    kernel.entry.splitn(before + 1, '_').nth(before).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::row::{Accumulation, HEAD_DIMS};
    use std::sync::Arc;

    #[test]
    fn lines_with_wgmma_stand_before_those_for_every_device() {
        let first_other = BEST.iter().position(|best| best.isa == Isa::Mma).expect("a line");
        assert!(BEST[first_other..].iter().all(|best| best.isa == Isa::Mma));
    }

    #[test]
    fn every_line_names_a_row_of_the_table_in_both_dtypes() {
        let (kernels, _) = crate::module::kernels_of_table();
        let named = |best: &Best| {
            let is_it = |kernel: &&Arc<Kernel>| best.names(kernel);
            kernels.iter().filter(is_it).map(|kernel| kernel.row).collect::<Vec<_>>()
        };
        for best in BEST {
            let rows = named(best);
            assert_eq!(rows.len(), 2, "{best:?}");
            assert!(rows.iter().all(|row| row.schedule != Schedule::Split && row.acc == Accumulation::F32));
        }
        for head_dim in HEAD_DIMS {
            let last = BEST.iter().rfind(|best| best.head_dim == head_dim).expect("a line");
            assert_eq!(
                (last.tiles_per_sm, last.keys, last.mask),
                (0.0, 0, Mask::Any),
                "the last line takes what is left"
            );
        }
    }
}
