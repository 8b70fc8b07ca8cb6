//! Comparisons whose outcome is a number or two predicates.

use super::{BoolOp, Reg, Scalar};
use crate::regs::Slot;

/// A comparison of any type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// What a comparison leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetResult {
    /// Ones in every bit.
    Mask(Reg),
    /// The number one.
    One(Reg, Scalar),
    /// The low part's and the high part's outcome.
    Preds(Slot, Slot),
}

/// `set`, and `setp` of packed halves.
#[derive(Clone, Debug)]
pub(crate) struct SetCompare {
    pub(crate) cmp: Cmp,
    pub(crate) ty: Scalar,
    pub(crate) flush: bool,
    pub(crate) result: SetResult,
    pub(crate) a: Reg,
    pub(crate) b: Reg,
    /// The predicate that the outcome is combined with, and whether it is negated.
    pub(crate) with: Option<(BoolOp, Slot, bool)>,
}
