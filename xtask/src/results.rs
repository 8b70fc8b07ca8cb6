//! Files of `benches/torch_sdpa.py`: what they say, and which one of a device is the newest.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Where the files are kept.
pub(crate) const FOLDER: &str = "benches/results";
/// The name of Ferroflash in a file.
pub(crate) const OURS: &str = "ferroflash";
/// The sets of problems that docs/results.md shows.
pub(crate) const HEADLINE: &str = "headline";
pub(crate) const LENGTHS: &str = "lengths";
/// What a target's share of the copy bandwidth is called.
const COPY: &str = "copy";
/// Queries up to which a problem counts as decoding.
const DECODE_SEQLEN_Q_MAX: u32 = 16;

/// One file.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Results {
    /// Its name in [`FOLDER`].
    #[serde(skip)]
    pub(crate) file: String,
    /// `2026-01-31T23:59:59Z`.
    pub(crate) date: String,
    pub(crate) commit: Option<String>,
    pub(crate) device: DeviceName,
    pub(crate) torch: TorchVersion,
    pub(crate) method: Method,
    pub(crate) copy_bandwidth: Option<CopyBandwidth>,
    pub(crate) problems: Vec<Problem>,
    /// Of sets that have the same tokens at several lengths.
    #[serde(default)]
    pub(crate) means: Vec<Mean>,
}

/// What a file of the folder says that it is.
#[derive(Deserialize)]
struct Kind {
    set: Option<String>,
}

/// A geometric mean over the lengths.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mean {
    pub(crate) head_dim: u32,
    pub(crate) dtype: String,
    causal: bool,
    #[serde(flatten)]
    pub(crate) target: Target,
}

impl Mean {
    /// `head_dim 64 f16 causal, mean over the lengths`.
    pub(crate) fn title(&self) -> String {
        format!("head_dim {} {} {}, mean over the lengths", self.head_dim, self.dtype, mask(self.causal))
    }

    pub(crate) fn mask(&self) -> &'static str {
        mask(self.causal)
    }
}

fn mask(causal: bool) -> &'static str {
    if causal { "causal" } else { "full" }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DeviceName {
    pub(crate) name: String,
    pub(crate) driver: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct TorchVersion {
    pub(crate) version: String,
    pub(crate) cudnn: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Method {
    pub(crate) rounds: u32,
    pub(crate) replays_per_round: u32,
    /// `replays` where all take turns replay by replay; older files lack it.
    pub(crate) turns: Option<String>,
}

impl Method {
    /// How Ferroflash and PyTorch take turns.
    pub(crate) fn turns(&self) -> &'static str {
        match self.turns.as_deref() {
            Some("replays") => "in turns, replay by replay",
            _ => "in turns, a batch of problems at a time",
        }
    }
}

/// What copies on the device reached, read and written.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CopyBandwidth {
    pub(crate) gbytes_per_s: Option<f64>,
    pub(crate) kind: Option<String>,
}

/// One problem with the times of everyone.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Problem {
    /// B, HQ, HKV, SQ, SKV, D.
    shape: [u32; 6],
    pub(crate) dtype: String,
    causal: bool,
    pub(crate) kernel: Option<Kernel>,
    pub(crate) sm_clock_mhz: Option<u32>,
    /// The back end that PyTorch takes by default.
    pub(crate) default_picks: Option<String>,
    /// By name; none where it could not be measured.
    times: BTreeMap<String, Option<Timing>>,
    tflops: BTreeMap<String, f64>,
    #[serde(default)]
    gbytes_per_s: BTreeMap<String, f64>,
    /// Of decoding, where the copy bandwidth was measured.
    #[serde(default)]
    share_of_copy: BTreeMap<String, f64>,
    speed_relative_to: BTreeMap<String, Ratio>,
    #[serde(default)]
    pub(crate) targets: Vec<Target>,
    /// The only one, in files from before a problem could have several.
    target: Option<Target>,
}

/// How Ferroflash computed it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Kernel {
    pub(crate) ctas: Option<u32>,
    pub(crate) ctas_per_sm: Option<f64>,
    pub(crate) schedule: Option<String>,
    pub(crate) splits: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Timing {
    pub(crate) median_us: f64,
    pub(crate) p10_us: f64,
    pub(crate) p90_us: f64,
}

