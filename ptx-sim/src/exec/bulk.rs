//! Bulk copies (PTX ISA §9.7.9.25.4, §9.7.9.27): the async proxy moves a range or a box of a tensor. To shared memory, the bytes
//! land as late as they may, or at random under a seed, and are then counted at an mbarrier; to global memory, they are read
//! when the copy is issued and land when its bulk group is waited for, or at the end.
//!
//! A copy accesses shared memory as an agent of its own: the phase of its mbarrier, or the bulk group of its thread.

use crate::clock::{Agent, AgentOf};
use crate::finding::{Fault, FindingKind, Outcome};
use crate::memory::Words;
use crate::op::{Bulk, BulkTo, Pc, Space};
use crate::race::{self, RaceAccess};
use crate::shared::Who;
use crate::tensor_map::{Chunk, TensorMap};

use super::access::{addresses, check_alignment, lanes, words_of};
use super::cta::Cta;
use super::mbarrier::shared_address;
use super::warp::Warp;

/// A copy to shared memory that has not landed.
#[derive(Debug)]
pub(super) struct BulkLoad {
    /// Offset and content of every chunk.
    chunks: Vec<(u64, Words)>,
    bytes: u64,
    /// The mbarrier: its offset and its address.
    mbarrier: (u64, u64),
    lane: usize,
    issued: Issued,
}

/// A copy to global memory.
#[derive(Debug)]
struct BulkStore {
    group: u32,
    /// Address, bytes and content of every piece that has not landed.
    pieces: Vec<(u64, u32, Words)>,
}

