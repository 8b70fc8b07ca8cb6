//! The optimization lab: builds, checks, measures and evolves kernels by reversible steps.
#![forbid(unsafe_code)]

pub mod candidate;
pub mod cheats;
pub mod cli;
pub mod config;
pub mod counters;
pub mod error;
pub mod evaluation;
pub mod evolution;
pub mod exam;
pub mod gate;
pub mod inputs;
pub mod insights;
pub mod interrupt;
pub mod invert;
pub mod job;
pub mod kernels;
pub mod leaderboard;
pub mod merge;
pub mod page;
pub mod patched;
pub mod peer;
pub mod plant;
pub mod predict;
pub mod problem_spec;
pub mod process;
pub mod profile;
pub mod proposer;
pub mod results;
pub mod search;
pub mod session;
pub mod stages;
pub mod statistics;
pub mod subject;
pub mod table;
pub mod tree;
pub mod whole_file;

pub use config::Config;
pub use error::{Error, Result};
