//! What PyTorch is asked before a call is started without it, and the outputs that it makes.

use crate::again::{Order, OutputShape};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyTuple, PyType};
use pyo3::{ffi, intern};

/// PyTorch's functions, found once.
pub(crate) struct Torch {
    tensor: Py<PyType>,
    is_grad_enabled: Question,
    is_autocast_enabled: Question,
    modes: Question,
    transforms: Question,
    tracing: Question,
    is_negated: Question,
    /// The module that says whether tangents are carried along.
    forward_mode: Py<PyAny>,
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
        let sample = torch.call_method1("empty", (0,))?;
        Ok(Torch {
            is_grad_enabled: Question::of(torch, "is_grad_enabled")?,
            is_autocast_enabled: Question::of(&own, "_is_any_autocast_enabled")?,
            modes: Question::of(&own, "_len_torch_dispatch_stack")?,
            transforms: Question::of(&own, "_are_functorch_transforms_active")?,
            tracing: Question::of(&own, "_get_tracing_state")?,
            is_negated: Question::of(&sample, "is_neg")?,
            forward_mode: torch.getattr("autograd")?.getattr("forward_ad")?.unbind(),
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

    /// Whether a trace, a transform, a mode or forward-mode differentiation wants to see calls.
    pub(crate) fn is_watching(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.modes.ask(py)?.is_truthy()?
            || self.transforms.ask(py)?.is_truthy()?
            || !self.tracing.ask(py)?.is_none()
            || self.forward_mode.bind(py).getattr(intern!(py, "_current_level"))?.extract::<i64>()? >= 0)
    }

    pub(crate) fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_grad_enabled.ask(py)?.is_truthy()
    }

    pub(crate) fn is_autocast_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        self.is_autocast_enabled.ask(py)?.is_truthy()
    }

    pub(crate) fn requires_grad(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()
    }

    /// Whether a tensor is negated when it is read, as the imaginary part of a conjugate is.
    pub(crate) fn is_negated(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.is_negated.ask_of(tensor)?.is_truthy()
    }

    /// O and LSE of a call, not filled.
    pub(crate) fn outputs<'py>(
        &self,
        q: &Bound<'py, PyAny>,
        shape: &OutputShape<'_>,
    ) -> PyResult<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let py = q.py();
        let (width_q, outer) = shape.q.split_last().unwrap_or((&0, &[]));
        if let (Order::HeadsFirst { .. }, &[batch, heads, rows, _]) = (shape.order, shape.q) {
            let (sizes, width) = ((batch, heads, rows, shape.width), shape.width);
            let strides = (rows * heads * width, width, heads * width, 1);
            return Ok((q.call_method1(intern!(py, "new_empty_strided"), (sizes, strides))?, None));
        }
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

/// A function of PyTorch, or a method of its tensors, that takes no arguments.
struct Question {
    function: Py<PyAny>,
    name: String,
    /// The function in C, where it is one that takes none: called by its address it answers in a third of the time, as no tuple of arguments is made.
    direct: Option<ffi::PyCFunction>,
}

impl Question {
    /// The function of this name, or the method of objects of the class of `owner`.
    fn of(owner: &Bound<'_, PyAny>, name: &str) -> PyResult<Question> {
        let function = owner.getattr(name)?;
        // SAFETY: an exact instance of the type of functions in C.
        let direct = unsafe {
            let is_builtin = ffi::PyCFunction_CheckExact(function.as_ptr()) != 0;
            let takes_none = is_builtin && ffi::PyCFunction_GetFlags(function.as_ptr()) == ffi::METH_NOARGS;
            if takes_none { ffi::PyCFunction_GetFunction(function.as_ptr()) } else { None }
        };
        Ok(Question { function: function.unbind(), name: name.to_owned(), direct })
    }

    /// A function's answer.
    fn ask<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some(direct) = self.direct else { return self.function.bind(py).call0() };
        // SAFETY: a function of METH_NOARGS is called with its module and null, and returns a new reference, or null with an exception. The function
        // holds its module.
        unsafe {
            let answer = direct(ffi::PyCFunction_GetSelf(self.function.as_ptr()), std::ptr::null_mut());
            Bound::from_owned_ptr_or_err(py, answer)
        }
    }

    /// A method's answer for an object of the class that it was looked up at.
    fn ask_of<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some(direct) = self.direct else { return object.call_method0(self.name.as_str()) };
        // SAFETY: a method of METH_NOARGS is called with its object and null, and returns a new reference, or null with an exception.
        unsafe { Bound::from_owned_ptr_or_err(object.py(), direct(object.as_ptr(), std::ptr::null_mut())) }
    }
}
