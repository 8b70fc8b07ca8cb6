//! The native module of the Python package: devices, and calls on tensors by their addresses.
//!
//! The package's Python files know tensors, streams and flash-attn's arguments; here they are plain numbers.

mod again;
mod exchange;
mod simulator;
mod torch;

use ferroflash::DeviceModel;
use ferroflash_call::error::Code;
use ferroflash_call::{
    Alibi, Append, Backward, Bias, Call, Dropout, Dtype, Engine, Error, Lengths, Merge, Pages, Rotary, Sizes,
    Tensor, Tree, lacking,
};
use pyo3::exceptions::{PyMemoryError, PyNotImplementedError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

/// Address of the first element, and the strides of sequences, heads and rows in elements.
type TensorArgs = (u64, i64, i64, i64);
/// Addresses of 32-bit integers: cu_seqlens_q, cu_seqlens_k, keys used, first key, cache entry; and how many cache entries there are.
type LengthArgs = (Option<u64>, Option<u64>, Option<u64>, Option<u64>, Option<u64>, usize);
/// Addresses of cosines and sines, their rows, elements that are rotated, interleaved, each query, starts.
type RotaryArgs = (u64, u64, usize, usize, bool, bool, Option<u64>);

/// One call in numbers, as `_call.py` makes it.
#[derive(FromPyObject)]
struct Args {
    dtype: String,
    sizes: (usize, usize, usize, usize, usize, usize),
    head_dim_v: usize,
    q: TensorArgs,
    k: TensorArgs,
    v: TensorArgs,
    o: TensorArgs,
    lse: Option<u64>,
    scale: Option<f64>,
    window: (Option<usize>, Option<usize>),
    softcap: f64,
    alibi: Option<(u64, i64)>,
    bias: Option<(u64, [bool; 3])>,
    dropout: Option<(f64, u64, u64)>,
    sinks: Option<u64>,
    intervals: Option<u64>,
    chunk: usize,
    tree: Option<(u64, usize)>,
    lengths: LengthArgs,
    longest: (usize, usize),
    pages: Option<(u64, i64, usize, usize)>,
    splits: u32,
}

impl Args {
    fn call(&self) -> PyResult<Call> {
        let dtype = dtype(&self.dtype)?;
        let (batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim) = self.sizes;
        let (longest_q, longest_k) = self.longest;
        let sizes = Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim };
        let softcap = self.softcap as f32;
        if softcap == 0.0 && self.softcap != 0.0 {
            let message =
                format!("softcap {:?} cannot be used: in float32 it is 0, which is none", self.softcap);
            return Err(PyValueError::new_err(message));
        }
        Ok(Call {
            dtype,
            sizes,
            head_dim_v: self.head_dim_v,
            q: tensor(self.q),
            k: tensor(self.k),
            v: tensor(self.v),
            o: tensor(self.o),
            lse: self.lse,
            scale: self.scale,
            window_left: self.window.0,
            window_right: self.window.1,
            softcap,
            alibi: self.alibi.map(|(slopes, stride)| Alibi { slopes, stride }),
            bias: self.bias.map(|(values, own)| Bias { values, own }),
            dropout: self.dropout.map(|(p, seed, offset)| Dropout { p: p as f32, seed, offset }),
            sinks: self.sinks,
            intervals: self.intervals,
            chunk: (self.chunk > 0).then_some(self.chunk),
            tree: self.tree.map(|(bits, keys)| Tree { bits, keys }),
            lengths: Lengths { longest_q, longest_k, ..lengths(self.lengths) },
            pages: self.pages.map(pages),
            splits: NonZeroU32::new(self.splits),
        })
    }
}

fn tensor((address, batch, head, row): TensorArgs) -> Tensor {
    Tensor { address, strides: [batch, head, row] }
}

fn pages((table, stride, page_size, count): (u64, i64, usize, usize)) -> Pages {
    Pages { table, stride, page_size, count }
}

