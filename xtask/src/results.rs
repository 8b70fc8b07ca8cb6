//! Files of `benches/torch_sdpa.py`: what they say, which one of a device is the newest, and their table.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Where the files are kept.
pub(crate) const FOLDER: &str = "benches/results";
/// The set of problems that the README shows.
const HEADLINE: &str = "headline";
const OURS: &str = "ferroflash";

/// One file.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Results {
    /// Its name in [`FOLDER`].
    #[serde(skip)]
    pub(crate) file: String,
    set: String,
    /// `2026-01-31T23:59:59Z`.
    date: String,
    commit: Option<String>,
    pub(crate) device: DeviceName,
    torch: TorchVersion,
    method: Method,
    pub(crate) problems: Vec<Problem>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DeviceName {
    pub(crate) name: String,
    driver: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct TorchVersion {
    version: String,
    cudnn: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Method {
    rounds: u32,
    replays_per_round: u32,
}

/// One problem with the times of everyone.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Problem {
    /// B, HQ, HKV, SQ, SKV, D.
    shape: [u32; 6],
    dtype: String,
    causal: bool,
    sm_clock_mhz: Option<u32>,
    /// The back end that PyTorch takes by default.
    default_picks: Option<String>,
    /// By name; none where it could not be measured.
    times: BTreeMap<String, Option<Timing>>,
    tflops: BTreeMap<String, f64>,
    speed_relative_to: BTreeMap<String, Ratio>,
    target: Option<Target>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Timing {
    median_us: f64,
    p10_us: f64,
    p90_us: f64,
}

/// How many times as long as Ferroflash another takes.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Ratio {
    median: f64,
}

/// A ratio to reach.
#[derive(Clone, Debug, Deserialize)]
struct Target {
    relative_to: String,
    least: f64,
    met: bool,
}

/// The newest file of the headline problems of each device, by the device's name.
pub(crate) fn newest(root: &Path) -> anyhow::Result<Vec<Results>> {
    let folder = root.join(FOLDER);
    let mut newest: BTreeMap<String, Results> = BTreeMap::new();
    // Without the folder nothing was measured yet.
    let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(Vec::new()) };
    for entry in entries {
        let path = entry.with_context(|| FOLDER.to_owned())?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| format!("{FOLDER}/{file}"))?;
        let results = parse(&file, &text)?;
        let replaced = newest.get(&results.device.name);
        // The name decides between two of one second, so that the order of the folder does not.
        let is_newer =
            replaced.is_none_or(|known| (&known.date, &known.file) < (&results.date, &results.file));
        if results.set == HEADLINE && is_newer {
            newest.insert(results.device.name.clone(), results);
        }
    }
    Ok(newest.into_values().collect())
}

fn parse(file: &str, text: &str) -> anyhow::Result<Results> {
    let results: Results = serde_json::from_str(text)
        .with_context(|| format!("{FOLDER}/{file} is not what benches/torch_sdpa.py writes"))?;
    // What the tests' fake driver and the simulator call themselves.
    if ["no GPU", "simulator"].iter().any(|name| results.device.name.contains(name)) {
        bail!("{FOLDER}/{file} is of no GPU: its device is {}", results.device.name);
    }
    Ok(Results { file: file.to_owned(), ..results })
}

