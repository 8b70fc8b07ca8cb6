//! One row of the backward pass's table, and what follows from it by arithmetic.

use crate::row::{Dtype, Isa, REGISTERS_MAX, SMEM_MAX_BYTES};

/// Registers a kernel needs beside its fragments: addresses, loop state, statistics and operands that are being loaded.
const REGISTERS_BESIDE_FRAGMENTS: u32 = 56;
/// Bytes of a query's statistics: L·log2(e) and δ.
pub const STATISTICS_BYTES: u32 = 8;
/// Bytes of what a query sees: the first key and the one past the last.
pub const LIMITS_BYTES: u32 = 8;

/// Which gradients a kernel computes, and so which rows its CTAs keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "manifest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Pass {
    /// dQ: queries are stationary, keys are streamed. It also writes the statistics that [`Pass::Dkv`] reads.
    Dq,
    /// dK and dV: keys are stationary, queries of all query heads of the KV head are streamed.
    Dkv,
}

impl Pass {
    /// The name in entry names, options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Dq => "dq",
            Pass::Dkv => "dkv",
        }
    }

    /// Gradients that it accumulates.
    pub const fn gradients(self) -> u32 {
        match self {
            Pass::Dq => 1,
            Pass::Dkv => 2,
        }
    }
}

/// One kernel of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "manifest", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct BackwardRow {
    /// What it computes.
    pub pass: Pass,
    /// Element type of the tensors.
    pub dtype: Dtype,
    /// Elements of a row in shared memory: 32, 64, 96 or 128. Tensors may be narrower.
    pub head_dim: u32,
    /// Queries of a block.
    pub block_m: u32,
    /// Keys of a block.
    pub block_n: u32,
    /// Warps of a CTA, of 16 stationary rows each.
    pub warps: u32,
    /// Buffers for streamed blocks: 2 to 4.
    pub stages: u32,
}

/// Why a row is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackwardRowError {
    /// `head_dim` is not 32, 64, 96 or 128.
    HeadDim,
    /// The streamed block is not 16, 32, 64 or 128 rows.
    Streamed,
    /// `warps` is not 4 or 8, or not a sixteenth of the stationary block.
    Warps,
    /// `stages` is not 2 to 4.
    Stages,
    /// Shared memory over [`SMEM_MAX_BYTES`].
    SharedMemory,
    /// The fragments alone leave too few registers for anything else.
    Registers,
}

