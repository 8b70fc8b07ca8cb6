//! What a patch changes beside the kernel that is examined: kernels of other rows, of steps and of the backward pass, about which an evaluation says
//! nothing.

use super::{Context, State};
use crate::error::Result;
use crate::exam::{Fault, Refusal};
use crate::kernels::{self, KernelRef, LaunchCode, Machine};
use ferroflash::Row;
use ferroflash::module::Library;
use kernels_gpu::backward::table::BACKWARD_VARIANTS;
use kernels_gpu::manifest::Kernel;
use kernels_gpu::steps::StepRow;
use kernels_gpu::table::VARIANTS;
use std::sync::Arc;

/// Compares what a patched tree compiled with what the project's own tree compiles of the same row, and notes which other kernels the patch changes. A
/// patch that leaves the row's code as it is has nothing that could be examined, and is refused.
pub(super) fn compare(
    state: &mut State,
    context: &Context,
    (library, kernel): (&Library, &Kernel),
) -> Result<Option<Refusal>> {
    let Some(patch) = state.candidate.patch.clone() else { return Ok(None) };
    let row = state.candidate.row;
    let (own, unpatched) = kernels::find(&unpatched(&row, context)?)?;
    let hash = |library: &Library, kernel: &Kernel| kernels::ptx_hash(library, kernel, &Machine::simulator());
    let is_changed = hash(library, kernel)? != hash(&own, &unpatched)?;
    let steps = changed_steps(&row, own.step_kernels(), library.step_kernels());
    if !is_changed && changes_code(&patch) {
        let others =
            if steps.is_empty() { String::new() } else { format!(" ({} among them)", steps.join(", ")) };
        let evidence = format!(
            "it leaves the code of {} as it is: what it changes in {} is of other kernels{others}, which are not examined, or of none",
            kernel.entry,
            files(&patch).join(", ")
        );
        return Ok(Some(Refusal { fault: Fault::ChangesOthers, evidence }));
    }
    let [code, own_code] = [LaunchCode::read(library, kernel)?, LaunchCode::read(&own, &unpatched)?];
    if let Some(evidence) = code.narrows(&own_code, row.isa) {
        return Ok(Some(Refusal { fault: Fault::Forbidden, evidence }));
    }
    state.evaluation.unexamined = if is_changed { unexamined(&row, &steps, &files(&patch)) } else { steps };
    Ok(None)
}

/// The kernel that the project's own tree makes of a row, compiled once a session.
fn unpatched(row: &Row, context: &Context) -> Result<KernelRef> {
    let name = format!("unpatched-{}", row.entry_name());
    let out = context.ptx_folder(&name);
    if !context.tree.has_compiled(row, &out) {
        let log = context.log(&name, "compile")?;
        let limit = context.config.limits.build_s.duration();
        context.tree.compile(&[*row], &out, &context.machine.arch(), &log, limit)?;
    }
    context.tree.compiled(row, &out)
}

/// The step kernels of two folders that differ, but for the one that merges the splits of the row: it is examined with the row.
fn changed_steps(row: &Row, own: &[Arc<Kernel<StepRow>>], patched: &[Arc<Kernel<StepRow>>]) -> Vec<String> {
    let is_examined = |step: StepRow| row.schedule.splits() && step == StepRow::combine(row.dtype);
    let is_other = |step: &&Arc<Kernel<StepRow>>| {
        let before = own.iter().find(|before| before.entry == step.entry);
        !is_examined(step.row) && before.is_none_or(|before| before.sha256 != step.sha256)
    };
    patched.iter().filter(is_other).map(|step| step.entry.clone()).collect()
}

/// Step kernels by name; of the tables' kernels, which are not compiled, those whose sources the patch may change.
fn unexamined(row: &Row, steps: &[String], files: &[String]) -> Vec<String> {
    let is_of_steps =
        |file: &String| ["append.rs", "copy.rs", "backward/"].iter().any(|name| file.starts_with(name));
    let others = VARIANTS.iter().filter(|other| other.row != *row && other.row.isa == row.isa).count();
    let is_shared = files.iter().any(|file| !is_of_steps(file));
    let rows = is_shared.then(|| format!("up to {others} other rows of the table"));
    let backward = format!("up to {} kernels of the backward pass", BACKWARD_VARIANTS.len());
    steps.iter().cloned().chain(rows).chain([backward]).collect()
}

/// Whether a patch changes more than comments and blank lines.
fn changes_code(patch: &str) -> bool {
    patch.lines().any(|line| {
        let is_head = line.starts_with("+++") || line.starts_with("---");
        let changed = line.strip_prefix(['+', '-']).filter(|_| !is_head).map(str::trim);
        changed.is_some_and(|code| !code.is_empty() && !code.starts_with("//"))
    })
}

/// The files of the device crate's source that a patch changes.
fn files(patch: &str) -> Vec<String> {
    let paths =
        patch.lines().filter_map(|line| line.strip_prefix("+++ ").or_else(|| line.strip_prefix("--- ")));
    let mut files: Vec<String> =
        paths.filter_map(|path| Some(path.split_once("kernels-gpu/src/")?.1.trim().to_owned())).collect();
    files.sort();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::module::kernels_of_table;
    use kernels_gpu::row::Schedule;

    const PATCH: &str =
        "--- a/kernels-gpu/src/append.rs\n+++ b/kernels-gpu/src/append.rs\n@@ -1 +1 @@\n-a\n+b\n";

    #[test]
    fn step_kernels_that_differ_are_named_and_the_one_that_is_examined_with_the_row_is_not() {
        let (_, own) = kernels_of_table();
        let change = |entries: &[&str]| -> Vec<Arc<Kernel<StepRow>>> {
            let changed = |step: &Arc<Kernel<StepRow>>| match entries.contains(&step.entry.as_str()) {
                true => Arc::new(Kernel { sha256: "another".to_owned(), ..Kernel::clone(step) }),
                false => step.clone(),
            };
            own.iter().map(changed).collect()
        };
        let patched = change(&["append_f16", "combine_f16", "copy_runs"]);
        let row = |splits: bool| {
            let found = VARIANTS.iter().find(|variant| {
                variant.row.dtype == ferroflash::Dtype::F16
                    && (variant.row.schedule == Schedule::Split) == splits
            });
            found.expect("a row").row
        };
        assert_eq!(changed_steps(&row(true), &own, &patched), ["append_f16", "copy_runs"]);
        assert_eq!(changed_steps(&row(false), &own, &patched), ["combine_f16", "append_f16", "copy_runs"]);
        assert!(changed_steps(&row(true), &own, &own).is_empty());
        let said = unexamined(&row(true), &["append_f16".to_owned()], &files(PATCH));
        assert_eq!((said.len(), said[0].as_str()), (2, "append_f16"));
        let said = unexamined(&row(true), &[], &["math/softmax.rs".to_owned()]);
        assert!(said[0].ends_with("other rows of the table"), "{said:?}");
    }

    #[test]
    fn comments_are_no_code() {
        assert!(changes_code(PATCH));
        assert!(!changes_code(&PATCH.replace("-a", "-// a").replace("+b", "+    /// b")));
        assert_eq!(files(PATCH), ["append.rs"]);
    }
}
