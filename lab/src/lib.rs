//! The optimization lab: builds, checks, measures and evolves kernels by reversible steps.
#![forbid(unsafe_code)]

pub mod cheats;
pub mod config;
pub mod error;
pub mod exam;
pub mod inputs;
pub mod interrupt;
pub mod problem_spec;
pub mod process;
pub mod session;
pub mod subject;

pub use config::Config;
pub use error::{Error, Result};
