//! One row of the table: everything that tells one kernel from another.

pub use crate::score_name::ScoreName;

/// Shared memory a CTA gets without asking for more, in bytes.
pub const SMEM_DEFAULT_BYTES: u32 = 48 * 1024;
/// Shared memory a CTA can opt in to on sm_86 and sm_89, the least of all devices, in bytes.
pub const SMEM_OPT_IN_BYTES: u32 = 99 * 1024;
/// Shared memory a CTA can opt in to on sm_90, the most of all devices, in bytes (sm_80: 163 KB). A row that needs more
/// than [`SMEM_OPT_IN_BYTES`] is for the devices that have it.
pub const SMEM_MAX_BYTES: u32 = 227 * 1024;
/// Registers a thread can address.
pub const REGISTERS_MAX: u32 = 255;
/// The head dimensions that have kernels.
pub const HEAD_DIMS: [u32; 6] = [32, 64, 96, 128, 256, 512];
/// Those that have kernels of every schedule: others have those for ragged batches alone.
pub const DENSE_HEAD_DIMS: [u32; 5] = [32, 64, 96, 128, 256];

/// The least of the limits above that `bytes` of shared memory keep.
pub const fn smem_limit(bytes: u32) -> u32 {
    if bytes <= SMEM_DEFAULT_BYTES {
        SMEM_DEFAULT_BYTES
    } else if bytes <= SMEM_OPT_IN_BYTES {
        SMEM_OPT_IN_BYTES
    } else {
        SMEM_MAX_BYTES
    }
}

/// The instructions that a kernel is made of, and so the devices that run it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "manifest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Isa {
    /// mma.sync and cp.async: sm_80 and everything later.
    #[default]
    Mma,
    /// wgmma and bulk tensor copies: sm_90a, which only compute capability 9.0 runs.
    Wgmma,
}

impl Isa {
    /// The name in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Mma => "mma",
            Isa::Wgmma => "wgmma",
        }
    }

    /// The architecture that kernels of it are compiled for.
    pub const fn arch(self) -> &'static str {
        match self {
            Isa::Mma => "sm_80",
            Isa::Wgmma => "sm_90a",
        }
    }
}

/// Element type of Q, K, V and O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "manifest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Dtype {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// The name in entry names, options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        }
    }

    /// Bytes an element takes.
    pub const fn bytes(self) -> u32 {
        2
    }
}

/// What the two products of a main-loop step accumulate in. O is the sum of the steps, in float32 always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "manifest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Accumulation {
    /// float32.
    #[default]
    F32,
    /// float16: scores over 65504 overflow, and values of V over 65504 / block_n may. Only with [`Dtype::F16`].
    F16,
}

/// How CTAs take their work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "manifest",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Schedule {
    /// One CTA a block of query rows of one head.
    Grid,
    /// As many CTAs as the device holds draw the blocks of [`Schedule::Grid`] from a counter in device memory.
    Persistent,
    /// One CTA a block of packed query rows (all query heads of one KV head) and a range of keys, whose partial O and
    /// LSE the combine kernel merges. Sequence lengths may lie on the device.
    Split,
    /// As [`Schedule::Split`], for ragged batches: sequences packed one after the other, K and V in pages, any mask that is an interval
    /// of keys, learned sinks, and widths of Q·Kᵀ and V below the tile's.
    Ragged,
}

/// What touches every score between Q·Kᵀ and the softmax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "manifest",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "alloc::string::String", try_from = "alloc::string::String")
)]
pub enum ScoreKind {
    /// The scaled product and nothing else.
    #[default]
    Plain,
    /// cap · tanh(score / cap).
    Softcap,
    /// The score less a slope of the head times the distance of query and key.
    Alibi,
    /// The score plus an element of a bias tensor.
    Bias,
    /// The scaled product, under a mask of bits for the last keys of a sequence.
    Tree,
    /// The scaled product, and weights that are dropped after the softmax.
    Dropout,
    /// A user's own function.
    User(ScoreName),
}

impl ScoreKind {
    /// Whether it is the usual one, which files of rows do not name.
    pub const fn is_plain(&self) -> bool {
        matches!(self, ScoreKind::Plain)
    }

