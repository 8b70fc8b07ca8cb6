//! What each instruction costs: the unit that does it, how long it keeps that busy, and when its result is there.

use super::calendar::PARTS;
use super::gpu::Gpu;
use super::timeline::Unit;
use crate::compact::{self, Role};
use crate::matrix_type::MatrixType;
use crate::op::{Mma, Op, Program, Space, Wgmma, WmmaMma};
use crate::regs::Bank;
use crate::report::{InstructionClass, class_of};
use crate::table::convert::ConvertOp;
use crate::table::float::FloatOp;
use crate::table::half::HalfOp;
use crate::table::integer::IntOp;

/// How an instruction is ordered with the others of its warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// By its operands alone.
    Operands,
    /// After all before it have been issued, and before all after it.
    Point,
    /// A `wgmma`: joins the open group; its accumulator is there once the group has been waited for.
    Product,
    /// Copies of the thread: join the open group.
    Copy,
    BulkStore,
    /// Closes a group.
    CommitCopies,
    CommitBulk,
    CommitProducts,
    /// Waits until at most so many groups are open.
    WaitCopies(usize),
    WaitBulk(usize),
    WaitProducts(usize),
}

/// An instruction's cost.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    pub(super) unit: Option<Unit>,
    /// Parts of a clock of issue slots, and of the unit; what memory takes depends on the addresses and comes on top.
    pub(super) issue: u64,
    pub(super) busy: u64,
    /// Clocks from the unit's start until the result is there.
    pub(super) latency: u64,
    /// Bytes of shared memory that a product reads.
    pub(super) shared_bytes: u64,
    pub(super) order: Order,
    pub(super) reads: Box<[u32]>,
    pub(super) writes: Box<[u32]>,
}

/// The costs of a function's instructions.
pub(super) fn costs(program: &Program, gpu: &Gpu) -> Vec<Cost> {
    let first = [0, program.registers[0], program.registers[0] + program.registers[1]];
    program
        .insts
        .iter()
        .map(|inst| {
            let mut cost = cost_of(&inst.op, gpu);
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            if let Some(guard) = &inst.guard {
                reads.push((first[2] + guard.slot as usize) as u32);
            }
            let own = accumulator(&inst.op);
            compact::each(&inst.op, &mut |bank: Bank, slot, role| {
                if bank == Bank::Word && own.contains(&slot) {
                    return;
                }
                let id = (first[bank as usize] + slot as usize) as u32;
                match role {
                    Role::Read => reads.push(id),
                    Role::Write => writes.push(id),
                }
            });
            if inst.continues {
                (cost.issue, cost.busy) = (0, 0);
            }
            (cost.reads, cost.writes) = (reads.into(), writes.into());
            cost
        })
        .collect()
}

/// Registers that are ordered by the waits for `wgmma`, not by who reads and writes them.
fn accumulator(op: &Op) -> &[u32] {
    match op {
        Op::Wgmma(op) => &op.d,
        _ => &[],
    }
}

/// A cost without registers.
fn plain(unit: Unit, clocks: f64, latency: u32) -> Cost {
    Cost {
        unit: Some(unit),
        issue: PARTS,
        busy: (clocks * PARTS as f64).round() as u64,
        latency: latency.into(),
        shared_bytes: 0,
        order: Order::Operands,
        reads: Box::default(),
        writes: Box::default(),
    }
}

/// What a compiler makes of it takes no instruction of its own: renamed registers.
fn nothing() -> Cost {
    Cost { unit: None, issue: 0, ..plain(Unit::Integer, 0.0, 0) }
}

fn ordered(order: Order) -> Cost {
    Cost { unit: None, order, ..plain(Unit::Integer, 0.0, 0) }
}

