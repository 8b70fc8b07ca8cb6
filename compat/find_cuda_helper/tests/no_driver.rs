//! What a program that uses `cust` sees where there is no driver: errors, never a crash, and never a failed start.

use cust::CudaFlags;
use find_cuda_helper::{LIBRARY_OVERRIDE, driver_path, symbol};
use std::sync::Once;

/// Every test of this file runs without a driver, on machines that have one too.
fn hide_driver() {
    static HIDDEN: Once = Once::new();
    // SAFETY: runs once, before any test of this process reads the environment through this crate.
    HIDDEN.call_once(|| unsafe { std::env::set_var(LIBRARY_OVERRIDE, "/nonexistent/libcuda.so.1") });
}

#[test]
fn init_is_an_error_that_can_be_printed() {
    hide_driver();
    for _ in 0..2 {
        let error = cust::init(CudaFlags::empty()).expect_err("there is no driver");
        assert_eq!(error, cust::error::CudaError::NotInitialized);
        assert!(error.to_string().contains("no CUDA driver"), "{error}");
    }
    let other = cust::error::CudaError::OutOfMemory.to_string();
    assert!(other.contains("CUDA error"), "{other}");
}

#[test]
fn every_kind_of_call_is_an_error() {
    hide_driver();
    assert!(cust::device::Device::num_devices().is_err());
    assert!(cust::module::Module::from_ptx("", &[]).is_err());
    assert!(cust::memory::DeviceBuffer::from_slice(&[1f32]).is_err());
}

#[test]
fn calls_from_many_threads_agree() {
    hide_driver();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert!(cust::CudaApiVersion::get().is_err()));
        }
    });
}

#[test]
fn the_search_is_reported() {
    hide_driver();
    let missing = driver_path().expect_err("there is no driver");
    assert_eq!(missing.attempts.len(), 1);
    assert_eq!(missing.attempts[0].library, "/nonexistent/libcuda.so.1");
    assert!(symbol(c"cuTensorMapEncodeTiled").is_none());
}
