//! `cargo xtask tidy`: the repository's rules that a program can check.

use crate::{readme, tidy_imports, workspace};
use anyhow::{Context, bail};
use kernels_gpu::backward::table::BACKWARD_VARIANTS;
use kernels_gpu::steps::{STEP_VARIANTS, Step};
use kernels_gpu::table::VARIANTS;
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
const MAY_DEPEND_ON: [(&str, &[&str]); 17] = [
    ("compat/", &[]),
    // As a user's is.
    ("examples/scores/", &["ferroflash-score"]),
    ("kernels-gpu/score/", &[]),
    ("kernels-gpu/", &["ferroflash-score"]),
    // Its fuzz target, a workspace of its own.
    ("ptx-sim/fuzz/", &["ptx-sim"]),
    ("ptx-sim/", &[]),
    ("bindings/call/", &["ferroflash", "ferroflash-cpu"]),
    // `ferroflash.sim` is the simulator from Python.
    ("bindings/python/", &["ferroflash", "ferroflash-call", "ptx-sim"]),
    ("bindings/", &["ferroflash", "ferroflash-call"]),
    // Whose counts are what the model of time predicts from.
    ("check/", &["ferroflash", "ferroflash-distributed", "ferroflash-score", "kernels-gpu", "ptx-sim"]),
    ("distributed/", &["ferroflash"]),
    ("host/cli/", &["check", "ferroflash", "ferroflash-distributed", "kernels-gpu", "ptx-sim"]),
    ("host/cpu/", &[]),
    ("host/kernels/", &[]),
    ("host/", &["ferroflash-kernels", "ferroflash-score", "kernels-gpu", "ptx-sim"]),
    ("lab/", &["check", "ferroflash", "kernels-gpu", "ptx-sim"]),
    ("xtask/", &["ferroflash-kernels", "kernels-gpu"]),
];
const ROOMS: [&str; 14] = [
    "benches",
    "check",
    "ferroflash",
    "ferroflash-call",
    "ferroflash-cli",
    "ferroflash-cpu",
    "ferroflash-distributed",
    "ferroflash-kernels",
    "ferroflash-score",
    "kernels-gpu",
    "lab",
    "ptx-sim",
    "tests",
    "xtask",
];
const NO_DEPENDENCY: [&str; 5] = ["benches", "ferroflash-cli", "lab", "tests", "xtask"];

/// What the library's users do not pay for: it belongs to the command and to `check`.
const NOT_IN_LIBRARY: [&str; 4] = ["clap", "ctrlc", "indicatif", "rayon"];
const LIBRARY: &str = "host/Cargo.toml";

/// Rooms whose files import each other in no circle.
const WITHOUT_CIRCLES: [&str; 1] = ["kernels-gpu/src/"];
/// Bytes of the README at most: it is read in two minutes.
const README_BYTES_MAX: usize = 9 * 1024;
/// Kernels of the shipped tables at most: users stamp their own through `--rows`.
const ENTRIES_MAX: usize = 200;
/// Kernels of the backward pass at most, its step among them: a list of its own.
const BACKWARD_ENTRIES_MAX: usize = 115;
/// The only file of the device crate that may know all of a row.
const WHOLE_ROW: &str = "kernels-gpu/src/config.rs";
/// Where these phrases, which point at things instead of naming them, are left out.
const PLAIN_ENGLISH: [&str; 1] = ["kernels-gpu/src/"];
const PHRASES: [&str; 7] =
    ["so many", "what stands", "whoever", "in hand", "is told of", "of which this one", "there where"];

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
    for room in WITHOUT_CIRCLES {
        broken.extend(circles_of(room, &root, &files)?);
    }
    let of_backward = STEP_VARIANTS
        .iter()
        .filter(|step| {
            let of = step.row.step;
            matches!(of, Step::SinkGradient | Step::BiasGradient | Step::Statistics | Step::SumGradients)
        })
        .count();
    // Copies belong to no attention.
    let copies = STEP_VARIANTS.iter().filter(|step| step.row.step == Step::Copy).count();
    let entries = VARIANTS.len() + STEP_VARIANTS.len() - of_backward - copies;
    if entries > ENTRIES_MAX {
        broken.push(format!("kernels-gpu/src/table.rs: {entries} entries, {ENTRIES_MAX} at most"));
    }
    let entries = BACKWARD_VARIANTS.len() + of_backward;
    if entries > BACKWARD_ENTRIES_MAX {
        let table = "kernels-gpu/src/backward/table.rs";
        broken.push(format!("{table}: {entries} entries, {BACKWARD_ENTRIES_MAX} at most"));
    }
    for line in &broken {
        eprintln!("{line}");
    }
    if !broken.is_empty() {
        bail!("{} rules broken in {} files checked", broken.len(), files.len());
    }
    eprintln!("tidy: {} files keep the rules", files.len());
    Ok(())
}

