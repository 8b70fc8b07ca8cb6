//! The decoded program: what the executor runs.

mod compare;
mod hopper;
mod inst;
mod location;
mod order;
mod warp;

pub(crate) use compare::*;
pub(crate) use hopper::*;
pub(crate) use inst::*;
pub(crate) use location::Locations;
pub(crate) use order::*;
pub(crate) use warp::*;

use crate::compact::{self, Operand};
use crate::fixed::Conditions;
use crate::float::Round;
use crate::regs::{Bank, Slot, Slots};
use crate::table::compare::CompareOp;
use crate::table::convert::ConvertOp;
use crate::table::float::FloatOp;
use crate::table::half::HalfOp;
use crate::table::integer::IntOp;
use crate::table::rare::RareOp;
use crate::video::{Video, VideoMad};
use std::sync::OnceLock;

/// Program counter within a function.
pub(crate) type Pc = u32;
/// The virtual point after every return: where lanes meet that meet nowhere else.
pub(crate) const EXIT: Pc = Pc::MAX;

/// A register of either data bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reg {
    pub(crate) bank: Bank,
    pub(crate) slot: Slot,
    pub(crate) bits: u8,
}

/// An address operand: a register plus a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addr {
    pub(crate) bank: Bank,
    pub(crate) slot: Slot,
    pub(crate) offset: i64,
}

/// The state space of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    /// Shared memory of any CTA of the cluster.
    Cluster,
    Local,
    /// The entry's parameters.
    Param,
    /// A function's parameters and those of the calls that it makes: bytes of the frame, a copy a lane.
    Frame,
}

/// `ld` and `st`.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    pub(crate) element_bytes: u8,
    pub(crate) signed: bool,
    pub(crate) order: MemoryOrder,
    pub(crate) regs: Vec<Reg>,
}

/// What an atomic operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
    Increment,
    Decrement,
}

/// A scalar type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    /// Unsigned, with its bits.
    U(u8),
    /// Signed, with its bits.
    S(u8),
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    F32,
    F64,
}

impl Scalar {
    /// Bits of the type.
    pub(crate) fn bits(self) -> u8 {
        match self {
            Scalar::U(bits) | Scalar::S(bits) => bits,
            Scalar::F16 | Scalar::Bf16 => 16,
            Scalar::F16x2 | Scalar::Bf16x2 | Scalar::F32 => 32,
            Scalar::F64 => 64,
        }
    }

    /// Whether it is not an integer.
    pub(crate) fn is_float(self) -> bool {
        !matches!(self, Scalar::U(_) | Scalar::S(_))
    }
}

/// `atom` and `red`.
#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    pub(crate) space: Space,
    pub(crate) addr: Addr,
    pub(crate) op: AtomicOp,
    pub(crate) ty: Scalar,
    /// `None` for `red`.
    pub(crate) result: Option<Reg>,
    pub(crate) operand: Reg,
    /// The new value of a compare-and-swap.
    pub(crate) swap: Option<Reg>,
    /// The upper halves of result, operand and new value of a 128-bit operation.
    pub(crate) wide: Option<[Reg; 3]>,
    /// Bytes of which the address must be a multiple.
    pub(crate) aligned: u32,
    pub(crate) order: MemoryOrder,
}

/// `cp.async`.
#[derive(Clone, Debug)]
pub(crate) struct CopyAsync {
    pub(crate) to: Addr,
    pub(crate) from: Addr,
    pub(crate) bytes: u8,
    pub(crate) source_bytes: Option<Reg>,
    pub(crate) ignore: Option<Slot>,
}

/// Where a call goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Callee {
    Function(u32),
    /// A register that holds the function's address.
    Register(Slot),
}

/// `call`: byte ranges of the frame's parameter area.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) callee: Callee,
    /// Offset and bytes of each argument.
    pub(crate) args: Vec<(u32, u32)>,
    /// Offset and bytes of each returned value.
    pub(crate) returns: Vec<(u32, u32)>,
}

