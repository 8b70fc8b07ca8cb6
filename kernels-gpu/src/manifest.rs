//! `manifest.json`, written beside the PTX by `cargo xtask build-ptx` and read by the host.

use crate::backward::row::BackwardRow;
use crate::row::Row;
use crate::steps::StepRow;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The version of the format that this crate reads and writes, and of the parameter blocks of the kernels that it lists.
pub const FORMAT: u32 = 6;

/// Everything a PTX folder holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// What compiled the kernels, as it names itself.
    pub device_compiler: String,
    /// One PTX file an architecture family.
    pub families: Vec<Family>,
    /// One record a forward kernel.
    pub kernels: Vec<Kernel>,
    /// One record a step kernel.
    pub step_kernels: Vec<Kernel<StepRow>>,
    /// One record a kernel of the backward pass; none in folders of other rows than the table's, which may have none.
    #[serde(default)]
    pub backward_kernels: Vec<Kernel<BackwardRow>>,
    /// The user's crate whose scores the kernels compute, where it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_crate: Option<ScoreCrate>,
}

/// A user's crate of scores that kernels were compiled with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoreCrate {
    /// Its name.
    pub package: String,
    /// Its version.
    pub version: String,
    /// The names of its scores.
    pub scores: Vec<String>,
    /// [`version`] of Ferroflash, which must be the one that loads the kernels.
    pub ferroflash: String,
}

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What kernels and the library that launches them must have in common: the version, and the size of the parameter block.
pub fn version() -> String {
    alloc::format!("{VERSION} with {} bytes of parameters", size_of::<crate::params::WgmmaParams>())
}

/// One PTX file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// The least architecture that runs it, `sm_80`.
    pub arch: String,
    /// The file, relative to the manifest.
    pub ptx: String,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

/// One kernel: of the forward table, of the table of steps, or of that of the backward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel<R = Row> {
    /// The entry's name in the PTX.
    pub entry: String,
    /// The [`Family::arch`] whose PTX holds it.
    pub family: String,
    /// The row it was compiled from.
    pub row: R,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA, in bytes.
    pub smem_bytes: u32,
    /// SHA-256 of the entry's own PTX text, in hexadecimal: equal kernels are equal here. The numbers of functions that names of labels have
    /// are left out, as they change with every kernel that comes before.
    pub sha256: String,
    /// What ptxas reports, by architecture; empty where no ptxas was at hand.
    #[serde(default)]
    pub resources: BTreeMap<String, Resources>,
    /// Machine code by architecture: files relative to the manifest.
    #[serde(default)]
    pub cubins: BTreeMap<String, String>,
    /// Whether it waits for the kernels before it on its stream, from sm_90 on (PTX ISA, "griddepcontrol").
    #[serde(default)]
    pub waits: bool,
}

/// What ptxas reports of one kernel on one architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers a thread has at the start. A kernel of [`crate::row::Isa::Wgmma`] hands them on by setmaxnreg, so that its threads
    /// have [`crate::geometry::producer_registers`] or [`crate::geometry::consumer_registers`].
    pub registers: u32,
    /// Bytes of spill stores a thread.
    pub spill_stores: u32,
    /// Bytes of spill loads a thread.
    pub spill_loads: u32,
    /// Bytes of stack frame a thread.
    pub stack: u32,
    /// Bytes of static shared memory.
    pub static_smem: u32,
}

/// What ptxas made of this crate's kernels when they were last compiled with it: a [`PtxasRecord`], which `cargo xtask check-ptx --record`
/// writes.
pub const PTXAS_RECORD: &str = include_str!("../ptxas.json");

/// The registers of kernels that ptxas accepted without a warning, a spill or a stack frame.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PtxasRecord {
    /// The version of the ptxas that said so.
    pub ptxas: String,
    /// By entry.
    pub kernels: BTreeMap<String, RecordedKernel>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedKernel {
    /// The start of [`Kernel::sha256`].
    pub sha256: String,
    /// The registers of a thread by architecture.
    pub registers: BTreeMap<String, u32>,
}

impl RecordedKernel {
    /// As a manifest has it.
    pub fn resources(&self) -> BTreeMap<String, Resources> {
        let of_arch = |(arch, &registers): (&String, &u32)| {
            (arch.clone(), Resources { registers, ..Resources::default() })
        };
        self.registers.iter().map(of_arch).collect()
    }
}
