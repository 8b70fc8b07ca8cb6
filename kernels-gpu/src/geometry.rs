//! What follows from a row by arithmetic: threads, warps' shares, grid, shared memory, registers, FLOPs.

use crate::row::{Accumulation, Isa, REGISTERS_MAX, Row, SMEM_MAX_BYTES, Schedule, ScoreKind};

/// The most elements of a row of O that fit the registers of a warp.
const VALUE_WIDTH_MAX: u32 = 256;
/// Registers of an SM, of which each CTA takes its threads' share.
const REGISTERS_PER_SM: u32 = 65536;
/// Registers a kernel needs beside its fragments: addresses, loop state, softmax state and operands in flight.
const REGISTERS_BESIDE_FRAGMENTS: u32 = 40;
/// The same with [`Isa::Wgmma`], where operands and addresses are descriptors.
const REGISTERS_BESIDE_FRAGMENTS_WGMMA: u32 = 24;
/// Registers that loading Q takes with [`Isa::Wgmma`] beside those it is loaded into: without them, rows whose estimate is their limit
/// spill.
const REGISTERS_TO_LOAD_Q_WGMMA: u32 = 8;
/// Registers of fragments up to which Q stays in registers for the whole main loop.
const FRAGMENT_REGISTERS_WITH_Q: u32 = 192;

/// Warps of a CTA of [`Isa::Wgmma`] that copy tiles instead of computing: one warpgroup.
pub const PRODUCER_WARPS: u32 = 4;
/// Bytes of shared memory that a CTA of [`Isa::Wgmma`] keeps for its barriers and work tiles, behind the tiles.
pub const BARRIER_BYTES: u32 = 512;
/// The most registers that setmaxnreg is asked for: a multiple of 8 below [`REGISTERS_MAX`].
const SETMAXNREG_MAX: u32 = 240;

/// The most splits of the keys.
pub const SPLITS_MAX: u32 = 256;
/// Parts in which the splits of a query row are merged: four neighbouring elements of one of several groups of splits each.
pub const COMBINE_PARTS: u32 = 256;
/// Bytes of shared memory in which the splits of a query row are merged: a weight a split, and a float4 a part.
pub const COMBINE_ROW_BYTES: u32 = SPLITS_MAX * 4 + COMBINE_PARTS * 16;
/// Threads of a CTA of the combine kernel.
pub const COMBINE_THREADS: u32 = COMBINE_PARTS;
/// The most query rows that a CTA of the combine kernel merges at a time.
pub const COMBINE_CTA_ROWS: u32 = 4;
/// Dynamic shared memory of a CTA of the combine kernel.
pub const COMBINE_SMEM_BYTES: u32 = COMBINE_CTA_ROWS * COMBINE_ROW_BYTES;

/// Threads of a CTA.
pub const fn threads(row: &Row) -> u32 {
    row.warps * 32
}

/// Query rows of a warp where all warps lie along the rows, as far as there are 16 rows for each.
pub const fn warp_rows_by_default(row: &Row) -> u32 {
    let share = match row.isa {
        Isa::Mma => row.block_m / row.warps,
        Isa::Wgmma => 16,
    };
    if share > 16 { share } else { 16 }
}

/// Warpgroups of a CTA that compute O of the same query rows and keys, a slice of the value vectors each: the first one the scores for all
/// of them. As many parts as K is copied in.
pub const fn value_groups(row: &Row) -> u32 {
    if is_sliced(row) && matches!(row.isa, Isa::Wgmma) { row.head_dim / VALUE_WIDTH_MAX } else { 1 }
}

/// Warps along the query rows of a block.
pub const fn warps_m(row: &Row) -> u32 {
    row.block_m / row.warp_rows
}

/// Warps along the keys of a block: the warps left over where `block_m` has too few rows for all.
/// Each keeps its own row_max, row_sum and O, merged after the main loop.
pub const fn warps_n(row: &Row) -> u32 {
    match row.isa {
        Isa::Mma => row.warps / warps_m(row),
        Isa::Wgmma => (row.warps - PRODUCER_WARPS) / (warps_m(row) * value_groups(row)),
    }
}

