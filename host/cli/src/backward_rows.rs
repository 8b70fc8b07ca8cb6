//! Which kernels of the backward pass `--rows` means.

use crate::failure::Failure;
use ferroflash::{Attention, Backward, BackwardPlan, Error, RowSelection};

/// The plans of a pass that rows select: the one that is taken, every pair of kernels, or the pairs of named kernels; where none of a pass is
/// named, it is the one that is taken.
pub(crate) fn plans(
    attention: &Attention,
    backward: &Backward,
    rows: &[RowSelection],
) -> Result<Vec<BackwardPlan>, Failure> {
    let best = attention.plan_backward(backward)?;
    let all = BackwardPlan::all(backward, attention.library(), attention.device().info())?;
    let named: Vec<&str> = rows
        .iter()
        .filter_map(|row| match row {
            RowSelection::Named(name) => Some(name.as_str()),
            RowSelection::Best | RowSelection::All => None,
        })
        .collect();
    let known = attention.library().backward_kernels().iter().map(|kernel| kernel.entry.as_str());
    if let Some(unknown) = named.iter().find(|name| !known.clone().any(|entry| entry == **name)) {
        let source = Error::unknown_kernel(unknown, known);
        return Err(Failure::Argument { option: "--rows", source });
    }
    if rows.contains(&RowSelection::All) {
        return Ok(all);
    }
    if named.is_empty() {
        return Ok(vec![best]);
    }
    let is_meant = |plan: &BackwardPlan, step: usize| {
        let entry = |plan: &BackwardPlan| plan.steps()[step].kernel().entry.clone();
        let names_one = all.iter().any(|plan| named.contains(&entry(plan).as_str()));
        if names_one { named.contains(&entry(plan).as_str()) } else { entry(plan) == entry(&best) }
    };
    Ok(all.iter().filter(|plan| is_meant(plan, 0) && is_meant(plan, 1)).cloned().collect())
}
