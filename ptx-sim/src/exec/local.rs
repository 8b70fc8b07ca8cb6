//! Local memory: each lane's own, a block a frame.

use std::collections::HashMap;

use crate::finding::{Fault, FindingKind, Outcome};
use crate::memory::Words;
use crate::op::Reg;

use super::undefined::Origin;
use super::warp::Warp;

/// The local memory of one frame: every lane's bytes, one lane after the other.
#[derive(Debug)]
struct Block {
    frame: usize,
    base: u64,
    lane_bytes: u64,
    /// The lanes that have it: `alloca` gives it to some, and `stackrestore` takes it from some.
    lanes: u32,
    bytes: Vec<u8>,
    written: Vec<bool>,
    /// Where undefined bytes come from that were copied here.
    origins: HashMap<usize, Origin>,
}

/// The blocks of a warp's frames.
#[derive(Debug, Default)]
pub(super) struct LocalMemory {
    blocks: Vec<Block>,
    /// Bytes of one lane in all of them.
    lane_bytes: u64,
}

/// Space between the blocks of two frames, so that an overrun is seen.
const GAP: u64 = 4096;

impl LocalMemory {
    /// Makes the block of a frame; false if a thread has no local memory left.
    pub(super) fn push(&mut self, frame: usize, lane_bytes: u32) -> bool {
        if lane_bytes == 0 {
            return true;
        }
        if self.lane_bytes + u64::from(lane_bytes) > u64::from(crate::decode::MAX_LOCAL_BYTES) {
            return false;
        }
        let base = self
            .blocks
            .iter()
            .map(|b| b.base + b.lane_bytes)
            .max()
            .map_or(GAP, |end| (end + GAP).next_multiple_of(256));
        let total = lane_bytes as usize * 32;
        let (bytes, written) = (vec![0; total], vec![false; total]);
        let (lane_bytes, origins) = (lane_bytes.into(), HashMap::new());
        self.lane_bytes += lane_bytes;
        self.blocks.push(Block { frame, base, lane_bytes, lanes: u32::MAX, bytes, written, origins });
        true
    }

    /// Bytes of all lanes and frames.
    pub(super) fn bytes(&self) -> u64 {
        32 * self.lane_bytes
    }

    /// Drops the block of a frame.
    pub(super) fn pop(&mut self, frame: usize) {
        self.blocks.retain(|b| b.frame != frame);
        self.lane_bytes = self.blocks.iter().map(|b| b.lane_bytes).sum();
    }

    /// Makes a further block of a frame for some lanes; gives its address, or `None` if a thread has no local memory left.
    fn grow(&mut self, frame: usize, lane_bytes: u32, lanes: u32) -> Option<u64> {
        let before = self.blocks.len();
        if !self.push(frame, lane_bytes.max(1)) || self.blocks.len() == before {
            return None;
        }
        let block = self.blocks.last_mut()?;
        block.lanes = lanes;
        Some(block.base)
    }

    /// Takes from a lane what its frame has got since its stack ended there.
    fn shrink(&mut self, frame: usize, lane: usize, end: u64) {
        let is_later = |block: &&mut Block| block.frame == frame && block.base >= end;
        self.blocks.iter_mut().filter(is_later).for_each(|block| block.lanes &= !(1 << lane));
        self.blocks.retain(|block| block.lanes != 0);
        self.lane_bytes = self.blocks.iter().map(|b| b.lane_bytes).sum();
    }

    /// The end of what a frame has.
    pub(super) fn top(&self, frame: usize) -> u64 {
        self.blocks.iter().filter(|b| b.frame == frame).map(|b| b.base + b.lane_bytes).max().unwrap_or(0)
    }

    /// The local address at which the frame's block starts.
    pub(super) fn base(&self, frame: usize) -> u64 {
        self.blocks.iter().find(|b| b.frame == frame).map_or(0, |b| b.base)
    }

