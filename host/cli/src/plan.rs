//! `ferroflash plan`: how a problem would be computed on a device, and why so. Needs no GPU.

use crate::backward_args::{BackwardArgs, parse_bytes};
use crate::bench_report::title;
use crate::device::parse_model;
use crate::devices_args::DevicesArgs;
use crate::failure::Failure;
use crate::output;
use crate::plan_args::PlanArgs;
use crate::plan_backward;
use crate::plan_devices;
use crate::predict_args::{self, PredictArgs};
use crate::ragged_args::RaggedArgs;
use crate::shape;
use check::predict::{Predicted, Predictor};
use check::workload::Workload;
use clap::ValueEnum;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::{Device, DeviceInfo};
use ferroflash::module::Library;
use ferroflash::{
    DeviceModel, Dtype, Error, L2Policy, Plan, Planner, Problem, Profile, Reason, RowSelection, Schedule,
    Sizes,
};
use kernels_gpu::geometry;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "Examples:
  # decoding with 4 query heads a KV head, on another device than this one
  ferroflash plan --shape 8,32,8,1,8192,128 --device-model h200

  # what other numbers of splits would make of it
  ferroflash plan --shape 1,8,1,128,32768,128 --device-model l4 --splits auto,1,4,16,64

  # is the device filled, with 4 CTAs an SM? and with kernels of at most 48 KB of shared memory
  ferroflash plan --shape 1,8,8,512,512,64 --device-model l4 --ctas-per-sm 4
  ferroflash plan --shape 1,8,8,512,512,64 --device-model l4 --smem-max 48K

  # results that do not depend on the batch a sequence came in
  ferroflash plan --shape 64,32,8,1,4096,128 --lengths --split-size 1024 --json

  # a step of a server: three prompts and a chunk in one batch, keys in pages of 16, a window of 1024 tokens
  ferroflash plan --shape 4,32,8,512,8192,128 --seqlens-q 512,37,1,1 --seqlens-k 8192,37,900,4001 --page 16 --window 1023,0

  # a prompt of a million tokens over several devices: bytes, memory and times on paper
  ferroflash plan --shape 1,32,8,1048576,1048576,128 --causal --dtype bf16 --device-model h200 --devices 8,16,32,64

  # the backward pass: its launches and its workspace
  ferroflash plan --shape 4,16,16,4096,4096,128 --causal --backward
  ferroflash plan --shape 4,16,16,4096,4096,128 --causal --backward --device-model h200 --ds-max 512M

  # a predicted time, with the error that such predictions have
  ferroflash plan --shape 2,8,8,512,512,64 --device-model l4 --predict

The bound follows from the device's data sheet: nothing can be faster. It is no prediction; with --predict there is one.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Batch, query heads, KV heads, queries, keys, head_dim; may be given several times
    #[arg(long, required = true, value_name = "B,HQ,HKV,SQ,SKV,D", value_parser = shape::parse, num_args = 1..)]
    shape: Vec<Sizes>,

    /// Causal mask, aligned bottom-right
    #[arg(long)]
    causal: bool,

    /// Sequences have lengths of their own, which lie on the device
    #[arg(long)]
    lengths: bool,

    /// Element type
    #[arg(long, value_enum, default_value_t = DtypeName::F16)]
    dtype: DtypeName,

    /// The backward pass instead of the forward pass
    #[arg(long, conflicts_with_all = ["PlanArgs", "PredictArgs", "ctas_per_sm"])]
    backward: bool,

    #[command(flatten)]
    of_backward: BackwardArgs,

    /// Kernels: best, all, or one by name
    #[arg(long, value_name = "best|all|NAME", default_value = "best")]
    rows: RowSelection,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    ragged: RaggedArgs,

    #[command(flatten)]
    predict: PredictArgs,

    #[command(flatten)]
    devices: DevicesArgs,

    /// The device: a model by name [default: the GPU, where there is one; else l4]
    #[arg(long, value_name = "MODEL", value_parser = parse_model)]
    device_model: Option<&'static DeviceModel>,

    /// Shared memory that a CTA may have at most, as in 48K
    #[arg(long, value_name = "BYTES", value_parser = parse_smem_bytes)]
    smem_max: Option<u32>,

    /// Fail where a plan has fewer CTAs a multiprocessor than this while the work allows more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    ctas_per_sm: Option<u32>,

    /// Folder of compiled kernels [default: searched for; where there is none, the table's rows with estimated registers]
    #[arg(long, value_name = "FOLDER")]
    ptx: Option<PathBuf>,

    /// One line of JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DtypeName {
    F16,
    Bf16,
}

