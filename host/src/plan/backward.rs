//! How the gradients of a problem are computed on a device: the kernels, their grids, their parameters and their workspace.

use super::backward_choice::{Choice, boxes, choose, ctas, kv_heads_together};
use super::backward_chunks::Chunks;
use super::backward_splits::query_splits;
use super::backward_steps::bias_tiles;
use super::{COUNTER_BYTES, COUNTERS_BYTES, GRID_MAX, limit, of_one_batch, ragged};
use crate::backward::{Backward, BackwardTensors};
use crate::device::{DeviceInfo, TensorBox};
use crate::error::Error;
use crate::module::{self, Library};
use crate::problem::{KeySequences, QuerySequences, TensorRole};
use kernels_gpu::backward::STATISTICS_ROWS;
use kernels_gpu::backward::order::Order;
use kernels_gpu::backward::params::BackwardParams;
use kernels_gpu::backward::row::{BackwardRow, Pass, STATISTICS_BYTES};
use kernels_gpu::divisor::Divisor;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::params::{ForwardParams, SplitParams};
use kernels_gpu::row::Isa;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The sums of CTAs that share a block start at a multiple of this.
const SUMS_ALIGNMENT: u64 = 128;

/// One launch of a plan.
#[derive(Clone, Debug)]
pub struct BackwardStep {
    kernel: Arc<Kernel<BackwardRow>>,
    grid: u32,
    /// Q, dO, K and V without their addresses, where the kernel's copies need tensor maps.
    boxes: Option<[TensorBox; 4]>,
    /// Why no kernel with wgmma was taken.
    obstacle: Option<Arc<Error>>,
}

impl BackwardStep {
    /// The kernel.
    pub fn kernel(&self) -> &Kernel<BackwardRow> {
        &self.kernel
    }

    /// CTAs of a launch.
    pub fn grid(&self) -> u32 {
        self.grid
    }

    /// Why no kernel with wgmma was taken on a device that runs them.
    pub fn obstacle(&self) -> Option<&Error> {
        self.obstacle.as_deref()
    }

    /// The step with a kernel that computes the problem; where keys are stationary, `query_splits` CTAs share a block of them.
    fn new(
        backward: &Backward,
        kernel: &Arc<Kernel<BackwardRow>>,
        query_splits: u32,
        device: &DeviceInfo,
    ) -> Result<Self, Error> {
        let grid = ctas(backward, &kernel.row, query_splits);
        limit("the number of CTAs (batch × heads × blocks)", grid.map_or(u64::MAX, u64::from), GRID_MAX)?;
        let boxes = boxes(backward, &kernel.row, device)?;
        Ok(Self { kernel: kernel.clone(), grid: grid.unwrap_or(u32::MAX), boxes, obstacle: None })
    }
}

/// The plan of a backward pass: its launches, in order, on one stream and in one workspace. Either `dq` and `dkv`, which compute seven
/// products; or five: the statistics of all queries, and then `dqdkv`, which keeps dS of some heads after others, or for some heads after
/// others two launches, `dkvds`, which keeps it, and `dqds`.
#[derive(Clone, Debug)]
pub struct BackwardPlan {
    backward: Backward,
    steps: Vec<BackwardStep>,
    chunks: Option<Chunks>,
    pub(super) params: BackwardParams,
    statistics_bytes: u64,
    pub(super) sums_offset: Option<u64>,
    workspace_bytes: u64,
}

impl BackwardPlan {
    /// The plan for a device with the kernels of a library.
    ///
    /// # Errors
    /// [`Error::NoSuchKernel`], [`Error::TooLarge`].
    pub fn new(backward: &Backward, library: &Library, device: &DeviceInfo) -> Result<BackwardPlan, Error> {
        Pairs::of_library(backward, library, device)?.taken()
    }

