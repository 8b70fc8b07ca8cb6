//! A recorded search space, on which strategies are compared without a GPU.

use super::population::Management;
use super::space::Space;
use super::strategy::{Search, StrategyKind};
use super::{Evaluated, best, same_ptx};
use crate::search::Outcome;
use crate::statistics::median;
use kernels_gpu::row::{Dtype, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The version of the format.
const FORMAT: u32 = 1;

/// What every row of a space came to, measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// The version of the format, 1.
    pub format: u32,
    /// The device that the scores are from, as it names itself.
    pub device: String,
    /// What was scored, with its unit: `1,8,512,64 causal, µs`.
    pub measured: String,
    /// The rows, all of one dtype and head_dim.
    pub rows: Vec<Evaluated>,
}

/// Why there is nothing to replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a recording.
    #[error("{}: not a recorded search space: {source}", path.display())]
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
    /// No row has a score.
    #[error("no row of the recording has a score")]
    NoScores,
    /// A row stands twice, so that its score is unknown.
    #[error("{entry} stands twice in the recording")]
    Twice {
        /// The row's entry.
        entry: String,
    },
    /// Rows that no search could mix.
    #[error("{entry} has another dtype or head_dim than the first row: a search space has one ({dtype}, {head_dim})", dtype = dtype.name())]
    Mixed {
        /// The row's entry.
        entry: String,
        /// The first row's dtype.
        dtype: Dtype,
        /// The first row's head_dim.
        head_dim: u32,
    },
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// Files that cannot be read, and what cannot be replayed.
    pub fn read(path: &Path) -> Result<Self, ReplayError> {
        let unreadable = |source| ReplayError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let malformed = |source| ReplayError::Malformed { path: path.to_owned(), source };
        let recording: Recording = serde_json::from_str(&text).map_err(malformed)?;
        if recording.format != FORMAT {
            return Err(ReplayError::Format { path: path.to_owned(), found: recording.format });
        }
        recording.by_row()?;
        Ok(recording)
    }

    /// A recording of what a search measured.
    ///
    /// # Errors
    /// What cannot be replayed.
    pub fn new(device: String, measured: String, rows: Vec<Evaluated>) -> Result<Self, ReplayError> {
        let recording = Self { format: FORMAT, device, measured, rows };
        recording.by_row()?;
        Ok(recording)
    }

    fn by_row(&self) -> Result<BTreeMap<Row, &Evaluated>, ReplayError> {
        let first = self.rows.first().ok_or(ReplayError::NoScores)?.row;
        best(&self.rows).ok_or(ReplayError::NoScores)?;
        let mut by_row = BTreeMap::new();
        for candidate in &self.rows {
            let (row, entry) = (candidate.row, || candidate.row.entry_name());
            if (row.dtype, row.head_dim) != (first.dtype, first.head_dim) {
                let Row { dtype, head_dim, .. } = first;
                return Err(ReplayError::Mixed { entry: entry(), dtype, head_dim });
            }
            if by_row.insert(row, candidate).is_some() {
                return Err(ReplayError::Twice { entry: entry() });
            }
        }
        Ok(by_row)
    }

    /// One search on the recording, as it would have gone on the device: best score so far after each evaluation.
    ///
    /// # Errors
    /// What cannot be replayed.
    pub fn replay(
        &self,
        kind: StrategyKind,
        management: Management,
        start: Row,
        seed: u64,
        evaluations: usize,
    ) -> Result<Vec<Option<f64>>, ReplayError> {
        let by_row = self.by_row()?;
        let space = Space::new(start).restricted(|row| by_row.contains_key(row));
        let mut search = Search::new(kind, space, management, seed);
        let (mut history, mut so_far) = (Vec::new(), Vec::new());
        while so_far.len() < evaluations
            && let Some(candidate) = search.next(&history).and_then(|row| by_row.get(&row))
        {
            let candidate = recorded(candidate, &self.rows, &history);
            let counts = candidate.is_counted();
            history.push(candidate);
            if counts {
                so_far.push(best(&history).and_then(Evaluated::score));
            }
        }
        Ok(so_far)
    }

    /// Compares strategies: the median over `seeds` of the best score after 1, 2, 4, … evaluations.
    ///
    /// # Errors
    /// What cannot be replayed.
    pub fn compare(
        &self,
        kinds: &[StrategyKind],
        management: Management,
        start: Row,
        seeds: u64,
        evaluations: usize,
    ) -> Result<Comparison, ReplayError> {
        let optimum = best(&self.rows).and_then(Evaluated::score).ok_or(ReplayError::NoScores)?;
        let most = evaluations.min(self.rows.len()).max(1);
        let mut after: Vec<usize> =
            std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < most).collect();
        after.push(most);
        let mut strategies = Vec::new();
        for &kind in kinds {
            let runs: Vec<Vec<Option<f64>>> = (0..seeds.max(1))
                .map(|seed| self.replay(kind, management, start, seed, most))
                .collect::<Result<_, _>>()?;
            // A run that ended early keeps what it found; one that found nothing yet is worse than any.
            let at = |run: &Vec<Option<f64>>, n: usize| {
                run.get(n.min(run.len()).saturating_sub(1)).copied().flatten().unwrap_or(f64::INFINITY)
            };
            let best_so_far = after
                .iter()
                .map(|&n| median(&runs.iter().map(|run| at(run, n)).collect::<Vec<_>>()))
                .map(|score| score.filter(|score| score.is_finite()))
                .collect();
            strategies.push(Course { strategy: kind.name().to_owned(), best_so_far });
        }
        Ok(Comparison {
            measured: self.measured.clone(),
            device: self.device.clone(),
            optimum,
            seeds: seeds.max(1),
            after,
            strategies,
        })
    }
}

