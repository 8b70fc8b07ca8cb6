//! The table of honest candidates.

use kernels_gpu::row::Accumulation;

/// How an honest candidate computes: keys of a block at a time, these and the channels of a sum from the last to the first or the other
/// way, with P rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Honest {
    /// Keys of a block.
    pub block: usize,
    /// Whether the last block comes first.
    pub from_the_end: bool,
    /// Growth of a maximum, in powers of two, up to which nothing is rescaled.
    pub lazy: u8,
    /// What Q·Kᵀ and P·V accumulate in.
    pub acc: Accumulation,
}

/// Honest candidates, which nobody may refuse.
pub const HONEST: [Honest; 32] = {
    const fn of(block: usize, from_the_end: bool, lazy: u8) -> Honest {
        Honest { block, from_the_end, lazy, acc: Accumulation::F32 }
    }
    const fn of16(how: Honest) -> Honest {
        Honest { acc: Accumulation::F16, ..how }
    }
    [
        of(16, false, 0),
        of(16, true, 8),
        of(32, false, 0),
        of(32, true, 8),
        of(64, false, 0),
        of(64, true, 0),
        of(64, false, 8),
        of(64, true, 8),
        of(128, false, 0),
        of(128, true, 8),
        of(1, false, 0),
        of(1 << 14, false, 0),
        of(8, true, 0),
        of(24, false, 4),
        of(40, true, 1),
        of(48, true, 8),
        of(80, false, 8),
        of(96, true, 0),
        of(112, false, 2),
        of(256, true, 8),
        of16(of(64, false, 0)),
        of16(of(64, true, 8)),
        of16(of(128, false, 8)),
        of16(of(16, true, 0)),
        of(2, false, 8),
        of(3, true, 1),
        of(72, false, 3),
        of(144, true, 8),
        of(192, false, 8),
        of(4096, true, 8),
        of16(of(32, true, 8)),
        of16(of(256, false, 0)),
    ]
};
