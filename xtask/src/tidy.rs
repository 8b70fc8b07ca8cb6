//! `cargo xtask tidy`: the repository's rules that a program can check.

use crate::{readme, workspace};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};

/// Lines of a source file at most, its tests aside.
const LINES_MAX: usize = 500;
/// Files of one long list, which may be longer.
const TABLES: [&str; 2] = ["kernels-gpu/src/table.rs", "compat/find_cuda_helper/src/calls.rs"];
/// Where inline assembly may stand.
const ASSEMBLY_ROOMS: [&str; 2] = ["kernels-gpu/src/ptx/", "compat/"];
/// Folders that are not the project's text.
const SKIPPED: [&str; 4] = [".git", "lab-runs", "target", "shared"];
const TEXT_EXTENSIONS: [&str; 7] = ["rs", "md", "toml", "json", "sh", "py", "yml"];

/// The rooms that each room may depend on. Those not named here (tests, benches) may depend on any but [`NO_DEPENDENCY`].
const MAY_DEPEND_ON: [(&str, &[&str]); 7] = [
    ("compat/", &[]),
    ("kernels-gpu/", &[]),
    // Its fuzz target, a workspace of its own.
    ("ptx-sim/fuzz/", &["ptx-sim"]),
    ("ptx-sim/", &[]),
    ("host/", &["kernels-gpu", "ptx-sim"]),
    ("lab/", &["ferroflash", "kernels-gpu", "ptx-sim"]),
    ("xtask/", &["kernels-gpu"]),
];
const ROOMS: [&str; 7] = ["benches", "ferroflash", "kernels-gpu", "lab", "ptx-sim", "tests", "xtask"];
const NO_DEPENDENCY: [&str; 4] = ["benches", "lab", "tests", "xtask"];

// Put together, so that this file keeps its own rules.
const UNFINISHED: [&str; 3] =
    [concat!("todo", "!("), concat!("unimplemented", "!("), concat!(".unwrap", "()")];
const ASSEMBLY: [&str; 2] = [concat!(" as", "m!("), concat!("global_as", "m!(")];
const MACHINE_PATHS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
    concat!("/Us", "ers/"),
];

/// Runs the command.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = workspace::root();
    let mut files = Vec::new();
    collect(&root, &mut files).with_context(|| root.display().to_string())?;
    files.sort();
    let mut broken = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file).to_string_lossy().replace('\\', "/");
        let bytes = std::fs::read(file).with_context(|| name.clone())?;
        let text = String::from_utf8_lossy(&bytes);
        broken.extend(check(&name, &text).into_iter().map(|complaint| format!("{name}{complaint}")));
    }
    broken.extend(readme::complaints(&root)?);
    for line in &broken {
        eprintln!("{line}");
    }
    if !broken.is_empty() {
        bail!("{} rules broken in {} files checked", broken.len(), files.len());
    }
    eprintln!("tidy: {} files keep the rules", files.len());
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        // A link could lead out of the project, or around in it.
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
            collect(&path, files)?;
        } else if kind.is_file() && is_text(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_text(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| TEXT_EXTENSIONS.contains(&extension)) || path.ends_with(".ci/run")
}

/// The complaints about one file, each with its line: `:12: …`.
fn check(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in numbered(text) {
        if let Some(path) = MACHINE_PATHS.iter().find(|path| names_machine_path(line, path)) {
            complaints.push(format!(":{number}: a path of one machine ({path}…)"));
        }
    }
    if name.ends_with(".rs") {
        check_source(name, text, &mut complaints);
    }
    if name.ends_with("/Cargo.toml") {
        check_dependencies(name, text, &mut complaints);
    }
    complaints
}

fn check_dependencies(name: &str, text: &str, complaints: &mut Vec<String>) {
    let allowed = MAY_DEPEND_ON.iter().find(|(room, _)| name.starts_with(room)).map(|(_, allowed)| *allowed);
    let mut in_dependencies = false;
    for (number, line) in numbered(text) {
        if line.starts_with('[') {
            in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
        }
        let key = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if !in_dependencies || !ROOMS.contains(&key) {
            continue;
        }
        if !allowed.map_or(!NO_DEPENDENCY.contains(&key), |allowed| allowed.contains(&key)) {
            complaints.push(format!(":{number}: this room may not depend on {key}"));
        }
    }
}

