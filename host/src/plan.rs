//! How one problem is computed on a device: the kernel, its grid, its parameters, and what it keeps in a workspace.

pub(crate) mod backward;
mod backward_choice;
mod backward_chunks;
mod backward_splits;
mod backward_steps;
mod candidate;
pub mod cascade;
mod choice;
mod combining;
pub mod cost;
pub mod curves;
mod numbers;
mod order;
mod own_keys;
pub mod partial;
mod planner;
pub mod profile;
mod ragged;
mod reason;
mod splitting;
mod tensors;
mod tiling;
pub mod work;

pub use own_keys::OwnTensors;
pub use planner::Planner;
pub use reason::{Estimate, NotWgmma, Reason};

use crate::device::{DeviceInfo, L2Window, TensorBox};
use crate::error::Error;
use crate::problem::{Operand, Problem, TensorRole};
use candidate::Candidate;
use kernels_gpu::divisor::Divisor;
use kernels_gpu::geometry;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::params::{ForwardParams, OWN_WAITS, PersistentParams, SplitParams, Strides};
use kernels_gpu::row::{Accumulation, Isa, Schedule};
use kernels_gpu::steps::StepRow;
use own_keys::OwnKeys;
use splitting::Splitting;
use std::sync::Arc;
use tiling::{Posed, Tiling};
use work::{Fill, Merge, Work};

/// The most CTAs along the first dimension of a grid, and the most rows that the kernels' divisors take.
const GRID_MAX: u64 = (1 << 31) - 1;
/// The most heads that a grid takes in turns, unless it takes all.
const HEADS_TOGETHER_MAX: u32 = 1024;
/// Bytes that parts of a workspace start at multiples of, and the fewest it has: the persistent schedule's counter.
pub(crate) const COUNTER_BYTES: u64 = 256;
/// Bytes at the start of a workspace that hold counters and nothing else, of whichever plan, so that they are 0 whenever no launch
/// uses them. A workspace of fewer bytes is all counters.
pub(crate) const COUNTERS_BYTES: u64 = COUNTERS_MAX * 4;
/// The most tiles whose last CTAs merge their splits: a counter each.
const COUNTERS_MAX: u64 = 4096;

/// What a plan may be made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Which kernels.
    pub rows: RowSelection,
    /// How many ranges of keys.
    pub splits: Splits,
    /// Only kernels of this schedule; `None` leaves it to the plan.
    pub schedule: Option<Schedule>,
    /// Heads whose query blocks a grid takes in turns, at most 1024 or all, rounded down to a divisor of batch × heads; `None` leaves it to
    /// the plan. [`Schedule::Split`] has no use for it.
    pub heads_together: Option<u32>,
    /// Where several splits are merged.
    pub combine: Combine,
    /// Only kernels with this accumulation, where the plan chooses one. float16 is never chosen unless it is asked for: the tensor cores of
    /// GeForce cards of sm_86 and sm_89 take its sums at twice the rate, and O is less exact.
    pub accumulation: Accumulation,
}

/// Which of the rows that can compute a problem are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RowSelection {
    /// The one that is estimated to be the fastest.
    #[default]
    Best,
    /// Every one.
    All,
    /// The one of this name; with a name of another dtype or head_dim, none.
    Named(String),
}

/// Into how many ranges the keys are split, each of which CTAs of its own work on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Splits {
    /// As many as are estimated to be the fastest.
    #[default]
    Auto,
    /// At most so many, 1 to [`kernels_gpu::geometry::SPLITS_MAX`], on a kernel that can split; fewer where there are not as many blocks of keys.
    Count(u32),
    /// A range of so many keys each, rounded up to the kernel's blocks.
    ///
    /// The kernel is then chosen without regard to batch and device size, so that a sequence's result is the same in every bit
    /// alone, in any batch, and in a longer K and V of which the lengths on the device leave as much: it depends on the sequence,
    /// the split size, the number of query rows and heads, the device's architecture and its shared memory.
    Size(u32),
}

/// Where the partial O and LSE of several splits are merged: every bit of the result is the same either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// As is estimated to be faster.
    #[default]
    Auto,
    /// In the same launch, by the CTA of each tile that finishes last: up to 4096 tiles.
    Fused,
    /// In a launch of its own.
    Kernel,
}