/// A device to plan for, and its data sheet where that is known.
struct Target {
    planner: Planner,
    model: Option<&'static DeviceModel>,
    predictor: Option<Predictor>,
}

/// A plan and what is said of it.
struct Planned<'a> {
    plan: &'a Plan,
    workload: &'a Workload,
    reasons: &'a [Reason],
    target: &'a Target,
    /// CTAs a multiprocessor that are wanted.
    goal: u32,
    predicted: Option<Predicted>,
}

/// CTAs a multiprocessor that fill it, where nobody says otherwise.
const CTAS_PER_SM: u32 = 4;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let dtype = match args.dtype {
        DtypeName::F16 => Dtype::F16,
        DtypeName::Bf16 => Dtype::Bf16,
    };
    let refused = |source| Failure::Argument { option: "--shape", source };
    let workload = |sizes: &Sizes| {
        let problem = Problem::new(*sizes, dtype).map_err(refused)?;
        args.ragged.workload(problem.with_causal(args.causal).with_lengths(args.lengths))
    };
    let workloads: Vec<Workload> = args.shape.iter().map(workload).collect::<Result<_, Failure>>()?;
    let target = target(args)?;
    if !args.devices.devices.is_empty() {
        let problems = workloads.iter().map(|workload| *workload.problem()).collect::<Vec<_>>();
        return plan_devices::run(&args.devices, &target.planner, &problems, args.json);
    }
    if args.backward {
        let kernels = (args.ptx.as_deref(), &args.rows);
        let passes = (&workloads[..], args.of_backward);
        return plan_backward::run(passes, target.planner.device(), kernels, args.json);
    }
    let mut values = Vec::new();
    let mut under_filled = None;
    for workload in &workloads {
        let problem = workload.problem();
        let mut plans = Vec::new();
        for options in args.plan.options(&args.rows) {
            if options.rows == RowSelection::All {
                // Nothing was chosen, so there is nothing to explain.
                plans.extend(
                    target.planner.plans(problem, &options)?.into_iter().map(|plan| (plan, Vec::new())),
                );
            } else {
                plans.push(target.planner.explain(problem, &options)?);
            }
        }
        if !args.json {
            output::print(&heading(problem, target.planner.device()));
        }
        for (plan, reasons) in &plans {
            let goal = args.ctas_per_sm.unwrap_or(CTAS_PER_SM);
            let predicted = target.predictor.as_ref().map(|predictor| predictor.predict(plan)).transpose()?;
            let planned = Planned { plan, workload, reasons, target: &target, goal, predicted };
            let (has, wanted) = (plan.grid(), planned.wanted());
            if args.ctas_per_sm.is_some() && has < wanted {
                under_filled.get_or_insert(Failure::UnderFilled { has, wanted, problem: title(problem) });
            }
            if args.json {
                values.push(planned.to_json());
            } else {
                planned.lines().iter().for_each(|line| output::print(line));
            }
        }
    }
    if args.json {
        output::print_json(&values.into());
    }
    under_filled.map_or(Ok(()), Err)
}

/// A number of bytes that shared memory may have.
fn parse_smem_bytes(text: &str) -> Result<u32, String> {
    let bytes = u32::try_from(parse_bytes(text)?).ok();
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("{text} is no number of bytes such as 49152 or 48K"))
}

