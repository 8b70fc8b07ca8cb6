//! Which compiler to take or install, from what is known of the machine. Decides; touches nothing.

use super::Compiler;
use std::fmt;

/// What is known of the machine.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// rustup's toolchain of the release, or why it is unfit.
    pub(super) rustup_toolchain: Result<Compiler, String>,
    /// The distribution's compiler, or why it is unfit.
    pub(super) debian: Result<Compiler, String>,
    pub(super) has_rustup: bool,
    /// RUSTUP_AUTO_INSTALL=0: toolchains are fixed here.
    pub(super) auto_install_forbidden: bool,
    pub(super) has_apt_get: bool,
    pub(super) is_root: bool,
}

/// A way to get a compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Installer {
    Rustup,
    Apt,
}

impl fmt::Display for Installer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Installer::Rustup => "rustup",
            Installer::Apt => "apt-get",
        })
    }
}

/// One step on the way to a compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Take it: the end of the plan.
    Use(Compiler),
    /// Not a way here, for this reason.
    Skip(String),
    /// Install, and go on where that fails.
    Install(Installer),
}

/// The steps in order: what is there, rustup's first; then what may be installed.
pub(super) fn steps(facts: &Facts) -> Vec<Step> {
    let mut steps = Vec::new();
    for present in [&facts.rustup_toolchain, &facts.debian] {
        match present {
            Ok(compiler) => {
                steps.push(Step::Use(compiler.clone()));
                return steps;
            }
            Err(reason) => steps.push(Step::Skip(reason.clone())),
        }
    }
    steps.push(match (facts.has_rustup, facts.auto_install_forbidden) {
        (false, _) => Step::Skip("rustup: not installed".to_owned()),
        (true, true) => Step::Skip("rustup: RUSTUP_AUTO_INSTALL=0 forbids to install a toolchain".to_owned()),
        (true, false) => Step::Install(Installer::Rustup),
    });
    steps.push(match (facts.has_apt_get, facts.is_root) {
        (false, _) => Step::Skip("apt-get: not on this system".to_owned()),
        (true, false) => Step::Skip("apt-get: needs root".to_owned()),
        (true, true) => Step::Install(Installer::Apt),
    });
    steps
}

/// The one command that brings a compiler on this machine.
pub(super) fn command_to_type(facts: &Facts) -> &'static str {
    if facts.has_rustup && !facts.auto_install_forbidden {
        "rustup toolchain install 1.96.0 --profile minimal --component rust-src"
    } else if facts.has_apt_get && facts.is_root {
        "apt-get update && apt-get install -y rustc-web rust-web-src"
    } else if facts.has_apt_get {
        "sudo sh -c 'apt-get update && apt-get install -y rustc-web rust-web-src'"
    } else if facts.has_rustup {
        "RUSTUP_AUTO_INSTALL=1 rustup toolchain install 1.96.0 --profile minimal --component rust-src"
    } else {
        "cargo xtask build-ptx --device-rustc PATH  # a rustc 1.96.0 whose sysroot holds its library source"
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Origin, RELEASE};
    use super::*;

    fn bare() -> Facts {
        Facts {
            rustup_toolchain: Err("a".to_owned()),
            debian: Err("b".to_owned()),
            has_rustup: true,
            auto_install_forbidden: false,
            has_apt_get: true,
            is_root: true,
        }
    }

    fn installs(facts: &Facts) -> Vec<Installer> {
        let steps = steps(facts).into_iter();
        steps
            .filter_map(|step| if let Step::Install(installer) = step { Some(installer) } else { None })
            .collect()
    }

    fn compiler(origin: Origin) -> Compiler {
        Compiler { rustc: "/x/rustc".into(), version: String::new(), origin }
    }

    #[test]
    fn present_compilers_come_first_and_end_the_plan() {
        let both = Facts {
            rustup_toolchain: Ok(compiler(Origin::Rustup)),
            debian: Ok(compiler(Origin::Debian)),
            ..bare()
        };
        assert_eq!(steps(&both), [Step::Use(compiler(Origin::Rustup))]);
        let debian = Facts { debian: Ok(compiler(Origin::Debian)), ..bare() };
        assert_eq!(steps(&debian), [Step::Skip("a".to_owned()), Step::Use(compiler(Origin::Debian))]);
    }

    #[test]
    fn installers_stand_in_order_and_prohibitions_are_honoured() {
        assert_eq!(installs(&bare()), [Installer::Rustup, Installer::Apt]);
        assert_eq!(installs(&Facts { auto_install_forbidden: true, ..bare() }), [Installer::Apt]);
        assert_eq!(installs(&Facts { has_rustup: false, ..bare() }), [Installer::Apt]);
        assert_eq!(installs(&Facts { is_root: false, ..bare() }), [Installer::Rustup]);
        assert_eq!(installs(&Facts { is_root: false, auto_install_forbidden: true, ..bare() }), []);
        assert_eq!(installs(&Facts { has_apt_get: false, has_rustup: false, ..bare() }), []);
    }

    #[test]
    fn skipped_ways_say_why() {
        let facts = Facts { is_root: false, auto_install_forbidden: true, ..bare() };
        let reasons: Vec<Step> = steps(&facts).split_off(2);
        assert_eq!(
            reasons,
            [
                Step::Skip("rustup: RUSTUP_AUTO_INSTALL=0 forbids to install a toolchain".to_owned()),
                Step::Skip("apt-get: needs root".to_owned())
            ]
        );
    }

    #[test]
    fn the_command_to_type_fits_the_machine() {
        assert!(command_to_type(&bare()).starts_with("rustup toolchain install"));
        assert!(command_to_type(&bare()).contains(RELEASE));
        let fixed = Facts { auto_install_forbidden: true, ..bare() };
        assert!(command_to_type(&fixed).starts_with("apt-get update"));
        assert!(command_to_type(&Facts { is_root: false, ..fixed.clone() }).starts_with("sudo"));
        assert!(command_to_type(&Facts { has_apt_get: false, ..fixed.clone() }).contains("rustup toolchain"));
        let nothing = Facts { has_apt_get: false, has_rustup: false, ..fixed };
        assert!(command_to_type(&nothing).contains("--device-rustc"));
    }
}