    /// The plan for a device with the kernels of the table, compiled or not: for planning alone.
    ///
    /// # Errors
    /// Those of [`BackwardPlan::new`].
    pub fn of_table(backward: &Backward, device: &DeviceInfo) -> Result<BackwardPlan, Error> {
        Pairs::of_table(backward, device)?.taken()
    }

    /// The plans with every pair of the kernels of a library that are the narrowest of their family for a problem,
    /// [`BackwardPlan::new`]'s first.
    ///
    /// # Errors
    /// Those of [`BackwardPlan::new`].
    pub fn all(
        backward: &Backward,
        library: &Library,
        device: &DeviceInfo,
    ) -> Result<Vec<BackwardPlan>, Error> {
        Pairs::of_library(backward, library, device)?.plans()
    }

    /// As [`BackwardPlan::all`], with the kernels of the table, compiled or not: for planning alone.
    ///
    /// # Errors
    /// Those of [`BackwardPlan::new`].
    pub fn all_of_table(backward: &Backward, device: &DeviceInfo) -> Result<Vec<BackwardPlan>, Error> {
        Pairs::of_table(backward, device)?.plans()
    }

    /// As few plans as together have every kernel that [`BackwardPlan::all`] has, [`BackwardPlan::new`]'s first: to verify each kernel.
    ///
    /// # Errors
    /// Those of [`BackwardPlan::new`].
    pub fn covering(
        backward: &Backward,
        library: &Library,
        device: &DeviceInfo,
    ) -> Result<Vec<BackwardPlan>, Error> {
        let (mut chosen, mut covered) = (Vec::new(), BTreeSet::new());
        let all = BackwardPlan::all(backward, library, device)?;
        // First the plans of which all kernels are new, then what is left of the longer list.
        for all_new in [true, false] {
            for plan in &all {
                let entries = plan.entries();
                let known = entries.iter().filter(|entry| covered.contains(*entry)).count();
                if if all_new { known == 0 } else { known < entries.len() } {
                    covered.extend(entries);
                    chosen.push(plan.clone());
                }
            }
        }
        Ok(chosen)
    }

