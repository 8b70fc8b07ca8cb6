//! Which kernels of the backward pass `--rows` means.

use crate::failure::Failure;
use ferroflash::{Attention, Backward, BackwardPlan, Error, RowSelection};

/// The plans of a pass on a device that rows select, as [`selected`].
pub(crate) fn plans(
    attention: &Attention,
    backward: &Backward,
    rows: &[RowSelection],
) -> Result<Vec<BackwardPlan>, Failure> {
    let library = attention.library();
    let all = BackwardPlan::all(backward, library, attention.device().info())?;
    let known: Vec<&str> = library.backward_kernels().iter().map(|kernel| kernel.entry.as_str()).collect();
    selected(all, rows, &known)
}

/// Those of all plans, the one that is taken first, that rows select: that one, every pair of kernels, or the pairs of named kernels; where
/// none of a pass is named, it is the one that is taken.
///
/// # Errors
/// [`Error::NoSuchKernel`] for a name that is not `known`.
pub(crate) fn selected(
    mut all: Vec<BackwardPlan>,
    rows: &[RowSelection],
    known: &[&str],
) -> Result<Vec<BackwardPlan>, Failure> {
    let named: Vec<&str> = rows
        .iter()
        .filter_map(|row| match row {
            RowSelection::Named(name) => Some(name.as_str()),
            RowSelection::Best | RowSelection::All => None,
        })
        .collect();
    if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
        let source = Error::unknown_kernel(unknown, known.iter().copied());
        return Err(Failure::Argument { option: "--rows", source });
    }
    if rows.contains(&RowSelection::All) {
        return Ok(all);
    }
    if named.is_empty() {
        all.truncate(1);
        return Ok(all);
    }
    let entry = |plan: &BackwardPlan, step: usize| plan.steps()[step].kernel().entry.clone();
    let meant = [0, 1].map(|step| {
        let mut entries: Vec<String> = all.iter().map(|plan| entry(plan, step)).collect();
        if entries.iter().any(|entry| named.contains(&entry.as_str())) {
            entries.retain(|entry| named.contains(&entry.as_str()));
        } else {
            entries.truncate(1);
        }
        entries
    });
    all.retain(|plan| (0..2).all(|step| meant[step].contains(&entry(plan, step))));
    Ok(all)
}
