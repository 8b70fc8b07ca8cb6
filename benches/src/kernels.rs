//! The folder of compiled kernels that the host's benchmarks read.

use ferroflash::Error;
use ferroflash::module::{Library, MANIFEST_FILE};
use kernels_gpu::geometry;
use kernels_gpu::manifest::{FORMAT, Family, Kernel, Manifest};
use kernels_gpu::table::{VARIANTS, Variant};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// The family of generated PTX.
const FAMILY: &str = "sm_80";
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
        let mut ptx = ".version 7.8\n.target sm_80\n.address_size 64\n".to_owned();
        for variant in VARIANTS {
            let body = "\tadd.f32 \t%f1, %f2, %f3;\n".repeat(LINES);
            let _ = writeln!(ptx, ".visible .entry {}()\n{{\n{body}\tret;\n}}", variant.entry);
        }
        let family = Family { arch: FAMILY.to_owned(), ptx: "sm_80.ptx".to_owned(), sha256: sha256(&ptx) };
        let manifest = Manifest {
            format: FORMAT,
            device_compiler: "none: generated".to_owned(),
            families: vec![family],
            kernels: VARIANTS.iter().map(kernel).collect(),
        };
        std::fs::write(folder.path().join("sm_80.ptx"), ptx)?;
        std::fs::write(folder.path().join(MANIFEST_FILE), serde_json::to_string(&manifest)?)?;
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

fn kernel(variant: &Variant) -> Kernel {
    Kernel {
        entry: variant.entry.to_owned(),
        family: FAMILY.to_owned(),
        row: variant.row,
        threads: geometry::threads(&variant.row),
        smem_bytes: geometry::smem_bytes(&variant.row),
        sha256: String::new(),
        resources: BTreeMap::new(),
        cubins: BTreeMap::new(),
    }
}

fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::module::slice_entry;

    #[test]
    fn generated_kernels_are_valid_and_hold_every_row() {
        let kernels = Kernels::generated().expect("written");
        assert!(kernels.are_generated() && kernels.folder().is_dir());
        let library = kernels.open().expect("valid");
        let ptx = library.family_ptx(FAMILY).expect("the hash agrees");
        assert_eq!(library.kernels().len(), VARIANTS.len());
        for kernel in library.kernels() {
            let slice = slice_entry(&ptx, &kernel.entry).expect("there");
            assert!(slice.contains(&format!(".entry {}()", kernel.entry)) && slice.lines().count() > LINES);
        }
    }
}
