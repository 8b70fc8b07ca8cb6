//! Debian's packages, in bounded time: an attempt that fails or takes too long leaves the next way open.

use crate::process::{self, ProcessError};
use std::process::Command;
use std::time::Duration;

const UPDATE_LIMIT: Duration = Duration::from_secs(120);
const INSTALL_LIMIT: Duration = Duration::from_secs(420);

/// Installs packages until `found` finds what they bring, or the reason why it does not.
///
/// Package lists that are there save the longer half. Absent ones, and those that are too old, are fetched after the first failure.
pub(crate) fn install<T>(packages: &[&str], found: impl Fn() -> Result<T, String>) -> Result<T, String> {
    match process::run_within(&mut install_command(packages), INSTALL_LIMIT) {
        Ok(()) => {
            if let Ok(what) = found() {
                return Ok(what);
            }
        }
        // What took too long once would do so again.
        Err(error @ ProcessError::TimedOut { .. }) => return Err(error.to_string()),
        Err(_) => {}
    }
    process::run_within(&mut apt_get(&["update"]), UPDATE_LIMIT)
        .and_then(|()| process::run_within(&mut install_command(packages), INSTALL_LIMIT))
        .map_err(|error| error.to_string())?;
    found()
}

/// Why apt-get cannot be asked here; `None` where it can.
pub(crate) fn obstacle() -> Option<&'static str> {
    let is_there = process::answer(Command::new("apt-get").arg("--version")).is_some();
    let is_root = || process::answer(Command::new("id").arg("-u")).is_some_and(|id| id.trim() == "0");
    match is_there {
        false => Some("apt-get is not on this system"),
        true if !is_root() => Some("apt-get needs root"),
        true => None,
    }
}

fn install_command(packages: &[&str]) -> Command {
    apt_get(&[&["install", "-y", "--no-install-recommends"], packages].concat())
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
