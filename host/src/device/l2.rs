//! K and V kept in L2: the part of the cache that is set aside for them, and launches that name their addresses.
//!
//! Source: CUDA C++ Programming Guide, "L2 Cache Set-Aside for Persisting Accesses". The window is an attribute of the launch, not
//! of its stream: it is captured with the launch, and no other work on the stream meets it.

use super::cuda::check;
use super::{L2Window, Launch, LoadedKernel, StreamHandle};
use crate::error::Error;
use cust::sys::{self, CUaccessPolicyWindow, CUaccessProperty, CUlimit, CUresult};
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, transmute};

/// CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW.
const ACCESS_POLICY_WINDOW: u32 = 1;

/// CUlaunchConfig of cuda.h.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    smem_bytes: u32,
    stream: *mut c_void,
    attributes: *const LaunchAttribute,
    attribute_count: u32,
}

/// CUlaunchAttribute of cuda.h; its value is a union of 64 bytes.
#[repr(C)]
struct LaunchAttribute {
    id: u32,
    padding: u32,
    window: CUaccessPolicyWindow,
    rest: [u64; 4],
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72 && offset_of!(LaunchAttribute, window) == 8);
const _: () = assert!(size_of::<LaunchConfig>() == 56 && offset_of!(LaunchConfig, stream) == 32);

type LaunchKernelEx = unsafe extern "C" fn(
    *const LaunchConfig,
    sys::CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CUresult;

/// Part of a context's L2, set aside, and the launch call that makes use of it.
pub(super) struct SetAside {
    /// Bytes set aside before.
    before: usize,
    /// Bytes set aside now.
    pub(super) bytes: u64,
    launch: LaunchKernelEx,
}

impl SetAside {
    /// Sets as much aside as the device allows (`most`, in bytes) in the current context. `None` where device or driver cannot.
    pub(super) fn new(most: c_int) -> Result<Option<SetAside>, Error> {
        // It came with CUDA 11.8, after what cust_raw declares.
        let Some(launch) = find_cuda_helper::symbol(c"cuLaunchKernelEx") else { return Ok(None) };
        if most <= 0 {
            return Ok(None);
        }
        // SAFETY: the driver's symbol of this name has this signature.
        let launch = unsafe { transmute::<*mut c_void, LaunchKernelEx>(launch.as_ptr()) };
        let (mut before, mut bytes) = (0, 0);
        let limit = CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
        // SAFETY: the calls write one size each where they are told to; a context is current.
        unsafe {
            check("cuCtxGetLimit", sys::cuCtxGetLimit(&mut before, limit))?;
            check("cuCtxSetLimit", sys::cuCtxSetLimit(limit, most as usize))?;
            // The driver rounds.
            check("cuCtxGetLimit", sys::cuCtxGetLimit(&mut bytes, limit))?;
        }
        Ok(Some(SetAside { before, bytes: bytes as u64, launch }))
    }

    /// Gives it back to all accesses. The context that it was set aside in is current.
    pub(super) fn give_back(&self) {
        // A drop cannot report an error.
        // SAFETY: the calls take no pointers.
        unsafe {
            let _ = sys::cuCtxResetPersistingL2Cache();
            let _ = sys::cuCtxSetLimit(CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE, self.before);
        }
    }

    /// Starts a kernel that keeps a window's lines in L2, as many as were set aside.
    ///
    /// # Safety
    /// As [`super::Device::launch`]; the kernel's context is current.
    pub(super) unsafe fn launch(
        &self,
        kernel: &LoadedKernel,
        launch: &Launch<'_>,
        window: L2Window,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let attribute = LaunchAttribute {
            id: ACCESS_POLICY_WINDOW,
            padding: 0,
            window: CUaccessPolicyWindow {
                base_ptr: window.address as *mut c_void,
                num_bytes: window.bytes as usize,
                // A window larger than what is set aside would evict itself; with this share of it kept, it does not.
                hitRatio: (self.bytes as f64 / window.bytes as f64).min(1.0) as f32,
                hitProp: CUaccessProperty::CU_ACCESS_PROPERTY_PERSISTING,
                missProp: CUaccessProperty::CU_ACCESS_PROPERTY_STREAMING,
            },
            rest: [0; 4],
        };
        let config = LaunchConfig {
            grid: [launch.grid, 1, 1],
            block: [kernel.threads, 1, 1],
            smem_bytes: kernel.smem_bytes,
            stream: stream.as_raw(),
            attributes: &attribute,
            attribute_count: 1,
        };
        let mut arguments = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the driver copies configuration and parameter before it returns; the rest is the caller's promise.
        let result = unsafe {
            (self.launch)(
                &config,
                kernel.handle as sys::CUfunction,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernelEx", result)
    }
}
