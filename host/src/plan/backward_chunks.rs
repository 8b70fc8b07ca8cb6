//! How a backward pass that keeps dS in memory is divided into chunks of some KV heads each, so that dS fits a limit: chunks are two launches
//! each, or follow each other in one.

use super::backward::blocks;
use super::backward_choice::ctas_at_once;
use super::largest_divisor;
use crate::backward::Backward;
use crate::device::DeviceInfo;
use crate::problem::{KeySequences, Problem, QuerySequences, Sizes, TensorRole};
use kernels_gpu::backward::order::Order;
use kernels_gpu::backward::row::{BackwardRow, Pass};
use kernels_gpu::backward::spill::{DS_KEYS, DS_QUERIES, QUERIES_STEP, ds_bytes};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::manifest::Kernel;

/// What stands before dS starts at a multiple of this.
const ALIGNMENT: u64 = 128;

/// The chunks of a pass, all of as many KV heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Chunks.
    pub(super) count: u32,
    /// KV heads of a chunk, of all batch entries.
    pub(super) heads_kv: u32,
    /// Groups of 8 queries of dS that a query head has room for, those of all its blocks of keys.
    pub(super) groups: u32,
    /// Chunks that dS has room for.
    pub(super) slots: u32,
    /// In one launch, how many chunks of dK and dV are ahead of dQ; 0 where each chunk is launched by itself.
    pub(super) lag: u32,
    /// Whether CTAs of one launch hardly wait for each other: chunks are many and small, and dS has room for as many as that takes.
    pub(super) is_roomy: bool,
    /// Bytes of dS.
    pub(super) bytes: u64,
    /// Bytes of where pieces start.
    starts_bytes: u64,
}

/// Rounds of CTAs of dK and dV, in eighths, that dQ follows behind in the same launch: with less than one CTAs of dQ wait, and took 1 to 6 % longer
/// on an H200 in 30 problems.
const LAG_EIGHTHS: u32 = 16;
/// How long a CTA of dQ takes to one of dK and dV. Estimated from the clocks of a step, not measured.
const OF_QUERIES_EIGHTHS: u32 = 5;
/// How many times as many keys as queries a CTA of dQ is reckoned to have at most: it has a step a block of keys, and one of dK and dV a step a block
/// of queries.
const KEYS_A_QUERY_MAX: u32 = 1 << 12;
/// With fewer rounds of CTAs of dK and dV than this, all of them come first, where dS has room: the last of them are not to wait for SMs that compute
/// dQ, and dQ of the first chunks fills the last round. The narrower a head, the more dQ by itself is limited by memory, and the better it is mixed
/// with what is not (docs/notes/backward.md).
const fn rounds_to_mix(head_dim: u32) -> u32 {
    if head_dim <= 64 { 3 } else { 6 }
}
/// Rounds of CTAs from which on a chunk's dS is taken to be complete when CTAs of dQ ask for it. Packed sequences on an H200, bf16, head_dim 128:
/// chunks of 3.7 rounds in one launch took 0.94 of the time of four pairs of launches under a causal mask and 0.99 without, chunks of 3.5 rounds
/// 1.04 and 1.01 of the time of one pair.
const ROUNDS_IN_TIME: u32 = 3;
/// Heads that are taken in turns have half a round of blocks of keys: with whole ones 1024 and 2048 tokens took 10 % longer. With fewer rounds than
/// this in all they have a whole one, as halves leave SMs idle at the end.
const ROUNDS_TO_HALVE: u32 = 3;

