//! A file of JSON lines that only grows.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What it is a record of.
    pub kind: String,
    /// Seconds since the session began, over all its runs.
    pub at_s: f64,
    /// What is recorded.
    pub body: serde_json::Value,
    /// The hash of this line and all before it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub chain: String,
}

/// A file of records, open at its end.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// The last line has no end: whoever wrote it was killed.
    is_cut: bool,
    warnings: Vec<String>,
}

impl Journal {
    /// Opens or creates a file, and reads what is in it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn open(path: &Path) -> Result<(Journal, Vec<Line>)> {
        let opened = OpenOptions::new().append(true).create(true).open(path);
        let file = opened.map_err(|source| Error::io(path, source))?;
        let bytes = std::fs::read(path).map_err(|source| Error::io(path, source))?;
        let (lines, warnings) = parse(path, &bytes);
        let is_cut = bytes.last().is_some_and(|&byte| byte != b'\n');
        Ok((Journal { path: path.to_owned(), file, is_cut, warnings }, lines))
    }

    /// What could not be read, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Adds a record; it is on the disk when this returns.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`].
    pub fn append(&mut self, line: &Line) -> Result<()> {
        let mut text = if self.is_cut { "\n".to_owned() } else { String::new() };
        text += &serde_json::to_string(line)
            .map_err(|error| Error::BadFile { path: self.path.clone(), reason: error.to_string() })?;
        text.push('\n');
        // What was written of a line that failed is cut off by the next one.
        self.is_cut = true;
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.sync());
        written.map_err(|source| Error::io(&self.path, source))?;
        self.is_cut = false;
        Ok(())
    }

    fn sync(&self) -> std::io::Result<()> {
        match self.file.sync_data() {
            // Pipes and devices have nothing to wait for.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
            result => result,
        }
    }
}

/// The records of a file, and what could not be read.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn read(path: &Path) -> Result<(Vec<Line>, Vec<String>)> {
    let bytes = std::fs::read(path).map_err(|source| Error::io(path, source))?;
    Ok(parse(path, &bytes))
}

fn parse(path: &Path, bytes: &[u8]) -> (Vec<Line>, Vec<String>) {
    let (mut lines, mut warnings) = (Vec::new(), Vec::new());
    for (index, text) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice(text) {
            Ok(line) => lines.push(line),
            Err(error) => {
                let number = index + 1;
                warnings.push(format!("{}:{number}: skipped, not a whole record: {error}", path.display()));
            }
        }
    }
    (lines, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_that_says_so() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        // Reading this device never ends, so the journal is put together by hand.
        let file = OpenOptions::new().append(true).open(full).expect("a device");
        let mut journal = Journal { path: full.to_owned(), file, is_cut: false, warnings: Vec::new() };
        let line = Line { kind: "number".into(), at_s: 0.0, body: 1.into(), chain: String::new() };
        let error = journal.append(&line).expect_err("no room");
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    }

    #[test]
    fn rubbish_in_the_middle_costs_its_own_line_only() {
        let text = b"{\"kind\":\"a\",\"at_s\":0.5,\"body\":1}\nrubbish \xff\n\n{\"kind\":\"b\",\"at_s\":1,\"body\":2}\n";
        let (lines, warnings) = parse(Path::new("x"), text);
        assert_eq!(lines.iter().map(|line| line.kind.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(warnings.len() == 1 && warnings[0].starts_with("x:2: "), "{warnings:?}");
    }
}
