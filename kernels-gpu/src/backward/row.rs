//! One row of the backward pass's table, and what follows from it by arithmetic.

pub use super::row_error::BackwardRowError;
use super::spill::{DS_KEYS, DS_QUERIES, ds_bytes};
use crate::geometry::PRODUCER_WARPS;
use crate::row::{Dtype, Isa, REGISTERS_MAX, SMEM_MAX_BYTES, ScoreKind};

/// Registers a kernel needs beside its fragments: addresses, loop state, statistics and operands that are being loaded.
const REGISTERS_BESIDE_FRAGMENTS: u32 = 56;
/// Registers of fragments from which on ptxas spills what it loads early.
const FRAGMENT_REGISTERS_TIGHT: u32 = 192;
/// The same of a thread that computes with [`Isa::Wgmma`], which loads no operands.
const REGISTERS_BESIDE_FRAGMENTS_WGMMA: u32 = 24;
/// Registers of a thread that copies, with [`Isa::Wgmma`].
const PRODUCER_REGISTERS: u32 = 56;
/// Registers of a thread that computes dK with [`Isa::Wgmma`] where another warpgroup computes dV, which needs neither dP nor dS.
pub const DK_REGISTERS: u32 = 240;
/// Those of one that computes dV.
pub const DV_REGISTERS: u32 = 208;
/// 32-bit registers of an SM.
const REGISTERS_PER_SM: u32 = 65536;
/// The most registers that setmaxnreg is asked for.
const SETMAXNREG_MAX: u32 = 240;
/// Keys of a step of [`Pass::DqDs`] with [`Isa::Mma`]: half of those of which dS lies together, so that two stages fit devices of 99 KB.
const DS_KEYS_STREAMED: u32 = DS_KEYS / 2;
/// Stages of the CTAs of [`Pass::DqDkv`] that compute dQ: more do not fit.
const DQ_STAGES: u32 = 2;
/// Bytes in which a CTA of [`Pass::DqDkv`] keeps which tile it has.
const TILE_BYTES: u32 = 16;
/// Bytes of an mbarrier.
const BARRIER_BYTES: u32 = 8;
/// Bytes by which a producer says how many steps a tile has.
const STEPS_BYTES: u32 = 8;
/// Bytes by which a producer says what a stage holds: whether it is seen in part, and the first key.
pub const NOTE_BYTES: u32 = 16;
/// Bytes of what is noted of a tile, and of each step of two batches of 32.
const STEP_NOTES_BYTES: u32 = 48 + 2 * 32 * 32;
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
    /// As [`Pass::Dkv`], and dS goes to memory ([`super::spill`]).
    DkvDs,
    /// dQ = dS·K with the dS of [`Pass::DkvDs`]: no rows are stationary but the gradient's.
    DqDs,
    /// [`Pass::DkvDs`] and [`Pass::DqDs`] in one launch: a CTA is of one or the other ([`super::order`]).
    DqDkv,
}

impl Pass {
    /// The name in entry names, options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Dq => "dq",
            Pass::Dkv => "dkv",
            Pass::DkvDs => "dkvds",
            Pass::DqDs => "dqds",
            Pass::DqDkv => "dqdkv",
        }
    }

    /// Gradients that a CTA accumulates, at most.
    pub const fn gradients(self) -> u32 {
        match self {
            Pass::Dq | Pass::DqDs => 1,
            Pass::Dkv | Pass::DkvDs | Pass::DqDkv => 2,
        }
    }

    /// Whether a CTA keeps keys, and not queries: with [`Pass::DqDkv`] those of its first part.
    pub const fn keeps_keys(self) -> bool {
        matches!(self, Pass::Dkv | Pass::DkvDs | Pass::DqDkv)
    }

    /// Whether dS is kept in memory.
    pub const fn spills(self) -> bool {
        matches!(self, Pass::DkvDs | Pass::DqDs | Pass::DqDkv)
    }
}

