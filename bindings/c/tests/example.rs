//! The examples are compiled by the system's C compiler, with warnings as errors, and run on the shared and on the static library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's file of this kind, the newest, among those that cargo built for this test.
fn library(extension: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let folder = test.parent().expect("it is in a folder").to_owned();
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libferroflash_c") && path.extension().is_some_and(|found| found == extension)
    };
    let files =
        std::fs::read_dir(folder).expect("readable").flatten().map(|entry| entry.path()).filter(is_meant);
    let modified = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).expect("a time");
    files.max_by_key(modified).unwrap_or_else(|| panic!("cargo built a .{extension}"))
}

#[test]
fn the_examples_run_on_both_libraries() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a folder");
    let examples =
        [("attention", "O[3] = 5.075766"), ("attention", "refused: heads_q 3"), ("decode", "20 tokens")];
    for (extension, (example, said)) in
        ["so", "a"].into_iter().flat_map(|extension| examples.map(|e| (extension, e)))
    {
        let library = library(extension);
        let program = folder.path().join(format!("{example}-{extension}"));
        let mut cc = Command::new("cc");
        cc.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"]);
        cc.arg(here.join("include"))
            .arg(here.join("examples").join(example).with_extension("c"))
            .arg(&library)
            .arg("-o")
            .arg(&program);
        let output = cc.args(["-lm", "-lpthread", "-ldl"]).output().expect("there is a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let beside = library.parent().expect("a folder");
        // A library that is none keeps the test on the CPU.
        let mut started = Command::new(&program);
        started.env("LD_LIBRARY_PATH", beside).env("FERROFLASH_LIBCUDA", "no-driver.so");
        let output = started.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains(said), "{text}");
    }
}
