//! How a launch runs: sizes, limits, checks, schedule.

use crate::time::Timer;
use std::sync::{Arc, Mutex, PoisonError};

/// Limits of the device that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Shared memory that one CTA may have, in bytes.
    pub smem_per_cta: u32,
    /// Threads that one CTA may have.
    pub threads_per_cta: u32,
}

impl Limits {
    /// NVIDIA A100 (sm_80): 163 KiB.
    pub const SM_80: Limits = Limits { smem_per_cta: 163 * 1024, threads_per_cta: 1024 };
    /// sm_86 and sm_89 (L4): 99 KiB.
    pub const SM_89: Limits = Limits { smem_per_cta: 99 * 1024, threads_per_cta: 1024 };
    /// sm_90 (H100, H200): 227 KiB.
    pub const SM_90: Limits = Limits { smem_per_cta: 227 * 1024, threads_per_cta: 1024 };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::SM_80
    }
}

/// Which rules are checked. A rule that is off is not enforced: an access out of bounds then reads zero or is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Accesses outside allocations, and to freed ones.
    pub bounds: bool,
    /// Addresses that are not multiples of the access size.
    pub alignment: bool,
    /// Reads of memory that nobody wrote.
    pub initialized: bool,
    /// Accesses to `cp.async` targets before the wait.
    pub async_copies: bool,
    /// Shared-memory races between barriers.
    pub shared_races: bool,
    /// Global-memory races between CTAs.
    pub global_races: bool,
    /// Barriers, `mma`, `ldmatrix` and the like in diverged warps.
    pub convergence: bool,
    /// Shuffles that read lanes which do not take part.
    pub shuffles: bool,
}

impl Checks {
    /// Everything on; the default.
    pub const ALL: Checks = Checks {
        bounds: true,
        alignment: true,
        initialized: true,
        async_copies: true,
        shared_races: true,
        global_races: true,
        convergence: true,
        shuffles: true,
    };
    /// Everything off: the fastest.
    pub const NONE: Checks = Checks {
        bounds: false,
        alignment: false,
        initialized: false,
        async_copies: false,
        shared_races: false,
        global_races: false,
        convergence: false,
        shuffles: false,
    };
}

impl Default for Checks {
    fn default() -> Self {
        Checks::ALL
    }
}

/// The order in which warps run and asynchronous copies land.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// Each warp runs until it waits, lowest first; copies land as late as they may.
    #[default]
    Deterministic,
    /// Warps alternate and copies land at random; the seed repeats a run.
    Seeded(u64),
}

/// A launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// CTAs in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub dynamic_smem_bytes: u32,
    /// Limits of the device.
    pub limits: Limits,
    /// Rules to check.
    pub checks: Checks,
    /// Order of warps and copies.
    pub schedule: Schedule,
    /// Warp instructions that one CTA may execute.
    pub instruction_budget: u64,
    /// Run only these linear CTA ids (x fastest); counters then cover only them.
    pub ctas: Option<Vec<u32>>,
    /// CTAs of a cluster in x, y, z; `None` for what the entry asks for, or no clusters.
    pub cluster: Option<[u32; 3]>,
    /// Where `printf` of kernels goes; `None` for standard output.
    pub output: Option<Output>,
    /// Takes the predicted time of all CTAs that run, as if one multiprocessor ran them.
    pub timer: Option<Timer>,
    /// Notes what of the code is not tested, which takes a twelfth more time.
    pub coverage: bool,
}

/// Collects what kernels print.
#[derive(Clone, Debug, Default)]
pub struct Output(Arc<Mutex<String>>);

impl Output {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was printed so far.
    pub fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn push(&self, text: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }
}

impl PartialEq for Output {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Output {}

impl LaunchConfig {
    /// Warp instructions a CTA may execute unless told otherwise.
    pub const DEFAULT_BUDGET: u64 = 1 << 30;

    /// A launch with every check on and the deterministic schedule.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        LaunchConfig {
            grid,
            block,
            dynamic_smem_bytes: 0,
            limits: Limits::default(),
            checks: Checks::default(),
            schedule: Schedule::default(),
            instruction_budget: Self::DEFAULT_BUDGET,
            ctas: None,
            cluster: None,
            output: None,
            timer: None,
            coverage: false,
        }
    }
}
