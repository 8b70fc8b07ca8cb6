//! The source tree that kernels are compiled from, and the compiler, which is `cargo xtask build-ptx`.

use crate::error::{Error, Result};
use crate::kernels::KernelRef;
use crate::patched::copy_folder;
use crate::process;
use ferroflash::Row;
use ferroflash::module::Library;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What building the tools may take: a machine that has nothing yet fetches a compiler.
const TOOLS_LIMIT: Duration = Duration::from_secs(900);

/// What a compilation leaves behind beside the manifest, and for which architectures ptxas reports resources.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// PTX, which drivers compile; without a ptxas, no resources are known.
    Ptx {
        /// `sm_90`, …
        archs: &'a [String],
    },
    /// PTX, and machine code.
    Machine {
        /// `sm_90`, …
        archs: &'a [String],
    },
}

/// A source tree: the project's own, or a throw-away copy with a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    root: PathBuf,
    /// Whether its own xtask compiles it: of an old commit, whose rows may have other columns.
    has_own_xtask: bool,
}

impl Tree {
    /// The project's own tree.
    pub fn own() -> Tree {
        // Set anew at each `cargo run`, so a moved checkout is found; the built-in path serves a direct start.
        let lab = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let is_lab = lab.join("lab.toml").is_file();
        let lab = if is_lab { lab } else { PathBuf::from(env!("CARGO_MANIFEST_DIR")) };
        // A program that was carried to another machine serves the checkout that it is started in.
        let here = std::env::current_dir().unwrap_or_default().join("lab");
        let lab = if !lab.is_dir() && here.join("lab.toml").is_file() { here } else { lab };
        Tree { root: lab.parent().map(Path::to_owned).unwrap_or(lab), has_own_xtask: false }
    }

    /// A copy of it, whose device crate alone is another.
    pub fn copy(root: &Path) -> Tree {
        Tree { root: root.to_owned(), has_own_xtask: false }
    }

    /// The tree of another commit.
    pub fn of_commit(root: &Path) -> Tree {
        Tree { root: root.to_owned(), has_own_xtask: true }
    }

    /// Its root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The commit that is checked out, with `+` where files are changed. Where git does not tell, `FERROFLASH_COMMIT` may.
    pub fn commit(&self) -> Option<String> {
        self.checked_out()
            .or_else(|| std::env::var("FERROFLASH_COMMIT").ok().filter(|commit| !commit.is_empty()))
    }

    fn checked_out(&self) -> Option<String> {
        let git = |arguments: &[&str]| {
            let output = Command::new("git").args(arguments).current_dir(&self.root).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let commit = git(&["rev-parse", "--short", "HEAD"])?;
        let changed =
            git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|list| !list.is_empty());
        Some(if changed { commit + "+" } else { commit })
    }

    /// Compiles rows into a folder, with the resources that ptxas reports for `arch` where there is a ptxas.
    ///
    /// One compilation at a time, whoever asks: they share a build folder. In a bare checkout the tools come first, beyond the
    /// limit: the device compiler, which may have to be fetched, and its core library.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::TimedOut`], [`Error::Interrupted`].
    pub fn compile(&self, rows: &[Row], out: &Path, arch: &str, log: &Path, limit: Duration) -> Result<()> {
        self.compile_for(rows, out, Code::Ptx { archs: &[arch.to_owned()] }, log, limit)
    }

