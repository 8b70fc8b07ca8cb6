//! The files of the device crate that the host reads too: what they say decides how kernels are launched, and the host that examines a patch is
//! compiled without it.

use crate::proposer::DEVICE_SOURCE;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where the host's code is, which launches kernels and says what is right.
const FOLDERS: [&str; 3] = ["host/src", "check/src", "xtask/src"];
/// What every host has to read: the table and the parameter blocks; what checks the rows is part of these.
const ALWAYS: [&str; 5] = ["table.rs", "row.rs", "row_check.rs", "params.rs", "manifest.rs"];
/// What a patch may change although the host reads it: of the geometry a folder's manifest says what was compiled, which the host compares with its
/// own, and from the order of tiles the host estimates times alone.
const COMPARED: [&str; 3] = ["geometry.rs", "scheduler.rs", "sequence.rs"];

/// The files, from the device crate's source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(BTreeSet<String>);

impl Hosts {
    /// Those of a tree, by what its host's code imports.
    pub fn of(root: &Path) -> Hosts {
        let mut files: BTreeSet<String> = ALWAYS.into_iter().map(str::to_owned).collect();
        let device = root.join(DEVICE_SOURCE);
        for source in FOLDERS.into_iter().flat_map(|folder| rust_files(&root.join(folder))) {
            let text = std::fs::read_to_string(&source).unwrap_or_default();
            // What tests import launches nothing.
            let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            files.extend(imported(code).iter().filter_map(|module| file_of(&device, module)));
        }
        files.retain(|file| !COMPARED.contains(&file.as_str()));
        Hosts(files)
    }

    /// Whether the host reads a file of the device crate's source.
    pub fn read(&self, file: &str) -> bool {
        self.0.contains(file) || file.starts_with("params/")
    }
}

/// The Rust files below a folder, but for files of tests.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_of_tests = path.file_stem().is_some_and(|name| name == "tests");
            if is_of_tests {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// What a text names of the device crate: `a::b::C` of `kernels_gpu::a::b::C`, and of each path in braces.
fn imported(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for rest in text.split("kernels_gpu::").skip(1) {
        named(rest, "", &mut found);
    }
    found
}

/// The paths that a text begins with: one, or several in braces. Returns what follows.
fn named<'a>(text: &'a str, before: &str, found: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if rest.is_empty() || rest.starts_with('}') {
                return rest.strip_prefix('}').unwrap_or(rest);
            }
            let behind = named(rest, before, found);
            // `as` and the new name, or what is no path at all.
            rest = behind.find([',', '}']).map_or("", |at| &behind[at..]);
        }
    }
    let is_of_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
    let (path, rest) = text.split_at(text.find(|c| !is_of_path(c)).unwrap_or(text.len()));
    match path.strip_suffix("::") {
        Some(module) if rest.starts_with('{') => named(rest, &format!("{before}{module}::"), found),
        _ => {
            found.push(format!("{before}{path}"));
            rest
        }
    }
}

/// The file of the module that a path begins with: the innermost that is a file.
fn file_of(device: &Path, path: &str) -> Option<String> {
    let names: Vec<&str> = path.split("::").filter(|name| !name.is_empty()).collect();
    (1..=names.len()).rev().find_map(|count| {
        let module = names[..count].join("/");
        [format!("{module}.rs"), format!("{module}/mod.rs")]
            .into_iter()
            .find(|file| device.join(file).is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn what_the_host_imports_is_the_hosts_and_what_only_kernels_use_is_not() {
        let hosts = Hosts::of(Tree::own().root());
        for file in [
            "table.rs",
            "params/bulk.rs",
            "divisor.rs",
            "steps.rs",
            "step_params.rs",
            "dropout.rs",
            "backward/row.rs",
            "backward/mod.rs",
            "backward/params.rs",
            "backward/spill.rs",
        ] {
            assert!(hosts.read(file), "{file}: {hosts:?}");
        }
        for file in [
            "math/softmax.rs",
            "mma/forward.rs",
            "geometry.rs",
            "scheduler.rs",
            "tile/swizzle.rs",
            "append.rs",
        ] {
            assert!(!hosts.read(file), "{file}");
        }
    }

    #[test]
    fn imports_are_found_in_braces_and_in_the_middle_of_code() {
        let text = "use kernels_gpu::backward::{BIAS_TILE, row::{Row as Other, Pass}, spill::X};\nlet x = kernels_gpu::divisor::Divisor::new(3);";
        let found = imported(text);
        assert_eq!(
            found,
            [
                "backward::BIAS_TILE",
                "backward::row::Row",
                "backward::row::Pass",
                "backward::spill::X",
                "divisor::Divisor::new",
            ]
        );
    }
}
