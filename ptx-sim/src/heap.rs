//! The heap of `malloc` in kernels: blocks of one allocation, with gaps between them; addresses are never reused.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::finding::FindingKind;

/// Bytes of the heap, as on devices that nobody told otherwise.
pub(crate) const HEAP_BYTES: u64 = 8 << 20;
/// Unmapped bytes after every block.
const GAP: u64 = 256;

/// The heap of a memory.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Address of the heap; 0 before a kernel needs one.
    base: u64,
    used: u64,
    /// Size of every block by its address, and whether it is live.
    blocks: BTreeMap<u64, (u64, bool)>,
}

impl Heap {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where the heap lies; 0 if there is none.
    pub(crate) fn base(&self) -> u64 {
        self.with(|state| state.base)
    }

    /// Takes an allocation of [`HEAP_BYTES`] as the heap.
    pub(crate) fn place(&self, base: u64) {
        self.with(|state| state.base = base);
    }

    /// A block of that size; 0 if the heap is full.
    pub(crate) fn allocate(&self, bytes: u64) -> u64 {
        self.with(|state| {
            let end = state.used.saturating_add(bytes).saturating_add(GAP);
            if state.base == 0 || bytes == 0 || end > HEAP_BYTES {
                return 0;
            }
            let address = state.base + state.used;
            state.used = end.next_multiple_of(GAP);
            state.blocks.insert(address, (bytes, true));
            address
        })
    }

    /// Ends a block; false if none of them starts there.
    pub(crate) fn free(&self, address: u64) -> bool {
        self.with(|state| match state.blocks.get_mut(&address) {
            Some((_, live @ true)) => {
                *live = false;
                true
            }
            _ => false,
        })
    }

    /// Whether an access lies in a live block.
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Result<(), FindingKind> {
        self.with(|state| match state.blocks.range(..=address).next_back() {
            Some((base, (size, live))) if address - base < *size && bytes <= size - (address - base) => {
                if *live {
                    Ok(())
                } else {
                    Err(FindingKind::UseAfterFree)
                }
            }
            _ => Err(FindingKind::OutOfBounds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_ends_and_lives() {
        let heap = Heap::default();
        assert_eq!(heap.allocate(8), 0);
        heap.place(1 << 20);
        let (a, b) = (heap.allocate(8), heap.allocate(300));
        assert!(a != 0 && b >= a + GAP);
        assert_eq!((heap.check(a + 4, 4), heap.check(a + 4, 8)), (Ok(()), Err(FindingKind::OutOfBounds)));
        assert!(heap.free(a) && !heap.free(a) && !heap.free(a + 4));
        assert_eq!(heap.check(a, 4), Err(FindingKind::UseAfterFree));
        assert_eq!(heap.check(b + 296, 4), Ok(()));
        assert_eq!(heap.allocate(HEAP_BYTES), 0);
    }
}
