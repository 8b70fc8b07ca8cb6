//! What the benchmarks share: problems, kernels, a device that does nothing, and the run on a GPU.

pub mod device_time;
pub mod kernels;
pub mod null_device;
pub mod problems;
