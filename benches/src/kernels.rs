//! The folder of compiled kernels that the host's benchmarks read.

use ferroflash::Error;
use ferroflash::module::{Library, MANIFEST_FILE, kernels_of_table};
use kernels_gpu::manifest::{CombineRow, FORMAT, Family, Kernel, Manifest};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// The families of generated PTX, with their versions.
const FAMILIES: [(&str, &str); 2] = [("sm_80", "7.8"), ("sm_90a", "8.0")];
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
        let (kernels, combine_kernels) = kernels_of_table();
        let kernels: Vec<Kernel> = kernels.iter().map(|kernel| Kernel::clone(kernel)).collect();
        let combine_kernels: Vec<Kernel<CombineRow>> =
            combine_kernels.iter().map(|kernel| Kernel::clone(kernel)).collect();
        let names = kernels.iter().map(|kernel| (&kernel.family, &kernel.entry));
        let names: Vec<_> =
            names.chain(combine_kernels.iter().map(|kernel| (&kernel.family, &kernel.entry))).collect();
        let body = "\tadd.f32 \t%f1, %f2, %f3;\n".repeat(LINES);
        let mut families = Vec::new();
        for (arch, version) in FAMILIES {
            let mut text = format!(".version {version}\n.target {arch}\n.address_size 64\n");
            for (_, entry) in names.iter().filter(|(family, _)| *family == arch) {
                let _ = writeln!(text, ".visible .entry {entry}()\n{{\n{body}\tret;\n}}");
            }
            let ptx = format!("{arch}.ptx");
            families.push(Family { arch: arch.to_owned(), sha256: sha256(&text), ptx: ptx.clone() });
            std::fs::write(folder.path().join(ptx), text)?;
        }
        let manifest = Manifest {
            format: FORMAT,
            device_compiler: "none: generated".to_owned(),
            families,
            kernels,
            combine_kernels,
        };
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
    use kernels_gpu::table::VARIANTS;

    #[test]
    fn generated_kernels_are_valid_and_hold_every_row() {
        let kernels = Kernels::generated().expect("written");
        assert!(kernels.are_generated() && kernels.folder().is_dir());
        let library = kernels.open().expect("valid");
        assert_eq!(library.kernels().len(), VARIANTS.len());
        for kernel in library.kernels() {
            let ptx = library.family_ptx(&kernel.family).expect("the hash agrees");
            let slice = slice_entry(&ptx, &kernel.entry).expect("there");
            assert!(slice.contains(&format!(".entry {}()", kernel.entry)) && slice.lines().count() > LINES);
        }
    }
}