fn cost_of(op: &Op, gpu: &Gpu) -> Cost {
    let lat = &gpu.latencies;
    let f32_clocks = 32.0 / f64::from(gpu.f32_lanes);
    let alu = plain(Unit::Integer, 2.0, lat.arithmetic);
    let several = |count: f64| Cost {
        issue: (count * PARTS as f64) as u64,
        ..plain(Unit::Integer, 2.0 * count, lat.arithmetic * count as u32)
    };
    match op {
        Op::Int(op, _) => integer(*op, gpu),
        Op::Convert(ConvertOp::WordToDouble | ConvertOp::DoubleToWord, _)
        | Op::Pack(_)
        | Op::Unpack(_)
        | Op::Nothing => nothing(),
        Op::Float(op, _) => float(*op, gpu, f32_clocks),
        Op::Half(op, _) => half(*op, gpu),
        Op::Carry(_) => alu,
        Op::Rare(..) | Op::CvtPack { .. } | Op::Video(_) | Op::VideoMad(_) => several(2.0),
        Op::Load(access) | Op::Store(access) => match access.space {
            Space::Shared | Space::Cluster => plain(Unit::Shared, 0.0, lat.shared),
            Space::Global | Space::Generic => plain(Unit::Global, 0.0, lat.l2),
            Space::Local => plain(Unit::Global, 1.0, lat.shared),
            // Constant memory, which instructions name as they name registers.
            Space::Param | Space::Frame => nothing(),
        },
        Op::LoadMatrix(_) | Op::StoreMatrix(_) | Op::StoreBulk(_) | Op::WmmaLoad(_) | Op::WmmaStore(_) => {
            plain(Unit::Shared, 0.0, lat.shared)
        }
        Op::Atomic(_) => plain(Unit::Global, 1.0, lat.l2),
        Op::CopyAsync(_) => Cost { order: Order::Copy, ..plain(Unit::Global, 0.0, lat.l2 + lat.shared) },
        Op::Bulk(_) | Op::StoreAsync(_) => {
            Cost { order: Order::BulkStore, ..plain(Unit::Global, 0.0, lat.l2) }
        }
        Op::CommitGroup => ordered(Order::CommitCopies),
        Op::CommitBulk => ordered(Order::CommitBulk),
        Op::WgmmaCommit => ordered(Order::CommitProducts),
        Op::WaitGroup(keep) => ordered(Order::WaitCopies(keep.map_or(0, |n| n as usize))),
        Op::WaitBulk { keep, .. } => ordered(Order::WaitBulk(*keep as usize)),
        Op::WgmmaWait(keep) => ordered(Order::WaitProducts(*keep as usize)),
        Op::Mma(op) => plain(Unit::Tensor, mma_clocks(op, gpu), lat.mma),
        Op::WmmaMma(op) => plain(Unit::Tensor, wmma_clocks(op, gpu), lat.mma),
        Op::Wgmma(op) => wgmma(op, gpu),
        Op::Shuffle(_) | Op::Collective(_) | Op::MoveMatrix { .. } => plain(Unit::Shared, 1.0, lat.shuffle),
        Op::Branch { .. } | Op::BranchTable { .. } | Op::Call(_) | Op::Return | Op::Exit => {
            Cost { latency: lat.branch.into(), ..ordered(Order::Point) }
        }
        Op::Set(_) | Op::Combine { .. } | Op::Compare(..) => alu,
        Op::Convert(..) | Op::Cvt(_) => plain(Unit::Integer, 2.0, lat.arithmetic + 2),
        op if class_of(op) == InstructionClass::Barrier => Cost { latency: 2, ..ordered(Order::Point) },
        _ => alu,
    }
}

