//! The native module of the Python package: devices, and calls on tensors by their addresses.
//!
//! The package's Python files know tensors, streams and flash-attn's arguments; here they are plain numbers.

mod simulator;

use ferroflash::DeviceModel;
use ferroflash_call::error::Code;
use ferroflash_call::{Alibi, Call, Dtype, Engine, Error, Lengths, Pages, Sizes, Tensor, lacking};
use pyo3::exceptions::{PyMemoryError, PyNotImplementedError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;

/// Address of the first element, and the strides of sequences, heads and rows in elements.
type TensorArgs = (u64, i64, i64, i64);
/// Addresses of 32-bit integers: cu_seqlens_q, cu_seqlens_k, keys used, first key, cache entry.
type LengthArgs = (Option<u64>, Option<u64>, Option<u64>, Option<u64>, Option<u64>);

/// One call in numbers, as `_call.py` makes it.
#[derive(FromPyObject)]
struct Args {
    dtype: String,
    sizes: (usize, usize, usize, usize, usize, usize),
    q: TensorArgs,
    k: TensorArgs,
    v: TensorArgs,
    o: TensorArgs,
    lse: Option<u64>,
    scale: Option<f32>,
    window: (Option<usize>, Option<usize>),
    softcap: f32,
    alibi: Option<(u64, i64)>,
    sinks: Option<u64>,
    lengths: LengthArgs,
    longest: (usize, usize),
    pages: Option<(u64, i64, usize, usize)>,
}

impl Args {
    fn call(&self) -> PyResult<Call> {
        let dtype = match self.dtype.as_str() {
            "float16" => Dtype::F16,
            "bfloat16" => Dtype::Bf16,
            "float32" => Dtype::F32,
            other => {
                let message =
                    format!("dtype {other} is not supported: float16, bfloat16, or on the CPU float32");
                return Err(PyNotImplementedError::new_err(message));
            }
        };
        let (batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim) = self.sizes;
        let (cumulative_q, cumulative_k, used_k, first_k, entry_k) = self.lengths;
        let (longest_q, longest_k) = self.longest;
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        let tensor = |(address, batch, head, row)| Tensor { address, strides: [batch, head, row] };
        let pages = |(table, stride, page_size, count)| Pages { table, stride, page_size, count };
        Ok(Call {
            dtype,
            sizes,
            q: tensor(self.q),
            k: tensor(self.k),
            v: tensor(self.v),
            o: tensor(self.o),
            lse: self.lse,
            scale: self.scale,
            window_left: self.window.0,
            window_right: self.window.1,
            softcap: self.softcap,
            alibi: self.alibi.map(|(slopes, stride)| Alibi { slopes, stride }),
            sinks: self.sinks,
            lengths: Lengths { cumulative_q, cumulative_k, longest_q, longest_k, used_k, first_k, entry_k },
            pages: self.pages.map(pages),
        })
    }
}

/// A device that was opened.
#[pyclass(frozen, module = "ferroflash._native")]
struct Device(Engine);

#[pymethods]
impl Device {
    /// The CPU, by float32 loops.
    #[staticmethod]
    fn cpu() -> Device {
        Device(Engine::Cpu)
    }

    /// A GPU, counted from 0.
    #[staticmethod]
    fn cuda(py: Python<'_>, ordinal: u32, folder: Option<PathBuf>) -> PyResult<Device> {
        py.detach(|| Engine::cuda(ordinal, folder)).map(Device).map_err(raised)
    }

    /// The simulator of a GPU.
    #[staticmethod]
    fn simulator(py: Python<'_>, folder: Option<PathBuf>, model: Option<&str>) -> PyResult<Device> {
        let model = model.map(found).transpose()?;
        py.detach(|| Engine::simulator(folder, model)).map(Device).map_err(raised)
    }

    /// Computes a call; on a GPU enqueues it. With `wants_memory` a call that lacks a workspace is not started, and the bytes that it
    /// lacks are returned; 0 where it was started.
    fn forward(&self, py: Python<'_>, args: Args, stream: u64, wants_memory: bool) -> PyResult<u64> {
        let (Device(engine), call) = (self, args.call()?);
        let started = || {
            if wants_memory {
                let missing = engine.missing_workspace(&call, stream)?;
                if missing > 0 {
                    return Ok(missing);
                }
            }
            // SAFETY: the package takes addresses of tensors that it keeps until the call is enqueued; the framework's allocator keeps
            // their memory until the stream's work is done. Sizes and strides are the tensors' own.
            unsafe { engine.forward(&call, stream) }.map(|()| 0)
        };
        py.detach(started).map_err(raised)
    }

    /// Gives a stream memory to work in.
    fn give_workspace(&self, stream: u64, address: u64, bytes: u64) -> PyResult<()> {
        let Device(engine) = self;
        // SAFETY: the package allocates it for this and keeps it.
        unsafe { engine.give_workspace(stream, address, bytes) }.map_err(raised)
    }

    /// What would be launched, and why.
    fn explain(&self, args: Args) -> PyResult<String> {
        let Device(engine) = self;
        engine.explain(&args.call()?).map_err(raised)
    }
}

/// What would be launched on a GPU of this model, and why.
#[pyfunction]
fn explain_model(model: &str, args: Args) -> PyResult<String> {
    ferroflash_call::explain_model(found(model)?, &args.call()?).map_err(raised)
}

fn found(model: &str) -> PyResult<&'static DeviceModel> {
    DeviceModel::find(model).ok_or_else(|| {
        let names: Vec<&str> = ferroflash::device::model::MODELS.iter().map(|model| model.name).collect();
        PyValueError::new_err(format!("device model {model:?} is not known: {}", names.join(", ")))
    })
}

fn raised(error: Error) -> PyErr {
    let message = error.to_string();
    match error.code() {
        Code::Invalid => PyValueError::new_err(message),
        Code::Unsupported => PyNotImplementedError::new_err(message),
        Code::OutOfMemory => PyMemoryError::new_err(message),
        Code::NoDevice | Code::Failed => PyRuntimeError::new_err(message),
    }
}

/// The native module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Device>()?;
    module.add_class::<simulator::SimModule>()?;
    module.add("Finding", module.py().get_type::<simulator::Finding>())?;
    module.add_function(wrap_pyfunction!(explain_model, module)?)?;
    module.add("LACKING_ON_GPU", lacking::names().collect::<Vec<_>>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
