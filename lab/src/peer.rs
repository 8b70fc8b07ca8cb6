//! PyTorch's attention beside this project's: the report of `benches/torch_sdpa.py`, which times both in turns in one job.

use crate::error::{Error, Result};
use crate::problem_spec::{Mask, ProblemSpec, Shape};
use crate::statistics::{Bootstrap, Interval, StatisticsError, median, quantile, speed_up};
use crate::table::{Table, short};
use ferroflash::Dtype;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The script, from the project's root.
pub const SCRIPT: &str = "benches/torch_sdpa.py";
/// What the script calls this project.
const OWN: &str = "ferroflash";

/// What the script writes, as far as the lab reads it.
#[derive(Clone, Debug, Deserialize)]
struct Report {
    device: BTreeMap<String, serde_json::Value>,
    torch: BTreeMap<String, Option<String>>,
    problems: Vec<Problem>,
}

#[derive(Clone, Debug, Deserialize)]
struct Problem {
    shape: [u32; 6],
    dtype: Dtype,
    causal: bool,
    kernel: Option<Kernel>,
    times: BTreeMap<String, Option<Times>>,
    errors: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Kernel {
    entry: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Times {
    times_us: Vec<f64>,
}

/// Median, 90th percentile and spread of device times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The median.
    pub p50_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// (p90 − p10) / median.
    pub spread: f64,
}

/// This project against one peer on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The problem.
    pub problem: ProblemSpec,
    /// The kernel.
    pub kernel: String,
    /// `torch flash`, `torch cudnn` or `torch default`.
    pub peer: String,
    /// This project's times.
    pub own: Quantiles,
    /// The peer's.
    pub theirs: Quantiles,
    /// How many times faster this project is, with a bootstrap interval.
    pub speed_up: Interval,
    /// Whether this project's 90th percentile is no worse than the peer's.
    pub p90_no_worse: bool,
}

/// Everything that one job measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// The GPU.
    pub device: String,
    /// What a number needs: driver, clock, PyTorch's and cuDNN's versions. Names and values.
    pub facts: Vec<(String, String)>,
    /// Each problem with each peer.
    pub comparisons: Vec<Comparison>,
    /// Problems and peers that could not be measured, and why.
    pub errors: Vec<String>,
}

/// The quantiles of times; `None` without any.
pub fn quantiles(times_us: &[f64]) -> Option<Quantiles> {
    let p50_us = median(times_us)?;
    let (p10_us, p90_us) = (quantile(times_us, 0.1)?, quantile(times_us, 0.9)?);
    Some(Quantiles { p50_us, p90_us, spread: (p90_us - p10_us) / p50_us })
}

impl PeerReport {
    /// Reads what the script wrote with `--replays`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadFile`].
    pub fn read(path: &Path, confidence: f64) -> Result<PeerReport> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::io(path, source))?;
        let bad =
            |error: serde_json::Error| Error::BadFile { path: path.to_owned(), reason: error.to_string() };
        let report: Report = serde_json::from_str(&text).map_err(bad)?;
        let how = Bootstrap { confidence: confidence.min(0.999), ..Bootstrap::default() };
        let plain =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut facts: Vec<(String, String)> =
            report.device.iter().map(|(name, value)| (name.clone(), plain(value))).collect();
        let versions = report
            .torch
            .iter()
            .map(|(name, value)| (format!("torch {name}"), value.clone().unwrap_or_default()));
        facts.extend(versions);
        let mut found = PeerReport {
            device: report.device.get("name").map(plain).unwrap_or_default(),
            facts,
            comparisons: Vec::new(),
            errors: Vec::new(),
        };
        for problem in &report.problems {
            found.add(problem, how);
        }
        Ok(found)
    }

    fn add(&mut self, problem: &Problem, how: Bootstrap) {
        let mask = if problem.causal { Mask::Causal } else { Mask::Full };
        let spec = ProblemSpec { shape: Shape(problem.shape), dtype: problem.dtype, mask };
        let failures = problem.errors.iter().map(|(who, why)| format!("{spec}, {who}: {why}"));
        self.errors.extend(failures);
        let Some(Some(own)) = problem.times.get(OWN) else { return };
        for (name, theirs) in problem.times.iter().filter(|(name, _)| *name != OWN) {
            let Some(theirs) = theirs else { continue };
            match compare(spec, problem.kernel.as_ref(), name, own, theirs, how) {
                Ok(comparison) => self.comparisons.extend(comparison),
                Err(error) => self.errors.push(format!("{spec}, {name}: {error}")),
            }
        }
    }
}

