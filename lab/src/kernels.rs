//! The one place where compiled kernels become plans, launches and figures: everything that the host's API is needed for.

mod code;
mod count;
mod narrowed;
mod ragged;
mod statements;
mod times;

pub use code::{LaunchCode, Reach, ptx_hash};
pub use count::{Counted, count, count_unjudged, special_cased};
pub use ragged::examine_ragged;
use statements::statements;
pub use times::{Times, open_bench, time, time_briefly, time_fresh, wall_us};

use crate::config::{self, DeviceKind};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::exam::before::{nan_words, number_words};
use crate::exam::question::Placement;
use crate::exam::{Before, Question};
use crate::inputs::Inputs;
use crate::subject::{SETS, Subject};
use check::verification::{Bands, GuardedTensors};
use ferroflash::attention::Output;
use ferroflash::device::cuda::CudaDevice;
use ferroflash::device::sim::SimDevice;
use ferroflash::device::{Device, nvml::Nvml};
use ferroflash::module::Library;
use ferroflash::{Attention, DeviceModel, L2Policy, SimOptions};
use kernels_gpu::manifest::{Kernel, Resources};
use kernels_gpu::row::Isa;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// A compiled kernel: the folder that holds it, and its entry's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRef {
    /// The folder, as `cargo xtask build-ptx` writes it.
    pub folder: PathBuf,
    /// The entry.
    pub entry: String,
}

/// What runs the kernels, once it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The simulator, not a GPU.
    pub simulated: bool,
    /// The GPU's number.
    pub ordinal: u32,
    /// `NVIDIA L4`, or what the simulator calls itself.
    pub name: String,
    /// Compute capability, 89 for 8.9.
    pub sm: u32,
    /// Multiprocessors.
    pub sm_count: u32,
    /// Shared memory that a CTA can opt in to, in bytes.
    pub smem_opt_in_bytes: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// The highest SM clock in MHz, where NVML tells.
    pub clock_max_mhz: Option<u32>,
    /// The driver's version, where NVML tells.
    pub driver: Option<String>,
}

impl Machine {
    /// The machine that the configuration asks for; the simulator for `auto` where there is no GPU.
    ///
    /// # Errors
    /// [`Error::Host`] where a GPU is asked for and there is none.
    pub fn find(device: &config::Device) -> Result<Machine> {
        let machine = match device.kind {
            DeviceKind::Sim => Machine::simulator(),
            DeviceKind::Cuda => Machine::cuda(device.ordinal)?,
            DeviceKind::Auto => Machine::cuda(device.ordinal).unwrap_or_else(|_| Machine::simulator()),
        };
        Ok(machine.limited(device))
    }

    /// The same with no more shared memory than the configuration allows.
    pub fn limited(mut self, device: &config::Device) -> Machine {
        self.smem_opt_in_bytes = self.smem_opt_in_bytes.min(device.smem_max.unwrap_or(u32::MAX));
        self
    }

    /// What a kernel with such instructions runs on: the machine itself, and for the simulator what it stands for then.
    pub fn running(&self, isa: Isa) -> Machine {
        if self.simulated { Machine::simulating(isa) } else { self.clone() }
    }

    /// The simulator.
    pub fn simulator() -> Machine {
        Machine::of(SimDevice::new(SimOptions::default()).info(), true, 0)
    }

    /// What the simulator stands for where it runs a kernel with such instructions: the smallest device that does.
    pub fn simulating(isa: Isa) -> Machine {
        Machine::of(SimDevice::new(SimOptions::default().with_model(model(isa))).info(), true, 0)
    }

    /// The names of the devices whose figures it gives: the simulator stands for one of each kind of instructions.
    pub fn stands_for(&self) -> Vec<String> {
        match self.simulated {
            true => [Isa::Mma, Isa::Wgmma].map(|isa| Machine::simulating(isa).name).into(),
            false => vec![self.name.clone()],
        }
    }

