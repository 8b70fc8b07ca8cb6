//! Tensors on a GPU. Tensors of one candle device are used on that device's one stream, which orders their readers and writers.

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr, ValidAsZeroBits};
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorage};
use candle_core::{DType, DeviceLocation, Result, bail};
use ferroflash_call::Engine;
use half::{bf16, f16};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

pub(super) fn address(storage: &CudaStorage, dtype: DType) -> Result<u64> {
    match dtype {
        DType::F16 => of_slice::<f16>(storage),
        DType::BF16 => of_slice::<bf16>(storage),
        DType::F32 => of_slice::<f32>(storage),
        DType::U32 => of_slice::<u32>(storage),
        DType::I32 => of_slice::<i32>(storage),
        _ => bail!("tensors of this type are not supported"),
    }
}

fn of_slice<T: CudaDType + DeviceRepr>(storage: &CudaStorage) -> Result<u64> {
    Ok(pointer(storage.as_cuda_slice::<T>()?, &storage.device))
}

fn pointer<T: DeviceRepr>(slice: &CudaSlice<T>, device: &CudaDevice) -> u64 {
    let stream = device.cuda_stream();
    let (pointer, _sync) = slice.device_ptr(&stream);
    pointer
}

/// A fresh storage and its address.
pub(super) fn fresh(
    device: &CudaDevice,
    dtype: DType,
    elements: usize,
    zeroed: bool,
) -> Result<(CudaStorage, u64)> {
    match dtype {
        DType::F16 => fresh_of::<f16>(device, elements, zeroed),
        DType::BF16 => fresh_of::<bf16>(device, elements, zeroed),
        DType::F32 => fresh_of::<f32>(device, elements, zeroed),
        other => bail!("tensors of type {other:?} are not supported"),
    }
}

fn fresh_of<T: CudaDType + DeviceRepr + ValidAsZeroBits>(
    device: &CudaDevice,
    elements: usize,
    zeroed: bool,
) -> Result<(CudaStorage, u64)> {
    let slice = match zeroed {
        true => device.alloc_zeros::<T>(elements)?,
        // SAFETY: the kernels write every row that belongs to a sequence, and nothing else is read.
        false => unsafe { device.alloc::<T>(elements)? },
    };
    let address = pointer(&slice, device);
    Ok((CudaStorage::wrap_cuda_slice(slice, device.clone()), address))
}

/// The GPU's engine, opened at its first use and kept.
pub(super) fn engine(device: &CudaDevice) -> Result<&'static Engine> {
    static OPENED: Mutex<Option<HashMap<usize, &'static Engine>>> = Mutex::new(None);
    let DeviceLocation::Cuda { gpu_id } = device.location() else { bail!("the device is no GPU") };
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = opened.get_or_insert_default();
    if let Some(engine) = opened.get(&gpu_id) {
        return Ok(engine);
    }
    let engine = Engine::cuda(gpu_id as u32, None).map_err(candle_core::Error::wrap)?;
    let engine: &'static Engine = Box::leak(Box::new(engine));
    opened.insert(gpu_id, engine);
    Ok(engine)
}
