//! What `ferroflash bench` says: the table for people and the file for machines, which names all a number depends on.

use check::measure::{Bench, ERROR_MAX, MeasureOptions, Measured};
use check::workload::{self, Workload};
use ferroflash::device::Device;
use ferroflash::device::driver::Driver;
use ferroflash::module::Library;
use ferroflash::{Error, Problem};
use kernels_gpu::manifest::Family;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// The environment variable that names the commit where there is no git.
const COMMIT_VARIABLE: &str = "FERROFLASH_COMMIT";

/// A run of the bench.
#[derive(Serialize)]
pub(crate) struct Report {
    date: String,
    version: &'static str,
    commit: Option<String>,
    device: DeviceReport,
    kernels: KernelsReport,
    /// The kernels that these are measured against.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<KernelsReport>,
    method: MethodReport,
    pub(crate) results: Vec<Measurement>,
}

#[derive(Serialize)]
struct DeviceReport {
    name: String,
    sm: u32,
    sm_count: u32,
    l2_bytes: u64,
    memory_bytes: u64,
    driver: Option<String>,
    cuda: Option<String>,
    sm_clock_max_mhz: Option<u32>,
    /// Bytes that a copy within the device reads and writes in a second; `None` where there was no memory for one.
    copy_gbytes_per_s: Option<f64>,
}

#[derive(Serialize)]
struct KernelsReport {
    folder: String,
    device_compiler: String,
    families: Vec<Family>,
}

#[derive(Serialize)]
struct MethodReport {
    what: &'static str,
    reps: u32,
    replay_us: f64,
    cold: bool,
    lse: bool,
    l2_persisting_bytes: u64,
}

/// One problem and its kernels.
#[derive(Serialize)]
pub(crate) struct Measurement {
    #[serde(skip)]
    title: String,
    /// B, HQ, HKV, SQ, SKV, D.
    shape: [u32; 6],
    dtype: &'static str,
    causal: bool,
    /// Floating-point operations of one launch.
    flops: f64,
    /// Bytes of Q, K, V and O.
    bytes: u64,
    error: Option<String>,
    pub(crate) rows: Vec<Row>,
}

/// One kernel.
#[derive(Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) measured: Measured,
    tflops: Option<f64>,
    gbytes_per_s: Option<f64>,
    /// GB/s as a share of what copies reach.
    share_of_copy: Option<f64>,
    /// How many times as long the baseline's kernel of the same name takes, or where it has none here the fastest of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    speed_relative_to_baseline: Option<f64>,
}

impl KernelsReport {
    fn new(library: &Library) -> KernelsReport {
        KernelsReport {
            folder: library.folder().display().to_string(),
            device_compiler: library.device_compiler().to_owned(),
            families: library.families().to_vec(),
        }
    }
}

impl Report {
    pub(crate) fn new(bench: &Bench, options: &MeasureOptions) -> Report {
        let info = bench.device().info().clone();
        let reading = bench.reading();
        let cuda =
            Driver::open().ok().map(|driver| format!("{}.{}", driver.cuda_version.0, driver.cuda_version.1));
        Report {
            date: utc_date(SystemTime::now()),
            version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            device: DeviceReport {
                name: info.name,
                sm: info.sm,
                sm_count: info.sm_count,
                l2_bytes: info.l2_bytes,
                memory_bytes: info.memory_bytes,
                driver: reading.driver,
                cuda,
                sm_clock_max_mhz: reading.sm_clock_max_mhz,
                copy_gbytes_per_s: bench.copy_bandwidth_gb_s().ok(),
            },
            kernels: KernelsReport::new(bench.attention().library()),
            baseline: bench.baseline().map(|attention| KernelsReport::new(attention.library())),
            method: MethodReport {
                what: "device events around CUDA-graph replays, kernels in turns",
                reps: options.reps,
                replay_us: options.replay_us,
                cold: options.cold,
                lse: options.lse,
                l2_persisting_bytes: info.l2_persisting_bytes,
            },
            results: Vec::new(),
        }
    }

    /// What copies within the device reach, in GB/s.
    pub(crate) fn copy_gbytes_per_s(&self) -> Option<f64> {
        self.device.copy_gbytes_per_s
    }

    /// The file's text.
    pub(crate) fn to_json(&self) -> String {
        // Nothing in it can fail to serialise: no maps with odd keys, and JSON writes a number that is not finite as null.
        serde_json::to_string_pretty(self).map(|text| text + "\n").unwrap_or_default()
    }
}