    /// The plan with these kernels, in the order of their launches: two, or one that has CTAs of two kinds; `splits` CTAs share a block of keys.
    fn of(
        backward: &Backward,
        kernels: &[&Arc<Kernel<BackwardRow>>],
        splits: u32,
        chunks: Option<Chunks>,
        device: &DeviceInfo,
    ) -> Result<BackwardPlan, Error> {
        let of = |keeps_keys: bool| kernels.iter().find(|kernel| kernel.row.pass.keeps_keys() == keeps_keys);
        let keeping_keys = of(true).unwrap_or(&kernels[0]);
        let [dkv, dq] = of(false).map_or(keeping_keys.row.parts(), |dq| [keeping_keys.row, dq.row]);
        let problem = backward.problem();
        let sizes = problem.sizes();
        let (queries, keys) = (problem.extent(TensorRole::Q), problem.extent(TensorRole::K));
        let rows = problem.lse_len() as u64;
        limit("the number of query rows of all heads (batch × heads_q × seqlen_q)", rows, GRID_MAX)?;
        let is_packed = problem.queries() != QuerySequences::Batch;
        let query_blocks = blocks(queries.rows, dq.block_m, is_packed.then_some(sizes.batch));
        let is_packed = problem.keys() != KeySequences::Batch;
        let key_blocks = blocks(keys.rows, dkv.block_n, is_packed.then_some(sizes.batch));
        let of_bias = bias_tiles(backward).map_or(0, |tiles| tiles.iter().product());
        limit("the number of CTAs of the gradient of the bias", of_bias, GRID_MAX)?;
        let mut steps = Vec::new();
        for kernel in kernels {
            steps.push(BackwardStep::new(backward, kernel, splits, device)?);
        }
        let mut heads = keys.batch.saturating_mul(keys.heads);
        if let Some(chunks) = &chunks {
            heads = chunks.heads_kv;
            steps.iter_mut().for_each(|step| step.grid /= chunks.launches());
        }
        let strides = |role| of_one_batch(problem, role, problem.byte_strides(role));
        let of_gradient = |role| of_one_batch(problem, role, backward.byte_strides(role));
        let forward = ForwardParams {
            q_strides: strides(TensorRole::Q),
            k_strides: strides(TensorRole::K),
            v_strides: strides(TensorRole::V),
            o_strides: strides(TensorRole::O),
            seqlen_q: queries.rows,
            seqlen_k: sizes.seqlen_k,
            heads_q: sizes.heads_q,
            batch: sizes.batch,
            tile_heads: Divisor::new(sizes.heads_q),
            group: Divisor::new(problem.group()),
            query_blocks: Divisor::new(query_blocks),
            heads_together: Divisor::new(1),
            causal: problem.causal().into(),
            scale_log2: problem.score().factors(problem.scale()).0,
            ragged: ragged::params(problem, dq.block_m, 0),
            ..ForwardParams::default()
        };
        let params = BackwardParams {
            forward,
            d_o_strides: of_gradient(TensorRole::O),
            d_q_strides: of_gradient(TensorRole::Q),
            d_k_strides: of_gradient(TensorRole::K),
            d_v_strides: of_gradient(TensorRole::V),
            key_blocks: Divisor::new(key_blocks),
            heads_kv: Divisor::new(sizes.heads_kv),
            key_block_rows: Divisor::new(dkv.block_n),
            kv_heads_together: Divisor::new(kv_heads_together(backward, keeping_keys, device, heads)),
            scale: problem.scale(),
            ds_heads: Divisor::new(chunks.map_or(1, |chunks| chunks.heads_kept() * problem.group())),
            order: chunks
                .map_or(Order::default(), |of| of.order(key_blocks * splits, query_blocks * problem.group())),
            query_splits: Divisor::new(splits),
            sums_row_bytes: dkv.head_dim * 4,
            ds_groups: chunks.map_or(0, |chunks| chunks.groups),
            ds_block_rows: dkv.block_m,
            ..BackwardParams::default()
        };
        let statistics_bytes = (rows * u64::from(STATISTICS_BYTES)).next_multiple_of(COUNTER_BYTES);
        let of_ds = chunks.map_or(0, |chunks| chunks.workspace_bytes());
        let kept_bytes = (statistics_bytes + of_ds).next_multiple_of(SUMS_ALIGNMENT);
        let blocks = u64::from(keys.batch) * u64::from(keys.heads) * u64::from(key_blocks);
        let of_block = 2 * u64::from(splits) * u64::from(dkv.block_n * params.sums_row_bytes);
        let sums_bytes = if splits > 1 { blocks * of_block } else { 0 };
        Ok(BackwardPlan {
            backward: *backward,
            steps,
            chunks,
            params,
            statistics_bytes,
            sums_offset: (splits > 1).then_some(kept_bytes),
            workspace_bytes: COUNTERS_BYTES + kept_bytes + sums_bytes,
        })
    }

    /// Notes of its kernels without wgmma why those with it cannot be taken, if they cannot: a choice of kernels says so of all.
    fn say_why_without_wgmma(&mut self, choice: &Choice) {
        for step in self.steps.iter_mut().filter(|step| step.kernel.row.isa == Isa::Mma) {
            step.obstacle.clone_from(&choice.obstacle);
        }
    }

    /// The gradients.
    pub fn backward(&self) -> &Backward {
        &self.backward
    }

    /// Its kernels, in the order of their launches.
    pub fn steps(&self) -> &[BackwardStep] {
        &self.steps
    }

    /// Their entries.
    pub fn entries(&self) -> Vec<String> {
        self.steps.iter().map(|step| step.kernel.entry.clone()).collect()
    }

    /// How often its kernels are launched, each time for as many heads: more than once only where two kernels keep dS.
    pub fn chunks(&self) -> u32 {
        self.chunks.map_or(1, |chunks| chunks.launches())
    }

