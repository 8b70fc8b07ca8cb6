//! Tensor files in and out: safetensors, and npy for one tensor a file.

mod npy;
mod ragged;
mod safetensors;

use crate::attention::{HostTensors, OperandValues};
use crate::error::Error;
use crate::output_file::OutputFile;
use crate::problem::{Extent, Layout, Operand, Problem, QuerySequences, TensorRole};
use half::{bf16, f16};
use kernels_gpu::row::Dtype;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Element types of Q, K and V in a file.
const INPUT_DTYPES: &str = "f16, bf16 and f32 (stored results: also f64)";

/// Where Q, K and V come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// One safetensors file with tensors `q`, `k` and `v`, and `o` and `lse` where results are stored. Ragged batches have the keys of each
    /// sequence as `seqlens_k`, and [`Operand`]s by their names: with `cu_seqlens_q`, Q is `[total, heads, head_dim]`, with `block_table`
    /// K and V are pages.
    Safetensors(PathBuf),
    /// Three npy files.
    Npy {
        /// Q.
        q: PathBuf,
        /// K.
        k: PathBuf,
        /// V.
        v: PathBuf,
    },
}

/// What the caller says about the tensors. Each goes before what the file's metadata says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Order of the dimensions; default `bhsd`.
    pub layout: Option<Layout>,
    /// Softmax scale; default 1/√head_dim.
    pub scale: Option<f32>,
    /// Causal mask; default none.
    pub causal: Option<bool>,
    /// Element type to compute in; default that of the tensors, f16 for f32.
    pub dtype: Option<Dtype>,
}

/// A problem and its tensors.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inputs {
    /// The problem.
    pub problem: Problem,
    /// The layout of the tensors and of the problem.
    pub layout: Layout,
    /// Q, bits of the problem's dtype.
    pub q: Vec<u16>,
    /// K.
    pub k: Vec<u16>,
    /// V.
    pub v: Vec<u16>,
    /// The O stored beside them.
    pub stored_o: Option<Vec<f64>>,
    /// The LSE stored beside them, `[batch, heads_q, seqlen_q]`, of packed queries `[heads_q, total]`.
    pub stored_lse: Option<Vec<f64>>,
    /// Keys of each sequence, where the problem has lengths.
    pub seqlens_k: Option<Vec<u32>>,
    /// What else the problem takes.
    pub operands: Vec<(Operand, OperandValues)>,
}

impl Inputs {
    /// Q, K and V in this order, with no results beside them.
    pub fn new(problem: Problem, layout: Layout, [q, k, v]: [Vec<u16>; 3]) -> Inputs {
        let (stored_o, stored_lse, seqlens_k, operands) = (None, None, None, Vec::new());
        Inputs { problem, layout, q, k, v, stored_o, stored_lse, seqlens_k, operands }
    }

    /// What a call takes.
    pub fn tensors(&self) -> HostTensors<'_> {
        let tensors = HostTensors::new(&self.q, &self.k, &self.v).with_seqlens_k(self.seqlens_k.as_deref());
        tensors.with_operands(&self.operands)
    }
}

/// Elements as a file holds them.
#[derive(Clone, Debug, PartialEq)]
enum Elements {
    F16(Vec<u16>),
    Bf16(Vec<u16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    /// Of any integer type.
    Integers(Vec<i64>),
}

/// A tensor as a file holds it.
#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    name: &'static str,
    path: PathBuf,
    shape: Vec<usize>,
    elements: Elements,
}

/// Tensors and metadata of all files together.
struct Contents {
    qkv: [Tensor; 3],
    o: Option<Tensor>,
    lse: Option<Tensor>,
    given: Given,
    options: Options,
}

/// What a file says of a ragged batch.
#[derive(Default)]
struct Given {
    seqlens_k: Option<Tensor>,
    operands: Vec<(Operand, Tensor)>,
}

/// Reads Q, K and V and the problem they pose.
///
/// # Errors
/// [`Error::Io`], [`Error::BadTensorFile`], [`Error::MissingTensor`], [`Error::UnsupportedDtype`],
/// [`Error::DtypeMismatch`], [`Error::DtypeOverflow`], [`Error::WrongRank`], and those of [`Problem::from_shapes`].
pub fn read(source: &Source, options: &Options) -> Result<Inputs, Error> {
    let Contents { qkv, o, lse, given, options: stored } = match source {
        Source::Safetensors(path) => safetensors::read(path, options)?,
        Source::Npy { q, k, v } => {
            let qkv = [npy::read(q, "q")?, npy::read(k, "k")?, npy::read(v, "v")?];
            Contents { qkv, o: None, lse: None, given: Given::default(), options: Options::default() }
        }
    };
    let layout = options.layout.or(stored.layout);
    if let Some(ragged) = ragged::Batch::new(&qkv, given, layout)? {
        return ragged.inputs(qkv, [o, lse], options, &stored);
    }
    let layout = layout.unwrap_or_default();
    for tensor in &qkv {
        if tensor.shape.len() != 4 {
            return Err(Error::WrongRank {
                path: tensor.path.clone(),
                tensor: tensor.name.to_owned(),
                shape: tensor.shape.clone(),
                layout: layout.dimensions(),
            });
        }
    }
    let dtype = common_dtype(&qkv, options.dtype)?;
    let [q, k, v] = &qkv;
    let problem = Problem::from_shapes(&q.shape, &k.shape, &v.shape, layout, dtype)?;
    inputs(with_options(problem, options, &stored)?, layout, qkv, [o, lse])
}

