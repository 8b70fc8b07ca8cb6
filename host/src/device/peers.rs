//! Memory of other devices of this machine, of this process or another: how a device is let into it, and the flags in it that streams set and
//! wait for. Copies to such memory are the copy engines' work: they run beside kernels that have every multiprocessor.

use super::Buffer;
use super::StreamHandle;
use super::cuda::CudaDevice;
use super::driver::{call_since, check};
use crate::error::Error;
use cust::sys::{self, CUipcMemHandle_st, CUresult, CUstream};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::mem::transmute;
use std::sync::{Arc, OnceLock};

/// The version of the driver's interface that brought [`Flags`]'s calls without a switch in the kernel module.
const CUDA_VERSION: c_int = 12_000;
/// `CU_STREAM_WAIT_VALUE_EQ`.
const EQUAL: c_uint = 1;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LET_IN: c_uint = 1;
/// What another process is given is a whole number of these, so that it lies in no page with anything else.
const PAGE_BYTES: u64 = 2 << 20;

type OnValue = unsafe extern "C" fn(CUstream, u64, u32, c_uint) -> CUresult;

/// Flags in device memory, each 4 bytes: streams of any device set them and wait for them.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    write: OnValue,
    wait: OnValue,
}

impl Flags {
    /// The driver's calls; `None` where it has not got them.
    pub fn find() -> Option<Flags> {
        let found = |name| {
            let call = call_since(name, CUDA_VERSION)?;
            // SAFETY: both calls have this signature in that version.
            Some(unsafe { transmute::<*mut c_void, OnValue>(call.as_ptr()) })
        };
        Some(Flags { write: found(c"cuStreamWriteValue32")?, wait: found(c"cuStreamWaitValue32")? })
    }

    /// Sets a flag once all that is on the stream now is over and can be seen by other devices.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// The stream lives on the device, and the flag is allocated, there or on a device that it was let into, until the stream is over.
    pub unsafe fn set(
        self,
        stream: (&Arc<CudaDevice>, StreamHandle),
        address: u64,
        value: u32,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { Flags::call("cuStreamWriteValue32", self.write, stream, (address, value, 0)) }
    }

    /// Lets what follows on the stream wait until a flag has a value.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    ///
    /// # Safety
    /// As [`Flags::set`].
    pub unsafe fn wait(
        self,
        stream: (&Arc<CudaDevice>, StreamHandle),
        address: u64,
        value: u32,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { Flags::call("cuStreamWaitValue32", self.wait, stream, (address, value, EQUAL)) }
    }

    /// # Safety
    /// As [`Flags::set`].
    unsafe fn call(
        name: &'static str,
        call: OnValue,
        (device, stream): (&Arc<CudaDevice>, StreamHandle),
        (address, value, flags): (u64, u32, c_uint),
    ) -> Result<(), Error> {
        let stream = stream.as_raw().cast();
        // SAFETY: the stream lives; the address is the caller's promise.
        let result = device.with_current(|| unsafe { call(stream, address, value, flags) })?;
        check(name, result)
    }
}

/// What another rank needs to be let into memory of this one. It is plain numbers, which travel any way there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPass([u64; MemoryPass::NUMBERS]);

/// Numbers of a pass; the driver's handle is the last ones.
const PROCESS: usize = 0;
const MACHINE: usize = 1;
const ADDRESS: usize = 2;
const ORDINAL: usize = 3;
const HANDLE: usize = 4;
const HANDLE_NUMBERS: usize = 8;

impl MemoryPass {
    /// Numbers of a pass.
    pub const NUMBERS: usize = HANDLE + HANDLE_NUMBERS;

    /// `bytes` rounded up to what memory that other processes are let into must have.
    pub fn rounded(bytes: u64) -> u64 {
        bytes.next_multiple_of(PAGE_BYTES)
    }

    /// The pass to a buffer, which lives until nobody uses it. It is good for ranks of this process, and for other processes of this machine if
    /// the buffer has [`MemoryPass::rounded`] bytes and the driver can lend it.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn new(device: &Arc<CudaDevice>, buffer: &Buffer<CudaDevice>) -> Result<MemoryPass, Error> {
        let mut handle = CUipcMemHandle_st { reserved: [0; 8 * HANDLE_NUMBERS] };
        // SAFETY: writes one handle where it is told to; the address came from cuMemAlloc.
        let lent =
            device.with_current(|| unsafe { sys::cuIpcGetMemHandle(&mut handle, buffer.address()) })?;
        let mut numbers = [0; MemoryPass::NUMBERS];
        numbers[PROCESS] = process();
        numbers[MACHINE] = if lent == CUresult::CUDA_SUCCESS { machine() } else { 0 };
        numbers[ADDRESS] = buffer.address();
        numbers[ORDINAL] = device.ordinal().into();
        for (number, bytes) in numbers[HANDLE..].iter_mut().zip(handle.reserved.as_chunks::<8>().0) {
            *number = u64::from_ne_bytes(bytes.map(|byte: c_char| byte as u8));
        }
        Ok(MemoryPass(numbers))
    }

    /// Its numbers.
    pub fn numbers(&self) -> &[u64; MemoryPass::NUMBERS] {
        &self.0
    }

    /// The pass that has these numbers; `None` where they are not as many.
    pub fn from_numbers(numbers: &[u64]) -> Option<MemoryPass> {
        numbers.try_into().ok().map(MemoryPass)
    }

    fn handle(&self) -> CUipcMemHandle_st {
        let mut handle = CUipcMemHandle_st { reserved: [0; 8 * HANDLE_NUMBERS] };
        for (bytes, number) in handle.reserved.as_chunks_mut::<8>().0.iter_mut().zip(&self.0[HANDLE..]) {
            *bytes = number.to_ne_bytes().map(|byte| byte as c_char);
        }
        handle
    }
}

