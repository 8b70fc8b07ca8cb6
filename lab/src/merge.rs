//! Two kernels of two folders in one, so that one process loads both.

use crate::error::{Error, Result};
use crate::kernels::{self, KernelRef};
use check::kernel_folder::KernelFolder;
use ferroflash::module::{Library, slice_entry};
use kernels_gpu::manifest::Kernel;
use std::collections::BTreeMap;
use std::path::Path;

/// What the second kernel's entry ends with where both have one name.
const SUFFIX: &str = "_incumbent";

/// Writes a folder with both kernels; the second gets another name where both have the same. Machine code is kept for the
/// architectures for which both have it, and for none where a name changes: the two are compared, so one way of compiling serves both.
///
/// # Errors
/// [`Error::BadFile`] where a kernel's PTX cannot be cut out, [`Error::Host`], [`Error::Io`].
pub fn side_by_side(first: &KernelRef, second: &KernelRef, out: &Path) -> Result<(KernelRef, Vec<String>)> {
    let (library, first_kernel) = kernels::find(first)?;
    let io = |source| Error::io(out, source);
    let mut folder = KernelFolder::new(out, library.device_compiler()).map_err(io)?;
    let (other_library, second_kernel) = kernels::find(second)?;
    let (header, first_body) = parts(&library, &first_kernel)?;
    let (second_header, mut second_body) = parts(&other_library, &second_kernel)?;
    let mut second_entry = second.entry.clone();
    let is_renamed = second_entry == first.entry;
    if is_renamed {
        second_entry += SUFFIX;
        second_body = second_body.replace(&second.entry, &second_entry);
    }
    if first_kernel.family == second_kernel.family {
        let text = format!("{header}\n{first_body}\n{second_body}\n");
        folder.family(&first_kernel.family, &text).map_err(io)?;
    } else {
        folder.family(&first_kernel.family, &format!("{header}\n{first_body}\n")).map_err(io)?;
        folder.family(&second_kernel.family, &format!("{second_header}\n{second_body}\n")).map_err(io)?;
    }
    let has_both = |arch: &&String| second_kernel.cubins.contains_key(*arch) && !is_renamed;
    let archs: Vec<&String> = first_kernel.cubins.keys().filter(has_both).collect();
    let kernel = |library: &Library, kernel: &Kernel, entry: &str| -> Result<Kernel> {
        let cubins = cubins(library, kernel, &archs, out)?;
        Ok(Kernel { entry: entry.to_owned(), cubins, ..kernel.clone() })
    };
    folder.kernel(kernel(&library, &first_kernel, &first.entry)?);
    folder.kernel(kernel(&other_library, &second_kernel, &second_entry)?);
    // Nothing that is compared here splits keys in several: no combine kernels.
    folder.finish().map_err(io)?;
    Ok((KernelRef { folder: out.to_owned(), entry: first.entry.clone() }, vec![second_entry]))
}

/// Copies a kernel's machine code for some architectures.
fn cubins(
    library: &Library,
    kernel: &Kernel,
    archs: &[&String],
    out: &Path,
) -> Result<BTreeMap<String, String>> {
    let mut copied = BTreeMap::new();
    for (arch, file) in kernel.cubins.iter().filter(|(arch, _)| archs.contains(arch)) {
        let (from, name) = (library.folder().join(file), format!("{}-{arch}.cubin", kernel.entry));
        std::fs::copy(&from, out.join(&name)).map_err(|source| Error::io(&from, source))?;
        copied.insert(arch.clone(), name);
    }
    Ok(copied)
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

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::module::kernels_of_table;
    use std::sync::Arc;

    /// A folder with the first kernels of the table, and machine code of those that are named.
    fn folder(at: &Path, family: &str, with_code: &[usize]) -> Vec<KernelRef> {
        let mut written = KernelFolder::new(at, "by hand").expect("a folder");
        let mut text = format!(".version 8.0\n.target {family}\n");
        let of_table: Vec<_> = kernels_of_table().0.into_iter().take(2).collect();
        for (number, kernel) in of_table.iter().enumerate() {
            let entry = &kernel.entry;
            text += &format!(".visible .entry {entry}(\n)\n{{\n\tret; // {entry}\n}}\n");
            let file = format!("{number}.cubin");
            std::fs::write(at.join(&file), format!("\x7fELF {number}")).expect("written");
            let cubins = with_code.iter().filter(|with| **with == number);
            let cubins = cubins.map(|_| ("sm_90".to_owned(), file.clone())).collect();
            written.kernel(Kernel { family: family.to_owned(), cubins, ..Kernel::clone(kernel) });
        }
        written.family(family, &text).expect("written");
        written.finish().expect("written");
        let of = |kernel: &Arc<Kernel>| KernelRef { folder: at.to_owned(), entry: kernel.entry.clone() };
        of_table.iter().map(of).collect()
    }

    #[test]
    fn machine_code_comes_along_only_where_both_are_compiled_alike() {
        let home = tempfile::tempdir().expect("a folder");
        let both = folder(&home.path().join("both"), "sm_80", &[0, 1]);
        let one = folder(&home.path().join("one"), "sm_80", &[0]);
        let code = |first: &KernelRef, second: &KernelRef| {
            let out = home.path().join("out");
            let (first, others) = side_by_side(first, second, &out).expect("merged");
            let second = KernelRef { entry: others[0].clone(), ..first.clone() };
            [first, second].map(|kernel| {
                let (library, kernel) = kernels::find(&kernel).expect("there");
                library.source(&kernel, 90).expect("runs").to_string()
            })
        };
        assert_eq!(code(&both[0], &both[1]), ["cubin sm_90", "cubin sm_90"]);
        assert_eq!(code(&one[0], &one[1]), ["PTX sm_80", "PTX sm_80"]);
        assert_eq!(code(&both[0], &both[0]), ["PTX sm_80", "PTX sm_80"], "one of them has another name");
    }

    #[test]
    fn kernels_of_two_families_keep_theirs() {
        let home = tempfile::tempdir().expect("a folder");
        let old = folder(&home.path().join("old"), "sm_80", &[]);
        let new = folder(&home.path().join("new"), "sm_90a", &[]);
        let (first, others) = side_by_side(&new[0], &old[0], &home.path().join("out")).expect("merged");
        let (library, kernel) = kernels::find(&first).expect("there");
        assert_eq!((kernel.family.as_str(), library.families().len()), ("sm_90a", 2));
        let second = KernelRef { entry: others[0].clone(), ..first };
        let (library, kernel) = kernels::find(&second).expect("there");
        let ptx = library.family_ptx(&kernel.family).expect("PTX");
        assert!(
            ptx.contains(".target sm_80") && ptx.contains(&second.entry) && !ptx.contains(".target sm_90a")
        );
    }
}
