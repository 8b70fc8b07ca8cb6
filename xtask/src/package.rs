//! `cargo xtask package`: all that is handed out, in one folder: crates, the Python wheel, the C archive, licences and a manifest.
//!
//! The crates are proven from that folder alone: an example in an empty workspace is built and run with the kernels inside.

use crate::{manifest_file, pack_kernels, process, python, workspace};
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates, each by its package's name.
const CRATES: [&str; 8] = [
    "ferroflash",
    "ferroflash-call",
    "ferroflash-cpu",
    "ferroflash-kernels",
    "ferroflash-score",
    "find_cuda_helper",
    "kernels-gpu",
    "ptx-sim",
];
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// Bytes of the wheel at most, as of a crate.
const WHEEL_BYTES_MAX: u64 = 25_000_000;

/// What to make.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// The folder of the PTX, its manifest and cubins [default: target/ptx]
    #[arg(long, value_name = "DIR")]
    pub(crate) ptx_dir: Option<PathBuf>,
    /// Where it all goes; what was there is taken away [default: target/package-out]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// The crates alone, without the wheel and the C archive
    #[arg(long)]
    pub(crate) crates_only: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let out = options.out.clone().unwrap_or_else(|| workspace::target().join("package-out"));
    let folder = options.ptx_dir.clone().unwrap_or_else(|| workspace::target().join("ptx"));
    let out = std::path::absolute(out)?;
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    let archive = workspace::target().join("kernels.bin");
    pack_kernels::pack(&folder, &archive)?;
    crates(&out, &archive)?;
    copy_tree(&workspace::root().join("examples/decode"), &out.join("examples/decode"))?;
    if !options.crates_only {
        c_archive(&out, &archive)?;
        wheel(&out, &archive)?;
    }
    for licence in LICENCES {
        copy(&workspace::root().join(licence), &out.join(licence))?;
    }
    manifest(&out)?;
    example(&out)?;
    eprintln!("{}: complete", workspace::shown(&out));
    Ok(())
}

