//! What a rank over NCCL is told.

use std::time::Duration;

/// How to communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclOptions {
    /// How long a call waits for other ranks.
    pub limit: Duration,
    /// The most multiprocessors that NCCL's kernels take from computing; NCCL's own choice where it is `None`.
    pub max_ctas: Option<u32>,
    /// Whether NCCL's calls may block on the host. They then return later and cannot be given up: a rank that never comes is waited for
    /// for ever.
    pub is_blocking: bool,
    /// Whether GPUs of one machine that reach each other's memory copy what they exchange there themselves, and NCCL only brings them
    /// together. NCCL's kernels wait for multiprocessors that attention has; copies do not. All ranks say the same.
    pub peer_memory: bool,
}

impl Default for NcclOptions {
    /// Half a minute, no call that blocks, and copies where there is a way.
    fn default() -> NcclOptions {
        let limit = Duration::from_secs(30);
        NcclOptions { limit, max_ctas: None, is_blocking: false, peer_memory: true }
    }
}