impl Results {
    /// What was measured, where, with what: one paragraph, then the table, in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = self.heading();
        text.push_str(
            "\n\n| B,HQ,HKV,SQ,SKV,D | type | mask | Ferroflash µs (p10–p90) | TFLOP/s | PyTorch flash µs | \
             PyTorch default µs | × flash | × default | target |\n\
             |---|---|---|--:|--:|--:|--:|--:|--:|---|\n",
        );
        for problem in &self.problems {
            text.push_str(&problem.line());
        }
        text
    }

    fn heading(&self) -> String {
        let Method { rounds, replays_per_round } = self.method;
        let day = self.date.split('T').next().unwrap_or_default();
        let mut text = format!("**{}**", self.device.name);
        if let Some(driver) = &self.device.driver {
            let _ = write!(text, ", driver {driver}");
        }
        let _ = write!(text, ", PyTorch {}", self.torch.version);
        if let Some(cudnn) = &self.torch.cudnn {
            let _ = write!(text, ", cuDNN {cudnn}");
        }
        let _ = write!(text, ", {day}");
        if let Some(commit) = &self.commit {
            let _ = write!(text, ", commit `{commit}`");
        }
        let clocks = self.problems.iter().filter_map(|problem| problem.sm_clock_mhz);
        if let (Some(least), Some(most)) = (clocks.clone().min(), clocks.max()) {
            let range = if least == most { least.to_string() } else { format!("{least}–{most}") };
            let _ = write!(text, ", SM clock {range} MHz under load");
        }
        let replays = rounds * replays_per_round;
        let _ = write!(
            text,
            ". Device time of one forward pass: medians of {replays} CUDA-graph replays in {rounds} rounds, Ferroflash and \
             PyTorch in turns; Ferroflash and PyTorch's flash write LSE too. × is how many times as long PyTorch takes. From \
             [`{FOLDER}/{file}`]({FOLDER}/{file}).",
            file = self.file
        );
        let targets = || self.problems.iter().filter_map(|problem| problem.target.as_ref());
        let _ = write!(
            text,
            " {} of {} targets met.",
            targets().filter(|target| target.met).count(),
            targets().count()
        );
        text
    }
}

impl Problem {
    /// `4,32,32,4096,4096,64 f16 causal`.
    pub(crate) fn title(&self) -> String {
        format!("{} {} {}", self.shape_name(), self.dtype, self.mask())
    }

    /// How many times as long as Ferroflash PyTorch's flash takes.
    pub(crate) fn relative_to_flash(&self) -> Option<f64> {
        self.ratio("flash")
    }

    /// How many times as fast as PyTorch's flash its default is.
    pub(crate) fn default_relative_to_flash(&self) -> Option<f64> {
        Some(self.ratio("flash")? / self.ratio("default")?)
    }

    fn ratio(&self, name: &str) -> Option<f64> {
        self.speed_relative_to.get(name).map(|ratio| ratio.median)
    }

    fn timing(&self, name: &str) -> Option<Timing> {
        *self.times.get(name)?
    }

    fn shape_name(&self) -> String {
        self.shape.map(|size| size.to_string()).join(",")
    }

    fn mask(&self) -> &'static str {
        if self.causal { "causal" } else { "full" }
    }

    fn line(&self) -> String {
        let none = || "–".to_owned();
        let ours = self.timing(OURS).map_or_else(none, |ours| {
            format!("{} ({}–{})", us(ours.median_us), us(ours.p10_us), us(ours.p90_us))
        });
        let tflops = self.tflops.get(OURS).map_or_else(none, |tflops| format!("{tflops:.0}"));
        let theirs = |name| self.timing(name).map_or_else(none, |theirs| us(theirs.median_us));
        let picks = self.default_picks.as_ref().map_or_else(String::new, |picks| format!(" {picks}"));
        let ratio = |name| self.ratio(name).map_or_else(none, |ratio| format!("{ratio:.2}"));
        let target = self.target.as_ref().map_or_else(String::new, |target| {
            let verdict = if target.met { "met" } else { "**missed**" };
            format!("{:.1} × {}: {verdict}", target.least, target.relative_to)
        });
        format!(
            "| {} | {} | {} | {ours} | {tflops} | {} | {}{picks} | {} | {} | {target} |\n",
            self.shape_name(),
            self.dtype,
            self.mask(),
            theirs("flash"),
            theirs("default"),
            ratio("flash"),
            ratio("default")
        )
    }
}

