//! Accesses of a block beyond the oldest.

use super::Entry;

/// Further accesses, and of each the key of its agent: most of those who come have not been here, which keys tell soonest.
#[derive(Debug, Default)]
pub(super) struct Others {
    pub(super) entries: Vec<Entry>,
    keys: Vec<u32>,
    /// Where there are many, a bit that is 0 tells that no access has a key; those of accesses that were dropped may still be 1.
    filter: Vec<u64>,
    dropped: u32,
}

/// Accesses of a block from which on keys are filtered, and the words of the filter.
const FILTERED: usize = 16;
const FILTER_WORDS: usize = 16;
/// Accesses that are dropped before the filter is made anew.
const STALE: u32 = 64;

/// The word and the bit of a key in the filter.
fn filter_bit(key: u32) -> (usize, u64) {
    let hash = key.wrapping_mul(0x85eb_ca6b) >> 22;
    (hash as usize / 64, 1 << (hash % 64))
}

impl Others {
    /// The first access of a key at or behind `from`.
    pub(super) fn position(&self, key: u32, from: usize) -> Option<usize> {
        let (word, bit) = filter_bit(key);
        if self.filter.get(word).is_some_and(|bits| bits & bit == 0) {
            return None;
        }
        const AT_ONCE: usize = 32;
        let has_key = |keys: &[u32]| keys.iter().fold(false, |found, other| found | (*other == key));
        let keys = &self.keys[from..];
        let (chunk, keys) = keys.chunks(AT_ONCE).enumerate().find(|(_, keys)| has_key(keys))?;
        Some(from + chunk * AT_ONCE + keys.iter().position(|other| *other == key)?)
    }

    pub(super) fn push(&mut self, new: Entry) {
        self.entries.push(new);
        self.keys.push(new.key());
        let (word, bit) = filter_bit(new.key());
        match self.filter.get_mut(word) {
            Some(bits) => *bits |= bit,
            None if self.keys.len() >= FILTERED => self.make_filter(),
            None => {}
        }
    }

    fn make_filter(&mut self) {
        self.filter.clear();
        self.filter.resize(FILTER_WORDS, 0);
        self.dropped = 0;
        for (word, bit) in self.keys.iter().map(|key| filter_bit(*key)) {
            self.filter[word] |= bit;
        }
    }

    pub(super) fn remove(&mut self, at: usize) -> Entry {
        self.keys.remove(at);
        self.dropped += 1;
        if self.dropped >= STALE && !self.filter.is_empty() {
            self.make_filter();
        }
        self.entries.remove(at)
    }

    /// Takes bytes from every access, and drops those that have no others.
    pub(super) fn overwrite(&mut self, bytes: u16) {
        self.entries.iter_mut().for_each(|entry| entry.bytes &= !bytes);
        self.entries.retain(|entry| entry.bytes != 0);
        self.keys.clear();
        self.keys.extend(self.entries.iter().map(Entry::key));
        self.filter.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_many_are_found_by_their_keys_while_others_are_dropped() {
        let entry = |group| Entry { group, bytes: 1, ..Entry::default() };
        let mut others = Others::default();
        for group in 0..300 {
            others.push(entry(group));
            if group % 3 != 0 {
                let dropped = others.remove(group as usize % 2);
                assert_eq!(others.position(dropped.key(), 0), None);
            }
            for (at, key) in others.keys.iter().enumerate() {
                assert_eq!(others.position(*key, 0), Some(at), "{group}");
            }
        }
    }
}