/// A problem with the mask and the scale that are asked for, or stored.
fn with_options(problem: Problem, asked: &Options, stored: &Options) -> Result<Problem, Error> {
    let problem = problem.with_causal(asked.causal.or(stored.causal).unwrap_or(false));
    match asked.scale.or(stored.scale) {
        Some(scale) => problem.with_scale(scale),
        None => Ok(problem),
    }
}

/// Of a file's tensors; stored results must be of the problem.
fn inputs(
    problem: Problem,
    layout: Layout,
    qkv: [Tensor; 3],
    [o, lse]: [Option<Tensor>; 2],
) -> Result<Inputs, Error> {
    let stored_o = o.map(|o| o.into_expected("o", &o_shape(&problem, layout))).transpose()?;
    let stored_lse = lse.map(|lse| lse.into_expected("lse", &lse_shape(&problem))).transpose()?;
    let [q, k, v] = qkv.map(|tensor| tensor.into_bits(problem.dtype()));
    Ok(Inputs { stored_o, stored_lse, ..Inputs::new(problem, layout, [q?, k?, v?]) })
}

/// Writes O, and LSE where there is one, into `file` and puts it in place.
///
/// A file named `.npy` holds O alone, as float32 where O is bf16, which npy has not.
///
/// # Errors
/// [`Error::OutputFormat`] where an npy file should hold LSE, [`Error::OutputExists`], [`Error::Io`].
pub fn write(
    mut file: OutputFile,
    problem: &Problem,
    layout: Layout,
    o: &[u16],
    lse: Option<&[f32]>,
) -> Result<(), Error> {
    let bytes = match Format::of(file.path())? {
        Format::Safetensors => safetensors::encode(problem, layout, o, lse),
        Format::Npy if lse.is_some() => {
            return Err(Error::OutputFormat {
                path: file.path().to_owned(),
                reason: "an npy file holds one tensor: LSE needs a .safetensors file",
            });
        }
        Format::Npy => npy::encode(&o_shape(problem, layout), problem.dtype(), o),
    };
    file.write(&bytes)?;
    file.commit()
}

/// Whether an output of this name can be written, with or without LSE.
///
/// # Errors
/// [`Error::OutputFormat`].
pub fn check_output(path: &Path, lse: bool) -> Result<(), Error> {
    if lse && Format::of(path)? == Format::Npy {
        let reason = "an npy file holds one tensor: LSE needs a .safetensors file";
        return Err(Error::OutputFormat { path: path.to_owned(), reason });
    }
    Format::of(path).map(drop)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Safetensors,
    Npy,
}

impl Format {
    fn of(path: &Path) -> Result<Format, Error> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") => Ok(Format::Safetensors),
            Some("npy") => Ok(Format::Npy),
            _ => {
                let reason = "its name must end in .safetensors or .npy";
                Err(Error::OutputFormat { path: path.to_owned(), reason })
            }
        }
    }
}

/// Of packed queries without a dimension for the batch.
fn o_shape(problem: &Problem, layout: Layout) -> Vec<usize> {
    let Extent { batch, heads, rows, width } = problem.extent(TensorRole::O);
    let shape = match layout {
        Layout::Bhsd => [batch, heads, rows, width],
        Layout::Bshd => [batch, rows, heads, width],
    };
    shape[usize::from(is_packed(problem))..].iter().map(|&n| n as usize).collect()
}

fn lse_shape(problem: &Problem) -> Vec<usize> {
    let Extent { batch, heads, rows, .. } = problem.extent(TensorRole::O);
    [batch, heads, rows][usize::from(is_packed(problem))..].iter().map(|&n| n as usize).collect()
}

fn is_packed(problem: &Problem) -> bool {
    matches!(problem.queries(), QuerySequences::Packed { .. })
}

/// What is read at most of a pipe, in bytes: it does not say how much is to come.
const PIPE_BYTES_MAX: u64 = 4 << 30;

/// All of a file; of stdin where the path is `-`.
fn read_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    if path == Path::new("-") {
        return read_pipe(std::io::stdin().lock()).map_err(failed);
    }
    let file = fs::File::open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if kind.is_file() || kind.is_dir() {
        return fs::read(path).map_err(failed);
    }
    if !kind.is_fifo() {
        let reason = "a device holds no tensors: name a file, a pipe, or - for stdin";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, reason)));
    }
    read_pipe(file).map_err(failed)
}

