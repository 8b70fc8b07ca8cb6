//! The released `cuda_builder` drives a compiler back end (libNVVM, LLVM 7) that no package registry serves; this one offers
//! its builder on rustc's own NVPTX back end.
//!
//! ```no_run
//! use cuda_builder::{CudaBuilder, NvvmArch};
//! let ptx = CudaBuilder::new("kernels-gpu").arch(NvvmArch::Compute80).copy_to("kernels.ptx").build()?;
//! # Ok::<(), cuda_builder::CudaBuilderError>(())
//! ```

mod cargo;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Why no PTX came out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaBuilderError {
    /// The crate's folder holds no Cargo.toml.
    #[error("crate path {} does not exist, or holds no Cargo.toml", .0.display())]
    CratePathDoesntExist(PathBuf),
    /// The Cargo.toml names no package.
    #[error("{} names no package", .0.display())]
    NoPackageName(PathBuf),
    /// cargo could not be started.
    #[error("{} could not be started", program.display())]
    CargoMissing {
        /// What was started.
        program: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The build ended with an error, which cargo has printed.
    #[error("the device build failed ({0}): the compiler's messages are above")]
    BuildFailed(ExitStatus),
    /// The build ended well and left no PTX.
    #[error("the device build left no {}", .0.display())]
    NoPtx(PathBuf),
    /// The PTX could not be copied to where it was asked for.
    #[error("failed to copy the PTX file to {}", path.display())]
    FailedToCopyPtxFile {
        /// Where to.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// The architecture to compile for: the least that runs the PTX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NvvmArch {
    /// sm_80 and everything after it.
    #[default]
    Compute80,
    /// sm_90 alone, with its architecture-specific instructions (wgmma, setmaxnreg).
    Compute90a,
}

impl NvvmArch {
    /// As rustc's `-Ctarget-cpu` names it.
    pub const fn target_cpu(self) -> &'static str {
        match self {
            NvvmArch::Compute80 => "sm_80",
            NvvmArch::Compute90a => "sm_90a",
        }
    }

    /// The least PTX version that kernels need: 7.4 has the L2 prefetch sizes of cp.async (CUDA 11.4, driver 470), 8.0 has
    /// wgmma (CUDA 12.0, driver 525).
    pub const fn ptx_version(self) -> (u32, u32) {
        match self {
            NvvmArch::Compute80 => (7, 4),
            NvvmArch::Compute90a => (8, 0),
        }
    }
}

/// What debug information the PTX carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugInfo {
    /// None: what the driver and ptxas take.
    #[default]
    None,
    /// `.loc` lines from PTX to Rust source, for the simulator; ptxas rejects the sections that come with them.
    LineTables,
}

/// Compiles a crate of kernels to one PTX file.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    path_to_crate: PathBuf,
    copy_to: Option<PathBuf>,
    arch: NvvmArch,
    debug: DebugInfo,
    build_args: Vec<String>,
    rustc: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    cfgs: Vec<String>,
    envs: Vec<(OsString, OsString)>,
}

impl CudaBuilder {
    /// A release build of the crate in this folder, for sm_80.
    pub fn new(path_to_crate_root: impl AsRef<Path>) -> Self {
        CudaBuilder {
            path_to_crate: path_to_crate_root.as_ref().to_owned(),
            copy_to: None,
            arch: NvvmArch::default(),
            debug: DebugInfo::default(),
            build_args: Vec::new(),
            rustc: None,
            target_dir: None,
            cfgs: Vec::new(),
            envs: Vec::new(),
        }
    }

    /// The architecture to compile for.
    pub fn arch(mut self, arch: NvvmArch) -> Self {
        self.arch = arch;
        self
    }

    /// Whether to generate debug information.
    pub fn debug(mut self, debug: DebugInfo) -> Self {
        self.debug = debug;
        self
    }

    /// Copies the PTX to this path.
    pub fn copy_to(mut self, path: impl AsRef<Path>) -> Self {
        self.copy_to = Some(path.as_ref().to_owned());
        self
    }

    /// More arguments for cargo.
    pub fn build_args(mut self, args: &[impl AsRef<str>]) -> Self {
        self.build_args.extend(args.iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// The compiler, which must find the source of its own core library in its sysroot. Not upstream: there the back end
    /// decides. Default: `rustc` as cargo finds it.
    pub fn rustc(mut self, rustc: impl AsRef<Path>) -> Self {
        self.rustc = Some(rustc.as_ref().to_owned());
        self
    }

    /// Where cargo builds. Not upstream. Default: `target/device` beside the crate's folder.
    pub fn target_dir(mut self, target_dir: impl AsRef<Path>) -> Self {
        self.target_dir = Some(target_dir.as_ref().to_owned());
        self
    }

    /// A `--cfg` for the crate, but not for what it depends on. Not upstream.
    pub fn cfg(mut self, cfg: impl Into<String>) -> Self {
        self.cfgs.push(cfg.into());
        self
    }

    /// An environment variable of the build. Not upstream.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// Builds, and returns the path of the PTX: the copy, where [`CudaBuilder::copy_to`] asked for one.
    ///
    /// # Errors
    /// [`CudaBuilderError`]; the compiler's own messages go to standard error as they come.
    pub fn build(self) -> Result<PathBuf, CudaBuilderError> {
        let ptx = cargo::build(&self)?;
        let Some(path) = self.copy_to else { return Ok(ptx) };
        match std::fs::copy(&ptx, &path) {
            Ok(_) => Ok(path),
            Err(source) => Err(CudaBuilderError::FailedToCopyPtxFile { path, source }),
        }
    }
}