/// How many times as long as Ferroflash another takes, by medians and by 90th percentiles.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) p90: f64,
}

/// A ratio to reach: of speed, or a share of the copy bandwidth.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Target {
    relative_to: String,
    least: f64,
    /// `None` where it was not measured.
    pub(crate) reached: Option<f64>,
    pub(crate) met: bool,
}

impl Target {
    /// Whether it is a share of the copy bandwidth, and no ratio of times.
    pub(crate) fn is_share(&self) -> bool {
        self.relative_to == COPY
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_share() {
            return write!(f, "{:.0} % of copy", self.least * 100.0);
        }
        write!(f, "{:?} × {}", self.least, self.relative_to)
    }
}

/// The newest file of a set of problems of each device, by the device's name.
pub(crate) fn newest(root: &Path, set: &str) -> anyhow::Result<Vec<Results>> {
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
        // Other programs keep their measurements here too; a table names its set.
        let kind: Kind = serde_json::from_str(&text).with_context(|| format!("{FOLDER}/{file}"))?;
        if kind.set.as_deref() != Some(set) {
            continue;
        }
        let results = parse(&file, &text)?;
        let replaced = newest.get(&results.device.name);
        // The name decides between two of one second, so that the order of the folder does not.
        let is_newer =
            replaced.is_none_or(|known| (&known.date, &known.file) < (&results.date, &results.file));
        if is_newer {
            newest.insert(results.device.name.clone(), results);
        }
    }
    Ok(newest.into_values().collect())
}

fn parse(file: &str, text: &str) -> anyhow::Result<Results> {
    let mut results: Results = serde_json::from_str(text)
        .with_context(|| format!("{FOLDER}/{file} is not what benches/torch_sdpa.py writes"))?;
    // What the tests' fake driver and the simulator call themselves.
    if ["no GPU", "simulator"].iter().any(|name| results.device.name.contains(name)) {
        bail!("{FOLDER}/{file} is of no GPU: its device is {}", results.device.name);
    }
    results.problems.iter_mut().for_each(|problem| problem.targets.extend(problem.target.take()));
    // Each one that is listed says what was reached, so that a verdict can be held against it.
    for (title, target) in results.targets() {
        if target.reached.is_some_and(|reached| (reached >= target.least) != target.met) {
            bail!("{FOLDER}/{file} contradicts itself: {title}, {target}");
        }
    }
    Ok(Results { file: file.to_owned(), ..results })
}

impl Results {
    /// Every ratio to reach, and whose it is.
    pub(crate) fn targets(&self) -> Vec<(String, &Target)> {
        let problems = self
            .problems
            .iter()
            .flat_map(|problem| problem.targets.iter().map(move |target| (problem.title(), target)));
        problems.chain(self.means.iter().map(|mean| (mean.title(), &mean.target))).collect()
    }

    /// Problems limited by arithmetic, in the file's order.
    pub(crate) fn prefill(&self) -> Vec<&Problem> {
        self.problems.iter().filter(|problem| !problem.is_decode()).collect()
    }

    /// Problems of so few queries that memory limits them.
    pub(crate) fn decode(&self) -> Vec<&Problem> {
        self.problems.iter().filter(|problem| problem.is_decode()).collect()
    }
}

impl Problem {
    /// `4,32,32,4096,4096,64 f16 causal`.
    pub(crate) fn title(&self) -> String {
        format!("{} {} {}", self.shape_name(), self.dtype, self.mask())
    }

    /// How many times as long as Ferroflash a back end takes.
    pub(crate) fn ratio(&self, name: &str) -> Option<Ratio> {
        self.speed_relative_to.get(name).copied()
    }

    /// How many times as fast as PyTorch's flash its default is.
    pub(crate) fn default_relative_to_flash(&self) -> Option<f64> {
        Some(self.ratio("flash")?.median / self.ratio("default")?.median)
    }

    /// The bytes of Q, K, V and O over the time of a name, over the device's copy bandwidth.
    pub(crate) fn share_of_copy(&self, name: &str) -> Option<f64> {
        self.share_of_copy.get(name).copied()
    }

