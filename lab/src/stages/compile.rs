//! Stage 1: the row can be a kernel, and compiles.

use super::{Context, Stage, State, others, refused};
use crate::error::{Error, Result};
use crate::evaluation::Outcome;
use crate::exam::Fault;
use crate::kernels::{self, KernelRef, LaunchCode};
use crate::process;

/// Compiles the candidate, or takes it from a folder of compiled kernels.
pub(super) struct Compile;

impl Stage for Compile {
    fn name(&self) -> &'static str {
        "compile"
    }

    fn run(&self, state: &mut State, context: &Context) -> Result<Outcome> {
        let candidate = &state.candidate;
        if let Err(error) = candidate.check() {
            return Ok(refused(Fault::DoesNotFit, error.to_string()));
        }
        let kernel = match &context.compiled {
            Some(folder) => context.tree.compiled(&candidate.row, folder)?,
            None => match compile(state, context) {
                Ok(kernel) => kernel,
                Err(Error::Failed { reason, log, .. }) => {
                    let said = process::complaint(&log).unwrap_or(reason);
                    let evidence = format!("{said} ({})", log.display());
                    return Ok(refused(Fault::DoesNotCompile, evidence));
                }
                Err(Error::TimedOut { limit, .. }) => {
                    let evidence = format!("the compiler was killed after {} s", limit.as_secs());
                    return Ok(refused(Fault::DoesNotCompile, evidence));
                }
                Err(error) => return Err(error),
            },
        };
        let (library, found) = kernels::find(&kernel)?;
        let hash = kernels::ptx_hash(&library, &found, &context.machine)?;
        if let Some(what) = LaunchCode::read(&library, &found)?.outlives_a_launch() {
            return Ok(refused(Fault::Forbidden, what));
        }
        if let Some(refusal) = others::compare(state, context, (&library, &found))? {
            return Ok(Outcome::Refused(refusal));
        }
        state.evaluation.ptx_sha256 = Some(hash.clone());
        state.evaluation.smem_bytes = found.smem_bytes;
        state.evaluation.resources = context.machine.resources(&found);
        state.kernel = Some(kernel);
        match context.known_ptx.get(&hash) {
            Some(earlier) if *earlier != state.candidate.name => {
                Ok(refused(Fault::Duplicate, earlier.clone()))
            }
            _ => Ok(Outcome::Passed),
        }
    }
}

fn compile(state: &State, context: &Context) -> Result<KernelRef> {
    let candidate = &state.candidate;
    let tree = state.tree.as_ref().unwrap_or(&context.tree);
    let out = context.ptx_folder(&candidate.name);
    let log = context.log(&candidate.name, "compile")?;
    let limit = context.config.limits.build_s.duration();
    tree.compile(&[candidate.row], &out, &context.machine.arch(), &log, limit)?;
    tree.compiled(&candidate.row, &out)
}
