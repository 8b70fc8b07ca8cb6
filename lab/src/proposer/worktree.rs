//! A throw-away git worktree in which a proposal is applied: the user's tree, index and branches are never touched.

use super::DEVICE_SOURCE;
use super::hygiene::{self, Breach, Change, Hosts};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A patch larger than this is no step.
const PATCH_BYTES_MAX: usize = 1 << 20;
/// How the folders of worktrees begin.
const FOLDER_PREFIX: &str = "worktree-";
/// Variables that git sets for its hooks, and that would lead it to another repository or index.
const GIT_VARIABLES: [&str; 7] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
];

/// A worktree at a commit. Dropping it takes it away, and git's record of it.
#[derive(Debug)]
pub struct Worktree {
    repository: PathBuf,
    // Dropped after git has let go of it.
    folder: tempfile::TempDir,
}

/// Why there is no worktree, or no patch in it.
#[derive(Debug, thiserror::Error)]
pub enum WorktreeError {
    /// git cannot be started.
    #[error("git cannot be started: {source}")]
    NoGit {
        /// Why.
        source: std::io::Error,
    },
    /// git refused.
    #[error("git {command}: {message}")]
    Git {
        /// The git command.
        command: &'static str,
        /// What it said.
        message: String,
    },
    /// There is no such commit.
    #[error("{commit} is no commit of {}", repository.display())]
    NoCommit {
        /// What was asked for.
        commit: String,
        /// The repository.
        repository: PathBuf,
    },
    /// The patch does not fit the source.
    #[error("the patch does not apply: {message}")]
    DoesNotApply {
        /// What git said.
        message: String,
    },
    /// The patch changes nothing.
    #[error("the patch leaves every file as it was")]
    ChangesNothing,
    /// Something outside of the device crate, or something that is no plain file.
    #[error("the patch touches `{path}`: it may change plain Rust files below {DEVICE_SOURCE} only")]
    Outside {
        /// The path, from the repository's root.
        path: String,
    },
    /// A file that it renames, links or makes a program.
    #[error(
        "the patch {how} `{path}`: it may create, change and delete plain Rust files below {DEVICE_SOURCE} only"
    )]
    NotPlain {
        /// What it does to it.
        how: &'static str,
        /// The path, from the repository's root.
        path: String,
    },
    /// It adds what no patch may, or takes tests away.
    #[error(transparent)]
    Breach(#[from] Breach),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Worktree {
    /// A worktree of `repository` at `commit`, in a new folder below `within`.
    ///
    /// # Errors
    /// Where git is missing, the commit unknown, or the folder not writable. Nothing is left then.
    pub fn new(repository: &Path, commit: &str, within: &Path) -> Result<Self, WorktreeError> {
        let file_error = |source| WorktreeError::File { path: within.to_owned(), source };
        // Absolute: git runs in the repository.
        let within = std::path::absolute(within).map_err(file_error)?;
        let wanted = format!("{commit}^{{commit}}");
        let found = git(repository, ["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted], None)?;
        let id = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        if !found.status.success() || id.is_empty() {
            let repository = repository.to_owned();
            return Err(WorktreeError::NoCommit { commit: commit.to_owned(), repository });
        }
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(within).map_err(file_error)?;
        let worktree = Self { repository: repository.to_owned(), folder };
        let arguments: [&OsStr; 6] = [
            "worktree".as_ref(),
            "add".as_ref(),
            "--detach".as_ref(),
            "--quiet".as_ref(),
            worktree.path().as_os_str(),
            id.as_ref(),
        ];
        checked("worktree add", git(repository, arguments, None)?)?;
        Ok(worktree)
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Applies a patch, after a look at the files that git reads in it, and looks at what came of it.
    ///
    /// # Errors
    /// A patch that does not fit, changes nothing, or does what it may not. The worktree is of no more use then.
    pub fn apply(&self, patch: &str) -> Result<(), WorktreeError> {
        if patch.len() > PATCH_BYTES_MAX {
            let message = format!("it has {} bytes, {PATCH_BYTES_MAX} at most", patch.len());
            return Err(WorktreeError::DoesNotApply { message });
        }
        let fits = |output: Output| match output.status.success() {
            true => Ok(output),
            false => Err(WorktreeError::DoesNotApply { message: said(&output) }),
        };
        let read = fits(git(self.path(), ["apply", "--numstat", "-z", "-"], Some(patch))?)?;
        for entry in read.stdout.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            // Lines added, lines removed, the path; dashes where it is binary.
            let entry = String::from_utf8_lossy(entry);
            let path = entry.splitn(3, '\t').last().unwrap_or_default();
            if !is_device_source(path) || entry.starts_with('-') {
                return Err(WorktreeError::Outside { path: path.to_owned() });
            }
        }
        // ` create mode 100644 path` and ` delete mode 100644 path`; renames, copies, links, submodules and other modes are lines of their own.
        let summary = fits(git(self.path(), ["apply", "--summary", "-"], Some(patch))?)?;
        let is_plain = |line: &&str| {
            ["create", "delete"].iter().any(|what| line.starts_with(&format!(" {what} mode 100644 ")))
        };
        if let Some(line) = String::from_utf8_lossy(&summary.stdout).lines().find(|line| !is_plain(line)) {
            return Err(not_plain(line.trim()));
        }
        let before = self.diff()?;
        fits(git(self.path(), ["apply", "--whitespace=nowarn", "-"], Some(patch))?)?;
        let status =
            ["status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--ignored=matching"];
        let status = checked("status", git(self.path(), status, None)?)?;
        let mut changes = Vec::new();
        for entry in status.stdout.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            // `XY path`
            let path = String::from_utf8_lossy(entry.get(3..).unwrap_or_default()).into_owned();
            if !is_device_source(&path) || !is_plain_file_or_none(&self.path().join(&path))? {
                return Err(WorktreeError::Outside { path });
            }
            changes.push(self.change(path)?);
        }
        hygiene::check(&changes, &Hosts::of(self.path()))?;
        if self.diff()? == before { Err(WorktreeError::ChangesNothing) } else { Ok(()) }
    }

    /// A file as it is, and as it was at the commit.
    fn change(&self, path: String) -> Result<Change, WorktreeError> {
        let shown = git(self.path(), ["show", &format!("HEAD:{path}")], None)?;
        let before = if shown.status.success() { shown.stdout } else { Vec::new() };
        let file = self.path().join(&path);
        let after = match std::fs::read(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|source| WorktreeError::File { path: file, source })?,
        };
        let [before, after] = [before, after].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Change { path, before, after })
    }

    /// Everything that differs from the commit, as one patch.
    ///
    /// # Errors
    /// Where git refuses.
    pub fn diff(&self) -> Result<String, WorktreeError> {
        checked("add", git(self.path(), ["add", "--all"], None)?)?;
        let arguments = ["diff", "--cached", "--no-color", "--no-ext-diff", "--no-renames", "HEAD"];
        let output = checked("diff", git(self.path(), arguments, None)?)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The text of a file that a patch may change; none where it is not there.
    pub fn read(&self, path: &str) -> Option<String> {
        is_device_source(path).then(|| std::fs::read_to_string(self.path().join(path)).ok()).flatten()
    }

    /// Takes away worktrees below `within` that a killed session left behind. Those of others elsewhere stay.
    ///
    /// # Errors
    /// Where git is missing, or a folder cannot be read or removed.
    pub fn remove_left_behind(repository: &Path, within: &Path) -> Result<usize, WorktreeError> {
        let file_error = |source| WorktreeError::File { path: within.to_owned(), source };
        let within = std::path::absolute(within).map_err(file_error)?;
        let mut removed = 0;
        for entry in std::fs::read_dir(&within).map_err(file_error)? {
            let entry = entry.map_err(file_error)?;
            let is_folder = entry.file_type().map_err(file_error)?.is_dir();
            if is_folder && entry.file_name().to_string_lossy().starts_with(FOLDER_PREFIX) {
                remove(repository, &entry.path())?;
                match std::fs::remove_dir_all(entry.path()) {
                    Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                        return Err(WorktreeError::File { path: entry.path(), source });
                    }
                    _ => removed += 1,
                }
            }
        }
        Ok(removed)
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        // The folder goes in any case; what git then still remembers, `git worktree prune` forgets.
        let _ = remove(&self.repository, self.folder.path());
    }
}

