//! What was released at each address, for those who acquire it by reading there (PTX ISA §8.8.3).

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::{Clock, Released};
use crate::op::{Scope, is_within_word};

/// What a strong write has released, and to whom.
#[derive(Clone, Debug)]
struct Release {
    released: Released,
    scope: Scope,
    /// The CTA that wrote.
    cta: u64,
    element_bytes: u8,
}

/// The releases that a strong read at each address acquires: that of the last write, and those before it that read-modify-write
/// operations have gone on with.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    by_address: HashMap<u64, Vec<Release>>,
}

/// Where an access comes from, and how far it is meant to be seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) group: u32,
    pub(crate) cta: u64,
    pub(crate) scope: Scope,
    /// Bytes of what is read or written: only what overlaps completely is a release and its acquire.
    pub(crate) element_bytes: u8,
}

impl Release {
    /// Whether the scopes of a release and of a read reach each other.
    fn reaches(&self, from: From) -> bool {
        let least = if self.released.group != from.group {
            Scope::Gpu
        } else if self.cta != from.cta {
            Scope::Cluster
        } else {
            Scope::Cta
        };
        let (a, b) = (self.element_bytes, from.element_bytes);
        self.scope >= least && from.scope >= least && (a == b || is_within_word(a.into(), b.into()))
    }

    /// Whether whoever acquires the one acquires the other, so that both can be kept as one.
    fn is_one_with(&self, other: &Release) -> bool {
        let everywhere = |r: &Release| r.scope >= Scope::Gpu;
        let alike = everywhere(self) && everywhere(other)
            || self.cta == other.cta
                && self.released.group == other.released.group
                && self.scope == other.scope;
        alike && self.element_bytes == other.element_bytes
    }
}

impl Flags {
    /// What a strong read at an address acquires: what was released within scopes that reach each other. Who writes a byte by a comparison and
    /// exchange of its word, as libcu++ does, releases it at the word's address, and reads it at its own.
    pub(crate) fn read(&self, address: u64, from: From) -> Vec<Released> {
        let of_word = || self.by_address.get(&(address & !3));
        let list = self.by_address.get(&address).or_else(of_word).map_or(&[][..], Vec::as_slice);
        list.iter().filter(|r| r.reaches(from)).map(|r| r.released.clone()).collect()
    }

    /// A strong write, with what it releases to everybody within its scope, and what to its CTA alone. A read-modify-write goes
    /// on with what was released before it.
    pub(crate) fn write(
        &mut self,
        address: u64,
        from: From,
        clocks: [Option<Arc<Clock>>; 2],
        modifies: bool,
    ) {
        let mut list = self.by_address.remove(&address).filter(|_| modifies).unwrap_or_default();
        let From { group, cta, scope, element_bytes } = from;
        for (clock, scope) in clocks.into_iter().zip([scope, Scope::Cta]) {
            let Some(clock) = clock else { continue };
            let mut new = Release { released: Released { group, clock }, scope, cta, element_bytes };
            if let Some(at) = list.iter().position(|old| old.is_one_with(&new)) {
                let old = list.swap_remove(at);
                new.released.clock = Arc::new(Clock::and(group, &old.released, &new.released.clock));
            }
            list.push(new);
        }
        if !list.is_empty() {
            self.by_address.insert(address, list);
        }
    }

    /// Whether nothing is released anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// A weak write releases nothing.
    pub(crate) fn clear(&mut self, address: u64) {
        if !self.by_address.is_empty() {
            self.by_address.remove(&address);
        }
    }

    pub(crate) fn forget(&mut self) {
        self.by_address.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_of_a_word_hears_what_the_word_released_unless_it_was_released_itself() {
        let from = From { group: 0, cta: 0, scope: Scope::Gpu, element_bytes: 4 };
        let mut flags = Flags::default();
        let mut write = |address, time| {
            let mut clock = Clock::default();
            clock.see(0, time);
            flags.write(address, from, [Some(Arc::new(clock)), None], false);
        };
        write(8, 1);
        write(11, 2);
        // Whether what was heard is the second.
        let heard = |address| flags.read(address, from).first().map(|heard| heard.clock.covers(0, 2, 1));
        assert_eq!([8, 10, 11, 12].map(heard), [Some(false), Some(false), Some(true), None]);
    }
}
