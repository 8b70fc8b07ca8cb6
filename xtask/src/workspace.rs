//! Where things are: the workspace, its build folder, and the cargo that runs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    // Set anew at each `cargo run`, so a moved checkout is found; the built-in path serves a direct start.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().map(Path::to_owned).unwrap_or(xtask)
}

/// `target` in the workspace, whatever CARGO_TARGET_DIR says: the host looks for the kernels there.
pub(crate) fn target() -> PathBuf {
    root().join("target")
}

/// The cargo that started this program, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Builds every library, program and test with the features that `cargo test --workspace` gives them, so that nothing is compiled twice.
pub(crate) fn build_all() -> Command {
    let mut build = cargo();
    build.args(["build", "--workspace", "--lib", "--bin", "ferroflash", "--tests"]);
    build
}

/// Where [`build_all`] puts a program or library.
pub(crate) fn built(file: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(target, |named| root().join(named));
    target.join("debug").join(file)
}

/// A path as a user reads it: relative to the working directory where it lies below.
pub(crate) fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).display().to_string()
}
