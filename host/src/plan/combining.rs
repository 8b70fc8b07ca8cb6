//! The launch that merges the splits of a plan, where the forward kernel does not merge them itself.

use super::{Addresses, Plan};
use crate::problem::{Operand, QuerySequences};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::params::CombineParams;
use kernels_gpu::steps::StepRow;

impl Plan {
    /// The kernel that merges the splits, where there are several and [`Plan::kernel`] does not merge them itself.
    pub fn combine(&self) -> Option<&Kernel<StepRow>> {
        self.combine.as_deref()
    }

    /// Whether [`Plan::kernel`] merges several splits itself, in the CTA of each tile that finishes last.
    pub fn is_fused(&self) -> bool {
        self.splits() > 1 && self.combine.is_none()
    }

    /// Query rows of a CTA of [`Plan::combine`], 1 where there is none.
    pub fn combine_rows(&self) -> u32 {
        self.combine_rows
    }

    /// CTAs of the launch of [`Plan::combine`]: all query rows, [`Plan::combine_rows`] each, once a slice of the value vectors.
    pub fn combine_grid(&self) -> u32 {
        self.combine_ctas() * self.params.ragged.slices
    }

    fn combine_ctas(&self) -> u32 {
        // Checked where there is a combine kernel. No CTA has rows of two heads of packed sequences.
        let (lots, rows) = match self.problem.queries() {
            QuerySequences::Batch => (1, self.problem.lse_len() as u32),
            QuerySequences::Packed { total } => (self.problem.sizes().heads_q, total),
        };
        lots * rows.div_ceil(self.combine_rows)
    }

    /// The parameters of the launch of [`Plan::combine`] with these addresses.
    pub fn combine_params(&self, at: &Addresses) -> CombineParams {
        let sizes = self.problem.sizes();
        let (partial_o, partial_lse) = self.partials(at.workspace);
        CombineParams {
            partial_o,
            partial_lse,
            o: at.o,
            lse: at.lse,
            o_strides: self.params.o_strides,
            rows: self.problem.lse_len() as u64,
            heads_q: Divisor::new(sizes.heads_q),
            seqlen_q: Divisor::new(self.params.seqlen_q),
            chunks: Divisor::new(self.params.ragged.width_v / 4),
            splits: self.splits(),
            rows_of_cta: self.combine_rows,
            ctas_of_slice: self.combine_ctas(),
            sinks: at.operands[Operand::Sinks as usize],
            cu_seqlens_q: at.operands[Operand::CuSeqlensQ as usize],
            ctas_of_head: Divisor::new((self.combine_ctas() / sizes.heads_q).max(1)),
            sequences: sizes.batch,
        }
    }
}
