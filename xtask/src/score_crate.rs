//! A user's crate of score functions: what its Cargo.toml says, and the device crate that its kernels are compiled from.

use crate::{manifest_file, workspace};
use kernels_gpu::manifest::{ScoreCrate, version};
use kernels_gpu::row::{Row, ScoreKind, ScoreName};
use kernels_gpu::table::VARIANTS;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Why a crate of scores is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScoreCrateError {
    #[error("{} cannot be read: {reason}", path.display())]
    Read { path: PathBuf, reason: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Parse { path: PathBuf, reason: toml::de::Error },
    #[error("{}: there is no [package.metadata.ferroflash.scores] with a line `name = \"Type\"` or `name = \"Type<F>\"` a score", .0.display())]
    NoScores(PathBuf),
    #[error("{}: {name:?} cannot be: {}", path.display(), ScoreName::RULE)]
    Name { path: PathBuf, name: String },
    #[error("{}: {name} is of the type {path_of:?}, which is no path of Rust names", path.display())]
    Type { path: PathBuf, name: String, path_of: String },
}

/// A crate and its scores.
#[derive(Clone, Debug)]
pub(crate) struct Scores {
    folder: PathBuf,
    package: String,
    version: String,
    /// The path of each score's type in the crate, by the score's name.
    types: BTreeMap<String, String>,
}

/// What is read of a user's Cargo.toml.
#[derive(serde::Deserialize)]
struct CargoToml {
    package: Package,
}

#[derive(serde::Deserialize)]
struct Package {
    name: String,
    /// A text, or that the workspace has it.
    version: Option<toml::Value>,
    #[serde(default)]
    metadata: toml::Table,
}

impl Scores {
    /// Those of the crate in a folder.
    ///
    /// # Errors
    /// [`ScoreCrateError`].
    pub(crate) fn read(folder: &Path) -> Result<Scores, ScoreCrateError> {
        let path = folder.join("Cargo.toml");
        let unread = |reason| ScoreCrateError::Read { path: path.clone(), reason };
        let text = std::fs::read_to_string(&path).map_err(unread)?;
        let folder = std::fs::canonicalize(folder).map_err(unread)?;
        let CargoToml { package } =
            toml::from_str(&text).map_err(|reason| ScoreCrateError::Parse { path: path.clone(), reason })?;
        let scores = package.metadata.get("ferroflash").and_then(|ours| ours.get("scores"));
        let Some(scores) = scores.and_then(toml::Value::as_table).filter(|scores| !scores.is_empty()) else {
            return Err(ScoreCrateError::NoScores(path));
        };
        let mut types = BTreeMap::new();
        for (name, of) in scores {
            if !matches!(ScoreKind::try_from(name.clone()), Ok(ScoreKind::User(_))) {
                return Err(ScoreCrateError::Name { path, name: name.clone() });
            }
            let path_of = of.as_str().unwrap_or_default();
            let is_name = |part: &str| {
                part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                    && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            if !generic_of(path_of).0.split("::").all(is_name) {
                let (name, path_of) = (name.clone(), of.to_string());
                return Err(ScoreCrateError::Type { path, name, path_of });
            }
            types.insert(name.clone(), path_of.to_owned());
        }
        let version = package.version.as_ref().and_then(toml::Value::as_str).unwrap_or("of its workspace");
        Ok(Scores { folder, package: package.name, version: version.to_owned(), types })
    }

    /// Whether the crate has the score of a row.
    pub(crate) fn has(&self, row: &Row) -> bool {
        matches!(row.score, ScoreKind::User(name) if self.types.contains_key(name.as_str()))
    }

    /// The rows that each score is compiled in unless a file says which: those that the table has with a softcap.
    pub(crate) fn usual_rows(&self) -> impl Iterator<Item = Row> + '_ {
        let names = self.types.keys().filter_map(|name| ScoreName::new(name));
        let rows = || VARIANTS.iter().filter(|variant| variant.row.score == ScoreKind::Softcap);
        names.flat_map(move |name| {
            rows().map(move |variant| Row { score: ScoreKind::User(name), ..variant.row })
        })
    }

    /// The scores' names.
    pub(crate) fn names(&self) -> String {
        self.types.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// What the manifest says of the crate.
    pub(crate) fn record(&self) -> ScoreCrate {
        ScoreCrate {
            package: self.package.clone(),
            version: self.version.clone(),
            scores: self.types.keys().cloned().collect(),
            ferroflash: version(),
        }
    }

    /// The macro by which the kernels know the scores' types.
    pub(crate) fn macro_source(&self) -> String {
        let mut lines = String::new();
        for (number, (name, path_of)) in self.types.iter().enumerate() {
            let (path_of, is_generic) = generic_of(path_of);
            let number_type = if is_generic { "<$crate::user_score::Real>" } else { "" };
            // A String takes everything.
            let _ = writeln!(lines, "            {number} {name} => ::users_scores::{path_of}{number_type};");
        }
        macro_of(&lines)
    }

    /// Writes the crate that is compiled: the kernels' own source beside the user's crate. Returns its folder.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub(crate) fn write_device_crate(&self) -> Result<PathBuf, manifest_file::ManifestError> {
        let (root, home) = (workspace::root(), workspace::target().join("device/scores").join(&self.package));
        // A package name of its own, as the compiler's output is named after it.
        let text = format!(
            "[workspace]\n\n[package]\nname = \"scores-of-{package}\"\nversion = \"{version}\"\nedition = \"2024\"\n\n\
             [lib]\npath = {source:?}\n\n[features]\nmanifest = []\n\n[dependencies]\n\
             cuda_std = {{ path = {cuda_std:?} }}\nferroflash-score = {{ path = {score:?} }}\n\
             users_scores = {{ package = {package:?}, path = {folder:?} }}\n\n\
             [patch.crates-io]\nferroflash-score = {{ path = {score:?} }}\n\n\
             [lints.rust]\nunexpected_cfgs = \"allow\"\nunused = \"allow\"\n",
            package = self.package,
            version = ferroflash_version(),
            source = root.join("kernels-gpu/src/lib.rs"),
            cuda_std = root.join("compat/cuda_std"),
            score = root.join("kernels-gpu/score"),
            folder = self.folder,
        );
        manifest_file::write_whole(&home.join("Cargo.toml"), text.as_bytes())?;
        Ok(home)
    }
}

/// The path of a type, and whether the type of its numbers follows: `Type<F>`.
fn generic_of(path: &str) -> (&str, bool) {
    path.strip_suffix("<F>").map_or((path, false), |path| (path, true))
}

/// The macro of a build without users' scores.
pub(crate) fn no_scores() -> String {
    macro_of("")
}

fn macro_of(lines: &str) -> String {
    format!(
        "/// Calls `$callback!` back with the scores of users.\n#[macro_export]\n\
         macro_rules! for_each_user_score {{\n    ($callback:ident) => {{\n        $callback! {{\n{lines}        }}\n    }};\n}}\n"
    )
}

fn ferroflash_version() -> &'static str {
    kernels_gpu::manifest::VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(metadata: &str) -> Result<Scores, ScoreCrateError> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let text = format!("[package]\nname = \"mine\"\nversion = \"2.0.0\"\n{metadata}");
        std::fs::write(folder.path().join("Cargo.toml"), text).expect("writable");
        Scores::read(folder.path())
    }

    #[test]
    fn a_crate_says_which_types_its_scores_are() {
        let scores = read("[package.metadata.ferroflash.scores]\nb = \"Mine\"\na = \"deep::Other<F>\"\n");
        let scores = scores.expect("a crate of scores");
        assert_eq!(scores.names(), "a, b");
        let source = scores.macro_source();
        assert!(source.contains("0 a => ::users_scores::deep::Other<$crate::user_score::Real>;"), "{source}");
        assert!(source.contains("1 b => ::users_scores::Mine;"), "{source}");
        let rows: Vec<Row> = scores.usual_rows().collect();
        assert!(!rows.is_empty() && rows.iter().all(|row| scores.has(row) && row.check().is_ok()));
        let record = scores.record();
        assert_eq!((record.package.as_str(), record.version.as_str()), ("mine", "2.0.0"));
    }

    #[test]
    fn crates_that_are_none_are_refused() {
        assert!(matches!(Scores::read(Path::new("/nonexistent")), Err(ScoreCrateError::Read { .. })));
        assert!(matches!(read(""), Err(ScoreCrateError::NoScores(_))));
        let of = |line: &str| read(&format!("[package.metadata.ferroflash.scores]\n{line}\n"));
        assert!(matches!(of(""), Err(ScoreCrateError::NoScores(_))));
        for name in ["Upper", "softcap", "a-b"] {
            let error = of(&format!("{name} = \"Mine\"")).expect_err(name);
            assert!(matches!(error, ScoreCrateError::Name { .. }), "{error}");
        }
        for path in ["\"\"", "\"a b\"", "\"x::\"", "\"x<G>\"", "1"] {
            let error = of(&format!("mine = {path}")).expect_err(path);
            assert!(matches!(error, ScoreCrateError::Type { .. }), "{error}");
        }
    }
}
