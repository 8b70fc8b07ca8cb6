//! The CUDA driver: opening it, and what its answers mean.

use crate::error::Error;
use cust::sys::{self, CUresult};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

// Defines the driver's calls: it opens the driver at the first of them.
use find_cuda_helper as _;

/// The driver that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Driver {
    /// The file it was loaded from.
    pub path: String,
    /// The CUDA version it supports, (13, 0).
    pub cuda_version: (u32, u32),
    /// Devices behind it.
    pub device_count: u32,
}

impl Driver {
    /// Opens and initialises the driver, which happens once in a process.
    ///
    /// # Errors
    /// [`Error::NoDriver`] with what was searched and why it cannot be used.
    pub fn open() -> Result<Driver, Error> {
        let path = driver_path()?;
        let unusable = |error: Error| {
            let reason = match error {
                Error::Cuda { reason, .. } => reason,
                other => other.to_string(),
            };
            Error::NoDriver { searched: path.to_owned(), reason }
        };
        // SAFETY: takes no pointers.
        check("cuInit", unsafe { sys::cuInit(0) }).map_err(unusable)?;
        let (mut version, mut count): (c_int, c_int) = (0, 0);
        // SAFETY: both write one int where they are told to.
        unsafe {
            check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version)).map_err(unusable)?;
            check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count)).map_err(unusable)?;
        }
        if count == 0 {
            return Err(Error::NoDriver {
                searched: path.to_owned(),
                reason: "there is no CUDA device".to_owned(),
            });
        }
        let cuda_version = ((version / 1000) as u32, (version % 1000 / 10) as u32);
        Ok(Driver { path: path.to_owned(), cuda_version, device_count: count as u32 })
    }
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn driver_path() -> Result<&'static str, Error> {
    find_cuda_helper::driver_path().map_err(|missing| {
        let libraries: Vec<&str> = missing.attempts.iter().map(|attempt| attempt.library.as_str()).collect();
        let reason = missing.attempts.first().map_or("nothing was found", |attempt| attempt.reason.as_str());
        Error::NoDriver { searched: libraries.join(", "), reason: reason.to_owned() }
    })
}

/// Elsewhere the system's loader opened the driver when the program started.
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn driver_path() -> Result<&'static str, Error> {
    Ok("the system's CUDA driver")
}

/// The driver's call of this name as it is since that version of its interface (12000 for 12.0); `None` where the driver is older.
pub(super) fn call_since(name: &CStr, version: c_int) -> Option<NonNull<c_void>> {
    let mut found = std::ptr::null_mut();
    // SAFETY: the name ends in NUL; the call writes one address where it is told to.
    let result = unsafe { sys::cuGetProcAddress(name.as_ptr(), &mut found, version, 0) };
    NonNull::new(found).filter(|_| result == CUresult::CUDA_SUCCESS)
}

/// The driver's answer to `call` as a result.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), Error> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(Error::Cuda { call, reason: describe(error) }),
    }
}

/// What `cust` says of `call` as an error of this library.
pub(super) fn cust_error(call: &'static str) -> impl Fn(cust::error::CudaError) -> Error {
    move |error| Error::Cuda { call, reason: format!("{error:?}") }
}

/// The driver's name and words for an error, `CUDA_ERROR_INVALID_VALUE (invalid argument)`.
pub(super) fn describe(error: CUresult) -> String {
    let text = |call: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: where it succeeds, the call writes a string that lives as long as the driver.
        unsafe {
            let known = call(error, &mut text) == CUresult::CUDA_SUCCESS && !text.is_null();
            known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(words)) if name != words => format!("{name} ({words})"),
        (Some(name), _) => name,
        _ => format!("error {}", error as u32),
    }
}
