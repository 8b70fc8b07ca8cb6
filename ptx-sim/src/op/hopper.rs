//! Operations of sm_90: mbarriers, bulk copies, `wgmma`.

use super::{Addr, AtomicOp, Reg, Scalar, Space};
use crate::matrix_type::MatrixType;
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
        /// Whether the phases that follow take so many arrivals less.
        drops: bool,
        /// Whether the phase may not end by it.
        keeps_open: bool,
        /// Whether it tells others of what came before.
        releases: bool,
    },
    ExpectTx(Slot),
    CompleteTx(Slot),
    Wait {
        result: Slot,
        phase: PhaseOperand,
        /// Whether what was released into the phase is seen.
        acquires: bool,
    },
}

/// `mbarrier`.
#[derive(Clone, Debug)]
pub(crate) struct MbarrierOp {
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    pub(crate) action: MbarrierAction,
}

/// Where a bulk copy goes.
#[derive(Clone, Debug)]
pub(crate) enum BulkTo {
    /// To shared memory; its bytes are counted at an mbarrier. With a mask, to the same place in each CTA of the cluster.
    Shared { mbarrier: Addr, space: Space, mask: Option<Slot> },
    /// From this CTA's shared memory to that of another.
    Peer { mbarrier: Addr },
    /// To global memory, in the thread's bulk group; of every 16 bytes those that the mask names, if there is one.
    Global { byte_mask: Option<Slot> },
    /// No copy: the answer of `clusterlaunchcontrol.try_cancel`, 16 bytes in this CTA's shared memory, or in each one's of the cluster.
    Answer { mbarrier: Addr, to_all: bool },
}

/// `cp.async.bulk` and `cp.async.bulk.tensor`.
#[derive(Clone, Debug)]
pub(crate) struct Bulk {
    pub(crate) to: BulkTo,
    pub(crate) shared: Addr,
    /// The space of the shared address.
    pub(crate) space: Space,
    /// The range in global memory, or the tensor map.
    pub(crate) global: Addr,
    /// What is done with each element in global memory, other than to store it; of a tensor the type is its map's.
    pub(crate) reduces: Option<(AtomicOp, Option<Scalar>)>,
    /// Bytes of a range; `None` for a tensor.
    pub(crate) bytes: Option<Slot>,
    pub(crate) coordinates: Vec<Slot>,
    /// Of an im2col copy the offsets of W, H and D, none of a store; `None` of a copy of a tile.
    pub(crate) offsets: Option<Vec<Slot>>,
    /// Whether its user knows of no proxies, and could not place a fence for them: of `cuda::memcpy_async` (the CUDA C++
    /// Programming Guide's programs have no fence around it).
    pub(crate) hides_proxies: bool,
    /// Whether its compiler puts only a barrier of the CTA between the initialisation of an mbarrier and this copy: Triton does so where
    /// clusters have one CTA.
    pub(crate) needs_no_init_fence: bool,
}

/// `cp.async.mbarrier.arrive`.
#[derive(Clone, Debug)]
pub(crate) struct CopyArrive {
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    /// Whether the phase takes an arrival more.
    pub(crate) increments: bool,
}

/// A of a `wgmma`.
#[derive(Clone, Debug)]
pub(crate) enum WgmmaA {
    /// A descriptor, in a 64-bit register.
    Shared(Slot),
    Registers(Vec<Slot>),
}

/// `wgmma.mma_async` m64nN, with 32 bytes of k.
#[derive(Clone, Debug)]
pub(crate) struct Wgmma {
    pub(crate) n: usize,
    pub(crate) a_type: MatrixType,
    pub(crate) b_type: MatrixType,
    /// Whether D is packed f16.
    pub(crate) d_f16: bool,
    pub(crate) saturates: bool,
    pub(crate) d: Vec<Slot>,
    pub(crate) a: WgmmaA,
    /// A descriptor.
    pub(crate) b: Slot,
    /// Whether D is added to.
    pub(crate) scale_d: Slot,
    pub(crate) scale_d_negated: bool,
    pub(crate) a_negative: bool,
    pub(crate) b_negative: bool,
    pub(crate) a_mn_major: bool,
    pub(crate) b_mn_major: bool,
}

/// `st.async` and `red.async`.
#[derive(Clone, Debug)]
pub(crate) struct StoreAsync {
    /// What is done with the memory, other than to store.
    pub(crate) reduces: Option<(AtomicOp, Scalar)>,
    pub(crate) addr: Addr,
    pub(crate) mbarrier: Addr,
    pub(crate) element_bytes: u8,
    pub(crate) regs: Vec<Reg>,
}

/// `tensormap.replace`.
#[derive(Clone, Debug)]
pub(crate) struct TensorMapReplace {
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    pub(crate) field: &'static str,
    pub(crate) dimension: u64,
    pub(crate) value: Reg,
}
