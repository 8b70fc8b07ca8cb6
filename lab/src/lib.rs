//! The optimization lab: builds, checks, measures and evolves kernels by reversible steps.

pub mod counters;
pub mod gate;
pub mod insights;
pub mod invert;
pub mod leaderboard;
pub mod page;
pub mod proposer;
pub mod search;
pub mod statistics;
pub mod whole_file;
