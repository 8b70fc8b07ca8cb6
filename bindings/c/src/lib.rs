//! Ferroflash from C: the functions of `include/ferroflash.h`, which says what each does.
//!
//! A pointer that a function takes is one that the header describes; what can be checked of it is checked.

mod args;
mod last_error;
mod steps;
#[cfg(test)]
mod tests;

pub use args::{BackwardArgs, ForwardArgs, TensorArgs};
pub use steps::{AppendArgs, MergeArgs};

use ferroflash_call::Engine;
use last_error::Failure;
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;

/// A device that was opened.
pub struct Device(Engine);

const CPU: i32 = 0;
const CUDA: i32 = 1;
const SIMULATOR: i32 = 2;

/// Opens a device.
///
/// # Safety
/// `folder` is null or ends in NUL; `device` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_open(
    kind: i32,
    ordinal: u32,
    folder: *const c_char,
    device: *mut *mut Device,
) -> i32 {
    last_error::code(|| {
        if device.is_null() {
            return Err(Failure::null("device"));
        }
        // SAFETY: the caller's promise.
        let folder = unsafe { folder_of(folder)? };
        let engine = match kind {
            CPU => Engine::Cpu,
            CUDA => Engine::cuda(ordinal, folder)?,
            SIMULATOR => simulator(folder)?,
            _ => return Err(Failure::number("kind", kind.into(), "one of the devices of ferroflash.h")),
        };
        // SAFETY: the caller's promise.
        unsafe { *device = Box::into_raw(Box::new(Device(engine))) };
        Ok(())
    })
}

#[cfg(feature = "sim")]
fn simulator(folder: Option<PathBuf>) -> Result<Engine, Failure> {
    Ok(Engine::simulator(folder, None)?)
}

#[cfg(not(feature = "sim"))]
fn simulator(_folder: Option<PathBuf>) -> Result<Engine, Failure> {
    Err(Failure::unsupported("this build has no simulator: build it with the feature `sim`"))
}

/// # Safety
/// `folder` is null or ends in NUL.
unsafe fn folder_of(folder: *const c_char) -> Result<Option<PathBuf>, Failure> {
    if folder.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(folder) }.to_str();
    text.map(|text| Some(text.into())).map_err(|_| Failure::invalid("folder is not UTF-8"))
}

/// Closes a device.
///
/// # Safety
/// `device` is null, or came from [`ferroflash_open`] and was not closed; its work is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_close(device: *mut Device) {
    if !device.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(device) });
    }
}

/// What a function answers that asks the engine of a device.
///
/// # Safety
/// `device` is null or open.
unsafe fn asked(device: *mut Device, ask: impl FnOnce(&Engine) -> Result<(), Failure>) -> i32 {
    last_error::code(|| {
        // SAFETY: the caller's promise.
        let Device(engine) = unsafe { device.as_ref() }.ok_or_else(|| Failure::null("device"))?;
        ask(engine)
    })
}

/// As [`asked`], for a number that is written to `bytes`.
///
/// # Safety
/// As [`asked`]; `bytes` is null or may be written.
unsafe fn asked_bytes(
    device: *mut Device,
    bytes: *mut u64,
    ask: impl FnOnce(&Engine) -> Result<u64, Failure>,
) -> i32 {
    if bytes.is_null() {
        return last_error::code(|| Err(Failure::null("bytes")));
    }
    // SAFETY: the caller's promise.
    unsafe {
        asked(device, |engine| {
            *bytes = ask(engine)?;
            Ok(())
        })
    }
}

/// Computes one call.
///
/// # Safety
/// `device` is open, `args` holds as many bytes as it says, and what it describes is as [`Engine::forward`] asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_forward(
    device: *mut Device,
    args: *const ForwardArgs,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        asked(device, |engine| engine.forward(&args::call(args)?, stream as u64).map_err(Failure::from))
    }
}

/// Computes the gradients of one call.
///
/// # Safety
/// `device` is open, `args` and its `forward` hold as many bytes as they say, and what they describe is as [`Engine::backward`] asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_backward(
    device: *mut Device,
    args: *const BackwardArgs,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        asked(device, |engine| engine.backward(&args::backward(args)?, stream as u64).map_err(Failure::from))
    }
}

/// Appends new keys and values to a cache.
///
/// # Safety
/// `device` is open, `args` holds as many bytes as it says, and what it describes is as [`Engine::append`] asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_append(
    device: *mut Device,
    args: *const AppendArgs,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        asked(device, |engine| engine.append(&steps::append(args)?, stream as u64).map_err(Failure::from))
    }
}

/// Merges O and LSE of several calls.
///
/// # Safety
/// `device` is open, `args` holds as many bytes as it says, and what it describes is as [`Engine::merge`] asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_merge(
    device: *mut Device,
    args: *const MergeArgs,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        asked(device, |engine| engine.merge(&steps::merge(args)?, stream as u64).map_err(Failure::from))
    }
}

/// Loads a call's kernels and says what workspace it lacks.
///
/// # Safety
/// As [`ferroflash_forward`], data aside; `bytes` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_missing_workspace(
    device: *mut Device,
    args: *const ForwardArgs,
    stream: *mut c_void,
    bytes: *mut u64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        asked_bytes(device, bytes, |engine| Ok(engine.missing_workspace(&args::call(args)?, stream as u64)?))
    }
}

/// Says what workspace the gradients of a call lack.
///
/// # Safety
/// As [`ferroflash_backward`], data aside; `bytes` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_missing_backward_workspace(
    device: *mut Device,
    args: *const BackwardArgs,
    stream: *mut c_void,
    bytes: *mut u64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        asked_bytes(device, bytes, |engine| {
            Ok(engine.missing_backward_workspace(&args::backward(args)?, stream as u64)?)
        })
    }
}

/// Gives a stream memory to work in.
///
/// # Safety
/// As [`Engine::give_workspace`] asks; `device` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_give_workspace(
    device: *mut Device,
    stream: *mut c_void,
    memory: *mut c_void,
    bytes: u64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        asked(device, |engine| {
            engine.give_workspace(stream as u64, memory as u64, bytes).map_err(Failure::from)
        })
    }
}

/// Says what would be launched for a call, and why.
///
/// # Safety
/// As [`ferroflash_forward`], data aside; `length` bytes may be written to `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_explain(
    device: *mut Device,
    args: *const ForwardArgs,
    text: *mut c_char,
    length: usize,
) -> i32 {
    last_error::code(|| {
        if text.is_null() || length == 0 {
            return Err(Failure::null("text"));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let Device(engine) = device.as_ref().ok_or_else(|| Failure::null("device"))?;
            let explained = engine.explain(&args::call(args)?)?;
            let taken = explained.floor_char_boundary(length - 1);
            std::ptr::copy_nonoverlapping(explained.as_ptr(), text.cast(), taken);
            *text.add(taken) = 0;
        }
        Ok(())
    })
}

/// What went wrong in this thread's last call that failed.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_last_error() -> *const c_char {
    last_error::text()
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"unknown",
        };
    VERSION.as_ptr()
}