/// Warpgroups of a CTA of [`Isa::Wgmma`] that compute, 64 query rows each.
pub const fn consumer_warpgroups(row: &Row) -> u32 {
    (row.warps - PRODUCER_WARPS) / 4
}

/// Elements of head_dim that lie side by side in shared memory in a CTA of [`Isa::Wgmma`]: a tile is split into columns of this
/// width, each a tile of its own with a swizzle that spans its rows.
pub const fn column_width(row: &Row) -> u32 {
    if row.head_dim.is_multiple_of(64) { 64 } else { 32 }
}

/// Registers of a thread that copies, in a CTA of [`Isa::Wgmma`].
pub const fn producer_registers(row: &Row) -> u32 {
    let is_ragged = matches!(row.schedule, Schedule::Ragged);
    match (consumer_warpgroups(row), row.min_ctas) {
        // The loop over tiles takes a few more where the score is a user's; consumers have them to spare.
        (2, 1) if is_ragged && matches!(row.score, ScoreKind::User(_)) => 56,
        (1, _) | (2, 1) => 40,
        (2, _) => 24,
        (3, _) if is_ragged => 40,
        _ => 32,
    }
}

/// Registers of a thread that computes, in a CTA of [`Isa::Wgmma`]: its share of what the copying warpgroup gives back.
pub const fn consumer_registers(row: &Row) -> u32 {
    let consumers = consumer_warpgroups(row);
    let all = registers_at_start(row) / 8 * 8 * (consumers + 1);
    let share = (all - producer_registers(row)) / consumers / 8 * 8;
    if share < SETMAXNREG_MAX { share } else { SETMAXNREG_MAX }
}

/// Elements of the widest value vector that kernels of a head_dim take. Models whose keys have 192 elements have values of 128.
pub const fn widest_value(head_dim: u32) -> u32 {
    if head_dim == 192 { 128 } else { head_dim }
}

/// Elements of a value vector that a warp works on. O of more would be more registers than a thread has: see [`is_sliced`].
pub const fn value_width(row: &Row) -> u32 {
    let width = widest_value(row.head_dim);
    if width > VALUE_WIDTH_MAX { VALUE_WIDTH_MAX } else { width }
}

/// Whether the elements of value vectors fall to several CTAs, each of which computes the scores for itself, or with [`Isa::Wgmma`] to
/// several warpgroups of a CTA.
pub const fn is_sliced(row: &Row) -> bool {
    row.head_dim > VALUE_WIDTH_MAX
}

/// Whether keys and values of these widths fit a row's tiles.
pub const fn holds_widths(row: &Row, width_qk: u32, width_v: u32) -> bool {
    let has_all_slices = value_groups(row) == 1 || value_slices(row, width_v) == value_groups(row);
    width_qk <= row.head_dim && width_v <= widest_value(row.head_dim) && has_all_slices
}

/// Whether a row's kernel computes plain attention with values as wide as its keys; what others compute is a ragged batch.
pub const fn computes_plain_batches(row: &Row) -> bool {
    row.score.is_plain() && widest_value(row.head_dim) == row.head_dim
}

/// The head_dim of the problems that a row is for: 192 is one of several tiles that they fit.
pub const fn problems_head_dim(row: &Row) -> u32 {
    if row.head_dim == 192 { 256 } else { row.head_dim }
}

/// CTAs, or with [`Isa::Wgmma`] warpgroups, among which the elements of value vectors of this width are divided evenly.
pub const fn value_slices(row: &Row, width_v: u32) -> u32 {
    width_v.div_ceil(value_width(row))
}

/// m16 tiles of query rows a warp holds.
pub const fn m_tiles(row: &Row) -> u32 {
    row.warp_rows / 16
}

/// Keys of a block that fall to one warp. With [`Isa::Wgmma`], warps along the keys take whole blocks in turns.
pub const fn keys_per_warp(row: &Row) -> u32 {
    match row.isa {
        Isa::Mma => row.block_n / warps_n(row),
        Isa::Wgmma => row.block_n,
    }
}

/// n8 tiles of S a warp holds.
pub const fn n_tiles(row: &Row) -> u32 {
    keys_per_warp(row) / 8
}

