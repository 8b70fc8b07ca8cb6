//! Proposers: any program that reads a prompt and answers with a patch to the device crate (EvoEngineer's protocol,
//! arXiv 2510.03760). A language model's client is one, a script another.
//!
//! A proposer is not trusted. It runs in a box where it sees a copy of the source and can write its answer alone; its time and its
//! output are limited; its patch is looked at before and after it is applied, and it is applied in a throw-away git worktree: the
//! user's tree is never touched.

pub mod boxed;
mod edit;
pub mod hygiene;
mod program;
mod prompt;
mod proposal;
pub(crate) mod worktree;

pub use edit::{EditError, recount, to_diff};
pub use program::{ProgramError, ask};
pub use prompt::{Configuration, Earlier, Task, render};
pub use proposal::{Proposal, ProposalError};
pub use worktree::{Worktree, WorktreeError};

/// The folder of the device crate's source, which is all that a proposal may change.
pub const DEVICE_SOURCE: &str = "kernels-gpu/src/";
