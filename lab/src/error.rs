//! The one error type of the lab: each variant carries what it found and says what to do.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a command of the lab could not do its work. What a candidate does wrong is no error: it is in its record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `lab.toml` says something impossible.
    #[error("{}:{line}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// There is no room for a file.
    #[error(
        "{}: the disk is full: nothing that was recorded before is lost; make room, then go on with --resume",
        path.display()
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What was named as a candidate is none.
    #[error("{wanted}: no such row: {reason}")]
    NoSuchRow {
        /// What was given.
        wanted: String,
        /// Why it is none, or what there is.
        reason: String,
    },
    /// A row that no kernel can be made of.
    #[error("{row}: {reason}")]
    ImpossibleRow {
        /// The row's name.
        row: String,
        /// The reason with its numbers.
        reason: String,
    },
    /// No problem of lab.toml is for a row.
    #[error(
        "{row} computes {dtype} and head_dim {head_dim}, and no shape of lab.toml has these: add one to [problems]"
    )]
    NoProblem {
        /// The row's name.
        row: String,
        /// Its element type.
        dtype: &'static str,
        /// Its head dimension.
        head_dim: u32,
    },
    /// A program could not be started.
    #[error("`{command}` could not be started: {source}")]
    Start {
        /// The command line.
        command: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("`{command}` failed: {reason}; its output is in {}", log.display())]
    Failed {
        /// The command line.
        command: String,
        /// Its last line, or how it ended.
        reason: String,
        /// Everything it printed.
        log: PathBuf,
    },
    /// A program took too long.
    #[error("`{command}` was killed after its {} s", limit.as_secs())]
    TimedOut {
        /// The command line.
        command: String,
        /// What it was given.
        limit: Duration,
    },
    /// A session cannot be resumed.
    #[error("{}: cannot be resumed: {reason}", folder.display())]
    NotResumable {
        /// The session's folder.
        folder: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A command needs something that is not here.
    #[error("{what} is not here: {reason}")]
    Missing {
        /// What is needed.
        what: &'static str,
        /// Why it is not here, and what to do.
        reason: String,
    },
    /// The command line asks for something impossible.
    #[error("{option}: {reason}")]
    Argument {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// There is nothing to compare with.
    #[error("no baseline: {reason}")]
    NoBaseline {
        /// What there is instead, and what to do.
        reason: String,
    },
    /// Candidates were refused.
    #[error("{failed} of {total} candidates are refused: see the table above")]
    Refused {
        /// Candidates refused.
        failed: usize,
        /// Candidates in all.
        total: usize,
    },
    /// Ctrl-C.
    #[error("interrupted: what was recorded is in {}; go on with --resume", folder.display())]
    Interrupted {
        /// The session's folder.
        folder: PathBuf,
    },
    /// The host library refused or failed.
    #[error(transparent)]
    Host(#[from] ferroflash::Error),
}

/// Done.
pub const EXIT_DONE: u8 = 0;
/// Something failed, or a candidate was refused.
pub const EXIT_FAILED: u8 = 1;
/// The command line or lab.toml asks for something impossible, or names a file that is not there.
pub const EXIT_MISUSE: u8 = 2;
/// A gate has nothing to compare with.
pub const EXIT_NO_BASELINE: u8 = 5;
/// Ctrl-C.
pub const EXIT_INTERRUPTED: u8 = 130;

impl Error {
    /// The system's error about a file, with a full disk told apart.
    pub fn io(path: &Path, source: std::io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Error::DiskFull { path },
            _ => Error::Io { path, source },
        }
    }

    /// The code that the program ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Config { .. }
            | Error::NoSuchRow { .. }
            | Error::ImpossibleRow { .. }
            | Error::NoProblem { .. }
            | Error::Host(ferroflash::Error::UnknownKernel { .. })
            | Error::Argument { .. } => EXIT_MISUSE,
            // Somebody named a file or a folder that is not there.
            Error::Io { source, .. } | Error::Host(ferroflash::Error::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                EXIT_MISUSE
            }
            Error::NotResumable { folder, .. } if !folder.exists() => EXIT_MISUSE,
            Error::NoBaseline { .. } => EXIT_NO_BASELINE,
            Error::Interrupted { .. } => EXIT_INTERRUPTED,
            _ => EXIT_FAILED,
        }
    }
}

/// What the lab's functions return.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart_and_misuse_has_its_own_code() {
        let path = Path::new("lab-runs/x/records.jsonl");
        let full = Error::io(path, std::io::ErrorKind::StorageFull.into());
        assert!(full.to_string().contains("the disk is full"), "{full}");
        assert_eq!(full.exit_code(), EXIT_FAILED);
        let other = Error::io(path, std::io::ErrorKind::PermissionDenied.into());
        assert!(matches!(other, Error::Io { .. }));
        let gone = Error::io(path, std::io::ErrorKind::NotFound.into());
        assert_eq!(gone.exit_code(), EXIT_MISUSE);
        let config = Error::Config { path: "lab.toml".into(), line: 3, reason: "bad".into() };
        assert_eq!((config.to_string().as_str(), config.exit_code()), ("lab.toml:3: bad", EXIT_MISUSE));
    }
}
