//! Releases and acquires: fences, and strong accesses to global and shared memory (PTX ISA §8.7–8.8).

use std::sync::Arc;

use crate::op::{MemoryOrder, Scope};
use crate::sync::{Flags, From};

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

fn with_flags<R>(cta: &mut Cta<'_>, shared: bool, f: impl FnOnce(&mut Flags) -> R) -> R {
    if shared { f(&mut cta.flags) } else { cta.launch.memory.with_flags(f) }
}

impl Warp {
    fn from(&self, scope: Scope, cta: &Cta<'_>) -> From {
        From { group: cta.group, cta: cta.id, scope }
    }

    /// `fence` and `membar`.
    pub(super) fn fence(&mut self, scope: Scope, active: u32) {
        self.clock.acquire_told(scope > Scope::Cta);
        let released = self.release_clock(active);
        self.clock.flush(&released, scope > Scope::Cta);
        // What these lanes write from here on needs another fence.
        self.now += 1;
    }

    /// A strong read; `modifies` if a write at the same place is one with it.
    pub(super) fn strong_read(&mut self, at: Strong, modifies: bool, cta: &mut Cta<'_>) {
        let Some(scope) = at.order.scope else { return };
        let from = self.from(scope, cta);
        let read = |flags: &mut Flags| flags.read(at.address, from).cloned();
        let Some(released) = with_flags(cta, at.shared, read) else { return };
        if at.order.acquires {
            self.clock.acquire(cta.group, &released);
            return;
        }
        if modifies {
            self.clock.acquire_nearly(cta.group, &released);
        }
        self.clock.hear(cta.group, &released);
    }

    /// A strong write.
    pub(super) fn strong_write(&mut self, at: Strong, modifies: bool, cta: &mut Cta<'_>) {
        let Some(scope) = at.order.scope else { return };
        let clocks = if at.order.releases {
            let clock = Arc::new(self.release_clock(1 << at.lane));
            self.now += 1;
            [Some(clock), None]
        } else {
            [self.clock.flushed(true).map(Arc::new), self.clock.flushed(false).map(Arc::new)]
        };
        let from = self.from(scope, cta);
        with_flags(cta, at.shared, |flags| flags.write(at.address, from, clocks, modifies));
    }
}

/// A weak write to a place that may have been a flag.
pub(super) fn weak_write(address: u64, shared: bool, cta: &mut Cta<'_>) {
    if shared || cta.launch.orders_clusters {
        with_flags(cta, shared, |flags| flags.clear(address));
    }
}