/// Registers of the S fragment, as P in 16 bits overlays it.
const fn s_registers(row: &Row) -> u32 {
    m_tiles(row) * n_tiles(row) * 4
}

const fn o_registers(row: &Row) -> u32 {
    m_tiles(row) * (value_width(row) / 8) * 4
}

/// Registers that a score takes beside the fragments with [`Isa::Wgmma`]: their rows have run-time masks, and numbers of their own a row.
const fn registers_of_score_wgmma(score: ScoreKind) -> u32 {
    match score {
        ScoreKind::Plain => 0,
        ScoreKind::Softcap | ScoreKind::Alibi => 16,
        _ => 24,
    }
}

const fn q_registers(row: &Row) -> u32 {
    m_tiles(row) * (row.head_dim / 16) * 4
}

/// Whether Q stays in registers; where it does not fit, each step reads it from shared memory again. With [`Isa::Wgmma`] that takes no
/// instruction, but power, which is what bounds long problems on an H200.
pub const fn q_in_registers(row: &Row) -> bool {
    match row.isa {
        Isa::Mma => q_registers(row) + s_registers(row) + o_registers(row) <= FRAGMENT_REGISTERS_WITH_Q,
        Isa::Wgmma => {
            let needed = registers_without_q(row) + q_registers(row) + REGISTERS_TO_LOAD_Q_WGMMA;
            needed + registers_of_score_wgmma(row.score) <= registers_limit(row)
        }
    }
}

/// Registers a thread needs with [`Isa::Wgmma`], estimated, where Q stays in shared memory.
const fn registers_without_q(row: &Row) -> u32 {
    // P of the block before is multiplied while S of this one comes in.
    s_registers(row) + s_registers(row) / 2 + o_registers(row) + REGISTERS_BESIDE_FRAGMENTS_WGMMA
}

/// Registers a thread needs, estimated from the fragments it holds.
pub const fn registers_estimate(row: &Row) -> u32 {
    if matches!(row.isa, Isa::Wgmma) {
        let q = if q_in_registers(row) { q_registers(row) } else { 0 };
        return registers_without_q(row) + q;
    }
    let q = if q_in_registers(row) { q_registers(row) } else { 4 * m_tiles(row) };
    let acc_s = match row.acc {
        Accumulation::F32 => 0,
        // The float16 accumulators of S, and then those of P·V, live until they are widened.
        Accumulation::F16 => {
            let (s, o) = (s_registers(row) / 2, o_registers(row) / 2);
            if s > o { s } else { o }
        }
    };
    let operand = if acc_s > q { acc_s } else { q };
    s_registers(row) + o_registers(row) + operand + REGISTERS_BESIDE_FRAGMENTS
}

/// Registers a thread has at the start: the architecture's maximum, or what `min_ctas` leaves it.
pub const fn registers_at_start(row: &Row) -> u32 {
    let share = REGISTERS_PER_SM / (threads(row) * row.min_ctas) / 8 * 8;
    if share < REGISTERS_MAX { share } else { REGISTERS_MAX }
}

/// Registers a thread may have: the architecture's maximum, or what `min_ctas` leaves it; with [`Isa::Wgmma`], a thread that
/// computes.
pub const fn registers_limit(row: &Row) -> u32 {
    match row.isa {
        Isa::Mma => registers_at_start(row),
        Isa::Wgmma => consumer_registers(row),
    }
}

/// Bytes of a tile of `rows` × head_dim, queries or keys, in shared memory.
pub const fn tile_bytes(row: &Row, rows: u32) -> u32 {
    rows * row.head_dim * row.dtype.bytes()
}

/// Buffers for K, and for V: as many of each stage as K has parts.
pub const fn kv_buffers(row: &Row) -> u32 {
    row.stages * value_groups(row)
}

/// Bytes in which a warpgroup tells the next one P of a block, and what its rows of O are multiplied with: a lane's numbers next to each
/// other.
pub const fn weights_bytes(row: &Row) -> u32 {
    if value_groups(row) > 1 { row.block_m * row.block_n * row.dtype.bytes() + 128 * 16 } else { 0 }
}

