//! `lab.toml`: what is tested and timed, how strictly, and what it may cost. docs/lab.md explains every key.

mod number;

pub use number::{Count, Ratio, Seconds, Share};

use crate::error::{Error, Result};
use crate::inputs::Kind;
use crate::problem_spec::{Mask, ProblemSpec, Shape};
use ferroflash::{Dtype, Row};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The file that is read where none is named.
pub const CONFIG_FILE: &str = "lab.toml";

/// Everything that lab.toml can say; what it does not say is as the seeds have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What is tested and timed.
    pub problems: Problems,
    /// How far from float64 an output may be.
    pub tolerances: Tolerances,
    /// When a difference counts.
    pub thresholds: Thresholds,
    /// How long each command's candidates may take.
    pub limits: Limits,
    /// What a search may cost.
    pub budget: Budget,
    /// What runs the kernels.
    pub device: Device,
    /// Who the kernels are compared with.
    pub peers: Peers,
}

/// What is tested and timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Problems {
    /// Shapes that are timed, and tested where there is a GPU. A row with another head_dim gets them with its own.
    pub shapes: Vec<Shape>,
    /// The same for the simulator, whose seconds are a GPU's microseconds.
    pub sim_shapes: Vec<Shape>,
    /// Element types whose rows are admitted.
    pub dtypes: Vec<Dtype>,
    /// Masks.
    pub masks: Vec<Mask>,
    /// Distributions of the inputs.
    pub inputs: Vec<Kind>,
    /// A safetensors file with the tensors that `real` inputs come from, from the workspace's root.
    pub real: PathBuf,
    /// Problems of shapes and seeds that nobody knows before the session.
    pub hidden: Count,
}

/// How far from float64 an output may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tolerances {
    /// Share of the host's bound that an error may take: 1 is twice the error of a plain implementation in the same type.
    pub error_share: Share,
    /// Schedules, beside the simulator's own, that warps and copies are shaken with.
    pub schedules: Count,
}

/// When a difference counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// How much faster a candidate must be to be kept: 0.03 is 3 %.
    pub keep: Ratio,
    /// Problems on which it must be.
    pub keep_problems: Count,
    /// How much slower it may be on the others, and what the gate calls a regression.
    pub regression: Ratio,
    /// Confidence of the intervals.
    pub confidence: Share,
}

/// How long one candidate may take in each command, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Compiling.
    pub build_s: Seconds,
    /// Simulating and comparing with float64.
    pub test_s: Seconds,
    /// Timing.
    pub benchmark_s: Seconds,
    /// Profiling.
    pub profile_s: Seconds,
    /// The sanitizers.
    pub sanitize_s: Seconds,
    /// A whole session.
    pub session_s: Seconds,
}

/// What a search may cost; whichever is used up first ends it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Candidates that are evaluated.
    pub candidates: Count,
    /// Seconds in all.
    pub seconds: Seconds,
    /// Seconds on the GPU.
    pub gpu_seconds: Seconds,
}

/// What runs the kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// The GPU, the simulator, or the GPU where there is one.
    pub kind: DeviceKind,
    /// The GPU's number.
    pub ordinal: u32,
    /// Bytes of shared memory that a CTA may have, where that shall be less than the device has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smem_max: Option<u32>,
}

/// What runs the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The GPU where there is one, else the simulator
    #[default]
    Auto,
    /// The GPU: counters, checks and times
    Cuda,
    /// The simulator: counters and checks, never a time
    Sim,
}

/// Who the kernels are compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Peers {
    /// The Python that has torch.
    pub python: PathBuf,
    /// Rounds in which Ferroflash and the peer take turns.
    pub rounds: Count,
}

impl Default for Problems {
    fn default() -> Problems {
        let shapes =
            [[1, 8, 8, 512, 512, 64], [4, 16, 16, 512, 512, 64], [8, 16, 16, 512, 512, 64]].map(Shape);
        Problems {
            shapes: shapes.to_vec(),
            sim_shapes: vec![Shape([1, 8, 8, 512, 512, 64])],
            dtypes: vec![Dtype::F16, Dtype::Bf16],
            masks: vec![Mask::Full, Mask::Causal],
            inputs: Kind::ALL.to_vec(),
            real: PathBuf::from("tests/data/minilm_layer2.safetensors"),
            hidden: Count::new(2),
        }
    }
}

impl Default for Tolerances {
    fn default() -> Tolerances {
        Tolerances { error_share: Share::new(1.0), schedules: Count::new(2) }
    }
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            keep: Ratio::new(0.03),
            keep_problems: Count::new(2),
            regression: Ratio::new(0.02),
            confidence: Share::new(0.95),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            build_s: Seconds::new(120),
            test_s: Seconds::new(300),
            benchmark_s: Seconds::new(300),
            profile_s: Seconds::new(300),
            sanitize_s: Seconds::new(300),
            session_s: Seconds::new(3600),
        }
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { candidates: Count::new(45), seconds: Seconds::new(3600), gpu_seconds: Seconds::new(900) }
    }
}

impl Default for Device {
    fn default() -> Device {
        Device { kind: DeviceKind::Auto, ordinal: 0, smem_max: None }
    }
}

impl Default for Peers {
    fn default() -> Peers {
        Peers { python: PathBuf::from("python3"), rounds: Count::new(3) }
    }
}

