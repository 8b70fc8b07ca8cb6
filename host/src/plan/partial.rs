//! Partial O and LSE: where those of splits lie in a workspace, and problems over some of their keys whose own stay partial, float32 states
//! for [`crate::MergeStates`], beside those of the other keys.

use super::reason::Trace;
use super::splitting::Splitting;
use super::work::Merge;
use super::{COUNTER_BYTES, COUNTERS_BYTES, GRID_MAX, Plan, PlanOptions, Planner, Splits, limit};
use crate::error::Error;
use crate::merge::MergeTensors;
use crate::problem::{Problem, TensorRole};
use kernels_gpu::geometry;

/// How a problem's partial O and LSE are computed: by a kernel that splits keys, whose splits nobody merges.
#[derive(Clone, Debug)]
pub struct PartialPlan {
    plan: Plan,
}

/// Where partial states lie on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartialStates {
    /// O of the first, float32 `[batch, heads_q, seqlen_q, head_dim]` without gaps, 16-byte aligned; the next follows at once.
    pub o: u64,
    /// LSE of the first, float32 `[batch, heads_q, seqlen_q]`; the next follows at once.
    pub lse: u64,
}

impl Planner {
    /// The plan for a problem's partial states. The keys are split into 2 ranges at least: a kernel writes float32 only where it splits, so
    /// that what has one block of keys has a second state that saw none.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn plan_partial(&self, problem: &Problem, options: &PlanOptions) -> Result<PartialPlan, Error> {
        let mut options = options.clone();
        let mut choice = self.choose(problem, &options, &mut Trace::silent())?;
        if choice.splitting.splits < 2 {
            options.splits = Splits::Count(2);
            choice = self.choose(problem, &options, &mut Trace::silent())?;
        }
        let row = &choice.candidate.kernel.row;
        if geometry::value_slices(row, problem.head_dim_v()) > 1 {
            return Err(Error::NoSuchKernel {
                wanted: format!("whose partial O has rows of {} elements", problem.head_dim_v()),
                available: format!("{} writes them in slices", choice.candidate.kernel.entry),
            });
        }
        if choice.splitting.splits < 2 {
            choice.splitting = Splitting { splits: 2, ..choice.splitting };
        }
        // Nothing is merged here: neither counters nor a second launch.
        choice.merge = Merge::Fused;
        Ok(PartialPlan { plan: self.build(problem, &options, choice)? })
    }
}

impl Plan {
    /// Bytes of a workspace with the partial O and LSE.
    pub(super) fn partial_bytes(&self) -> Result<u64, Error> {
        let rows = self.problem.lse_len() as u64;
        let slices = u64::from(self.params.ragged.slices);
        limit("the number of query rows of all heads (batch × heads_q × seqlen_q)", rows * slices, GRID_MAX)?;
        // Values have at most 512 elements, and there are at most 256 splits: 2^31 · 2^9 · 2^8 · 4 bytes fit.
        let partial_rows = self.partial_rows();
        let row_bytes = u64::from(self.params.ragged.width_v) * 4 + 4;
        Ok(COUNTERS_BYTES + (partial_rows * row_bytes).next_multiple_of(COUNTER_BYTES))
    }

    /// Where the partial O and LSE lie in a workspace; 0 where there are none.
    pub(super) fn partials(&self, workspace: u64) -> (u64, u64) {
        if self.splits() == 1 {
            return (0, 0);
        }
        let partial_o = workspace + COUNTERS_BYTES;
        (partial_o, partial_o + self.partial_rows() * u64::from(self.params.ragged.width_v) * 4)
    }

    /// Rows of the partial O: one a query row, split, and slice of the value vectors.
    fn partial_rows(&self) -> u64 {
        self.problem.lse_len() as u64 * u64::from(self.splits() * self.params.ragged.slices)
    }
}

impl PartialPlan {
    /// The plan, whose splits are the states.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        self.plan.problem()
    }

    /// States.
    pub fn states(&self) -> u32 {
        self.plan.splits()
    }

    /// Bytes of O of a state.
    pub fn o_bytes(&self) -> u64 {
        self.problem().elements(TensorRole::O) as u64 * 4
    }

    /// Bytes of LSE of a state.
    pub fn lse_bytes(&self) -> u64 {
        self.problem().lse_len() as u64 * 4
    }
}

impl PartialStates {
    /// States of `o_bytes` and `lse_bytes` each, as what a merge reads; O and LSE of the result are still to be named.
    pub fn to_merge(&self, o_bytes: u64, lse_bytes: u64) -> MergeTensors {
        MergeTensors {
            partial_o: self.o,
            partial_lse: self.lse,
            next_o: self.o + o_bytes,
            next_lse: self.lse + lse_bytes,
            ..MergeTensors::default()
        }
    }
}