    /// As [`Tree::compile`], for several architectures, with their machine code where it is asked for.
    ///
    /// # Errors
    /// Those of [`Tree::compile`]; [`Error::Failed`] where machine code is asked for and there is no ptxas.
    pub fn compile_for(
        &self,
        rows: &[Row],
        out: &Path,
        code: Code<'_>,
        log: &Path,
        limit: Duration,
    ) -> Result<()> {
        std::fs::create_dir_all(out).map_err(|source| Error::io(out, source))?;
        let file = out.join("rows.json");
        let text = serde_json::to_string_pretty(rows).unwrap_or_default();
        crate::session::write_whole(&file, &text)?;
        let lock = self.lock()?;
        let out = absolute(out);
        let file = absolute(&file);
        let mut build = self.xtask(&lock, log)?;
        if self.is_bare() {
            let mut tools = Command::new(build.get_program());
            tools.current_dir(&self.root).env("CARGO_MANIFEST_DIR", self.root.join("xtask")).arg("build-ptx");
            process::succeed_under(&lock, &mut tools, log, TOOLS_LIMIT)?;
        }
        let begun = std::time::Instant::now();
        build.arg("build-ptx").arg("--rows").arg(&file).arg("--out").arg(&out);
        process::succeed_under(&lock, &mut build, log, limit)?;
        let mut check = Command::new(build.get_program());
        check.current_dir(&self.root).env("CARGO_MANIFEST_DIR", self.root.join("xtask"));
        check.args(["check-ptx", "--rows"]).arg(&file).arg("--ptx-dir").arg(&out);
        let (archs, keeps) = match code {
            Code::Ptx { archs } => (archs, false),
            Code::Machine { archs } => (archs, true),
        };
        archs.iter().for_each(|arch| {
            check.args(["--arch", arch]);
        });
        if keeps {
            check.arg("--cubin");
        }
        let left = limit.saturating_sub(begun.elapsed()).max(Duration::from_secs(1));
        match process::succeed_under(&lock, &mut check, &log.with_extension("ptxas.log"), left) {
            // What it refuses is in the manifest, where the next stage reads it.
            Ok(_) => Ok(()),
            Err(Error::Failed { .. }) if !keeps || has_machine_code(&out) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The kernel of a row that was compiled into a folder.
    ///
    /// # Errors
    /// [`Error::Host`].
    pub fn compiled(&self, row: &Row, out: &Path) -> Result<KernelRef> {
        let library = Library::open(out)?;
        let found = library.kernels().iter().find(|kernel| kernel.row == *row);
        let entry = found.map_or_else(|| row.entry_name(), |kernel| kernel.entry.clone());
        Ok(KernelRef { folder: out.to_owned(), entry })
    }

    /// Whether a folder has the kernel of a row.
    pub fn has_compiled(&self, row: &Row, folder: &Path) -> bool {
        Library::open(folder).is_ok_and(|library| library.kernels().iter().any(|kernel| kernel.row == *row))
    }

    /// Puts what compiles rows beside a copy of the tree: the core library compiled for the device, and ptxas.
    pub(crate) fn share_compiler(&self, own: &Tree) -> Result<()> {
        let _lock = own.lock()?;
        // Both write to these folders, so they are copies.
        for folder in ["device/sm_80-rows", "device/sm_90a-rows", "ptxas"] {
            let from = own.root.join("target").join(folder);
            if from.is_dir() {
                copy_folder(&from, &self.root.join("target").join(folder))?;
            }
        }
        Ok(())
    }

    /// Whether nothing was ever compiled here.
    fn is_bare(&self) -> bool {
        *self == Tree::own() && !self.root.join("target/device").is_dir()
    }

    /// The compiler of kernels, which takes the folder of its manifest for where it is.
    fn xtask(&self, lock: &File, log: &Path) -> Result<Command> {
        let root = if self.has_own_xtask { &self.root } else { &Tree::own().root };
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--package", "xtask", "--message-format", "json"]).current_dir(root);
        if std::env::var_os("CARGO_TARGET_DIR").is_none() {
            // Where the libraries that an old xtask needs are compiled already.
            build.env("CARGO_TARGET_DIR", Tree::own().root.join("target"));
        }
        let said = process::succeed_under(lock, &mut build, log, TOOLS_LIMIT)?;
        let messages = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let program =
            messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
        let program = program.ok_or_else(|| Error::Missing {
            what: "xtask",
            reason: format!("cargo built no program; its output is in {}", log.display()),
        })?;
        let mut xtask = Command::new(program);
        xtask.current_dir(&self.root).env("CARGO_MANIFEST_DIR", self.root.join("xtask"));
        Ok(xtask)
    }

    fn lock(&self) -> Result<File> {
        let target = self.root.join("target");
        let path = target.join(".lab-compiler");
        let locked = std::fs::create_dir_all(&target)
            .and_then(|()| File::create(&path))
            .and_then(|file| file.lock().map(|()| file));
        locked.map_err(|source| Error::io(&path, source))
    }
}

/// Whether machine code was kept of any kernel of a folder: without, there is no ptxas.
fn has_machine_code(out: &Path) -> bool {
    Library::open(out).is_ok_and(|library| library.kernels().iter().any(|kernel| !kernel.cubins.is_empty()))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_tree_is_the_workspace() {
        assert!(Tree::own().root().join("kernels-gpu/src/table.rs").is_file());
    }
}