    /// KV heads, of all batch entries, of which dS is kept at a time; 0 where it is not.
    pub fn heads_kept(&self) -> u32 {
        self.chunks.map_or(0, |chunks| chunks.heads_kept())
    }

    /// CTAs of the launch before these kernels that computes the statistics of all queries, where they keep dS.
    pub fn statistics_ctas(&self) -> Option<u32> {
        let extent = self.backward.problem().extent(TensorRole::Q);
        self.chunks.map(|_| extent.batch * extent.heads * extent.rows.div_ceil(STATISTICS_ROWS))
    }

    /// CTAs that share a block of keys, and divide the queries that see it.
    pub fn query_splits(&self) -> u32 {
        self.params.query_splits.value
    }

    /// Bytes of workspace that a pass needs: counters, which it leaves as they are, 8 bytes a query row, dS where it is kept, and the sums of CTAs
    /// that share a block of keys.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// Bytes of dS in it, at most [`Backward::ds_bytes_max`].
    pub fn ds_bytes(&self) -> u64 {
        self.chunks.map_or(0, |chunks| chunks.bytes)
    }

    /// Q, dO, K and V of a launch, where its kernel's copies need tensor maps.
    pub(crate) fn tensors(&self, step: usize, at: &BackwardTensors) -> Option<[TensorBox; 4]> {
        let [q, d_o, k, v] = self.steps[step].boxes?;
        Some([q.at(at.forward.q), d_o.at(at.d_o), k.at(at.forward.k), v.at(at.forward.v)])
    }

    /// The parameters of the launches of all kernels in order, each with the number of its kernel.
    pub(crate) fn launches(
        &self,
        at: &BackwardTensors,
        workspace: u64,
    ) -> impl Iterator<Item = (usize, BackwardParams)> {
        let params = self.params(at, workspace);
        (0..self.chunks()).flat_map(move |chunk| {
            let of_step =
                move |step: &BackwardStep| BackwardParams { first_tile: chunk * step.grid, ..params };
            self.steps.iter().map(of_step).enumerate()
        })
    }

    /// What the parameters of all launches have in common.
    pub(crate) fn params(&self, at: &BackwardTensors, workspace: u64) -> BackwardParams {
        let forward = &self.params.forward;
        let operands = at.forward.operands.map(|address| address.unwrap_or(0));
        let kept = workspace + COUNTERS_BYTES + self.statistics_bytes;
        BackwardParams {
            forward: ForwardParams {
                q: at.forward.q,
                k: at.forward.k,
                v: at.forward.v,
                o: at.forward.o,
                lse: at.forward.lse.unwrap_or(0),
                split: SplitParams { seqlens_k: at.forward.seqlens_k.unwrap_or(0), ..forward.split },
                ragged: ragged::at(forward.ragged, &operands, at.forward.q),
                ..*forward
            },
            d_o: at.d_o,
            d_lse: at.d_lse.unwrap_or(0),
            d_q: at.d_q,
            d_k: at.d_k,
            d_v: at.d_v,
            statistics: workspace + COUNTERS_BYTES,
            d_s: self.chunks.map_or(0, |chunks| kept + chunks.ds_offset()),
            ds_starts: self.chunks.map_or(0, |_| kept),
            counters: self
                .chunks
                .and_then(|chunks| chunks.counters_offset())
                .map_or(0, |offset| kept + offset),
            sums: self.sums_offset.map_or(0, |offset| workspace + COUNTERS_BYTES + offset),
            ..self.params
        }
    }
}

/// Pairs of a query and a key of a head from which on it is worth to keep dS: at head_dim 64 and 128 it was 1.06 to 1.36 times as fast in 18 random
/// problems from 217 × 217 on, at 96 1.08 to 1.31 times in seven, 0.96 to 1.04 in four with few KV heads, and 0.71 and 0.79 at 128 × 128.
const PAIRS_LEAST: u64 = 1 << 15;
/// The same with mma.sync: from 512 × 512 on they were 1.03 to 1.45 times as fast, at 400 × 400 of few heads 0.81 to 1.0.
const PAIRS_LEAST_MMA: u64 = 1 << 18;
/// The same of kernels that are wider than those that do not keep it.
const PAIRS_LEAST_WIDER: u64 = 1 << 22;
const WIDE: u32 = 128;

