//! A row of the table as types and constants: what the kernels' code is generic over.
//!
//! Only the kernels themselves (`mma/`, `wgmma/`) see all of it. Leaves take a [`Shape`], a [`WarpTile`], an [`Element`] or a few
//! numbers, so that other kernels can use them.

use crate::backward::row::{BackwardRow, Pass};
use crate::divisor::Divisor;
use crate::element::{Accumulates, Element};
use crate::geometry::{self, COMBINE_ROW_BYTES};
use crate::row::{Isa, Row, Schedule};
use crate::scheduler::{QueryBlock, Rows};
use crate::score::Score;
use crate::shape::Shape;
use crate::tile::position::Warps;
use crate::tile::warp_tile::WarpTile;

/// What a row says. `entry.rs` stamps one for each entry.
pub trait Config {
    /// The row itself.
    const ROW: Row;
    /// Element type of Q, K, V and O.
    type Element: Element;
    /// What Q·Kᵀ and P·V accumulate in.
    type Accumulation: Accumulates<Self::Element>;
    /// What touches every score.
    type Score: Score;
    /// A block of query rows in shared memory.
    type Q: Shape;
    /// A block of keys in shared memory.
    type K: Shape;
    /// A block of values in shared memory.
    type V: Shape;
    /// A block of rows of O, which goes out through shared memory.
    type O: Shape;
    /// The fragments of a warp.
    type Warp: WarpTile;

    /// The query rows of its tiles.
    const BLOCK: QueryBlock = QueryBlock::of(&Self::ROW);
    /// The warps that compute.
    const WARPS: Warps = Warps::of(&Self::ROW);
    /// Threads of a CTA.
    const THREADS: u32 = geometry::threads(&Self::ROW);
    /// Buffers for K and V.
    const STAGES: u32 = Self::ROW.stages;
    /// Whether CTAs draw tiles from a counter.
    const PERSISTENT: bool = matches!(Self::ROW.schedule, Schedule::Persistent);
    /// Whether a tile's keys may be divided among CTAs, and sequences be shorter than the tensors.
    const SPLIT: bool = Self::ROW.schedule.splits();
    /// Whether one thread works out the tiles of all others, so that no warp can look through the rows of one.
    const ONE_THREAD_SCHEDULES: bool = matches!(Self::ROW.isa, Isa::Wgmma);
    /// Whether batches may be ragged: see [`crate::params::RaggedParams`].
    const RAGGED: bool = matches!(Self::ROW.schedule, Schedule::Ragged);
    /// Whether value vectors may be divided among several CTAs: see [`geometry::is_sliced`].
    const SLICED: bool = geometry::is_sliced(&Self::ROW) && geometry::value_groups(&Self::ROW) == 1;
    /// Whether Q stays in registers through the main loop.
    const Q_IN_REGISTERS: bool = geometry::q_in_registers(&Self::ROW);
    /// Offset in shared memory of the index of a persistent CTA's tile on mma.sync, and behind it that of the next one.
    const INDEX_SLOT: u32 = geometry::work_slots_offset(&Self::ROW);
    /// Where warps along the keys meet.
    const MERGE: MergeBuffer = MergeBuffer::of(&Self::ROW);
    /// How the last CTA of a tile merges its splits.
    const LAST_CTA: LastCta = LastCta::of(&Self::ROW);
}

/// What a row of the backward pass's table says. `entry.rs` stamps one for each entry.
pub trait BackwardConfig {
    /// The row itself.
    const ROW: BackwardRow;
    /// Element type of the tensors.
    type Element: Element;
    /// A block of stationary rows in shared memory; gradients go out through it.
    type Stationary: Shape;
    /// A block of streamed rows in shared memory.
    type Streamed: Shape;
    /// The fragments of a warp's stationary rows.
    type Warp: WarpTile;
    /// What touches every score.
    type Score: Score;

