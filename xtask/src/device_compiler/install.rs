//! Installs a compiler, in bounded time: an attempt that fails or takes too long leaves the next way open.

use super::plan::Installer;
use super::{Compiler, RELEASE, probe};
use crate::process::{self, ProcessError};
use std::process::Command;
use std::time::Duration;

const RUSTUP_LIMIT: Duration = Duration::from_secs(300);
const APT_UPDATE_LIMIT: Duration = Duration::from_secs(120);
const APT_INSTALL_LIMIT: Duration = Duration::from_secs(420);

/// Installs and returns the compiler, or the reason why there is none.
pub(super) fn attempt(installer: Installer) -> Result<Compiler, String> {
    match installer {
        Installer::Rustup => {
            process::run_within(&mut rustup_install(), RUSTUP_LIMIT).map_err(|error| error.to_string())?;
            probe::rustup_toolchain()
        }
        Installer::Apt => {
            // Package lists that are there save the longer half; stale or absent ones are fetched after the first failure.
            // What took too long once would do so again.
            match process::run_within(&mut apt_install(), APT_INSTALL_LIMIT) {
                Ok(()) => {}
                Err(error @ ProcessError::TimedOut { .. }) => return Err(error.to_string()),
                Err(_) => process::run_within(&mut apt_get(&["update"]), APT_UPDATE_LIMIT)
                    .and_then(|()| process::run_within(&mut apt_install(), APT_INSTALL_LIMIT))
                    .map_err(|error| error.to_string())?,
            }
            probe::debian()
        }
    }
}

fn rustup_install() -> Command {
    let mut rustup = Command::new("rustup");
    rustup.args(["toolchain", "install", RELEASE, "--profile", "minimal", "--component", "rust-src"]);
    rustup.arg("--no-self-update");
    rustup
}

fn apt_install() -> Command {
    apt_get(&["install", "-y", "--no-install-recommends", "rustc-web", "rust-web-src"])
}

/// Asks nothing, waits for another package manager only for a while, and gives up on servers that do not answer.
fn apt_get(arguments: &[&str]) -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive");
    for option in [
        "Acquire::http::Timeout=20",
        "Acquire::https::Timeout=20",
        "Acquire::Retries=2",
        "DPkg::Lock::Timeout=60",
    ] {
        apt.args(["-o", option]);
    }
    apt.args(arguments);
    apt
}
