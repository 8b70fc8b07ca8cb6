//! What was released at each address, for those who acquire it by reading there (PTX ISA §8.8.3).

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::{Clock, Released};
use crate::op::Scope;

/// What the last strong write at an address has released.
#[derive(Clone, Debug)]
struct Flag {
    /// For everybody within the scope.
    released: Option<Released>,
    /// For the CTA that wrote.
    within: Option<Released>,
    group: u32,
    scope: Scope,
    cta: u64,
}

/// Released clocks by address.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    by_address: HashMap<u64, Flag>,
}

/// Where an access comes from, and how far it is meant to be seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) group: u32,
    pub(crate) cta: u64,
    pub(crate) scope: Scope,
}

impl Flags {
    /// What a strong read at an address acquires, if the scopes of both reach each other.
    pub(crate) fn read(&self, address: u64, from: From) -> Option<&Released> {
        let flag = self.by_address.get(&address)?;
        let least = if flag.group != from.group {
            Scope::Gpu
        } else if flag.cta != from.cta {
            Scope::Cluster
        } else {
            Scope::Cta
        };
        if flag.scope < least || from.scope < least {
            return None;
        }
        if least == Scope::Cta {
            flag.within.as_ref().or(flag.released.as_ref())
        } else {
            flag.released.as_ref()
        }
    }

    /// A strong write, with what it releases to everybody and to its CTA. A read-modify-write goes on with what was released
    /// before it.
    pub(crate) fn write(
        &mut self,
        address: u64,
        from: From,
        clocks: [Option<Arc<Clock>>; 2],
        modifies: bool,
    ) {
        let before = if modifies { self.by_address.remove(&address) } else { None };
        let From { group, cta, scope } = from;
        let [released, within] = clocks.map(|clock| clock.map(|clock| Released { group, clock }));
        if before.is_none() && released.is_none() && within.is_none() {
            self.by_address.remove(&address);
            return;
        }
        let goes_on = |before: Option<Released>, now: Option<Released>| match (before, now) {
            (Some(before), Some(now)) => {
                let clock = Arc::new(Clock::and(group, &before, &now.clock));
                Some(Released { group, clock })
            }
            (before, now) => now.or(before),
        };
        let (old, old_within, scope) = match before {
            Some(flag) => (flag.released, flag.within, flag.scope.max(scope)),
            None => (None, None, scope),
        };
        let (released, within) = (goes_on(old, released), goes_on(old_within, within));
        self.by_address.insert(address, Flag { released, within, group, scope, cta });
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
