//! A patched tree: the project at its commit in a throw-away worktree, with one patch to the device crate.

use crate::error::{Error, Result};
use crate::exam::Fault;
use crate::proposer::{EditError, Worktree, WorktreeError, recount, to_diff};
use crate::tree::Tree;
use std::path::Path;

/// A worktree with a patch, gone with its owner.
pub struct PatchedTree {
    tree: Tree,
    // Holds the folder.
    _worktree: Worktree,
}

/// Why there is no patched tree.
#[derive(Debug, thiserror::Error)]
pub enum PatchedTreeError {
    /// The patch cannot or may not be applied.
    #[error(transparent)]
    Worktree(#[from] WorktreeError),
    /// Its blocks fit nowhere.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The compiler's files cannot be put beside it.
    #[error(transparent)]
    Files(#[from] Error),
}

impl PatchedTreeError {
    /// The patch's fault, where it is to blame and not the machine.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            PatchedTreeError::Edit(_) => Some(Fault::DoesNotApply),
            PatchedTreeError::Worktree(
                WorktreeError::DoesNotApply { .. } | WorktreeError::ChangesNothing,
            ) => Some(Fault::DoesNotApply),
            PatchedTreeError::Worktree(
                WorktreeError::Outside { .. } | WorktreeError::NotPlain { .. } | WorktreeError::Breach(_),
            ) => Some(Fault::Forbidden),
            PatchedTreeError::Worktree(_) | PatchedTreeError::Files(_) => None,
        }
    }
}

impl PatchedTree {
    /// The tree at its commit with the patch, below the folder `within`. What compiled rows before is copied beside it, so that
    /// only the device crate is compiled again.
    ///
    /// # Errors
    /// A patch that may not be applied or does not fit; a repository that git cannot use; a full disk.
    pub fn new(own: &Tree, patch: &str, within: &Path) -> std::result::Result<PatchedTree, PatchedTreeError> {
        let base = Base::new(own, None, within)?;
        base.change(patch)?;
        let Base { worktree } = base;
        let tree = Tree::copy(worktree.path());
        tree.share_compiler(own)?;
        Ok(PatchedTree { tree, _worktree: worktree })
    }

    /// The tree at a commit, as it was.
    ///
    /// # Errors
    /// As [`PatchedTree::new`].
    pub fn at_commit(
        own: &Tree,
        commit: &str,
        within: &Path,
    ) -> std::result::Result<PatchedTree, PatchedTreeError> {
        std::fs::create_dir_all(within).map_err(|source| Error::io(within, source))?;
        let worktree = Worktree::new(own.root(), commit, within)?;
        let tree = Tree::of_commit(worktree.path());
        tree.share_compiler(own)?;
        Ok(PatchedTree { tree, _worktree: worktree })
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }
}

/// The tree at its commit with what was kept, and nothing compiled: what a proposer is shown, and what its change is put on.
pub struct Base {
    worktree: Worktree,
}

impl Base {
    /// A worktree below the folder `within`.
    ///
    /// # Errors
    /// As [`PatchedTree::new`].
    pub fn new(own: &Tree, kept: Option<&str>, within: &Path) -> std::result::Result<Base, PatchedTreeError> {
        std::fs::create_dir_all(within).map_err(|source| Error::io(within, source))?;
        let worktree = Worktree::new(own.root(), "HEAD", within)?;
        if let Some(kept) = kept {
            worktree.apply(kept)?;
        }
        Ok(Base { worktree })
    }

    /// Its root.
    pub fn root(&self) -> &Path {
        self.worktree.path()
    }

    /// Puts a change on it: a diff, however its lines are counted, or SEARCH/REPLACE blocks. Returns the change itself, and
    /// everything that then differs from the commit, each as a patch.
    ///
    /// # Errors
    /// What the change may not do, or where it does not fit.
    pub fn change(&self, text: &str) -> std::result::Result<[String; 2], PatchedTreeError> {
        let step = if text.contains("<<<<< SEARCH") || text.contains("<<<<<<< SEARCH") {
            to_diff(text, &|path| self.worktree.read(path))?
        } else {
            recount(text)
        };
        self.worktree.apply(&step)?;
        Ok([step, self.worktree.diff()?])
    }
}

