//! What a kernel did wrong, and where.

use std::borrow::Cow;
use std::fmt;

use crate::blocked::Blocked;

impl FindingKind {
    /// Who must mend it.
    pub fn blame(self) -> Blame {
        match self {
            FindingKind::Budget => Blame::OutOfBudget,
            _ => Blame::Program,
        }
    }
}

/// A rule that the kernel broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// An access outside every allocation of its space.
    OutOfBounds,
    /// An access to freed global memory.
    UseAfterFree,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// A read of memory that nobody wrote.
    Uninitialized,
    /// An access to the target of an asynchronous copy that is not waited for, or a write to what an asynchronous copy or
    /// a `wgmma` may still read.
    AsyncPending,
    /// A write of the generic proxy that the async proxy (bulk copies, `wgmma`) meets without `fence.proxy.async` between, or that changes a
    /// tensor map that is used without `fence.proxy.tensormap`.
    ProxyFence,
    /// An mbarrier used before its initialisation or after its end, with more arrivals than its phase expects, or as plain
    /// memory.
    Mbarrier,
    /// Two accesses to shared memory, one of them a write, that no barrier orders.
    SharedRace,
    /// Two accesses to global memory by different CTAs, one of them a write.
    GlobalRace,
    /// A write, by the same launch, of global memory that a load promises to be read only (`ld.global.nc`, `__ldg`, `ldu`).
    ReadOnly,
    /// Lanes of one warp at an aligned barrier without the others.
    BarrierDivergence,
    /// Every warp waits and nothing can wake one.
    Deadlock,
    /// The instruction budget ran out.
    Budget,
    /// A shuffle that reads a lane which does not take part, or lanes outside their own mask.
    ShuffleInactive,
    /// An instruction that the whole warp must execute, in a diverged warp.
    DivergedWarp,
    /// A register of a `wgmma` touched before its group is waited for.
    WgmmaPending,
    /// A register of a `wgmma` that another instruction wrote without `wgmma.fence` between.
    WgmmaFence,
    /// Warps of a warpgroup that execute different `wgmma` or `setmaxnreg`, or not all of them.
    DivergedWarpgroup,
    /// The kernel executed `trap`.
    Trap,
    /// A call or jump through a value that is no valid target.
    BadTarget,
    /// An operand whose value the instruction does not accept.
    BadOperand,
}

impl FindingKind {
    /// A stable short name.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::OutOfBounds => "out-of-bounds",
            FindingKind::UseAfterFree => "use-after-free",
            FindingKind::Misaligned => "misaligned",
            FindingKind::Uninitialized => "uninitialized",
            FindingKind::AsyncPending => "async-pending",
            FindingKind::ProxyFence => "proxy-fence",
            FindingKind::Mbarrier => "mbarrier",
            FindingKind::SharedRace => "shared-race",
            FindingKind::GlobalRace => "global-race",
            FindingKind::ReadOnly => "read-only",
            FindingKind::BarrierDivergence => "barrier-divergence",
            FindingKind::Deadlock => "deadlock",
            FindingKind::Budget => "budget",
            FindingKind::ShuffleInactive => "shuffle-inactive",
            FindingKind::DivergedWarp => "diverged-warp",
            FindingKind::WgmmaPending => "wgmma-pending",
            FindingKind::WgmmaFence => "wgmma-fence",
            FindingKind::DivergedWarpgroup => "diverged-warpgroup",
            FindingKind::Trap => "trap",
            FindingKind::BadTarget => "bad-target",
            FindingKind::BadOperand => "bad-operand",
        }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The results may be wrong: the launch ends.
    #[default]
    Error,
    /// The rules are broken in a way that today's hardware forgives: the launch goes on.
    Warning,
}

impl Severity {
    /// A stable short name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// Who must mend what is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The program.
    Program,
    /// The budget: the program may be right.
    OutOfBudget,
}

impl Blame {
    /// A stable short name.
    pub fn name(self) -> &'static str {
        match self {
            Blame::Program => "program",
            Blame::OutOfBudget => "out-of-budget",
        }
    }
}

/// The other access of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherAccess {
    /// Whether it wrote.
    pub write: bool,
    /// Its PTX line, where it is known.
    pub line: Option<u32>,
    /// Its warp, where it is known.
    pub warp: Option<u32>,
    /// The lanes that took part, where they are known.
    pub lanes: u32,
    /// Its linear CTA id, for a race between CTAs; modulo 65534 where its line is not known.
    pub cta: Option<u32>,
}

