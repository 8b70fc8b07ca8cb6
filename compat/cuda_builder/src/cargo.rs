//! The cargo call that turns a crate into PTX.

use crate::{CudaBuilder, CudaBuilderError, DebugInfo};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "nvptx64-nvidia-cuda";

/// Flags of the whole device build, core library included.
fn rustflags(builder: &CudaBuilder) -> String {
    let flags = [
        format!("-Ctarget-cpu={}", builder.arch.target_cpu()),
        // rustc would look for llvm-bitcode-linker; with fat LTO one module is left and there is nothing to link.
        "-Clinker=true".to_owned(),
        // Without it loops over register tiles stay loops, and their arrays go to local memory.
        "-Cllvm-args=-unroll-threshold=100000".to_owned(),
    ];
    flags.join("\x1f")
}

pub(crate) fn build(builder: &CudaBuilder) -> Result<PathBuf, CudaBuilderError> {
    let manifest = builder.path_to_crate.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest)
        .map_err(|_| CudaBuilderError::CratePathDoesntExist(builder.path_to_crate.clone()))?;
    let package = package_name(&text).ok_or_else(|| CudaBuilderError::NoPackageName(manifest.clone()))?;
    // Cargo gives a cdylib's files no hash, so builds that differ in anything must not share a folder.
    let target_dir =
        builder.target_dir.clone().unwrap_or_else(|| builder.path_to_crate.join("../target/device"));
    let file = target_dir.join(TARGET).join("release/deps").join(package.replace('-', "_"));
    let (assembly, ptx) = (file.with_extension("s"), file.with_extension("ptx"));

    run(command(builder, &manifest, package, &target_dir))?;
    // Cargo waits for the linker's output, and counts the crate as stale until it is there. Nothing is linked: what rustc
    // assembled takes its place, and is absent where cargo had nothing to do.
    if assembly.is_file() {
        let moved = std::fs::read_to_string(&assembly)
            .and_then(|text| std::fs::write(&ptx, raise_version(&text, builder.arch.ptx_version())))
            .and_then(|()| std::fs::remove_file(&assembly));
        moved.map_err(|source| CudaBuilderError::FailedToCopyPtxFile { path: ptx.clone(), source })?;
    }
    if ptx.is_file() { Ok(ptx) } else { Err(CudaBuilderError::NoPtx(ptx)) }
}

fn command(builder: &CudaBuilder, manifest: &Path, package: &str, target_dir: &Path) -> Command {
    // Inside `cargo run` or a build script this is the very cargo that runs; rustup's proxy otherwise.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["rustc", "--release", "--target", TARGET, "-p", package]);
    cargo.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(target_dir);
    // Allows -Z options in cargo and unstable features in the compiler, on released versions of both.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    if let Some(rustc) = &builder.rustc {
        cargo.env("RUSTC", rustc);
    }
    // A user's flags and wrappers are meant for the host compiler; an empty wrapper also overrules a configured one.
    for name in ["RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        cargo.env_remove(name);
    }
    for name in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
        cargo.env(name, "");
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", rustflags(builder));
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "fat");
    cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    // Incremental compilation cuts a crate into more units, between which nothing is inlined.
    cargo.env("CARGO_INCREMENTAL", "0");
    cargo.env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3");
    // Incremental builds cut the crate into units before what is always inlined is inlined: panics stay that else fold away, and the
    // PTX becomes another.
    cargo.env("CARGO_INCREMENTAL", "0");
    cargo.env(
        "CARGO_PROFILE_RELEASE_DEBUG",
        match builder.debug {
            DebugInfo::None => "none",
            DebugInfo::LineTables => "line-tables-only",
        },
    );
    cargo.envs(builder.envs.iter().map(|(name, value)| (name, value)));
    cargo.args(["--lib", "--crate-type", "cdylib", "-Zbuild-std=core"]);
    cargo.args(&builder.build_args);
    cargo.args(["--", "--emit=asm"]);
    cargo.args(builder.cfgs.iter().flat_map(|cfg| ["--cfg", cfg]));
    cargo
}

fn run(mut command: Command) -> Result<(), CudaBuilderError> {
    let status = command
        .status()
        .map_err(|source| CudaBuilderError::CargoMissing { program: command.get_program().into(), source })?;
    if status.success() { Ok(()) } else { Err(CudaBuilderError::BuildFailed(status)) }
}