/// How one problem is computed: kernels, grids, and parameters but for the addresses.
#[derive(Clone, Debug)]
pub struct Plan {
    kernel: Arc<Kernel>,
    problem: Problem,
    grid: u32,
    resident_ctas: u32,
    params: ForwardParams,
    /// Q, K and V but for their addresses, where bulk copies have to be told of them.
    tensors: Option<[TensorBox; 3]>,
    own: Option<OwnKeys>,
    combine: Option<Arc<Kernel<StepRow>>>,
    /// Query rows of a CTA of `combine`, 1 where there is none.
    combine_rows: u32,
    workspace_bytes: u64,
    l2_window_bytes: u64,
}

/// The addresses of a launch, on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Q.
    pub q: u64,
    /// K.
    pub k: u64,
    /// V.
    pub v: u64,
    /// O.
    pub o: u64,
    /// LSE, 0 where none is wanted.
    pub lse: u64,
    /// Keys of each sequence, 0 where all have seqlen_k.
    pub seqlens_k: u64,
    /// What else the problem takes, by [`Operand`]; 0 where it takes none.
    pub operands: [u64; Operand::ALL.len()],
    /// The keys of [`Plan::with_own_keys`], where the plan has any.
    pub own: OwnTensors,
    /// The workspace, 0 where the plan needs none.
    pub workspace: u64,
    /// Where the partial O and LSE of the splits go, which then nobody merges; 0 where they go into the workspace.
    pub partials: (u64, u64),
}

impl PlanOptions {
    /// Everything left to the plan.
    pub const fn new() -> PlanOptions {
        PlanOptions {
            rows: RowSelection::Best,
            splits: Splits::Auto,
            schedule: None,
            heads_together: None,
            combine: Combine::Auto,
            accumulation: Accumulation::F32,
        }
    }
}

impl std::fmt::Display for Splits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Splits::Auto => write!(f, "auto splits"),
            Splits::Count(count) => write!(f, "{count} splits"),
            Splits::Size(keys) => write!(f, "splits of {keys} keys"),
        }
    }
}

impl From<RowSelection> for PlanOptions {
    fn from(rows: RowSelection) -> PlanOptions {
        PlanOptions { rows, ..PlanOptions::new() }
    }
}

impl std::str::FromStr for RowSelection {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<RowSelection, Self::Err> {
        Ok(match text {
            "best" => RowSelection::Best,
            "all" => RowSelection::All,
            name => RowSelection::Named(name.to_owned()),
        })
    }
}