/// The first word of a row's pattern, and whether it computes 64 bits.
fn integer(op: IntOp, gpu: &Gpu) -> Cost {
    let row = &IntOp::ROWS[op as usize];
    let name = row.pattern.split(' ').next().unwrap_or_default();
    let lat = gpu.latencies.arithmetic;
    let of = |count: f64, unit| Cost {
        issue: (count * PARTS as f64) as u64,
        ..plain(unit, 2.0 * count, lat * count.ceil() as u32)
    };
    let wide = row.result.bits == 64;
    match name {
        "mov" | "cvta" => nothing(),
        "div" | "rem" => of(if wide { 70.0 } else { 20.0 }, Unit::Integer),
        "mul" | "mad" if wide && row.args[0].bits == 64 => of(4.0, Unit::Float),
        // On the f32 units of devices that have twice as many of these as of integer ones.
        "mul" | "mad" => of(1.0, Unit::Float),
        "shl" | "shr" | "add" | "sub" | "and" | "or" | "xor" | "not" | "min" | "max" | "selp" | "neg"
            if wide =>
        {
            of(2.0, Unit::Integer)
        }
        _ => of(1.0, Unit::Integer),
    }
}

fn float(op: FloatOp, gpu: &Gpu, clocks: f64) -> Cost {
    let row = &FloatOp::ROWS[op as usize];
    let name = row.pattern.split(' ').next().unwrap_or_default();
    let lat = &gpu.latencies;
    let double = row.result.bits == 64;
    match name {
        "ex2" | "rcp" | "rsqrt" | "sqrt" | "lg2" | "sin" | "cos" | "tanh" if !double => {
            let flushes_itself = row.pattern.contains("ftz") || matches!(name, "tanh" | "sin" | "cos");
            let more = if flushes_itself { 0 } else { 2 };
            // Without `ftz` subnormals are scaled before and after.
            Cost { issue: (1 + more) * PARTS, ..plain(Unit::Special, 8.0, lat.special + 8 * more as u32) }
        }
        "div" => {
            Cost { issue: 10 * PARTS, ..plain(Unit::Float, 10.0 * clocks, 10 * lat.arithmetic + lat.special) }
        }
        "min" | "max" | "abs" | "neg" | "copysign" | "testp" => plain(Unit::Integer, 2.0, lat.arithmetic),
        // Half a warp a clock on data-centre devices, far less on others.
        _ if double => plain(
            Unit::Float,
            if gpu.f32_lanes == 32 && gpu.wgmma == 0.0 { 64.0 } else { 2.0 },
            2 * lat.arithmetic,
        ),
        _ => plain(Unit::Float, clocks, lat.arithmetic),
    }
}

fn half(op: HalfOp, gpu: &Gpu) -> Cost {
    let row = &HalfOp::ROWS[op as usize];
    let name = row.pattern.split(' ').next().unwrap_or_default();
    match name {
        "ex2" | "tanh" => plain(Unit::Special, 16.0, gpu.latencies.special),
        _ => plain(Unit::Float, 1.0, gpu.latencies.arithmetic + 1),
    }
}

/// How many times as fast as f16 a type is multiplied.
fn pace(ty: MatrixType) -> f64 {
    match ty {
        MatrixType::F64 => 1.0 / 16.0,
        ty => 16.0 / ty.bits() as f64,
    }
}

fn mma_clocks(op: &Mma, gpu: &Gpu) -> f64 {
    let rate = if op.d_f32 || op.a_type.is_integer() { gpu.mma[0] } else { gpu.mma[1] };
    (op.m * 8 * op.k) as f64 / (rate * pace(op.a_type))
}

fn wmma_clocks(op: &WmmaMma, gpu: &Gpu) -> f64 {
    op.shape.iter().product::<usize>() as f64 / (gpu.mma[0] * pace(op.a_type))
}

/// A warp's quarter of a warpgroup's product.
fn wgmma(op: &Wgmma, gpu: &Gpu) -> Cost {
    let k = 256 / op.a_type.bits();
    let clocks = (16 * op.n * k) as f64 / (gpu.wgmma.max(1.0) * pace(op.a_type));
    let a_bytes = if matches!(op.a, crate::op::WgmmaA::Shared(_)) { 64 * 32 } else { 0 };
    Cost {
        order: Order::Product,
        // A quarter of what the warpgroup reads together.
        shared_bytes: (op.n * 32 + a_bytes) as u64 / 4,
        ..plain(Unit::Tensor, clocks, gpu.latencies.wgmma)
    }
}
