//! What a launch did, in numbers.

use std::collections::BTreeMap;

use crate::counters::{Counters, GlobalTraffic, SharedTraffic};
use crate::coverage::{self, Gap};
use crate::finding::SourceLine;
use crate::module::Module;
use crate::op::{Op, Space};
use crate::table::float::FloatOp;

/// A class of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum InstructionClass {
    /// Integer, logic, shifts, moves, comparisons, predicates.
    Integer,
    /// f32 and f64 arithmetic.
    Float,
    /// f16 and bf16 arithmetic.
    Half,
    /// Exponentials, logarithms, roots, reciprocals and the like.
    Special,
    /// Conversions between types.
    Convert,
    /// `mma`, `wmma`, `wgmma`.
    Tensor,
    /// Loads and stores of global memory, and generic ones.
    Global,
    /// Loads and stores of shared memory, with `ldmatrix` and `stmatrix`.
    Shared,
    /// Loads and stores of local memory and parameters.
    Local,
    /// `cp.async`, `cp.async.bulk` and their groups.
    AsyncCopy,
    /// Atomic operations.
    Atomic,
    /// Shuffles, votes and other exchanges inside a warp.
    Warp,
    /// Barriers and fences.
    Barrier,
    /// Branches, calls, returns.
    Control,
}

impl InstructionClass {
    /// Every class.
    pub const ALL: [InstructionClass; 14] = [
        InstructionClass::Integer,
        InstructionClass::Float,
        InstructionClass::Half,
        InstructionClass::Special,
        InstructionClass::Convert,
        InstructionClass::Tensor,
        InstructionClass::Global,
        InstructionClass::Shared,
        InstructionClass::Local,
        InstructionClass::AsyncCopy,
        InstructionClass::Atomic,
        InstructionClass::Warp,
        InstructionClass::Barrier,
        InstructionClass::Control,
    ];

    /// A stable short name.
    pub fn name(self) -> &'static str {
        match self {
            InstructionClass::Integer => "integer",
            InstructionClass::Float => "float",
            InstructionClass::Half => "half",
            InstructionClass::Special => "special",
            InstructionClass::Convert => "convert",
            InstructionClass::Tensor => "tensor",
            InstructionClass::Global => "global",
            InstructionClass::Shared => "shared",
            InstructionClass::Local => "local",
            InstructionClass::AsyncCopy => "async-copy",
            InstructionClass::Atomic => "atomic",
            InstructionClass::Warp => "warp",
            InstructionClass::Barrier => "barrier",
            InstructionClass::Control => "control",
        }
    }
}

/// Warp instructions of one line of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineCount {
    /// Line of the PTX text.
    pub line: u32,
    /// Warp instructions.
    pub warp_instructions: u64,
    /// Thread instructions: active lanes, summed.
    pub thread_instructions: u64,
}

/// Instructions of one line of the source that the PTX was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceCount {
    /// The line.
    pub source: SourceLine,
    /// Warp instructions.
    pub warp_instructions: u64,
    /// Thread instructions: active lanes, summed.
    pub thread_instructions: u64,
}

