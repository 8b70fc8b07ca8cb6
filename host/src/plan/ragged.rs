//! What kernels of [`kernels_gpu::row::Schedule::Ragged`] are told.

use super::Plan;
use super::tiling::Tiling;
use super::work::gcd;
use crate::problem::{BlockTable, KeySequences, Mask, Operand, Problem, TensorRole};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::params::{RaggedParams, ScoreParams, TableParams};
use kernels_gpu::row::Row;
use kernels_gpu::visible::Band;

/// What kernels of a row are told of a problem, but for addresses.
pub(super) fn params_of_row(problem: &Problem, row: &Row, tiling: &Tiling) -> RaggedParams {
    let Tiling { rows_of_block, slices, entries, .. } = *tiling;
    let width_v = problem.head_dim_v() / slices;
    let chunks_v = Divisor::new(width_v / 4);
    RaggedParams {
        width_v,
        slices,
        chunks_v,
        blocks_follow: (entries < problem.sizes().batch).into(),
        ..params(problem, rows_of_block, box_rows(problem, row))
    }
}

/// A problem's parameters but for addresses, for blocks of so many query rows and boxes of so many keys.
pub(super) fn params(problem: &Problem, block_rows: u32, box_rows: u32) -> RaggedParams {
    let Mask { sink_tokens, tree, .. } = problem.mask();
    let Band { window_left, window_right, chunk, chunk_divisor, prefix } = problem.mask().band();
    let [batch_stride, head_stride, row_stride] = problem.score_strides();
    let bytes = i64::from(problem.score_element_bytes());
    let (page, pages, table_stride) = match problem.keys() {
        KeySequences::Paged(pages) => {
            let (BlockTable::Rows { entries } | BlockTable::Csr { entries }) = pages.table;
            (pages.page, pages.pages, entries)
        }
        KeySequences::Batch | KeySequences::Packed { .. } => (1, 0, 0),
    };
    let of_score = ScoreParams {
        batch_stride: batch_stride * bytes,
        head_stride: head_stride * bytes,
        row_stride: row_stride * bytes,
        factor: problem.score().factors(problem.scale()).1,
        tree_keys: tree.unwrap_or(1),
        ..ScoreParams::default()
    };
    RaggedParams {
        score: problem.dropout().map_or(of_score, |dropout| dropout.params()),
        page: Divisor::new(page),
        block_rows: Divisor::new(block_rows.max(1)),
        chunks_v: Divisor::new(problem.head_dim_v() / 4),
        chunk,
        chunk_divisor,
        table_stride,
        pages,
        box_rows,
        total_k: problem.extent(TensorRole::K).rows,
        window_left,
        window_right,
        prefix,
        // Kernels compare it with keys in i32, where more would be less than none.
        sink_tokens: sink_tokens.min(i32::MAX as u32),
        width_qk: problem.sizes().head_dim,
        width_v: problem.head_dim_v(),
        tables: Operand::TABLES.map(|table| TableParams {
            last: problem.operand_len(table).map_or(0, |length| length as u32 - 1),
            ..TableParams::default()
        }),
        ..RaggedParams::default()
    }
}

impl Plan {
    /// The same with the seed and the offset of a problem's dropout.
    pub(crate) fn with_dropout_of(&self, problem: &Problem) -> Plan {
        let mut plan = Plan { problem: *problem, ..self.clone() };
        if let Some(dropout) = problem.dropout() {
            plan.params.ragged.score = dropout.params();
        }
        plan
    }
}

/// Keys of a box of a bulk copy: a whole block, or the most that never cross the end of a page or of a block.
pub(super) fn box_rows(problem: &Problem, row: &Row) -> u32 {
    match problem.keys() {
        KeySequences::Paged(pages) => gcd(pages.page, row.block_n),
        KeySequences::Batch | KeySequences::Packed { .. } => row.block_n,
    }
}

/// The same with the addresses of a launch; `q` is that of Q.
pub(super) fn at(params: RaggedParams, operands: &[u64; Operand::ALL.len()], q: u64) -> RaggedParams {
    let at = |operand: Operand| operands[operand as usize];
    // A score has one of them, or dropout its seed.
    let address = params.score.address | at(Operand::Slopes) | at(Operand::Bias) | at(Operand::TreeMask);
    // A kernel of a score that had more tables when it was compiled reads an element of Q in their place.
    let address_of = |table: Operand| if at(table) == 0 { q } else { at(table) };
    let tables = Operand::TABLES.map(|table| TableParams {
        address: address_of(table),
        ..params.tables[table.table().unwrap_or_default()]
    });
    RaggedParams {
        cu_seqlens_q: at(Operand::CuSeqlensQ),
        cu_seqlens_k: at(Operand::CuSeqlensK),
        block_table: at(Operand::BlockTable),
        page_indptr: at(Operand::PageIndptr),
        intervals: at(Operand::Intervals),
        sinks: at(Operand::Sinks),
        score: ScoreParams { address, ..params.score },
        tables,
        ..params
    }
}
