//! The optimization lab: builds, checks, measures and evolves kernels by reversible steps.

pub mod search;
pub mod statistics;
