//! A CUDA GPU behind [`Device`], through `cust` and the driver calls that `cust` does not wrap.

use super::driver::{Driver, check, cust_error, describe};
use super::encode::Encoder;
use super::l2::SetAside;
use super::launch_ex::{Attribute, Launcher};
use super::{Device, DeviceInfo, L2Policy, Launch, LoadedKernel, StreamHandle, TensorBox};
use crate::error::Error;
use crate::module::{Code, Image};
use cust::context::Context;
use cust::sys::{
    self, CUdevice_attribute, CUfunction_attribute, CUjit_option, CUresult, CUstreamCaptureStatus,
};
use ferroflash_kernels::ptx;
use kernels_gpu::params::TensorMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// Shared memory that a CTA gets without asking, in bytes.
const SMEM_DEFAULT_BYTES: u32 = kernels_gpu::row::SMEM_DEFAULT_BYTES;
/// The first compute capability with bulk copies of tensors.
const TENSOR_MAPS_SM: u32 = 90;
/// The first compute capability whose kernels may overlap.
const OVERLAP_SM: u32 = 90;
/// Room for what the driver's compiler says of one kernel, in bytes.
const LOG_BYTES: usize = 8192;

/// A CUDA GPU, used through its primary context, so that memory of other libraries (candle, cudarc, the CUDA runtime) can be
/// passed in. Each call leaves the calling thread's current context as it was.
pub struct CudaDevice {
    info: DeviceInfo,
    ordinal: u32,
    pci_bus_id: String,
    /// Loaded modules as addresses, unloaded with the device.
    modules: Mutex<Vec<usize>>,
    /// L2 for K and V, given back with the device.
    set_aside: Option<SetAside>,
    /// Launches with attributes, where the driver knows them.
    launcher: Option<Launcher>,
    /// The call that makes tensor maps, where device and driver have them.
    encoder: Option<Encoder>,
    context: Context,
}

