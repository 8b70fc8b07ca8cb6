//! Flash attention for Rust: the host library. It loads the compiled kernels, plans and launches them.
//!
//! [`Problem`] describes and validates one attention problem, [`Attention`] computes it on a CUDA device.

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
pub mod tolerance;
pub mod verification;

pub use attention::{Attention, CudaOptions, DeviceTensors, Output};
pub use device::StreamHandle;
pub use device::sim::SimOptions;
pub use error::Error;
pub use kernels_gpu::row::{Dtype, Row};
pub use plan::{Plan, RowSelection};
pub use problem::{ElementStrides, Layout, Problem, Sizes, TensorRole};
