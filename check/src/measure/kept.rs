//! The file in which a sweep keeps what it measured, a line of JSON a problem: it only grows, and a sweep that was interrupted goes on
//! behind its last whole line.

use super::sweep::Record;
use ferroflash::error::Error;
use flate2::read::GzDecoder;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Records, and the file that they are kept in, if there is one.
#[derive(Debug, Default)]
pub struct KeptRecords {
    records: Vec<Record>,
    file: Option<(PathBuf, File)>,
}

impl KeptRecords {
    /// What a file holds, to go on behind it; it is made where there is none. A last line that an interruption cut off is taken away.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadRecord`].
    pub fn open(path: &Path) -> Result<KeptRecords, Error> {
        let io_error = |source| Error::Io { path: path.to_path_buf(), source };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io_error)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io_error)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let records = parse(path, &text[..whole])?;
        file.set_len(whole as u64).map_err(io_error)?;
        Ok(KeptRecords { records, file: Some((path.to_path_buf(), file)) })
    }

    /// The records so far.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Whether a problem of a seed was measured already.
    pub fn holds(&self, seed: u64, index: u64) -> bool {
        self.records.iter().any(|record| (record.seed, record.index) == (seed, index))
    }

    /// Keeps one more, at once.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn push(&mut self, record: Record) -> Result<(), Error> {
        if let Some((path, file)) = &mut self.file {
            let io_error = |source| Error::Io { path: path.clone(), source };
            let line = serde_json::to_string(&record).map_err(|error| io_error(error.into()))?;
            file.write_all(format!("{line}\n").as_bytes()).map_err(io_error)?;
        }
        self.records.push(record);
        Ok(())
    }
}

/// The records in a file, plain or compressed by gzip (`.gz`).
///
/// # Errors
/// [`Error::Io`], [`Error::BadRecord`].
pub fn read(path: &Path) -> Result<Vec<Record>, Error> {
    let io_error = |source| Error::Io { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(io_error)?;
    let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
    let mut reader: Box<dyn Read> =
        if is_compressed { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let mut text = String::new();
    reader.read_to_string(&mut text).map_err(io_error)?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Vec<Record>, Error> {
    let record = |(number, line): (usize, &str)| {
        let reason = |error: serde_json::Error| error.to_string();
        serde_json::from_str(line).map_err(|error| Error::BadRecord {
            path: path.to_path_buf(),
            line: number + 1,
            reason: reason(error),
        })
    };
    text.lines().enumerate().map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::contest::Round;
    use crate::measure::draw::{Draw, Kind};
    use crate::measure::sweep::PlanTime;

    fn record(index: u64) -> Record {
        let draw = Draw::new(3, Kind::Both.number(index)).expect("valid");
        let time =
            |us| PlanTime { entry: "fwd_x".to_owned(), splits: 1, fused: false, us, round: Round::Final };
        Record { times: vec![time(12.0), time(10.0)], ..Record::new(&draw, (3, index)) }
    }

    #[test]
    fn a_sweep_goes_on_behind_what_it_kept_and_a_line_cut_off_is_measured_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records.jsonl");
        let mut kept = KeptRecords::open(&path).expect("opened");
        for index in 0..3 {
            kept.push(record(index)).expect("kept");
        }
        drop(kept);
        let whole = std::fs::read_to_string(&path).expect("read");
        std::fs::write(&path, &whole[..whole.len() - 20]).expect("written");
        let mut kept = KeptRecords::open(&path).expect("opened");
        assert_eq!(kept.records(), [record(0), record(1)]);
        assert!(kept.holds(3, 1) && !kept.holds(3, 2) && !kept.holds(4, 1));
        kept.push(record(2)).expect("kept");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), whole);
        assert_eq!(read(&path).expect("read"), [record(0), record(1), record(2)]);
        for (record, number) in kept.records().iter().zip([0, 1].map(|place| Kind::Both.number(place))) {
            let drawn = Draw::new(3, number).expect("valid").workload;
            let kept = record.workload().expect("valid");
            assert_eq!(kept.problem(), drawn.problem());
            assert_eq!(kept.operands(), drawn.operands());
        }
        assert!((kept.records()[0].regret().expect("measured") - 0.2).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_record_is_named_by_its_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records.jsonl");
        let line = serde_json::to_string(&record(0)).expect("text");
        std::fs::write(&path, format!("{line}\nnothing\n{line}\n")).expect("written");
        assert!(matches!(KeptRecords::open(&path), Err(Error::BadRecord { line: 2, .. })));
        assert!(matches!(read(&folder.path().join("none")), Err(Error::Io { .. })));
    }
}