impl Chunks {
    /// The chunks of a pass whose dS the kernel `keys` writes, with `query_splits` CTAs a block of keys, within [`Backward::ds_bytes_max`]. None where
    /// too few heads fit, or of queries and keys only one are packed.
    pub(super) fn new(
        backward: &Backward,
        keys: &Kernel<BackwardRow>,
        query_splits: u32,
        device: &DeviceInfo,
    ) -> Option<Chunks> {
        let problem = backward.problem();
        let is_packed = is_packed(problem)?;
        let extent = problem.extent(TensorRole::K);
        let heads = extent.batch.checked_mul(extent.heads)?;
        let key_blocks = blocks(extent.rows, keys.row.block_n, is_packed.then_some(problem.sizes().batch));
        let groups = u32::try_from(queries_kept(problem, keys.row.block_m)? / 8).ok()?;
        let of_head = u64::from(groups).checked_mul((problem.group() * QUERIES_STEP).into())?;
        let (at_once, key_ctas) = (ctas_at_once(keys, device), key_blocks.saturating_mul(query_splits));
        let room = u32::try_from(backward.ds_bytes_max() / of_head.max(1)).unwrap_or(u32::MAX);
        let (heads_kv, slots, lag, is_roomy) = if keys.row.pass == Pass::DqDkv {
            let is_descending = problem.causal() && !is_packed;
            let &Sizes { seqlen_q, seqlen_k, .. } = problem.sizes();
            let keys_a_query = seqlen_k.div_ceil(seqlen_q.max(1)).clamp(1, KEYS_A_QUERY_MAX);
            let ctas = (key_ctas, at_once, OF_QUERIES_EIGHTHS * keys_a_query);
            let to_mix = rounds_to_mix(keys.row.head_dim);
            in_one_launch((heads, is_descending), room, ctas, to_mix, backward.ds_order())?
        } else {
            (apart(heads, room, (key_ctas, at_once))?, 1, 0, true)
        };
        let starts_bytes = (u64::from(extent.batch) * u64::from(key_blocks) * 4).next_multiple_of(ALIGNMENT);
        let bytes = u64::from(slots * heads_kv) * of_head;
        let count = heads / heads_kv;
        Some(Chunks { count, heads_kv, groups, slots, lag, is_roomy, bytes, starts_bytes })
    }

    /// Bytes that a pass keeps in its workspace: where pieces start, counters of a launch, zeros, and dS.
    pub(super) fn workspace_bytes(&self) -> u64 {
        self.ds_offset() + self.bytes
    }

    /// Pairs of launches, or 1 where one launch computes all chunks.
    pub(super) fn launches(&self) -> u32 {
        if self.lag > 0 { 1 } else { self.count }
    }

    /// KV heads of which dS is kept at a time.
    pub(super) fn heads_kept(&self) -> u32 {
        self.slots * self.heads_kv
    }

    /// Where the counters of a launch of all chunks lie behind where pieces start.
    pub(super) fn counters_offset(&self) -> Option<u64> {
        (self.lag > 0).then_some(self.starts_bytes)
    }

    /// Where dS starts behind where pieces start.
    pub(super) fn ds_offset(&self) -> u64 {
        let counters = if self.lag > 0 { (1 + 2 * u64::from(self.count)) * 4 } else { 0 };
        self.starts_bytes + counters.next_multiple_of(ALIGNMENT) + u64::from(ds_bytes(DS_QUERIES))
    }

    /// The order of the CTAs of a launch of all chunks, with CTAs of keys of a KV head, and of queries of all query heads of it.
    pub(super) fn order(&self, key_ctas: u32, query_blocks: u32) -> Order {
        if self.lag == 0 {
            return Order::default();
        }
        let [keys, queries] = [key_ctas, query_blocks].map(|of| Divisor::new(self.heads_kv * of));
        Order { keys, queries, chunks: self.count, lag: self.lag, slots: self.slots }
    }
}

/// KV heads of a chunk that is launched by itself: those with the fewest rounds of CTAs, of equals the most.
fn apart(heads: u32, room: u32, (key_ctas, at_once): (u32, u32)) -> Option<u32> {
    let rounds = |of: u32| {
        let ctas = u64::from(of) * u64::from(key_ctas);
        u64::from(heads / of) * ctas.div_ceil(u64::from(at_once))
    };
    (1..=room.min(heads)).rev().filter(|&of| heads.is_multiple_of(of)).min_by_key(|&of| rounds(of))
}