/// A general conversion.
#[derive(Clone, Debug)]
pub(crate) struct Cvt {
    pub(crate) to: Scalar,
    pub(crate) from: Scalar,
    pub(crate) round: Option<Round>,
    /// Whether floating point is rounded to an integral value (`.rni`, …).
    pub(crate) integral: bool,
    pub(crate) flush: bool,
    pub(crate) saturate: bool,
    pub(crate) result: Reg,
    pub(crate) operand: Reg,
}

/// A function that the driver supplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceName {
    Malloc,
    Free,
    Printf,
    AssertFail,
}

/// A call to one: its parameters are bytes of the frame.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: ServiceName,
    pub(crate) args: Vec<(u32, u32)>,
    pub(crate) returns: Option<(u32, u32)>,
}

/// Extended-precision arithmetic.
#[derive(Clone, Debug)]
pub(crate) struct Carry {
    /// Addition, else subtraction.
    pub(crate) add: bool,
    /// The product's half, for multiply-add.
    pub(crate) product: Option<ProductHalf>,
    pub(crate) carry_in: bool,
    pub(crate) carry_out: bool,
    pub(crate) signed: bool,
    pub(crate) flag: Slot,
    pub(crate) regs: Vec<Reg>,
}

/// Half of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductHalf {
    Low,
    High,
}

/// How two predicates combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoolOp {
    And,
    Or,
    Xor,
    /// The first alone.
    First,
}

/// Registers read at the moment of the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Clock,
    ClockHigh,
    Clock64,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Int(IntOp, Slots),
    Float(FloatOp, Slots),
    Half(HalfOp, Slots),
    Compare(CompareOp, Slots),
    Convert(ConvertOp, Slots),
    Rare(RareOp, Slots),
    Set(Box<SetCompare>),
    /// `malloc`, `free` and `vprintf`, which the driver supplies.
    Service(Box<Service>),
    /// Local memory of a size known only when it runs; the result is its address.
    Alloca {
        result: Reg,
        bytes: Reg,
        align: u32,
    },
    /// The stack as it is, or back to what it was.
    StackSave(Reg),
    StackRestore(Reg),
    Cvt(Box<Cvt>),
    CvtPack {
        signed: bool,
        bits: u32,
        slots: Slots,
    },
    Carry(Box<Carry>),
    Video(Box<Video>),
    VideoMad(Box<VideoMad>),
    /// p = compared ∘ c, q = !compared ∘ c.
    Combine {
        op: BoolOp,
        compared: Slot,
        c: Slot,
        c_negated: bool,
        p: Slot,
        q: Slot,
    },
    /// Registers to one wider register, lowest first.
    Pack(Box<(Reg, Vec<Reg>)>),
    /// One register to several narrower ones, lowest first; `None` is dropped.
    Unpack(Box<(Vec<Option<Reg>>, Reg)>),
    Timer(Timer, Reg),
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    CopyAsync(Box<CopyAsync>),
    CommitGroup,
    /// Leaves at most so many groups open; `None` waits for everything.
    WaitGroup(Option<u32>),
    StoreBulk(Box<StoreBulk>),
    LoadMatrix(Box<Matrix>),
    StoreMatrix(Box<Matrix>),
    MoveMatrix {
        result: Slot,
        value: Slot,
    },
    Mma(Box<Mma>),
    WmmaLoad(Box<WmmaAccess>),
    WmmaStore(Box<WmmaAccess>),
    WmmaMma(Box<WmmaMma>),
    Shuffle(Box<Shuffle>),
    Collective(Box<Collective>),
    ActiveMask(Slot),
    Barrier(Box<Barrier>),
    WarpBarrier(Slot),
    Fence(Scope),
    /// `barrier.cluster`.
    ClusterArrive {
        releases: bool,
    },
    ClusterWait {
        acquires: bool,
    },
    /// The address, in the CTA of a rank, of what lies at an address of this one.
    MapRank {
        result: Reg,
        address: Reg,
        rank: Slot,
        generic: bool,
    },
    /// The rank of the CTA that an address names.
    RankOf {
        result: Slot,
        address: Reg,
        generic: bool,
    },
    Mbarrier(Box<MbarrierOp>),
    Bulk(Box<Bulk>),
    StoreAsync(Box<StoreAsync>),
    TensorMapReplace(Box<TensorMapReplace>),
    /// Copies a tensor map from shared to global memory and releases it.
    TensorMapCopy {
        to: Addr,
        from: Addr,
        scope: Scope,
    },
    CommitBulk,
    /// Leaves at most so many bulk groups open, or unread.
    WaitBulk {
        keep: u32,
        read: bool,
    },
    CopyArrive(Box<CopyArrive>),
    Wgmma(Box<Wgmma>),
    WgmmaFence,
    WgmmaCommit,
    /// Leaves at most so many groups open.
    WgmmaWait(u32),
    SetRegisters {
        increase: bool,
        count: u32,
    },
    /// Makes initialised mbarriers known to the async proxy.
    MbarrierFence,
    /// Orders generic accesses before those of other proxies.
    ProxyFence(&'static [Proxy]),
    Branch {
        target: Pc,
        reconverge: Pc,
    },
    BranchTable {
        index: Slot,
        targets: Box<[Pc]>,
        reconverge: Pc,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Nothing,
}

/// A register that holds the same value all along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Bits(u64),
    Special(Special),
    /// Address of a module variable.
    Variable(u32, i64),
    /// Address in the frame's local memory.
    Local(u32, i64),
    /// Address of a function.
    Function(u32),
}

