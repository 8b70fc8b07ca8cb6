//! Stage 2: the kernel fits the machine and keeps its registers.

use super::{Context, Stage, State, refused};
use crate::error::Result;
use crate::evaluation::Outcome;
use crate::exam::Fault;

/// Compares what ptxas reports with what the machine has.
pub(super) struct ResourcesFit;

impl Stage for ResourcesFit {
    fn name(&self) -> &'static str {
        "resources"
    }

    fn run(&self, state: &mut State, context: &Context) -> Result<Outcome> {
        let machine = context.machine.running(state.candidate.row.isa).limited(&context.config.device);
        let (needed, limit) = (state.evaluation.smem_bytes, machine.smem_opt_in_bytes);
        if needed > limit {
            let (over, name) = (needed - limit, &machine.name);
            let evidence = format!(
                "{needed} bytes of shared memory, {over} over the {limit} that a CTA may have on {name}"
            );
            return Ok(refused(Fault::DoesNotFit, evidence));
        }
        let Some(found) = state.evaluation.resources else {
            return Ok(Outcome::Skipped("no ptxas: registers and spills are not known".to_owned()));
        };
        if found.spill_stores + found.spill_loads > 0 {
            let evidence = format!(
                "{} bytes of spill stores, {} of spill loads, {} registers",
                found.spill_stores, found.spill_loads, found.registers
            );
            return Ok(refused(Fault::Spills, evidence));
        }
        Ok(Outcome::Passed)
    }
}