    /// The warps that compute.
    const WARPS: Warps = Warps {
        along_rows: Self::ROW.computing_warps(),
        along_keys: 1,
        rows: 16 * Self::Warp::M as u32,
        keys: Self::Streamed::ROWS,
    };
    /// Threads of a CTA.
    const THREADS: u32 = Self::ROW.threads();
    /// Buffers for streamed blocks.
    const STAGES: u32 = Self::ROW.stages;
    /// Bytes of a stage.
    const STAGE_BYTES: u32 = Self::ROW.stage_bytes();
    /// With wgmma, bytes of all tiles, which come first in shared memory.
    const TILES_BYTES: u32 = Self::ROW.tiles_bytes();
    /// With wgmma, bytes of what is noted of stages and rows, between the tiles and the barriers; with mma.sync, of a tile and its steps.
    const NOTES_BYTES: u32 = Self::ROW.notes_bytes();
    /// Where these are with mma.sync: at the end of shared memory.
    const NOTES_OFFSET: u32 = Self::ROW.smem_bytes() - Self::NOTES_BYTES;
    /// Whether rows past a sequence's last one are zeros in shared memory, and P of zeros is finite. Bulk copies bring what follows in the
    /// tensor, if anything does; a score that depends on more than the product may be anything.
    const ZERO_FILLED: bool = matches!(Self::ROW.isa, Isa::Mma) && !Self::Score::OF_KEYS;
    /// Whether fragments take most of the registers.
    const IS_TIGHT: bool = Self::ROW.is_tight();
    /// Whether what the gradients' products load waits for the element step, which of other scores than the plain one takes the registers
    /// that early loads would; and where fragments take most of them.
    const LOADS_WAIT: bool = !Self::ROW.score.is_plain() || Self::IS_TIGHT;
    /// Whether what a score loads waits for S, and where keys are rows for dP as well, where one gradient takes half of all registers; and where
    /// fragments take most of them, what dP loads waits for S.
    const SCORES_WAIT: bool = Self::Score::OF_KEYS && Self::ROW.head_dim > 128 || Self::IS_TIGHT;
    /// With wgmma, whether a score's share of P is of a few queries at a time.
    const SCORES_PACED: bool = Self::Score::OF_KEYS && Self::ROW.head_dim > 64;
    /// Bytes of what a query in shared memory says beside its rows, where keys are stationary.
    const QUERY_BYTES: u32 = Self::ROW.query_bytes();
    /// Those of what the score keeps of it.
    const SCORE_ROW_BYTES: u32 = Self::ROW.score_row_bytes();
    /// Whether a CTA, or with wgmma a warpgroup, computes dK of a block of keys and another one dV.
    const APART: bool = Self::ROW.gradients_apart();
    /// With dQ = dS·K on wgmma, gradients of 64 queries of a warpgroup.
    const GRADIENTS: u32 = Self::ROW.warp_rows() / 16;
    /// Keys that bulk copies bring at a time.
    const KEYS_OF_BOX: u32 = Self::ROW.keys_of_box();
    /// Bytes of dS of a stage, where it is streamed; behind K's.
    const DS_BYTES: u32 = Self::ROW.ds_bytes();
    /// Whether dS goes to memory.
    const WRITES_DS: bool = matches!(Self::ROW.pass, Pass::DkvDs);
    /// Whether the loop over streamed rows in which what is not finite is given to its rows stays one: unrolled it is three quarters of a kernel. But
    /// with `dq` of mma.sync at head_dim 256 and a softcap ptxas spills where it does.
    const SPREADS_IN_LOOP: bool = matches!(Self::ROW.isa, Isa::Wgmma) || Self::ROW.pass.keeps_keys();
    /// How many of the two stationary tiles stay in registers through the main loop: the first of them.
    const IN_REGISTERS: u32 = Self::ROW.tiles_in_registers();
    /// The blocks of queries of a kernel whose queries are stationary.
    const BLOCK: QueryBlock = QueryBlock {
        block_m: Self::Stationary::ROWS,
        rows: Rows::OfHead,
        whole_queries: false,
        ragged: true,
    };
}

