//! Why a plan is what it is, built only where somebody asks.

use super::preference::{CTAS_TO_READ, FUSED_PARTIAL_BYTES};
use super::splitting::Because;
use super::{COUNTERS_MAX, Combine, Plan, PlanOptions, Splits};
use crate::problem::Problem;
use kernels_gpu::row::Schedule;
use std::fmt;

/// CTAs an SM with which it is busy to the end: some always wait for the tensor cores while others load.
const CTAS_PER_SM: f64 = 4.0;

/// One reason for one decision of a plan.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The kernel was asked for by name.
    Named,
    /// The kernel without splits measured best for grids like this.
    Measured {
        /// Tiles an SM that it has.
        tiles_per_sm: f64,
        /// Tiles an SM from which on it measured best.
        least: f64,
        /// Keys from which on.
        keys: u32,
        /// Whether this holds for this mask alone.
        mask: bool,
    },
    /// No measurement names a kernel without splits: the largest tile that gives every SM work, or the smallest.
    Unmeasured,
    /// Only kernels that split keys come into question, as lengths on the device, a number or a size of splits, or that schedule were
    /// asked for.
    OnlySplit {
        /// What was asked for.
        asked: &'static str,
    },
    /// As many splits as were asked for, or as the size asked for makes.
    SplitsAsked {
        /// Splits.
        splits: u32,
    },
    /// One split, as the tiles alone are enough CTAs.
    SplitsFilled {
        /// Waves of CTAs that they make.
        share: f64,
    },
    /// One split, as there are hardly any keys.
    SplitsFewKeys {
        /// Blocks of keys.
        key_blocks: u32,
    },
    /// One split, as there is no kernel that would merge several.
    SplitsNoCombine,
    /// The fewest splits that fill waves of CTAs nearly as well as the best number.
    SplitsEfficiency {
        /// Splits.
        splits: u32,
        /// How full the waves are.
        efficiency: f64,
        /// How full they are at best.
        best: f64,
    },
    /// What kernels with and without splits are estimated to take, in query rows × keys × elements on one SM.
    Estimate {
        /// Without.
        unsplit: f64,
        /// With.
        split: f64,
        /// Whether the one with splits is taken.
        is_split: bool,
    },
    /// Not the kernel that can split keys, as it would make one split, and no query heads share a KV head.
    NothingShared,
    /// A kernel with wgmma and bulk copies, which the device has.
    Wgmma,
    /// A kernel without wgmma, although the device has it.
    NotWgmma {
        /// Why.
        because: NotWgmma,
    },
    /// The splits are merged in the same launch, by the CTA of each tile that finishes last, or in a launch of their own.
    Combine {
        /// Whether in the same launch.
        fused: bool,
        /// Bytes of partial O a tile.
        tile_bytes: u64,
        /// Why.
        because: WhyCombine,
    },
    /// No CTAs that stay and draw their work from a counter, as nobody asked for them.
    NotPersistent,
    /// How the CTAs fill the device.
    Fill {
        /// CTAs.
        ctas: u32,
        /// CTAs an SM.
        ctas_per_sm: f64,
        /// CTAs that an SM holds at a time.
        resident_ctas: u32,
        /// Ranges of keys.
        splits: u32,
        /// Whether they stay and draw their work from a counter.
        persistent: bool,
    },
}

/// Why a kernel without wgmma was chosen where the device has it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotWgmma {
    /// There is none for this dtype and head_dim.
    NoKernel,
    /// There is none that does what was asked for.
    Asked,
    /// The driver is too old for its copies.
    Driver,
    /// More query heads share a KV head than a block has rows.
    Group {
        /// How many.
        heads: u32,
    },
    /// Bulk copies do not take a tensor.
    Tensor {
        /// The tensor.
        tensor: &'static str,
        /// What of it: "stride", "size".
        what: &'static str,
        /// Along which dimension.
        dimension: &'static str,
    },
    /// Others measured better, or are estimated to be.
    NotPreferred,
}

/// Why splits are merged where they are.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhyCombine {
    /// It was asked for.
    Asked,
    /// There are more tiles than counters.
    Tiles {
        /// Counters.
        most: u64,
    },
    /// A tile has as little to merge, or more.
    Bytes {
        /// Up to which its own CTA merges it.
        most: u64,
    },
}

impl fmt::Display for NotWgmma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotWgmma::NoKernel => write!(f, "there is no kernel with it for this dtype and head_dim"),
            NotWgmma::Asked => write!(f, "no kernel with it does what was asked for"),
            NotWgmma::Driver => write!(f, "its copies need a driver for CUDA 12.0 (525) or newer"),
            NotWgmma::Group { heads } => {
                write!(f, "{heads} query heads share a KV head, more than its blocks have rows")
            }
            NotWgmma::Tensor { tensor, what, dimension } => {
                write!(f, "its copies do not take {tensor}, for its {what} of dimension {dimension}")
            }
            NotWgmma::NotPreferred => write!(f, "for grids like this the other measured better"),
        }
    }
}

impl Reason {
    pub(super) fn splits(splits: u32, because: Because) -> Reason {
        match because {
            Because::Asked => Reason::SplitsAsked { splits },
            Because::Filled { share } => Reason::SplitsFilled { share },
            Because::FewKeyBlocks { blocks } => Reason::SplitsFewKeys { key_blocks: blocks },
            Because::NoCombine => Reason::SplitsNoCombine,
            Because::Efficiency { efficiency, best } => Reason::SplitsEfficiency { splits, efficiency, best },
        }
    }