/// One kernel of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "manifest", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct BackwardRow {
    /// What it computes.
    pub pass: Pass,
    /// The instructions it is made of.
    #[cfg_attr(feature = "manifest", serde(default))]
    pub isa: Isa,
    /// Element type of the tensors.
    pub dtype: Dtype,
    /// Elements of a row in shared memory: 64, 96 or 128, without [`Isa::Wgmma`] 32 or 256, and where dS is kept 256. Tensors may be narrower.
    pub head_dim: u32,
    /// Queries of a block.
    pub block_m: u32,
    /// Keys of a block.
    pub block_n: u32,
    /// Warps of a CTA, of 16 stationary rows each, or 32 with [`Pass::DqDs`] and, without wgmma, where keys are stationary, but for the first four with [`Isa::Wgmma`], which copy.
    pub warps: u32,
    /// Buffers for streamed blocks: 2 to 4.
    pub stages: u32,
    /// What touches every score: any but a user's, and with [`Isa::Wgmma`] plain of [`Pass::Dq`].
    #[cfg_attr(feature = "manifest", serde(default, skip_serializing_if = "ScoreKind::is_plain"))]
    pub score: ScoreKind,
}

impl BackwardRow {
    /// Whether a kernel can be made of this row.
    ///
    /// # Errors
    /// The first reason why not.
    pub const fn check(&self) -> Result<(), BackwardRowError> {
        let (is_width, is_streamed, are_warps) = match self.isa {
            Isa::Mma => (
                matches!(self.head_dim, 32 | 64 | 96 | 128 | 256),
                matches!(self.streamed_rows(), 16 | 32 | 64 | 128),
                matches!(self.warps, 4 | 8),
            ),
            Isa::Wgmma => (
                matches!(self.head_dim, 64 | 96 | 128) || self.head_dim == 256 && self.pass.spills(),
                matches!(self.streamed_rows(), 64 | 80 | 96 | 112 | 128),
                matches!(self.warps, 8 | 12),
            ),
        };
        if !is_width {
            return Err(BackwardRowError::HeadDim);
        }
        if !is_streamed {
            return Err(BackwardRowError::Streamed);
        }
        if !are_warps
            || self.stationary_rows() * self.warps_of_row() != self.computing_warps() * self.warp_rows()
        {
            return Err(BackwardRowError::Warps);
        }
        let is_ds = match (self.isa, self.pass) {
            (_, Pass::Dq | Pass::Dkv) => true,
            (Isa::Wgmma, Pass::DkvDs | Pass::DqDkv) => {
                self.block_m.is_multiple_of(DS_QUERIES) && self.block_n * self.warps_of_row() == DS_KEYS
            }
            (Isa::Wgmma, Pass::DqDs) => self.block_m == self.dq_queries() && self.block_n == DS_KEYS,
            (Isa::Mma, Pass::DkvDs) => {
                self.head_dim <= 128
                    && self.block_m.is_multiple_of(DS_QUERIES)
                    && self.block_n >= DS_KEYS_STREAMED
            }
            (Isa::Mma, Pass::DqDs) => self.head_dim <= 128 && self.block_n == DS_KEYS_STREAMED,
            (Isa::Mma, Pass::DqDkv) => false,
        };
        if !is_ds {
            return Err(BackwardRowError::Spill);
        }
        if !matches!(self.stages, 2..=4) {
            return Err(BackwardRowError::Stages);
        }
        let has_derivative = match self.isa {
            // What a user's score is the derivative of is not known.
            Isa::Mma => !matches!(self.score, ScoreKind::User(_)),
            Isa::Wgmma => match self.score {
                ScoreKind::Plain => true,
                ScoreKind::User(_) => false,
                _ => !matches!(self.pass, Pass::Dq),
            },
        };
        if !has_derivative {
            return Err(BackwardRowError::Score);
        }
        if self.smem_bytes() > SMEM_MAX_BYTES {
            return Err(BackwardRowError::SharedMemory);
        }
        if self.registers_estimate() > self.registers_limit() {
            return Err(BackwardRowError::Registers);
        }
        Ok(())
    }

    /// The two kinds of CTAs of [`Pass::DqDkv`], each as a row of its own: [`Pass::DkvDs`] and [`Pass::DqDs`].
    pub const fn parts(&self) -> [BackwardRow; 2] {
        [
            BackwardRow { pass: Pass::DkvDs, ..*self },
            BackwardRow {
                pass: Pass::DqDs,
                block_m: self.dq_queries(),
                block_n: DS_KEYS,
                stages: DQ_STAGES,
                ..*self
            },
        ]
    }

