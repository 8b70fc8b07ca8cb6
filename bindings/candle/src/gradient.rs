//! What was computed, as an operator of candle's, so that `Tensor::backward` reaches its gradients.

use candle_core::{CpuStorage, CudaStorage, CustomOp3, Error, Layout, Result, Shape, Storage, Tensor};
use std::sync::{Mutex, PoisonError};

/// The gradients of an operator's three tensors, from that of its result.
pub(crate) type Gradients = dyn Fn(&Tensor) -> Result<[Tensor; 3]> + Send + Sync;

/// An operator of three tensors. Candle hands operators three storages and takes one from them, which is less than a call has; so the call
/// is computed before, and the operator hands its result over.
struct Computed {
    name: &'static str,
    shape: Shape,
    storage: Mutex<Option<Storage>>,
    gradients: Option<Box<Gradients>>,
}

/// A tensor of a storage that was computed from three others. Without `gradients` a backward pass that comes to it fails, by its name.
pub(crate) fn computed(
    name: &'static str,
    from: [&Tensor; 3],
    (storage, shape): (Storage, &[usize]),
    gradients: Option<Box<Gradients>>,
) -> Result<Tensor> {
    let shape = Shape::from(shape);
    let operator = Computed { name, shape, storage: Mutex::new(Some(storage)), gradients };
    from[0].apply_op3(from[1], from[2], operator)
}

impl Computed {
    fn taken(&self) -> Result<Storage> {
        let mut storage = self.storage.lock().unwrap_or_else(PoisonError::into_inner);
        storage
            .take()
            .ok_or_else(|| Error::msg(format!("{} was computed once, and is asked for twice", self.name)))
    }

    fn elsewhere(&self) -> Error {
        Error::msg(format!("{} was computed on another device", self.name))
    }
}

impl CustomOp3 for Computed {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        match self.taken()? {
            Storage::Cpu(storage) => Ok((storage, self.shape.clone())),
            _ => Err(self.elsewhere()),
        }
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        match self.taken()? {
            Storage::Cuda(storage) => Ok((storage, self.shape.clone())),
            _ => Err(self.elsewhere()),
        }
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let Some(gradients) = &self.gradients else {
            return Err(Error::BackwardNotSupported { op: self.name });
        };
        let [first, second, third] = gradients(gradient)?;
        Ok((Some(first), Some(second), Some(third)))
    }
}
