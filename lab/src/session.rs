//! A session: the folder `lab-runs/<time>/` with what was asked for, what came of it, and the artifacts.
//!
//! `session.json` is written once. `records.jsonl` only grows, a line each result, on the disk before the next candidate
//! begins: a session that was killed loses at most the candidate in flight.

pub mod chain;
mod journal;

pub use journal::{Journal, Line};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::results::portable;
use crate::whole_file;
use ferroflash::module::{Library, MANIFEST_FILE, sha256_hex};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The folder of all sessions, in the workspace's root.
pub const RUNS: &str = "lab-runs";
/// What a session is, in its folder.
pub const HEADER_FILE: &str = "session.json";
/// What came of it, in its folder.
pub const RECORDS_FILE: &str = "records.jsonl";

/// What a session is: everything that its results follow from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The command, `evolve`.
    pub command: String,
    /// Its arguments, without `--resume` and what only changes the output.
    pub arguments: Vec<String>,
    /// lab.toml as it was.
    pub config: Config,
    /// The seed of the search.
    pub seed: u64,
    /// What ran the kernels, `NVIDIA L4` or `simulator (L4, sm_89)`.
    pub device: String,
    /// The commit, where git tells.
    pub commit: Option<String>,
    /// The lab's version.
    pub version: String,
    /// SHA-256 of the lab's program: results of another harness are other results.
    #[serde(default)]
    pub harness: String,
    /// The folder of compiled kernels that candidates come from, where nothing was compiled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<CompiledKernels>,
    /// When it began, UTC.
    pub started: String,
}

/// A folder of compiled kernels, as it was when a session began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledKernels {
    /// The folder, absolute.
    pub folder: PathBuf,
    /// SHA-256 of its manifest, which has the hash of its PTX.
    pub sha256: String,
}

impl CompiledKernels {
    /// The folder as it is now.
    ///
    /// # Errors
    /// [`Error::Host`] where it holds no kernels that can be used, [`Error::Io`].
    pub fn of(folder: &Path) -> Result<CompiledKernels> {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Library::open(&folder)?;
        let path = folder.join(MANIFEST_FILE);
        let manifest = std::fs::read(&path).map_err(|source| Error::io(&path, source))?;
        Ok(CompiledKernels { folder, sha256: sha256_hex(&manifest) })
    }
}

/// A session's folder, open for more records.
#[derive(Debug)]
pub struct Session {
    folder: PathBuf,
    header: Header,
    journal: Journal,
    lines: Vec<Line>,
    /// The hash of all that is recorded.
    last: String,
    /// Seconds that the session had taken before it was resumed.
    before: Duration,
    since: std::time::Instant,
}

impl Session {
    /// A new session's folder below `runs`, named after the time.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn create(runs: &Path, header: Header) -> Result<Session> {
        std::fs::create_dir_all(runs).map_err(|source| Error::io(runs, source))?;
        let name = header.started.replace(['-', ':'], "");
        let folder = fresh_folder(runs, &name)?;
        let text = serde_json::to_string_pretty(&header).unwrap_or_default();
        write_whole(&folder.join(HEADER_FILE), &text)?;
        let (journal, lines) = Journal::open(&folder.join(RECORDS_FILE))?;
        let (last, since) = (chain::root(&header), std::time::Instant::now());
        Ok(Session { folder, header, journal, lines, last, before: Duration::ZERO, since })
    }

    /// Opens a session again, with what it recorded. Lines that cannot be read are skipped and named in `warn`.
    ///
    /// # Errors
    /// [`Error::NotResumable`] where it is of another command or has no header, [`Error::Io`].
    pub fn resume(folder: &Path, command: &str, warn: &mut dyn FnMut(String)) -> Result<Session> {
        let header = read_header(folder)?;
        if header.command != command {
            let reason = format!("it is a session of `{}`, not of `{command}`", header.command);
            return Err(Error::NotResumable { folder: folder.to_owned(), reason });
        }
        let (journal, lines) = Journal::open(&folder.join(RECORDS_FILE))?;
        journal.warnings().iter().for_each(|warning| warn(warning.clone()));
        let before = lines.last().map_or(Duration::ZERO, |line| Duration::from_secs_f64(line.at_s.max(0.0)));
        let since = std::time::Instant::now();
        let last = lines.last().map_or_else(|| chain::root(&header), |line| line.chain.clone());
        Ok(Session { folder: folder.to_owned(), header, journal, lines, last, before, since })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it is.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Time that the session has taken, over all its runs.
    pub fn elapsed(&self) -> Duration {
        self.before + self.since.elapsed()
    }

    /// Adds a record; it is on the disk when this returns.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`].
    pub fn append<T: Serialize>(&mut self, kind: &str, body: &T) -> Result<()> {
        let body = serde_json::to_value(body).map_err(|error| Error::BadFile {
            path: self.folder.join(RECORDS_FILE),
            reason: error.to_string(),
        })?;
        let at_s = self.elapsed().as_secs_f64();
        let mut line = Line { kind: kind.to_owned(), at_s, body, chain: String::new() };
        line.chain = chain::link(&self.last, &line);
        self.journal.append(&line)?;
        self.last.clone_from(&line.chain);
        self.lines.push(line);
        Ok(())
    }

    /// Promises the secret of a run, which is told when the run ends.
    ///
    /// # Errors
    /// Those of [`Session::append`].
    pub fn promise(&mut self, secret: u64) -> Result<()> {
        self.append(chain::PROMISED, &chain::promise(secret))
    }

    /// The records of one kind, in their order. Those of another version of the lab that do not fit are left out.
    pub fn records<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        of_kind(&self.lines, kind)
    }

    /// A folder for artifacts below the session's.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn subfolder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).map_err(|source| Error::io(&folder, source))?;
        Ok(folder)
    }
}

