//! A proposed patch, looked at before git sees it: it may change Rust source of the device crate and nothing else.
//!
//! The text is read as `git apply` reads it, and what is not understood is refused. [`Worktree`](super::Worktree) looks again at
//! what git did with it.

use super::DEVICE_SOURCE;

/// A patch larger than this is no step.
const BYTES_MAX: usize = 1 << 20;
/// The mode of a plain file.
const PLAIN_FILE: &str = "100644";

/// A patch that names only Rust source of the device crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    text: String,
    files: Vec<String>,
}

/// Why a patch is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// It changes no file.
    #[error("the patch changes no file")]
    Empty,
    /// It is too large for a step.
    #[error("the patch has {bytes} bytes, {BYTES_MAX} at most")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It names a file that is not the device crate's.
    #[error("line {line}: the patch touches `{path}`: it may change Rust files below {DEVICE_SOURCE} only")]
    Outside {
        /// The line of the patch.
        line: usize,
        /// The path, as it stands there.
        path: String,
    },
    /// It makes a link, an executable, or changes a mode.
    #[error("line {line}: the patch sets the mode {mode}: files stay plain files ({PLAIN_FILE})")]
    Mode {
        /// The line of the patch.
        line: usize,
        /// The mode.
        mode: String,
    },
    /// It moves or copies a file.
    #[error("line {line}: the patch renames or copies a file: write it as a removal and an addition")]
    Renames {
        /// The line of the patch.
        line: usize,
    },
    /// It holds binary data.
    #[error("line {line}: the patch is binary")]
    Binary {
        /// The line of the patch.
        line: usize,
    },
    /// A line that no unified diff has there.
    #[error("line {line}: `{text}` is no line of a unified diff")]
    Malformed {
        /// The line of the patch.
        line: usize,
        /// What stands there, shortened.
        text: String,
    },
}

impl Patch {
    /// Looks through a patch.
    ///
    /// # Errors
    /// The first thing that it may not do, with its line.
    pub fn check(text: &str) -> Result<Self, PatchError> {
        if text.len() > BYTES_MAX {
            return Err(PatchError::TooLarge { bytes: text.len() });
        }
        let mut reader = Reader { files: Vec::new(), old_left: 0, new_left: 0, has_hunk: false };
        // Not `lines`, which would take a carriage return off a name.
        for (index, line) in text.split_terminator('\n').enumerate() {
            reader.line(index + 1, line)?;
        }
        if reader.old_left > 0 || reader.new_left > 0 {
            let text = "the end".to_owned();
            return Err(PatchError::Malformed { line: text.lines().count(), text });
        }
        if !reader.has_hunk {
            return Err(PatchError::Empty);
        }
        Ok(Self { text: text.to_owned(), files: reader.files })
    }

    /// The patch.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The files that it changes.
    pub fn files(&self) -> &[String] {
        &self.files
    }
}

