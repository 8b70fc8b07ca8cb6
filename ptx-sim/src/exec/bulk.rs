//! Bulk copies (PTX ISA §9.7.9.25.4, §9.7.9.27): the async proxy moves a range or a box of a tensor. To shared memory, the bytes
//! land as late as they may, or at random under a seed, and are then counted at an mbarrier; to global memory, they are read
//! when the copy is issued and land when its bulk group is waited for, or at the end.
//!
//! A copy accesses shared memory as an agent of its own: the phase of its mbarrier, or the bulk group of its thread.

use crate::clock::Agent;
use crate::finding::{Fault, FindingKind, Outcome};
use crate::mark::{Later, Who};
use crate::memory::{Words, words_of};
use crate::op::{AtomicOp, Bulk, BulkTo, Pc, Proxy, Scalar, Scope, Space, StoreAsync, Strength};
use crate::race::{Held, RaceAccess};
use crate::tensor_map::{Chunk, TensorMap, TensorType};
use crate::window;

use super::access::{addresses, check_alignment, lanes, note_global};
use super::bulk_store::named_bytes;
use super::cta::Cta;
use super::mbarrier::shared_address;
use super::warp::Warp;

impl Bulk {
    /// The type of the elements of a tensor that is reduced into.
    pub(super) fn tensor_type(&self, ty: TensorType) -> Scalar {
        match ty {
            TensorType::U8 => Scalar::U(8),
            TensorType::U16 => Scalar::U(16),
            TensorType::U32 => Scalar::U(32),
            TensorType::U64 => Scalar::U(64),
            TensorType::F16 => Scalar::F16,
            TensorType::Bf16 => Scalar::Bf16,
            TensorType::F32 => Scalar::F32,
        }
    }
}

/// A copy to shared memory that has not landed.
#[derive(Debug)]
pub(super) struct BulkLoad {
    /// Offset and content of every chunk.
    chunks: Vec<(u64, Words)>,
    bytes: u64,
    /// What is done with each element, other than to store it.
    reduces: Option<(AtomicOp, Scalar)>,
    /// The mbarrier: its offset and its address.
    mbarrier: (u64, u64),
    lane: usize,
    issued: Issued,
    /// When it lands, in the model of time.
    lands: u64,
}

/// Where a bulk copy was issued.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issued {
    /// The agent's time for which it was issued.
    pub(super) time: u32,
    pub(super) warp: u32,
    pub(super) at: (usize, Pc),
}

impl Cta<'_> {
    /// Lets a copy land: the oldest, or any under a seed. A fault comes with the warp and the instruction that issued it.
    pub(super) fn land_bulk(&mut self) -> Result<(), (Issued, Box<Fault>)> {
        let at = if self.is_random() { self.random() as usize % self.loads.len() } else { 0 };
        let load = self.loads.remove(at);
        for (offset, words) in &load.chunks {
            let words = reduced(load.reduces, &self.shared.load(*offset, 16), words, 16);
            self.shared.store(*offset, 16, &words);
        }
        self.finish_load(&load).map_err(|fault| (load.issued, fault))
    }

    fn finish_load(&mut self, load: &BulkLoad) -> Outcome {
        let (offset, address) = load.mbarrier;
        if self.mbarrier(offset, load.lane, address)?.time + 1 != load.issued.time {
            let detail = "a copy lands after its phase: fewer bytes were expected than come";
            return Err(Fault::at(FindingKind::Mbarrier, load.lane, address).saying(detail));
        }
        self.mbarrier(offset, load.lane, address)?.filled_at(load.lands);
        self.transact(offset, -(load.bytes as i64), load.lane, address)
    }

    /// A copy whose shared memory the CTA gives up too early: nobody has waited for its end.
    pub(super) fn unwaited(&self) -> Option<Issued> {
        let loads = self.mbarriers.values().filter_map(|m| m.unwaited);
        let stores = self.bulk_groups.iter().filter(|(_, g)| g.newest.0 > g.read);
        loads
            .chain(stores.map(|((warp, _), g)| Issued { time: g.newest.0, warp: *warp, at: g.newest.1 }))
            .next()
    }
}

/// Reductions are relaxed within the cluster (PTX ISA §9.7.9.25.4.2, §9.7.13.7): any number of them may be on their way to one place.
const REDUCED: Scope = Scope::Cluster;

