//! An output file that appears whole or not at all: written beside its place, then renamed.

use crate::error::Error;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;

/// Files being written, for [`remove_unfinished_and_exit`].
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file on its way to `path`. Dropped without [`OutputFile::commit`] it leaves nothing.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    force: bool,
    // `None` once committed.
    file: Option<NamedTempFile>,
}

impl OutputFile {
    /// Opens a file in the folder of `path`, so that a place that cannot be written shows before the work is done.
    ///
    /// # Errors
    /// [`Error::OutputExists`] where there is a file and no `force`, [`Error::OutputFormat`] where `path` is something
    /// else than a file, [`Error::Io`].
    pub fn create(path: &Path, force: bool) -> Result<OutputFile, Error> {
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_file() && !metadata.is_symlink() => {
                return Err(Error::OutputFormat {
                    path: path.to_owned(),
                    reason: "it is there and not a file",
                });
            }
            Ok(_) if !force => return Err(Error::OutputExists { path: path.to_owned() }),
            _ => {}
        }
        // A link stays one: what it points to is written.
        let path = &if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
            target(path)
        } else {
            path.to_owned()
        };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Held from before the file exists until it is listed, so that no signal can fall between.
        let mut listed = unfinished();
        let file = tempfile::Builder::new()
            .prefix(".ferroflash-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(|error| io_error(path, error))?;
        listed.push(file.path().to_owned());
        Ok(OutputFile { path: path.to_owned(), force, file: Some(file) })
    }

    /// Where the file will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(|error| io_error(&self.path, error))
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// [`Error::OutputExists`] where a file has appeared there meanwhile and there is no `force`, [`Error::Io`].
    pub fn commit(mut self) -> Result<(), Error> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let mut listed = unfinished();
        listed.retain(|path| path != file.path());
        file.as_file().sync_all().map_err(|error| io_error(&self.path, error))?;
        let persisted =
            if self.force { file.persist(&self.path) } else { file.persist_noclobber(&self.path) };
        match persisted {
            Ok(_) => Ok(()),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::OutputExists { path: self.path.clone() })
            }
            Err(error) => Err(io_error(&self.path, error.error)),
        }
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            unfinished().retain(|path| path != file.path());
        }
    }
}

/// Where a link leads, whether or not something is there.
fn target(link: &Path) -> PathBuf {
    let named = || fs::read_link(link).map(|target| link.parent().unwrap_or(Path::new("")).join(target));
    fs::canonicalize(link).or_else(|_| named()).unwrap_or_else(|_| link.to_owned())
}

/// Removes what is half-written and ends the process: for a signal handler's thread.
pub fn remove_unfinished_and_exit(code: i32) -> ! {
    // Never released, so that no file is put in place or begun from here on.
    let listed = unfinished();
    for path in listed.iter() {
        // Nothing is left to tell anyone if this fails.
        let _ = fs::remove_file(path);
    }
    std::process::exit(code)
}

/// tempfile's errors name the temporary file; the system's reason is enough beside the path asked for.
fn io_error(path: &Path, error: io::Error) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.source()?.downcast_ref::<io::Error>());
    let code = error.raw_os_error().or_else(|| inner?.raw_os_error());
    let source = code.map_or(error, io::Error::from_raw_os_error);
    Error::Io { path: path.to_owned(), source }
}
