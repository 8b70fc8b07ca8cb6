//! What `ferroflash bench` is asked for: its options, and the problems that they make.

use crate::backward_args::BackwardArgs;
use crate::device::parse_model;
use crate::devices_args::{DevicesArgs, OverArgs};
use crate::failure::Failure;
use crate::plan_args::PlanArgs;
use crate::predict_args::PredictArgs;
use crate::ragged_args::RaggedArgs;
use crate::regret::RegretArgs;
use crate::shape;
use check::workload::Workload;
use clap::ValueEnum;
use ferroflash::{DeviceModel, Dtype, Problem, RowSelection, Sizes};
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  # the best kernel on a few usual shapes
  ferroflash bench

  # every kernel for one shape, with and without the causal mask, into a file
  ferroflash bench --shape 4,32,32,4096,4096,64 --mask both --rows all --json bench.json

  # two kernels against each other, each launch with cold caches
  ferroflash bench --shape 2,32,8,2048,2048,128 --rows fwd_f16_d128_m128n64_w4s1c1,fwd_f16_d128_m64n64_w4s1c1 --cold

  # decoding over caches that are filled to different lengths, with several numbers of splits
  ferroflash bench --shape 8,32,8,1,8192,128 --lengths --splits auto,1,4,16

  # the best kernels of this build against those of another
  ferroflash bench --shape 32,32,32,512,512,64 --mask both --baseline before/ptx

  # packed prompts of these lengths, and decoding over keys in pages of 16 with learned sinks
  ferroflash bench --shape 4,16,16,9000,9000,128 --mask causal --dtype bf16 --seqlens-q 9000,700,52,3000
  ferroflash bench --shape 8,32,8,1,8192,128 --page 16 --lengths --sinks

  # gradients
  ferroflash bench --backward --shape 4,16,16,4096,4096,128 --mask both --dtype bf16

  # replays one by one, each when Enter is pressed
  ferroflash bench --shape 4,16,16,4096,4096,128 --reps 5 --turns

  # how far the plans for 300 random problems are from the best that the kernels can do; interrupted, it goes on
  ferroflash bench --regret --seed 7 --keep regret.jsonl

  # each rank of 4 by itself, what it would receive copied on a stream of its own: what the schedule loses before any wire
  ferroflash bench --shape 1,32,8,32768,32768,128 --mask causal --dtype bf16 --devices 4 --method all-gather,ring

  # two GPUs at once over NCCL against one: a prompt, and decoding over a cache that is split among them
  ferroflash bench --shape 1,32,8,65536,65536,128 --mask both --dtype bf16 --devices 2 --over nccl
  ferroflash bench --shape 1,32,8,1,1048576,128 --dtype bf16 --devices 2 --over nccl

  # what each kernel executes, without a GPU
  ferroflash bench --device sim --shape 1,4,4,512,512,64 --rows all

  # the same with the time that each is predicted to take on an L4
  ferroflash bench --device sim --shape 1,4,4,512,512,64 --rows all --device-model l4 --predict

Device time of one launch between events around CUDA-graph replays, kernels in turns. TFLOP/s counts 4·B·HQ·SQ·SKV·D,
of a mask the visible share, of sequences with lengths the keys that they have. GB/s counts Q, K, V and O once; next to it
stands its share of what copies within the device reach in the same run. Every kernel's output is checked before.";

