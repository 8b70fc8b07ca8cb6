//! The order of kernels on a stream (PTX ISA, "griddepcontrol"). sm_90. Where a launch does not ask for it, neither does anything.
//!
//! In PTX that older devices load, too, each is a comment, which a newer device gets as the instruction (`ptx::for_sm` of
//! ferroflash-kernels).

use core::arch::asm;

/// `griddepcontrol.launch_dependents`: the next kernel of the stream may start once all CTAs have come here, if its launch
/// allows it.
#[inline(always)]
pub fn launch_dependents() {
    // SAFETY: a hint.
    unsafe {
        #[cfg(ferroflash_wgmma)]
        asm!("griddepcontrol.launch_dependents;", options(nostack));
        #[cfg(not(ferroflash_wgmma))]
        asm!("// sm_90: griddepcontrol.launch_dependents;", options(nostack));
    }
}

/// `griddepcontrol.wait`: the kernels before this one are over, and what they wrote is visible.
///
/// A kernel that its launch lets start early comes here in each of its threads, before it touches memory: the kernel behind it waits for
/// this one alone.
#[inline(always)]
pub fn wait_for_prerequisites() {
    // SAFETY: a wait.
    unsafe {
        #[cfg(ferroflash_wgmma)]
        asm!("griddepcontrol.wait;", options(nostack));
        #[cfg(not(ferroflash_wgmma))]
        asm!("// sm_90: griddepcontrol.wait;", options(nostack));
    }
}
