//! Pieces of work on all processors.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Products of two elements that are worth a thread: under a millisecond one thread is done before others start.
const PRODUCTS: usize = 1 << 20;

/// Does each piece of work, which has so many products of two elements.
pub(crate) fn for_each<W: Sync>(work: &[W], products: usize, piece: impl Fn(&W) + Sync) {
    let next = AtomicUsize::new(0);
    let worth = products.saturating_mul(work.len()) / PRODUCTS;
    let threads = processors().min(work.len()).min(worth);
    let worker = || {
        while let Some(one) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            piece(one);
        }
    };
    if threads <= 1 {
        worker();
    } else {
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    }
}

/// Processors that this process may use, asked once: the system reads files for the answer.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}
