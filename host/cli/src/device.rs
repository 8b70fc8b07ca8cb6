//! `--device`: what computes.

use crate::failure::Failure;
use crate::memory;
use crate::output::{self, Progress};
use check::reference::reference_of;
use clap::ValueEnum;
use ferroflash::device::model::MODELS;
use ferroflash::{
    Attention, CudaOptions, DeviceModel, Error, HostTensors, Output, PlanOptions, Problem, SimOptions,
};
use ptx_sim::Schedule;
use std::path::PathBuf;
use std::sync::Arc;

/// Where to compute.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// What computes: auto takes the GPU where there is one, and says what it took
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    device: Choice,

    /// Folder of compiled kernels, as `cargo xtask build-ptx` writes it [default: searched for]
    #[arg(long, value_name = "FOLDER")]
    ptx: Option<PathBuf>,

    /// Number of the GPU, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    ordinal: u32,

    /// The device that the simulator stands for: its SMs decide about splits, its shared memory which kernels run
    #[arg(long, value_name = "MODEL", value_parser = parse_model, default_value = "l4")]
    device_model: &'static DeviceModel,

    /// Seed that shakes the simulator's schedule: order of warps, landing of asynchronous copies
    #[arg(long, value_name = "SEED")]
    schedule_seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// The GPU where there is one, else the simulator, else (without compiled kernels) the CPU
    Auto,
    /// The GPU, or an error
    Cuda,
    /// The kernels' PTX on the CPU, every access checked; slow, for problems of some hundred rows
    Sim,
    /// The float64 reference, rounded to the dtype
    Cpu,
}

/// A model that is not in the list.
#[derive(Debug, thiserror::Error)]
#[error("no model {name:?}: there are {}", MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", "))]
pub(crate) struct UnknownModel {
    name: String,
}

/// The model of a name.
pub(crate) fn parse_model(name: &str) -> Result<&'static DeviceModel, UnknownModel> {
    DeviceModel::find(name).ok_or_else(|| UnknownModel { name: name.to_owned() })
}

/// What was opened.
pub(crate) enum Engine {
    /// Kernels on a device.
    Kernels(Box<Attention>),
    /// The float64 reference.
    Reference,
}

impl DeviceArgs {
    /// The simulator of the model that the options name.
    fn simulator(&self) -> Result<Attention, Error> {
        self.simulator_of(self.device_model)
    }

    /// The simulator standing for the device that `attention` is on, where its model is known: it must hold the same kernels.
    pub(crate) fn simulator_like(&self, attention: &Attention) -> Result<Attention, Error> {
        self.simulator_of(DeviceModel::of_device(attention.device_name()).unwrap_or(self.device_model))
    }

    fn simulator_of(&self, model: &'static DeviceModel) -> Result<Attention, Error> {
        let schedule = self.schedule_seed.map_or(Schedule::Deterministic, Schedule::Seeded);
        Attention::simulator(
            self.ptx.as_deref(),
            SimOptions::default().with_model(model).with_schedule(schedule),
        )
    }

    /// What computes for each of `count` ranks: a simulator each, or one GPU for all. Says on stderr which it is.
    pub(crate) fn open_ranks(&self, count: u32) -> Result<Vec<Arc<Attention>>, Failure> {
        match self.open()? {
            Engine::Reference => Err(Failure::NoRows { option: "devices", device: Engine::Reference.name() }),
            Engine::Kernels(attention) if attention.device_name().starts_with("simulator") => {
                let more = (1..count).map(|_| self.simulator().map(Arc::new));
                Ok(std::iter::once(Ok(Arc::new(*attention))).chain(more).collect::<Result<_, Error>>()?)
            }
            Engine::Kernels(attention) => {
                Ok(std::iter::repeat_n(Arc::new(*attention), count as usize).collect())
            }
        }
    }

    /// The GPU that the options name, and the folder of its kernels.
    pub(crate) fn cuda_options(&self) -> CudaOptions {
        CudaOptions::default().with_ptx(self.ptx.clone()).with_ordinal(self.ordinal)
    }

    /// Opens the device and says on stderr which it is.
    pub(crate) fn open(&self) -> Result<Engine, Error> {
        let cuda =
            || Attention::cuda(&self.cuda_options()).map(|attention| Engine::Kernels(Box::new(attention)));
        let sim = || self.simulator().map(|attention| Engine::Kernels(Box::new(attention)));
        let without_gpu = |because: String| match sim() {
            Ok(engine) => Ok((engine, because)),
            // Kernels that were asked for by folder must be there.
            Err(error @ Error::NoKernels { .. }) if self.ptx.is_none() => {
                Ok((Engine::Reference, format!("{because}; {error}")))
            }
            Err(error) => Err(error),
        };
        let (engine, because) = match self.device {
            Choice::Cuda => (cuda()?, String::new()),
            Choice::Sim => (sim()?, String::new()),
            Choice::Cpu => (Engine::Reference, String::new()),
            Choice::Auto => match cuda() {
                Ok(engine) => (engine, String::new()),
                Err(Error::NoDriver { searched, reason }) => {
                    without_gpu(format!(", as there is no CUDA driver: {reason} (searched {searched})"))?
                }
                Err(error @ Error::UnsupportedDevice { .. }) => without_gpu(format!(": {error}"))?,
                Err(error) => return Err(error),
            },
        };
        output::say(&format!("device: {}{because}", engine.name()));
        Ok(engine)
    }
}

impl Engine {
    /// What computes, in words.
    pub(crate) fn name(&self) -> String {
        match self {
            Engine::Kernels(attention) => attention.device_name().to_owned(),
            Engine::Reference => "CPU (float64 reference)".to_owned(),
        }
    }

    /// O and LSE of one problem.
    pub(crate) fn forward(
        &self,
        problem: &Problem,
        options: &PlanOptions,
        tensors: &HostTensors<'_>,
        want_lse: bool,
    ) -> Result<Output, Error> {
        match self {
            Engine::Kernels(attention) => {
                let plan = attention.planner().plan(problem, options)?;
                attention.forward_with(&plan, tensors, want_lse)
            }
            Engine::Reference => {
                memory::check(problem)?;
                if let Some(seqlens_k) = tensors.seqlens_k {
                    problem.check_lengths(seqlens_k)?;
                }
                let progress = Progress::new("attention on the CPU");
                let reference = reference_of(problem, tensors, &|done, total| progress.set(done, total));
                let output = reference.rounded(problem.dtype());
                Ok(if want_lse { output } else { Output::new(output.o, None) })
            }
        }
    }
}
