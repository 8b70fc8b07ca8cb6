//! A device that does nothing, so that what remains of a launch is the host's part.

use ferroflash::device::{Device, DeviceInfo, Launch, LoadedKernel, TensorBox};
use ferroflash::module::Image;
use ferroflash::{DeviceModel, Error, StreamHandle};
use kernels_gpu::params::TensorMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// The device. Its memory is addresses only: writes are dropped and reads leave what was there.
#[derive(Debug)]
pub struct NullDevice {
    info: DeviceInfo,
    launches: AtomicU64,
    next_address: AtomicU64,
}

impl Default for NullDevice {
    /// As large as an H200.
    fn default() -> NullDevice {
        let mut info = DeviceModel::H200.info();
        info.name = "no device".to_owned();
        NullDevice { info, launches: AtomicU64::new(0), next_address: AtomicU64::new(256) }
    }
}

impl NullDevice {
    /// Launches so far.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }
}

impl Device for NullDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory_free(&self) -> Result<u64, Error> {
        Ok(self.info.memory_bytes)
    }

    fn alloc(&self, bytes: u64) -> Result<u64, Error> {
        Ok(self.next_address.fetch_add(bytes.next_multiple_of(256), Ordering::Relaxed))
    }

    unsafe fn free(&self, _: u64) {}

    unsafe fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn fill(&self, _: u64, _: u8, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn load(&self, image: &Image) -> Result<LoadedKernel, Error> {
        Ok(LoadedKernel::new(1, image))
    }

    fn tensor_map(&self, tensor: &TensorBox) -> Result<TensorMap, Error> {
        black_box(tensor);
        Ok(TensorMap::default())
    }

    unsafe fn check_stream(&self, _: StreamHandle) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn is_capturing(&self, _: StreamHandle) -> Result<bool, Error> {
        Ok(false)
    }

    unsafe fn launch(
        &self,
        kernel: &LoadedKernel,
        launch: &Launch<'_>,
        _: StreamHandle,
    ) -> Result<(), Error> {
        // The parameters must be made, as for a device that takes them.
        black_box((kernel, launch));
        self.launches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn synchronize(&self, _: StreamHandle) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Kernels;
    use crate::problems;
    use ferroflash::{Attention, DeviceTensors};
    use std::sync::Arc;

    #[test]
    fn every_standard_problem_is_planned_and_launched_on_it() {
        let kernels = Kernels::generated().expect("written");
        let device = Arc::new(NullDevice::default());
        let attention = Attention::new(device.clone(), kernels.open().expect("valid")).expect("new enough");
        let tensors = DeviceTensors::new(256, 512, 768, 1024);
        let problems = problems::standard().expect("valid");
        for problem in &problems {
            // SAFETY: the device reads and writes nothing.
            unsafe { attention.forward_device(problem, &tensors, StreamHandle::DEFAULT) }.expect("launched");
        }
        let combined =
            problems.iter().filter(|problem| attention.plan(problem).expect("planned").combine().is_some());
        assert_eq!(device.launches(), (problems.len() + combined.count()) as u64);
    }
}
