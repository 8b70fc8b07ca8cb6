//! Whether a kernel can be made of a row, and what its entry is called.

use crate::dropout::KEYS;
use crate::geometry;
use crate::row::{Accumulation, Dtype, Isa, Row, RowError, SMEM_MAX_BYTES, Schedule, ScoreKind};

impl Row {
    /// Whether a kernel can be made of this row.
    ///
    /// # Errors
    /// The first reason why not.
    pub const fn check(&self) -> Result<(), RowError> {
        let is_ragged = matches!(self.schedule, Schedule::Ragged);
        match self.head_dim {
            32 | 64 | 96 | 128 | 256 => {}
            192 if is_ragged && matches!(self.isa, Isa::Wgmma) => {}
            512 if is_ragged => {}
            _ => return Err(RowError::HeadDim),
        }
        let (block_m, block_n, warps) = match self.isa {
            Isa::Mma => (
                matches!(self.block_m, 16 | 32 | 64 | 128),
                matches!(self.block_n, 32 | 64 | 128),
                matches!(self.warps, 4 | 8),
            ),
            Isa::Wgmma => (
                matches!(self.block_m, 64 | 128 | 192),
                matches!(self.block_n, 64..=256) && self.block_n.is_multiple_of(16),
                matches!(self.warps, 8 | 12 | 16 | 20) && self.wgmma_warps_fit(),
            ),
        };
        if !block_m {
            return Err(RowError::BlockM);
        }
        if !block_n {
            return Err(RowError::BlockN);
        }
        if !warps {
            return Err(RowError::Warps);
        }
        if !matches!(self.stages, 1..=4) {
            return Err(RowError::Stages);
        }
        let are_whole_calls = self.block_n.is_multiple_of(KEYS) && self.block_n <= 4 * KEYS;
        if matches!((self.isa, self.score), (Isa::Wgmma, ScoreKind::Dropout)) && !are_whole_calls {
            return Err(RowError::BlockN);
        }
        let needs_stages = is_ragged && matches!(self.isa, Isa::Wgmma);
        if needs_stages && geometry::kv_buffers(self) < 2
            || !is_ragged && !matches!(self.score, ScoreKind::Plain)
        {
            return Err(RowError::Ragged);
        }
        if matches!(self.acc, Accumulation::F16)
            && matches!((self.isa, self.dtype), (Isa::Wgmma, _) | (_, Dtype::Bf16))
        {
            return Err(RowError::Accumulation);
        }
        if !matches!(self.min_ctas, 1..=8) {
            return Err(RowError::MinCtas);
        }
        let warps_fit = self.warp_rows <= self.block_m && self.block_m / self.warp_rows <= self.warps;
        let warp_rows = match self.isa {
            Isa::Mma => matches!(self.warp_rows, 16 | 32) && warps_fit,
            Isa::Wgmma => self.warp_rows == 16,
        };
        if !warp_rows {
            return Err(RowError::WarpRows);
        }
        if geometry::keys_per_warp(self) < 16 {
            return Err(RowError::KeysPerWarp);
        }
        let bytes = geometry::smem_bytes(self);
        if bytes > SMEM_MAX_BYTES {
            return Err(RowError::SharedMemory { bytes });
        }
        let registers = geometry::registers_estimate(self);
        let limit = geometry::registers_limit(self);
        if registers > limit {
            return Err(RowError::Registers { registers, limit });
        }
        Ok(())
    }

    /// Whether the warps beside those that copy make up a block of [`Isa::Wgmma`], or two that take keys in turns: each from buffers
    /// of its own, and only in CTAs that have one tile.
    const fn wgmma_warps_fit(&self) -> bool {
        let (rows, warps) = (self.block_m / 16, self.warps - geometry::PRODUCER_WARPS);
        if geometry::value_groups(self) > 1 {
            // A warpgroup for each slice.
            return self.block_m == 64 && warps == rows * geometry::value_groups(self) && self.stages == 1;
        }
        warps == rows
            || warps == 2 * rows
                && self.stages.is_multiple_of(2)
                && !matches!(self.schedule, Schedule::Persistent)
    }