impl Measurement {
    /// `copy_gbytes_per_s` is what copies reach on the device.
    pub(crate) fn new(
        workload: &Workload,
        rows: Vec<Measured>,
        copy_gbytes_per_s: Option<f64>,
    ) -> Measurement {
        let problem = workload.problem();
        let sizes = problem.sizes();
        let shape =
            [sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.seqlen_q, sizes.seqlen_k, sizes.head_dim];
        let (flops, bytes) = (workload.flops(), workload.bytes_moved());
        let baselines: Vec<(String, f64)> = rows
            .iter()
            .filter(|measured| measured.is_baseline)
            .filter_map(|measured| Some((measured.entry.clone(), measured.timing?.median_us)))
            .collect();
        let rows = rows.into_iter().map(|measured| {
            let speed_relative_to_baseline = speed_relative_to(&baselines, &measured);
            let seconds = measured.timing.map(|timing| timing.median_us * 1e-6);
            let tflops = seconds.map(|seconds| flops / seconds / 1e12);
            let gbytes_per_s = seconds.map(|seconds| bytes as f64 / seconds / 1e9);
            let share_of_copy = gbytes_per_s.zip(copy_gbytes_per_s).map(|(rate, copy)| rate / copy);
            Row { measured, tflops, gbytes_per_s, share_of_copy, speed_relative_to_baseline }
        });
        let rows = rows.collect();
        let (dtype, causal) = (problem.dtype().name(), problem.causal());
        Measurement { title: title(problem), shape, dtype, causal, flops, bytes, error: None, rows }
    }

    pub(crate) fn failed(workload: &Workload, error: &Error) -> Measurement {
        Measurement { error: Some(error.to_string()), ..Measurement::new(workload, Vec::new(), None) }
    }
}

/// How many times as long a baseline takes: medians by name.
fn speed_relative_to(baselines: &[(String, f64)], measured: &Measured) -> Option<f64> {
    let median_us = measured.timing.filter(|_| !measured.is_baseline)?.median_us;
    let least = |is_candidate: &dyn Fn(&str) -> bool| {
        baselines.iter().filter(|(entry, _)| is_candidate(entry)).map(|(_, us)| *us).reduce(f64::min)
    };
    let baseline_us = least(&|entry| entry == measured.entry).or_else(|| least(&|_| true))?;
    Some(baseline_us / median_us)
}

/// A problem in words.
pub(crate) fn title(problem: &Problem) -> String {
    let sizes = problem.sizes();
    let mask = workload::describe(problem);
    let lengths = if problem.has_lengths() { " lengths" } else { "" };
    format!(
        "{},{},{},{},{},{} {} {mask}{lengths}",
        sizes.batch,
        sizes.heads_q,
        sizes.heads_kv,
        sizes.seqlen_q,
        sizes.seqlen_k,
        sizes.head_dim,
        problem.dtype().name()
    )
}

/// The line above the tables.
pub(crate) fn heading(report: &Report) -> String {
    let device = &report.device;
    let driver = device.driver.as_deref().unwrap_or("unknown");
    let cuda = device.cuda.as_deref().unwrap_or("unknown");
    let caches = if report.method.cold { "cold" } else { "warm" };
    let lse = if report.method.lse { ", with LSE" } else { "" };
    let persisting = match report.method.l2_persisting_bytes {
        0 => String::new(),
        bytes => format!(" ({bytes} bytes of it set aside for K and V)"),
    };
    let copy = device.copy_gbytes_per_s.map_or(String::new(), |rate| format!(", copies {rate:.0} GB/s"));
    format!(
        "{} (sm_{}, {} SMs{copy}), driver {driver}, CUDA {cuda}, {}, {caches} L2{persisting}{lse}, {} replays",
        device.name, device.sm, device.sm_count, report.date, report.method.reps
    )
}

