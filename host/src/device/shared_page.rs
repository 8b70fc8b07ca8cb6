//! Host memory that devices and processes of one machine share. What streams wait for there, the CPU can set as well: a stream that waits
//! for a process which is gone can be set free.

use super::cuda::CudaDevice;
use super::peers::drawn;
use crate::error::Error;
use cust::sys::{self, CUresult};
use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use tempfile::NamedTempFile;

/// Where files are memory that every process of the machine sees.
const FOLDER: &str = "/dev/shm";
/// `CU_MEMHOSTREGISTER_DEVICEMAP`.
const DEVICE_MAP: u32 = 2;

/// Some 4-byte words of the host's memory, 0 at first, that this device's streams and the CPU read and write, and so do those that open it by
/// its name.
pub struct SharedPage {
    memory: MmapRaw,
    /// As the device reaches it.
    address: u64,
    name: u64,
    /// What others open; only where this one made it, and until it is [closed](SharedPage::close).
    file: Option<NamedTempFile>,
    device: Arc<CudaDevice>,
}

impl SharedPage {
    /// A page of at least `bytes` bytes; `None` where the system or the driver has no such memory.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the device is of no use.
    pub fn new(device: &Arc<CudaDevice>, bytes: u64) -> Result<Option<SharedPage>, Error> {
        let name = drawn();
        let made = || -> io::Result<(NamedTempFile, MmapRaw)> {
            let file = tempfile::Builder::new().prefix(&file_name(name)).rand_bytes(0).tempfile_in(FOLDER)?;
            file.as_file().set_len(bytes)?;
            let memory = MmapOptions::new().map_raw(file.as_file())?;
            Ok((file, memory))
        };
        let Ok((file, memory)) = made() else { return Ok(None) };
        SharedPage::registered(device, memory, name, Some(file))
    }

    /// The page of this name; `None` where it cannot be opened.
    ///
    /// # Errors
    /// As [`SharedPage::new`].
    pub fn open(device: &Arc<CudaDevice>, name: u64) -> Result<Option<SharedPage>, Error> {
        let path = Path::new(FOLDER).join(file_name(name));
        let file = std::fs::File::options().read(true).write(true).open(path);
        let Ok(memory) = file.and_then(|file| MmapOptions::new().map_raw(&file)) else { return Ok(None) };
        SharedPage::registered(device, memory, name, None)
    }

    fn registered(
        device: &Arc<CudaDevice>,
        memory: MmapRaw,
        name: u64,
        file: Option<NamedTempFile>,
    ) -> Result<Option<SharedPage>, Error> {
        let start = memory.as_mut_ptr().cast();
        // SAFETY: the mapping is as long as that, and is taken out of the device's hands before it goes.
        let result =
            device.with_current(|| unsafe { sys::cuMemHostRegister_v2(start, memory.len(), DEVICE_MAP) })?;
        if result != CUresult::CUDA_SUCCESS {
            return Ok(None);
        }
        let mut page = SharedPage { memory, address: 0, name, file, device: device.clone() };
        // SAFETY: writes one address where it is told to; the memory is registered.
        let found = device
            .with_current(|| unsafe { sys::cuMemHostGetDevicePointer_v2(&mut page.address, start, 0) })?;
        Ok((found == CUresult::CUDA_SUCCESS).then_some(page))
    }

    /// What others open it by.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Lets nobody else open it.
    pub fn close(&mut self) {
        self.file = None;
    }

    /// Its first byte, as the device reaches it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The word that starts `offset` bytes, a multiple of 4, behind the page's start.
    ///
    /// # Panics
    /// Where that is no word of the page.
    pub fn word(&self, offset: u64) -> &AtomicU32 {
        let offset = offset as usize;
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.memory.len(), "no word at {offset}");
        // SAFETY: four aligned bytes of the mapping, which lives as long as self; all that touches them does so a word at a time.
        unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().add(offset).cast()) }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        let start = self.memory.as_mut_ptr().cast();
        // SAFETY: registered once, given back once. A drop cannot report an error.
        let _ = self.device.with_current(|| unsafe { sys::cuMemHostUnregister(start) });
    }
}

fn file_name(name: u64) -> String {
    format!("ferroflash-{name:016x}")
}