/// The bulk groups of a thread.
#[derive(Debug)]
pub(super) struct BulkGroups {
    agent: Agent,
    committed: u32,
    stores: Vec<BulkStore>,
    /// The newest group whose sources are known to have been read, and where the newest copy was issued.
    read: u32,
    newest: (u32, (usize, Pc)),
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
            self.shared.store(*offset, 16, words);
        }
        self.finish_load(&load).map_err(|fault| (load.issued, fault))
    }

    fn finish_load(&mut self, load: &BulkLoad) -> Outcome {
        let (offset, address) = load.mbarrier;
        if self.mbarrier(offset, load.lane, address)?.time + 1 != load.issued.time {
            let detail = "a copy lands after its phase: fewer bytes were expected than come";
            return Err(Fault::at(FindingKind::Mbarrier, load.lane, address).saying(detail));
        }
        self.transact(offset, -(load.bytes as i64), load.lane, address)
    }

    /// Everything that was stored is in global memory when the CTA has ended.
    pub(super) fn finish_stores(&mut self) {
        for groups in self.bulk_groups.values_mut() {
            groups.stores.drain(..).for_each(|store| write_pieces(&store.pieces, self.launch.memory));
        }
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

impl Warp {
    pub(super) fn bulk(&mut self, op: &Bulk, frame: usize, active: u32, cta: &mut Cta<'_>) -> Outcome {
        let regs = &self.frame(frame)?.regs;
        let (shared, global) = (addresses(regs, &op.shared), addresses(regs, &op.global));
        for lane in lanes(active) {
            let shared = shared_address(op.space, shared[lane]);
            let chunks = self.chunks(op, frame, (lane, shared, global[lane]), cta)?;
            match &op.to {
                BulkTo::Shared { mbarrier, space } => {
                    let address = addresses(&self.frame(frame)?.regs, mbarrier)[lane];
                    self.bulk_load(&chunks, lane, shared_address(*space, address), cta)?;
                }
                BulkTo::Global => self.bulk_store(&chunks, lane, cta)?,
            }
        }
        Ok(())
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
                Chunk { shared, global, skip: 0, bytes: 16 }
            };
            return Ok((0..u64::from(bytes)).step_by(16).map(chunk).collect());
        }
        check_alignment(cta, lane, global, 64)?;
        check_alignment(cta, lane, shared, 128)?;
        let mut bytes = [0; TensorMap::BYTES];
        for (i, part) in bytes.chunks_mut(16).enumerate() {
            let words =
                self.read(Space::Generic, global.wrapping_add(16 * i as u64), (lane, 16), false, frame, cta)?;
            part.copy_from_slice(&bytes_of(&words));
        }
        let bad = |detail| Fault::at(FindingKind::BadOperand, lane, global).saying(detail);
        let map =
            TensorMap::from_bytes(&bytes).ok_or_else(|| bad("there is no tensor map of the simulator's"))?;
        if map.rank() != op.coordinates.len() {
            return Err(bad("the tensor map has another number of dimensions"));
        }
        fits(map.box_bytes(), lane, shared, cta)?;
        let regs = &self.frame(frame)?.regs;
        let at: Vec<i32> = op.coordinates.iter().map(|c| regs.word[*c as usize][lane] as i32).collect();
        Ok(map.chunks(&at, shared))
    }

    /// The lane as the async proxy.
    fn proxy_who(&self, lane: usize, agent: Agent, time: u32, cta: &Cta<'_>) -> Who<'_> {
        Who { proxy: Some((agent, time)), ..self.who(lane, false, cta) }
    }

    fn bulk_load(&mut self, chunks: &[Chunk], lane: usize, mbarrier: u64, cta: &mut Cta<'_>) -> Outcome {
        check_alignment(cta, lane, mbarrier, 8)?;
        let Some(offset) = cta.shared.offset(lane, mbarrier, 8)? else { return Ok(()) };
        if cta.mbarriers.contains_key(&offset) {
            let who = self.who(lane, false, cta);
            cta.shared.check_mbarrier(offset, &who)?;
        }
        let state = cta.mbarrier(offset, lane, mbarrier)?;
        let (agent, time, fenced) = (state.agent, state.time + 1, state.fenced);
        state.unwaited = Some(Issued { time, warp: self.index, at: self.at });
        if !fenced && cta.launch.config.checks.async_copies {
            let detail = "neither fence.mbarrier_init nor fence.proxy.async after mbarrier.init";
            return Err(Fault::at(FindingKind::ProxyFence, lane, mbarrier).saying(detail));
        }
        let mut landing = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let mut words = [0; 4];
            if chunk.bytes > 0 {
                let inside = self.load_global(lane, chunk.global, chunk.bytes, false, cta)?;
                words = shifted(&inside, chunk.skip);
            }
            let Some(to) = cta.shared.offset(lane, chunk.shared, 16)? else { continue };
            cta.shared.note_bulk_write(to, 16, &self.proxy_who(lane, agent, time, cta))?;
            landing.push((to, words));
        }
        let bytes = 16 * chunks.len() as u64;
        cta.counters.bulk_copies += 1;
        cta.counters.bulk_load_bytes += bytes;
        let issued = Issued { time, warp: self.index, at: self.at };
        let mbarrier = (offset, mbarrier);
        cta.loads.push(BulkLoad { chunks: landing, bytes, mbarrier, lane, issued });
        Ok(())
    }

    fn bulk_groups<'g>(&self, lane: usize, cta: &'g mut Cta<'_>) -> &'g mut BulkGroups {
        let agents = &mut cta.agents;
        cta.bulk_groups.entry((self.index, lane)).or_insert_with(|| BulkGroups {
            agent: agents.number(AgentOf::BulkGroups(self.index, lane)),
            committed: 0,
            stores: Vec::new(),
            read: 0,
            newest: (0, (0, 0)),
        })
    }

    fn bulk_store(&mut self, chunks: &[Chunk], lane: usize, cta: &mut Cta<'_>) -> Outcome {
        let groups = self.bulk_groups(lane, cta);
        let (agent, group) = (groups.agent, groups.committed + 1);
        groups.newest = (group, self.at);
        let mut pieces = Vec::new();
        for chunk in chunks.iter().filter(|c| c.bytes > 0) {
            let Some(from) = cta.shared.offset(lane, chunk.shared, 16)? else { continue };
            let who = self.proxy_who(lane, agent, group, cta);
            cta.note_read(from, 16, &who, (self.index, self.at))?;
            let words = words_of(&bytes_of(&cta.shared.load(from, 16))[chunk.skip as usize..]);
            let Some((allocation, at)) = self.locate(lane, chunk.global, chunk.bytes, cta)? else { continue };
            if !cta.synchronized {
                let noted = allocation.races.note(RaceAccess::Write, at, chunk.bytes, race::tag(cta.id));
                noted.map_err(|collision| super::access::global_race(lane, allocation.base, collision))?;
            }
            cta.counters.bulk_store_bytes += u64::from(chunk.bytes);
            pieces.push((chunk.global, chunk.bytes, words));
        }
        cta.counters.bulk_copies += 1;
        if cta.random_bit() {
            write_pieces(&pieces, cta.launch.memory);
            pieces.clear();
        }
        self.bulk_groups(lane, cta).stores.push(BulkStore { group, pieces });
        Ok(())
    }

    /// `cp.async.bulk.commit_group`.
    pub(super) fn commit_bulk(&mut self, active: u32, cta: &mut Cta<'_>) {
        lanes(active).for_each(|lane| self.bulk_groups(lane, cta).committed += 1);
    }

    /// `cp.async.bulk.wait_group`: at most `keep` groups stay open; with `read`, only their sources are free.
    pub(super) fn wait_bulk(&mut self, keep: u32, read: bool, active: u32, cta: &mut Cta<'_>) {
        for lane in lanes(active) {
            let memory = cta.launch.memory;
            let groups = self.bulk_groups(lane, cta);
            let done = groups.committed.saturating_sub(keep);
            groups.read = groups.read.max(done);
            if !read {
                for store in groups.stores.extract_if(.., |s| s.group <= done) {
                    write_pieces(&store.pieces, memory);
                }
            }
            let agent = groups.agent;
            self.clock.see(agent, done);
        }
    }
}

/// What is larger than the CTA's shared memory lies partly outside, whether that is checked or not.
fn fits(bytes: u64, lane: usize, shared: u64, cta: &Cta<'_>) -> Outcome {
    if bytes > cta.launch.shared_bytes {
        return Err(Fault::at(FindingKind::OutOfBounds, lane, shared));
    }
    Ok(())
}

fn write_pieces(pieces: &[(u64, u32, Words)], memory: &crate::memory::Memory) {
    let mut hint = 0;
    for (address, bytes, words) in pieces {
        // The range was found when the copy was issued.
        if let Ok((allocation, offset)) = memory.locate(*address, (*bytes).into(), &mut hint) {
            allocation.store(offset, *bytes, words);
        }
    }
}

fn bytes_of(words: &Words) -> [u8; 16] {
    std::array::from_fn(|i| (words[i / 4] >> (8 * (i % 4))) as u8)
}

/// The words moved up by some bytes, zeros before them.
fn shifted(words: &Words, skip: u32) -> Words {
    let mut bytes = [0; 16];
    let skip = skip as usize;
    bytes[skip..].copy_from_slice(&bytes_of(words)[..16 - skip]);
    words_of(&bytes)
}