    /// With [`Isa::Wgmma`], queries of a block of [`Pass::DqDs`]: as many as eight warps have registers for.
    const fn dq_queries(&self) -> u32 {
        if self.head_dim > 128 { 128 } else { 256 }
    }

    /// Where a CTA of [`Pass::DqDkv`] keeps in shared memory which tile it has: behind all that either kind has there.
    pub const fn tile_offset(&self) -> u32 {
        let [keys, queries] = self.parts();
        let (keys, queries) = (keys.smem_bytes(), queries.smem_bytes());
        (if keys > queries { keys } else { queries }).next_multiple_of(TILE_BYTES)
    }

    /// Rows that a CTA keeps.
    pub const fn stationary_rows(&self) -> u32 {
        if self.pass.keeps_keys() { self.block_n } else { self.block_m }
    }

    /// Rows of a step of the main loop.
    pub const fn streamed_rows(&self) -> u32 {
        if self.pass.keeps_keys() { self.block_m } else { self.block_n }
    }

    /// Stationary rows of a warp that computes.
    pub const fn warp_rows(&self) -> u32 {
        match (self.isa, self.pass) {
            (Isa::Wgmma, Pass::DqDs) => self.dq_queries() / 8,
            (Isa::Mma, Pass::DqDs) => 32,
            // Half of what is read of a streamed block a product.
            (Isa::Mma, Pass::Dkv | Pass::DkvDs) if self.stationary_rows() == 32 * self.warps => 32,
            _ => 16,
        }
    }

    /// m16 tiles of a warp's fragments: with [`Isa::Wgmma`] 1, and the gradients of other rows are others.
    pub const fn m_tiles(&self) -> u32 {
        if matches!(self.isa, Isa::Mma) { self.warp_rows() / 16 } else { 1 }
    }

    /// Threads of a CTA.
    pub const fn threads(&self) -> u32 {
        self.warps * 32
    }

    /// Warps that compute.
    pub const fn computing_warps(&self) -> u32 {
        match self.isa {
            Isa::Mma => self.warps,
            Isa::Wgmma => self.warps - PRODUCER_WARPS,
        }
    }

    /// Registers of a thread that copies, with [`Isa::Wgmma`].
    pub const fn producer_registers(&self) -> u32 {
        PRODUCER_REGISTERS
    }

    /// Registers of a thread that computes, with [`Isa::Wgmma`]: its share of what the copying warpgroup gives back.
    pub const fn consumer_registers(&self) -> u32 {
        let consumers = self.computing_warps() / 4;
        let share = (self.registers_at_start() * (consumers + 1) - PRODUCER_REGISTERS) / consumers / 8 * 8;
        if share < SETMAXNREG_MAX { share } else { SETMAXNREG_MAX }
    }

    /// Registers a thread has at the start: an estimate, or with [`Isa::Wgmma`] all that one CTA can have.
    pub const fn registers_at_start(&self) -> u32 {
        match self.isa {
            Isa::Mma if self.registers_estimate() < REGISTERS_MAX => self.registers_estimate(),
            Isa::Mma => REGISTERS_MAX,
            Isa::Wgmma if REGISTERS_PER_SM / self.threads() < REGISTERS_MAX => {
                REGISTERS_PER_SM / self.threads() / 8 * 8
            }
            Isa::Wgmma => REGISTERS_MAX / 8 * 8,
        }
    }

    /// CTAs of which an SM must have registers; ptxas is free to take fewer registers.
    pub const fn min_ctas(&self) -> u32 {
        match (self.isa, self.pass) {
            // Twelve warps, as it waits for memory most.
            (Isa::Mma, Pass::DqDs) => 12 / self.warps,
            _ => 1,
        }
    }

    /// Elements of head_dim that lie side by side in shared memory with [`Isa::Wgmma`], as [`crate::geometry::column_width`].
    pub const fn column_width(&self) -> u32 {
        if self.head_dim.is_multiple_of(64) { 64 } else { 32 }
    }

    /// Registers a thread that computes may have.
    const fn registers_limit(&self) -> u32 {
        match self.isa {
            Isa::Mma => REGISTERS_MAX,
            Isa::Wgmma => self.consumer_registers(),
        }
    }

    /// Bytes of a tile of `rows` rows.
    const fn tile_bytes(&self, rows: u32) -> u32 {
        rows * self.head_dim * self.dtype.bytes()
    }