    fn cuda(ordinal: u32) -> Result<Machine> {
        let device = CudaDevice::open(ordinal, L2Policy::default())?;
        let mut machine = Machine::of(device.info(), false, ordinal);
        let reading = Nvml::open(device.pci_bus_id()).map(|nvml| nvml.read()).unwrap_or_default();
        machine.clock_max_mhz = reading.sm_clock_max_mhz;
        machine.driver = reading.driver;
        Ok(machine)
    }

    fn of(info: &ferroflash::device::DeviceInfo, simulated: bool, ordinal: u32) -> Machine {
        Machine {
            simulated,
            ordinal,
            name: info.name.clone(),
            sm: info.sm,
            sm_count: info.sm_count,
            smem_opt_in_bytes: info.smem_opt_in_bytes,
            l2_bytes: info.l2_bytes,
            clock_max_mhz: None,
            driver: None,
        }
    }

    /// The architecture whose ptxas figures hold here, `sm_89`.
    pub fn arch(&self) -> String {
        format!("sm_{}", self.sm)
    }

    /// What ptxas reports of a kernel on this machine.
    pub fn resources(&self, kernel: &Kernel) -> Option<Resources> {
        let found = match kernel.row.isa {
            Isa::Mma => kernel.resources.get(&self.arch()),
            Isa::Wgmma => kernel.resources.get(Isa::Wgmma.arch()),
        };
        found.copied()
    }
}

/// One kernel of a folder.
///
/// # Errors
/// [`Error::Host`] where the folder holds no kernels, [`Error::NoSuchRow`] where none has this name.
pub fn find(kernel: &KernelRef) -> Result<(Arc<Library>, Arc<Kernel>)> {
    let library = Library::open(&kernel.folder)?;
    let found = find_in(&library, &kernel.entry)?;
    Ok((Arc::new(library), found))
}

/// One kernel of an open folder.
///
/// # Errors
/// [`Error::NoSuchRow`] where none has this name.
pub fn find_in(library: &Library, entry: &str) -> Result<Arc<Kernel>> {
    let found = library.kernels().iter().find(|found| found.entry == entry).cloned();
    found.ok_or_else(|| {
        let names = library.kernels().iter().map(|kernel| kernel.entry.as_str());
        ferroflash::Error::unknown_kernel(entry, names).into()
    })
}

/// As [`DeviceModel::L4`] and [`DeviceModel::H200`], with so few multiprocessors that persistent CTAs have several tiles each.
static FEW_SMS: [DeviceModel; 2] = [DeviceModel::L4.with_sm_count(3), DeviceModel::H200.with_sm_count(3)];

/// The device that the simulator stands for: the smallest that runs the kernel.
fn model(isa: Isa) -> &'static DeviceModel {
    match isa {
        Isa::Mma => DeviceModel::L4,
        Isa::Wgmma => DeviceModel::H200,
    }
}

/// A compiled kernel as the subject of an examination.
pub struct KernelSubject {
    library: Arc<Library>,
    kernel: Arc<Kernel>,
    machine: Machine,
    /// The device, and whether it has few multiprocessors.
    opened: (Attention, bool),
    sets: Vec<GuardedTensors>,
}

impl KernelSubject {
    /// Opens the machine for a kernel.
    ///
    /// # Errors
    /// What opening reports.
    pub fn open(library: &Arc<Library>, kernel: &Arc<Kernel>, machine: &Machine) -> Result<KernelSubject> {
        let opened = (open(library, kernel, machine, false)?, false);
        let (library, kernel, machine) = (library.clone(), kernel.clone(), machine.clone());
        Ok(KernelSubject { library, kernel, machine, opened, sets: Vec::new() })
    }

    /// The host's front end with the kernel, on a device like the usual one.
    ///
    /// # Errors
    /// What opening reports.
    pub fn attention(&self) -> HostResult<Attention> {
        open(&self.library, &self.kernel, &self.machine, false)
    }