fn lengths((cumulative_q, cumulative_k, used_k, first_k, entry_k, entries_k): LengthArgs) -> Lengths {
    Lengths { cumulative_q, cumulative_k, used_k, first_k, entry_k, entries_k, ..Lengths::default() }
}

fn dtype(name: &str) -> PyResult<Dtype> {
    match name {
        "float16" => Ok(Dtype::F16),
        "bfloat16" => Ok(Dtype::Bf16),
        "float32" => Ok(Dtype::F32),
        "float64" => Ok(Dtype::F64),
        other => {
            let message = format!(
                "dtype {other} is not supported: float16, bfloat16, or on the CPU float32 and float64"
            );
            Err(PyNotImplementedError::new_err(message))
        }
    }
}

/// Gradients of a call in numbers, as `_gradients.py` makes them.
#[derive(FromPyObject)]
struct BackwardArgs {
    forward: Args,
    d_o: TensorArgs,
    d_lse: Option<u64>,
    d_q: TensorArgs,
    d_k: TensorArgs,
    d_v: TensorArgs,
    d_sinks: Option<u64>,
    d_bias: Option<u64>,
    ds_bytes_max: Option<u64>,
}

impl BackwardArgs {
    fn backward(&self) -> PyResult<Backward> {
        Ok(Backward {
            call: self.forward.call()?,
            d_o: tensor(self.d_o),
            d_lse: self.d_lse,
            d_q: tensor(self.d_q),
            d_k: tensor(self.d_k),
            d_v: tensor(self.d_v),
            d_sinks: self.d_sinks,
            d_bias: self.d_bias,
            ds_bytes_max: self.ds_bytes_max,
        })
    }
}

/// A call that appends, in numbers.
#[derive(FromPyObject)]
struct AppendArgs {
    dtype: String,
    sizes: (usize, usize, usize, usize, usize, usize),
    tokens: usize,
    new_k: TensorArgs,
    new_v: TensorArgs,
    k: TensorArgs,
    v: TensorArgs,
    q: TensorArgs,
    rotated_q: TensorArgs,
    cumulative_new: Option<u64>,
    lengths: LengthArgs,
    lengths_after: Option<u64>,
    pages: Option<(u64, i64, usize, usize)>,
    rotary: Option<RotaryArgs>,
}

impl AppendArgs {
    fn append(&self) -> PyResult<Append> {
        let (batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim) = self.sizes;
        let rotary = |(cos, sin, positions, dim, interleaved, each_query, starts)| Rotary {
            cos,
            sin,
            positions,
            dim,
            interleaved,
            each_query,
            starts,
        };
        Ok(Append {
            dtype: dtype(&self.dtype)?,
            sizes: Sizes { batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim },
            tokens: self.tokens,
            new_k: tensor(self.new_k),
            new_v: tensor(self.new_v),
            k: tensor(self.k),
            v: tensor(self.v),
            q: [tensor(self.q), tensor(self.rotated_q)],
            cumulative_new: self.cumulative_new,
            lengths: lengths(self.lengths),
            lengths_after: self.lengths_after,
            pages: self.pages.map(pages),
            rotary: self.rotary.map(rotary),
        })
    }
}

/// O and LSE of calls to be merged, of which the second ones' addresses say how far apart all are, in numbers: types, `[batch, heads, rows, width]`, strides of both, and addresses.
#[derive(FromPyObject)]
struct MergeArgs {
    partial: String,
    dtype: String,
    states: usize,
    sizes: (usize, usize, usize, usize),
    partial_strides: (i64, i64, i64),
    strides: (i64, i64, i64),
    a: (u64, u64),
    b: (u64, u64),
    o: u64,
    lse: u64,
}