/// Whether a device has HBM, whose rate makes writing and reading dS cheaper than two products of mma.sync. At head_dim 128 a pass moves 4 bytes of dS
/// for each 1280 FLOP; an L4's memory moves 2.5 bytes in the time of 1000 FLOP, an RTX 4090's 6, an A100's 6.5 (data sheets). Measured on an H200 alone.
fn has_fast_memory(device: &DeviceInfo) -> bool {
    matches!(device.sm, 80 | 90..120)
}

/// The kernels of each pass that compute a problem on a device.
struct Pairs<'a> {
    backward: &'a Backward,
    device: &'a DeviceInfo,
    choices: [Choice; 2],
    /// Of those that keep dS, where it can be kept: in one launch, or in two.
    joined: Option<Choice>,
    spilling: Option<[Choice; 2]>,
}

impl<'a> Pairs<'a> {
    fn of_library(
        backward: &'a Backward,
        library: &Library,
        device: &'a DeviceInfo,
    ) -> Result<Pairs<'a>, Error> {
        let kernels = library.backward_kernels().iter();
        let runs = kernels.filter(|kernel| library.source(kernel, device.sm).is_some());
        Pairs::new(backward, runs.cloned().collect(), device, &library.folder().display().to_string())
    }

    fn of_table(backward: &'a Backward, device: &'a DeviceInfo) -> Result<Pairs<'a>, Error> {
        let mut kernels = module::backward_kernels_of_table();
        kernels.retain(|kernel| module::runs_on(&kernel.family, device.sm));
        Pairs::new(backward, kernels, device, "the table")
    }

    /// `origin` is where the kernels are from.
    fn new(
        backward: &'a Backward,
        mut kernels: Vec<Arc<Kernel<BackwardRow>>>,
        device: &'a DeviceInfo,
        origin: &str,
    ) -> Result<Pairs<'a>, Error> {
        kernels.retain(|kernel| kernel.smem_bytes <= device.smem_opt_in_bytes);
        let of = |pass| choose(backward, pass, &kernels, device, origin);
        // Not every score and device has them.
        let joined = of(Pass::DqDkv).ok();
        let mut spilling = of(Pass::DkvDs).and_then(|dkv| Ok([dkv, of(Pass::DqDs)?])).ok();
        if let (Some(joined), Some([dkv, _])) = (&joined, &mut spilling) {
            // Wider ones of the same family would add up in other blocks, and so have other bits.
            let joined = joined.kernels[0].row;
            dkv.kernels.retain(|dkv| dkv.row.isa != joined.isa || dkv.row.head_dim == joined.head_dim);
        }
        Ok(Pairs { backward, device, choices: [of(Pass::Dq)?, of(Pass::Dkv)?], joined, spilling })
    }

    /// The plan that is taken.
    fn taken(&self) -> Result<BackwardPlan, Error> {
        match self.keeping_ds()?.into_iter().next().filter(|plan| self.is_faster_than_seven(plan)) {
            Some(plan) => Ok(plan),
            None => self.plan([0, 0]),
        }
    }

    /// Whether five products and what dS takes in memory are less than seven products, as measured on an H200: always where the seven have no
    /// wgmma and these have, and never the reverse. Neither batch nor heads are asked, nor the lengths of packed sequences, so that a sequence has
    /// the same bits in every batch.
    fn is_faster_than_seven(&self, five: &BackwardPlan) -> bool {
        let problem = self.backward.problem();
        let [queries, keys] = [TensorRole::Q, TensorRole::K].map(|role| u64::from(problem.extent(role).rows));
        let (five, seven) = (&five.steps[0].kernel.row, &self.choices[0].kernels[0].row);
        let is_of_width = five.head_dim == seven.head_dim;
        let is_long = match problem.queries() {
            QuerySequences::Batch => {
                let least = if five.isa == Isa::Mma { PAIRS_LEAST_MMA } else { PAIRS_LEAST };
                queries * keys >= if is_of_width { least } else { PAIRS_LEAST_WIDER }
            }
            QuerySequences::Packed { .. } => is_of_width && (five.head_dim >= WIDE || five.isa == Isa::Mma),
        };
        match (five.isa, seven.isa) {
            (Isa::Wgmma, Isa::Mma) => return true,
            (Isa::Mma, Isa::Wgmma) => return false,
            (Isa::Mma, Isa::Mma) if !has_fast_memory(self.device) => return false,
            _ => {}
        }
        5 * five.head_dim < 7 * seven.head_dim && is_long
    }

    /// The plan with one kernel of each pass that keeps nothing; of those at 0 are taken.
    fn plan(&self, at: [usize; 2]) -> Result<BackwardPlan, Error> {
        let [dq, dkv] = [0, 1].map(|pass: usize| &self.choices[pass].kernels[at[pass]]);
        let splits = query_splits(self.backward, dkv, self.device);
        let mut plan = BackwardPlan::of(self.backward, &[dq, dkv], splits, None, self.device)?;
        plan.say_why_without_wgmma(&self.choices[0]);
        Ok(plan)
    }

    /// The plans with every pair, the one that is taken first.
    fn plans(&self) -> Result<Vec<BackwardPlan>, Error> {
        let [dq, dkv] = self.choices.each_ref().map(|choice| choice.kernels.len());
        let mut plans = Vec::new();
        for index in 0..dq * dkv {
            plans.push(self.plan([index / dkv, index % dkv])?);
        }
        let keeping = self.keeping_ds()?;
        let is_faster = keeping.first().is_some_and(|plan| self.is_faster_than_seven(plan));
        let at = if is_faster { 0 } else { plans.len() };
        plans.splice(at..at, keeping);
        Ok(plans)
    }

    /// The plans that keep dS, where it can be kept: with wgmma first, of these those of one launch, but behind the others where they have less room
    /// than they want.
    fn keeping_ds(&self) -> Result<Vec<BackwardPlan>, Error> {
        let joined = self.joined.iter().flat_map(|choice| &choice.kernels);
        let mut all: Vec<_> = joined.map(|kernel| vec![kernel]).collect();
        if let Some([dkv, dq]) = &self.spilling {
            for dkv in &dkv.kernels {
                // Of one family: it reads what kernels of its own write.
                let of_family = dq.kernels.iter().filter(|dq| dq.row.isa == dkv.row.isa);
                all.extend(of_family.map(|dq| vec![dkv, dq]));
            }
        }
        let mut plans = Vec::new();
        for kernels in all {
            let splits = query_splits(self.backward, kernels[0], self.device);
            let chunks = Chunks::new(self.backward, kernels[0], splits, self.device);
            if chunks.is_some() {
                let mut plan = BackwardPlan::of(self.backward, &kernels, splits, chunks, self.device)?;
                plan.say_why_without_wgmma(&self.choices[0]);
                plans.push(plan);
            }
        }
        plans.sort_by_key(|plan| {
            let is_mma = plan.steps.iter().any(|step| step.kernel.row.isa == Isa::Mma);
            (is_mma, plan.chunks.is_some_and(|chunks| !chunks.is_roomy))
        });
        Ok(plans)
    }
}