    pub(super) fn only_split(problem: &Problem, options: &PlanOptions) -> Reason {
        let asked = match options.splits {
            Splits::Count(_) => "a number of splits",
            Splits::Size(_) => "a split size",
            Splits::Auto if problem.has_lengths() => "lengths on the device",
            Splits::Auto => "the schedule",
        };
        Reason::OnlySplit { asked }
    }

    pub(super) fn combine(plan: &Plan, options: &PlanOptions) -> Reason {
        let because = match options.combine {
            Combine::Fused | Combine::Kernel => WhyCombine::Asked,
            Combine::Auto if u64::from(plan.tiles()) > COUNTERS_MAX => {
                WhyCombine::Tiles { most: COUNTERS_MAX }
            }
            Combine::Auto => WhyCombine::Bytes { most: FUSED_PARTIAL_BYTES },
        };
        Reason::Combine { fused: plan.is_fused(), tile_bytes: plan.tile_partial_bytes(), because }
    }

    pub(super) fn fill(plan: &Plan, sm_count: u32) -> Reason {
        Reason::Fill {
            ctas: plan.grid(),
            ctas_per_sm: f64::from(plan.grid()) / f64::from(sm_count.max(1)),
            resident_ctas: plan.resident_ctas(),
            splits: plan.splits(),
            persistent: plan.schedule() == Schedule::Persistent,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::Named => write!(f, "the kernel was asked for by name"),
            Reason::Measured { tiles_per_sm, least, keys, mask } => {
                let mask = if mask { " with this mask" } else { "" };
                let keys = if keys > 0 { format!(" and {keys} keys") } else { String::new() };
                write!(
                    f,
                    "without splits, this tile measured best{mask} from {least} tiles an SM{keys} on; here are {tiles_per_sm:.2}"
                )
            }
            Reason::Unmeasured => write!(
                f,
                "without splits, no measurement names a kernel: the largest tile that gives every SM work, or the smallest"
            ),
            Reason::OnlySplit { asked } => {
                write!(f, "only kernels that split keys come into question: {asked} was asked for")
            }
            Reason::SplitsAsked { splits } => write!(f, "{splits} splits, as asked for"),
            Reason::SplitsFilled { share } => {
                write!(f, "1 split: the tiles alone are {share:.2} waves of up to {CTAS_TO_READ} CTAs an SM")
            }
            Reason::SplitsFewKeys { key_blocks } => {
                write!(f, "1 split: there are only {key_blocks} blocks of keys")
            }
            Reason::SplitsNoCombine => write!(f, "1 split: there is no kernel that would merge several"),
            Reason::SplitsEfficiency { splits, efficiency, best } => write!(
                f,
                "{splits} splits: the fewest that fill waves to {:.0} %, {:.0} % being the best",
                efficiency * 100.0,
                best * 100.0
            ),
            Reason::Estimate { unsplit, split, is_split } => write!(
                f,
                "{}: the kernel that can split keys is estimated to take {:.2} of the other's time{}",
                if is_split { "taken" } else { "not taken" },
                split / unsplit,
                if is_split { "" } else { ", which was measured" },
            ),
            Reason::NothingShared => write!(
                f,
                "not taken: with one split, and no query heads that share a KV head, the kernel that can split keys gains nothing"
            ),
            Reason::Combine { fused, tile_bytes, because } => {
                let place = if fused {
                    "splits are merged in the same launch, by the CTA of each tile that finishes last"
                } else {
                    "splits are merged by a kernel of their own"
                };
                write!(f, "{place}: ")?;
                match because {
                    WhyCombine::Asked => write!(f, "as asked for"),
                    WhyCombine::Tiles { most } => write!(f, "there are counters for {most} tiles"),
                    WhyCombine::Bytes { most } => {
                        let is = if fused { "at most" } else { "over" };
                        write!(f, "{tile_bytes} bytes of partial O a tile, {is} {most}")
                    }
                }
            }
            Reason::Wgmma => write!(f, "with wgmma and bulk copies, which the device has"),
            Reason::NotWgmma { because } => write!(f, "without wgmma, which the device has: {because}"),
            Reason::NotPersistent => write!(
                f,
                "not persistent: the hardware hands out CTAs as well as a counter does, so these are for whoever asks for them"
            ),
            Reason::Fill { ctas, resident_ctas, persistent: true, .. } => {
                write!(f, "one full wave of persistent CTAs: {ctas}, {resident_ctas} an SM")
            }
            Reason::Fill { ctas, ctas_per_sm, resident_ctas, splits, .. } => {
                write!(
                    f,
                    "{ctas_per_sm:.2} CTAs an SM, {ctas} in all, of which it holds {resident_ctas} at a time"
                )?;
                match splits {
                    _ if ctas_per_sm >= CTAS_PER_SM => write!(f, ": at least {CTAS_PER_SM}"),
                    1 => write!(f, ": there are no more tiles"),
                    _ => write!(f, ": about {CTAS_TO_READ} are enough to read at the memory's bandwidth"),
                }
            }
        }
    }
}

/// The reasons so far, where they are wanted.
pub(super) struct Trace(Option<Vec<Reason>>);

impl Trace {
    /// One that keeps nothing.
    pub(super) const fn silent() -> Trace {
        Trace(None)
    }

    /// One that keeps everything.
    pub(super) const fn recording() -> Trace {
        Trace(Some(Vec::new()))
    }

    pub(super) fn note(&mut self, reason: impl FnOnce() -> Reason) {
        if let Some(reasons) = &mut self.0 {
            reasons.push(reason());
        }
    }

    pub(super) fn reasons(self) -> Vec<Reason> {
        self.0.unwrap_or_default()
    }
}
