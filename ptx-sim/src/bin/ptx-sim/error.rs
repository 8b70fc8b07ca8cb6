//! What keeps the command from running a kernel.

use std::path::PathBuf;

/// Each is one line, and ends the command with exit code 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: std::io::Error },
    #[error("standard output: {0}")]
    Output(std::io::Error),
    #[error("{}: {reason}", path.display())]
    Load { path: PathBuf, reason: ptx_sim::LoadError },
    #[error("{}: {reason}", path.display())]
    Npy { path: PathBuf, reason: NpyError },
    #[error("{} has no entry", path.display())]
    NoEntry { path: PathBuf },
    #[error("--entry must say which: {}", names.join(", "))]
    WhichEntry { names: Vec<String> },
    #[error("no entry `{name}`; there are: {}", names.join(", "))]
    UnknownEntry { name: String, names: Vec<String> },
    #[error("entry `{entry}` takes {expected} parameters, --arg was given {got} times: {signature}")]
    ArgumentCount { entry: String, expected: usize, got: usize, signature: String },
    #[error(
        "parameter {position} `{name}` of `{entry}` takes {expected} bytes, --arg {argument} gives {got}"
    )]
    ArgumentSize { entry: String, position: usize, name: String, expected: u32, argument: String, got: usize },
    #[error(
        "argument {position} takes the address of argument {earlier}, which is no earlier one with a buffer"
    )]
    NoEarlier { position: usize, earlier: usize },
    #[error(transparent)]
    Memory(#[from] ptx_sim::MemoryError),
    #[error(transparent)]
    Launch(ptx_sim::SimError),
}

/// Why a file is no array that can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NpyError {
    #[error("it does not start as npy files do")]
    Magic,
    #[error("its version is {0}, not 1, 2 or 3")]
    Version(u8),
    #[error("it ends inside its header: truncated?")]
    Truncated,
    #[error("its header is not the dictionary that NumPy writes")]
    Header,
    #[error("its elements are `{0}`: little-endian numbers are wanted")]
    Type(String),
    #[error("it is in Fortran order; save numpy.ascontiguousarray(array)")]
    FortranOrder,
    #[error("it holds {got} bytes of data, its header says {expected}")]
    Length { got: usize, expected: u128 },
}