/// A time in three or four digits.
fn us(time_us: f64) -> String {
    match time_us {
        0.0..100.0 => format!("{time_us:.2}"),
        100.0..1000.0 => format!("{time_us:.1}"),
        _ => format!("{time_us:.0}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file with a problem that met its target and one without times.
    pub(crate) fn sample(device: &str, date: &str) -> String {
        let timing = |us: f64| {
            format!(
                "{{\"median_us\": {us}, \"p10_us\": {}, \"p90_us\": {}, \"replays\": 93}}",
                us - 0.5,
                us + 0.5
            )
        };
        format!(
            r#"{{"set": "headline", "date": "{date}", "commit": "abc", "device": {{"name": "{device}", "driver": "580.1"}},
            "torch": {{"version": "2.11.0", "cudnn": "9.19.0"}}, "method": {{"rounds": 3, "replays_per_round": 31}},
            "problems": [
            {{"shape": [1, 8, 8, 512, 512, 64], "dtype": "f16", "causal": true, "sm_clock_mhz": 1980, "default_picks": "cudnn",
              "times": {{"ferroflash": {}, "flash": {}, "cudnn": null, "default": {}}}, "tflops": {{"ferroflash": 268.4}},
              "speed_relative_to": {{"flash": {{"median": 1.5, "p90": 1.4}}, "default": {{"median": 1.25, "p90": 1.2}}}},
              "target": {{"relative_to": "default", "least": 1.2, "met": true}}, "errors": {{"cudnn": "no"}}}},
            {{"shape": [4, 16, 16, 4096, 4096, 128], "dtype": "bf16", "causal": false, "sm_clock_mhz": null,
              "default_picks": null, "times": {{"ferroflash": null}}, "tflops": {{}}, "speed_relative_to": {{}},
              "target": {{"relative_to": "flash", "least": 1.0, "met": false}}, "errors": {{"ferroflash": "no"}}}}]}}"#,
            timing(8.0),
            timing(12.0),
            timing(10.0)
        )
    }

    /// The sample, read.
    pub(crate) fn results() -> Results {
        parse("a.json", &sample("Some GPU", "2026-01-31T23:59:59Z")).expect("valid")
    }

    #[test]
    fn what_no_gpu_measured_is_refused() {
        for device in ["fake driver (no GPU)", "simulator (L4, sm_89)"] {
            let error = parse("a.json", &sample(device, "2026-01-01T00:00:00Z")).expect_err("refused");
            assert_eq!(
                error.to_string(),
                format!("benches/results/a.json is of no GPU: its device is {device}")
            );
        }
    }

    #[test]
    fn the_table_names_what_its_numbers_depend_on() {
        let markdown = results().markdown();
        let heading = markdown.lines().next().expect("a heading");
        for part in [
            "**Some GPU**, driver 580.1, PyTorch 2.11.0, cuDNN 9.19.0, 2026-01-31, commit `abc`, SM clock 1980 MHz",
            "medians of 93 CUDA-graph replays in 3 rounds",
            "[`benches/results/a.json`](benches/results/a.json)",
            "1 of 2 targets met",
        ] {
            assert!(heading.contains(part), "{part}: {heading}");
        }
        let lines: Vec<&str> = markdown.lines().skip(4).collect();
        assert_eq!(
            lines,
            [
                "| 1,8,8,512,512,64 | f16 | causal | 8.00 (7.50–8.50) | 268 | 12.00 | 10.00 cudnn | 1.50 | 1.25 | 1.2 × default: met |",
                "| 4,16,16,4096,4096,128 | bf16 | full | – | – | – | – | – | – | 1.0 × flash: **missed** |",
            ]
        );
    }

    #[test]
    fn the_newest_file_of_each_device_is_taken_and_other_sets_are_not() {
        let root = tempfile::tempdir().expect("a temporary folder");
        assert!(newest(root.path()).expect("no folder is no result").is_empty());
        let folder = root.path().join(FOLDER);
        std::fs::create_dir_all(&folder).expect("created");
        let small = sample("GPU B", "2027-01-01T00:00:00Z").replace("headline", "small");
        for (name, text) in [
            ("1.json", sample("GPU B", "2026-01-02T00:00:00Z")),
            ("2.json", sample("GPU B", "2026-01-01T00:00:00Z")),
            ("3.json", sample("GPU A", "2025-01-01T00:00:00Z")),
            ("4.json", small),
            ("notes.txt", "not JSON".to_owned()),
        ] {
            std::fs::write(folder.join(name), text).expect("written");
        }
        let found = newest(root.path()).expect("valid");
        let names: Vec<_> =
            found.iter().map(|found| (found.device.name.as_str(), found.file.as_str())).collect();
        assert_eq!(names, [("GPU A", "3.json"), ("GPU B", "1.json")]);
        std::fs::write(folder.join("5.json"), "{}").expect("written");
        let error = newest(root.path()).expect_err("a file of another kind");
        assert!(
            format!("{error:#}").contains("5.json is not what benches/torch_sdpa.py writes"),
            "{error:#}"
        );
    }

    #[test]
    fn times_have_three_or_four_digits() {
        assert_eq!([8.123, 99.999, 123.45, 6543.2].map(us), ["8.12", "100.00", "123.5", "6543"]);
    }
}