fn target(args: &Args) -> Result<Target, Failure> {
    let opened = || CudaDevice::open(0, L2Policy::Default).ok().map(|device| device.info().clone());
    let (mut info, model) = match args.device_model {
        Some(model) => (model.info(), Some(model)),
        None => match opened() {
            Some(info) => {
                let model = DeviceModel::of_device(&info.name);
                (info, model)
            }
            None => (DeviceModel::L4.info(), Some(DeviceModel::L4)),
        },
    };
    info.smem_opt_in_bytes = info.smem_opt_in_bytes.min(args.smem_max.unwrap_or(u32::MAX));
    let library = || Ok(Arc::new(Library::find(args.ptx.as_deref())?));
    let predictor = args.predict.predictor(library, model)?;
    let planner = match Library::find(args.ptx.as_deref()) {
        Ok(library) => Planner::with_profile(&library, &info, Profile::find(&info)?),
        Err(Error::NoKernels { .. }) if args.ptx.is_none() => {
            output::say("no compiled kernels: planned with the table's rows and estimated registers");
            Planner::of_table(&info)
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Target { planner, model, predictor })
}

fn heading(problem: &Problem, device: &DeviceInfo) -> String {
    format!("{} on {} (sm_{}, {} SMs)", title(problem), device.name, device.sm, device.sm_count)
}

impl Planned<'_> {
    fn device(&self) -> &DeviceInfo {
        self.target.planner.device()
    }

    /// CTAs that the device holds at a time.
    fn capacity(&self) -> u32 {
        self.device().sm_count * self.plan.resident_ctas()
    }

    /// CTAs that are wanted: as many as the goal says, or as there are pieces of 16 query rows by 64 keys. Persistent CTAs are as many as
    /// the device holds.
    fn wanted(&self) -> u32 {
        let sizes = self.plan.problem().sizes();
        let rows = u64::from(sizes.heads_q) * u64::from(sizes.seqlen_q);
        let pieces = u64::from(sizes.batch) * rows.div_ceil(16) * u64::from(sizes.seqlen_k.div_ceil(64));
        let of_goal = self.goal.saturating_mul(self.device().sm_count);
        let held = if self.plan.schedule() == Schedule::Persistent { self.capacity() } else { u32::MAX };
        pieces.min(u64::from(of_goal.min(held))) as u32
    }

    /// Waves of CTAs, or of the tiles that persistent CTAs take.
    fn waves(&self) -> f64 {
        let pieces = f64::from(self.plan.tiles()) * f64::from(self.plan.splits());
        pieces / f64::from(self.capacity())
    }

    fn ctas_per_sm(&self) -> f64 {
        f64::from(self.plan.grid()) / f64::from(self.device().sm_count)
    }

    /// The work with all keys that K and V hold, where the sequences' lengths are on the device.
    fn work(&self) -> (f64, u64) {
        let full;
        let workload = match self.plan.problem() {
            problem if problem.has_lengths() && !problem.is_ragged() => {
                full = Workload::of(&problem.with_lengths(false));
                &full
            }
            _ => self.workload,
        };
        (workload.flops(), workload.bytes_moved())
    }

    /// Microseconds below which nothing can be by memory and by tensor cores; `None` where there is no data sheet.
    fn bounds_us(&self) -> Option<(f64, f64)> {
        let ((flops, bytes), model) = (self.work(), self.target.model?);
        let memory_us = bytes as f64 / f64::from(model.bandwidth_gb_s) * 1e-3;
        let tensor_us = flops / f64::from(model.tensor_tflops) * 1e-6;
        Some((memory_us, tensor_us))
    }

    fn lines(&self) -> Vec<String> {
        let (plan, kernel) = (self.plan, self.plan.kernel());
        let splits = match plan.splits() {
            1 => String::new(),
            splits => format!(" × {splits} splits of {} keys", plan.split_keys()),
        };
        let mut lines = vec![
            format!("  kernel      {}, schedule {}", kernel.entry, plan.schedule().name()),
            format!(
                "  grid        {} CTAs of {} threads and {} bytes of shared memory: {} tiles{splits}",
                plan.grid(),
                kernel.threads,
                kernel.smem_bytes,
                plan.tiles()
            ),
            format!(
                "  CTAs an SM  {:.2}; an SM holds {} at a time, the device {}",
                self.ctas_per_sm(),
                plan.resident_ctas(),
                self.capacity()
            ),
            match self.wanted() {
                wanted if plan.grid() < wanted => format!(
                    "  goal        {wanted} CTAs for {} an SM or all that the work allows: {} fewer, as that is estimated to be faster",
                    self.goal,
                    wanted - plan.grid()
                ),
                wanted => format!(
                    "  goal        {wanted} CTAs for {} an SM or all that the work allows: met",
                    self.goal
                ),
            },
            format!("  waves       {:.2}, filled to {:.0} %", self.waves(), self.efficiency() * 100.0),
        ];
        if let Some(combine) = plan.combine() {
            let threads = geometry::COMBINE_THREADS;
            lines.push(format!(
                "  combine     {}, {} CTAs of {threads} threads",
                combine.entry,
                plan.combine_grid()
            ));
        }
        if plan.is_fused() {
            lines.push("  combine     in the same launch".to_owned());
        }
        let (flops, bytes) = self.work();
        let has_given = plan.problem().is_ragged();
        let lengths =
            if plan.problem().has_lengths() && !has_given { ", if every sequence is full" } else { "" };
        lines.push(format!("  workspace   {} bytes", plan.workspace_bytes()));
        lines.push(format!(
            "  work        {:.3} GFLOP, {:.3} MB of Q, K, V and O{lengths}",
            flops * 1e-9,
            bytes as f64 * 1e-6
        ));
        if let (Some((memory_us, tensor_us)), Some(model)) = (self.bounds_us(), self.target.model) {
            lines.push(format!(
                "  bound       {:.2} µs: {memory_us:.2} by memory at {} GB/s, {tensor_us:.2} by tensor cores at {} TFLOP/s (data sheet; no prediction)",
                memory_us.max(tensor_us),
                model.bandwidth_gb_s,
                model.tensor_tflops
            ));
        }
        lines.extend(self.predicted.iter().map(|predicted| format!("  predicted   {predicted}")));
        lines.extend(self.reasons.iter().map(|reason| format!("  because     {reason}")));
        lines
    }

    fn efficiency(&self) -> f64 {
        self.waves() / self.waves().ceil()
    }

    fn to_json(&self) -> Value {
        let (plan, problem) = (self.plan, self.plan.problem());
        let bounds = self.bounds_us();
        let reasons: Vec<Value> = self
            .reasons
            .iter()
            .map(|reason| json!({ "text": reason.to_string(), "values": reason }))
            .collect();
        json!({
            "problem": crate::input::to_json(problem),
            "device": { "name": self.device().name, "sm": self.device().sm, "sm_count": self.device().sm_count },
            "kernel": plan.kernel().entry,
            "schedule": plan.schedule().name(),
            "ctas": plan.grid(),
            "threads": plan.kernel().threads,
            "smem_bytes": plan.kernel().smem_bytes,
            "tiles": plan.tiles(),
            "splits": plan.splits(),
            "split_keys": if plan.splits() > 1 { Some(plan.split_keys()) } else { None },
            "ctas_per_sm": self.ctas_per_sm(),
            "ctas_wanted": self.wanted(),
            "resident_ctas_per_sm": plan.resident_ctas(),
            "resident_ctas": self.capacity(),
            "waves": self.waves(),
            "wave_efficiency": self.efficiency(),
            "combine": plan.combine().map(|combine| json!({ "kernel": combine.entry, "ctas": plan.combine_grid() })),
            "is_fused": plan.is_fused(),
            "workspace_bytes": plan.workspace_bytes(),
            "flops": self.work().0,
            "bytes": self.work().1,
            "bound_us": bounds.map(|(memory, tensor)| json!({ "memory": memory, "tensor": tensor })),
            "predicted": self.predicted.as_ref().map(predict_args::to_json),
            "reasons": reasons,
        })
    }
}
