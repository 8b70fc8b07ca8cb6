//! Why a row of the backward pass's table is refused.

/// Why a row is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackwardRowError {
    /// `head_dim` is not 64, 96 or 128, nor without wgmma 32 or 256, nor where dS is kept 256.
    HeadDim,
    /// The streamed block is not 16, 32, 64 or 128 rows, or with wgmma no multiple of 16 from 64 to 128.
    Streamed,
    /// `warps` is not 4 or 8, or with wgmma 8 or 12, or does not go with the stationary block.
    Warps,
    /// `stages` is not 2 to 4.
    Stages,
    /// The score has no derivative here.
    Score,
    /// dS is kept in other blocks.
    Spill,
    /// Shared memory over [`crate::row::SMEM_MAX_BYTES`].
    SharedMemory,
    /// The fragments alone leave too few registers for anything else.
    Registers,
}

impl BackwardRowError {
    /// What is wrong and what to do.
    pub const fn reason(self) -> &'static str {
        match self {
            BackwardRowError::HeadDim => {
                "head_dim must be 64, 96 or 128, without wgmma 32 or 256, or where dS is kept 256"
            }
            BackwardRowError::Streamed => {
                "the streamed block (block_n of dq, block_m of dkv) must be 16, 32, 64 or 128, or with wgmma a multiple of 16 from 64 to 128"
            }
            BackwardRowError::Warps => {
                "warps must be 4 or 8 and the stationary block (block_m of dq, block_n of dkv) 16 rows for each, or of dkv 32, with wgmma 8 or 12 and 16 rows for each but the first four"
            }
            BackwardRowError::Stages => "stages must be 2 to 4",
            BackwardRowError::Score => "score must not be a user's, and with wgmma plain of dq",
            BackwardRowError::Spill => {
                "with wgmma dkvds, dqds and dqdkv have block_n 128, and block_m 256 of dqds and else 64, 96 or 128; at head_dim 256 half of block_n, and of block_m of dqds; without wgmma there is no dqdkv, block_n is 64 of dqds and else 64 or 128, and block_m a multiple of 32"
            }
            BackwardRowError::SharedMemory => {
                "shared memory over 227 KB (232448 bytes): lower block_m, block_n or stages"
            }
            BackwardRowError::Registers => "registers over the limit: lower the streamed block",
        }
    }
}

impl core::fmt::Display for BackwardRowError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.reason())
    }
}

impl core::error::Error for BackwardRowError {}