fn read_pipe(pipe: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.take(PIPE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PIPE_BYTES_MAX {
        let reason = format!("more than {} GiB came through a pipe: name a file", PIPE_BYTES_MAX >> 30);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// The element type to compute in: the one asked for, or the one that all three have.
fn common_dtype(qkv: &[Tensor; 3], asked: Option<Dtype>) -> Result<Dtype, Error> {
    for tensor in qkv {
        if matches!(tensor.elements, Elements::F64(_) | Elements::Integers(_)) {
            return Err(tensor.unsupported_dtype(tensor.elements.dtype_name()));
        }
    }
    if let Some(dtype) = asked {
        return Ok(dtype);
    }
    let expected = qkv[0].elements.dtype_name();
    for tensor in qkv {
        if tensor.elements.dtype_name() != expected {
            return Err(Error::DtypeMismatch {
                path: tensor.path.clone(),
                tensor: tensor.name.to_owned(),
                got: tensor.elements.dtype_name(),
                expected,
            });
        }
    }
    match qkv[0].elements {
        Elements::Bf16(_) => Ok(Dtype::Bf16),
        _ => Ok(Dtype::F16),
    }
}

impl Elements {
    const fn dtype_name(&self) -> &'static str {
        match self {
            Elements::F16(_) => "f16",
            Elements::Bf16(_) => "bf16",
            Elements::F32(_) => "f32",
            Elements::F64(_) => "f64",
            Elements::Integers(_) => "an integer type",
        }
    }

    /// Elements from little-endian bytes; `None` for a type that is not read.
    fn from_bytes(dtype: &str, bytes: &[u8]) -> Option<Elements> {
        let words = || bytes.as_chunks().0.iter().map(|&word| u16::from_le_bytes(word)).collect();
        match dtype {
            "f16" => Some(Elements::F16(words())),
            "bf16" => Some(Elements::Bf16(words())),
            "f32" => Some(Elements::F32(
                bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect(),
            )),
            "f64" => Some(Elements::F64(
                bytes.as_chunks().0.iter().map(|&word| f64::from_le_bytes(word)).collect(),
            )),
            "u32" => Some(Elements::Integers(
                bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word).into()).collect(),
            )),
            "i32" => Some(Elements::Integers(
                bytes.as_chunks().0.iter().map(|&word| i32::from_le_bytes(word).into()).collect(),
            )),
            "i64" => Some(Elements::Integers(
                bytes.as_chunks().0.iter().map(|&word| i64::from_le_bytes(word)).collect(),
            )),
            _ => None,
        }
    }

    fn into_f64(self) -> Vec<f64> {
        match self {
            Elements::F16(bits) => bits.into_iter().map(|bits| f16::from_bits(bits).to_f64()).collect(),
            Elements::Bf16(bits) => bits.into_iter().map(|bits| bf16::from_bits(bits).to_f64()).collect(),
            Elements::F32(values) => values.into_iter().map(f64::from).collect(),
            Elements::F64(values) => values,
            Elements::Integers(values) => values.into_iter().map(|value| value as f64).collect(),
        }
    }
}

impl Tensor {
    fn unsupported_dtype(&self, got: &str) -> Error {
        unsupported_dtype(&self.path, self.name, got)
    }

    /// The elements in `dtype`, rounded where that is needed.
    fn into_bits(self, dtype: Dtype) -> Result<Vec<u16>, Error> {
        let (name, path) = (self.name, self.path);
        match (self.elements, dtype) {
            (Elements::F16(bits), Dtype::F16) | (Elements::Bf16(bits), Dtype::Bf16) => Ok(bits),
            (elements, dtype) => {
                let narrowed = elements.into_f64().into_iter().map(|value| {
                    let bits = crate::rounding::narrow(dtype, value);
                    let overflowed = value.is_finite() && !crate::rounding::widen(dtype, bits).is_finite();
                    if overflowed {
                        return Err(Error::DtypeOverflow {
                            path: path.clone(),
                            tensor: name.to_owned(),
                            value,
                            dtype: dtype.name(),
                        });
                    }
                    Ok(bits)
                });
                narrowed.collect()
            }
        }
    }

    /// The elements of a stored result, which must have the shape given.
    fn into_expected(self, tensor: &'static str, shape: &[usize]) -> Result<Vec<f64>, Error> {
        if self.shape != shape {
            let expected = format!("{shape:?} as Q and V say");
            return Err(Error::ShapeMismatch { tensor, expected, got: self.shape });
        }
        Ok(self.elements.into_f64())
    }
}

fn unsupported_dtype(path: &Path, tensor: &str, got: &str) -> Error {
    Error::UnsupportedDtype {
        path: path.to_owned(),
        tensor: tensor.to_owned(),
        got: got.to_owned(),
        supported: INPUT_DTYPES,
    }
}
