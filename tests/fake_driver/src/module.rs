//! Modules: PTX of which only the version and the entries' names are read.

use crate::context::{count_living, needs_context};
use crate::{
    CUDA_ERROR_INVALID_PTX, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NOT_FOUND,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CuResult, call, faults,
};
use kernels_gpu::geometry;
use kernels_gpu::row::SMEM_DEFAULT_BYTES;
use kernels_gpu::steps::{STEP_VARIANTS, StepVariant};
use kernels_gpu::table::{VARIANTS, Variant};
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// A kernel of the tables.
#[derive(Clone, Copy)]
pub(crate) enum Kernel {
    /// One that computes attention.
    Forward(&'static Variant),
    /// One of the steps beside it.
    Step(&'static StepVariant),
}

impl Kernel {
    fn entry(self) -> &'static str {
        match self {
            Kernel::Forward(variant) => variant.entry,
            Kernel::Step(variant) => variant.entry,
        }
    }

    /// Whether an entry is this kernel, or the copy of it that the lab compares it with under another name.
    fn is_named(self, entry: &str) -> bool {
        entry.split_once("_beside").map_or(entry, |(name, _)| name) == self.entry()
    }
}

/// A kernel of a loaded module.
pub(crate) struct Function {
    /// Its line of the tables.
    pub(crate) kernel: Kernel,
    /// Bytes of dynamic shared memory that a launch may ask for.
    pub(crate) smem_limit: AtomicU32,
    /// Whether it waits for the kernels before it; a comment does not.
    pub(crate) waits: bool,
}

/// A loaded module.
struct Module {
    functions: Vec<Function>,
}

/// The newest PTX version that a driver of a CUDA version reads.
fn ptx_version((major, minor): (u32, u32)) -> (u32, u32) {
    match major {
        ..=11 => (7, minor),
        // CUDA 12.6 brought no PTX version.
        12 => (8, if minor > 5 { minor - 1 } else { minor }),
        _ => (9, minor),
    }
}

fn parse(ptx: &str) -> Result<Module, CuResult> {
    let version = ptx.lines().find_map(|line| line.trim().strip_prefix(".version "));
    let version = version.and_then(|version| version.trim().split_once('.')).ok_or(CUDA_ERROR_INVALID_PTX)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| CUDA_ERROR_INVALID_PTX);
    if (number(version.0)?, number(version.1)?) > ptx_version(faults::cuda_version()) {
        return Err(CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    }
    let name = |text: &str| text.split(['(', ' ', '\n']).next().unwrap_or_default().to_owned();
    let names: Vec<String> = ptx.split(".entry ").skip(1).map(name).collect();
    let kernels = VARIANTS.iter().map(Kernel::Forward).chain(STEP_VARIANTS.iter().map(Kernel::Step));
    let waits = ptx.lines().any(|line| line.trim_start().starts_with("griddepcontrol.wait"));
    let functions = kernels
        .filter(|kernel| names.iter().any(|name| kernel.is_named(name)))
        .map(|kernel| Function { kernel, smem_limit: AtomicU32::new(SMEM_DEFAULT_BYTES), waits })
        .collect();
    Ok(Module { functions })
}

/// Options 5 and 6 of CUjit_option are the error log's buffer and its size.
///
/// # Safety
/// As cuModuleLoadDataEx says of its options.
unsafe fn write_log(log: &str, count: u32, options: *const u32, values: *const *mut c_void) {
    // SAFETY: the caller's; the log's buffer is as long as its option says.
    unsafe {
        let at = |option: u32| (0..count as usize).find(|&i| options.add(i).read() == option);
        let (Some(buffer), Some(size)) = (at(5), at(6)) else { return };
        let (buffer, size) = (values.add(buffer).read().cast::<u8>(), values.add(size).read() as usize);
        let length = log.len().min(size.saturating_sub(1));
        buffer.copy_from_nonoverlapping(log.as_ptr(), length);
        buffer.add(length).write(0);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut *mut c_void,
    image: *const c_void,
    count: u32,
    options: *const u32,
    values: *const *mut c_void,
) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the image is PTX that ends in NUL, or machine code, which is longer than its mark.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        if text.to_bytes().starts_with(b"\x7fELF") {
            // Machine code is for a device that this is not.
            return Err(CUDA_ERROR_NO_BINARY_FOR_GPU);
        }
        if let Some(log) = faults::ptx_log() {
            // SAFETY: the call's contract.
            unsafe { write_log(&log, count, options, values) };
            return Err(CUDA_ERROR_INVALID_PTX);
        }
        let parsed = parse(text.to_str().map_err(|_| CUDA_ERROR_INVALID_PTX)?)?;
        count_living(1);
        // SAFETY: by the call's contract, `module` is valid for a write.
        unsafe { module.write(Box::into_raw(Box::new(parsed)).cast()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleUnload(module: *mut c_void) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the module was loaded above and is unloaded once.
        drop(unsafe { Box::from_raw(module.cast::<Module>()) });
        count_living(-1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *const Function,
    module: *const c_void,
    name: *const c_char,
) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the module is loaded, the name ends in NUL and `function` is valid for a write.
        unsafe {
            let (module, name) = (&*module.cast::<Module>(), CStr::from_ptr(name).to_string_lossy());
            let named = |function: &&Function| function.kernel.is_named(&name);
            function.write(module.functions.iter().find(named).ok_or(CUDA_ERROR_NOT_FOUND)?);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncSetAttribute(function: *const Function, attribute: i32, value: i32) -> CuResult {
    /// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
    const SMEM_LIMIT: i32 = 8;
    call(|| {
        needs_context()?;
        if attribute != SMEM_LIMIT {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by the call's contract, the function's module is loaded.
        unsafe { (*function).smem_limit.store(value as u32, Ordering::Relaxed) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    ctas: *mut i32,
    function: *const Function,
    threads: i32,
    smem_bytes: usize,
) -> CuResult {
    call(|| {
        needs_context()?;
        // SAFETY: by the call's contract, the function's module is loaded and `ctas` is valid for a write.
        unsafe {
            let expected = match (*function).kernel {
                Kernel::Forward(Variant { row, .. }) => (geometry::threads(row), geometry::smem_bytes(row)),
                Kernel::Step(step) => (step.row.threads(), step.row.smem_bytes()),
            };
            if (threads as u32, smem_bytes as u32) != expected {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            ctas.write(1);
        }
        Ok(())
    })
}