impl Warp {
    /// When a copy of so many bytes to shared memory that is issued now has landed, in the model of time.
    fn lands(&self, bytes: u64, cta: &Cta<'_>) -> u64 {
        match (&self.time, &cta.launch.config.timer) {
            (Some(time), Some(timer)) => timer.bulk_load(time, bytes),
            _ => 0,
        }
    }

    pub(super) fn bulk(&mut self, op: &Bulk, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        let regs = &self.frame(frame)?.regs;
        let (shared, global) = (addresses(regs, &op.shared), addresses(regs, &op.global));
        let mut stored: Vec<Chunk> = Vec::new();
        for lane in lanes(active) {
            let shared = shared_address(op.space, shared[lane]);
            match &op.to {
                BulkTo::Shared { mbarrier, space, mask } => {
                    let regs = &self.frame(frame)?.regs;
                    let barrier = shared_address(*space, addresses(regs, mbarrier)[lane]);
                    let mask = mask.map(|slot| regs.word[slot as usize][lane] & 0xffff);
                    let own = cta.rank_of(Space::Cluster, lane, &mut { shared })?;
                    let chunks = self.chunks(op, frame, (lane, window::in_cta(shared), global[lane]), cta)?;
                    let ranks = mask.unwrap_or(1 << own);
                    for rank in (0..16).filter(|rank| ranks >> rank & 1 == 1) {
                        if rank >= cta.launch.cluster_ctas() {
                            let detail = "a CTA of the multicast's mask is not in the cluster";
                            return Err(Fault::at(FindingKind::BadOperand, lane, ranks.into()).saying(detail));
                        }
                        cta.rank_of(Space::Cluster, lane, &mut { window::of_rank(rank, 0) })?;
                        let barrier_rank = match mask {
                            Some(_) => rank,
                            None => cta.rank_of(Space::Cluster, lane, &mut { barrier })?,
                        };
                        if barrier_rank != rank {
                            let detail = "the mbarrier lies in another CTA than the target";
                            return Err(Fault::at(FindingKind::BadOperand, lane, barrier).saying(detail));
                        }
                        let by_async_proxy = !op.hides_proxies && !self.hides_proxies(frame, cta);
                        let needs_no_fence = op.needs_no_init_fence && cta.launch.cluster_ctas() == 1;
                        let to = (rank, window::in_cta(barrier), !needs_no_fence);
                        self.bulk_load(&chunks, (lane, by_async_proxy), to, cta)?;
                    }
                }
                BulkTo::Peer { mbarrier } => {
                    let barrier = addresses(&self.frame(frame)?.regs, mbarrier)[lane];
                    self.bulk_peer(op, frame, (lane, shared, global[lane], barrier), cta)?;
                }
                BulkTo::Answer { mbarrier, to_all } => {
                    let barrier = addresses(&self.frame(frame)?.regs, mbarrier)[lane];
                    let barrier = window::in_cta(shared_address(Space::Cluster, barrier));
                    let own = cta.rank_of(Space::Cluster, lane, &mut { shared })?;
                    let ranks = if *to_all { 0..cta.launch.cluster_ctas() } else { own..own + 1 };
                    check_alignment(cta, lane, window::in_cta(shared), 16)?;
                    let at = window::in_cta(shared);
                    let no = Chunk { shared: at, global: 0, skip: 0, bytes: 0, element: TensorType::U8 };
                    for rank in ranks {
                        cta.rank_of(Space::Cluster, lane, &mut { window::of_rank(rank, 0) })?;
                        self.bulk_load(std::slice::from_ref(&no), (lane, true), (rank, barrier, true), cta)?;
                    }
                }
                BulkTo::Global { byte_mask } => {
                    let mut chunks = self.chunks(op, frame, (lane, shared, global[lane]), cta)?;
                    if let Some(slot) = byte_mask {
                        let mask = self.frame(frame)?.regs.word[*slot as usize][lane] as u16;
                        chunks = chunks.iter().flat_map(|chunk| named_bytes(chunk, mask)).collect();
                    }
                    // CUTLASS's epilogues let a whole warp issue one store: its lanes write the same to the same place.
                    self.bulk_store(&chunks, lane, (op, chunks == stored), cta)?;
                    stored = chunks;
                }
            }
        }
        Ok(())
    }