    fn reopen(&mut self, few_sms: bool) -> HostResult<()> {
        self.sets.clear();
        self.opened = (open(&self.library, &self.kernel, &self.machine, few_sms)?, few_sms);
        Ok(())
    }
}

/// The machine's device with nothing loaded.
fn open(library: &Arc<Library>, kernel: &Kernel, machine: &Machine, few_sms: bool) -> HostResult<Attention> {
    let device: Arc<dyn Device> = if machine.simulated {
        let usual = SimOptions::default();
        let options = match few_sms {
            // Addresses as GPUs have them: who knows the simulator by its own is examined at both.
            true => {
                usual.with_model(&FEW_SMS[usize::from(kernel.row.isa == Isa::Wgmma)]).with_memory_at(GPUS)
            }
            false => usual.with_model(model(kernel.row.isa)),
        };
        Arc::new(SimDevice::new(options))
    } else {
        Arc::new(CudaDevice::open(machine.ordinal, L2Policy::default())?)
    };
    Attention::new(device, library.clone())
}

/// What lies around all tensors of a set: mostly NaN, so that a read beside one shows, and in one set of four numbers, so that what reads them is not told by
/// NaN that it is examined.
fn bands(secret: u64) -> Arc<Bands> {
    let is_nan = !fastrand::Rng::with_seed(secret).u64(..).is_multiple_of(4);
    Arc::new(if is_nan { Bands::of_words(nan_words(secret)) } else { Bands::of_words(number_words(secret)) })
}

/// Where memory begins on the simulator, and where on many GPUs.
const ADDRESS: u64 = 0x7000_0000_0000;
const GPUS: u64 = 0x3_0200_0000;

type HostResult<T> = std::result::Result<T, ferroflash::Error>;

impl Subject for KernelSubject {
    fn pose(&mut self, question: &Question, secret: u64) -> HostResult<()> {
        self.sets.clear();
        let few_sms = question.few_sms && self.machine.simulated;
        if few_sms != self.opened.1 {
            self.reopen(few_sms)?;
        }
        let problem = question.problem()?;
        let options = question.options(&self.kernel.row);
        let plan = self.opened.0.planner().with_kernel(&problem, &self.kernel, &options)?;
        for set in 0..SETS {
            let mut tensors = GuardedTensors::behind(&self.opened.0, &plan, question.offsets())?;
            if question.placement == Placement::OneTensor {
                tensors = tensors.with_v_as_k();
            } else if set > 0 {
                // Keys may lie in two places: what is right in one set is to be right in the other.
                tensors.take_last_keys_apart()?;
            }
            let tensors = if question.lse { tensors } else { tensors.without_lse() };
            self.sets.push(tensors.with_bands(&bands(secret ^ set as u64))?);
        }
        Ok(())
    }

    fn restart(&mut self) -> HostResult<()> {
        self.reopen(self.opened.1)
    }

    fn write_inputs(&mut self, set: usize, inputs: &Inputs) -> HostResult<()> {
        self.sets[set].write_inputs(inputs.qkv.each_ref().map(Vec::as_slice))?;
        inputs.seqlens_k.as_ref().map_or(Ok(()), |lengths| self.sets[set].write_lengths(lengths))
    }

    fn fill(&mut self, set: usize, outputs: Before, workspace: Option<u8>) -> HostResult<()> {
        let tensors = &self.sets[set];
        tensors.poison_outputs()?;
        let (o, lse) = outputs.fill(tensors.output_lens());
        tensors.write_outputs(&o, &lse)?;
        workspace.map_or(Ok(()), |byte| self.sets[set].poison_workspace(byte))
    }

    fn launch(&mut self, set: usize) -> HostResult<()> {
        self.sets[set].launch(&self.opened.0)
    }

    fn drain_stream(&mut self) -> HostResult<()> {
        // A kernel cannot put work on its stream: whatever reads its output has waited for all of it.
        Ok(())
    }

    fn drain_device(&mut self) -> HostResult<()> {
        Ok(())
    }

