//! Why a plan is what it is, built only where somebody asks.

use std::fmt;

/// CTAs an SM with which it is busy to the end: some always wait for the tensor cores while others load.
const CTAS_PER_SM: f64 = 4.0;
/// Runners-up that a plan names.
const RUNNERS_UP: usize = 3;

/// What a way to compute a problem is estimated to take.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The kernel.
    pub kernel: String,
    /// Ranges of keys.
    pub splits: u32,
    /// Whether splits are merged in the same launch.
    pub fused: bool,
    /// Its time, in microseconds.
    pub us: f64,
}

/// One reason for one decision of a plan.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The kernel was asked for by name.
    Named,
    /// Only kernels that split keys come into question, as lengths on the device, a number or a size of splits, or that schedule were
    /// asked for.
    OnlySplit {
        /// What was asked for.
        asked: &'static str,
    },
    /// The plan is estimated to be the fastest.
    Estimate {
        /// Its time, in microseconds.
        us: f64,
        /// The launch's part of it.
        launch_us: f64,
        /// The part of merging splits.
        merge_us: f64,
        /// What the device's profile was fitted to; `None` where the costs follow from data sheets.
        profile: Option<String>,
    },
    /// The next best.
    RunnerUp {
        /// What it is estimated to take.
        estimate: Estimate,
        /// How many times as long that is.
        times: f64,
    },
    /// The query heads that share a KV head are computed as one, as their rows follow each other in memory and see the same keys.
    GroupedHeads {
        /// How many.
        heads: u32,
        /// Their rows.
        rows: u32,
    },
    /// A kernel with wgmma and bulk copies, which the device has.
    Wgmma,
    /// A kernel without wgmma, although the device has it.
    NotWgmma {
        /// Why.
        because: NotWgmma,
    },
    /// How the CTAs fill the device.
    Fill {
        /// CTAs.
        ctas: u32,
        /// CTAs an SM.
        ctas_per_sm: f64,
        /// CTAs that an SM holds at a time.
        resident_ctas: u32,
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
    /// Pages have too few keys, or block_n is no multiple of enough of them.
    Pages {
        /// Keys of a page.
        page: u32,
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
    /// Others are estimated to be faster.
    NotPreferred,
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
            NotWgmma::Pages { page } => {
                write!(f, "its copies take 8 keys of a page or more at a time, and a page has {page}")
            }
            NotWgmma::Tensor { tensor, what, dimension } => {
                write!(f, "its copies do not take {tensor}, for its {what} of dimension {dimension}")
            }
            NotWgmma::NotPreferred => {
                write!(f, "its blocks of 64 rows and more are estimated to be slower here")
            }
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kernel)?;
        match (self.splits, self.fused) {
            (1, _) => Ok(()),
            (splits, true) => write!(f, " with {splits} splits, merged in the same launch"),
            (splits, false) => write!(f, " with {splits} splits, merged by a kernel of their own"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Named => write!(f, "the kernel was asked for by name"),
            Reason::OnlySplit { asked } => {
                write!(f, "only kernels that split keys come into question: {asked} was asked for")
            }
            Reason::Estimate { us, launch_us, merge_us, profile } => {
                write!(f, "estimated to take {us:.1} µs, of which the launch {launch_us:.1}")?;
                if *merge_us > 0.0 {
                    write!(f, " and merging the splits {merge_us:.1}")?;
                }
                match profile {
                    Some(fitted_to) => write!(f, ", by this device's profile ({fitted_to})"),
                    None => write!(f, ", by data sheets; `ferroflash tune` measures it"),
                }
            }
            Reason::RunnerUp { estimate, times } => {
                write!(f, "next best, {times:.2} times as long: {estimate}")
            }
            Reason::GroupedHeads { heads, rows } => {
                write!(f, "the {heads} query heads that share a KV head are computed as one of {rows} rows")
            }
            Reason::Wgmma => write!(f, "with wgmma and bulk copies, which the device has"),
            Reason::NotWgmma { because } => write!(f, "without wgmma, which the device has: {because}"),
            Reason::Fill { ctas, resident_ctas, persistent: true, .. } => {
                write!(f, "persistent CTAs: {ctas}, of which an SM holds {resident_ctas}")
            }
            Reason::Fill { ctas, ctas_per_sm, resident_ctas, persistent: false } => {
                write!(
                    f,
                    "{ctas_per_sm:.2} CTAs an SM, {ctas} in all, of which it holds {resident_ctas} at a time"
                )?;
                if *ctas_per_sm >= CTAS_PER_SM { write!(f, ": at least {CTAS_PER_SM}") } else { Ok(()) }
            }
        }
    }
}

/// The reasons and the estimates so far, where they are wanted.
pub(super) struct Trace(Option<(Vec<Reason>, Vec<Estimate>)>);

impl Trace {
    /// One that keeps nothing.
    pub(super) const fn silent() -> Trace {
        Trace(None)
    }

    /// One that keeps everything.
    pub(super) const fn recording() -> Trace {
        Trace(Some((Vec::new(), Vec::new())))
    }

    pub(super) const fn is_silent(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn note(&mut self, reason: impl FnOnce() -> Reason) {
        if let Some((reasons, _)) = &mut self.0 {
            reasons.push(reason());
        }
    }

    pub(super) fn consider(&mut self, estimate: impl FnOnce() -> Estimate) {
        if let Some((_, estimates)) = &mut self.0 {
            estimates.push(estimate());
        }
    }

    /// The reasons for a choice, and the best of the other kernels.
    pub(super) fn reasons(self, chosen: &Estimate) -> Vec<Reason> {
        let (mut reasons, mut others) = self.0.unwrap_or_default();
        others.sort_by(|a, b| a.us.total_cmp(&b.us));
        let mut seen = vec![chosen.kernel.clone()];
        for estimate in others {
            if seen.len() > RUNNERS_UP {
                break;
            }
            if !seen.contains(&estimate.kernel) {
                seen.push(estimate.kernel.clone());
                let times = estimate.us / chosen.us;
                reasons.push(Reason::RunnerUp { estimate, times });
            }
        }
        reasons
    }
}
