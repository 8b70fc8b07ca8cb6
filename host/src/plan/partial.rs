//! A problem over some of its keys, whose O and LSE stay partial: float32 states for [`crate::MergeStates`], beside those of the other keys.

use super::reason::Trace;
use super::splitting::Splitting;
use super::work::Merge;
use super::{Plan, PlanOptions, Planner, Splits};
use crate::error::Error;
use crate::merge::MergeTensors;
use crate::problem::{Problem, TensorRole};

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
        if choice.splitting.splits < 2 {
            choice.splitting = Splitting { splits: 2, ..choice.splitting };
        }
        // Nothing is merged here: neither counters nor a second launch.
        choice.merge = Merge::Fused;
        Ok(PartialPlan { plan: self.build(problem, &options, choice)? })
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
