//! `ferroflash plan`: how a problem would be computed on a device, and why so. Needs no GPU.

use crate::bench_report::title;
use crate::device::parse_model;
use crate::failure::Failure;
use crate::output;
use crate::plan_args::PlanArgs;
use crate::predict_args::{self, PredictArgs};
use crate::shape;
use check::measure;
use check::predict::{Predicted, Predictor};
use clap::ValueEnum;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::{Device, DeviceInfo};
use ferroflash::module::Library;
use ferroflash::{
    DeviceModel, Dtype, Error, L2Policy, Plan, Planner, Problem, Profile, Reason, RowSelection, Sizes,
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

  # results that do not depend on the batch a sequence came in
  ferroflash plan --shape 64,32,8,1,4096,128 --lengths --split-size 1024 --json

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

    /// Kernels: best, all, or one by name
    #[arg(long, value_name = "best|all|NAME", default_value = "best")]
    rows: RowSelection,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    predict: PredictArgs,

    /// The device: a model by name [default: the GPU, where there is one; else l4]
    #[arg(long, value_name = "MODEL", value_parser = parse_model)]
    device_model: Option<&'static DeviceModel>,

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
    reasons: &'a [Reason],
    target: &'a Target,
    predicted: Option<Predicted>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let dtype = match args.dtype {
        DtypeName::F16 => Dtype::F16,
        DtypeName::Bf16 => Dtype::Bf16,
    };
    let refused = |source| Failure::Argument { option: "--shape", source };
    let problem = |sizes: &Sizes| {
        let problem = Problem::new(*sizes, dtype)?;
        Ok(problem.with_causal(args.causal).with_lengths(args.lengths))
    };
    let problems: Vec<Problem> =
        args.shape.iter().map(problem).collect::<Result<_, Error>>().map_err(refused)?;
    let target = target(args)?;
    let mut values = Vec::new();
    for problem in &problems {
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
            let predicted = target.predictor.as_ref().map(|predictor| predictor.predict(plan)).transpose()?;
            let planned = Planned { plan, reasons, target: &target, predicted };
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
    Ok(())
}

fn target(args: &Args) -> Result<Target, Failure> {
    let opened = || CudaDevice::open(0, L2Policy::Default).ok().map(|device| device.info().clone());
    let (info, model) = match args.device_model {
        Some(model) => (model.info(), Some(model)),
        None => match opened() {
            Some(info) => {
                let model = DeviceModel::of_device(&info.name);
                (info, model)
            }
            None => (DeviceModel::L4.info(), Some(DeviceModel::L4)),
        },
    };
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

    /// Waves of CTAs, or of the tiles that persistent CTAs take.
    fn waves(&self) -> f64 {
        let pieces = f64::from(self.plan.tiles()) * f64::from(self.plan.splits());
        pieces / f64::from(self.capacity())
    }

    fn ctas_per_sm(&self) -> f64 {
        f64::from(self.plan.grid()) / f64::from(self.device().sm_count)
    }

    /// The problem with all keys that its K and V hold: lengths are on the device.
    fn full_problem(&self) -> Problem {
        self.plan.problem().with_lengths(false)
    }

    /// Microseconds below which nothing can be by memory and by tensor cores; `None` where there is no data sheet.
    fn bounds_us(&self) -> Option<(f64, f64)> {
        let (problem, model) = (self.full_problem(), self.target.model?);
        let memory_us = measure::bytes_moved(&problem) as f64 / f64::from(model.bandwidth_gb_s) * 1e-3;
        let tensor_us = measure::flops(&problem) / f64::from(model.tensor_tflops) * 1e-6;
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
        let problem = self.full_problem();
        let lengths = if plan.problem().has_lengths() { ", if every sequence is full" } else { "" };
        lines.push(format!("  workspace   {} bytes", plan.workspace_bytes()));
        lines.push(format!(
            "  work        {:.3} GFLOP, {:.3} MB of Q, K, V and O{lengths}",
            measure::flops(&problem) * 1e-9,
            measure::bytes_moved(&problem) as f64 * 1e-6
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
            "resident_ctas_per_sm": plan.resident_ctas(),
            "resident_ctas": self.capacity(),
            "waves": self.waves(),
            "wave_efficiency": self.efficiency(),
            "combine": plan.combine().map(|combine| json!({ "kernel": combine.entry, "ctas": plan.combine_grid() })),
            "is_fused": plan.is_fused(),
            "workspace_bytes": plan.workspace_bytes(),
            "flops": measure::flops(&self.full_problem()),
            "bytes": measure::bytes_moved(&self.full_problem()),
            "bound_us": bounds.map(|(memory, tensor)| json!({ "memory": memory, "tensor": tensor })),
            "predicted": self.predicted.as_ref().map(predict_args::to_json),
            "reasons": reasons,
        })
    }
}
