//! Where the files of compiled kernels are: a folder, or an archive inside the program.

use crate::error::Error;
use ferroflash_kernels::archive::{Archive, ArchiveError};
use ferroflash_kernels::ptx;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The files that a manifest names, and the manifest.
#[derive(Debug)]
pub(super) enum Store {
    Folder(PathBuf),
    Archive(Embedded),
}

/// An archive inside the program, which holds the PTX of a family in parts.
#[derive(Debug)]
pub(super) struct Embedded {
    archive: Archive<'static>,
}

/// The PTX of a family, and where its entries are, once that was asked.
#[derive(Debug)]
pub(super) struct FamilyPtx {
    pub(super) text: Arc<str>,
    parts: OnceLock<Option<ptx::Parts>>,
}

impl FamilyPtx {
    pub(super) fn new(text: String) -> Arc<FamilyPtx> {
        Arc::new(FamilyPtx { text: text.into(), parts: OnceLock::new() })
    }

    /// The PTX of one entry, with what lies outside of entries. `None` where there is none of this name, or one does not end.
    pub(super) fn entry(&self, name: &str) -> Option<String> {
        self.parts.get_or_init(|| ptx::split(&self.text)).as_ref()?.slice(&self.text, name)
    }
}

/// What messages name an archive by.
const EMBEDDED: &str = "the kernels inside the program";

/// Where a folder of compiled kernels may lie when none is named, in the order of the search.
pub(super) fn usual_folders() -> Vec<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("ptx")));
    let under = std::env::current_dir().ok().map(|directory| directory.join("target/ptx"));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(|root| root.join("target/ptx"));
    let mut folders: Vec<PathBuf> = [beside, under, workspace].into_iter().flatten().collect();
    folders.dedup();
    folders
}

impl Store {
    /// # Errors
    /// [`Error::BadKernels`].
    pub(super) fn archive(bytes: &'static [u8]) -> Result<Store, Error> {
        let archive = Archive::parse(bytes).map_err(refused)?;
        Ok(Store::Archive(Embedded { archive }))
    }

    /// The folder, or what messages name the archive by.
    pub(super) fn path(&self) -> &Path {
        match self {
            Store::Folder(folder) => folder,
            Store::Archive(_) => Path::new(EMBEDDED),
        }
    }

    /// One file.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadKernels`].
    pub(super) fn bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        match self {
            Store::Folder(folder) => {
                let path = folder.join(name);
                std::fs::read(&path).map_err(|source| Error::Io { path, source })
            }
            Store::Archive(embedded) => embedded.archive.read(name).map_err(refused),
        }
    }

    /// One file as text.
    ///
    /// # Errors
    /// Those of [`Store::bytes`].
    pub(super) fn text(&self, name: &str) -> Result<String, Error> {
        let bytes = self.bytes(name)?;
        String::from_utf8(bytes).map_err(|_| self.bad(name, "it is not UTF-8 text".to_owned()))
    }

    /// The whole PTX of a family.
    ///
    /// # Errors
    /// Those of [`Store::bytes`].
    pub(super) fn family_ptx(&self, file: &str) -> Result<String, Error> {
        match self {
            Store::Folder(_) => self.text(file),
            Store::Archive(embedded) => {
                ptx::join(&self.text(file)?, |entry| embedded.part(file, entry).map(Some))
            }
        }
    }

    /// A file that cannot be used.
    pub(super) fn bad(&self, name: &str, reason: String) -> Error {
        Error::BadKernels { path: self.path().join(name), reason }
    }
}

impl Embedded {
    /// The PTX of one entry: two files of the archive are decompressed, what the entries of a family share and the entry's own.
    ///
    /// # Errors
    /// [`Error::BadKernels`].
    pub(super) fn entry_ptx(&self, file: &str, entry: &str) -> Result<String, Error> {
        let mut own = Some(self.part(file, entry)?);
        let skeleton = self.text(file)?;
        ptx::join(&skeleton, |name| Ok(if name == entry { own.take() } else { None }))
    }

    fn part(&self, file: &str, entry: &str) -> Result<String, Error> {
        self.text(&ptx::part_name(file, entry))
    }

    fn text(&self, name: &str) -> Result<String, Error> {
        let bytes = self.archive.read(name).map_err(refused)?;
        String::from_utf8(bytes).map_err(|_| {
            let reason = "it is not UTF-8 text".to_owned();
            Error::BadKernels { path: Path::new(EMBEDDED).join(name), reason }
        })
    }
}

fn refused(error: ArchiveError) -> Error {
    Error::BadKernels { path: EMBEDDED.into(), reason: error.to_string() }
}
