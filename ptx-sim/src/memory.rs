//! Global memory: allocations far apart, so that whatever lies between two of them is a guard band.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::error::MemoryError;
use crate::finding::FindingKind;
use crate::heap::{HEAP_ADDRESSES, HEAP_BYTES, Heap};
use crate::race::RaceShadow;
use crate::sync::Flags;
use crate::window::{CONST_WINDOW, GLOBAL_BASE};

/// Unmapped addresses after every allocation.
const GUARD_BYTES: u64 = 1 << 24;

/// The same after every constant variable, whose sum is at most 64 KiB.
const CONST_GUARD_BYTES: u64 = 1 << 16;

/// Up to 16 bytes of an access, as four words.
pub(crate) type Words = [u32; 4];

/// Global memory of a simulated device.
#[derive(Debug)]
pub struct Memory {
    /// In order of their addresses, freed ones included.
    allocations: Vec<Allocation>,
    next: u64,
    /// The same of constant memory.
    next_const: u64,
    /// Addresses of the variables of modules that were launched, by module.
    pub(crate) modules: HashMap<u64, Vec<u64>>,
    /// Held over every atomic operation, which makes those of any width atomic.
    pub(crate) atomics: Mutex<()>,
    /// What was released at which address.
    flags: Mutex<Flags>,
    /// Counts changes of values while a grid runs.
    pub(crate) changes: AtomicU64,
    /// What `malloc` gives out while a grid runs.
    pub(crate) heap: Heap,
}

/// One allocation. Kernels of several CTAs share it, hence the atomics; relaxed ones cost nothing.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    words: Vec<AtomicU32>,
    /// A bit for every byte that was written.
    written: Vec<AtomicU32>,
    all_written: AtomicBool,
    /// Whether anybody has stored here since the grid began.
    is_stored: AtomicBool,
    live: bool,
    pub(crate) is_const: bool,
    /// Whether its bounds are those of the blocks of the heap.
    is_heap: bool,
    pub(crate) races: RaceShadow,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// At most 16 bytes as words.
#[inline]
pub(crate) fn words_of(bytes: &[u8]) -> Words {
    let mut words = [0; 4];
    let (whole, rest) = bytes.as_chunks::<4>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u32::from_le_bytes(*bytes);
    }
    for (i, byte) in rest.iter().enumerate() {
        words[whole.len()] |= u32::from(*byte) << (8 * i);
    }
    words
}

fn zeroed(length: usize) -> Vec<AtomicU32> {
    std::iter::repeat_with(|| AtomicU32::new(0)).take(length).collect()
}

impl Memory {
    /// Empty memory.
    pub fn new() -> Self {
        Memory::from_address(GLOBAL_BASE)
    }

    /// Empty memory whose allocations begin at this address, a multiple of 256: below 2^40, or from 2^43 on, where no other state space lies.
    pub fn from_address(first: u64) -> Self {
        Memory {
            allocations: Vec::new(),
            next: first,
            next_const: CONST_WINDOW,
            modules: HashMap::new(),
            atomics: Mutex::new(()),
            flags: Mutex::default(),
            changes: AtomicU64::new(0),
            heap: Heap::default(),
        }
    }

    /// A new allocation, 256-byte aligned, holding nothing that may be read. The address is never reused.
    pub fn alloc(&mut self, bytes: usize) -> u64 {
        let base = self.next;
        self.next = (base + bytes as u64 + GUARD_BYTES).next_multiple_of(256);
        self.add(Allocation::new(base, bytes))
    }

    /// The same in constant memory, whose addresses are a state space of their own.
    pub(crate) fn alloc_const(&mut self, bytes: usize) -> u64 {
        let base = self.next_const;
        self.next_const = (base + bytes as u64 + CONST_GUARD_BYTES).next_multiple_of(256);
        self.add(Allocation::new(base, bytes))
    }

    /// Puts an allocation among the others, which are in the order of their addresses.
    fn add(&mut self, allocation: Allocation) -> u64 {
        let base = allocation.base;
        let at = self.allocations.partition_point(|a| a.base < base);
        self.allocations.insert(at, allocation);
        base
    }