/// A special register that does not change while a warp runs (PTX ISA §10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    WarpCount,
    SmId,
    SmCount,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    ClusterId(u8),
    ClusterCount(u8),
    ClusterCtaId(u8),
    ClusterCtaCount(u8),
    ClusterRank,
    ClusterRanks,
    IsCluster,
    /// The lower and the upper half of the address of the cooperative grid's workspace.
    Workspace(u8),
    /// Where the shared memory that the system keeps starts and ends.
    Reserved(u8),
    DynamicSharedBytes,
    TotalSharedBytes,
    /// Generic addresses of the CTA's shared memory and of the thread's local memory.
    SharedWindow,
    LocalWindow,
}

/// A constant and the register that holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConstantSlot {
    pub(crate) bank: Bank,
    pub(crate) slot: Slot,
    pub(crate) value: Constant,
}

/// A formal parameter or returned value: its place in the parameter area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Formal {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// A decoded function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub(crate) insts: Vec<Inst>,
    /// Registers of each bank: words, doubles, predicates.
    pub(crate) registers: [usize; 3],
    pub(crate) constants: Vec<ConstantSlot>,
    pub(crate) params: Vec<Formal>,
    pub(crate) returns: Vec<Formal>,
    /// Bytes of the parameter area of a frame.
    pub(crate) frame_bytes: u32,
    /// Bytes of local memory of a frame.
    pub(crate) local_bytes: u32,
    /// `.loc` positions: first instruction, file, line.
    pub(crate) locations: Locations,
    /// Whether it copies for `cuda::memcpy_async`, in builds that inline nothing.
    pub(crate) hides_proxies: bool,
    /// Functions that it may call, and module variables that it names.
    pub(crate) callees: Vec<u32>,
    pub(crate) variables: Vec<u32>,
    pub(crate) has_indirect_call: bool,
    /// The word registers of each instruction, where `wgmma` needs them watched.
    pub(crate) touches: Vec<Touches>,
    /// Which conditions of each instruction are to be followed.
    pub(crate) conditions: Vec<Conditions>,
    /// Registers that may be read before anything is written to them, and the first instruction that reads each.
    pub(crate) undefined: Vec<(Bank, Slot, Pc)>,
    /// Bytes of the parameter area for which the same holds.
    pub(crate) unset: Vec<(u32, Pc)>,
    /// The registers of each instruction, once that was asked.
    operands: OnceLock<Vec<Box<[Operand]>>>,
}

/// Word registers that an instruction reads and writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touches {
    pub(crate) reads: Vec<Slot>,
    pub(crate) writes: Vec<Slot>,
}

impl Program {
    /// The registers that each instruction's operation reads and writes.
    pub(crate) fn operands(&self) -> &[Box<[Operand]>] {
        self.operands.get_or_init(|| compact::operands(&self.insts))
    }
}