impl MergeArgs {
    fn merge(&self) -> PyResult<Merge> {
        let (batch, heads, rows, width) = self.sizes;
        let tensor = |address, (batch, head, row)| Tensor { address, strides: [batch, head, row] };
        Ok(Merge {
            states: self.states,
            batch,
            heads,
            rows,
            width,
            partial_dtype: dtype(&self.partial)?,
            dtype: dtype(&self.dtype)?,
            partial_o: tensor(self.a.0, self.partial_strides),
            partial_lse: self.a.1,
            next_o: self.b.0,
            next_lse: self.b.1,
            o: tensor(self.o, self.strides),
            lse: Some(self.lse),
        })
    }
}

/// A device that was opened.
#[pyclass(frozen, module = "ferroflash._native")]
struct Device(Arc<Engine>);

#[pymethods]
impl Device {
    /// The CPU, by float32 loops.
    #[staticmethod]
    fn cpu() -> Device {
        Device(Arc::new(Engine::Cpu))
    }

    /// A GPU, counted from 0.
    #[staticmethod]
    fn cuda(py: Python<'_>, ordinal: u32, folder: Option<PathBuf>) -> PyResult<Device> {
        py.detach(|| Engine::cuda(ordinal, folder)).map(opened).map_err(raised)
    }

    /// The simulator of a GPU.
    #[staticmethod]
    fn simulator(py: Python<'_>, folder: Option<PathBuf>, model: Option<&str>) -> PyResult<Device> {
        let model = model.map(found).transpose()?;
        py.detach(|| Engine::simulator(folder, model)).map(opened).map_err(raised)
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

    /// Refuses a call whose gradients the device does not compute.
    fn check_gradients(&self, args: Args) -> PyResult<()> {
        self.0.check_gradients(&args.call()?).map_err(raised)
    }

    /// Computes gradients, as `forward` computes a call.
    fn backward(&self, py: Python<'_>, args: BackwardArgs, stream: u64, wants_memory: bool) -> PyResult<u64> {
        let (Device(engine), backward) = (self, args.backward()?);
        let started = || {
            if wants_memory {
                let missing = engine.missing_backward_workspace(&backward, stream)?;
                if missing > 0 {
                    return Ok(missing);
                }
            }
            // SAFETY: as for `forward`.
            unsafe { engine.backward(&backward, stream) }.map(|()| 0)
        };
        py.detach(started).map_err(raised)
    }

    /// Appends new keys and values to a cache; on a GPU enqueues it.
    fn append(&self, py: Python<'_>, args: AppendArgs, stream: u64) -> PyResult<()> {
        let (Device(engine), append) = (self, args.append()?);
        // SAFETY: as for `forward`.
        py.detach(|| unsafe { engine.append(&append, stream) }).map_err(raised)
    }

    /// Merges O and LSE of several calls; on a GPU enqueues it.
    fn merge(&self, py: Python<'_>, args: MergeArgs, stream: u64) -> PyResult<()> {
        let Device(engine) = self;
        let merge = args.merge()?;
        // SAFETY: as for `forward`.
        py.detach(|| unsafe { engine.merge(&merge, stream) }).map_err(raised)
    }

    /// Whether calls may say which key of each sequence is the first that counts.
    #[getter]
    fn takes_first_keys(&self) -> bool {
        self.0.takes_first_keys()
    }

    /// Gives a stream memory to work in, which holds zeros.
    fn give_workspace(&self, stream: u64, address: u64, bytes: u64) -> PyResult<()> {
        let Device(engine) = self;
        // SAFETY: the package allocates it for this and keeps it.
        unsafe { engine.give_zeroed_workspace(stream, address, bytes) }.map_err(raised)
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

fn opened(engine: Engine) -> Device {
    Device(Arc::new(engine))
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
    module.add_class::<again::Calls>()?;
    module.add_class::<simulator::SimModule>()?;
    module.add("Finding", module.py().get_type::<simulator::Finding>())?;
    module.add_function(wrap_pyfunction!(explain_model, module)?)?;
    module.add("LACKING_ON_GPU", lacking::names().collect::<Vec<_>>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
