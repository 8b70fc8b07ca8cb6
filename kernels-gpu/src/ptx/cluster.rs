//! CTAs of a cluster (PTX ISA, "barrier.cluster"). sm_90.

use core::arch::asm;

/// `barrier.cluster.arrive` and `barrier.cluster.wait`: all threads of all CTAs of the cluster have come here, and see what the others wrote.
///
/// # Safety
/// All threads of the cluster come here as often.
#[inline(always)]
pub unsafe fn sync_cluster() {
    // SAFETY: the caller's.
    unsafe { asm!("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;", options(nostack)) }
}
