//! Kernels of several folders in one, so that one process loads them all.

use crate::error::{Error, Result};
use crate::kernels::{self, KernelRef};
use check::kernel_folder::KernelFolder;
use ferroflash::module::Library;
use kernels_gpu::manifest::Kernel;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes a folder with a kernel and others; those whose name is taken get another. Returns the first where it is now, and the names of
/// the others. Machine code is kept for the architectures for which all have it, and for none where a name changes: they are compared,
/// so one way of compiling serves all.
///
/// # Errors
/// [`Error::BadFile`] where a kernel's PTX cannot be cut out, [`Error::Host`], [`Error::Io`].
pub fn side_by_side(first: &KernelRef, others: &[KernelRef], out: &Path) -> Result<(KernelRef, Vec<String>)> {
    let found = std::iter::once(first).chain(others).map(kernels::find).collect::<Result<Vec<_>>>()?;
    let mut entries: Vec<String> = Vec::new();
    for (at, (_, kernel)) in found.iter().enumerate() {
        let is_taken = entries.contains(&kernel.entry);
        entries.push(if is_taken { format!("{}_beside{at}", kernel.entry) } else { kernel.entry.clone() });
    }
    let is_renamed = found.iter().zip(&entries).any(|((_, kernel), entry)| kernel.entry != *entry);
    let (_, first_kernel) = &found[0];
    let has_all = |arch: &&String| found.iter().all(|(_, kernel)| kernel.cubins.contains_key(*arch));
    let archs: Vec<&String> =
        first_kernel.cubins.keys().filter(|arch| !is_renamed && has_all(arch)).collect();
    let io = |source| Error::io(out, source);
    let mut folder = KernelFolder::new(out, found[0].0.device_compiler()).map_err(io)?;
    let mut families: BTreeMap<&str, String> = BTreeMap::new();
    for ((library, kernel), entry) in found.iter().zip(&entries) {
        let (header, body) = parts(library, kernel)?;
        let text = families.entry(&kernel.family).or_insert(header);
        *text += &format!("\n{}\n", body.replace(&kernel.entry, entry));
        let cubins = cubins(library, kernel, &archs, out)?;
        folder.kernel(Kernel { entry: entry.clone(), cubins, ..Kernel::clone(kernel) });
    }
    for (family, text) in families {
        folder.family(family, &text).map_err(io)?;
    }
    // Nothing that is compared here splits keys in several: no combine kernels.
    folder.finish().map_err(io)?;
    let first = KernelRef { folder: out.to_owned(), entry: entries.remove(0) };
    Ok((first, entries))
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
    let text = library.kernel_ptx(kernel)?;
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
            let (first, others) = side_by_side(first, std::slice::from_ref(second), &out).expect("merged");
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
        let (first, others) = side_by_side(&new[0], &old[..1], &home.path().join("out")).expect("merged");
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
