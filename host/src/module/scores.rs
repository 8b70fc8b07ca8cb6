//! Kernels of users' scores beside those of Ferroflash.

use super::{Library, MANIFEST_FILE};
use crate::error::Error;
use kernels_gpu::manifest::{Kernel, ScoreCrate, version};
use kernels_gpu::row::ScoreKind;
use std::path::Path;
use std::sync::Arc;

impl Library {
    /// The same with the kernels of a user's crate of scores, which `cargo xtask build-ptx --score` wrote into this folder.
    ///
    /// # Errors
    /// Those of [`Library::open`]; [`Error::BadKernels`] where they were compiled with another Ferroflash, with both versions, and where the
    /// folder has no kernel of a user's score, or one of a name that is there already.
    pub fn with_scores(mut self, folder: &Path) -> Result<Library, Error> {
        let scores = Library::open(folder)?;
        let bad = |reason| Error::BadKernels { path: folder.join(MANIFEST_FILE), reason };
        let of_users: Vec<Arc<Kernel>> =
            scores.kernels.iter().filter(|kernel| is_users(kernel)).cloned().collect();
        if of_users.is_empty() {
            return Err(bad("it has no kernel of a user's score; give --score to build-ptx".to_owned()));
        }
        for kernel in of_users {
            if self.kernels.iter().any(|other| other.entry == kernel.entry) {
                return Err(bad(format!("{} is there already, from another folder", kernel.entry)));
            }
            self.kernels.push(kernel);
        }
        self.scores.push(scores);
        Ok(self)
    }

    /// The library whose files hold an entry.
    pub(super) fn holder(&self, entry: &str) -> &Library {
        let holds = |library: &&Library| library.kernels.iter().any(|of| of.entry == entry && is_users(of));
        self.scores.iter().find(holds).unwrap_or(self)
    }
}

fn is_users(kernel: &Kernel) -> bool {
    matches!(kernel.row.score, ScoreKind::User(_))
}

/// Refuses kernels of a user's score that were compiled with another Ferroflash. What else a manifest says may have another form there, so
/// it is read afterwards.
pub(super) fn check_version(path: &Path, manifest: &str) -> Result<(), Error> {
    #[derive(serde::Deserialize)]
    struct Only {
        score_crate: Option<ScoreCrate>,
    }
    let Ok(Only { score_crate: Some(found) }) = serde_json::from_str(manifest) else { return Ok(()) };
    let own = version();
    if found.ferroflash == own {
        return Ok(());
    }
    let reason = format!(
        "the scores of {} {} were compiled with Ferroflash {}, this is {own}: give their crate to --score",
        found.package, found.version, found.ferroflash
    );
    Err(Error::BadKernels { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_versions_scores_are_refused_with_both_versions() {
        let manifest = |version: &str| {
            let of = ScoreCrate {
                package: "mine".to_owned(),
                version: "1.2.3".to_owned(),
                scores: vec!["a".to_owned()],
                ferroflash: version.to_owned(),
            };
            // The rest may be anything.
            serde_json::json!({ "format": 99, "score_crate": of }).to_string()
        };
        let check = |text: &str| check_version(Path::new("folder"), text);
        let error =
            check(&manifest("0.0.9 with 8 bytes of parameters")).expect_err("another version").to_string();
        for part in ["mine 1.2.3", "0.0.9 with 8 bytes", version().as_str()] {
            assert!(error.contains(part), "{error}: {part}");
        }
        assert!(check(&manifest(&version())).is_ok());
        assert!(check("{}").is_ok());
        assert!(check("no manifest").is_ok(), "which is said where it is read");
    }
}
