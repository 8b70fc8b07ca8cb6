//! How a row's kernel divides a problem into tiles, and the keys into blocks.

use crate::problem::{Problem, QuerySequences, TensorRole};
use kernels_gpu::geometry;
use kernels_gpu::row::Row;

/// A problem, as the kernels of a row compute it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posed {
    problem: Problem,
    /// With the query heads that share a KV head as one head, where their rows are one tensor's: the tiles of kernels that do not pack heads
    /// are then full where a head alone has few rows.
    grouped: Option<Problem>,
}

impl Posed {
    pub(super) fn new(problem: &Problem) -> Posed {
        Posed { problem: *problem, grouped: problem.with_groups_as_heads() }
    }

    /// The problem that a row's kernel is told.
    pub(super) fn to(&self, row: &Row) -> &Problem {
        let packs = geometry::packed_heads(row, self.problem.group()) > 1;
        self.grouped.as_ref().filter(|_| !packs).unwrap_or(&self.problem)
    }

    /// Whether a row's kernel computes several query heads as one.
    pub(super) fn groups_heads(&self, row: &Row) -> bool {
        self.to(row).sizes().heads_q != self.problem.sizes().heads_q
    }
}

/// Blocks of query rows and of keys. Sizes past what a plan takes are counted too; it refuses them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiling {
    /// Query heads whose rows share a block.
    pub(super) packed_heads: u32,
    /// Query rows of a block that are used; 0 where it has no room for one query of all these heads.
    pub(super) rows_of_block: u32,
    /// Heads, of a batch entry, whose rows share blocks with no other's.
    pub(super) heads: u32,
    /// Query rows of one of them.
    pub(super) packed_rows: u64,
    /// Their blocks.
    pub(super) query_blocks: u64,
    /// Batch entries with `query_blocks` blocks of their own: all of them, or 1 where the blocks of all packed sequences follow each other,
    /// each of which may leave one unused.
    pub(super) entries: u32,
    /// Slices of the value vectors of a block.
    pub(super) slices: u32,
    /// The blocks of all heads and batch entries, each as often as CTAs share its value vectors.
    pub(super) tiles: u64,
    /// The most blocks of keys that a block of query rows sees.
    pub(super) key_blocks: u32,
}

impl Tiling {
    pub(super) fn new(problem: &Problem, row: &Row) -> Tiling {
        let (sizes, group, queries) = (problem.sizes(), problem.group(), problem.extent(TensorRole::Q));
        let packed_heads = geometry::packed_heads(row, group);
        let rows_of_block = geometry::rows_of_block(row, group);
        let heads = sizes.heads_q / packed_heads;
        let packed_rows = u64::from(queries.rows) * u64::from(packed_heads);
        let block = u64::from(rows_of_block.max(1));
        let of_longest = (u64::from(sizes.seqlen_q) * u64::from(packed_heads)).div_ceil(block);
        let following = packed_rows / block + u64::from(sizes.batch);
        let (entries, query_blocks) = match problem.queries() {
            QuerySequences::Packed { .. } if following < of_longest * u64::from(sizes.batch) => {
                (1, following)
            }
            QuerySequences::Packed { .. } | QuerySequences::Batch => (sizes.batch, of_longest),
        };
        // Packed rows of one query more than whole ones fill.
        let queries_of_block = rows_of_block / packed_heads + 1;
        let key_blocks =
            problem.mask().steps_most(sizes.seqlen_k, queries_of_block.min(sizes.seqlen_q), row.block_n);
        let ctas = geometry::ctas_of_tile(row, problem.head_dim_v());
        Tiling {
            packed_heads,
            rows_of_block,
            heads,
            packed_rows,
            query_blocks,
            entries,
            slices: geometry::value_slices(row, problem.head_dim_v()),
            tiles: u64::from(entries) * u64::from(heads * ctas) * query_blocks,
            key_blocks,
        }
    }

    /// All tiles; of what no kernel of the row computes, more than any plan takes.
    pub(super) fn possible_tiles(&self, problem: &Problem) -> u64 {
        let rows = u64::from(problem.extent(TensorRole::Q).rows) * u64::from(problem.group());
        let is_possible = self.rows_of_block > 0 && rows <= u32::MAX.into();
        if is_possible { self.tiles } else { u64::MAX }
    }
}
