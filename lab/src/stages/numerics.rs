//! Stage 4: the numbers are attention, on the problems that are timed and on hidden ones.

use super::{Context, Stage, State};
use crate::error::Result;
use crate::evaluation::Outcome;
use crate::exam::hidden_problems;
use crate::inputs::{self, RealTensors};
use crate::job::{Report, Task};
use crate::problem_spec::{ProblemSpec, Shape};

/// Examines.
pub(super) struct Numerics;

impl Stage for Numerics {
    fn name(&self) -> &'static str {
        "numerics"
    }

    fn run(&self, state: &mut State, context: &Context) -> Result<Outcome> {
        let problems = &context.config.problems;
        let real = RealTensors::read(&context.real())?;
        inputs::check_real(&problems.inputs, real.as_ref(), &context.real())?;
        let row = &state.candidate.row;
        let mut specs = hidden_problems(row, problems.hidden.len(), context.hidden_seed);
        let known = problems.of_row(row, context.machine.simulated)?;
        specs.extend(
            known
                .into_iter()
                .map(|spec| if context.machine.simulated || is_large(&spec) { smaller(spec) } else { spec }),
        );
        let task = Task::Examine {
            kinds: problems.inputs.clone(),
            real: context.real(),
            error_share: context.config.tolerances.error_share.get(),
        };
        let limit = context.config.limits.test_s.duration();
        let kernel = state.kernel()?.clone();
        let done = context.child(&kernel, &state.candidate.name, self.name(), task, specs, limit)?;
        match done.report {
            Report::Examined(examined) => state.evaluation.examined = examined,
            Report::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
            _ => {}
        }
        Ok(Outcome::Passed)
    }
}

/// Operations over which float64 on the host takes longer than all that is timed. Of larger problems each timed replay is still
/// compared in samples.
const LARGE_FLOPS: f64 = 1e10;

fn is_large(spec: &ProblemSpec) -> bool {
    spec.flops() > LARGE_FLOPS
}

/// A problem with two KV heads of one batch entry: heads are computed alike.
fn smaller(spec: ProblemSpec) -> ProblemSpec {
    let [_, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim] = spec.shape.0;
    let kept = heads_kv.min(2);
    ProblemSpec { shape: Shape([1, heads_q / heads_kv * kept, kept, seqlen_q, seqlen_k, head_dim]), ..spec }
}