/// Has git take a worktree away. It may not know it, or know it no more.
fn remove(repository: &Path, folder: &Path) -> Result<(), WorktreeError> {
    let arguments: [&OsStr; 4] =
        ["worktree".as_ref(), "remove".as_ref(), "--force".as_ref(), folder.as_os_str()];
    git(repository, arguments, None).map(|_| ())
}

/// Whether a path is that of a Rust file below [`DEVICE_SOURCE`], written in the one plain way: no `..`, no doubled slash, no
/// quotes, nothing that two programs could read differently.
fn is_device_source(path: &str) -> bool {
    let is_plain_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain)
    };
    path.strip_prefix(DEVICE_SOURCE)
        .is_some_and(|rest| rest.ends_with(".rs") && rest.split('/').all(is_plain_part))
}

/// What a line of `git apply --summary` says that is no plain file's.
fn not_plain(line: &str) -> WorktreeError {
    let behind =
        |start: &str| line.strip_prefix(start).map(|rest| rest.split_at_checked(7).unwrap_or((rest, "")));
    let (how, path) = if let Some((mode, path)) = behind("create mode ").or_else(|| behind("delete mode ")) {
        let how = match mode.trim_end() {
            "120000" => "makes or removes a link at",
            "160000" => "makes or removes a submodule at",
            _ => "makes or removes a file that can be executed,",
        };
        (how, path.to_owned())
    } else if let Some(modes) = line.strip_prefix("mode change ") {
        ("changes the mode of", modes.splitn(4, ' ').last().unwrap_or_default().to_owned())
    } else {
        let (what, paths) = line.split_once(' ').unwrap_or(("", line));
        let paths = paths.rsplit_once(" (").map_or(paths, |(paths, _)| paths);
        (if what == "copy" { "copies a file to" } else { "renames a file to" }, renamed_to(paths))
    };
    WorktreeError::NotPlain { how, path }
}

