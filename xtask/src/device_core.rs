//! The core library compiled for the device, handed on from one build folder to the next: compiling it takes longer than a few rows do.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Where cargo keeps what it compiled, for the device and for the build itself.
const PROFILES: [&str; 2] = ["nvptx64-nvidia-cuda/release", "release"];
/// What a compiled core library is named after.
const CORE: &str = "libcore-";

/// Fills a build folder that is not there yet with the libraries of one that is, of the same flags; what is compiled from them stays.
pub(crate) fn share(alike: &[impl AsRef<Path>], folder: &Path) -> io::Result<()> {
    let has_core = |from: &Path| {
        let entries = fs::read_dir(from.join(PROFILES[0]).join("deps")).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name.starts_with(CORE) && name.ends_with(".rlib"))
    };
    let Some(from) = alike.iter().map(AsRef::as_ref).find(|from| has_core(from)) else { return Ok(()) };
    if folder.exists() {
        return Ok(());
    }
    // Whole or not at all: a part would be taken for a build folder.
    let part = folder.with_extension("part");
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    for profile in PROFILES {
        for kind in ["build", "deps", ".fingerprint"] {
            let (from, to) = (from.join(profile).join(kind), part.join(profile).join(kind));
            if from.is_dir() {
                copy(&from, &to)?;
            }
        }
    }
    fs::rename(&part, folder)
}

/// Copies a folder without what kernels were compiled to.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_of_kernels = ["kernels", "scores"].iter().any(|word| name.to_string_lossy().starts_with(word));
        if is_of_kernels {
            continue;
        }
        let (kind, target) = (entry.file_type()?, to.join(&name));
        if kind.is_dir() {
            copy(&entry.path(), &target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &target)?;
            // Cargo compares times: newer ones would hide that a source has changed since.
            File::options().write(true).open(&target)?.set_modified(entry.metadata()?.modified()?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_folder_has_the_libraries_of_another_and_an_old_one_stays() {
        let home = tempfile::tempdir().expect("a folder");
        let (full, new, bare) = (home.path().join("full"), home.path().join("new"), home.path().join("bare"));
        let deps = |folder: &Path| folder.join(PROFILES[0]).join("deps");
        share(&[&bare, &full], &new).expect("nothing to do");
        assert!(!new.exists(), "there is no core library");
        fs::create_dir_all(deps(&full)).expect("made");
        for name in ["libcore-1.rlib", "kernels_gpu.ptx"] {
            fs::write(deps(&full).join(name), name).expect("written");
        }
        let file = File::options().write(true).open(deps(&full).join("libcore-1.rlib")).expect("there");
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        file.set_modified(time).expect("set");
        share(&[&bare, &full], &new).expect("copied");
        let modified = fs::metadata(deps(&new).join("libcore-1.rlib")).and_then(|data| data.modified());
        assert_eq!(modified.expect("there"), time);
        assert!(!deps(&new).join("kernels_gpu.ptx").exists());
        fs::write(deps(&full).join("libcore-2.rlib"), "").expect("written");
        share(&[&bare, &full], &new).expect("nothing to do");
        assert!(!deps(&new).join("libcore-2.rlib").exists(), "it was there");
    }
}
