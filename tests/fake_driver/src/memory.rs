//! Device memory: blocks of the host's, counted against the device's size.

use crate::context::{count_living, needs_context};
use crate::stream::{Stream, Work, submit};
use crate::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CuResult, call, faults,
};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// As cuMemAlloc aligns.
const ALIGNMENT: usize = 256;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`.
const DEVICE_MAP: u32 = 2;
/// What fresh memory holds: NaN in every dtype, so that what nobody wrote shows.
const FRESH: u8 = 0xff;

/// Bytes of ranges, by their first address.
type Ranges = Mutex<BTreeMap<u64, usize>>;

/// Allocations.
static BLOCKS: Ranges = Mutex::new(BTreeMap::new());
/// The host's memory that the device was let into.
static REGISTERED: Ranges = Mutex::new(BTreeMap::new());

fn locked(ranges: &'static Ranges) -> MutexGuard<'static, BTreeMap<u64, usize>> {
    ranges.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error of touching bytes that do not all lie in one allocation.
pub(crate) fn needs_memory(address: u64, bytes: u64) -> Result<(), CuResult> {
    let is_inside = |ranges| {
        locked(ranges).range(..=address).next_back().is_some_and(|(start, &length)| {
            address.checked_add(bytes).is_some_and(|end| end <= start + length as u64)
        })
    };
    if is_inside(&BLOCKS) || is_inside(&REGISTERED) { Ok(()) } else { Err(CUDA_ERROR_ILLEGAL_ADDRESS) }
}

fn free_bytes() -> usize {
    faults::memory_bytes().saturating_sub(locked(&BLOCKS).values().sum())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, both are valid for a write.
        unsafe {
            free.write(free_bytes());
            total.write(faults::memory_bytes());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> CuResult {
    call(|| {
        needs_context()?;
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        if bytes > free_bytes() {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        // SAFETY: the layout has a size; the memory is written before it is handed out.
        let memory = unsafe {
            let memory = alloc(layout);
            if memory.is_null() {
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
            memory.write_bytes(FRESH, bytes);
            memory as u64
        };
        locked(&BLOCKS).insert(memory, bytes);
        count_living(1);
        // SAFETY: by the call's contract, `address` is valid for a write.
        unsafe { address.write(memory) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> CuResult {
    call(|| {
        needs_context()?;
        let bytes = locked(&BLOCKS).remove(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: allocated above with this layout, and no longer listed.
        unsafe { dealloc(address as *mut u8, layout) };
        count_living(-1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: u64, bytes: usize, flags: u32) -> CuResult {
    call(|| {
        needs_context()?;
        if start == 0 || bytes == 0 || flags != DEVICE_MAP {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        locked(&REGISTERED).insert(start, bytes);
        count_living(1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(address: *mut u64, start: u64, _: u32) -> CuResult {
    call(|| {
        needs_context()?;
        if !locked(&REGISTERED).contains_key(&start) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by the call's contract, `address` is valid for a write.
        unsafe { address.write(start) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: u64) -> CuResult {
    call(|| {
        needs_context()?;
        locked(&REGISTERED).remove(&start).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        count_living(-1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> CuResult {
    call(|| {
        needs_context()?;
        needs_memory(to, bytes as u64)?;
        // SAFETY: the destination lies in an allocation; the source is the call's contract.
        unsafe { (to as *mut u8).copy_from_nonoverlapping(from.cast(), bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> CuResult {
    call(|| {
        needs_context()?;
        needs_memory(from, bytes as u64)?;
        // SAFETY: the source lies in an allocation; the destination is the call's contract.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(from as *const u8, bytes) };
        Ok(())
    })
}

/// Bytes that go from one address of the device to another.
#[derive(Clone, Copy)]
pub(crate) struct Copy {
    to: u64,
    from: u64,
    bytes: usize,
}

impl Copy {
    /// # Safety
    /// Nobody else uses the bytes.
    pub(crate) unsafe fn run(&self) -> Result<(), CuResult> {
        let Copy { to, from, bytes } = *self;
        needs_memory(from, bytes as u64)?;
        needs_memory(to, bytes as u64)?;
        // SAFETY: both lie in an allocation each.
        unsafe { (to as *mut u8).copy_from(from as *const u8, bytes) };
        Ok(())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    stream: *const Stream,
) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the stream lives, or is null, and nobody else uses the bytes.
        unsafe { submit(Work::Copy(Copy { to, from, bytes }), stream) }
    })
}

/// `CUDA_MEMCPY2D`, for copies between addresses of the device.
#[repr(C)]
struct Memcpy2d {
    from_x: usize,
    from_y: usize,
    from_kind: i32,
    from_host: *const c_void,
    from: u64,
    from_array: *const c_void,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: i32,
    to_host: *const c_void,
    to: u64,
    to_array: *const c_void,
    to_pitch: usize,
    width: usize,
    height: usize,
}

/// `CU_MEMORYTYPE_DEVICE`.
const ON_DEVICE: i32 = 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Memcpy2d, stream: *const Stream) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the description lives.
        let copy = unsafe { &*copy };
        let starts = [copy.from_x, copy.from_y, copy.to_x, copy.to_y];
        let is_known = (copy.from_kind, copy.to_kind) == (ON_DEVICE, ON_DEVICE) && starts == [0; 4];
        let is_refused = crate::faults::refuses_pitches() || copy.width > copy.from_pitch.min(copy.to_pitch);
        if !is_known || is_refused {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for row in 0..copy.height {
            let (from, to) =
                (copy.from + (row * copy.from_pitch) as u64, copy.to + (row * copy.to_pitch) as u64);
            // SAFETY: by the call's contract, the stream lives, or is null, and nobody else uses the bytes.
            unsafe { submit(Work::Copy(Copy { to, from, bytes: copy.width }), stream)? };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(address: u64, value: u8, bytes: usize) -> CuResult {
    call(|| {
        needs_context()?;
        needs_memory(address, bytes as u64)?;
        // SAFETY: the bytes lie in an allocation.
        unsafe { (address as *mut u8).write_bytes(value, bytes) };
        Ok(())
    })
}
