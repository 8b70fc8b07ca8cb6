//! Bulk copies to global memory: what they have read and written is known by the bulk groups of the thread (PTX ISA §9.7.9.27.2).
//! `wait_group.read` tells that the sources were read, `wait_group` that the targets are written and seen by the thread. Until then
//! nobody may touch the targets: they are written by an agent of their own.

use std::sync::PoisonError;

use crate::clock::{Agent, AgentOf};
use crate::finding::Outcome;
use crate::mark::{Later, Who};
use crate::memory::{Words, words_of};
use crate::op::{Bulk, Pc, Scope, Strength};
use crate::race::{Held, RaceAccess};
use crate::tensor_map::Chunk;

use super::access::{lanes, note_global};
use super::bulk::bytes_of;
use super::cta::Cta;
use super::warp::Warp;

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
    /// The agents that read the sources, and that write the targets.
    reader: Agent,
    writer: Agent,
    committed: u32,
    stores: Vec<BulkStore>,
    /// The newest group whose sources are known to have been read, and where the newest copy was issued.
    pub(super) read: u32,
    pub(super) newest: (u32, (usize, Pc)),
}

impl Cta<'_> {
    /// Everything that was stored is in global memory when the CTA has ended.
    pub(super) fn finish_stores(&mut self) {
        for groups in self.bulk_groups.values_mut() {
            groups.stores.drain(..).for_each(|store| write_pieces(&store.pieces, self.launch.memory));
        }
    }
}

impl Warp {
    fn bulk_groups<'g>(&self, lane: usize, cta: &'g mut Cta<'_>) -> &'g mut BulkGroups {
        let agents = &mut cta.agents;
        cta.bulk_groups.entry((self.index, lane)).or_insert_with(|| BulkGroups {
            reader: agents.number(AgentOf::BulkGroups(self.index, lane)),
            writer: agents.number(AgentOf::BulkWrites(self.index, lane)),
            committed: 0,
            stores: Vec::new(),
            read: 0,
            newest: (0, (0, 0)),
        })
    }

    /// `repeats` says that another lane of the instruction has just issued the same.
    pub(super) fn bulk_store(
        &mut self,
        chunks: &[Chunk],
        lane: usize,
        (op, repeats): (&Bulk, bool),
        cta: &mut Cta<'_>,
    ) -> Outcome {
        let groups = self.bulk_groups(lane, cta);
        let (reader, writer, group) = (groups.reader, groups.writer, groups.committed + 1);
        groups.newest = (group, self.at);
        let by = (self.index, self.place());
        let checked = cta.launch.config.checks.async_copies;
        let later = checked.then_some(Later { agent: writer, time: group, by_async_proxy: true });
        let mut pieces = Vec::new();
        for chunk in chunks.iter().filter(|c| c.bytes > 0) {
            let Some(from) = cta.shared.offset(lane, chunk.shared, 16)? else { continue };
            let who = self.proxy_who(lane, reader, group, cta);
            let rank = cta.rank;
            cta.note_read(rank, from + u64::from(chunk.skip), chunk.bytes, &who, by)?;
            let words = words_of(&bytes_of(&cta.shared.load(from, 16))[chunk.skip as usize..]);
            let Some((allocation, at)) = self.locate(lane, chunk.global, chunk.bytes, cta)? else { continue };
            let target = (allocation, at, chunk.bytes);
            let who = Who { later, ..self.who(lane, None, cta) };
            if let Some((reduces, ty)) = op.reduces {
                // Of a tensor the elements are taken as f32; ranges say what they are.
                let ty = ty.unwrap_or(op.tensor_type(chunk.element));
                let write = RaceAccess::Write { same_value: false };
                let element_bytes = u32::from(ty.bits()) / 8;
                // Relaxed at the scope of the device (PTX ISA §9.7.9.25.4.2).
                let strong = Some(Strength::new(Scope::Gpu, element_bytes, true, true));
                note_global(write, target, &Who { strong, ..who }, &mut Held::default(), by, cta)?;
                let _guard = cta.launch.memory.atomics.lock().unwrap_or_else(PoisonError::into_inner);
                let old = bytes_of(&allocation.load(at, chunk.bytes));
                let new = super::atomic::combine_all(reduces, ty, &old, &bytes_of(&words), chunk.bytes);
                allocation.store(at, chunk.bytes, &words_of(&new));
                cta.counters.bulk_store_bytes += u64::from(chunk.bytes);
                continue;
            }
            let same_value = repeats || allocation.holds(at, chunk.bytes, &words);
            let write = RaceAccess::Write { same_value };
            note_global(write, target, &who, &mut Held::default(), by, cta)?;
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
            let (reader, writer) = (groups.reader, groups.writer);
            self.clock.see(reader, done);
            if !read {
                self.clock.see(writer, done);
            }
        }
    }
}

/// The runs of bytes of a chunk that a mask names.
pub(super) fn named_bytes(chunk: &Chunk, mask: u16) -> Vec<Chunk> {
    let mut runs = Vec::new();
    let (mut at, mut left) = (0, mask);
    while left != 0 {
        let gap = left.trailing_zeros();
        let bytes = (left >> gap).trailing_ones();
        at += gap;
        runs.push(Chunk { global: chunk.global.wrapping_add(at.into()), skip: at, bytes, ..*chunk });
        at += bytes;
        left = left.checked_shr(gap + bytes).unwrap_or(0);
    }
    runs
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