/// The complaints about imports of a room.
fn circles_of(room: &str, root: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let folder = root.join(room);
    let mut texts = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        if let Ok(path) = file.strip_prefix(&folder) {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            texts.push((path.to_string_lossy().replace('\\', "/"), text));
        }
    }
    let texts: Vec<(&str, &str)> = texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let complaint = |circle: Vec<&str>| format!("{room}: imported in a circle: {}", circle.join(", "));
    Ok(tidy_imports::circles(&texts).into_iter().map(complaint).collect())
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
    if name == readme::README && text.len() > README_BYTES_MAX {
        complaints.push(format!(": {} bytes, {README_BYTES_MAX} at most", text.len()));
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
        if !in_dependencies {
            continue;
        }
        let is_mandatory_simulator = key == "ptx-sim" && !line.contains("optional = true");
        if name == LIBRARY && (NOT_IN_LIBRARY.contains(&key) || is_mandatory_simulator) {
            complaints.push(format!(":{number}: the library's users would pay for {key}"));
            continue;
        }
        if !ROOMS.contains(&key) {
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
    let in_device_crate = name.starts_with("kernels-gpu/src/") && name != WHOLE_ROW;
    if PLAIN_ENGLISH.iter().any(|room| name.starts_with(room)) {
        for (number, line) in numbered(text) {
            let comment = line.split_once("//").map_or("", |(_, comment)| comment);
            if let Some(phrase) = PHRASES.iter().find(|phrase| comment.contains(**phrase)) {
                complaints.push(format!(":{number}: `{phrase}`: name it instead"));
            }
        }
    }
    let may_assemble = ASSEMBLY_ROOMS.iter().any(|room| name.starts_with(room));
    for (number, line) in numbered(text).take(tests_from) {
        if line.trim_start().starts_with("//") {
            continue;
        }
        if in_device_crate && line.contains("C::ROW") {
            complaints.push(format!(":{number}: the whole row, which only {WHOLE_ROW} knows"));
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

/// Whether the path starts one of the line's words; in the middle of a relative path it names none of the machine's.
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
    fn leaves_of_the_device_crate_know_no_row_and_name_what_they_mean() {
        let source = "//! A file.\n/// The block in hand.\nconst X: u32 = C::ROW.stages;\n";
        let found = check("kernels-gpu/src/mma/a.rs", source);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with(":2: `in hand`") && found[1].starts_with(":3: the whole row"),
            "{found:?}"
        );
        assert_eq!(check(WHOLE_ROW, "//! A file.\nconst X: u32 = C::ROW.stages;\n"), Vec::<String>::new());
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
    fn a_readme_of_many_pages_is_found() {
        let full = "x".repeat(README_BYTES_MAX);
        assert_eq!(check("README.md", &full), Vec::<String>::new());
        assert_eq!(check("README.md", &format!("{full}\n")), [": 9217 bytes, 9216 at most"]);
        assert_eq!(check("docs/results.md", &format!("{full}\n")), Vec::<String>::new());
    }

    #[test]
    fn forbidden_dependencies_are_found() {
        let manifest =
            |key: &str| format!("[package]\nname = \"x\"\n[dev-dependencies]\n{key}.workspace = true\n");
        for (file, key) in [
            ("ptx-sim/Cargo.toml", "kernels-gpu"),
            ("host/Cargo.toml", "xtask"),
            ("host/Cargo.toml", "check"),
            ("check/Cargo.toml", "lab"),
            ("benches/Cargo.toml", "tests"),
            ("kernels-gpu/Cargo.toml", "ferroflash"),
        ] {
            assert_eq!(check(file, &manifest(key)), [format!(":4: this room may not depend on {key}")]);
        }
        for key in ["clap", "ptx-sim"] {
            let found = check(LIBRARY, &manifest(key));
            assert_eq!(found, [format!(":4: the library's users would pay for {key}")]);
        }
        let optional = "[dependencies]\nptx-sim = { workspace = true, optional = true }\n";
        assert_eq!(check(LIBRARY, optional), Vec::<String>::new());
        assert_eq!(check("host/cli/Cargo.toml", &manifest("clap")), Vec::<String>::new());
        assert_eq!(check("tests/Cargo.toml", &manifest("ferroflash")), Vec::<String>::new());
        assert_eq!(check("ptx-sim/Cargo.toml", &manifest("thiserror")), Vec::<String>::new());
    }

    #[test]
    fn this_file_keeps_the_rules() {
        assert_eq!(check("xtask/src/tidy.rs", include_str!("tidy.rs")), Vec::<String>::new());
    }
}
