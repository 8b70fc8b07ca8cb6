//! The PTX folder: `manifest.json` and the files it names, written whole or not at all.

use crate::ptx_text;
use kernels_gpu::backward::row::BackwardRow;
use kernels_gpu::geometry;
use kernels_gpu::manifest::{FORMAT, Family, Kernel, Manifest};
use kernels_gpu::row::Row;
use kernels_gpu::steps::StepRow;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Why a PTX folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("{} is not there: run `cargo xtask build-ptx`", .0.display())]
    Missing(PathBuf),
    #[error("{}: {reason}", path.display())]
    Io { path: PathBuf, reason: std::io::Error },
    #[error("{}: {reason}: run `cargo xtask build-ptx`", path.display())]
    Parse { path: PathBuf, reason: serde_json::Error },
    #[error("{} has format {found}, this build reads {FORMAT}: run `cargo xtask build-ptx`", path.display())]
    Format { path: PathBuf, found: u32 },
    #[error("{} is not the file that the manifest was written for: run `cargo xtask build-ptx`", .0.display())]
    Changed(PathBuf),
}

/// SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The record of a forward kernel that no ptxas has seen.
pub(crate) fn kernel(entry: &str, row: Row, family: &str, ptx: &str) -> Kernel {
    record(entry, row, family, ptx, (geometry::threads(&row), geometry::smem_bytes(&row)))
}

/// The record of a step kernel that no ptxas has seen.
pub(crate) fn step_kernel(entry: &str, row: StepRow, family: &str, ptx: &str) -> Kernel<StepRow> {
    record(entry, row, family, ptx, (row.threads(), row.smem_bytes()))
}

/// The record of a kernel of the backward pass that no ptxas has seen.
pub(crate) fn backward_kernel(entry: &str, row: BackwardRow, family: &str, ptx: &str) -> Kernel<BackwardRow> {
    record(entry, row, family, ptx, (row.threads(), row.smem_bytes()))
}

fn record<R>(entry: &str, row: R, family: &str, ptx: &str, (threads, smem_bytes): (u32, u32)) -> Kernel<R> {
    Kernel {
        entry: entry.to_owned(),
        family: family.to_owned(),
        row,
        threads,
        smem_bytes,
        sha256: sha256(ptx_text::without_function_numbers(ptx).as_bytes()),
        resources: Default::default(),
        cubins: Default::default(),
        waits: ferroflash_kernels::waits_first(ptx),
    }
}

/// Takes over what ptxas said of kernels that are the same as before, and their machine code where it is still there.
pub(crate) fn carry_over<R: PartialEq>(kernels: &mut [Kernel<R>], before: &[Kernel<R>], folder: &Path) {
    for kernel in kernels {
        let same = |old: &&Kernel<R>| {
            (&old.entry, &old.sha256, &old.row) == (&kernel.entry, &kernel.sha256, &kernel.row)
        };
        if let Some(old) = before.iter().find(same) {
            kernel.resources = old.resources.clone();
            kernel.cubins = old.cubins.clone();
            kernel.cubins.retain(|_, file| folder.join(file).is_file());
        }
    }
}

/// The manifest of a folder.
pub(crate) fn read(folder: &Path) -> Result<Manifest, ManifestError> {
    let path = folder.join("manifest.json");
    let text = std::fs::read_to_string(&path).map_err(|reason| missing_or_io(&path, reason))?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|reason| ManifestError::Parse { path: path.clone(), reason })?;
    if manifest.format != FORMAT {
        return Err(ManifestError::Format { path, found: manifest.format });
    }
    Ok(manifest)
}

/// The text of a family's PTX, if it is the one that the manifest was written for.
pub(crate) fn read_ptx(folder: &Path, family: &Family) -> Result<String, ManifestError> {
    let path = folder.join(&family.ptx);
    let text = std::fs::read_to_string(&path).map_err(|reason| missing_or_io(&path, reason))?;
    if sha256(text.as_bytes()) == family.sha256 { Ok(text) } else { Err(ManifestError::Changed(path)) }
}

fn missing_or_io(path: &Path, reason: std::io::Error) -> ManifestError {
    match reason.kind() {
        std::io::ErrorKind::NotFound => ManifestError::Missing(path.to_owned()),
        _ => ManifestError::Io { path: path.to_owned(), reason },
    }
}

pub(crate) fn write(folder: &Path, manifest: &Manifest) -> Result<(), ManifestError> {
    let path = folder.join("manifest.json");
    let mut text = serde_json::to_string_pretty(manifest)
        .map_err(|reason| ManifestError::Parse { path: path.clone(), reason })?;
    text.push('\n');
    write_whole(&path, text.as_bytes())
}

/// Writes beside the file and renames, so that a reader never sees half of it; leaves an equal file as it is.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ManifestError> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let attempt = || -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        make_readable(file.as_file())?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    attempt().map_err(|reason| ManifestError::Io { path: path.to_owned(), reason })
}

/// Temporary files are their owner's alone; these are for everyone who may read the folder.
#[cfg(unix)]
fn make_readable(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn make_readable(_file: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::manifest::Resources;
    use kernels_gpu::table::VARIANTS;

    fn manifest() -> Manifest {
        let variant = VARIANTS[0];
        let family = Family { arch: "sm_80".into(), ptx: "sm_80.ptx".into(), sha256: sha256(b"ptx") };
        let kernels = vec![kernel(variant.entry, variant.row, "sm_80", "body")];
        Manifest {
            format: FORMAT,
            device_compiler: "rustc".into(),
            families: vec![family],
            kernels,
            step_kernels: Vec::new(),
            backward_kernels: Vec::new(),
            score_crate: None,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        write(folder.path(), &manifest()).expect("writable");
        assert_eq!(read(folder.path()).expect("readable"), manifest());
    }

    #[test]
    fn resources_stay_with_a_kernel_until_it_changes() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut before = manifest();
        let resources = Resources { registers: 129, ..Resources::default() };
        before.kernels[0].resources.insert("sm_89".into(), resources);
        before.kernels[0].cubins.insert("sm_89".into(), "gone.cubin".into());
        let mut same = manifest().kernels;
        carry_over(&mut same, &before.kernels, folder.path());
        assert_eq!(same[0].resources["sm_89"], resources);
        assert!(same[0].cubins.is_empty(), "its file is not there");
        let mut changed = manifest().kernels;
        changed[0].sha256 = sha256(b"another body");
        carry_over(&mut changed, &before.kernels, folder.path());
        assert!(changed[0].resources.is_empty());
    }

    #[test]
    fn unusable_folders_say_what_to_do() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let at = folder.path();
        assert!(matches!(read(at), Err(ManifestError::Missing(_))));
        std::fs::write(at.join("manifest.json"), "{").expect("writable");
        assert!(matches!(read(at), Err(ManifestError::Parse { .. })));
        write(at, &Manifest { format: 99, ..manifest() }).expect("writable");
        assert!(matches!(read(at), Err(ManifestError::Format { found: 99, .. })));
        std::fs::write(at.join("sm_80.ptx"), "edited").expect("writable");
        assert!(matches!(read_ptx(at, &manifest().families[0]), Err(ManifestError::Changed(_))));
        std::fs::write(at.join("sm_80.ptx"), "ptx").expect("writable");
        assert_eq!(read_ptx(at, &manifest().families[0]).expect("the same file"), "ptx");
    }
}
