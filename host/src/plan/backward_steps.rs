//! The launches of a backward pass behind its kernels: what adds up the sums of CTAs that share a block of keys, and the gradients of sinks and of a
//! bias.

use super::COUNTERS_BYTES;
use super::backward::BackwardPlan;
use crate::backward::{Backward, BackwardTensors};
use crate::problem::{Operand, TensorRole};
use kernels_gpu::backward::{BIAS_TILE, SUM_ROWS};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::step_params::{BiasGradientParams, SinkGradientParams};

impl BackwardPlan {
    /// CTAs of the launch behind these kernels that adds up dK and dV, where several CTAs share a block of keys.
    pub fn sum_ctas(&self) -> Option<u32> {
        let extent = self.backward().problem().extent(TensorRole::K);
        let groups = self.params.key_block_rows.value / SUM_ROWS;
        let blocks = extent.batch * extent.heads * self.params.key_blocks.value;
        self.sums_offset.map(|_| blocks * groups)
    }

    /// CTAs of the launch behind both steps that computes the gradient of the sinks, where the problem has any.
    pub fn sink_ctas(&self) -> Option<u32> {
        let problem = self.backward().problem();
        problem.has_sinks().then_some(problem.sizes().heads_q)
    }

    /// CTAs and parameters of that launch, where its result is wanted.
    pub(crate) fn sink_gradient(
        &self,
        at: &BackwardTensors,
        workspace: u64,
    ) -> Option<(u32, SinkGradientParams)> {
        let operand = |operand: Operand| at.forward.operands[operand as usize].unwrap_or(0);
        let (d_sinks, ctas, forward) = (at.d_sinks?, self.sink_ctas()?, &self.params.forward);
        let params = SinkGradientParams {
            statistics: workspace + COUNTERS_BYTES,
            sinks: operand(Operand::Sinks),
            d_sinks,
            cu_seqlens_q: operand(Operand::CuSeqlensQ),
            rows: forward.seqlen_q,
            heads: forward.heads_q,
            batch: forward.batch,
        };
        Some((ctas, params))
    }

    /// CTAs of the launch behind all others that computes the gradient of the bias, where the problem has one.
    pub fn bias_ctas(&self) -> Option<u32> {
        bias_tiles(self.backward()).map(|tiles| tiles.iter().product::<u64>() as u32)
    }

    /// CTAs and parameters of that launch, where its result is wanted.
    pub(crate) fn bias_gradient(
        &self,
        at: &BackwardTensors,
        workspace: u64,
    ) -> Option<(u32, BiasGradientParams)> {
        let (d_bias, ctas, tiles) = (at.d_bias?, self.bias_ctas()?, bias_tiles(self.backward())?);
        // Their product is below 2³¹, and so is a number of rows.
        let [_, heads, query_blocks, key_blocks] = tiles.map(|tiles| Divisor::new(tiles as u32));
        let [_, _, rows, _] = self.backward().problem().bias_sizes()?.map(|size| size as u32);
        let backward = self.params(at, workspace);
        Some((ctas, BiasGradientParams { backward, d_bias, key_blocks, query_blocks, heads, rows }))
    }
}

/// Tiles of the gradient of a bias along its batch entries, heads, queries and keys.
pub(super) fn bias_tiles(backward: &Backward) -> Option<[u64; 4]> {
    let [batch, heads, rows, keys] = backward.problem().bias_sizes()?.map(|size| size as u64);
    let blocks = |rows: u64| rows.div_ceil(BIAS_TILE.into());
    Some([batch, heads, blocks(rows), blocks(keys)])
}