    /// Bytes of what a block of rows in shared memory says beside its two tiles: with `dkv` each query's statistics and limits.
    const fn beside_bytes(&self) -> u32 {
        if self.pass.keeps_keys() { self.streamed_rows() * self.query_bytes() } else { 0 }
    }

    /// Bytes of what a query in shared memory says beside its two rows.
    pub const fn query_bytes(&self) -> u32 {
        STATISTICS_BYTES + LIMITS_BYTES + self.score_row_bytes()
    }

    /// Those of what the score keeps of it: with [`Isa::Wgmma`] a warp that copies works it out.
    pub const fn score_row_bytes(&self) -> u32 {
        let keeps = !matches!(self.score, ScoreKind::Plain | ScoreKind::Softcap);
        if matches!(self.isa, Isa::Wgmma) && keeps { 8 } else { 0 }
    }

    /// Bytes of a stage: two tiles, and of queries their statistics and limits; or K and dS.
    pub const fn stage_bytes(&self) -> u32 {
        let tile = self.tile_bytes(self.streamed_rows());
        if matches!(self.pass, Pass::DqDs) { tile + self.ds_bytes() } else { 2 * tile + self.beside_bytes() }
    }

    /// Bytes of dS of a stage of [`Pass::DqDs`], which lie behind its K.
    pub const fn ds_bytes(&self) -> u32 {
        ds_bytes(self.block_m) / DS_KEYS * self.block_n
    }

    /// With [`Isa::Wgmma`], the bytes of all tiles, which come first: the stationary ones, then those of each stage.
    pub const fn tiles_bytes(&self) -> u32 {
        if matches!(self.pass, Pass::DqDs) {
            return self.stages * self.stage_bytes();
        }
        2 * (self.tile_bytes(self.stationary_rows()) + self.stages * self.tile_bytes(self.streamed_rows()))
    }

    /// With [`Isa::Wgmma`], the bytes of what follows the tiles before the barriers: notes of each stage, and statistics and limits of
    /// streamed queries or limits of stationary ones. With [`Isa::Mma`], those of what is noted of a tile and its steps behind the stages.
    pub const fn notes_bytes(&self) -> u32 {
        if matches!(self.isa, Isa::Mma) {
            return if matches!(self.pass, Pass::Dq) { 0 } else { STEP_NOTES_BYTES };
        }
        let rows = match self.pass {
            Pass::Dq => self.stationary_rows() * LIMITS_BYTES,
            Pass::DqDs => 0,
            Pass::Dkv | Pass::DkvDs | Pass::DqDkv => self.stages * self.beside_bytes(),
        };
        self.stages * NOTE_BYTES + rows
    }

    /// Bytes of dynamic shared memory of a CTA: the two stationary tiles and the stages, and with [`Isa::Wgmma`] the barriers of those and the
    /// number of steps; or what either kind of CTA needs, and behind it which tile it has.
    pub const fn smem_bytes(&self) -> u32 {
        match self.isa {
            Isa::Wgmma if matches!(self.pass, Pass::DqDkv) => self.tile_offset() + TILE_BYTES,
            Isa::Mma => {
                let is_ds = matches!(self.pass, Pass::DqDs);
                let stationary = if is_ds { 0 } else { 2 * self.tile_bytes(self.stationary_rows()) };
                stationary + self.stages * self.stage_bytes() + self.notes_bytes()
            }
            Isa::Wgmma => {
                self.tiles_bytes() + self.notes_bytes() + (1 + 2 * self.stages) * BARRIER_BYTES + STEPS_BYTES
            }
        }
    }

    /// Whether dK of a block of keys and dV are computed apart, as a warp's registers do not hold both: by a CTA each, or with [`Isa::Wgmma`] by a
    /// warpgroup each.
    pub const fn gradients_apart(&self) -> bool {
        self.pass.keeps_keys() && self.head_dim > 128
    }

    /// CTAs of a block of stationary rows.
    pub const fn ctas_of_block(&self) -> u32 {
        if self.gradients_apart() && matches!(self.isa, Isa::Mma) { 2 } else { 1 }
    }

    /// Warps of a CTA that have the same stationary rows.
    const fn warps_of_row(&self) -> u32 {
        if self.gradients_apart() && matches!(self.isa, Isa::Wgmma) { 2 } else { 1 }
    }

