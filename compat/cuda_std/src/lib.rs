//! The released `cuda_std` needs the libNVVM back end of rustc, which no package registry serves; this one offers the
//! calls that the kernels use, under the same names, on rustc's own NVPTX back end.
//!
//! Off the device only the [`kernel`] attribute exists: it leaves a function as it is.

#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(stdarch_nvptx))]

#[cfg(target_arch = "nvptx64")]
pub mod thread;

pub use cuda_std_macros::kernel;

/// What a kernel's file imports.
pub mod prelude {
    pub use crate::kernel;
    #[cfg(target_arch = "nvptx64")]
    pub use crate::thread;
}

/// A panic ends the whole launch: the host sees CUDA_ERROR_LAUNCH_FAILED (or CUDA_ERROR_ILLEGAL_INSTRUCTION).
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `trap` has no precondition; it does not return.
    unsafe { core::arch::nvptx::trap() }
}
