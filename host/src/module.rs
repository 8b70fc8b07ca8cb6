//! The compiled kernels: where they are, what their manifest says, and the PTX or cubin of one kernel.

mod image;
mod scores;
mod store;
mod table;

use crate::error::Error;
use ferroflash_kernels::{Arch, waits_first};
use kernels_gpu::backward::row::BackwardRow;
use kernels_gpu::geometry;
use kernels_gpu::manifest::{FORMAT, Family, Kernel, Manifest};
use kernels_gpu::steps::StepRow;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use image::{Code, Image, Source};
use store::{FamilyPtx, Store, usual_folders};
pub(crate) use table::likely_resources;
#[cfg(test)]
pub(crate) use table::uncompiled;
pub use table::{backward_kernels_of_table, kernels_of_table};

/// Whether PTX of a family runs on a device of compute capability `sm`.
pub(crate) fn runs_on(family: &str, sm: u32) -> bool {
    Arch::parse(family).is_some_and(|arch| arch.runs_ptx_on(sm))
}

/// The environment variable that names the folder of compiled kernels.
pub const FOLDER_VARIABLE: &str = "FERROFLASH_PTX";
/// The file that makes a folder one of compiled kernels.
pub const MANIFEST_FILE: &str = "manifest.json";

/// Compiled kernels, their manifest read and checked.
#[derive(Debug)]
pub struct Library {
    store: Store,
    device_compiler: String,
    families: Vec<Family>,
    kernels: Vec<Arc<Kernel>>,
    step_kernels: Vec<Arc<Kernel<StepRow>>>,
    backward_kernels: Vec<Arc<Kernel<BackwardRow>>>,
    /// PTX files of a folder read so far, by family.
    ptx: Mutex<BTreeMap<String, Arc<FamilyPtx>>>,
    /// Where the kernels of users' scores are.
    scores: Vec<Library>,
}

