//! Launches with attributes: `cuLaunchKernelEx`, which came with CUDA 11.8, after what cust_raw declares.

use super::driver::check;
use super::{L2Window, Launch, LoadedKernel, StreamHandle};
use crate::error::Error;
use cust::sys::{self, CUaccessProperty, CUresult};
use std::ffi::c_void;
use std::mem::{offset_of, transmute};

/// `CUlaunchAttributeID` of cuda.h.
const ACCESS_POLICY_WINDOW: u32 = 1;
const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;

/// CUlaunchConfig of cuda.h.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    smem_bytes: u32,
    stream: *mut c_void,
    attributes: *const Attribute,
    attribute_count: u32,
}

/// CUlaunchAttribute of cuda.h; its value is a union of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attribute {
    id: u32,
    padding: u32,
    value: [u64; 8],
}

const _: () = assert!(size_of::<Attribute>() == 72 && offset_of!(Attribute, value) == 8);
const _: () = assert!(size_of::<LaunchConfig>() == 56 && offset_of!(LaunchConfig, stream) == 32);

impl Attribute {
    /// The window's lines stay in L2, as many as this share of it, and the others do not (CUaccessPolicyWindow).
    pub(super) fn keep_in_l2(window: L2Window, share: f32) -> Attribute {
        let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let kept = CUaccessProperty::CU_ACCESS_PROPERTY_PERSISTING as u32;
        let others = CUaccessProperty::CU_ACCESS_PROPERTY_STREAMING as u32;
        let value = [window.address, window.bytes, pair(share.to_bits(), kept), others.into(), 0, 0, 0, 0];
        Attribute { id: ACCESS_POLICY_WINDOW, padding: 0, value }
    }

    /// The kernel may start before those before it on the stream are over.
    pub(super) fn overlap() -> Attribute {
        Attribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] }
    }
}

type LaunchKernelEx = unsafe extern "C" fn(
    *const LaunchConfig,
    sys::CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CUresult;

/// The driver's call.
#[derive(Clone, Copy)]
pub(super) struct Launcher(LaunchKernelEx);

impl Launcher {
    /// Looks the call up; `None` where the driver is older than it.
    pub(super) fn find() -> Option<Launcher> {
        let call = find_cuda_helper::symbol(c"cuLaunchKernelEx")?;
        // SAFETY: the driver's symbol of this name has this signature.
        Some(Launcher(unsafe { transmute::<*mut c_void, LaunchKernelEx>(call.as_ptr()) }))
    }

    /// Starts a kernel.
    ///
    /// # Safety
    /// As [`super::Device::launch`]; the kernel's context is current.
    pub(super) unsafe fn launch(
        self,
        kernel: &LoadedKernel,
        launch: &Launch<'_>,
        attributes: &[Attribute],
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let config = LaunchConfig {
            grid: [launch.grid, 1, 1],
            block: [kernel.threads, 1, 1],
            smem_bytes: kernel.smem_bytes,
            stream: stream.as_raw(),
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as u32,
        };
        let mut arguments = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the driver copies configuration and parameter before it returns; the rest is the caller's promise.
        let result = unsafe {
            (self.0)(&config, kernel.handle as sys::CUfunction, arguments.as_mut_ptr(), std::ptr::null_mut())
        };
        check("cuLaunchKernelEx", result)
    }
}
