//! Predicted times: what a kernel costs on a device that is not there. The simulator's model of time takes the clocks of a few CTAs of
//! each kernel on one multiprocessor of that device; the planner's cost model turns them into the time of a problem.
//! Nothing in here was measured on the device whose time it predicts, and every figure is called predicted.

mod calibration;
mod clocks;

pub use calibration::{Accuracy, Calibration, Family, Part, calibrate, simulated};
pub use clocks::{Clocks, clocks};
