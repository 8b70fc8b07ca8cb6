//! Devices that reach each other's memory, and flags in it. Other processes are let into nothing.

use crate::context::{needs_context, needs_device};
use crate::memory::needs_memory;
use crate::stream::{Stream, Work, submit};
use crate::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED,
    CuResult, call, faults,
};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// `CU_STREAM_WAIT_VALUE_EQ`.
const EQUAL: u32 = 1;

/// A flag that is set, or waited for.
#[derive(Clone, Copy)]
pub(crate) struct Flag {
    address: u64,
    value: u32,
    is_waited_for: bool,
}

impl Flag {
    /// Sets the flag, or waits for it no longer than that; [`CUDA_ERROR_NOT_READY`] where it is not set by then.
    ///
    /// # Safety
    /// Only flags are there.
    pub(crate) unsafe fn run(&self, patience: Duration) -> Result<(), CuResult> {
        needs_memory(self.address, 4)?;
        // SAFETY: the bytes lie in an allocation, at a multiple of 4; the rest is the caller's promise.
        let flag = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
        if !self.is_waited_for {
            flag.store(self.value, Ordering::Release);
            return Ok(());
        }
        let until = Instant::now() + patience;
        while flag.load(Ordering::Acquire) != self.value {
            if Instant::now() >= until {
                return Err(CUDA_ERROR_NOT_READY);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

/// # Safety
/// The stream lives, or is null.
unsafe fn flag(stream: *const Stream, (address, value): (u64, u32), is_waited_for: bool) -> CuResult {
    call(|| {
        needs_context()?;
        needs_memory(address, 4)?;
        if !address.is_multiple_of(4) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { submit(Work::Flag(Flag { address, value, is_waited_for }), stream) }
    })
}

pub(crate) unsafe extern "C" fn write_value(
    stream: *const Stream,
    address: u64,
    value: u32,
    flags: u32,
) -> CuResult {
    if flags != 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the call's contract.
    unsafe { flag(stream, (address, value), false) }
}

pub(crate) unsafe extern "C" fn wait_value(
    stream: *const Stream,
    address: u64,
    value: u32,
    flags: u32,
) -> CuResult {
    if flags != EQUAL {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the call's contract.
    unsafe { flag(stream, (address, value), true) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> CuResult {
    call(|| {
        needs_device(device)?;
        needs_device(peer)?;
        if device == peer {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        // SAFETY: by the call's contract, `can` is valid for a write.
        unsafe { can.write(faults::peers_are_reached().into()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(_: *const c_void, flags: u32) -> CuResult {
    call(|| {
        needs_context()?;
        if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcGetMemHandle(_: *mut c_void, _: u64) -> CuResult {
    CUDA_ERROR_NOT_SUPPORTED
}
