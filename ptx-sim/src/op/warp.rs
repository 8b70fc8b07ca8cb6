//! Operations that the lanes of a warp, or the warps of a CTA, carry out together.

use super::{Addr, Reg, Scalar, Space};
use crate::float::Round;
use crate::matrix_type::MatrixType;
use crate::regs::Slot;

/// `ldmatrix`, `stmatrix`.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    pub(crate) transposed: bool,
    /// Whether elements have 8 bits, of 16 by 16 or 16 by 8 of them, which are transposed.
    pub(crate) of_bytes: bool,
    /// Bits of an element in memory, where a load makes bytes of shorter ones.
    pub(crate) packed_bits: Option<u32>,
    pub(crate) loads: bool,
    pub(crate) regs: Vec<Slot>,
}

/// `st.bulk`: zeroes a range of shared memory.
#[derive(Clone, Debug)]
pub(crate) struct StoreBulk {
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    /// In bytes.
    pub(crate) size: Reg,
}

/// `mma.sync`.
#[derive(Clone, Debug)]
pub(crate) struct Mma {
    /// Rows of A; B has eight columns.
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) a_type: MatrixType,
    pub(crate) b_type: MatrixType,
    /// Whether D and C are f32, else packed f16.
    pub(crate) d_f32: bool,
    pub(crate) c_f32: bool,
    /// Whether integer sums are clamped.
    pub(crate) saturates: bool,
    pub(crate) d: Vec<Reg>,
    pub(crate) a: Vec<Reg>,
    pub(crate) b: Vec<Reg>,
    pub(crate) c: Vec<Reg>,
    /// How sums of f64 are rounded.
    pub(crate) round: Round,
    /// Of m8n8k4 with f16, whether A and B lie in rows.
    pub(crate) volta: Option<[bool; 2]>,
    /// Registers of the places of the elements of a sparse A, and which threads of four hold them.
    pub(crate) sparse: Option<(Slot, u32)>,
}

/// Which matrix a `wmma` fragment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    A,
    B,
    Accumulator,
}

/// What a `wmma` fragment is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WmmaType {
    /// Bits of an element, and elements of a register.
    pub(crate) bits: usize,
    pub(crate) per_register: usize,
    /// Whether every lane holds a whole row or column, as for f16.
    pub(crate) is_f16: bool,
}

/// `wmma.load` and `wmma.store`.
#[derive(Clone, Debug)]
pub(crate) struct WmmaAccess {
    pub(crate) fragment: Fragment,
    /// m, n, k.
    pub(crate) shape: [usize; 3],
    pub(crate) row_major: bool,
    pub(crate) ty: WmmaType,
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    /// Elements from one row or column to the next; `None` for a dense matrix.
    pub(crate) stride: Option<Slot>,
    pub(crate) regs: Vec<Reg>,
}

/// `wmma.mma`.
#[derive(Clone, Debug)]
pub(crate) struct WmmaMma {
    pub(crate) shape: [usize; 3],
    pub(crate) a_type: MatrixType,
    pub(crate) b_type: MatrixType,
    pub(crate) d_type: Scalar,
    pub(crate) c_type: Scalar,
    pub(crate) saturates: bool,
    /// How sums of f64 are rounded.
    pub(crate) round: Round,
    pub(crate) d: Vec<Reg>,
    pub(crate) a: Vec<Reg>,
    pub(crate) b: Vec<Reg>,
    pub(crate) c: Vec<Reg>,
}

/// Where a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `shfl.sync`.
#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    pub(crate) mode: ShuffleMode,
    pub(crate) result: Slot,
    pub(crate) in_range: Option<Slot>,
    pub(crate) value: Slot,
    pub(crate) lane: Slot,
    pub(crate) clamp: Slot,
    pub(crate) members: Slot,
}

/// What the lanes of a mask compute together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveOp {
    All,
    Any,
    Uniform,
    Ballot,
    MatchAny,
    MatchAll,
    Elect,
    Add,
    MinU,
    MaxU,
    MinS,
    MaxS,
    And,
    Or,
    Xor,
    /// Of magnitudes or not, and whether a NaN stays.
    FloatMin(bool, bool),
    FloatMax(bool, bool),
}

/// `vote`, `match`, `redux` and `elect`.
#[derive(Clone, Debug)]
pub(crate) struct Collective {
    pub(crate) op: CollectiveOp,
    pub(crate) result: Option<Reg>,
    pub(crate) pred: Option<Slot>,
    pub(crate) value: Reg,
    pub(crate) negated: bool,
    pub(crate) members: Slot,
}

/// What a barrier does with predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierReduction {
    Popc,
    And,
    Or,
}

/// `bar` and `barrier`.
#[derive(Clone, Debug)]
pub(crate) struct Barrier {
    pub(crate) id: Slot,
    pub(crate) threads: Option<Slot>,
    pub(crate) arrive_only: bool,
    pub(crate) aligned: bool,
    pub(crate) reduction: Option<(BarrierReduction, Reg, Slot, bool)>,
}
