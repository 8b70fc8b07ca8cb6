//! Trampolines into a driver: a stand-in library that returns a number computed from its arguments, so that a register or
//! stack slot lost on the way shows.

use cust::sys;
use find_cuda_helper::{LIBRARY_OVERRIDE, driver_path, symbol};
use std::ffi::c_void;
use std::path::Path;
use std::process::Command;

/// `cuLaunchKernel` takes eleven arguments, five of them on the stack; `cuParamSetf` takes a float.
const FAKE_DRIVER: &str = r#"
#[unsafe(no_mangle)] pub extern "C" fn cuInit(flags: u32) -> i32 { if flags == 0 { 0 } else { 1 } }
#[unsafe(no_mangle)] pub extern "C" fn cuLaunchKernel(f: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32,
    smem: u32, stream: usize, params: usize, extra: usize) -> i32 {
    let seen = [f, gx as usize, gy as usize, gz as usize, bx as usize, by as usize, bz as usize, smem as usize, stream,
        params, extra];
    if (0..11).all(|i| seen[i] == i + 1) { 0 } else { 1 }
}
#[unsafe(no_mangle)] pub extern "C" fn cuParamSetf(f: usize, offset: i32, value: f32) -> i32 {
    if f == 5 && offset == -6 && value == 7.5 { 0 } else { 1 }
}
#[unsafe(no_mangle)] pub extern "C" fn cuNewerThanCustRaw() -> i32 { 42 }
"#;

fn build_fake_driver(directory: &Path) -> std::path::PathBuf {
    let source = directory.join("fake.rs");
    let library = directory.join("libfake.so");
    std::fs::write(&source, FAKE_DRIVER).expect("the temporary directory is writable");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort", "-o"])
        .args([&library, &source])
        .status()
        .expect("rustc runs");
    assert!(status.success());
    library
}

// One test: the driver is opened once in a process.
#[test]
fn calls_reach_the_driver_with_their_arguments() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let library = build_fake_driver(directory.path());
    // SAFETY: this is the only test of the process, and no thread reads the environment yet.
    unsafe { std::env::set_var(LIBRARY_OVERRIDE, &library) };

    assert_eq!(driver_path(), Ok(library.to_str().expect("UTF-8")));
    // The first call takes the slow path through the resolver, the second the filled slot.
    for _ in 0..2 {
        // SAFETY: the stand-in only looks at the values.
        unsafe {
            let pointer = |value: usize| value as *mut c_void;
            let launched = sys::cuLaunchKernel(
                pointer(1).cast(),
                2,
                3,
                4,
                5,
                6,
                7,
                8,
                pointer(9).cast(),
                pointer(10).cast(),
                pointer(11).cast(),
            );
            assert_eq!(launched as u32, 0);
            assert_eq!(sys::cuParamSetf(pointer(5).cast(), -6, 7.5) as u32, 0);
            assert_eq!(sys::cuDriverGetVersion(&mut 0), sys::cudaError_enum::CUDA_ERROR_NOT_FOUND);
        }
    }
    assert!(cust::init(cust::CudaFlags::empty()).is_ok());
    let newer = symbol(c"cuNewerThanCustRaw").expect("the stand-in has it");
    // SAFETY: the stand-in defines it with this signature.
    let newer: extern "C" fn() -> i32 = unsafe { std::mem::transmute(newer) };
    assert_eq!(newer(), 42);
    assert!(symbol(c"cuNoSuchCall").is_none());
}