/// The crates as cargo packages them, the archive of kernels in its place, and paths to each other.
fn crates(out: &Path, archive: &Path) -> anyhow::Result<()> {
    let scratch = workspace::target().join("crates");
    let mut package = workspace::cargo();
    package
        .args(["package", "--quiet", "--no-verify", "--allow-dirty", "--exclude-lockfile", "--target-dir"])
        .arg(&scratch);
    package.args(CRATES.iter().flat_map(|name| ["--package", name]));
    process::run(&mut package)?;
    for name in CRATES {
        let file = crate_file(&scratch.join("package"), name)?;
        let home = out.join("crates").join(name);
        std::fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
        let mut tar = Command::new("tar");
        process::run(tar.arg("-xzf").arg(&file).arg("--strip-components=1").arg("-C").arg(&home))?;
        for licence in LICENCES {
            copy(&workspace::root().join(licence), &home.join(licence))?;
        }
        let path = home.join("Cargo.toml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        std::fs::write(&path, with_paths(&text)?).with_context(|| path.display().to_string())?;
    }
    copy(archive, &out.join("crates/ferroflash-kernels/data/kernels.bin"))
}

/// The newest file that cargo packaged of a crate.
fn crate_file(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let is_meant = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let version = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        version.is_some_and(|rest| rest.ends_with(".crate") && rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let files = entries.flatten().map(|entry| entry.path()).filter(is_meant);
    let newest = files.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    newest.with_context(|| format!("cargo packaged no {name}"))
}

/// A packaged manifest whose dependencies on the other crates have paths beside their versions.
fn with_paths(manifest: &str) -> anyhow::Result<String> {
    let mut manifest: toml::Table = toml::from_str(manifest)?;
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let Some(toml::Value::Table(dependencies)) = manifest.get_mut(kind) else { continue };
        // What tests alone need is not handed out.
        if kind == "dev-dependencies" {
            dependencies.clear();
        }
        for (name, dependency) in dependencies.iter_mut().filter(|(name, _)| CRATES.contains(&name.as_str()))
        {
            if let toml::Value::Table(dependency) = dependency {
                dependency.insert("path".to_owned(), format!("../{name}").into());
            }
        }
    }
    Ok(toml::to_string(&manifest)?)
}

/// The header, both libraries with the kernels inside, and the example.
fn c_archive(out: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut build = workspace::cargo();
    build.args(["build", "--release", "--package", "ferroflash-c"]).env("FERROFLASH_KERNELS", archive);
    process::run(&mut build)?;
    let (from, to) = (workspace::root().join("bindings/c"), out.join("c"));
    for file in ["include/ferroflash.h", "examples/attention.c", "examples/decode.c"] {
        copy(&from.join(file), &to.join(file))?;
    }
    for library in ["libferroflash_c.so", "libferroflash_c.a"] {
        copy(&workspace::target().join("release").join(library), &to.join("lib").join(library))?;
    }
    for licence in LICENCES {
        copy(&workspace::root().join(licence), &to.join(licence))?;
    }
    // The examples from this folder alone.
    for example in ["attention", "decode"] {
        let program = workspace::target().join(format!("c-{example}"));
        let source = to.join("examples").join(example).with_extension("c");
        let mut cc = Command::new("cc");
        cc.arg("-I").arg(to.join("include")).arg(source).arg("-L").arg(to.join("lib"));
        process::run(cc.args(["-lferroflash_c", "-lm", "-ldl", "-o"]).arg(&program))?;
        process::run(Command::new(&program).env("LD_LIBRARY_PATH", to.join("lib")))?;
    }
    Ok(())
}

/// The wheel, built by maturin.
fn wheel(out: &Path, archive: &Path) -> anyhow::Result<()> {
    let Some(python) = python::find() else {
        bail!("there is no python3 of 3.10 or newer to build the wheel with")
    };
    let maturin = python::maturin(&python).map_err(|reason| anyhow::anyhow!("no maturin: {reason}"))?;
    let home = workspace::root().join("bindings/python");
    let mut build = Command::new(maturin);
    build.args(["build", "--release", "--out"]).arg(out.join("python"));
    build.current_dir(&home).env("FERROFLASH_KERNELS", archive);
    process::run(&mut build)?;
    for entry in std::fs::read_dir(out.join("python"))? {
        let path = entry?.path();
        let bytes = path.metadata()?.len();
        if bytes > WHEEL_BYTES_MAX {
            bail!("{} has {bytes} bytes, {WHEEL_BYTES_MAX} at most", path.display());
        }
    }
    Ok(())
}

/// `manifest.json`: every file with its bytes and SHA-256.
fn manifest(out: &Path) -> anyhow::Result<()> {
    let mut files = BTreeMap::new();
    collect(out, out, &mut files)?;
    let list: BTreeMap<String, serde_json::Value> = files
        .into_iter()
        .map(|(name, bytes)| {
            let entry = serde_json::json!({ "bytes": bytes.len(), "sha256": manifest_file::sha256(&bytes) });
            (name, entry)
        })
        .collect();
    let text = serde_json::to_string_pretty(&list)? + "\n";
    Ok(std::fs::write(out.join("manifest.json"), text)?)
}

/// Builds and runs the example in a workspace that has nothing but the package, and no folder of kernels.
fn example(out: &Path) -> anyhow::Result<()> {
    let home = tempfile::tempdir().context("no temporary folder")?;
    for part in ["crates", "examples"] {
        copy_tree(&out.join(part), &home.path().join(part))?;
    }
    let mut run = Command::new(workspace::cargo().get_program());
    run.args(["run", "--quiet"]).current_dir(home.path().join("examples/decode"));
    run.env("CARGO_TARGET_DIR", workspace::target().join("package-example"));
    // As the workspace has it: the simulator is slow without optimisation.
    run.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2")
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .env_remove("FERROFLASH_PTX")
        .env_remove("FERROFLASH_KERNELS");
    Ok(process::run(&mut run)?)
}

fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            files.insert(name, std::fs::read(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut files = BTreeMap::new();
    collect(from, from, &mut files)?;
    for (name, bytes) in files {
        manifest_file::write_whole(&to.join(name), &bytes)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(from).with_context(|| from.display().to_string())?;
    Ok(manifest_file::write_whole(to, &bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_among_the_crates_have_paths() {
        let manifest = "[package]\nname = \"ferroflash\"\n[dependencies.half]\nversion = \"2\"\n\
                        [dependencies.ptx-sim]\nversion = \"0.1\"\noptional = true\n\
                        [dev-dependencies.tempfile]\nversion = \"3\"\n";
        let table: toml::Table =
            toml::from_str(&with_paths(manifest).expect("a manifest")).expect("a manifest");
        let path = |name: &str| table["dependencies"][name].get("path").and_then(|path| path.as_str());
        assert_eq!((path("ptx-sim"), path("half")), (Some("../ptx-sim"), None));
        assert_eq!(table["dev-dependencies"].as_table().map(toml::Table::len), Some(0));
    }

    #[test]
    fn a_crates_file_is_told_from_those_of_longer_names() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["ferroflash-0.1.0.crate", "ferroflash-cpu-0.1.0.crate"] {
            std::fs::write(folder.path().join(name), "").expect("written");
        }
        let found = crate_file(folder.path(), "ferroflash").expect("there");
        assert!(found.ends_with("ferroflash-0.1.0.crate"), "{}", found.display());
        assert!(crate_file(folder.path(), "ptx-sim").is_err());
    }
}
