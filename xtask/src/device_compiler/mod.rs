//! The compiler for the kernels: rustc 1.96.0 with the source of its own core library. Takes what was named, else what is
//! there, else what may be installed; says which, and why.

mod install;
mod plan;
mod probe;

use plan::{Facts, Step};
use std::fmt;
use std::path::{Path, PathBuf};

/// The release that the kernels are written for (LLVM 22, inline assembly for sm_80 to sm_90a).
pub(crate) const RELEASE: &str = "1.96.0";

/// A compiler that builds for nvptx64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    pub(crate) rustc: PathBuf,
    /// As in `rustc 1.96.0 (ac68faa20 2026-05-25)`.
    pub(crate) version: String,
    pub(crate) origin: Origin,
}

/// Where a compiler comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Named,
    Rustup,
    Debian,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Named => "named by --device-rustc",
            Origin::Rustup => "rustup's toolchain with rust-src",
            Origin::Debian => "Debian's rustc-web with rust-web-src",
        })
    }
}

/// Why there is no compiler for the kernels.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceCompilerError {
    #[error("--device-rustc {}: {reason}", rustc.display())]
    Named { rustc: PathBuf, reason: probe::Unfit },
    #[error("no compiler for the kernels; get one with:\n    {command}\n(what was tried:{})", list(tried))]
    None { command: &'static str, tried: Vec<String> },
}

fn list(tried: &[String]) -> String {
    tried.iter().map(|line| format!("\n    {line}")).collect()
}

/// The compiler to use. Installs one where none is there and that is allowed.
///
/// # Errors
/// [`DeviceCompilerError`]: the named one is unfit, or every way failed; says the one command to type.
pub(crate) fn resolve(named: Option<&Path>) -> Result<Compiler, DeviceCompilerError> {
    if let Some(rustc) = named {
        return probe::probe(rustc, Origin::Named)
            .map_err(|reason| DeviceCompilerError::Named { rustc: rustc.to_owned(), reason });
    }
    let mut tried = Vec::new();
    resolve_with(&probe::facts(), &mut tried, install::attempt)
}

/// Walks through the plan; `attempt` installs and returns the compiler, or the reason why not.
fn resolve_with(
    facts: &Facts,
    tried: &mut Vec<String>,
    attempt: impl Fn(plan::Installer) -> Result<Compiler, String>,
) -> Result<Compiler, DeviceCompilerError> {
    for step in plan::steps(facts) {
        match step {
            Step::Use(compiler) => return Ok(compiler),
            Step::Skip(reason) => tried.push(reason),
            Step::Install(installer) => {
                eprintln!("device compiler: none is installed; trying {installer}");
                match attempt(installer) {
                    Ok(compiler) => return Ok(compiler),
                    Err(reason) => {
                        eprintln!("device compiler: {reason}");
                        tried.push(reason);
                    }
                }
            }
        }
    }
    Err(DeviceCompilerError::None { command: plan::command_to_type(facts), tried: std::mem::take(tried) })
}

#[cfg(test)]
mod tests {
    use super::plan::Installer;
    use super::*;

    fn bare() -> Facts {
        Facts {
            rustup_toolchain: Err("no toolchain".to_owned()),
            debian: Err("no package".to_owned()),
            has_rustup: true,
            auto_install_forbidden: false,
            has_apt_get: true,
            is_root: true,
        }
    }

    fn compiler(origin: Origin) -> Compiler {
        Compiler { rustc: "/somewhere/rustc".into(), version: "rustc 1.96.0".to_owned(), origin }
    }

    #[test]
    fn a_failed_attempt_leads_to_the_next() {
        let mut tried = Vec::new();
        let found = resolve_with(&bare(), &mut tried, |installer| match installer {
            Installer::Rustup => Err("rustup: no network".to_owned()),
            Installer::Apt => Ok(compiler(Origin::Debian)),
        });
        assert_eq!(found.expect("apt is left").origin, Origin::Debian);
        assert_eq!(tried.last().map(String::as_str), Some("rustup: no network"));
    }

    #[test]
    fn the_end_names_one_command_and_all_reasons() {
        let refused = resolve_with(&bare(), &mut Vec::new(), |installer| Err(format!("{installer} failed")));
        let text = refused.expect_err("every way failed").to_string();
        assert!(text.contains("get one with:\n    rustup toolchain install 1.96.0"), "{text}");
        for reason in ["no toolchain", "no package", "rustup failed", "apt-get failed"] {
            assert!(text.contains(reason), "{reason}: {text}");
        }
    }

    #[test]
    fn what_is_there_is_taken_without_an_attempt() {
        let facts = Facts { debian: Ok(compiler(Origin::Debian)), ..bare() };
        let found = resolve_with(&facts, &mut Vec::new(), |_| panic!("nothing to install"));
        assert_eq!(found.expect("it is there").origin, Origin::Debian);
    }
}