/// What a launch did. Counts cover the CTAs that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// CTAs that ran.
    pub ctas: u64,
    /// CTAs of the grid.
    pub grid_ctas: u64,
    /// Warps of a CTA.
    pub warps_per_cta: u32,
    /// Static plus dynamic shared memory of a CTA, in bytes.
    pub shared_bytes: u64,
    /// Warp instructions.
    pub warp_instructions: u64,
    /// Thread instructions: active lanes, summed.
    pub thread_instructions: u64,
    /// Warp instructions by class, in the order of [`InstructionClass::ALL`].
    pub by_class: [u64; 14],
    /// Lines that executed, ascending.
    pub lines: Vec<LineCount>,
    /// Source lines that executed, by file and line; empty without `.loc`.
    pub sources: Vec<SourceCount>,
    /// What of the code was not executed, and which conditions were the same in every lane, in ascending order; empty where the launch did
    /// not ask for it.
    pub untested: Vec<Gap>,
    /// Products of warpgroups (`wgmma`).
    pub wgmma: u64,
    /// Bytes of shared memory that these read: B, and A where it is not in registers.
    pub wgmma_operand_bytes: u64,
    /// Floating-point operations of `mma` and `wgmma`, a multiply-add counting as two.
    pub tensor_flops: u64,
    /// Arrivals of warps at barriers.
    pub barriers: u64,
    /// Waits of warps for an mbarrier's phase that ended with its completion.
    pub mbarrier_waits: u64,
    /// Branches at which a warp's lanes parted.
    pub divergent_branches: u64,
    /// Atomic operations, a lane each.
    pub atomics: u64,
    /// Loads from global memory, without asynchronous copies.
    pub global_load: GlobalTraffic,
    /// Stores to global memory.
    pub global_store: GlobalTraffic,
    /// What asynchronous copies read from global memory.
    pub async_global: GlobalTraffic,
    /// What asynchronous copies write to shared memory.
    pub async_shared: SharedTraffic,
    /// Loads from shared memory, `ldmatrix` included.
    pub shared_load: SharedTraffic,
    /// Stores to shared memory, `stmatrix` included.
    pub shared_store: SharedTraffic,
    /// Bulk copies, a thread each.
    pub bulk_copies: u64,
    /// Bytes that bulk copies bring to shared memory, parts outside a tensor included.
    pub bulk_load_bytes: u64,
    /// Bytes that bulk copies write to global memory.
    pub bulk_store_bytes: u64,
    /// Bytes of local memory that lanes accessed.
    pub local_bytes: u64,
    /// Most `cp.async` groups in flight when a warp waited.
    pub async_groups: u32,
    /// Broken rules that today's hardware forgives, each once.
    pub warnings: Vec<crate::finding::Finding>,
}

impl Report {
    /// Warp instructions of a class.
    pub fn class(&self, class: InstructionClass) -> u64 {
        self.by_class[class as usize]
    }

    pub(crate) fn new(
        module: &Module,
        counters: Counters,
        ctas: [u64; 2],
        warps: u32,
        shared_bytes: u64,
    ) -> Report {
        let mut by_class = [0; 14];
        let mut lines: Vec<LineCount> = Vec::new();
        for (program, counts) in module.programs.iter().zip(&counters.counts) {
            for (inst, count) in program.insts.iter().zip(counts).filter(|(_, c)| c[0] > 0) {
                by_class[class_of(&inst.op) as usize] += count[0];
                lines.push(LineCount {
                    line: inst.line,
                    warp_instructions: count[0],
                    thread_instructions: count[1],
                });
            }
        }
        lines.sort_by_key(|l| l.line);
        lines.dedup_by(|next, kept| {
            let same = next.line == kept.line;
            if same {
                kept.warp_instructions += next.warp_instructions;
                kept.thread_instructions += next.thread_instructions;
            }
            same
        });
        Report {
            ctas: ctas[0],
            grid_ctas: ctas[1],
            warps_per_cta: warps,
            shared_bytes,
            warp_instructions: lines.iter().map(|l| l.warp_instructions).sum(),
            thread_instructions: lines.iter().map(|l| l.thread_instructions).sum(),
            by_class,
            lines,
            sources: sources(module, &counters),
            untested: coverage::gaps(module, &counters),
            wgmma: counters.wgmma,
            wgmma_operand_bytes: counters.wgmma_operand_bytes,
            tensor_flops: counters.tensor_flops,
            barriers: counters.barriers,
            mbarrier_waits: counters.mbarrier_waits,
            divergent_branches: counters.divergent_branches,
            atomics: counters.atomics,
            global_load: counters.global_load,
            global_store: counters.global_store,
            async_global: counters.async_global,
            async_shared: counters.async_shared,
            shared_load: counters.shared_load,
            shared_store: counters.shared_store,
            bulk_copies: counters.bulk_copies,
            bulk_load_bytes: counters.bulk_load_bytes,
            bulk_store_bytes: counters.bulk_store_bytes,
            local_bytes: counters.local_bytes,
            async_groups: counters.async_groups,
            warnings: Vec::new(),
        }
    }
}