    fn find(&mut self, lane: usize, address: u64, bytes: u32) -> Option<(&mut Block, usize)> {
        self.blocks.iter_mut().rev().find_map(|block| {
            let offset = address.wrapping_sub(block.base);
            let inside = offset < block.lane_bytes
                && u64::from(bytes) <= block.lane_bytes - offset
                && block.lanes >> lane & 1 == 1;
            let at = lane * block.lane_bytes as usize + offset as usize;
            inside.then_some((block, at))
        })
    }

    /// `bytes` ≤ 16, and those of them that nobody wrote; `None` outside every block.
    pub(super) fn load(&mut self, lane: usize, address: u64, bytes: u32) -> Option<(Words, u32)> {
        let (block, at) = self.find(lane, address, bytes)?;
        let range = at..at + bytes as usize;
        let mut words = [0; 4];
        for (i, byte) in block.bytes[range.clone()].iter().enumerate() {
            words[i / 4] |= u32::from(*byte) << (8 * (i % 4));
        }
        let dark =
            block.written[range].iter().enumerate().filter(|(_, w)| !**w).fold(0, |m, (b, _)| m | 1 << b);
        Some((words, dark))
    }

    /// Stores `bytes` ≤ 16; false outside every block.
    pub(super) fn store(&mut self, lane: usize, address: u64, bytes: u32, words: &Words) -> bool {
        let Some((block, at)) = self.find(lane, address, bytes) else { return false };
        let range = at..at + bytes as usize;
        for (i, byte) in block.bytes[range.clone()].iter_mut().enumerate() {
            *byte = (words[i / 4] >> (8 * (i % 4))) as u8;
        }
        block.written[range].fill(true);
        true
    }
}

impl LocalMemory {
    /// Hands on what the lanes of a mask hold, in words.
    pub(super) fn words(&self, mask: u32, mut take: impl FnMut(u64)) {
        for block in &self.blocks {
            for (lane, bytes) in block.bytes.chunks_exact(block.lane_bytes.max(1) as usize).enumerate() {
                if mask >> lane & 1 == 1 {
                    for word in bytes.chunks(8) {
                        take(word.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
                    }
                }
            }
        }
    }

    /// Makes bytes undefined again, which were so where they come from.
    pub(super) fn forget(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        mask: u32,
        origin: Option<Origin>,
    ) {
        let Some((block, at)) = self.find(lane, address, bytes) else { return };
        for byte in (0..bytes as usize).filter(|b| mask >> b & 1 == 1) {
            block.written[at + byte] = false;
            block.origins.extend(origin.map(|origin| (at + byte, origin)));
        }
    }

    /// Where an undefined byte was copied from.
    pub(super) fn origin(&mut self, lane: usize, address: u64) -> Option<Origin> {
        let (block, at) = self.find(lane, address, 1)?;
        block.origins.get(&at).copied()
    }
}

impl Warp {
    /// `alloca`: every lane gets as much as the most that one of them asks for.
    pub(super) fn alloca(
        &mut self,
        result: Reg,
        bytes: Reg,
        align: u32,
        frame: usize,
        active: u32,
    ) -> Outcome {
        let regs = &self.frame(frame)?.regs;
        let most = super::access::lanes(active).map(|lane| regs.bits(bytes.bank, bytes.slot, lane)).max();
        let most = most.unwrap_or(0).next_multiple_of(align.into());
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let Some(base) = self.local.grow(frame, most, active) else {
            return Err(Fault::new(FindingKind::Budget));
        };
        let regs = &mut self.frame(frame)?.regs;
        super::access::lanes(active).for_each(|lane| regs.set_bits(result.bank, result.slot, lane, base));
        Ok(())
    }
    /// `stackrestore`: what `alloca` has given since the `stacksave` that the operand is of is gone.
    pub(super) fn stack_restore(&mut self, operand: Reg, frame: usize, active: u32) -> Outcome {
        let regs = &self.frame(frame)?.regs;
        let ends: Vec<(usize, u64)> = super::access::lanes(active)
            .map(|lane| (lane, regs.bits(operand.bank, operand.slot, lane)))
            .collect();
        ends.into_iter().for_each(|(lane, end)| self.local.shrink(frame, lane, end));
        Ok(())
    }
}
