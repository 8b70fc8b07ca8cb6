//! What the warps of a deadlock wait for.

use std::fmt;

use crate::finding::SourceLine;

/// A warp, or some lanes of it, that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Warp in the CTA.
    pub warp: u32,
    /// Its lanes that wait here.
    pub lanes: u32,
    /// Line of the PTX text.
    pub line: u32,
    /// The source line, where the PTX has `.loc`.
    pub source: Option<SourceLine>,
    /// What would let it go on.
    pub on: BlockedOn,
}

/// What a warp waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockedOn {
    /// A barrier of the CTA (`bar`, `barrier`).
    Barrier {
        /// Its number.
        id: u32,
        /// Threads that must come.
        expected: u32,
        /// Threads that have come.
        arrived: u32,
        /// Their warps.
        warps: Vec<u32>,
    },
    /// A phase of an mbarrier.
    Mbarrier {
        /// Its shared address.
        address: u64,
        /// The variable that holds it, and the offset in it.
        symbol: Option<(String, u64)>,
        /// The phase that is not complete, counted from the initialisation on.
        phase: u32,
        /// Arrivals that the phase lacks.
        arrivals: u32,
        /// Arrivals that a phase takes.
        count: u32,
        /// Bytes that the phase lacks; negative where more have come than were expected.
        bytes: i64,
        /// Who has arrived so far, in any phase.
        arrived: Vec<ArrivalSite>,
    },
    /// The rest of its warpgroup at a `wgmma`.
    Warpgroup {
        /// The warps that have not come.
        missing: Vec<u32>,
    },
    /// The barrier of the cluster.
    Cluster {
        /// Threads that have come.
        arrived: u32,
        /// Threads that must come.
        expected: u32,
    },
    /// A change of memory: it spins on what nobody will write.
    Memory {
        /// The generic address that it read last.
        address: u64,
    },
    /// Registers (`setmaxnreg.inc`).
    Registers {
        /// Registers of a thread that it wants.
        wanted: u32,
        /// Registers of the CTA that no warp has.
        free: u32,
    },
}

/// Where a warp has arrived at an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalSite {
    /// The warp.
    pub warp: u32,
    /// PTX line of the arrival.
    pub line: u32,
    /// Whether the warp has exited, so that it cannot arrive again.
    pub exited: bool,
}

impl BlockedOn {
    /// A stable short name.
    pub fn name(&self) -> &'static str {
        match self {
            BlockedOn::Barrier { .. } => "barrier",
            BlockedOn::Mbarrier { .. } => "mbarrier",
            BlockedOn::Cluster { .. } => "cluster",
            BlockedOn::Memory { .. } => "memory",
            BlockedOn::Warpgroup { .. } => "warpgroup",
            BlockedOn::Registers { .. } => "registers",
        }
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warp {}", self.warp)?;
        if self.lanes != u32::MAX {
            write!(f, " lanes {:#010x}", self.lanes)?;
        }
        write!(f, " waits at line {}", self.line)?;
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        write!(f, " for {}", self.on)
    }
}

impl fmt::Display for BlockedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockedOn::Barrier { id, expected, arrived, warps } => {
                write!(f, "barrier {id}: {arrived} of {expected} threads have come, of warps {warps:?}")
            }
            BlockedOn::Cluster { arrived, expected } => {
                write!(f, "the cluster's barrier: {arrived} of {expected} threads have come")
            }
            BlockedOn::Memory { address } => {
                write!(f, "memory at {address:#x} to change, which nobody will do any more")
            }
            BlockedOn::Warpgroup { missing } => write!(f, "warps {missing:?} of its warpgroup"),
            BlockedOn::Registers { wanted, free } => {
                write!(f, "{wanted} registers a thread: the pool has {free}")
            }
            BlockedOn::Mbarrier { address, symbol, phase, arrivals, count, bytes, arrived } => {
                write!(f, "the mbarrier at {address:#x}")?;
                if let Some((name, offset)) = symbol {
                    write!(f, " ({name}+{offset})")?;
                }
                write!(f, ": phase {phase} (parity {}) lacks {arrivals} of {count} arrivals", phase & 1)?;
                write!(f, " and {bytes} bytes; ")?;
                if arrived.is_empty() {
                    return write!(f, "nobody has ever arrived");
                }
                write!(f, "arrivals so far came from")?;
                for (i, site) in arrived.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    let exited = if site.exited { " (exited)" } else { "" };
                    write!(f, "{comma} warp {} at line {}{exited}", site.warp, site.line)?;
                }
                Ok(())
            }
        }
    }
}
