//! What a search was asked for: recorded when it begins, read back when it is resumed.

use crate::candidate;
use crate::cli::evaluate::row_in;
use crate::cli::evolve::EvolveArgs;
use crate::cli::lab::Lab;
use crate::cli::searched::Searched;
use crate::cli::{misuse, screen};
use crate::error::Result;
use crate::proposer::Configuration;
use crate::search::budget::Budget;
use crate::search::strategy::Strategy;
use ferroflash::Row;
use kernels_gpu::table::VARIANTS;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The record of a plan.
const PLAN: &str = "plan";

/// What a search was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) start: Row,
    pub(crate) budget: Budget,
    pub(crate) strategy: Strategy,
    pub(crate) from: Vec<Row>,
    pub(crate) micro: bool,
    pub(crate) proposer: Option<Vec<String>>,
    pub(crate) configuration: Configuration,
    pub(crate) proposer_limit_s: u64,
    pub(crate) sees: Vec<PathBuf>,
    pub(crate) trust: bool,
    pub(crate) counters_only: bool,
}

impl Plan {
    /// The plan of a resumed session, or that of the arguments, which is then recorded.
    pub(crate) fn of_session(lab: &mut Lab, args: &EvolveArgs) -> Result<Plan> {
        let recorded: Vec<Plan> = lab.session.records(PLAN);
        if let Some(mut plan) = recorded.into_iter().next() {
            // More may be asked of a session than it was given at first.
            if let Some(budget) = args.budget {
                plan.budget = budget;
            }
            return Ok(plan);
        }
        let plan = Plan::of_arguments(lab, args)?;
        lab.session.append(PLAN, &plan)?;
        Ok(plan)
    }

    fn of_arguments(lab: &Lab, args: &EvolveArgs) -> Result<Plan> {
        let start = match &args.start {
            Some(start) => row_in("--start", start, &args.common)?,
            None => mediocre(),
        };
        candidate::Candidate::of_row(start).check()?;
        if args.proposer.is_some() && lab.context.compiled.is_some() {
            return misuse("--ptx", "a patch has to be compiled");
        }
        let searched = Searched::of(lab, start)?;
        // A folder of compiled kernels may lack the row that nobody named.
        let start = match searched.space.rows().first() {
            Some(first) if args.start.is_none() && !searched.space.contains(&start) => *first,
            _ => start,
        };
        searched.require("--start", &start)?;
        let from = match &args.from {
            Some(file) => seeds_of(file, start, &searched)?,
            None => Vec::new(),
        };
        let budget = &lab.context.config.budget;
        let usual = Budget {
            candidates: Some(budget.candidates.get()),
            seconds: Some(budget.seconds.get() as f64),
            gpu_seconds: Some(budget.gpu_seconds.get() as f64),
        };
        let proposer =
            args.proposer.as_ref().map(|words| words.split_whitespace().map(str::to_owned).collect());
        Ok(Plan {
            start,
            budget: args.budget.unwrap_or(usual),
            strategy: args.strategy,
            from,
            micro: args.micro,
            proposer,
            configuration: args.configuration,
            proposer_limit_s: args.proposer_limit,
            sees: args.proposer_sees.iter().filter_map(|path| std::path::absolute(path).ok()).collect(),
            trust: args.trust,
            counters_only: args.counters_only,
        })
    }
}

/// The deliberately bad start: low and narrow blocks, no copies in flight.
pub(crate) fn mediocre() -> Row {
    let mut row = candidate::table_row("fwd_f16_d64_m64n64_w4s1c1").unwrap_or(VARIANTS[0].row);
    row.block_n = 32;
    row
}

/// The rows of a file, without those that are not compiled where nothing is.
fn seeds_of(file: &Path, start: Row, searched: &Searched) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = candidate::parse(&file.to_string_lossy(), start)?
        .into_iter()
        .map(|candidate| candidate.row)
        .collect();
    let all = rows.len();
    if searched.bounds.folder.is_some() {
        rows.retain(|row| searched.space.contains(row));
    }
    if rows.len() < all {
        let left_out = all - rows.len();
        screen::say(&format!(
            "{left_out} of the {all} rows of {} are not in the search space",
            file.display()
        ));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_the_one_that_the_help_names() {
        let row = mediocre();
        assert_eq!((row.block_m, row.block_n, row.warps, row.stages, row.head_dim), (64, 32, 4, 1, 64));
        assert!(row.check().is_ok());
    }
}