/// The recorded candidate as a search would have seen it after `history`.
fn recorded(candidate: &Evaluated, rows: &[Evaluated], history: &[Evaluated]) -> Evaluated {
    let mut candidate = candidate.clone();
    let hash = candidate.ptx_sha256.as_deref();
    if let Some(earlier) = hash.and_then(|hash| same_ptx(history, hash)) {
        candidate.outcome = Outcome::Duplicate { of: earlier.row.entry_name() };
    } else if let Outcome::Duplicate { of } = &candidate.outcome {
        // The recording saw the rows in another order: the same PTX has the score of its twin.
        candidate.outcome = match hash.and_then(|hash| same_ptx(rows, hash)) {
            Some(twin) => twin.outcome.clone(),
            None => Outcome::Refused { reason: format!("recorded as a duplicate of {of}, which is missing") },
        };
    }
    candidate
}

/// Strategies side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What was scored, with its unit.
    pub measured: String,
    /// The device that the scores are from.
    pub device: String,
    /// The best score of the recording.
    pub optimum: f64,
    /// Seeds that the medians are over.
    pub seeds: u64,
    /// Numbers of evaluations.
    pub after: Vec<usize>,
    /// One course a strategy.
    pub strategies: Vec<Course>,
}

/// How a strategy came down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Course {
    /// The strategy.
    pub strategy: String,
    /// Median of the best score, in the order of [`Comparison::after`]; none where nothing correct was found.
    pub best_so_far: Vec<Option<f64>>,
}

