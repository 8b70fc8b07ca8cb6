//! Executes PTX on the CPU and checks it: no GPU, no driver, no CUDA toolkit.
//!
//! [`Module::parse`] turns PTX text into a decoded program and refuses, with its line, whatever the table of supported forms
//! does not list. [`launch`] runs a grid: warps of 32 lanes with divergence and reconvergence, shared memory, barriers,
//! asynchronous copies, tensor-core instructions. While it runs, every access is checked, and the first broken rule ends the
//! launch as a [`Finding`] with its place. A [`Report`] counts what was done. Times are not predicted.

#![forbid(unsafe_code)]

mod bits;
mod cfg;
mod compact;
mod config;
mod counters;
mod decode;
mod error;
mod exec;
mod finding;
mod float;
mod half;
mod launch;
mod memory;
mod module;
mod op;
mod parse;
mod race;
mod regs;
mod report;
mod shared;
mod support;
mod table;
mod window;

pub use config::{Checks, LaunchConfig, Limits, Schedule};
pub use counters::{GlobalTraffic, SharedTraffic};
pub use error::{LoadError, MemoryError, SimError};
pub use finding::{Finding, FindingKind, OtherAccess, SourceLine};
pub use launch::launch;
pub use memory::Memory;
pub use module::{Entry, Module, Param};
pub use report::{InstructionClass, LineCount, Report};
pub use support::support_matrix;
