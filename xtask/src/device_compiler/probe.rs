//! What compilers are there, and whether each has the source of its own core library.

use super::plan::Facts;
use super::{Compiler, Origin, RELEASE};
use crate::process;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a compiler cannot build the kernels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("does not run, or is no rustc")]
    NoRustc,
    #[error("is release {found}, the kernels need {RELEASE}")]
    Release { found: String },
    #[error("lacks the source of its library: {} is not there", .0.display())]
    NoLibrarySource(PathBuf),
    #[error("its library source is of release {library}, the compiler of {compiler}")]
    LibraryRelease { compiler: String, library: String },
}

/// Asks a compiler what it is. A named one may be of any release, as long as it has its library's source.
pub(super) fn probe(rustc: &Path, origin: Origin) -> Result<Compiler, Unfit> {
    let ask = |arguments: &[&str]| {
        process::answer(Command::new(rustc).args(arguments).env("RUSTUP_AUTO_INSTALL", "0"))
    };
    let about = ask(&["--version", "--verbose"]).ok_or(Unfit::NoRustc)?;
    let sysroot = ask(&["--print", "sysroot"]).ok_or(Unfit::NoRustc)?;
    let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    let library = source.join("library/Cargo.toml");
    let has_library = library.is_file();
    // A distribution ships the whole source tree, with its release; rustup's component is of the toolchain by construction.
    let library_release = std::fs::read_to_string(source.join("src/version")).ok();
    let version = judge(&about, origin, has_library.then_some(library_release.as_deref()), library)?;
    Ok(Compiler { rustc: rustc.to_owned(), version, origin })
}

/// The version line, if the compiler and its library source fit. `library` is `None` where the source is absent, and
/// `Some(None)` where it does not name its release.
fn judge(about: &str, origin: Origin, library: Option<Option<&str>>, path: PathBuf) -> Result<String, Unfit> {
    let version = about.lines().next().filter(|line| line.starts_with("rustc ")).ok_or(Unfit::NoRustc)?;
    let release = about.lines().find_map(|line| line.strip_prefix("release: ")).ok_or(Unfit::NoRustc)?;
    if origin != Origin::Named && release != RELEASE {
        return Err(Unfit::Release { found: release.to_owned() });
    }
    match library {
        None => Err(Unfit::NoLibrarySource(path)),
        Some(Some(library)) if library.trim() != release => {
            Err(Unfit::LibraryRelease { compiler: release.to_owned(), library: library.trim().to_owned() })
        }
        Some(_) => Ok(version.to_owned()),
    }
}

/// rustup's toolchain of the release. Looked up in the file system: asking rustup might install it.
pub(super) fn rustup_toolchain() -> Result<Compiler, String> {
    let home = std::env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".rustup")));
    let toolchains = home.map(|home| home.join("toolchains"));
    let entries = toolchains.and_then(|folder| std::fs::read_dir(folder).ok());
    let prefix = format!("{RELEASE}-");
    let mut folders = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    let toolchain = folders
        .find(|folder| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)));
    let toolchain = toolchain.ok_or(format!("rustup: has no toolchain {RELEASE}"))?;
    probe(&toolchain.join("bin/rustc"), Origin::Rustup)
        .map_err(|unfit| format!("rustup's toolchain {RELEASE}: {unfit}"))
}

/// The distribution's compiler, past the one that rustup puts first on the PATH.
pub(super) fn debian() -> Result<Compiler, String> {
    let rustc = Path::new("/usr/bin/rustc");
    if !rustc.exists() {
        return Err("Debian's rustc-web: not installed".to_owned());
    }
    probe(rustc, Origin::Debian).map_err(|unfit| format!("{}: {unfit}", rustc.display()))
}

/// Everything that the plan depends on.
pub(super) fn facts() -> Facts {
    Facts {
        rustup_toolchain: rustup_toolchain(),
        debian: debian(),
        has_rustup: runs("rustup"),
        auto_install_forbidden: std::env::var_os("RUSTUP_AUTO_INSTALL").is_some_and(|value| value == "0"),
        has_apt_get: runs("apt-get"),
        is_root: process::answer(Command::new("id").arg("-u")).is_some_and(|id| id.trim() == "0"),
    }
}

fn runs(program: &str) -> bool {
    process::answer(Command::new(program).arg("--version")).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: &str = "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nrelease: 1.96.0\n";

    fn judged(about: &str, origin: Origin, library: Option<Option<&str>>) -> Result<String, Unfit> {
        judge(about, origin, library, "library/Cargo.toml".into())
    }

    #[test]
    fn compiler_and_library_of_one_release_fit() {
        let version = Ok("rustc 1.96.0 (ac68faa20 2026-05-25)".to_owned());
        assert_eq!(judged(ABOUT, Origin::Debian, Some(Some("1.96.0\n"))), version);
        assert_eq!(judged(ABOUT, Origin::Rustup, Some(None)), version);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_values() {
        let older = ABOUT.replace("1.96.0", "1.63.0");
        assert_eq!(
            judged(&older, Origin::Debian, Some(None)),
            Err(Unfit::Release { found: "1.63.0".to_owned() })
        );
        assert!(judged(&older, Origin::Named, Some(None)).is_ok());
        assert!(matches!(judged(ABOUT, Origin::Rustup, None), Err(Unfit::NoLibrarySource(_))));
        let unfit = judged(ABOUT, Origin::Debian, Some(Some("1.95.0")));
        assert!(
            matches!(&unfit, Err(Unfit::LibraryRelease { library, .. }) if library == "1.95.0"),
            "{unfit:?}"
        );
        assert_eq!(judged("gcc 14\n", Origin::Named, Some(None)), Err(Unfit::NoRustc));
    }

    #[test]
    fn a_program_that_is_no_compiler_is_refused() {
        assert_eq!(probe(Path::new("/nonexistent/rustc"), Origin::Named), Err(Unfit::NoRustc));
        assert_eq!(probe(Path::new("false"), Origin::Named), Err(Unfit::NoRustc));
    }
}