    /// Its number among those of Ferroflash; all of users have the last.
    pub const fn number(self) -> u8 {
        match self {
            ScoreKind::Plain => 0,
            ScoreKind::Softcap => 1,
            ScoreKind::Alibi => 2,
            ScoreKind::Bias => 3,
            ScoreKind::Tree => 4,
            ScoreKind::Dropout => 5,
            ScoreKind::User(_) => 6,
        }
    }

    /// The name in entry names, options and files.
    pub const fn name(&self) -> &str {
        match self {
            ScoreKind::Plain => "plain",
            ScoreKind::Softcap => "softcap",
            ScoreKind::Alibi => "alibi",
            ScoreKind::Bias => "bias",
            ScoreKind::Tree => "tree",
            ScoreKind::Dropout => "dropout",
            ScoreKind::User(name) => name.as_str(),
        }
    }
}

#[cfg(feature = "manifest")]
impl From<ScoreKind> for alloc::string::String {
    fn from(kind: ScoreKind) -> Self {
        kind.name().into()
    }
}

#[cfg(feature = "manifest")]
impl TryFrom<alloc::string::String> for ScoreKind {
    type Error = &'static str;

    /// A score of Ferroflash, or a user's by this name.
    fn try_from(name: alloc::string::String) -> Result<Self, Self::Error> {
        let own = [
            ScoreKind::Plain,
            ScoreKind::Softcap,
            ScoreKind::Alibi,
            ScoreKind::Bias,
            ScoreKind::Tree,
            ScoreKind::Dropout,
        ];
        match own.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Ok(kind),
            None => ScoreName::new(&name).map(ScoreKind::User).ok_or(ScoreName::RULE),
        }
    }
}

impl Schedule {
    /// The name in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Schedule::Grid => "grid",
            Schedule::Persistent => "persistent",
            Schedule::Split => "split",
            Schedule::Ragged => "ragged",
        }
    }

    /// Whether a CTA's rows are those of all query heads of a KV head, its keys may be a range, and sequences have lengths on the device.
    pub const fn splits(self) -> bool {
        matches!(self, Schedule::Split | Schedule::Ragged)
    }
}

/// One kernel of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "manifest", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Row {
    /// The instructions it is made of.
    #[cfg_attr(feature = "manifest", serde(default))]
    pub isa: Isa,
    /// Element type of Q, K, V and O.
    pub dtype: Dtype,
    /// Elements of a query and key vector: one of [`HEAD_DIMS`], or 192; of a value vector [`crate::geometry::value_width`].
    pub head_dim: u32,
    /// Query rows of a CTA: 16, 32, 64 or 128; with [`Isa::Wgmma`] 64, 128 or 192, 64 for each consumer warpgroup.
    pub block_m: u32,
    /// Keys of a main-loop step: 32, 64 or 128; with [`Isa::Wgmma`] a multiple of 16 from 64 to 256, and with dropout 64, 96 or 128.
    pub block_n: u32,
    /// Warps of a CTA: 4 or 8; with [`Isa::Wgmma`] one for 16 rows, or two that take keys in turns, or at head_dim 512 two that have a
    /// half of the values each, and four that copy.
    pub warps: u32,
    /// Buffers for K and V in shared memory: 1 to 4.
    pub stages: u32,
    /// What Q·Kᵀ and P·V accumulate in.
    pub acc: Accumulation,
    /// CTAs an SM must be able to hold: caps the registers (`.minnctapersm`). 1 caps nothing.
    pub min_ctas: u32,
    /// Query rows of a warp: 16 or 32. Warps that `block_m` has no rows for share rows and split the keys of each block.
    /// With 32 rows a warp reads K and V from shared memory half as often, and holds twice the fragments.
    pub warp_rows: u32,
    /// How CTAs take their work.
    pub schedule: Schedule,
    /// What touches every score.
    #[cfg_attr(feature = "manifest", serde(default, skip_serializing_if = "ScoreKind::is_plain"))]
    pub score: ScoreKind,
}