/// Where in a diff the reader is.
struct Reader {
    files: Vec<String>,
    /// Lines of the hunk that are still to come, of the old and the new file.
    old_left: u64,
    new_left: u64,
    has_hunk: bool,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) -> Result<(), PatchError> {
        let malformed =
            || PatchError::Malformed { line: number, text: line.chars().take(80).collect::<String>() };
        if self.old_left > 0 || self.new_left > 0 {
            return self.hunk_line(line).ok_or_else(malformed);
        }
        if let Some(paths) = line.strip_prefix("diff --git ") {
            // A path with a space is no file of ours, so the two names part at the only one.
            let (old, new) = paths.split_once(' ').ok_or_else(malformed)?;
            self.file(number, old, "a/")?;
            return self.file(number, new, "b/");
        }
        if let Some(path) = line.strip_prefix("--- ") {
            return self.file_or_none(number, path, "a/");
        }
        if let Some(path) = line.strip_prefix("+++ ") {
            return self.file_or_none(number, path, "b/");
        }
        if line.starts_with("@@ ") {
            (self.old_left, self.new_left) = hunk_lengths(line).ok_or_else(malformed)?;
            self.has_hunk = true;
            return Ok(());
        }
        for mode in ["old mode ", "new mode ", "new file mode ", "deleted file mode "] {
            if let Some(mode) = line.strip_prefix(mode).filter(|mode| *mode != PLAIN_FILE) {
                return Err(PatchError::Mode { line: number, mode: mode.to_owned() });
            }
        }
        if ["rename ", "copy ", "similarity ", "dissimilarity "].iter().any(|word| line.starts_with(word)) {
            return Err(PatchError::Renames { line: number });
        }
        if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
            return Err(PatchError::Binary { line: number });
        }
        if let Some(rest) = line.strip_prefix("index ") {
            // `index 1a2b..3c4d 100644`
            return match rest.split_once(' ') {
                Some((_, mode)) if mode != PLAIN_FILE => {
                    Err(PatchError::Mode { line: number, mode: mode.to_owned() })
                }
                _ => Ok(()),
            };
        }
        let is_known = line.trim().is_empty()
            || line == "\\ No newline at end of file"
            || line.starts_with("new file mode ")
            || line.starts_with("deleted file mode ")
            || line.starts_with("old mode ")
            || line.starts_with("new mode ");
        if is_known { Ok(()) } else { Err(malformed()) }
    }

    /// Counts a line of a hunk; none if the hunk has no such line.
    fn hunk_line(&mut self, line: &str) -> Option<()> {
        match line.chars().next() {
            // An editor that strips blanks leaves nothing of an empty context line.
            Some(' ') | None => {
                self.old_left = self.old_left.checked_sub(1)?;
                self.new_left = self.new_left.checked_sub(1)?;
            }
            Some('-') => self.old_left = self.old_left.checked_sub(1)?,
            Some('+') => self.new_left = self.new_left.checked_sub(1)?,
            Some('\\') => {}
            Some(_) => return None,
        }
        Some(())
    }

    fn file_or_none(&mut self, line: usize, path: &str, prefix: &str) -> Result<(), PatchError> {
        // A time may stand behind a tab.
        let path = path.split('\t').next().unwrap_or_default();
        if path == NO_FILE { Ok(()) } else { self.file(line, path, prefix) }
    }

    fn file(&mut self, line: usize, path: &str, prefix: &str) -> Result<(), PatchError> {
        let outside = || PatchError::Outside { line, path: path.to_owned() };
        let file = path.strip_prefix(prefix).ok_or_else(outside)?;
        if !is_device_source(file) {
            return Err(outside());
        }
        if !self.files.iter().any(|known| known == file) {
            self.files.push(file.to_owned());
        }
        Ok(())
    }
}

/// What diffs call the file that is not there.
const NO_FILE: &str = "/dev/null";

/// Whether a path is that of a Rust file below [`DEVICE_SOURCE`], written in the one plain way: no `..`, no doubled slash, no
/// quotes, nothing that two programs could read differently.
pub(super) fn is_device_source(path: &str) -> bool {
    let is_plain_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain)
    };
    path.strip_prefix(DEVICE_SOURCE)
        .is_some_and(|rest| rest.ends_with(".rs") && rest.split('/').all(is_plain_part))
}

/// Lines of the old and the new file in `@@ -12,3 +12,4 @@`.
fn hunk_lengths(line: &str) -> Option<(u64, u64)> {
    let mut parts = line.strip_prefix("@@ ")?.split(' ');
    let old = length(parts.next()?.strip_prefix('-')?)?;
    let new = length(parts.next()?.strip_prefix('+')?)?;
    (parts.next()? == "@@").then_some((old, new))
}