/// Counts by source line.
fn sources(module: &Module, counters: &Counters) -> Vec<SourceCount> {
    let mut sums: BTreeMap<(u32, u32), [u64; 2]> = BTreeMap::new();
    for (program, counts) in module.programs.iter().zip(&counters.counts) {
        for (pc, count) in counts.iter().enumerate().filter(|(_, c)| c[0] > 0) {
            if let Some(place) = program.locations.at(pc as u32) {
                let sum = sums.entry(place).or_default();
                *sum = [sum[0] + count[0], sum[1] + count[1]];
            }
        }
    }
    let named = sums.into_iter().filter_map(|((file, line), sum)| {
        let source = SourceLine { file: module.files.get(&file)?.clone(), line, called_at: Vec::new() };
        Some(SourceCount { source, warp_instructions: sum[0], thread_instructions: sum[1] })
    });
    named.collect()
}

/// The class of an operation.
pub(crate) fn class_of(op: &Op) -> InstructionClass {
    match op {
        Op::Int(..)
        | Op::Compare(..)
        | Op::Carry(_)
        | Op::Combine { .. }
        | Op::Pack(_)
        | Op::Unpack(_)
        | Op::Timer(..)
        | Op::Rare(..)
        | Op::Video(_)
        | Op::VideoMad(_)
        | Op::MapRank { .. }
        | Op::RankOf { .. }
        | Op::Set(_)
        | Op::Nothing => InstructionClass::Integer,
        Op::Float(op, _) if is_special(*op) => InstructionClass::Special,
        Op::Float(..) => InstructionClass::Float,
        Op::Half(..) => InstructionClass::Half,
        Op::Convert(..) | Op::Cvt(_) | Op::CvtPack { .. } => InstructionClass::Convert,
        Op::Load(access) | Op::Store(access) => match access.space {
            Space::Global | Space::Generic => InstructionClass::Global,
            Space::Shared | Space::Cluster => InstructionClass::Shared,
            Space::Local | Space::Param | Space::Frame => InstructionClass::Local,
        },
        Op::WmmaLoad(access) | Op::WmmaStore(access) if access.space != Space::Shared => {
            InstructionClass::Global
        }
        Op::WmmaLoad(_) | Op::WmmaStore(_) => InstructionClass::Shared,
        Op::LoadMatrix(_) | Op::StoreMatrix(_) | Op::StoreBulk(_) => InstructionClass::Shared,
        Op::Atomic(_) => InstructionClass::Atomic,
        Op::CopyAsync(_)
        | Op::CommitGroup
        | Op::WaitGroup(_)
        | Op::Bulk(_)
        | Op::CommitBulk
        | Op::StoreAsync(_)
        | Op::TensorMapReplace(_)
        | Op::TensorMapCopy { .. }
        | Op::WaitBulk { .. } => InstructionClass::AsyncCopy,
        Op::Mma(_) | Op::WmmaMma(_) | Op::Wgmma(_) => InstructionClass::Tensor,
        Op::Shuffle(_) | Op::Collective(_) | Op::ActiveMask(_) | Op::MoveMatrix { .. } => {
            InstructionClass::Warp
        }
        Op::Barrier(_)
        | Op::WarpBarrier(_)
        | Op::Fence(_)
        | Op::ClusterArrive { .. }
        | Op::ClusterWait { .. }
        | Op::Mbarrier(_)
        | Op::CopyArrive(_)
        | Op::MbarrierFence
        | Op::ProxyFence(_)
        | Op::WgmmaFence
        | Op::WgmmaCommit
        | Op::WgmmaWait(_) => InstructionClass::Barrier,
        Op::Branch { .. }
        | Op::BranchTable { .. }
        | Op::Call(_)
        | Op::Service(_)
        | Op::Alloca { .. }
        | Op::StackSave(_)
        | Op::StackRestore(_)
        | Op::Return
        | Op::Exit
        | Op::Trap
        | Op::SetRegisters { .. } => InstructionClass::Control,
    }
}

/// Whether the hardware has a unit of its own for it, slower than arithmetic.
fn is_special(op: FloatOp) -> bool {
    use FloatOp::*;
    let roots = matches!(op, Sqrt | SqrtFtz | SqrtDouble | Rsqrt | RsqrtFtz | Rcp | RcpFtz | RcpDouble);
    let quotients = matches!(op, Div | DivFtz | DivDouble);
    roots || quotients || matches!(op, Sin | SinFtz | Cos | CosFtz | Lg2 | Lg2Ftz | Ex2 | Ex2Ftz | Tanh)
}