/// The second of two paths as git writes them, `a => b` or with what both have written once, `folder/{a => b}`.
fn renamed_to(paths: &str) -> String {
    let in_braces = paths.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match in_braces {
        Some((before, (both, behind))) => {
            let new = both.split_once(" => ").map_or(both, |(_, new)| new);
            format!("{before}{new}{behind}").replace("//", "/")
        }
        None => paths.split_once(" => ").map_or(paths, |(_, new)| new).to_owned(),
    }
}

/// Whether there is a file that is neither a link nor executable, or nothing.
fn is_plain_file_or_none(path: &Path) -> Result<bool, WorktreeError> {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_file() && metadata.permissions().mode() & 0o111 == 0),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(WorktreeError::File { path: path.to_owned(), source }),
    }
}

/// Runs git in a folder. The repository's hooks do not run: a worktree for a moment is none of their business.
fn git(
    folder: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    stdin: Option<&str>,
) -> Result<Output, WorktreeError> {
    let no_git = |source| WorktreeError::NoGit { source };
    let mut command = Command::new("git");
    for variable in GIT_VARIABLES {
        command.env_remove(variable);
    }
    let mut child = command
        .args(["-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false"])
        .args(arguments)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_git)?;
    // git reads all of a patch before it says anything, so this cannot block on its output.
    if let Some(mut pipe) = child.stdin.take() {
        // One that ends early says why itself.
        let _ = pipe.write_all(stdin.unwrap_or_default().as_bytes());
    }
    child.wait_with_output().map_err(no_git)
}