impl Comparison {
    /// A table in Markdown: scores relative to the best of the recording, 1 being the best.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{}, {}: best so far relative to the best row ({}), median of {} seeds\n\n| strategy |",
            self.device, self.measured, self.optimum, self.seeds
        );
        // Writing to a string does not fail.
        for n in &self.after {
            let _ = write!(text, " {n} |");
        }
        text += "\n|---|";
        text += &"--:|".repeat(self.after.len());
        text.push('\n');
        for course in &self.strategies {
            let _ = write!(text, "| {} |", course.strategy);
            for score in &course.best_so_far {
                let _ = match score {
                    Some(score) => write!(text, " {:.3} |", score / self.optimum),
                    None => write!(text, " – |"),
                };
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::tests::{scored, usual_row};
    use kernels_gpu::geometry::warp_rows_by_default;

    fn recording() -> Recording {
        // Small enough to be searched whole by every strategy.
        let few = |row: &Row| {
            row.min_ctas <= 2
                && row.stages <= 3
                && row.block_m > 16
                && row.warp_rows == warp_rows_by_default(row)
        };
        let space = Space::new(usual_row()).restricted(few);
        let score = |row: &Row| {
            100.0
                + f64::from(row.block_n.abs_diff(128) + row.block_m.abs_diff(64))
                + f64::from(4 * row.min_ctas + 3 - row.stages)
        };
        let rows = space.rows().iter().map(|row| scored(*row, score(row))).collect();
        Recording::new("test".to_owned(), "µs".to_owned(), rows).expect("a recording")
    }

    fn compared(recording: &Recording, evaluations: usize) -> Comparison {
        let compared =
            recording.compare(&StrategyKind::ALL, Management::SingleBest, usual_row(), 9, evaluations);
        compared.expect("a comparison")
    }

    #[test]
    fn every_strategy_finds_the_best_row_in_the_end_and_never_loses_it() {
        let recording = recording();
        let comparison = compared(&recording, usize::MAX);
        assert_eq!(comparison.after.last(), Some(&recording.rows.len()));
        for course in &comparison.strategies {
            assert_eq!(course.best_so_far.last(), Some(&Some(comparison.optimum)), "{}", course.strategy);
            assert!(course.best_so_far.windows(2).all(|pair| pair[0] >= pair[1]), "{}", course.strategy);
        }
    }

    #[test]
    fn the_table_has_a_line_a_strategy() {
        let markdown = compared(&recording(), 10).markdown();
        assert!(
            markdown.contains("| strategy | 1 | 2 | 4 | 8 | 10 |\n|---|--:|--:|--:|--:|--:|\n"),
            "{markdown}"
        );
        for kind in StrategyKind::ALL {
            assert!(markdown.contains(&format!("\n| {kind} |")), "{markdown}");
        }
    }

    #[test]
    fn duplicates_take_no_evaluation() {
        let mut recording = recording();
        for candidate in &mut recording.rows {
            candidate.ptx_sha256 = Some(format!("{} {}", candidate.row.block_m, candidate.row.block_n));
        }
        let run = recording.replay(StrategyKind::Random, Management::SingleBest, usual_row(), 1, 1000);
        assert_eq!(run.expect("a run").len(), 9);
    }

    #[test]
    fn a_row_that_was_a_duplicate_when_recorded_has_its_twins_score() {
        let mut twin = scored(usual_row(), 3.0);
        twin.ptx_sha256 = Some("ab".to_owned());
        let outcome = Outcome::Duplicate { of: twin.row.entry_name() };
        let duplicate = Evaluated { row: Row { min_ctas: 2, ..twin.row }, outcome, ..twin.clone() };
        assert_eq!(recorded(&duplicate, &[twin.clone(), duplicate.clone()], &[]).score(), Some(3.0));
        assert!(!recorded(&duplicate, &[twin.clone()], &[twin]).is_counted());
        assert_eq!(recorded(&duplicate, &[], &[]).score(), None);
    }

    #[test]
    fn what_cannot_be_replayed_is_named() {
        let new = |rows| Recording::new(String::new(), String::new(), rows).expect_err("refused");
        let row = usual_row();
        assert!(matches!(new(Vec::new()), ReplayError::NoScores));
        assert!(matches!(new(vec![scored(row, f64::NAN)]), ReplayError::NoScores));
        assert!(matches!(new(vec![scored(row, 1.0), scored(row, 2.0)]), ReplayError::Twice { .. }));
        let other = Row { head_dim: 128, ..row };
        assert!(matches!(new(vec![scored(row, 1.0), scored(other, 2.0)]), ReplayError::Mixed { .. }));
    }

    #[test]
    fn files_are_read_back_and_broken_ones_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("space.json");
        assert!(matches!(Recording::read(&path), Err(ReplayError::Unreadable { .. })));
        let recording = recording();
        let text = serde_json::to_string(&recording).expect("JSON");
        std::fs::write(&path, &text).expect("written");
        assert_eq!(Recording::read(&path).expect("the same"), recording);
        std::fs::write(&path, &text[..text.len() / 2]).expect("written");
        assert!(matches!(Recording::read(&path), Err(ReplayError::Malformed { .. })));
        std::fs::write(&path, text.replace("\"format\":1", "\"format\":9")).expect("written");
        assert!(matches!(Recording::read(&path), Err(ReplayError::Format { found: 9, .. })));
    }
}
