//! libnccl, opened at run time: the calls that the transport makes, and what their answers mean.

use crate::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// Names a library to open in place of those searched.
const LIBRARY_OVERRIDE: &str = "FERROFLASH_LIBNCCL";
const SEARCHED: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclResult_t`.
pub(super) type NcclResult = c_int;
pub(super) const SUCCESS: NcclResult = 0;
pub(super) const IN_PROGRESS: NcclResult = 7;
/// `ncclUint8`.
pub(super) const BYTES: c_int = 1;

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;

/// What all ranks of a communicator are given (`ncclUniqueId`): made by one, and brought to the others by the caller.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

/// `ncclConfig_t` as NCCL 2.18 has it; later versions read as much as its size says.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    const UNDEFINED: c_int = c_int::MIN;

    pub(super) fn new(is_blocking: bool, max_ctas: Option<u32>) -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: is_blocking.into(),
            cga_cluster_size: Config::UNDEFINED,
            min_ctas: Config::UNDEFINED,
            max_ctas: max_ctas.map_or(Config::UNDEFINED, |ctas| ctas as c_int),
            net_name: std::ptr::null(),
            split_share: Config::UNDEFINED,
        }
    }
}

macro_rules! calls {
    ($($field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// NCCL's calls.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            fn of(handle: *mut c_void) -> Result<Library, String> {
                Ok(Library {
                    $($field: {
                        let name = concat!($name, "\0");
                        // SAFETY: the handle came from dlopen and stays open; the name ends in NUL.
                        let address = unsafe { dlsym(handle, name.as_ptr().cast()) };
                        if address.is_null() {
                            return Err(concat!("it has no ", $name).to_owned());
                        }
                        // SAFETY: NCCL's call of this name has this signature (nccl.h of 2.18 and later).
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address) }
                    },)*
                })
            }
        }
    };
}

calls! {
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> NcclResult;
    comm_init_rank_config = "ncclCommInitRankConfig": fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> NcclResult;
    comm_destroy = "ncclCommDestroy": fn(Comm) -> NcclResult;
    comm_abort = "ncclCommAbort": fn(Comm) -> NcclResult;
    comm_count = "ncclCommCount": fn(Comm, *mut c_int) -> NcclResult;
    comm_user_rank = "ncclCommUserRank": fn(Comm, *mut c_int) -> NcclResult;
    comm_get_async_error = "ncclCommGetAsyncError": fn(Comm, *mut NcclResult) -> NcclResult;
    get_error_string = "ncclGetErrorString": fn(NcclResult) -> *const c_char;
    group_start = "ncclGroupStart": fn() -> NcclResult;
    group_end = "ncclGroupEnd": fn() -> NcclResult;
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, Comm, *mut c_void) -> NcclResult;
    recv = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> NcclResult;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, *mut c_void) -> NcclResult;
}

impl UniqueId {
    /// A new one, for one communicator.
    ///
    /// # Errors
    /// [`Error::NoNccl`].
    pub fn new() -> Result<UniqueId, Error> {
        let library = library()?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: writes one id where it is told to.
        match unsafe { (library.get_unique_id)(&mut id) } {
            SUCCESS => Ok(id),
            result => Err(Error::NoNccl { searched: searched(), reason: library.words(result) }),
        }
    }

    /// Its bytes, to be brought to the other ranks.
    pub fn to_bytes(self) -> [u8; 128] {
        self.0
    }

    /// From the bytes of another rank's.
    pub fn from_bytes(bytes: [u8; 128]) -> UniqueId {
        UniqueId(bytes)
    }
}

impl Library {
    /// NCCL's words for a result.
    pub(super) fn words(&self, result: NcclResult) -> String {
        // SAFETY: takes any number and returns a string that lives as long as the library.
        let words = unsafe { (self.get_error_string)(result) };
        if words.is_null() {
            return format!("error {result}");
        }
        // SAFETY: as above; it ends in NUL.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    }
}

fn searched() -> String {
    std::env::var(LIBRARY_OVERRIDE).unwrap_or_else(|_| SEARCHED.join(", "))
}

/// The library, opened at the first call and never closed.
///
/// # Errors
/// [`Error::NoNccl`].
pub(super) fn library() -> Result<&'static Library, Error> {
    static LIBRARY: OnceLock<Result<Library, Error>> = OnceLock::new();
    LIBRARY.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Library, Error> {
    let named = std::env::var(LIBRARY_OVERRIDE).ok();
    let names: Vec<&str> = named.as_deref().map_or(SEARCHED.to_vec(), |name| vec![name]);
    let mut reason = String::new();
    for name in names {
        match open_one(name) {
            Ok(library) => return Ok(library),
            Err(why) if reason.is_empty() => reason = why,
            Err(_) => {}
        }
    }
    Err(Error::NoNccl { searched: searched(), reason })
}

fn open_one(name: &str) -> Result<Library, String> {
    let name = CString::new(name).map_err(|_| "the name holds a NUL byte".to_owned())?;
    // SAFETY: the name ends in NUL. The library's initialisers run: it is the system's NCCL, or what the user named.
    let handle = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
    if handle.is_null() {
        // SAFETY: dlerror returns NULL or a string that lives until the next loader call on this thread.
        let reason = unsafe { dlerror() };
        if reason.is_null() {
            return Err("the loader gave no reason".to_owned());
        }
        // SAFETY: as above.
        return Err(unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned());
    }
    Library::of(handle)
}

const RTLD_NOW: c_int = 2;

// std links the library that defines these on every Linux target.
unsafe extern "C" {
    fn dlopen(file_name: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
