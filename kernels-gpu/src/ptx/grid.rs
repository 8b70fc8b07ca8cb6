//! The order of kernels on a stream (PTX ISA, "griddepcontrol"). sm_90. Where a launch does not ask for it, neither does anything.

use core::arch::asm;

/// `griddepcontrol.launch_dependents`: the next kernel of the stream may start once all CTAs have come here, if its launch
/// allows it.
#[inline(always)]
pub fn launch_dependents() {
    // SAFETY: a hint.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nostack)) }
}

/// `griddepcontrol.wait`: the kernels before this one are over, and what they wrote is visible.
#[inline(always)]
pub fn wait_for_prerequisites() {
    // SAFETY: a wait.
    unsafe { asm!("griddepcontrol.wait;", options(nostack)) }
}