/// Bytes of a block of a slice of the values in shared memory.
pub const fn value_bytes(row: &Row) -> u32 {
    row.block_n * value_width(row) * row.dtype.bytes()
}

/// Bytes from one row of O to the next in the merge buffer: float32, and 32 bytes that keep four neighbouring rows in
/// different banks.
pub const fn merge_row_bytes(row: &Row) -> u32 {
    value_width(row) * 4 + 32
}

/// Bytes of a warp row's slot in the merge buffer: O, row_max and row_sum of a block in float32.
pub const fn merge_slot_bytes(row: &Row) -> u32 {
    row.block_m * (merge_row_bytes(row) + 8)
}

/// Bytes of the buffer through which warps along the keys merge in pairs: a slot a pair.
pub const fn merge_bytes(row: &Row) -> u32 {
    warps_n(row) / 2 * merge_slot_bytes(row)
}

/// Bytes of the numbers of a block's keys as an operand of 16 elements each, where slopes are multiplied with them by [`Isa::Wgmma`].
pub const fn key_numbers_bytes(row: &Row) -> u32 {
    match (row.isa, row.score) {
        (Isa::Wgmma, ScoreKind::Alibi) => row.block_n * 32,
        _ => 0,
    }
}

/// Buffers for Q: where the next tile's begins while this one is read from its buffer, a second one, if there is room.
pub const fn q_buffers(row: &Row) -> u32 {
    let q = tile_bytes(row, row.block_m);
    let wants_two = has_several_tiles(row) && !q_in_registers(row);
    let rest = kv_bytes(row) + BARRIER_BYTES + key_numbers_bytes(row);
    if wants_two && 2 * q + rest <= SMEM_MAX_BYTES { 2 } else { 1 }
}

/// Whether a CTA's next tile begins while its last products with V are on their way: its Q is there, in a buffer that this tile does not read.
pub const fn tiles_overlap(row: &Row) -> bool {
    has_several_tiles(row) && (q_in_registers(row) || q_buffers(row) > 1)
}

/// Whether CTAs of [`Isa::Wgmma`] work on one tile after another without a pause.
const fn has_several_tiles(row: &Row) -> bool {
    match (row.isa, row.schedule, row.score) {
        // Addresses of the bias of two tiles at a time spill.
        (Isa::Wgmma, Schedule::Ragged, ScoreKind::Bias) => false,
        _ if value_groups(row) > 1 => false,
        (Isa::Wgmma, Schedule::Persistent | Schedule::Ragged, _) => true,
        _ => false,
    }
}

/// Bytes of all stages of K and V.
const fn kv_bytes(row: &Row) -> u32 {
    row.stages * (tile_bytes(row, row.block_n) + value_groups(row) * value_bytes(row))
}

/// Buffers for what a warpgroup tells the next one of a block.
pub const WEIGHTS_BUFFERS: u32 = 2;

/// Offset in shared memory behind Q and `stages` × (K, V), or behind the merge buffer that overlays them. There a CTA of
/// [`Schedule::Persistent`] keeps the indices of its tile and of the next one, and one of [`Isa::Wgmma`] its barriers.
pub const fn work_slots_offset(row: &Row) -> u32 {
    let pipeline =
        q_buffers(row) * tile_bytes(row, row.block_m) + kv_bytes(row) + WEIGHTS_BUFFERS * weights_bytes(row);
    let merge = merge_bytes(row);
    if pipeline > merge { pipeline } else { merge }
}

/// Bytes of dynamic shared memory a CTA needs.
pub const fn smem_bytes(row: &Row) -> u32 {
    let tiles = work_slots_offset(row);
    match (row.isa, row.schedule) {
        (Isa::Wgmma, _) => tiles + BARRIER_BYTES + key_numbers_bytes(row),
        (Isa::Mma, Schedule::Persistent) => tiles + 8,
        (Isa::Mma, Schedule::Split | Schedule::Ragged) if tiles < COMBINE_ROW_BYTES => COMBINE_ROW_BYTES,
        (Isa::Mma, _) => tiles,
    }
}

