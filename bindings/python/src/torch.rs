//! What PyTorch is asked before a call is started without it, and the outputs that it makes.

use crate::again::OutputShape;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyTuple, PyType};

/// PyTorch's functions, found once.
pub(crate) struct Torch {
    tensor: Py<PyType>,
    is_grad_enabled: Py<PyAny>,
    is_autocast_enabled: Py<PyAny>,
    modes: Py<PyAny>,
    transforms: Py<PyAny>,
    tracing: Py<PyAny>,
    is_negated: Py<PyAny>,
    empty_like: Py<PyAny>,
    /// `memory_format=torch.contiguous_format`.
    contiguous: Py<PyDict>,
    /// `dtype=torch.float32` and `dtype=torch.float64`.
    of_lse: [Py<PyDict>; 2],
}

impl Torch {
    /// The functions of the module `torch`.
    ///
    /// # Errors
    /// `AttributeError` where it lacks one.
    pub(crate) fn new(torch: &Bound<'_, PyAny>) -> PyResult<Torch> {
        let py = torch.py();
        let (tensor, own) = (torch.getattr("Tensor")?, torch.getattr("_C")?);
        let named = |name: &str, value: &str| -> PyResult<Py<PyDict>> {
            Ok([(name, torch.getattr(value)?)].into_py_dict(py)?.unbind())
        };
        Ok(Torch {
            is_grad_enabled: torch.getattr("is_grad_enabled")?.unbind(),
            is_autocast_enabled: own.getattr("_is_any_autocast_enabled")?.unbind(),
            modes: own.getattr("_len_torch_dispatch_stack")?.unbind(),
            transforms: own.getattr("_are_functorch_transforms_active")?.unbind(),
            tracing: own.getattr("_get_tracing_state")?.unbind(),
            is_negated: tensor.getattr("is_neg")?.unbind(),
            empty_like: torch.getattr("empty_like")?.unbind(),
            contiguous: named("memory_format", "contiguous_format")?,
            of_lse: [named("dtype", "float32")?, named("dtype", "float64")?],
            tensor: tensor.cast_into::<PyType>()?.unbind(),
        })
    }

    /// Whether an object is a tensor of PyTorch's own class, not of one derived from it.
    pub(crate) fn is_tensor(&self, object: &Bound<'_, PyAny>) -> bool {
        object.get_type_ptr() == self.tensor.as_ptr().cast()
    }

    /// Whether a trace, a transform or a mode wants to see calls.
    pub(crate) fn is_watching(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.modes.bind(py).call0()?.is_truthy()?
            || self.transforms.bind(py).call0()?.is_truthy()?
            || !self.tracing.bind(py).call0()?.is_none())
    }

    pub(crate) fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_grad_enabled.bind(py).call0()?.is_truthy()
    }

    pub(crate) fn is_autocast_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_autocast_enabled.bind(py).call0()?.is_truthy()
    }

    pub(crate) fn requires_grad(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()
    }

    /// Whether a tensor is negated when it is read, as the imaginary part of a conjugate is.
    pub(crate) fn is_negated(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.is_negated.bind(tensor.py()).call1((tensor,))?.is_truthy()
    }

    /// O and LSE of a call, not filled.
    pub(crate) fn outputs<'py>(
        &self,
        q: &Bound<'py, PyAny>,
        shape: &OutputShape<'_>,
    ) -> PyResult<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let py = q.py();
        let (width_q, outer) = shape.q.split_last().unwrap_or((&0, &[]));
        let empty_like = self.empty_like.bind(py);
        // In half the time of a tensor of another shape.
        let o = match (*width_q == shape.width, shape.contiguous) {
            (true, true) => empty_like.call1((q,))?,
            (true, false) => empty_like.call((q,), Some(self.contiguous.bind(py)))?,
            (false, _) => {
                let sizes = PyTuple::new(py, [outer, &[shape.width]].concat())?;
                q.call_method1(intern!(py, "new_empty"), (sizes,))?
            }
        };
        let lse = match shape.q {
            &[batch, rows, heads, _] if shape.lse => {
                let dtype = self.of_lse[usize::from(shape.lse_bits() == 64)].bind(py);
                Some(q.call_method(intern!(py, "new_empty"), ((batch, heads, rows),), Some(dtype))?)
            }
            _ => None,
        };
        Ok((o, lse))
    }
}
