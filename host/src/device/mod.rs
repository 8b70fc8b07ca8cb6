//! What a device does for attention: memory by address, kernels, launches. Nothing here is particular to CUDA.

pub mod cuda;
pub mod driver;
mod encode;
pub mod graph;
mod l2;
mod launch_ex;
pub mod model;
pub mod nvml;
pub mod peers;
pub mod shared_page;
pub mod side;
#[cfg(feature = "sim")]
pub mod sim;
mod tensor_box;

pub use tensor_box::TensorBox;

use crate::error::Error;
use crate::module::Image;
use kernels_gpu::params::TensorMap;
use std::ffi::c_void;
use std::sync::Arc;

/// What a device is. A device of one's own starts from a model's ([`model::DeviceModel::info`]) and sets what differs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name, `NVIDIA L4`.
    pub name: String,
    /// Compute capability, 89 for 8.9.
    pub sm: u32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Bytes of shared memory that a CTA can opt in to.
    pub smem_opt_in_bytes: u32,
    /// Bytes of shared memory of an SM.
    pub smem_per_sm_bytes: u32,
    /// Threads that an SM holds at a time.
    pub threads_per_sm: u32,
    /// CTAs that an SM holds at a time, however small.
    pub ctas_per_sm: u32,
    /// Bytes of device memory in all.
    pub memory_bytes: u64,
    /// Bytes of L2 that are set aside for K and V, see [`L2Policy`]; 0 where none are.
    pub l2_persisting_bytes: u64,
    /// The longest range of addresses that may be kept in L2 at a time, in bytes; 0 where L2 keeps nothing.
    pub l2_window_bytes: u64,
    /// Whether tensors can be described to bulk copies: by compute capability and driver.
    pub has_tensor_maps: bool,
}

/// What stays in the L2 cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum L2Policy {
    /// What the device's own replacement keeps.
    #[default]
    Default,
    /// K and V, as far as they fit: part of L2 is set aside for them, in the whole context, while the device is open, and each
    /// launch names their addresses (an access-policy window). For whoever reads the same K and V again and again.
    Persist,
}

/// One launch of a kernel, on a one-dimensional grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch<'a> {
    /// CTAs.
    pub grid: u32,
    /// The bytes of the kernel's one parameter.
    pub params: &'a [u8],
    /// Addresses that should stay in L2, where the device has some of it set aside ([`DeviceInfo::l2_persisting_bytes`]).
    pub l2_window: Option<L2Window>,
}

impl Launch<'_> {
    /// A launch that keeps nothing in L2.
    pub fn new(grid: u32, params: &[u8]) -> Launch<'_> {
        Launch { grid, params, l2_window: None }
    }
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Window {
    /// The first.
    pub address: u64,
    /// How many, at least 1 and at most [`DeviceInfo::l2_window_bytes`].
    pub bytes: u64,
}

/// A kernel that a device has loaded: what that device's [`Device::load`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedKernel {
    /// The device's own handle.
    pub handle: u64,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA, in bytes.
    pub smem_bytes: u32,
    /// Whether the kernel may start before the kernels before it on the stream are over: it waits for them by itself before it
    /// touches memory (PTX ISA, "griddepcontrol"). What a device or driver without such launches does not make use of.
    pub waits: bool,
}

impl LoadedKernel {
    /// What was loaded of an image, by the device's own handle.
    pub fn new(handle: u64, image: &Image) -> LoadedKernel {
        LoadedKernel { handle, threads: image.threads, smem_bytes: image.smem_bytes, waits: image.waits }
    }
}

/// A stream of work on a device: for CUDA, a raw `CUstream`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamHandle(u64);

impl StreamHandle {
    /// The device's default stream.
    pub const DEFAULT: StreamHandle = StreamHandle(0);
    /// The default stream of the calling thread (`CU_STREAM_PER_THREAD`): another one on each thread.
    pub const PER_THREAD: StreamHandle = StreamHandle(2);
    /// The last of the handles that stand for streams of any context; what follows are addresses.
    const LAST_SPECIAL: u64 = 2;

    /// The stream behind a raw `CUstream` (or `cudaStream_t`).
    pub fn from_raw(stream: *mut c_void) -> StreamHandle {
        StreamHandle(stream as u64)
    }

    /// The raw `CUstream`.
    pub fn as_raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// Whether this is one of the default streams, which every context has.
    pub fn is_default(self) -> bool {
        self.0 <= StreamHandle::LAST_SPECIAL
    }
}

/// A device that runs kernels: a GPU or a simulator of one.
pub trait Device: Send + Sync {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Bytes of memory free now.
    ///
    /// # Errors
    /// What the driver reports.
    fn memory_free(&self) -> Result<u64, Error>;

    /// The address of `bytes` (at least 1) of fresh memory, aligned to 256 bytes. [`Buffer`] frees it by itself.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn alloc(&self, bytes: u64) -> Result<u64, Error>;

    /// Gives memory back.
    ///
    /// # Safety
    /// `address` came from [`Device::alloc`], was not freed, and no launch that is still running uses it.
    unsafe fn free(&self, address: u64);

    /// Copies from the host, after all work on the default stream; done when it returns.
    ///
    /// # Errors
    /// What the driver reports, also of earlier launches.
    ///
    /// # Safety
    /// `bytes.len()` bytes from `address` on are allocated on this device.
    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Copies to the host, after all work on the default stream; done when it returns.
    ///
    /// # Errors
    /// What the driver reports, also of earlier launches.
    ///
    /// # Safety
    /// `bytes.len()` bytes from `address` on are allocated on this device.
    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error>;

