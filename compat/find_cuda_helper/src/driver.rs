//! Finds and opens the CUDA driver, once, at the first call.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The environment variable that names another library to open as the driver; nothing else is searched then.
pub const LIBRARY_OVERRIDE: &str = "FERROFLASH_LIBCUDA";

/// In the order of the search. The first leaves it to the system's loader; the others are where WSL 2 and container
/// runtimes put the driver without telling the loader. Never plain `libcuda.so`: the CUDA toolkit ships a stub under that
/// name, which opens and then refuses every call.
const SEARCHED: [&str; 3] =
    ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"];

/// No CUDA driver could be opened: what was tried, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverMissing {
    /// One for each library that was tried; never empty.
    pub attempts: Vec<Attempt>,
}

/// One library that could not be opened as the CUDA driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The name or path given to the loader.
    pub library: String,
    /// The loader's reason.
    pub reason: String,
}

impl fmt::Display for DriverMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no CUDA driver")?;
        for (i, attempt) in self.attempts.iter().enumerate() {
            write!(f, "{} {} ({})", if i == 0 { ": tried" } else { "," }, attempt.library, attempt.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for DriverMissing {}

/// The driver's library as the loader resolved it, for instance `/lib/x86_64-linux-gnu/libcuda.so.1`. Opens it if no call
/// did so before.
///
/// # Errors
/// [`DriverMissing`], where there is no driver: what was searched and the loader's reasons. The search happens once in a
/// process.
pub fn driver_path() -> Result<&'static str, &'static DriverMissing> {
    driver().map(|driver| driver.path.as_str())
}

/// The address of a driver call by its exact exported name, for calls that are newer than `cust_raw`; `None` where there is
/// no driver or where it is too old to have the call. The caller knows its signature.
pub fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    driver().ok()?.symbol(name)
}

pub(crate) struct Driver {
    /// The loader's handle. Never closed: CUDA keeps threads in the library.
    handle: NonNull<c_void>,
    path: String,
}

// SAFETY: the loader's handle is only read, and dlsym may be called from any thread.
unsafe impl Send for Driver {}
// SAFETY: as for Send.
unsafe impl Sync for Driver {}

impl Driver {
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle came from dlopen and stays open; the name ends in NUL.
        NonNull::new(unsafe { dlsym(self.handle.as_ptr(), name.as_ptr()) })
    }
}

pub(crate) fn driver() -> Result<&'static Driver, &'static DriverMissing> {
    static DRIVER: OnceLock<Result<Driver, DriverMissing>> = OnceLock::new();
    DRIVER
        .get_or_init(|| match std::env::var(LIBRARY_OVERRIDE) {
            Ok(library) => open_first(&[library.as_str()]),
            Err(_) => open_first(&SEARCHED),
        })
        .as_ref()
}

fn open_first(libraries: &[&str]) -> Result<Driver, DriverMissing> {
    let mut attempts = Vec::new();
    for &library in libraries {
        match open(library) {
            Ok(driver) => return Ok(driver),
            Err(reason) => attempts.push(Attempt { library: library.to_owned(), reason }),
        }
    }
    Err(DriverMissing { attempts })
}

/// Opens one library and checks that it is a CUDA driver; the error is the reason in words.
fn open(library: &str) -> Result<Driver, String> {
    let name = CString::new(library).map_err(|_| "the name holds a NUL byte".to_owned())?;
    // SAFETY: the name ends in NUL. The library's initialisers run: it is the system's driver, or what the user named.
    let Some(handle) = NonNull::new(unsafe { dlopen(name.as_ptr(), RTLD_NOW | RTLD_LOCAL) }) else {
        return Err(loader_reason());
    };
    let driver = Driver { handle, path: library.to_owned() };
    let Some(cu_init) = driver.symbol(c"cuInit") else {
        return Err("it has no cuInit, so it is no CUDA driver".to_owned());
    };
    Ok(Driver { path: file_of(cu_init).unwrap_or(driver.path), ..driver })
}

/// The text of the loader's last error on this thread.
fn loader_reason() -> String {
    // SAFETY: dlerror returns NULL or a string that lives until the next loader call on this thread.
    unsafe {
        let reason = dlerror();
        if reason.is_null() {
            return "the loader gave no reason".to_owned();
        }
        CStr::from_ptr(reason).to_string_lossy().into_owned()
    }
}

/// The file that an address was loaded from.
fn file_of(address: NonNull<c_void>) -> Option<String> {
    let mut info = DlInfo {
        file_name: std::ptr::null(),
        file_base: std::ptr::null(),
        symbol_name: std::ptr::null(),
        symbol_address: std::ptr::null(),
    };
    // SAFETY: `info` is a valid Dl_info to write; a non-zero result means that file_name is a string of the loader's.
    unsafe {
        if dladdr(address.as_ptr(), &mut info) == 0 || info.file_name.is_null() {
            return None;
        }
        Some(CStr::from_ptr(info.file_name).to_string_lossy().into_owned())
    }
}

/// `Dl_info` of dlfcn.h.
#[repr(C)]
struct DlInfo {
    file_name: *const c_char,
    file_base: *const c_void,
    symbol_name: *const c_char,
    symbol_address: *const c_void,
}

const RTLD_NOW: c_int = 2;
const RTLD_LOCAL: c_int = 0;

// std links the library that defines these on every Linux target.
unsafe extern "C" {
    fn dlopen(file_name: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_is_reported_with_the_loaders_reason() {
        let missing =
            open_first(&["/nonexistent/libcuda.so.1", "libno-such.so"]).err().expect("neither exists");
        assert_eq!(missing.attempts.len(), 2);
        let text = missing.to_string();
        assert!(text.starts_with("no CUDA driver: tried /nonexistent/libcuda.so.1 ("), "{text}");
        assert!(text.contains(", libno-such.so ("), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_library_that_is_no_driver_is_refused() {
        let missing = open_first(&["libc.so.6"]).err().expect("the C library is no driver");
        assert!(missing.attempts[0].reason.contains("no cuInit"), "{missing}");
    }

    #[test]
    fn a_nul_byte_is_a_reason_and_no_panic() {
        assert!(open("lib\0cuda").err().expect("refused").contains("NUL"));
    }
}
