//! Gradients of a call as a call of the library.

use crate::error::Error;
use crate::problem::{device_tensors, problem};
use ferroflash::{BackwardTensors, ElementStrides, TensorRole};
use ferroflash_cpu::{Backward, Call, Tensor};

/// The gradients of a problem, in the strides of their tensors, on the device of this name.
///
/// # Errors
/// [`Error::Unsupported`], [`Error::TooLarge`], [`Error::Library`] where no kernel computes them.
pub(crate) fn gradients(backward: &Backward, device: &'static str) -> Result<ferroflash::Backward, Error> {
    let of = |gradients: ferroflash::Backward, (role, tensor): (TensorRole, Tensor)| {
        let [batch, head, row] = tensor.strides;
        gradients.with_strides(role, ElementStrides { batch, head, row, dim: 1 })
    };
    let tensors = [
        (TensorRole::O, backward.d_o),
        (TensorRole::Q, backward.d_q),
        (TensorRole::K, backward.d_k),
        (TensorRole::V, backward.d_v),
    ];
    let mut gradients = gradients_of(&backward.call, device)?;
    if let Some(bytes) = backward.ds_bytes_max {
        gradients = gradients.with_ds_bytes_max(bytes);
    }
    Ok(tensors.into_iter().try_fold(gradients, of)?)
}

/// The gradients of a call, wherever they lie.
///
/// # Errors
/// Those of [`gradients`].
pub(crate) fn gradients_of(call: &Call, device: &'static str) -> Result<ferroflash::Backward, Error> {
    call.check_gradients()?;
    Ok(ferroflash::Backward::new(&problem(call, device)?)?)
}

/// The addresses, which are of the device.
pub(crate) fn backward_tensors(backward: &Backward) -> BackwardTensors {
    let into = [backward.d_q.address, backward.d_k.address, backward.d_v.address];
    BackwardTensors::new(device_tensors(&backward.call), backward.d_o.address, into)
        .with_d_lse(backward.d_lse)
        .with_d_sinks(backward.d_sinks)
        .with_d_bias(backward.d_bias)
}
