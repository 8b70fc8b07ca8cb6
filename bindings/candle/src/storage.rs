//! Candle's storages by address, outputs, streams, and the device that computes.

#[cfg(feature = "cuda")]
mod cuda;

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType, Device, Layout, Result, Storage, StorageRef, Tensor, bail};
use ferroflash_call::Engine;
use half::{bf16, f16};

/// A tensor's storage, which cannot change as long as this lives, and where the tensor begins.
pub(crate) struct Held<'a> {
    pub(crate) address: u64,
    layout: &'a Layout,
    _storage: StorageRef<'a>,
}

impl<'a> Held<'a> {
    /// Q, K or V, of the same type and on the same device as Q.
    pub(crate) fn rows(tensor: &'a Tensor, name: &str, q: &Tensor) -> Result<Held<'a>> {
        let held = Held::of(tensor, name, q)?;
        if tensor.dtype() != q.dtype() {
            bail!("{name} is {:?}, Q {:?}", tensor.dtype(), q.dtype());
        }
        match held.layout.stride().last() {
            Some(1) => Ok(held),
            stride => bail!("the last dimension of {name} has stride {stride:?}, must be contiguous"),
        }
    }

    /// A contiguous tensor of one of the types and of a shape.
    pub(crate) fn plain(
        tensor: &'a Tensor,
        name: &str,
        dtypes: &[DType],
        shape: &[usize],
        q: &Tensor,
    ) -> Result<Held<'a>> {
        if tensor.dims() != shape || !dtypes.contains(&tensor.dtype()) || !tensor.is_contiguous() {
            bail!(
                "{name} is {:?} {:?}, must be contiguous {shape:?} of {dtypes:?}",
                tensor.dtype(),
                tensor.shape()
            );
        }
        Held::of(tensor, name, q)
    }

    fn of(tensor: &'a Tensor, name: &str, q: &Tensor) -> Result<Held<'a>> {
        if !tensor.device().same_device(q.device()) {
            bail!("{name} is on {:?}, Q on {:?}", tensor.device().location(), q.device().location());
        }
        let (storage, layout) = tensor.storage_and_layout();
        let base = match &*storage {
            Storage::Cpu(storage) => cpu_address(storage)?,
            #[cfg(feature = "cuda")]
            Storage::Cuda(storage) => cuda::address(storage, tensor.dtype())?,
            _ => bail!("{name} is on {:?}: the CPU and CUDA are supported", tensor.device().location()),
        };
        let address = base + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64;
        Ok(Held { address, layout, _storage: storage })
    }

    /// Its strides as the call has them.
    pub(crate) fn tensor(&self) -> ferroflash_call::Tensor {
        let stride = |index: usize| self.layout.stride()[index] as i64;
        let strides = match self.layout.stride().len() {
            3 => [0, stride(1), stride(0)],
            _ => [stride(0), stride(2), stride(1)],
        };
        ferroflash_call::Tensor { address: self.address, strides }
    }
}

fn cpu_address(storage: &CpuStorage) -> Result<u64> {
    Ok(match storage {
        CpuStorage::F16(values) => values.as_ptr() as u64,
        CpuStorage::BF16(values) => values.as_ptr() as u64,
        CpuStorage::F32(values) => values.as_ptr() as u64,
        CpuStorage::U32(values) => values.as_ptr() as u64,
        CpuStorage::I32(values) => values.as_ptr() as u64,
        _ => bail!("tensors of this type are not supported"),
    })
}

/// Fresh O as Q and LSE of a shape, filled by `compute`, which gets their addresses.
pub(crate) fn outputs(
    q: &Tensor,
    lse_shape: &[usize],
    compute: impl FnOnce(u64, u64) -> Result<()>,
) -> Result<(Tensor, Tensor)> {
    let (o_len, lse_len) = (q.elem_count(), lse_shape.iter().product::<usize>());
    let tensor = |storage, shape: &[usize]| Tensor::from_storage(storage, shape, BackpropOp::none(), false);
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = q.device() {
        let (o, lse) = cuda::outputs(device, q.dtype(), (o_len, lse_len), compute)?;
        return Ok((tensor(Storage::Cuda(o), q.dims()), tensor(Storage::Cuda(lse), lse_shape)));
    }
    let mut o = match q.dtype() {
        DType::F16 => CpuStorage::F16(vec![f16::ZERO; o_len]),
        DType::BF16 => CpuStorage::BF16(vec![bf16::ZERO; o_len]),
        _ => CpuStorage::F32(vec![0.0; o_len]),
    };
    let mut lse = vec![f32::NEG_INFINITY; lse_len];
    let address = match &mut o {
        CpuStorage::F16(values) => values.as_mut_ptr() as u64,
        CpuStorage::BF16(values) => values.as_mut_ptr() as u64,
        CpuStorage::F32(values) => values.as_mut_ptr() as u64,
        _ => bail!("tensors of this type are not supported"),
    };
    compute(address, lse.as_mut_ptr() as u64)?;
    Ok((tensor(Storage::Cpu(o), q.dims()), tensor(Storage::Cpu(CpuStorage::F32(lse)), lse_shape)))
}

/// What computes tensors of a device.
pub(crate) fn engine(device: &Device) -> Result<&'static Engine> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return cuda::engine(device);
    }
    let _ = device;
    static CPU: Engine = Engine::Cpu;
    Ok(&CPU)
}

/// The raw stream of a device; 0 on the CPU.
pub(crate) fn stream(device: &Device) -> u64 {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return device.cuda_stream().cu_stream() as u64;
    }
    let _ = device;
    0
}
