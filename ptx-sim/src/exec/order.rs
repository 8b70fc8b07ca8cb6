//! Releases and acquires: fences, and strong accesses to global and shared memory (PTX ISA §8.7–8.8).

use std::sync::Arc;

use crate::op::{MemoryOrder, Scope};
use crate::sync::{Flags, From};
use crate::window;

use super::cta::Cta;
use super::warp::Warp;

/// A strong access to a place that other threads may use as a flag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strong {
    pub(super) address: u64,
    pub(super) lane: usize,
    pub(super) order: MemoryOrder,
    /// Whether the place is in shared memory.
    pub(super) shared: bool,
}

/// What a strong access does besides reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modifies {
    /// It only reads, or only writes.
    No,
    /// It counts: a missing fence after it is forgiven.
    Counts,
    /// It takes or frees a lock: what follows needs a fence.
    Swaps,
}

/// The flags of the memory that an address lies in: the device's, or that of a CTA of the cluster.
fn with_flags<R>(cta: &mut Cta<'_>, address: u64, shared: bool, f: impl FnOnce(&mut Flags) -> R) -> R {
    if !shared {
        return cta.launch.memory.with_flags(f);
    }
    let rank = window::rank(address).unwrap_or(cta.rank);
    f(&mut cta.at_rank(rank).flags)
}

impl Warp {
    fn from(&self, scope: Scope, order: MemoryOrder, cta: &Cta<'_>) -> From {
        From { group: cta.group, cta: cta.id, scope, element_bytes: order.element_bytes }
    }

    /// `fence` and `membar`.
    pub(super) fn fence(&mut self, scope: Scope, active: u32, group: u32) {
        self.clock.acquire_told(scope > Scope::Cta, group);
        let released = self.release_clock(active);
        self.clock.flush(&released, scope > Scope::Cta);
        // What these lanes write from here on needs another fence.
        self.now += 1;
    }

    /// A strong read, perhaps one with a write at the same place.
    pub(super) fn strong_read(&mut self, at: Strong, modifies: Modifies, cta: &mut Cta<'_>) {
        let Some(scope) = at.order.scope else { return };
        let from = self.from(scope, at.order, cta);
        let heard = with_flags(cta, at.address, at.shared, |flags| flags.read(at.address, from));
        if !heard.is_empty() {
            cta.talk(4, at.shared);
        }
        for released in heard {
            if at.order.acquires {
                self.clock.acquire(cta.group, &released);
                continue;
            }
            if modifies == Modifies::Counts {
                self.clock.acquire_nearly(cta.group, &released);
            }
            self.clock.hear(cta.group, &released);
        }
    }

    /// A strong write. `tells` if others may read what it leaves as a flag although nothing was fenced before it.
    pub(super) fn strong_write(&mut self, at: Strong, modifies: bool, tells: bool, cta: &mut Cta<'_>) {
        let Some(scope) = at.order.scope else { return };
        let mut clocks = if at.order.releases {
            [Some(self.release_clock(1 << at.lane)), None]
        } else {
            [self.clock.flushed(true), self.clock.flushed(false)]
        };
        if clocks.iter().any(Option::is_some) {
            cta.talk(4, at.shared);
        }
        if tells && clocks[0].is_none() {
            clocks[0] = Some(self.clock.nothing_seen());
        }
        clocks
            .iter_mut()
            .flatten()
            .for_each(|c| c.see_strong(&self.clock, self.agent, self.now, 1 << at.lane));
        self.now += u32::from(at.order.releases);
        let (from, clocks) = (self.from(scope, at.order, cta), clocks.map(|c| c.map(Arc::new)));
        with_flags(cta, at.address, at.shared, |flags| flags.write(at.address, from, clocks, modifies));
    }
}

/// A weak write to a place that may have been a flag.
pub(super) fn weak_write(address: u64, shared: bool, cta: &mut Cta<'_>) {
    if shared || cta.launch.orders_clusters {
        with_flags(cta, address, shared, |flags| flags.clear(address));
    }
}