    /// Whether the function that called this frame's copies for those who know of no proxies.
    fn hides_proxies(&self, frame: usize, cta: &Cta<'_>) -> bool {
        let caller = self.frames[frame].as_ref().and_then(|own| own.caller);
        let caller = caller.and_then(|(caller, ..)| self.frames[caller].as_ref());
        caller.is_some_and(|caller| cta.launch.program(caller.program).hides_proxies)
    }

    /// From this CTA's shared memory to that of another.
    fn bulk_peer(
        &mut self,
        op: &Bulk,
        frame: usize,
        (lane, to, from, barrier): (usize, u64, u64, u64),
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let bytes =
            op.bytes.map_or(Ok(0), |slot| self.frame(frame).map(|f| f.regs.word[slot as usize][lane]))?;
        if bytes % 16 != 0 {
            let detail = "the size of a bulk copy is a multiple of 16";
            return Err(Fault::at(FindingKind::BadOperand, lane, bytes.into()).saying(detail));
        }
        fits(bytes.into(), lane, from, cta)?;
        let rank = cta.rank_of(Space::Cluster, lane, &mut { to })?;
        let (to, barrier) = (window::in_cta(to), window::in_cta(barrier));
        let Some((agent, time, offset)) = self.later_mbarrier(true, lane, rank, barrier, cta)? else {
            return Ok(());
        };
        let mut landing = Vec::new();
        for at in (0..u64::from(bytes)).step_by(16) {
            let Some(source) = cta.shared.offset(lane, from.wrapping_add(at), 16)? else { continue };
            let who = self.proxy_who(lane, agent, time, cta);
            let own = cta.rank;
            cta.note_read(own, source, 16, &who, (self.index, self.place()))?;
            let words = cta.shared.load(source, 16);
            let target = cta.at_rank(rank);
            let Some(to) = target.shared.offset(lane, to.wrapping_add(at), 16)? else { continue };
            let element_bytes = |ty: Option<Scalar>| u32::from(ty.map_or(8, Scalar::bits)) / 8;
            let strong = op.reduces.map(|(_, ty)| Strength::new(REDUCED, element_bytes(ty), true, true));
            target.shared.note_bulk_write(to, 16, &Who { strong, ..who })?;
            landing.push((to, words));
        }
        let issued = Issued { time, warp: self.index, at: self.place() };
        let load = BulkLoad {
            chunks: landing,
            bytes: bytes.into(),
            mbarrier: (offset, barrier),
            lane,
            issued,
            lands: self.lands(bytes.into(), cta),
            reduces: op.reduces.and_then(|(op, ty)| Some((op, ty?))),
        };
        cta.counters.bulk_copies += 1;
        cta.at_rank(rank).loads.push(load);
        cta.changed_memory(true);
        Ok(())
    }

    /// `st.async` and `red.async`, of the generic proxy: the bytes are counted at the mbarrier as they land, which is at once here.
    pub(super) fn store_async(
        &mut self,
        op: &StoreAsync,
        frame: usize,
        active: u32,
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let regs = &self.frame(frame)?.regs;
        let (to, barriers) = (addresses(regs, &op.addr), addresses(regs, &op.mbarrier));
        let bytes = u32::from(op.element_bytes) * op.regs.len() as u32;
        for lane in lanes(active) {
            let words = super::access::gather(&self.frame(frame)?.regs, &op.regs, lane, op.element_bytes);
            check_alignment(cta, lane, to[lane], bytes)?;
            let rank = cta.rank_of(Space::Cluster, lane, &mut { to[lane] })?;
            let barrier = window::in_cta(barriers[lane]);
            let Some((agent, time, offset)) = self.later_mbarrier(false, lane, rank, barrier, cta)? else {
                continue;
            };
            let later = Some(Later { agent, time, by_async_proxy: false });
            let strong = op.reduces.map(|_| Strength::new(REDUCED, op.element_bytes.into(), true, false));
            let who = Who { later, strong, ..self.who(lane, None, cta) };
            let target = cta.at_rank(rank);
            let Some(at) = target.shared.offset(lane, window::in_cta(to[lane]), bytes)? else { continue };
            target.shared.note_bulk_write(at, bytes, &who)?;
            let words = reduced(op.reduces, &target.shared.load(at, bytes), &words, bytes);
            target.shared.store(at, bytes, &words);
            target.transact(offset, -i64::from(bytes), lane, barrier)?;
            cta.changed_memory(true);
        }
        Ok(())
    }