/// Query rows whose splits a CTA of [`Schedule::Split`] merges at a time, as far as the warps that compute and the tiles' shared
/// memory go.
pub const fn combine_rows(row: &Row) -> u32 {
    let (bytes, warps) = match row.isa {
        Isa::Mma => (smem_bytes(row), row.warps),
        Isa::Wgmma => (work_slots_offset(row), 4 * consumer_warpgroups(row)),
    };
    let room = bytes / COMBINE_ROW_BYTES;
    // A warp weighs the splits of a row.
    if room < warps { room } else { warps }
}

/// Query heads whose rows share a block: all of a KV head's (`group` of them) where rows are packed.
pub const fn packed_heads(row: &Row, group: u32) -> u32 {
    match row.schedule {
        Schedule::Split | Schedule::Ragged => group,
        Schedule::Grid | Schedule::Persistent => 1,
    }
}

/// Query rows of a block that are used: with [`Isa::Wgmma`] whole queries of all packed heads, as one bulk copy brings a box of
/// them; 0 where a block has no room for one.
pub const fn rows_of_block(row: &Row, group: u32) -> u32 {
    let heads = packed_heads(row, group);
    match row.isa {
        Isa::Mma => row.block_m,
        Isa::Wgmma => row.block_m / heads * heads,
    }
}

/// Blocks of query rows of one head, or of all `group` heads of a KV head where rows are packed.
pub const fn query_blocks(row: &Row, seqlen_q: u32, group: u32) -> u32 {
    (seqlen_q * packed_heads(row, group)).div_ceil(rows_of_block(row, group))
}

/// CTAs among which the elements of value vectors of this width are divided.
pub const fn ctas_of_tile(row: &Row, width_v: u32) -> u32 {
    value_slices(row, width_v) / value_groups(row)
}

/// Blocks of query rows of all heads and batch entries.
pub const fn tiles(row: &Row, batch: u32, heads_q: u32, group: u32, seqlen_q: u32) -> u64 {
    let heads = heads_q / packed_heads(row, group);
    batch as u64 * heads as u64 * query_blocks(row, seqlen_q, group) as u64
}

/// Blocks of keys.
pub const fn key_blocks(row: &Row, seqlen_k: u32) -> u32 {
    seqlen_k.div_ceil(row.block_n)
}

/// Floating-point operations of the two matrix products, as the field counts them: 4·B·H·Sq·Sk·D, and for a
/// causal mask the share of it that is visible, exactly.
pub const fn flops(
    batch: u64,
    heads_q: u64,
    seqlen_q: u64,
    seqlen_k: u64,
    head_dim: u64,
    causal: bool,
) -> f64 {
    let visible = if causal { causal_pairs(seqlen_q, seqlen_k) } else { seqlen_q as f64 * seqlen_k as f64 };
    4.0 * (batch * heads_q) as f64 * head_dim as f64 * visible
}

