//! Flash attention for Rust: the host library. It loads the compiled kernels, plans and launches them.
//!
//! [`Problem`] describes and validates one attention problem, O = softmax(scale · Q·Kᵀ) · V. [`Attention`] computes it, on a CUDA
//! device ([`Attention::cuda`]) or on a simulator of one ([`Attention::simulator`]). [`reference`](mod@reference) computes it in float64
//! on the CPU, and [`tolerance`] says how far a kernel may be from that.
//!
//! Tensors are `[batch, heads, seqlen, head_dim]` or any strides ([`Problem::with_layout`], [`Problem::with_strides`]), as bit
//! patterns of f16 or bf16. `cargo xtask build-ptx` makes the kernels; [`module::Library::find`] says where they are looked for.
//!
//! ```
//! use ferroflash::reference::{narrow, reference, widen};
//! use ferroflash::{Dtype, Problem, Sizes};
//!
//! // 4 query heads share 2 KV heads; the last of 2 queries sees all 3 keys, the first sees 2.
//! let sizes = Sizes { batch: 1, heads_q: 4, heads_kv: 2, seqlen_q: 2, seqlen_k: 3, head_dim: 64 };
//! let problem = Problem::new(sizes, Dtype::Bf16)?.with_causal(true);
//! let (q, k) = (vec![0; problem.q_len()], vec![0; problem.k_len()]);
//! // Each key's value is its number, and equal scores weigh all visible keys alike.
//! let v: Vec<u16> = (0..problem.v_len()).map(|i| narrow(Dtype::Bf16, (i / 64 % 3) as f64)).collect();
//!
//! let right = reference(&problem, &q, &k, &v, &|_, _| ());
//! assert_eq!((right.o[0], right.o[64]), (0.5, 1.0));
//! assert!((right.lse[1] - 3f64.ln()).abs() < 1e-12);
//! assert_eq!(widen(Dtype::Bf16, v[64]), 1.0);
//! # Ok::<(), ferroflash::Error>(())
//! ```
//!
//! The same on a GPU, with the kernel that the measured table prefers, O as bf16 and LSE as float32:
//!
//! ```no_run
//! # use ferroflash::{Attention, CudaOptions, Dtype, Problem, Sizes};
//! # let sizes = Sizes { batch: 1, heads_q: 4, heads_kv: 2, seqlen_q: 2, seqlen_k: 3, head_dim: 64 };
//! # let problem = Problem::new(sizes, Dtype::Bf16)?.with_causal(true);
//! # let (q, k, v) = (vec![0; problem.q_len()], vec![0; problem.k_len()], vec![0; problem.v_len()]);
//! let attention = Attention::cuda(&CudaOptions::default())?;
//! let output = attention.forward(&problem, &q, &k, &v, true)?;
//! # Ok::<(), ferroflash::Error>(())
//! ```
//!
//! [`Attention::forward_device`] takes device pointers on the caller's stream and waits for nothing; it allocates nothing once
//! [`Attention::reserve`] gave the stream its [`Workspace`]. [`Planner`] says which kernels compute a problem, into how many ranges the
//! keys are split, and with [`Planner::explain`] why. Every failure is an [`Error`] with its values; no input panics.

pub mod attention;
pub mod device;
pub mod error;
pub mod measure;
pub mod module;
pub mod output_file;
pub mod plan;
pub mod problem;
pub mod random_input;
pub mod reference;
pub mod tensor_file;
mod tensor_maps;
pub mod tolerance;
pub mod verification;
pub mod workspace;

pub use attention::{Attention, CudaOptions, DeviceTensors, HostTensors, Output};
pub use device::model::DeviceModel;
pub use device::sim::SimOptions;
pub use device::{L2Policy, StreamHandle};
pub use error::Error;
pub use kernels_gpu::row::{Dtype, Row, Schedule};
pub use plan::{Combine, NotWgmma, Plan, PlanOptions, Planner, Reason, RowSelection, Splits, WhyCombine};
pub use problem::{ElementStrides, Layout, Problem, Sizes, TensorRole};
pub use workspace::Workspace;

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
