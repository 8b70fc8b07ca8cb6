//! Attention and its gradients on the CPU, in float32, or float64 where the elements are: plain loops over the tensors where they lie.
//! Bindings compute with it where there is no GPU.
//!
//! It takes more than the kernels do today (windows, softcap, ALiBi, sinks, pages, sequences of different lengths), so that users' tests
//! need not wait for them. It shares no code with the kernels, nor with the float64 oracle that judges these.
//!
//! A [`Call`] names tensors by address, with strides. [`Call::forward`] checks everything but the addresses.

mod append;
mod backward;
mod call;
mod dropout;
mod error;
mod forward;
mod merge;
mod read;
mod real;
mod rows;
mod sequence;
mod threads;

pub use append::{Append, Rotary};
pub use backward::Backward;
pub use call::{Alibi, Bias, Call, Dtype, Lengths, Pages, Sizes, Tensor, Tree};
pub use dropout::Dropout;
pub use error::Error;
pub use merge::Merge;