/// Shapes measured where none is given: short, long, wide heads, very long.
const USUAL_SHAPES: [[u32; 6]; 5] = [
    [1, 8, 8, 512, 512, 64],
    [2, 8, 8, 512, 512, 64],
    [4, 32, 32, 4096, 4096, 64],
    [4, 16, 16, 4096, 4096, 128],
    [1, 16, 16, 16384, 16384, 128],
];

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Batch, query heads, KV heads, queries, keys, head_dim; may be given several times [default: a few usual ones]
    #[arg(long, value_name = "B,HQ,HKV,SQ,SKV,D", value_parser = shape::parse, num_args = 1..)]
    pub(crate) shape: Vec<Sizes>,

    /// The same as --mask causal
    #[arg(long, conflicts_with = "mask")]
    pub(crate) causal: bool,

    /// Which masks to measure with
    #[arg(long, value_enum, default_value_t = MaskName::Full, conflicts_with = "window")]
    pub(crate) mask: MaskName,

    /// Sequences have lengths of their own, 1 to SKV, the same in every run
    #[arg(long)]
    pub(crate) lengths: bool,

    /// Element types, joined by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "f16")]
    pub(crate) dtype: Vec<DtypeName>,

    /// Kernels: best, all, or names joined by commas
    #[arg(long, value_delimiter = ',', default_value = "best")]
    pub(crate) rows: Vec<RowSelection>,

    #[command(flatten)]
    pub(crate) plan: PlanArgs,

    #[command(flatten)]
    pub(crate) ragged: RaggedArgs,

    #[command(flatten)]
    pub(crate) predict: PredictArgs,

    #[command(flatten)]
    pub(crate) devices: DevicesArgs,

    #[command(flatten)]
    pub(crate) over: OverArgs,

    /// With --over: N more calls after the timing, each of which must have the first one's bits
    #[arg(long, value_name = "N", default_value_t = 0, requires = "over")]
    pub(crate) repeats: u32,

    /// With --over: replay the ranks' calls as graphs, instead of enqueuing them one by one
    #[arg(long, requires = "over", conflicts_with = "eager")]
    pub(crate) graph: bool,

    /// Milliseconds that all GPUs rest before each turn: what is computed without a rest for some seconds is slowed down by the GPUs' power
    /// limit, and then what is measured is their power rather than what a schedule loses
    #[arg(long, value_name = "MS", requires = "over", default_value_t = 0)]
    pub(crate) rest: u64,

    /// What stays in the L2 cache: what the device's replacement keeps, or K and V as far as they fit
    #[arg(long, value_enum, default_value_t = L2Name::Default)]
    pub(crate) l2: L2Name,

    /// Timed replays of each kernel [default: 31]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) reps: Option<u32>,

    /// Milliseconds of untimed replays before, so that the clocks are up [default: 200]
    #[arg(long, value_name = "MS")]
    pub(crate) warm_up: Option<u64>,

    /// Rotate tensors through more than twice the L2 cache, so that every launch finds it cold
    #[arg(long)]
    pub(crate) cold: bool,

    /// Have the kernels write LSE too, as the forward pass of a training library does
    #[arg(long)]
    pub(crate) lse: bool,

    /// The backward pass instead of the forward pass: all of its launches together, counted as 10·B·HQ·SQ·SKV·D
    #[arg(long, conflicts_with_all = ["PlanArgs", "PredictArgs", "RegretArgs", "baseline", "lse", "l2"])]
    pub(crate) backward: bool,

    #[command(flatten)]
    pub(crate) of_backward: BackwardArgs,

    /// The gradient of the bias too, a launch more
    #[arg(long, requires_all = ["backward", "bias"])]
    pub(crate) bias_gradient: bool,

    /// Take turns with the program that reads the output, so that it can time others between the replays: before each replay, and when
    /// a problem is done, write `turn DONE of REPS: PROBLEM` and wait for a line on standard input
    #[arg(long)]
    pub(crate) turns: bool,

    /// Write device, method and results to a file too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Put the time of every replay into that file
    #[arg(long, requires = "json")]
    pub(crate) replays: bool,

    /// Replace that file where it exists
    #[arg(long)]
    pub(crate) force: bool,

    /// What runs the kernels
    #[arg(long, value_enum, default_value_t = DeviceName::Cuda)]
    pub(crate) device: DeviceName,

    /// Folder of compiled kernels, as `cargo xtask build-ptx` writes it [default: searched for]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) ptx: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) regret: RegretArgs,

    /// Measure the kernels of this folder too, in turns with the others: those of an earlier build, for instance. What --rows and the
    /// planner's options say is asked of each folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) baseline: Option<PathBuf>,

    /// The device that the simulator stands for
    #[arg(long, value_name = "MODEL", value_parser = parse_model, default_value = "l4")]
    pub(crate) device_model: &'static DeviceModel,

    /// Number of the GPU, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) ordinal: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The GPU: device time
    Cuda,
    /// The simulator: instructions, wavefronts and bytes, exact on any machine; no time but a predicted one
    Sim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum L2Name {
    Default,
    Persist,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MaskName {
    Full,
    Causal,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DtypeName {
    F16,
    Bf16,
}

impl Args {
    /// An option that is given and is about times.
    pub(crate) fn about_times(&self) -> Option<&'static str> {
        [
            ("--baseline", self.baseline.is_some()),
            ("--cold", self.cold),
            ("--devices", !self.devices.devices.is_empty()),
            ("--l2", self.l2 == L2Name::Persist),
            ("--regret", self.regret.regret),
            ("--replays", self.replays),
            ("--reps", self.reps.is_some()),
            ("--turns", self.turns),
            ("--warm-up", self.warm_up.is_some()),
        ]
        .into_iter()
        .find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// Every shape with every dtype and mask asked for, in this order; refuses what no kernel could compute before anything runs.
    pub(crate) fn workloads(&self) -> Result<Vec<Workload>, Failure> {
        let usual = USUAL_SHAPES.map(|[batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim]| Sizes {
            batch,
            heads_q,
            heads_kv,
            seqlen_q,
            seqlen_k,
            head_dim,
        });
        // The simulator takes seconds where a GPU takes microseconds.
        let usual = if self.device == DeviceName::Sim { &usual[..2] } else { &usual[..] };
        let shapes = if self.shape.is_empty() { usual } else { &self.shape };
        let masks: &[bool] = match self.mask {
            MaskName::Full if !self.causal => &[false],
            MaskName::Full | MaskName::Causal => &[true],
            MaskName::Both => &[false, true],
        };
        let mut workloads = Vec::new();
        for sizes in shapes {
            for dtype in &self.dtype {
                let dtype = match dtype {
                    DtypeName::F16 => Dtype::F16,
                    DtypeName::Bf16 => Dtype::Bf16,
                };
                let problem = Problem::new(*sizes, dtype)
                    .map_err(|source| Failure::Argument { option: "--shape", source })?;
                for &causal in masks {
                    let problem = problem.with_causal(causal).with_lengths(self.lengths);
                    workloads.push(self.ragged.workload(problem)?);
                }
            }
        }
        Ok(workloads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &[&str]) -> Args {
        let words = std::iter::once("bench").chain(words.iter().copied());
        Command::try_parse_from(words).map(|command| command.args).expect("parses")
    }

    fn problems(args: &Args) -> Vec<Problem> {
        args.workloads().expect("valid").iter().map(|workload| *workload.problem()).collect()
    }

    #[test]
    fn options_about_times_are_known_where_they_are_given() {
        assert_eq!(parsed(&["--lse", "--lengths", "--l2", "default"]).about_times(), None);
        for (words, option) in [
            (&["--reps", "31"][..], "--reps"),
            (&["--l2", "persist"], "--l2"),
            (&["--json", "file", "--replays"], "--replays"),
            (&["--cold"], "--cold"),
            (&["--turns"], "--turns"),
        ] {
            assert_eq!(parsed(words).about_times(), Some(option));
        }
    }

    #[test]
    fn shapes_dtypes_and_masks_multiply() {
        let args =
            parsed(&["--shape", "1,2,1,3,4,64", "5,2,2,6,7,32", "--dtype", "f16,bf16", "--mask", "both"]);
        let problems = problems(&args);
        assert_eq!(problems.len(), 2 * 2 * 2);
        assert_eq!(
            (problems[0].causal(), problems[1].causal(), problems[2].dtype()),
            (false, true, Dtype::Bf16)
        );
        assert_eq!(problems[4].sizes().batch, 5);
    }

    #[test]
    fn causal_is_a_mask_and_the_usual_shapes_are_valid() {
        let causal = problems(&parsed(&["--causal"]));
        assert_eq!(causal.len(), USUAL_SHAPES.len());
        assert!(causal.iter().all(Problem::causal));
        assert!(!problems(&parsed(&[]))[0].causal());
    }

    #[test]
    fn a_shape_that_no_kernel_computes_is_misuse() {
        let failure = parsed(&["--shape", "1,3,2,1,1,64"]).workloads().expect_err("3 is no multiple of 2");
        assert_eq!(failure.to_string(), "--shape: heads_q 3 is not a multiple of heads_kv 2");
        assert_eq!(failure.exit_code(), crate::failure::EXIT_MISUSE);
    }

    #[test]
    fn the_examples_name_kernels_of_the_table() {
        let names = EXAMPLES.split([' ', ',', '\n']).filter(|word| word.starts_with("fwd_"));
        let in_table = |name: &str| kernels_gpu::table::VARIANTS.iter().any(|variant| variant.entry == name);
        assert_eq!(names.filter(|name| in_table(name)).count(), 2);
    }

    #[test]
    fn replays_are_for_the_file() {
        let words = ["bench", "--replays"];
        assert!(Command::try_parse_from(words).is_err(), "without --json there is nowhere to put them");
        let args = parsed(&["--replays", "--lse", "--json", "out.json"]);
        assert!(args.replays && args.lse);
    }

    #[test]
    fn a_window_is_a_mask_of_its_own() {
        let words = ["bench", "--mask", "both", "--window", "9,0"];
        assert!(Command::try_parse_from(words).is_err(), "one problem would be measured twice");
        assert_eq!(problems(&parsed(&["--window", "9,0", "--shape", "1,2,2,9,9,64"])).len(), 1);
    }

    #[test]
    fn rows_are_a_list() {
        let rows = parsed(&["--rows", "best,fwd_x"]).rows;
        assert_eq!(rows, [RowSelection::Best, RowSelection::Named("fwd_x".to_owned())]);
    }
}