/// A place in the source that the PTX was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// File as named by `.file`.
    pub file: String,
    /// Line in it.
    pub line: u32,
    /// Lines of that file of the calls that led there, from the inside out, inlined ones too; as far as they are known.
    pub called_at: Vec<u32>,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        self.called_at.iter().try_for_each(|line| write!(f, ", called at {line}"))
    }
}

/// A broken rule with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub kind: FindingKind,
    /// How bad it is.
    pub severity: Severity,
    /// Entry that was launched.
    pub kernel: String,
    /// Line of the PTX text, 0 where none is to blame.
    pub line: u32,
    /// The instruction as written.
    pub instruction: String,
    /// The source line, where the PTX has `.loc`.
    pub source: Option<SourceLine>,
    /// CTA index in the grid.
    pub cta: [u32; 3],
    /// Warp in the CTA.
    pub warp: u32,
    /// Lane in the warp, where one lane is to blame.
    pub lane: Option<u32>,
    /// Address of the access, in its state space.
    pub address: Option<u64>,
    /// The access that it collides with.
    pub other: Option<OtherAccess>,
    /// The source line of that access, where the PTX has `.loc`.
    pub other_source: Option<SourceLine>,
    /// Which of the rules of its kind is broken, where the kind does not say all.
    pub detail: Option<Cow<'static, str>>,
    /// In a deadlock, every warp that waits, and for what.
    pub blocked: Vec<Blocked>,
    /// Seed of the schedule.
    pub seed: Option<u64>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.severity == Severity::Warning {
            write!(f, "warning: ")?;
        }
        write!(f, "{}: kernel {} line {}", self.kind.name(), self.kernel, self.line)?;
        if !self.instruction.is_empty() {
            write!(f, " `{}`", self.instruction)?;
        }
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        let [x, y, z] = self.cta;
        write!(f, ", CTA ({x}, {y}, {z}), warp {}", self.warp)?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        if let Some(address) = self.address {
            write!(f, ", address {address:#x}")?;
        }
        if let Some(other) = &self.other {
            write!(f, "; collides with a {}", if other.write { "write" } else { "read" })?;
            if let Some(line) = other.line {
                write!(f, " at line {line}")?;
            }
            if let Some(source) = &self.other_source {
                write!(f, " ({source})")?;
            }
            if let Some(cta) = other.cta {
                write!(f, " by CTA {cta}")?;
            }
            if let Some(warp) = other.warp {
                write!(f, " by warp {warp} lanes {:#010x}", other.lanes)?;
            }
        }
        if let Some(detail) = &self.detail {
            write!(f, "; {detail}")?;
        }
        if let Some(seed) = self.seed {
            write!(f, "; seed {seed}")?;
        }
        self.blocked.iter().try_for_each(|blocked| write!(f, "\n  {blocked}"))
    }
}

/// A broken rule before its place is filled in.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FindingKind,
    pub(crate) lane: Option<usize>,
    pub(crate) address: Option<u64>,
    pub(crate) other: Option<OtherAccess>,
    pub(crate) detail: Option<Cow<'static, str>>,
    pub(crate) severity: Severity,
    /// The instruction to blame, where it is not the one that is executed.
    pub(crate) at: Option<(usize, u32)>,
}

impl Fault {
    pub(crate) fn new(kind: FindingKind) -> Box<Fault> {
        Box::new(Fault {
            kind,
            lane: None,
            address: None,
            other: None,
            detail: None,
            severity: Severity::Error,
            at: None,
        })
    }

    pub(crate) fn at(kind: FindingKind, lane: usize, address: u64) -> Box<Fault> {
        Box::new(Fault {
            kind,
            lane: Some(lane),
            address: Some(address),
            other: None,
            detail: None,
            severity: Severity::Error,
            at: None,
        })
    }

    /// With the rule that is broken.
    pub(crate) fn saying(mut self: Box<Fault>, detail: impl Into<Cow<'static, str>>) -> Box<Fault> {
        self.detail = Some(detail.into());
        self
    }

    /// One that hardware forgives.
    pub(crate) fn warning(mut self: Box<Fault>, detail: &'static str) -> Box<Fault> {
        self.severity = Severity::Warning;
        self.saying(detail)
    }
}

/// What an executor function gives back.
pub(crate) type Outcome<T = ()> = Result<T, Box<Fault>>;
