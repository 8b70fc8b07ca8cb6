//! `lab prompt`: what a proposer is told, printed.

use crate::candidate::Candidate;
use crate::cli::Common;
use crate::cli::evaluate::{DEFAULT_ROW, row_of};
use crate::cli::evolve::proposals::{insights, task};
use crate::cli::lab::Lab;
use crate::cli::screen::{self, Screen};
use crate::error::{EXIT_DONE, Error, Result};
use crate::patched::{Base, PatchedTreeError};
use crate::proposer::{Configuration, render};
use crate::stages::Cascade;
use clap::Args;
use serde_json::json;

#[derive(Args, Clone, Debug)]
pub(crate) struct PromptArgs {
    /// The row of the kernel that is to become faster
    #[arg(value_name = "ROW", default_value = DEFAULT_ROW)]
    row: String,
    /// What the proposer is told
    #[arg(long, value_enum, default_value = "full")]
    configuration: Configuration,
    #[command(flatten)]
    common: Common,
}

/// Counts (and, with a GPU, times) the row, then prints the first prompt of a search from it.
pub(crate) fn run(args: &PromptArgs) -> Result<u8> {
    let row = row_of("ROW", &args.row)?;
    let mut lab = Lab::open("prompt", &args.common)?;
    let mut screen = Screen::new(1);
    let cascade = if lab.context.machine.simulated { Cascade::count() } else { Cascade::whole() };
    let evaluation = lab.evaluate(&cascade, &Candidate::of_row(row), None, &mut screen)?;
    drop(screen);
    let insights = insights(Some(&evaluation), None);
    let within = lab.context.folder.join("worktrees");
    let missing = |error: PatchedTreeError| Error::Missing { what: "a worktree", reason: error.to_string() };
    let base = Base::new(&lab.context.tree, None, &within).map_err(missing)?;
    let task = task(&lab, 1, row, Some(&evaluation), base.root())?;
    let text = render(args.configuration, &task, &[], &insights);
    if args.common.json {
        screen::print(&json!({ "session": lab.shown(), "prompt": text }).to_string());
    } else {
        screen::print(text.trim_end());
    }
    Ok(EXIT_DONE)
}