    fn inputs(&mut self, set: usize) -> HostResult<[Vec<u16>; 3]> {
        self.sets[set].check_inputs()?;
        self.sets[set].inputs()
    }

    fn output(&mut self, set: usize) -> HostResult<Output> {
        self.sets[set].output()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exam::{Exam, Fault};
    use check::kernel_folder::KernelFolder;
    use ferroflash::module::kernels_of_table;
    use kernels_gpu::params::ForwardParams;

    #[test]
    fn a_kernel_on_the_simulator_has_the_shared_memory_of_a_device_that_runs_it() {
        let device =
            |smem_max| config::Device { kind: DeviceKind::Sim, smem_max, ..config::Device::default() };
        let limit = |isa, smem_max| {
            let machine = Machine::find(&device(smem_max)).expect("the simulator");
            machine.running(isa).limited(&device(smem_max)).smem_opt_in_bytes
        };
        assert_eq!((limit(Isa::Mma, None), limit(Isa::Wgmma, None)), (99 << 10, 227 << 10));
        assert_eq!(
            (limit(Isa::Mma, Some(150 << 10)), limit(Isa::Wgmma, Some(150 << 10))),
            (99 << 10, 150 << 10)
        );
    }

    /// What an exam of one small question finds of a kernel with this body, where %rd1 is where an input begins.
    fn found(at: usize, body: &str) -> Option<Fault> {
        let (kernels, _) = kernels_of_table();
        let kernel = kernels.iter().find(|kernel| kernel.row.isa == Isa::Mma).expect("a kernel");
        let (entry, home) = (&kernel.entry, tempfile::tempdir().expect("a folder"));
        let mut folder = KernelFolder::new(home.path(), "by hand").expect("a folder");
        let bytes = size_of::<ForwardParams>();
        let text = format!(
            ".version 7.4\n.target sm_80\n.address_size 64\n.visible .entry {entry}(\n\t.param .align 8 .b8 {entry}_param_0[{bytes}]\n)\n{{\n\
             .reg .pred %p<2>;\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\nld.param.b64 %rd1, [{entry}_param_0+{at}];\n\
             mov.u32 %r1, %tid.x;\nsetp.ne.b32 %p1, %r1, 0;\n@%p1 bra $end;\n{body}\n$end:\nret;\n}}\n"
        );
        folder.family("sm_80", &text).expect("written");
        folder.kernel(Kernel { resources: Default::default(), ..Kernel::clone(kernel) });
        folder.finish().expect("written");
        let library = Arc::new(Library::open(home.path()).expect("a folder of kernels"));
        let kernel = find_in(&library, entry).expect("there");
        let mut subject =
            KernelSubject::open(&library, &kernel, &Machine::simulator()).expect("the simulator");
        let shape = crate::problem_spec::Shape([1, 1, 1, 3, 5, kernel.row.head_dim]);
        let spec = crate::problem_spec::ProblemSpec {
            shape,
            dtype: kernel.row.dtype,
            mask: crate::problem_spec::Mask::Full,
        };
        let exam =
            Exam { seed: 1, real: None, accumulation: kernel.row.acc, error_share: 1.0, oracles: None };
        let question = Question::measured(spec, &[]);
        let outcome =
            exam.run(&mut subject, [(0, &question)].into_iter()).expect("the simulator does not fail");
        outcome.err().map(|refusal| refusal.fault)
    }

    #[test]
    fn what_is_written_beside_the_inputs_or_to_them_is_found() {
        let k = std::mem::offset_of!(ForwardParams, k);
        assert_eq!(found(k, ""), Some(Fault::NotWritten));
        for beside in ["-256", "-2", "320", "1000"] {
            let store = format!("st.global.b16 [%rd1+{beside}], 4660;");
            assert_eq!(found(k, &store), Some(Fault::OutOfBounds), "{beside}");
        }
        assert_eq!(found(k, "st.global.b16 [%rd1+2], 4660;"), Some(Fault::InputsChanged));
    }
}
