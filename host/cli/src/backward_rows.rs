//! Which kernels of the backward pass `--rows` means.

use crate::failure::Failure;
use ferroflash::{Attention, Backward, BackwardPlan, Error, RowSelection};
use std::collections::BTreeSet;

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

/// Those of all plans, the one that is taken first, that rows select: that one, every pair of kernels, and the pairs of named kernels; where
/// one of a pair is not named, it is the one that is taken.
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
    let best = rows.contains(&RowSelection::Best).then(|| all[0].clone());
    // The named kernels of each plan; of plans with the same ones, the first.
    let mut meant: Vec<(BackwardPlan, BTreeSet<&str>)> = Vec::new();
    for plan in all {
        let entries = plan.entries();
        let of_plan: BTreeSet<&str> =
            named.iter().copied().filter(|name| entries.iter().any(|entry| entry == name)).collect();
        if !of_plan.is_empty() && meant.iter().all(|(_, of_other)| *of_other != of_plan) {
            meant.push((plan, of_plan));
        }
    }
    // A plan that leaves to the choice what another has by name is not meant.
    let sets: Vec<BTreeSet<&str>> = meant.iter().map(|(_, of_plan)| of_plan.clone()).collect();
    meant.retain(|(_, of_plan)| !sets.iter().any(|other| other != of_plan && other.is_superset(of_plan)));
    Ok(best.into_iter().chain(meant.into_iter().map(|(plan, _)| plan)).collect())
}