fn compare(
    problem: ProblemSpec,
    kernel: Option<&Kernel>,
    name: &str,
    own: &Times,
    theirs: &Times,
    how: Bootstrap,
) -> std::result::Result<Option<Comparison>, StatisticsError> {
    // Rounds take turns and have equally many replays, so the shorter list ends with a round.
    let pairs = own.times_us.len().min(theirs.times_us.len());
    let speed_up = speed_up(&theirs.times_us[..pairs], &own.times_us[..pairs], how)?;
    let both = quantiles(&own.times_us).zip(quantiles(&theirs.times_us));
    Ok(both.map(|(own, theirs)| Comparison {
        problem,
        kernel: kernel.map_or_else(String::new, |kernel| kernel.entry.clone()),
        peer: format!("torch {name}"),
        own,
        theirs,
        speed_up,
        p90_no_worse: own.p90_us <= theirs.p90_us,
    }))
}

/// A line a problem and peer: peer's p50 and p90, this project's, the speed-up with its interval.
pub fn comparisons(report: &PeerReport) -> Table {
    let mut table = Table::new(&[
        "problem",
        "peer",
        "peer p50 µs",
        "peer p90",
        "kernel",
        "p50 µs",
        "p90",
        "spread",
        "speed-up",
        "low",
        "high",
        "p90 no worse",
    ]);
    for comparison in &report.comparisons {
        let Comparison { problem, kernel, peer, own, theirs, speed_up, p90_no_worse } = comparison;
        table.add(vec![
            problem.to_string(),
            peer.clone(),
            short(theirs.p50_us),
            short(theirs.p90_us),
            kernel.clone(),
            short(own.p50_us),
            short(own.p90_us),
            format!("{:.1} %", 100.0 * own.spread),
            format!("{:.3}", speed_up.estimate),
            format!("{:.3}", speed_up.low),
            format!("{:.3}", speed_up.high),
            if *p90_no_worse { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_report_becomes_speed_ups_with_intervals() {
        let times = |middle: f64| (0..31).map(|i| middle + 0.01 * f64::from(i % 7)).collect::<Vec<f64>>();
        let report = serde_json::json!({
            "device": { "name": "NVIDIA L4", "driver": "580" }, "torch": { "version": "2.11", "cudnn": null },
            "problems": [{
                "shape": [1, 8, 8, 512, 512, 64], "dtype": "f16", "causal": true,
                "kernel": { "entry": "fwd_x", "ctas": 3 },
                "times": {
                    "ferroflash": { "times_us": times(10.0) }, "flash": { "times_us": times(20.0) },
                    "cudnn": null, "default": { "times_us": [1.0] },
                },
                "errors": { "cudnn": "not built" },
            }],
        });
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("peer.json");
        std::fs::write(&path, report.to_string()).expect("written");
        let report = PeerReport::read(&path, 0.95).expect("readable");
        assert_eq!((report.device.as_str(), report.comparisons.len()), ("NVIDIA L4", 1));
        let comparison = &report.comparisons[0];
        assert_eq!((comparison.peer.as_str(), comparison.kernel.as_str()), ("torch flash", "fwd_x"));
        assert!((comparison.speed_up.estimate - 2.0).abs() < 0.01 && comparison.p90_no_worse);
        assert!(comparison.speed_up.low <= comparison.speed_up.high);
        let table = comparisons(&report).markdown();
        assert!(table.contains("| torch flash | 20.03 |") && table.contains("| 1.997 | 1.996 |"), "{table}");
        assert_eq!(report.errors.len(), 2, "what failed and what was too short: {:?}", report.errors);
        std::fs::write(&path, "{").expect("written");
        assert!(matches!(PeerReport::read(&path, 0.95), Err(Error::BadFile { .. })));
    }
}
