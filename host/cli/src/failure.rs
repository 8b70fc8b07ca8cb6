//! Why a command ended without success, and the exit code that says so.

use ferroflash::Error;

/// A command that was given something impossible.
pub(crate) const EXIT_MISUSE: u8 = 2;
const EXIT_FAILED: u8 = 1;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The library refused or failed.
    #[error(transparent)]
    Library(#[from] Error),
    /// Several devices could not compute together.
    #[error(transparent)]
    Devices(#[from] ferroflash_distributed::Error),
    /// The library refused what the command line says.
    #[error("{option}: {source}")]
    Argument {
        /// The option.
        option: &'static str,
        /// The library's reason.
        source: Error,
    },
    /// Neither one safetensors file nor three npy files.
    #[error(
        "--input takes one .safetensors file, or three .npy files for Q, K and V joined by commas, not {found:?}"
    )]
    Input {
        /// What was given.
        found: Vec<std::ffi::OsString>,
    },
    /// A row was chosen for a device that has none.
    #[error("--{option} needs kernels, and {device} has none: give --device cuda")]
    NoRows {
        /// The option.
        option: &'static str,
        /// The device.
        device: String,
    },
    /// Lengths that the sequences of a shape cannot have.
    #[error("{option}: {found:?}: one length of at most {most} for each of {batch} sequences")]
    Sequences {
        /// The option.
        option: &'static str,
        /// What was given.
        found: Vec<u32>,
        /// Sequences of the shape.
        batch: u32,
        /// The longest that the shape has.
        most: u32,
    },
    /// An option that is about times, on the simulator.
    #[error("{option} needs a GPU: the simulator has no times")]
    NoTimes {
        /// The option.
        option: &'static str,
    },
    /// There is no folder for the user's own files.
    #[error("neither HOME nor XDG_CONFIG_HOME is set: name the profile's file with --output")]
    NoHome,
    /// The model of time knows no such device.
    #[error("no prediction for this device: name one that the model of time knows with --device-model")]
    NotPredicted,
    /// Some of several problems could not be measured.
    #[error("{failed} of {total} problems could not be measured: see the lines above")]
    Unmeasured {
        /// Problems that failed.
        failed: usize,
        /// Problems in all.
        total: usize,
    },
    /// A plan has fewer CTAs than were asked for, and the work allows more.
    #[error(
        "{problem}: {has} CTAs, and {wanted} are wanted, which the work allows: --splits and --rows choose other plans"
    )]
    UnderFilled {
        /// CTAs of the plan.
        has: u32,
        /// CTAs that are wanted.
        wanted: u32,
        /// The problem.
        problem: String,
    },
    /// The results could not be shown.
    #[error("stdout: {source}: the results are not complete")]
    Stdout {
        /// The system's reason.
        source: &'static std::io::Error,
    },
    /// Outputs were wrong.
    #[error("{failed} of {total} outputs are wrong: see the lines above")]
    Wrong {
        /// Outputs over their bounds.
        failed: usize,
        /// Outputs in all.
        total: usize,
    },
}

impl Failure {
    /// Whether there is no GPU that kernels run on.
    pub(crate) fn is_without_gpu(&self) -> bool {
        matches!(self, Failure::Library(Error::NoDriver { .. } | Error::UnsupportedDevice { .. }))
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Argument { .. }
            // What arguments ask for together, too.
            | Failure::Library(
                Error::UnknownKernel { .. }
                | Error::Mask { .. }
                | Error::Dropout { .. }
                | Error::Pages { .. }
                | Error::InvalidScale { .. }
                | Error::InvalidSoftcap { .. }
                | Error::Backward { .. },
            )
            | Failure::Input { .. }
            | Failure::NoRows { .. }
            | Failure::Sequences { .. }
            | Failure::NotPredicted
            | Failure::NoTimes { .. } => EXIT_MISUSE,
            Failure::Library(_)
            | Failure::Devices(_)
            | Failure::NoHome
            | Failure::Unmeasured { .. }
            | Failure::UnderFilled { .. }
            | Failure::Stdout { .. }
            | Failure::Wrong { .. } => EXIT_FAILED,
        }
    }
}