/// Blocks of `rows` rows, or of so many packed sequences: each has room for one block more than it needs at most.
pub(super) fn blocks(rows: u32, block: u32, sequences: Option<u32>) -> u32 {
    sequences.map_or(rows.div_ceil(block), |sequences| rows / block + sequences)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceModel;
    use crate::problem::{Problem, Sizes};
    use kernels_gpu::row::Dtype;

    #[test]
    fn under_a_causal_mask_heads_take_their_longest_blocks_of_keys_together() {
        let together = |batch: u32, heads_q: u32, heads_kv: u32, causal: bool| {
            let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q: 4096, seqlen_k: 4096, head_dim: 128 };
            let problem = Problem::new(sizes, Dtype::Bf16).expect("valid").with_causal(causal);
            let backward = Backward::new(&problem).expect("it has kernels");
            let plans = BackwardPlan::all_of_table(&backward, &DeviceModel::H200.info()).expect("planned");
            let is_wgmma = |plan: &&BackwardPlan| plan.steps[0].kernel.row.isa == Isa::Wgmma;
            let keeping = plans.iter().filter(|plan| plan.statistics_ctas().is_some()).filter(is_wgmma);
            keeping.map(|plan| plan.params.kv_heads_together.value).collect::<Vec<_>>()
        };
        // 132 SMs with a CTA each: in one launch as many heads as half of them have blocks for, 32 each, else eight of a head.
        assert_eq!(together(4, 16, 16, true), [2, 16]);
        assert_eq!(together(3, 7, 7, true), [1, 7], "a divisor of the heads");
        assert_eq!(together(1, 64, 8, true), [4, 8], "few heads: as many as all of them have blocks for");
        assert_eq!(together(1, 64, 8, false), [1, 1]);
    }

    #[test]
    fn ds_is_kept_where_that_is_faster_whatever_the_batch() {
        let keeps = |batch: u32, [queries, keys]: [u32; 2], head_dim: u32, device: &DeviceInfo| {
            let sizes = Sizes { batch, heads_q: 8, heads_kv: 4, seqlen_q: queries, seqlen_k: keys, head_dim };
            let backward =
                Backward::new(&Problem::new(sizes, Dtype::Bf16).expect("valid")).expect("it has kernels");
            let plan = BackwardPlan::of_table(&backward, device).expect("planned");
            let first = BackwardPlan::all_of_table(&backward, device).expect("planned").remove(0);
            assert_eq!(first.steps()[0].kernel().entry, plan.steps()[0].kernel().entry);
            plan.statistics_ctas().is_some()
        };
        let h200 = DeviceModel::H200.info();
        for batch in [1, 64] {
            assert!(keeps(batch, [256, 128], 128, &h200) && !keeps(batch, [256, 127], 128, &h200));
            assert!(keeps(batch, [256, 128], 64, &h200) && !keeps(batch, [256, 127], 64, &h200));
            assert!(keeps(batch, [256, 128], 80, &h200) && !keeps(batch, [256, 127], 80, &h200));
        }
        assert!(keeps(1, [1, 1], 256, &h200), "with wgmma, and no other kernels of this width are");
        // Of packed sequences the width decides alone, whose lengths differ from batch to batch.
        let packed = |rows: u32, longest: u32, head_dim: u32| {
            let sizes =
                Sizes { batch: 3, heads_q: 8, heads_kv: 4, seqlen_q: longest, seqlen_k: longest, head_dim };
            let problem = Problem::new(sizes, Dtype::Bf16).and_then(|of| of.with_packed_queries(rows));
            let problem = problem.and_then(|of| of.with_packed_keys(rows)).expect("valid");
            let backward = Backward::new(&problem).expect("it has kernels");
            BackwardPlan::of_table(&backward, &h200).expect("planned").statistics_ctas().is_some()
        };
        assert!(packed(3, 1, 128) && packed(60000, 8192, 128));
        assert!(!packed(60000, 8192, 64) && !packed(60000, 8192, 96));
        let a100 = DeviceModel::find("a100").expect("known").info();
        assert!(keeps(1, [512, 512], 64, &a100) && !keeps(64, [512, 511], 64, &a100));
        assert!(
            !keeps(1, [2048, 2048], 128, &DeviceModel::L4.info()),
            "its memory is slower than its products"
        );
    }
}