fn checked(command: &'static str, output: Output) -> Result<Output, WorktreeError> {
    if output.status.success() {
        return Ok(output);
    }
    Err(WorktreeError::Git { command, message: said(&output) })
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// For tests: a repository with a device crate of one file.
#[cfg(test)]
pub(crate) fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| {
        checked("test", git(folder.path(), arguments, None).expect("git")).expect("done");
    };
    run(&["init", "--quiet"]);
    std::fs::create_dir_all(folder.path().join("kernels-gpu/src/tile")).expect("folders");
    std::fs::write(folder.path().join("kernels-gpu/src/a.rs"), "a\n").expect("written");
    std::fs::write(folder.path().join(".gitignore"), "*.secret.rs\n").expect("written");
    run(&["add", "."]);
    run(&["-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "first"]);
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replacing(path: &str) -> String {
        format!("diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n")
    }

    fn listed(repository: &Path) -> usize {
        let output = git(repository, ["worktree", "list"], None).expect("git");
        String::from_utf8_lossy(&output.stdout).lines().count()
    }

    #[test]
    fn a_patch_is_applied_there_and_nothing_of_it_is_left() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        let users = repository.path().join("kernels-gpu/src/a.rs");
        std::fs::write(&users, "the user's work\n").expect("written");
        let worktree = Worktree::new(repository.path(), "HEAD", within.path()).expect("a worktree");
        worktree.apply(&replacing("kernels-gpu/src/a.rs")).expect("applied");
        let patched = std::fs::read_to_string(worktree.path().join("kernels-gpu/src/a.rs")).expect("a file");
        assert_eq!(patched, "b\n");
        assert_eq!(listed(repository.path()), 2);
        drop(worktree);
        assert_eq!(listed(repository.path()), 1);
        assert_eq!(std::fs::read_dir(within.path()).expect("the folder").count(), 0);
        assert_eq!(std::fs::read_to_string(&users).expect("a file"), "the user's work\n");
    }

    #[test]
    fn every_way_out_of_the_device_crate_is_closed() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        let applied = |text: &str| {
            let worktree = Worktree::new(repository.path(), "HEAD", within.path()).expect("a worktree");
            worktree.apply(text).expect_err(text)
        };
        let device = replacing("kernels-gpu/src/a.rs");
        for path in [
            "host/src/lib.rs",
            ".gitignore",
            "kernels-gpu/Cargo.toml",
            "kernels-gpu/build.rs",
            "kernels-gpu/src/../../host/src/lib.rs",
            "kernels-gpu/src/./a.rs",
            "kernels-gpu/src/.cargo/a.rs",
            "kernels-gpu/src/a.txt",
            "kernels-gpu/src",
            "kernels-gpu/srcs/a.rs",
            "../kernels-gpu/src/a.rs",
            "/etc/kernels-gpu/src/a.rs",
            "kernels-gpu/src/a\\b.rs",
        ] {
            // By itself, and as the second file of a patch.
            for text in [replacing(path), device.clone() + &replacing(path)] {
                let error = applied(&text);
                let is_named =
                    matches!(error, WorktreeError::Outside { .. } | WorktreeError::DoesNotApply { .. });
                assert!(is_named, "{path}: {error}");
            }
        }
        assert!(
            matches!(applied(&replacing("host/src/lib.rs")), WorktreeError::Outside { .. }),
            "also unseen"
        );
        // A removed line that looks like a header is a line, and a hunk that says it is longer swallows no header.
        let fake = device.replace("\n-a\n", "\n--- a/host/src/lib.rs\n");
        assert!(matches!(applied(&fake), WorktreeError::DoesNotApply { .. }));
        let long = device.replace("-1 +1", "-1,9 +1,9") + &replacing("host/src/a.rs");
        assert!(matches!(applied(&long), WorktreeError::DoesNotApply { .. }));
        let head = "diff --git a/kernels-gpu/src/a.rs b/kernels-gpu/src/a.rs\n";
        let new = "diff --git a/kernels-gpu/src/b.rs b/kernels-gpu/src/b.rs\n";
        let link = "new file mode 120000\n--- /dev/null\n+++ b/kernels-gpu/src/b.rs\n@@ -0,0 +1 @@\n+a\n";
        let moved = "similarity index 100%\nrename from .gitignore\nrename to kernels-gpu/src/b.rs\n";
        let inside =
            "similarity index 100%\nrename from kernels-gpu/src/a.rs\nrename to kernels-gpu/src/b.rs\n";
        let module = link
            .replace("120000", "160000")
            .replace("+a", "+Subproject commit 1111111111111111111111111111111111111111");
        for text in [
            format!("{head}old mode 100644\nnew mode 100755\n"),
            format!("{new}{link}"),
            format!("diff --git a/.gitignore b/kernels-gpu/src/b.rs\n{moved}"),
            format!("diff --git a/.gitignore b/kernels-gpu/src/b.rs\n{}", moved.replace("rename", "copy")),
            format!("diff --git a/kernels-gpu/src/a.rs b/kernels-gpu/src/b.rs\n{inside}"),
            format!("{device}{new}{module}"),
        ] {
            let error = applied(&text);
            let is_outside = matches!(error, WorktreeError::Outside { .. } | WorktreeError::NotPlain { .. });
            assert!(is_outside, "{text}");
        }
        for text in ["", "\n\n", "talk\n", &"x".repeat(PATCH_BYTES_MAX + 1)] {
            assert!(matches!(applied(text), WorktreeError::DoesNotApply { .. }));
        }
        assert_eq!(listed(repository.path()), 1);
    }

    #[test]
    fn what_is_no_plain_file_is_named_by_its_path() {
        for (line, how, path) in [
            ("create mode 100755 kernels-gpu/src/e.rs", "executed", "kernels-gpu/src/e.rs"),
            ("create mode 120000 kernels-gpu/src/l.rs", "link", "kernels-gpu/src/l.rs"),
            ("delete mode 160000 kernels-gpu/src/s.rs", "submodule", "kernels-gpu/src/s.rs"),
            ("mode change 100644 => 100755 kernels-gpu/src/a.rs", "mode of", "kernels-gpu/src/a.rs"),
            ("rename kernels-gpu/src/{a.rs => b.rs} (100%)", "renames", "kernels-gpu/src/b.rs"),
            ("rename kernels-gpu/src/{ => math}/a.rs (90%)", "renames", "kernels-gpu/src/math/a.rs"),
            ("copy .gitignore => kernels-gpu/src/b.rs (100%)", "copies", "kernels-gpu/src/b.rs"),
        ] {
            let said = not_plain(line).to_string();
            assert!(said.contains(how) && said.contains(&format!("`{path}`: it may")), "{said}");
        }
    }

    #[test]
    fn a_patch_that_does_not_fit_is_named() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        let worktree = Worktree::new(repository.path(), "HEAD", within.path()).expect("a worktree");
        let other = replacing("kernels-gpu/src/a.rs").replace("-a", "-z");
        assert!(matches!(worktree.apply(&other), Err(WorktreeError::DoesNotApply { .. })));
        let missing = replacing("kernels-gpu/src/missing.rs");
        assert!(matches!(worktree.apply(&missing), Err(WorktreeError::DoesNotApply { .. })));
        let same = replacing("kernels-gpu/src/a.rs").replace("+b", "+a");
        assert!(matches!(worktree.apply(&same), Err(WorktreeError::ChangesNothing)));
    }

    #[test]
    fn what_the_text_hid_shows_in_the_worktree() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        let fine = replacing("kernels-gpu/src/a.rs");
        let after = |plant: &dyn Fn(&Path)| {
            let worktree = Worktree::new(repository.path(), "HEAD", within.path()).expect("a worktree");
            plant(worktree.path());
            worktree.apply(&fine).expect_err("refused").to_string()
        };
        let outside = after(&|root| std::fs::write(root.join("build.rs"), "").expect("written"));
        assert!(outside.contains("`build.rs`"), "{outside}");
        let ignored = after(&|root| std::fs::write(root.join("x.secret.rs"), "").expect("written"));
        assert!(ignored.contains("`x.secret.rs`"), "{ignored}");
        let link = after(&|root| {
            std::os::unix::fs::symlink("../../.gitignore", root.join("kernels-gpu/src/link.rs"))
                .expect("a link");
        });
        assert!(link.contains("link.rs"), "{link}");
    }

    #[test]
    fn a_commit_that_is_none_and_a_folder_that_is_no_repository_are_named() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        for commit in ["no-such-branch", "--help", ""] {
            let error = Worktree::new(repository.path(), commit, within.path()).expect_err("refused");
            assert!(matches!(error, WorktreeError::NoCommit { .. }), "{error}");
        }
        assert!(Worktree::new(within.path(), "HEAD", within.path()).is_err());
        let nowhere = within.path().join("nowhere");
        assert!(matches!(
            Worktree::new(repository.path(), "HEAD", &nowhere),
            Err(WorktreeError::File { .. })
        ));
    }

    #[test]
    fn what_a_killed_session_left_is_taken_away_and_nothing_else() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        let other = tempfile::tempdir().expect("a folder");
        let kept = Worktree::new(repository.path(), "HEAD", other.path()).expect("a worktree");
        let left = Worktree::new(repository.path(), "HEAD", within.path()).expect("a worktree");
        // As if killed: nothing is dropped.
        std::mem::forget(left);
        std::fs::write(within.path().join("worktree-notes"), "a file").expect("written");
        assert_eq!(Worktree::remove_left_behind(repository.path(), within.path()).expect("removed"), 1);
        assert_eq!(listed(repository.path()), 2);
        assert!(kept.path().exists() && within.path().join("worktree-notes").exists());
    }
}