/// A table of one problem, the fastest kernel first; nothing for one that failed.
pub(crate) fn table(measurement: &Measurement) -> Vec<String> {
    if measurement.rows.is_empty() {
        return Vec::new();
    }
    let mut rows: Vec<&Row> = measurement.rows.iter().collect();
    let median = |row: &&Row| row.measured.timing.map_or(f64::INFINITY, |timing| timing.median_us);
    rows.sort_by(|a, b| median(a).total_cmp(&median(b)));
    let entry_width = rows.iter().map(|row| name(&row.measured).len()).max().unwrap_or(0);
    let has_baseline = rows.iter().any(|row| row.measured.is_baseline);
    let mut lines = vec![
        String::new(),
        measurement.title.clone(),
        format!(
            "  {:entry_width$} {:>9} {:>10} {:>10} {:>10} {:>7} {:>8} {:>7} {:>7} {:>8} {:>8} {:>5} {:>6} {:>6}{}",
            "kernel",
            "splits",
            "median µs",
            "p10 µs",
            "p90 µs",
            "spread",
            "TFLOP/s",
            "GB/s",
            "of copy",
            "CTAs",
            "CTAs/SM",
            "held",
            "waves",
            "MHz",
            if has_baseline { " × baseline" } else { "" }
        ),
    ];
    let is_limited = rows.iter().any(|row| row.measured.load.is_power_limited == Some(true));
    lines.extend(rows.into_iter().map(|row| line(row, entry_width)));
    if is_limited {
        lines.push("  P: the device's power limit holds the SM clock down".to_owned());
    }
    lines
}

/// A kernel's name, and whose it is.
fn name(measured: &Measured) -> String {
    format!("{}{}", measured.entry, if measured.is_baseline { " (baseline)" } else { "" })
}

fn line(row: &Row, entry_width: usize) -> String {
    let measured = &row.measured;
    let entry = name(measured);
    let Some(timing) = measured.timing else {
        let check = &measured.check;
        return format!(
            "  {entry:entry_width$} WRONG: {} elements not written or NaN, error {:.1e} (limit {ERROR_MAX})",
            check.nan, check.max_error
        );
    };
    let splits = format!("{}{}", measured.splits, if measured.is_fused { " fused" } else { "" });
    let speed = row.speed_relative_to_baseline.map_or(String::new(), |times| format!(" {times:>10.3}"));
    let share = row.share_of_copy.map_or("-".to_owned(), |share| format!("{:.0}%", share * 100.0));
    format!(
        "  {entry:entry_width$} {splits:>9} {:>10.2} {:>10.2} {:>10.2} {:>6.1}% {:>8.1} {:>7.0} {share:>7} {:>8} {:>8.2} {:>5} {:>6.2} {:>6}{speed}",
        timing.median_us,
        timing.p10_us,
        timing.p90_us,
        timing.spread * 100.0,
        row.tflops.unwrap_or(f64::NAN),
        row.gbytes_per_s.unwrap_or(f64::NAN),
        measured.ctas,
        measured.ctas_per_sm,
        measured.resident_ctas_per_sm,
        measured.waves,
        measured.load.clock()
    )
}

/// The commit that the program was probably built from: what the environment says, else what git says of the current folder.
fn commit() -> Option<String> {
    if let Ok(commit) = std::env::var(COMMIT_VARIABLE) {
        return Some(commit);
    }
    let arguments = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let git = std::process::Command::new("git").args(arguments).output().ok()?;
    let commit = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    (git.status.success() && !commit.is_empty()).then_some(commit)
}

