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

    /// Its address and strides as the call has them.
    pub(crate) fn tensor(&self) -> ferroflash_call::Tensor {
        placed(self.address, self.layout)
    }
}

/// A tensor of three or four dimensions at an address, as the call has it.
pub(crate) fn placed(address: u64, layout: &Layout) -> ferroflash_call::Tensor {
    let stride = |index: usize| layout.stride()[index] as i64;
    let strides = match layout.stride().len() {
        3 => [0, stride(1), stride(0)],
        _ => [stride(0), stride(2), stride(1)],
    };
    ferroflash_call::Tensor { address, strides }
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

/// A tensor to be computed.
pub(crate) struct Output<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    pub(crate) rest: Rest,
}

/// What elements hold that no sequence's rows are.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Rest {
    Zero,
    /// Zero on the CPU, anything on a GPU.
    Any,
    /// −∞ on the CPU, anything on a GPU.
    AnyLse,
}

/// Contiguous storages, filled by `compute`, which gets their addresses.
pub(crate) fn outputs<const N: usize>(
    device: &Device,
    outputs: [Output<'_>; N],
    compute: impl FnOnce([u64; N]) -> Result<()>,
) -> Result<[Storage; N]> {
    let (mut addresses, mut storages) = ([0; N], Vec::with_capacity(N));
    for (address, output) in addresses.iter_mut().zip(&outputs) {
        let (storage, at) = output.made(device)?;
        *address = at;
        storages.push(storage);
    }
    compute(addresses)?;
    storages.try_into().map_err(|_| candle_core::Error::msg("outputs were lost"))
}

impl Output<'_> {
    fn made(&self, device: &Device) -> Result<(Storage, u64)> {
        let elements = self.shape.iter().product();
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = device {
            let (storage, address) = cuda::fresh(device, self.dtype, elements, self.rest == Rest::Zero)?;
            return Ok((Storage::Cuda(storage), address));
        }
        let _ = device;
        let fill = if self.rest == Rest::AnyLse { f32::NEG_INFINITY } else { 0.0 };
        let (storage, address) = match self.dtype {
            DType::F16 => filled(f16::from_f32(fill), elements, CpuStorage::F16),
            DType::BF16 => filled(bf16::from_f32(fill), elements, CpuStorage::BF16),
            DType::F32 => filled(fill, elements, CpuStorage::F32),
            other => bail!("tensors of type {other:?} are not supported"),
        };
        Ok((Storage::Cpu(storage), address))
    }
}

fn filled<T: Clone>(value: T, elements: usize, storage: impl Fn(Vec<T>) -> CpuStorage) -> (CpuStorage, u64) {
    let mut values = vec![value; elements];
    let address = values.as_mut_ptr() as u64;
    (storage(values), address)
}

/// A tensor of a storage, without a history.
pub(crate) fn plain(storage: Storage, shape: &[usize]) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
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
