//! The simulator as a device: runs the kernels' PTX on the CPU and checks every access.

use crate::device::model::DeviceModel;
use crate::device::{Device, DeviceInfo, Launch, LoadedKernel, StreamHandle, TensorBox};
use crate::error::Error;
use crate::module::{Code, Image};
use ferroflash_kernels::ptx;
use kernels_gpu::params::TensorMap;
use kernels_gpu::row::Dtype;
use ptx_sim::{Checks, LaunchConfig, Limits, Memory, Module, Report, Schedule, Swizzle, TensorType, Timer};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Bytes of simulated device memory: what a host machine can spare, not what a GPU has.
const MEMORY_BYTES: u64 = 8 << 30;

/// The most launches of one call: a kernel that computes attention, and one that merges its splits.
const LAUNCHES_OF_A_CALL: usize = 2;

/// How the simulator runs kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimOptions {
    /// The device that is simulated: its SMs, shared memory and architecture, which decide what is planned. Its memory is the host's.
    pub model: &'static DeviceModel,
    /// Order of warps and of landing copies; a seed shakes it, and repeats a run.
    pub schedule: Schedule,
    /// Rules that are checked.
    pub checks: Checks,
    /// Where memory begins, a multiple of 256, as [`Memory::from_address`] takes it; where the simulator's usually does without.
    pub memory_at: Option<u64>,
}

impl Default for SimOptions {
    /// An L4 (sm_89, 58 SMs, 99 KB of shared memory a CTA), the smallest device that the kernels are made for.
    fn default() -> SimOptions {
        SimOptions {
            model: DeviceModel::L4,
            schedule: Schedule::default(),
            checks: Checks::default(),
            memory_at: None,
        }
    }
}

impl SimOptions {
    /// The same on another device.
    pub fn with_model(self, model: &'static DeviceModel) -> SimOptions {
        SimOptions { model, ..self }
    }

    /// The same in another order.
    pub fn with_schedule(self, schedule: Schedule) -> SimOptions {
        SimOptions { schedule, ..self }
    }

    /// The same with memory that begins at another address.
    pub fn with_memory_at(self, address: u64) -> SimOptions {
        SimOptions { memory_at: Some(address), ..self }
    }

    /// The same with other rules checked.
    pub fn with_checks(self, checks: Checks) -> SimOptions {
        SimOptions { checks, ..self }
    }
}

/// A simulated GPU.
pub struct SimDevice {
    info: DeviceInfo,
    options: SimOptions,
    memory: Mutex<Allocations>,
    modules: RwLock<Vec<Arc<(String, Module)>>>,
    /// Of the latest launches, by entry; the oldest first.
    reports: Mutex<Vec<(String, Report)>>,
    /// What takes the predicted time of launches.
    timer: Mutex<Option<Timer>>,
}

struct Allocations {
    memory: Memory,
    sizes: std::collections::HashMap<u64, u64>,
}

impl Allocations {
    fn used(&self) -> u64 {
        self.sizes.values().sum()
    }
}

impl SimDevice {
    /// A fresh device.
    pub fn new(options: SimOptions) -> SimDevice {
        let short = options.model.title.trim_start_matches("NVIDIA ");
        let info = DeviceInfo {
            name: format!("simulator ({short}, sm_{})", options.model.sm),
            memory_bytes: MEMORY_BYTES,
            ..options.model.info()
        };
        let memory = options.memory_at.map_or_else(Memory::new, Memory::from_address);
        let memory = Mutex::new(Allocations { memory, sizes: Default::default() });
        SimDevice {
            info,
            options,
            memory,
            modules: RwLock::default(),
            reports: Mutex::default(),
            timer: Mutex::default(),
        }
    }

    /// Has the predicted time of the launches that follow taken, as if one multiprocessor ran all of their CTAs; `None` for no longer.
    pub fn take_time(&self, timer: Option<Timer>) {
        *self.timer.lock().unwrap_or_else(PoisonError::into_inner) = timer;
    }