impl Config {
    /// Reads the file named, else `lab.toml` of the folder given where there is one, else takes the defaults.
    ///
    /// # Errors
    /// [`Error::Config`] with the line, [`Error::Io`] where a named file cannot be read.
    pub fn find(named: Option<&Path>, folder: &Path) -> Result<Config> {
        let usual = folder.join(CONFIG_FILE);
        match named {
            Some(path) => Config::read(path),
            None if usual.is_file() => Config::read(&usual),
            None => Ok(Config::default()),
        }
    }

    /// Reads one file.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Io`].
    pub fn read(path: &Path) -> Result<Config> {
        let text = crate::whole_file::read(path).map_err(|source| Error::io(path, source))?;
        Config::parse(path, &text)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`Error::Config`] with the line of the first thing that is wrong.
    pub fn parse(path: &Path, text: &str) -> Result<Config> {
        let at = |offset: usize, reason: String| {
            let before = text.get(..offset).unwrap_or(text);
            Error::Config { path: path.to_owned(), line: before.matches('\n').count() + 1, reason }
        };
        let config: Config = toml::from_str(text)
            .map_err(|error| at(error.span().map_or(0, |span| span.start), one_line(error.message())))?;
        for (key, empty) in config.problems.lists() {
            if empty {
                let offset = text.find(key).unwrap_or(0);
                return Err(at(offset, format!("{key} is empty: name at least one")));
            }
        }
        Ok(config)
    }
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Problems {
    fn lists(&self) -> [(&'static str, bool); 5] {
        [
            ("shapes", self.shapes.is_empty()),
            ("sim_shapes", self.sim_shapes.is_empty()),
            ("dtypes", self.dtypes.is_empty()),
            ("masks", self.masks.is_empty()),
            ("inputs", self.inputs.is_empty()),
        ]
    }

    /// The problems that a row is tested and timed on: every shape with every mask, in this order.
    ///
    /// # Errors
    /// [`Error::NoProblem`] where the row's element type is not admitted.
    pub fn of_row(&self, row: &Row, simulated: bool) -> Result<Vec<ProblemSpec>> {
        if !self.dtypes.contains(&row.dtype) {
            let (dtype, head_dim) = (row.dtype.name(), row.head_dim);
            return Err(Error::NoProblem { row: row.entry_name(), dtype, head_dim });
        }
        let shapes = if simulated { &self.sim_shapes } else { &self.shapes };
        let mut specs: Vec<ProblemSpec> = Vec::new();
        for shape in shapes {
            for &mask in &self.masks {
                let mut shape = *shape;
                shape.0[5] = row.head_dim;
                let spec = ProblemSpec { shape, dtype: row.dtype, mask };
                if !specs.contains(&spec) {
                    specs.push(spec);
                }
            }
        }
        Ok(specs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Config::parse(Path::new("lab.toml"), text).expect_err("refused").to_string()
    }

    #[test]
    fn an_empty_file_is_the_seeds_defaults() {
        let config = Config::parse(Path::new("lab.toml"), "").expect("valid");
        assert_eq!(config, Config::default());
        let shapes: Vec<String> = config.problems.shapes.iter().map(Shape::to_string).collect();
        assert_eq!(shapes, ["1,8,8,512,512,64", "4,16,16,512,512,64", "8,16,16,512,512,64"]);
    }

    #[test]
    fn the_example_that_is_shipped_says_the_defaults() {
        let text = include_str!("../lab.toml");
        assert_eq!(Config::parse(Path::new("lab.toml"), text).expect("valid"), Config::default());
    }

    #[test]
    fn unknown_keys_and_impossible_values_name_their_line() {
        let error = refused("[problems]\nmasks = [\"full\"]\nshape = []\n");
        assert!(error.starts_with("lab.toml:3: unknown field `shape`"), "{error}");
        let error = refused("\n[problem]\n");
        assert!(error.starts_with("lab.toml:2: unknown field `problem`"), "{error}");
        let error =
            refused("[problems]\n\nshapes = [\n  \"1,8,8,512,512,64\",\n  \"1,8,3,512,512,64\",\n]\n");
        assert!(error.starts_with("lab.toml:") && error.contains("not a multiple of heads_kv 3"), "{error}");
        let error = refused("[limits]\nbuild_s = 0\n");
        assert!(error.starts_with("lab.toml:2: ") && error.contains("1 second"), "{error}");
        let error = refused("[thresholds]\nkeep = -0.1\n");
        assert!(error.starts_with("lab.toml:2: "), "{error}");
        let error = refused("[tolerances]\nerror_share = 2.0\n");
        assert!(error.starts_with("lab.toml:2: "), "{error}");
        let error = refused("[device]\nkind = \"gpu\"\n");
        assert!(error.starts_with("lab.toml:2: unknown variant `gpu`"), "{error}");
        let error = refused("[problems]\nmasks = []\n");
        assert_eq!(error, "lab.toml:2: masks is empty: name at least one");
        let error = refused("[problems\n");
        assert!(error.starts_with("lab.toml:1: "), "{error}");
    }

    #[test]
    fn a_row_gets_the_shapes_with_its_own_head_dim() {
        let row = kernels_gpu::table::VARIANTS[0].row;
        let problems = Problems::default();
        let specs = problems.of_row(&row, false).expect("admitted");
        assert_eq!(specs.len(), 6);
        assert!(specs.iter().all(|spec| spec.fits(&row)));
        let strict = Problems { dtypes: vec![Dtype::Bf16], ..problems };
        assert!(matches!(
            strict.of_row(&Row { dtype: Dtype::F16, ..row }, false),
            Err(Error::NoProblem { .. })
        ));
    }
}
