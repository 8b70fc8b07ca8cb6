//! How many CTAs fit on a multiprocessor (CUDA programming guide, technical specifications by compute capability).

/// What one multiprocessor of a device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Name of the target.
    pub name: &'static str,
    /// Shared memory, in bytes.
    pub smem_bytes: u32,
    /// Resident threads.
    pub threads: u32,
    /// Resident CTAs.
    pub ctas: u32,
}

/// What keeps another CTA from fitting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OccupancyLimit {
    /// Registers.
    Registers,
    /// Shared memory.
    SharedMemory,
    /// Threads.
    Threads,
    /// CTAs.
    Ctas,
}

/// CTAs that fit, and why no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// CTAs on one multiprocessor.
    pub ctas: u32,
    /// Warps on one multiprocessor.
    pub warps: u32,
    /// Warps that it could hold at most.
    pub warps_max: u32,
    /// What is used up first.
    pub limit: OccupancyLimit,
}

/// Registers of each of the four partitions of a multiprocessor.
const PARTITION_REGISTERS: u32 = 16384;
/// Shared memory that the system takes of each CTA, in bytes.
const RESERVED_SMEM: u32 = 1024;

impl Multiprocessor {
    /// NVIDIA A100.
    pub const SM_80: Multiprocessor =
        Multiprocessor { name: "sm_80", smem_bytes: 164 * 1024, threads: 2048, ctas: 32 };
    /// GeForce 30 and the like.
    pub const SM_86: Multiprocessor =
        Multiprocessor { name: "sm_86", smem_bytes: 100 * 1024, threads: 1536, ctas: 16 };
    /// NVIDIA L4 and the like.
    pub const SM_89: Multiprocessor =
        Multiprocessor { name: "sm_89", smem_bytes: 100 * 1024, threads: 1536, ctas: 24 };
    /// NVIDIA H100 and H200.
    pub const SM_90: Multiprocessor =
        Multiprocessor { name: "sm_90", smem_bytes: 228 * 1024, threads: 2048, ctas: 32 };

    /// CTAs of `threads` threads with `registers` registers each (as `ptxas -v` says) and `smem_bytes` of shared memory
    /// that fit at once; `None` if not even one does.
    pub fn occupancy(&self, threads: u32, registers: u32, smem_bytes: u32) -> Option<Occupancy> {
        let warps = threads.div_ceil(32).max(1);
        // Registers are given out to whole warps, eight a thread at a time.
        let warp_registers = registers.max(1).next_multiple_of(8) * 32;
        let by_registers = 4 * (PARTITION_REGISTERS / warp_registers) / warps;
        let by_smem = self.smem_bytes / smem_bytes.saturating_add(RESERVED_SMEM);
        let candidates = [
            (by_registers, OccupancyLimit::Registers),
            (by_smem, OccupancyLimit::SharedMemory),
            (self.threads / (32 * warps), OccupancyLimit::Threads),
            (self.ctas, OccupancyLimit::Ctas),
        ];
        let (ctas, limit) = candidates.into_iter().min_by_key(|c| c.0)?;
        let warps_max = self.threads / 32;
        (ctas > 0).then_some(Occupancy { ctas, warps: ctas * warps, warps_max, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_first_limits() {
        let on = |threads, registers, smem| Multiprocessor::SM_89.occupancy(threads, registers, smem);
        let is = |o: Option<Occupancy>| o.map(|o| (o.ctas, o.limit));
        assert_eq!(is(on(128, 132, 40 * 1024)), Some((2, OccupancyLimit::SharedMemory)));
        assert_eq!(is(on(128, 132, 8 * 1024)), Some((3, OccupancyLimit::Registers)));
        assert_eq!(is(on(512, 32, 0)), Some((3, OccupancyLimit::Threads)));
        assert_eq!(is(on(32, 16, 0)), Some((24, OccupancyLimit::Ctas)));
        assert_eq!(on(128, 64, 100 * 1024), None);
        assert_eq!(on(1024, 255, 0), None);
    }
}