    /// What the latest launch of a kernel did, in numbers; `None` where that was neither of the latest two launches, as many as a call
    /// has, or failed.
    pub fn report(&self, entry: &str) -> Option<Report> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.iter().rfind(|(of, _)| of == entry).map(|(_, report)| report.clone())
    }

    fn allocations(&self) -> MutexGuard<'_, Allocations> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn memory_error(call: &'static str, error: ptx_sim::MemoryError) -> Error {
    Error::Cuda { call, reason: error.to_string() }
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory_free(&self) -> Result<u64, Error> {
        Ok(MEMORY_BYTES - self.allocations().used())
    }

    fn alloc(&self, bytes: u64) -> Result<u64, Error> {
        let mut allocations = self.allocations();
        let free = MEMORY_BYTES - allocations.used();
        match usize::try_from(bytes) {
            Ok(size) if bytes <= free => {
                let address = allocations.memory.alloc(size);
                allocations.sizes.insert(address, bytes);
                Ok(address)
            }
            _ => Err(Error::OutOfMemory { requested: bytes, free }),
        }
    }

    unsafe fn free(&self, address: u64) {
        let mut allocations = self.allocations();
        // An address that is not allocated breaks the caller's promise; there is nothing to give back.
        if allocations.memory.free(address).is_ok() {
            allocations.sizes.remove(&address);
        }
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.allocations().memory.write(address, bytes).map_err(|error| memory_error("write", error))
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.allocations().memory.read(address, bytes).map_err(|error| memory_error("read", error))
    }

    unsafe fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), Error> {
        let bytes = usize::try_from(bytes).map_err(|_| Error::OutOfMemory { requested: bytes, free: 0 })?;
        self.allocations()
            .memory
            .write(address, &vec![value; bytes])
            .map_err(|error| memory_error("fill", error))
    }

    fn load(&self, image: &Image) -> Result<LoadedKernel, Error> {
        let rejected = |log: String| Error::PtxRejected { entry: image.entry.clone(), log };
        let Code::Ptx(ptx) = &image.code else {
            return Err(rejected("the simulator runs PTX, not machine code".to_owned()));
        };
        let module =
            Module::parse(&ptx::for_sm(ptx, self.info.sm)).map_err(|error| rejected(error.to_string()))?;
        let mut modules = self.modules.write().unwrap_or_else(PoisonError::into_inner);
        modules.push(Arc::new((image.entry.clone(), module)));
        let handle = modules.len() as u64 - 1;
        Ok(LoadedKernel::new(handle, image))
    }

    fn tensor_map(&self, tensor: &TensorBox) -> Result<TensorMap, Error> {
        if !self.info.has_tensor_maps {
            return Err(Error::NoTensorMaps { name: self.info.name.clone() });
        }
        let ty = match tensor.dtype {
            Dtype::F16 => TensorType::F16,
            Dtype::Bf16 => TensorType::Bf16,
        };
        let swizzle = if tensor.row_bytes() == 64 { Swizzle::B64 } else { Swizzle::B128 };
        let box_dims: Vec<u64> = tensor.box_dims().iter().map(|&length| length.into()).collect();
        let map =
            ptx_sim::TensorMap::new(ty, tensor.address, tensor.dims(), tensor.strides(), &box_dims, swizzle)
                .map_err(|error| Error::Cuda { call: "tensor map", reason: error.to_string() })?;
        let bytes = map.to_bytes();
        Ok(TensorMap(std::array::from_fn(|i| {
            u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 * i + byte]))
        })))
    }

    unsafe fn check_stream(&self, _stream: StreamHandle) -> Result<(), Error> {
        // Every stream is the one on which work is done at once.
        Ok(())
    }

    unsafe fn is_capturing(&self, _stream: StreamHandle) -> Result<bool, Error> {
        Ok(false)
    }

    unsafe fn launch(
        &self,
        kernel: &LoadedKernel,
        launch: &Launch<'_>,
        _stream: StreamHandle,
    ) -> Result<(), Error> {
        let modules = self.modules.read().unwrap_or_else(PoisonError::into_inner);
        let Some(loaded) = usize::try_from(kernel.handle).ok().and_then(|at| modules.get(at)).cloned() else {
            return Err(Error::Cuda { call: "launch", reason: "a kernel of another device".to_owned() });
        };
        drop(modules);
        let (entry, module) = &*loaded;
        let config = LaunchConfig {
            dynamic_smem_bytes: kernel.smem_bytes,
            limits: Limits { smem_per_cta: self.info.smem_opt_in_bytes, ..Limits::default() },
            checks: self.options.checks,
            schedule: self.options.schedule,
            timer: self.timer.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..LaunchConfig::new([launch.grid, 1, 1], [kernel.threads, 1, 1])
        };
        let result = ptx_sim::launch(module, entry, launch.params, &mut self.allocations().memory, &config);
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let simulated =
            |error: ptx_sim::SimError| Error::Simulation { entry: entry.clone(), reason: error.to_string() };
        let report = result.map_err(simulated).inspect_err(|_| reports.clear())?;
        if reports.len() == LAUNCHES_OF_A_CALL {
            reports.remove(0);
        }
        reports.push((entry.clone(), report));
        Ok(())
    }

    unsafe fn synchronize(&self, _stream: StreamHandle) -> Result<(), Error> {
        // Launches have ended when they return.
        Ok(())
    }
}
