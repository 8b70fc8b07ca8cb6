//! The leaderboard: the best kernel for each device, shape, dtype and mask, with its history, as one JSON file.

use crate::counters::Counters;
use crate::problem_spec::Mask;
use crate::statistics::Interval;
use crate::whole_file;
use kernels_gpu::row::{Dtype, Row};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// The version of the format.
const FORMAT: u32 = 1;
/// Relative changes of gate runs that are kept for each place.
const CHANGES_KEPT: usize = 50;

/// What kernels compete for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The device, as it names itself; `sim` for the simulator.
    pub device: String,
    /// Batch, heads, lengths and head_dim: `4,16,512,64`.
    pub shape: String,
    /// Element type.
    pub dtype: Dtype,
    /// The mask.
    pub mask: Mask,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} on {}", self.shape, self.dtype.name(), self.mask, self.device)
    }
}

/// What a score counts. Lower is better in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Median time in microseconds, on a GPU.
    Microseconds,
    /// Clocks that the units of a multiprocessor need, on the simulator: no time.
    Clocks,
}

impl Measure {
    /// Units from the smallest on, and how many scores make one. The score itself is among them.
    const fn units(self) -> &'static [(&'static str, f64)] {
        match self {
            Measure::Microseconds => &[("µs", 1.0), ("ms", 1e3), ("s", 1e6)],
            Measure::Clocks => &[("clocks", 1.0), ("thousand clocks", 1e3), ("million clocks", 1e6)],
        }
    }

    /// The unit in which a score takes the fewest digits, and how many scores make one.
    pub fn unit_for(self, score: f64) -> (&'static str, f64) {
        let units = self.units();
        *units.iter().rev().find(|(_, size)| score >= *size).unwrap_or(&units[0])
    }
}

/// The unit of scores.
impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.unit_for(1.0).0)
    }
}

/// A kernel that was, or is, the best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// When it was measured, as `2026-05-04T12:00:00Z`.
    pub when: String,
    /// The commit that the kernel was built from.
    pub commit: String,
    /// The kernel.
    pub row: Row,
    /// What the score counts.
    pub measure: Measure,
    /// The score with its interval.
    pub score: Interval,
    /// 90th percentile of the time in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90_us: Option<f64>,
    /// Speed at the median time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    /// Counters and resources, which the gate compares exactly.
    #[serde(default, skip_serializing_if = "Counters::is_empty")]
    pub counters: Counters,
    /// Why a slower kernel took the place of a faster one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A place and who held it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standing {
    /// The place.
    pub place: Place,
    /// Everyone who held it, the latest last. Never empty.
    pub records: Vec<Record>,
    /// Relative changes, as logarithms, that runs of the gate saw here: how noisy the place is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<f64>,
}

impl Standing {
    /// Who holds the place now.
    pub fn best(&self) -> &Record {
        // Reading refuses an empty list, and nothing takes a record away.
        &self.records[self.records.len() - 1]
    }

    /// Adds what a run of the gate saw, and forgets what is long ago.
    pub fn add_change(&mut self, log_change: f64) {
        self.changes.push(log_change);
        self.changes.drain(..self.changes.len().saturating_sub(CHANGES_KEPT));
    }
}

/// The leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaderboard {
    format: u32,
    standings: Vec<Standing>,
}

impl Default for Leaderboard {
    fn default() -> Self {
        Self { format: FORMAT, standings: Vec::new() }
    }
}

/// What an offer came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// Nobody held the place.
    First,
    /// It is better than who held the place, by this factor.
    Improved {
        /// Old score over new score.
        factor: f64,
    },
    /// It is not better: all is as it was.
    NotBetter,
    /// It is not better and holds the place, for the reason that is kept.
    Blessed,
}

/// Why a leaderboard is refused, or a record on it.
#[derive(Debug, thiserror::Error)]
pub enum LeaderboardError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a leaderboard.
    #[error("{}: not a leaderboard: {source}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Another version wrote it.
    #[error("{}: format {found}, this program reads {FORMAT}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A place stands twice, or nobody ever held it.
    #[error("{}: {place} stands twice or has no record", path.display())]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// The place.
        place: Place,
    },
    /// It has entries, but of other devices.
    #[error("the leaderboard has no entry of {device}, only of {known}: nothing to compare with", known = known.join(", "))]
    OtherDevice {
        /// The device that was asked for.
        device: String,
        /// The devices that it has.
        known: Vec<String>,
    },
    /// The score is no positive number, or its interval does not hold it.
    #[error("{place}: a score of {score} is no measurement")]
    NoScore {
        /// The place.
        place: Place,
        /// The score.
        score: f64,
    },
    /// Times and counts cannot be compared.
    #[error("{place} is held by a score in {held}, this one is in {offered}")]
    OtherMeasure {
        /// The place.
        place: Place,
        /// The measure on the leaderboard.
        held: Measure,
        /// The measure of the record.
        offered: Measure,
    },
    /// The row is not of the place's dtype.
    #[error("{place}: the row {entry} has another dtype")]
    OtherDtype {
        /// The place.
        place: Place,
        /// The row's entry.
        entry: String,
    },
    /// A slow-down was to be blessed for no reason.
    #[error("blessing a slower kernel needs a reason, which is kept with it")]
    NoReason,
}

