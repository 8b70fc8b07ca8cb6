//! One multiprocessor's time: when its units are busy, and how far each warp has come.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::calendar::{Calendar, PARTS};
use super::cost::{Cost, Order, costs};
use super::gpu::Gpu;
use crate::counters::Counters;
use crate::op::{Pc, Program};

/// Partitions of a multiprocessor, each with its warps and units.
const PARTITIONS: usize = 4;
/// Bytes that shared memory gives in a clock.
const SHARED_BYTES: u64 = 128;

/// What does the work of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Issue slots: one warp instruction a clock and partition.
    Issue,
    /// Integer, logic, comparisons, conversions.
    Integer,
    /// f32 and f16 arithmetic, integer products.
    Float,
    /// Exponentials, reciprocals and the like.
    Special,
    /// Tensor cores.
    Tensor,
    /// Shared memory and shuffles; one for the whole multiprocessor.
    Shared,
    /// The way to L2; one for the whole multiprocessor.
    Global,
}

impl Unit {
    /// Every unit.
    pub const ALL: [Unit; 7] =
        [Unit::Issue, Unit::Integer, Unit::Float, Unit::Special, Unit::Tensor, Unit::Shared, Unit::Global];

    /// A stable short name.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Issue => "issue",
            Unit::Integer => "integer",
            Unit::Float => "float",
            Unit::Special => "special",
            Unit::Tensor => "tensor",
            Unit::Shared => "shared",
            Unit::Global => "global",
        }
    }

    fn partitions(self) -> usize {
        if matches!(self, Unit::Shared | Unit::Global) { 1 } else { PARTITIONS }
    }
}

/// Asynchronous operations by group: when the open one and the committed ones are complete.
#[derive(Debug, Default)]
struct Groups {
    open: u64,
    committed: VecDeque<u64>,
}

impl Groups {
    fn add(&mut self, complete: u64) {
        self.open = self.open.max(complete);
    }

    fn commit(&mut self) {
        self.committed.push_back(std::mem::take(&mut self.open));
    }

    /// When all but the newest `keep` are complete.
    fn wait(&mut self, keep: usize) -> u64 {
        let done = self.committed.len().saturating_sub(keep);
        self.committed.drain(..done).max().unwrap_or(0)
    }
}

/// How far a warp has come.
#[derive(Debug, Default)]
pub(crate) struct WarpTime {
    partition: usize,
    /// Before this nothing more is issued.
    floor: u64,
    /// The latest issue so far, and when all that was issued is complete.
    issued: u64,
    complete: u64,
    /// When each register of the function is there.
    program: usize,
    ready: Vec<u64>,
    copies: Groups,
    bulk: Groups,
    products: Groups,
}

/// What an instruction moved, beyond what its text says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    wavefronts: u64,
    sectors: u64,
    bulk_bytes: u64,
}

impl Moved {
    /// All that a CTA has moved so far.
    pub(crate) fn so_far(counters: &Counters) -> Moved {
        let shared = [&counters.shared_load, &counters.shared_store, &counters.async_shared];
        let global = [&counters.global_load, &counters.global_store, &counters.async_global];
        Moved {
            wavefronts: shared.iter().map(|t| t.wavefronts).sum(),
            sectors: global.iter().map(|t| t.sectors).sum(),
            bulk_bytes: counters.bulk_store_bytes,
        }
    }

    fn since(self, before: Moved) -> Moved {
        Moved {
            wavefronts: self.wavefronts - before.wavefronts,
            sectors: self.sectors - before.sectors,
            bulk_bytes: self.bulk_bytes - before.bulk_bytes,
        }
    }
}

/// The multiprocessor.
#[derive(Debug)]
struct Sm {
    gpu: Gpu,
    resident: usize,
    units: [[Calendar; PARTITIONS]; Unit::ALL.len()],
    /// When each place for a CTA is free.
    places: BinaryHeap<Reverse<u64>>,
    /// CTAs that have started, and when those ended that have.
    started: usize,
    ends: Vec<u64>,
    costs: HashMap<usize, Arc<Vec<Cost>>>,
}