/// The PTX with at least this version in its header. rustc writes the least that its own instructions need and knows nothing of
/// those in inline assembly; its `-Ctarget-feature=+ptx…` says the same with a warning for each crate.
fn raise_version(text: &str, least: (u32, u32)) -> String {
    const DIRECTIVE: &str = ".version ";
    let Some(at) = text.find(DIRECTIVE).map(|at| at + DIRECTIVE.len()) else { return text.to_owned() };
    let end = at + text[at..].find('\n').unwrap_or(text.len() - at);
    let found = text[at..end].trim().split_once('.').map(|(major, minor)| (major.parse(), minor.parse()));
    match found {
        Some((Ok(major), Ok(minor))) if (major, minor) < least => {
            format!("{}{}.{}{}", &text[..at], least.0, least.1, &text[end..])
        }
        _ => text.to_owned(),
    }
}

/// `name = "…"` of the `[package]` table.
fn package_name(manifest: &str) -> Option<&str> {
    let package = manifest.split("[package]").nth(1)?;
    let line = package
        .lines()
        .take_while(|line| !line.starts_with('['))
        .find(|line| line.strip_prefix("name").is_some_and(|rest| rest.trim_start().starts_with('=')))?;
    line.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NvvmArch;

    fn arguments(command: &Command) -> Vec<String> {
        command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    fn environment(command: &Command, name: &str) -> Option<String> {
        let (_, value) = command.get_envs().find(|(key, _)| *key == name)?;
        value.map(|value| value.to_string_lossy().into_owned())
    }

    #[test]
    fn the_package_name_is_that_of_the_package_table() {
        let manifest =
            "[lib]\nname = \"other\"\n[package]\nversion = \"1\"\nname = \"a-b\"\n[dependencies]\n";
        assert_eq!(package_name(manifest), Some("a-b"));
        assert_eq!(package_name("[package]\nversion = \"1\"\n[lib]\nname = \"x\"\n"), None);
        assert_eq!(package_name("[workspace]\n"), None);
    }

    #[test]
    fn the_version_is_raised_and_never_lowered() {
        let header = |version: &str| format!("// PTX\n.version {version}\n.target sm_80\n");
        assert_eq!(raise_version(&header("7.0"), (7, 4)), header("7.4"));
        assert_eq!(raise_version(&header("6.10"), (7, 4)), header("7.4"));
        for version in ["7.4", "7.10", "8.0", "odd"] {
            assert_eq!(raise_version(&header(version), (7, 4)), header(version));
        }
        assert_eq!(raise_version(".version 7.0", (8, 0)), ".version 8.0");
        assert_eq!(raise_version("none", (8, 0)), "none");
    }

    #[test]
    fn options_reach_the_compiler() {
        let builder = CudaBuilder::new("kernels")
            .arch(NvvmArch::Compute90a)
            .rustc("/some/rustc")
            .cfg("ferroflash_rows")
            .debug(DebugInfo::LineTables)
            .build_args(&["--locked"])
            .env("ROWS", "rows.rs");
        let command = command(&builder, Path::new("kernels/Cargo.toml"), "kernels", Path::new("out"));
        let args = arguments(&command);
        let after = args.iter().position(|arg| arg == "--").expect("compiler arguments");
        assert_eq!(args[after + 1..], ["--emit=asm", "--cfg", "ferroflash_rows"]);
        assert!(args[..after].contains(&"--locked".to_owned()));
        let flags = environment(&command, "CARGO_ENCODED_RUSTFLAGS").expect("flags");
        assert!(flags.starts_with("-Ctarget-cpu=sm_90a\x1f"), "{flags}");
        assert_eq!(environment(&command, "RUSTC").as_deref(), Some("/some/rustc"));
        assert_eq!(environment(&command, "CARGO_PROFILE_RELEASE_DEBUG").as_deref(), Some("line-tables-only"));
        assert_eq!(environment(&command, "CARGO_INCREMENTAL").as_deref(), Some("0"));
        assert_eq!(environment(&command, "ROWS").as_deref(), Some("rows.rs"));
        assert_eq!(environment(&command, "CARGO_INCREMENTAL").as_deref(), Some("0"));
    }

    #[test]
    fn a_folder_without_a_crate_is_an_error() {
        let result = CudaBuilder::new("/nonexistent").build();
        assert!(
            matches!(result, Err(CudaBuilderError::CratePathDoesntExist(path)) if path == Path::new("/nonexistent"))
        );
    }
}