/// A number that only this process has.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(drawn)
}

/// A number that nobody else draws.
pub(super) fn drawn() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A number of this machine since it was started, which no other has; not 0.
pub fn machine() -> u64 {
    static MACHINE: OnceLock<u64> = OnceLock::new();
    *MACHINE.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        for file in ["/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"] {
            std::fs::read(file).unwrap_or_default().hash(&mut hasher);
        }
        hasher.finish().max(1)
    })
}

/// Another device's memory, as this one's copies and flags reach it.
pub struct PeerMemory {
    address: u64,
    /// Whether it is another process's.
    is_lent: bool,
    device: Arc<CudaDevice>,
}

impl PeerMemory {
    /// Lets a device into the memory of a pass; `None` where it is on another machine, or no way leads there.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn open(device: &Arc<CudaDevice>, pass: &MemoryPass) -> Result<Option<PeerMemory>, Error> {
        let memory = |address, is_lent| PeerMemory { address, is_lent, device: device.clone() };
        if pass.0[PROCESS] == process() {
            let reached = reach(device, pass.0[ORDINAL] as u32)?;
            return Ok(reached.then(|| memory(pass.0[ADDRESS], false)));
        }
        if pass.0[MACHINE] != machine() {
            return Ok(None);
        }
        let mut address = 0;
        // SAFETY: writes one address where it is told to.
        let opened = device
            .with_current(|| unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, pass.handle(), LET_IN) })?;
        Ok((opened == CUresult::CUDA_SUCCESS).then(|| memory(address, true)))
    }

    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether it is another process's.
    pub fn is_lent(&self) -> bool {
        self.is_lent
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if self.is_lent {
            let address = self.address;
            // SAFETY: opened once, closed once. A drop cannot report an error.
            let _ = self.device.with_current(|| unsafe { sys::cuIpcCloseMemHandle(address) });
        }
    }
}

/// Lets a device into the memory of another one of this process, if there is a way.
fn reach(device: &CudaDevice, ordinal: u32) -> Result<bool, Error> {
    if ordinal == device.ordinal() {
        return Ok(true);
    }
    let (mut own, mut other, mut can) = (0, 0, 0);
    // SAFETY: each writes one number where it is told to.
    unsafe {
        check("cuDeviceGet", sys::cuDeviceGet(&mut own, device.ordinal() as c_int))?;
        check("cuDeviceGet", sys::cuDeviceGet(&mut other, ordinal as c_int))?;
        check("cuDeviceCanAccessPeer", sys::cuDeviceCanAccessPeer(&mut can, own, other))?;
    }
    if can == 0 {
        return Ok(false);
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: writes one context where it is told to; it is released below; the other rank's `CudaDevice` holds the same context.
    check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, other) })?;
    // SAFETY: the context lives until it is given back.
    let entered = device.with_current(|| unsafe { sys::cuCtxEnablePeerAccess(context, 0) });
    // SAFETY: retained above.
    let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(other) };
    Ok(matches!(entered?, CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_travels_as_numbers_and_keeps_its_handle() {
        let mut numbers = [0; MemoryPass::NUMBERS];
        numbers.iter_mut().zip(0x8081_8283_8485_8687..).for_each(|(number, value)| *number = value);
        let pass = MemoryPass::from_numbers(&numbers).expect("as many numbers");
        assert_eq!(pass.numbers(), &numbers);
        let bytes: Vec<u8> = pass.handle().reserved.iter().map(|&byte| byte as u8).collect();
        let wanted: Vec<u8> = numbers[HANDLE..].iter().flat_map(|number| number.to_ne_bytes()).collect();
        assert_eq!(bytes, wanted);
        assert!(MemoryPass::from_numbers(&numbers[1..]).is_none());
        assert_eq!(MemoryPass::rounded(1), 2 << 20);
        assert_eq!((process(), machine()), (process(), machine()));
    }
}
