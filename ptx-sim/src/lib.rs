//! Executes PTX on the CPU and checks it: no GPU, no driver, no CUDA toolkit.
//!
//! [`Module::parse`] turns PTX text into a decoded program and refuses, with its line, whatever the table of supported forms
//! does not list. [`launch()`] runs a grid: warps of 32 lanes with divergence and reconvergence, shared memory, barriers,
//! mbarriers, clusters, asynchronous and bulk copies, tensor-core instructions of warps and warpgroups. While it runs, every access is
//! checked, and the first broken rule ends the launch as a [`Finding`] with its place. A [`Report`] counts what was done, and a
//! [`Predictor`] predicts how long a device would take.
//!
//! ```
//! use ptx_sim::{LaunchConfig, Memory, Module, launch};
//!
//! let module = Module::parse(
//!     ".version 7.0
//!      .target sm_80
//!      .address_size 64
//!      .visible .entry twice(.param .u64 data) {
//!          .reg .b32 %r<3>;
//!          .reg .b64 %d<3>;
//!          ld.param.u64 %d0, [data];
//!          mov.u32 %r0, %tid.x;
//!          mul.wide.u32 %d1, %r0, 4;
//!          add.s64 %d2, %d0, %d1;
//!          ld.global.u32 %r1, [%d2];
//!          shl.b32 %r2, %r1, 1;
//!          st.global.u32 [%d2], %r2;
//!          ret;
//!      }",
//! )?;
//! let mut memory = Memory::new();
//! let data = memory.alloc(128);
//! memory.write(data, &[3; 128])?;
//! let report = launch(&module, "twice", &data.to_le_bytes(), &mut memory, &LaunchConfig::new([1, 1, 1], [32, 1, 1]))?;
//! let mut out = [0; 128];
//! memory.read(data, &mut out)?;
//! assert_eq!((out, report.warp_instructions), ([6; 128], 8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is simplified
//!
//! - Sums of `mma` are taken in f32 in order of k; hardware may round differently, within the bound that the ISA leaves open.
//! - The source of a `cp.async` is read when it is issued; that it changes before the wait is found at the wait, by value.
//! - A fence or an acquire by one lane counts for its warp, which may miss a race among lanes but invents none.
//! - Of one place in memory 128 unordered reads are remembered.
//! - Clusters beyond those that fit on the device start when others have ended.
//! - A wait for an mbarrier fails once where it would wait, then waits: how often a loop around it turns is not the hardware's.
//! - `wgmma` is computed when its four warps have come, and its registers are watched until its group is waited for. A `mov`
//!   between registers counts as renaming; reads before `wgmma.fence` are not looked for.
//! - Bulk copies read their source when they are issued. Tensor maps are the simulator's own ([`TensorMap`]).
//! - What a warp has before `setmaxnreg` is an estimate: the most that lets the CTA start.

#![deny(unsafe_code)]

mod allocate;
mod bits;
mod blocked;
mod cfg;
mod clock;
mod compact;
mod config;
mod counters;
mod coverage;
mod decode;
mod directed;
mod error;
mod exec;
mod finding;
mod fixed;
mod float;
mod formats;
mod grid;
mod half;
mod heap;
mod im2col;
mod lane_order;
mod launch;
mod mark;
mod matrix_type;
mod memory;
mod module;
mod occupancy;
mod op;
mod parse;
mod race;
mod rare;
mod regs;
mod report;
mod shadow;
mod shared;
mod sim;
mod small;
mod summary;
mod support;
mod sync;
mod table;
mod tensor_map;
mod time;
mod unset;
mod video;
mod wide;
mod window;

pub use blocked::{ArrivalSite, Blocked, BlockedOn};
pub use config::{Checks, LaunchConfig, Limits, Output, Schedule};
pub use counters::{GlobalTraffic, SharedTraffic};
pub use coverage::{Gap, GapKind};
pub use error::{LoadError, MemoryError, SimError};
pub use finding::{Blame, Finding, FindingKind, OtherAccess, Severity, SourceLine};
pub use formats::sarif;
pub use launch::launch;
pub use memory::Memory;
pub use module::{Entry, Module, Param};
pub use occupancy::{Multiprocessor, Occupancy, OccupancyLimit};
pub use report::{InstructionClass, LineCount, Report, SourceCount};
pub use sim::{Argument, Buffer, Dim, Element, Sim};
pub use support::support_matrix;
pub use tensor_map::{Swizzle, TensorMap, TensorMapError, TensorType};
pub use time::{Gpu, Latencies, Prediction, Predictor, Timer, Unit};
