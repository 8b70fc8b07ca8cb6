//! The released `find_cuda_helper` wants a CUDA installation and links libcuda, so that a program built with it does not
//! start where there is no driver; this one needs neither, and opens the driver at the first call.
//!
//! Two parts, for two users:
//! - the build scripts of `cust` and `cust_raw` call [`include_cuda`];
//! - a program that uses `cust` links this crate too (`use find_cuda_helper as _;`). It defines every `cu…` symbol that
//!   `cust_raw` declares as a trampoline into libcuda.so.1. Where there is no driver, each call returns
//!   CUDA_ERROR_NOT_INITIALIZED, and [`driver_path`] says what was searched and why it failed.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod calls;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod driver;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod trampoline;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use driver::{Attempt, DriverMissing, LIBRARY_OVERRIDE, driver_path, symbol};

/// What the build script of `cust_raw` calls: links nothing where the trampolines stand in for libcuda, and libcuda
/// itself on other platforms.
pub fn include_cuda() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |part: &str| std::env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    let has_trampolines = target("OS") == "linux" && ["x86_64", "aarch64"].contains(&target("ARCH").as_str());
    if !has_trampolines {
        println!("cargo:rustc-link-lib=dylib=cuda");
    }
}