impl Library {
    /// Opens the folder given, else the one that `FERROFLASH_PTX` names, else the kernels inside the program, else the first folder
    /// that holds a manifest of `ptx` beside the executable, `target/ptx` under the current directory and `target/ptx` of the
    /// workspace this was built in.
    ///
    /// Kernels are inside the program where this crate was built from its package with the feature `embedded`, not from a checkout.
    ///
    /// # Errors
    /// [`Error::NoKernels`] where there is none, [`Error::BadKernels`] or [`Error::Io`] where it cannot be used.
    pub fn find(folder: Option<&Path>) -> Result<Library, Error> {
        let named =
            folder.map(Path::to_owned).or_else(|| std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from));
        #[cfg(feature = "embedded")]
        if let (None, Some(archive)) = (&named, ferroflash_kernels::embedded()) {
            return Library::embedded(archive);
        }
        let searched = named.map_or_else(usual_folders, |folder| vec![folder]);
        match searched.iter().find(|folder| folder.join(MANIFEST_FILE).is_file()) {
            Some(folder) => Library::open(folder),
            None => {
                let names: Vec<String> = searched.iter().map(|folder| folder.display().to_string()).collect();
                Err(Error::NoKernels { searched: names.join(", ") })
            }
        }
    }

    /// Opens one folder and checks its manifest.
    ///
    /// # Errors
    /// [`Error::BadKernels`] or [`Error::Io`].
    pub fn open(folder: &Path) -> Result<Library, Error> {
        Library::of(Store::Folder(folder.to_owned()))
    }

    /// Opens an archive of a folder of kernels ([`ferroflash_kernels`]). Only its manifest is decompressed here, and of the rest what is
    /// asked for.
    ///
    /// # Errors
    /// [`Error::BadKernels`].
    pub fn embedded(archive: &'static [u8]) -> Result<Library, Error> {
        Library::of(Store::archive(archive)?)
    }

    fn of(store: Store) -> Result<Library, Error> {
        let text = store.text(MANIFEST_FILE)?;
        scores::check_version(store.path(), &text)?;
        let manifest = parse_manifest(&text).map_err(|reason| store.bad(MANIFEST_FILE, reason))?;
        Ok(Library {
            store,
            device_compiler: manifest.device_compiler,
            families: manifest.families,
            kernels: manifest.kernels.into_iter().map(Arc::new).collect(),
            step_kernels: manifest.step_kernels.into_iter().map(Arc::new).collect(),
            backward_kernels: manifest.backward_kernels.into_iter().map(Arc::new).collect(),
            ptx: Mutex::new(BTreeMap::new()),
            scores: Vec::new(),
        })
    }

    /// The folder, or the name that messages have for the archive inside the program ([`Library::is_embedded`]).
    pub fn folder(&self) -> &Path {
        self.store.path()
    }

    /// Whether the kernels are inside the program.
    pub fn is_embedded(&self) -> bool {
        matches!(self.store, Store::Archive(_))
    }

    /// What compiled the kernels, as it names itself.
    pub fn device_compiler(&self) -> &str {
        &self.device_compiler
    }

    /// The PTX files, one an architecture family.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The kernels that compute attention, in the order of the manifest.
    pub fn kernels(&self) -> &[Arc<Kernel>] {
        &self.kernels
    }

    /// The kernels that merge partial results and append to caches.
    pub fn step_kernels(&self) -> &[Arc<Kernel<StepRow>>] {
        &self.step_kernels
    }

    /// The kernels that compute gradients.
    pub fn backward_kernels(&self) -> &[Arc<Kernel<BackwardRow>>] {
        &self.backward_kernels
    }

    /// Which code of a kernel a device of compute capability `sm` gets (89 for 8.9): the cubin of the nearest architecture
    /// that fits it, else PTX. `None` where neither runs there.
    pub fn source<R>(&self, kernel: &Kernel<R>, sm: u32) -> Option<Source> {
        let fitting = kernel.cubins.keys().filter_map(|arch| Some((Arch::parse(arch)?, arch)));
        let nearest =
            fitting.filter(|(arch, _)| arch.runs_cubin_on(sm)).max_by_key(|(arch, _)| (arch.sm, arch.exact));
        if let Some((_, arch)) = nearest {
            return Some(Source::Cubin { arch: arch.clone() });
        }
        runs_on(&kernel.family, sm).then(|| Source::Ptx { family: kernel.family.clone() })
    }

    /// The code of a kernel from the source given, which [`Library::source`] chose.
    ///
    /// # Errors
    /// [`Error::BadKernels`] where a file is damaged or another than the manifest says, [`Error::Io`].
    pub fn image<R>(&self, kernel: &Kernel<R>, source: &Source) -> Result<Image, Error> {
        let code = match source {
            Source::Ptx { .. } => Code::Ptx(self.kernel_ptx(kernel)?),
            Source::Cubin { arch } => Code::Cubin(self.holder(&kernel.entry).cubin(kernel, arch)?),
        };
        let waits = if let Code::Ptx(text) = &code { waits_first(text) } else { kernel.waits };
        Ok(Image {
            entry: kernel.entry.clone(),
            code,
            waits,
            threads: kernel.threads,
            smem_bytes: kernel.smem_bytes,
        })
    }

    /// The whole PTX of a family, its hash checked.
    ///
    /// # Errors
    /// [`Error::BadKernels`] where it is not the file that the manifest was written for, [`Error::Io`].
    pub fn family_ptx(&self, family: &str) -> Result<Arc<str>, Error> {
        Ok(self.read_family(family)?.text.clone())
    }

    fn read_family(&self, family: &str) -> Result<Arc<FamilyPtx>, Error> {
        // A thread that panicked while holding the lock left a complete map.
        let mut read = self.ptx.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ptx) = read.get(family) {
            return Ok(ptx.clone());
        }
        let Some(record) = self.families.iter().find(|record| record.arch == family) else {
            return Err(self.store.bad(MANIFEST_FILE, format!("there is no family {family}")));
        };
        let text = self.store.family_ptx(&record.ptx)?;
        let found = sha256_hex(text.as_bytes());
        if !found.eq_ignore_ascii_case(&record.sha256) {
            let reason = format!("its SHA-256 is {found}, the manifest says {}", record.sha256);
            return Err(self.store.bad(&record.ptx, reason));
        }
        let ptx = FamilyPtx::new(text);
        read.insert(family.to_owned(), ptx.clone());
        Ok(ptx)
    }

    /// The PTX of one kernel: its entry, and what lies outside of entries.
    ///
    /// # Errors
    /// Those of [`Library::family_ptx`].
    pub fn kernel_ptx<R>(&self, kernel: &Kernel<R>) -> Result<String, Error> {
        self.holder(&kernel.entry).entry_ptx(&kernel.family, &kernel.entry)
    }

    fn entry_ptx(&self, family: &str, entry: &str) -> Result<String, Error> {
        let record = self.families.iter().find(|record| record.arch == family);
        if let (Store::Archive(archive), Some(record)) = (&self.store, record) {
            return archive.entry_ptx(&record.ptx, entry);
        }
        let ptx = self.read_family(family)?;
        ptx.entry(entry).ok_or_else(|| {
            let reason = format!("the PTX of {family} has no entry {entry}, which the manifest lists");
            Error::BadKernels { path: self.folder().to_owned(), reason }
        })
    }

    fn cubin<R>(&self, kernel: &Kernel<R>, arch: &str) -> Result<Vec<u8>, Error> {
        let Some(file) = kernel.cubins.get(arch) else {
            let reason = format!("{} has no cubin for {arch}", kernel.entry);
            return Err(self.store.bad(MANIFEST_FILE, reason));
        };
        let bytes = self.store.bytes(file)?;
        if !bytes.starts_with(b"\x7fELF") {
            return Err(self.store.bad(file, "it is no cubin (an ELF file)".to_owned()));
        }
        Ok(bytes)
    }
}

