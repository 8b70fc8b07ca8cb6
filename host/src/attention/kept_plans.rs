//! Plans by problem, so that a repeated call looks one up and plans nothing.

use crate::error::Error;
use crate::plan::Plan;
use crate::problem::Problem;
use foldhash::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The most plans kept; with one more, all are let go. A server that sees ever new lengths stays small.
const PLANS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct KeptPlans(RwLock<HashMap<Problem, Arc<Plan>>>);

impl KeptPlans {
    /// The plan for a problem: the one that is kept, or what `make` makes.
    pub(super) fn get(
        &self,
        problem: &Problem,
        make: impl FnOnce() -> Result<Plan, Error>,
    ) -> Result<Arc<Plan>, Error> {
        // Every step of a training has another seed or offset.
        let without_seed = problem.dropout().map(|_| problem.without_seed());
        let alike = without_seed.as_ref().unwrap_or(problem);
        let own = |plan: &Arc<Plan>| match without_seed {
            None => plan.clone(),
            Some(_) => Arc::new(plan.with_dropout_of(problem)),
        };
        if let Some(plan) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(alike) {
            return Ok(own(plan));
        }
        let plan = Arc::new(make()?);
        let mut plans = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        Ok(own(plans.entry(*alike).or_insert(plan)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::model::DeviceModel;
    use crate::plan::{PlanOptions, Planner};
    use crate::problem::Sizes;
    use kernels_gpu::row::Dtype;

    #[test]
    fn a_problem_is_planned_once_and_another_scale_is_another_problem() {
        let planner = Planner::of_table(&DeviceModel::L4.info());
        let sizes = Sizes { batch: 1, heads_q: 4, heads_kv: 2, seqlen_q: 70, seqlen_k: 300, head_dim: 64 };
        let problem = Problem::new(sizes, Dtype::F16).expect("valid");
        let plans = KeptPlans::default();
        let mut made = 0;
        let mut get = |problem: &Problem| {
            let make = || {
                made += 1;
                planner.plan(problem, &PlanOptions::new())
            };
            plans.get(problem, make).expect("planned")
        };
        let first = get(&problem);
        assert!(Arc::ptr_eq(&first, &get(&problem)));
        let other = problem.with_scale(0.5).expect("valid");
        assert!(!Arc::ptr_eq(&first, &get(&other)));
        for seqlen_q in 1..=PLANS_MAX as u32 + 1 {
            let sizes = Sizes { seqlen_q, ..sizes };
            get(&Problem::new(sizes, Dtype::Bf16).expect("valid"));
        }
        assert!(!Arc::ptr_eq(&first, &get(&problem)), "let go with the others");
        assert_eq!(made, 2 + PLANS_MAX + 1 + 1);
    }
}