/// Takes the time of a launch on one multiprocessor: all CTAs of the launch go to it, as many at a time as it holds.
#[derive(Clone, Debug)]
pub struct Timer(Arc<Mutex<Sm>>);

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Timer {}

impl Timer {
    /// A multiprocessor of a device that holds so many CTAs of the kernel at a time.
    pub fn new(gpu: &Gpu, resident_ctas: u32) -> Timer {
        let places = (0..resident_ctas.max(1)).map(|_| Reverse(0)).collect();
        Timer(Arc::new(Mutex::new(Sm {
            gpu: *gpu,
            resident: resident_ctas.max(1) as usize,
            units: Default::default(),
            places,
            started: 0,
            ends: Vec::new(),
            costs: HashMap::new(),
        })))
    }

    fn sm(&self) -> MutexGuard<'_, Sm> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// CTAs that it holds at a time.
    pub(crate) fn resident_ctas(&self) -> usize {
        self.sm().resident
    }

    /// Clocks until the last CTA ended.
    pub fn clocks(&self) -> u64 {
        self.sm().ends.iter().copied().max().unwrap_or(0)
    }

    /// Clocks until `count` CTAs had ended, or all where there are fewer.
    pub fn clocks_of(&self, count: usize) -> u64 {
        let mut ends = self.sm().ends.clone();
        ends.sort_unstable();
        ends.get(count.saturating_sub(1)).or(ends.last()).copied().unwrap_or(0)
    }

    /// The share of its time that a unit was busy, on the average of the partitions.
    pub fn busy(&self, unit: Unit) -> f64 {
        let (clocks, sm) = (self.clocks().max(1), self.sm());
        let taken: u64 = sm.units[unit as usize].iter().map(Calendar::busy).sum();
        taken as f64 / (clocks * unit.partitions() as u64) as f64
    }

    /// A CTA starts: the state of its warps.
    pub(crate) fn start(&self, warps: usize, program: usize) -> Vec<WarpTime> {
        let mut sm = self.sm();
        let from = sm.places.pop().map_or(0, |place| place.0);
        let first = sm.started * warps;
        sm.started += 1;
        let warp = |at| WarpTime {
            partition: (first + at) % PARTITIONS,
            floor: from,
            issued: from,
            complete: from,
            program,
            ..WarpTime::default()
        };
        (0..warps).map(warp).collect()
    }

    /// A CTA has ended when all that its warps began is complete.
    pub(crate) fn end<'w>(&self, warps: impl Iterator<Item = &'w WarpTime>) {
        let end = warps.map(|warp| warp.complete.max(warp.issued)).max().unwrap_or(0);
        let mut sm = self.sm();
        sm.places.push(Reverse(end));
        sm.ends.push(end);
    }

    /// When a bulk copy to shared memory has landed that a warp issues now.
    pub(crate) fn bulk_load(&self, warp: &WarpTime, bytes: u64) -> u64 {
        let mut sm = self.sm();
        let parts = (bytes as f64 / sm.gpu.l2_bytes * PARTS as f64) as u64;
        let latency = sm.gpu.latencies.l2 + sm.gpu.latencies.bulk;
        let (_, end) = sm.units[Unit::Global as usize][0].enter(warp.now(), parts);
        end + u64::from(latency)
    }

    /// An instruction of a warp. `seen` is when that was complete which others have told the warp of.
    pub(crate) fn step(
        &self,
        warp: &mut WarpTime,
        (index, program, pc): (usize, &Program, Pc),
        moved: (Moved, Moved),
        seen: u64,
    ) {
        let mut sm = self.sm();
        let gpu = sm.gpu;
        let costs = sm.costs.entry(index).or_insert_with(|| Arc::new(costs(program, &gpu))).clone();
        sm.step(warp, (index, program), &costs[pc as usize], moved.1.since(moved.0), seen);
    }
}

impl WarpTime {
    /// How far it is: what it tells others was done by then.
    pub(crate) fn now(&self) -> u64 {
        self.issued.max(self.floor)
    }

