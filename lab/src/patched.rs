//! A patched tree: the project at its commit in a throw-away worktree, with one patch to the device crate.

use crate::error::{Error, Result};
use crate::proposer::{Patch, PatchError, Worktree, WorktreeError};
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
    /// The patch may not be applied.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// It cannot be applied.
    #[error(transparent)]
    Worktree(#[from] WorktreeError),
    /// The compiler's files cannot be put beside it.
    #[error(transparent)]
    Files(#[from] Error),
}

impl PatchedTreeError {
    /// Whether the patch is to blame, not the machine.
    pub fn is_the_patchs(&self) -> bool {
        use WorktreeError::{ChangesNothing, DoesNotApply, Outside};
        matches!(
            self,
            PatchedTreeError::Patch(_)
                | PatchedTreeError::Worktree(DoesNotApply { .. } | ChangesNothing | Outside { .. })
        )
    }
}

impl PatchedTree {
    /// The tree at its commit with the patch, below the folder `within`. What compiled rows before is copied beside it, so that
    /// only the device crate is compiled again.
    ///
    /// # Errors
    /// A patch that may not be applied or does not fit; a repository that git cannot use; a full disk.
    pub fn new(own: &Tree, patch: &str, within: &Path) -> std::result::Result<PatchedTree, PatchedTreeError> {
        let patch = Patch::check(patch)?;
        std::fs::create_dir_all(within).map_err(|source| Error::io(within, source))?;
        let worktree = Worktree::new(own.root(), "HEAD", within)?;
        worktree.apply(&patch)?;
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