/// The manifest, or what is wrong with it.
fn parse_manifest(text: &str) -> Result<Manifest, String> {
    // The format first: another one may have other fields, which would be a less telling error.
    #[derive(serde::Deserialize)]
    struct Format {
        format: u32,
    }
    let Format { format } = serde_json::from_str(text).map_err(|error| format!("not a manifest: {error}"))?;
    if format != FORMAT {
        return Err(format!("its format is {format}, this program reads {FORMAT}"));
    }
    let manifest: Manifest =
        serde_json::from_str(text).map_err(|error| format!("not a manifest: {error}"))?;
    for kernel in &manifest.kernels {
        let row = &kernel.row;
        let expected = (geometry::threads(row), geometry::smem_bytes(row));
        let checked = row.check().map_err(|error| error.to_string());
        checked
            .and_then(|()| check_kernel(kernel, expected, &manifest.families))
            .map_err(|reason| format!("kernel {}: {reason}", kernel.entry))?;
    }
    for kernel in &manifest.step_kernels {
        let expected = (kernel.row.threads(), kernel.row.smem_bytes());
        check_kernel(kernel, expected, &manifest.families)
            .map_err(|reason| format!("kernel {}: {reason}", kernel.entry))?;
    }
    for kernel in &manifest.backward_kernels {
        let expected = (kernel.row.threads(), kernel.row.smem_bytes());
        let checked = kernel.row.check().map_err(|error| error.to_string());
        checked
            .and_then(|()| check_kernel(kernel, expected, &manifest.families))
            .map_err(|reason| format!("kernel {}: {reason}", kernel.entry))?;
    }
    Ok(manifest)
}

/// What the host computes from a row must be what the kernel was compiled with: threads and bytes of shared memory.
fn check_kernel<R>(kernel: &Kernel<R>, expected: (u32, u32), families: &[Family]) -> Result<(), String> {
    if !families.iter().any(|family| family.arch == kernel.family) {
        return Err(format!("there is no family {}", kernel.family));
    }
    let compiled = (kernel.threads, kernel.smem_bytes);
    if compiled != expected {
        return Err(format!(
            "compiled for {} threads and {} bytes of shared memory, its row has {} and {}",
            compiled.0, compiled.1, expected.0, expected.1
        ));
    }
    Ok(())
}