/// Query-key pairs a bottom-right aligned causal mask leaves visible.
const fn causal_pairs(seqlen_q: u64, seqlen_k: u64) -> f64 {
    let (q, k) = (seqlen_q as f64, seqlen_k as f64);
    if seqlen_q <= seqlen_k { q * (k - q) + q * (q + 1.0) / 2.0 } else { k * (k + 1.0) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::GOOD as ROW;

    #[test]
    fn warps_share_rows_first_and_keys_with_what_is_left() {
        assert_eq!((warps_m(&ROW), warps_n(&ROW), m_tiles(&ROW), n_tiles(&ROW)), (4, 1, 1, 8));
        let tall = Row { block_m: 128, warp_rows: 32, ..ROW };
        assert_eq!((warps_m(&tall), warps_n(&tall), m_tiles(&tall), n_tiles(&tall)), (4, 1, 2, 8));
        let low = Row { block_m: 32, warps: 8, ..ROW };
        assert_eq!((warps_m(&low), warps_n(&low), m_tiles(&low), n_tiles(&low)), (2, 4, 1, 2));
        let wide = Row { warp_rows: 32, ..ROW };
        assert_eq!((warps_m(&wide), warps_n(&wide), m_tiles(&wide), n_tiles(&wide)), (2, 2, 2, 4));
    }

    #[test]
    fn shared_memory_is_q_and_the_stages_or_the_merge_buffer() {
        assert_eq!(smem_bytes(&ROW), 8192 + 2 * 2 * 8192);
        let low = Row { head_dim: 32, block_m: 32, block_n: 64, warps: 8, stages: 1, ..ROW };
        assert_eq!(merge_slot_bytes(&low), 32 * (32 * 4 + 32 + 8));
        assert_eq!(merge_bytes(&low), 2 * merge_slot_bytes(&low), "four warps along the keys are two pairs");
        assert_eq!(smem_bytes(&low), 2 * merge_slot_bytes(&low));
        let persistent = Row { schedule: Schedule::Persistent, ..ROW };
        assert_eq!(smem_bytes(&persistent), smem_bytes(&ROW) + 8);
        let split = Row { schedule: Schedule::Split, ..ROW };
        assert_eq!((smem_bytes(&split), combine_rows(&split)), (smem_bytes(&ROW), 4));
        let small = Row { head_dim: 32, block_m: 16, block_n: 64, stages: 1, ..split };
        assert_eq!((smem_bytes(&small), combine_rows(&small)), (1024 + 2 * 4096, 1));
    }

    #[test]
    fn slices_of_the_values_are_of_ctas_or_of_warpgroups() {
        let mma = Row { head_dim: 512, block_n: 32, warps: 8, schedule: Schedule::Ragged, ..ROW };
        let wgmma = Row { isa: Isa::Wgmma, block_n: 64, warps: 12, stages: 1, ..mma };
        for (row, groups) in [(mma, 1), (wgmma, 2)] {
            assert_eq!(
                (value_groups(&row), value_slices(&row, 512), ctas_of_tile(&row, 512)),
                (groups, 2, 2 / groups)
            );
            assert_eq!(
                (warps_m(&row), value_width(&row), rows_of_block(&row, 3)),
                (4, 256, if groups > 1 { 63 } else { 64 })
            );
        }
        assert!(
            holds_widths(&mma, 512, 64) && !holds_widths(&wgmma, 512, 256) && holds_widths(&wgmma, 64, 272)
        );
        // Q, K, V, and twice P of a block and 16 bytes a lane.
        assert_eq!(work_slots_offset(&wgmma), 3 * 64 * 1024 + 2 * (64 * 64 * 2 + 128 * 16));
        assert_eq!((warps_n(&wgmma), kv_buffers(&wgmma), q_buffers(&wgmma)), (1, 2, 1));
    }

    #[test]
    fn a_consumer_keeps_q_where_registers_are_left_to_load_it() {
        let row = |head_dim, block_m, block_n, warps, min_ctas| Row {
            isa: Isa::Wgmma,
            schedule: Schedule::Persistent,
            head_dim,
            block_m,
            block_n,
            warps,
            min_ctas,
            ..ROW
        };
        let two_consumers = row(128, 128, 128, 12, 1);
        assert!(q_in_registers(&two_consumers));
        assert_eq!(registers_estimate(&two_consumers), 64 + 64 + 32 + 32 + 24, "S, O, P, Q and the rest");
        assert!(!q_in_registers(&row(256, 128, 64, 12, 1)));
        assert!(!q_in_registers(&row(64, 192, 128, 16, 1)));
        let three_ctas = row(64, 64, 64, 8, 3);
        assert!(!q_in_registers(&three_ctas), "it would fit, and then nothing else");
        assert_eq!(registers_estimate(&three_ctas) + q_registers(&three_ctas), registers_limit(&three_ctas));
    }

    #[test]
    fn causal_flops_count_exactly_the_visible_pairs() {
        for (q, k) in [(1u64, 1u64), (1, 9), (9, 1), (5, 7), (7, 5), (64, 64)] {
            let pairs =
                (0..q).flat_map(|i| (0..k).map(move |j| (i, j))).filter(|(i, j)| j + q <= i + k).count();
            assert_eq!(flops(2, 3, q, k, 64, true), 4.0 * 6.0 * 64.0 * pairs as f64, "{q} {k}");
        }
        assert_eq!(flops(1, 1, 4, 4, 32, false), 4.0 * 16.0 * 32.0);
    }
}
