//! The driver, its devices and their contexts.

use crate::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CuResult, call, complain, faults,
};
use kernels_gpu::row::SMEM_MAX_BYTES;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicUsize, Ordering};

/// Every device's name: nothing that was computed here can pass for a GPU's.
const DEVICE_NAME: &CStr = c"fake driver (no GPU)";
/// A place that no bus has, so that NVML finds no real GPU there.
const PCI_BUS_ID: &CStr = c"ffff:ff:1f.7";
/// The contexts' handles: this, plus the device's number.
const CONTEXT: u64 = 0x1000;

/// The longest range of addresses that may stay in L2.
const L2_WINDOW_BYTES: usize = 1 << 20;

/// Bytes of L2 that are set aside.
static L2_SET_ASIDE: AtomicUsize = AtomicUsize::new(0);
static INITIALIZED: AtomicBool = AtomicBool::new(false);
static RETAINED: AtomicI32 = AtomicI32::new(0);
/// Allocations, modules, streams, events and graphs that live.
static LIVING: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// The contexts made current on this thread, the last one on top.
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Counts one object made, or with −1 one destroyed.
pub(crate) fn count_living(change: i64) {
    LIVING.fetch_add(change, Ordering::Relaxed);
}

/// The error of a call on a thread without a current context.
pub(crate) fn needs_context() -> Result<(), CuResult> {
    let current = CURRENT.with_borrow(|stack| stack.last().copied());
    match current {
        Some(_) if RETAINED.load(Ordering::Relaxed) > 0 => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_CONTEXT),
    }
}