fn check_source(name: &str, text: &str, complaints: &mut Vec<String>) {
    if !text.starts_with("//! ") {
        complaints.push(":1: the first line does not say what the file is (`//! …`)".to_owned());
    }
    let is_test = name.starts_with("tests/") || name.contains("/tests/") || name.starts_with("benches/");
    if is_test {
        return;
    }
    let tests_from = tests_start(text);
    if tests_from > LINES_MAX && !TABLES.contains(&name) {
        complaints.push(format!(":{LINES_MAX}: {tests_from} lines before the tests, {LINES_MAX} at most"));
    }
    let may_assemble = ASSEMBLY_ROOMS.iter().any(|room| name.starts_with(room));
    for (number, line) in numbered(text).take(tests_from) {
        if line.trim_start().starts_with("//") {
            continue;
        }
        if let Some(word) = UNFINISHED.iter().find(|word| line.contains(**word)) {
            complaints.push(format!(":{number}: {word} outside tests"));
        }
        if !may_assemble && ASSEMBLY.iter().any(|word| format!(" {line}").contains(word)) {
            complaints.push(format!(":{number}: inline assembly outside {}", ASSEMBLY_ROOMS.join(" and ")));
        }
    }
}

/// Lines before `mod tests`, which is last in a file.
fn tests_start(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let is_start = |at: &usize| {
        let attribute = lines[*at].trim_start();
        attribute.starts_with("#[cfg(") && attribute.contains("test") && {
            lines.get(at + 1).is_some_and(|line| line.trim_start().starts_with("mod ") && line.ends_with('{'))
        }
    };
    (0..lines.len()).find(is_start).unwrap_or(lines.len())
}

/// Whether the path starts one of the line's words: `a/work/b` in the middle of one is none.
fn names_machine_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || "._-~}$/*)>:".contains(c)))
    })
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_faults_are_found_at_their_lines() {
        let source = "//! A file.\nfn f() {\n    x.unwrap();\n    todo!()\n    unsafe { asm!(\"nop\") }\n}\n";
        let found = check("host/src/a.rs", source);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[0].starts_with(":3:") && found[1].starts_with(":4:") && found[2].starts_with(":5:"),
            "{found:?}"
        );
        assert_eq!(check("kernels-gpu/src/ptx/a.rs", "//! A.\nasm!(\"nop\")\n"), Vec::<String>::new());
        assert_eq!(check("host/src/a.rs", "fn f() {}\n").len(), 1, "no first line");
    }

    #[test]
    fn tests_and_comments_may_unwrap() {
        let source = "//! A file.\n// x.unwrap()\n#[cfg(test)]\nmod tests {\n    fn f() { x.unwrap() }\n}\n";
        assert_eq!(check("host/src/a.rs", source), Vec::<String>::new());
        assert_eq!(check("tests/src/a.rs", "//! A.\nfn f() { x.unwrap() }\n"), Vec::<String>::new());
    }

    #[test]
    fn long_files_are_found_and_tables_are_not() {
        let source = format!("//! A file.\n{}", "fn f() {}\n".repeat(LINES_MAX));
        assert_eq!(check("host/src/a.rs", &source).len(), 1);
        assert_eq!(check(TABLES[0], &source).len(), 0);
        let tests = format!("//! A.\n#[cfg(all(test, feature = \"x\"))]\nmod tests {{\n{source}}}\n");
        assert_eq!(check("host/src/a.rs", &tests).len(), 0);
    }

    #[test]
    fn machine_paths_are_found_in_any_text() {
        for path in MACHINE_PATHS {
            assert_eq!(check("README.md", &format!("see {path}x\n")).len(), 1, "{path}");
            assert_eq!(check("README.md", &format!("see target{path}x\n")).len(), 0, "{path}");
        }
    }

    #[test]
    fn forbidden_dependencies_are_found() {
        let manifest =
            |key: &str| format!("[package]\nname = \"x\"\n[dev-dependencies]\n{key}.workspace = true\n");
        for (file, key) in [
            ("ptx-sim/Cargo.toml", "kernels-gpu"),
            ("host/Cargo.toml", "xtask"),
            ("benches/Cargo.toml", "tests"),
            ("kernels-gpu/Cargo.toml", "ferroflash"),
        ] {
            assert_eq!(check(file, &manifest(key)), [format!(":4: this room may not depend on {key}")]);
        }
        assert_eq!(check("host/Cargo.toml", &manifest("ptx-sim")), Vec::<String>::new());
        assert_eq!(check("tests/Cargo.toml", &manifest("ferroflash")), Vec::<String>::new());
        assert_eq!(check("ptx-sim/Cargo.toml", &manifest("thiserror")), Vec::<String>::new());
    }

    #[test]
    fn this_file_keeps_the_rules() {
        assert_eq!(check("xtask/src/tidy.rs", include_str!("tidy.rs")), Vec::<String>::new());
    }
}
