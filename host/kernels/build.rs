//! Finds the archive of kernels that goes into the program: `data/kernels.bin` of a packaged crate, or the file that
//! FERROFLASH_KERNELS names. A checkout has neither, so its programs look for a folder instead.

use std::path::{Path, PathBuf};

const VARIABLE: &str = "FERROFLASH_KERNELS";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let packaged = Path::new("data/kernels.bin");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    // A file that is missing counts as changed, and every build would compile this crate and all that use it again: where there is none,
    // the package's folder says when one comes.
    let watched = if packaged.is_file() { packaged } else { Path::new(".") };
    println!("cargo::rerun-if-changed={}", watched.display());
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let archive = named.or_else(|| packaged.is_file().then(|| packaged.to_owned()));
    let source = match archive {
        Some(path) => {
            let path = std::path::absolute(path)?;
            println!("cargo::rerun-if-changed={}", path.display());
            format!("Some(include_bytes!({:?}))", path.display().to_string())
        }
        None => "None".to_owned(),
    };
    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("archive.rs");
    Ok(std::fs::write(out, source)?)
}