/// Ties a backward row's types to its numbers: fails the build where they differ.
pub const fn check_backward<C: BackwardConfig>() {
    let row = &C::ROW;
    assert!(C::Stationary::ROWS == row.stationary_rows() && C::Streamed::ROWS == row.streamed_rows(), "rows");
    assert!(C::Stationary::WIDTH == row.head_dim && C::Streamed::WIDTH == row.head_dim, "widths");
    assert!(C::Warp::M as u32 == row.m_tiles(), "rows of a warp");
    let (stationary, tiles) = if matches!(row.pass, Pass::DqDs) {
        (0, C::STAGES * (C::Streamed::BYTES + row.ds_bytes()))
    } else {
        (2 * C::Stationary::BYTES, 2 * (C::Stationary::BYTES + C::STAGES * C::Streamed::BYTES))
    };
    match row.isa {
        Isa::Mma => assert!(
            stationary + C::STAGES * C::STAGE_BYTES == C::NOTES_OFFSET,
            "shared memory is what the host gives"
        ),
        Isa::Wgmma => assert!(
            tiles == row.tiles_bytes()
                && tiles.is_multiple_of(1024)
                && C::Streamed::BYTES.is_multiple_of(1024),
            "tiles start at the swizzle's pattern"
        ),
    }
}

/// The buffer in shared memory through which warps along the keys merge.
#[derive(Clone, Copy, Debug)]
pub struct MergeBuffer {
    /// Query rows of a block.
    pub block_m: u32,
    /// Warps along the keys.
    pub along_keys: u32,
    /// Bytes from one row of O to the next.
    pub row_bytes: u32,
    /// Bytes of the slot of a pair of warps.
    pub slot_bytes: u32,
}

impl MergeBuffer {
    const fn of(row: &Row) -> Self {
        let (row_bytes, slot_bytes) = (geometry::merge_row_bytes(row), geometry::merge_slot_bytes(row));
        assert!(row_bytes >= geometry::value_width(row) * 4, "a row of O");
        assert!(slot_bytes == row.block_m * (row_bytes + 8), "O, and behind it row_max and row_sum");
        assert!(
            geometry::warps_n(row) / 2 * slot_bytes <= geometry::work_slots_offset(row),
            "it lies over the tiles and nothing else"
        );
        Self { block_m: row.block_m, along_keys: geometry::warps_n(row), row_bytes, slot_bytes }
    }
}

/// How the last CTA of a tile merges the splits of its rows.
#[derive(Clone, Copy, Debug)]
pub struct LastCta {
    /// Query rows of a block.
    pub block_m: u32,
    /// Elements of a row of O.
    pub width: u32,
    /// Chunks of four elements of a row of O.
    pub chunks: Divisor,
    /// Rows at a time.
    pub rows: u32,
}

impl LastCta {
    const fn of(row: &Row) -> Self {
        let rows = geometry::combine_rows(row);
        assert!(
            !row.schedule.splits() || rows > 0 && rows * COMBINE_ROW_BYTES <= geometry::smem_bytes(row),
            "shared memory holds the weights and sums of those rows"
        );
        let width = geometry::value_width(row);
        Self { block_m: row.block_m, width, chunks: Divisor::new(width / 4), rows }
    }
}

/// Ties a row's types to its numbers: fails the build where they differ.
pub const fn check<C: Config>() {
    let row = &C::ROW;
    assert!(
        C::Q::ROWS == row.block_m && C::K::ROWS == row.block_n && C::V::ROWS == row.block_n,
        "rows of a tile"
    );
    assert!(C::Q::WIDTH == row.head_dim && C::K::WIDTH == row.head_dim, "Q and K run along head_dim");
    assert!(
        C::V::WIDTH == geometry::value_width(row) && C::O::WIDTH == C::V::WIDTH,
        "V and O run along a value vector"
    );
    assert!(C::O::ROWS == row.block_m && C::O::BYTES <= C::Q::BYTES, "O takes Q's place");
    assert!(!C::SLICED || !C::Q_IN_REGISTERS, "fragments have room for as much of Q as of O");
    assert!(C::Q::BYTES == geometry::tile_bytes(row, row.block_m), "bytes of Q");
    assert!(C::K::BYTES == geometry::tile_bytes(row, row.block_n), "bytes of K");
    assert!(C::V::BYTES == geometry::value_bytes(row), "bytes of V");
    assert!(
        C::K::COLUMN_WIDTH == geometry::column_width(row) && C::V::COLUMN_WIDTH == C::K::COLUMN_WIDTH,
        "what the host's boxes are"
    );
    assert!(C::Warp::M == geometry::m_tiles(row) as usize, "m16 tiles of a warp");
}