impl BackwardRowError {
    /// What is wrong and what to do.
    pub const fn reason(self) -> &'static str {
        match self {
            BackwardRowError::HeadDim => "head_dim must be 32, 64, 96 or 128",
            BackwardRowError::Streamed => {
                "the streamed block (block_n of dq, block_m of dkv) must be 16, 32, 64 or 128"
            }
            BackwardRowError::Warps => {
                "warps must be 4 or 8 and the stationary block (block_m of dq, block_n of dkv) 16 rows for each"
            }
            BackwardRowError::Stages => "stages must be 2 to 4",
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

impl BackwardRow {
    /// The instructions it is made of.
    pub const fn isa(&self) -> Isa {
        Isa::Mma
    }

    /// Whether a kernel can be made of this row.
    ///
    /// # Errors
    /// The first reason why not.
    pub const fn check(&self) -> Result<(), BackwardRowError> {
        if !matches!(self.head_dim, 32 | 64 | 96 | 128) {
            return Err(BackwardRowError::HeadDim);
        }
        if !matches!(self.streamed_rows(), 16 | 32 | 64 | 128) {
            return Err(BackwardRowError::Streamed);
        }
        if !matches!(self.warps, 4 | 8) || self.stationary_rows() != self.warps * 16 {
            return Err(BackwardRowError::Warps);
        }
        if !matches!(self.stages, 2..=4) {
            return Err(BackwardRowError::Stages);
        }
        if self.smem_bytes() > SMEM_MAX_BYTES {
            return Err(BackwardRowError::SharedMemory);
        }
        if self.registers_estimate() > REGISTERS_MAX {
            return Err(BackwardRowError::Registers);
        }
        Ok(())
    }

    /// Rows that a CTA keeps.
    pub const fn stationary_rows(&self) -> u32 {
        match self.pass {
            Pass::Dq => self.block_m,
            Pass::Dkv => self.block_n,
        }
    }

    /// Rows of a step of the main loop.
    pub const fn streamed_rows(&self) -> u32 {
        match self.pass {
            Pass::Dq => self.block_n,
            Pass::Dkv => self.block_m,
        }
    }

    /// Threads of a CTA.
    pub const fn threads(&self) -> u32 {
        self.warps * 32
    }

    /// Bytes of a tile of `rows` rows.
    const fn tile_bytes(&self, rows: u32) -> u32 {
        rows * self.head_dim * self.dtype.bytes()
    }

    /// Bytes of a stage: two tiles, and of queries their statistics and limits.
    pub const fn stage_bytes(&self) -> u32 {
        let beside = match self.pass {
            Pass::Dq => 0,
            Pass::Dkv => self.streamed_rows() * (STATISTICS_BYTES + LIMITS_BYTES),
        };
        2 * self.tile_bytes(self.streamed_rows()) + beside
    }

    /// Bytes of dynamic shared memory of a CTA: the two stationary tiles and the stages.
    pub const fn smem_bytes(&self) -> u32 {
        2 * self.tile_bytes(self.stationary_rows()) + self.stages * self.stage_bytes()
    }

    /// Registers of the fragments that live through a step: gradients, S and dP.
    const fn fragment_registers(&self) -> u32 {
        self.pass.gradients() * self.head_dim / 2 + self.streamed_rows()
    }

    /// Whether the stationary rows stay in registers; where they do not fit, each step reads them from shared memory again.
    pub const fn stationary_in_registers(&self) -> bool {
        let room = match self.pass {
            Pass::Dq => 160,
            // Statistics of columns are operands that are being loaded, too.
            Pass::Dkv => 144,
        };
        self.fragment_registers() + self.head_dim / 2 <= room
    }

    /// Registers a thread needs, estimated from the fragments it holds.
    pub const fn registers_estimate(&self) -> u32 {
        let stationary = if self.stationary_in_registers() { self.head_dim / 2 } else { 8 };
        self.fragment_registers() + stationary + REGISTERS_BESIDE_FRAGMENTS
    }

    /// The entry's name in the PTX: every column is in it.
    #[cfg(feature = "manifest")]
    pub fn entry_name(&self) -> alloc::string::String {
        let BackwardRow { pass, dtype, head_dim, block_m, block_n, warps, stages } = self;
        let (pass, dtype) = (pass.name(), dtype.name());
        alloc::format!("bwd_{pass}_{dtype}_d{head_dim}_m{block_m}n{block_n}_w{warps}s{stages}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: BackwardRow = BackwardRow {
        pass: Pass::Dq,
        dtype: Dtype::F16,
        head_dim: 128,
        block_m: 128,
        block_n: 32,
        warps: 8,
        stages: 2,
    };

    #[test]
    fn each_impossible_column_is_refused_with_its_reason() {
        assert_eq!(GOOD.check(), Ok(()));
        let refused = |row: BackwardRow| row.check().expect_err("refused");
        assert_eq!(refused(BackwardRow { head_dim: 256, ..GOOD }), BackwardRowError::HeadDim);
        assert_eq!(refused(BackwardRow { block_n: 48, ..GOOD }), BackwardRowError::Streamed);
        assert_eq!(refused(BackwardRow { warps: 4, ..GOOD }), BackwardRowError::Warps);
        assert_eq!(refused(BackwardRow { stages: 1, ..GOOD }), BackwardRowError::Stages);
        assert_eq!(refused(BackwardRow { block_n: 128, stages: 4, ..GOOD }), BackwardRowError::SharedMemory);
        let wide = BackwardRow { pass: Pass::Dkv, block_m: 128, block_n: 128, ..GOOD };
        assert_eq!(refused(wide), BackwardRowError::Registers);
    }

    #[test]
    fn shared_memory_is_the_stationary_tiles_and_the_stages() {
        assert_eq!(GOOD.smem_bytes(), 2 * 128 * 256 + 2 * (2 * 32 * 256));
        let dkv = BackwardRow { pass: Pass::Dkv, block_m: 32, block_n: 128, ..GOOD };
        assert_eq!(dkv.smem_bytes(), GOOD.smem_bytes() + 2 * 32 * 16);
        assert!(GOOD.stationary_in_registers() && !dkv.stationary_in_registers());
    }
}