    /// Keys that bulk copies bring at a time.
    pub const fn keys_of_box(&self) -> u32 {
        if matches!(self.isa, Isa::Wgmma) && self.head_dim > 128 { DS_KEYS / 2 } else { self.block_n }
    }

    /// Registers of the fragments that live through a step: gradients, S and dP.
    const fn fragment_registers(&self) -> u32 {
        if matches!(self.pass, Pass::DqDs) {
            return self.warp_rows() / 16 * self.head_dim / 2;
        }
        let gradients = if self.gradients_apart() { 1 } else { self.pass.gradients() };
        (gradients * self.head_dim / 2 + self.streamed_rows()) * self.m_tiles()
    }

    /// With [`Isa::Mma`], whether fragments leave so few registers that what a product loads is not loaded before the product.
    pub const fn is_tight(&self) -> bool {
        matches!(self.isa, Isa::Mma) && self.fragment_registers() >= FRAGMENT_REGISTERS_TIGHT
    }

    /// How many of the two stationary tiles stay in registers; of the others each step reads the rows from shared memory again. With [`Isa::Mma`]
    /// both or none, but of [`Pass::DkvDs`].
    pub const fn tiles_in_registers(&self) -> u32 {
        let room: u32 = match (self.isa, self.pass) {
            (Isa::Mma, Pass::Dq | Pass::DqDs) => 160,
            // Shared memory is what limits it.
            (Isa::Mma, Pass::DkvDs) => 192,
            // Statistics of columns are operands that are being loaded, too.
            (Isa::Mma, Pass::Dkv | Pass::DqDkv) => 144,
            // Which weights dropout keeps takes the place.
            (Isa::Wgmma, _) if matches!(self.score, ScoreKind::Dropout) => 0,
            (Isa::Wgmma, Pass::Dkv | Pass::DkvDs | Pass::DqDkv) => 176,
            (Isa::Wgmma, Pass::Dq | Pass::DqDs) => 0,
        };
        let fit = room.saturating_sub(self.fragment_registers()) / (self.head_dim / 4 * self.m_tiles());
        match (fit, self.isa, self.pass) {
            (2.., ..) => 2,
            (fit, Isa::Wgmma, _) | (fit, _, Pass::DkvDs) => fit,
            (_, Isa::Mma, _) => 0,
        }
    }

    /// Registers a thread needs, estimated from the fragments it holds.
    pub const fn registers_estimate(&self) -> u32 {
        let beside = match self.isa {
            Isa::Wgmma => REGISTERS_BESIDE_FRAGMENTS_WGMMA,
            Isa::Mma if self.tiles_in_registers() > 0 => REGISTERS_BESIDE_FRAGMENTS,
            // An operand that is being loaded.
            Isa::Mma => REGISTERS_BESIDE_FRAGMENTS + 4,
        } + self.tiles_in_registers() * self.head_dim / 4 * self.m_tiles();
        self.fragment_registers() + beside
    }

