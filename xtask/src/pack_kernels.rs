//! `cargo xtask pack-kernels`: a folder of compiled kernels → one archive, each kernel compressed by itself, to be put into programs.

use crate::{manifest_file, workspace};
use anyhow::{Context, bail};
use ferroflash_kernels::{archive, ptx};
use kernels_gpu::manifest::Manifest;
use kernels_gpu::row::Isa;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Bytes of an archive at most: a crate may have 10 MiB, and everybody downloads them.
const BYTES_MAX: usize = 10_000_000;

/// What to pack.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// The folder of the PTX, its manifest and cubins [default: target/ptx]
    #[arg(long, value_name = "DIR")]
    pub(crate) ptx_dir: Option<PathBuf>,
    /// The archive [default: target/kernels.bin]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let folder = options.ptx_dir.clone().unwrap_or_else(|| workspace::target().join("ptx"));
    let out = options.out.clone().unwrap_or_else(|| workspace::target().join("kernels.bin"));
    pack(&folder, &out).map(drop)
}

/// Writes the archive of a folder and returns its manifest.
pub(crate) fn pack(folder: &Path, out: &Path) -> anyhow::Result<Manifest> {
    let mut manifest = manifest_file::read(folder)?;
    // Hopper takes the backward kernels of wgmma nearly always; of the others the driver makes machine code there, which the archive has no
    // room for.
    for kernel in manifest.backward_kernels.iter_mut().filter(|kernel| kernel.row.isa == Isa::Mma) {
        kernel.cubins.remove("sm_90");
    }
    let frames = frames(folder, &manifest)?;
    let bytes = archive::pack(&frames);
    let (count, raw) = (frames.len(), frames.iter().flatten().map(|(_, bytes)| bytes.len()).sum::<usize>());
    eprintln!(
        "{}: {count} frames of {} KB in {} KB; {} kernels, cubins for {}",
        workspace::shown(out),
        raw / 1000,
        bytes.len() / 1000,
        cubins_of_all(&manifest).count(),
        shown(&archs(&manifest)),
    );
    if bytes.len() > BYTES_MAX {
        bail!("the archive has {} bytes, {BYTES_MAX} at most", bytes.len());
    }
    manifest_file::write_whole(out, &bytes)?;
    Ok(manifest)
}

/// The family of each kernel of each kind, and the files of its machine code by architecture.
fn cubins_of_all(manifest: &Manifest) -> impl Iterator<Item = (&String, &BTreeMap<String, String>)> {
    let forward = manifest.kernels.iter().map(|kernel| (&kernel.family, &kernel.cubins));
    let steps = manifest.step_kernels.iter().map(|kernel| (&kernel.family, &kernel.cubins));
    let backward = manifest.backward_kernels.iter().map(|kernel| (&kernel.family, &kernel.cubins));
    forward.chain(steps).chain(backward)
}

/// The architectures that every kernel of a family has machine code for, `sm_80, sm_86`.
fn archs(manifest: &Manifest) -> BTreeSet<String> {
    let mut of_families: BTreeMap<&String, BTreeSet<String>> = BTreeMap::new();
    for (family, cubins) in cubins_of_all(manifest) {
        let here: BTreeSet<String> = cubins.keys().cloned().collect();
        let all = of_families.entry(family).or_insert_with(|| here.clone());
        all.retain(|arch| here.contains(arch));
    }
    of_families.into_values().flatten().collect()
}

fn shown(archs: &BTreeSet<String>) -> String {
    let names: Vec<&str> = archs.iter().map(String::as_str).collect();
    if names.is_empty() { "no architecture".to_owned() } else { names.join(", ") }
}

/// The frames of an archive: the manifest, the parts of each family's PTX, and the cubins. What is of one row shares a frame, for f16 and
/// bf16 and all architectures, as it is alike.
fn frames(folder: &Path, manifest: &Manifest) -> anyhow::Result<Vec<archive::Frame>> {
    let mut frames = vec![vec![("manifest.json".to_owned(), serde_json::to_vec(manifest)?)]];
    for family in &manifest.families {
        let text = manifest_file::read_ptx(folder, family)?;
        let parts =
            ptx::pack(&family.ptx, &text).with_context(|| format!("{} cannot be split", family.ptx))?;
        let mut of_rows: BTreeMap<String, archive::Frame> = BTreeMap::new();
        for part in parts {
            of_rows.entry(part.0.replace("_bf16", "_f16")).or_default().push(part);
        }
        frames.extend(of_rows.into_values());
    }
    let mut of_rows: BTreeMap<String, archive::Frame> = BTreeMap::new();
    for name in cubins_of_all(manifest).flat_map(|(_, cubins)| cubins.values()) {
        let path = folder.join(name);
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let row = path.file_name().unwrap_or_default().to_string_lossy().replace("_bf16", "_f16");
        of_rows.entry(row).or_default().push((name.clone(), bytes));
    }
    frames.extend(of_rows.into_values());
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash_kernels::Archive;
    use kernels_gpu::backward::table::BACKWARD_VARIANTS;
    use kernels_gpu::manifest::{FORMAT, Family};
    use kernels_gpu::table::VARIANTS;

    #[test]
    fn an_archive_holds_what_the_manifest_names() {
        let (folder, home) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let ptx = ".version 7.8\n.visible .entry one()\n{\nret;\n}\n";
        let variant = VARIANTS[0];
        let mut kernel = manifest_file::kernel("one", variant.row, "sm_80", "body");
        kernel.cubins.insert("sm_86".into(), "one.cubin".into());
        let mut backward = manifest_file::backward_kernel("two", BACKWARD_VARIANTS[0].row, "sm_80", "body");
        backward.cubins.insert("sm_86".into(), "two.cubin".into());
        backward.cubins.insert("sm_90".into(), "left-out.cubin".into());
        let sha256 = manifest_file::sha256(ptx.as_bytes());
        let manifest = Manifest {
            format: FORMAT,
            device_compiler: "rustc".into(),
            families: vec![Family { arch: "sm_80".into(), ptx: "sm_80.ptx".into(), sha256 }],
            kernels: vec![kernel],
            step_kernels: Vec::new(),
            backward_kernels: vec![backward],
            score_crate: None,
        };
        manifest_file::write(folder.path(), &manifest).expect("written");
        std::fs::write(folder.path().join("sm_80.ptx"), ptx).expect("written");
        let out = home.path().join("kernels.bin");
        assert!(pack(folder.path(), &out).is_err(), "the cubin is missing");
        std::fs::write(folder.path().join("one.cubin"), b"\x7fELF").expect("written");
        assert!(pack(folder.path(), &out).is_err(), "that of the backward kernel is");
        std::fs::write(folder.path().join("two.cubin"), b"\x7fELF").expect("written");
        let packed = pack(folder.path(), &out).expect("packed");
        assert_eq!(archs(&packed), BTreeSet::from(["sm_86".to_owned()]));
        let bytes = std::fs::read(&out).expect("written");
        let archive = Archive::parse(&bytes).expect("whole");
        let names: Vec<&str> = archive.names().collect();
        assert_eq!(names, ["manifest.json", "one.cubin", "sm_80.ptx", "sm_80.ptx/one", "two.cubin"]);
    }
}