    /// When the copies that it has issued so far have landed.
    pub(crate) fn copies_landed(&self) -> u64 {
        self.copies.committed.iter().copied().fold(self.copies.open, u64::max)
    }
}

impl Sm {
    fn step(
        &mut self,
        warp: &mut WarpTime,
        (index, program): (usize, &Program),
        cost: &Cost,
        moved: Moved,
        seen: u64,
    ) {
        if warp.program != index || warp.ready.is_empty() {
            // Another function's registers: arguments are there when all before the call is complete.
            warp.program = index;
            warp.ready.clear();
            warp.ready.resize(program.registers.iter().sum(), warp.floor);
        }
        if seen > warp.now() {
            warp.floor = seen + u64::from(self.gpu.latencies.barrier);
        }
        let operands = cost.reads.iter().map(|id| warp.ready[*id as usize]).max().unwrap_or(0);
        let mut from = warp.floor.max(operands);
        let is_point =
            !matches!(cost.order, Order::Operands | Order::Product | Order::Copy | Order::BulkStore);
        if is_point {
            from = from.max(warp.issued);
        }
        let (issue, _) = self.enter(Unit::Issue, warp.partition, from, cost.issue);
        let (start, mut end) = (issue, issue);
        let mut result = start + cost.latency;
        if let Some(unit) = cost.unit {
            let parts = cost.busy + self.moved_parts(unit, moved);
            let began;
            (began, end) = self.enter(unit, warp.partition, issue, parts);
            if unit == Unit::Global && moved.wavefronts > 0 {
                end = end.max(self.enter(Unit::Shared, 0, began, moved.wavefronts * PARTS).1);
            }
            if cost.shared_bytes > 0 {
                let (_, read) = self.enter(Unit::Shared, 0, began, cost.shared_bytes * PARTS / SHARED_BYTES);
                end = end.max(read);
            }
            // The last pass over shared memory, or the last sector, comes a latency after its turn; arithmetic is pipelined.
            result = match unit {
                Unit::Shared | Unit::Global => end.saturating_sub(1).max(began) + cost.latency,
                _ => end.max(began + cost.latency),
            };
        }
        warp.issued = warp.issued.max(issue);
        match cost.order {
            Order::Operands => {}
            Order::Point => warp.floor = warp.floor.max(issue + cost.latency),
            Order::Product => {
                result = end + cost.latency;
                warp.products.add(result);
            }
            Order::Copy => warp.copies.add(result),
            Order::BulkStore => warp.bulk.add(result),
            Order::CommitCopies => warp.copies.commit(),
            Order::CommitBulk => warp.bulk.commit(),
            Order::CommitProducts => warp.products.commit(),
            Order::WaitCopies(keep) => warp.floor = warp.floor.max(issue).max(warp.copies.wait(keep)),
            Order::WaitBulk(keep) => warp.floor = warp.floor.max(issue).max(warp.bulk.wait(keep)),
            Order::WaitProducts(keep) => warp.floor = warp.floor.max(issue).max(warp.products.wait(keep)),
        }
        cost.writes.iter().for_each(|id| warp.ready[*id as usize] = result);
        warp.complete = warp.complete.max(result).max(warp.floor);
    }

    fn enter(&mut self, unit: Unit, partition: usize, from: u64, parts: u64) -> (u64, u64) {
        let at = if unit.partitions() == 1 { 0 } else { partition };
        self.units[unit as usize][at].enter(from, parts)
    }

    /// What memory takes for the addresses that the instruction had.
    fn moved_parts(&self, unit: Unit, moved: Moved) -> u64 {
        match unit {
            Unit::Shared => moved.wavefronts * PARTS,
            Unit::Global => {
                let bytes = moved.sectors * 32 + moved.bulk_bytes;
                // At least a clock to look an address up.
                ((bytes as f64 / self.gpu.l2_bytes * PARTS as f64) as u64).max(PARTS)
            }
            _ => 0,
        }
    }
}