/// The context that is current on this thread.
pub(crate) fn current_context() -> u64 {
    CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// The error of a window in L2 that is empty, too long, or of a cache of which nothing is set aside.
pub(crate) fn needs_window(bytes: usize) -> Result<(), CuResult> {
    if (1..=L2_WINDOW_BYTES).contains(&bytes) && L2_SET_ASIDE.load(Ordering::Relaxed) > 0 {
        return Ok(());
    }
    complain(&format!("a window of {bytes} bytes in L2"));
    Err(CUDA_ERROR_INVALID_VALUE)
}

/// CU_LIMIT_PERSISTING_L2_CACHE_SIZE.
const PERSISTING_LIMIT: i32 = 6;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, limit: i32) -> CuResult {
    call(|| {
        needs_context()?;
        if limit != PERSISTING_LIMIT {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by the call's contract, `value` is valid for a write.
        unsafe { value.write(L2_SET_ASIDE.load(Ordering::Relaxed)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetLimit(limit: i32, value: usize) -> CuResult {
    call(|| {
        needs_context()?;
        if limit != PERSISTING_LIMIT || value > faults::l2_persisting_bytes() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        L2_SET_ASIDE.store(value, Ordering::Relaxed);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxResetPersistingL2Cache() -> CuResult {
    call(needs_context)
}

fn needs_init() -> Result<(), CuResult> {
    if INITIALIZED.load(Ordering::Relaxed) { Ok(()) } else { Err(CUDA_ERROR_NOT_INITIALIZED) }
}

pub(crate) fn needs_device(device: i32) -> Result<(), CuResult> {
    needs_init()?;
    if (0..faults::devices()).contains(&device) { Ok(()) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
}

/// Tells a fake driver from a real one: no other has this symbol.
#[unsafe(no_mangle)]
extern "C" fn ferroflash_fake_driver() -> CuResult {
    1
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> CuResult {
    if let Some(error) = faults::init_error() {
        return error;
    }
    INITIALIZED.store(true, Ordering::Relaxed);
    if flags == 0 { 0 } else { CUDA_ERROR_INVALID_VALUE }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> CuResult {
    let (major, minor) = faults::cuda_version();
    // SAFETY: by the call's contract, `version` is valid for a write.
    unsafe { version.write((major * 1000 + minor * 10) as i32) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut i32) -> CuResult {
    call(|| {
        needs_init()?;
        // SAFETY: by the call's contract, `count` is valid for a write.
        unsafe { count.write(faults::devices()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> CuResult {
    call(|| {
        needs_device(ordinal)?;
        // SAFETY: by the call's contract, `device` is valid for a write.
        unsafe { device.write(ordinal) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> CuResult {
    call(|| {
        needs_device(device)?;
        // The numbers are those of CUdevice_attribute in cuda.h.
        let found = match attribute {
            75 => faults::sm() / 10,
            76 => faults::sm() % 10,
            // Multiprocessors, bytes of L2, bytes of shared memory that a CTA can opt in to.
            16 => 4,
            38 => 1 << 20,
            97 => SMEM_MAX_BYTES as i32,
            // Of a multiprocessor: threads, bytes of shared memory, CTAs.
            39 => 1536,
            81 => SMEM_MAX_BYTES as i32 + 1024,
            106 => 24,
            // Bytes of L2 that can be set aside, and of the range of addresses that may stay there.
            108 => faults::l2_persisting_bytes() as i32,
            109 => L2_WINDOW_BYTES as i32,
            other => {
                complain(&format!("device attribute {other} is not known here"));
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        };
        // SAFETY: by the call's contract, `value` is valid for a write.
        unsafe { value.write(found) };
        Ok(())
    })
}

/// Copies a text with its NUL.
///
/// # Safety
/// `to` is valid for writes of `length` bytes.
unsafe fn copy_text(text: &CStr, to: *mut c_char, length: i32) -> CuResult {
    let bytes = text.to_bytes_with_nul();
    if bytes.len() > length as usize {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: i32, _: i32) -> CuResult {
    // SAFETY: the call's contract.
    unsafe { copy_text(DEVICE_NAME, name, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(name: *mut c_char, length: i32, _: i32) -> CuResult {
    // SAFETY: the call's contract.
    unsafe { copy_text(PCI_BUS_ID, name, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) -> CuResult {
    call(|| {
        needs_device(device)?;
        // SAFETY: by the call's contract, `bytes` is valid for a write.
        unsafe { bytes.write(faults::memory_bytes()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32) -> CuResult {
    call(|| {
        needs_device(device)?;
        RETAINED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the call's contract, `context` is valid for a write.
        unsafe { context.write(CONTEXT + device as u64) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _: u32) -> CuResult {
    call(|| needs_device(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_: i32) -> CuResult {
    if RETAINED.fetch_sub(1, Ordering::Relaxed) == 1 {
        let living = LIVING.load(Ordering::Relaxed);
        if living != 0 {
            complain(&format!("left behind: {living} allocations, modules, streams, events and graphs"));
        }
        let set_aside = L2_SET_ASIDE.load(Ordering::Relaxed);
        if set_aside != 0 {
            complain(&format!("left behind: {set_aside} bytes of L2 set aside"));
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut u64) -> CuResult {
    let current = CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0));
    // SAFETY: by the call's contract, `context` is valid for a write.
    unsafe { context.write(current) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> CuResult {
    call(|| {
        needs_context()?;
        let current = CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        // SAFETY: by the call's contract, `device` is valid for a write.
        unsafe { device.write((current - CONTEXT) as i32) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: u64) -> CuResult {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend((context != 0).then_some(context));
    });
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: u64) -> CuResult {
    if context < CONTEXT {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    CURRENT.with_borrow_mut(|stack| stack.push(context));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> CuResult {
    let Some(popped) = CURRENT.with_borrow_mut(Vec::pop) else { return CUDA_ERROR_INVALID_CONTEXT };
    // SAFETY: by the call's contract, `context` is valid for a write.
    unsafe { context.write(popped) };
    0
}

/// Name and words of an error, as the real driver has them.
fn describe(error: CuResult) -> (&'static CStr, &'static CStr) {
    match error {
        CUDA_ERROR_INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        CUDA_ERROR_OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        CUDA_ERROR_NOT_INITIALIZED => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        CUDA_ERROR_NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        CUDA_ERROR_INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        CUDA_ERROR_NO_BINARY_FOR_GPU => {
            (c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device")
        }
        CUDA_ERROR_INVALID_PTX => (c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION => (
            c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            c"the provided PTX was compiled with an unsupported toolchain.",
        ),
        CUDA_ERROR_NOT_FOUND => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        716 => (c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
        803 => (
            c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            c"system has unsupported display driver / cuda driver combination",
        ),
        _ => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: CuResult, text: *mut *const c_char) -> CuResult {
    // SAFETY: by the call's contract, `text` is valid for a write.
    unsafe { text.write(describe(error).0.as_ptr()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult {
    // SAFETY: by the call's contract, `text` is valid for a write.
    unsafe { text.write(describe(error).1.as_ptr()) };
    0
}