impl Plan {
    /// A plan of these parts.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where a grid or the workspace is, [`Error::NoTensorMap`].
    fn new(
        problem: &Problem,
        candidate: &Candidate,
        device: &DeviceInfo,
        splitting: Splitting,
        combine: Option<&Arc<Kernel<StepRow>>>,
        options: &PlanOptions,
    ) -> Result<Plan, Error> {
        let row = &candidate.kernel.row;
        let posed = Posed::new(problem);
        let (asked, problem) = (problem, posed.to(row));
        let (sizes, group) = (*problem.sizes(), problem.group());
        let queries = problem.extent(TensorRole::Q);
        let tiling = Tiling::new(problem, row);
        let Tiling { heads: tile_heads, packed_rows, tiles, entries, .. } = tiling;
        limit("the number of query rows that share a KV head", packed_rows, GRID_MAX)?;
        if problem.mask().tree.is_some() {
            let rows = u64::from(queries.batch) * u64::from(queries.rows);
            limit("the number of query rows under a tree mask (batch × seqlen_q)", rows, u32::MAX.into())?;
        }
        let ctas = tiles.saturating_mul(splitting.splits.into());
        limit("the number of CTAs (batch × heads × blocks of queries × splits)", ctas, GRID_MAX)?;
        let resident = device.sm_count * candidate.resident_ctas;
        let grid = match row.schedule {
            Schedule::Grid | Schedule::Split => ctas as u32,
            Schedule::Ragged if row.isa == Isa::Mma || splitting.splits > 1 => ctas as u32,
            // Consumers that share a tile have no next one.
            Schedule::Ragged if geometry::value_groups(row) > 1 => ctas as u32,
            Schedule::Persistent | Schedule::Ragged => (ctas as u32).min(resident),
        };
        let heads = entries * tile_heads;
        let together = match options.heads_together {
            // The number of a tile's splits follows from their order.
            _ if splitting.splits > 1 => 1,
            Some(together) => together,
            None => order::heads_together(problem, row, device, heads),
        };
        let query_blocks = tiling.query_blocks as u32;
        let strides = |role| of_one_batch(problem, role, problem.byte_strides(role));
        let params = ForwardParams {
            q_strides: strides(TensorRole::Q),
            k_strides: strides(TensorRole::K),
            v_strides: strides(TensorRole::V),
            o_strides: strides(TensorRole::O),
            seqlen_q: queries.rows,
            seqlen_k: sizes.seqlen_k,
            heads_q: sizes.heads_q,
            batch: sizes.batch,
            tile_heads: Divisor::new(tile_heads),
            group: Divisor::new(group),
            query_blocks: Divisor::new(query_blocks),
            heads_together: Divisor::new(largest_divisor(heads, together)),
            ascending_blocks: order::ascending_blocks(
                problem,
                candidate.resident_ctas,
                device,
                tiles,
                query_blocks,
            ),
            causal: problem.causal().into(),
            scale_log2: problem.score().factors(problem.scale()).0,
            persistent: PersistentParams { tiles: tiles as u32, ..PersistentParams::default() },
            split: splitting.params(),
            ragged: ragged::params_of_row(problem, row, &tiling),
            ..ForwardParams::default()
        };
        let mut plan = Plan {
            kernel: candidate.kernel.clone(),
            problem: *asked,
            grid,
            resident_ctas: candidate.resident_ctas,
            params,
            tensors: (row.isa == Isa::Wgmma).then(|| tensors::boxes(problem, row)).transpose()?,
            own: None,
            combine: combine.cloned(),
            combine_rows: combine.map_or(1, |_| work::combine_rows(asked, device)),
            workspace_bytes: 0,
            l2_window_bytes: device.l2_window_bytes,
        };
        plan.workspace_bytes = match row.schedule {
            _ if plan.draws_tiles() => COUNTER_BYTES,
            Schedule::Grid | Schedule::Persistent => 0,
            Schedule::Split | Schedule::Ragged if splitting.splits == 1 => 0,
            Schedule::Split | Schedule::Ragged => plan.partial_bytes()?,
        };
        Ok(plan)
    }

    /// The kernel that computes attention.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How CTAs take their work.
    pub fn schedule(&self) -> Schedule {
        self.kernel.row.schedule
    }

    /// CTAs of the launch of [`Plan::kernel`].
    pub fn grid(&self) -> u32 {
        self.grid
    }

    /// CTAs of [`Plan::kernel`] that an SM holds at a time, by shared memory, registers and threads.
    pub fn resident_ctas(&self) -> u32 {
        self.resident_ctas
    }

    /// Ranges that the keys are split into; 1 where they are not split.
    pub fn splits(&self) -> u32 {
        self.params.split.splits.value
    }

    /// Keys of a range, in whole blocks; where sequences have lengths, of one that has all keys.
    pub fn split_keys(&self) -> u64 {
        u64::from(self.splitting().blocks) * u64::from(self.kernel.row.block_n)
    }

    fn splitting(&self) -> Splitting {
        let split = &self.params.split;
        let row = &self.kernel.row;
        let blocks = split.blocks_of(Tiling::new(Posed::new(&self.problem).to(row), row).key_blocks);
        Splitting { splits: split.splits.value, blocks, by_sequence: split.split_share != 0 }
    }

    /// Heads whose blocks of query rows are taken in turns: [`PlanOptions::heads_together`].
    pub fn heads_together(&self) -> u32 {
        self.params.heads_together.value
    }

    /// Blocks of query rows of all heads and batch entries.
    pub fn tiles(&self) -> u32 {
        self.params.persistent.tiles
    }

    /// Whether the kernel is told the query heads that share a KV head as one head of all their rows: what it writes is the same.
    pub fn groups_heads(&self) -> bool {
        Posed::new(&self.problem).groups_heads(&self.kernel.row)
    }

    /// Whether CTAs draw one tile after another from a counter: those of the persistent schedule, and those that compute ragged batches with
    /// wgmma where there are more tiles than the device holds CTAs.
    pub fn draws_tiles(&self) -> bool {
        match self.schedule() {
            Schedule::Persistent => true,
            Schedule::Ragged => self.splits() == 1 && self.grid < self.tiles(),
            Schedule::Grid | Schedule::Split => false,
        }
    }

