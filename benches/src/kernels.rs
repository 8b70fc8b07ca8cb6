//! The folder of compiled kernels that the host's benchmarks read.

use check::kernel_folder;
use ferroflash::Error;
use ferroflash::module::Library;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Lines of a generated entry, about as many as a compiled one has.
const LINES: usize = 4000;

/// Compiled kernels, or PTX of like size where there are none.
#[derive(Debug)]
pub struct Kernels {
    folder: PathBuf,
    // Keeps a generated folder until the end.
    _generated: Option<TempDir>,
}

impl Kernels {
    /// Those of `cargo xtask build-ptx`, else generated ones.
    ///
    /// # Errors
    /// Where a folder cannot be written.
    pub fn find() -> io::Result<Kernels> {
        match Library::find(None) {
            Ok(library) => Ok(Kernels { folder: library.folder().to_owned(), _generated: None }),
            Err(_) => Kernels::generated(),
        }
    }

    /// A folder with an entry of `add` instructions for each row of the table.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn generated() -> io::Result<Kernels> {
        let folder = tempfile::tempdir()?;
        let body = "\tadd.f32 \t%f1, %f2, %f3;\n".repeat(LINES) + "\tret;";
        kernel_folder::write_table(folder.path(), &body, |_| ())?;
        Ok(Kernels { folder: folder.path().to_owned(), _generated: Some(folder) })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether they were made for the benchmark rather than compiled.
    pub fn are_generated(&self) -> bool {
        self._generated.is_some()
    }

    /// Opens the folder anew, nothing read yet but the manifest.
    ///
    /// # Errors
    /// Those of [`Library::open`].
    pub fn open(&self) -> Result<Arc<Library>, Error> {
        Library::open(&self.folder).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::table::VARIANTS;

    #[test]
    fn generated_kernels_are_valid_and_hold_every_row() {
        let kernels = Kernels::generated().expect("written");
        assert!(kernels.are_generated() && kernels.folder().is_dir());
        let library = kernels.open().expect("valid");
        assert_eq!(library.kernels().len(), VARIANTS.len());
        for kernel in library.kernels() {
            let slice = library.kernel_ptx(kernel).expect("there");
            assert!(slice.contains(&format!(".entry {}()", kernel.entry)) && slice.lines().count() > LINES);
        }
    }
}
