//! The compiled kernels as data: an archive whose kernels are compressed one by one, so that the first use of a kernel decompresses
//! nothing of another.
//!
//! [`embedded`] is the archive inside the program. It holds what a folder of kernels holds, `manifest.json` and the files that it names;
//! the PTX of a family is stored in parts ([`ptx::split`]). Nothing here knows what the kernels compute.

mod arch;
pub mod archive;
mod overlap;
pub mod ptx;

pub use arch::Arch;
pub use archive::{Archive, ArchiveError};
pub use overlap::waits_first;

/// The archive that was given when this crate was built, `None` where there was none.
pub fn embedded() -> Option<&'static [u8]> {
    const BYTES: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/archive.rs"));
    BYTES
}