    /// Bytes of workspace that a launch needs, 0 where none: 256 for the counter of CTAs that draw their tiles; 16384 for the counters of
    /// tiles, and O and LSE of each split in float32.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// What the plan has to do on a device, with sequences as full as `fill` says: what the cost model makes a time of.
    pub fn work(&self, device: &DeviceInfo, fill: Fill) -> Work {
        let merge = match (self.splits(), &self.combine) {
            (1, _) => Merge::Nothing,
            (_, None) => Merge::Fused,
            (_, Some(_)) => Merge::Kernel,
        };
        let (posed, row) = (Posed::new(&self.problem), &self.kernel.row);
        let (problem, of_problem) = (posed.to(row), Work::of_problem(&self.problem, device));
        let full = of_problem.of_kernel(problem, row, &Tiling::new(problem, row), self.resident_ctas);
        let filled = full.filled(fill).with_splits(self.splitting());
        Work { filled, ..full.with_splits(self.splitting(), merge) }
    }

    /// The parameters of a launch with these addresses.
    pub fn params(&self, at: &Addresses) -> ForwardParams {
        let counter = if self.draws_tiles() { at.workspace } else { 0 };
        let persistent = PersistentParams { counter, ..self.params.persistent };
        let ((partial_o, partial_lse), counters) = match at.partials {
            (0, _) => (self.partials(at.workspace), if self.is_fused() { at.workspace } else { 0 }),
            given => (given, 0),
        };
        let split =
            SplitParams { seqlens_k: at.seqlens_k, partial_o, partial_lse, counters, ..self.params.split };
        let ragged = ragged::at(self.params.ragged, &at.operands, at.q);
        let (v, v_strides) = self.own_values(&at.own).unwrap_or((at.v, self.params.v_strides));
        let waits = if at.own.arrived.is_some() { OWN_WAITS } else { 0 };
        ForwardParams {
            q: at.q,
            k: at.k,
            v,
            v_strides,
            own_from: self.params.own_from | waits,
            o: at.o,
            lse: at.lse,
            persistent,
            split,
            ragged,
            ..self.params
        }
    }

    /// Q, K and V as the bulk copies of a launch with these addresses see them, for kernels of [`Isa::Wgmma`]:
    /// [`kernels_gpu::params::WgmmaParams`] holds their maps.
    pub fn tensors(&self, at: &Addresses) -> Option<[TensorBox; 3]> {
        let [q, k, v] = self.tensors?;
        Some([q.at(at.q), k.at(at.k), v.at(at.v)])
    }

    /// The range of addresses that holds K and V, or as much as the device keeps: V where the two lie too far apart. `None` where
    /// the device keeps nothing.
    pub(crate) fn l2_window(&self, k: u64, v: u64) -> Option<L2Window> {
        if self.l2_window_bytes == 0 {
            return None;
        }
        let bytes = |role| self.problem.len(role) as u64 * u64::from(self.problem.dtype().bytes());
        let (k_bytes, v_bytes) = (bytes(TensorRole::K), bytes(TensorRole::V));
        let address = k.min(v);
        let both = (k + k_bytes).max(v + v_bytes) - address;
        let window = if both <= self.l2_window_bytes {
            L2Window { address, bytes: both }
        } else {
            L2Window { address: v, bytes: v_bytes.min(self.l2_window_bytes) }
        };
        Some(window)
    }
}

fn limit(what: &'static str, value: u64, limit: u64) -> Result<(), Error> {
    if value > limit { Err(Error::TooLarge { what, value: value.to_string(), limit }) } else { Ok(()) }
}

/// Strides of a tensor: the first of packed sequences starts where the others do.
fn of_one_batch(problem: &Problem, role: TensorRole, strides: Strides) -> Strides {
    if problem.extent(role).batch == 1 { Strides { batch: 0, ..strides } } else { strides }
}

/// The largest divisor of `n` that is at most `most`, or [`HEADS_TOGETHER_MAX`] where that is less and `n` is more.
fn largest_divisor(n: u32, most: u32) -> u32 {
    if most >= n {
        return n;
    }
    (1..=most.min(HEADS_TOGETHER_MAX)).rev().find(|&divisor| n.is_multiple_of(divisor)).unwrap_or(1)
}

#[cfg(test)]
pub(crate) mod tests;