fn length(range: &str) -> Option<u64> {
    let (start, length) = range.split_once(',').unwrap_or((range, "1"));
    start.parse::<u64>().ok()?;
    length.parse().ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn replacing(path: &str) -> String {
        format!("diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n")
    }

    fn refused(text: &str) -> PatchError {
        Patch::check(text).expect_err("refused")
    }

    #[test]
    fn source_of_the_device_crate_may_change() {
        let patch = Patch::check(&replacing("kernels-gpu/src/ptx/mma.rs")).expect("a patch");
        assert_eq!(patch.files(), ["kernels-gpu/src/ptx/mma.rs"]);
        let added = "diff --git a/kernels-gpu/src/new.rs b/kernels-gpu/src/new.rs\nnew file mode 100644\nindex 0000000..1234567\n--- /dev/null\n+++ b/kernels-gpu/src/new.rs\n@@ -0,0 +1,2 @@\n+//! New.\n+--- not a header\n\\ No newline at end of file\n";
        assert_eq!(Patch::check(added).expect("a patch").files().len(), 1);
        for flaw in crate::invert::FLAWS {
            if let crate::invert::FlawChange::Patch(text) = flaw.change {
                Patch::check(text).expect(flaw.name);
            }
        }
    }

    #[test]
    fn every_way_out_of_the_device_crate_is_closed() {
        for path in [
            "host/src/lib.rs",
            "kernels-gpu/Cargo.toml",
            "kernels-gpu/build.rs",
            "kernels-gpu/src/../../host/src/lib.rs",
            "kernels-gpu/src/./a.rs",
            "kernels-gpu/src//a.rs",
            "kernels-gpu/src/.cargo/a.rs",
            "kernels-gpu/src/a.txt",
            "kernels-gpu/src",
            "kernels-gpu/srcs/a.rs",
            "../kernels-gpu/src/a.rs",
            "/etc/kernels-gpu/src/a.rs",
            "kernels-gpu/src/a\\b.rs",
            "kernels-gpu/src/a.rs\r",
        ] {
            assert!(matches!(refused(&replacing(path)), PatchError::Outside { .. }), "{path}");
        }
        let quoted = "--- \"a/kernels-gpu/src/a.rs\"\n+++ \"b/kernels-gpu/src/a.rs\"\n@@ -1 +1 @@\n-a\n+b\n";
        assert!(matches!(refused(quoted), PatchError::Outside { line: 1, .. }));
        // The header says one file and the hunk another.
        let two =
            replacing("kernels-gpu/src/a.rs").replace("+++ b/kernels-gpu/src/a.rs", "+++ b/host/src/a.rs");
        assert!(matches!(refused(&two), PatchError::Outside { line: 3, .. }));
        for (old, new) in
            [("a/host/src/a.rs", "b/kernels-gpu/src/a.rs"), ("a/kernels-gpu/src/a.rs", "b/host/src/a.rs")]
        {
            let header = format!("diff --git {old} {new}\n");
            assert!(matches!(refused(&header), PatchError::Outside { line: 1, .. }), "{header}");
        }
        // The second file of a patch.
        let second = replacing("kernels-gpu/src/a.rs") + &replacing("xtask/src/main.rs");
        assert!(matches!(refused(&second), PatchError::Outside { line: 7, .. }));
        // Other prefixes could be stripped to another path.
        let prefix = replacing("kernels-gpu/src/a.rs").replace(" b/", " host/");
        assert!(matches!(refused(&prefix), PatchError::Outside { .. }));
    }

    #[test]
    fn links_modes_renames_and_binaries_are_refused() {
        let head = "diff --git a/kernels-gpu/src/a.rs b/kernels-gpu/src/a.rs\n";
        for mode in ["new file mode 120000", "new mode 100755", "old mode 100755", "new file mode 160000"] {
            assert!(
                matches!(refused(&format!("{head}{mode}\n")), PatchError::Mode { line: 2, .. }),
                "{mode}"
            );
        }
        assert!(matches!(refused(&format!("{head}index 1..2 120000\n")), PatchError::Mode { .. }));
        for line in ["rename from host/src/lib.rs", "copy to kernels-gpu/src/a.rs", "similarity index 100%"] {
            assert_eq!(refused(&format!("{head}{line}\n")), PatchError::Renames { line: 2 });
        }
        assert_eq!(refused(&format!("{head}GIT binary patch\n")), PatchError::Binary { line: 2 });
    }

    #[test]
    fn hunks_hide_no_headers_and_end_where_they_say() {
        // The removed line `-- a/host/src/lib.rs` looks like a header.
        let fake = "--- a/kernels-gpu/src/a.rs\n+++ b/kernels-gpu/src/a.rs\n@@ -1 +1 @@\n--- a/host/src/lib.rs\n+b\n";
        Patch::check(fake).expect("a line of a hunk");
        // A hunk that says it is longer than it is would swallow the next header.
        let long =
            replacing("kernels-gpu/src/a.rs").replace("-1 +1", "-1,9 +1,9") + &replacing("host/src/a.rs");
        assert!(matches!(refused(&long), PatchError::Malformed { .. }));
        assert!(matches!(refused("talk\n"), PatchError::Malformed { line: 1, .. }));
        assert!(matches!(
            refused(&replacing("kernels-gpu/src/a.rs").replace("@@ -1", "@@ -x")),
            PatchError::Malformed { .. }
        ));
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        assert_eq!(refused(""), PatchError::Empty);
        assert_eq!(refused("\n\n"), PatchError::Empty);
        let bytes = BYTES_MAX + 1;
        assert_eq!(refused(&"x".repeat(bytes)), PatchError::TooLarge { bytes });
    }
}
