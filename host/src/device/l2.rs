//! K and V kept in L2: the part of the cache that is set aside for them, and launches that name their addresses.
//!
//! Source: CUDA C++ Programming Guide, "L2 Cache Set-Aside for Persisting Accesses". The window is an attribute of the launch, not
//! of its stream: it is captured with the launch, and no other work on the stream meets it.

use super::L2Window;
use super::driver::check;
use super::launch_ex::Attribute;
use crate::error::Error;
use cust::sys::{self, CUlimit};
use std::ffi::c_int;

/// Part of a context's L2, set aside.
pub(super) struct SetAside {
    /// Bytes set aside before.
    before: usize,
    /// Bytes set aside now.
    pub(super) bytes: u64,
}

impl SetAside {
    /// Sets as much aside as the device allows (`most`, in bytes) in the current context. `None` where the device cannot.
    pub(super) fn new(most: c_int) -> Result<Option<SetAside>, Error> {
        if most <= 0 {
            return Ok(None);
        }
        let (mut before, mut bytes) = (0, 0);
        let limit = CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
        // SAFETY: the calls write one size each where they are told to; a context is current.
        unsafe {
            check("cuCtxGetLimit", sys::cuCtxGetLimit(&mut before, limit))?;
            check("cuCtxSetLimit", sys::cuCtxSetLimit(limit, most as usize))?;
            // The driver rounds.
            check("cuCtxGetLimit", sys::cuCtxGetLimit(&mut bytes, limit))?;
        }
        Ok(Some(SetAside { before, bytes: bytes as u64 }))
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

    /// What a launch is to say so that a window's lines stay in L2, as many as were set aside.
    pub(super) fn attribute(&self, window: L2Window) -> Attribute {
        // A window larger than what is set aside would evict itself; with this share of it kept, it does not.
        Attribute::keep_in_l2(window, (self.bytes as f64 / window.bytes as f64).min(1.0) as f32)
    }
}