impl CudaDevice {
    /// Opens the device of this number, counted from 0 as `CUDA_VISIBLE_DEVICES` leaves them.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoL2ToSetAside`], [`Error::Cuda`].
    pub fn open(ordinal: u32, l2: L2Policy) -> Result<CudaDevice, Error> {
        let driver = Driver::open()?;
        if ordinal >= driver.device_count {
            let reason = format!("there is no device {ordinal}, it has {}", driver.device_count);
            return Err(Error::NoDriver { searched: driver.path, reason });
        }
        let device = cust::device::Device::get_device(ordinal).map_err(cust_error("cuDeviceGet"))?;
        let mut info = device_info(&device)?;
        let encoder = Encoder::find().filter(|_| info.sm >= TENSOR_MAPS_SM);
        info.has_tensor_maps = encoder.is_some();
        let mut bus_id = [0 as c_char; 32];
        // SAFETY: the buffer is as long as the call is told; what it writes ends in NUL.
        let pci_bus_id = unsafe {
            check("cuDeviceGetPCIBusId", sys::cuDeviceGetPCIBusId(bus_id.as_mut_ptr(), 32, device.as_raw()))?;
            CStr::from_ptr(bus_id.as_ptr()).to_string_lossy().into_owned()
        };
        // Context::new makes the context current, so the caller's is put back.
        let mut callers = std::ptr::null_mut();
        // SAFETY: writes one context where it is told to.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut callers) })?;
        let context = Context::new(device).map_err(cust_error("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context was current a moment ago; null stands for none.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(callers) })?;
        let modules = Mutex::default();
        let mut opened = CudaDevice {
            info,
            ordinal,
            pci_bus_id,
            modules,
            set_aside: None,
            launcher: Launcher::find(),
            encoder,
            context,
        };
        if l2 == L2Policy::Persist {
            opened.set_l2_aside(&device)?;
        }
        Ok(opened)
    }

    fn set_l2_aside(&mut self, device: &cust::device::Device) -> Result<(), Error> {
        let most = attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE)?;
        let window =
            attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE)?;
        let current = self.make_current()?;
        let set_aside = SetAside::new(most as c_int)?;
        drop(current);
        let Some(set_aside) = set_aside.filter(|_| window > 0 && self.launcher.is_some()) else {
            return Err(Error::NoL2ToSetAside { name: self.info.name.clone() });
        };
        self.info.l2_persisting_bytes = set_aside.bytes;
        self.info.l2_window_bytes = window.into();
        self.set_aside = Some(set_aside);
        Ok(())
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Where it sits, `0000:65:00.0`.
    pub fn pci_bus_id(&self) -> &str {
        &self.pci_bus_id
    }

    /// CTAs of a loaded kernel that one SM holds at a time.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn resident_ctas(&self, kernel: &LoadedKernel) -> Result<u32, Error> {
        let _current = self.make_current()?;
        let mut ctas: c_int = 0;
        // SAFETY: the handle came from load and its module stays loaded.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut ctas,
                kernel.handle as sys::CUfunction,
                kernel.threads as c_int,
                kernel.smem_bytes as usize,
            )
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", result)?;
        Ok(ctas as u32)
    }

    /// Makes the device's context current on this thread until the result is dropped.
    pub(super) fn make_current(&self) -> Result<Current, Error> {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one context where it is told to.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        // In most programs it is, on every call: one question for a push and a pop.
        if current == self.context.as_raw() {
            return Ok(Current { is_pushed: false });
        }
        // SAFETY: the context lives as long as self.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.context.as_raw()) })?;
        Ok(Current { is_pushed: true })
    }

    /// Calls `work` with the device's context current on this thread, for libraries that ask for it.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn with_current<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let _current = self.make_current()?;
        Ok(work())
    }

    /// Loads a module and returns it, or the driver's error and log.
    fn load_module(&self, code: &Code) -> Result<sys::CUmodule, (CUresult, String)> {
        let text;
        let image = match code {
            Code::Ptx(ptx) => {
                text = CString::new(ptx::for_sm(ptx, self.info.sm).as_ref())
                    .map_err(|_| (CUresult::CUDA_ERROR_INVALID_PTX, "it holds a NUL byte".to_owned()))?;
                text.as_ptr().cast::<c_void>()
            }
            Code::Cubin(bytes) => bytes.as_ptr().cast(),
        };
        let mut log = vec![0u8; LOG_BYTES];
        let mut options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // Values that fit a pointer are passed in its place.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is PTX that ends in NUL or a whole ELF file; the log is as long as its option says; a context is
        // current.
        let result = unsafe {
            sys::cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        match result {
            CUresult::CUDA_SUCCESS => Ok(module),
            error => {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                Err((error, one_line(&String::from_utf8_lossy(&log[..end]))))
            }
        }
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory_free(&self) -> Result<u64, Error> {
        let _current = self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes where it is told to.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free as u64)
    }

    fn alloc(&self, bytes: u64) -> Result<u64, Error> {
        let current = self.make_current()?;
        let mut address = 0;
        // SAFETY: writes one address where it is told to.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) };
        drop(current);
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::OutOfMemory { requested: bytes, free: self.memory_free()? });
        }
        check("cuMemAlloc", result)?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) {
        // A drop cannot report an error; the driver reports the same one at the next call.
        let Ok(_current) = self.make_current() else { return };
        // SAFETY: the caller's promise.
        let _ = unsafe { sys::cuMemFree_v2(address) };
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let _current = self.make_current()?;
        // SAFETY: the source is the slice; the destination is the caller's promise.
        let result = unsafe { sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) };
        check("cuMemcpyHtoD", result)
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let _current = self.make_current()?;
        // SAFETY: the destination is the slice; the source is the caller's promise.
        let result = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()) };
        check("cuMemcpyDtoH", result)
    }

    unsafe fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), Error> {
        let _current = self.make_current()?;
        // SAFETY: the caller's promise.
        check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(address, value, bytes as usize) })
    }

    fn load(&self, image: &Image) -> Result<LoadedKernel, Error> {
        let _current = self.make_current()?;
        let entry = &image.entry;
        let module = self.load_module(&image.code).map_err(|(error, log)| refused(entry, error, &log))?;
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module as usize);
        let reject = |log: &str| Error::PtxRejected { entry: entry.clone(), log: log.to_owned() };
        let name = CString::new(entry.as_str()).map_err(|_| reject("its name holds a NUL byte"))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and the name ends in NUL.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        if result == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(reject("the module has no entry of that name"));
        }
        check("cuModuleGetFunction", result)?;
        if image.smem_bytes > SMEM_DEFAULT_BYTES {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            let result = unsafe { sys::cuFuncSetAttribute(function, attribute, image.smem_bytes as c_int) };
            check("cuFuncSetAttribute", result)?;
        }
        Ok(LoadedKernel::new(function as u64, image))
    }

    fn tensor_map(&self, tensor: &TensorBox) -> Result<TensorMap, Error> {
        match self.encoder {
            Some(encoder) => {
                let _current = self.make_current()?;
                encoder.encode(tensor)
            }
            None => Err(Error::NoTensorMaps { name: self.info.name.clone() }),
        }
    }

    unsafe fn check_stream(&self, stream: StreamHandle) -> Result<(), Error> {
        // Which context a default stream belongs to is decided when it is used.
        if stream.is_default() {
            return Ok(());
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one context where it is told to; the stream lives.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(stream.as_raw().cast(), &mut context) })?;
        if context == self.context.as_raw() {
            Ok(())
        } else {
            Err(Error::ForeignStream { device: self.info.name.clone(), ordinal: self.ordinal })
        }
    }

    unsafe fn is_capturing(&self, stream: StreamHandle) -> Result<bool, Error> {
        let _current = self.make_current()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: writes one status where it is told to; the stream is the caller's promise.
        let result = unsafe { sys::cuStreamIsCapturing(stream.as_raw().cast(), &mut status) };
        check("cuStreamIsCapturing", result)?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    unsafe fn launch(
        &self,
        kernel: &LoadedKernel,
        launch: &Launch<'_>,
        stream: StreamHandle,
    ) -> Result<(), Error> {
        let _current = self.make_current()?;
        if let Some(launcher) = self.launcher {
            let window = self.set_aside.as_ref().zip(launch.l2_window);
            let window = window.map(|(set_aside, window)| set_aside.attribute(window));
            let overlap = (kernel.waits && self.info.sm >= OVERLAP_SM).then(Attribute::overlap);
            let given = match (window, overlap) {
                (Some(window), Some(overlap)) => &[window, overlap][..],
                (Some(one), None) | (None, Some(one)) => &[one],
                (None, None) => &[],
            };
            if !given.is_empty() {
                // SAFETY: the caller's promise; the context is current.
                return unsafe { launcher.launch(kernel, launch, given, stream) };
            }
        }
        let mut arguments = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the driver copies the one parameter before it returns; kernel, parameters and stream are the caller's promise.
        let result = unsafe {
            sys::cuLaunchKernel(
                kernel.handle as sys::CUfunction,
                launch.grid,
                1,
                1,
                kernel.threads,
                1,
                1,
                kernel.smem_bytes,
                stream.as_raw().cast(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }

    unsafe fn synchronize(&self, stream: StreamHandle) -> Result<(), Error> {
        let _current = self.make_current()?;
        // SAFETY: the caller's promise.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.as_raw().cast()) })
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let Ok(_current) = self.make_current() else { return };
        for module in self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: the module was loaded in this context, once, and nothing can launch from it any more.
            let _ = unsafe { sys::cuModuleUnload(module as sys::CUmodule) };
        }
        if let Some(set_aside) = &self.set_aside {
            set_aside.give_back();
        }
    }
}

/// A context that is current on this thread until this is dropped.
pub(super) struct Current {
    /// Whether another context was current before, or none.
    is_pushed: bool,
}

impl Drop for Current {
    fn drop(&mut self) {
        if !self.is_pushed {
            return;
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one context where it is told to; make_current pushed what this pops.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
    }
}

fn attribute(device: &cust::device::Device, attribute: CUdevice_attribute) -> Result<u32, Error> {
    let mut value: c_int = 0;
    // SAFETY: writes one int where it is told to.
    let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device.as_raw()) };
    check("cuDeviceGetAttribute", result)?;
    Ok(value as u32)
}

fn device_info(device: &cust::device::Device) -> Result<DeviceInfo, Error> {
    use CUdevice_attribute::*;
    let attribute = |which| attribute(device, which);
    let major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(DeviceInfo {
        name: device.name().map_err(cust_error("cuDeviceGetName"))?,
        sm: major * 10 + minor,
        sm_count: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        smem_opt_in_bytes: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        smem_per_sm_bytes: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        threads_per_sm: attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        ctas_per_sm: attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
        memory_bytes: device.total_memory().map_err(cust_error("cuDeviceTotalMem"))? as u64,
        l2_persisting_bytes: 0,
        l2_window_bytes: 0,
        has_tensor_maps: false,
    })
}

/// What a refused module means.
fn refused(entry: &str, error: CUresult, log: &str) -> Error {
    let entry = entry.to_owned();
    match error {
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            let version = Driver::open().map(|driver| driver.cuda_version);
            let driver =
                version.map_or("an unknown version".to_owned(), |(major, minor)| format!("{major}.{minor}"));
            Error::DriverTooOld { driver, entry }
        }
        error => {
            let name = describe(error);
            let log = if log.is_empty() { name } else { format!("{name}: {log}") };
            Error::PtxRejected { entry, log }
        }
    }
}

/// The driver's log as one line.
fn one_line(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_becomes_one_line() {
        assert_eq!(one_line("ptxas a, line 3; error\n\n  fatal : b\n"), "ptxas a, line 3; error; fatal : b");
    }

    #[test]
    fn a_device_that_does_not_exist_is_an_error_with_or_without_a_driver() {
        let error = CudaDevice::open(4096, L2Policy::Default).err().expect("no machine has so many devices");
        assert!(matches!(&error, Error::NoDriver { searched, .. } if searched.contains("cuda")), "{error}");
    }
}