/// SHA-256 in lower-case hexadecimal, as manifests have it.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::table::uncompiled;
    use super::*;
    use kernels_gpu::row::Row;
    use kernels_gpu::table::VARIANTS;

    /// A library of these rows and the combine kernels, each in its family and none on disk.
    pub(crate) fn library(rows: &[Row]) -> Arc<Library> {
        let kernels: Vec<Kernel> = rows.iter().map(|row| kernel_of(&row.entry_name(), *row)).collect();
        let (_, step_kernels) = kernels_of_table();
        let entries = kernels.iter().map(|kernel| (&kernel.family, &kernel.entry));
        let combine = step_kernels.iter().map(|kernel| (&kernel.family, &kernel.entry));
        let mut ptx: BTreeMap<String, String> = BTreeMap::new();
        for (family, entry) in entries.chain(combine) {
            *ptx.entry(family.clone()).or_default() += &format!(".visible .entry {entry}()\n{{\n}}\n");
        }
        Arc::new(Library {
            store: Store::Folder(PathBuf::from("nowhere")),
            device_compiler: "none".to_owned(),
            families: Vec::new(),
            kernels: kernels.into_iter().map(Arc::new).collect(),
            step_kernels,
            backward_kernels: Vec::new(),
            ptx: Mutex::new(ptx.into_iter().map(|(family, ptx)| (family, FamilyPtx::new(ptx))).collect()),
            scores: Vec::new(),
        })
    }

    fn kernel() -> Kernel {
        kernel_of(VARIANTS[0].entry, VARIANTS[0].row)
    }

    fn kernel_of(entry: &str, row: Row) -> Kernel {
        uncompiled(entry, row, row.isa, (geometry::threads(&row), geometry::smem_bytes(&row)))
    }

    /// A folder whose one kernel is `entry`, with PTX that has it.
    fn folder(entry: &str) -> (tempfile::TempDir, Manifest) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ptx = format!(".version 7.8\n.visible .entry {entry}()\n{{\nret;\n}}\n");
        std::fs::write(folder.path().join("sm_80.ptx"), &ptx).expect("written");
        let sha256 = sha256_hex(ptx.as_bytes());
        let family = Family { arch: "sm_80".to_owned(), ptx: "sm_80.ptx".to_owned(), sha256 };
        let manifest = Manifest {
            format: FORMAT,
            device_compiler: "rustc".to_owned(),
            families: vec![family],
            kernels: vec![Kernel { entry: entry.to_owned(), ..kernel() }],
            step_kernels: Vec::new(),
            backward_kernels: Vec::new(),
            score_crate: None,
        };
        (folder, manifest)
    }

    fn open(folder: &Path, manifest: &Manifest) -> Result<Library, Error> {
        std::fs::write(folder.join(MANIFEST_FILE), serde_json::to_string(manifest).expect("text"))
            .expect("written");
        Library::find(Some(folder))
    }

    #[test]
    fn a_whole_folder_gives_the_entrys_ptx() {
        let (folder, manifest) = folder("one");
        let library = open(folder.path(), &manifest).expect("whole");
        let kernel = &library.kernels()[0];
        let source = library.source(kernel, 89).expect("runs");
        assert_eq!(source.to_string(), "PTX sm_80");
        let image = library.image(kernel, &source).expect("an image");
        assert!(matches!(&image.code, Code::Ptx(text) if text.contains(".entry one")));
        assert_eq!((image.threads, image.smem_bytes), (kernel.threads, kernel.smem_bytes));
        assert_eq!(library.source(kernel, 75), None);
    }

    #[test]
    fn a_cubin_is_taken_where_it_fits_and_the_nearest_of_several() {
        let (folder, mut manifest) = folder("one");
        for arch in ["sm_80", "sm_86", "sm_90", "sm_90a"] {
            manifest.kernels[0].cubins.insert(arch.to_owned(), format!("{arch}.cubin"));
        }
        std::fs::write(folder.path().join("sm_86.cubin"), b"\x7fELF..").expect("written");
        std::fs::write(folder.path().join("sm_80.cubin"), b"text").expect("written");
        let library = open(folder.path(), &manifest).expect("whole");
        let kernel = &library.kernels()[0];
        let source = |sm| library.source(kernel, sm).expect("runs").to_string();
        assert_eq!(
            (source(80), source(86), source(89)),
            ("cubin sm_80".into(), "cubin sm_86".into(), "cubin sm_86".into())
        );
        assert_eq!((source(90), source(100)), ("cubin sm_90a".into(), "PTX sm_80".into()));
        let image = library.image(kernel, &Source::Cubin { arch: "sm_86".into() }).expect("an image");
        assert!(matches!(image.code, Code::Cubin(_)));
        let error =
            library.image(kernel, &Source::Cubin { arch: "sm_80".into() }).expect_err("text is no cubin");
        assert!(matches!(error, Error::BadKernels { .. }), "{error}");
        let error =
            library.image(kernel, &Source::Cubin { arch: "sm_90".into() }).expect_err("the file is missing");
        assert!(error.to_string().contains("sm_90.cubin"), "{error}");
    }

    #[test]
    fn an_archive_gives_what_its_folder_gives_and_names_what_is_damaged() {
        let (folder, mut manifest) = folder("one");
        manifest.kernels[0].cubins.insert("sm_86".to_owned(), "one.sm_86.cubin".to_owned());
        std::fs::write(folder.path().join("one.sm_86.cubin"), b"\x7fELF..").expect("written");
        let opened = open(folder.path(), &manifest).expect("whole");
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for name in [MANIFEST_FILE, "one.sm_86.cubin"] {
            files.insert(name.to_owned(), std::fs::read(folder.path().join(name)).expect("there"));
        }
        let ptx = opened.family_ptx("sm_80").expect("the hash agrees");
        files.extend(ferroflash_kernels::ptx::pack("sm_80.ptx", &ptx).expect("whole"));
        let archive = |files: &BTreeMap<String, Vec<u8>>| {
            let bytes: &'static [u8] =
                ferroflash_kernels::archive::pack(&[files.clone().into_iter().collect()]).leak();
            Library::embedded(bytes)
        };
        let library = archive(&files).expect("whole");
        assert!(library.is_embedded() && !opened.is_embedded());
        assert_eq!(library.family_ptx("sm_80").expect("the hash agrees"), ptx);
        for source in [Source::Ptx { family: "sm_80".into() }, Source::Cubin { arch: "sm_86".into() }] {
            let of = |library: &Library| library.image(&library.kernels()[0], &source).expect("an image");
            assert_eq!(of(&library), of(&opened));
        }
        files.remove("sm_80.ptx/one");
        let library = archive(&files).expect("the manifest is whole");
        let source = Source::Ptx { family: "sm_80".into() };
        let error = library.image(&library.kernels()[0], &source).expect_err("its PTX is missing");
        assert!(error.to_string().contains("no file sm_80.ptx/one"), "{error}");
        files.remove(MANIFEST_FILE);
        assert!(matches!(archive(&files), Err(Error::BadKernels { .. })));
        assert!(matches!(Library::embedded(b"text"), Err(Error::BadKernels { .. })));
    }

    #[test]
    fn a_changed_ptx_file_is_refused_by_its_hash() {
        let (folder, manifest) = folder("one");
        let library = open(folder.path(), &manifest).expect("whole");
        std::fs::write(folder.path().join("sm_80.ptx"), "other").expect("written");
        let error = library.family_ptx("sm_80").expect_err("changed");
        assert!(error.to_string().contains("SHA-256"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_a_manifest_is_said() {
        let (folder, manifest) = folder("one");
        let refused = |manifest: &Manifest| open(folder.path(), manifest).expect_err("refused").to_string();
        assert!(refused(&Manifest { format: 99, ..manifest.clone() }).contains("format is 99"));
        let with = |kernel| Manifest { kernels: vec![kernel], ..manifest.clone() };
        assert!(refused(&with(Kernel { threads: 64, ..kernel() })).contains("compiled for 64 threads"));
        assert!(refused(&with(Kernel { family: "sm_70".into(), ..kernel() })).contains("no family sm_70"));
        let mut impossible = kernel();
        impossible.row.stages = 9;
        assert!(refused(&with(impossible)).contains("stages must be"));
        std::fs::write(folder.path().join(MANIFEST_FILE), "{").expect("written");
        assert!(Library::find(Some(folder.path())).expect_err("cut").to_string().contains("not a manifest"));
        let empty = folder.path().join("empty");
        let error = Library::find(Some(&empty)).expect_err("nothing there");
        assert!(matches!(&error, Error::NoKernels { searched } if searched.ends_with("empty")), "{error}");
    }
}