/// KV heads of a chunk, room for how many chunks, how many dK and dV are ahead of dQ, and whether CTAs hardly wait for each other, where one launch
/// computes all. With blocks of unlike lengths, longest first, heads of a chunk are taken in turns; else the smaller a chunk the sooner dQ can
/// follow. dQ of a chunk comes when the SMs that compute dK and dV have been through as many CTAs as run at once, so that dS is complete, and dS
/// is overwritten when dQ is likely to be. None where there is no room for two chunks of several.
fn in_one_launch(
    (heads, is_descending): (u32, bool),
    room: u32,
    (key_ctas, at_once, of_queries_eighths): (u32, u32, u32),
    rounds_to_mix: u32,
    order: Option<[u32; 2]>,
) -> Option<(u32, u32, u32, bool)> {
    let key_ctas = key_ctas.max(1);
    let is_shorter_than = |rounds: u32| heads.saturating_mul(key_ctas) < rounds * at_once;
    let are_keys_first = heads <= room && is_shorter_than(rounds_to_mix);
    let parts = if is_shorter_than(ROUNDS_TO_HALVE) { 1 } else { 2 };
    let in_turns = at_once / parts / key_ctas;
    let together = match (is_descending, are_keys_first) {
        (true, true) => in_turns,
        (true, false) => in_turns.min(room / 3),
        (false, _) => 1,
    };
    let heads_kv = largest_divisor(heads, order.map_or(together, |[heads, _]| heads).max(1));
    let count = heads / heads_kv;
    let chunks = |eighths: u32| (at_once * eighths).div_ceil(8 * heads_kv * key_ctas);
    let lag = match order {
        Some([_, lag]) => lag.max(1),
        None if are_keys_first => count,
        None => 1 + chunks(LAG_EIGHTHS),
    };
    let lag = lag.min(count);
    let wanted = (lag + chunks(of_queries_eighths)).min(count);
    let slots = wanted.min(room / heads_kv);
    let lag = if slots < count { lag.min(slots.saturating_sub(1)) } else { lag };
    // CTAs of a chunk, those under a diagonal half of one. dS of a chunk of nearly a round is complete too late for CTAs of dQ; that of a chunk of
    // several rounds in time, and one launch then takes less than several pairs of launches.
    let ctas = heads_kv * key_ctas / if is_descending { 2 } else { 1 };
    let is_in_time = 4 * ctas <= 3 * at_once
        || ctas >= ROUNDS_IN_TIME * at_once
            && apart(heads, room, (key_ctas, at_once)).is_some_and(|together| together < heads);
    let is_roomy = lag == count || (slots == wanted && is_in_time);
    (lag > 0).then_some((heads_kv, slots, lag, is_roomy))
}

/// Whether both queries and keys are packed; none where one of them is.
fn is_packed(problem: &Problem) -> Option<bool> {
    match (problem.queries(), problem.keys()) {
        (QuerySequences::Batch, KeySequences::Batch) => Some(false),
        (QuerySequences::Packed { .. }, KeySequences::Packed { .. }) => Some(true),
        _ => None,
    }
}

