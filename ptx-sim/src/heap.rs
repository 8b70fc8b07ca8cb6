//! The heap of `malloc` in kernels. Blocks take addresses that no other block ever had, with gaps between them, so that every use after
//! `free` is found; the memory behind the addresses is used again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::finding::FindingKind;

/// Bytes of the heap, as on devices that nobody told otherwise.
pub(crate) const HEAP_BYTES: u64 = 8 << 20;
/// Addresses that blocks can take before there are none left.
pub(crate) const HEAP_ADDRESSES: u64 = 1 << 36;
/// Unmapped bytes after every block; addresses of blocks are multiples of it.
const GAP: u64 = 256;
/// Bytes of memory that blocks take are multiples of this: no two are watched for races as one.
const UNIT: u64 = 16;

/// The heap of a memory.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    state: Mutex<State>,
}

/// A block that `malloc` gave and nobody has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) address: u64,
    /// Where its memory lies in the allocation of the heap.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Block {
    fn memory(&self) -> u64 {
        self.bytes.next_multiple_of(UNIT)
    }

    fn addresses(&self) -> u64 {
        (self.bytes + GAP).next_multiple_of(GAP)
    }
}

#[derive(Debug, Default)]
struct State {
    /// Address of the heap; 0 before a kernel needs one.
    base: u64,
    /// Addresses given out so far.
    used: u64,
    /// Live blocks by their addresses.
    blocks: BTreeMap<u64, Block>,
    /// Memory that no live block has: offsets and bytes.
    free: BTreeMap<u64, u64>,
}

impl Heap {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where the heap lies; 0 if there is none.
    pub(crate) fn base(&self) -> u64 {
        self.with(|state| state.base)
    }

    /// Takes an allocation of [`HEAP_BYTES`] as the heap; its addresses are [`HEAP_ADDRESSES`].
    pub(crate) fn place(&self, base: u64) {
        self.with(|state| {
            state.base = base;
            state.free = BTreeMap::from([(0, HEAP_BYTES)]);
        });
    }

    /// A block of that size; `None` if the heap is full. Its memory still holds what the last block there left.
    pub(crate) fn allocate(&self, bytes: u64) -> Option<Block> {
        self.with(|state| {
            if state.base == 0 || bytes == 0 || bytes > HEAP_BYTES {
                return None;
            }
            let block = Block { address: state.base + state.used, offset: 0, bytes };
            if state.used + block.addresses() > HEAP_ADDRESSES {
                return None;
            }
            let (&offset, &room) = state.free.iter().find(|(_, room)| **room >= block.memory())?;
            let block = Block { offset, ..block };
            state.free.remove(&offset);
            if room > block.memory() {
                state.free.insert(offset + block.memory(), room - block.memory());
            }
            state.used += block.addresses();
            state.blocks.insert(block.address, block);
            Some(block)
        })
    }

    /// Ends a block; false if no live one starts there.
    pub(crate) fn free(&self, address: u64) -> bool {
        self.with(|state| {
            let Some(block) = state.blocks.remove(&address) else { return false };
            let (mut offset, mut room) = (block.offset, block.memory());
            if let Some(after) = state.free.remove(&(offset + room)) {
                room += after;
            }
            if let Some((&before, &bytes)) = state.free.range(..offset).next_back()
                && before + bytes == offset
            {
                (offset, room) = (before, room + bytes);
            }
            state.free.insert(offset, room);
            true
        })
    }

    /// Where the memory of a range of addresses lies, which must be of one live block.
    pub(crate) fn offset(&self, address: u64, bytes: u64) -> Result<u64, FindingKind> {
        self.with(|state| {
            let Some(at) = address.checked_sub(state.base).filter(|at| *at < state.used) else {
                return Err(FindingKind::OutOfBounds);
            };
            let block = state.blocks.range(..=state.base + at).next_back();
            match block.map(|(start, block)| (address - start, block)) {
                Some((within, block)) if within < block.bytes && bytes <= block.bytes - within => {
                    Ok(block.offset + within)
                }
                // In the gap behind it.
                Some((within, block)) if within < block.addresses() => Err(FindingKind::OutOfBounds),
                _ => Err(FindingKind::UseAfterFree),
            }
        })
    }

    /// The address of the live block's byte whose memory lies at an offset.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        self.with(|state| {
            let holds = |block: &&Block| offset.wrapping_sub(block.offset) < block.bytes;
            state.blocks.values().find(holds).map(|block| block.address + (offset - block.offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_ends_and_lives() {
        let heap = Heap::default();
        assert_eq!(heap.allocate(8), None);
        heap.place(1 << 20);
        let [a, b] = [8, 300].map(|bytes| heap.allocate(bytes).unwrap());
        assert!(a.address == 1 << 20 && b.address >= a.address + GAP && b.offset == UNIT);
        assert_eq!(heap.offset(a.address + 4, 4), Ok(4));
        assert_eq!(heap.offset(a.address + 4, 8), Err(FindingKind::OutOfBounds));
        assert_eq!(heap.offset(a.address + 8, 1), Err(FindingKind::OutOfBounds));
        assert_eq!(heap.address(b.offset + 5), Some(b.address + 5));
        assert!(heap.free(a.address) && !heap.free(a.address) && !heap.free(b.address + 4));
        assert_eq!(heap.offset(a.address, 4), Err(FindingKind::UseAfterFree));
        assert_eq!(heap.offset(b.address + 296, 4), Ok(b.offset + 296));
        assert_eq!(heap.offset(b.address + b.addresses(), 1), Err(FindingKind::OutOfBounds));
        assert_eq!((heap.allocate(HEAP_BYTES), heap.allocate(u64::MAX)), (None, None));
    }

    #[test]
    fn memory_is_used_again_and_addresses_are_not() {
        let heap = Heap::default();
        heap.place(1 << 20);
        let half = HEAP_BYTES / 2;
        let [a, b] = [half; 2].map(|bytes| heap.allocate(bytes).unwrap());
        assert_eq!(heap.allocate(1), None);
        assert!(heap.free(a.address) && heap.free(b.address));
        let whole = heap.allocate(HEAP_BYTES).unwrap();
        assert!(whole.offset == 0 && whole.address > b.address);
        assert!(heap.free(whole.address));
        let kept: Vec<Block> = (0..100).map(|_| heap.allocate(40).unwrap()).collect();
        assert!(kept.iter().skip(1).step_by(2).all(|block| heap.free(block.address)));
        // Between two that are live there is room for one.
        assert_eq!(heap.allocate(48).map(|block| block.offset), Some(48));
        assert!(kept.iter().step_by(2).all(|block| heap.offset(block.address, 40).is_ok()));
    }
}