/// Copies a folder with all that is in it; links are left out.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::io(&path, source)
    };
    std::fs::create_dir_all(to).map_err(failed(to))?;
    for entry in std::fs::read_dir(from).map_err(failed(from))? {
        let entry = entry.map_err(failed(from))?;
        let kind = entry.file_type().map_err(failed(&entry.path()))?;
        let target = to.join(entry.file_name());
        if kind.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), &target).map_err(failed(&target))?;
            // The compiler's caches compare times.
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let set = modified.and_then(|time| {
                std::fs::File::options().write(true).open(&target).and_then(|file| file.set_modified(time))
            });
            set.map_err(failed(&target))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proposer::worktree::repository;

    const FILE: &str = "kernels-gpu/src/a.rs";

    fn block(from: &str, to: &str) -> String {
        format!("{FILE}\n<<<<<<< SEARCH\n{from}\n=======\n{to}\n>>>>>>> REPLACE\n")
    }

    #[test]
    fn three_changes_on_top_of_each_other_are_one_patch_that_applies_to_the_commit() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        let own = Tree::copy(repository.path());
        let added = "diff --git a/kernels-gpu/src/new.rs b/kernels-gpu/src/new.rs\nnew file mode 100644\n--- /dev/null\n\
            +++ b/kernels-gpu/src/new.rs\n@@ -0,0 +1,7 @@\n+//! New.\n";
        let mut kept: Option<String> = None;
        for change in [block("a", "b\nc"), block("c", "d"), added.to_owned()] {
            let base = Base::new(&own, kept.as_deref(), within.path()).expect("a base");
            let [step, all] = base.change(&change).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(step.matches("diff --git").count(), 1, "{step}");
            kept = Some(all);
        }
        let kept = kept.expect("a patch");
        let tree = PatchedTree::new(&own, &kept, within.path()).unwrap_or_else(|error| panic!("{error}"));
        let text = |file: &str| std::fs::read_to_string(tree.tree().root().join(file)).expect("there");
        assert_eq!((text(FILE).as_str(), text("kernels-gpu/src/new.rs").as_str()), ("b\nd\n", "//! New.\n"));
        assert!(kept.contains("+b\n+d\n") && !kept.contains("+c\n"), "{kept}");
    }

    #[test]
    fn a_patch_is_taken_however_a_person_or_a_program_writes_it() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        let own = Tree::copy(repository.path());
        let plain = format!("--- a/{FILE}\n+++ b/{FILE}\n@@ -1 +1 @@\n-a\n+b\n");
        let git = format!("diff --git a/{FILE} b/{FILE}\n{plain}");
        let mail = "From 12 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nSubject: [PATCH] faster\n\n---\n a.rs | 2 +-\n\n";
        for text in [
            format!("{mail}{git}-- \n2.39.5\n\n"),
            git.replace('\n', "\r\n"),
            git.replace("-1 +1", "-7,9 +9,1"),
            git.replace("@@ -1 +1 @@", "@@ @@"),
            git.replace("a.rs\n+++", "a.rs\t2026-01-01 00:00:00 +0000\n+++"),
            git.replace(" a/", " ").replace(" b/", " "),
            git.replace(" a/", " i/").replace(" b/", " w/"),
            plain.replace(" a/", " ./").replace(" b/", " ./"),
            plain.replace(" a/", " a/./").replace(" b/", " b/./"),
            plain.trim_end().to_owned(),
            block("a", "b"),
            block("a", "b").replace('\n', "\r\n"),
        ] {
            // As a candidate of its own, and as what a program proposes.
            let tree = PatchedTree::new(&own, &text, within.path())
                .unwrap_or_else(|error| panic!("{text}\n{error}"));
            let file = std::fs::read_to_string(tree.tree().root().join(FILE)).expect("there");
            assert_eq!(file, "b\n", "{text}");
        }
    }

    #[test]
    fn a_change_that_may_not_be_or_does_not_fit_has_its_name() {
        let (repository, within) = (repository(), tempfile::tempdir().expect("a folder"));
        let own = Tree::copy(repository.path());
        let fault = |change: &str| {
            let base = Base::new(&own, None, within.path()).expect("a base");
            base.change(change).expect_err("refused").fault()
        };
        assert_eq!(fault(&block("a", "static A: u8 = 1;")), Some(Fault::Forbidden));
        assert_eq!(fault(&block("z", "y")), Some(Fault::DoesNotApply));
        assert_eq!(fault(&block("a", "a")), Some(Fault::DoesNotApply));
        let outside = "--- a/host/src/lib.rs\n+++ b/host/src/lib.rs\n@@ -1 +1 @@\n-a\n+b\n";
        assert_eq!(fault(outside), Some(Fault::Forbidden));
        assert_eq!(
            fault(&outside.replace("host/src/lib.rs", "kernels-gpu/build.rs")),
            Some(Fault::Forbidden)
        );
        assert_eq!(
            fault(&outside.replace("host/src/lib.rs", "kernels-gpu/Cargo.toml")),
            Some(Fault::Forbidden)
        );
        assert_eq!(fault("talk"), Some(Fault::DoesNotApply));
    }
}