impl Leaderboard {
    /// Reads a leaderboard; an empty one where there is no file.
    ///
    /// # Errors
    /// Files that cannot be read or are inconsistent.
    pub fn read(path: &Path) -> Result<Self, LeaderboardError> {
        let text = match whole_file::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(LeaderboardError::File { path: path.to_owned(), source }),
        };
        let board: Leaderboard = serde_json::from_str(&text)
            .map_err(|source| LeaderboardError::Malformed { path: path.to_owned(), source })?;
        if board.format != FORMAT {
            return Err(LeaderboardError::Format { path: path.to_owned(), found: board.format });
        }
        for (i, standing) in board.standings.iter().enumerate() {
            let is_twice = board.standings[..i].iter().any(|other| other.place == standing.place);
            if is_twice || standing.records.is_empty() {
                let place = standing.place.clone();
                return Err(LeaderboardError::Inconsistent { path: path.to_owned(), place });
            }
        }
        Ok(board)
    }

    /// Writes the leaderboard: beside its place, then renamed, so that no half of one is ever left.
    ///
    /// # Errors
    /// Where it cannot be written. The old file is untouched then.
    pub fn write(&self, path: &Path) -> Result<(), LeaderboardError> {
        let failed = |source| LeaderboardError::File { path: path.to_owned(), source };
        whole_file::write(path, &self.json()).map_err(failed)
    }

    /// The file's text.
    pub fn json(&self) -> String {
        // Strings, numbers and lists, which all have a form in JSON.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Every place, in order.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// The places of these devices; none at all on an empty leaderboard.
    ///
    /// # Errors
    /// If it has entries, but of other devices.
    pub fn of_devices(&self, devices: &[String]) -> Result<Vec<&Standing>, LeaderboardError> {
        let own: Vec<&Standing> =
            self.standings.iter().filter(|s| devices.contains(&s.place.device)).collect();
        if own.is_empty() && !self.standings.is_empty() {
            let mut known: Vec<String> = self.standings.iter().map(|s| s.place.device.clone()).collect();
            known.sort();
            known.dedup();
            return Err(LeaderboardError::OtherDevice { device: devices.join(" or "), known });
        }
        Ok(own)
    }

    /// Who holds a place.
    pub fn get(&self, place: &Place) -> Option<&Standing> {
        self.standings.iter().find(|standing| standing.place == *place)
    }

    /// The same, to add what a run of the gate saw.
    pub fn get_mut(&mut self, place: &Place) -> Option<&mut Standing> {
        self.standings.iter_mut().find(|standing| standing.place == *place)
    }

    /// Offers a kernel for a place. It gets it if it is better.
    ///
    /// # Errors
    /// A record that is no measurement or does not belong there.
    pub fn offer(&mut self, place: Place, mut record: Record) -> Result<Update, LeaderboardError> {
        record.reason = None;
        self.take(place, record)
    }

    /// Gives a place to a kernel although it is not better, for a reason.
    ///
    /// # Errors
    /// Without a reason, and a record that is no measurement or does not belong there.
    pub fn bless(
        &mut self,
        place: Place,
        mut record: Record,
        reason: &str,
    ) -> Result<Update, LeaderboardError> {
        if reason.trim().is_empty() {
            return Err(LeaderboardError::NoReason);
        }
        record.reason = Some(reason.trim().to_owned());
        self.take(place, record)
    }

    fn take(&mut self, place: Place, record: Record) -> Result<Update, LeaderboardError> {
        let Interval { low, estimate, high } = record.score;
        if !(estimate.is_finite() && estimate > 0.0 && low <= estimate && estimate <= high) {
            return Err(LeaderboardError::NoScore { place, score: estimate });
        }
        if record.row.dtype != place.dtype {
            return Err(LeaderboardError::OtherDtype { place, entry: record.row.entry_name() });
        }
        let Some(standing) = self.get_mut(&place) else {
            let at = self.standings.partition_point(|standing| standing.place < place);
            self.standings.insert(at, Standing { place, records: vec![record], changes: Vec::new() });
            return Ok(Update::First);
        };
        let best = standing.best();
        if best.measure != record.measure {
            let (held, offered) = (best.measure, record.measure);
            return Err(LeaderboardError::OtherMeasure { place, held, offered });
        }
        let factor = best.score.estimate / estimate;
        let update = match (factor > 1.0, &record.reason) {
            (true, _) => Update::Improved { factor },
            (false, None) => return Ok(Update::NotBetter),
            (false, Some(_)) => Update::Blessed,
        };
        standing.records.push(record);
        Ok(update)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::search::tests::usual_row;

    pub(crate) fn place(device: &str) -> Place {
        let (shape, row) = ("4,16,512,64".to_owned(), usual_row());
        Place { device: device.to_owned(), shape, dtype: row.dtype, mask: Mask::Causal }
    }

    pub(crate) fn record(us: f64) -> Record {
        Record {
            when: "2026-05-04T12:00:00Z".to_owned(),
            commit: "0123abc".to_owned(),
            row: usual_row(),
            measure: Measure::Microseconds,
            score: Interval { low: us * 0.99, estimate: us, high: us * 1.01 },
            p90_us: Some(us * 1.1),
            tflops: Some(4000.0 / us),
            counters: crate::counters::tests::counters(&[("barriers", 7)]),
            reason: None,
        }
    }

    #[test]
    fn only_a_better_kernel_gets_the_place_and_all_who_held_it_are_kept() {
        let mut board = Leaderboard::default();
        assert_eq!(board.offer(place("a"), record(10.0)).expect("taken"), Update::First);
        assert_eq!(board.offer(place("a"), record(10.0)).expect("taken"), Update::NotBetter);
        assert_eq!(board.offer(place("a"), record(8.0)).expect("taken"), Update::Improved { factor: 1.25 });
        let standing = board.get(&place("a")).expect("a standing");
        assert_eq!((standing.records.len(), standing.best().score.estimate), (2, 8.0));
    }

    #[test]
    fn a_slow_down_is_blessed_only_with_a_reason_that_is_kept() {
        let mut board = Leaderboard::default();
        board.offer(place("a"), record(10.0)).expect("taken");
        assert!(matches!(board.bless(place("a"), record(12.0), " \n"), Err(LeaderboardError::NoReason)));
        let smuggled = Record { reason: Some("mine".to_owned()), ..record(12.0) };
        assert_eq!(board.offer(place("a"), smuggled).expect("not taken"), Update::NotBetter);
        let blessed = board.bless(place("a"), record(12.0), "a wrong result was mended ");
        assert_eq!(blessed.expect("taken"), Update::Blessed);
        let best = board.get(&place("a")).expect("a standing").best();
        assert_eq!(best.reason.as_deref(), Some("a wrong result was mended"));
    }

    #[test]
    fn another_devices_leaderboard_is_named_and_an_empty_one_is_nothing_to_name() {
        let mut board = Leaderboard::default();
        assert_eq!(board.of_devices(&["a".to_owned()]).expect("empty").len(), 0);
        board.offer(place("b"), record(1.0)).expect("taken");
        board.offer(place("c"), record(1.0)).expect("taken");
        let message = board.of_devices(&["a".to_owned()]).expect_err("refused").to_string();
        assert!(message.contains("no entry of a, only of b, c"), "{message}");
        assert_eq!(board.of_devices(&["b".to_owned()]).expect("its own").len(), 1);
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        let mut board = Leaderboard::default();
        for score in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
            assert!(matches!(board.offer(place("a"), record(score)), Err(LeaderboardError::NoScore { .. })));
        }
        let other_dtype = Place { dtype: Dtype::Bf16, ..place("a") };
        assert!(matches!(board.offer(other_dtype, record(1.0)), Err(LeaderboardError::OtherDtype { .. })));
        board.offer(place("a"), record(1.0)).expect("taken");
        let counted = Record { measure: Measure::Clocks, ..record(0.5) };
        assert!(matches!(board.offer(place("a"), counted), Err(LeaderboardError::OtherMeasure { .. })));
    }

    #[test]
    fn files_are_read_back_and_broken_ones_leave_the_old_untouched() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("leaderboard.json");
        assert_eq!(Leaderboard::read(&path).expect("empty"), Leaderboard::default());
        let mut board = Leaderboard::default();
        board.offer(place("b"), record(1.0)).expect("taken");
        board.offer(place("a"), record(3.0)).expect("taken");
        board.offer(place("a"), record(2.0)).expect("taken");
        board.get_mut(&place("a")).expect("a standing").add_change(0.01);
        board.write(&path).expect("written");
        assert_eq!(Leaderboard::read(&path).expect("the same"), board);
        let places: Vec<&str> = board.standings().iter().map(|s| s.place.device.as_str()).collect();
        assert_eq!(places, ["a", "b"]);

        let text = std::fs::read_to_string(&path).expect("text");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            Leaderboard::read(&path).expect_err("refused")
        };
        assert!(matches!(read(&text[..text.len() / 2]), LeaderboardError::Malformed { .. }));
        assert!(matches!(
            read(&text.replace("\"format\": 1", "\"format\": 2")),
            LeaderboardError::Format { found: 2, .. }
        ));
        assert!(matches!(
            read(&text.replace("\"p90_us\"", "\"p91_us\"")),
            LeaderboardError::Malformed { .. }
        ));
        assert!(matches!(
            read(&text.replace("\"device\": \"b\"", "\"device\": \"a\"")),
            LeaderboardError::Inconsistent { .. }
        ));
        let nowhere = folder.path().join("none").join("leaderboard.json");
        assert!(matches!(board.write(&nowhere), Err(LeaderboardError::File { .. })));
    }

    #[test]
    fn old_changes_are_forgotten() {
        let mut standing = Standing { place: place("a"), records: vec![record(1.0)], changes: Vec::new() };
        for i in 0..120 {
            standing.add_change(f64::from(i));
        }
        assert_eq!((standing.changes.len(), standing.changes[0]), (CHANGES_KEPT, 70.0));
    }
}
