//! Installs a compiler, in bounded time: an attempt that fails or takes too long leaves the next way open.

use super::plan::Installer;
use super::{Compiler, RELEASE, probe};
use crate::{apt, process};
use std::process::Command;
use std::time::Duration;

const RUSTUP_LIMIT: Duration = Duration::from_secs(300);

/// Installs and returns the compiler, or the reason why there is none.
pub(super) fn attempt(installer: Installer) -> Result<Compiler, String> {
    match installer {
        Installer::Rustup => {
            process::run_within(&mut rustup_install(), RUSTUP_LIMIT).map_err(|error| error.to_string())?;
            probe::rustup_toolchain()
        }
        // Package lists that are too old do not know the release.
        Installer::Apt => apt::install(&["rustc-web", "rust-web-src"], probe::debian),
    }
}

fn rustup_install() -> Command {
    let mut rustup = Command::new("rustup");
    rustup.args(["toolchain", "install", RELEASE, "--profile", "minimal", "--component", "rust-src"]);
    rustup.arg("--no-self-update");
    rustup
}
