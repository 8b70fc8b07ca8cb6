//! Stage 3: the simulator runs the kernel under several schedules, checks every rule of the machine, and counts.

use super::{Context, Stage, State, without_problems};
use crate::error::Result;
use crate::evaluation::Outcome;
use crate::job::{Report, Task};

/// Simulates.
pub(super) struct Counters;

impl Stage for Counters {
    fn name(&self) -> &'static str {
        "simulate"
    }

    fn run(&self, state: &mut State, context: &Context) -> Result<Outcome> {
        if let Some(skipped) = without_problems(&state.candidate.row) {
            return Ok(skipped);
        }
        let problems = context.config.problems.of_row(&state.candidate.row, true)?;
        let task = Task::Count { schedules: context.config.tolerances.schedules.get() };
        let limit = context.config.limits.test_s.duration();
        let kernel = state.kernel()?.clone();
        let done = context.child(&kernel, &state.candidate.name, self.name(), task, problems, limit)?;
        match done.report {
            Report::Counted(counted) => state.evaluation.counted = counted,
            Report::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
            _ => {}
        }
        Ok(Outcome::Passed)
    }
}