/// A time as `2026-01-31T23:59:59Z`.
fn utc_date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Days to a date: Hinnant, "chrono-compatible low-level date algorithms", for dates after 1970. Years begin in March, so
    // that the leap day is a year's last.
    let from_year_0 = days + 719_468;
    let (era, day_of_era) = (from_year_0 / 146_097, from_year_0 % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use check::measure::{Check, Load, Timing};
    use ferroflash::{Dtype, Sizes};
    use std::time::Duration;

    fn measured(entry: &str, median_us: Option<f64>) -> Measured {
        let timing = median_us.map(|us| Timing {
            median_us: us,
            p10_us: us - 1.0,
            p90_us: us + 1.0,
            spread: 2.0 / us,
        });
        Measured {
            entry: entry.to_owned(),
            is_baseline: false,
            source: "PTX sm_80".to_owned(),
            splits: 1,
            is_fused: false,
            ctas: 64,
            ctas_per_sm: 0.5,
            resident_ctas_per_sm: 2,
            waves: 0.25,
            launches_per_replay: 10,
            reps: 31,
            check: Check { nan: usize::from(median_us.is_none()), max_error: 0.001 },
            timing,
            times_us: Vec::new(),
            load: Load::default(),
        }
    }

    fn workload() -> Workload {
        let sizes = Sizes { batch: 1, heads_q: 8, heads_kv: 8, seqlen_q: 512, seqlen_k: 512, head_dim: 64 };
        Workload::of(&Problem::new(sizes, Dtype::F16).expect("valid"))
    }

    #[test]
    fn the_fastest_kernel_stands_first_and_a_wrong_one_last() {
        let rows = vec![measured("wrong", None), measured("slow", Some(20.0)), measured("fast", Some(10.0))];
        let lines = table(&Measurement::new(&workload(), rows, None));
        assert_eq!(lines[1], "1,8,8,512,512,64 f16 full");
        assert!(
            lines[3].contains("fast ") && lines[3].contains("10.00") && lines[3].contains("20.0%"),
            "{lines:?}"
        );
        assert!(lines[4].contains("slow"));
        assert!(lines[5].contains("wrong WRONG: 1 elements"), "{lines:?}");
        assert!(table(&Measurement::new(&workload(), Vec::new(), None)).is_empty());
    }

    #[test]
    fn a_clock_that_the_power_limit_holds_down_is_marked() {
        let at = |us, sm_clock_mhz, is_power_limited| Measured {
            load: Load { sm_clock_mhz, is_power_limited },
            ..measured("one", Some(us))
        };
        let table = |rows| table(&Measurement::new(&workload(), rows, None));
        let lines = table(vec![at(10.0, Some(1650), Some(true)), at(20.0, Some(1980), Some(false))]);
        assert!(lines[3].ends_with(" 1650 P") && lines[4].ends_with(" 1980"), "{lines:?}");
        assert!(lines[5].starts_with("  P: "), "{lines:?}");
        let lines = table(vec![at(10.0, Some(1980), None), at(20.0, None, None)]);
        assert!(lines.len() == 5 && lines[4].ends_with(" -"), "{lines:?}");
        let json = serde_json::to_value(at(10.0, Some(1650), Some(true))).expect("JSON");
        assert_eq!((&json["sm_clock_mhz"], &json["is_power_limited"]), (&1650.into(), &true.into()));
    }

    #[test]
    fn rates_follow_from_the_median() {
        let measurement = Measurement::new(&workload(), vec![measured("one", Some(10.0))], Some(400.0));
        let seconds = 10.0 * 1e-6;
        let flops = 4.0 * 8.0 * 512.0 * 512.0 * 64.0;
        assert_eq!(measurement.rows[0].tflops, Some(flops / seconds / 1e12));
        assert_eq!(measurement.rows[0].gbytes_per_s, Some(4.0 * 8.0 * 512.0 * 64.0 * 2.0 / seconds / 1e9));
        assert_eq!(
            measurement.rows[0].share_of_copy,
            measurement.rows[0].gbytes_per_s.map(|rate| rate / 400.0)
        );
        let json = serde_json::to_value(&measurement).expect("JSON");
        assert_eq!((&json["shape"][3], &json["rows"][0]["entry"]), (&512.into(), &"one".into()));
        assert_eq!(json["rows"][0]["timing"]["median_us"], 10.0);
        assert_eq!(json["rows"][0].get("times_us"), None, "only where they are asked for");
    }

    #[test]
    fn a_baseline_is_compared_by_name_and_else_with_its_fastest() {
        let baseline = |entry, us| Measured { is_baseline: true, ..measured(entry, Some(us)) };
        let rows = vec![
            measured("one", Some(10.0)),
            measured("new", Some(16.0)),
            measured("wrong", None),
            baseline("one", 12.0),
            baseline("two", 8.0),
        ];
        let measurement = Measurement::new(&workload(), rows, None);
        let speeds: Vec<_> = measurement.rows.iter().map(|row| row.speed_relative_to_baseline).collect();
        assert_eq!(speeds, [Some(1.2), Some(0.5), None, None, None]);
        let lines = table(&measurement);
        assert!(lines[2].ends_with("× baseline"), "{lines:?}");
        assert!(lines[3].contains("two (baseline) ") && lines[4].ends_with(" 1.200"), "{lines:?}");
        let json = serde_json::to_value(&measurement).expect("JSON");
        assert_eq!(
            (&json["rows"][3]["is_baseline"], json["rows"][0].get("is_baseline")),
            (&true.into(), None)
        );
        let alone = table(&Measurement::new(&workload(), vec![measured("one", Some(10.0))], None));
        assert!(alone[2].ends_with("MHz"), "{alone:?}");
    }

    #[test]
    fn dates_are_utc_with_leap_days() {
        let date = |seconds| utc_date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(date(1_772_323_200), "2026-03-01T00:00:00Z");
    }
}
