//! A model of time: how long a kernel would take on a device that is not there. What it gives is predicted, never measured.
//!
//! While the simulator runs a CTA, the model gives every warp instruction a time: not before its operands are there and its
//! warp has come so far, and where the unit that does it has room. Units are those of one multiprocessor (issue slots,
//! arithmetic, special functions, tensor cores, shared memory, the way to L2), whose rates and latencies are published figures
//! ([`Gpu`]). What orders warps carries times with it: barriers, mbarriers, flags and copies hand over the time at which they
//! are complete. So dependency chains, units that are full, and latencies that other warps hide are one calculation.
//!
//! [`Predictor`] turns the time of a multiprocessor's first CTAs into that of a grid: rounds of CTAs, a tail, memory.
//!
//! What is simplified: instructions between two branches or synchronisations go in the order of their operands, as a compiler
//! with registers enough would put them; caches are not simulated, every access to global memory takes L2's latency.

mod calendar;
mod cost;
mod gpu;
mod predict;
mod timeline;

pub use gpu::{Gpu, Latencies};
pub use predict::{Prediction, Predictor};
pub use timeline::{Timer, Unit};

pub(crate) use timeline::{Moved, WarpTime};