    pub(crate) fn timing(&self, name: &str) -> Option<Timing> {
        *self.times.get(name)?
    }

    /// Of Ferroflash.
    pub(crate) fn tflops(&self) -> Option<f64> {
        self.tflops.get(OURS).copied()
    }

    /// Of Ferroflash.
    pub(crate) fn gbytes_per_s(&self) -> Option<f64> {
        self.gbytes_per_s.get(OURS).copied()
    }

    pub(crate) fn shape_name(&self) -> String {
        self.shape.map(|size| size.to_string()).join(",")
    }

    pub(crate) fn mask(&self) -> &'static str {
        mask(self.causal)
    }

    /// Query heads, KV heads, keys and head_dim.
    pub(crate) fn heads_keys_and_head_dim(&self) -> ([u32; 2], u32, u32) {
        let [_, heads_q, heads_kv, _, seqlen_k, head_dim] = self.shape;
        ([heads_q, heads_kv], seqlen_k, head_dim)
    }

    fn is_decode(&self) -> bool {
        self.shape[3] <= DECODE_SEQLEN_Q_MAX
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file with a problem that met one target and missed another, one without times, and one of decoding.
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
            "copy_bandwidth": {{"gbytes_per_s": 4187.4, "kind": "mul", "method": "how", "rounds": [], "errors": []}},
            "problems": [
            {{"shape": [1, 8, 8, 512, 512, 64], "dtype": "f16", "causal": true, "sm_clock_mhz": 1980, "default_picks": "cudnn",
              "kernel": {{"entry": "fwd_x", "source": "cubin sm_90", "ctas": 256, "ctas_per_sm": 1.939, "schedule": "persistent",
                          "splits": 1}},
              "times": {{"ferroflash": {}, "flash": {}, "cudnn": null, "default": {}}}, "tflops": {{"ferroflash": 268.4}},
              "gbytes_per_s": {{"ferroflash": 262.1}}, "share_of_copy": {{}},
              "speed_relative_to": {{"flash": {{"median": 1.5, "p90": 1.4}}, "default": {{"median": 1.25, "p90": 0.97}}}},
              "targets": [{{"relative_to": "default", "least": 1.15, "reached": 1.25, "met": true}},
                          {{"relative_to": "default p90", "least": 1.0, "reached": 0.97, "met": false}}],
              "errors": {{"cudnn": "no"}}}},
            {{"shape": [4, 16, 16, 4096, 4096, 128], "dtype": "bf16", "causal": false, "kernel": null, "sm_clock_mhz": null,
              "default_picks": null, "times": {{"ferroflash": null}}, "tflops": {{}}, "speed_relative_to": {{}},
              "targets": [{{"relative_to": "flash", "least": 1.0, "reached": null, "met": false}}],
              "errors": {{"ferroflash": "no"}}}},
            {{"shape": [8, 32, 8, 1, 8192, 128], "dtype": "f16", "causal": false, "sm_clock_mhz": 1965, "default_picks": "flash",
              "kernel": {{"entry": "fwd_y", "source": "cubin sm_90", "ctas": 2112, "ctas_per_sm": 16.0, "schedule": "split",
                          "splits": 33}},
              "times": {{"ferroflash": {}, "flash": {}, "cudnn": {}, "default": {}}}, "tflops": {{"ferroflash": 15.3}},
              "gbytes_per_s": {{"ferroflash": 3768.2, "default": 1884.1}},
              "share_of_copy": {{"ferroflash": 0.8999, "flash": 0.45, "default": 0.45}},
              "speed_relative_to": {{"flash": {{"median": 2.0, "p90": 2.0}}, "default": {{"median": 2.0, "p90": 2.0}}}},
              "targets": [{{"relative_to": "copy", "least": 0.88, "reached": 0.8999, "met": true}},
                          {{"relative_to": "default", "least": 1.0, "reached": 2.0, "met": true}}], "errors": {{}}}}]}}"#,
            timing(8.0),
            timing(12.0),
            timing(10.0),
            timing(71.0),
            timing(142.0),
            timing(150.0),
            timing(142.0),
        )
    }

    /// The sample, read.
    pub(crate) fn results() -> Results {
        parse("a.json", &sample("Some GPU", "2026-01-31T23:59:59Z")).expect("valid")
    }

    /// The sample in the form that files had when a problem had one target, read.
    pub(crate) fn former_results() -> Results {
        let mut json: serde_json::Value =
            serde_json::from_str(&sample("Some GPU", "2026-01-31T23:59:59Z")).expect("JSON");
        json.as_object_mut().expect("an object").remove("copy_bandwidth");
        let problems = json["problems"].as_array_mut().expect("a list");
        problems.truncate(1);
        let problem = problems[0].as_object_mut().expect("an object");
        for key in ["targets", "gbytes_per_s", "share_of_copy"] {
            problem.remove(key);
        }
        problem["kernel"] = serde_json::json!({"entry": "fwd_x", "ctas": 64, "ctas_per_sm": 0.485});
        let target = serde_json::json!({"relative_to": "default", "least": 1.2, "met": true});
        problem.insert("target".to_owned(), target);
        parse("former.json", &json.to_string()).expect("valid")
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
    fn a_verdict_that_its_number_contradicts_is_refused() {
        let valid = sample("Some GPU", "2026-01-01T00:00:00Z");
        for (number, other) in
            [("\"reached\": 0.97", "\"reached\": 1.0"), ("\"reached\": 1.25", "\"reached\": 1.1")]
        {
            let text = valid.replace(number, other);
            assert_ne!(text, valid);
            let error = parse("a.json", &text).expect_err("refused").to_string();
            assert!(error.contains("contradicts itself: 1,8,8,512,512,64 f16 causal, 1."), "{error}");
        }
    }

    #[test]
    fn decoding_is_told_apart_and_former_files_are_read() {
        let results = results();
        let titles = |problems: Vec<&Problem>| problems.into_iter().map(Problem::title).collect::<Vec<_>>();
        assert_eq!(titles(results.decode()), ["8,32,8,1,8192,128 f16 full"]);
        assert_eq!(results.prefill().len(), 2);
        let former = former_results();
        assert_eq!(former.problems[0].targets.len(), 1);
        assert_eq!(former.problems[0].targets[0].to_string(), "1.2 × default");
        assert!(former.copy_bandwidth.is_none() && former.decode().is_empty());
    }

    #[test]
    fn targets_read_as_text() {
        let texts: Vec<String> =
            results().problems.iter().flat_map(|problem| &problem.targets).map(Target::to_string).collect();
        assert_eq!(
            texts,
            ["1.15 × default", "1.0 × default p90", "1.0 × flash", "88 % of copy", "1.0 × default"]
        );
    }

    #[test]
    fn the_newest_file_of_each_device_is_taken_and_other_sets_are_not() {
        let root = tempfile::tempdir().expect("a temporary folder");
        assert!(newest(root.path(), HEADLINE).expect("no folder is no result").is_empty());
        let folder = root.path().join(FOLDER);
        std::fs::create_dir_all(&folder).expect("created");
        let small = sample("GPU B", "2027-01-01T00:00:00Z").replace("headline", "small");
        for (name, text) in [
            ("1.json", sample("GPU B", "2026-01-02T00:00:00Z")),
            ("2.json", sample("GPU B", "2026-01-01T00:00:00Z")),
            ("3.json", sample("GPU A", "2025-01-01T00:00:00Z")),
            ("4.json", small),
            ("of-another-program.json", r#"{"device": "GPU B", "date": "2028-01-01"}"#.to_owned()),
            ("notes.txt", "not JSON".to_owned()),
        ] {
            std::fs::write(folder.join(name), text).expect("written");
        }
        let found = newest(root.path(), HEADLINE).expect("valid");
        let names: Vec<_> =
            found.iter().map(|found| (found.device.name.as_str(), found.file.as_str())).collect();
        assert_eq!(names, [("GPU A", "3.json"), ("GPU B", "1.json")]);
        std::fs::write(folder.join("5.json"), r#"{"set": "headline"}"#).expect("written");
        let error = newest(root.path(), HEADLINE).expect_err("a table without problems");
        assert!(
            format!("{error:#}").contains("5.json is not what benches/torch_sdpa.py writes"),
            "{error:#}"
        );
    }
}
