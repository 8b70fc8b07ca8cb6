//! Flash attention for Rust: the host library. It loads the compiled kernels, plans and launches them.
//!
//! [`Problem`] describes and validates one attention problem, O = softmax(scale · Q·Kᵀ) · V. [`Attention`] computes it, on a CUDA
//! device ([`Attention::cuda`]), or with the feature `sim` on a simulator of one (`Attention::simulator`), which runs the same kernels
//! on the CPU and checks every access. What is right and how long it takes is judged by the crate `check`, which stands on this one.
//!
//! Tensors are `[batch, heads, seqlen, head_dim]` or any strides ([`Problem::with_layout`], [`Problem::with_strides`]), as bit
//! patterns of f16 or bf16. `cargo xtask build-ptx` makes the kernels; [`module::Library::find`] says where they are looked for.
//!
//! On a GPU, with the kernel that is estimated to be the fastest, O as bf16 and LSE as float32:
//!
//! ```no_run
//! use ferroflash::{Attention, CudaOptions, Dtype, Problem, Sizes};
//!
//! // 4 query heads share 2 KV heads; the last of 2 queries sees all 3 keys, the first sees 2.
//! let sizes = Sizes { batch: 1, heads_q: 4, heads_kv: 2, seqlen_q: 2, seqlen_k: 3, head_dim: 64 };
//! let problem = Problem::new(sizes, Dtype::Bf16)?.with_causal(true);
//! let (q, k, v) = (vec![0; problem.q_len()], vec![0; problem.k_len()], vec![0; problem.v_len()]);
//! let attention = Attention::cuda(&CudaOptions::default())?;
//! let output = attention.forward(&problem, &q, &k, &v, true)?;
//! # Ok::<(), ferroflash::Error>(())
//! ```
//!
//! [`Attention::forward_device`] takes device pointers on the caller's stream and waits for nothing; it allocates nothing once
//! [`Attention::reserve`] gave the stream its [`Workspace`]. [`Planner`] says which kernels compute a problem, into how many ranges the
//! keys are split, and with [`Planner::explain`] why. Every failure is an [`Error`] with its values; no input panics.

mod addresses;
pub mod append;
pub mod attention;
pub mod backward;
mod copy;
#[cfg(feature = "cudarc-0-19")]
pub mod cudarc;
pub mod device;
pub mod error;
pub mod merge;
pub mod module;
pub mod occupancy;
pub mod output_file;
pub mod plan;
pub mod problem;
pub mod rounding;
pub mod tensor_file;
mod tensor_maps;
pub mod workspace;

pub use append::{AppendTensors, KvAppend, NewTokens, Rotary};
pub use attention::{Attention, CudaOptions, DeviceTensors, HostOperand, HostTensors, OperandValues, Output};
pub use backward::{Backward, BackwardTensors, GradientInputs, Gradients};
pub use copy::CopyRun;
pub use device::model::DeviceModel;
#[cfg(feature = "sim")]
pub use device::sim::SimOptions;
pub use device::{L2Policy, StreamHandle};
pub use error::Error;
pub use kernels_gpu::row::{Accumulation, Dtype, Row, Schedule};
pub use kernels_gpu::steps::Number;
pub use merge::{MergeStates, MergeTensors};
pub use plan::backward::BackwardPlan;
pub use plan::cascade::{Cascading, PrefixPlan};
pub use plan::partial::{PartialPlan, PartialStates};
pub use plan::profile::Profile;
pub use plan::{
    Combine, Estimate, NotWgmma, OwnTensors, Plan, PlanOptions, Planner, Reason, RowSelection, Splits,
};
pub use problem::{Dropout, ElementStrides, Layout, Mask, Operand, Problem, Sizes, TensorRole};
pub use workspace::{Workspace, workspace_bytes_for};

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The example of docs/ragged.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/ragged.md")]
struct RaggedBatches;

/// The example of docs/training.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/training.md")]
struct Training;

/// The examples of docs/decoding.md compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/decoding.md")]
struct Decoding;