/// Queries of dS that the blocks of keys of a head keep together at most, of a batch entry or of all packed sequences, whose lengths are known on
/// the device only: the least of what follows from the longest sequence of keys, from the width of the mask's band, and from the area under its diagonal.
/// A piece is whole blocks of `rows` queries.
fn queries_kept(problem: &Problem, rows: u32) -> Option<u64> {
    let is_packed = is_packed(problem)?;
    let [queries, keys] = [TensorRole::Q, TensorRole::K].map(|role| problem.extent(role).rows);
    let sequences = if is_packed { problem.sizes().batch } else { 1 };
    let blocks_of = |total, block| u64::from(blocks(total, block, is_packed.then_some(sequences)));
    let (key_blocks, longest) = (blocks_of(keys, DS_KEYS), problem.sizes().seqlen_k.min(keys));
    let [total_q, total_k, longest, rows] = [queries, keys, longest, rows].map(u64::from);
    let all_queries = blocks_of(queries, rows as u32) * rows;
    let mask = problem.mask();
    // Keys that some queries see wherever these are: blocks of them may keep all queries.
    let always = |keys: u32| u64::from(keys.min(longest as u32).div_ceil(DS_KEYS)) * all_queries;
    let whole = longest.div_ceil(DS_KEYS.into()) * all_queries;
    let side = |side: Option<u32>| side.map_or(u64::MAX, u64::from);
    let chunk = mask.chunk.map_or(u64::MAX, |chunk| 2 * u64::from(chunk));
    let width = side(mask.window_left).saturating_add(side(mask.window_right)).min(chunk);
    let of_block = width.saturating_add(u64::from(DS_KEYS)).saturating_add(2 * rows) / rows * rows;
    let band = key_blocks.saturating_mul(of_block).saturating_add(always(mask.prefix.max(mask.sink_tokens)));
    // Key k of a sequence is seen by at most `lengths + right − k` queries.
    let right = side(mask.window_right);
    let area = total_k.saturating_mul((longest + 1).saturating_add(right.saturating_mul(2))).div_ceil(2);
    let first = total_q.min(total_k.saturating_add(right.saturating_mul(sequences.into())));
    let diagonal = area.div_ceil(DS_KEYS.into()).saturating_add(first + key_blocks * 2 * rows);
    let diagonal = diagonal.saturating_add(always(mask.prefix));
    Some(whole.min(band).min(diagonal).next_multiple_of(rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ragged;
    use crate::problem::Mask;
    use kernels_gpu::backward::params::BackwardParams;
    use kernels_gpu::row::Dtype;
    use kernels_gpu::sequence::{QueryCount, Sequence};
    use kernels_gpu::visible::Band;

    /// Queries of dS that the blocks of keys of these sequences keep, as the kernels go by.
    fn kept(problem: &Problem, sequences: &[(u32, u32)], rows: u32) -> u64 {
        let ragged = ragged::params(problem, 128, 0);
        let params = BackwardParams { ds_block_rows: rows, ..BackwardParams::default() };
        let of_block = |&(queries, keys): &(u32, u32), first: u32| {
            let sequence =
                Sequence { seqlen_q: QueryCount::Own(queries), seqlen_k: keys, q_start: 0, k_start: 0 };
            let block = (first, (first + DS_KEYS).min(keys));
            let seen = Band::of(&ragged).queries_of(block, ragged.sink_tokens, &sequence);
            let (first, past) = params.queries_written(seen);
            u64::from(past - first)
        };
        let blocks = |sequence: &(u32, u32)| (0..sequence.1).step_by(DS_KEYS as usize);
        sequences.iter().flat_map(|of| blocks(of).map(move |first| of_block(of, first))).sum()
    }

    fn masks() -> Vec<Mask> {
        let window = |left, right| Mask::window(left, right);
        vec![
            Mask::FULL,
            Mask::CAUSAL,
            window(None, Some(70)),
            window(Some(100), Some(0)),
            window(Some(30), Some(500)),
            window(Some(0), None),
            window(Some(60), Some(0)).with_sink_tokens(130),
            Mask::CAUSAL.with_chunk(75),
            Mask::FULL.with_chunk(300),
            Mask::CAUSAL.with_prefix(200),
        ]
    }

    #[test]
    fn no_lengths_keep_more_than_a_head_has_room_for() {
        let lengths: [&[(u32, u32)]; 7] = [
            &[(1, 1)],
            &[(1, 1), (1, 1), (1, 1), (129, 129), (1, 1)],
            &[(700, 700), (3, 3), (1200, 1200), (0, 0), (127, 127)],
            &[(0, 900), (900, 0), (65, 1000), (1000, 65)],
            &[(64, 128), (64, 128), (64, 128), (96, 128)],
            &[(5, 2000), (5, 2000), (700, 2000)],
            &[(2000, 5), (2000, 130)],
        ];
        for (mask, sequences) in masks().into_iter().flat_map(|mask| lengths.map(|of| (mask, of))) {
            let sum = |of: fn(&(u32, u32)) -> u32| sequences.iter().map(of).sum::<u32>();
            let most = |of: fn(&(u32, u32)) -> u32| sequences.iter().map(of).max().expect("one");
            let (seqlen_q, seqlen_k) = (most(|of| of.0).max(1), most(|of| of.1).max(1));
            let batch = sequences.len() as u32;
            let sizes = Sizes { batch, heads_q: 2, heads_kv: 1, seqlen_q, seqlen_k, head_dim: 64 };
            let whole = Problem::new(sizes, Dtype::F16).and_then(|of| of.with_mask(mask)).expect("valid");
            let packed =
                whole.with_packed_queries(sum(|of| of.0)).and_then(|of| of.with_packed_keys(sum(|of| of.1)));
            let packed = packed.expect("valid");
            for rows in [64, 96, 128] {
                let (most, kept) =
                    (queries_kept(&packed, rows).expect("packed"), kept(&packed, sequences, rows));
                assert!(kept <= most, "{mask:?} {sequences:?} of {rows}: {kept} of {most}");
                // Of batch entries, each has room for the longest, however many keys it has.
                let most = queries_kept(&whole, rows).expect("not packed");
                for &(_, keys) in sequences {
                    let kept = self::kept(&whole, &[(seqlen_q, keys)], rows);
                    assert!(kept <= most, "{mask:?} {seqlen_q} {keys} of {rows}: {kept} of {most}");
                }
            }
        }
    }

    #[test]
    fn chunks_of_one_launch_are_small_and_far_enough_apart() {
        let of = |heads, room, (ctas, at_once)| in_one_launch(heads, room, (ctas, at_once, 5), 6, None);
        // 4,16,16,4096,4096,128 on 132 SMs, without a mask and with: heads of a chunk, slots, lag.
        assert_eq!(of((64, false), 71, (32, 132)), Some((1, 13, 10, true)));
        assert_eq!(of((64, true), 140, (32, 132)), Some((2, 8, 6, true)));
        // Few rounds, all of whose heads have room: dK and dV come first, in halves of a round from three rounds on.
        assert_eq!(of((8, false), 9, (32, 132)), Some((1, 8, 8, true)));
        assert_eq!(of((8, true), 17, (32, 132)), Some((4, 2, 2, true)));
        assert_eq!(of((24, true), 50, (32, 132)), Some((2, 12, 12, true)));
        // 16,16,16,439,3086,64: a CTA of dQ has many more steps than one of dK and dV, and the room of its chunk is free later.
        assert_eq!(in_one_launch((256, false), 999, (25, 132, 40), 3, None), Some((1, 39, 12, true)));
        // Less room than wanted, and too little.
        assert_eq!(of((16, false), 3, (128, 132)), Some((1, 3, 2, false)));
        assert_eq!(of((16, false), 2, (128, 132)), Some((1, 2, 1, false)));
        assert_eq!(of((16, false), 1, (128, 132)), None);
        assert_eq!(of((1, false), 1, (128, 132)), Some((1, 1, 1, true)), "one chunk");
        // 61420 packed tokens: a chunk of several rounds is not too late, and beats several pairs of launches, not one.
        assert_eq!(of((16, false), 4, (495, 132)), Some((1, 3, 2, true)));
        assert_eq!(of((16, false), 16, (460, 132)), Some((1, 3, 2, false)));
        assert_eq!(of((16, false), 4, (250, 132)), Some((1, 4, 3, false)), "fewer rounds");
    }

    #[test]
    fn a_causal_mask_needs_half_of_the_memory_and_a_window_a_strip() {
        let of = |mask, seqlen: u32| {
            let sizes = Sizes {
                batch: 3,
                heads_q: 2,
                heads_kv: 1,
                seqlen_q: seqlen,
                seqlen_k: seqlen,
                head_dim: 128,
            };
            let problem = Problem::new(sizes, Dtype::Bf16).and_then(|of| of.with_mask(mask)).expect("valid");
            queries_kept(&problem, 64).expect("not packed") * u64::from(DS_KEYS)
        };
        let pairs = 16384_u64 * 16384;
        assert_eq!(of(Mask::FULL, 16384), pairs);
        assert!(of(Mask::CAUSAL, 16384) <= pairs * 52 / 100);
        // Of blocks of 64 queries and 128 keys, a band of 1024 has 18 or 19 and of ends at most one more.
        assert!(of(Mask::window(Some(1024), Some(0)), 16384) <= 16384 * (1024 + 4 * 64));
    }
}