    /// The agent of what is counted at an mbarrier, its time, and the mbarrier's offset. `init_fenced` if a fence must have come after its
    /// initialisation.
    fn later_mbarrier(
        &mut self,
        init_fenced: bool,
        lane: usize,
        rank: u32,
        mbarrier: u64,
        cta: &mut Cta<'_>,
    ) -> Outcome<Option<(Agent, u32, u64)>> {
        check_alignment(cta, lane, mbarrier, 8)?;
        let who = self.who(lane, None, cta);
        let checked = cta.launch.config.checks.async_copies;
        let remote = rank != cta.rank;
        let Some(offset) = cta.at_rank(rank).shared.offset(lane, mbarrier, 8)? else { return Ok(None) };
        cta.check_mbarrier(rank, offset, self.cluster_arrived[lane].is_some(), &who)?;
        let target = cta.at_rank(rank);
        let state = target.mbarrier(offset, lane, mbarrier)?;
        let (agent, time, fenced) = (state.agent, state.time + 1, state.fenced);
        let by_itself = !remote && state.is_initialized_by(self.index, lane);
        if !remote {
            state.unwaited = Some(Issued { time, warp: self.index, at: self.place() });
        }
        if init_fenced && !fenced && checked {
            let detail = "neither fence.mbarrier_init nor fence.proxy.async after mbarrier.init";
            let fault = Fault::at(FindingKind::ProxyFence, lane, mbarrier);
            // CUB leaves the fence out there, and no hardware is known to mind.
            let fault = if by_itself { fault.warning(detail) } else { fault.saying(detail) };
            cta.tolerate(Err(fault), (self.index, self.place()))?;
        }
        Ok(Some((agent, time, offset)))
    }

    /// The chunks that one thread's copy moves.
    fn chunks(
        &mut self,
        op: &Bulk,
        frame: usize,
        (lane, shared, global): (usize, u64, u64),
        cta: &mut Cta<'_>,
    ) -> Outcome<Vec<Chunk>> {
        if let Some(bytes) = op.bytes {
            let bytes = self.frame(frame)?.regs.word[bytes as usize][lane];
            if bytes % 16 != 0 {
                let detail = "the size of a bulk copy is a multiple of 16";
                return Err(Fault::at(FindingKind::BadOperand, lane, bytes.into()).saying(detail));
            }
            check_alignment(cta, lane, shared, 16)?;
            check_alignment(cta, lane, global, 16)?;
            fits(bytes.into(), lane, shared, cta)?;
            let chunk = |at| {
                let (shared, global) = (shared.wrapping_add(at), global.wrapping_add(at));
                Chunk { shared, global, skip: 0, bytes: 16, element: TensorType::U8 }
            };
            return Ok((0..u64::from(bytes)).step_by(16).map(chunk).collect());
        }
        check_alignment(cta, lane, global, 64)?;
        check_alignment(cta, lane, shared, 128)?;
        let bytes = self.read_tensor_map(global, lane, frame, cta)?;
        let bad = |detail| Fault::at(FindingKind::BadOperand, lane, global).saying(detail);
        let map =
            TensorMap::from_bytes(&bytes).ok_or_else(|| bad("there is no tensor map of the simulator's"))?;
        if map.rank() != op.coordinates.len() {
            return Err(bad("the tensor map has another number of dimensions"));
        }
        if map.is_im2col() != op.offsets.is_some() {
            return Err(bad("the tensor map is of the other mode, tile or im2col"));
        }
        fits(map.box_bytes(), lane, shared, cta)?;
        let regs = &self.frame(frame)?.regs;
        let offsets = op.offsets.iter().flatten().map(|slot| regs.word[*slot as usize][lane] as u16);
        let offsets: Vec<u16> = offsets.collect();
        let at: Vec<i32> = op.coordinates.iter().map(|c| regs.word[*c as usize][lane] as i32).collect();
        Ok(map.chunks(&at, &offsets, shared))
    }