    /// Frees an allocation; later accesses to it are findings.
    ///
    /// # Errors
    /// [`MemoryError::NotAllocated`] if `address` is not the start of a live allocation.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        let found = self.allocations.iter_mut().find(|a| a.base == address && a.live);
        let allocation = found.ok_or(MemoryError::NotAllocated { address })?;
        allocation.live = false;
        allocation.words = Vec::new();
        allocation.written = Vec::new();
        Ok(())
    }

    /// Bytes of all allocations.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocations.iter().filter(|a| a.live).map(|a| a.bytes).sum()
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] unless one live allocation holds the whole range.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.host_range(address, bytes.len())?;
        for (i, chunk) in bytes.chunks(16).enumerate() {
            let mut padded = [0; 16];
            padded[..chunk.len()].copy_from_slice(chunk);
            let words = std::array::from_fn(|w| {
                u32::from_le_bytes([padded[4 * w], padded[4 * w + 1], padded[4 * w + 2], padded[4 * w + 3]])
            });
            allocation.store(offset + 16 * i as u64, chunk.len() as u32, &words);
        }
        if offset == 0 && bytes.len() as u64 == allocation.bytes {
            allocation.all_written.store(true, Relaxed);
        }
        Ok(())
    }

    /// Copies bytes out; bytes that nobody wrote read as zero.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] unless one live allocation holds the whole range.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.host_range(address, out.len())?;
        if offset.is_multiple_of(4) {
            let words = &allocation.words[offset as usize / 4..];
            for (chunk, word) in out.chunks_mut(4).zip(words) {
                chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..chunk.len()]);
            }
            return Ok(());
        }
        for (i, chunk) in out.chunks_mut(16).enumerate() {
            let words = allocation.load(offset + 16 * i as u64, chunk.len() as u32);
            for (j, byte) in chunk.iter_mut().enumerate() {
                *byte = (words[j / 4] >> (8 * (j % 4))) as u8;
            }
        }
        Ok(())
    }

    /// Whether every byte of the range was written since its allocation.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] unless one live allocation holds the whole range.
    pub fn is_written(&self, address: u64, bytes: usize) -> Result<bool, MemoryError> {
        let (allocation, offset) = self.host_range(address, bytes)?;
        Ok((0..bytes as u64).all(|i| allocation.is_written(offset + i, 1)))
    }

    fn host_range(&self, address: u64, bytes: usize) -> Result<(&Allocation, u64), MemoryError> {
        let mut hint = 0;
        match self.locate(address, bytes as u64, &mut hint) {
            Ok(found) => Ok(found),
            Err(_) => Err(MemoryError::OutOfBounds { address, bytes }),
        }
    }

    /// The allocation that holds the range, and the offset in it. `hint` remembers the last one.
    #[inline]
    pub(crate) fn locate(
        &self,
        address: u64,
        bytes: u64,
        hint: &mut usize,
    ) -> Result<(&Allocation, u64), FindingKind> {
        if let Some(allocation) = self.allocations.get(*hint) {
            let offset = address.wrapping_sub(allocation.base);
            if offset < allocation.bytes && bytes <= allocation.bytes - offset && allocation.live {
                return Ok((allocation, offset));
            }
        }
        let after = self.allocations.partition_point(|a| a.base <= address);
        let index = after.checked_sub(1).ok_or(FindingKind::OutOfBounds)?;
        let allocation = &self.allocations[index];
        if allocation.is_heap {
            // The hint would go around the blocks' bounds.
            return Ok((allocation, self.heap.offset(address, bytes)?));
        }
        let offset = address - allocation.base;
        if offset > allocation.bytes || bytes > allocation.bytes - offset {
            return Err(FindingKind::OutOfBounds);
        }
        if !allocation.live {
            return Err(FindingKind::UseAfterFree);
        }
        *hint = index;
        Ok((allocation, offset))
    }

    /// Makes every allocation ready to watch races, or not.
    pub(crate) fn watch_races(&mut self, watches: bool) {
        for allocation in &mut self.allocations {
            let bytes = if allocation.live && !allocation.is_const { allocation.bytes } else { 0 };
            allocation.races.reset(watches, bytes);
            *allocation.is_stored.get_mut() = false;
        }
        self.with_flags(Flags::forget);
    }

    /// Makes an allocation one that kernels may not write.
    pub(crate) fn set_const(&mut self, address: u64) {
        self.allocations.iter_mut().filter(|a| a.base == address).for_each(|a| a.is_const = true);
    }

    /// Makes room for `malloc`.
    pub(crate) fn make_heap(&mut self) {
        if self.heap.base() == 0 {
            let base = self.alloc(HEAP_BYTES as usize);
            self.next += HEAP_ADDRESSES - HEAP_BYTES;
            self.allocations.iter_mut().filter(|a| a.base == base).for_each(|a| a.is_heap = true);
            self.heap.place(base);
        }
    }

    /// `malloc`: the address of a block that nobody has written, or 0.
    pub(crate) fn malloc(&self, bytes: u64) -> u64 {
        let Some(block) = self.heap.allocate(bytes) else { return 0 };
        if let Ok((allocation, offset)) = self.locate(block.address, bytes, &mut 0) {
            allocation.renew(offset, bytes);
        }
        block.address
    }

    /// The address of what lies at an offset of an allocation.
    pub(crate) fn address(&self, allocation: &Allocation, offset: u64) -> u64 {
        let of_block = if allocation.is_heap { self.heap.address(offset) } else { None };
        of_block.unwrap_or(allocation.base + offset)
    }

    pub(crate) fn with_flags<R>(&self, f: impl FnOnce(&mut Flags) -> R) -> R {
        f(&mut self.flags.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Allocation {
    /// One that holds nothing that may be read.
    fn new(base: u64, bytes: usize) -> Self {
        Allocation {
            base,
            bytes: bytes as u64,
            words: zeroed(bytes.div_ceil(4)),
            written: zeroed(bytes.div_ceil(32)),
            all_written: AtomicBool::new(bytes == 0),
            is_stored: AtomicBool::new(false),
            live: true,
            is_const: false,
            is_heap: false,
            races: RaceShadow::default(),
        }
    }

    /// Whether anybody has stored here since the grid began.
    pub(crate) fn is_stored(&self) -> bool {
        self.is_stored.load(Relaxed)
    }

    /// Whether a range may hold something else than these words, which it held since the grid began.
    #[inline]
    pub(crate) fn differs(&self, offset: u64, bytes: u32, words: &Words) -> bool {
        self.is_stored() && self.load(offset, bytes) != *words
    }

    /// Whether the bytes are written and hold these values already.
    pub(crate) fn holds(&self, offset: u64, bytes: u32, words: &Words) -> bool {
        let mut wanted = *words;
        crate::shared::trim(&mut wanted, bytes);
        self.is_written(offset, bytes) && self.load(offset, bytes) == wanted
    }

    /// `bytes` ≤ 16 at an offset inside.
    #[inline(always)]
    pub(crate) fn load(&self, offset: u64, bytes: u32) -> Words {
        let mut words = [0; 4];
        if offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
            let from = &self.words[offset as usize / 4..][..bytes as usize / 4];
            match from {
                [a] => words[0] = a.load(Relaxed),
                [a, b] => words[..2].copy_from_slice(&[a.load(Relaxed), b.load(Relaxed)]),
                _ => words.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Relaxed)),
            }
        } else {
            for i in 0..bytes as usize {
                let byte = offset as usize + i;
                let value = self.words[byte / 4].load(Relaxed) >> (8 * (byte % 4)) & 0xff;
                words[i / 4] |= value << (8 * (i % 4));
            }
        }
        words
    }

    /// Stores `bytes` ≤ 16 at an offset inside and marks them as written.
    #[inline]
    pub(crate) fn store(&self, offset: u64, bytes: u32, words: &Words) {
        if !self.is_stored.load(Relaxed) {
            self.is_stored.store(true, Relaxed);
        }
        if offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
            let at = offset as usize / 4;
            for (to, from) in self.words[at..at + bytes as usize / 4].iter().zip(words) {
                to.store(*from, Relaxed);
            }
        } else {
            for i in 0..bytes as usize {
                let byte = offset as usize + i;
                let shift = 8 * (byte % 4);
                let value = words[i / 4] >> (8 * (i % 4)) & 0xff;
                // Another CTA may write the word's other bytes at the same time.
                let merge = |old: u32| Some(old & !(0xff << shift) | value << shift);
                let _ = self.words[byte / 4].fetch_update(Relaxed, Relaxed, merge);
            }
        }
        if !self.all_written.load(Relaxed) {
            self.for_bits(offset, bytes, |word, bits| {
                if word.load(Relaxed) & bits != bits {
                    word.fetch_or(bits, Relaxed);
                }
                true
            });
        }
    }

    /// Whether every byte of the range was written.
    #[inline]
    pub(crate) fn is_written(&self, offset: u64, bytes: u32) -> bool {
        self.all_written.load(Relaxed)
            || self.for_bits(offset, bytes, |word, bits| word.load(Relaxed) & bits == bits)
    }

    /// The bytes of the range that nobody wrote, a bit each.
    pub(crate) fn unwritten(&self, offset: u64, bytes: u32) -> u32 {
        if self.is_written(offset, bytes) {
            return 0;
        }
        (0..bytes).filter(|b| !self.is_written(offset + u64::from(*b), 1)).fold(0, |m, b| m | 1 << b)
    }

    /// Makes bytes of the range undefined again.
    pub(crate) fn forget(&self, offset: u64, bytes: u32, mask: u32) {
        if self.all_written.swap(false, Relaxed) {
            self.written.iter().for_each(|word| word.store(u32::MAX, Relaxed));
        }
        if mask == u32::MAX >> (32 - bytes) {
            self.for_bits(offset, bytes, |word, bits| {
                word.fetch_and(!bits, Relaxed);
                true
            });
            return;
        }
        for byte in (0..bytes).filter(|b| mask >> b & 1 == 1) {
            self.for_bits(offset + u64::from(byte), 1, |word, bits| {
                word.fetch_and(!bits, Relaxed);
                true
            });
        }
    }

    /// Makes a range one that nobody has accessed, as if it were allocated now.
    fn renew(&self, offset: u64, bytes: u64) {
        for at in (0..bytes).step_by(32) {
            let part = (bytes - at).min(32) as u32;
            self.forget(offset + at, part, u32::MAX >> (32 - part));
        }
        self.races.forget(offset, bytes);
    }

    /// Calls `f` with each word of the bit map that the range touches; stops at the first false.
    #[inline]
    fn for_bits(&self, offset: u64, bytes: u32, f: impl Fn(&AtomicU32, u32) -> bool) -> bool {
        let (word, bit) = (offset as usize / 32, offset as u32 % 32);
        let bits = ((1u64 << bytes) - 1) << bit;
        let low = f(&self.written[word], bits as u32);
        let high = (bits >> 32) as u32;
        low && (high == 0 || f(&self.written[word + 1], high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_neighbours_stay() {
        let mut memory = Memory::new();
        let a = memory.alloc(100);
        assert_eq!(a % 256, 0);
        memory.write(a, &[0xaa; 100]).unwrap();
        memory.write(a + 3, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]).unwrap();
        let mut out = [0; 100];
        memory.read(a, &mut out).unwrap();
        assert_eq!(out[..6], [0xaa, 0xaa, 0xaa, 1, 2, 3]);
        assert_eq!(out[18..22], [16, 17, 0xaa, 0xaa]);
    }

    #[test]
    fn ranges_outside_and_freed_are_refused() {
        let mut memory = Memory::new();
        let a = memory.alloc(16);
        let b = memory.alloc(16);
        assert!(memory.write(a + 1, &[0; 16]).is_err());
        assert!(memory.read(a + 16, &mut [0]).is_err());
        assert!(memory.read(a - 1, &mut [0]).is_err());
        memory.free(a).unwrap();
        assert_eq!(memory.free(a), Err(MemoryError::NotAllocated { address: a }));
        assert_eq!(memory.locate(a, 4, &mut 0).unwrap_err(), FindingKind::UseAfterFree);
        assert!(memory.write(b, &[0; 16]).is_ok());
    }

    #[test]
    fn written_bytes_are_known_one_by_one() {
        let mut memory = Memory::new();
        let a = memory.alloc(64);
        memory.write(a + 30, &[1; 4]).unwrap();
        assert!(memory.is_written(a + 30, 4).unwrap());
        assert!(!memory.is_written(a + 29, 2).unwrap());
        assert!(!memory.is_written(a + 33, 2).unwrap());
    }
}
