//! Circles of imports between the files of a room: files that reach each other cannot be understood, or moved, alone.

use std::collections::{BTreeMap, BTreeSet};

/// The files that each file of a room imports, by their paths below the room.
type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The circles among the `(path below the room, text)` of a room's files, each sorted.
pub(crate) fn circles<'a>(files: &[(&'a str, &str)]) -> Vec<Vec<&'a str>> {
    let modules: BTreeMap<Vec<&str>, &'a str> = files.iter().map(|&(path, _)| (module(path), path)).collect();
    let imports: Imports<'a> = files
        .iter()
        .map(|&(path, text)| {
            let found =
                paths(text).into_iter().filter_map(|import| file_of(&modules, &module(path), &import));
            (path, found.filter(|found| *found != path).collect())
        })
        .collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|&from| (from, reachable(&imports, from))).collect();
    let mut circles: Vec<Vec<&'a str>> = Vec::new();
    for &file in imports.keys() {
        if circles.iter().any(|circle| circle.contains(&file)) || !reached[file].contains(file) {
            continue;
        }
        circles.push(
            imports
                .keys()
                .copied()
                .filter(|other| reached[file].contains(other) && reached[other].contains(file))
                .collect(),
        );
    }
    circles
}

/// All files that are reached from one, itself only through a circle.
fn reachable<'a>(imports: &Imports<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&'a str> = imports[from].iter().copied().collect();
    while let Some(file) = left.pop() {
        if reached.insert(file) {
            left.extend(&imports[file]);
        }
    }
    reached
}

/// The module of a file: `math/softmax.rs` is `math::softmax`.
fn module(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
        parts.pop();
    }
    parts
}

/// The file that an import of `from` names: that of the longest module at its start.
fn file_of<'a>(modules: &BTreeMap<Vec<&str>, &'a str>, from: &[&str], import: &[String]) -> Option<&'a str> {
    let ups = import.iter().take_while(|part| *part == "super").count();
    let base = match import.first()?.as_str() {
        "crate" => &[],
        _ => &from[..from.len().checked_sub(ups)?],
    };
    let rest = import[ups.max(1)..].iter().map(String::as_str);
    let full: Vec<&str> = base.iter().copied().chain(rest).collect();
    (1..=full.len()).rev().find_map(|length| modules.get(&full[..length]).copied())
}

/// The paths that start at `crate` or `super` in a file's code, braces opened, comments and tests left out.
fn paths(text: &str) -> Vec<Vec<String>> {
    let code: String = text
        .lines()
        .take_while(|line| !(line.starts_with("#[cfg(") && line.contains("test")))
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join(" ");
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            open_braces(&code[at..], &mut found);
        }
    }
    found
}

/// The paths of one import: `crate::{a, b::{c, d}}` is four of them at most, of which the first two levels are enough.
fn open_braces(code: &str, found: &mut Vec<Vec<String>>) {
    let end = code.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(code.len());
    let parts = |text: &str| -> Vec<String> {
        text.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let prefix = parts(&code[..end]);
    if code[end..].starts_with('{') {
        let list = code[end + 1..].split(';').next().unwrap_or_default();
        let inner = list.split([',', '{', '}']).filter(|item| !item.trim().is_empty());
        found.extend(inner.map(|item| prefix.iter().cloned().chain(parts(item)).collect()));
    } else {
        found.push(prefix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_with_its_files_and_a_tree_has_none() {
        let tree = [
            ("lib.rs", "pub mod a;"),
            ("a.rs", "use crate::m::b::f;"),
            ("m/b.rs", "use super::c::g;"),
            ("m/c.rs", ""),
        ];
        assert_eq!(circles(&tree), Vec::<Vec<&str>>::new());
        let mut planted = tree;
        planted[3] = ("m/c.rs", "use crate::{\n    a::h,\n    x,\n};");
        assert_eq!(circles(&planted), [["a.rs", "m/b.rs", "m/c.rs"]]);
        planted[3] = ("m/c.rs", "// crate::a\n#[cfg(test)]\nmod tests { use crate::a; }");
        assert_eq!(circles(&planted), Vec::<Vec<&str>>::new(), "comments and tests are no imports");
        planted[3] = ("m/c.rs", "fn f() { super::super::a::h() }");
        assert_eq!(circles(&planted).len(), 1, "a path in the code is an import");
    }
}