/// The bodies of one kind of record.
pub fn of_kind<T: DeserializeOwned>(lines: &[Line], kind: &str) -> Vec<T> {
    let bodies = lines.iter().filter(|line| line.kind == kind).map(|line| &line.body);
    bodies.filter_map(|body| T::deserialize(body).ok()).collect()
}

/// What a session's folder says it is.
///
/// # Errors
/// [`Error::NotResumable`].
pub fn read_header(folder: &Path) -> Result<Header> {
    let path = folder.join(HEADER_FILE);
    let refused = |reason: String| Error::NotResumable { folder: folder.to_owned(), reason };
    let text = whole_file::read(&path).map_err(|error| refused(format!("{HEADER_FILE}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| refused(format!("{HEADER_FILE}: {error}")))
}

/// A session's header and records, for reading only.
///
/// # Errors
/// [`Error::NotResumable`], [`Error::Io`].
pub fn read(folder: &Path, warn: &mut dyn FnMut(String)) -> Result<(Header, Vec<Line>)> {
    let header = read_header(folder)?;
    let (lines, warnings) = journal::read(&folder.join(RECORDS_FILE))?;
    warnings.into_iter().for_each(warn);
    Ok((header, lines))
}

/// The sessions below a folder, oldest first; none where the folder is not there.
pub fn all(runs: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(runs) else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = folders.filter(|folder| folder.join(HEADER_FILE).is_file()).collect();
    folders.sort();
    folders
}

/// Now, in UTC, as `2026-11-20T14:15:00Z`.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The folder, or one with a number behind its name where another session began in the same second.
fn fresh_folder(runs: &Path, name: &str) -> Result<PathBuf> {
    for number in 1..1000 {
        let folder = runs.join(if number == 1 { name.to_owned() } else { format!("{name}-{number}") });
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(&folder, error)),
        }
    }
    Err(Error::Io { path: runs.join(name), source: std::io::ErrorKind::AlreadyExists.into() })
}

/// Writes a file whole or not at all, as [`whole_file::write`] does.
///
/// # Errors
/// [`Error::Io`], [`Error::DiskFull`].
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    whole_file::write(path, text).map_err(|source| Error::io(path, source))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn header(command: &str) -> Header {
        Header {
            command: command.to_owned(),
            arguments: Vec::new(),
            config: Config::default(),
            seed: 1,
            device: "none".to_owned(),
            commit: None,
            version: "0".to_owned(),
            harness: String::new(),
            kernels: None,
            started: "2026-11-20T14:15:00Z".to_owned(),
        }
    }

    #[test]
    fn what_was_appended_is_there_after_a_resume() {
        let runs = tempfile::tempdir().expect("a folder");
        let mut session = Session::create(runs.path(), header("evolve")).expect("created");
        assert!(session.folder().ends_with("20261120T141500Z"));
        session.append("number", &1).expect("written");
        session.append("word", &"a").expect("written");
        session.append("number", &2).expect("written");
        let folder = session.folder().to_owned();
        drop(session);
        let again = Session::resume(&folder, "evolve", &mut |warning| panic!("{warning}")).expect("resumed");
        assert_eq!(again.records::<u32>("number"), [1, 2]);
        assert_eq!(*again.header(), header("evolve"));
        let other = Session::create(runs.path(), header("evolve")).expect("created");
        assert!(other.folder().ends_with("20261120T141500Z-2"));
        assert_eq!(all(runs.path()), [folder.clone(), other.folder().to_owned()]);
        let error = Session::resume(&folder, "micro", &mut |_| ()).expect_err("another command");
        assert!(error.to_string().contains("a session of `evolve`, not of `micro`"), "{error}");
        assert!(Session::resume(runs.path(), "evolve", &mut |_| ()).is_err(), "no session");
    }

    #[test]
    fn a_line_cut_in_the_middle_is_skipped_and_nothing_else_is_lost() {
        let runs = tempfile::tempdir().expect("a folder");
        let mut session = Session::create(runs.path(), header("evolve")).expect("created");
        (0..3).for_each(|number| session.append("number", &number).expect("written"));
        let folder = session.folder().to_owned();
        drop(session);
        let path = folder.join(RECORDS_FILE);
        let text = std::fs::read_to_string(&path).expect("readable");
        std::fs::write(&path, &text[..text.len() - 9]).expect("cut");
        let mut warnings = Vec::new();
        let mut again = Session::resume(&folder, "evolve", &mut |w| warnings.push(w)).expect("resumed");
        assert_eq!(again.records::<u32>("number"), [0, 1]);
        assert!(warnings.len() == 1 && warnings[0].contains(":3: "), "{warnings:?}");
        again.append("number", &7).expect("written");
        drop(again);
        let last = Session::resume(&folder, "evolve", &mut |_| ()).expect("resumed");
        assert_eq!(last.records::<u32>("number"), [0, 1, 7], "the cut line is ended before the next");
    }
}
