//! What the bindings share: one call by plain numbers ([`Call`]), computed by the device that an [`Engine`] was opened for.
//!
//! No arithmetic and no policy: the library plans and launches, `ferroflash-cpu` computes on the CPU. What the CPU computes and the
//! kernels do not yet is refused by name, by the one table of [`lacking`].

mod append;
mod backward;
mod engine;
pub mod error;
pub mod lacking;
mod merge;
mod problem;
mod process;
#[cfg(feature = "sim")]
mod simulate;

pub use engine::{Engine, Kept, Workspaces, explain_model};
pub use error::Error;
pub use ferroflash_cpu::{
    Alibi, Append, Backward, Bias, Call, Dropout, Dtype, Lengths, Merge, Pages, Rotary, Sizes, Tensor, Tree,
};
