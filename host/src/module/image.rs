//! A kernel as devices load it, and which code it is.

use std::fmt;

/// One kernel in a form that a device can load.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Image {
    /// The entry's name.
    pub entry: String,
    /// Its code.
    pub code: Code,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA, in bytes.
    pub smem_bytes: u32,
    /// Whether the kernel waits for those before it on its stream, on devices where it can ([`ferroflash_kernels::waits_first`]).
    pub waits: bool,
}

impl Image {
    /// A kernel that waits for nothing.
    pub fn new(entry: &str, code: Code, threads: u32, smem_bytes: u32) -> Image {
        Image { entry: entry.to_owned(), code, threads, smem_bytes, waits: false }
    }
}

/// The code of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Code {
    /// PTX text with this one entry.
    Ptx(String),
    /// Machine code, an ELF file.
    Cubin(Vec<u8>),
}

/// Which code of a kernel a device gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// PTX of a family, which the driver compiles at the first load.
    Ptx {
        /// The family, `sm_80`.
        family: String,
    },
    /// Machine code, loaded as it is.
    Cubin {
        /// The architecture it was compiled for, `sm_89`.
        arch: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Ptx { family } => write!(f, "PTX {family}"),
            Source::Cubin { arch } => write!(f, "cubin {arch}"),
        }
    }
}