    /// The lane as the async proxy.
    pub(super) fn proxy_who(&self, lane: usize, agent: Agent, time: u32, cta: &Cta<'_>) -> Who<'_> {
        Who { later: Some(Later { agent, time, by_async_proxy: true }), ..self.who(lane, None, cta) }
    }

    /// The part of a chunk that is in global memory. It is read now, and may be read until the agent has done what it does at that time.
    fn read_source(&mut self, lane: usize, chunk: &Chunk, later: Later, cta: &mut Cta<'_>) -> Outcome<Words> {
        let Some((allocation, at)) = self.locate(lane, chunk.global, chunk.bytes, cta)? else {
            return Ok([0; 4]);
        };
        let checks = cta.launch.config.checks;
        if checks.initialized && !allocation.is_written(at, chunk.bytes) {
            return Err(Fault::at(FindingKind::Uninitialized, lane, chunk.global));
        }
        if !checks.async_copies {
            self.note_global(RaceAccess::Read, allocation, (lane, at, chunk.bytes), None, cta)?;
        } else if allocation.races.is_watching() {
            let who = Who { later: Some(later), ..self.who(lane, None, cta) };
            let through_proxy = RaceAccess::ProxyRead(Proxy::AsyncGlobal);
            let access = if later.by_async_proxy { through_proxy } else { RaceAccess::Read };
            let target = (allocation, at, chunk.bytes);
            let by = (self.index, self.place());
            note_global(access, target, &who, &mut Held::default(), by, cta)?;
        }
        Ok(allocation.load(at, chunk.bytes))
    }

    fn bulk_load(
        &mut self,
        chunks: &[Chunk],
        (lane, by_async_proxy): (usize, bool),
        (rank, mbarrier, init_fenced): (u32, u64, bool),
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let init_fenced = init_fenced && by_async_proxy;
        let Some((agent, time, offset)) = self.later_mbarrier(init_fenced, lane, rank, mbarrier, cta)? else {
            return Ok(());
        };
        let later = Later { agent, time, by_async_proxy };
        let mut landing = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let mut words = [0; 4];
            if chunk.bytes > 0 {
                words = shifted(&self.read_source(lane, chunk, later, cta)?, chunk.skip);
            }
            let who = Who { later: Some(later), ..self.who(lane, None, cta) };
            let target = cta.at_rank(rank);
            let Some(to) = target.shared.offset(lane, chunk.shared, 16)? else { continue };
            let noted = target.shared.note_bulk_write(to, 16, &who);
            cta.tolerate(noted, (self.index, self.place()))?;
            landing.push((to, words));
        }
        let bytes = 16 * chunks.len() as u64;
        cta.counters.bulk_copies += 1;
        cta.counters.bulk_load_bytes += bytes;
        let issued = Issued { time, warp: self.index, at: self.place() };
        let mbarrier = (offset, mbarrier);
        let lands = self.lands(bytes, cta);
        let load = BulkLoad { chunks: landing, bytes, reduces: None, mbarrier, lane, issued, lands };
        cta.at_rank(rank).loads.push(load);
        if rank != cta.rank {
            cta.changed_memory(true);
        }
        Ok(())
    }
}

/// What is larger than the CTA's shared memory lies partly outside, whether that is checked or not.
pub(super) fn fits(bytes: u64, lane: usize, shared: u64, cta: &Cta<'_>) -> Outcome {
    if bytes > cta.launch.shared_bytes {
        return Err(Fault::at(FindingKind::OutOfBounds, lane, shared));
    }
    Ok(())
}

/// What memory holds after a copy or an operation of it.
fn reduced(reduces: Option<(AtomicOp, Scalar)>, old: &Words, new: &Words, bytes: u32) -> Words {
    match reduces {
        None => *new,
        Some((op, ty)) => {
            words_of(&super::atomic::combine_all(op, ty, &bytes_of(old), &bytes_of(new), bytes))
        }
    }
}

pub(super) fn bytes_of(words: &Words) -> [u8; 16] {
    std::array::from_fn(|i| (words[i / 4] >> (8 * (i % 4))) as u8)
}

/// The words moved up by some bytes, zeros before them.
fn shifted(words: &Words, skip: u32) -> Words {
    let mut bytes = [0; 16];
    let skip = skip as usize;
    bytes[skip..].copy_from_slice(&bytes_of(words)[..16 - skip]);
    words_of(&bytes)
}
