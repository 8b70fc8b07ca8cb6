//! A device that records, and memory on it.

use super::model::DeviceModel;
use super::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A stream that no recorder takes.
pub(crate) const FOREIGN: StreamHandle = StreamHandle(0xf0);
/// A stream that is being captured.
pub(crate) const CAPTURING: StreamHandle = StreamHandle(0xc0);

/// Grid, parameters and window of a launch.
type Recorded = (u32, Vec<u8>, Option<L2Window>);

/// A device of the host's memory that records launches instead of running them.
pub(crate) struct Recorder {
    pub(crate) info: DeviceInfo,
    pub(crate) launches: Mutex<Vec<Recorded>>,
    pub(crate) loads: Mutex<Vec<String>>,
    encoded: AtomicUsize,
    /// One address space: allocation i starts at (i + 1) << 32.
    memory: Mutex<Vec<Option<Vec<u8>>>>,
}

impl Recorder {
    pub(crate) fn new(sm: u32, sm_count: u32) -> Arc<Recorder> {
        let info = DeviceInfo {
            name: "recorder".to_owned(),
            sm,
            sm_count,
            l2_bytes: 1 << 20,
            memory_bytes: 1 << 30,
            has_tensor_maps: sm >= 90,
            ..DeviceModel::L4.info()
        };
        Arc::new(Recorder::with_info(info))
    }

    pub(crate) fn with_info(info: DeviceInfo) -> Recorder {
        let (launches, loads, memory) = (Mutex::default(), Mutex::default(), Mutex::default());
        Recorder { info, launches, loads, memory, encoded: AtomicUsize::new(0) }
    }

    /// Tensor maps made so far.
    pub(crate) fn encoded(&self) -> usize {
        self.encoded.load(Ordering::Relaxed)
    }

    pub(crate) fn allocated(&self) -> usize {
        self.memory.lock().expect("unpoisoned").iter().flatten().count()
    }

    fn with<R>(&self, address: u64, bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut memory = self.memory.lock().expect("unpoisoned");
        let block = memory[(address >> 32) as usize - 1].as_mut().expect("allocated");
        let at = (address & 0xffff_ffff) as usize;
        f(&mut block[at..at + bytes])
    }
}

impl Device for Recorder {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory_free(&self) -> Result<u64, Error> {
        Ok(self.info.memory_bytes)
    }

    fn alloc(&self, bytes: u64) -> Result<u64, Error> {
        if bytes > self.info.memory_bytes {
            return Err(Error::OutOfMemory { requested: bytes, free: self.info.memory_bytes });
        }
        let mut memory = self.memory.lock().expect("unpoisoned");
        memory.push(Some(vec![0xee; bytes as usize]));
        Ok((memory.len() as u64) << 32)
    }

    unsafe fn free(&self, address: u64) {
        let mut memory = self.memory.lock().expect("unpoisoned");
        assert!(memory[(address >> 32) as usize - 1].take().is_some(), "freed twice");
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.with(address, bytes.len(), |block| block.copy_from_slice(bytes));
        Ok(())
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.with(address, bytes.len(), |block| bytes.copy_from_slice(block));
        Ok(())
    }

    unsafe fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), Error> {
        self.with(address, bytes as usize, |block| block.fill(value));
        Ok(())
    }

    fn load(&self, image: &Image) -> Result<LoadedKernel, Error> {
        let mut loads = self.loads.lock().expect("unpoisoned");
        loads.push(image.entry.clone());
        let handle = loads.len() as u64;
        Ok(LoadedKernel::new(handle, image))
    }

    /// The address and the first numbers of each list.
    fn tensor_map(&self, tensor: &TensorBox) -> Result<TensorMap, Error> {
        self.encoded.fetch_add(1, Ordering::Relaxed);
        let lists = [tensor.dims(), tensor.strides()].concat();
        let numbers = lists.into_iter().chain(tensor.box_dims().iter().map(|&length| length.into()));
        let mut map = TensorMap::default();
        for (word, number) in map.0.iter_mut().zip([tensor.address].into_iter().chain(numbers)) {
            *word = number;
        }
        Ok(map)
    }

    unsafe fn check_stream(&self, stream: StreamHandle) -> Result<(), Error> {
        if stream == FOREIGN {
            return Err(Error::ForeignStream { device: self.info.name.clone(), ordinal: 0 });
        }
        Ok(())
    }

    unsafe fn is_capturing(&self, stream: StreamHandle) -> Result<bool, Error> {
        Ok(stream == CAPTURING)
    }

    unsafe fn launch(&self, _: &LoadedKernel, launch: &Launch<'_>, _: StreamHandle) -> Result<(), Error> {
        let mut launches = self.launches.lock().expect("unpoisoned");
        launches.push((launch.grid, launch.params.to_vec(), launch.l2_window));
        drop(launches);
        // Lets another thread's launch come in between, where nothing keeps it out.
        std::thread::yield_now();
        Ok(())
    }

    unsafe fn synchronize(&self, _: StreamHandle) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn a_buffer_keeps_what_is_written_and_refuses_what_reaches_past_its_end() {
    let device = Recorder::new(80, 1);
    let buffer = Buffer::from_elements(&device, &[1u16, 2, 3]).expect("memory");
    let mut read = [0u16; 2];
    buffer.read(1, &mut read).expect("within");
    assert_eq!(read, [2, 3]);
    assert!(matches!(buffer.read(2, &mut read), Err(Error::WrongLength { expected: 3, got: 4, .. })));
    assert!(buffer.write(usize::MAX, &read).is_err());
    buffer.fill(0xff).expect("filled");
    buffer.read(0, &mut read).expect("within");
    assert_eq!(read, [0xffff; 2]);
    assert_eq!(device.allocated(), 1);
    drop(buffer);
    assert_eq!(device.allocated(), 0);
    assert!(matches!(
        Buffer::new(&device, 1 << 40),
        Err(Error::OutOfMemory { requested: 0x100_0000_0000, .. })
    ));
}
