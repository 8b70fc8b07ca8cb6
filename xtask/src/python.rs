//! The Python parts: the comparison's self-test, and the package `ferroflash` with its tests, in an environment under target/.

use crate::{process, workspace};
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What the package's tests need; those for PyTorch and transformers run where an environment has these.
const REQUIREMENTS: [&str; 2] = ["numpy", "pytest"];
const INSTALL_LIMIT: Duration = Duration::from_secs(300);
/// Names the Python whose environment is taken as it is, with PyTorch for example, instead of one under target/.
const VARIABLE: &str = "FERROFLASH_PYTHON";

/// The Python that is installed, if it is new enough for the comparison's script.
pub(crate) fn find() -> Option<PathBuf> {
    let mut version = Command::new("python3");
    version.args(["-c", "import sys; sys.exit(sys.version_info < (3, 10))"]);
    process::answer(&mut version).map(|_| "python3".into())
}

/// Runs the parts of benches/torch_sdpa.py that need no GPU.
pub(crate) fn self_test(python: &Path) -> anyhow::Result<()> {
    let mut script = Command::new(python);
    script.args(["benches/torch_sdpa.py", "--self-test"]).current_dir(workspace::root());
    Ok(process::run(&mut script)?)
}

/// Tests the package on a native module built now; why not, where the environment cannot be made.
pub(crate) fn test_package(python: &Path) -> anyhow::Result<Result<(), String>> {
    let python = match environment(python) {
        Ok(python) => python,
        Err(reason) => return Ok(Err(format!("the package's tests were not run: {reason}"))),
    };
    process::run(&mut workspace::build_all())?;
    let folder = workspace::target().join("python");
    assemble(&folder, &workspace::built("lib_native.so"))?;
    let mut tests = Command::new(python);
    tests.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "tests"]);
    tests.current_dir(workspace::root().join("bindings/python"));
    tests.env("PYTHONPATH", &folder).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(Ok(process::run(&mut tests)?))
}

/// The Python of an environment that has what the tests need.
fn environment(python: &Path) -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Ok(named.into());
    }
    let home = workspace::target().join("python-env");
    let inside = home.join("bin/python");
    let mut has = Command::new(&inside);
    has.args(["-c", "import numpy, pytest"]);
    if process::answer(&mut has).is_some() {
        return Ok(inside);
    }
    let mut venv = Command::new(python);
    venv.args(["-m", "venv"]).arg(&home);
    process::run_within(&mut venv, INSTALL_LIMIT).map_err(|error| error.to_string())?;
    install(&inside, &REQUIREMENTS)?;
    Ok(inside)
}

/// The program maturin, installed into the environment under target/ where it is missing.
pub(crate) fn maturin(python: &Path) -> Result<PathBuf, String> {
    let environment = environment(python)?;
    let program = environment.with_file_name("maturin");
    if !program.exists() {
        install(&environment, &["maturin>=1.9,<2"])?;
    }
    Ok(program)
}

fn install(python: &Path, packages: &[&str]) -> Result<(), String> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    process::run_within(&mut pip, INSTALL_LIMIT).map_err(|error| error.to_string())
}

/// The package as a wheel has it: its Python files and the native module.
fn assemble(folder: &Path, native: &Path) -> anyhow::Result<()> {
    let (from, to) = (workspace::root().join("bindings/python/python/ferroflash"), folder.join("ferroflash"));
    if to.exists() {
        std::fs::remove_dir_all(&to).with_context(|| to.display().to_string())?;
    }
    std::fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
    for entry in std::fs::read_dir(&from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        if let Some(name) =
            path.file_name().filter(|_| path.extension().is_some_and(|extension| extension == "py"))
        {
            std::fs::copy(&path, to.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    std::fs::copy(native, to.join("_native.abi3.so")).with_context(|| native.display().to_string())?;
    Ok(())
}