/// Why a row is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowError {
    /// `head_dim` is not one of [`HEAD_DIMS`], or has no kernels of this schedule and family.
    HeadDim,
    /// `block_m` is not 16, 32, 64 or 128; with [`Isa::Wgmma`], 64, 128 or 192.
    BlockM,
    /// `block_n` is not 32, 64 or 128; with [`Isa::Wgmma`], a multiple of 16 from 64 to 256.
    BlockN,
    /// `warps` is not 4 or 8; with [`Isa::Wgmma`], not block_m / 16 + 4 or, with even stages and one tile a CTA, block_m / 8 + 4; at
    /// head_dim 512 not 12 with 64 rows and one stage.
    Warps,
    /// `stages` is not 1 to 4.
    Stages,
    /// Ragged batches with one stage and [`Isa::Wgmma`] below head_dim 512, or a score that is not plain with another schedule.
    Ragged,
    /// float16 accumulation of bfloat16 products does not exist, and none with [`Isa::Wgmma`].
    Accumulation,
    /// `min_ctas` is 0 or over 8.
    MinCtas,
    /// `warp_rows` is not 16 or 32, or the warps do not make up a block of `block_m` rows, or several.
    WarpRows,
    /// A warp gets fewer than 16 keys of a block: the block is too narrow for its warps.
    KeysPerWarp,
    /// Shared memory over [`SMEM_MAX_BYTES`].
    SharedMemory {
        /// Bytes the row needs.
        bytes: u32,
    },
    /// The fragments alone leave too few registers for anything else.
    Registers {
        /// Registers the row needs, estimated.
        registers: u32,
        /// Registers a thread may have with this many threads and `min_ctas`.
        limit: u32,
    },
}

impl RowError {
    /// What is wrong and what to do, without the numbers (for compile-time messages).
    pub const fn reason(self) -> &'static str {
        match self {
            RowError::HeadDim => {
                "head_dim must be 32, 64, 96, 128, 256 or, with Ragged, 192 (isa Wgmma, values of 128) or 512"
            }
            RowError::BlockM => "block_m must be 16, 32, 64 or 128 (wgmma: 64, 128 or 192)",
            RowError::BlockN => {
                "block_n must be 32, 64 or 128 (wgmma: a multiple of 16 from 64 to 256; with dropout 64, 96 or 128)"
            }
            RowError::Warps => {
                "warps must be 4 or 8 (wgmma: block_m / 16 + 4, or block_m / 8 + 4 with even stages and not persistent; head_dim 512: 12 with block_m 64 and one stage)"
            }
            RowError::Stages => "stages must be 1 to 4",
            RowError::Ragged => {
                "Ragged with wgmma needs 2 stages or more below head_dim 512, and a score that is not Plain needs Ragged"
            }
            RowError::Accumulation => "acc F16 needs isa Mma and dtype F16: there is no other such kernel",
            RowError::MinCtas => "min_ctas must be 1 to 8",
            RowError::WarpRows => {
                "warp_rows must be 16 or 32, at most block_m, and block_m / warp_rows at most warps"
            }
            RowError::KeysPerWarp => {
                "a warp gets fewer than 16 keys: raise block_m or block_n, or lower warps"
            }
            RowError::SharedMemory { .. } => {
                "shared memory over 227 KB (232448 bytes): lower block_m, block_n or stages"
            }
            RowError::Registers { .. } => {
                "registers over the limit: lower block_m or block_n, or raise warps"
            }
        }
    }
}

impl core::fmt::Display for RowError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.reason())?;
        match self {
            RowError::SharedMemory { bytes } => {
                write!(f, " (needs {bytes} bytes, {} too many)", bytes - SMEM_MAX_BYTES)
            }
            RowError::Registers { registers, limit } => {
                write!(f, " (needs about {registers}, limit {limit})")
            }
            _ => Ok(()),
        }
    }
}

impl core::error::Error for RowError {}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A usual row, for tests to vary.
    pub(crate) const GOOD: Row = Row {
        isa: Isa::Mma,
        dtype: Dtype::F16,
        head_dim: 64,
        block_m: 64,
        block_n: 64,
        warps: 4,
        stages: 2,
        acc: Accumulation::F32,
        min_ctas: 1,
        warp_rows: 16,
        schedule: Schedule::Grid,
        score: ScoreKind::Plain,
    };
}
