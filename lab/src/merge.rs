//! Two kernels of two folders in one, so that one process loads both.

use crate::error::{Error, Result};
use crate::kernels::{self, KernelRef};
use crate::session::write_whole;
use ferroflash::module::{Library, MANIFEST_FILE, slice_entry};
use kernels_gpu::manifest::{FORMAT, Family, Kernel, Manifest};
use sha2::{Digest, Sha256};
use std::path::Path;

/// What the second kernel's entry ends with where both have one name.
const SUFFIX: &str = "_incumbent";

/// Writes a folder with both kernels; the second gets another name where both have the same.
///
/// # Errors
/// [`Error::BadFile`] where a kernel's PTX cannot be cut out, [`Error::Host`], [`Error::Io`].
pub fn side_by_side(first: &KernelRef, second: &KernelRef, out: &Path) -> Result<(KernelRef, Vec<String>)> {
    let (library, first_kernel) = kernels::find(first)?;
    let (other_library, second_kernel) = kernels::find(second)?;
    let (header, first_body) = parts(&library, &first_kernel)?;
    let (_, mut second_body) = parts(&other_library, &second_kernel)?;
    let mut second_entry = second.entry.clone();
    if second_entry == first.entry {
        second_entry += SUFFIX;
        second_body = second_body.replace(&second.entry, &second_entry);
    }
    let text = format!("{header}\n{first_body}\n{second_body}\n");
    let family = first_kernel.family.clone();
    let kernel = |kernel: &Kernel, entry: &str| Kernel {
        entry: entry.to_owned(),
        family: family.clone(),
        cubins: Default::default(),
        ..kernel.clone()
    };
    let ptx = format!("{family}.ptx");
    let manifest = Manifest {
        format: FORMAT,
        device_compiler: library.device_compiler().to_owned(),
        families: vec![Family {
            arch: family.clone(),
            ptx: ptx.clone(),
            sha256: crate::candidate::hex(&Sha256::digest(text.as_bytes())),
        }],
        kernels: vec![kernel(&first_kernel, &first.entry), kernel(&second_kernel, &second_entry)],
        // Nothing that is compared here splits keys in several.
        combine_kernels: Vec::new(),
    };
    std::fs::create_dir_all(out).map_err(|source| Error::io(out, source))?;
    write_whole(&out.join(ptx), &text)?;
    write_whole(&out.join(MANIFEST_FILE), &serde_json::to_string(&manifest).unwrap_or_default())?;
    Ok((KernelRef { folder: out.to_owned(), entry: first.entry.clone() }, vec![second_entry]))
}

/// The PTX around a kernel's entry, and the entry.
fn parts(library: &Library, kernel: &Kernel) -> Result<(String, String)> {
    let bad = |reason: &str| Error::BadFile { path: library.folder().to_owned(), reason: reason.to_owned() };
    let ptx = library.family_ptx(&kernel.family)?;
    let text = slice_entry(&ptx, &kernel.entry).ok_or_else(|| bad("its PTX lacks the entry"))?;
    let at = text.find(".visible .entry").ok_or_else(|| bad("its PTX has no visible entry"))?;
    // What follows the entry, functions that it may call, is declared and defined for both with the first.
    let end = text[at..].find("\n}").map_or(text.len(), |end| at + end + 2);
    Ok((format!("{}{}", &text[..at], &text[end..]), text[at..end].to_owned()))
}
