//! One decoded instruction: its operation, and what it is executed and followed by.

use super::Op;
use crate::regs::Slot;

/// A guard: the predicate's slot and whether it is negated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) slot: Slot,
    pub(crate) negated: bool,
}

/// One decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    pub(crate) guard: Option<Guard>,
    /// Line of the PTX text.
    pub(crate) line: u32,
    /// Part of the instruction before it, which is counted there.
    pub(crate) continues: bool,
    /// The predicates that it writes and that are conditions to be followed; [`NO_PREDICATE`] where there are fewer than two.
    pub(crate) decides: [Slot; 2],
    /// Whether it takes the less or the larger of an integer and a constant, and which is a condition to be followed.
    pub(crate) chooses: bool,
}

/// No register.
pub(crate) const NO_PREDICATE: Slot = Slot::MAX;
