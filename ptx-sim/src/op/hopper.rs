//! Operations of sm_90: mbarriers, bulk copies, `wgmma`.

use super::{Addr, Reg, Space};
use crate::regs::Slot;

/// Which phase a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseOperand {
    /// The current or the preceding phase of that parity, in a 32-bit register.
    Parity(Slot),
    /// The phase of a state that an arrival gave, in a 64-bit register.
    State(Slot),
}

/// What is done with an mbarrier.
#[derive(Clone, Debug)]
pub(crate) enum MbarrierAction {
    Init {
        count: Slot,
    },
    Invalidate,
    Arrive {
        /// 1 where it is not given.
        count: Option<Slot>,
        /// Bytes to expect before the arrival.
        bytes: Option<Slot>,
        state: Option<Reg>,
    },
    ExpectTx(Slot),
    CompleteTx(Slot),
    Wait {
        result: Slot,
        phase: PhaseOperand,
    },
}

/// `mbarrier`.
#[derive(Clone, Debug)]
pub(crate) struct MbarrierOp {
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    pub(crate) action: MbarrierAction,
}
