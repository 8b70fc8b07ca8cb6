//! Folders of kernels that something else than `cargo xtask build-ptx` made: tests and benchmarks by hand, the lab from kernels that are there.

use ferroflash::module::{MANIFEST_FILE, kernels_of_table, sha256_hex};
use kernels_gpu::manifest::{FORMAT, Family, Kernel, Manifest};
use kernels_gpu::steps::StepRow;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The families of the table's kernels, with the versions of their PTX.
const FAMILIES: [(&str, &str); 2] = [("sm_80", "7.4"), ("sm_90a", "8.0")];

/// A folder in the making: no library can open it before [`KernelFolder::finish`].
#[derive(Debug)]
pub struct KernelFolder {
    path: PathBuf,
    manifest: Manifest,
}

impl KernelFolder {
    /// Makes the folder unless it is there. `device_compiler` is what its library says that its kernels were compiled with.
    ///
    /// # Errors
    /// What the system reports.
    pub fn new(path: &Path, device_compiler: &str) -> io::Result<KernelFolder> {
        fs::create_dir_all(path)?;
        let manifest = Manifest {
            format: FORMAT,
            device_compiler: device_compiler.to_owned(),
            families: Vec::new(),
            kernels: Vec::new(),
            step_kernels: Vec::new(),
            backward_kernels: Vec::new(),
            score_crate: None,
        };
        Ok(KernelFolder { path: path.to_owned(), manifest })
    }

    /// Writes the PTX of a family, `sm_80`.
    ///
    /// # Errors
    /// What the system reports.
    pub fn family(&mut self, arch: &str, text: &str) -> io::Result<()> {
        let ptx = format!("{arch}.ptx");
        write_whole(&self.path.join(&ptx), text)?;
        let sha256 = sha256_hex(text.as_bytes());
        self.manifest.families.push(Family { arch: arch.to_owned(), ptx, sha256 });
        Ok(())
    }

    /// Adds a kernel, whose entry one of the families holds.
    pub fn kernel(&mut self, kernel: Kernel) {
        self.manifest.kernels.push(kernel);
    }

    /// Adds a step kernel, whose entry one of the families holds.
    pub fn step_kernel(&mut self, kernel: Kernel<StepRow>) {
        self.manifest.step_kernels.push(kernel);
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// What the system reports.
    pub fn finish(self) -> io::Result<()> {
        write_whole(&self.path.join(MANIFEST_FILE), &serde_json::to_string(&self.manifest)?)
    }
}

/// Writes a folder with every entry of the table, each with this body, after `change`.
///
/// # Errors
/// What the system reports.
pub fn write_table(path: &Path, body: &str, change: impl Fn(&mut Kernel)) -> io::Result<()> {
    let mut folder = KernelFolder::new(path, "none: generated")?;
    let (kernels, step_kernels) = kernels_of_table();
    let mut kernels: Vec<Kernel> = kernels.iter().map(|kernel| Kernel::clone(kernel)).collect();
    kernels.iter_mut().for_each(change);
    let step_kernels: Vec<Kernel<StepRow>> =
        step_kernels.iter().map(|kernel| Kernel::clone(kernel)).collect();
    for (arch, version) in FAMILIES {
        let mut text = format!(".version {version}\n.target {arch}\n.address_size 64\n");
        let names = kernels.iter().map(|kernel| (&kernel.family, &kernel.entry));
        let names = names.chain(step_kernels.iter().map(|kernel| (&kernel.family, &kernel.entry)));
        for (_, name) in names.filter(|(family, _)| *family == arch) {
            // A String takes everything.
            let _ = write!(text, ".visible .entry {name}()\n{{\n{body}\n}}\n");
        }
        folder.family(arch, &text)?;
    }
    (folder.manifest.kernels, folder.manifest.step_kernels) = (kernels, step_kernels);
    folder.finish()
}

/// Writes a file beside its place and moves it there, so that nobody reads half of it.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, text)?;
    fs::rename(part, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::module::Library;
    use kernels_gpu::table::VARIANTS;

    #[test]
    fn the_library_opens_what_is_finished_and_nothing_else() {
        let home = tempfile::tempdir().expect("a folder");
        let mut folder = KernelFolder::new(home.path(), "by hand").expect("made");
        let kernel = Kernel::clone(&kernels_of_table().0[0]);
        let entry = &kernel.entry;
        let text = format!(".version 7.4\n.target sm_80\n.visible .entry {entry}()\n{{\n\tret;\n}}\n");
        folder.family("sm_80", &text).expect("written");
        folder.kernel(kernel);
        assert!(Library::open(home.path()).is_err(), "it has no manifest yet");
        folder.finish().expect("written");
        let library = Library::open(home.path()).expect("valid");
        assert_eq!((library.kernels().len(), library.device_compiler()), (1, "by hand"));
        assert_eq!(*library.family_ptx("sm_80").expect("the hash agrees"), *text);
        let left = fs::read_dir(home.path()).expect("a folder").count();
        assert_eq!(left, 2, "the PTX and the manifest");
    }

    #[test]
    fn every_entry_of_the_table_has_the_body() {
        let home = tempfile::tempdir().expect("a folder");
        write_table(home.path(), "\tret;", |kernel| kernel.sha256 = "changed".to_owned()).expect("written");
        let library = Library::open(home.path()).expect("valid");
        assert_eq!(library.kernels().len(), VARIANTS.len());
        for kernel in library.kernels() {
            assert_eq!(kernel.sha256, "changed");
            let slice = library.kernel_ptx(kernel).expect("there");
            assert!(slice.contains(&format!(".entry {}()\n{{\n\tret;\n}}", kernel.entry)), "{slice}");
        }
    }
}