    /// The entry's name in the PTX: every column is in it.
    #[cfg(feature = "manifest")]
    pub fn entry_name(&self) -> alloc::string::String {
        let BackwardRow { pass, isa, dtype, head_dim, block_m, block_n, warps, stages, score } = self;
        let (pass, dtype) = (pass.name(), dtype.name());
        let family = match isa {
            Isa::Mma => "bwd",
            Isa::Wgmma => "bwd_wgmma",
        };
        let score = match score {
            ScoreKind::Plain => alloc::string::String::new(),
            score => alloc::format!("_{}", score.name()),
        };
        alloc::format!("{family}_{pass}_{dtype}_d{head_dim}_m{block_m}n{block_n}_w{warps}s{stages}{score}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score_name::ScoreName;

    const GOOD: BackwardRow = BackwardRow {
        pass: Pass::Dq,
        isa: Isa::Mma,
        dtype: Dtype::F16,
        head_dim: 128,
        block_m: 128,
        block_n: 32,
        warps: 8,
        stages: 2,
        score: ScoreKind::Plain,
    };

    #[test]
    fn each_impossible_column_is_refused_with_its_reason() {
        assert_eq!(GOOD.check(), Ok(()));
        let refused = |row: BackwardRow| row.check().expect_err("refused");
        assert_eq!(refused(BackwardRow { head_dim: 192, ..GOOD }), BackwardRowError::HeadDim);
        assert_eq!(refused(BackwardRow { block_n: 48, ..GOOD }), BackwardRowError::Streamed);
        assert_eq!(refused(BackwardRow { warps: 4, ..GOOD }), BackwardRowError::Warps);
        assert_eq!(refused(BackwardRow { stages: 1, ..GOOD }), BackwardRowError::Stages);
        let user = ScoreKind::User(ScoreName::new("theirs").expect("a name"));
        assert_eq!(refused(BackwardRow { score: user, ..GOOD }), BackwardRowError::Score);
        assert_eq!(refused(BackwardRow { block_n: 128, stages: 4, ..GOOD }), BackwardRowError::SharedMemory);
        let wide = BackwardRow { pass: Pass::Dkv, block_m: 128, block_n: 128, ..GOOD };
        assert_eq!(refused(wide), BackwardRowError::Registers);
    }

    #[test]
    fn shared_memory_is_the_stationary_tiles_and_the_stages() {
        assert_eq!(GOOD.smem_bytes(), 2 * 128 * 256 + 2 * (2 * 32 * 256));
        let dkv = BackwardRow { pass: Pass::Dkv, block_m: 32, block_n: 128, ..GOOD };
        assert_eq!(
            dkv.smem_bytes(),
            GOOD.smem_bytes() + 2 * 32 * 16 + STEP_NOTES_BYTES,
            "statistics and limits, steps"
        );
        assert_eq!((GOOD.tiles_in_registers(), dkv.tiles_in_registers()), (2, 0));
    }

    #[test]
    fn at_head_dim_256_dk_and_dv_are_of_a_cta_each_and_devices_of_99_kb_hold_it() {
        let dkv = BackwardRow { pass: Pass::Dkv, head_dim: 256, block_m: 16, block_n: 64, warps: 4, ..GOOD };
        assert_eq!(dkv.check(), Ok(()));
        assert_eq!((dkv.ctas_of_block(), GOOD.ctas_of_block()), (2, 1));
        assert_eq!(
            (dkv.registers_estimate(), dkv.smem_bytes()),
            (204, 2 * 64 * 512 + 2 * (2 * 16 * 512 + 256) + STEP_NOTES_BYTES)
        );
        assert!(dkv.smem_bytes() <= crate::row::SMEM_OPT_IN_BYTES);
    }

    #[test]
    fn with_wgmma_dk_and_dv_at_head_dim_256_are_of_a_warpgroup_each() {
        let row = BackwardRow { isa: Isa::Wgmma, head_dim: 256, block_m: 64, block_n: 64, warps: 12, ..GOOD };
        let row = BackwardRow { pass: Pass::DqDkv, ..row };
        assert_eq!(row.check(), Ok(()));
        let [keys, queries] = row.parts();
        assert_eq!((keys.check(), queries.check()), (Ok(()), Ok(())));
        assert_eq!((row.ctas_of_block(), keys.keys_of_box(), queries.keys_of_box()), (1, 64, 64));
        assert_eq!((queries.block_m, queries.block_n, queries.warp_rows()), (128, 128, 16));
        let registers = row.producer_registers() + DK_REGISTERS + DV_REGISTERS;
        assert!(registers <= 3 * row.registers_at_start() && keys.registers_estimate() <= DV_REGISTERS + 16);
        let refused = |row: BackwardRow| row.check().expect_err("refused");
        assert_eq!(refused(BackwardRow { block_n: 128, ..row }), BackwardRowError::Warps);
        assert_eq!(refused(BackwardRow { pass: Pass::Dq, block_m: 128, ..row }), BackwardRowError::HeadDim);
    }

    #[test]
    fn kernels_that_keep_ds_have_128_keys_and_whole_pieces_of_queries() {
        let dkv = BackwardRow { isa: Isa::Wgmma, warps: 12, block_m: 64, block_n: 128, ..GOOD };
        let dkv = BackwardRow { pass: Pass::DkvDs, ..dkv };
        let dq = BackwardRow { pass: Pass::DqDs, block_m: 256, ..dkv };
        assert_eq!((dkv.check(), dq.check()), (Ok(()), Ok(())));
        assert_eq!(
            dq.smem_bytes(),
            2 * (128 * 256 + 256 * 256) + 2 * 16 + 5 * 8 + 8,
            "K and dS, notes, barriers, steps"
        );
        assert_eq!((dq.computing_warps(), dq.warp_rows(), dq.registers_estimate()), (8, 32, 152));
        assert_eq!(dkv.smem_bytes(), BackwardRow { pass: Pass::Dkv, ..dkv }.smem_bytes());
        let refused = |row: BackwardRow| row.check().expect_err("refused");
        assert_eq!(refused(BackwardRow { block_m: 80, ..dkv }), BackwardRowError::Spill);
        assert_eq!(refused(BackwardRow { block_n: 64, warps: 8, ..dkv }), BackwardRowError::Spill);
        assert_eq!(refused(BackwardRow { block_n: 64, ..dq }), BackwardRowError::Spill);
        assert_eq!(refused(BackwardRow { block_m: 128, warps: 8, ..dq }), BackwardRowError::Spill);
        let mma = BackwardRow { isa: Isa::Mma, warps: 4, block_m: 32, head_dim: 64, ..dkv };
        assert_eq!((mma.check(), mma.m_tiles(), mma.tiles_in_registers()), (Ok(()), 2, 0));
        assert_eq!(refused(BackwardRow { block_m: 16, ..mma }), BackwardRowError::Spill);
        assert_eq!(refused(BackwardRow { pass: Pass::DqDkv, warps: 8, ..mma }), BackwardRowError::Spill);
        let narrow = BackwardRow { block_n: 64, head_dim: 128, ..mma };
        assert_eq!((narrow.check(), narrow.m_tiles(), narrow.tiles_in_registers()), (Ok(()), 1, 1));
        let dq = BackwardRow { pass: Pass::DqDs, block_m: 128, block_n: 64, ..mma };
        assert_eq!((dq.check(), dq.m_tiles(), dq.min_ctas()), (Ok(()), 2, 3));
        assert_eq!(dq.smem_bytes(), 2 * (64 * 128 + 128 * 128) + STEP_NOTES_BYTES, "K and dS, steps");
        assert_eq!(refused(BackwardRow { block_n: 128, ..dq }), BackwardRowError::Spill);
    }

    #[test]
    fn with_wgmma_four_warps_copy_and_the_others_have_16_rows_each() {
        let dq = BackwardRow { isa: Isa::Wgmma, block_n: 64, warps: 12, ..GOOD };
        assert_eq!(dq.check(), Ok(()));
        let of_stages = 2 * (2 * 64 * 256 + 16);
        assert_eq!(
            dq.smem_bytes(),
            2 * 128 * 256 + of_stages + 128 * 8 + 5 * 8 + 8,
            "tiles, limits, barriers, steps"
        );
        let dkv = BackwardRow { pass: Pass::Dkv, block_m: 64, block_n: 128, ..dq };
        assert_eq!(dkv.check(), Ok(()));
        assert_eq!(dkv.smem_bytes(), dq.smem_bytes() - 128 * 8 + 2 * 64 * 16, "statistics and limits");
        assert_eq!((dkv.consumer_registers(), dkv.registers_estimate()), (224, 216));
        let refused = |row: BackwardRow| row.check().expect_err("refused");
        let user = ScoreKind::User(ScoreName::new("theirs").expect("a name"));
        assert_eq!(refused(BackwardRow { warps: 8, ..dq }), BackwardRowError::Warps);
        assert_eq!(refused(BackwardRow { head_dim: 32, ..dq }), BackwardRowError::HeadDim);
        assert_eq!(refused(BackwardRow { block_n: 32, ..dq }), BackwardRowError::Streamed);
        assert_eq!(refused(BackwardRow { score: ScoreKind::Dropout, ..dq }), BackwardRowError::Score);
        assert_eq!(refused(BackwardRow { score: user, ..dkv }), BackwardRowError::Score);
        let dropping = BackwardRow { score: ScoreKind::Dropout, ..dkv };
        assert_eq!(dropping.check(), Ok(()));
        assert_eq!(
            dropping.smem_bytes(),
            dkv.smem_bytes() + 2 * 64 * 8,
            "and what the score keeps of queries"
        );
        assert_eq!(refused(BackwardRow { block_m: 96, ..dkv }), BackwardRowError::Registers);
        assert_eq!(refused(BackwardRow { block_n: 128, stages: 3, ..dq }), BackwardRowError::SharedMemory);
    }
}