    /// Sets `bytes` bytes to `value`, in the order of the default stream.
    ///
    /// # Errors
    /// What the driver reports, also of earlier launches.
    ///
    /// # Safety
    /// `bytes` bytes from `address` on are allocated on this device.
    unsafe fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), Error>;

    /// Loads one kernel and lets it have the shared memory it needs. The kernel stays loaded as long as the device lives.
    ///
    /// # Errors
    /// [`Error::PtxRejected`], [`Error::DriverTooOld`].
    fn load(&self, image: &Image) -> Result<LoadedKernel, Error>;

    /// The tensor map of a tensor, in the device's own encoding: a pure function of what is given. Neither reads nor allocates memory
    /// of the device.
    ///
    /// # Errors
    /// [`Error::NoTensorMaps`], and what the driver reports.
    fn tensor_map(&self, tensor: &TensorBox) -> Result<TensorMap, Error>;

    /// Refuses a stream of another device or context.
    ///
    /// # Errors
    /// [`Error::ForeignStream`], and what the driver reports.
    ///
    /// # Safety
    /// `stream` lives.
    unsafe fn check_stream(&self, stream: StreamHandle) -> Result<(), Error>;

    /// Whether work on a stream is being recorded into a graph instead of run.
    ///
    /// # Errors
    /// What the driver reports.
    ///
    /// # Safety
    /// `stream` lives on this device.
    unsafe fn is_capturing(&self, stream: StreamHandle) -> Result<bool, Error>;

    /// Starts a kernel and returns; allocates nothing.
    ///
    /// # Errors
    /// What the driver reports, also of earlier launches.
    ///
    /// # Safety
    /// `kernel` came from this device, the launch's parameter is its, every address in it is allocated for what the kernel reads
    /// and writes there until the launch ends, and `stream` lives on this device.
    unsafe fn launch(
        &self,
        kernel: &LoadedKernel,
        launch: &Launch<'_>,
        stream: StreamHandle,
    ) -> Result<(), Error>;

    /// Waits for all work of one stream.
    ///
    /// # Errors
    /// What the driver reports, also of earlier launches.
    ///
    /// # Safety
    /// `stream` lives on this device.
    unsafe fn synchronize(&self, stream: StreamHandle) -> Result<(), Error>;
}

/// Device memory that is freed with its owner.
pub struct Buffer<D: Device + ?Sized> {
    device: Arc<D>,
    address: u64,
    bytes: u64,
}

impl<D: Device + ?Sized> Buffer<D> {
    /// Fresh memory for `bytes` bytes, contents undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(device: &Arc<D>, bytes: u64) -> Result<Buffer<D>, Error> {
        let address = device.alloc(bytes.max(1))?;
        Ok(Buffer { device: device.clone(), address, bytes })
    }

    /// Fresh memory that holds a copy of `elements`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn from_elements<T: Element>(device: &Arc<D>, elements: &[T]) -> Result<Buffer<D>, Error> {
        let buffer = Buffer::new(device, size_of_val(elements) as u64)?;
        buffer.write(0, elements)?;
        Ok(buffer)
    }

    /// The device that it is on.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// The address of its first byte, aligned to 256 bytes.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies `elements` to where element `at` lies.
    ///
    /// # Errors
    /// [`Error::WrongLength`] where they reach past the end; what the driver reports.
    pub fn write<T: Element>(&self, at: usize, elements: &[T]) -> Result<(), Error> {
        let address = self.address_of::<T>(at, elements.len())?;
        // SAFETY: address_of checked that the bytes lie in this buffer.
        unsafe { self.device.write(address, as_bytes(elements)) }
    }

    /// Copies from where element `at` lies to `elements`.
    ///
    /// # Errors
    /// [`Error::WrongLength`] where they reach past the end; what the driver reports.
    pub fn read<T: Element>(&self, at: usize, elements: &mut [T]) -> Result<(), Error> {
        let address = self.address_of::<T>(at, elements.len())?;
        // SAFETY: address_of checked that the bytes lie in this buffer.
        unsafe { self.device.read(address, as_bytes_mut(elements)) }
    }

    /// Sets every byte to `value`.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn fill(&self, value: u8) -> Result<(), Error> {
        // SAFETY: these are this buffer's bytes.
        unsafe { self.device.fill(self.address, value, self.bytes) }
    }

    fn address_of<T>(&self, at: usize, count: usize) -> Result<u64, Error> {
        let size = size_of::<T>() as u64;
        let end = (at as u64).checked_add(count as u64).and_then(|end| end.checked_mul(size));
        match end {
            Some(end) if end <= self.bytes => Ok(self.address + at as u64 * size),
            _ => Err(Error::WrongLength {
                tensor: "a device buffer",
                expected: (self.bytes / size) as usize,
                got: at.saturating_add(count),
            }),
        }
    }
}

impl<D: Device + ?Sized> Drop for Buffer<D> {
    fn drop(&mut self) {
        // SAFETY: the address came from this device's alloc and is freed once. Drivers wait for running work first.
        unsafe { self.device.free(self.address) }
    }
}

/// Plain numbers whose every bit pattern is a value.
pub trait Element: Copy + sealed::Sealed {}
impl Element for u8 {}
impl Element for u16 {}
impl Element for u32 {}
impl Element for i32 {}
impl Element for f32 {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
    impl Sealed for f32 {}
}

/// The bytes of elements.
pub(crate) fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an Element has no padding, and a byte needs no alignment.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

fn as_bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and every bit pattern is a valid Element.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

#[cfg(test)]
pub(crate) mod tests;