    /// The entry's name in the PTX: every column is in it, but for those that have the usual value.
    #[cfg(feature = "manifest")]
    pub fn entry_name(&self) -> alloc::string::String {
        let Row { head_dim, block_m, block_n, warps, stages, min_ctas, .. } = self;
        let acc = match self.acc {
            Accumulation::F32 => "",
            Accumulation::F16 => "_accf16",
        };
        let warp_rows = match self.warp_rows {
            rows if rows == geometry::warp_rows_by_default(self) => alloc::string::String::new(),
            rows => alloc::format!("r{rows}"),
        };
        let schedule = match self.schedule {
            Schedule::Grid => "",
            Schedule::Persistent => "_persistent",
            Schedule::Split => "_split",
            Schedule::Ragged => "_ragged",
        };
        let score = match self.score {
            ScoreKind::Plain => alloc::string::String::new(),
            score => alloc::format!("_{}", score.name()),
        };
        let isa = match self.isa {
            Isa::Mma => "",
            Isa::Wgmma => "wgmma_",
        };
        alloc::format!(
            "fwd_{isa}{}_d{head_dim}_m{block_m}n{block_n}_w{warps}{warp_rows}s{stages}c{min_ctas}{acc}{schedule}{score}",
            self.dtype.name()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::GOOD;

    #[test]
    fn each_impossible_column_is_refused_with_its_reason() {
        assert_eq!(GOOD.check(), Ok(()));
        let refused = |row: Row| row.check().expect_err("refused");
        assert_eq!(refused(Row { head_dim: 80, ..GOOD }), RowError::HeadDim);
        assert_eq!(refused(Row { block_m: 48, ..GOOD }), RowError::BlockM);
        assert_eq!(refused(Row { block_n: 48, ..GOOD }), RowError::BlockN);
        assert_eq!(refused(Row { warps: 2, ..GOOD }), RowError::Warps);
        assert_eq!(refused(Row { stages: 5, ..GOOD }), RowError::Stages);
        assert_eq!(Row { stages: 1, schedule: Schedule::Ragged, ..GOOD }.check(), Ok(()));
        let one_stage =
            Row { isa: Isa::Wgmma, warps: 8, block_n: 64, stages: 1, schedule: Schedule::Ragged, ..GOOD };
        assert_eq!(refused(one_stage), RowError::Ragged);
        let half = Row { head_dim: 512, block_n: 32, warps: 8, schedule: Schedule::Ragged, ..GOOD };
        assert_eq!(half.check(), Ok(()));
        assert_eq!(refused(Row { schedule: Schedule::Grid, ..half }), RowError::HeadDim);
        let slices = Row { isa: Isa::Wgmma, block_n: 64, warps: 12, stages: 1, ..half };
        assert_eq!(slices.check(), Ok(()));
        assert_eq!(refused(Row { stages: 2, ..slices }), RowError::Warps, "shared memory holds one block");
        assert_eq!(refused(Row { warps: 8, ..slices }), RowError::Warps, "a warpgroup a slice");
        assert_eq!(refused(Row { block_m: 128, ..slices }), RowError::Warps, "64 rows alone");
        assert_eq!(refused(Row { score: ScoreKind::Softcap, ..GOOD }), RowError::Ragged);
        assert_eq!(
            refused(Row { dtype: Dtype::Bf16, acc: Accumulation::F16, ..GOOD }),
            RowError::Accumulation
        );
        assert_eq!(refused(Row { min_ctas: 0, ..GOOD }), RowError::MinCtas);
        assert_eq!(refused(Row { block_m: 32, block_n: 32, warps: 8, ..GOOD }), RowError::KeysPerWarp);
        let overflow = Row { head_dim: 256, block_m: 128, block_n: 64, warps: 8, stages: 3, ..GOOD };
        assert_eq!(refused(overflow), RowError::SharedMemory { bytes: 64 * 1024 + 3 * 64 * 1024 });
        assert!(refused(overflow).to_string().contains("needs 262144 bytes, 29696 too many"));
        assert_eq!(refused(Row { warp_rows: 48, ..GOOD }), RowError::WarpRows);
        assert_eq!(refused(Row { block_m: 16, warp_rows: 32, ..GOOD }), RowError::WarpRows);
        assert_eq!(refused(Row { block_m: 128, ..GOOD }), RowError::WarpRows, "8 warps of 16 rows");
        let wide = Row { head_dim: 128, block_m: 128, block_n: 128, stages: 1, warp_rows: 32, ..GOOD };
        assert!(matches!(refused(wide), RowError::Registers { .. }));
    }
}
