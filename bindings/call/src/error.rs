//! Why a call fails, and the code that bindings without types have for it.

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernels do not compute this yet.
    #[error("{what} is not supported on {device} yet{advice}")]
    Unsupported {
        /// The argument, by flash-attn's name.
        what: &'static str,
        /// The device.
        device: &'static str,
        /// What else to do; empty or begins with a separator.
        advice: &'static str,
    },
    /// The call is none that the CPU computes.
    #[error(transparent)]
    Call(#[from] ferroflash_cpu::Error),
    /// A size does not fit the library's numbers.
    #[error("{what} {value} is too large")]
    TooLarge {
        /// The size.
        what: &'static str,
        /// Its value.
        value: usize,
    },
    /// The library refused the call or failed.
    #[error(transparent)]
    Library(#[from] ferroflash::Error),
    /// The process is a fork of the one that opened the GPU.
    #[error(
        "this process was forked from process {opened}, which uses the GPU: CUDA does not work in a fork; start processes by spawn"
    )]
    Forked {
        /// The process that opened the GPU.
        opened: u32,
    },
    /// A workspace was offered to a device that uses none.
    #[error("only calls on a GPU have workspaces")]
    NoWorkspace,
}

/// Classes of errors, as numbers that stay what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// The arguments are wrong, whatever the device.
    Invalid = 1,
    /// The arguments are right, and no kernel computes them.
    Unsupported = 2,
    /// There is no driver, device, or folder of kernels.
    NoDevice = 3,
    /// Device memory ran out.
    OutOfMemory = 4,
    /// The driver, the simulator or a file failed.
    Failed = 5,
}

impl Error {
    /// Its class.
    pub fn code(&self) -> Code {
        use ferroflash::Error as Library;
        match self {
            Error::Unsupported { .. } | Error::Call(ferroflash_cpu::Error::NoGradient { .. }) => {
                Code::Unsupported
            }
            Error::Call(_) | Error::TooLarge { .. } | Error::NoWorkspace => Code::Invalid,
            Error::Forked { .. } => Code::Failed,
            Error::Library(error) => match error {
                Library::UnsupportedHeadDim { .. }
                | Library::NoSuchKernel { .. }
                | Library::Backward { .. } => Code::Unsupported,
                Library::NoDriver { .. }
                | Library::UnsupportedDevice { .. }
                | Library::DriverTooOld { .. }
                | Library::NoKernels { .. }
                | Library::BadKernels { .. } => Code::NoDevice,
                Library::OutOfMemory { .. } => Code::OutOfMemory,
                Library::Cuda { .. }
                | Library::PtxRejected { .. }
                | Library::Simulation { .. }
                | Library::Io { .. }
                | Library::AllocationInCapture { .. } => Code::Failed,
                _ => Code::Invalid,
            },
        }
    }
}
